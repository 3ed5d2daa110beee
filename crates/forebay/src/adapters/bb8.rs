//! Any `bb8::ManageConnection` as a [`Connector`].

use ::bb8::ManageConnection;

use super::{AdapterError, Errors};
use crate::connector::{Connector, Failure, Opened, Returned};

/// A bb8 manager as a [`Connector`].
///
/// | bb8 | when it runs here |
/// |---|---|
/// | `connect` | to open a connection, in the background, under `connect_timeout` |
/// | `has_broken` | when a connection comes back; `true` discards it as `broken` |
/// | `is_valid` | after each use, in the background, under `reset_timeout` (unless [`validate(false)`](Self::validate)); and on connections idle for `idle_check`, under `check_timeout`. An error, a panic or the end of the time limit discards the connection as `broken` |
///
/// bb8 asks `is_valid` when a connection is asked for, this when it comes back:
/// one that dies in stock is noticed by `idle_check` (off unless you set it) or
/// by its next user.
///
/// As in bb8, nothing undoes what a user left on a connection, and nothing but
/// the manager's own `has_broken` and `is_valid` can notice one that comes back
/// in the middle of a response: discard such a connection yourself
/// ([`Guard::discard`](crate::Guard::discard)).
///
/// ```
/// use std::{io, net::SocketAddr, time::Duration};
/// use bb8::ManageConnection;
/// use forebay::{Pool, adapters::FromBb8};
/// use tokio::net::{TcpListener, TcpStream};
///
/// struct Tcp(SocketAddr);
/// impl ManageConnection for Tcp {
///     type Connection = TcpStream;
///     type Error = io::Error;
///     async fn connect(&self) -> io::Result<TcpStream> {
///         TcpStream::connect(self.0).await
///     }
///     async fn is_valid(&self, conn: &mut TcpStream) -> io::Result<()> {
///         conn.set_nodelay(true)
///     }
///     fn has_broken(&self, conn: &mut TcpStream) -> bool {
///         conn.peer_addr().is_err()
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let listener = TcpListener::bind("127.0.0.1:0").await?;
/// # let address = listener.local_addr()?;
/// let pool = Pool::builder(FromBb8::new(Tcp(address)))
///     .max_open(2)
///     .idle_check(Some(Duration::from_secs(30)))
///     .stagger(None)
///     .build()?;
/// let conn = pool.get().await?; // derefs to the TcpStream
/// assert_eq!(conn.peer_addr()?, address);
/// # Ok(()) }
/// ```
pub struct FromBb8<M: ManageConnection> {
    manager: M,
    errors: Errors<M::Error>,
    validate: bool,
}

impl<M: ManageConnection> FromBb8<M> {
    /// Adapts a manager whose errors are `std::error::Error`s. Their texts reach
    /// logs and the errors of waiting checkouts, so they must hold no secret.
    pub fn new(manager: M) -> Self
    where
        M::Error: std::error::Error,
    {
        Self { manager, errors: Errors::with_causes(), validate: true }
    }

    /// Adapts a manager whose errors are something else: `describe` puts them
    /// into words.
    pub fn described_by(
        manager: M,
        describe: impl Fn(&M::Error) -> String + Send + Sync + 'static,
    ) -> Self {
        Self { manager, errors: Errors::described_by(describe), validate: true }
    }

    /// Says what a failed `connect` means for the pool's next step. Without it
    /// nothing is known, and each failure keeps its slot for `close_grace`.
    #[must_use]
    pub fn classify(
        mut self,
        classify: impl Fn(&M::Error) -> Failure + Send + Sync + 'static,
    ) -> Self {
        self.errors.classify = Box::new(classify);
        self
    }

    /// Whether `is_valid` is asked after each use: `true` unless set, as bb8's
    /// `test_on_check_out`. With `false` a connection that is not `has_broken`
    /// goes straight to the next user.
    #[must_use]
    pub fn validate(mut self, validate: bool) -> Self {
        self.validate = validate;
        self
    }

    /// The manager.
    pub fn manager(&self) -> &M {
        &self.manager
    }

    async fn ask(&self, conn: &mut M::Connection) -> Result<(), AdapterError> {
        self.manager.is_valid(conn).await.map_err(|error| self.errors.read(&error))
    }
}

impl<M: ManageConnection> Connector for FromBb8<M> {
    type Conn = M::Connection;
    type Key = ();
    type Error = AdapterError;

    async fn connect(&self, _key: &()) -> Result<Opened<M::Connection>, AdapterError> {
        let conn = self.manager.connect().await.map_err(|error| self.errors.read(&error))?;
        Ok(Opened::new(conn))
    }

    fn state(&self, conn: &mut M::Connection) -> Returned {
        // not in `is_broken`: bb8 wants the connection `&mut`
        if self.manager.has_broken(conn) {
            Returned::Broken
        } else if self.validate {
            Returned::NeedsReset
        } else {
            Returned::Clean
        }
    }

    async fn reset(&self, conn: &mut M::Connection) -> Result<(), AdapterError> {
        self.ask(conn).await
    }

    async fn check(&self, conn: &mut M::Connection) -> Result<(), AdapterError> {
        self.ask(conn).await
    }

    fn classify(&self, error: &AdapterError) -> Failure {
        error.failure
    }
}
