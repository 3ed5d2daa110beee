//! A checkout's side of the state: it takes what is ready or a ticket, gives its
//! ticket up or takes its old place again, and is told that it will not be
//! served. All of it is computation under the lock; `checkout` is the future.

use std::task::Waker;
use std::time::Duration;

use crate::checkout::Wait;
use crate::clock::{FAR, Instant};
use crate::connector::Connector;
use crate::desk::Hand;
use crate::error::GetError;
use crate::keys::DEFAULT_KEY;
use crate::live::{Live, Verdict};
use crate::observer::Event;
use crate::queue::{Priority, Ticket, Waiter};
use crate::state::State;

/// What a checkout asks for.
pub(crate) struct Want<K> {
    pub(crate) key: Option<K>,
    pub(crate) excluded: u64,
    pub(crate) priority: Priority,
    pub(crate) wait: Wait,
}

/// What a checkout keeps of its ticket; the rest it has anyway.
#[derive(Clone, Copy)]
pub(crate) struct Queued {
    pub(crate) desk: u32,
    pub(crate) key: u32,
    pub(crate) seq: u64,
    pub(crate) arrived: Instant,
}

/// The answer of a first look at the state.
pub(crate) enum Look<C: Connector> {
    Taken(Box<Live<C>>),
    Queued(Queued),
    /// There is nothing ready, and for a place in the queue it takes a waker.
    Unready,
    Err(GetError),
}

impl<C: Connector> State<C> {
    /// The first poll: take what is ready, else take a ticket.
    #[inline]
    pub(crate) fn first_look(
        &mut self,
        want: &Want<C::Key>,
        now: Instant,
        waker: &mut Option<Waker>,
    ) -> Look<C> {
        if self.closed {
            return Look::Err(GetError::Closed);
        }
        let key = match &want.key {
            None => DEFAULT_KEY,
            Some(key) => self.key_number(key, now),
        };
        if let Some(mut live) = self.take(now, key, want.excluded) {
            live.timed = self.count_checkout();
            if waker.is_some() && self.queue.waiting() == 0 {
                self.desks.set_crowded(false);
            }
            return Look::Taken(live);
        }
        let look = self.join(key, want, now, waker);
        if matches!(look, Look::Err(_) | Look::Unready) {
            self.forget_key(key);
        }
        look
    }

    /// Takes a ticket, unless waiting is refused or useless.
    #[inline]
    fn join(
        &mut self,
        key: u32,
        want: &Want<C::Key>,
        now: Instant,
        waker: &mut Option<Waker>,
    ) -> Look<C> {
        if waker.is_none() {
            return Look::Unready;
        }
        self.empty += 1;
        if self.keys.are_many() || self.keys.get(key).last_used.is_none() {
            self.keys.get_mut(key).last_used = Some(now);
        }
        if let Err(error) = self.may_wait(want.excluded, want.priority, now) {
            return Look::Err(error);
        }
        let ticket = self.ticket(key, want, now);
        if ticket.deadline <= now {
            self.tallies.timeouts += 1;
            let ahead = self.queue.waiting();
            let timeout = self.timeout_error(want.excluded, ahead, Duration::ZERO, now);
            self.announce(Event::TimedOut { waited: Duration::ZERO });
            return Look::Err(GetError::Timeout(timeout));
        }
        let (desk, seq) = self.queue.join(&ticket, waker);
        self.desks.set_crowded(true);
        self.call_driver_for(&ticket, now);
        Look::Queued(Queued { desk, key, seq, arrived: now })
    }

    /// The ticket of a checkout that came at `arrived`.
    #[inline]
    fn ticket(&self, key: u32, want: &Want<C::Key>, arrived: Instant) -> Ticket {
        let (deadline, default_deadline) = match want.wait {
            Wait::Default => (arrived + self.settings.timeout, true),
            Wait::Brief => (arrived + self.settings.brief_wait, false),
            Wait::For(span) => (arrived + span.min(FAR), false),
            Wait::Until(at) => (at, false),
        };
        let (excluded, priority) = (want.excluded, want.priority);
        Ticket { key, excluded, priority, arrived, deadline, default_deadline }
    }

    /// Wakes the driver if it could do something for a new waiter.
    #[inline]
    fn call_driver_for(&mut self, ticket: &Ticket, now: Instant) {
        self.wake_driver_by(ticket.deadline);
        let waiting = self.queue.waiting();
        let many_keys = self.keys.are_many();
        let useful = self.sources.iter().enumerate().any(|(index, source)| {
            ticket.excluded & (1 << index) == 0
                && (source.wants(now, waiting)
                    || source.throttle.is_some()
                    || (many_keys && source.ready > 0))
        });
        if useful {
            self.wake_driver = true;
        }
    }

    /// A checkout is dropped while it waits: what it was handed goes on.
    /// Gives its wakers, to be dropped without the lock.
    pub(crate) fn cancel(
        &mut self,
        want: &Want<C::Key>,
        place: &Queued,
        now: Instant,
    ) -> [Option<Waker>; 2] {
        let Queued { desk, key, seq, arrived } = *place;
        self.tallies.cancelled += 1;
        let waiter = self.queue.leave(&self.ticket(key, want, arrived), seq);
        let queued = waiter.is_some();
        let mut seat = self.desks.get(desk).lock();
        let wakers = [seat.waker.take(), waiter.and_then(|waiter| waiter.waker)];
        let next = match seat.hand {
            Hand::Nothing if !queued => Hand::Gone,
            _ => Hand::Nothing,
        };
        let hand = std::mem::replace(&mut seat.hand, next);
        drop(seat);
        match hand {
            // something is on its way: whoever brings it frees the desk
            Hand::Nothing if !queued => return wakers,
            Hand::Handed(live) => {
                self.checkouts -= 1;
                self.put(live, Verdict::Clean, now);
            }
            Hand::Away => self.keys.get_mut(key).away -= 1,
            _ => {}
        }
        self.queue.free_desk(desk);
        wakers
    }

    /// A checkout gives up what it was handed and takes its old place again.
    pub(crate) fn decline(
        &mut self,
        mut live: Box<Live<C>>,
        verdict: Verdict,
        want: &Want<C::Key>,
        place: &Queued,
        now: Instant,
    ) {
        self.checkouts -= 1;
        // the desk is kept
        live.desk = None;
        self.put(live, verdict, now);
        self.resume(want, place, now);
    }

    /// A checkout that had not claimed in time is polled again.
    pub(crate) fn come_back(&mut self, want: &Want<C::Key>, place: &Queued, now: Instant) {
        self.keys.get_mut(place.key).away -= 1;
        self.resume(want, place, now);
    }

    /// Takes the old place again, and what is ready, unless it is too late.
    fn resume(&mut self, want: &Want<C::Key>, place: &Queued, now: Instant) {
        let Queued { desk, key, seq, arrived } = *place;
        if self.closed {
            return self.fail(desk, None, GetError::Closed);
        }
        let ticket = &self.ticket(key, want, arrived);
        if ticket.deadline <= now {
            let ahead = self.queue.ahead_of(ticket.class(), ticket.arrived, seq);
            return self.time_out(Waiter::new(ticket, seq, desk), ticket.excluded, ahead, now);
        }
        self.queue.rejoin(ticket, seq, desk);
        self.call_driver_for(ticket, now);
        self.serve_waiters(now);
    }

    /// Tells a waiter that it will not be served.
    pub(crate) fn fail(&mut self, desk: u32, waker: Option<Waker>, error: GetError) {
        let mut seat = self.desks.get(desk).lock();
        seat.hand = Hand::Failed(Box::new(error));
        let later = seat.waker.take();
        drop(seat);
        self.outbox.wakers.extend(waker.into_iter().chain(later));
        self.outgoing = true;
    }

    /// Whether a checkout that found nothing may wait.
    #[inline]
    fn may_wait(
        &mut self,
        excluded: u64,
        priority: Priority,
        now: Instant,
    ) -> Result<(), GetError> {
        let mut usable = false;
        let mut retry_at: Option<Instant> = None;
        let mut all_throttled = true;
        for (index, source) in self.sources.iter().enumerate() {
            if excluded & (1 << index) != 0 {
                continue;
            }
            usable = true;
            match source.throttled_until(now) {
                Some(at) => retry_at = Some(retry_at.map_or(at, |before| before.min(at))),
                None => all_throttled = false,
            }
        }
        if !usable {
            return Err(GetError::NoSource);
        }
        if let (Some(at), Some(tolerance)) = (retry_at, self.settings.max_retry_after)
            && all_throttled
            && at - now > tolerance
        {
            self.tallies.refused_throttled += 1;
            return Err(GetError::Throttled { retry_after: at - now, tolerance });
        }
        if !self.queue.has_room(priority, self.settings.max_waiters) {
            self.tallies.refused_full += 1;
            let in_use = self.sources.iter().map(|source| source.in_use).sum();
            return Err(GetError::QueueFull { waiting: self.queue.waiting(), in_use });
        }
        Ok(())
    }
}
