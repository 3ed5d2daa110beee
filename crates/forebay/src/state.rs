//! Everything a pool knows, as one plain structure that is changed under one
//! lock. Nothing here waits, sleeps or calls user code: `now` is an argument,
//! and what must happen outside the lock (wake a waiter, close a connection,
//! start an open) is left in [`Outbox`] for the caller and the driver.
//!
//! This file is the life of one connection: taken, put back, placed, discarded,
//! opened, closed. `tick` holds what the driver decides when it wakes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use slab::Slab;

use crate::budget::{Lease, Standing};
use crate::clock::Instant;
use crate::connector::{Connector, Killer, Opened};
use crate::desk::Desks;
use crate::keys::Keys;
use crate::list::{Link, Linked, List};
use crate::observer::Event;
use crate::queue::{Queue, Spot};
use crate::reason::{Discard, OpenFailure};
use crate::select::{Candidate, choose};
use crate::settings::{PoolSettings, Strategy};
use crate::source::{SourceState, Step};
use crate::stats::Tallies;
use crate::throttle::Throttle;

/// In real time one wait and one use in so many is timed: two readings of the
/// precise clock would double the cost of a checkout. Under virtual time all are.
pub(crate) const TIMED: u64 = 16;

/// A connection as it travels between the stock and its users: boxed once, so
/// that handing it on moves a pointer. What a return looks at is copied here, so
/// that a connection can go from hand to hand without its [`Entry`].
pub(crate) struct Live<C: Connector> {
    pub(crate) conn: C::Conn,
    pub(crate) id: u32,
    pub(crate) source: u32,
    pub(crate) key: u32,
    /// How often it was handed out.
    pub(crate) uses: u32,
    pub(crate) generation: u64,
    /// The instant it retires, less what the rough clock may be behind.
    pub(crate) hand_out_before: Instant,
    pub(crate) expires_at: Instant,
    /// This use is one of those that are timed.
    pub(crate) timed: bool,
    /// When this use began, if it is timed.
    pub(crate) taken_at: Option<Instant>,
    /// The desk at which it was claimed; free again once it comes back.
    pub(crate) desk: Option<u32>,
}

/// Where a connection is. Exactly one of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Opening(Step),
    Ready,
    InUse,
    Closing,
    Detached,
}

/// How far a connection is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ripeness {
    Fresh,
    /// Retires within the lead time: its replacement may be opened.
    Ripe,
    /// Less than the guard window is left.
    Retired,
    /// Killed in use.
    Dead,
}

/// The record of one connection, from the first step of its opening until the
/// backend has let go of it.
#[repr(C)]
pub(crate) struct Entry<C: Connector> {
    /// Present while ready.
    pub(crate) live: Option<Box<Live<C>>>,
    pub(crate) link: Link,
    /// Idle since.
    pub(crate) since: Instant,
    pub(crate) source: u32,
    pub(crate) key: u32,
    pub(crate) place: Place,
    pub(crate) ripeness: Ripeness,
    /// Retired or killed while in use, and counted as such.
    pub(crate) suspect: bool,
    pub(crate) retire_at: Instant,
    pub(crate) expires_at: Instant,
    pub(crate) born: Instant,
    pub(crate) checked_at: Instant,
    pub(crate) agenda_at: Option<Instant>,
    pub(crate) generation: u64,
    pub(crate) killer: Option<Killer>,
    pub(crate) lease: Option<Lease>,
    /// After closing, the slot and the lease are used to open this key.
    pub(crate) reopen: Option<u32>,
}

impl<C: Connector> Linked<0> for Entry<C> {
    fn link(&self) -> Link {
        self.link
    }
    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

/// What is to be done once the lock is free: wakers by whoever holds the lock,
/// the rest by the driver.
pub(crate) struct Outbox<C: Connector> {
    pub(crate) deliveries: Vec<Delivery<C>>,
    pub(crate) wakers: Vec<Waker>,
    pub(crate) events: Vec<Event>,
    pub(crate) opens: Vec<u32>,
    pub(crate) closes: Vec<Box<Live<C>>>,
    pub(crate) resets: Vec<Box<Live<C>>>,
    pub(crate) checks: Vec<Box<Live<C>>>,
    pub(crate) kills: Vec<Killer>,
}

/// A connection on its way to a waiter's desk.
pub(crate) struct Delivery<C: Connector> {
    pub(crate) desk: u32,
    pub(crate) live: Box<Live<C>>,
    pub(crate) at: Instant,
}

/// In the order of use: what a return and a hand-off change lies together at
/// the start, because each cache line that changes hands costs more than the
/// work done with it.
#[repr(C)]
pub(crate) struct State<C: Connector> {
    /// Connections handed out.
    pub(crate) checkouts: u64,
    /// Checkouts that found nothing ready.
    pub(crate) empty: u64,
    /// Until when the driver sleeps; `None` while it sleeps for good.
    pub(crate) armed_until: Option<Instant>,
    /// When to look for hand-offs that nobody claimed.
    pub(crate) offer_check_at: Option<Instant>,
    /// The first connection to be brought to a desk: as a rule the only one.
    pub(crate) delivery: Option<Delivery<C>>,
    pub(crate) closed: bool,
    pub(crate) wake_driver: bool,
    /// There is something in the outbox for whoever gives up the lock.
    pub(crate) outgoing: bool,
    /// The driver has ended: whoever discards a connection drops it on the spot.
    pub(crate) driverless: bool,
    pub(crate) queue: Queue,
    pub(crate) outbox: Outbox<C>,
    pub(crate) sources: Vec<SourceState>,
    pub(crate) conns: Slab<Entry<C>>,
    pub(crate) desks: Arc<Desks<C>>,
    pub(crate) settings: PoolSettings,
    pub(crate) keys: Keys<C::Key>,
    /// What happens next to each connection in the course of its life.
    pub(crate) agenda: BTreeSet<(Instant, u32)>,
    pub(crate) tallies: Tallies,
    pub(crate) rng: fastrand::Rng,
    /// What the rough clock may be behind.
    pub(crate) margin: Duration,
    /// Connections in use that have retired or were killed.
    pub(crate) suspects: u32,
    observed: bool,
    turn: usize,
}

/// How a connection comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Clean,
    Reset,
    Discard(Discard),
}

impl<C: Connector> State<C> {
    pub(crate) fn new(
        settings: PoolSettings,
        sources: Vec<SourceState>,
        keys: Keys<C::Key>,
        rng: fastrand::Rng,
        observed: bool,
    ) -> Self {
        let queue = Queue::new(settings.priority_age);
        let mut state = Self {
            checkouts: 0,
            empty: 0,
            settings,
            conns: Slab::new(),
            sources,
            keys,
            queue,
            desks: Arc::new(Desks::new()),
            agenda: BTreeSet::new(),
            outbox: Outbox {
                deliveries: Vec::new(),
                wakers: Vec::new(),
                events: Vec::new(),
                opens: Vec::new(),
                closes: Vec::new(),
                resets: Vec::new(),
                checks: Vec::new(),
                kills: Vec::new(),
            },
            tallies: Tallies::default(),
            rng,
            closed: false,
            delivery: None,
            wake_driver: false,
            outgoing: false,
            armed_until: None,
            offer_check_at: None,
            margin: Duration::ZERO,
            suspects: 0,
            driverless: false,
            observed,
            turn: 0,
        };
        state.fit_stocks(state.keys.bound());
        state
    }

    /// The number of a key, with a stock for it in every source.
    pub(crate) fn key_number(&mut self, key: &C::Key, now: Instant) -> u32 {
        let number = self.keys.number(key);
        if self.sources[0].stocks.len() <= number as usize {
            self.fit_stocks(number as usize + 1);
        }
        self.keys.get_mut(number).last_used = Some(now);
        number
    }

    /// Forgets a key that has neither a connection nor a waiter.
    pub(crate) fn forget_key(&mut self, key: u32) {
        if !self.queue.is_waited_for(key) && self.keys.forget(key) {
            self.queue.forget_key(key);
        }
    }

    fn fit_stocks(&mut self, bound: usize) {
        for source in &mut self.sources {
            if source.stocks.len() < bound {
                source.stocks.resize(bound, List::default());
            }
        }
    }

    /// Takes a ready connection for a checkout, if there is one it may have.
    #[inline]
    pub(crate) fn take(&mut self, now: Instant, key: u32, excluded: u64) -> Option<Box<Live<C>>> {
        if self.queue.waiting() > 0 {
            // what may be used again since the driver last looked is not for newcomers
            self.serve_waiters(now);
        }
        if self.sources.len() == 1 {
            return if excluded == 0 { self.take_from(0, key, now) } else { None };
        }
        let mut tried = excluded;
        loop {
            let candidates = self.sources.iter().enumerate().filter(|(index, source)| {
                tried & (1 << index) == 0
                    && source.stocks[key as usize].len > 0
                    && source.is_usable(now)
            });
            let chosen = choose(
                self.settings.strategy,
                candidates.map(|(index, source)| Candidate {
                    source: index,
                    in_use: source.in_use,
                    weight: source.settings.weight,
                    credit: source.credit,
                    last_throttled: source.last_throttled,
                }),
                self.turn,
            )?;
            if let Some(live) = self.take_from(chosen, key, now) {
                self.served(chosen);
                return Some(live);
            }
            tried |= 1 << chosen;
        }
    }

    /// Notes for the strategy which source served a checkout.
    fn served(&mut self, chosen: usize) {
        self.turn = (chosen + 1) % self.sources.len();
        if self.settings.strategy == Strategy::Weighted {
            let mut total = 0;
            for source in &mut self.sources {
                source.credit += i64::from(source.settings.weight);
                total += i64::from(source.settings.weight);
            }
            self.sources[chosen].credit -= total;
            // a source that cannot serve saves nothing up that it would later rush through
            for source in &mut self.sources {
                source.credit = source.credit.clamp(-total, total);
            }
        }
    }

    #[inline]
    fn take_from(&mut self, index: usize, key: u32, now: Instant) -> Option<Box<Live<C>>> {
        if !self.sources[index].is_usable(now) {
            return None;
        }
        let mut live = self.draw(index, key, now)?;
        live.uses += 1;
        let source = &mut self.sources[index];
        source.in_use += 1;
        if source.ready == 0 {
            source.target = source.settings.target_ready();
        }
        if source.fresh + source.opening < source.target && source.wants(now, 0) {
            self.wake_driver = true;
        }
        Some(live)
    }

    /// Draws the most recently used connection with enough life left from a
    /// stock; it is counted nowhere then. Those with too little are discarded on
    /// the way: a stale one at the head does not hide the ready ones behind it.
    #[inline]
    fn draw(&mut self, index: usize, key: u32, now: Instant) -> Option<Box<Live<C>>> {
        loop {
            let source = &mut self.sources[index];
            let stock = &mut source.stocks[key as usize];
            let id = stock.head;
            let entry = self.conns.get_mut(id as usize)?;
            let fresh = entry.ripeness == Ripeness::Fresh;
            let live = entry.live.take();
            entry.place = Place::InUse;
            stock.pop_front(&mut self.conns);
            source.ready -= 1;
            source.fresh -= u32::from(fresh);
            let live = live?;
            if live.hand_out_before > now {
                return Some(live);
            }
            source.in_use += 1;
            let reason = if live.expires_at <= now {
                Discard::ExpiredOnCheckout
            } else {
                Discard::InsufficientRemainingLifetime
            };
            self.discard(live, reason, now);
        }
    }

    /// Offers all stocks to those waiting.
    pub(crate) fn serve_waiters(&mut self, now: Instant) {
        for index in 0..self.sources.len() {
            self.dispatch(index, now);
        }
    }

    /// Offers the stock of a source to those waiting for it, in their order.
    pub(crate) fn dispatch(&mut self, index: usize, now: Instant) {
        while self.sources[index].ready > 0 && self.sources[index].is_usable(now) {
            let stocks = &self.sources[index].stocks;
            let Some(spot) = self.queue.first_with(index, |key| stocks[key as usize].len > 0)
            else {
                return;
            };
            if let Some(live) = self.draw(index, self.queue.key_of(spot), now) {
                self.sources[index].in_use += 1;
                self.hand(spot, live, now);
            }
        }
    }

    /// Takes one connection out of the stock and discards it.
    pub(crate) fn discard_ready(&mut self, id: u32, reason: Discard, now: Instant) {
        let Some(live) = self.leave_stock(id) else { return };
        self.discard(live, reason, now);
    }

    /// Takes a ready connection out of the stock; it counts as in use from here.
    pub(crate) fn leave_stock(&mut self, id: u32) -> Option<Box<Live<C>>> {
        let entry = &mut self.conns[id as usize];
        let live = entry.live.take()?;
        entry.place = Place::InUse;
        let fresh = entry.ripeness == Ripeness::Fresh;
        let (index, key) = (entry.source as usize, entry.key as usize);
        let source = &mut self.sources[index];
        source.stocks[key].remove(&mut self.conns, id);
        source.ready -= 1;
        source.fresh -= u32::from(fresh);
        source.in_use += 1;
        Some(live)
    }

    /// Puts a clean connection back into the stock without a look at the clock, if
    /// nothing speaks against it; gives it back if it has to be judged.
    ///
    /// Its idle time is left as it was. That is looked at only once the stock has
    /// had a surplus for `max_idle`, and while it has one every return is dated: so
    /// what is undated then has been idle for longer.
    #[inline]
    pub(crate) fn put_undated(&mut self, live: Box<Live<C>>) -> Option<Box<Live<C>>> {
        if self.queue.waiting() > 0 {
            return Some(live);
        }
        let source = &mut self.sources[live.source as usize];
        let entry = &mut self.conns[live.id as usize];
        let judge = live.generation != source.generation
            || source.fresh >= source.target.min(source.floor)
            || source.restricted
            || source.looked_after
            || self.closed
            || self.suspects > 0
            || entry.ripeness != Ripeness::Fresh
            || live.desk.is_some()
            || self.keys.are_many();
        if judge {
            return Some(live);
        }
        let (id, key) = (live.id, live.key);
        entry.place = Place::Ready;
        entry.live = Some(live);
        source.stocks[key as usize].push_front(&mut self.conns, id);
        source.ready += 1;
        source.fresh += 1;
        source.in_use -= 1;
        None
    }

    /// Judges a connection that counts as in use and puts it where it belongs.
    #[inline]
    pub(crate) fn put(&mut self, mut live: Box<Live<C>>, verdict: Verdict, now: Instant) {
        if let Some(desk) = live.desk.take() {
            self.queue.free_desk(desk);
        }
        let source = &self.sources[live.source as usize];
        let sound = verdict == Verdict::Clean
            && live.hand_out_before > now
            && live.generation == source.generation
            && !source.restricted
            && !self.closed
            && self.suspects == 0;
        if sound {
            return self.place(live, now);
        }
        self.put_doubtful(live, verdict, now);
    }

    /// As `put`, for one that may have to be discarded.
    #[cold]
    fn put_doubtful(&mut self, live: Box<Live<C>>, verdict: Verdict, now: Instant) {
        let reason = match verdict {
            _ if self.was_killed(live.id) => Some(Discard::Killed),
            Verdict::Discard(reason) => Some(reason),
            _ if self.closed => Some(Discard::Drained),
            _ if live.generation != self.sources[live.source as usize].generation => {
                Some(Discard::OldGeneration)
            }
            _ if live.expires_at <= now => Some(Discard::ExpiredOnReturn),
            _ if live.hand_out_before <= now => Some(Discard::InsufficientRemainingLifetime),
            _ if self.sources[live.source as usize].standing(now) != Standing::Good => {
                Some(Discard::LeaseRecalled)
            }
            _ => None,
        };
        match (reason, verdict) {
            (Some(reason), _) => self.discard(live, reason, now),
            (None, Verdict::Reset) => {
                self.outbox.resets.push(live);
                self.wake_driver = true;
            }
            _ => self.place(live, now),
        }
    }

    /// Whether a connection in use was killed.
    fn was_killed(&self, id: u32) -> bool {
        self.suspects > 0 && self.conns[id as usize].ripeness == Ripeness::Dead
    }

    /// Gives a usable connection that counts as in use to the first waiter that
    /// may have it, else to the stock.
    #[inline]
    pub(crate) fn place(&mut self, live: Box<Live<C>>, now: Instant) {
        let index = live.source as usize;
        if self.queue.waiting() > 0 && self.sources[index].may_pass_on(now) {
            let first = self.queue.first_for(live.key, index);
            if self.keys.are_many() {
                if self.converts(index, live.key, first, now) {
                    return self.discard(live, Discard::Evicted, now);
                }
                if self.frees_another(index, first) {
                    self.sources[index].in_use -= 1;
                    self.stock(live, now);
                    return self.dispatch(index, now);
                }
            }
            if let Some(spot) = first {
                return self.hand(spot, live, now);
            }
        }
        self.sources[index].in_use -= 1;
        self.stock(live, now);
    }

    /// Whether somebody before `first` may now have what lies ready under another
    /// key: so it is when a cap on use has kept that from being handed out.
    fn frees_another(&self, index: usize, first: Option<Spot>) -> bool {
        let source = &self.sources[index];
        if source.ready == 0 {
            return false;
        }
        let other = self.queue.first_with(index, |key| source.stocks[key as usize].len > 0);
        match (other, first) {
            (Some(other), Some(first)) => self.queue.rank(other) < self.queue.rank(first),
            (other, _) => other.is_some(),
        }
    }

    /// Hands a connection that counts as in use to the waiter at a spot.
    #[inline]
    fn hand(&mut self, spot: Spot, mut live: Box<Live<C>>, now: Instant) {
        if self.sources.len() > 1 {
            self.served(live.source as usize);
        }
        let Some(waiter) = self.queue.pop(spot) else { return self.stock_back(live, now) };
        if self.queue.waiting() == 0 {
            self.desks.set_crowded(false);
        }
        live.uses += 1;
        live.timed = self.count_checkout();
        let delivery = Delivery { desk: waiter.desk, live, at: now };
        if self.delivery.is_none() {
            self.delivery = Some(delivery);
        } else {
            self.outbox.deliveries.push(delivery);
            self.outgoing = true;
        }
        if self.offer_check_at.is_none() {
            let at = now + self.settings.claim_within;
            self.offer_check_at = Some(at);
            self.wake_driver_by(at);
        }
    }

    /// Counts a checkout and says whether to time its use: one in [`TIMED`].
    #[inline]
    pub(crate) fn count_checkout(&mut self) -> bool {
        self.checkouts += 1;
        self.checkouts.is_multiple_of(TIMED)
    }

    fn stock_back(&mut self, live: Box<Live<C>>, now: Instant) {
        self.sources[live.source as usize].in_use -= 1;
        self.stock(live, now);
    }

    /// Puts a usable connection, counted nowhere, into the stock.
    fn stock(&mut self, live: Box<Live<C>>, now: Instant) {
        let (id, index) = (live.id, live.source as usize);
        let source = &mut self.sources[index];
        let entry = &mut self.conns[id as usize];
        let fresh = entry.ripeness == Ripeness::Fresh;
        if fresh
            && source.fresh >= source.target
            && source.settings.max_idle.is_some_and(|idle| idle.is_zero())
        {
            source.in_use += 1;
            return self.discard(live, Discard::ReservoirFull, now);
        }
        entry.place = Place::Ready;
        entry.since = now;
        entry.live = Some(live);
        let key = entry.key as usize;
        source.stocks[key].push_front(&mut self.conns, id);
        source.ready += 1;
        source.fresh += u32::from(fresh);
        if source.fresh <= source.floor.min(source.target) && !source.looked_after {
            return;
        }
        self.wake_driver |= source.recalled;
        if let Some(max_idle) = source.settings.max_idle
            && source.fresh > source.target.min(source.floor)
        {
            let at = source.trim_at.unwrap_or_else(|| {
                let stocks = source.stocks.iter().filter(|stock| stock.len > 0);
                let longest = stocks.map(|stock| self.conns[stock.tail as usize].since).min();
                // in real time idle connections are dated only from here on
                let since = if self.margin.is_zero() { longest } else { None };
                since.unwrap_or(now) + max_idle
            });
            source.trim_at = Some(at);
            self.wake_driver_by(at);
        }
        if let Some(idle_check) = self.sources[index].settings.idle_check {
            self.wake_driver_by(now + idle_check);
        }
    }

    /// Starts to close a connection that counts as in use. Its lease is kept
    /// until the backend has let go.
    pub(crate) fn discard(&mut self, live: Box<Live<C>>, reason: Discard, now: Instant) {
        let id = live.id;
        let entry = &mut self.conns[id as usize];
        debug_assert_eq!(entry.place, Place::InUse);
        entry.place = Place::Closing;
        self.suspects -= u32::from(std::mem::take(&mut entry.suspect));
        if let Some(at) = entry.agenda_at.take() {
            self.agenda.remove(&(at, id));
        }
        let (uses, age) = (live.uses, now.saturating_duration_since(entry.born));
        let (index, key) = (entry.source as usize, entry.key);
        let source = &mut self.sources[index];
        source.in_use -= 1;
        source.closing += 1;
        source.tallies.discards[reason as usize] += 1;
        source.tallies.wasted += u64::from(uses == 0 && is_early(reason));
        let event = Event::Discarded { source: source.name.clone(), reason, age, uses };
        self.outbox.closes.push(live);
        self.wake_driver = true;
        let reopen = match reason {
            Discard::Evicted => {
                self.queue.first_of_other_keys(key, index).map(|id| self.queue.key_of(id))
            }
            Discard::ReplacedInPlace => Some(key),
            _ => None,
        };
        if let Some(key) = reopen {
            self.reopen_for(id, key);
        } else if reason != Discard::Evicted
            && let Some(lease) = &mut self.conns[id as usize].lease
        {
            lease.comes_back();
        }
        self.announce(event);
    }

    /// Marks a closing connection's slot to be opened again for `key`, which is
    /// not forgotten until then.
    pub(crate) fn reopen_for(&mut self, id: u32, key: u32) {
        self.keys.get_mut(key).conns += 1;
        let entry = &mut self.conns[id as usize];
        match entry.reopen.replace(key) {
            Some(before) => self.keys.get_mut(before).conns -= 1,
            None => self.sources[entry.source as usize].reopening += 1,
        }
    }

    /// A detached connection's user has dropped it.
    pub(crate) fn drop_detached(&mut self, live: Box<Live<C>>, now: Instant) {
        let entry = &mut self.conns[live.id as usize];
        entry.place = Place::InUse;
        let source = &mut self.sources[entry.source as usize];
        source.detached -= 1;
        source.in_use += 1;
        self.discard(live, Discard::Detached, now);
    }

    /// A user keeps its connection: it leaves the pool but not the count.
    pub(crate) fn detach(&mut self, id: u32, desk: Option<u32>) {
        if let Some(desk) = desk {
            self.queue.free_desk(desk);
        }
        let entry = &mut self.conns[id as usize];
        self.suspects -= u32::from(std::mem::take(&mut entry.suspect));
        entry.place = Place::Detached;
        let source = &mut self.sources[entry.source as usize];
        source.in_use -= 1;
        source.detached += 1;
        // there may be room under a cap on use, and the stock may be low
        self.wake_driver = true;
    }

    /// Starts an open in a slot whose lease is held.
    pub(crate) fn start_open(&mut self, index: usize, key: u32, lease: Lease, now: Instant) {
        let source = &mut self.sources[index];
        source.opening += 1;
        source.steps[Step::Credentials as usize] += 1;
        self.keys.get_mut(key).conns += 1;
        let id = self.conns.insert(Entry {
            place: Place::Opening(Step::Credentials),
            ripeness: Ripeness::Fresh,
            suspect: false,
            source: index as u32,
            key,
            link: Link::default(),
            live: None,
            since: now,
            retire_at: now,
            expires_at: now,
            born: now,
            checked_at: now,
            agenda_at: None,
            generation: source.generation,
            killer: None,
            lease: Some(lease),
            reopen: None,
        });
        self.outbox.opens.push(id as u32);
        self.wake_driver = true;
    }

    /// An open has come to its next step. `false`: it is no longer wanted.
    pub(crate) fn step(&mut self, id: u32, step: Step, now: Instant) -> bool {
        let entry = &mut self.conns[id as usize];
        let Place::Opening(before) = entry.place else { return false };
        let source = &mut self.sources[entry.source as usize];
        source.steps[before as usize] -= 1;
        source.steps[step as usize] += 1;
        entry.place = Place::Opening(step);
        entry.generation = source.generation;
        entry.born = now;
        let index = entry.source as usize;
        if self.closed || self.sources[index].standing(now) != Standing::Good {
            return false;
        }
        let source = &self.sources[index];
        let figures = source.figures(self.demand(now)[index]);
        let coming = match step {
            Step::Credentials | Step::Rate => figures.opening,
            // those behind it, which still wait for a permit, are the ones to give up:
            // its own permit would be lost
            Step::Connect => source.steps[Step::Connect as usize],
        };
        figures.fresh + coming <= figures.target + figures.waiters
    }

    /// A connection has been opened; its life is drawn here, once.
    pub(crate) fn opened(&mut self, id: u32, opened: Opened<C::Conn>, now: Instant) {
        let entry = &mut self.conns[id as usize];
        let source = &mut self.sources[entry.source as usize];
        let settings = &source.settings;
        let life = settings.base_lifetime - settings.lifetime_jitter / 2
            + settings.lifetime_jitter.mul_f64(self.rng.f64());
        let took = now.saturating_duration_since(entry.born);
        entry.place = Place::InUse;
        entry.expires_at = entry.born + life;
        entry.retire_at = entry.expires_at - settings.guard_window;
        let ripe_at = entry.retire_at - settings.lead;
        entry.agenda_at = Some(ripe_at);
        entry.checked_at = now;
        entry.since = now;
        entry.killer = opened.killer;
        self.agenda.insert((ripe_at, id));
        source.opening -= 1;
        source.steps[Step::Connect as usize] -= 1;
        source.in_use += 1;
        source.tallies.opened += 1;
        source.last_failure = None;
        let healed = source.backoff.succeeded(&source.settings.backoff);
        let name = source.name.clone();
        let live = Box::new(Live {
            conn: opened.conn,
            id,
            source: entry.source,
            key: entry.key,
            uses: 0,
            generation: entry.generation,
            hand_out_before: entry.retire_at - self.margin,
            expires_at: entry.expires_at,
            timed: false,
            taken_at: None,
            desk: None,
        });
        self.tallies.create.record(took);
        // more may be needed now that a place among the opens is free
        self.wake_driver = true;
        if healed {
            self.announce(Event::Breaker { source: name.clone(), open: false });
        }
        self.announce(Event::Opened { source: name, took });
        // judged like one that comes back: much may have happened meanwhile
        self.put(live, Verdict::Clean, now);
    }

    /// An open has ended without a connection. While something may be left at
    /// the backend the entry stays, closing, until `released`.
    pub(crate) fn open_ended(&mut self, id: u32, maybe_left: bool, now: Instant) {
        let entry = &mut self.conns[id as usize];
        let Place::Opening(step) = entry.place else { return };
        let source = &mut self.sources[entry.source as usize];
        source.opening -= 1;
        source.steps[step as usize] -= 1;
        source.closing += 1;
        entry.place = Place::Closing;
        if !maybe_left {
            self.released(id, true, now);
        }
        self.wake_driver = true;
    }

    /// A step of opening failed: count it and back off.
    pub(crate) fn open_failed(
        &mut self,
        index: usize,
        reason: OpenFailure,
        retry_after: Option<Duration>,
        error: String,
        now: Instant,
    ) {
        let source = &mut self.sources[index];
        let was_open = source.backoff.is_open(&source.settings.backoff);
        source.tallies.failures[reason as usize] += 1;
        source.backoff.failed(now, &source.settings.backoff, retry_after, &mut self.rng);
        source.last_failure = Some(error.clone());
        let open = source.backoff.is_open(&source.settings.backoff);
        let name = source.name.clone();
        self.announce(Event::OpenFailed { source: name.clone(), reason, error });
        if open && !was_open {
            self.announce(Event::Breaker { source: name, open: true });
        }
    }

    /// The backend has let go of a closed connection, or the grace is over.
    pub(crate) fn released(&mut self, id: u32, confirmed: bool, now: Instant) {
        let mut entry = self.conns.remove(id as usize);
        debug_assert_eq!(entry.place, Place::Closing);
        self.keys.get_mut(entry.key).conns -= 1;
        let index = entry.source as usize;
        let source = &mut self.sources[index];
        source.closing -= 1;
        source.tallies.unconfirmed += u64::from(!confirmed);
        let name = source.name.clone();
        if let Some(key) = entry.reopen {
            source.reopening -= 1;
            self.keys.get_mut(key).conns -= 1;
            let good = source.standing(now) == Standing::Good && source.excess() == 0;
            if let Some(lease) = entry.lease.take().filter(|_| good && !self.closed) {
                self.start_open(index, self.key_to_reopen(index, key), lease, now);
            }
        }
        drop(entry);
        self.wake_driver = true;
        self.announce(Event::Released { source: name, confirmed });
    }

    /// The backend asked a source to wait.
    pub(crate) fn throttled(&mut self, index: usize, retry_after: Duration, now: Instant) {
        let ramp = self.settings.throttle_ramp;
        let source = &mut self.sources[index];
        let current = source.throttle.take();
        let merged = Throttle::merge(current, now, retry_after, ramp, &mut self.rng);
        source.set_throttle(Some(merged));
        source.last_throttled = Some(now);
        source.tallies.throttles += 1;
        let name = source.name.clone();
        self.wake_driver = true;
        self.announce(Event::Throttled { source: name, retry_after });
    }

    /// Makes sure that the driver wakes no later than `at`.
    #[inline]
    pub(crate) fn wake_driver_by(&mut self, at: Instant) {
        if self.armed_until.is_none_or(|armed| armed > at) {
            self.wake_driver = true;
        }
    }

    pub(crate) fn announce(&mut self, event: Event) {
        if self.observed || tracing::enabled!(tracing::Level::DEBUG) {
            self.outbox.events.push(event);
            self.outgoing = true;
        }
    }
}

/// A close for this reason comes before the connection's life is over.
fn is_early(reason: Discard) -> bool {
    !matches!(
        reason,
        Discard::ExpiredOnCheckout
            | Discard::ExpiredOnReturn
            | Discard::ExpiredOnScan
            | Discard::InsufficientRemainingLifetime
            | Discard::ExpiringSoonOnScan
            | Discard::ReplacedInPlace
            | Discard::Drained
    )
}
