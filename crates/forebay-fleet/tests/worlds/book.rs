//! What happened in a world, in order, and the first promise that was broken.

use std::sync::Arc;
use std::time::Duration;

use forebay::Instant;
use parking_lot::Mutex;

/// Something that happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Note {
    pub at: Duration,
    pub what: &'static str,
    pub who: u64,
    pub how: u64,
}

type Hook = Box<dyn Fn() + Send>;

/// A shared record.
#[derive(Clone)]
pub struct Book(Arc<Inner>);

struct Inner {
    start: Instant,
    notes: Mutex<Vec<Note>>,
    breach: Mutex<Option<String>>,
    judge: Mutex<Option<Hook>>,
}

impl Book {
    pub fn new() -> Self {
        Self(Arc::new(Inner {
            start: Instant::now(),
            notes: Mutex::default(),
            breach: Mutex::default(),
            judge: Mutex::default(),
        }))
    }

    pub fn note(&self, what: &'static str, who: u64, how: u64) {
        let at = self.elapsed();
        self.0.notes.lock().push(Note { at, what, who, how });
    }

    pub fn elapsed(&self) -> Duration {
        Instant::now() - self.0.start
    }

    pub fn notes(&self) -> Vec<Note> {
        self.0.notes.lock().clone()
    }

    /// A promise was broken; the first one counts.
    pub fn breach(&self, text: String) {
        let at = self.elapsed();
        self.0.breach.lock().get_or_insert_with(|| format!("at {at:?}: {text}"));
    }

    pub fn broken(&self) -> Option<String> {
        self.0.breach.lock().clone()
    }

    pub fn set_judge(&self, judge: impl Fn() + Send + 'static) {
        *self.0.judge.lock() = Some(Box::new(judge));
    }

    pub fn clear_judge(&self) {
        *self.0.judge.lock() = None;
    }

    /// Looks whether every promise is kept.
    pub fn judge(&self) {
        if let Some(judge) = &*self.0.judge.lock() {
            judge();
        }
    }

    /// The last things that happened, for a failing seed.
    pub fn tail(&self, n: usize) -> String {
        let notes = self.0.notes.lock();
        let last = notes.iter().rev().take(n).rev();
        last.map(|note| {
            let Note { at, what, who, how } = note;
            format!("{:>10.3} {what} {who} {how}\n", at.as_secs_f64())
        })
        .collect()
    }
}
