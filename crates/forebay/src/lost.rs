//! How a connector tells the pool that a connection has died while nobody was
//! using it, so that it is replaced before anybody draws it.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::budget::Holding;
use crate::clock::Instant;
use crate::connector::Connector;
use crate::live::Place;
use crate::reason::Discard;
use crate::state::State;

/// Tells a pool that a connection is dead. Keep a clone with whatever notices
/// that first: the task that reads the socket, as a rule.
///
/// ```
/// use forebay::{Lost, Opened};
/// # struct Conn;
/// let lost = Lost::new();
/// let reader = lost.clone(); // goes to the task that reads the socket
/// let opened = Opened::new(Conn).with_lost(lost);
/// // … and there, at the end of the stream:
/// reader.tell();
/// # drop(opened);
/// ```
#[derive(Clone, Default)]
pub struct Lost(Arc<Mutex<News>>);

#[derive(Default)]
enum News {
    #[default]
    Unknown,
    Known(Weak<dyn Holding>, u32),
    Told,
}

impl Lost {
    /// For one connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// The connection is dead. Only the first call counts; safe from any thread.
    pub fn tell(&self) {
        let before = std::mem::replace(&mut *self.0.lock(), News::Told);
        if let News::Known(pool, id) = before
            && let Some(pool) = pool.upgrade()
        {
            pool.lost(id, self);
        }
    }

    /// From now on telling reaches the pool; `false` if it has been told already.
    pub(crate) fn belongs_to(&self, pool: Weak<dyn Holding>, id: u32) -> bool {
        let mut news = self.0.lock();
        if matches!(*news, News::Told) {
            return false;
        }
        *news = News::Known(pool, id);
        true
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lost")
    }
}

impl<C: Connector> State<C> {
    /// Discards a ready connection that has died. One in use is judged when it comes back.
    pub(crate) fn lost(&mut self, id: u32, lost: &Lost, now: Instant) {
        let Some(entry) = self.conns.get(id as usize) else { return };
        let same = entry.lost.as_ref().is_some_and(|mine| mine.is(lost));
        if same && entry.place == Place::Ready {
            self.discard_ready(id, Discard::Broken, now);
        }
    }
}
