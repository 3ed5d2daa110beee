//! A sign of life on stderr for work that takes longer than people like to wait in silence.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Silence up to here needs no excuse.
const FIRST_AFTER: Duration = Duration::from_secs(2);
const THEN_EVERY: Duration = Duration::from_secs(10);

/// Says now and then what is being done, until dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    done: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// `what` is being done from now on.
    pub(crate) fn of(what: impl Into<String>) -> Self {
        let what = what.into();
        let (done, told) = mpsc::channel::<()>();
        let start = Instant::now();
        let thread = thread::spawn(move || {
            let mut patience = FIRST_AFTER;
            while told.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                eprintln!("xtask: {what} ({}s so far)", start.elapsed().as_secs());
                patience = THEN_EVERY;
            }
        });
        Self { done: Some(done), thread: Some(thread) }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.done.take());
        if let Some(thread) = self.thread.take() {
            // It only prints; whatever happened to it is no reason to stop.
            let _ = thread.join();
        }
    }
}
