//! What a backend must offer to be pooled: the [`Connector`], and the small
//! types that its methods answer with.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::lost::Lost;

/// Opens connections of one backend, and judges those that come back.
///
/// Only [`connect`](Self::connect) must be written; every other method has a
/// default that is safe for a stateless connection.
///
/// ```
/// use forebay::{Connector, Opened};
///
/// struct Tcp(std::net::SocketAddr);
///
/// impl Connector for Tcp {
///     type Conn = tokio::net::TcpStream;
///     type Key = ();
///     type Error = std::io::Error;
///
///     async fn connect(&self, _key: &()) -> Result<Opened<Self::Conn>, Self::Error> {
///         Ok(Opened::new(tokio::net::TcpStream::connect(self.0).await?))
///     }
/// }
/// ```
pub trait Connector: Send + Sync + 'static {
    /// One connection.
    type Conn: Send + 'static;

    /// What makes connections interchangeable: a checkout gets a connection that
    /// was opened for an equal key. Use `()` when all are alike. Keys share the
    /// source's caps; at the cap the longest idle connection of another key gives way.
    type Key: Clone + Ord + Default + Debug + Send + Sync + 'static;

    /// Why a connection could not be opened, checked or reset. Its text reaches
    /// logs and the errors of waiting checkouts, so it must hold no secret.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Whether every connection comes with a [`Killer`]. Budgets that must be able to
    /// close connections in use are refused without.
    const KILLS: bool = false;

    /// Gets ready to connect: fetch or refresh credentials. Runs *before* a rate
    /// permit is taken, so a slow answer costs no permit.
    fn prepare(&self, key: &Self::Key) -> impl Future<Output = Result<(), Self::Error>> + Send {
        let _ = key;
        async { Ok(()) }
    }

    /// Opens one connection. The engine applies the time limit.
    fn connect(
        &self,
        key: &Self::Key,
    ) -> impl Future<Output = Result<Opened<Self::Conn>, Self::Error>> + Send;

    /// The connection is known to be dead. Called at every checkout and return:
    /// must be cheap and must not block.
    #[inline]
    fn is_broken(&self, conn: &Self::Conn) -> bool {
        let _ = conn;
        false
    }

    /// In which state a connection comes back. Must not block. A connection in
    /// the middle of a response is [`Returned::Unknown`].
    #[inline]
    fn state(&self, conn: &mut Self::Conn) -> Returned {
        let _ = conn;
        Returned::Clean
    }

    /// Undoes what the last user left on the connection. Runs in the background,
    /// under a time limit; the connection counts as in use meanwhile.
    fn reset(&self, conn: &mut Self::Conn) -> impl Future<Output = Result<(), Self::Error>> + Send {
        let _ = conn;
        async { Ok(()) }
    }

    /// Asks the backend whether an idle connection still works.
    fn check(&self, conn: &mut Self::Conn) -> impl Future<Output = Result<(), Self::Error>> + Send {
        let _ = conn;
        async { Ok(()) }
    }

    /// Closes a connection and completes once the backend has let go of it. The
    /// default drops it and cannot know, so its lease is kept for `close_grace`.
    fn close(&self, conn: Self::Conn) -> impl Future<Output = LetGo> + Send {
        drop(conn);
        async { LetGo::Unconfirmed }
    }

    /// Says what an error means for the pool's next step.
    fn classify(&self, error: &Self::Error) -> Failure {
        let _ = error;
        Failure::Unknown
    }
}

/// A connection just opened.
#[derive(Debug)]
pub struct Opened<C> {
    pub(crate) conn: C,
    pub(crate) killer: Option<Killer>,
    pub(crate) lost: Option<Lost>,
}

impl<C> Opened<C> {
    /// A connection that can only be closed by whoever holds it.
    pub fn new(conn: C) -> Self {
        Self { conn, killer: None, lost: None }
    }

    /// Adds a way to close it while somebody else holds it.
    #[must_use]
    pub fn with_killer(mut self, killer: Killer) -> Self {
        self.killer = Some(killer);
        self
    }

    /// Adds a way to learn at once that it has died while it was idle.
    #[must_use]
    pub fn with_lost(mut self, lost: Lost) -> Self {
        self.lost = Some(lost);
        self
    }
}

/// Closes the socket of a connection even while user code holds it. It must be
/// synchronous, must not block, and may be called more than once.
///
/// ```
/// let killer = forebay::Killer::new(|| { /* shutdown(2) on the socket */ });
/// killer.kill();
/// ```
#[derive(Clone)]
pub struct Killer(Arc<dyn Fn() + Send + Sync>);

impl Killer {
    /// Wraps the closing action.
    pub fn new(kill: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(kill))
    }

    /// Closes the connection now.
    pub fn kill(&self) {
        (self.0)();
    }
}

impl Debug for Killer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Killer")
    }
}

/// How a connection comes back from its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returned {
    /// Nothing of the last user is left on it.
    Clean,
    /// Usable again after [`Connector::reset`].
    NeedsReset,
    /// Dead, as [`Connector::is_broken`] would say if it did not need `&mut` to
    /// find out: it is discarded.
    Broken,
    /// In the middle of something: it is discarded.
    Unknown,
}

/// Whether the backend is known to have let go of a closed connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LetGo {
    /// Its end-of-file or reset was read.
    Confirmed,
    /// Unknown: the lease is kept for `close_grace`.
    Unconfirmed,
}

/// What a failed open means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Nothing is known: something may be left at the backend, so the slot is
    /// kept for `close_grace`.
    Unknown,
    /// The backend was not reached or has answered no: nothing is left there.
    Refused,
    /// Refused because opens come too fast; not to be tried again before this.
    TooFast(Option<Duration>),
    /// Refused because too many connections are open.
    TooMany,
    /// The credentials were not accepted or could not be had.
    Credentials,
}
