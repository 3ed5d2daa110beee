//! Readings: what the pool, the backend and the tasks say at one instant, and
//! what has changed since the reading before.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay::{Discard, Event, Histogram, Observer, OpenFailure, Pool, Stats};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::backend::Backend;
use super::connector::Tcp;
use super::ledger::Counts;
use super::workload::Seen;

/// One reading.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    pub(crate) elapsed: Duration,
    pub(crate) pool: Stats,
    pub(crate) backend: Counts,
    pub(crate) checkouts_per_second: f64,
    /// Waits since the reading before.
    pub(crate) wait_p50: Duration,
    pub(crate) wait_p99: Duration,
    /// Connections closed because of their age.
    pub(crate) replaced: u64,
    pub(crate) failed_opens: u64,
    /// What the last failed open said.
    pub(crate) last_failure: Option<String>,
    pub(crate) answered: u64,
    pub(crate) given_up: u64,
    pub(crate) failed: u64,
    pub(crate) mixed_up: u64,
    /// The longest time that this process stood still.
    pub(crate) stall: Duration,
    /// Broken promises: those the pool counted, those its audit found, and
    /// answers that reached the wrong request.
    pub(crate) breaches: u64,
}

impl Sample {
    /// Nothing went wrong so far.
    pub(crate) fn is_good(&self) -> bool {
        self.backend.refused() == 0 && self.backend.cut_off == 0 && self.breaches == 0
    }

    pub(crate) fn opening(&self) -> u32 {
        self.pool.sources.iter().map(|source| source.opening).sum()
    }

    pub(crate) fn closing(&self) -> u32 {
        self.pool.sources.iter().map(|source| source.closing).sum()
    }
}

/// Takes readings.
pub(crate) struct Sampler {
    started: Instant,
    before: Option<(Instant, Stats)>,
    audit_breaches: u64,
    pulse: Pulse,
}

impl Sampler {
    pub(crate) fn new(started: Instant) -> Self {
        Self { started, before: None, audit_breaches: 0, pulse: Pulse::start() }
    }

    pub(crate) fn take(
        &mut self,
        pool: &Pool<Tcp>,
        backend: &Backend,
        seen: &Seen,
        notes: &Notes,
    ) -> Sample {
        let now = Instant::now();
        let stats = pool.stats();
        self.audit_breaches += pool.audit().len() as u64;
        let (since, checkouts, wait) = match &self.before {
            Some((at, before)) => (*at, before.checkouts, Some(&before.wait)),
            None => (self.started, 0, None),
        };
        let passed = (now - since).as_secs_f64().max(1e-3);
        let mixed_up = seen.mixed_up.load(Ordering::Relaxed);
        let sample = Sample {
            elapsed: now - self.started,
            backend: backend.counts(),
            checkouts_per_second: (stats.checkouts - checkouts) as f64 / passed,
            wait_p50: quantile_since(&stats.wait, wait, 0.5),
            wait_p99: quantile_since(&stats.wait, wait, 0.99),
            replaced: AGED.iter().map(|reason| stats.discarded(*reason)).sum(),
            failed_opens: failed_opens(&stats),
            last_failure: notes.last_failure(),
            answered: seen.answered.load(Ordering::Relaxed),
            given_up: seen.given_up.load(Ordering::Relaxed),
            failed: seen.failed.load(Ordering::Relaxed),
            mixed_up,
            stall: self.pulse.longest_stall(),
            breaches: stats.breaches + self.audit_breaches + mixed_up,
            pool: stats.clone(),
        };
        self.before = Some((now, stats));
        sample
    }
}

/// The reasons that mean: its time had come.
const AGED: [Discard; 6] = [
    Discard::ExpiredOnCheckout,
    Discard::ExpiredOnReturn,
    Discard::ExpiredOnScan,
    Discard::InsufficientRemainingLifetime,
    Discard::ExpiringSoonOnScan,
    Discard::ReplacedInPlace,
];

fn failed_opens(stats: &Stats) -> u64 {
    // a lease that is not to be had is a wait, not an attempt at the backend
    let reasons = OpenFailure::ALL.iter();
    let per_source = |source: &forebay::SourceStats| -> u64 {
        reasons.clone().map(|reason| source.failed(*reason)).sum()
    };
    stats.sources.iter().map(per_source).sum()
}

/// The quantile of what was recorded in `now` and not yet in `before`.
fn quantile_since(now: &Histogram, before: Option<&Histogram>, q: f64) -> Duration {
    let mut counts: BTreeMap<Duration, u64> = now.buckets().collect();
    for (upper, count) in before.into_iter().flat_map(Histogram::buckets) {
        if let Some(left) = counts.get_mut(&upper) {
            *left = left.saturating_sub(count);
        }
    }
    let total: u64 = counts.values().sum();
    let rank = ((q * total as f64).ceil() as u64).max(1);
    let mut seen = 0;
    for (upper, count) in counts {
        seen += count;
        if seen >= rank {
            return upper.min(now.max());
        }
    }
    Duration::ZERO
}

/// Notices when this process stands still: a machine that is suspended, or has
/// much else to do, makes it miss limits through no fault of the pool.
struct Pulse {
    longest_ms: Arc<AtomicU64>,
    beating: JoinHandle<()>,
}

impl Pulse {
    fn start() -> Self {
        let longest_ms = Arc::new(AtomicU64::new(0));
        let longest = longest_ms.clone();
        let beating = tokio::spawn(async move {
            loop {
                let due = Instant::now() + BEAT;
                sleep_until(due).await;
                longest.fetch_max(due.elapsed().as_millis() as u64, Ordering::Relaxed);
            }
        });
        Self { longest_ms, beating }
    }

    fn longest_stall(&self) -> Duration {
        Duration::from_millis(self.longest_ms.load(Ordering::Relaxed))
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.beating.abort();
    }
}

const BEAT: Duration = Duration::from_millis(50);

/// Remembers what the last failed open said.
#[derive(Debug, Clone, Default)]
pub(crate) struct Notes(Arc<Mutex<Option<String>>>);

impl Notes {
    fn last_failure(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Observer for Notes {
    fn event(&self, event: &Event) {
        if let Event::OpenFailed { error, .. } = event {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_since_the_last_reading_forgets_what_was_before() {
        let mut before = Histogram::default();
        (0..1000).for_each(|_| before.record(Duration::from_secs(1)));
        let mut now = before.clone();
        (0..10).for_each(|_| now.record(Duration::from_millis(2)));
        assert!(quantile_since(&now, None, 0.5) >= Duration::from_secs(1));
        let p99 = quantile_since(&now, Some(&before), 0.99);
        assert!(p99 >= Duration::from_millis(2) && p99 < Duration::from_millis(3), "{p99:?}");
        assert_eq!(quantile_since(&now, Some(&now), 0.99), Duration::ZERO);
    }
}
