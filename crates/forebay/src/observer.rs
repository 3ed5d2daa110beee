//! What happens in a pool, for those who want to watch it: rare events only.
//! Checkouts and returns are counted, not announced.

use std::sync::Arc;
use std::time::Duration;

use crate::invariant::Invariant;
use crate::reason::{Discard, OpenFailure};

/// Something that happened. Sources are named as in the settings.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// A connection was opened.
    Opened {
        /// Its source.
        source: Arc<str>,
        /// From the permit to the connection.
        took: Duration,
    },
    /// A connection could not be opened, checked or reset.
    OpenFailed {
        /// The source.
        source: Arc<str>,
        /// Which step failed.
        reason: OpenFailure,
        /// What the connector or budget said.
        error: String,
    },
    /// A connection is being closed.
    Discarded {
        /// Its source.
        source: Arc<str>,
        /// Why.
        reason: Discard,
        /// Its age.
        age: Duration,
        /// How often it was handed out.
        uses: u32,
    },
    /// A closed connection's slot is free again.
    Released {
        /// Its source.
        source: Arc<str>,
        /// Whether the backend is known to have let go.
        confirmed: bool,
    },
    /// The backend asked to wait.
    Throttled {
        /// The source.
        source: Arc<str>,
        /// For how long.
        retry_after: Duration,
    },
    /// The stock fell below its low watermark, or is back above it.
    Low {
        /// The source.
        source: Arc<str>,
        /// Below it now.
        low: bool,
    },
    /// Too many opens failed in a row, or one succeeded again.
    Breaker {
        /// The source.
        source: Arc<str>,
        /// Open now.
        open: bool,
    },
    /// A checkout ran out of time.
    TimedOut {
        /// After this long.
        waited: Duration,
    },
    /// Something was handed to a checkout that was not polled in time, and moved on.
    Unclaimed,
    /// A promise was broken. This is a bug in the engine: please report it.
    Breach(Invariant),
}

/// Watches a pool. Called outside the pool's lock, from whichever task or
/// thread caused the event; must not block.
///
/// ```
/// use forebay::{Event, Observer};
/// struct Log;
/// impl Observer for Log {
///     fn event(&self, event: &Event) { println!("{event:?}"); }
/// }
/// ```
pub trait Observer: Send + Sync + 'static {
    /// Something happened.
    fn event(&self, event: &Event);
}
