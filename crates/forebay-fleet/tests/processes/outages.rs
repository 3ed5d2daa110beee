//! (f): the keeper is away for everybody, comes back with its data, without them, or
//! as a replica that had fallen behind. On FOREBAY_TEST_REDIS and
//! FOREBAY_TEST_DYNAMODB, and on servers of FOREBAY_TEST_REDIS_SERVER and
//! FOREBAY_TEST_DYNAMODB_COMMAND.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::child::State;
use crate::fleet::{BUCKET_REST, Fleet, LIMIT, Plan, Process, SLACK, nanos, wait};
use crate::keepers::{Kind, LONG, Server};
use crate::now;
use crate::relay::{Cut, Relay};

#[test]
fn redis_members_live_on_their_shares_while_the_keeper_is_away() {
    live_on_shares(Kind::Redis);
}

#[test]
fn dynamodb_members_live_on_their_shares_while_the_keeper_is_away() {
    live_on_shares(Kind::Dynamo);
}

fn live_on_shares(kind: Kind) {
    let mut plan = Plan::new(kind, "share");
    // so that the other two have more than a third
    plan.appetites = vec![2, LIMIT, LIMIT];
    let Some(mut fleet) = Fleet::shared(plan) else { return };
    fleet.rest();
    let before: Vec<(u32, u32, u32)> = fleet
        .members
        .iter()
        .map(|m| (m.pid, fleet.backend.open_of(m.pid).len() as u32, m.state().share))
        .collect();
    assert!(before.iter().map(|(_, _, share)| share).sum::<u32>() <= LIMIT, "{before:?}");
    assert!(before.iter().any(|(_, open, share)| open > share), "{before:?}");
    let away = now();
    fleet.members.iter().for_each(|member| member.relay.cut(Cut::Both));
    wait((away + fleet.ttl()).saturating_sub(now()));
    for (pid, open, share) in &before {
        let now_open = fleet.backend.open_of(*pid).len() as u32;
        assert_eq!(now_open, *open.min(share), "{before:?}\n{}", fleet.describe());
    }
    // from here on the first one would like more than it has; by now all others have gone
    // down to their shares, but it waits for a little longer before it relies on that
    let times = fleet.plan.times;
    fleet.members[0].tell(&format!("more {LIMIT}"));
    wait(nanos(times.heartbeat * 2 + times.request) + BUCKET_REST + SLACK);
    let grown = away + nanos(times.ttl + times.heartbeat + times.request);
    for (pid, open, share) in &before {
        let log = fleet.backend.log();
        let closed = log.closed(Some(*pid), away, now()) as u32;
        let opened = log.opened(*pid, away, now());
        let too_soon = log.opened(*pid, away, grown - nanos(times.margin)).len();
        let expected = (open.saturating_sub(*share), share.saturating_sub(*open), 0);
        let seen = (closed, opened.len() as u32, too_soon);
        drop(log);
        assert_eq!(seen, expected, "{before:?}\n{}", fleet.describe());
    }
    let back = now();
    fleet.members.iter().for_each(|member| member.relay.cut(Cut::Nothing));
    is_exact(&fleet, back, 3);
    assert!(fleet.members.iter().all(|member| member.state().reaped == 0), "{}", fleet.describe());
}

/// Waits until the keeper does more than accept connections, and says when that is.
fn answers(fleet: &Fleet) -> u64 {
    fleet.books();
    now()
}

/// One ttl after the keeper is back for all, the books, the members and the
/// backend say the same, and there was never more than the limit.
fn is_exact(fleet: &Fleet, back: u64, members: usize) {
    // all have reported again after one and a half heartbeats
    let by = back + fleet.ttl() + 2 * fleet.heartbeat();
    let agree = || {
        let books = fleet.books();
        let states: Vec<State> = fleet.members.iter().map(Process::state).collect();
        let held: u32 = states.iter().map(|state| state.held).sum();
        let totals = [books.total, held, fleet.backend.open()];
        let current = states.iter().all(|state| state.link == "Current");
        let settled = current && books.members.len() == members && books.declaring_ms == 0;
        settled && totals == [LIMIT; 3]
    };
    wait(by.saturating_sub(now()));
    fleet.until("books, members and backend agree", Duration::from_nanos(SLACK), agree);
    fleet.rest();
    assert!(agree(), "{:?}\n{}", fleet.books(), fleet.describe());
    fleet.stays_within(LIMIT, 0, now());
    fleet.all_is_well();
}

#[test]
fn redis_a_restart_with_its_data_costs_nobody_anything() {
    let Some(mut server) = Server::redis(true, &[]) else { return };
    let fleet = Fleet::start(Plan::new(Kind::Redis, "share"), server.address);
    fleet.rest();
    let killed = now();
    server.kill();
    server.run();
    let back = answers(&fleet);
    is_exact(&fleet, back, 3);
    assert_eq!(fleet.backend.log().closed(None, killed, now()), 0, "{}", fleet.describe());
    assert!(fleet.members.iter().all(|member| member.state().reaped == 0), "{}", fleet.describe());
}

#[test]
fn redis_a_restart_without_its_data_grants_nothing_that_is_still_held() {
    let Some(mut server) = Server::redis(false, &[]) else { return };
    let mut fleet = Fleet::start(Plan::new(Kind::Redis, "share"), server.address);
    fleet.rest();
    lose_data(&mut fleet, &mut server);
}

#[test]
fn dynamodb_a_loss_of_its_data_grants_nothing_that_is_still_held() {
    let Some(mut server) = Server::dynamo(false) else { return };
    let mut fleet = Fleet::start(Plan::new(Kind::Dynamo, "share"), server.address);
    fleet.rest();
    lose_data(&mut fleet, &mut server);
}

/// The keeper comes back with nothing; meanwhile one member has died and another
/// one is new.
fn lose_data(fleet: &mut Fleet, server: &mut Server) {
    let killed = now();
    server.kill();
    fleet.members[0].signal(Signal::SIGKILL);
    let dead = fleet.members.remove(0);
    server.run();
    // an operator makes the table again, where there is one
    fleet.look_at(server.address);
    let back = answers(fleet);
    let joiner = fleet.spawn(7, LIMIT, server.address);
    fleet.members.push(joiner);
    let alive: Vec<u32> = fleet.members.iter().map(|member| member.pid).collect();
    // nothing that fits a share is closed, and no slot is given away, before all had
    // the time to say what they hold
    wait((back + fleet.ttl()).saturating_sub(now() + fleet.heartbeat()));
    {
        let log = fleet.backend.log();
        for pid in alive {
            assert_eq!(log.closed(Some(pid), killed, now()), 0, "{pid}\n{}", fleet.describe());
        }
    }
    drop(dead);
    is_exact(fleet, back + fleet.ttl() + BUCKET_REST, 3);
}

#[test]
fn redis_a_failover_to_a_stale_replica_grants_nothing_that_is_still_held() {
    let Some(mut primary) = Server::redis(false, &["--repl-diskless-sync-delay", "0"]) else {
        return;
    };
    let Some(replica) = Server::redis(false, &[]) else { return };
    let path = Relay::start(primary.address);
    let (host, port) = (path.address.ip().to_string(), path.address.port().to_string());
    replica.tell(&["REPLICAOF", &host, &port]);
    let mut plan = Plan::new(Kind::Redis, "share");
    plan.appetites.pop();
    let mut fleet = Fleet::start(plan, primary.address);
    fleet.rest();
    let in_sync =
        |replica: &Server| replica.tell(&["INFO", "replication"]).contains("link_status:up");
    fleet.until("the replica follows", LONG, || in_sync(&replica));
    wait(fleet.heartbeat());
    // from here on the replica learns nothing: neither of the newcomer nor of what it got
    path.cut(Cut::Both);
    let newcomer = fleet.spawn(2, LIMIT, primary.address);
    let pid = newcomer.pid;
    fleet.members.push(newcomer);
    fleet.until("it has its part", LONG, || fleet.backend.open_of(pid).len() >= 4);
    fleet.rest();
    let failed = now();
    primary.kill();
    replica.tell(&["REPLICAOF", "NO", "ONE"]);
    fleet.members.iter().for_each(|member| member.relay.lead_to(replica.address));
    let back = now();
    fleet.look_at(replica.address);
    assert_eq!(fleet.books().members.len(), 2, "the replica was not stale: {:?}", fleet.books());
    is_exact(&fleet, back, 3);
    assert_eq!(fleet.backend.log().closed(None, failed, now()), 0, "{}", fleet.describe());
    assert!(fleet.members.iter().all(|member| member.state().reaped == 0), "{}", fleet.describe());
}

#[test]
fn dynamodb_a_restart_with_its_data_costs_nobody_anything() {
    let Some(mut server) = Server::dynamo(true) else { return };
    let fleet = Fleet::start(Plan::new(Kind::Dynamo, "share"), server.address);
    fleet.rest();
    let killed = now();
    server.kill();
    // so that everybody has gone down to its share
    wait(fleet.ttl());
    server.run();
    let back = answers(&fleet);
    is_exact(&fleet, back, 3);
    assert_eq!(fleet.backend.log().closed(None, killed, now()), 0, "{}", fleet.describe());
    assert!(fleet.members.iter().all(|member| member.state().reaped == 0), "{}", fleet.describe());
}
