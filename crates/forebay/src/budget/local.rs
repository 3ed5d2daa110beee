//! The keepers for one process: budgets that all pools holding a clone share.

use std::sync::Arc;

use parking_lot::Mutex;

use super::gcra::Gcra;
use super::{Ask, BudgetError, CountBudget, Grant, Holder, Permit, Rate, RateBudget};
use crate::clock::{BoxFuture, Instant};

/// A rate budget for the pools of one process.
///
/// ```
/// use forebay::{LocalRate, Rate};
/// let budget = LocalRate::shared(Rate::new(100, 1000)?);
/// // give `budget.clone()` to every pool in front of the same backend
/// # let _ = budget;
/// # Ok::<(), forebay::InvalidRate>(())
/// ```
#[derive(Debug)]
pub struct LocalRate(Mutex<Gcra>);

impl LocalRate {
    /// A full bucket, ready to be shared.
    pub fn shared(rate: Rate) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Gcra::new(rate))))
    }
}

impl RateBudget for LocalRate {
    fn reserve(&self, now: Instant, _more: u32) -> BoxFuture<'_, Result<Permit, BudgetError>> {
        let go_at = self.0.lock().reserve(now);
        Box::pin(std::future::ready(Ok(Permit::at(go_at))))
    }

    fn refused(&self, now: Instant) {
        self.0.lock().refused(now);
    }
}

/// A count budget for the pools of one process. Leases go to whoever asks first:
/// give pools that share one targets that together stay below the limit, or one of
/// them may hold it all in stock.
///
/// ```
/// use forebay::LocalCount;
/// let budget = LocalCount::shared(10_000);
/// assert_eq!(budget.held(), 0);
/// ```
#[derive(Debug)]
pub struct LocalCount(Mutex<Count>);

#[derive(Debug)]
struct Count {
    limit: u32,
    held: u32,
    /// Of those held, the ones whose connections are being closed.
    coming_back: u32,
    watchers: Vec<Holder>,
}

impl LocalCount {
    /// At most `limit` connections open, over all pools that share it.
    pub fn shared(limit: u32) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Count { limit, held: 0, coming_back: 0, watchers: Vec::new() })))
    }

    /// Leases held now.
    pub fn held(&self) -> u32 {
        self.0.lock().held
    }

    /// Changes the limit. Lowered: nothing is granted until enough has come back,
    /// and idle connections over the limit are closed.
    pub fn set_limit(&self, limit: u32) {
        let mut count = self.0.lock();
        count.limit = limit;
        count.wake();
    }
}

impl Count {
    /// Wakes every pool; the first to be woken moves to the back, so that no
    /// pool is always the last to ask.
    fn wake(&mut self) {
        self.watchers.retain(Holder::wake);
        if !self.watchers.is_empty() {
            self.watchers.rotate_left(1);
        }
    }
}

impl CountBudget for LocalCount {
    fn take(&self, _now: Instant, ask: Ask) -> Grant {
        let mut count = self.0.lock();
        let taken = ask.want.min(count.limit.saturating_sub(count.held));
        count.held += taken;
        Grant { leases: taken, epoch: 0 }
    }

    fn give_back(&self, back: Grant) {
        let mut count = self.0.lock();
        count.held -= back.leases;
        count.coming_back = count.coming_back.saturating_sub(back.leases);
        count.wake();
    }

    fn watch(&self, holder: Holder) {
        self.0.lock().watchers.push(holder);
    }

    fn coming_back(&self, leases: Grant) {
        self.0.lock().coming_back += leases.leases;
    }

    fn excess(&self) -> u32 {
        let count = self.0.lock();
        count.held.saturating_sub(count.coming_back).saturating_sub(count.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_no_more_than_the_limit_and_gives_back_exactly_what_was_taken() {
        let now = crate::clock::Clock::tokio().now();
        let budget = LocalCount::shared(3);
        let take = |want| budget.take(now, Ask::new(want)).leases;
        let one = Grant { leases: 1, epoch: 0 };
        assert_eq!(take(2), 2);
        assert_eq!(take(2), 1);
        budget.coming_back(one);
        budget.give_back(one);
        assert_eq!((budget.held(), take(9)), (2, 1));
        budget.set_limit(1);
        assert_eq!((budget.excess(), take(1)), (2, 0));
        budget.coming_back(one);
        assert_eq!((budget.excess(), budget.held()), (1, 3));
    }
}
