//! What the backend allows and what it has seen: plain arithmetic with `now` as
//! an argument, and deliberately not the engine's. The pool paces itself by one
//! algorithm (GCRA) and is judged by another (a token bucket over arrivals).

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// How a backend rations its connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) max_open: u32,
    pub(crate) per_second: u32,
    pub(crate) burst: u32,
    pub(crate) lifetime: Duration,
}

/// Why the backend sends a client away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    TooFast,
    TooMany,
}

impl Refusal {
    /// The one line that the client is told.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::TooFast => "too fast",
            Self::TooMany => "too many",
        }
    }
}

/// What a backend has seen so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Connections admitted.
    pub(crate) opened: u64,
    /// Of these, in the last second.
    pub(crate) last_second: u32,
    /// The most in any second.
    pub(crate) most_in_a_second: u32,
    /// Open now.
    pub(crate) open: u32,
    pub(crate) most_open: u32,
    pub(crate) too_fast: u64,
    pub(crate) too_many: u64,
    /// Closed by the backend because their time was over.
    pub(crate) cut_off: u64,
    /// Requests answered.
    pub(crate) answered: u64,
}

impl Counts {
    pub(crate) fn refused(&self) -> u64 {
        self.too_fast + self.too_many
    }
}

/// Limits and counts of one backend.
#[derive(Debug)]
pub(crate) struct Ledger {
    limits: Limits,
    tokens: f64,
    topped_up: Instant,
    /// When connections were admitted, for a second.
    recent: VecDeque<Instant>,
    counts: Counts,
}

impl Ledger {
    /// A full bucket, nothing open.
    pub(crate) fn new(limits: Limits, now: Instant) -> Self {
        Self {
            limits,
            tokens: f64::from(limits.burst),
            topped_up: now,
            recent: VecDeque::new(),
            counts: Counts::default(),
        }
    }

    /// Somebody connects. A connection admitted must [leave](Self::leave) once.
    pub(crate) fn admit(&mut self, now: Instant) -> Result<(), Refusal> {
        let earned = (now - self.topped_up).as_secs_f64() * f64::from(self.limits.per_second);
        self.tokens = (self.tokens + earned).min(f64::from(self.limits.burst));
        self.topped_up = now;
        if self.tokens < 1.0 {
            self.counts.too_fast += 1;
            return Err(Refusal::TooFast);
        }
        // an attempt costs its token, whatever comes of it
        self.tokens -= 1.0;
        if self.counts.open >= self.limits.max_open {
            self.counts.too_many += 1;
            return Err(Refusal::TooMany);
        }
        self.counts.opened += 1;
        self.counts.open += 1;
        self.counts.most_open = self.counts.most_open.max(self.counts.open);
        self.recent.push_back(now);
        self.forget(now);
        let last_second = self.recent.len() as u32;
        self.counts.most_in_a_second = self.counts.most_in_a_second.max(last_second);
        Ok(())
    }

    /// A connection is gone.
    pub(crate) fn leave(&mut self, cut_off: bool) {
        self.counts.open -= 1;
        self.counts.cut_off += u64::from(cut_off);
    }

    /// A request was answered.
    pub(crate) fn answered(&mut self) {
        self.counts.answered += 1;
    }

    pub(crate) fn counts(&mut self, now: Instant) -> Counts {
        self.forget(now);
        Counts { last_second: self.recent.len() as u32, ..self.counts }
    }

    /// Drops what is older than a second.
    fn forget(&mut self, now: Instant) {
        while self.recent.front().is_some_and(|at| now - *at >= Duration::from_secs(1)) {
            self.recent.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits =
        Limits { max_open: 100, per_second: 10, burst: 3, lifetime: Duration::from_secs(10) };

    fn admitted(ledger: &mut Ledger, now: Instant, attempts: u32) -> u32 {
        (0..attempts).map(|_| u32::from(ledger.admit(now).is_ok())).sum()
    }

    #[test]
    fn a_burst_is_admitted_and_then_one_for_each_token() {
        let start = Instant::now();
        let mut ledger = Ledger::new(LIMITS, start);
        assert_eq!(admitted(&mut ledger, start, 5), 3);
        assert_eq!(ledger.admit(start + Duration::from_millis(99)), Err(Refusal::TooFast));
        assert_eq!(admitted(&mut ledger, start + Duration::from_millis(200), 5), 2);
        // a long quiet time earns the burst and no more
        assert_eq!(admitted(&mut ledger, start + Duration::from_secs(60), 5), 3);
        assert_eq!(ledger.counts(start + Duration::from_secs(60)).too_fast, 2 + 1 + 3 + 2);
    }

    #[test]
    fn no_more_are_open_than_allowed_and_a_place_that_is_left_is_free_again() {
        let now = Instant::now();
        let mut ledger = Ledger::new(Limits { max_open: 2, burst: 9, ..LIMITS }, now);
        assert_eq!(admitted(&mut ledger, now, 2), 2);
        assert_eq!(ledger.admit(now), Err(Refusal::TooMany));
        ledger.leave(true);
        assert_eq!(ledger.admit(now), Ok(()));
        let counts = ledger.counts(now);
        assert_eq!((counts.open, counts.most_open, counts.opened), (2, 2, 3));
        assert_eq!((counts.too_many, counts.too_fast, counts.cut_off), (1, 0, 1));
    }

    #[test]
    fn the_worst_second_is_any_second_not_one_of_the_clock() {
        let start = Instant::now();
        let mut ledger = Ledger::new(LIMITS, start);
        for (millis, expected) in [(0, 1), (900, 2), (999, 3), (1001, 3), (2000, 2)] {
            let now = start + Duration::from_millis(millis);
            assert_eq!(ledger.admit(now), Ok(()));
            assert_eq!(ledger.counts(now).last_second, expected, "after {millis} ms");
        }
        assert_eq!(ledger.counts(start + Duration::from_secs(9)).most_in_a_second, 3);
        assert_eq!(ledger.counts(start + Duration::from_secs(9)).last_second, 0);
    }
}
