//! Budgets: allowances that several pools, or a whole fleet, share. *Count* is
//! how many connections may be open, *rate* how many may be opened a second.
//! This module holds the contract and the keeper for one process; keepers for a
//! fleet implement the same two traits elsewhere.
//!
//! Neither trait is ever called with the pool's lock held for longer than a
//! plain computation, so implementations of the synchronous methods must not
//! block, and must not call back into a pool.

mod gcra;
mod local;

use std::sync::{Arc, Weak};
use std::time::Duration;

pub use local::{LocalCount, LocalRate};

use crate::clock::{BoxFuture, Instant};

/// How long after its instant a rate permit may still be used.
pub const PERMIT_GOOD_FOR: Duration = Duration::from_millis(100);

/// Opens per second with a burst.
///
/// ```
/// let rate = forebay::Rate::new(100, 1000)?;
/// assert_eq!((rate.per_second(), rate.burst()), (100, 1000));
/// assert!(forebay::Rate::new(0, 1).is_err());
/// # Ok::<(), forebay::InvalidRate>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    per_second: u32,
    burst: u32,
}

/// A rate of zero, or a burst of zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a rate of {per_second}/s with burst {burst} never opens anything: both must be at least 1"
)]
pub struct InvalidRate {
    per_second: u32,
    burst: u32,
}

impl Rate {
    /// `per_second` opens a second, and up to `burst` at once after a quiet time.
    ///
    /// # Errors
    /// If either is zero.
    pub fn new(per_second: u32, burst: u32) -> Result<Self, InvalidRate> {
        if per_second == 0 || burst == 0 {
            return Err(InvalidRate { per_second, burst });
        }
        Ok(Self { per_second, burst })
    }

    /// Opens per second.
    pub fn per_second(self) -> u32 {
        self.per_second
    }

    /// The most that may be opened at once.
    pub fn burst(self) -> u32 {
        self.burst
    }

    /// Time between two opens at this rate, rounded up so that the rate is never exceeded.
    fn interval(self) -> Duration {
        Duration::from_nanos(1_000_000_000_u64.div_ceil(u64::from(self.per_second)))
    }
}

/// The right to send one connect between `go_at` and `good_until`.
#[derive(Debug, Clone, Copy)]
pub struct Permit {
    /// Not before this instant.
    pub go_at: Instant,
    /// Not after this one: then the permit is dropped, counted, and another is reserved.
    pub good_until: Instant,
}

impl Permit {
    /// A permit for `go_at`, good for [`PERMIT_GOOD_FOR`].
    pub fn at(go_at: Instant) -> Self {
        Self { go_at, good_until: go_at + PERMIT_GOOD_FOR }
    }
}

/// Why a budget gave nothing.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct BudgetError {
    message: String,
}

impl BudgetError {
    /// An error with a text for the log and for a waiting checkout's error.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}

/// How fast connections may be opened.
pub trait RateBudget: Send + Sync + 'static {
    /// Reserves one permit. Waiting for its instant is the caller's business.
    fn reserve(&self, now: Instant) -> BoxFuture<'_, Result<Permit, BudgetError>>;

    /// The backend refused a connect because of its rate: slow down.
    fn refused(&self, now: Instant) {
        let _ = now;
    }
}

/// What a holder of leases may do at an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Standing {
    /// Open, hand out, keep.
    #[default]
    Good,
    /// Open nothing, hand out nothing, close what is idle and what comes back.
    Fenced,
    /// As fenced, and connections in use are killed.
    Expired,
}

/// How many connections may be open.
pub trait CountBudget: Send + Sync + 'static {
    /// Takes up to `want` leases without waiting and says how many were taken.
    /// `waiters` is the number of checkouts waiting, for keepers that share by demand.
    fn take(&self, now: Instant, want: u32, waiters: u32) -> u32;

    /// Gives back leases whose connections the backend has let go of.
    fn give_back(&self, n: u32);

    /// Asks to be [woken](Wake::wake) whenever leases may have become free, or
    /// [`standing`](Self::standing) or [`excess`](Self::excess) changed.
    fn watch(&self, wake: Wake);

    /// Whether this holder may still use what it holds.
    fn standing(&self, now: Instant) -> Standing {
        let _ = now;
        Standing::Good
    }

    /// Says that the connections of `n` leases are being closed, so that these
    /// leases are on their way. Each is told of once, at the latest when it is given back.
    fn coming_back(&self, n: u32) {
        let _ = n;
    }

    /// How many leases should be given back by closing idle connections, besides
    /// those that are [on their way](Self::coming_back).
    fn excess(&self) -> u32 {
        0
    }

    /// The backend refused a connect because too many are open.
    fn refused(&self, now: Instant) {
        let _ = now;
    }
}

/// Wakes a pool's driver. Holds the pool weakly: a dropped pool is forgotten.
#[derive(Debug, Clone)]
pub struct Wake(Weak<tokio::sync::Notify>);

impl Wake {
    pub(crate) fn new(notify: &Arc<tokio::sync::Notify>) -> Self {
        Self(Arc::downgrade(notify))
    }

    /// Wakes the pool; `false` once it is gone and this handle can be forgotten.
    pub fn wake(&self) -> bool {
        match self.0.upgrade() {
            Some(notify) => {
                notify.notify_one();
                true
            }
            None => false,
        }
    }
}

/// The right to have one connection in any state. Given back when dropped, so
/// exactly once.
pub(crate) struct Lease {
    budget: Option<Arc<dyn CountBudget>>,
    is_coming_back: bool,
}

impl Lease {
    /// A lease already taken from `budget`, or a free one where no budget binds.
    pub(crate) fn taken(budget: Option<&Arc<dyn CountBudget>>) -> Self {
        Self { budget: budget.cloned(), is_coming_back: false }
    }

    /// The connection is being closed and nothing will be opened in its place.
    pub(crate) fn comes_back(&mut self) {
        if !std::mem::replace(&mut self.is_coming_back, true)
            && let Some(budget) = &self.budget
        {
            budget.coming_back(1);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.comes_back();
        if let Some(budget) = self.budget.take() {
            budget.give_back(1);
        }
    }
}
