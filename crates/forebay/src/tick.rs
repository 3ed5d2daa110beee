//! What the driver decides each time it wakes: who has aged, which hand-offs
//! went unclaimed, whose deadline has come, what may be used again, what has
//! been idle for too long, what to open, and when to look again. All of it is
//! computation under the lock; the driver carries the results out.

use crate::budget::{Ask, Grant, Lease, Standing};
use crate::clock::Instant;
use crate::connector::Connector;
use crate::desk::Hand;
use crate::error::{GetError, Phase, Timeout};
use crate::invariant::{Invariant, check};
use crate::live::{Place, Ripeness, Verdict};
use crate::observer::Event;
use crate::queue::Waiter;
use crate::reason::{Discard, OpenFailure};
use crate::state::State;

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
            if entry.place == Place::Closing {
                self.released(id, false, now);
                continue;
            }
            let source = &mut self.sources[entry.source as usize];
            let next = match entry.ripeness {
                Ripeness::Fresh => {
                    entry.ripeness = Ripeness::Ripe;
                    source.fresh -= u32::from(entry.place == Place::Ready);
                    Some(entry.retire_at)
                }
                Ripeness::Ripe => {
                    entry.ripeness = Ripeness::Retired;
                    let in_use = entry.place == Place::InUse;
                    self.suspects += u32::from(in_use && !entry.suspect);
                    entry.suspect |= in_use;
                    source.settings.hard_life.map(|life| entry.born + life)
                }
                Ripeness::Retired | Ripeness::Dead => {
                    if entry.place == Place::InUse
                        && let Some(killer) = entry.killer.clone()
                    {
                        entry.ripeness = Ripeness::Dead;
                        self.suspects += u32::from(!std::mem::replace(&mut entry.suspect, true));
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
            let Hand::Handed(live) = &seat.hand else { continue };
            let at = live.handed_at;
            if at + self.settings.claim_within > now {
                oldest = Some(oldest.map_or(at, |oldest| oldest.min(at)));
            } else if let Hand::Handed(live) = std::mem::replace(&mut seat.hand, Hand::Away) {
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
                self.time_out(waiter, overdue.excluded, ahead, now);
            }
        }
    }

    /// Tells a waiter that its deadline has come, and with what figures.
    pub(crate) fn time_out(&mut self, waiter: Waiter, excluded: u64, ahead: u32, now: Instant) {
        let waited = now.saturating_duration_since(waiter.arrived);
        let timeout = self.timeout_error(excluded, ahead, waited, now);
        self.tallies.timeouts += 1;
        self.announce(Event::TimedOut { waited });
        self.fail(waiter.desk, waiter.waker, GetError::Timeout(timeout));
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
            source.set_throttle(None);
        }
        let standing = source.standing(now);
        // what others give back in the meantime need not come from here
        while (standing != Standing::Good || self.sources[index].excess() > 0)
            && let Some(id) = self.longest_idle(index, None)
        {
            self.discard_ready(id, Discard::LeaseRecalled, now);
        }
        let source = &mut self.sources[index];
        source.recalled = source.excess() > 0;
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
                self.suspects += u32::from(!std::mem::replace(&mut entry.suspect, true));
                self.sources[index].tallies.kills += 1;
                self.outbox.kills.push(killer);
            }
        }
    }

    /// The ready connection that has been idle longest, of any key but one.
    pub(crate) fn longest_idle(&self, index: usize, but: Option<u32>) -> Option<u32> {
        let stocks = self.sources[index].stocks.iter().enumerate();
        let tails = stocks
            .filter(|(key, stock)| stock.len > 0 && but != Some(*key as u32))
            .map(|(_, stock)| stock.tail);
        tails.min_by_key(|id| self.conns[*id as usize].since)
    }

    /// Closes what has been too much for `max_idle`. Over the target that is the
    /// number of those idle for so long less the target: a stock that is now and
    /// then drawn down to its target keeps its size, and none is opened anew for
    /// the next peak. Below the target an unused stock fades to `min_idle`, and
    /// the target follows until the stock is once used up.
    fn trim_idle(&mut self, index: usize, now: Instant) {
        let source = &self.sources[index];
        let Some(max_idle) = source.settings.max_idle else { return };
        if source.trim_at.is_none_or(|at| at > now) {
            return;
        }
        // those that retire soon go in any case
        let stocked = source.stocks.iter().flat_map(|stock| stock.iter_back(&self.conns));
        let mut idle: Vec<u32> =
            stocked.filter(|id| self.conns[*id as usize].ripeness == Ripeness::Fresh).collect();
        let since = |id: &u32| self.conns[*id as usize].since;
        idle.sort_by_key(since);
        let floor = source.settings.min_idle() as usize;
        let kept = |target: usize| if floor < target { 0 } else { target };
        let target = source.target as usize;
        let too_long = idle.partition_point(|id| since(id) + max_idle <= now);
        let surplus = too_long.saturating_sub(kept(target)).min(idle.len().saturating_sub(floor));
        // one that has had its use goes first, and of those the one that retires
        // first, since its successor would be due first
        idle[..too_long].sort_by_key(|id| {
            let entry = &self.conns[*id as usize];
            (entry.live.as_ref().is_some_and(|live| live.uses == 0), entry.retire_at)
        });
        let gone: Vec<u32> = idle.drain(..surplus).collect();
        idle.sort_by_key(since);
        let target = target.min(idle.len().max(floor));
        let next = idle.get(kept(target)).filter(|_| idle.len() > floor).map(since);
        self.sources[index].target = target as u32;
        self.sources[index].trim_at = next.map(|since| since + max_idle);
        for id in gone {
            self.discard_ready(id, Discard::Idle, now);
        }
    }

    /// Sends idle connections whose check is due to be checked, at most a
    /// quarter of the stock at a time.
    fn check_idle(&mut self, index: usize, now: Instant) {
        let source = &self.sources[index];
        let Some(every) = source.settings.idle_check else { return };
        let due_at = |id: &u32| {
            let entry = &self.conns[*id as usize];
            entry.since.max(entry.checked_at) + every
        };
        // those nearly due go along, so that each wake-up does many
        let nearly = every / 8;
        let mut due: Vec<u32> = source
            .stocks
            .iter()
            .flat_map(|stock| stock.iter_back(&self.conns))
            .filter(|id| due_at(id) <= now + nearly)
            .collect();
        due.sort_by_key(due_at);
        if due.first().is_none_or(|id| due_at(id) > now) {
            return;
        }
        due.truncate(source.check_room() as usize);
        for id in due {
            self.conns[id as usize].checked_at = now;
            let live = self.leave_stock(id);
            self.sources[index].checking += u32::from(live.is_some());
            self.outbox.checks.extend(live);
        }
    }

    /// Starts the opens that are needed; where no slot or lease is free,
    /// replaces in place and lets other keys give way.
    fn refill(&mut self, now: Instant) {
        // a source that is refused a lease leaves its waiters to the others
        for _ in 0..self.sources.len() {
            if !self.refill_once(now) {
                return;
            }
        }
    }

    /// `true` if a source was refused a lease and others may take its waiters.
    fn refill_once(&mut self, now: Instant) -> bool {
        let shared = self.sources.len() > 1 && self.queue.waiting() > 0;
        let demand = self.demand(now);
        let mut refused = false;
        for (index, waiters) in demand.into_iter().enumerate() {
            if self.sources[index].standing(now) != Standing::Good {
                continue;
            }
            let source = &self.sources[index];
            let mut want = source.figures(waiters).need().min(source.room(now));
            if want > 0 && self.key_to_open(index).is_none() {
                want = 0;
            }
            let source = &self.sources[index];
            let more = source.still_to_open(waiters).saturating_sub(want);
            let ask = Ask { want, more, waiters, asker: source.asker };
            let grant = match &source.settings.count {
                Some(count) if want + more > 0 => count.take(now, ask),
                _ => Grant { leases: want, epoch: 0 },
            };
            let taken = grant.leases;
            let source = &mut self.sources[index];
            if taken < want && !source.lease_refused {
                source.tallies.failures[OpenFailure::Lease as usize] += 1;
                refused = true;
            }
            // while its waiters are with others it does not ask, and has not been granted any
            if want > 0 || !shared {
                source.lease_refused = taken < want;
            }
            let count = source.settings.count.clone();
            for _ in 0..taken {
                let lease = Lease::taken(count.as_ref(), grant.epoch);
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
        refused && shared
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
        for key in self.keys.numbers() {
            self.forget_key(key);
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
        let demand = self.demand(now);
        for (index, source) in self.sources.iter().enumerate() {
            by(source.hold_until);
            if let Some(throttle) = &source.throttle
                && self.queue.waiting() > 0
            {
                by(Some(throttle.next_step(now, source.settings.in_use_cap())));
            }
            if source.figures(demand[index]).need() > 0 {
                by(source.backoff.wake_at(now));
            }
            by(source.trim_at);
            if let Some(every) = source.settings.idle_check
                && source.check_room() > 0
            {
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
