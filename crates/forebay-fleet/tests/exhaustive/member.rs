//! A member in the model: the rules of `src/account.rs` under `on_loss: fence`,
//! on integer clocks. What corresponds to what:
//!
//! | here | there |
//! |---|---|
//! | `open + closing` | `taken`: a lease is used until the backend has let go |
//! | `may_open` | `take`: standing good, below `cap` |
//! | `tick` | `tick`: lapsed at `soft`, killed at `hard`, in doubt after a sleep |
//! | `compose` | `compose`: keeps its spare leases if it asks for more, else gives them back |
//! | `hear`, `lost` | `answered`, `lost` |
//! | `Link` | `Link`, without `Left` |
//!
//! What the account decides by demand, heartbeat or jitter (when to report, whether
//! to ask for more, when to close) is left open here: the model tries everything.
//! A kill reaches the backend at once; a close by and by. One report
//! a tick is enough; a life begins with a join.

use super::model::{DOUBT, HARD, Plant, SOFT};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Body {
    Runs,
    /// Stopped: its clock goes on, it does nothing, its connections stay.
    Frozen,
    /// Gone, its connections closed by the kernel.
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Link {
    Never,
    Current,
    Doubt,
    Lapsed,
}

/// What the keeper answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Heard {
    Stale,
    Reaped,
    Booked { held: u8, recall: u8 },
}

/// A report that has not been answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    pub(crate) seq: u8,
    pub(crate) at: u8,
    /// When it is taken for lost.
    pub(crate) until: u8,
    pub(crate) held: u8,
    /// An answer that has arrived and was not read yet.
    pub(crate) answer: Option<Heard>,
}

/// A report on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Message {
    pub(crate) life: u8,
    pub(crate) seq: u8,
    pub(crate) held: u8,
    pub(crate) want: u8,
    pub(crate) elapsed: Option<u8>,
    /// For the fault that sends changes instead of holdings.
    pub(crate) change: i8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Member {
    pub(crate) body: Body,
    pub(crate) life: u8,
    /// Its own clock.
    pub(crate) clock: u8,
    pub(crate) link: Link,
    pub(crate) seq: u8,
    pub(crate) booked: u8,
    pub(crate) recall: u8,
    /// Connections as the backend counts them: open here, and closed here only.
    pub(crate) open: u8,
    pub(crate) closing: u8,
    pub(crate) call: Option<Call>,
    /// When it last reported: once a tick is enough.
    pub(crate) reported: Option<u8>,
    /// When its last answered report was sent.
    pub(crate) renewed: Option<u8>,
    pub(crate) doubt_until: Option<u8>,
    pub(crate) killed: bool,
}

impl Member {
    pub(crate) fn new() -> Self {
        Self {
            body: Body::Runs,
            life: 1,
            clock: 0,
            link: Link::Never,
            seq: 0,
            booked: 0,
            recall: 0,
            open: 0,
            closing: 0,
            call: None,
            reported: None,
            renewed: None,
            doubt_until: None,
            killed: false,
        }
    }

    /// A new life without leases.
    pub(crate) fn reborn(&self) -> Self {
        Self { life: self.life + 1, clock: self.clock, reported: self.reported, ..Self::new() }
    }

    pub(crate) fn dead(&self) -> Self {
        Self { body: Body::Dead, life: self.life, clock: self.clock, ..Self::new() }
    }

    /// What the backend counts.
    pub(crate) fn at_backend(&self) -> u8 {
        self.open + self.closing
    }

    /// Leases in use, by its own count.
    pub(crate) fn taken(&self, plant: Plant) -> u8 {
        match plant {
            Plant::ReleaseAtClose => self.open,
            _ => self.open + self.closing,
        }
    }

    fn is_past(&self, span: u8) -> bool {
        self.renewed.is_some_and(|at| self.clock >= at + span)
    }

    /// Slept past its fence and could not act yet: what it holds is the documented
    /// overshoot.
    pub(crate) fn overslept(&self) -> bool {
        (self.body == Body::Frozen || self.link == Link::Doubt) && self.is_past(HARD)
    }

    pub(crate) fn may_open(&self, plant: Plant) -> bool {
        let fenced = plant != Plant::NoFence && self.is_past(SOFT);
        let usable = self.booked.saturating_sub(self.recall);
        let cap = self.call.map_or(usable, |call| usable.min(call.held));
        self.link == Link::Current && !fenced && self.taken(plant) < cap
    }

    /// Brings it up to its clock, as its thread does whenever something is due.
    pub(crate) fn tick(&mut self, plant: Plant) {
        if self.body != Body::Runs {
            return;
        }
        if self.call.is_some_and(|call| self.clock >= call.until) {
            self.lost();
        }
        if plant == Plant::NoFence {
            return;
        }
        if self.link == Link::Current && self.is_past(SOFT) {
            if self.is_past(HARD) {
                self.link = Link::Doubt;
                self.doubt_until = Some(self.clock + DOUBT);
                self.call = None;
            } else {
                self.link = Link::Lapsed;
            }
        }
        if self.link == Link::Doubt && self.doubt_until.is_some_and(|until| self.clock >= until) {
            self.link = Link::Lapsed;
            self.doubt_until = None;
        }
        if self.link == Link::Lapsed && self.is_past(HARD) && !self.killed {
            self.killed = true;
            (self.open, self.closing) = (0, 0);
        }
    }

    pub(crate) fn compose(&mut self, ask: bool, limit: u8, plant: Plant) -> Message {
        self.seq += 1;
        let taken = self.taken(plant);
        let lent = matches!(self.link, Link::Current | Link::Doubt);
        let held = match (lent, ask) {
            // what is asked back is not kept for the sake of a wish
            (true, true) => self.booked.saturating_sub(self.recall).max(taken).min(self.booked),
            (true, false) => taken.min(self.booked),
            (false, _) => taken,
        };
        let (held, want) = match self.seq {
            1 if plant != Plant::Redeclare => (0, 0),
            _ if ask => (held, limit),
            _ => (held, held),
        };
        let change = held as i8 - self.booked as i8;
        self.call =
            Some(Call { seq: self.seq, at: self.clock, until: self.clock + 1, held, answer: None });
        self.reported = Some(self.clock);
        let elapsed = self.renewed.map(|at| self.clock - at);
        Message { life: self.life, seq: self.seq, held, want, elapsed, change }
    }

    /// Reads the answer that has arrived.
    pub(crate) fn hear(&mut self, plant: Plant) {
        let Some(Call { at, held, answer: Some(answer), .. }) = self.call.take() else {
            return;
        };
        match answer {
            Heard::Stale => self.booked = self.booked.min(held),
            Heard::Reaped if plant == Plant::Redeclare => {
                // keeps its connections, and says so under its new name
                *self = Self { open: self.open, closing: self.closing, ..self.reborn() };
            }
            Heard::Reaped => *self = self.reborn(),
            Heard::Booked { held, recall } => {
                self.link = Link::Current;
                self.killed = false;
                self.doubt_until = None;
                self.renewed = Some(at);
                (self.booked, self.recall) = (held, recall);
            }
        }
    }

    /// Gives up waiting for an answer. The keeper may have booked the report.
    pub(crate) fn lost(&mut self) {
        let Some(call) = self.call.take() else { return };
        self.booked = self.booked.min(call.held);
        if self.link == Link::Never && call.seq == 1 {
            self.seq = 0;
        }
    }
}
