//! What a checkout, a builder or a fill can answer instead of succeeding. Each
//! error says which limit was met and with what figures; none holds a secret
//! unless the connector's own error text does.

use std::fmt;
use std::time::Duration;

/// Why a checkout got no connection.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum GetError {
    /// The deadline came first.
    #[error(transparent)]
    Timeout(#[from] Timeout),
    /// `max_waiters` were waiting already; nothing was waited for.
    #[error(
        "queue full: {waiting} waiting, {in_use} in use; raise max_waiters or max_open, or send less"
    )]
    QueueFull {
        /// Checkouts waiting.
        waiting: u32,
        /// Connections in use.
        in_use: u32,
    },
    /// Every source that may be used is throttled for longer than `max_retry_after`.
    #[error(
        "every source is throttled for another {retry_after:?}, longer than max_retry_after ({tolerance:?})"
    )]
    Throttled {
        /// Until the first source may be used again.
        retry_after: Duration,
        /// The setting.
        tolerance: Duration,
    },
    /// `try_get` found nothing ready.
    #[error("nothing ready: {in_use} in use, {opening} opening")]
    Empty {
        /// Connections in use.
        in_use: u32,
        /// Opens under way.
        opening: u32,
    },
    /// The options exclude every source of the pool.
    #[error("the options exclude every source of this pool")]
    NoSource,
    /// The pool was drained, or the runtime that ran it has ended.
    #[error("the pool is closed")]
    Closed,
}

/// What a checkout was waiting for when its deadline came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// A connection to come back: every slot was taken.
    Queue,
    /// A throttled source.
    Throttle,
    /// A lease of the count budget.
    Lease,
    /// Credentials.
    Credentials,
    /// A permit of the rate budget.
    Rate,
    /// A connect under way, or a backend that cannot be reached.
    Connect,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Queue => "queue",
            Self::Throttle => "throttle",
            Self::Lease => "lease",
            Self::Credentials => "credentials",
            Self::Rate => "rate",
            Self::Connect => "connect",
        })
    }
}

/// A deadline that came, with the figures of that instant.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Timeout {
    /// How long the checkout waited.
    pub waited: Duration,
    /// What it was waiting for.
    pub phase: Phase,
    /// Connections in use.
    pub in_use: u32,
    /// Waiters that were before it.
    pub ahead: u32,
    /// Opens under way.
    pub opening: u32,
    /// What the last failed open said, if the last one failed.
    pub last_failure: Option<String>,
}

impl std::error::Error for Timeout {}

impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "waited {} in {}: {} in use, {} ahead, {} opening",
            Plain(self.waited),
            self.phase,
            self.in_use,
            self.ahead,
            self.opening
        )?;
        match &self.last_failure {
            Some(failure) => write!(f, "; last open failed: {failure}"),
            None => Ok(()),
        }
    }
}

/// A duration as people write it: `30 s`, `1.5 s`, `250 ms`.
struct Plain(Duration);

impl fmt::Display for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 >= Duration::from_secs(1) {
            let seconds = (self.0.as_secs_f64() * 100.0).round() / 100.0;
            write!(f, "{seconds} s")
        } else {
            write!(f, "{} ms", self.0.as_millis())
        }
    }
}

/// Settings that cannot work, refused by `build()`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// One value makes the other impossible.
    #[error("source `{source_name}`: {low_name} ({low}) must {relation} {high_name} ({high})")]
    Contradiction {
        /// The source whose settings these are.
        source_name: String,
        /// The first setting.
        low_name: &'static str,
        /// Its value.
        low: String,
        /// "be below" or "not exceed".
        relation: &'static str,
        /// The second setting.
        high_name: &'static str,
        /// Its value.
        high: String,
    },
    /// A value that must be at least one is zero.
    #[error("source `{source_name}`: {name} is 0; it must be at least 1")]
    Zero {
        /// The source whose setting this is.
        source_name: String,
        /// The setting.
        name: &'static str,
    },
    /// As [`Zero`](Self::Zero), for a setting of the pool as a whole.
    #[error("{name} is 0; it must be at least 1")]
    PoolZero {
        /// The setting.
        name: &'static str,
    },
    /// A pool without a source, or with more than it can tell apart.
    #[error("a pool has 1 to {max} sources, not {given}")]
    SourceCount {
        /// How many were given.
        given: usize,
        /// The most.
        max: usize,
    },
    /// Two sources with one name.
    #[error("two sources are named `{0}`")]
    DuplicateSource(String),
    /// The count budget closes connections in use when its leases run out, and this
    /// connector gives no way to do that.
    #[error(
        "source `{0}`: its count budget must be able to close connections in use, but the connector \
         gives no killer; set Connector::KILLS and give one with Opened::with_killer, or choose \
         another policy for the loss of the coordinator than `fence`"
    )]
    NoKiller(String),
    /// `build()` was called outside a tokio runtime.
    #[error("build() must be called inside a tokio runtime: the pool's driver runs there")]
    NoRuntime,
}

/// The stock did not reach the wanted size in time.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{usable} of {wanted} connections after {waited:?}{}", failure(.last_failure))]
#[non_exhaustive]
pub struct NotReady {
    /// Connections ready or in use.
    pub usable: u32,
    /// Connections wanted.
    pub wanted: u32,
    /// How long it was waited.
    pub waited: Duration,
    /// What the last failed open said, if the last one failed.
    pub last_failure: Option<String>,
}

fn failure(last: &Option<String>) -> String {
    last.as_ref().map_or_else(String::new, |text| format!("; last open failed: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_names_its_phase_and_its_figures() {
        let timeout = Timeout {
            waited: Duration::from_secs(30),
            phase: Phase::Queue,
            in_use: 50,
            ahead: 12,
            opening: 0,
            last_failure: None,
        };
        assert_eq!(
            GetError::from(timeout).to_string(),
            "waited 30 s in queue: 50 in use, 12 ahead, 0 opening"
        );
    }
}
