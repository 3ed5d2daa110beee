//! The count budget of a fleet, as a pool sees it. Nothing here waits: leases
//! that are missing are asked for by the member's own thread.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay::{Ask, Clock, CountBudget, Grant, Holder, Instant, Standing};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::account::{Account, Link, Todo};
use crate::settings::OnLoss;

/// A member's share in how many connections may be open to one backend. Give it
/// to every pool in this process that uses the backend.
pub struct FleetCount {
    account: Mutex<Account>,
    holders: Mutex<Vec<Holder>>,
    base: Instant,
    /// Nanoseconds after `base` until which connections may be handed out without
    /// looking at the account.
    good_until: AtomicU64,
    fences: bool,
    pub(crate) poke: Notify,
    pub(crate) clock: Clock,
}

impl FleetCount {
    pub(crate) fn new(account: Account, on_loss: OnLoss, clock: Clock) -> Self {
        Self {
            base: clock.now(),
            account: Mutex::new(account),
            holders: Mutex::new(Vec::new()),
            good_until: AtomicU64::new(0),
            fences: on_loss == OnLoss::Fence,
            poke: Notify::new(),
            clock,
        }
    }

    /// Looks at the account or changes it, then does what follows from that.
    pub(crate) fn with<R>(&self, change: impl FnOnce(&mut Account, Instant) -> R) -> R {
        let now = self.clock.now();
        let mut account = self.account.lock();
        let result = change(&mut account, now);
        let good = account.good_until(now).map_or(0, |until| self.nanos(until));
        self.good_until.store(good, Ordering::Release);
        result
    }

    /// Kills, disowns and wakes as the account says.
    pub(crate) fn carry_out(&self, todo: Todo) {
        let holders = self.holders.lock().clone();
        if todo.revoke {
            holders.iter().for_each(Holder::revoke);
        }
        if let Some(mut most) = todo.keep {
            for holder in &holders {
                most = most.saturating_sub(holder.keep(most));
            }
        }
        if todo.wake || todo.revoke || todo.keep.is_some() {
            self.holders.lock().retain(Holder::wake);
        }
    }

    /// Where the member is with the keeper.
    pub fn link(&self) -> Link {
        self.account.lock().link
    }

    /// Leases that pools of this process have.
    pub fn held(&self) -> u32 {
        self.account.lock().taken()
    }

    fn nanos(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.base).as_nanos() as u64
    }
}

impl std::fmt::Debug for FleetCount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let account = self.account.lock();
        f.debug_struct("FleetCount")
            .field("member", account.member())
            .field("link", &account.link)
            .field("held", &account.taken())
            .finish_non_exhaustive()
    }
}

impl CountBudget for FleetCount {
    fn take(&self, now: Instant, ask: Ask) -> Grant {
        let ((leases, soon), epoch) = self.with(|account, _| {
            let taken = account.take(now, ask);
            (taken, account.life)
        });
        if soon {
            self.poke.notify_one();
        }
        Grant { leases, epoch }
    }

    fn give_back(&self, back: Grant) {
        if self.with(|account, _| account.give_back(back.leases, back.epoch)) {
            self.poke.notify_one();
        }
    }

    fn watch(&self, holder: Holder) {
        self.holders.lock().push(holder);
    }

    fn needs_killer(&self) -> bool {
        self.fences
    }

    #[inline]
    fn standing(&self, now: Instant) -> Standing {
        if self.nanos(now) < self.good_until.load(Ordering::Acquire) {
            return Standing::Good;
        }
        self.account.lock().standing(now)
    }

    fn room(&self, now: Instant) -> u32 {
        self.account.lock().room(now)
    }

    fn coming_back(&self, leases: Grant) {
        self.account.lock().coming_back(leases.leases, leases.epoch);
    }

    fn excess(&self) -> u32 {
        self.account.lock().excess()
    }

    fn refused(&self, _now: Instant) {
        if self.with(|account, _| account.refused()) {
            self.poke.notify_one();
        }
    }
}
