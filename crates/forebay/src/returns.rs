//! A connection comes back, or is new: it is judged, handed to the first waiter
//! that may have it, put into the stock, or discarded.

use crate::budget::Standing;
use crate::clock::Instant;
use crate::connector::Connector;
use crate::live::{Delivery, Live, Place, Ripeness, TIMED, Verdict};
use crate::observer::Event;
use crate::queue::Spot;
use crate::reason::Discard;
use crate::state::State;

impl<C: Connector> State<C> {
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

    /// As [`put_back`](Self::put_back); who gives up the lock brings what is handed over.
    pub(crate) fn put(&mut self, live: Box<Live<C>>, verdict: Verdict, now: Instant) {
        let delivery = self.put_back(live, verdict, now);
        self.send(delivery);
    }

    /// Leaves a delivery to whoever gives up the lock.
    fn send(&mut self, delivery: Option<Delivery<C>>) {
        self.outgoing |= delivery.is_some();
        self.outbox.deliveries.extend(delivery);
    }

    /// Judges a connection that counts as in use and puts it where it belongs. What
    /// goes to a waiter is given to the caller, to be brought without the lock: in
    /// registers, for it would stall on what it had just written to memory.
    #[inline]
    pub(crate) fn put_back(
        &mut self,
        mut live: Box<Live<C>>,
        verdict: Verdict,
        now: Instant,
    ) -> Option<Delivery<C>> {
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
            return self.offer(live, now);
        }
        self.put_doubtful(live, verdict, now);
        None
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
            // else those who wait here would keep a recalled lease for ever
            _ if self.is_recalled(live.source as usize) => Some(Discard::LeaseRecalled),
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

    /// Whether what comes back has to go to others, as far as is known.
    fn is_recalled(&self, index: usize) -> bool {
        let source = &self.sources[index];
        source.recalled && source.excess() > 0
    }

    /// Whether a connection in use was killed.
    pub(crate) fn was_killed(&self, id: u32) -> bool {
        self.suspects > 0 && self.conns[id as usize].ripeness == Ripeness::Dead
    }

    /// Gives a usable connection that counts as in use to the first waiter that
    /// may have it, else to the stock.
    pub(crate) fn place(&mut self, live: Box<Live<C>>, now: Instant) {
        let delivery = self.offer(live, now);
        self.send(delivery);
    }

    /// As [`place`](Self::place); gives what goes to a waiter to the caller.
    #[inline]
    fn offer(&mut self, live: Box<Live<C>>, now: Instant) -> Option<Delivery<C>> {
        let index = live.source as usize;
        if self.queue.waiting() > 0 && self.sources[index].may_pass_on(now) {
            let first = self.queue.first_for(live.key, index);
            if self.keys.are_many() {
                if self.converts(index, live.key, first, now) {
                    self.discard(live, Discard::Evicted, now);
                    return None;
                }
                if self.frees_another(index, first) {
                    self.sources[index].in_use -= 1;
                    self.stock(live, now);
                    self.dispatch(index, now);
                    return None;
                }
            }
            if let Some(spot) = first {
                return self.hand(spot, live, now);
            }
        }
        self.stock_back(live, now);
        None
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
    fn hand(&mut self, spot: Spot, mut live: Box<Live<C>>, now: Instant) -> Option<Delivery<C>> {
        if self.sources.len() > 1 {
            self.served(live.source as usize);
        }
        let Some(waiter) = self.queue.pop(spot) else {
            self.stock_back(live, now);
            return None;
        };
        if self.queue.waiting() == 0 {
            self.desks.set_crowded(false);
        }
        live.uses += 1;
        live.handed_at = now;
        live.timed = self.count_checkout();
        if self.offer_check_at.is_none() {
            let at = now + self.settings.claim_within;
            self.offer_check_at = Some(at);
            self.wake_driver_by(at);
        }
        Some(Delivery { desk: waiter.desk, waker: waiter.waker, live })
    }

    /// Hands a connection that counts as in use to the waiter at a spot.
    pub(crate) fn hand_to(&mut self, spot: Spot, live: Box<Live<C>>, now: Instant) {
        let delivery = self.hand(spot, live, now);
        self.send(delivery);
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
