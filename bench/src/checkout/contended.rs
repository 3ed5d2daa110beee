//! The contended cases: many tasks on few connections, each of which takes a
//! connection, yields while it holds it, and gives it back. Measures the
//! throughput of a window of fixed length, and in a second one how long the
//! tasks waited.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use tokio::task::yield_now;
use tokio::time::timeout_at;

use super::rounds::{Sample, Waits, Window};
use super::subject::{Subject, opened, reset_opened};
use super::uncontended::{cpu_time, nanos_per_op, timed_runtime};

/// Stands for "not yet" or "not" where a moment is kept.
const NEVER: u64 = u64::MAX;

/// Stands for a moment before the waits are watched, at which no clock was read.
const BEFORE: u64 = 0;

/// How long tasks may still wait for a connection when the window is over;
/// nobody competes any more, so those that then get none were forgotten.
const GRACE: Duration = Duration::from_secs(1);

/// The longest wait a histogram tells apart, in nanoseconds.
const LONGEST: u64 = 60_000_000_000;

/// What a task shows to the measuring thread; on cache lines of its own.
#[repr(align(128))]
struct Slot {
    /// The moment at which the task asked for the connection it waits for.
    waiting_since: AtomicU64,
    /// Connections it took and gave back.
    ops: AtomicU64,
}

/// What tasks and measuring thread share. Moments are nanoseconds since `base`.
struct Shared {
    base: Instant,
    /// When the window began; waits are counted from then on.
    since: AtomicU64,
    /// When the window ended; waits are counted until then.
    until: AtomicU64,
    slots: Vec<Slot>,
}

impl Shared {
    fn new(tasks: usize) -> Self {
        let slot = || Slot { waiting_since: AtomicU64::new(NEVER), ops: AtomicU64::new(0) };
        Self {
            base: Instant::now(),
            since: AtomicU64::new(NEVER),
            until: AtomicU64::new(NEVER),
            slots: (0..tasks).map(|_| slot()).collect(),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.base.elapsed().as_nanos()).unwrap_or(NEVER - 1)
    }

    /// Whether waits are being watched.
    fn watching(&self) -> bool {
        self.since.load(Ordering::Relaxed) != NEVER
    }

    fn ops(&self) -> u64 {
        let ops = |slot: &Slot| slot.ops.load(Ordering::Relaxed);
        self.slots.iter().map(ops).sum()
    }

    /// The part of a wait that lies within the window, if any does.
    fn within(&self, asked: u64, got: u64) -> Option<u64> {
        let since = self.since.load(Ordering::Relaxed);
        let until = self.until.load(Ordering::Relaxed);
        (got > since && asked < until).then(|| got.min(until) - asked.max(since))
    }
}

/// The waits of one task, or of all.
struct Recorded {
    histogram: Histogram<u32>,
    longest: u64,
}

impl Recorded {
    fn new() -> Result<Self> {
        Ok(Self { histogram: Histogram::new_with_bounds(1, LONGEST, 2)?, longest: 0 })
    }

    fn record(&mut self, wait: u64) {
        self.histogram.saturating_record(wait);
        self.longest = self.longest.max(wait);
    }

    fn add(&mut self, other: &Self) -> Result<()> {
        self.histogram.add(&other.histogram)?;
        self.longest = self.longest.max(other.longest);
        Ok(())
    }

    fn waits(&self) -> Waits {
        Waits {
            p50: self.histogram.value_at_quantile(0.5),
            p99: self.histogram.value_at_quantile(0.99),
            p999: self.histogram.value_at_quantile(0.999),
            max: self.longest,
        }
    }
}

/// One of the many tasks; runs until the windows are over.
///
/// A wait the window cuts off, at either end, counts with the part that lies
/// within it: so a task that starves throughout shows a wait as long as the
/// window.
async fn compete<S: Subject>(
    pool: S,
    shared: Arc<Shared>,
    index: usize,
    mut recorded: Recorded,
) -> Result<Recorded> {
    let slot = &shared.slots[index];
    let mut ops = 0;
    while shared.until.load(Ordering::Relaxed) == NEVER {
        let asked = if shared.watching() { shared.now() } else { BEFORE };
        slot.waiting_since.store(asked, Ordering::Relaxed);
        let guard = pool.get().await?;
        slot.waiting_since.store(NEVER, Ordering::Relaxed);
        if shared.watching()
            && let Some(wait) = shared.within(asked, shared.now())
        {
            recorded.record(wait);
        }
        black_box(guard.id());
        yield_now().await;
        drop(guard);
        ops += 1;
        slot.ops.store(ops, Ordering::Relaxed);
    }
    Ok(recorded)
}

/// Lets `tasks` tasks compete for the connections during the window.
///
/// The window has a fixed length and is timed by this thread, which is none of
/// the runtime's workers, so a pool that starves some tasks cannot prolong it.
pub(crate) fn timed<S: Subject>(tasks: usize, window: Window) -> Result<Sample> {
    let runtime = timed_runtime()?;
    reset_opened();
    let pool = runtime.block_on(S::build())?;
    let shared = Arc::new(Shared::new(tasks));
    let mut handles = Vec::with_capacity(tasks);
    for index in 0..tasks {
        let task = compete(pool.clone(), Arc::clone(&shared), index, Recorded::new()?);
        handles.push(runtime.spawn(task));
    }

    // first the throughput, with no clock read by the tasks: reading it twice an
    // operation would add to every pool what none of them costs
    thread::sleep(window.warm_up);
    let cpu_before = cpu_time();
    let ops_before = shared.ops();
    let began = shared.now();
    thread::sleep(window.measure);
    let since = shared.now();
    let ops = shared.ops() - ops_before;
    let cpu = cpu_time().saturating_sub(cpu_before);

    // then the waits
    shared.since.store(since, Ordering::Relaxed);
    thread::sleep(window.measure);
    shared.until.store(shared.now(), Ordering::Relaxed);

    let mut all = Recorded::new()?;
    let mut stuck = 0;
    runtime.block_on(async {
        let deadline = tokio::time::Instant::now() + GRACE;
        for (handle, slot) in handles.iter_mut().zip(&shared.slots) {
            match timeout_at(deadline, &mut *handle).await {
                Ok(joined) => all.add(&joined.context("a task panicked")??)?,
                Err(_) => {
                    handle.abort();
                    stuck += 1;
                    let asked = slot.waiting_since.load(Ordering::Relaxed);
                    if let Some(wait) = shared.within(asked, NEVER) {
                        all.record(wait);
                    }
                }
            }
        }
        anyhow::Ok(())
    })?;
    let opened = opened();
    runtime.shutdown_timeout(Duration::from_millis(100));

    let wall = Duration::from_nanos(since - began);
    Ok(Sample {
        ns_per_op: nanos_per_op(wall, ops),
        cpu_ns_per_op: nanos_per_op(cpu, ops),
        waits: Some(all.waits()),
        opened,
        stuck,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkout::subject::NoopConn;

    /// Serves a few hundred checkouts, and then forgets whoever asks.
    #[derive(Clone)]
    struct Forgetful(Arc<AtomicU64>);

    impl Subject for Forgetful {
        const NAME: &'static str = "forgetful";
        const FAIR: bool = false;

        type Guard<'a> = Box<NoopConn>;

        async fn build() -> Result<Self> {
            Ok(Self(Arc::default()))
        }

        async fn get(&self) -> Result<Box<NoopConn>> {
            if self.0.fetch_add(1, Ordering::Relaxed) >= 300 {
                std::future::pending::<()>().await;
            }
            Ok(Box::new(NoopConn::new()))
        }
    }

    #[test]
    fn tasks_that_are_forgotten_end_and_show_their_wait() {
        let millis = Duration::from_millis;
        let window = Window { warm_up: millis(50), measure: millis(100) };
        let sample = timed::<Forgetful>(4, window).expect("the run ends");
        assert_eq!(sample.stuck, 4);
        let longest = sample.waits.expect("waits are recorded").max;
        assert!(Duration::from_nanos(longest) >= millis(100), "{longest} ns");
    }

    #[test]
    fn a_wait_counts_with_its_part_within_the_window() {
        let shared = Shared::new(1);
        assert_eq!(shared.within(10, 20), None, "the window has not begun");
        shared.since.store(100, Ordering::Relaxed);
        assert_eq!(shared.within(10, 90), None);
        assert_eq!(shared.within(10, 150), Some(50));
        assert_eq!(shared.within(120, 150), Some(30));
        shared.until.store(200, Ordering::Relaxed);
        assert_eq!(shared.within(120, 300), Some(80));
        assert_eq!(shared.within(10, NEVER), Some(100));
        assert_eq!(shared.within(210, 300), None, "the window is over");
    }
}
