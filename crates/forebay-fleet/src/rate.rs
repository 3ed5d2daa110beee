//! The fleet's rate as arithmetic on whole microseconds: the generic cell rate
//! algorithm, answered with instants, several permits at once. One state per
//! backend, kept by the keeper. The Redis keeper's script does the same in Lua.
//!
//! After a refusal by the backend the bucket is emptied and the pace halved, for
//! everybody; each [`RECOVERY_US`] without another one doubles it again. Refusals
//! that come together are one.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::message::{Limits, Reserve, Reserved};

/// How long a halved pace lasts before it doubles again.
pub(crate) const RECOVERY_US: u64 = 10_000_000;
/// Refusals within this time of the last halving do not halve again.
pub(crate) const TOGETHER_US: u64 = 1_000_000;
/// Permits are reserved at most this far ahead. When a keeper loses its data, what
/// it has promised before is used up by then.
pub(crate) const HORIZON: Duration = Duration::from_secs(2);
/// The pace is never halved more often than this.
pub(crate) const HALVINGS_MAX: u32 = 4;

/// The state of one rate.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RateBook {
    /// The theoretical arrival time; before it the bucket is not full.
    pub tat_us: u64,
    /// How often the pace is halved.
    pub halvings: u32,
    /// When the backend last refused, or the pace last doubled.
    pub refused_us: u64,
}

impl RateBook {
    /// The bucket of a keeper without data.
    pub fn empty(limits: &Limits, now_us: u64) -> Self {
        let mut book = Self::default();
        book.drain(limits, now_us);
        book
    }

    /// Data was lost: the bucket is empty, and members may still hold permits for
    /// the next two seconds. The next one is an interval after that.
    pub fn drain(&mut self, limits: &Limits, now_us: u64) {
        let interval = self.interval(limits, now_us);
        let horizon = HORIZON.as_micros() as u64;
        let empty = now_us + horizon + tolerance(limits) + interval;
        self.tat_us = self.tat_us.max(empty);
    }

    /// Reserves permits, as many as fall due within the longest wait.
    pub fn reserve(&mut self, reserve: &Reserve, limits: &Limits, now_us: u64) -> Reserved {
        let interval_us = self.interval(limits, now_us);
        let tat = self.tat_us.max(now_us);
        let lead_us = tat as i64 - tolerance(limits) as i64 - now_us as i64;
        let left = (reserve.max_wait_ms * 1000) as i64 - lead_us;
        let due = if left < 0 { 0 } else { left as u64 / interval_us + 1 };
        let permits = u64::from(reserve.permits).min(due);
        self.tat_us = tat + interval_us * permits;
        Reserved { lead_us, interval_us, permits: permits as u32 }
    }

    /// The backend refused a connect because of its rate.
    pub fn refused(&mut self, limits: &Limits, now_us: u64) {
        self.interval(limits, now_us);
        if self.halvings == 0 || now_us >= self.refused_us + TOGETHER_US {
            self.halvings = (self.halvings + 1).min(HALVINGS_MAX);
            self.refused_us = now_us;
        }
        // emptied at the pace of before: the first permit afterwards is one full interval away
        let empty = now_us + tolerance(limits) + full_interval(limits);
        self.tat_us = self.tat_us.max(empty);
    }

    /// Between two permits, after the recoveries that have passed.
    fn interval(&mut self, limits: &Limits, now_us: u64) -> u64 {
        while self.halvings > 0 && now_us >= self.refused_us + RECOVERY_US {
            self.halvings -= 1;
            self.refused_us += RECOVERY_US;
        }
        full_interval(limits) << self.halvings
    }
}

/// Between two permits at the full rate, rounded up so that it is never exceeded.
fn full_interval(limits: &Limits) -> u64 {
    1_000_000_u64.div_ceil(u64::from(limits.rate.max(1)))
}

/// How far ahead of its time a permit may be, so that a burst goes at once.
fn tolerance(limits: &Limits) -> u64 {
    u64::from(limits.burst.max(1) - 1) * full_interval(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(rate: u32, burst: u32) -> Limits {
        Limits { open: 10, rate, burst, version: 0 }
    }

    fn reserve(permits: u32) -> Reserve {
        let backend = "db".to_owned();
        let limits = limits(100, 3);
        Reserve { backend, permits, limits, max_wait_ms: 30_000, nonce: 1, ttl_ms: 1000 }
    }

    #[test]
    fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
        let (limits, now) = (limits(100, 3), 50_000_000);
        let mut book = RateBook::default();
        let first = book.reserve(&reserve(5), &limits, now);
        assert_eq!(first, Reserved { lead_us: -20_000, interval_us: 10_000, permits: 5 });
        assert_eq!(book.reserve(&reserve(1), &limits, now).lead_us, 30_000);
    }

    #[test]
    fn a_bucket_without_data_waits_for_what_was_promised_before() {
        let (limits, now) = (limits(100, 1000), 50_000_000);
        let mut book = RateBook::empty(&limits, now);
        assert_eq!(book.reserve(&reserve(1), &limits, now).lead_us, 2_010_000);
    }

    #[test]
    fn refusals_that_come_together_halve_the_pace_once() {
        let (limits, now) = (limits(100, 1000), 50_000_000);
        let mut book = RateBook::default();
        book.refused(&limits, now);
        book.refused(&limits, now + 5);
        assert_eq!(book.halvings, 1);
        let next = book.reserve(&reserve(1), &limits, now + 5);
        assert_eq!((next.lead_us, next.interval_us), (10_000, 20_000));
        book.refused(&limits, now + TOGETHER_US);
        assert_eq!(book.halvings, 2);
        let later = now + TOGETHER_US + 2 * RECOVERY_US;
        assert_eq!(book.reserve(&reserve(1), &limits, later).interval_us, 10_000);
    }

    #[test]
    fn nothing_is_reserved_that_would_have_to_wait_for_too_long() {
        let (limits, now) = (limits(1, 1), 50_000_000);
        let mut book = RateBook::default();
        assert_eq!(book.reserve(&reserve(40), &limits, now).permits, 31);
        let before = book.clone();
        assert_eq!(book.reserve(&reserve(1), &limits, now).permits, 0);
        assert_eq!(book, before);
    }
}
