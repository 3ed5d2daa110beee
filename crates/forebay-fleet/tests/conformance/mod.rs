//! What every keeper must do, told by members that speak to it directly. Each
//! scenario is given a keeper and a backend that nobody else uses; `conformance!`
//! makes a test of each.

#![allow(dead_code, unreachable_pub)]

pub mod leases;
pub mod rates;
pub mod shares;

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_fleet::{Answer, Booking, Keeper, Limits, MemberId, Profile, Report};

/// Makes a test of each scenario. `$keeper` is an `async fn(&str) -> Option<Arc<dyn Keeper>>`
/// that is given the test's name; where it has none to give, the test is skipped.
macro_rules! conformance {
    ($keeper:path) => {
        conformance!($keeper; leases:
            leases_are_granted_up_to_the_limit,
            a_lost_answer_does_not_cost_leases,
            a_report_is_not_booked_twice,
            a_late_report_is_not_booked,
            leases_cannot_be_released_twice,
            a_released_lease_goes_to_the_poorest_waiter,
            leases_are_recalled_until_the_holdings_are_even,
            who_leaves_gives_everything_back,
            who_was_reaped_is_told_so_and_cannot_declare,
            holding_more_than_was_booked_is_being_reaped,
            the_heartbeats_of_a_quiet_fleet_change_nothing,
            after_a_refusal_nothing_is_granted_for_a_while,
            setup_makes_books_once_and_they_can_be_listed,
        );
        conformance!($keeper; shares:
            holdings_follow_the_weights,
            a_lowered_limit_is_reached_by_giving_back,
            the_newest_version_of_the_limits_counts,
            the_lowest_limit_wins_and_is_named,
            offline_shares_never_add_up_to_more_than_the_limit,
            a_keeper_without_books_grants_nothing_at_first,
            what_members_declare_in_a_window_counts,
        );
        conformance!($keeper; rates:
            several_permits_are_reserved_at_once,
            nothing_is_reserved_if_the_wait_would_be_too_long,
            refusals_slow_everyone_down,
            a_bucket_that_nobody_set_up_starts_empty,
        );
    };
    ($keeper:path; $module:ident: $($name:ident),* $(,)?) => {
        $(
            #[tokio::test]
            async fn $name() {
                if let Some(keeper) = $keeper(stringify!($name)).await {
                    conformance::$module::$name(&*keeper, &conformance::backend(stringify!($name))).await;
                }
            }
        )*
    };
}

/// A backend's name that no other test, or run of it, uses.
pub fn backend(test: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{test}-{}-{count}-{:08x}", std::process::id(), fastrand::u32(..))
}

pub fn limits(open: u32) -> Limits {
    Limits { open, rate: 10, burst: 5, version: 0 }
}

/// A member with nothing behind it, that says what a test wants it to say.
#[derive(Debug, Clone)]
pub struct Peer {
    pub id: MemberId,
    pub backend: String,
    pub seq: u64,
    pub held: u32,
    pub share: u32,
    pub elapsed_ms: Option<u64>,
    pub profile: Profile,
    pub generation: Option<String>,
}

impl Peer {
    pub fn new(backend: &str, name: &str, open: u32) -> Self {
        Self {
            id: MemberId::new(name, fastrand::u64(..)),
            backend: backend.to_owned(),
            seq: 0,
            held: 0,
            share: 0,
            elapsed_ms: None,
            profile: Profile {
                service: "conformance".to_owned(),
                peer: String::new(),
                weight: 1,
                limits: limits(open),
                ttl_ms: 30_000,
                heartbeat_ms: 10_000,
                margin_ms: 5_000,
                reclaim_ms: 30_000,
                divisor: 1,
            },
            generation: None,
        }
    }

    /// The next report: it holds so many and would like to have so many.
    pub fn next(&mut self, held: u32, want: u32) -> Report {
        self.seq += 1;
        Report {
            backend: self.backend.clone(),
            member: self.id.clone(),
            seq: self.seq,
            generation: self.generation.clone(),
            held,
            want,
            waiters: want.saturating_sub(held),
            share: self.share,
            elapsed_ms: self.elapsed_ms,
            pause_ms: 0,
            leave: false,
            nonce: fastrand::u64(..),
            profile: self.profile.clone(),
        }
    }

    /// Reports that it holds so many and wants so many, and goes by the answer.
    pub async fn reports(&mut self, keeper: &dyn Keeper, held: u32, want: u32) -> Booking {
        let report = self.next(held, want);
        let booking = booked(keeper, &report).await;
        self.held = booking.held;
        self.share = booking.share;
        self.generation = Some(booking.generation.clone());
        booking
    }

    /// As [`reports`](Self::reports), with what it holds.
    pub async fn wants(&mut self, keeper: &dyn Keeper, want: u32) -> Booking {
        self.reports(keeper, self.held, want).await
    }

    /// As [`wants`](Self::wants), giving back what it is asked for.
    pub async fn yields(&mut self, keeper: &dyn Keeper, want: u32) -> Booking {
        let booking = self.wants(keeper, want).await;
        let kept = self.held.saturating_sub(booking.recall);
        if kept == self.held { booking } else { self.reports(keeper, kept, kept.max(1)).await }
    }
}

/// Sends a report that must be answered.
pub async fn send(keeper: &dyn Keeper, report: &Report) -> Answer {
    keeper.report(report).await.expect("an answer")
}

/// Sends a report that must be booked.
pub async fn booked(keeper: &dyn Keeper, report: &Report) -> Booking {
    match send(keeper, report).await {
        Answer::Booked(booking) => booking,
        other => panic!("report {} of {} was answered {other:?}", report.seq, report.member),
    }
}

/// What the books say of all leases; they must add up.
pub async fn total(keeper: &dyn Keeper, backend: &str) -> u32 {
    let info = keeper.inspect(backend).await.expect("books");
    assert_eq!(info.total, info.members.iter().map(|m| m.held).sum::<u32>(), "{info:?}");
    info.total
}

/// Makes books, so that leases are granted at once.
pub async fn set_up(keeper: &dyn Keeper, backend: &str) {
    assert!(keeper.setup(backend).await.expect("set up"), "a backend of its own");
}
