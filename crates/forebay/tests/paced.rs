//! Opens that wait for the rate: which of them go when the need shrinks while
//! they wait, and what becomes of them when the pool is drained.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::time::Duration;

use common::{Yard, ms, pass, secs, settle};
use forebay::{LocalRate, Pool, Rate};
use tokio::time::Instant;

/// Ten a second once the first fill has used the burst up.
fn paced(yard: &Yard) -> Pool<Yard> {
    Pool::builder(yard.clone())
        .max_open(50)
        .target_ready(10)
        .rate(LocalRate::shared(Rate::new(10, 10).expect("valid")))
        .stagger(None)
        .seed(1)
        .build()
        .expect("valid settings")
}

/// A load that goes up and down kept the stock far below its target: of the
/// opens waiting for the rate the first gave up, permit in hand, because those
/// behind it would do; and so did each after it.
#[tokio::test(start_paused = true)]
async fn an_open_with_its_permit_does_not_give_way_to_those_still_waiting_for_theirs() {
    let yard = Yard::new();
    let pool = paced(&yard);
    pool.ready(10, secs(1)).await.expect("filled");
    settle().await;

    // eight are taken, eight opens queue for the rate; four come back
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(pool.get().await.expect("ready"));
    }
    settle().await;
    assert_eq!(pool.stats().sources[0].opening, 8);
    held.truncate(4);

    // four are needed, and four permits come within the next 400 ms
    pass(ms(405)).await;
    assert_eq!(pool.stats().ready(), 10, "the stock is below its target: {:?}", pool.stats());
    // the four that are not needed any more open nothing
    pass(secs(1)).await;
    assert_eq!((yard.connects(), pool.stats().sources[0].abandoned), (14, 4));
    assert_eq!(pool.audit(), []);
}

/// With a slow rate the opens that had not begun held a drain up until their
/// permits came, and were then reported as connections still in use.
#[tokio::test(start_paused = true)]
async fn a_drain_does_not_wait_for_opens_that_wait_for_the_rate() {
    let yard = Yard::new();
    let pool = paced(&yard);
    pool.ready(10, secs(1)).await.expect("filled");
    let mut held = Vec::new();
    for _ in 0..10 {
        held.push(pool.get().await.expect("ready"));
    }
    settle().await;
    assert_eq!(pool.stats().sources[0].opening, 10);
    drop(held);

    let start = Instant::now();
    let drained = pool.drain(secs(15)).await;
    assert_eq!((drained.left, drained.killed), (0, 0));
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!((yard.open(), yard.connects()), (0, 10));
}
