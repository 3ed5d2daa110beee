//! The future of one checkout. Its first poll takes a ready connection in one
//! critical section; only if there is none does it take a ticket and wait to be
//! handed one. Dropping it at any point gives back whatever it holds.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::budget::Standing;
use crate::clock::{FAR, Instant};
use crate::connector::Connector;
use crate::error::GetError;
use crate::guard::Guard;
use crate::hub::Hub;
use crate::keys::DEFAULT_KEY;
use crate::observer::Event;
use crate::queue::{Priority, Ticket, WaiterState};
use crate::reason::Discard;
use crate::state::{Live, State, Verdict};

/// In real time one use in so many is timed: two readings of the precise clock
/// would double the cost of a checkout. Under virtual time every use is.
const TIMED: u64 = 16;

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
pub struct Checkout<'a, C: Connector> {
    hub: &'a Arc<Hub<C>>,
    stage: Stage<C::Key>,
}

enum Stage<K> {
    Start { key: Option<K>, excluded: u64, priority: Priority, wait: Wait },
    Waiting { id: u32, seq: u64, ticket: Ticket, since: Instant },
    Done,
}

impl<K> Unpin for Stage<K> {}
impl<C: Connector> Unpin for Checkout<'_, C> {}

/// The answer of one look at the state.
enum Look<C: Connector> {
    /// Taken, and whether this use is to be timed.
    Taken(Box<Live<C>>, bool),
    Queued(u32, u64, Ticket),
    Err(GetError),
    Pending,
}

impl<'a, C: Connector> Checkout<'a, C> {
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
    fn start(&mut self, waker: &Waker) -> Poll<Result<Guard<C>, GetError>> {
        let Stage::Start { key, excluded, priority, wait } = &self.stage else {
            return Poll::Pending;
        };
        let hub = self.hub;
        loop {
            let now = hub.rough.now(&hub.clock);
            let mut state = hub.state.lock();
            let look = state.first_look(key.as_ref(), *excluded, *priority, *wait, now, waker);
            hub.unlock(state);
            match look {
                Look::Taken(live, timed) => match accept(hub, live, timed) {
                    Ok(guard) => {
                        self.stage = Stage::Done;
                        return Poll::Ready(Ok(guard));
                    }
                    Err(dead) => hub.discard_dead(dead),
                },
                Look::Queued(id, seq, ticket) => {
                    let since = hub.clock.now();
                    self.stage = Stage::Waiting { id, seq, ticket, since };
                    return Poll::Pending;
                }
                Look::Err(error) => {
                    self.stage = Stage::Done;
                    return Poll::Ready(Err(error));
                }
                Look::Pending => return Poll::Pending,
            }
        }
    }

    /// A later poll: claims what was handed over, or goes on waiting.
    fn wait(&mut self, waker: &Waker) -> Poll<Result<Guard<C>, GetError>> {
        let hub = self.hub;
        while let Stage::Waiting { id, seq, ticket, since } = self.stage {
            let now = hub.clock.now();
            let mut state = hub.state.lock();
            let look = state.look(id, since, now, waker);
            hub.unlock(state);
            match look {
                Look::Taken(live, timed) => match accept(hub, live, timed) {
                    Ok(guard) => {
                        self.stage = Stage::Done;
                        return Poll::Ready(Ok(guard));
                    }
                    // what it was handed is dead: it goes on at its old place
                    Err(dead) => {
                        let waited = now.saturating_duration_since(since);
                        let id = hub.with(|state, now| {
                            state.tallies.wait.forget(waited);
                            state.put(dead, Verdict::Discard(Discard::Broken), now);
                            state.requeue(&ticket, seq, now, waker)
                        });
                        self.stage = Stage::Waiting { id, seq, ticket, since };
                    }
                },
                Look::Err(error) => {
                    self.stage = Stage::Done;
                    return Poll::Ready(Err(error));
                }
                Look::Queued(..) | Look::Pending => break,
            }
        }
        Poll::Pending
    }
}

/// Makes a guard of a live connection, unless it turns out to be dead.
#[inline]
pub(crate) fn accept<C: Connector>(
    hub: &Arc<Hub<C>>,
    mut live: Box<Live<C>>,
    timed: bool,
) -> Result<Guard<C>, Box<Live<C>>> {
    let connector = &hub.connectors[live.source as usize];
    // a connector that panics here costs this connection only
    let asked = catch_unwind(AssertUnwindSafe(|| connector.is_broken(&live.conn)));
    if asked.unwrap_or(true) {
        return Err(live);
    }
    if timed || !hub.rough.is_trusted() {
        live.taken_at = Some(hub.clock.now());
    }
    Ok(Guard::new(hub.clone(), live))
}

impl<C: Connector> Hub<C> {
    /// Closes a connection that was found dead at its checkout, which goes on.
    pub(crate) fn discard_dead(&self, dead: Box<Live<C>>) {
        self.with(|state, now| {
            state.tallies.checkouts -= 1;
            state.tallies.wait.forget(Duration::ZERO);
            state.put(dead, Verdict::Discard(Discard::Broken), now);
        });
    }
}

impl<C: Connector> Future for Checkout<'_, C> {
    type Output = Result<Guard<C>, GetError>;

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

impl<C: Connector> Drop for Checkout<'_, C> {
    fn drop(&mut self) {
        if let Stage::Waiting { id, .. } = self.stage {
            self.hub.with(|state, now| {
                state.tallies.cancelled += 1;
                if let WaiterState::Offered(live, _) = state.queue.remove(id) {
                    // judged anew: it may have retired or been invalidated on offer
                    state.put(live, Verdict::Clean, now);
                }
                if state.queue.waiting() == 0 {
                    state.last_offer = None;
                }
            });
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
        waker: &Waker,
    ) -> Look<C> {
        if self.closed {
            return Look::Err(GetError::Closed);
        }
        let key = match key {
            None => DEFAULT_KEY,
            Some(key) => self.key_number(key, now),
        };
        if let Some(live) = self.take(now, key, excluded) {
            self.tallies.wait.record_zero();
            return Look::Taken(live, self.count_checkout());
        }
        let look = self.join(key, excluded, priority, wait, now, waker);
        if matches!(look, Look::Err(_)) {
            self.forget_key(key);
        }
        look
    }

    /// Counts a checkout and says whether to time its use: one in [`TIMED`].
    #[inline]
    pub(crate) fn count_checkout(&mut self) -> bool {
        self.tallies.checkouts += 1;
        self.tallies.checkouts.is_multiple_of(TIMED)
    }

    /// Takes a ticket, unless waiting is refused or useless.
    fn join(
        &mut self,
        key: u32,
        excluded: u64,
        priority: Priority,
        wait: Wait,
        now: Instant,
        waker: &Waker,
    ) -> Look<C> {
        self.tallies.empty += 1;
        self.keys.get_mut(key).last_used = Some(now);
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
        let ticket = Ticket { key, excluded, priority, now, deadline, default_deadline };
        let id = self.queue.enqueue(&ticket, waker);
        self.call_driver_for(&ticket, now);
        Look::Queued(id, self.queue.seq_of(id), ticket)
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
            self.outbox.wake_driver = true;
        }
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
            return Err(GetError::QueueFull { waiting: self.queue.tickets(), in_use });
        }
        Ok(())
    }

    /// A later poll: claim what was handed over, or go on waiting.
    fn look(&mut self, id: u32, since: Instant, now: Instant, waker: &Waker) -> Look<C> {
        match &self.queue.waiter(id).state {
            WaiterState::Offered(live, _) => {
                let source = &self.sources[live.source as usize];
                let entry = &self.conns[live.id as usize];
                let stale = entry.retire_at <= now || entry.generation != source.generation;
                let benched =
                    source.throttled_until(now).is_some() || source.standing(now) != Standing::Good;
                if stale || benched {
                    return self.decline(id, now, waker);
                }
                let WaiterState::Offered(live, _) = self.queue.remove(id) else {
                    return Look::Pending;
                };
                let entry = &mut self.conns[live.id as usize];
                entry.uses += 1;
                entry.since = now;
                self.tallies.wait.record(now.saturating_duration_since(since));
                Look::Taken(live, self.count_checkout())
            }
            WaiterState::Failed(_) => match self.queue.remove(id) {
                WaiterState::Failed(error) => Look::Err(error),
                _ => Look::Pending,
            },
            WaiterState::Waiting => {
                self.queue.polled(id, waker);
                Look::Pending
            }
            WaiterState::Away => {
                self.queue.polled(id, waker);
                self.serve_waiters(now);
                match self.queue.waiter(id).state {
                    WaiterState::Waiting => Look::Pending,
                    _ => self.look(id, since, now, waker),
                }
            }
        }
    }

    /// What was handed over may not be used any more: give it up, keep the place.
    fn decline(&mut self, id: u32, now: Instant, waker: &Waker) -> Look<C> {
        let in_time = now < self.queue.waiter(id).deadline;
        let Some(live) = self.queue.take_back(id, in_time) else { return Look::Pending };
        self.put(live, Verdict::Clean, now);
        if !in_time {
            let timeout = self.timeout(id, now);
            self.tallies.timeouts += 1;
            self.announce(Event::TimedOut { waited: timeout.waited });
            self.queue.remove(id);
            return Look::Err(GetError::Timeout(timeout));
        }
        self.queue.polled(id, waker);
        self.outbox.wake_driver = true;
        Look::Pending
    }

    /// Gives a ticket whose connection was dead its old place, and what is ready.
    fn requeue(&mut self, ticket: &Ticket, seq: u64, now: Instant, waker: &Waker) -> u32 {
        self.tallies.checkouts -= 1;
        let id = self.queue.restore(ticket, seq, waker);
        if self.closed {
            self.queue.fail(id, GetError::Closed);
        } else {
            self.call_driver_for(ticket, now);
            self.serve_waiters(now);
        }
        id
    }
}
