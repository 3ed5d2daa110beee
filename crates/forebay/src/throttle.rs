//! A source that the backend has told to wait. Until-instants merge by maximum;
//! when the wait is over the source comes back along a ramp, not all at once,
//! and a random share of the ramp is added so that members do not return together.

use std::time::Duration;

use crate::clock::{FAR, Instant};

/// A source's bench: present only while it waits or ramps up.
#[derive(Debug, Clone)]
pub(crate) struct Throttle {
    until: Instant,
    resume_at: Instant,
    ramp: Duration,
}

impl Throttle {
    /// Merges a new wait into what is there.
    pub(crate) fn merge(
        current: Option<Self>,
        now: Instant,
        retry_after: Duration,
        ramp: Duration,
        rng: &mut fastrand::Rng,
    ) -> Self {
        let until = now + retry_after.min(FAR);
        match current {
            Some(throttle) if throttle.until >= until => throttle,
            _ => Self { until, resume_at: until + ramp.mul_f64(rng.f64() / 4.0), ramp },
        }
    }

    /// When the first checkout may use the source again.
    pub(crate) fn resume_at(&self) -> Instant {
        self.resume_at
    }

    /// How many connections of `cap` may be in use at `now`.
    pub(crate) fn allowance(&self, now: Instant, cap: u32) -> u32 {
        if now < self.resume_at {
            return 0;
        }
        if self.is_over(now) {
            return u32::MAX;
        }
        let share = (now - self.resume_at).as_secs_f64() / self.ramp.as_secs_f64();
        1 + (f64::from(cap) * share) as u32
    }

    /// When the allowance next grows.
    pub(crate) fn next_step(&self, now: Instant, cap: u32) -> Instant {
        if now < self.resume_at {
            return self.resume_at;
        }
        let step = self.ramp / cap.max(1);
        let done = f64::from(self.allowance(now, cap).min(cap));
        let at = self.resume_at + step.mul_f64(done) + Duration::from_micros(1);
        at.max(now + Duration::from_millis(1))
    }

    /// Waited and ramped up: the throttle can be forgotten.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        now >= self.resume_at + self.ramp
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_merge_by_maximum_and_the_way_back_is_a_ramp() {
        let now = crate::clock::Clock::tokio().now();
        let mut rng = fastrand::Rng::with_seed(7);
        let second = Duration::from_secs(1);
        let long = Throttle::merge(None, now, second * 30, second, &mut rng);
        let merged = Throttle::merge(Some(long.clone()), now, second * 10, second, &mut rng);
        assert_eq!(merged.resume_at(), long.resume_at());
        assert_eq!(merged.allowance(now + second * 29, 10), 0);
        let mut at = merged.resume_at();
        let mut last = 0;
        while !merged.is_over(at) {
            let allowed = merged.allowance(at, 10);
            assert!(allowed >= 1 && allowed >= last && allowed <= last + 2);
            last = allowed;
            at = merged.next_step(at, 10);
        }
        assert_eq!(merged.allowance(at, 10), u32::MAX);
    }
}
