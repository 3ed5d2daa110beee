//! (g): how fast connections are opened, as the backend saw it, while credentials
//! stall, processes are stopped and keepers go and come back. On
//! FOREBAY_TEST_REDIS_SERVER and FOREBAY_TEST_DYNAMODB_COMMAND.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::MS;
use crate::backend::Visit;
use crate::fleet::{Fleet, LIMIT, Plan, wait};
use crate::keepers::{Kind, Server};
use crate::relay::Cut;

const RATE: u32 = 10;
/// Small, so that a few permits that are used too late show.
const BURST: u32 = 2;
/// For so long after its instant a permit may be used.
const EPSILON: u64 = 100 * MS;

fn plan(kind: Kind) -> Plan {
    let mut plan = Plan::new(kind, "share");
    (plan.rate, plan.burst) = (RATE, BURST);
    // every connection is used once, so that always some wait for a permit: of the
    // twelve leases each of the two has six
    plan.throw_away = true;
    plan.credentials_ms = 250;
    plan.appetites = vec![LIMIT; 2];
    plan
}

#[test]
fn redis_connections_are_opened_at_the_rate_through_stalls_stops_and_restarts() {
    let Some(mut server) = Server::redis(true, &[]) else { return };
    let fleet = Fleet::start(plan(Kind::Redis), server.address);
    let restart = |server: &mut Server| {
        server.kill();
        wait(300 * MS);
        server.run();
    };
    run(&fleet, || restart(&mut server));
    restart(&mut server);
    keeps_the_rate(&fleet);
}

#[test]
fn redis_connections_are_opened_at_the_rate_when_data_are_lost() {
    let Some(mut server) = Server::redis(false, &[]) else { return };
    let mut plan = plan(Kind::Redis);
    // so that more permits are reserved ahead
    plan.credentials_ms = 0;
    plan.appetites = vec![LIMIT; 3];
    let fleet = Fleet::start(plan, server.address);
    run(&fleet, || {
        server.kill();
        server.run();
    });
    keeps_the_rate(&fleet);
}

#[test]
fn dynamodb_connections_are_opened_at_the_rate_through_stalls_stops_and_restarts() {
    let Some(mut server) = Server::dynamo(true) else { return };
    let fleet = Fleet::start(plan(Kind::Dynamo), server.address);
    run(&fleet, || {
        fleet.members.iter().for_each(|member| member.relay.cut(Cut::Both));
        wait(600 * MS);
        fleet.members.iter().for_each(|member| member.relay.cut(Cut::Nothing));
        wait(600 * MS);
        server.kill();
        server.run();
    });
    keeps_the_rate(&fleet);
}

/// One member is stopped for a while, another one past its leases, and in between
/// the keeper is in trouble.
fn run(fleet: &Fleet, trouble: impl FnOnce()) {
    fleet.until("all are at work", Duration::from_secs(60), || {
        fleet.members.iter().all(|member| !member.told().got.is_empty())
    });
    wait(1000 * MS);
    fleet.members[0].signal(Signal::SIGSTOP);
    wait(1200 * MS);
    fleet.members[0].signal(Signal::SIGCONT);
    wait(800 * MS);
    trouble();
    wait(1500 * MS);
    fleet.members[1].signal(Signal::SIGSTOP);
    wait(fleet.ttl() + 2 * fleet.heartbeat());
    fleet.members[1].signal(Signal::SIGCONT);
    wait(2000 * MS);
}

fn keeps_the_rate(fleet: &Fleet) {
    wait(1500 * MS);
    let all: Vec<Visit> = fleet.backend.log().visits.values().copied().collect();
    let visits: Vec<_> = all.iter().filter_map(|v| Some((v.from?.1, v.accepted))).collect();
    let expected = 4 * RATE as usize;
    assert!(visits.len() > expected, "only {} opens: nothing was tried", visits.len());
    // when they were sent: exactly what permits promise
    let mut sent: Vec<u64> = visits.iter().map(|(sent, _)| *sent).collect();
    sent.sort_unstable();
    within_rate("sent", &sent, 0);
    // when the backend accepted them: later by what that took, and not all by the same
    let latest = visits.iter().map(|(sent, accepted)| accepted - sent).max().unwrap_or(0);
    let mut accepted: Vec<u64> = all.iter().map(|visit| visit.accepted).collect();
    accepted.sort_unstable();
    within_rate("accepted", &accepted, latest);
}

/// In every window: at most rate × (w + ε) + burst.
fn within_rate(what: &str, instants: &[u64], late: u64) {
    for (i, from) in instants.iter().enumerate() {
        for (j, until) in instants.iter().enumerate().skip(i) {
            let count = (j - i + 1) as f64;
            let window = (until - from + EPSILON + late) as f64 / 1e9;
            let most = f64::from(RATE) * window + f64::from(BURST);
            if count > most {
                let near = instants[i.saturating_sub(5)..=j].iter();
                let near: Vec<i64> =
                    near.map(|at| (*at as i64 - *from as i64) / 1_000_000).collect();
                panic!(
                    "{count} {what} in {} ms, {most:.1} allowed (late by {} ms): {near:?}",
                    (until - from) / MS,
                    late / MS
                );
            }
        }
    }
}
