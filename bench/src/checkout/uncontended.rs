//! The uncontended case: one task that takes a connection and gives it back,
//! over and over; timed on the multi-thread runtime, or a fixed number of times
//! and untimed on the current-thread runtime, for counting instructions.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime;
use tokio::task::unconstrained;

use super::WORKERS;
use super::rounds::{Sample, Window};
use super::subject::{Subject, opened, reset_opened};

/// Checkouts between two looks at the clock.
const BATCH: u64 = 256;

/// The runtime of every timed case: two workers, and both drivers on, as a
/// program that talks to a database has them.
pub(crate) fn timed_runtime() -> Result<runtime::Runtime> {
    runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .context("the multi-thread runtime does not start")
}

/// Processor time this process has used until now, of all its threads.
pub(crate) fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(nanos)
}

/// `total` spread over `ops`, in nanoseconds.
pub(crate) fn nanos_per_op(total: Duration, ops: u64) -> f64 {
    total.as_nanos() as f64 / ops.max(1) as f64
}

/// Takes a connection and gives it back, `times` times.
async fn take_and_return<S: Subject>(pool: &S, times: u64) -> Result<()> {
    for _ in 0..times {
        let guard = pool.get().await?;
        black_box(guard.id());
        drop(guard);
    }
    Ok(())
}

/// Times the loop in a task of its own.
///
/// The task runs `unconstrained`: tokio's semaphore makes a task yield at every
/// 128th acquisition within one poll, which no real request comes near, and
/// which would burden only the pools built on that semaphore.
pub(crate) fn timed<S: Subject>(window: Window) -> Result<Sample> {
    let runtime = timed_runtime()?;
    reset_opened();
    let pool = runtime.block_on(S::build())?;
    let task = async move {
        let warm = Instant::now();
        while warm.elapsed() < window.warm_up {
            take_and_return(&pool, BATCH).await?;
        }
        let mut ops = 0;
        let cpu_before = cpu_time();
        let start = Instant::now();
        let wall = loop {
            take_and_return(&pool, BATCH).await?;
            ops += BATCH;
            let wall = start.elapsed();
            if wall >= window.measure {
                break wall;
            }
        };
        let cpu = cpu_time().saturating_sub(cpu_before);
        Ok(Sample {
            ns_per_op: nanos_per_op(wall, ops),
            cpu_ns_per_op: nanos_per_op(cpu, ops),
            waits: None,
            opened: 0,
            stuck: 0,
        })
    };
    let task = runtime.spawn(unconstrained(task));
    let sample: Result<Sample> = runtime.block_on(task).context("the task panicked")?;
    runtime.shutdown_timeout(Duration::from_millis(100));
    Ok(Sample { opened: opened(), ..sample? })
}

/// Runs the loop `iterations` times on a current-thread runtime, untimed.
pub(crate) fn counted<S: Subject>(iterations: u64) -> Result<()> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the current-thread runtime does not start")?;
    runtime.block_on(async {
        let pool = S::build().await?;
        unconstrained(take_and_return(&pool, iterations)).await
    })
}
