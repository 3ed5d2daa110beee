//! `forebay dev`: a rationed backend, a pool in front of it and tasks that use
//! the pool, all in this process, with a view of what they do. This file puts
//! the parts together and ends them in order.

mod args;
mod backend;
mod connector;
mod ledger;
pub(crate) mod paint;
mod sample;
mod screen;
mod summary;
mod table;
mod wire;
mod workload;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay::{LocalRate, Pool};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

pub(crate) use args::Args;
use args::Plan;
use backend::Backend;
use connector::Tcp;
use sample::{Notes, Sampler};
use screen::Screen;
use workload::Seen;

/// How long connections may take to come back and be closed at the end, beside
/// the time of a request.
const DRAIN_WITHIN: Duration = Duration::from_secs(5);
/// The least time that a closed connection keeps its slot if the backend does
/// not confirm.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// Why nothing could be shown.
#[derive(Debug)]
pub(crate) enum Error {
    /// The arguments contradict each other.
    Arguments(String),
    /// The system did not give what is needed.
    Io(std::io::Error),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Arguments(message) => f.write_str(message),
            Self::Io(error) => write!(f, "the backend could not be started: {error}"),
        }
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

/// Runs it all; `true` if every limit was kept.
pub(crate) fn run(args: &Args) -> Result<bool, Error> {
    let plan = args.plan().map_err(Error::Arguments)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(show(&plan, Screen::stdout(args.no_color)))
}

async fn show(plan: &Plan, mut screen: Screen) -> Result<bool, Error> {
    let backend = Backend::start(plan.limits, plan.handshake, plan.service).await?;
    let notes = Notes::default();
    let pool = pool(plan, backend.address(), notes.clone())?;
    let seen = Arc::new(Seen::default());
    let work = tokio::spawn(workload::run(pool.clone(), plan.clone(), seen.clone()));

    let start = Instant::now();
    let mut sampler = Sampler::new(start);
    let second = Duration::from_secs(1);
    let mut seconds = interval_at(start + second, second);
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let end = asked_to_end(plan.run_for);
    tokio::pin!(end);
    // a reader that has gone away (`| head`) asks to end, too
    let mut watched = screen.begin(plan, backend.address()).is_ok();
    while watched {
        tokio::select! {
            biased;
            () = &mut end => break,
            _ = seconds.tick() => {
                let sample = sampler.take(&pool, &backend, &seen, &notes);
                watched = screen.show(&sample, plan).is_ok();
            }
        }
    }

    let drained = pool.drain(DRAIN_WITHIN + plan.service).await;
    work.abort();
    let sample = sampler.take(&pool, &backend, &seen, &notes);
    let _ = screen.end(&sample, plan, drained);
    Ok(sample.is_good())
}

/// The pool, set up for the limits of the backend.
fn pool(plan: &Plan, address: SocketAddr, notes: Notes) -> Result<Pool<Tcp>, Error> {
    let lives = &plan.lives;
    let mut builder = Pool::builder(Tcp(address))
        .max_open(plan.limits.max_open)
        .target_ready(plan.target_ready)
        .base_lifetime(lives.base)
        .lifetime_jitter(lives.jitter)
        .guard_window(lives.guard)
        .lead(lives.lead)
        // an answer under way comes before the end of a connection
        .close_grace(CLOSE_GRACE + plan.service)
        .max_waiters(plan.tasks)
        .stagger(None)
        .seed(plan.seed)
        .observer(notes);
    if let Some(pace) = plan.pace {
        builder = builder.rate(LocalRate::shared(pace));
    }
    builder.build().map_err(|error| Error::Arguments(error.to_string()))
}

/// Completes on Ctrl-C, on a request to terminate, or when the time is over.
async fn asked_to_end(run_for: Option<Duration>) {
    let over = async {
        match run_for {
            Some(time) => sleep(time).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = over => {}
        () = interrupted() => {}
        () = terminated() => {}
    }
}

async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        // without a handler the signal ends the process, as it should
        std::future::pending().await
    }
}

#[cfg(unix)]
async fn terminated() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut signal) => drop(signal.recv().await),
        Err(_) => std::future::pending().await,
    }
}

#[cfg(not(unix))]
async fn terminated() {
    std::future::pending().await
}
