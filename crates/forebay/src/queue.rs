//! The waiters of a pool, in order. Waiters that may use the same connections
//! (one key, one set of excluded sources) form a group, so a freed connection is
//! offered by looking at the heads of the groups that may use it and at no other
//! waiter. What a waiter is handed lies on its desk; here is only its place.
//!
//! Order: every class starts `priority_age` behind the next higher one, so a
//! waiter's rank is fixed when it arrives and lower classes still age past
//! higher ones; health checks go before all. A ticket is kept until the checkout ends: a waiter that did not
//! claim what it was handed, or found it dead, gets its old place back.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Index, IndexMut};
use std::task::Waker;
use std::time::Duration;

use slab::Slab;

use crate::clock::Instant;
use crate::keys::DEFAULT_KEY;

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

impl Priority {
    const ALL: [Self; CLASSES] = [Self::Normal, Self::Health, Self::High, Self::Low];

    /// Its number among the classes of a group; normal work comes first in memory.
    fn class(self) -> usize {
        match self {
            Self::Normal => 0,
            Self::Health => 1,
            Self::High => 2,
            Self::Low => 3,
        }
    }
}

const CLASSES: usize = 4;

/// Most health checks waiting at once.
pub(crate) const HEALTH_WAITERS_MAX: u32 = 8;

/// What a checkout asks for. Kept by the checkout, so that it can have its place back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticket {
    pub(crate) key: u32,
    pub(crate) excluded: u64,
    pub(crate) priority: Priority,
    pub(crate) arrived: Instant,
    pub(crate) deadline: Instant,
    pub(crate) default_deadline: bool,
}

/// One waiter's place.
#[derive(Debug)]
pub(crate) struct Waiter {
    /// Whom to wake, unless a later waker lies on its desk.
    pub(crate) waker: Option<Waker>,
    pub(crate) seq: u64,
    pub(crate) desk: u32,
    /// The deadline is the pool's default, so it is in the order of arrival.
    default_deadline: bool,
    pub(crate) arrived: Instant,
    pub(crate) deadline: Instant,
}

/// Waiters that may use the same connections.
#[repr(C)]
pub(crate) struct Group {
    pub(crate) waiting: u32,
    pub(crate) key: u32,
    classes: [VecDeque<Waiter>; CLASSES],
    pub(crate) excluded: u64,
}

impl Group {
    fn new(key: u32, excluded: u64) -> Self {
        Self { waiting: 0, key, excluded, classes: [const { VecDeque::new() }; CLASSES] }
    }

    /// Whether these waiters may use the source of this number.
    pub(crate) fn may_use(&self, source: usize) -> bool {
        self.excluded & (1 << source) == 0
    }
}

/// The groups by number. Number 0 is that of the default key with nothing excluded,
/// in most pools the only one: it is always there, and next to the queue's figures.
#[repr(C)]
struct Groups {
    plain: Group,
    others: Slab<Group>,
}

const PLAIN: u32 = 0;

impl Groups {
    fn iter(&self) -> impl Iterator<Item = (u32, &Group)> {
        let others = self.others.iter().map(|(index, group)| (index as u32 + 1, group));
        std::iter::once((PLAIN, &self.plain)).chain(others)
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Group> {
        let others = self.others.iter_mut().map(|(_, group)| group);
        std::iter::once(&mut self.plain).chain(others)
    }

    fn insert(&mut self, group: Group) -> u32 {
        self.others.insert(group) as u32 + 1
    }

    /// Forgets an empty group; the plain one stays.
    fn remove(&mut self, id: u32) {
        if id != PLAIN {
            self.others.remove(id as usize - 1);
        }
    }
}

impl Index<u32> for Groups {
    type Output = Group;

    #[inline]
    fn index(&self, id: u32) -> &Group {
        if id == PLAIN { &self.plain } else { &self.others[id as usize - 1] }
    }
}

impl IndexMut<u32> for Groups {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut Group {
        if id == PLAIN { &mut self.plain } else { &mut self.others[id as usize - 1] }
    }
}

/// When a waiter has its turn: the smaller goes first. Health checks do not age
/// and are not overtaken.
pub(crate) type Rank = (bool, Instant, u64);

/// The head of one class of one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spot {
    group: u32,
    class: u8,
}

/// All waiters of one pool.
#[repr(C)]
pub(crate) struct Queue {
    waiting: u32,
    health: u32,
    seq: u64,
    /// The desk that was left last: whoever gives a connection back in a crowd
    /// mostly asks for the next one at once.
    free_desk: Option<u32>,
    groups: Groups,
    /// The other desks that nobody sits at.
    free_desks: Vec<u32>,
    desks: u32,
    by_key: Vec<Vec<u32>>,
    own_deadlines: BTreeMap<(Instant, u64), Spot>,
    priority_age: Duration,
}

impl Queue {
    pub(crate) fn new(priority_age: Duration) -> Self {
        Self {
            waiting: 0,
            health: 0,
            seq: 0,
            free_desk: None,
            groups: Groups { plain: Group::new(DEFAULT_KEY, 0), others: Slab::new() },
            free_desks: Vec::new(),
            desks: 0,
            by_key: vec![vec![PLAIN]],
            own_deadlines: BTreeMap::new(),
            priority_age,
        }
    }

    /// Waiters that have a place.
    #[inline]
    pub(crate) fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Desks made so far.
    pub(crate) fn desks(&self) -> u32 {
        self.desks
    }

    /// Whether one more waiter of this priority may join.
    pub(crate) fn has_room(&self, priority: Priority, max_waiters: u32) -> bool {
        match priority {
            Priority::Health => self.health < HEALTH_WAITERS_MAX,
            _ => self.waiting - self.health < max_waiters,
        }
    }

    /// Takes a place behind all others of the class. Gives the desk and the
    /// ticket's number.
    #[inline]
    pub(crate) fn join(&mut self, ticket: &Ticket, waker: &mut Option<Waker>) -> (u32, u64) {
        self.seq += 1;
        let (seq, desk) = (self.seq, self.take_desk());
        let group = self.group(ticket.key, ticket.excluded);
        let class = ticket.priority.class();
        let waiter = Waiter { waker: waker.take(), ..Waiter::new(ticket, seq, desk) };
        self.groups[group].classes[class].push_back(waiter);
        self.joined(ticket, seq, Spot { group, class: class as u8 });
        (desk, seq)
    }

    /// Takes the old place again. The ticket has kept its desk.
    pub(crate) fn rejoin(&mut self, ticket: &Ticket, seq: u64, desk: u32) {
        // it is no longer where its deadline would be in order
        let ticket = &Ticket { default_deadline: false, ..*ticket };
        let group = self.group(ticket.key, ticket.excluded);
        let class = ticket.priority.class();
        let line = &mut self.groups[group].classes[class];
        let index = line.partition_point(|waiter| waiter.seq < seq);
        line.insert(index, Waiter::new(ticket, seq, desk));
        self.joined(ticket, seq, Spot { group, class: class as u8 });
    }

    #[inline]
    fn joined(&mut self, ticket: &Ticket, seq: u64, spot: Spot) {
        self.groups[spot.group].waiting += 1;
        self.waiting += 1;
        self.health += u32::from(ticket.priority == Priority::Health);
        if !ticket.default_deadline {
            self.own_deadlines.insert((ticket.deadline, seq), spot);
        }
    }

    #[inline]
    fn take_desk(&mut self) -> u32 {
        self.free_desk.take().or_else(|| self.free_desks.pop()).unwrap_or_else(|| {
            self.desks += 1;
            self.desks - 1
        })
    }

    /// A checkout has left its desk.
    #[inline]
    pub(crate) fn free_desk(&mut self, desk: u32) {
        if let Some(other) = self.free_desk.replace(desk) {
            self.free_desks.push(other);
        }
    }

    #[inline]
    fn group(&mut self, key: u32, excluded: u64) -> u32 {
        if key == DEFAULT_KEY && excluded == 0 {
            return PLAIN;
        }
        self.other_group(key, excluded)
    }

    fn other_group(&mut self, key: u32, excluded: u64) -> u32 {
        let index = key as usize;
        if self.by_key.len() <= index {
            self.by_key.resize_with(index + 1, Vec::new);
        }
        let found = self.by_key[index].iter().find(|id| self.groups[**id].excluded == excluded);
        if let Some(id) = found {
            return *id;
        }
        let id = self.groups.insert(Group::new(key, excluded));
        self.by_key[index].push(id);
        id
    }

    /// The groups that have somebody waiting.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().map(|(_, group)| group).filter(|group| group.waiting > 0)
    }

    /// The first of the waiters with this key that may use this source.
    #[inline]
    pub(crate) fn first_for(&self, key: u32, source: usize) -> Option<Spot> {
        let plain = &self.groups.plain;
        if key == DEFAULT_KEY && plain.classes[0].len() == self.waiting as usize {
            // the usual case: nothing but normal work waiting, and all for the same
            return (self.waiting > 0).then_some(Spot { group: PLAIN, class: 0 });
        }
        let groups = self.by_key.get(key as usize)?;
        self.first_of(groups.iter().copied().filter(|id| self.groups[*id].may_use(source)))
    }

    /// The first of the waiters with any other key that may use this source.
    pub(crate) fn first_of_other_keys(&self, key: u32, source: usize) -> Option<Spot> {
        self.first_with(source, |other| other != key)
    }

    /// The first of the waiters that may use this source and whose key has something.
    pub(crate) fn first_with(&self, source: usize, has: impl Fn(u32) -> bool) -> Option<Spot> {
        let groups = self.groups.iter().filter(|(_, g)| g.may_use(source) && has(g.key));
        self.first_of(groups.map(|(id, _)| id))
    }

    /// Whether somebody waits for a key.
    pub(crate) fn is_waited_for(&self, key: u32) -> bool {
        let groups = self.by_key.get(key as usize);
        groups.is_some_and(|ids| ids.iter().any(|id| self.groups[*id].waiting > 0))
    }

    fn first_of(&self, groups: impl Iterator<Item = u32>) -> Option<Spot> {
        let heads = groups.flat_map(|group| {
            let lines = self.groups[group].classes.iter().enumerate();
            lines
                .filter(|(_, line)| !line.is_empty())
                .map(move |(class, _)| Spot { group, class: class as u8 })
        });
        heads.min_by_key(|spot| self.rank(*spot))
    }

    /// The order of the head of a class among all heads.
    pub(crate) fn rank(&self, spot: Spot) -> Rank {
        let head = self.head(spot);
        self.rank_of(usize::from(spot.class), head.arrived, head.seq)
    }

    fn rank_of(&self, class: usize, arrived: Instant, seq: u64) -> Rank {
        let priority = Priority::ALL[class];
        (priority != Priority::Health, arrived + self.priority_age * priority as u32, seq)
    }

    /// The waiter at a spot. Spots are found for heads that exist.
    pub(crate) fn head(&self, spot: Spot) -> &Waiter {
        &self.groups[spot.group].classes[usize::from(spot.class)][0]
    }

    pub(crate) fn key_of(&self, spot: Spot) -> u32 {
        self.groups[spot.group].key
    }

    /// Takes the waiter at a spot off the queue.
    #[inline]
    pub(crate) fn pop(&mut self, spot: Spot) -> Option<Waiter> {
        let group = &mut self.groups[spot.group];
        let waiter = group.classes[usize::from(spot.class)].pop_front()?;
        self.left(spot, &waiter);
        Some(waiter)
    }

    /// Takes a waiter off the queue wherever it stands, if it has a place.
    pub(crate) fn leave(&mut self, ticket: &Ticket, seq: u64) -> Option<Waiter> {
        let groups = self.by_key.get(ticket.key as usize)?;
        let class = ticket.priority.class();
        for group in groups.clone() {
            let found = &mut self.groups[group];
            if found.excluded != ticket.excluded {
                continue;
            }
            let line = &mut found.classes[class];
            let index = line.partition_point(|waiter| waiter.seq < seq);
            if line.get(index).is_some_and(|waiter| waiter.seq == seq)
                && let Some(waiter) = line.remove(index)
            {
                self.left(Spot { group, class: class as u8 }, &waiter);
                return Some(waiter);
            }
        }
        None
    }

    #[inline]
    fn left(&mut self, spot: Spot, waiter: &Waiter) {
        let group = &mut self.groups[spot.group];
        group.waiting -= 1;
        self.waiting -= 1;
        if usize::from(spot.class) == Priority::Health.class() {
            self.health -= 1;
        }
        if !waiter.default_deadline {
            self.own_deadlines.remove(&(waiter.deadline, waiter.seq));
        }
        // the plain group of a key is kept: it will be wanted again at once
        if group.waiting == 0 && group.excluded != 0 {
            let key = group.key as usize;
            self.groups.remove(spot.group);
            self.by_key[key].retain(|id| *id != spot.group);
        }
    }

    /// Forgets the groups of a key that is gone.
    pub(crate) fn forget_key(&mut self, key: u32) {
        if let Some(groups) = self.by_key.get_mut(key as usize) {
            for id in groups.drain(..) {
                self.groups.remove(id);
            }
        }
    }

    /// The next deadline, and whose it is.
    pub(crate) fn next_deadline(&self) -> Option<(Instant, Overdue)> {
        let own = self.own_deadlines.first_key_value().map(|((at, seq), spot)| {
            (*at, Overdue { spot: *spot, seq: *seq, excluded: self.excluded(*spot) })
        });
        // waiters with the default deadline are in its order within their class
        let listed = self.groups.iter().flat_map(|(id, group)| {
            group.classes.iter().enumerate().filter_map(move |(class, line)| {
                let first = line.iter().find(|waiter| waiter.default_deadline)?;
                let spot = Spot { group: id, class: class as u8 };
                let overdue = Overdue { spot, seq: first.seq, excluded: group.excluded };
                Some((first.deadline, overdue))
            })
        });
        listed.chain(own).min_by_key(|(at, overdue)| (*at, overdue.seq))
    }

    fn excluded(&self, spot: Spot) -> u64 {
        self.groups[spot.group].excluded
    }

    /// Takes the waiter whose deadline has come off the queue.
    pub(crate) fn pop_overdue(&mut self, overdue: Overdue) -> Option<Waiter> {
        let Overdue { spot, seq, .. } = overdue;
        let line = &mut self.groups[spot.group].classes[usize::from(spot.class)];
        let index = line.partition_point(|waiter| waiter.seq < seq);
        let waiter = line.remove(index)?;
        self.left(spot, &waiter);
        Some(waiter)
    }

    /// How many waiters come before one that has a place or had one.
    pub(crate) fn ahead_of(&self, class: usize, arrived: Instant, seq: u64) -> u32 {
        let rank = self.rank_of(class, arrived, seq);
        let lines = self.groups().flat_map(|group| group.classes.iter().enumerate());
        let before = lines.flat_map(|(class, line)| {
            let ranks = line.iter().map(move |w| self.rank_of(class, w.arrived, w.seq));
            ranks.filter(|other| *other < rank)
        });
        before.count() as u32
    }

    /// Everybody who waits, in no particular order.
    pub(crate) fn drain(&mut self) -> Vec<Waiter> {
        let mut all = Vec::new();
        for group in self.groups.iter_mut() {
            group.waiting = 0;
            all.extend(group.classes.iter_mut().flat_map(|line| line.drain(..)));
        }
        (self.waiting, self.health) = (0, 0);
        self.own_deadlines.clear();
        all
    }
}

/// A waiter whose deadline comes next.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Overdue {
    spot: Spot,
    seq: u64,
    pub(crate) excluded: u64,
}

impl Overdue {
    pub(crate) fn class(&self) -> usize {
        usize::from(self.spot.class)
    }
}

impl Ticket {
    pub(crate) fn class(&self) -> usize {
        self.priority.class()
    }
}

impl Waiter {
    pub(crate) fn new(ticket: &Ticket, seq: u64, desk: u32) -> Self {
        Self {
            waker: None,
            seq,
            desk,
            default_deadline: ticket.default_deadline,
            arrived: ticket.arrived,
            deadline: ticket.deadline,
        }
    }
}
