//! The keys a pool has seen, as small numbers. A key is kept while it has a
//! connection or a waiter, or is one that the stock is filled for.

use std::collections::BTreeMap;

use slab::Slab;

use crate::clock::Instant;

/// The number of the default key, which is never forgotten.
pub(crate) const DEFAULT_KEY: u32 = 0;

pub(crate) struct KeyEntry<K> {
    pub(crate) key: K,
    /// Connections in every state, over all sources, and slots being reopened for it.
    pub(crate) conns: u32,
    /// Checkouts that have a ticket but no place in the queue.
    pub(crate) away: u32,
    /// When a checkout last asked for it; an unseen key is not filled for.
    pub(crate) last_used: Option<Instant>,
    kept: bool,
}

pub(crate) struct Keys<K> {
    entries: Slab<KeyEntry<K>>,
    numbers: BTreeMap<K, u32>,
}

impl<K: Ord + Clone + Default> Keys<K> {
    pub(crate) fn new() -> Self {
        let mut keys = Self { entries: Slab::new(), numbers: BTreeMap::new() };
        keys.keep(&K::default());
        keys
    }

    /// The number of a key, made if it is new.
    pub(crate) fn number(&mut self, key: &K) -> u32 {
        if let Some(number) = self.numbers.get(key) {
            return *number;
        }
        let entry = KeyEntry { key: key.clone(), conns: 0, away: 0, last_used: None, kept: false };
        let number = self.entries.insert(entry) as u32;
        self.numbers.insert(key.clone(), number);
        number
    }

    /// The number of a key that is never to be forgotten.
    pub(crate) fn keep(&mut self, key: &K) -> u32 {
        let number = self.number(key);
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

    /// The numbers of all keys.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        self.entries.iter().map(|(number, _)| number as u32).collect()
    }

    /// The key that a checkout asked for last.
    pub(crate) fn last_used(&self) -> Option<u32> {
        let used = self.entries.iter().filter(|(_, entry)| entry.last_used.is_some());
        used.max_by_key(|(_, entry)| entry.last_used).map(|(number, _)| number as u32)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Connector, GetOptions, Opened, Pool};

    struct Keyed;

    impl Connector for Keyed {
        type Conn = u32;
        type Key = u32;
        type Error = std::io::Error;

        async fn connect(&self, key: &u32) -> Result<Opened<u32>, std::io::Error> {
            Ok(Opened::new(*key))
        }
    }

    #[test]
    fn a_key_is_kept_while_it_has_a_connection_or_is_filled_for() {
        let mut keys: Keys<u32> = Keys::new();
        let (kept, used) = (keys.keep(&7), keys.number(&8));
        keys.get_mut(used).conns = 1;
        assert!(!keys.forget(DEFAULT_KEY) && !keys.forget(kept) && !keys.forget(used));
        keys.get_mut(used).conns = 0;
        assert!(keys.forget(used));
        assert_eq!(keys.number(&9), used, "its number is free for another");
        assert_ne!(keys.number(&8), used);
    }

    #[tokio::test(start_paused = true)]
    async fn keys_that_are_used_or_refused_once_take_no_room() {
        let hub = Pool::builder(Keyed).max_open(4).target_ready(0).max_waiters(1).stagger(None);
        let hub = hub.hub().expect("valid");
        tokio::spawn(crate::driver::drive(hub.clone()));
        let pool = Pool::new(hub.clone());
        for key in 1..=1_000 {
            let conn = pool.get_with(GetOptions::new().key(key)).await.expect("opened");
            assert_eq!(*conn, key);
        }
        let _held = [
            pool.get_with(GetOptions::new().key(1_000)).await.expect("ready"),
            pool.get_with(GetOptions::new().key(999)).await.expect("ready"),
            pool.get_with(GetOptions::new().key(998)).await.expect("ready"),
            pool.get_with(GetOptions::new().key(997)).await.expect("ready"),
        ];
        // one waits, and 1,000 are refused without the driver ever being woken
        let waiter = pool.get_with(GetOptions::new().key(2_000));
        let refused = async {
            for key in 2_001..=3_000 {
                let full = pool.get_with(GetOptions::new().key(key)).await;
                full.expect_err("the queue is full");
            }
            // the default key, those of the four, and the one waited for
            let state = hub.state.lock();
            assert_eq!(state.keys.numbers().len(), 6);
            assert!(state.sources[0].stocks.len() <= 8, "{}", state.sources[0].stocks.len());
        };
        tokio::select! { biased; _ = waiter => panic!("all are in use"), () = refused => {} }
    }
}
