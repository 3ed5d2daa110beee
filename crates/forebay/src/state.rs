//! Everything a pool knows, as one plain structure that is changed under one
//! lock. Nothing here waits, sleeps or calls user code: `now` is an argument,
//! and what must happen outside the lock (wake a waiter, close a connection,
//! start an open) is left in [`Outbox`] for the caller and the driver.
//!
//! This file is the structure, and how a connection is taken from a stock.
//! `tickets` is how a checkout waits, `returns` how a connection comes back,
//! `opening` how it begins and ends, `tick` and `demand` what the driver decides
//! when it wakes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;

use crate::clock::Instant;
use crate::connector::Connector;
use crate::desk::Desks;
use crate::keys::Keys;
use crate::list::List;
use crate::live::{Entry, Live, Outbox, Place, Ripeness};
use crate::observer::Event;
use crate::queue::Queue;
use crate::reason::Discard;
use crate::select::{Candidate, choose};
use crate::settings::{PoolSettings, Strategy};
use crate::source::SourceState;
use crate::stats::Tallies;
use crate::throttle::Throttle;

/// In the order of use: what a return and a hand-off change lies together at
/// the start, because each cache line that changes hands costs more than the
/// work done with it. The lock is on the first of these lines: one less to fetch.
#[repr(C)]
pub(crate) struct State<C: Connector> {
    /// Connections handed out.
    pub(crate) checkouts: u64,
    /// Checkouts that found nothing ready.
    pub(crate) empty: u64,
    pub(crate) closed: bool,
    pub(crate) wake_driver: bool,
    /// There is something in the outbox for whoever gives up the lock.
    pub(crate) outgoing: bool,
    /// The driver has ended: whoever discards a connection drops it on the spot.
    pub(crate) driverless: bool,
    pub(crate) queue: Queue,
    /// Until when the driver sleeps; `None` while it sleeps for good.
    pub(crate) armed_until: Option<Instant>,
    /// When to look for hand-offs that nobody claimed.
    pub(crate) offer_check_at: Option<Instant>,
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
    pub(crate) fn served(&mut self, chosen: usize) {
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
                self.hand_to(spot, live, now);
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
