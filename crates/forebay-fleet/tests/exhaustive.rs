//! The lease protocol, tried exhaustively: every order of reports, losses, clock
//! ticks, deaths and stops that a small fleet can go through within a few ticks.
//! The keeper is the real [`Ledger`](forebay_fleet::Ledger); a member is an
//! abstraction of `src/account.rs` (see `exhaustive/member.rs`).
//!
//! Checked in every state: leases booked keep the limit; the backend's own count
//! keeps it under `fence`, but for what a stopped member still holds; the keeper
//! has booked at least what each member uses, which a lease that is given back
//! twice would break. And from every state a world without further faults brings
//! all slots back into use. The tests at the end plant mistakes, each of which
//! must be found.
//!
//! `cargo test -p forebay-fleet --test exhaustive -- --nocapture` prints how many
//! states there were.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

#[path = "exhaustive/member.rs"]
mod member;
#[path = "exhaustive/model.rs"]
mod model;
#[path = "exhaustive/world.rs"]
mod world;

use model::{Fleet, Plant};
use stateright::{Checker, HasDiscoveries, Model};

const BACKEND: &str = "the backend keeps the limit";
const MENDED: &str = "every slot comes back";

/// Goes through everything; nothing may be broken, and what the faults are about
/// must have happened.
fn holds(name: &str, fleet: Fleet) {
    let checker = fleet.checker().spawn_bfs().join();
    let (unique, all) = (checker.unique_state_count(), checker.state_count());
    println!("{name}: {unique} states, {all} steps, at most {} in a row", checker.max_depth());
    checker.assert_properties();
    assert!(checker.is_done());
}

/// Stops when the promise is broken, which it must be.
fn breaks(name: &str, promise: &'static str, fleet: Fleet) {
    let when = HasDiscoveries::AnyOf([promise].into());
    let checker = fleet.checker().finish_when(when).spawn_bfs().join();
    let states = checker.state_count();
    let Some(path) = checker.discovery(promise) else {
        panic!("{name}: {states} states, and {promise} in each");
    };
    println!("{name}: {states} states until not so that {promise}:");
    path.into_actions().iter().for_each(|step| println!("    {step:?}"));
}

#[test]
fn the_limit_is_kept_when_reports_and_answers_are_lost_and_clocks_drift() {
    holds("all members shaky", Fleet { shaky: 2, ..Fleet::new(2, 1, 4) });
    holds("one member shaky", Fleet::new(2, 1, 6));
}

#[test]
fn the_limit_is_kept_when_reports_are_late_or_come_twice() {
    holds("late and twice", Fleet { slow: 1, doubles: 1, ..Fleet::new(2, 1, 4) });
    holds("late", Fleet { slow: 1, ..Fleet::new(2, 1, 5) });
}

#[test]
fn the_limit_is_kept_when_members_die_and_come_back() {
    holds("one death", Fleet { crashes: 1, ..Fleet::new(2, 1, 5) });
}

#[test]
fn the_limit_is_kept_when_the_keeper_loses_its_books() {
    holds("books lost", Fleet { losses: 1, drift: 0, ..Fleet::new(2, 1, 6) });
}

#[test]
fn a_stopped_member_exceeds_the_limit_by_no_more_than_it_held() {
    holds("one stop", Fleet { freezes: 1, drift: 0, ..Fleet::new(2, 1, 7) });
}

#[test]
fn the_limit_is_kept_by_more_members_and_with_more_leases() {
    holds("two leases", Fleet { drift: 0, ..Fleet::new(2, 2, 5) });
    holds("three members", Fleet { drift: 0, ..Fleet::new(3, 1, 4) });
}

#[test]
fn slots_of_the_dead_and_of_lost_books_come_back_into_use() {
    let fleet = Fleet { mends: true, drift: 0, ..Fleet::new(2, 1, 4) };
    holds("mending a death", Fleet { crashes: 1, ..fleet.clone() });
    holds("mending lost books", Fleet { losses: 1, ..fleet });
}

#[test]
fn without_a_fence_the_limit_is_broken() {
    let fleet = Fleet { plant: Plant::NoFence, drift: 0, ..Fleet::new(2, 1, 5) };
    breaks("no fence", BACKEND, fleet);
}

#[test]
fn releasing_at_the_local_close_breaks_the_limit() {
    let fleet = Fleet { plant: Plant::ReleaseAtClose, ..Fleet::new(2, 1, 4) };
    breaks("release at close", BACKEND, fleet);
}

#[test]
fn relative_holdings_break_the_limit_when_a_report_comes_twice() {
    let fleet = Fleet { plant: Plant::Relative, doubles: 1, drift: 0, ..Fleet::new(2, 1, 5) };
    breaks("relative holdings", BACKEND, fleet);
}

#[test]
fn declaring_again_after_being_reaped_breaks_the_limit() {
    let fleet = Fleet { plant: Plant::Redeclare, freezes: 1, drift: 0, ..Fleet::new(2, 1, 7) };
    breaks("declaring again", BACKEND, fleet);
}

#[test]
fn a_clock_that_loses_the_whole_margin_breaks_the_limit() {
    // half of it is for the clock, the other half for the backend to let go
    breaks("slow clock", BACKEND, Fleet { drift: 2, ..Fleet::new(2, 1, 6) });
}

#[test]
fn slots_that_nobody_takes_back_stay_lost() {
    let fleet = Fleet { plant: Plant::NoReap, crashes: 1, mends: true, ..Fleet::new(2, 1, 4) };
    breaks("no reaping", MENDED, Fleet { drift: 0, ..fleet });
}
