//! The one handle through which the engine sees time. Production uses tokio's
//! clock; the simulator gives each member a clock of its own, with offset,
//! drift and freezes, by implementing [`TimeSource`]. Nothing else in this
//! crate reads a clock.
//!
//! Reading the precise clock costs more than the rest of a checkout together.
//! [`RoughClock`] is for the hot path: the kernel's coarse clock, at a tenth of
//! the cost.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use tokio::time::Instant;

/// As far ahead as anything is planned. Longer spans are cut to this: "for ever"
/// must not overflow an instant.
pub(crate) const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);

/// A boxed future, as returned by the traits that are used behind `dyn`.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where time comes from when it does not come from tokio.
pub trait TimeSource: Send + Sync + 'static {
    /// The present instant on this clock.
    fn now(&self) -> Instant;
    /// Completes once [`now`](Self::now) has reached `at`.
    fn sleep_until(&self, at: Instant) -> BoxFuture<'static, ()>;
}

/// A cheap handle to a clock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// use std::time::Duration;
/// let clock = forebay::Clock::tokio();
/// let start = clock.now();
/// clock.sleep_until(start + Duration::from_secs(3600)).await;
/// assert!(clock.now() >= start + Duration::from_secs(3600));
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Clock(Option<Arc<dyn TimeSource>>);

impl Clock {
    /// Tokio's clock: real time, or paused time under `tokio::time::pause`.
    pub fn tokio() -> Self {
        Self(None)
    }

    /// A clock of your own.
    pub fn custom(source: impl TimeSource) -> Self {
        Self(Some(Arc::new(source)))
    }

    /// The present instant.
    #[inline]
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the clock")]
    pub fn now(&self) -> Instant {
        match &self.0 {
            None => Instant::now(),
            Some(source) => source.now(),
        }
    }

    /// Completes at `at`, at once if that has passed.
    #[expect(clippy::disallowed_methods, reason = "the one place that sleeps")]
    pub async fn sleep_until(&self, at: Instant) {
        match &self.0 {
            None => tokio::time::sleep_until(at).await,
            Some(source) => source.sleep_until(at).await,
        }
    }

    /// Runs `future` until it completes or `at` comes; `None` if `at` came first.
    pub async fn until<T>(&self, at: Instant, future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            value = future => Some(value),
            () = self.sleep_until(at) => None,
        }
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Clock(custom)" } else { "Clock(tokio)" })
    }
}

/// The present instant to within a few milliseconds, for nearly nothing. What
/// must not be late is judged with [`margin`](RoughClock::margin) to spare.
///
/// The coarse clock is used only while tokio's clock is real time: under paused
/// or custom time, and where the kernel has none, this is the precise clock.
pub(crate) struct RoughClock {
    trusted: AtomicBool,
    /// The instant at which the kernel's clock showed `second`, plus a tick.
    anchor: Instant,
    second: u64,
}

impl RoughClock {
    pub(crate) fn new(clock: &Clock) -> Self {
        // the instant is read after the kernel's clock, so the mapping errs to the later
        // side; the best of several readings, in case of an interruption between the two
        let reading = || {
            let before = clock.now();
            let kernel = kernel_time(Precision::Fine);
            let now = clock.now();
            (now - before, now, kernel)
        };
        let readings = std::iter::repeat_with(reading).take(8);
        let best = readings.min_by_key(|(gap, ..)| *gap);
        let (now, kernel) = best.map_or((clock.now(), None), |(_, now, kernel)| (now, kernel));
        let tick = kernel_tick();
        let anchor =
            kernel.and_then(|(_, nanos)| now.checked_sub(Duration::from_nanos(nanos.into())));
        let rough = Self {
            trusted: AtomicBool::new(anchor.is_some() && tick.is_some()),
            anchor: anchor.unwrap_or(now) + tick.unwrap_or_default(),
            second: kernel.unwrap_or_default().0,
        };
        rough.verify(clock);
        rough
    }

    /// How far the rough clock may be behind the precise one. The kernel moves its
    /// coarse clock every tick, but a machine that is itself interrupted may be late.
    pub(crate) fn margin(&self) -> Duration {
        if self.is_trusted() { Duration::from_millis(100) } else { Duration::ZERO }
    }

    /// As a rule between now and a tick from now.
    #[inline]
    pub(crate) fn now(&self, clock: &Clock) -> Instant {
        if self.is_trusted()
            && let Some((second, nanos)) = kernel_time(Precision::Coarse)
        {
            return self.anchor + Duration::new(second.saturating_sub(self.second), nanos);
        }
        clock.now()
    }

    /// Whether the coarse clock is in use.
    #[inline]
    pub(crate) fn is_trusted(&self) -> bool {
        self.trusted.load(Ordering::Relaxed)
    }

    /// Stops using the coarse clock for good once `clock` is not real time: paused
    /// or advanced, it no longer lies between two readings of the system's.
    #[expect(clippy::disallowed_methods, reason = "compares the handle with the system's clock")]
    pub(crate) fn verify(&self, clock: &Clock) {
        if self.is_trusted() {
            let before = std::time::Instant::now();
            let reading = clock.now().into_std();
            let after = std::time::Instant::now();
            if clock.0.is_some() || reading < before || reading > after {
                self.trusted.store(false, Ordering::Relaxed);
            }
        }
    }
}

enum Precision {
    Fine,
    Coarse,
}

#[cfg(all(target_os = "linux", not(shuttle)))]
#[inline]
fn kernel_time(precision: Precision) -> Option<(u64, u32)> {
    let id = match precision {
        Precision::Fine => rustix::time::ClockId::Monotonic,
        Precision::Coarse => rustix::time::ClockId::MonotonicCoarse,
    };
    let time = rustix::time::clock_gettime(id);
    Some((time.tv_sec as u64, time.tv_nsec as u32))
}

#[cfg(all(target_os = "linux", not(shuttle)))]
fn kernel_tick() -> Option<Duration> {
    let tick = rustix::time::clock_getres(rustix::time::ClockId::MonotonicCoarse);
    let tick = Duration::new(tick.tv_sec as u64, tick.tv_nsec as u32);
    (!tick.is_zero() && tick <= Duration::from_millis(20)).then_some(tick)
}

#[cfg(not(all(target_os = "linux", not(shuttle))))]
fn kernel_time(_precision: Precision) -> Option<(u64, u32)> {
    None
}

#[cfg(not(all(target_os = "linux", not(shuttle))))]
fn kernel_tick() -> Option<Duration> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rough_clock_is_behind_by_less_than_its_margin_and_hardly_ahead() {
        let clock = Clock::tokio();
        let rough = RoughClock::new(&clock);
        for _ in 0..100_000 {
            let before = clock.now();
            let reading = rough.now(&clock);
            let after = clock.now();
            assert!(reading + rough.margin() >= before, "behind by {:?}", before - reading);
            let tick = kernel_tick().unwrap_or_default() + Duration::from_millis(1);
            assert!(reading <= after + tick, "ahead by {:?}", reading - after);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn under_paused_time_the_rough_clock_is_the_precise_one() {
        let clock = Clock::tokio();
        let rough = RoughClock::new(&clock);
        assert!(!rough.is_trusted());
        let start = clock.now();
        clock.sleep_until(start + Duration::from_secs(3600)).await;
        assert_eq!(rough.now(&clock), clock.now());
    }

    #[tokio::test]
    async fn time_paused_later_is_noticed_when_verified() {
        let clock = Clock::tokio();
        let rough = RoughClock::new(&clock);
        tokio::time::pause();
        rough.verify(&clock);
        assert!(!rough.is_trusted());
    }
}
