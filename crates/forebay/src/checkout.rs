//! The future of one checkout. Its first poll takes a ready connection in one
//! critical section; only if there is none does it take a ticket and wait to be
//! handed one. Dropping it at any point gives back whatever it holds.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::clock::Instant;
use crate::connector::Connector;
use crate::desk::Hand;
use crate::error::GetError;
use crate::guard::{Guard, GuardRef};
use crate::hub::Hub;
use crate::live::{Live, TIMED, Verdict};
use crate::queue::Priority;
use crate::reason::Discard;
use crate::tickets::{Look, Queued, Want};

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
    want: Want<C::Key>,
    stage: Stage,
}

enum Stage {
    Start,
    /// It has a ticket. `since` is there if the wait is timed.
    Waiting {
        place: Queued,
        since: Option<Instant>,
    },
    Done,
}

impl<C: Connector> Unpin for CheckoutRef<'_, C> {}

impl<'a, C: Connector> CheckoutRef<'a, C> {
    pub(crate) fn new(
        hub: &'a Arc<Hub<C>>,
        key: Option<C::Key>,
        excluded: u64,
        priority: Priority,
        wait: Wait,
    ) -> Self {
        Self { hub, want: Want { key, excluded, priority, wait }, stage: Stage::Start }
    }

    /// The first poll: takes what is ready, else takes a ticket.
    #[inline]
    fn start(&mut self, waker: &Waker) -> Poll<Result<GuardRef<'a, C>, GetError>> {
        let hub = self.hub;
        // cloned without the lock: it is another's code
        let mut own = hub.desks.is_crowded().then(|| waker.clone());
        loop {
            let now = hub.rough.now(&hub.clock);
            let mut state = hub.state.lock();
            let look = state.first_look(&self.want, now, &mut own);
            hub.unlock(state);
            match look {
                Look::Taken(live) => match accept(hub, live) {
                    Ok(guard) => {
                        self.stage = Stage::Done;
                        return Poll::Ready(Ok(guard));
                    }
                    Err(dead) => hub.discard_dead(dead),
                },
                Look::Queued(place) => {
                    let since = hub.is_timed(place.seq).then(|| hub.clock.now());
                    self.stage = Stage::Waiting { place, since };
                    return Poll::Pending;
                }
                Look::Unready => own = Some(waker.clone()),
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
        while let Stage::Waiting { place, since } = &self.stage {
            let desk = place.desk;
            let mut seat = hub.desks.get(desk).lock();
            match std::mem::replace(&mut seat.hand, Hand::Nothing) {
                Hand::Handed(mut live) => {
                    drop(seat);
                    live.desk = Some(desk);
                    match self.claim(live, place.arrived, *since) {
                        Ok(guard) => {
                            self.stage = Stage::Done;
                            return Poll::Ready(Ok(guard));
                        }
                        // it may not be used: the ticket goes on at its old place
                        Err((live, verdict)) => hub.with(|state, now| {
                            state.decline(live, verdict, &self.want, place, now);
                        }),
                    }
                }
                Hand::Nothing | Hand::Gone => {
                    if !seat.waker.as_ref().is_some_and(|last| last.will_wake(waker)) {
                        let before = seat.waker.replace(waker.clone());
                        drop(seat);
                        drop(before);
                    }
                    return Poll::Pending;
                }
                Hand::Away => {
                    drop(seat);
                    hub.with(|state, now| state.come_back(&self.want, place, now));
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
        arrived: Instant,
        since: Option<Instant>,
    ) -> Result<GuardRef<'a, C>, (Box<Live<C>>, Verdict)> {
        let hub = self.hub;
        let now = hub.rough.now(&hub.clock);
        if live.hand_out_before <= now || hub.is_unwelcome(&live, now) {
            return Err((live, Verdict::Clean));
        }
        let guard = accept(hub, live).map_err(|dead| (dead, Verdict::Discard(Discard::Broken)))?;
        match since {
            Some(since) => hub.waits.record(hub.clock.now() - since, hub.timed_share()),
            None => hub.waits.record_if_longest(now.saturating_duration_since(arrived)),
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
            Stage::Start => this.start(cx.waker()),
            Stage::Waiting { .. } => this.wait(cx.waker()),
            Stage::Done => panic!("a checkout was polled after it had completed"),
        }
    }
}

impl<C: Connector> Drop for CheckoutRef<'_, C> {
    fn drop(&mut self) {
        if let Stage::Waiting { place, .. } = &self.stage {
            let wakers = self.hub.with(|state, now| state.cancel(&self.want, place, now));
            drop(wakers);
        }
    }
}
