//! The judges judged: six plausible mistakes, each planted from outside into the
//! random fleets of `worlds`. A world with a mistake in it must break a promise,
//! and the one that the mistake is about.
//!
//! `FOREBAY_SEED=x` begins with that seed.

#![allow(unreachable_pub, dead_code, clippy::disallowed_methods, clippy::disallowed_types)]

#[path = "worlds/backend.rs"]
mod backend;
#[path = "worlds/book.rs"]
mod book;
#[path = "worlds/director.rs"]
mod director;
#[path = "worlds/fault.rs"]
mod fault;
#[path = "worlds/heal.rs"]
mod heal;
#[path = "worlds/judge.rs"]
mod judge;
#[path = "worlds/net.rs"]
mod net;
#[path = "worlds/plan.rs"]
mod plan;
#[path = "worlds/process.rs"]
mod process;
#[path = "worlds/rates.rs"]
mod rates;
#[path = "worlds/time.rs"]
mod time;

use std::future::Future;
use std::time::Duration;

use fault::Fault;
use forebay_fleet::{BackendLimits, OnLoss};
use plan::{Act, Plan};

/// A mistake that this many worlds do not show is not caught.
const WORLDS: u64 = 120;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(future)
}

/// Runs worlds until one breaks a promise whose text contains one of `words`; the
/// seed and the text.
fn caught(fault: Fault, words: &[&str]) -> (u64, String) {
    caught_in(|seed| Plan::draw(seed, fault), fault, words)
}

fn caught_in(plan: impl Fn(u64) -> Plan, fault: Fault, words: &[&str]) -> (u64, String) {
    let first = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    for seed in first..first + WORLDS {
        let result = block_on(async { director::run(plan(seed)).await });
        let Err(text) = result else { continue };
        let breach = text.lines().find(|line| line.starts_with("at ")).unwrap_or_default();
        if words.iter().any(|word| breach.contains(word)) {
            println!("{fault:?} is caught by seed {seed}: {breach}");
            return (seed, breach.to_owned());
        }
    }
    panic!("{fault:?} is not caught by {WORLDS} worlds");
}

#[test]
fn a_member_that_does_not_fence_itself_is_caught() {
    caught(Fault::FenceOff, &["although the keeper is lost", "no place in the books"]);
}

#[test]
fn a_lease_released_at_the_local_close_is_caught() {
    caught(Fault::ReleaseAtLocalClose, &["leases booked", "under a limit"]);
}

#[test]
fn holdings_reported_as_changes_are_caught() {
    caught(Fault::RelativeHoldings, &["leases booked", "under a limit", "are open"]);
}

#[test]
fn a_member_that_declares_itself_again_after_being_reaped_is_caught() {
    caught(
        Fault::RedeclareAfterReaped,
        &["leases are booked under a limit", "the backend has", "of the life before"],
    );
}

#[test]
fn shares_that_each_member_computes_alone_are_caught() {
    caught(Fault::SharesAlone, &["offline shares add up"]);
}

/// A world that is busy opening, where processes are stopped for a moment.
fn busy(seed: u64, fault: Fault) -> Plan {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut plan = Plan::still(3, OnLoss::Fence, BackendLimits::new(60, 15, 2));
    plan.seed = seed;
    plan.calm_at = Duration::from_secs(6);
    plan.recipes.iter_mut().for_each(|recipe| recipe.fault = fault);
    for who in 0..3 {
        let lasts = Duration::from_millis(rng.u64(200..1500));
        let freeze = Act::Freeze { who, lasts, vm: false };
        plan.acts.push((Duration::from_millis(rng.u64(300..3000)), freeze));
    }
    plan.acts.sort_by_key(|(at, _)| *at);
    plan
}

#[test]
fn permits_that_do_not_expire_are_caught() {
    let fault = Fault::PermitWithoutExpiry;
    let (seed, _) = caught_in(|seed| busy(seed, fault), fault, &["connects arrive faster"]);
    assert!(seed < 10, "and not only by luck");
    for seed in 0..10 {
        let fair = director::run(busy(seed, Fault::None));
        block_on(fair).unwrap_or_else(|text| panic!("without the mistake: {text}"));
    }
}
