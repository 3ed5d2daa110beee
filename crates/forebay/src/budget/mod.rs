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
#[non_exhaustive]
pub enum BudgetError {
    /// A permit would have to be waited for longer than the budget allows.
    #[error("the next permit is {wait:?} away, longer than the most of {most:?}")]
    WaitTooLong {
        /// How long the wait would be.
        wait: Duration,
        /// The most that is waited.
        most: Duration,
    },
    /// Anything else, in words for the log and for a waiting checkout's error.
    #[error("{0}")]
    Other(String),
}

impl BudgetError {
    /// An error with a text of its own.
    pub fn new(message: impl Into<String>) -> Self {
        Self::Other(message.into())
    }
}

/// How fast connections may be opened.
pub trait RateBudget: Send + Sync + 'static {
    /// Reserves one permit. Waiting for its instant is the caller's business.
    /// About `more` will be asked for right after it: a keeper that has to be
    /// travelled to may fetch them along.
    fn reserve(&self, now: Instant, more: u32) -> BoxFuture<'_, Result<Permit, BudgetError>>;

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

/// What a pool asks a count budget for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ask {
    /// Leases it can use at once; 0 if it only says what it will want.
    pub want: u32,
    /// Leases it will ask for right after these, for keepers that share by demand
    /// or have to be travelled to.
    pub more: u32,
    /// Checkouts waiting.
    pub waiters: u32,
    /// Who asks: the same number for every ask of one source of one pool.
    pub asker: u64,
}

impl Ask {
    /// Asks for `want` leases and nothing else.
    pub fn new(want: u32) -> Self {
        Self { want, ..Self::default() }
    }
}

/// Leases taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Grant {
    /// How many.
    pub leases: u32,
    /// Under which epoch. A keeper that has lost track of a holder starts another
    /// one, and what comes back of the old is not counted any more.
    pub epoch: u64,
}

/// How many connections may be open.
pub trait CountBudget: Send + Sync + 'static {
    /// Takes up to `ask.want` leases without waiting and says how many were taken.
    fn take(&self, now: Instant, ask: Ask) -> Grant;

    /// Gives back leases whose connections the backend has let go of.
    fn give_back(&self, back: Grant);

    /// Asks to be [woken](Holder::wake) whenever leases may have become free, or
    /// [`standing`](Self::standing) or [`excess`](Self::excess) changed.
    fn watch(&self, holder: Holder);

    /// Whether connections in use must be closed when the leases run out, so that
    /// only a connector that gives a [`Killer`](crate::Killer) will do.
    fn needs_killer(&self) -> bool {
        false
    }

    /// How many leases could be taken at `now`: more than this will not be opened soon.
    fn room(&self, now: Instant) -> u32 {
        let _ = now;
        u32::MAX
    }

    /// Whether this holder may still use what it holds.
    fn standing(&self, now: Instant) -> Standing {
        let _ = now;
        Standing::Good
    }

    /// Says that the connections of some leases are being closed, so that these
    /// leases are on their way. Each is told of once, at the latest when it is given back.
    fn coming_back(&self, leases: Grant) {
        let _ = leases;
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

/// One source of a pool, as its count budget sees it. Holds the pool weakly: a
/// dropped pool is forgotten.
#[derive(Clone)]
pub struct Holder {
    pool: Weak<dyn Holding>,
    source: usize,
}

/// What a budget or a connector may ask of a pool, from any thread.
pub(crate) trait Holding: Send + Sync {
    fn wake(&self);
    fn keep(&self, source: usize, most: u32) -> u32;
    fn revoke(&self, source: usize);
    fn lost(&self, id: u32, lost: &crate::lost::Lost);
}

impl Holder {
    pub(crate) fn new(pool: Weak<dyn Holding>, source: usize) -> Self {
        Self { pool, source }
    }

    /// Wakes the pool's driver; `false` once the pool is gone and this handle can
    /// be forgotten.
    pub fn wake(&self) -> bool {
        self.pool.upgrade().is_some_and(|pool| {
            pool.wake();
            true
        })
    }

    /// Kills connections, the idle before those in use, until at most `most` are
    /// alive, and says how many are. Does not need the pool's runtime, so it works
    /// while that is blocked, except on what is still being opened: that is given up
    /// as soon as the runtime runs. What is in use and has no killer stays alive.
    pub fn keep(&self, most: u32) -> u32 {
        self.pool.upgrade().map_or(0, |pool| pool.keep(self.source, most))
    }

    /// None of the leases taken so far counts any more: kills what can be killed,
    /// and nothing that was opened before is handed out again.
    pub fn revoke(&self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.revoke(self.source);
        }
    }
}

impl std::fmt::Debug for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Holder({})", self.source)
    }
}

/// The right to have one connection in any state. Given back when dropped, so
/// exactly once.
pub(crate) struct Lease {
    budget: Option<Arc<dyn CountBudget>>,
    epoch: u64,
    is_coming_back: bool,
}

impl Lease {
    /// A lease already taken from `budget`, or a free one where no budget binds.
    pub(crate) fn taken(budget: Option<&Arc<dyn CountBudget>>, epoch: u64) -> Self {
        Self { budget: budget.cloned(), epoch, is_coming_back: false }
    }

    /// The connection is being closed and nothing will be opened in its place.
    pub(crate) fn comes_back(&mut self) {
        if !std::mem::replace(&mut self.is_coming_back, true)
            && let Some(budget) = &self.budget
        {
            budget.coming_back(Grant { leases: 1, epoch: self.epoch });
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.comes_back();
        if let Some(budget) = self.budget.take() {
            budget.give_back(Grant { leases: 1, epoch: self.epoch });
        }
    }
}
