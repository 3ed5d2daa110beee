//! Time as one process of the fleet has it: a clock of its own, fast or slow, that
//! goes on while the process is stopped and stands still while its machine is
//! paused; and gates that keep what is stopped from running.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay::{BoxFuture, Clock, Instant, TimeSource};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Lets nothing through while it is shut.
#[derive(Default)]
pub struct Gate {
    shut: AtomicBool,
    opened: Notify,
}

impl Gate {
    pub fn shut(&self) {
        self.shut.store(true, Ordering::SeqCst);
    }

    pub fn open(&self) {
        self.shut.store(false, Ordering::SeqCst);
        self.opened.notify_waiters();
    }

    pub fn is_shut(&self) -> bool {
        self.shut.load(Ordering::SeqCst)
    }

    async fn pass(&self) {
        loop {
            let opened = self.opened.notified();
            tokio::pin!(opened);
            opened.as_mut().enable();
            if !self.is_shut() {
                return;
            }
            opened.await;
        }
    }
}

struct Dial {
    /// At this instant of the world the clock showed `shown`.
    since: Instant,
    shown: Instant,
    pace: f64,
    stands: bool,
    stir: fastrand::Rng,
}

/// A process's clock, as seen from behind some gates.
#[derive(Clone)]
pub struct Watch {
    dial: Arc<Mutex<Dial>>,
    gates: Vec<Arc<Gate>>,
}

impl Watch {
    /// A clock that shows `offset` more than the world's and runs at `pace`.
    pub fn new(offset: Duration, pace: f64, seed: u64) -> Self {
        let since = Instant::now();
        let stir = fastrand::Rng::with_seed(seed);
        let dial = Dial { since, shown: since + offset, pace, stands: false, stir };
        Self { dial: Arc::new(Mutex::new(dial)), gates: Vec::new() }
    }

    /// The same clock, behind one more gate.
    pub fn behind(&self, gate: &Arc<Gate>) -> Self {
        let mut watch = self.clone();
        watch.gates.push(gate.clone());
        watch
    }

    pub fn clock(&self) -> Clock {
        Clock::custom(self.clone())
    }

    pub fn shows(&self) -> Instant {
        let dial = self.dial.lock();
        if dial.stands {
            return dial.shown;
        }
        dial.shown + (Instant::now() - dial.since).mul_f64(dial.pace)
    }

    /// The machine is paused, or goes on.
    pub fn stand(&self, stands: bool) {
        let shown = self.shows();
        let mut dial = self.dial.lock();
        (dial.shown, dial.since, dial.stands) = (shown, Instant::now(), stands);
    }

    /// Waits until every gate is open. Whatever had to wait comes out in any order.
    pub async fn pass(&self) {
        while let Some(gate) = self.gates.iter().find(|gate| gate.is_shut()) {
            gate.pass().await;
            let stir = Duration::from_micros(self.dial.lock().stir.u64(0..3000));
            tokio::time::sleep(stir).await;
        }
    }
}

impl TimeSource for Watch {
    fn now(&self) -> Instant {
        self.shows()
    }

    fn sleep_until(&self, at: Instant) -> BoxFuture<'static, ()> {
        let watch = self.clone();
        Box::pin(async move {
            loop {
                watch.pass().await;
                let left = at.saturating_duration_since(watch.shows());
                if left.is_zero() {
                    return;
                }
                let pace = watch.dial.lock().pace;
                tokio::time::sleep(left.div_f64(pace) + Duration::from_nanos(100)).await;
            }
        })
    }
}
