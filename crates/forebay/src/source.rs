//! One source inside a pool: its figures, its stocks, and the small decisions
//! that need nothing else.

use std::sync::Arc;

use crate::backoff::Backoff;
use crate::budget::Standing;
use crate::clock::Instant;
use crate::error::Phase;
use crate::list::List;
use crate::need::Figures;
use crate::settings::Settings;
use crate::stats::{SourceStats, SourceTallies};
use crate::throttle::Throttle;

/// Where an open is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Credentials,
    Rate,
    Connect,
}

/// How far one more connection of a source would help a waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fitness {
    /// It can be opened and used as far as anybody knows.
    Sound,
    /// It could be used, but the last open failed or found no lease.
    Usable,
    /// It could not be used now: a cap on use, a ramp or a fence is in the way.
    Barred,
}

pub(crate) struct SourceState {
    pub(crate) name: Arc<str>,
    pub(crate) settings: Settings,
    /// The ready connections by key, the most recently used first.
    pub(crate) stocks: Vec<List<0>>,
    /// Keys that the stock is filled for.
    pub(crate) prefill: Vec<u32>,
    pub(crate) opening: u32,
    pub(crate) ready: u32,
    pub(crate) fresh: u32,
    pub(crate) in_use: u32,
    pub(crate) closing: u32,
    pub(crate) detached: u32,
    /// Closing connections whose slot and lease go to a new open.
    pub(crate) reopening: u32,
    /// Ready connections wanted now: between `min_idle` and `target_ready`.
    pub(crate) target: u32,
    /// `min_idle`.
    pub(crate) floor: u32,
    pub(crate) generation: u64,
    pub(crate) throttle: Option<Throttle>,
    /// It is throttled, or has a cap on use or a count budget: to be looked at
    /// more closely before it is used.
    pub(crate) restricted: bool,
    /// Its idle connections are checked, or its leases recalled: a return is the
    /// driver's business.
    pub(crate) looked_after: bool,
    pub(crate) last_throttled: Option<Instant>,
    pub(crate) backoff: Backoff,
    pub(crate) lease_refused: bool,
    /// The budget wants leases back, and there was nothing idle to give.
    pub(crate) recalled: bool,
    /// What tells its asks of a count budget from those of others.
    pub(crate) asker: u64,
    /// Nothing is filled before this: the staggered start.
    pub(crate) hold_until: Option<Instant>,
    pub(crate) steps: [u32; 3],
    pub(crate) last_failure: Option<String>,
    pub(crate) low: bool,
    /// Idle checks under way.
    pub(crate) checking: u32,
    /// Nothing has been idle for too long before this; `None` if nothing can be.
    pub(crate) trim_at: Option<Instant>,
    /// Running credit of the weighted strategy.
    pub(crate) credit: i64,
    pub(crate) tallies: SourceTallies,
}

impl SourceState {
    pub(crate) fn new(name: &str, settings: Settings, hold_until: Option<Instant>) -> Self {
        Self {
            name: name.into(),
            target: settings.target_ready(),
            floor: settings.min_idle(),
            low: settings.low_watermark() > 0,
            restricted: settings.max_in_use.is_some() || settings.count.is_some(),
            looked_after: settings.idle_check.is_some() || settings.count.is_some(),
            settings,
            stocks: Vec::new(),
            prefill: Vec::new(),
            opening: 0,
            ready: 0,
            fresh: 0,
            in_use: 0,
            closing: 0,
            detached: 0,
            reopening: 0,
            generation: 0,
            throttle: None,
            last_throttled: None,
            backoff: Backoff::default(),
            lease_refused: false,
            recalled: false,
            asker: 0,
            hold_until,
            steps: [0; 3],
            last_failure: None,
            checking: 0,
            trim_at: None,
            credit: 0,
            tallies: SourceTallies::default(),
        }
    }

    /// Connections in every state.
    #[inline]
    pub(crate) fn open(&self) -> u32 {
        self.opening + self.ready + self.in_use + self.closing + self.detached
    }

    /// Benches it, or ends that.
    pub(crate) fn set_throttle(&mut self, throttle: Option<Throttle>) {
        let settings = &self.settings;
        self.restricted =
            throttle.is_some() || settings.max_in_use.is_some() || settings.count.is_some();
        self.throttle = throttle;
    }

    /// Whether one more connection may be handed out at `now`.
    #[inline]
    pub(crate) fn is_usable(&self, now: Instant) -> bool {
        !self.restricted || self.may_be_used(now)
    }

    fn may_be_used(&self, now: Instant) -> bool {
        if let Some(throttle) = &self.throttle
            && self.in_use >= throttle.allowance(now, self.settings.in_use_cap())
        {
            return false;
        }
        if self.settings.max_in_use.is_some_and(|cap| self.in_use >= cap) {
            return false;
        }
        self.standing(now) == Standing::Good
    }

    /// Whether a connection that counts as in use may go to a user at `now`.
    #[inline]
    pub(crate) fn may_pass_on(&self, now: Instant) -> bool {
        !self.restricted || self.may_be_passed_on(now)
    }

    fn may_be_passed_on(&self, now: Instant) -> bool {
        if let Some(throttle) = &self.throttle
            && self.in_use > throttle.allowance(now, self.settings.in_use_cap())
        {
            return false;
        }
        if self.settings.max_in_use.is_some_and(|cap| self.in_use > cap) {
            return false;
        }
        self.standing(now) == Standing::Good
    }

    /// Whether the holder of this source's leases may use them.
    #[inline]
    pub(crate) fn standing(&self, now: Instant) -> Standing {
        self.settings.count.as_ref().map_or(Standing::Good, |count| count.standing(now))
    }

    /// How far one more connection of it would help a waiter.
    pub(crate) fn fitness(&self, now: Instant) -> Fitness {
        if !self.is_usable(now) {
            Fitness::Barred
        } else if self.lease_refused || self.backoff.has_failed() {
            Fitness::Usable
        } else {
            Fitness::Sound
        }
    }

    /// Whether one more could be opened at once.
    pub(crate) fn has_free_slot(&self, now: Instant) -> bool {
        self.fitness(now) == Fitness::Sound && self.open() < self.settings.max_open
    }

    /// How many waiters its free slots and its opens under way can serve.
    pub(crate) fn room_for_waiters(&self) -> u32 {
        let free = self.settings.max_open.saturating_sub(self.open());
        let slots = free + self.opening + self.reopening;
        if self.has_many_stocks() {
            // at the cap on use a stock of the right key still decides whose turn is next
            return slots;
        }
        slots.min(self.settings.in_use_cap().saturating_sub(self.in_use))
    }

    fn has_many_stocks(&self) -> bool {
        self.stocks.len() > 1
    }

    /// How many leases the budget wants back.
    pub(crate) fn excess(&self) -> u32 {
        self.settings.count.as_ref().map_or(0, |count| count.excess())
    }

    /// When a throttled source may be used again; `None` if it may be now.
    pub(crate) fn throttled_until(&self, now: Instant) -> Option<Instant> {
        self.throttle.as_ref().map(Throttle::resume_at).filter(|at| *at > now)
    }

    /// The figures that decide how many connections to open for `waiters`.
    #[inline]
    pub(crate) fn figures(&self, waiters: u32) -> Figures {
        let target = if self.hold_until.is_some() { 0 } else { self.target };
        Figures {
            target,
            waiters,
            // a surplus of one key is of no use to those who wait for another
            fresh: if self.has_many_stocks() { self.fresh.min(target) } else { self.fresh },
            opening: self.opening + self.reopening,
            // a slot that is being reopened is counted as opening, not as closing
            open: self.open(),
            max_open: self.settings.max_open,
            max_opening: self.settings.max_opening,
        }
    }

    /// How many opens will be wanted after those under way, whatever is allowed at once.
    pub(crate) fn still_to_open(&self, waiters: u32) -> u32 {
        let figures = self.figures(waiters);
        let wanted = (figures.target + waiters)
            .saturating_sub(figures.fresh)
            .saturating_sub(figures.opening);
        wanted.min(figures.max_open.saturating_sub(figures.open))
    }

    /// As [`still_to_open`](Self::still_to_open), as far as there are leases for it.
    pub(crate) fn will_open(&self, waiters: u32, now: Instant) -> u32 {
        let leases = self.settings.count.as_ref().map_or(u32::MAX, |count| count.room(now));
        self.still_to_open(waiters).min(leases)
    }

    /// Whether the driver would open something for `waiters` if it looked now.
    #[inline]
    pub(crate) fn wants(&self, now: Instant, waiters: u32) -> bool {
        self.fresh + self.opening < self.target + waiters
            && self.figures(waiters).need() > 0
            && !self.lease_refused
            && self.backoff.wake_at(now).is_none()
    }

    /// How many more opens may start, all caps considered.
    pub(crate) fn room(&self, now: Instant) -> u32 {
        let allowed = self.backoff.allows(now, &self.settings.backoff);
        let limit = allowed.min(self.settings.max_opening);
        limit.saturating_sub(self.opening + self.reopening)
    }

    /// How many more idle checks may start: a quarter of the stock is away at most.
    pub(crate) fn check_room(&self) -> u32 {
        ((self.ready + self.checking) / 4).max(1).saturating_sub(self.checking)
    }

    /// What a waiter of this source is waiting for.
    pub(crate) fn phase(&self, now: Instant) -> Phase {
        if self.throttled_until(now).is_some() {
            Phase::Throttle
        } else if self.steps[Step::Connect as usize] > 0 {
            Phase::Connect
        } else if self.steps[Step::Rate as usize] > 0 {
            Phase::Rate
        } else if self.steps[Step::Credentials as usize] > 0 {
            Phase::Credentials
        } else if self.lease_refused || self.standing(now) != Standing::Good {
            Phase::Lease
        } else if self.open() < self.settings.max_open && self.last_failure.is_some() {
            Phase::Connect
        } else {
            Phase::Queue
        }
    }

    pub(crate) fn stats(&self, now: Instant) -> SourceStats {
        SourceStats {
            name: self.name.clone(),
            opening: self.opening,
            ready: self.ready,
            fresh: self.fresh,
            in_use: self.in_use,
            closing: self.closing,
            detached: self.detached,
            target: self.target,
            low: self.low,
            breaker_open: self.backoff.is_open(&self.settings.backoff),
            lease_refused: self.lease_refused,
            throttled_for: self.throttled_until(now).map(|at| at - now),
            opened: self.tallies.opened,
            wasted: self.tallies.wasted,
            abandoned: self.tallies.abandoned,
            unconfirmed: self.tallies.unconfirmed,
            permits_dropped: self.tallies.permits_dropped,
            throttles: self.tallies.throttles,
            kills: self.tallies.kills,
            failures: self.tallies.failures,
            discards: self.tallies.discards,
        }
    }
}
