//! `forebay fleet`: what operators do with the books that a fleet shares. This file
//! picks the task and says what its failures mean; the keepers themselves are in
//! `forebay-fleet`, and in this binary if it was built with them.

mod args;
mod place;
mod reap;
mod render;
mod setup;
mod status;

use std::process::ExitCode;

pub(crate) use args::Args;
use args::Task;
use forebay_fleet::KeeperError;

/// What came of it, as an exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// No such backend or member, or it was left alone.
    Refused,
}

/// Why nothing could be done.
#[derive(Debug)]
pub(crate) enum Error {
    /// The arguments make no sense.
    Arguments(String),
    /// The keeper is away or cannot be used.
    Keeper(KeeperError),
    /// This binary was built without it.
    #[cfg(not(all(feature = "redis", feature = "dynamodb")))]
    NotBuilt { keeper: &'static str, feature: &'static str },
    /// The output could not be written, or there is no runtime.
    Io(std::io::Error),
}

impl Error {
    fn code(&self) -> u8 {
        match self {
            Self::Io(_) => 1,
            Self::Arguments(_) => 2,
            Self::Keeper(_) => 3,
            #[cfg(not(all(feature = "redis", feature = "dynamodb")))]
            Self::NotBuilt { .. } => 3,
        }
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Arguments(message) => f.write_str(message),
            Self::Keeper(error) => error.fmt(f),
            #[cfg(not(all(feature = "redis", feature = "dynamodb")))]
            Self::NotBuilt { keeper, feature } => write!(
                f,
                "this binary was built without {keeper}; build one with it: cargo build --release \
                 --features redis,dynamodb (or --features {feature} for it alone)"
            ),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl From<KeeperError> for Error {
    fn from(error: KeeperError) -> Self {
        Self::Keeper(error)
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

/// Runs a task and says what came of it.
pub(crate) fn run(args: &Args) -> ExitCode {
    match perform(args) {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Refused) => ExitCode::from(1),
        // whoever read the output has seen enough
        Err(Error::Io(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("forebay: {error}");
            ExitCode::from(error.code())
        }
    }
}

fn perform(args: &Args) -> Result<Outcome, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match &args.task {
            Task::Setup { kind } => setup::run(kind).await,
            Task::Status(status) => status::run(status).await,
            Task::Reap(reap) => reap::run(reap).await,
        }
    })
}
