//! (e): a member that loses its keeper while the others still have it; and one
//! that must fence itself while its application is stuck. On FOREBAY_TEST_REDIS and
//! FOREBAY_TEST_DYNAMODB.

use std::time::Duration;

use crate::fleet::{Fleet, LIMIT, Plan, SLACK, for_each, wait};
use crate::keepers::{Kind, LONG};
use crate::relay::Cut;
use crate::{MS, now};

#[test]
fn redis_a_member_that_is_cut_off_fences_itself_before_others_get_its_leases() {
    for_each(&[Cut::Both, Cut::Requests, Cut::Answers], |cut| fence(Kind::Redis, cut));
}

#[test]
fn dynamodb_a_member_that_is_cut_off_fences_itself_before_others_get_its_leases() {
    for_each(&[Cut::Both, Cut::Requests, Cut::Answers], |cut| fence(Kind::Dynamo, cut));
}

fn fence(kind: Kind, cut: Cut) {
    let Some(fleet) = Fleet::shared(Plan::new(kind, "fence")) else { return };
    fleet.rest();
    let alone = &fleet.members[0];
    let old = fleet.backend.open_of(alone.pid);
    assert!(!old.is_empty(), "{}", fleet.describe());
    let cut_at = now();
    alone.relay.cut(cut);
    wait((cut_at + fleet.ttl()).saturating_sub(now()));
    let left = fleet.backend.open_of(alone.pid);
    assert!(left.is_empty(), "{cut:?}: {left:?} of {old:?} are open\n{}", fleet.describe());
    // while its reports still arrive it is not silent; at the latest they do not after its fence
    let silent = if cut == Cut::Answers { cut_at + fleet.ttl() } else { cut_at };
    others_have_all(&fleet, silent);
    heals(&fleet, LIMIT);
    fleet.stays_within(LIMIT, 0, now());
    fleet.all_is_well();
}

#[test]
fn redis_a_member_that_is_cut_off_keeps_what_its_policy_leaves_it() {
    for_each(&["share", "hold"], |on_loss| keep(Kind::Redis, on_loss));
}

#[test]
fn dynamodb_a_member_that_is_cut_off_keeps_what_its_policy_leaves_it() {
    for_each(&["share", "hold"], |on_loss| keep(Kind::Dynamo, on_loss));
}

fn keep(kind: Kind, on_loss: &'static str) {
    let Some(fleet) = Fleet::shared(Plan::new(kind, on_loss)) else { return };
    fleet.rest();
    let alone = &fleet.members[0];
    let kept = match on_loss {
        "share" => alone.state().share,
        _ => fleet.booked(0),
    };
    let old = fleet.backend.open_of(alone.pid);
    assert!(kept > 0 && old.len() as u32 <= kept, "{}", fleet.describe());
    let cut_at = now();
    alone.relay.cut(Cut::Both);
    others_have_all(&fleet, cut_at);
    // it had no more than it may keep, so it has closed nothing, and the limit is exceeded
    assert_eq!(fleet.backend.open_of(alone.pid), old, "{}", fleet.describe());
    assert!(fleet.backend.open() > LIMIT, "{}", fleet.describe());
    // by now a member that lives on its share could also have grown up to it
    wait(fleet.heartbeat() * 2);
    let healed = heals(&fleet, LIMIT + kept);
    // reports that fail are sent again after one and a half heartbeats at most
    let gone_by = healed + 2 * fleet.heartbeat() + fleet.close_grace() + SLACK;
    let end = now();
    assert!(end > gone_by, "the fleet came to rest too soon to tell");
    fleet.stays_within(LIMIT + kept, 0, end);
    fleet.stays_within(LIMIT, gone_by, end);
    assert_eq!(alone.state().reaped, 1, "{}", fleet.describe());
    fleet.all_is_well();
}

/// Those that still reach the keeper get the slots of the first member.
fn others_have_all(fleet: &Fleet, silent: u64) {
    let theirs = || -> usize {
        fleet.members[1..].iter().map(|peer| fleet.backend.open_of(peer.pid).len()).sum()
    };
    let by = silent + fleet.ttl() + fleet.heartbeat() + SLACK;
    let within = Duration::from_nanos(by.saturating_sub(now()));
    fleet.until("the others have all slots", within, || theirs() == LIMIT as usize);
}

/// Heals the path, and waits until the member has its part again.
fn heals(fleet: &Fleet, most: u32) -> u64 {
    let healed = now();
    fleet.members[0].relay.cut(Cut::Nothing);
    let pid = fleet.members[0].pid;
    let is_back = || {
        let log = fleet.backend.log();
        let mine = log.open_of(pid);
        mine.len() >= 3 && mine.iter().all(|serial| log.visits[serial].accepted > healed)
    };
    fleet.until("it is back with connections of its own", LONG, is_back);
    fleet.rest();
    wait(2 * fleet.heartbeat() + fleet.close_grace() + SLACK);
    fleet.stays_within(most, 0, now());
    healed
}

#[test]
fn redis_a_member_fences_itself_while_its_application_is_stuck() {
    fence_while_stuck(Kind::Redis);
}

#[test]
fn dynamodb_a_member_fences_itself_while_its_application_is_stuck() {
    fence_while_stuck(Kind::Dynamo);
}

fn fence_while_stuck(kind: Kind) {
    let Some(mut fleet) = Fleet::shared(Plan::new(kind, "fence")) else { return };
    fleet.rest();
    let stuck_ms = (2 * fleet.ttl() + 2 * fleet.heartbeat()) / MS;
    fleet.members[0].tell(&format!("block {stuck_ms}"));
    fleet.until("all workers are blocked", LONG, || fleet.members[0].told().blocked);
    let alone = &fleet.members[0];
    assert!(!fleet.backend.open_of(alone.pid).is_empty(), "{}", fleet.describe());
    let cut_at = now();
    alone.relay.cut(Cut::Both);
    wait((cut_at + fleet.ttl()).saturating_sub(now()));
    let left = fleet.backend.open_of(alone.pid);
    assert!(alone.told().blocked, "this machine is too busy: it is stuck no more");
    assert!(left.is_empty(), "{left:?} are open\n{}", fleet.describe());
    others_have_all(&fleet, cut_at);
    fleet.until("the workers go on", LONG, || !alone.told().blocked);
    let goes_on = now();
    heals(&fleet, LIMIT);
    fleet.stays_within(LIMIT, 0, now());
    let log = fleet.backend.log();
    for (begun, serial) in alone.told().got.iter().filter(|(begun, _)| *begun > goes_on) {
        let accepted = log.visits[serial].accepted;
        assert!(accepted > cut_at, "a checkout begun at {begun} got an old connection");
    }
}
