//! The one error type of xtask: a message for the person at the terminal, built up from the
//! inside out, plus a mark for mistakes on the command line (which exit with code 2).

use std::fmt;

/// Shorthand for results of this crate.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// What went wrong, in words.
#[derive(Debug)]
pub(crate) struct Error {
    message: String,
    usage: bool,
}

impl Error {
    /// Something failed while doing the work.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), usage: false }
    }

    /// The command line made no sense.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), usage: true }
    }

    /// Whether the command line was at fault.
    pub(crate) fn is_usage(&self) -> bool {
        self.usage
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// Says what was being attempted when an operation failed.
pub(crate) trait Context<T> {
    /// Turns the error into `"{what}: {error}"`; `what` is only built on failure.
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error::new(format!("{}: {error}", what())))
    }
}
