//! (a) to (d): members that are stopped for a short and for a long time, with and
//! without a dead man's switch, and members that are killed. On FOREBAY_TEST_REDIS
//! and FOREBAY_TEST_DYNAMODB.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::fleet::{Fleet, LIMIT, Plan, SLACK, for_each, nanos, wait};
use crate::keepers::{Kind, LONG};
use crate::now;

#[test]
fn redis_a_short_stop_has_no_effect() {
    stop_briefly(Kind::Redis);
}

#[test]
fn dynamodb_a_short_stop_has_no_effect() {
    stop_briefly(Kind::Dynamo);
}

/// (a)
fn stop_briefly(kind: Kind) {
    let mut plan = Plan::new(kind, "fence");
    plan.times.ttl = Duration::from_secs(4);
    let times = plan.times;
    let no_effect = times.ttl - times.margin - times.heartbeat - times.request;
    let Some(fleet) = Fleet::shared(plan) else { return };
    fleet.rest();
    let stopped = fleet.members[0].signal(Signal::SIGSTOP);
    wait(nanos(no_effect) * 3 / 4);
    fleet.members[0].signal(Signal::SIGCONT);
    let pause = now() - stopped;
    assert!(pause < nanos(no_effect), "this machine is too busy: stopped for {pause} ns");
    wait(2 * fleet.heartbeat());
    let end = now();
    assert_eq!(fleet.backend.log().closed(None, stopped, end), 0, "{}", fleet.describe());
    fleet.stays_within(LIMIT, 0, end);
    for member in &fleet.members {
        assert_eq!(member.state().reaped, 0, "{}", fleet.describe());
    }
    assert_eq!(fleet.books().members.len(), 3, "{}", fleet.describe());
    fleet.all_is_well();
}

#[test]
fn redis_a_long_stop_exceeds_the_limit_by_no_more_than_was_held() {
    for_each(&["fence", "share", "hold"], |on_loss| stop_for_long(Kind::Redis, on_loss));
}

#[test]
fn dynamodb_a_long_stop_exceeds_the_limit_by_no_more_than_was_held() {
    for_each(&["fence", "share", "hold"], |on_loss| stop_for_long(Kind::Dynamo, on_loss));
}

/// (b)
fn stop_for_long(kind: Kind, on_loss: &'static str) {
    let Some(fleet) = Fleet::shared(Plan::new(kind, on_loss)) else { return };
    fleet.rest();
    let frozen = &fleet.members[0];
    let stopped = frozen.signal(Signal::SIGSTOP);
    let held = fleet.booked(0);
    let old = fleet.backend.open_of(frozen.pid);
    assert!(held > 0 && old.len() as u32 <= held, "{}", fleet.describe());
    // just before its leases could go to others
    wait((stopped + fleet.ttl()).saturating_sub(fleet.heartbeat() + now()));
    fleet.stays_within(LIMIT, 0, now());
    let long = fleet.plan.times.ttl + 2 * fleet.plan.times.heartbeat;
    fleet.until("its leases went to others", long, || fleet.booked(0) == 0);
    fleet.until("others use them", LONG, || fleet.backend.open() > LIMIT);
    wait(fleet.heartbeat());

    let resumed = frozen.signal(Signal::SIGCONT);
    let gone_by = resumed + fleet.heartbeat() + fleet.close_grace() + SLACK;
    wait(gone_by.saturating_sub(now()) + 2 * fleet.heartbeat());
    let end = now();
    {
        let log = fleet.backend.log();
        let closed = |serial: &u64| log.visits[serial].closed.is_some_and(|at| at <= gone_by);
        let late: Vec<_> = old.iter().filter(|serial| !closed(serial)).collect();
        assert!(late.is_empty(), "{late:?} of {old:?} still open");
        let got = frozen.told().got.clone();
        for (begun, serial) in got.iter().filter(|(begun, _)| *begun > resumed) {
            let accepted = log.visits[serial].accepted;
            assert!(accepted > stopped, "a checkout begun at {begun} got an old connection");
        }
    }
    fleet.stays_within(LIMIT + held, 0, gone_by);
    fleet.stays_within(LIMIT, gone_by, end);
    assert_eq!(frozen.state().reaped, 1, "{}", fleet.describe());
    fleet.rest();
    assert!(frozen.told().got.iter().any(|(begun, _)| *begun > resumed), "{}", fleet.describe());
    fleet.stays_within(LIMIT, gone_by, now());
    fleet.all_is_well();
}

#[test]
fn redis_the_dead_man_ends_a_stopped_process_before_its_leases_move() {
    stop_with_dead_man(Kind::Redis);
}

#[test]
fn dynamodb_the_dead_man_ends_a_stopped_process_before_its_leases_move() {
    stop_with_dead_man(Kind::Dynamo);
}

/// (c)
fn stop_with_dead_man(kind: Kind) {
    let mut plan = Plan::new(kind, "fence");
    plan.dead_man = true;
    let Some(mut fleet) = Fleet::shared(plan) else { return };
    fleet.rest();
    assert!(!fleet.backend.open_of(fleet.members[0].pid).is_empty(), "{}", fleet.describe());
    let stopped = fleet.members[0].signal(Signal::SIGSTOP);
    is_replaced(&fleet, stopped);
    assert_eq!(fleet.members[0].ended_by(), Some(9), "{}", fleet.describe());
    fleet.members.iter_mut().skip(1).for_each(|peer| assert_eq!(peer.ended_by(), None));
}

#[test]
fn redis_a_killed_process_makes_room_within_ttl_and_a_heartbeat() {
    kill(Kind::Redis);
}

#[test]
fn dynamodb_a_killed_process_makes_room_within_ttl_and_a_heartbeat() {
    kill(Kind::Dynamo);
}

/// (d)
fn kill(kind: Kind) {
    let Some(fleet) = Fleet::shared(Plan::new(kind, "share")) else { return };
    fleet.rest();
    assert!(!fleet.backend.open_of(fleet.members[0].pid).is_empty(), "{}", fleet.describe());
    let killed = fleet.members[0].signal(Signal::SIGKILL);
    is_replaced(&fleet, killed);
}

/// The first member's slots are with the others within ttl and one heartbeat, and
/// the limit held throughout.
fn is_replaced(fleet: &Fleet, since: u64) {
    let theirs = |fleet: &Fleet| -> usize {
        fleet.members[1..].iter().map(|peer| fleet.backend.open_of(peer.pid).len()).sum()
    };
    let within = fleet.ttl() + fleet.heartbeat() + SLACK;
    let within = Duration::from_nanos(within.saturating_sub(now() - since));
    fleet.until("the others have all slots", within, || theirs(fleet) == LIMIT as usize);
    wait(fleet.heartbeat());
    fleet.stays_within(LIMIT, 0, now());
    assert_eq!(fleet.books().members.len(), 2, "{}", fleet.describe());
    fleet.all_is_well();
}
