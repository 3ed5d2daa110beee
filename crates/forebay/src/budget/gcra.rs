//! The rate decision as arithmetic: the generic cell rate algorithm, answered
//! as a reservation ("go at t") and not as a yes or no.
//!
//! With interval `T = 1 / rate` and tolerance `τ = (burst − 1) × T`, the state
//! is one instant, the theoretical arrival time `tat`. A reservation made at
//! `now` may go at `max(now, tat − τ)` and moves `tat` to `max(tat, now) + T`.
//! In any window `w` at most `rate × w + burst` reservations fall due.
//!
//! After a refusal by the backend the bucket is emptied and the pace halved;
//! each [`RECOVERY`] without another refusal doubles it again.

use std::time::Duration;

use super::Rate;
use crate::clock::Instant;

/// How long a halved pace lasts before it doubles again.
const RECOVERY: Duration = Duration::from_secs(10);
/// The pace is never halved more often than this.
const HALVINGS_MAX: u32 = 4;

/// State of one rate budget.
#[derive(Debug, Clone)]
pub(crate) struct Gcra {
    interval: Duration,
    tolerance: Duration,
    tat: Option<Instant>,
    halvings: u32,
    refused_at: Option<Instant>,
}

impl Gcra {
    /// A full bucket.
    pub(crate) fn new(rate: Rate) -> Self {
        let interval = rate.interval();
        Self {
            interval,
            tolerance: interval * (rate.burst() - 1),
            tat: None,
            halvings: 0,
            refused_at: None,
        }
    }

    /// Reserves one permit and says when it may be used.
    pub(crate) fn reserve(&mut self, now: Instant) -> Instant {
        let interval = self.pace(now);
        let tat = self.tat.map_or(now, |tat| tat.max(now));
        let go = (tat - now).saturating_sub(self.tolerance);
        self.tat = Some(tat + interval);
        now + go
    }

    /// The backend refused: empty the bucket and halve the pace.
    pub(crate) fn refused(&mut self, now: Instant) {
        let interval = self.pace(now);
        self.halvings = (self.halvings + 1).min(HALVINGS_MAX);
        self.refused_at = Some(now);
        let empty = now + self.tolerance + interval;
        self.tat = Some(self.tat.map_or(empty, |tat| tat.max(empty)));
    }

    /// The interval between permits at `now`, after the recoveries that have passed.
    fn pace(&mut self, now: Instant) -> Duration {
        while let Some(at) = self.refused_at {
            if self.halvings == 0 {
                self.refused_at = None;
            } else if now >= at + RECOVERY {
                self.halvings -= 1;
                self.refused_at = Some(at + RECOVERY);
            } else {
                break;
            }
        }
        self.interval * (1 << self.halvings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn base() -> Instant {
        crate::clock::Clock::tokio().now()
    }

    #[test]
    fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
        let now = base();
        let mut gcra = Gcra::new(Rate::new(100, 3).expect("valid"));
        let waits: Vec<u128> = (0..5).map(|_| (gcra.reserve(now) - now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 10, 20]);
    }

    #[test]
    fn a_refusal_empties_the_bucket_and_halves_the_pace_for_a_while() {
        let now = base();
        let mut gcra = Gcra::new(Rate::new(100, 1000).expect("valid"));
        gcra.refused(now);
        let first = gcra.reserve(now) - now;
        let second = gcra.reserve(now) - now;
        assert_eq!((first.as_millis(), (second - first).as_millis()), (10, 20));
        let later = now + RECOVERY * 2;
        assert_eq!(gcra.pace(later), Duration::from_millis(10));
    }

    proptest! {
        #[test]
        fn no_window_holds_more_than_rate_times_window_plus_burst(
            rate in 1u32..500, burst in 1u32..50,
            gaps in proptest::collection::vec(0u64..40_000_000, 1..200),
        ) {
            let start = base();
            let mut gcra = Gcra::new(Rate::new(rate, burst).expect("valid"));
            let mut now = start;
            let mut due = Vec::new();
            for gap in gaps {
                now += Duration::from_nanos(gap);
                due.push((gcra.reserve(now) - start).as_secs_f64());
            }
            for i in 0..due.len() {
                for j in i..due.len() {
                    let window = due[j] - due[i];
                    let most = f64::from(rate) * window + f64::from(burst) + 1e-6;
                    prop_assert!((j - i + 1) as f64 <= most, "{} permits in {window} s", j - i + 1);
                }
            }
        }
    }
}
