//! The keys a pool has seen, as small numbers. A key is kept while it has a
//! connection or a waiter, or is one that the stock is filled for.

use std::collections::BTreeMap;

use slab::Slab;

use crate::clock::Instant;

/// The number of the default key, which is never forgotten.
pub(crate) const DEFAULT_KEY: u32 = 0;

pub(crate) struct KeyEntry<K> {
    pub(crate) key: K,
    /// Connections in every state, over all sources.
    pub(crate) conns: u32,
    /// Checkouts that have a ticket but no place in the queue.
    pub(crate) away: u32,
    pub(crate) last_used: Instant,
    kept: bool,
}

pub(crate) struct Keys<K> {
    entries: Slab<KeyEntry<K>>,
    numbers: BTreeMap<K, u32>,
}

impl<K: Ord + Clone + Default> Keys<K> {
    pub(crate) fn new(now: Instant) -> Self {
        let mut keys = Self { entries: Slab::new(), numbers: BTreeMap::new() };
        keys.keep(&K::default(), now);
        keys
    }

    /// The number of a key, made if it is new.
    pub(crate) fn number(&mut self, key: &K, now: Instant) -> u32 {
        if let Some(number) = self.numbers.get(key) {
            return *number;
        }
        let entry = KeyEntry { key: key.clone(), conns: 0, away: 0, last_used: now, kept: false };
        let number = self.entries.insert(entry) as u32;
        self.numbers.insert(key.clone(), number);
        number
    }

    /// The number of a key that is never to be forgotten.
    pub(crate) fn keep(&mut self, key: &K, now: Instant) -> u32 {
        let number = self.number(key, now);
        self.entries[number as usize].kept = true;
        number
    }

    pub(crate) fn get(&self, number: u32) -> &KeyEntry<K> {
        &self.entries[number as usize]
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> &mut KeyEntry<K> {
        &mut self.entries[number as usize]
    }

    /// One more than the largest number.
    pub(crate) fn bound(&self) -> usize {
        self.entries.iter().map(|(number, _)| number + 1).max().unwrap_or(0)
    }

    /// Whether there is a key besides the default one.
    pub(crate) fn are_many(&self) -> bool {
        self.entries.len() > 1
    }

    /// The keys, the most recently used first.
    pub(crate) fn recent(&self) -> Vec<u32> {
        let mut keys: Vec<u32> = self.entries.iter().map(|(number, _)| number as u32).collect();
        keys.sort_by_key(|number| std::cmp::Reverse(self.get(*number).last_used));
        keys
    }

    /// Forgets a key that nobody needs; `true` if it is gone.
    pub(crate) fn forget(&mut self, number: u32) -> bool {
        let entry = &self.entries[number as usize];
        if entry.kept || entry.conns > 0 || entry.away > 0 {
            return false;
        }
        let entry = self.entries.remove(number as usize);
        self.numbers.remove(&entry.key);
        true
    }
}
