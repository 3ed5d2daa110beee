//! When a source may be opened again after failures: waits that grow with
//! jitter, and past a number of failures in a row a breaker that lets one
//! attempt through at a time, so that a dead backend does not eat the rate budget.

use std::time::Duration;

use crate::clock::{FAR, Instant};

/// How a source backs off after failed opens.
#[derive(Debug, Clone, Copy)]
pub struct BackoffSettings {
    /// Wait after the first failure; doubles with each further one.
    pub base: Duration,
    /// The longest wait while the breaker is closed.
    pub max: Duration,
    /// Failures in a row that open the breaker.
    pub breaker_after: u32,
    /// The longest wait while the breaker is open.
    pub breaker_max: Duration,
}

impl Default for BackoffSettings {
    fn default() -> Self {
        Self {
            base: Duration::from_millis(250),
            max: Duration::from_secs(5),
            breaker_after: 5,
            breaker_max: Duration::from_secs(30),
        }
    }
}

/// The failure state of one source.
#[derive(Debug, Default, Clone)]
pub(crate) struct Backoff {
    failures: u32,
    /// Waits begun since the last success.
    waits: u32,
    until: Option<Instant>,
}

impl Backoff {
    /// A failed open. Attempts that were under way together count as one step
    /// of the wait, but each counts towards the breaker.
    pub(crate) fn failed(
        &mut self,
        now: Instant,
        settings: &BackoffSettings,
        retry_after: Option<Duration>,
        rng: &mut fastrand::Rng,
    ) {
        self.failures = self.failures.saturating_add(1);
        let waiting = self.until.is_some_and(|until| until > now);
        if !waiting || retry_after.is_some() {
            let ceiling = if self.is_open(settings) { settings.breaker_max } else { settings.max };
            let doubled = settings.base.saturating_mul(1 << self.waits.min(16));
            let wait = doubled.min(ceiling).mul_f64(0.5 + rng.f64());
            let until = now + wait.max(retry_after.unwrap_or_default()).min(FAR);
            self.waits = self.waits.saturating_add(1);
            self.until = Some(self.until.map_or(until, |before| before.max(until)));
        }
    }

    /// A successful open: all is forgotten. `true` if the breaker was open.
    pub(crate) fn succeeded(&mut self, settings: &BackoffSettings) -> bool {
        let was_open = self.is_open(settings);
        *self = Self::default();
        was_open
    }

    /// How many opens may be under way at once at `now`.
    pub(crate) fn allows(&self, now: Instant, settings: &BackoffSettings) -> u32 {
        match self.until {
            Some(until) if until > now => 0,
            _ if self.is_open(settings) => 1,
            _ => u32::MAX,
        }
    }

    /// When to look again, while waiting.
    pub(crate) fn wake_at(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| *until > now)
    }

    /// Whether the last open failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failures > 0
    }

    /// Whether the breaker is open.
    pub(crate) fn is_open(&self, settings: &BackoffSettings) -> bool {
        self.failures >= settings.breaker_after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_ceiling_then_one_attempt_at_a_time_then_all_is_forgotten() {
        let settings = BackoffSettings::default();
        let mut rng = fastrand::Rng::with_seed(1);
        let mut now = crate::clock::Clock::tokio().now();
        let mut backoff = Backoff::default();
        assert_eq!(backoff.allows(now, &settings), u32::MAX);
        for failure in 1..=12_u32 {
            backoff.failed(now, &settings, None, &mut rng);
            assert_eq!(backoff.allows(now, &settings), 0);
            let until = backoff.wake_at(now).expect("waiting");
            assert!(until - now <= settings.breaker_max * 3 / 2);
            now = until;
            let expected = if failure >= settings.breaker_after { 1 } else { u32::MAX };
            assert_eq!(backoff.allows(now, &settings), expected);
        }
        assert!(backoff.succeeded(&settings));
        assert_eq!(backoff.allows(now, &settings), u32::MAX);
    }
}
