//! Several stocks under one cap, one per key: who gives way to whom, what is
//! filled, what a waiter may count on, and that keys are forgotten.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::task::Poll;
use std::time::Duration;

use common::{Yard, ms, pass, poll, secs, settle};
use forebay::{
    Builder, Checkout, Discard, GetError, GetOptions, Guard, LocalCount, Pool, Priority,
};
use tokio::time::Instant;

fn of(key: u32) -> GetOptions<u32> {
    GetOptions::new().key(key)
}

/// A checkout of this key that has taken its ticket.
fn queued(pool: &Pool<Yard>, key: u32) -> Checkout<'_, Yard> {
    let mut checkout = pool.get_with(of(key));
    assert!(poll(&mut checkout).is_pending());
    checkout
}

/// A pool that opens on demand only.
fn on_demand(yard: &Yard, max_open: u32) -> Builder<Yard> {
    Pool::builder(yard.clone()).max_open(max_open).target_ready(0).stagger(None).seed(11)
}

/// Checks `n` connections of a key out at once; gives them and the longest wait.
async fn take(pool: &Pool<Yard>, key: u32, n: usize) -> (Vec<Guard<Yard>>, Duration) {
    let start = Instant::now();
    let tasks: Vec<_> = (0..n)
        .map(|_| {
            let pool = pool.clone();
            tokio::spawn(async move { pool.get_with(of(key)).await })
        })
        .collect();
    let mut held = Vec::new();
    for task in tasks {
        held.push(task.await.expect("joined").expect("served"));
    }
    (held, start.elapsed())
}

/// How many of each of these keys lie in stock.
fn in_stock(pool: &Pool<Yard>, keys: impl IntoIterator<Item = u32>) -> Vec<usize> {
    keys.into_iter()
        .map(|key| {
            let mut held = Vec::new();
            let mut next = pool.get_with(of(key));
            while let Poll::Ready(conn) = poll(&mut next) {
                held.push(conn.expect("ready"));
                next = pool.get_with(of(key));
            }
            held.len()
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_checkout_gets_only_connections_of_its_key() {
    let yard = Yard::new();
    let pool = on_demand(&yard, 10).build().expect("valid");
    for round in 0..3 {
        let mut held = Vec::new();
        for key in [1, 2, 1, 3, 0] {
            let conn = pool.get_with(of(key)).await.expect("one");
            assert_eq!(conn.key, key);
            held.push(conn);
        }
        assert_eq!(pool.get().await.expect("the default key").key, 0);
        assert_eq!(pool.audit(), []);
        assert_eq!(yard.connects(), 6, "opened in the first round, used again in round {round}");
    }
}

#[tokio::test(start_paused = true)]
async fn at_the_cap_two_alternating_keys_wait_for_one_open_at_most() {
    let yard = Yard::new().handshake(ms(50));
    let count = LocalCount::shared(10);
    let pool = on_demand(&yard, 10).count(count.clone()).build().expect("valid");
    for round in 0..6_u64 {
        let key = 1 + (round % 2) as u32;
        let (held, longest) = take(&pool, key, 10).await;
        assert_eq!(longest, ms(50), "one open, in round {round}");
        assert!(held.iter().all(|conn| conn.key == key));
        assert_eq!((count.held(), yard.open()), (10, 10));
        assert_eq!(pool.stats().discarded(Discard::Evicted), round * 10);
        assert_eq!(pool.audit(), []);
        drop(held);
        pass(ms(20)).await;
    }
    // and one by one, where both find room
    for turn in 0..20 {
        let (_held, longest) = take(&pool, 1 + turn % 2, 1).await;
        assert!(longest <= ms(50), "{longest:?}");
    }
    assert_eq!((yard.most_open(), count.held()), (10, 10));
}

#[tokio::test(start_paused = true)]
async fn the_longest_idle_connection_of_another_key_gives_way() {
    let yard = Yard::new().handshake(ms(50));
    let pool = on_demand(&yard, 4).build().expect("valid");
    for key in [1, 2, 3] {
        drop(pool.get_with(of(key)).await.expect("one"));
        pass(secs(1)).await;
    }
    // key 1 has one that is older and one that is younger than those of 2 and 3
    drop(take(&pool, 1, 2).await);
    drop(pool.get_with(of(1)).await.expect("the younger one"));
    let (held, wait) = take(&pool, 4, 1).await;
    assert_eq!(wait, ms(50));
    drop(held);
    assert_eq!(pool.stats().discarded(Discard::Evicted), 1);
    assert_eq!(in_stock(&pool, [1, 2, 3, 4]), [2, 0, 1, 1], "that of key 2 was idle longest");
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn the_evicted_one_is_closed_first_and_its_lease_is_not_let_out_of_hand() {
    let mut yard = Yard::new().handshake(ms(50));
    yard.lets_go_after = Some(ms(200));
    let count = LocalCount::shared(1);
    let pool = on_demand(&yard, 5).count(count.clone()).build().expect("valid");
    drop(pool.get_with(of(1)).await.expect("the only lease"));
    // another pool is after the same lease
    let rival = on_demand(&Yard::new(), 5).count(count.clone()).build().expect("valid");
    let mut rival_waiter = rival.get();
    assert!(poll(&mut rival_waiter).is_pending());
    let start = Instant::now();
    let mut waiter = queued(&pool, 2);
    while start.elapsed() < ms(249) {
        pass(ms(1)).await;
        assert_eq!((count.held(), yard.open()), (1, 1), "at {:?}", start.elapsed());
        assert_eq!((pool.audit(), rival.stats().open()), (vec![], 0));
    }
    pass(ms(2)).await;
    let Poll::Ready(Ok(served)) = poll(&mut waiter) else { panic!("after close and open") };
    assert_eq!((served.key, yard.most_open()), (2, 1));
    drop(served);
    pool.drain(secs(1)).await;
    settle().await;
    assert!(poll(&mut rival_waiter).is_ready(), "the lease is free in the end");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_leaves_while_its_slot_is_being_freed_leaves_no_trace() {
    // its key has no connection and no waiter then, and is forgotten; the slot
    // must not be opened for a key that is no more
    let mut yard = Yard::new();
    yard.lets_go_after = Some(ms(200));
    let pool = on_demand(&yard, 1).build().expect("valid");
    drop(pool.get_with(of(1)).await.expect("one"));
    let waiter = queued(&pool, 2);
    pass(ms(100)).await;
    drop(waiter);
    // its deadline is the next, so the driver looks
    let mut other = pool.get_with(of(3).timeout(secs(5)));
    assert!(poll(&mut other).is_pending());
    pass(ms(50)).await;
    assert_eq!(pool.audit(), []);
    pass(secs(1)).await;
    let Poll::Ready(Ok(served)) = poll(&mut other) else { panic!("it has taken over the slot") };
    assert_eq!((served.key, yard.connects()), (3, 2), "nothing was opened in between");
    drop(served);
    assert_eq!(pool.get_with(of(2)).await.expect("served").key, 2);
    assert_eq!((pool.audit(), yard.most_open()), (vec![], 1));
}

#[tokio::test(start_paused = true)]
async fn below_the_cap_idle_connections_of_another_key_do_not_stand_in_the_way() {
    // they are not what this waiter waits for, however many there are
    for target in [0, 5] {
        let yard = Yard::new();
        let pool = on_demand(&yard, 20).target_ready(target).prefill([1]).build().expect("valid");
        drop(take(&pool, 1, 9).await);
        let brief = pool.get_with(of(2).timeout(secs(1))).await;
        assert_eq!(brief.expect("there is room for it").key, 2);
        assert_eq!(pool.stats().discarded(Discard::Evicted), 0);
        assert_eq!(pool.audit(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn the_configured_keys_are_filled_evenly() {
    let yard = Yard::new();
    let pool = Pool::builder(yard.clone()).max_open(10).target_ready(6).prefill([1, 2, 3]);
    let pool = pool.stagger(None).build().expect("valid");
    pool.filled().await.expect("full");
    assert_eq!(in_stock(&pool, [0, 1, 2, 3]), [0, 2, 2, 2]);
    drop(pool.get_with(of(9)).await.expect("opened"));
    pass(secs(60)).await;
    assert_eq!(in_stock(&pool, [9, 1, 2, 3]), [1, 2, 2, 2], "others are not filled for");
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn without_configured_keys_the_one_used_last_is_filled_and_an_unseen_one_is_not() {
    let yard = Yard::new();
    let count = LocalCount::shared(8);
    let pool = Pool::builder(yard.clone()).max_open(8).target_ready(4).prefill([]);
    let pool = pool.stagger(None).count(count.clone()).build().expect("valid");
    pass(secs(60)).await;
    let stats = pool.stats();
    assert_eq!((yard.connects(), count.held()), (0, 0), "nothing is known to be wanted");
    assert!(stats.wakeups < 10, "and nobody turns round on the spot: {}", stats.wakeups);
    drop(pool.get_with(of(7)).await.expect("opened"));
    settle().await;
    // the one that was asked for and a stock of four
    assert_eq!(in_stock(&pool, [0, 7]), [0, 5]);
    assert_eq!((count.held(), pool.audit()), (5, vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_permanent_stream_of_one_key_at_the_cap_does_not_starve_another() {
    let yard = Yard::new().handshake(ms(50));
    let pool = on_demand(&yard, 2).build().expect("valid");
    for _ in 0..20 {
        let pool = pool.clone();
        tokio::spawn(async move {
            while let Ok(_held) = pool.get_with(of(1)).await {
                tokio::time::sleep(ms(10)).await;
            }
        });
    }
    pass(secs(2)).await;
    for _ in 0..10 {
        let start = Instant::now();
        let conn = pool.get_with(of(2)).await.expect("not starved");
        let wait = start.elapsed();
        // a quarter of a second, until one comes back, and an open
        assert!(wait <= ms(250 + 10 + 50), "{wait:?}");
        assert_eq!((conn.key, pool.audit()), (2, vec![]));
        drop(conn);
        pass(ms(100)).await;
    }
    assert_eq!(yard.most_open(), 2);
}

#[tokio::test(start_paused = true)]
async fn below_the_cap_a_backlog_of_one_key_does_not_keep_another_from_being_opened() {
    // one open at a time, and more waiters of key 1 than will ever be served
    let yard = Yard::new().handshake(ms(50));
    let pool = on_demand(&yard, 100).max_opening(1).build().expect("valid");
    let _backlog: Vec<_> = (0..50).map(|_| queued(&pool, 1)).collect();
    pass(ms(60)).await;
    let mut other = pool.get_with(of(2).priority(Priority::High));
    assert!(poll(&mut other).is_pending());
    pass(ms(150)).await;
    assert!(poll(&mut other).is_ready(), "it is the first in the queue");
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn under_a_cap_on_use_the_older_waiter_of_another_key_goes_first() {
    let yard = Yard::new();
    let pool = on_demand(&yard, 4).max_in_use(1).build().expect("valid");
    drop(pool.get_with(of(2)).await.expect("one"));
    let held = pool.get_with(of(1)).await.expect("one");
    let mut older = queued(&pool, 2);
    let mut younger = queued(&pool, 1);
    settle().await;
    drop(held);
    assert!(poll(&mut younger).is_pending());
    let Poll::Ready(Ok(served)) = poll(&mut older) else { panic!("its stock is ready") };
    assert_eq!((served.key, pool.audit()), (2, vec![]));
    drop(served);
    assert!(poll(&mut younger).is_ready());
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn at_the_cap_the_slot_goes_to_the_key_of_the_oldest_waiter() {
    // of a connection that comes back, and of one that lies idle
    for idle in [false, true] {
        let pool = on_demand(&Yard::new(), 1).build().expect("valid");
        let mut held = Some(pool.get_with(of(1)).await.expect("one"));
        held.take_if(|_| idle);
        // keys 2 and 3 are known in this order, and waited for in the other
        drop(queued(&pool, 2));
        let mut first = queued(&pool, 3);
        let mut second = queued(&pool, 2);
        drop(held);
        settle().await;
        assert!(poll(&mut second).is_pending());
        let Poll::Ready(Ok(served)) = poll(&mut first) else { panic!("it came first") };
        drop(served);
        settle().await;
        assert!(poll(&mut second).is_ready());
        assert_eq!(pool.audit(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_keys_that_are_used_once_leave_the_pool_as_it_was() {
    let yard = Yard::new();
    let pool = on_demand(&yard, 10).build().expect("valid");
    let start = Instant::now();
    for key in 1..=10_000 {
        assert_eq!(pool.get_with(of(key)).await.expect("opened").key, key);
    }
    assert_eq!(start.elapsed(), Duration::ZERO, "nobody had to wait");
    let stats = pool.stats();
    assert_eq!((stats.open(), stats.discarded(Discard::Evicted)), (10, 9_990));
    assert_eq!((pool.audit(), yard.most_open()), (vec![], 10));
    // refused ones leave nothing behind either
    let _all = take(&pool, 1, 10).await;
    let full = pool.get_with(of(20_000).timeout(Duration::ZERO));
    assert!(matches!(full.await, Err(GetError::Timeout(_))));
    for key in 20_000..30_000 {
        let refused = pool.get_with(of(key).timeout(Duration::ZERO)).await;
        assert!(matches!(refused, Err(GetError::Timeout(_))));
    }
    assert_eq!(pool.audit(), []);
}
