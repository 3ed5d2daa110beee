//! Getting and giving back: the ordinary life of a connection.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use common::{Act, Yard, ms, pass, secs, settle};
use forebay::{Discard, GetError, GetOptions, Pool};

#[tokio::test(start_paused = true)]
async fn a_connection_goes_out_and_comes_back() {
    let yard = Yard::new();
    let pool = Pool::builder(yard.clone()).max_open(3).stagger(None).build().expect("valid");
    pool.ready(3, secs(1)).await.expect("full");
    let first = pool.get().await.expect("one");
    let stats = pool.stats();
    assert_eq!((stats.ready(), stats.in_use(), stats.open()), (2, 1, 3));
    let id = first.id;
    drop(first);
    assert_eq!(pool.get().await.expect("one").id, id, "the most recently used comes first");
    assert_eq!(pool.audit(), []);
    assert_eq!(yard.connects(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_served_when_one_comes_back() {
    let pool = Pool::builder(Yard::new()).max_open(1).stagger(None).build().expect("valid");
    let held = pool.get().await.expect("one");
    let other = pool.clone();
    let waiter = tokio::spawn(async move { other.get().await.map(|conn| conn.id) });
    settle().await;
    assert_eq!(pool.stats().waiting, 1);
    let id = held.id;
    drop(held);
    assert_eq!(waiter.await.expect("joined").expect("served"), id);
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_names_the_phase_and_the_figures() {
    let pool = Pool::builder(Yard::new()).max_open(1).stagger(None).build().expect("valid");
    let _held = pool.get().await.expect("one");
    let error = pool.get().await.expect_err("all in use");
    assert_eq!(error.to_string(), "waited 30 s in queue: 1 in use, 0 ahead, 0 opening");
    let brief = pool.get_with(GetOptions::new().brief()).await.expect_err("all in use");
    assert_eq!(brief.to_string(), "waited 100 ms in queue: 1 in use, 0 ahead, 0 opening");
    assert!(matches!(pool.try_get(), Err(GetError::Empty { in_use: 1, opening: 0 })));
}

#[tokio::test(start_paused = true)]
async fn a_guard_may_be_dropped_outside_any_runtime() {
    let pool = Pool::builder(Yard::new()).max_open(1).stagger(None).build().expect("valid");
    let held = pool.get().await.expect("one");
    std::thread::spawn(move || drop(held)).join().expect("dropped");
    assert_eq!(pool.stats().ready(), 1);
    let held = pool.get().await.expect("one");
    std::thread::spawn(move || held.discard(Discard::Broken)).join().expect("dropped");
    pass(secs(2)).await;
    assert_eq!(pool.stats().discarded(Discard::Broken), 1);
    assert_eq!(pool.stats().ready(), 1, "replaced");
}

#[tokio::test(start_paused = true)]
async fn a_broken_connection_is_not_handed_out() {
    let yard = Yard::new();
    let pool = Pool::builder(yard.clone()).max_open(2).stagger(None).build().expect("valid");
    pool.ready(2, secs(1)).await.expect("full");
    let mut held = pool.get().await.expect("one");
    held.broken = true;
    drop(held);
    let next = pool.get().await.expect("the other");
    assert!(!next.broken);
    pass(ms(10)).await;
    assert_eq!(pool.stats().open(), 2);
    assert_eq!(yard.open(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_failing_backend_is_named_in_the_timeout() {
    let yard = Yard::new();
    yard.then([Act::Refuse; 1000]);
    let pool = Pool::builder(yard.clone()).max_open(4).stagger(None).build().expect("valid");
    let error = pool.get().await.expect_err("nothing opens");
    let text = error.to_string();
    assert!(text.starts_with("waited 30 s in connect: 0 in use, 0 ahead"), "{text}");
    assert!(text.ends_with("last open failed: the backend said no (Refuse)"), "{text}");
    assert!(yard.connects() < 40, "the breaker holds back: {} connects", yard.connects());
}
