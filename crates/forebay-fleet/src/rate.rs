//! The fleet's rate as arithmetic on whole microseconds: the generic cell rate
//! algorithm, answered with instants, several permits at once. One state per
//! backend, kept by the keeper. The Redis keeper's script does the same in Lua.
//!
//! After a refusal by the backend the bucket is emptied and the pace halved, for
//! everybody; each [`RECOVERY_US`] without another one doubles it again. Refusals
//! that come together are one.

use serde::{Deserialize, Serialize};

use crate::message::{Limits, Reserve, Reserved};

/// How long a halved pace lasts before it doubles again.
pub(crate) const RECOVERY_US: u64 = 10_000_000;
/// Refusals within this time of the last halving do not halve again.
pub(crate) const TOGETHER_US: u64 = 1_000_000;
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
    /// A bucket that has just been emptied.
    pub fn empty(limits: &Limits, now_us: u64) -> Self {
        let mut book = Self::default();
        book.drain(limits, now_us);
        book
    }

    /// Empties the bucket: the next permit is one interval away.
    pub fn drain(&mut self, limits: &Limits, now_us: u64) {
        let interval = self.interval(limits, now_us);
        let empty = now_us + tolerance(limits) + interval;
        self.tat_us = self.tat_us.max(empty);
    }

    /// Reserves permits, or none if the first would have to wait for too long.
    pub fn reserve(&mut self, reserve: &Reserve, limits: &Limits, now_us: u64) -> Reserved {
        let interval_us = self.interval(limits, now_us);
        let tat = self.tat_us.max(now_us);
        let lead_us = tat as i64 - tolerance(limits) as i64 - now_us as i64;
        if lead_us > (reserve.max_wait_ms * 1000) as i64 {
            return Reserved { lead_us, interval_us, permits: 0 };
        }
        self.tat_us = tat + interval_us * u64::from(reserve.permits);
        Reserved { lead_us, interval_us, permits: reserve.permits }
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
    fn an_empty_bucket_gives_its_first_permit_after_one_interval() {
        let (limits, now) = (limits(100, 1000), 50_000_000);
        let mut book = RateBook::empty(&limits, now);
        assert_eq!(book.reserve(&reserve(1), &limits, now).lead_us, 10_000);
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
    fn nothing_is_reserved_when_the_wait_would_be_too_long() {
        let (limits, now) = (limits(1, 1), 50_000_000);
        let mut book = RateBook::default();
        assert_eq!(book.reserve(&reserve(40), &limits, now).permits, 40);
        let before = book.clone();
        assert_eq!(book.reserve(&reserve(1), &limits, now).permits, 0);
        assert_eq!(book, before);
    }
}
