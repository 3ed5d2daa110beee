//! The dead man's switch: a timer in the kernel that kills this process if it was
//! stopped past its leases and so could not fence itself. It runs on the clock that
//! goes on while the machine sleeps, and needs no thread of this process to fire.
//! (A handle to such a timer cannot move between threads, so a small thread keeps it.)

use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use forebay::Instant;
use parking_lot::Mutex;

/// A deadline per backend; the earliest is the kernel's.
#[derive(Debug)]
pub(crate) struct DeadMan {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    deadlines: BTreeMap<String, Instant>,
    timer: Sender<Option<Duration>>,
}

impl DeadMan {
    pub(crate) fn new() -> std::io::Result<Self> {
        let (timer, orders) = channel();
        let (ready, made) = channel();
        std::thread::Builder::new().name("forebay-deadman".to_owned()).spawn(move || {
            match Timer::new() {
                Ok(mut timer) => {
                    let _ = ready.send(Ok(()));
                    // ends, and the timer with it, when the member is dropped
                    while let Ok(after) = orders.recv() {
                        timer.arm(after);
                    }
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                }
            }
        })?;
        made.recv().map_err(std::io::Error::other)??;
        Ok(Self { state: Mutex::new(State { deadlines: BTreeMap::new(), timer }) })
    }

    /// Dies at the deadline unless it is moved or taken away before.
    pub(crate) fn set(&self, backend: &str, deadline: Option<Instant>, now: Instant) {
        let mut state = self.state.lock();
        let before = state.deadlines.values().min().copied();
        match deadline {
            Some(deadline) => state.deadlines.insert(backend.to_owned(), deadline),
            None => state.deadlines.remove(backend),
        };
        let first = state.deadlines.values().min().copied();
        if first != before {
            state.arm(first.map(|at| at.saturating_duration_since(now)));
        }
    }

    pub(crate) fn disarm(&self) {
        let mut state = self.state.lock();
        state.deadlines.clear();
        state.arm(None);
    }
}

impl State {
    fn arm(&self, after: Option<Duration>) {
        if self.timer.send(after).is_err() {
            tracing::error!("the dead man's switch has lost its thread");
        }
    }
}

#[cfg(target_os = "linux")]
struct Timer(nix::sys::timer::Timer);

#[cfg(target_os = "linux")]
impl Timer {
    fn new() -> std::io::Result<Self> {
        use nix::sys::signal::{SigEvent, SigevNotify, Signal};
        let kill = SigevNotify::SigevSignal { signal: Signal::SIGKILL, si_value: 0 };
        let event = SigEvent::new(kill);
        Ok(Self(nix::sys::timer::Timer::new(nix::time::ClockId::CLOCK_BOOTTIME, event)?))
    }

    fn arm(&mut self, after: Option<Duration>) {
        use nix::sys::time::TimeSpec;
        use nix::sys::timer::{Expiration, TimerSetTimeFlags};
        // a timer of nothing is one that is off
        let after = after.map_or(Duration::ZERO, |after| after.max(Duration::from_millis(1)));
        let once = Expiration::OneShot(TimeSpec::from_duration(after));
        if let Err(error) = self.0.set(once, TimerSetTimeFlags::empty()) {
            tracing::error!(%error, "the dead man's switch could not be set");
        }
    }
}

#[cfg(not(target_os = "linux"))]
struct Timer;

#[cfg(not(target_os = "linux"))]
impl Timer {
    fn new() -> std::io::Result<Self> {
        Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "dead_man works on Linux only"))
    }

    fn arm(&mut self, _after: Option<Duration>) {}
}
