//! The end of a pool: drained, dropped, or left behind by its runtime; and
//! `invalidate`, the end of a generation.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use common::{Act, Yard, ms, pass, poll, secs, settle};
use forebay::{
    Builder, Checkout, Discard, Drained, GetError, GetOptions, Guard, LocalCount, Pool, SourceSpec,
};
use tokio::runtime::Runtime;
use tokio::time::Instant;

fn builder(yard: &Yard, max_open: u32) -> Builder<Yard> {
    Pool::builder(yard.clone()).max_open(max_open).stagger(None).seed(2)
}

async fn full(yard: &Yard, max_open: u32) -> Pool<Yard> {
    let pool = builder(yard, max_open).build().expect("valid");
    pool.ready(max_open, secs(1)).await.expect("full");
    pool
}

/// Drains in the background; gives what came of it and how long it took.
fn draining(pool: &Pool<Yard>, within: Duration) -> tokio::task::JoinHandle<(Drained, Duration)> {
    let pool = pool.clone();
    tokio::spawn(async move {
        let start = Instant::now();
        (pool.drain(within).await, start.elapsed())
    })
}

/// The figures of a drain.
fn figures(drained: Drained) -> (u32, u32) {
    (drained.left, drained.killed)
}

#[tokio::test(start_paused = true)]
async fn a_drain_closes_the_stock_and_refuses_from_then_on() {
    let yard = Yard::new();
    let count = LocalCount::shared(3);
    let pool = builder(&yard, 3).count(count.clone()).build().expect("valid");
    pool.ready(3, secs(1)).await.expect("full");
    let start = Instant::now();
    assert_eq!(figures(pool.drain(secs(15)).await), (0, 0));
    assert_eq!(start.elapsed(), Duration::ZERO, "nothing to wait for");
    assert_eq!((yard.open(), pool.stats().open(), count.held()), (0, 0, 0));
    assert_eq!(pool.stats().discarded(Discard::Drained), 3);
    let refused = pool.get().await.expect_err("closed");
    assert!(matches!(refused, GetError::Closed));
    assert_eq!(refused.to_string(), "the pool is closed");
    assert!(matches!(pool.try_get(), Err(GetError::Closed)));
    pool.ready(1, secs(60)).await.expect_err("nothing will come");
    assert_eq!(start.elapsed(), Duration::ZERO, "and nobody waits for it");
    pass(secs(3600)).await;
    assert_eq!((yard.connects(), pool.audit()), (3, vec![]), "nothing is opened any more");
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_those_who_wait_and_waits_for_those_in_use() {
    let yard = Yard::new();
    let pool = full(&yard, 3).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(pool.get().await.expect("ready"));
    }
    let mut waiting = pool.get();
    let mut offered = pool.get();
    assert!(poll(&mut offered).is_pending() && poll(&mut waiting).is_pending());
    held.pop();
    let drain = draining(&pool, secs(15));
    settle().await;
    for waiter in [&mut offered, &mut waiting] {
        assert!(matches!(poll(waiter), Poll::Ready(Err(GetError::Closed))));
    }
    assert_eq!((yard.open(), drain.is_finished()), (2, false), "what was on offer is closed");
    pass(secs(2)).await;
    held.pop();
    pass(secs(1)).await;
    assert_eq!((yard.open(), drain.is_finished()), (1, false));
    assert_eq!(pool.audit(), []);
    held.pop();
    let (drained, took) = drain.await.expect("joined");
    assert_eq!((figures(drained), took), ((0, 0), secs(3)));
    assert_eq!((yard.open(), yard.server.kills.load(Ordering::SeqCst)), (0, 0));
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn at_the_deadline_what_is_still_in_use_is_killed() {
    let yard = Yard::new();
    let pool = full(&yard, 3).await;
    let held = [pool.get().await.expect("ready"), pool.get().await.expect("ready")];
    let start = Instant::now();
    let drained = pool.drain(secs(5)).await;
    // both figures are of the deadline: two are with their users, and both were killed
    assert_eq!((figures(drained), start.elapsed()), ((2, 2), secs(5)));
    assert!(held.iter().all(|conn| conn.killed.load(Ordering::SeqCst)), "before drain returns");
    assert_eq!(yard.server.kills.load(Ordering::SeqCst), 2);
    assert_eq!(figures(pool.drain(secs(1)).await), (2, 0), "nobody is killed twice");
    drop(held);
    settle().await;
    assert_eq!((yard.open(), pool.stats().open(), pool.audit()), (0, 0, vec![]));
    let stats = pool.stats();
    assert_eq!((stats.discarded(Discard::Drained), stats.discarded(Discard::Killed)), (1, 2));
    assert_eq!(figures(pool.drain(secs(1)).await), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_drain_leaves_alone_what_its_user_keeps() {
    let yard = Yard::new();
    let pool = full(&yard, 2).await;
    let kept = pool.get().await.expect("ready").detach();
    let start = Instant::now();
    assert_eq!(figures(pool.drain(secs(5)).await), (0, 0));
    assert_eq!((start.elapsed(), yard.open()), (Duration::ZERO, 1));
    pass(secs(60)).await;
    assert!(!kept.killed.load(Ordering::SeqCst));
    assert_eq!((pool.stats().sources[0].detached, pool.audit()), (1, vec![]));
    drop(kept);
    settle().await;
    assert_eq!((yard.open(), pool.stats().open()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_a_connect_under_way_and_keeps_nothing_of_it() {
    let yard = Yard::new();
    yard.then([Act::Late(secs(2)), Act::Refuse]);
    let pool = builder(&yard, 2).build().expect("valid");
    settle().await;
    let (drained, took) = draining(&pool, secs(15)).await.expect("joined");
    assert_eq!((figures(drained), took), ((0, 0), secs(2)));
    assert_eq!((yard.open(), yard.connects()), (0, 2));
    assert_eq!((pool.stats().discarded(Discard::Drained), pool.audit()), (1, vec![]));
}

#[tokio::test(start_paused = true)]
async fn the_last_handle_closes_the_stock_and_a_guard_closes_its_connection() {
    let yard = Yard::new();
    let pool = full(&yard, 3).await;
    let held = pool.get().await.expect("ready");
    let other = pool.clone();
    drop(pool);
    settle().await;
    assert_eq!(yard.open(), 3, "there is another handle");
    drop(other);
    settle().await;
    assert_eq!(yard.open(), 1, "the one in use stays");
    assert!(!held.killed.load(Ordering::SeqCst));
    drop(held);
    settle().await;
    assert_eq!(yard.open(), 0);
}

#[tokio::test(start_paused = true)]
async fn invalidate_ends_a_generation() {
    let yard = Yard::new();
    let pool = full(&yard, 3).await;
    let held = pool.get().await.expect("ready");
    pool.invalidate();
    settle().await;
    let stats = pool.stats();
    assert_eq!((stats.ready(), stats.in_use()), (2, 1), "the stock is new, what is in use stays");
    assert_eq!((stats.discarded(Discard::OldGeneration), yard.connects()), (2, 5));
    drop(held);
    settle().await;
    assert_eq!((yard.open(), yard.connects()), (3, 6));
    let mut all = Vec::new();
    for _ in 0..3 {
        all.push(pool.get().await.expect("ready"));
    }
    assert!(all.iter().all(|conn| conn.id >= 3));
    assert_eq!(pool.stats().discarded(Discard::OldGeneration), 3);
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn a_connect_that_began_before_invalidate_is_of_the_old_generation() {
    let yard = Yard::new().handshake(ms(100));
    let pool = builder(&yard, 1).build().expect("valid");
    pass(ms(50)).await;
    pool.invalidate();
    let start = Instant::now();
    assert_eq!(pool.get().await.expect("a new one").id, 1);
    assert_eq!(start.elapsed(), ms(150));
    assert_eq!(pool.stats().discarded(Discard::OldGeneration), 1);
    assert_eq!((pool.audit(), yard.most_open()), (vec![], 1));
}

#[tokio::test(start_paused = true)]
async fn invalidating_one_source_leaves_the_other() {
    let yards = [Yard::new(), Yard::new()];
    let specs = yards.iter().zip(["a", "b"]).map(|(y, name)| SourceSpec::new(name, y.clone()));
    let pool = Pool::over(specs).max_open(2).stagger(None).build().expect("valid");
    pool.ready(4, secs(1)).await.expect("full");
    pool.source("a").expect("it").invalidate();
    settle().await;
    assert_eq!((yards[0].connects(), yards[1].connects()), (4, 2));
    assert!(pool.get_with(GetOptions::new().exclude("b")).await.expect("of a").id >= 2);
    assert!(pool.get_with(GetOptions::new().exclude("a")).await.expect("of b").id < 2);
    assert!(pool.source("c").is_none());
    assert_eq!(pool.audit(), []);
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// What a checkout answers in a runtime of its own. It must not wait, so the
/// limit, in real time, is only reached by a test that fails.
fn answer(checkout: Checkout<'_, Yard>) -> Result<Guard<Yard>, GetError> {
    let bounded = async { tokio::time::timeout(secs(20), checkout).await };
    runtime().block_on(bounded).expect("an answer at once")
}

#[test]
fn a_pool_whose_runtime_has_ended_is_closed() {
    let (first, yard) = (runtime(), Yard::new());
    let pool = first.block_on(full(&yard, 3));
    let held = first.block_on(async { pool.get().await.expect("ready") });
    drop(first);
    assert_eq!(yard.open(), 1, "the stock went with the runtime");
    assert!(matches!(answer(pool.get()), Err(GetError::Closed)));
    assert!(matches!(pool.try_get(), Err(GetError::Closed)));
    assert_eq!(pool.audit(), []);
    drop(held);
    assert_eq!((yard.open(), pool.stats().open()), (0, 0), "dropped where it is, by its user");
    assert_eq!(pool.audit(), []);
}

#[test]
fn whoever_waits_when_the_runtime_ends_is_told() {
    let (first, yard) = (runtime(), Yard::new());
    let pool = first.block_on(full(&yard, 1));
    let held = first.block_on(async { pool.get().await.expect("ready") });
    let mut waiting = pool.get();
    assert!(poll(&mut waiting).is_pending());
    drop(first);
    assert!(matches!(answer(waiting), Err(GetError::Closed)));
    drop(held);
    assert_eq!((yard.open(), pool.audit()), (0, vec![]));
}

#[test]
fn a_runtime_that_ends_before_the_driver_ever_ran_closes_the_pool_too() {
    let (first, yard) = (runtime(), Yard::new());
    let pool = {
        let _entered = first.enter();
        builder(&yard, 1).build().expect("valid")
    };
    let mut waiting = pool.get();
    assert!(poll(&mut waiting).is_pending());
    drop(first);
    assert!(matches!(answer(waiting), Err(GetError::Closed)));
    assert!(matches!(answer(pool.get()), Err(GetError::Closed)));
    assert_eq!((yard.connects(), pool.audit()), (0, vec![]));
}

#[test]
fn nothing_leaks_when_a_runtime_ends_with_opens_closes_and_resets_under_way() {
    let (first, mut yard) = (runtime(), Yard::new());
    yard.lets_go_after = Some(secs(3600));
    yard.then([Act::Succeed, Act::Succeed, Act::Succeed, Act::Hang]);
    yard.server.reset_hangs.store(true, Ordering::SeqCst);
    let count = LocalCount::shared(4);
    let (pool, held) = first.block_on(async {
        let pool = builder(&yard, 4).count(count.clone()).build().expect("valid");
        pool.ready(3, secs(20)).await.expect("all but the one that hangs");
        let held = pool.get().await.expect("ready");
        pool.get().await.expect("ready").discard(Discard::Broken);
        let mut dirty = pool.get().await.expect("ready");
        dirty.state = forebay::Returned::NeedsReset;
        drop(dirty);
        settle().await;
        (pool, held)
    });
    let source = &pool.stats().sources[0];
    assert_eq!((source.opening, source.closing, source.in_use), (1, 1, 2));
    assert_eq!((yard.open(), count.held()), (4, 4));
    drop(first);
    assert_eq!((yard.open(), count.held(), pool.stats().open()), (1, 1, 1));
    assert_eq!(pool.audit(), []);
    let kept = held.detach();
    drop(kept);
    assert_eq!((yard.open(), count.held(), pool.stats().open()), (0, 0, 0));
    assert_eq!(pool.audit(), []);
}

#[test]
fn a_drain_after_the_runtime_has_ended_waits_for_the_last_guard() {
    let (first, yard) = (runtime(), Yard::new());
    let pool = first.block_on(full(&yard, 2));
    let held = first.block_on(async { pool.get().await.expect("ready") });
    drop(first);
    runtime().block_on(async {
        let drain = draining(&pool, secs(20));
        settle().await;
        assert!(!drain.is_finished());
        drop(held);
        let (drained, took) = drain.await.expect("joined");
        assert_eq!(figures(drained), (0, 0));
        assert!(took < secs(20), "it was told");
    });
    assert_eq!((yard.open(), pool.audit()), (0, vec![]));
}
