//! Plausible mistakes, planted from outside: each is a wrapper around an honest
//! part, so that nothing of them is in the code that ships. The worlds must
//! notice every one.

use std::sync::Arc;
use std::time::Duration;

use forebay::{
    Ask, BoxFuture, BudgetError, CountBudget, Grant, Holder, Instant, Permit, RateBudget, Standing,
};
use forebay_fleet::{Answer, FleetCount, FleetRate, Keeper, ModelKeeper, Report};
use parking_lot::Mutex;

use crate::net::now_or_never;

/// What is wrong in a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    #[default]
    None,
    /// Members go on as if their leases never ran out.
    FenceOff,
    /// Leases go back when the socket is closed here, not when the backend has let go.
    ReleaseAtLocalClose,
    /// Reports say by how much a holding changed.
    RelativeHoldings,
    /// Whoever was reaped says again what it holds, and is believed.
    RedeclareAfterReaped,
    /// Each member divides the limit by the members it knows of.
    SharesAlone,
    /// A permit may be used at any time after its instant.
    PermitWithoutExpiry,
}

impl Fault {
    /// The keeper's answer to a report. `known` is the holding that its sender knew
    /// to be booked when it sent it.
    pub fn report(self, keeper: &ModelKeeper, report: &Report, known: u32) -> Answer {
        let mut report = report.clone();
        if self == Self::RelativeHoldings {
            let change = known.saturating_sub(report.held);
            // applied as a change, and however often it comes
            keeper.edit(&report.backend, |ledger| {
                if let Some(entry) = ledger.members.get(&report.member) {
                    report.held = entry.held.saturating_sub(change);
                    report.want = report.want.max(report.held);
                    report.seq = entry.seq + 1;
                }
            });
        }
        let mut answer = now_or_never(keeper.report(&report)).expect("answers");
        if self == Self::RedeclareAfterReaped && answer == Answer::Reaped && report.held > 0 {
            keeper.edit(&report.backend, |ledger| {
                let Some(mut entry) = ledger.members.values().next().cloned() else { return };
                (entry.seq, entry.held, entry.reserved) = (report.seq, report.held, 0);
                (entry.recall, entry.share) = (0, 0);
                entry.profile = report.profile.clone();
                ledger.members.insert(report.member.clone(), entry);
            });
            report.seq += 1;
            answer = now_or_never(keeper.report(&report)).expect("answers");
            keeper.edit(&report.backend, |ledger| {
                if let Some(entry) = ledger.members.get_mut(&report.member) {
                    entry.seq -= 1;
                }
            });
        }
        if self == Self::SharesAlone
            && let Answer::Booked(booking) = &mut answer
        {
            booking.share = booking.limit / booking.members.max(1);
        }
        answer
    }

    /// The count budget that a process's pools get.
    pub fn count(self, inner: Arc<FleetCount>) -> Arc<dyn CountBudget> {
        match self {
            Self::FenceOff => {
                let budget = Arc::new(Unfenced { inner, holders: Mutex::default() });
                let weak = Arc::downgrade(&budget);
                tokio::spawn(async move {
                    while let Some(budget) = weak.upgrade() {
                        budget.holders.lock().retain(Holder::wake);
                        drop(budget);
                        tokio::time::sleep(Duration::from_millis(500)).await;
                    }
                });
                budget
            }
            Self::ReleaseAtLocalClose => Arc::new(Hasty(inner)),
            _ => inner,
        }
    }

    /// The rate budget that a process's pools get.
    pub fn rate(self, inner: Arc<FleetRate>) -> Arc<dyn RateBudget> {
        match self {
            Self::PermitWithoutExpiry => Arc::new(Lasting(inner)),
            _ => inner,
        }
    }
}

/// A budget whose pools never hear of a fence.
struct Unfenced {
    inner: Arc<FleetCount>,
    holders: Mutex<Vec<Holder>>,
}

impl CountBudget for Unfenced {
    fn take(&self, now: Instant, ask: Ask) -> Grant {
        self.inner.take(now, ask)
    }

    fn give_back(&self, back: Grant) {
        self.inner.give_back(back);
    }

    fn watch(&self, holder: Holder) {
        self.holders.lock().push(holder);
    }

    fn standing(&self, _now: Instant) -> Standing {
        Standing::Good
    }

    fn coming_back(&self, leases: Grant) {
        self.inner.coming_back(leases);
    }

    fn excess(&self) -> u32 {
        self.inner.excess()
    }
}

/// Gives leases back as soon as a close begins.
struct Hasty(Arc<FleetCount>);

impl CountBudget for Hasty {
    fn take(&self, now: Instant, ask: Ask) -> Grant {
        self.0.take(now, ask)
    }

    fn give_back(&self, _back: Grant) {}

    fn watch(&self, holder: Holder) {
        self.0.watch(holder);
    }

    fn needs_killer(&self) -> bool {
        self.0.needs_killer()
    }

    fn standing(&self, now: Instant) -> Standing {
        self.0.standing(now)
    }

    fn coming_back(&self, leases: Grant) {
        self.0.give_back(leases);
    }

    fn excess(&self) -> u32 {
        self.0.excess()
    }

    fn refused(&self, now: Instant) {
        CountBudget::refused(&*self.0, now);
    }
}

/// Permits that do not run out.
struct Lasting(Arc<FleetRate>);

impl RateBudget for Lasting {
    fn reserve(&self, now: Instant, more: u32) -> BoxFuture<'_, Result<Permit, BudgetError>> {
        Box::pin(async move {
            let permit = self.0.reserve(now, more).await?;
            Ok(Permit { good_until: permit.good_until + Duration::from_secs(3600), ..permit })
        })
    }

    fn refused(&self, now: Instant) {
        RateBudget::refused(&*self.0, now);
    }
}
