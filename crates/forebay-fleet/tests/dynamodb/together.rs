//! Many keepers on one table; what a call costs; the counter as a guard of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use aws_sdk_dynamodb::types::AttributeValue;
use forebay_fleet::{Answer, Keeper, KeeperError, Reserve};

use crate::common::{Place, agree};
use crate::conformance::{Peer, backend, limits, set_up, total};

const LIMIT: u32 = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_many_write_at_once_the_limit_holds_and_the_totals_are_exact() {
    let Some(place) = Place::find("hammer").await else { return };
    let place = Arc::new(place);
    let name = backend("hammer");
    set_up(&place.keeper(), &name).await;
    let over = Arc::new(AtomicBool::new(false));
    let watching = {
        let (place, name, over) = (place.clone(), name.clone(), over.clone());
        tokio::spawn(async move {
            let keeper = place.keeper();
            let mut most = 0;
            while !over.load(Ordering::SeqCst) {
                let seen = total(&keeper, &name).await;
                let active = place.active(&name).await.expect("a counter");
                assert!(seen <= LIMIT && active <= i64::from(LIMIT), "{seen} and {active}");
                most = most.max(seen);
            }
            most
        })
    };
    let hammering = (0..8).map(|k| {
        let (place, name) = (place.clone(), name.clone());
        tokio::spawn(async move { hammer(&place, &name, k).await })
    });
    let mut held = 0;
    for peer in hammering.collect::<Vec<_>>() {
        held += peer.await.expect("no panic");
    }
    over.store(true, Ordering::SeqCst);
    assert!(watching.await.expect("never above the limit") > 0);
    assert_eq!(agree(&place, &place.keeper(), &name).await, held);
}

/// Takes and gives back at random, and says what it holds in the end.
async fn hammer(place: &Place, name: &str, k: u64) -> u32 {
    let keeper = place.keeper();
    let mut rng = fastrand::Rng::with_seed(k);
    let mut peer = Peer::new(name, &format!("peer-{k}"), LIMIT);
    for round in 0..25 {
        let keep = rng.u32(0..=peer.held);
        let want = if round == 24 { keep } else { rng.u32(keep..=LIMIT) };
        let report = peer.next(keep, want);
        // the leases it has given up are not its own again, whatever the answer
        peer.held = keep;
        match keeper.report(&report).await {
            Ok(Answer::Booked(booking)) => {
                (peer.held, peer.share) = (booking.held, booking.share);
            }
            Ok(other) => panic!("{other:?} to {report:?}"),
            // nothing was booked, so the same number is still to come
            Err(KeeperError::Busy { .. }) if round == 0 => peer.seq = 0,
            Err(KeeperError::Busy { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    // a last word, so that nothing of an unheard answer is left
    loop {
        let report = peer.next(peer.held, peer.held);
        if let Ok(Answer::Booked(booking)) = keeper.report(&report).await {
            return booking.held;
        }
    }
}

#[tokio::test]
async fn alone_a_report_and_a_reservation_cost_one_request_each() {
    let Some(place) = Place::find("costs").await else { return };
    let name = &backend("costs");
    let keeper = place.keeper();
    set_up(&keeper, name).await;
    let mut a = Peer::new(name, "a", 100);
    let mut trips = keeper.round_trips();
    let mut since = |keeper: &forebay_fleet::DynamoKeeper| {
        let now = keeper.round_trips();
        std::mem::replace(&mut trips, now).abs_diff(now)
    };
    a.wants(&keeper, 1).await;
    assert_eq!(since(&keeper), 2, "the books are read once");
    for want in 2..10 {
        a.wants(&keeper, want).await;
        assert_eq!(since(&keeper), 1, "taking more");
    }
    a.reports(&keeper, 5, 5).await;
    assert_eq!(since(&keeper), 1, "giving back");
    let version = version(&place, name).await;
    a.wants(&keeper, 5).await;
    assert_eq!(since(&keeper), 2, "a heartbeat: the lease item and a look at the books");
    assert_eq!(self::version(&place, name).await, version, "a heartbeat does not write the books");
    let wish = Reserve {
        backend: name.clone(),
        permits: 3,
        limits: limits(100),
        max_wait_ms: 30_000,
        nonce: 1,
        ttl_ms: 30_000,
    };
    keeper.reserve(&wish).await.expect("permits");
    assert_eq!(since(&keeper), 2, "the rate is read once");
    keeper.reserve(&wish).await.expect("permits");
    assert_eq!(since(&keeper), 1);
    // a copy that is out of date costs one request more, not two
    let other = place.keeper();
    let mut b = Peer::new(name, "b", 100);
    b.wants(&other, 1).await;
    other.reserve(&wish).await.expect("permits");
    a.wants(&keeper, 7).await;
    assert_eq!(since(&keeper), 2);
    keeper.reserve(&wish).await.expect("permits");
    assert_eq!(since(&keeper), 2);
}

async fn version(place: &Place, name: &str) -> AttributeValue {
    let item = place.item(&format!("dsqllease_registry#{name}")).await.expect("a registry");
    item["version"].clone()
}

#[tokio::test]
async fn the_counter_item_guards_the_limit_by_itself() {
    let Some(place) = Place::find("guard").await else { return };
    let name = &backend("guard");
    let keeper = place.keeper();
    set_up(&keeper, name).await;
    let mut a = Peer::new(name, "a", 10);
    a.wants(&keeper, 2).await;
    let set = async |active: u32| {
        let key = AttributeValue::S(format!("dsqllease_counter#{name}"));
        let update = place.client.update_item().table_name(&place.table).key("pk", key);
        let update = update.update_expression("SET active = :active");
        let update =
            update.expression_attribute_values(":active", AttributeValue::N(active.to_string()));
        update.send().await.expect("set");
    };
    set(9).await;
    let booking = a.wants(&keeper, 6).await;
    assert_eq!((booking.held, booking.total), (2, 2), "booked, but nothing granted");
    assert_eq!(a.reports(&keeper, 1, 1).await.held, 1, "giving back always works");
    set(1).await;
    assert_eq!(a.wants(&keeper, 6).await.held, 6);
    assert_eq!(agree(&place, &keeper, name).await, 6);
}

#[tokio::test]
async fn permits_of_many_keepers_never_come_faster_than_the_rate() {
    let Some(place) = Place::find("permits").await else { return };
    let place = Arc::new(place);
    let name = backend("permits");
    set_up(&place.keeper(), &name).await;
    let start = tokio::time::Instant::now();
    let asking = (0..6_u32).map(|_| {
        let (place, name) = (place.clone(), name.clone());
        tokio::spawn(async move {
            let keeper = place.keeper();
            let mut instants = Vec::new();
            for permits in 1..=4 {
                let wish = Reserve {
                    backend: name.clone(),
                    permits,
                    limits: limits(10),
                    max_wait_ms: 60_000,
                    nonce: 1,
                    ttl_ms: 30_000,
                };
                let reserved = keeper.reserve(&wish).await.expect("permits");
                let now_us = start.elapsed().as_micros() as i64;
                let step = reserved.interval_us as i64;
                let permits = 0..i64::from(reserved.permits);
                instants.extend(permits.map(|k| now_us + (reserved.lead_us + k * step).max(0)));
            }
            instants
        })
    });
    let mut instants = Vec::new();
    for asked in asking.collect::<Vec<_>>() {
        instants.extend(asked.await.expect("no panic"));
    }
    instants.sort_unstable();
    assert_eq!(instants.len(), 60);
    // ten a second, five at once; a task that was held up sees them later, never sooner
    for (at_us, earlier) in instants.iter().zip(-4..) {
        assert!(*at_us >= earlier * 100_000 - 50_000, "{earlier} before {at_us} us");
    }
}
