//! Where a waiter is handed its connection. Each waiting checkout has a desk of
//! its own, so it claims what it was handed without the pool's lock: returning a
//! connection and claiming it do not compete. It need not come to its desk to
//! wait: its waker is in the queue, and here only if it was polled again. A desk's lock may be taken while
//! the pool's is held, never the other way round.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use crate::connector::Connector;
use crate::error::GetError;
use crate::live::Live;
use crate::sync::Mutex;

/// Desks in the first block; each further block is twice as large.
const FIRST_BLOCK: u32 = 64;
/// Blocks enough for as many desks as there are numbers.
const BLOCKS: usize = 27;

/// What lies on a desk.
pub(crate) enum Hand<C: Connector> {
    /// Nothing. If its checkout waits and has no place in the queue, something
    /// is on its way to it.
    Nothing,
    /// Its checkout was dropped while something was on its way: the bringer
    /// takes it back and frees the desk.
    Gone,
    /// Handed over, not yet claimed.
    Handed(Box<Live<C>>),
    /// Did not claim in time: it has a ticket, but no place until it is polled.
    Away,
    /// Will not be served.
    Failed(Box<GetError>),
}

/// One waiter's desk.
pub(crate) struct Seat<C: Connector> {
    pub(crate) hand: Hand<C>,
    /// The waker of the last poll, if that was not the one that joined the queue.
    pub(crate) waker: Option<Waker>,
}

/// A desk on a cache line of its own.
#[repr(align(64))]
pub(crate) struct Desk<C: Connector>(Mutex<Seat<C>>);

impl<C: Connector> Desk<C> {
    pub(crate) fn lock(&self) -> crate::sync::MutexGuard<'_, Seat<C>> {
        self.0.lock()
    }
}

/// Something on cache lines of its own.
#[repr(align(128))]
struct Padded<T>(T);

/// All desks of a pool. They are made in blocks and never moved.
pub(crate) struct Desks<C: Connector> {
    /// Somebody waits, as a hint for those who do not hold the pool's lock. It is
    /// written only when it changes, so in a crowd all can read it undisturbed.
    crowded: Padded<AtomicBool>,
    blocks: [OnceLock<Box<[Desk<C>]>>; BLOCKS],
}

impl<C: Connector> Desks<C> {
    pub(crate) fn new() -> Self {
        Self {
            crowded: Padded(AtomicBool::new(false)),
            blocks: [const { OnceLock::new() }; BLOCKS],
        }
    }

    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded.0.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set_crowded(&self, crowded: bool) {
        if self.is_crowded() != crowded {
            self.crowded.0.store(crowded, Ordering::Relaxed);
        }
    }

    /// The desk with this number.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> &Desk<C> {
        let place = number + FIRST_BLOCK;
        let block = (place.ilog2() - FIRST_BLOCK.ilog2()) as usize;
        let size = FIRST_BLOCK << block;
        let desks = self.blocks[block].get_or_init(|| {
            let seat = || Seat { hand: Hand::Nothing, waker: None };
            (0..size).map(|_| Desk(Mutex::new(seat()))).collect()
        });
        &desks[(place - size) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;
    impl Connector for Nothing {
        type Conn = ();
        type Key = ();
        type Error = std::convert::Infallible;
        async fn connect(
            &self,
            _key: &(),
        ) -> Result<crate::connector::Opened<()>, std::convert::Infallible> {
            Ok(crate::connector::Opened::new(()))
        }
    }

    #[test]
    fn every_number_has_a_desk_of_its_own() {
        let desks = Desks::<Nothing>::new();
        let mut seen = std::collections::BTreeSet::new();
        for number in 0..5000 {
            assert!(seen.insert(std::ptr::from_ref(desks.get(number)) as usize));
        }
        assert_eq!(std::mem::size_of::<Desk<Nothing>>(), 64);
    }
}
