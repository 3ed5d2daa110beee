//! A clock for each member over the run's virtual time: set wrong, going too
//! fast or too slow, and stopping when the member is stopped. A stopped member
//! does nothing, since whatever it does begins with a timer or with an answer
//! from outside, and both wait here.

use std::sync::Arc;
use std::time::Duration;

use forebay::{BoxFuture, Clock, Instant, TimeSource};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// One member's clock and its brake.
#[derive(Clone)]
pub(crate) struct MemberClock(Arc<Inner>);

struct Inner {
    base: Instant,
    /// Seconds of this clock per second of virtual time.
    speed: f64,
    offset: Duration,
    stopped: Mutex<Stopped>,
    thaw: Notify,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stopped {
    No,
    Until(Instant),
    ForEver,
}

impl MemberClock {
    /// Starts at the present; `offset` is how far ahead it is.
    #[expect(clippy::disallowed_methods, reason = "virtual time comes in here")]
    pub(crate) fn new(offset: Duration, drift_ppm: f64) -> Self {
        Self(Arc::new(Inner {
            base: Instant::now(),
            speed: 1.0 + drift_ppm / 1e6,
            offset,
            stopped: Mutex::new(Stopped::No),
            thaw: Notify::new(),
        }))
    }

    pub(crate) fn handle(&self) -> Clock {
        Clock::custom(self.clone())
    }

    /// Stops the member for `lasts`, or for good.
    #[expect(clippy::disallowed_methods, reason = "virtual time comes in here")]
    pub(crate) fn stop(&self, lasts: Option<Duration>) {
        let until = lasts.map_or(Stopped::ForEver, |lasts| Stopped::Until(Instant::now() + lasts));
        *self.0.stopped.lock() = until;
    }

    /// Completes at once, or when the member goes on.
    #[expect(clippy::disallowed_methods, reason = "virtual time comes in here")]
    pub(crate) async fn gate(&self) {
        loop {
            let stopped = *self.0.stopped.lock();
            match stopped {
                Stopped::No => return,
                Stopped::ForEver => std::future::pending().await,
                Stopped::Until(until) => {
                    tokio::time::sleep_until(until).await;
                    let mut now = self.0.stopped.lock();
                    if *now == stopped {
                        *now = Stopped::No;
                        self.0.thaw.notify_waiters();
                    }
                }
            }
        }
    }

    fn to_virtual(&self, at: Instant) -> Instant {
        let own = at.saturating_duration_since(self.0.base + self.0.offset);
        // never early: rounding must not make a timer fire before its instant
        self.0.base + own.div_f64(self.0.speed) + Duration::from_nanos(1)
    }
}

impl TimeSource for MemberClock {
    #[expect(clippy::disallowed_methods, reason = "virtual time comes in here")]
    fn now(&self) -> Instant {
        let passed = Instant::now().saturating_duration_since(self.0.base);
        self.0.base + self.0.offset + passed.mul_f64(self.0.speed)
    }

    #[expect(clippy::disallowed_methods, reason = "virtual time comes in here")]
    fn sleep_until(&self, at: Instant) -> BoxFuture<'static, ()> {
        let clock = self.clone();
        Box::pin(async move {
            let wake = clock.to_virtual(at);
            if wake > Instant::now() {
                tokio::time::sleep_until(wake).await;
            }
            clock.gate().await;
        })
    }
}
