//! The waiters of a pool. Waiters that may use the same connections (one key,
//! one set of excluded sources) form a group, so a freed connection is offered
//! by looking at the heads of the groups that may use it and at no other waiter.
//!
//! Order: every class starts `priority_age` behind the next higher one, so a
//! waiter's rank is fixed when it arrives and lower classes still age past
//! higher ones. A ticket is kept until the checkout ends: a waiter that did not
//! claim what it was handed is *away* and takes its old place when it is polled again.

use std::collections::BTreeSet;
use std::task::Waker;
use std::time::Duration;

use slab::Slab;

use crate::clock::Instant;
use crate::error::GetError;
use crate::list::{Link, Linked, List, NONE};

/// Importance of a checkout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
#[non_exhaustive]
pub enum Priority {
    /// For health checks: served first, not counted against `max_waiters`.
    Health,
    /// Before normal work.
    High,
    /// Ordinary work.
    #[default]
    Normal,
    /// After normal work.
    Low,
}

const CLASSES: usize = 4;

/// Most health checks waiting at once.
pub(crate) const HEALTH_WAITERS_MAX: u32 = 8;

const ORDER: usize = 0;
const DEADLINE: usize = 1;

/// One waiter. `L` is what it is handed.
pub(crate) struct Waiter<L> {
    group: u32,
    class: u8,
    rank: Instant,
    seq: u64,
    pub(crate) arrived: Instant,
    pub(crate) deadline: Instant,
    /// The deadline is the pool's default, so it lies in the list and not in the set.
    default_deadline: bool,
    /// The deadline is being watched.
    watched: bool,
    waker: Option<Waker>,
    pub(crate) state: WaiterState<L>,
    order: Link,
    by_deadline: Link,
}

pub(crate) enum WaiterState<L> {
    /// In its group's list.
    Waiting,
    /// Holds a ticket but did not claim its last offer; in no list.
    Away,
    /// Was handed something at this instant; in the list of offers.
    Offered(L, Instant),
    /// Will not be served.
    Failed(GetError),
}

impl<L> Linked<ORDER> for Waiter<L> {
    fn link(&self) -> Link {
        self.order
    }
    fn link_mut(&mut self) -> &mut Link {
        &mut self.order
    }
}

impl<L> Linked<DEADLINE> for Waiter<L> {
    fn link(&self) -> Link {
        self.by_deadline
    }
    fn link_mut(&mut self) -> &mut Link {
        &mut self.by_deadline
    }
}

/// Waiters that may use the same connections.
pub(crate) struct Group {
    pub(crate) key: u32,
    pub(crate) excluded: u64,
    classes: [List<ORDER>; CLASSES],
    pub(crate) waiting: u32,
    /// Waiters in any state: the group lives as long as one of them.
    tickets: u32,
}

impl Group {
    /// Whether these waiters may use the source of this number.
    pub(crate) fn may_use(&self, source: usize) -> bool {
        self.excluded & (1 << source) == 0
    }
}

/// What a checkout asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticket {
    pub(crate) key: u32,
    pub(crate) excluded: u64,
    pub(crate) priority: Priority,
    pub(crate) now: Instant,
    pub(crate) deadline: Instant,
    pub(crate) default_deadline: bool,
}

/// All waiters of one pool.
pub(crate) struct Queue<L> {
    waiters: Slab<Waiter<L>>,
    groups: Slab<Group>,
    by_key: Vec<Vec<u32>>,
    offers: List<ORDER>,
    deadlines: List<DEADLINE>,
    own_deadlines: BTreeSet<(Instant, u32)>,
    priority_age: Duration,
    seq: u64,
    waiting: u32,
    health: u32,
}

impl<L> Queue<L> {
    pub(crate) fn new(priority_age: Duration) -> Self {
        Self {
            waiters: Slab::new(),
            groups: Slab::new(),
            by_key: Vec::new(),
            offers: List::default(),
            deadlines: List::default(),
            own_deadlines: BTreeSet::new(),
            priority_age,
            seq: 0,
            waiting: 0,
            health: 0,
        }
    }

    /// Waiters that want a connection and have none offered.
    #[inline]
    pub(crate) fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Whether one more waiter of this priority may join.
    pub(crate) fn has_room(&self, priority: Priority, max_waiters: u32) -> bool {
        match priority {
            Priority::Health => self.health < HEALTH_WAITERS_MAX,
            _ => self.waiters.len() as u32 - self.health < max_waiters,
        }
    }

    /// Tickets held, the offered and the away included.
    pub(crate) fn tickets(&self) -> u32 {
        self.waiters.len() as u32
    }

    /// Adds a waiter behind all others of its class.
    pub(crate) fn enqueue(&mut self, ticket: &Ticket, waker: &Waker) -> u32 {
        self.seq += 1;
        self.insert(ticket, self.seq, waker)
    }

    /// The number of a ticket, with which it can be [restored](Self::restore).
    pub(crate) fn seq_of(&self, id: u32) -> u64 {
        self.waiters[id as usize].seq
    }

    /// Gives a ticket that was removed its old place again.
    pub(crate) fn restore(&mut self, ticket: &Ticket, seq: u64, waker: &Waker) -> u32 {
        // its deadline is no longer the last of the list of default ones
        let id = self.insert(&Ticket { default_deadline: false, ..*ticket }, seq, waker);
        self.unlist(id);
        self.relist(id);
        id
    }

    fn insert(&mut self, ticket: &Ticket, seq: u64, waker: &Waker) -> u32 {
        let group = self.group(ticket.key, ticket.excluded);
        let class = ticket.priority as u8;
        let id = self.waiters.insert(Waiter {
            group,
            class,
            rank: ticket.now + self.priority_age * u32::from(class),
            seq,
            arrived: ticket.now,
            deadline: ticket.deadline,
            default_deadline: ticket.default_deadline,
            watched: true,
            waker: Some(waker.clone()),
            state: WaiterState::Waiting,
            order: Link::default(),
            by_deadline: Link::default(),
        }) as u32;
        let group = &mut self.groups[group as usize];
        group.classes[usize::from(class)].push_back(&mut self.waiters, id);
        group.waiting += 1;
        group.tickets += 1;
        self.waiting += 1;
        self.health += u32::from(ticket.priority == Priority::Health);
        if ticket.default_deadline {
            self.deadlines.push_back(&mut self.waiters, id);
        } else {
            self.own_deadlines.insert((ticket.deadline, id));
        }
        id
    }

    fn group(&mut self, key: u32, excluded: u64) -> u32 {
        let index = key as usize;
        if self.by_key.len() <= index {
            self.by_key.resize_with(index + 1, Vec::new);
        }
        let found =
            self.by_key[index].iter().find(|id| self.groups[**id as usize].excluded == excluded);
        if let Some(id) = found {
            return *id;
        }
        let id = self.groups.insert(Group {
            key,
            excluded,
            classes: [List::default(); CLASSES],
            waiting: 0,
            tickets: 0,
        }) as u32;
        self.by_key[index].push(id);
        id
    }

    /// The groups that have somebody waiting.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().map(|(_, group)| group).filter(|group| group.waiting > 0)
    }

    /// The first of the waiters with this key that may use this source.
    pub(crate) fn first_for(&self, key: u32, source: usize) -> Option<u32> {
        let groups = self.by_key.get(key as usize)?;
        let usable = groups.iter().map(|id| &self.groups[*id as usize]);
        self.first_of(usable.filter(|group| group.may_use(source)))
    }

    /// The first of the waiters with any other key that may use this source.
    pub(crate) fn first_of_other_keys(&self, key: u32, source: usize) -> Option<u32> {
        self.first_of(self.groups().filter(|group| group.key != key && group.may_use(source)))
    }

    fn first_of<'a>(&self, groups: impl Iterator<Item = &'a Group>) -> Option<u32> {
        let mut first: Option<(Instant, u64, u32)> = None;
        for group in groups.filter(|group| group.waiting > 0) {
            for list in group.classes.iter().filter(|list| list.head != NONE) {
                let head = &self.waiters[list.head as usize];
                let candidate = (head.rank, head.seq, list.head);
                if first.is_none_or(|first| candidate < first) {
                    first = Some(candidate);
                }
            }
        }
        first.map(|(_, _, id)| id)
    }

    /// The first of the waiters that may use this source and whose key has something.
    pub(crate) fn first_with(&self, source: usize, has: impl Fn(u32) -> bool) -> Option<u32> {
        self.first_of(self.groups().filter(|group| group.may_use(source) && has(group.key)))
    }

    /// When a waiter has its turn: the smaller goes first.
    pub(crate) fn turn(&self, id: u32) -> (Instant, u64) {
        let waiter = &self.waiters[id as usize];
        (waiter.rank, waiter.seq)
    }

    /// Whether a key has a ticket in any state.
    pub(crate) fn is_waited_for(&self, key: u32) -> bool {
        let groups = self.by_key.get(key as usize);
        groups.is_some_and(|ids| ids.iter().any(|id| self.groups[*id as usize].tickets > 0))
    }

    pub(crate) fn waiter(&self, id: u32) -> &Waiter<L> {
        &self.waiters[id as usize]
    }

    pub(crate) fn key_of(&self, id: u32) -> u32 {
        self.groups[self.waiters[id as usize].group as usize].key
    }

    pub(crate) fn excluded_of(&self, id: u32) -> u64 {
        self.groups[self.waiters[id as usize].group as usize].excluded
    }

    /// Hands `live` to a waiter; the waker must be woken once the lock is free.
    pub(crate) fn offer(&mut self, id: u32, live: L, now: Instant) -> Option<Waker> {
        self.unlist(id);
        let waiter = &mut self.waiters[id as usize];
        waiter.state = WaiterState::Offered(live, now);
        let waker = waiter.waker.take();
        self.offers.push_back(&mut self.waiters, id);
        waker
    }

    /// Ends the wait of `id` with an error.
    pub(crate) fn fail(&mut self, id: u32, error: GetError) -> Option<Waker> {
        self.unlist(id);
        self.unwatch(id);
        let waiter = &mut self.waiters[id as usize];
        waiter.state = WaiterState::Failed(error);
        waiter.waker.take()
    }

    /// Ends a ticket and gives what its state held.
    pub(crate) fn remove(&mut self, id: u32) -> WaiterState<L> {
        self.unlist(id);
        self.unwatch(id);
        let waiter = self.waiters.remove(id as usize);
        self.health -= u32::from(waiter.class == Priority::Health as u8);
        let group = &mut self.groups[waiter.group as usize];
        group.tickets -= 1;
        // the plain group of a key is kept: it will be wanted again at once
        if group.tickets == 0 && group.excluded != 0 {
            let group = self.groups.remove(waiter.group as usize);
            self.by_key[group.key as usize].retain(|id| *id != waiter.group);
        }
        waiter.state
    }

    /// Forgets the group of a key that is gone.
    pub(crate) fn forget_key(&mut self, key: u32) {
        if let Some(groups) = self.by_key.get_mut(key as usize) {
            for id in groups.drain(..) {
                self.groups.remove(id as usize);
            }
        }
    }

    /// A poll: the waker may have changed, and an away waiter is back.
    pub(crate) fn polled(&mut self, id: u32, waker: &Waker) {
        let waiter = &mut self.waiters[id as usize];
        match &mut waiter.waker {
            Some(current) => current.clone_from(waker),
            None => waiter.waker = Some(waker.clone()),
        }
        if matches!(waiter.state, WaiterState::Away) {
            self.relist(id);
        }
    }

    /// Puts a waiter back at its old place.
    pub(crate) fn relist(&mut self, id: u32) {
        let waiter = &mut self.waiters[id as usize];
        waiter.state = WaiterState::Waiting;
        let (seq, class) = (waiter.seq, usize::from(waiter.class));
        let group = &mut self.groups[waiter.group as usize];
        let list = &mut group.classes[class];
        let next = list.iter(&self.waiters).find(|id| self.waiters[*id as usize].seq > seq);
        list.insert_before(&mut self.waiters, id, next.unwrap_or(NONE));
        group.waiting += 1;
        self.waiting += 1;
    }

    /// Takes back what a waiter was offered; it is `Away` afterwards, or waits
    /// again at its old place if `keep_place`.
    pub(crate) fn take_back(&mut self, id: u32, keep_place: bool) -> Option<L> {
        if !matches!(self.waiters[id as usize].state, WaiterState::Offered(..)) {
            return None;
        }
        self.unlist(id);
        let state = std::mem::replace(&mut self.waiters[id as usize].state, WaiterState::Away);
        if keep_place {
            self.relist(id);
        }
        match state {
            WaiterState::Offered(live, _) => Some(live),
            _ => None,
        }
    }

    /// The longest outstanding offer and when it was made.
    pub(crate) fn oldest_offer(&self) -> Option<(u32, Instant)> {
        let id = self.offers.head;
        match &self.waiters.get(id as usize)?.state {
            WaiterState::Offered(_, at) => Some((id, *at)),
            _ => None,
        }
    }

    /// The next deadline of those that wait.
    pub(crate) fn next_deadline(&self) -> Option<(Instant, u32)> {
        let listed = self.waiters.get(self.deadlines.head as usize);
        let listed = listed.map(|waiter| (waiter.deadline, self.deadlines.head));
        let own = self.own_deadlines.first().copied();
        match (listed, own) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// How many waiters come before this one.
    pub(crate) fn ahead_of(&self, id: u32) -> u32 {
        let me = &self.waiters[id as usize];
        let rank = (me.rank, me.seq);
        let before = self.waiters.iter().filter(|(_, other)| {
            matches!(other.state, WaiterState::Waiting) && (other.rank, other.seq) < rank
        });
        before.count() as u32
    }

    /// Every ticket.
    pub(crate) fn ids(&self) -> Vec<u32> {
        self.waiters.iter().map(|(id, _)| id as u32).collect()
    }

    /// Leaves the list that the waiter's state says it is in.
    fn unlist(&mut self, id: u32) {
        let waiter = &self.waiters[id as usize];
        match waiter.state {
            WaiterState::Waiting => {
                let group = &mut self.groups[waiter.group as usize];
                let class = usize::from(waiter.class);
                group.waiting -= 1;
                self.waiting -= 1;
                group.classes[class].remove(&mut self.waiters, id);
            }
            WaiterState::Offered(..) => self.offers.remove(&mut self.waiters, id),
            WaiterState::Away | WaiterState::Failed(_) => {}
        }
    }

    /// Stops watching the deadline of `id`. Done early for a waiter that has been
    /// handed something in time; it is judged again if that is taken back.
    pub(crate) fn unwatch(&mut self, id: u32) {
        let waiter = &mut self.waiters[id as usize];
        if std::mem::take(&mut waiter.watched) {
            if waiter.default_deadline {
                self.deadlines.remove(&mut self.waiters, id);
            } else {
                self.own_deadlines.remove(&(waiter.deadline, id));
            }
        }
    }
}
