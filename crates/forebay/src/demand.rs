//! Who is opened for: how many waiters each source is to serve, for which key
//! its next open is, and whose slot is given up for it at the cap. Plain
//! decisions over the queue and the sources; nothing is changed here but slots.

use std::time::Duration;

use crate::clock::Instant;
use crate::connector::Connector;
use crate::keys::DEFAULT_KEY;
use crate::live::Place;
use crate::queue::{Group, Rank, Spot};
use crate::reason::Discard;
use crate::source::Fitness;
use crate::state::State;

/// A waiter of another key that has waited this long takes the slot of a
/// connection that comes back, even if younger waiters could use it as it is.
const CONVERT_AFTER: Duration = Duration::from_millis(250);

impl<C: Connector> State<C> {
    /// How many waiters each source is to open for. Each waiter is given to one
    /// source with room: the first that is sound, else one that may at least be
    /// used, else one whose stock will serve it once it may be used again.
    pub(crate) fn demand(&self, now: Instant) -> Vec<u32> {
        let mut given = vec![0; self.sources.len()];
        if self.queue.waiting() == 0 {
            return given;
        }
        let mut left: Vec<(&Group, u32)> =
            self.queue.groups().map(|group| (group, group.waiting)).collect();
        for fitness in [Fitness::Sound, Fitness::Usable, Fitness::Barred] {
            for (group, left) in &mut left {
                for (index, source) in self.sources.iter().enumerate() {
                    if !group.may_use(index)
                        || source.throttled_until(now).is_some()
                        || source.fitness(now) != fitness
                    {
                        continue;
                    }
                    if fitness == Fitness::Barred && group.excluded == 0 {
                        *left = left.saturating_sub(source.stocks[group.key as usize].len);
                    }
                    let share = (*left).min(source.room_for_waiters().saturating_sub(given[index]));
                    given[index] += share;
                    *left -= share;
                }
            }
        }
        self.add_probes(&mut given, now);
        given
    }

    /// A source that failed and keeps no stock would not be tried again while
    /// the others have room: one open, now and then, shows whether it is well.
    fn add_probes(&self, given: &mut [u32], now: Instant) {
        for (index, source) in self.sources.iter().enumerate() {
            if given[index] == 0
                && source.target == 0
                && source.backoff.has_failed()
                && source.backoff.wake_at(now).is_none()
                && source.throttled_until(now).is_none()
                && self.queue.groups().any(|group| group.may_use(index))
            {
                given[index] = 1;
            }
        }
    }

    /// For which key to open next: that of the first waiter for whom nothing is
    /// on the way, else the configured key with the least, else the one used last.
    pub(crate) fn key_to_open(&self, index: usize) -> Option<u32> {
        let source = &self.sources[index];
        if !self.keys.are_many() && source.prefill.first() == Some(&DEFAULT_KEY) {
            return Some(DEFAULT_KEY);
        }
        let mut coming: Vec<u32> = source.stocks.iter().map(|stock| stock.len).collect();
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
        for group in self.queue.groups().filter(|group| group.may_use(index)) {
            waited[group.key as usize] += group.waiting;
        }
        let starved = (0..coming.len()).filter(|key| waited[*key] > coming[*key]);
        let first = starved.min_by_key(|key| self.turn_of(*key as u32, index));
        if let Some(key) = first {
            return Some(key as u32);
        }
        let configured = source.prefill.iter().copied().min_by_key(|key| coming[*key as usize]);
        configured.or_else(|| self.keys.last_used())
    }

    /// For which key to open a slot that was freed for `key`.
    pub(crate) fn key_to_reopen(&self, index: usize, key: u32) -> u32 {
        let waiting = self.waiting_at(index, key);
        let coming = self.on_the_way(index, key) + self.sources[index].stocks[key as usize].len;
        if !self.keys.are_many() || waiting > coming {
            return key;
        }
        // whoever it was freed for has been served, or has gone
        self.key_to_open(index).unwrap_or(key)
    }

    /// When the first waiter of a key has its turn.
    fn turn_of(&self, key: u32, index: usize) -> Option<Rank> {
        self.queue.first_for(key, index).map(|id| self.queue.rank(id))
    }

    /// Waiters of a key that may use a source.
    fn waiting_at(&self, index: usize, key: u32) -> u32 {
        let groups = self.queue.groups();
        groups.filter(|group| group.key == key && group.may_use(index)).map(|g| g.waiting).sum()
    }

    /// At the cap, gives the slots of the longest idle connections to waiters of
    /// other keys.
    pub(crate) fn evict(&mut self, index: usize, now: Instant) {
        if !self.keys.are_many() || self.sources[index].throttled_until(now).is_some() {
            return;
        }
        let groups = self.queue.groups().filter(|group| group.may_use(index));
        let mut keys: Vec<u32> = groups.map(|group| group.key).collect();
        keys.sort_by_key(|key| (self.turn_of(*key, index), *key));
        keys.dedup();
        for key in keys {
            while self.slot_is_wanted(index, key, now) && self.sources[index].room(now) > 0 {
                let Some(id) = self.longest_idle(index, Some(key)) else { return };
                self.discard_ready(id, Discard::Evicted, now);
                self.reopen_for(id, key);
            }
        }
    }

    /// Whether a connection that comes back should give its slot to a waiter of
    /// another key that nothing else will serve.
    pub(crate) fn converts(&self, index: usize, key: u32, own: Option<Spot>, now: Instant) -> bool {
        let Some(other) = self.queue.first_of_other_keys(key, index) else { return false };
        let passed = own.is_some_and(|own| {
            self.queue.rank(own) < self.queue.rank(other)
                || now < self.queue.head(other).arrived + CONVERT_AFTER
        });
        // its slot is opened anew, so `max_opening` and the back-off bind here too
        let room = self.sources[index].room(now) > 0;
        !passed && room && self.slot_is_wanted(index, self.queue.key_of(other), now)
    }

    /// Whether waiters of `key` have nothing on the way and no free slot.
    fn slot_is_wanted(&self, index: usize, key: u32, now: Instant) -> bool {
        let source = &self.sources[index];
        if source.open() < source.settings.max_open && !source.lease_refused {
            return false;
        }
        let others = || self.sources.iter().enumerate().filter(move |(other, _)| *other != index);
        let stuck = self.queue.groups().filter(|group| {
            let free = |(other, source): (usize, &crate::source::SourceState)| {
                group.may_use(other) && source.has_free_slot(now)
            };
            group.key == key && group.may_use(index) && !others().any(free)
        });
        let waiting: u32 = stuck.map(|group| group.waiting).sum();
        let elsewhere: u32 = others()
            .map(|(other, _)| self.on_the_way(other, key).min(self.waiting_at(other, key)))
            .sum();
        waiting > self.on_the_way(index, key) + source.stocks[key as usize].len + elsewhere
    }

    /// Opens under way for a key, slots being reopened included.
    fn on_the_way(&self, index: usize, key: u32) -> u32 {
        let source = &self.sources[index];
        if source.opening + source.reopening == 0 {
            return 0;
        }
        let coming = self.conns.iter().filter(|(_, entry)| {
            entry.source as usize == index
                && match entry.place {
                    Place::Opening(_) => entry.key == key,
                    Place::Closing => entry.reopen == Some(key),
                    _ => false,
                }
        });
        coming.count() as u32
    }
}
