//! The types of one connection's record: what travels with it from hand to hand,
//! where it is and how far in its life, and what is to be done for it once the
//! pool's lock is free. No behaviour; that is in `state`, `returns` and `opening`.

use std::task::Waker;

use crate::budget::Lease;
use crate::clock::Instant;
use crate::connector::{Connector, Killer};
use crate::list::{Link, Linked};
use crate::lost::Lost;
use crate::observer::Event;
use crate::reason::Discard;
use crate::source::Step;

/// In real time one wait and one use in so many is timed: two readings of the
/// precise clock would double the cost of a checkout. Under virtual time all are.
pub(crate) const TIMED: u64 = 16;

/// A connection as it travels between the stock and its users: boxed once, so
/// that handing it on moves a pointer. What a return looks at is copied here, so
/// that a connection can go from hand to hand without its [`Entry`]. Aligned, so
/// that neighbours in use on different cores share no cache line.
#[repr(align(64))]
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
    /// When it was last handed to a waiter.
    pub(crate) handed_at: Instant,
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
    pub(crate) lost: Option<Lost>,
    pub(crate) lease: Option<Lease>,
    /// After closing, the slot and the lease are used to open this key.
    pub(crate) reopen: Option<u32>,
    /// Its lease counts no more: nothing may be opened with it.
    pub(crate) disowned: bool,
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
    pub(crate) waker: Option<Waker>,
    pub(crate) live: Box<Live<C>>,
}

/// How a connection comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Clean,
    Reset,
    Discard(Discard),
}
