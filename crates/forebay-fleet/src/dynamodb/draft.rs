//! What a report does to the books, before anything is written: the ledger's step,
//! with what this process has seen of the others, and what of it must be written.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::ledger::{Ledger, Moment, Window};
use crate::message::{Answer, MemberId, Report};

use super::items::Page;
use super::watch::{Watch, window_length};

/// How much of a [`Draft`] must be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// Nothing: the report was refused.
    Nothing,
    /// That the member is alive.
    Beat,
    /// The books.
    Books,
}

/// A member that leaves the books, and what its beat must still be for that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Departure {
    /// It was silent since this beat; without one its lease item is missing.
    Silent(MemberId, Option<u64>),
    /// It went, or was refused for holding what it was not given.
    Own,
}

/// The books after a report.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) base: Option<Arc<Page>>,
    pub(super) ledger: Ledger,
    pub(super) answer: Answer,
    pub(super) extent: Extent,
    pub(super) departures: Vec<Departure>,
}

/// What a draft is made of besides the books.
#[derive(Clone, Copy)]
pub(super) struct Circumstances {
    pub(super) now: Instant,
    /// For order only.
    pub(super) now_ms: u64,
    /// The counter item refused: grant nothing this time.
    pub(super) nothing_to_grant: bool,
}

impl Draft {
    pub(super) fn new(
        base: Option<Arc<Page>>,
        watch: &Watch,
        report: &Report,
        at: Circumstances,
    ) -> Self {
        let me = &report.member;
        let ttl_ms = report.profile.ttl_ms;
        let moment = Moment { now_ms: at.now_ms, run_id: "", by_time: false };
        let mut ledger = match &base {
            Some(page) => page.ledger.clone(),
            None => Ledger::unknown(report.nonce, ttl_ms, moment),
        };
        let window = window_length(&ledger, ttl_ms);
        let left = watch.window_left(&ledger, window, at.now);
        if left.is_some_and(|left| left.is_zero()) {
            ledger.close_window();
        }
        let mut departures = Vec::new();
        for (member, beat) in watch.expired(&ledger, me, at.now) {
            if ledger.reap(&member).is_some() {
                departures.push(Departure::Silent(member, beat));
            }
        }
        if comes_back(&ledger, report) {
            ledger.window = Some(Window { until_ms: u64::MAX, lossy: false, trusting: true });
            ledger.windows += 1;
        }
        let known = ledger.members.contains_key(me);
        let mut answer = step(&mut ledger, report, moment, at.nothing_to_grant);
        if known && !ledger.members.contains_key(me) {
            departures.push(Departure::Own);
        }
        if let Answer::Booked(booking) = &mut answer {
            let left = ledger.window.map_or(Duration::ZERO, |_| left.unwrap_or(window));
            booking.declaring_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        }
        let refused = !matches!(answer, Answer::Booked(_));
        let extent = if refused && !departures.contains(&Departure::Own) {
            Extent::Nothing
        } else if base.as_ref().is_some_and(|page| only_alive(&page.ledger, &ledger, report)) {
            Extent::Beat
        } else {
            Extent::Books
        };
        Self { base, ledger, answer, extent, departures }
    }

    /// By how much the leases booked change.
    pub(super) fn delta(&self) -> i64 {
        i64::from(self.ledger.total()) - i64::from(self.total_before())
    }

    pub(super) fn total_before(&self) -> u32 {
        self.base.as_ref().map_or(0, |page| page.ledger.total())
    }

    pub(super) fn limit_changes(&self) -> bool {
        let limit = |ledger: &Ledger| ledger.limits().0.open;
        self.base.as_ref().is_none_or(|page| limit(&page.ledger) != limit(&self.ledger))
    }
}

fn step(ledger: &mut Ledger, report: &Report, moment: Moment<'_>, grantless: bool) -> Answer {
    if !grantless {
        return ledger.step(report, moment).answer;
    }
    let pause = ledger.paused_until_ms;
    ledger.paused_until_ms = u64::MAX;
    // what the report asks for must not be lost, nor outlast it
    let asked = if report.pause_ms > 0 { moment.now_ms + report.pause_ms } else { 0 };
    let answer = ledger.step(&Report { pause_ms: 0, ..report.clone() }, moment).answer;
    ledger.paused_until_ms = pause.max(asked);
    answer
}

/// Whether the member was away for so long that others would have reaped it, had
/// they not been away too. Then all may have grown to their offline shares, and say
/// what they hold before anything is granted.
fn comes_back(ledger: &Ledger, report: &Report) -> bool {
    ledger.window.is_none()
        && report.elapsed_ms.is_some_and(|elapsed| elapsed >= report.profile.reclaim_ms)
        && ledger.members.get(&report.member).is_some_and(|entry| entry.seq < report.seq)
}

/// Whether the report says only that its member is alive.
fn only_alive(before: &Ledger, after: &Ledger, report: &Report) -> bool {
    let (Some(old), Some(new)) =
        (before.members.get(&report.member), after.members.get(&report.member))
    else {
        return false;
    };
    if (old.waiters == 0) != (new.waiters == 0) {
        return false;
    }
    let mut after = after.clone();
    after.last_ms = before.last_ms;
    after.heard_ms = before.heard_ms;
    if let Some(entry) = after.members.get_mut(&report.member) {
        entry.seq = old.seq;
        entry.renewed_ms = old.renewed_ms;
        entry.waiters = old.waiters;
    }
    after == *before
}
