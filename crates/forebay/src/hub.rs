//! What all handles of one pool share: the state under its lock, the
//! connectors, the clock and the ways to wake the driver.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use crate::budget::{CountBudget, Standing};
use crate::clock::{Clock, Instant, RoughClock};
use crate::connector::Connector;
use crate::desk::{Desks, Hand};
use crate::error::GetError;
use crate::live::{Delivery, Live, Place, Verdict};
use crate::observer::{Event, Observer};
use crate::reason::Discard;
use crate::state::State;
use crate::stats::Waits;
use crate::sync::{Mutex, MutexGuard};

/// Aligned, so that the lock and what is changed under it begin with a cache line,
/// and not on that of the counts of references.
#[repr(C, align(128))]
pub(crate) struct Hub<C: Connector> {
    pub(crate) state: Mutex<State<C>>,
    pub(crate) connectors: Vec<C>,
    pub(crate) clock: Clock,
    pub(crate) rough: RoughClock,
    /// Wakes the driver.
    pub(crate) signal: Arc<Notify>,
    /// Told after each open and each release, for those who watch the stock.
    pub(crate) changed: Notify,
    /// Told when the pool is closed, for opens that have not begun to connect.
    pub(crate) closing: Notify,
    /// Told when opens under way have lost their leases.
    pub(crate) disowning: Notify,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) desks: Arc<Desks<C>>,
    pub(crate) waits: Waits,
    /// The count budgets of the sources, to be asked without the lock.
    pub(crate) counts: Vec<Option<Arc<dyn CountBudget>>>,
    /// A source has been throttled or invalidated since the pool began: whoever
    /// claims what was handed over looks again.
    pub(crate) wary: AtomicBool,
}

impl<C: Connector> Hub<C> {
    /// Changes the state and does afterwards, without the lock, what it asks for.
    pub(crate) fn with<R>(&self, change: impl FnOnce(&mut State<C>, Instant) -> R) -> R {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let result = change(&mut state, now);
        self.unlock(state);
        result
    }

    /// Gives up the lock, then wakes and tells whom the state says.
    #[inline]
    pub(crate) fn unlock(&self, state: MutexGuard<'_, State<C>>) {
        if state.wake_driver || state.outgoing {
            self.unlock_loudly(state);
        }
    }

    /// Brings a connection to a waiter's desk, unless its checkout has gone.
    pub(crate) fn deliver(&self, Delivery { desk, waker, live }: Delivery<C>) {
        let mut seat = self.desks.get(desk).lock();
        if matches!(seat.hand, Hand::Gone) {
            seat.hand = Hand::Nothing;
            drop(seat);
            return self.with(|state, now| {
                state.checkouts -= 1;
                state.queue.free_desk(desk);
                state.put(live, Verdict::Clean, now);
            });
        }
        seat.hand = Hand::Handed(live);
        let later = seat.waker.take();
        drop(seat);
        if let Some(waker) = later.or(waker) {
            waker.wake();
        }
    }

    /// Whether something handed over may not be used after all.
    #[inline]
    pub(crate) fn is_unwelcome(&self, live: &Live<C>, now: Instant) -> bool {
        let index = live.source as usize;
        let fenced = |count: &Arc<dyn CountBudget>| count.standing(now) != Standing::Good;
        if self.counts[index].as_ref().is_some_and(fenced) {
            return true;
        }
        self.wary.load(Ordering::Relaxed) && {
            let state = self.state.lock();
            let source = &state.sources[index];
            source.throttled_until(now).is_some()
                || source.generation != live.generation
                || state.was_killed(live.id)
        }
    }

    /// As [`unlock`](Self::unlock), with everything in the outbox.
    pub(crate) fn unlock_loudly(&self, mut state: MutexGuard<'_, State<C>>) {
        let wake_driver = std::mem::take(&mut state.wake_driver);
        state.outgoing = false;
        let outbox = &mut state.outbox;
        let deliveries = std::mem::take(&mut outbox.deliveries);
        let wakers = std::mem::take(&mut outbox.wakers);
        let driverless = state.driverless;
        let orphans = if driverless { self.bury(&mut state) } else { Vec::new() };
        let events = std::mem::take(&mut state.outbox.events);
        drop(state);
        drop(orphans);
        if driverless {
            self.changed.notify_waiters();
        }
        for delivery in deliveries {
            self.deliver(delivery);
        }
        for waker in wakers {
            waker.wake();
        }
        if wake_driver {
            self.signal.notify_one();
        }
        self.tell(&events);
    }

    pub(crate) fn tell(&self, events: &[Event]) {
        for event in events {
            tracing::debug!(?event);
            if let Some(observer) = &self.observer {
                observer.event(event);
            }
        }
    }

    /// Completes once the pool is closed.
    pub(crate) async fn closed(&self) {
        let closing = self.closing.notified();
        tokio::pin!(closing);
        closing.as_mut().enable();
        if !self.state.lock().closed {
            closing.await;
        }
    }

    /// Completes once an open under way has lost its lease.
    pub(crate) async fn disowned(&self, id: u32) {
        loop {
            let disowning = self.disowning.notified();
            tokio::pin!(disowning);
            disowning.as_mut().enable();
            if self.state.lock().conns[id as usize].disowned {
                return;
            }
            disowning.await;
        }
    }

    /// The backend asked a source to wait.
    pub(crate) fn throttled(&self, index: usize, retry_after: std::time::Duration) {
        self.wary.store(true, Ordering::Relaxed);
        self.with(|state, now| state.throttled(index, retry_after, now));
    }

    /// Refuses new checkouts, ends the waiting ones and closes the stock.
    pub(crate) fn close(&self) {
        self.with(State::close);
        self.closing.notify_waiters();
        self.signal.notify_one();
        self.changed.notify_waiters();
    }

    /// The driver is gone and nothing can be opened or closed in the background
    /// any more: what is in stock is dropped here.
    pub(crate) fn abandon(&self) {
        let mut state = self.state.lock();
        let now = self.clock.now();
        state.close(now);
        state.driverless = true;
        state.release_all_in_grace(now);
        state.wake_driver = true;
        self.unlock(state);
        self.changed.notify_waiters();
    }

    /// Forgets discarded connections without a driver; they are dropped by the
    /// caller once the lock is free.
    fn bury(&self, state: &mut State<C>) -> Vec<Box<Live<C>>> {
        let outbox = &mut state.outbox;
        let mut dead = std::mem::take(&mut outbox.closes);
        let mut others = std::mem::take(&mut outbox.resets);
        others.append(&mut outbox.checks);
        let now = self.clock.now();
        for live in others {
            state.discard(live, Discard::Drained, now);
        }
        dead.append(&mut state.outbox.closes);
        for live in &dead {
            state.released(live.id, false, now);
        }
        for id in std::mem::take(&mut state.outbox.opens) {
            state.open_ended(id, false, now);
        }
        state.wake_driver = false;
        dead
    }
}

impl<C: Connector> State<C> {
    /// Refuses new checkouts, ends the waiting ones and closes the stock.
    pub(crate) fn close(&mut self, now: Instant) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        for waiter in self.queue.drain() {
            self.fail(waiter.desk, waiter.waker, GetError::Closed);
        }
        for desk in 0..self.queue.desks() {
            let mut seat = self.desks.get(desk).lock();
            match std::mem::replace(&mut seat.hand, Hand::Nothing) {
                Hand::Handed(live) => {
                    drop(seat);
                    self.checkouts -= 1;
                    self.discard(live, Discard::Drained, now);
                    self.fail(desk, None, GetError::Closed);
                }
                other => seat.hand = other,
            }
        }
        for index in 0..self.sources.len() {
            self.discard_stock(index, Discard::Drained, now);
        }
        self.wake_driver = true;
    }

    /// Frees the slots of closed connections that nobody will wait for any more.
    fn release_all_in_grace(&mut self, now: Instant) {
        let closing = self.conns.iter().filter(|(_, entry)| entry.place == Place::Closing);
        let held = closing.filter(|(_, entry)| entry.agenda_at.is_some());
        let ids: Vec<u32> = held.map(|(id, _)| id as u32).collect();
        for id in ids {
            if let Some(at) = self.conns[id as usize].agenda_at.take() {
                self.agenda.remove(&(at, id));
            }
            self.released(id, false, now);
        }
    }

    /// Closes every ready connection of a source.
    pub(crate) fn discard_stock(&mut self, index: usize, reason: Discard, now: Instant) {
        let ready: Vec<u32> =
            self.sources[index].stocks.iter().flat_map(|stock| stock.iter(&self.conns)).collect();
        for id in ready {
            self.discard_ready(id, reason, now);
        }
    }
}
