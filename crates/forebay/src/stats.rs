//! Counters, gauges and histograms of a pool. They are plain integers under the
//! pool's lock, so a checkout pays for an increment and no more; a snapshot
//! copies them out. Exporters live outside this crate.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::histogram::Histogram;
use crate::reason::{Discard, OpenFailure};

/// Running totals of a pool, as kept under the lock.
#[derive(Default, Clone)]
pub(crate) struct Tallies {
    pub(crate) timeouts: u64,
    pub(crate) refused_full: u64,
    pub(crate) refused_throttled: u64,
    pub(crate) unclaimed: u64,
    pub(crate) cancelled: u64,
    pub(crate) wakeups: u64,
    pub(crate) breaches: u64,
    pub(crate) create: Histogram,
    pub(crate) r#use: Histogram,
}

/// The waits of checkouts that did wait, recorded without the pool's lock: each
/// thread writes to a part of its own, so that threads do not pass it around.
#[derive(Default)]
pub(crate) struct Waits {
    parts: [Part; PARTS],
    /// The longest wait by the rough clock, which sees every wait.
    longest_nanos: AtomicU64,
}

const PARTS: usize = 8;

#[derive(Default)]
#[repr(align(128))]
struct Part(parking_lot::Mutex<Histogram>);

impl Waits {
    /// Records a wait that stands for `share` of them.
    pub(crate) fn record(&self, waited: Duration, share: u64) {
        self.parts[part()].0.lock().record_n(waited, share);
    }

    /// Notes a wait that is not timed if it is the longest so far.
    #[inline]
    pub(crate) fn record_if_longest(&self, waited: Duration) {
        let nanos =
            waited.as_secs().saturating_mul(1_000_000_000) + u64::from(waited.subsec_nanos());
        if nanos > self.longest_nanos.load(Ordering::Relaxed) {
            self.longest_nanos.fetch_max(nanos, Ordering::Relaxed);
        }
    }

    /// All waits, with those that took no time.
    pub(crate) fn total(&self, checkouts: u64) -> Histogram {
        let mut total = Histogram::default();
        for part in &self.parts {
            total.add(&part.0.lock());
        }
        total.raise_max(Duration::from_nanos(self.longest_nanos.load(Ordering::Relaxed)));
        total.add_zeros(checkouts.saturating_sub(total.count()));
        total
    }
}

/// The part of the present thread.
fn part() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static PART: usize = NEXT.fetch_add(1, Ordering::Relaxed) % PARTS;
    }
    PART.with(|part| *part)
}

/// Running totals of a source.
#[derive(Default, Clone)]
pub(crate) struct SourceTallies {
    pub(crate) opened: u64,
    pub(crate) failures: [u64; OpenFailure::ALL.len()],
    pub(crate) discards: [u64; Discard::ALL.len()],
    pub(crate) wasted: u64,
    pub(crate) abandoned: u64,
    pub(crate) unconfirmed: u64,
    pub(crate) permits_dropped: u64,
    pub(crate) throttles: u64,
    pub(crate) kills: u64,
}

/// A snapshot of a pool.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Stats {
    /// Connections handed out.
    pub checkouts: u64,
    /// Checkouts that found nothing ready.
    pub empty: u64,
    /// Checkouts that ran out of time.
    pub timeouts: u64,
    /// Checkouts refused because `max_waiters` were waiting.
    pub refused_full: u64,
    /// Checkouts refused because of `max_retry_after`.
    pub refused_throttled: u64,
    /// Hand-offs that were not claimed in time and moved on.
    pub unclaimed: u64,
    /// Checkouts dropped while they waited.
    pub cancelled: u64,
    /// Checkouts waiting now.
    pub waiting: u32,
    /// Times the driver woke up.
    pub wakeups: u64,
    /// Promises broken; anything but 0 is a bug in the engine.
    pub breaches: u64,
    /// How long checkouts waited. In real time one wait in sixteen is timed and
    /// stands for sixteen; the longest is that of all, to within a few milliseconds.
    pub wait: Histogram,
    /// How long opens took.
    pub create: Histogram,
    /// How long connections were in use, timed like waits.
    pub r#use: Histogram,
    /// Each source, in the order given to the builder.
    pub sources: Vec<SourceStats>,
}

impl Stats {
    /// Ready connections of all sources.
    pub fn ready(&self) -> u32 {
        self.sources.iter().map(|source| source.ready).sum()
    }

    /// Connections in use, of all sources.
    pub fn in_use(&self) -> u32 {
        self.sources.iter().map(|source| source.in_use).sum()
    }

    /// Connections in every state, of all sources.
    pub fn open(&self) -> u32 {
        self.sources.iter().map(SourceStats::open).sum()
    }

    /// Connections opened since the start, of all sources.
    pub fn opened(&self) -> u64 {
        self.sources.iter().map(|source| source.opened).sum()
    }

    /// Connections discarded for a reason, of all sources.
    pub fn discarded(&self, reason: Discard) -> u64 {
        self.sources.iter().map(|source| source.discarded(reason)).sum()
    }
}

/// A snapshot of one source.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SourceStats {
    /// Its name.
    pub name: Arc<str>,
    /// Opens under way.
    pub opening: u32,
    /// Ready connections.
    pub ready: u32,
    /// Ready connections that do not retire within the lead time.
    pub fresh: u32,
    /// Connections in use; resets and checks count as use.
    pub in_use: u32,
    /// Connections being closed, or closed and not yet let go of.
    pub closing: u32,
    /// Connections their users kept.
    pub detached: u32,
    /// Ready connections wanted now.
    pub target: u32,
    /// The stock (ready and in use) is below the low watermark.
    pub low: bool,
    /// The breaker is open.
    pub breaker_open: bool,
    /// The count budget refused the last lease asked for.
    pub lease_refused: bool,
    /// Time left until a throttled source is used again.
    pub throttled_for: Option<Duration>,
    /// Connections opened.
    pub opened: u64,
    /// Connections closed before their life was over that nobody ever got.
    pub wasted: u64,
    /// Opens given up before their connect because they were no longer needed.
    pub abandoned: u64,
    /// Closes that the backend did not confirm.
    pub unconfirmed: u64,
    /// Rate permits that came too late to be used.
    pub permits_dropped: u64,
    /// Times the backend asked to wait.
    pub throttles: u64,
    /// Connections killed while in use.
    pub kills: u64,
    pub(crate) failures: [u64; OpenFailure::ALL.len()],
    pub(crate) discards: [u64; Discard::ALL.len()],
}

impl SourceStats {
    /// Connections in every state.
    pub fn open(&self) -> u32 {
        self.opening + self.ready + self.in_use + self.closing + self.detached
    }

    /// Connections discarded for a reason.
    pub fn discarded(&self, reason: Discard) -> u64 {
        self.discards[reason as usize]
    }

    /// Failures of one step of opening.
    pub fn failed(&self, reason: OpenFailure) -> u64 {
        self.failures[reason as usize]
    }
}
