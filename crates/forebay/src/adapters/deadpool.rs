//! Any `deadpool::managed::Manager` as a [`Connector`].

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use ::deadpool::managed::{Manager, Metrics, RecycleError};

use super::{AdapterError, Errors};
use crate::connector::{Connector, Failure, Opened, Returned};

/// A deadpool manager as a [`Connector`].
///
/// | deadpool | when it runs here |
/// |---|---|
/// | `create` | to open a connection, in the background, under `connect_timeout` |
/// | `recycle` | after each use, in the background, under `reset_timeout`; and on connections idle for `idle_check`, under `check_timeout`. An error, a panic or the end of the time limit discards the connection as `broken` |
/// | `detach` | once, when the connection is dropped for good, whatever the reason |
///
/// deadpool recycles when a connection is asked for, this when it comes back:
/// one that dies in stock is noticed by `idle_check` (off unless you set it) or
/// by its next user. `Metrics::recycled` is therefore when the connection last
/// came back or was checked, not when it was last handed out.
///
/// Nothing here knows whether a connection comes back in the middle of a
/// response. If the manager's `recycle` does not notice either, discard such a
/// connection yourself ([`Guard::discard`](crate::Guard::discard)).
///
/// ```
/// use std::{io, net::SocketAddr, time::Duration};
/// use deadpool::managed::{Manager, Metrics, RecycleResult};
/// use forebay::{Pool, adapters::FromDeadpool};
/// use tokio::net::{TcpListener, TcpStream};
///
/// struct Tcp(SocketAddr);
/// impl Manager for Tcp {
///     type Type = TcpStream;
///     type Error = io::Error;
///     async fn create(&self) -> io::Result<TcpStream> {
///         TcpStream::connect(self.0).await
///     }
///     async fn recycle(&self, conn: &mut TcpStream, _: &Metrics) -> RecycleResult<io::Error> {
///         Ok(conn.set_nodelay(true)?)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let listener = TcpListener::bind("127.0.0.1:0").await?;
/// # let address = listener.local_addr()?;
/// let pool = Pool::builder(FromDeadpool::new(Tcp(address)))
///     .max_open(2)
///     .idle_check(Some(Duration::from_secs(30)))
///     .stagger(None)
///     .build()?;
/// let conn = pool.get().await?; // derefs to the TcpStream
/// assert_eq!(conn.peer_addr()?, address);
/// # Ok(()) }
/// ```
pub struct FromDeadpool<M: Manager> {
    manager: Arc<M>,
    errors: Errors<M::Error>,
}

impl<M: Manager> FromDeadpool<M> {
    /// Adapts a manager whose errors are `std::error::Error`s. Their texts reach
    /// logs and the errors of waiting checkouts, so they must hold no secret.
    pub fn new(manager: M) -> Self
    where
        M::Error: std::error::Error + 'static,
    {
        Self { manager: Arc::new(manager), errors: Errors::with_causes() }
    }

    /// Adapts a manager whose errors are something else: `describe` puts them
    /// into words.
    pub fn described_by(
        manager: M,
        describe: impl Fn(&M::Error) -> String + Send + Sync + 'static,
    ) -> Self {
        Self { manager: Arc::new(manager), errors: Errors::described_by(describe) }
    }

    /// Says what a failed `create` means for the pool's next step. Without it
    /// nothing is known, and each failure keeps its slot for `close_grace`.
    #[must_use]
    pub fn classify(
        mut self,
        classify: impl Fn(&M::Error) -> Failure + Send + Sync + 'static,
    ) -> Self {
        self.errors.classify = Box::new(classify);
        self
    }

    /// The manager.
    pub fn manager(&self) -> &M {
        &self.manager
    }

    async fn recycle(&self, conn: &mut Managed<M>) -> Result<(), AdapterError> {
        let recycled = self.manager.recycle(&mut conn.object, &conn.metrics).await;
        recycled.map_err(|error| match error {
            RecycleError::Message(text) => {
                AdapterError { text: text.into_owned(), failure: Failure::Unknown }
            }
            RecycleError::Backend(error) => self.errors.read(&error),
        })?;
        conn.metrics.recycle_count += 1;
        conn.metrics.recycled = Some(wall_clock());
        Ok(())
    }
}

/// deadpool's metrics are instants of the standard library, which a manager
/// compares with that clock and no other.
#[expect(clippy::disallowed_methods, reason = "for the manager's eyes, the engine never reads it")]
fn wall_clock() -> std::time::Instant {
    std::time::Instant::now()
}

impl<M: Manager + 'static> Connector for FromDeadpool<M> {
    type Conn = Managed<M>;
    type Key = ();
    type Error = AdapterError;

    async fn connect(&self, _key: &()) -> Result<Opened<Managed<M>>, AdapterError> {
        let object = self.manager.create().await.map_err(|error| self.errors.read(&error))?;
        let manager = self.manager.clone();
        Ok(Opened::new(Managed { object, metrics: Metrics::default(), manager }))
    }

    fn state(&self, _conn: &mut Managed<M>) -> Returned {
        // a manager has no other way to tell than to recycle
        Returned::NeedsReset
    }

    async fn reset(&self, conn: &mut Managed<M>) -> Result<(), AdapterError> {
        self.recycle(conn).await
    }

    async fn check(&self, conn: &mut Managed<M>) -> Result<(), AdapterError> {
        self.recycle(conn).await
    }

    fn classify(&self, error: &AdapterError) -> Failure {
        error.failure
    }
}

/// A connection made by a deadpool manager, with its metrics. Derefs to what
/// the manager made; dropping it tells the manager so (`detach`).
pub struct Managed<M: Manager> {
    object: M::Type,
    metrics: Metrics,
    manager: Arc<M>,
}

impl<M: Manager> Managed<M> {
    /// When the connection was created and how often it was recycled. Not a
    /// method, so that it hides none of the connection's own.
    pub fn metrics(this: &Self) -> &Metrics {
        &this.metrics
    }
}

impl<M: Manager> Deref for Managed<M> {
    type Target = M::Type;

    fn deref(&self) -> &M::Type {
        &self.object
    }
}

impl<M: Manager> DerefMut for Managed<M> {
    fn deref_mut(&mut self) -> &mut M::Type {
        &mut self.object
    }
}

impl<M: Manager> Drop for Managed<M> {
    // here and not in `close`, which does not run once the pool's runtime has ended
    fn drop(&mut self) {
        self.manager.detach(&mut self.object);
    }
}

impl<M: Manager> fmt::Debug for Managed<M>
where
    M::Type: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Managed").field(&self.object).finish()
    }
}
