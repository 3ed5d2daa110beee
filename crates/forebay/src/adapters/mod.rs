//! Connection managers written for other pools, as connectors of this one:
//! [`FromDeadpool`] takes any `deadpool::managed::Manager`, [`FromBb8`] any
//! `bb8::ManageConnection` (features `deadpool` and `bb8`).
//!
//! A manager can do less than a [`Connector`](crate::Connector), and an adapter
//! cannot make up for it:
//! - Both pools look a connection over *before* they hand it out. Here that is
//!   done in the background *after* it comes back, so a checkout does not pay
//!   for it. What dies in stock is found by `idle_check`: set it, it is off by
//!   default.
//! - A manager cannot say when the backend has let go of a connection, so every
//!   close is unconfirmed and its slot stays taken for `close_grace`.
//! - There is no `Killer`: `hard_life` and the end of a drain cannot close a
//!   connection that somebody holds.
//! - What belongs to the other pool and not to its manager stays behind:
//!   deadpool's hooks, bb8's `CustomizeConnection` and error sink.

#[cfg(feature = "bb8")]
mod bb8;
#[cfg(feature = "deadpool")]
mod deadpool;

use std::fmt;

#[cfg(feature = "bb8")]
pub use self::bb8::FromBb8;
#[cfg(feature = "deadpool")]
pub use self::deadpool::{FromDeadpool, Managed};
use crate::connector::Failure;

/// What a manager's error said. The error itself is not kept: managers need not
/// have errors that may be shared between threads.
#[derive(Debug, Clone)]
pub struct AdapterError {
    text: String,
    failure: Failure,
}

impl fmt::Display for AdapterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for AdapterError {}

type Describe<E> = Box<dyn Fn(&E) -> String + Send + Sync>;
type Classify<E> = Box<dyn Fn(&E) -> Failure + Send + Sync>;

/// How a manager's errors are read.
struct Errors<E> {
    describe: Describe<E>,
    classify: Classify<E>,
}

impl<E> Errors<E> {
    fn described_by(describe: impl Fn(&E) -> String + Send + Sync + 'static) -> Self {
        Self { describe: Box::new(describe), classify: Box::new(|_| Failure::Unknown) }
    }

    fn read(&self, error: &E) -> AdapterError {
        AdapterError { text: (self.describe)(error), failure: (self.classify)(error) }
    }
}

impl<E: std::error::Error + 'static> Errors<E> {
    /// The text of the error and of its causes.
    fn with_causes() -> Self {
        Self::described_by(|error| crate::driver::describe(error))
    }
}
