//! What the driver decides each time it wakes: who has aged, which hand-offs
//! went unclaimed, whose deadline has come, what may be used again, what has
//! been idle for too long, what to open, and when to look again. All of it is
//! computation under the lock; the driver carries the results out.

use crate::budget::{Lease, Standing};
use crate::clock::Instant;
use crate::connector::Connector;
use crate::desk::Hand;
use crate::error::{GetError, Phase, Timeout};
use crate::invariant::{Invariant, check};
use crate::keys::DEFAULT_KEY;
use crate::observer::Event;
use crate::reason::{Discard, OpenFailure};
use crate::state::{Place, Ripeness, State, Verdict};

impl<C: Connector> State<C> {
    /// Brings everything up to `now` and sets when to be woken next.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.tallies.wakeups += 1;
        self.age(now);
        self.reclaim_offers(now);
        self.expire_waiters(now);
        for index in 0..self.sources.len() {
            self.settle(index, now);
            if self.queue.waiting() > 0 {
                self.dispatch(index, now);
            }
            self.trim_idle(index, now);
            self.check_idle(index, now);
        }
        if !self.closed {
            self.refill(now);
        }
        self.report_low();
        self.forget_keys();
        self.compare_totals();
        self.armed_until = self.next_wake(now);
        self.wake_driver = false;
    }

    /// Moves connections along their lives, in the order of their instants.
    fn age(&mut self, now: Instant) {
        while let Some(&(at, id)) = self.agenda.first() {
            if at > now {
                return;
            }
            self.agenda.pop_first();
            let entry = &mut self.conns[id as usize];
            entry.agenda_at = None;
            let source = &mut self.sources[entry.source as usize];
            let next = match entry.ripeness {
                Ripeness::Fresh => {
                    entry.ripeness = Ripeness::Ripe;
                    source.fresh -= u32::from(entry.place == Place::Ready);
                    Some(entry.retire_at)
                }
                Ripeness::Ripe => {
                    entry.ripeness = Ripeness::Retired;
                    source.settings.hard_life.map(|life| entry.born + life)
                }
                Ripeness::Retired | Ripeness::Dead => {
                    entry.ripeness = Ripeness::Dead;
                    if entry.place == Place::InUse
                        && let Some(killer) = entry.killer.clone()
                    {
                        self.outbox.kills.push(killer);
                        source.tallies.kills += 1;
                    }
                    None
                }
            };
            if entry.place == Place::Ready && entry.ripeness >= Ripeness::Retired {
                let expired = entry.expires_at <= now;
                let reason =
                    if expired { Discard::ExpiredOnScan } else { Discard::ExpiringSoonOnScan };
                self.discard_ready(id, reason, now);
            } else if let Some(next) = next {
                entry.agenda_at = Some(next);
                self.agenda.insert((next, id));
            }
        }
    }

    /// Moves on what was handed to checkouts that nobody polls.
    fn reclaim_offers(&mut self, now: Instant) {
        if self.offer_check_at.is_none_or(|at| at > now) {
            return;
        }
        let mut oldest: Option<Instant> = None;
        let mut unclaimed = Vec::new();
        for desk in 0..self.queue.desks() {
            let mut seat = self.desks.get(desk).lock();
            let Hand::Handed(_, at) = &seat.hand else { continue };
            let at = *at;
            if at + self.settings.claim_within > now {
                oldest = Some(oldest.map_or(at, |oldest| oldest.min(at)));
            } else if let Hand::Handed(live, _) = std::mem::replace(&mut seat.hand, Hand::Away) {
                unclaimed.push(live);
            }
        }
        self.offer_check_at = oldest.map(|at| at + self.settings.claim_within);
        for live in unclaimed {
            self.checkouts -= 1;
            self.tallies.unclaimed += 1;
            self.keys.get_mut(live.key).away += 1;
            self.announce(Event::Unclaimed);
            self.put(live, Verdict::Clean, now);
        }
    }

    fn expire_waiters(&mut self, now: Instant) {
        while let Some((deadline, overdue)) = self.queue.next_deadline() {
            if deadline > now {
                return;
            }
            if let Some(waiter) = self.queue.pop_overdue(overdue) {
                let ahead = self.queue.ahead_of(overdue.class(), waiter.arrived, waiter.seq);
                self.time_out(waiter.desk, overdue.excluded, ahead, waiter.arrived, now);
            }
        }
    }

    /// Tells a waiter that its deadline has come, and with what figures.
    pub(crate) fn time_out(
        &mut self,
        desk: u32,
        excluded: u64,
        ahead: u32,
        arrived: Instant,
        now: Instant,
    ) {
        let waited = now.saturating_duration_since(arrived);
        let timeout = self.timeout_error(excluded, ahead, waited, now);
        self.tallies.timeouts += 1;
        self.announce(Event::TimedOut { waited });
        self.fail(desk, GetError::Timeout(timeout));
    }

    /// The error of a checkout whose deadline has come.
    pub(crate) fn timeout_error(
        &self,
        excluded: u64,
        ahead: u32,
        waited: std::time::Duration,
        now: Instant,
    ) -> Timeout {
        let usable = || self.sources.iter().enumerate().filter(|(i, _)| excluded & (1 << i) == 0);
        let phases: Vec<Phase> = usable().map(|(_, source)| source.phase(now)).collect();
        // the phase of a source that is not throttled says more than that others are
        let phase = phases
            .iter()
            .find(|phase| **phase != Phase::Throttle)
            .or(phases.first())
            .copied()
            .unwrap_or(Phase::Queue);
        Timeout {
            waited,
            phase,
            in_use: usable().map(|(_, source)| source.in_use).sum(),
            ahead,
            opening: usable().map(|(_, source)| source.opening).sum(),
            last_failure: usable().find_map(|(_, source)| source.last_failure.clone()),
        }
    }

    /// Ends what has run out: the staggered start, a throttle, the right to the leases.
    fn settle(&mut self, index: usize, now: Instant) {
        let source = &mut self.sources[index];
        if source.hold_until.is_some_and(|until| until <= now) {
            source.hold_until = None;
        }
        if source.throttle.as_ref().is_some_and(|throttle| throttle.is_over(now)) {
            source.throttle = None;
        }
        let standing = source.standing(now);
        let mut recall = source.settings.count.as_ref().map_or(0, |count| count.excess());
        if standing != Standing::Good {
            recall = u32::MAX;
        }
        while recall > 0
            && let Some(id) = self.longest_idle(index, None)
        {
            self.discard_ready(id, Discard::LeaseRecalled, now);
            recall -= 1;
        }
        if standing == Standing::Expired {
            self.kill_in_use(index);
        }
    }

    /// Kills every connection in use that can be killed.
    pub(crate) fn kill_in_use(&mut self, index: usize) {
        let in_use = self.conns.iter_mut().map(|(_, entry)| entry).filter(|entry| {
            entry.source as usize == index
                && entry.place == Place::InUse
                && entry.ripeness != Ripeness::Dead
        });
        for entry in in_use {
            if let Some(killer) = entry.killer.clone() {
                entry.ripeness = Ripeness::Dead;
                self.sources[index].tallies.kills += 1;
                self.outbox.kills.push(killer);
            }
        }
    }

    /// The ready connection that has been idle longest, of any key but one.
    fn longest_idle(&self, index: usize, but: Option<u32>) -> Option<u32> {
        let stocks = self.sources[index].stocks.iter().enumerate();
        let tails = stocks
            .filter(|(key, stock)| stock.len > 0 && but != Some(*key as u32))
            .map(|(_, stock)| stock.tail);
        tails.min_by_key(|id| self.conns[*id as usize].since)
    }

    /// Closes what is over the target and has been idle for too long, down to
    /// `min_idle`; the target follows, until the stock is once used up.
    fn trim_idle(&mut self, index: usize, now: Instant) {
        let Some(max_idle) = self.sources[index].settings.max_idle else { return };
        loop {
            let source = &self.sources[index];
            let floor = source.floor;
            if source.fresh <= source.target.min(floor) {
                return;
            }
            let Some(id) = self.longest_idle_fresh(index) else { return };
            if self.conns[id as usize].since + max_idle > now {
                return;
            }
            let source = &mut self.sources[index];
            source.target = source.target.min((source.fresh - 1).max(floor));
            self.discard_ready(id, Discard::Idle, now);
        }
    }

    /// As `longest_idle`, passing over those that retire soon in any case.
    fn longest_idle_fresh(&self, index: usize) -> Option<u32> {
        let stocks = self.sources[index].stocks.iter();
        let oldest = stocks.filter_map(|stock| {
            let mut from_tail = stock.iter_back(&self.conns);
            from_tail.find(|id| self.conns[*id as usize].ripeness == Ripeness::Fresh)
        });
        oldest.min_by_key(|id| self.conns[*id as usize].since)
    }

    /// Sends idle connections whose check is due to be checked, at most a
    /// quarter of the stock at a time.
    fn check_idle(&mut self, index: usize, now: Instant) {
        let source = &self.sources[index];
        let Some(every) = source.settings.idle_check else { return };
        let due: Vec<u32> = source
            .stocks
            .iter()
            .flat_map(|stock| stock.iter_back(&self.conns))
            .filter(|id| {
                let entry = &self.conns[*id as usize];
                // those nearly due go along, so that each wake-up does many
                entry.since.max(entry.checked_at) + every * 7 / 8 <= now
            })
            .take((source.ready as usize / 4).max(1))
            .collect();
        let any_due = due.iter().any(|id| {
            let entry = &self.conns[*id as usize];
            entry.since.max(entry.checked_at) + every <= now
        });
        for id in due.into_iter().filter(|_| any_due) {
            self.conns[id as usize].checked_at = now;
            let live = self.leave_stock(id);
            self.outbox.checks.extend(live);
        }
    }

    /// Starts the opens that are needed; where no slot or lease is free,
    /// replaces in place and lets other keys give way.
    fn refill(&mut self, now: Instant) {
        for index in 0..self.sources.len() {
            if self.sources[index].standing(now) != Standing::Good {
                continue;
            }
            let waiters = self.waiters_of(index, now);
            let source = &self.sources[index];
            let want = source.figures(waiters).need().min(source.room(now));
            let taken = match &source.settings.count {
                Some(count) if want > 0 => count.take(now, want, waiters),
                _ => want,
            };
            let source = &mut self.sources[index];
            if taken < want && !source.lease_refused {
                source.tallies.failures[OpenFailure::Lease as usize] += 1;
            }
            source.lease_refused = taken < want;
            let count = source.settings.count.clone();
            for _ in 0..taken {
                // a lease that finds no key to open is dropped, and so given back
                let lease = Lease::taken(count.as_ref());
                if let Some(key) = self.key_to_open(index) {
                    self.start_open(index, key, lease, now);
                }
            }
            let source = &self.sources[index];
            if source.open() >= source.settings.max_open || source.lease_refused {
                self.replace_in_place(index, waiters, now);
                self.evict(index, now);
            }
        }
    }

    /// The waiters that a source is to open for. With several sources each
    /// waiter is given to the first that may serve it and has room.
    pub(crate) fn waiters_of(&self, index: usize, now: Instant) -> u32 {
        if self.queue.waiting() == 0 {
            return 0;
        }
        if self.sources.len() == 1 {
            let throttled = self.sources[0].throttled_until(now).is_some();
            return if throttled { 0 } else { self.queue.waiting() };
        }
        let mut given = vec![0; self.sources.len()];
        for group in self.queue.groups() {
            let mut left = group.waiting;
            for (i, source) in self.sources.iter().enumerate() {
                if group.excluded & (1 << i) != 0 || source.throttled_until(now).is_some() {
                    continue;
                }
                let free = source.settings.max_open.saturating_sub(source.open());
                let room = (free + source.opening + source.reopening).saturating_sub(given[i]);
                let share = left.min(room);
                given[i] += share;
                left -= share;
            }
        }
        given[index]
    }

    /// For which key to open next: one that is waited for, else the configured
    /// key with the least, else the one used last.
    fn key_to_open(&self, index: usize) -> Option<u32> {
        let source = &self.sources[index];
        if !self.keys.are_many() && source.prefill.first() == Some(&DEFAULT_KEY) {
            return Some(DEFAULT_KEY);
        }
        let mut coming = vec![0_u32; self.keys.bound()];
        for (_, entry) in &self.conns {
            if entry.source as usize == index {
                match (entry.place, entry.reopen) {
                    (Place::Opening(_), _) => coming[entry.key as usize] += 1,
                    (Place::Closing, Some(key)) => coming[key as usize] += 1,
                    _ => {}
                }
            }
        }
        let mut waited = vec![0_u32; coming.len()];
        for group in self.queue.groups().filter(|group| group.excluded & (1 << index) == 0) {
            waited[group.key as usize] += group.waiting;
        }
        let starved = (0..coming.len()).filter(|key| waited[*key] > coming[*key]);
        let starved = starved.max_by_key(|key| waited[*key] - coming[*key]);
        if let Some(key) = starved {
            return Some(key as u32);
        }
        let stocked = |key: &u32| source.stocks[*key as usize].len + coming[*key as usize];
        let configured = source.prefill.iter().copied().min_by_key(stocked);
        configured.or_else(|| self.keys.recent().first().copied())
    }

    /// Closes the ready connections that retire soonest, so that their slots can
    /// be opened anew: at most `max_opening` at a time.
    fn replace_in_place(&mut self, index: usize, waiters: u32, now: Instant) {
        let horizon = now + self.sources[index].settings.lead;
        let ripe: Vec<u32> = self
            .agenda
            .iter()
            .take_while(|(at, _)| *at <= horizon)
            .map(|(_, id)| *id)
            .filter(|id| {
                let entry = &self.conns[*id as usize];
                entry.source as usize == index
                    && entry.place == Place::Ready
                    && entry.ripeness == Ripeness::Ripe
            })
            .take(self.sources[index].room(now) as usize)
            .collect();
        for id in ripe {
            if self.sources[index].figures(waiters).wanted() == 0 {
                return;
            }
            self.discard_ready(id, Discard::ReplacedInPlace, now);
        }
    }

    /// At the cap, gives the slots of the longest idle connections to waiters of
    /// other keys.
    fn evict(&mut self, index: usize, now: Instant) {
        if !self.keys.are_many() || self.sources[index].throttled_until(now).is_some() {
            return;
        }
        let mut keys: Vec<u32> = self
            .queue
            .groups()
            .filter(|group| group.excluded & (1 << index) == 0)
            .map(|group| group.key)
            .collect();
        keys.dedup();
        for key in keys {
            while self.slot_is_wanted(index, key) && self.sources[index].room(now) > 0 {
                let Some(id) = self.longest_idle(index, Some(key)) else { return };
                self.discard_ready(id, Discard::Evicted, now);
                let entry = &mut self.conns[id as usize];
                match entry.reopen.replace(key) {
                    Some(_) => {}
                    None => self.sources[index].reopening += 1,
                }
            }
        }
    }

    fn report_low(&mut self) {
        for index in 0..self.sources.len() {
            let source = &mut self.sources[index];
            let low = source.ready + source.in_use < source.settings.low_watermark();
            if low != source.low {
                source.low = low;
                let name = source.name.clone();
                self.announce(Event::Low { source: name, low });
            }
        }
    }

    /// Forgets keys without connections and waiters.
    fn forget_keys(&mut self) {
        if !self.keys.are_many() {
            return;
        }
        let waited: Vec<u32> = self.queue.groups().map(|group| group.key).collect();
        for key in self.keys.recent() {
            if !waited.contains(&key) && self.keys.forget(key) {
                self.queue.forget_key(key);
            }
        }
    }

    /// The cheap part of the catalogue, for production.
    fn compare_totals(&mut self) {
        let mut breaches: Vec<Invariant> = Vec::new();
        let mut open = 0;
        for source in &self.sources {
            open += source.open();
            check!(breaches, Cap, source.open() <= source.settings.max_open);
        }
        check!(breaches, Conservation, open as usize == self.conns.len());
        for breach in breaches {
            self.tallies.breaches += 1;
            tracing::error!(invariant = breach.as_str(), "a promise of the pool was broken");
            self.announce(Event::Breach(breach));
        }
    }

    /// When the driver has to look again, if nothing else wakes it.
    fn next_wake(&self, now: Instant) -> Option<Instant> {
        let mut next = [
            self.agenda.first().map(|(at, _)| *at),
            self.offer_check_at,
            self.queue.next_deadline().map(|(at, _)| at),
        ]
        .into_iter()
        .flatten()
        .min();
        let mut by = |at: Option<Instant>| {
            if let Some(at) = at {
                next = Some(next.map_or(at, |next| next.min(at)));
            }
        };
        for (index, source) in self.sources.iter().enumerate() {
            by(source.hold_until);
            if let Some(throttle) = &source.throttle
                && self.queue.waiting() > 0
            {
                by(Some(throttle.next_step(now, source.settings.in_use_cap())));
            }
            if source.figures(self.waiters_of(index, now)).need() > 0 {
                by(source.backoff.wake_at(now));
            }
            if let Some(max_idle) = source.settings.max_idle
                && source.fresh > source.target.min(source.floor)
            {
                let id = self.longest_idle_fresh(index);
                by(id.map(|id| self.conns[id as usize].since + max_idle));
            }
            if let Some(every) = source.settings.idle_check {
                let stocked = source.stocks.iter().flat_map(|stock| stock.iter(&self.conns));
                let due = stocked.map(|id| {
                    let entry = &self.conns[id as usize];
                    entry.since.max(entry.checked_at) + every
                });
                by(due.min());
            }
        }
        next
    }
}
