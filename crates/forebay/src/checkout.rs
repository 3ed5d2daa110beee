//! The future of one checkout. Its first poll takes a ready connection in one
//! critical section; only if there is none does it take a ticket and wait to be
//! handed one. Dropping it at any point gives back whatever it holds.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::clock::{FAR, Instant};
use crate::connector::Connector;
use crate::desk::Hand;
use crate::error::GetError;
use crate::guard::{Guard, GuardRef};
use crate::hub::Hub;
use crate::keys::DEFAULT_KEY;
use crate::live::{Live, TIMED, Verdict};
use crate::observer::Event;
use crate::queue::{Priority, Ticket};
use crate::reason::Discard;
use crate::state::State;

/// How a connection is to be checked out.
///
/// ```
/// use std::time::Duration;
/// use forebay::{GetOptions, Priority};
/// let options: GetOptions<()> =
///     GetOptions::new().timeout(Duration::from_secs(2)).priority(Priority::High);
/// # let _ = options;
/// ```
#[derive(Debug, Clone)]
pub struct GetOptions<K> {
    pub(crate) key: Option<K>,
    pub(crate) wait: Wait,
    pub(crate) priority: Priority,
    pub(crate) exclude: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Wait {
    Default,
    Brief,
    For(Duration),
    Until(Instant),
}

impl<K> Default for GetOptions<K> {
    fn default() -> Self {
        Self { key: None, wait: Wait::Default, priority: Priority::Normal, exclude: Vec::new() }
    }
}

impl<K> GetOptions<K> {
    /// What `get` uses.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits for at most this long, all phases together.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.wait = Wait::For(timeout);
        self
    }

    /// Waits until this instant at most, all phases together.
    #[must_use]
    pub fn deadline(mut self, deadline: Instant) -> Self {
        self.wait = Wait::Until(deadline);
        self
    }

    /// Waits only for the pool's `brief_wait` (100 ms): enough for a refill to
    /// catch up, for callers that would rather fail and retry than queue.
    #[must_use]
    pub fn brief(mut self) -> Self {
        self.wait = Wait::Brief;
        self
    }

    /// The importance of this checkout.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Wants a connection of this key.
    #[must_use]
    pub fn key(mut self, key: K) -> Self {
        self.key = Some(key);
        self
    }

    /// Does not want a connection of this source; may be called more than once.
    #[must_use]
    pub fn exclude(mut self, source: impl Into<String>) -> Self {
        self.exclude.push(source.into());
        self
    }
}

/// A checkout under way; see [`Pool::get`](crate::Pool::get).
#[must_use = "a checkout does nothing until it is awaited"]
pub struct Checkout<'a, C: Connector>(pub(crate) CheckoutRef<'a, C>);

impl<C: Connector> Future for Checkout<'_, C> {
    type Output = Result<Guard<C>, GetError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let guard = Pin::new(&mut self.0).poll(cx);
        guard.map(|result| result.map(GuardRef::into_owned))
    }
}

/// A checkout under way whose guard borrows from the pool; see
/// [`Pool::get_ref`](crate::Pool::get_ref).
#[must_use = "a checkout does nothing until it is awaited"]
pub struct CheckoutRef<'a, C: Connector> {
    hub: &'a Arc<Hub<C>>,
    stage: Stage<C::Key>,
}

enum Stage<K> {
    Start { key: Option<K>, excluded: u64, priority: Priority, wait: Wait },
    Waiting { desk: u32, seq: u64, ticket: Ticket, since: Option<Instant> },
    Done,
}

impl<K> Unpin for Stage<K> {}
impl<C: Connector> Unpin for CheckoutRef<'_, C> {}

/// The answer of a first look at the state.
enum Look<C: Connector> {
    Taken(Box<Live<C>>),
    Queued(u32, u64, Ticket),
    Err(GetError),
}

impl<'a, C: Connector> CheckoutRef<'a, C> {
    pub(crate) fn new(
        hub: &'a Arc<Hub<C>>,
        key: Option<C::Key>,
        excluded: u64,
        priority: Priority,
        wait: Wait,
    ) -> Self {
        Self { hub, stage: Stage::Start { key, excluded, priority, wait } }
    }

    /// The first poll: takes what is ready, else takes a ticket.
    #[inline]
    fn start(&mut self, waker: &Waker) -> Poll<Result<GuardRef<'a, C>, GetError>> {
        let Stage::Start { key, excluded, priority, wait } = &self.stage else {
            return Poll::Pending;
        };
        let hub = self.hub;
        loop {
            let now = hub.rough.now(&hub.clock);
            let mut state = hub.state.lock();
            let look = state.first_look(key.as_ref(), *excluded, *priority, *wait, now);
            hub.unlock(state);
            match look {
                Look::Taken(live) => match accept(hub, live) {
                    Ok(guard) => {
                        self.stage = Stage::Done;
                        return Poll::Ready(Ok(guard));
                    }
                    Err(dead) => hub.discard_dead(dead),
                },
                Look::Queued(desk, seq, ticket) => {
                    let since = hub.is_timed(seq).then(|| hub.clock.now());
                    self.stage = Stage::Waiting { desk, seq, ticket, since };
                    return self.wait(waker);
                }
                Look::Err(error) => {
                    self.stage = Stage::Done;
                    return Poll::Ready(Err(error));
                }
            }
        }
    }

    /// A later poll: claims what lies on its desk, or goes on waiting.
    fn wait(&mut self, waker: &Waker) -> Poll<Result<GuardRef<'a, C>, GetError>> {
        let hub = self.hub;
        while let Stage::Waiting { desk, seq, ticket, since } = self.stage {
            let mut seat = hub.desks.get(desk).lock();
            match std::mem::replace(&mut seat.hand, Hand::Vacant) {
                Hand::Handed(mut live, _) => {
                    drop(seat);
                    live.desk = Some(desk);
                    match self.claim(live, &ticket, since) {
                        Ok(guard) => {
                            self.stage = Stage::Done;
                            return Poll::Ready(Ok(guard));
                        }
                        // it may not be used: the ticket goes on at its old place
                        Err((live, verdict)) => hub.with(|state, now| {
                            state.decline(live, verdict, &ticket, seq, now);
                        }),
                    }
                }
                Hand::Vacant | Hand::Waiting | Hand::Gone => {
                    seat.hand = Hand::Waiting;
                    match &mut seat.waker {
                        Some(current) => current.clone_from(waker),
                        None => seat.waker = Some(waker.clone()),
                    }
                    return Poll::Pending;
                }
                Hand::Away => {
                    drop(seat);
                    hub.with(|state, now| state.come_back(&ticket, seq, desk, now));
                }
                Hand::Failed(error) => {
                    drop(seat);
                    self.stage = Stage::Done;
                    hub.with(|state, _| state.queue.free_desk(desk));
                    return Poll::Ready(Err(*error));
                }
            }
        }
        Poll::Pending
    }

    /// Looks once more at what was handed over: it may have aged, or its source
    /// been throttled or fenced, or it may be dead.
    fn claim(
        &self,
        live: Box<Live<C>>,
        ticket: &Ticket,
        since: Option<Instant>,
    ) -> Result<GuardRef<'a, C>, (Box<Live<C>>, Verdict)> {
        let hub = self.hub;
        let now = hub.rough.now(&hub.clock);
        if live.hand_out_before <= now || hub.is_unwelcome(&live, now) {
            return Err((live, Verdict::Clean));
        }
        let guard = accept(hub, live).map_err(|dead| (dead, Verdict::Discard(Discard::Broken)))?;
        let roughly = now.saturating_duration_since(ticket.arrived);
        match since {
            Some(since) => hub.waits.record(hub.clock.now() - since, hub.timed_share()),
            None => hub.waits.record_if_longest(roughly),
        }
        Ok(guard)
    }
}

/// Makes a guard of a live connection, unless it turns out to be dead.
#[inline]
pub(crate) fn accept<'a, C: Connector>(
    hub: &'a Arc<Hub<C>>,
    mut live: Box<Live<C>>,
) -> Result<GuardRef<'a, C>, Box<Live<C>>> {
    let connector = &hub.connectors[live.source as usize];
    // a connector that panics here costs this connection only
    let asked = catch_unwind(AssertUnwindSafe(|| connector.is_broken(&live.conn)));
    if asked.unwrap_or(true) {
        return Err(live);
    }
    if live.timed || !hub.rough.is_trusted() {
        live.taken_at = Some(hub.clock.now());
    }
    Ok(GuardRef::new(hub, live))
}

impl<C: Connector> Hub<C> {
    /// Of how many waits and uses one is timed.
    #[inline]
    pub(crate) fn timed_share(&self) -> u64 {
        if self.rough.is_trusted() { TIMED } else { 1 }
    }

    #[inline]
    fn is_timed(&self, number: u64) -> bool {
        number.is_multiple_of(self.timed_share())
    }

    /// Closes a connection that was found dead at its checkout, which goes on.
    pub(crate) fn discard_dead(&self, dead: Box<Live<C>>) {
        self.with(|state, now| {
            state.checkouts -= 1;
            state.put(dead, Verdict::Discard(Discard::Broken), now);
        });
    }
}

impl<'a, C: Connector> Future for CheckoutRef<'a, C> {
    type Output = Result<GuardRef<'a, C>, GetError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        match this.stage {
            Stage::Start { .. } => this.start(cx.waker()),
            Stage::Waiting { .. } => this.wait(cx.waker()),
            Stage::Done => panic!("a checkout was polled after it had completed"),
        }
    }
}

impl<C: Connector> Drop for CheckoutRef<'_, C> {
    fn drop(&mut self) {
        if let Stage::Waiting { desk, seq, ticket, .. } = self.stage {
            self.hub.with(|state, now| state.cancel(&ticket, seq, desk, now));
        }
    }
}

impl<C: Connector> State<C> {
    /// The first poll: take what is ready, else take a ticket.
    #[inline]
    fn first_look(
        &mut self,
        key: Option<&C::Key>,
        excluded: u64,
        priority: Priority,
        wait: Wait,
        now: Instant,
    ) -> Look<C> {
        if self.closed {
            return Look::Err(GetError::Closed);
        }
        let key = match key {
            None => DEFAULT_KEY,
            Some(key) => self.key_number(key, now),
        };
        if let Some(mut live) = self.take(now, key, excluded) {
            live.timed = self.count_checkout();
            return Look::Taken(live);
        }
        let look = self.join(key, excluded, priority, wait, now);
        if matches!(look, Look::Err(_)) {
            self.forget_key(key);
        }
        look
    }

    /// Takes a ticket, unless waiting is refused or useless.
    fn join(
        &mut self,
        key: u32,
        excluded: u64,
        priority: Priority,
        wait: Wait,
        now: Instant,
    ) -> Look<C> {
        self.empty += 1;
        if self.keys.are_many() || self.keys.get(key).last_used.is_none() {
            self.keys.get_mut(key).last_used = Some(now);
        }
        if let Err(error) = self.may_wait(excluded, priority, now) {
            return Look::Err(error);
        }
        let (deadline, default_deadline) = match wait {
            Wait::Default => (now + self.settings.timeout, true),
            Wait::Brief => (now + self.settings.brief_wait, false),
            Wait::For(span) => (now + span.min(FAR), false),
            Wait::Until(at) => (at, false),
        };
        if deadline <= now {
            self.tallies.timeouts += 1;
            let ahead = self.queue.waiting();
            let timeout = self.timeout_error(excluded, ahead, Duration::ZERO, now);
            self.announce(Event::TimedOut { waited: Duration::ZERO });
            return Look::Err(GetError::Timeout(timeout));
        }
        let ticket = Ticket { key, excluded, priority, arrived: now, deadline, default_deadline };
        let (desk, seq) = self.queue.join(&ticket);
        self.desks.set_crowded(true);
        self.call_driver_for(&ticket, now);
        Look::Queued(desk, seq, ticket)
    }

    /// Wakes the driver if it could do something for a new waiter.
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
    fn cancel(&mut self, ticket: &Ticket, seq: u64, desk: u32, now: Instant) {
        self.tallies.cancelled += 1;
        let queued = self.queue.leave(ticket, seq);
        let mut seat = self.desks.get(desk).lock();
        seat.waker = None;
        let next = match seat.hand {
            Hand::Waiting if !queued => Hand::Gone,
            _ => Hand::Vacant,
        };
        let hand = std::mem::replace(&mut seat.hand, next);
        drop(seat);
        match hand {
            // something is on its way: whoever brings it frees the desk
            Hand::Waiting if !queued => return,
            Hand::Handed(live, _) => {
                self.checkouts -= 1;
                self.put(live, Verdict::Clean, now);
            }
            Hand::Away => self.keys.get_mut(ticket.key).away -= 1,
            _ => {}
        }
        self.queue.free_desk(desk);
    }

    /// A checkout gives up what it was handed and takes its old place again.
    fn decline(
        &mut self,
        mut live: Box<Live<C>>,
        verdict: Verdict,
        ticket: &Ticket,
        seq: u64,
        now: Instant,
    ) {
        self.checkouts -= 1;
        let desk = live.desk.take();
        self.put(live, verdict, now);
        if let Some(desk) = desk {
            self.resume(ticket, seq, desk, now);
        }
    }

    /// A checkout that had not claimed in time is polled again.
    fn come_back(&mut self, ticket: &Ticket, seq: u64, desk: u32, now: Instant) {
        self.keys.get_mut(ticket.key).away -= 1;
        self.resume(ticket, seq, desk, now);
    }

    /// Takes the old place again, and what is ready, unless it is too late.
    fn resume(&mut self, ticket: &Ticket, seq: u64, desk: u32, now: Instant) {
        if self.closed {
            return self.fail(desk, GetError::Closed);
        }
        if ticket.deadline <= now {
            let ahead = self.queue.ahead_of(ticket.class(), ticket.arrived, seq);
            return self.time_out(desk, ticket.excluded, ahead, ticket.arrived, now);
        }
        self.queue.rejoin(ticket, seq, desk);
        self.call_driver_for(ticket, now);
        self.serve_waiters(now);
    }

    /// Tells a waiter that it will not be served.
    pub(crate) fn fail(&mut self, desk: u32, error: GetError) {
        let mut seat = self.desks.get(desk).lock();
        seat.hand = Hand::Failed(Box::new(error));
        let waker = seat.waker.take();
        drop(seat);
        self.outbox.wakers.extend(waker);
        self.outgoing = true;
    }

    /// Whether a checkout that found nothing may wait.
    pub(crate) fn may_wait(
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
