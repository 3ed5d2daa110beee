//! Sources that the backend has told to wait: who waits for them, what the
//! waiting holds, and how they come back.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{Yard, claim, ms, pass, poll, secs, settle};
use forebay::{
    BoxFuture, Builder, Checkout, Clock, GetError, GetOptions, Pool, Settings, SourceSpec,
    TimeSource,
};
use tokio::time::Instant;

fn queued(pool: &Pool<Yard>) -> Checkout<'_, Yard> {
    let mut checkout = pool.get();
    assert!(poll(&mut checkout).is_pending());
    checkout
}

/// A pool whose throttles end at their instant, all at once.
fn builder(max_open: u32) -> Builder<Yard> {
    Pool::builder(Yard::new())
        .max_open(max_open)
        .stagger(None)
        .timeout(secs(600))
        .throttle_ramp(Duration::ZERO)
        .seed(7)
}

/// Two sources with at most two connections each.
fn two_sources() -> Builder<Yard> {
    let settings = Settings { max_open: 2, ..Settings::default() };
    let spec = |name| SourceSpec::new(name, Yard::new()).settings(settings.clone());
    Pool::over([spec("a"), spec("b")]).stagger(None).throttle_ramp(Duration::ZERO).timeout(secs(60))
}

#[track_caller]
fn throttle(pool: &Pool<Yard>, source: &str, retry_after: Duration) {
    pool.source(source).expect("a source of that name").throttled(retry_after);
}

#[tokio::test(start_paused = true)]
async fn waits_merge_by_maximum() {
    let pool = builder(1).build().expect("valid");
    let held = pool.get().await.expect("one");
    let left = || pool.stats().sources[0].throttled_for;
    assert_eq!(left(), None);
    throttle(&pool, "default", secs(30));
    throttle(&pool, "default", secs(10));
    assert_eq!(left(), Some(secs(30)), "a shorter wait does not shorten a longer one");
    pass(secs(5)).await;
    held.throttled(secs(26));
    assert_eq!(left(), Some(secs(26)), "one that ends later does lengthen it");
    drop(held);
    let start = Instant::now();
    let _served = pool.get().await.expect("after the wait");
    assert_eq!(start.elapsed(), secs(26));
    assert_eq!((left(), pool.stats().sources[0].throttles), (None, 3));
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn while_every_source_is_throttled_waiters_hold_a_ticket_and_no_slot() {
    let pool = two_sources().build().expect("valid");
    pool.ready(4, secs(1)).await.expect("full");
    throttle(&pool, "a", secs(20));
    throttle(&pool, "b", secs(10));
    let mut waiters: Vec<_> = (0..3).map(|_| queued(&pool)).collect();
    pass(ms(9_999)).await;
    let stats = pool.stats();
    assert_eq!((stats.ready(), stats.in_use(), stats.waiting), (4, 0, 3));
    assert_eq!(pool.audit(), []);
    pass(ms(2)).await;
    let first = claim(&mut waiters[0]);
    let second = claim(&mut waiters[1]);
    assert_eq!((&*first.source(), &*second.source()), ("b", "b"), "the first that is back");
    assert!(poll(&mut waiters[2]).is_pending(), "the other source is benched yet");
    pass(secs(10)).await;
    assert_eq!(&*claim(&mut waiters[2]).source(), "a");
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_opened_for_those_who_wait_for_a_throttle() {
    let yard = Yard::new();
    let pool = Pool::builder(yard.clone()).target_ready(0).stagger(None).build().expect("valid");
    throttle(&pool, "default", secs(10));
    let waiters: Vec<_> = (0..3).map(|_| queued(&pool)).collect();
    pass(secs(9)).await;
    assert_eq!((yard.connects(), pool.stats().open()), (0, 0));
    pass(secs(4)).await;
    assert_eq!(yard.connects(), 3);
    drop(waiters);
    assert_eq!(pool.audit(), []);
}

/// Twenty wait for ten connections; gives when each step of the ramp was taken,
/// counted from the end of the wait.
async fn ramp(seed: u64) -> Vec<(Duration, u32)> {
    let pool = builder(10).throttle_ramp(secs(2)).seed(seed).build().expect("valid");
    pool.ready(10, secs(1)).await.expect("full");
    let start = Instant::now();
    throttle(&pool, "default", secs(10));
    for _ in 0..20 {
        let pool = pool.clone();
        tokio::spawn(async move {
            let _held = pool.get().await.expect("in time");
            std::future::pending::<()>().await;
        });
    }
    pass(ms(9_990)).await;
    assert_eq!((pool.stats().in_use(), pool.stats().waiting), (0, 20));
    let mut steps = Vec::new();
    let mut in_use = 0;
    while in_use < 10 {
        pass(ms(1)).await;
        let now = pool.stats().in_use();
        assert_eq!(pool.audit(), []);
        if now != in_use {
            assert_eq!(now, in_use + 1, "one step at a time");
            steps.push((start.elapsed().saturating_sub(secs(10)), now));
            in_use = now;
        }
    }
    assert_eq!(pool.stats().waiting, 10);
    steps
}

#[tokio::test(start_paused = true)]
async fn a_source_comes_back_along_a_ramp_and_not_all_at_once() {
    let steps = ramp(1).await;
    assert_eq!(steps.len(), 10);
    let (first, _) = steps[0];
    assert!(first > Duration::ZERO && first <= ms(502), "jitter of up to a quarter: {first:?}");
    for (at, in_use) in &steps {
        // the n-th of ten may go after (n − 1) tenths of the ramp; timers tick in milliseconds
        let due = first + ms(200) * (in_use - 1);
        assert!(*at >= due - ms(2) && *at <= due + ms(3), "{in_use} in use at {at:?}: {steps:?}");
    }
    assert_ne!(ramp(2).await[0], steps[0], "members with other seeds come back at other instants");
}

#[tokio::test(start_paused = true)]
async fn a_throttle_in_the_middle_of_the_ramp_starts_anew() {
    let pool = builder(10).throttle_ramp(secs(2)).build().expect("valid");
    pool.ready(10, secs(1)).await.expect("full");
    throttle(&pool, "default", secs(1));
    let mut waiters: Vec<_> = (0..10).map(|_| queued(&pool)).collect();
    pass(secs(2)).await;
    let before = pool.stats().in_use();
    assert!((2..=8).contains(&before), "half-way: {before}");
    throttle(&pool, "default", secs(5));
    pass(ms(4_900)).await;
    // what was on offer was not claimed, so it went back, and nothing else went out
    let stats = pool.stats();
    assert_eq!((stats.in_use(), stats.unclaimed), (0, u64::from(before)));
    assert!(waiters.iter_mut().all(|waiter| poll(waiter).is_pending()));
    pass(secs(3)).await;
    assert!(waiters.iter_mut().all(|waiter| poll(waiter).is_ready()));
    assert_eq!(pool.audit(), []);
}

/// A clock that only moves when told to, and wakes nobody.
#[derive(Clone)]
struct StoppedClock {
    start: Instant,
    millis: Arc<AtomicU64>,
}

impl TimeSource for StoppedClock {
    fn now(&self) -> Instant {
        self.start + ms(self.millis.load(Ordering::SeqCst))
    }

    fn sleep_until(&self, _at: Instant) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_does_not_pass_a_waiter_at_the_end_of_a_throttle() {
    // the wait is over but the driver has not looked yet: whoever comes first
    // must not find the stock open before those who queue for it
    for newcomer_tries in [false, true] {
        let clock = StoppedClock { start: Instant::now(), millis: Arc::default() };
        let pool = builder(1).clock(Clock::custom(clock.clone())).build().expect("valid");
        let held = pool.get().await.expect("one");
        throttle(&pool, "default", secs(10));
        drop(held);
        let mut older = queued(&pool);
        settle().await;
        clock.millis.store(10_001, Ordering::SeqCst);
        if newcomer_tries {
            assert!(matches!(pool.try_get(), Err(GetError::Empty { .. })));
        } else {
            let _newcomer = queued(&pool);
        }
        drop(claim(&mut older));
        assert_eq!(pool.audit(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn a_hand_off_is_given_back_if_its_source_was_throttled_before_the_claim() {
    let pool = builder(1).build().expect("valid");
    let held = pool.get().await.expect("one");
    let id = held.id;
    let mut first = queued(&pool);
    let mut second = queued(&pool);
    drop(held);
    assert_eq!(pool.stats().in_use(), 1, "on offer");
    throttle(&pool, "default", secs(10));
    assert!(poll(&mut first).is_pending(), "the re-check at the claim");
    let stats = pool.stats();
    assert_eq!((stats.ready(), stats.in_use(), stats.waiting), (1, 0, 2));
    assert_eq!(pool.audit(), []);
    pass(ms(10_001)).await;
    assert!(poll(&mut second).is_pending(), "the first has kept its place");
    let served = claim(&mut first);
    assert_eq!(served.id, id);
    drop(served);
    drop(claim(&mut second));
    assert_eq!((pool.stats().checkouts, pool.stats().r#use.count()), (3, 3));
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn whoever_declines_a_hand_off_is_the_first_to_be_served_by_another_source() {
    let pool = two_sources().build().expect("valid");
    pool.ready(4, secs(1)).await.expect("full");
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(pool.get().await.expect("one"));
    }
    held.sort_by_key(|conn| conn.source());
    let mut waiter = queued(&pool);
    let mut younger = queued(&pool);
    drop(held.remove(0));
    throttle(&pool, "a", secs(10));
    assert!(poll(&mut waiter).is_pending());
    held.pop();
    assert!(poll(&mut younger).is_pending());
    assert_eq!(&*claim(&mut waiter).source(), "b");
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn a_wait_over_the_tolerance_is_a_typed_error_at_once() {
    let pool = two_sources().max_retry_after(Some(secs(10))).build().expect("valid");
    pool.ready(4, secs(1)).await.expect("full");
    let start = Instant::now();
    throttle(&pool, "a", secs(60));
    assert_eq!(&*pool.get().await.expect("not all are benched").source(), "b");
    let all_of_b = (pool.get().await.expect("ready"), pool.get().await.expect("ready"));
    drop(queued(&pool)); // in use, not benched: it is waited for
    let excluding = pool.get_with(GetOptions::new().exclude("b")).await;
    let error = excluding.expect_err("all that it may use are");
    assert_eq!(
        error.to_string(),
        "every source is throttled for another 60s, longer than max_retry_after (10s)"
    );
    throttle(&pool, "b", secs(30));
    let error = pool.get().await.expect_err("all are");
    let GetError::Throttled { retry_after, tolerance } = error else { panic!("{error}") };
    assert_eq!((retry_after, tolerance), (secs(30), secs(10)), "the first to be back counts");
    assert_eq!(start.elapsed(), Duration::ZERO);
    pass(secs(20)).await;
    drop(all_of_b);
    let served = pool.get().await.expect("ten seconds are waited for");
    assert_eq!((&*served.source(), start.elapsed()), ("b", secs(30)));
    assert_eq!(pool.stats().refused_throttled, 2);
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn connections_in_use_stay_in_use() {
    let pool = builder(2).build().expect("valid");
    pool.ready(2, secs(1)).await.expect("full");
    let held = pool.get().await.expect("one");
    let other = pool.get().await.expect("another");
    held.throttled(secs(10));
    pass(secs(5)).await;
    assert_eq!(pool.stats().in_use(), 2);
    assert!(!held.killed.load(Ordering::SeqCst));
    let id = held.id;
    drop(held);
    let stats = pool.stats();
    assert_eq!((stats.ready(), stats.in_use()), (1, 1), "back in stock, not closed");
    assert!(matches!(pool.try_get(), Err(GetError::Empty { in_use: 1, opening: 0 })));
    pass(secs(6)).await;
    assert_eq!(pool.try_get().expect("the wait is over").id, id);
    drop(other);
    assert_eq!(pool.audit(), []);
}
