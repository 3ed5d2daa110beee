//! The queue: who is served next, who is refused, what a deadline covers, and
//! what becomes of a hand-off that nobody claims.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use common::{Act, Yard, claim, ms, pass, poll, secs, settle};
use forebay::{
    Builder, Checkout, CountBudget, Discard, GetError, GetOptions, LocalCount, LocalRate, Pool,
    Priority, Rate, RateBudget, Settings, SourceSpec,
};
use tokio::time::Instant;

fn builder(yard: &Yard) -> Builder<Yard> {
    Pool::builder(yard.clone()).max_open(1).stagger(None).timeout(secs(60)).seed(1)
}

/// A checkout of this priority that has taken its ticket.
fn queued(pool: &Pool<Yard>, priority: Priority) -> Checkout<'_, Yard> {
    let mut checkout = pool.get_with(GetOptions::new().priority(priority));
    assert!(poll(&mut checkout).is_pending());
    checkout
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_the_order_in_which_they_came() {
    let pool = builder(&Yard::new()).build().expect("valid");
    let mut held = pool.get().await.expect("one");
    let mut waiters: Vec<_> = (0..5).map(|_| queued(&pool, Priority::Normal)).collect();
    for turn in 0..waiters.len() {
        drop(held);
        for later in &mut waiters[turn + 1..] {
            assert!(poll(later).is_pending(), "nobody passes waiter {turn}");
        }
        held = claim(&mut waiters[turn]);
        assert_eq!(pool.audit(), []);
    }
    assert_eq!(pool.stats().checkouts, 6);
}

#[tokio::test(start_paused = true)]
async fn what_is_on_offer_to_an_older_waiter_is_not_taken_by_a_newcomer() {
    let pool = builder(&Yard::new()).build().expect("valid");
    let held = pool.get().await.expect("one");
    let mut older = queued(&pool, Priority::Normal);
    drop(held);
    let mut newcomer = queued(&pool, Priority::Health);
    assert!(matches!(pool.try_get(), Err(GetError::Empty { in_use: 1, opening: 0 })));
    assert!(poll(&mut newcomer).is_pending());
    let served = claim(&mut older);
    assert!(poll(&mut newcomer).is_pending());
    drop(served);
    drop(claim(&mut newcomer));
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn higher_priorities_go_first_and_each_class_in_order() {
    let pool = builder(&Yard::new()).build().expect("valid");
    let mut held = pool.get().await.expect("one");
    use Priority::{Health, High, Low, Normal};
    let arrived = [Low, Normal, High, Low, Normal, High, Health, Health];
    let mut waiters: Vec<_> = arrived.iter().map(|class| queued(&pool, *class)).collect();
    for expected in [6, 7, 2, 5, 1, 4, 0, 3] {
        drop(held);
        held = claim(&mut waiters[expected]);
        assert_eq!(pool.audit(), []);
    }
    drop(held);
    assert_eq!(pool.stats().ready(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_low_waiter_that_waited_long_enough_goes_before_a_younger_high_one() {
    let pool = builder(&Yard::new()).priority_age(secs(5)).build().expect("valid");
    let mut held = pool.get().await.expect("one");
    // two classes apart: ten seconds
    let mut low = queued(&pool, Priority::Low);
    pass(ms(9_900)).await;
    let mut in_time = queued(&pool, Priority::High);
    pass(ms(200)).await;
    let mut too_late = queued(&pool, Priority::High);
    for waiter in [&mut in_time, &mut low, &mut too_late] {
        drop(held);
        held = claim(waiter);
    }
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn nobody_starves_under_a_permanent_stream_of_high_priority() {
    let pool = builder(&Yard::new()).priority_age(secs(5)).build().expect("valid");
    let mut held = Some(pool.get().await.expect("one"));
    let mut waiters = vec![queued(&pool, Priority::Low)];
    let mut order = Vec::new();
    let mut gone = vec![false];
    for _ in 0..20 {
        waiters.push(queued(&pool, Priority::High));
        gone.push(false);
        drop(held.take());
        for (index, waiter) in waiters.iter_mut().enumerate() {
            if !gone[index]
                && let Poll::Ready(served) = poll(waiter)
            {
                held = Some(served.expect("served"));
                order.push(index);
                gone[index] = true;
            }
        }
        assert_eq!(pool.audit(), []);
        pass(secs(1)).await;
    }
    // one comes and one is served each second, so without ageing 0 would never be
    let expected: Vec<usize> = (1..=10).chain([0]).chain(11..=19).collect();
    assert_eq!(order, expected);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_at_once_and_says_so() {
    let pool = builder(&Yard::new()).max_waiters(2).build().expect("valid");
    let _held = pool.get().await.expect("one");
    let start = Instant::now();
    let first = queued(&pool, Priority::Normal);
    let _second = queued(&pool, Priority::Low);
    let error = pool.get().await.expect_err("full");
    assert_eq!(
        error.to_string(),
        "queue full: 2 waiting, 1 in use; raise max_waiters or max_open, or send less"
    );
    assert!(matches!(error, GetError::QueueFull { waiting: 2, in_use: 1 }));
    assert_eq!(Instant::now(), start, "refused without waiting");
    drop(first);
    let _third = queued(&pool, Priority::Normal);
    assert_eq!(pool.stats().refused_full, 1);
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn health_checks_have_a_lane_of_eight_beside_the_queue() {
    let pool = builder(&Yard::new()).max_waiters(1).build().expect("valid");
    let held = pool.get().await.expect("one");
    let mut lane: Vec<_> = (0..8).map(|_| queued(&pool, Priority::Health)).collect();
    let mut ordinary = queued(&pool, Priority::High);
    let ninth = GetOptions::new().priority(Priority::Health);
    let error = pool.get_with(ninth).await.expect_err("the lane is full");
    assert!(matches!(error, GetError::QueueFull { waiting: 9, in_use: 1 }), "{error}");
    let ordinary_too = pool.get().await.expect_err("so is the queue");
    assert!(matches!(ordinary_too, GetError::QueueFull { waiting: 9, in_use: 1 }));
    drop(held);
    for check in &mut lane {
        drop(claim(check));
    }
    drop(lane);
    let again: Vec<_> = (0..8).map(|_| queued(&pool, Priority::Health)).collect();
    assert_eq!(again.len(), 8, "their places are free again");
    drop(claim(&mut ordinary));
    assert_eq!((pool.stats().refused_full, pool.stats().checkouts), (2, 10));
    assert_eq!(pool.audit(), []);
}

/// The text of a checkout that runs out of time after 5 s, which it must do exactly.
async fn timeout_text(pool: &Pool<Yard>) -> String {
    let start = Instant::now();
    let result = pool.get_with(GetOptions::new().timeout(secs(5))).await;
    assert_eq!(start.elapsed(), secs(5));
    assert_eq!(pool.audit(), []);
    result.expect_err("nothing to be had").to_string()
}

#[tokio::test(start_paused = true)]
async fn a_timeout_in_the_queue_counts_those_ahead() {
    let pool = builder(&Yard::new()).max_open(2).build().expect("valid");
    let _both = (pool.get().await.expect("one"), pool.get().await.expect("two"));
    let _older = queued(&pool, Priority::Normal);
    let _behind = queued(&pool, Priority::Low);
    assert_eq!(timeout_text(&pool).await, "waited 5 s in queue: 2 in use, 1 ahead, 0 opening");
    assert_eq!(pool.stats().timeouts, 1);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_names_the_throttle() {
    let pool = builder(&Yard::new()).build().expect("valid");
    pool.ready(1, secs(1)).await.expect("full");
    pool.source("default").expect("it").throttled(secs(60));
    assert_eq!(timeout_text(&pool).await, "waited 5 s in throttle: 0 in use, 0 ahead, 0 opening");
}

#[tokio::test(start_paused = true)]
async fn a_timeout_names_the_lease() {
    let count = LocalCount::shared(1);
    let other = builder(&Yard::new()).count(count.clone()).build().expect("valid");
    let _held = other.get().await.expect("the only lease");
    let pool = builder(&Yard::new()).count(count).build().expect("valid");
    assert_eq!(timeout_text(&pool).await, "waited 5 s in lease: 0 in use, 0 ahead, 0 opening");
}

#[tokio::test(start_paused = true)]
async fn a_timeout_names_the_credentials() {
    let yard = Yard::new();
    yard.server.prepare_hangs.store(true, Ordering::SeqCst);
    let pool = builder(&yard).build().expect("valid");
    let text = timeout_text(&pool).await;
    assert_eq!(text, "waited 5 s in credentials: 0 in use, 0 ahead, 1 opening");
}

/// A budget of one open a second that is spent for the next `seconds`.
async fn spent_rate(seconds: u32) -> std::sync::Arc<LocalRate> {
    let rate = LocalRate::shared(Rate::new(1, 1).expect("valid"));
    for _ in 0..seconds {
        rate.reserve(Instant::now(), 0).await.expect("reserved");
    }
    rate
}

#[tokio::test(start_paused = true)]
async fn a_timeout_names_the_rate() {
    let pool = builder(&Yard::new()).rate(spent_rate(60).await).build().expect("valid");
    assert_eq!(timeout_text(&pool).await, "waited 5 s in rate: 0 in use, 0 ahead, 1 opening");
}

#[tokio::test(start_paused = true)]
async fn a_timeout_names_the_connect() {
    let yard = Yard::new();
    yard.then([Act::Hang]);
    let pool = builder(&yard).build().expect("valid");
    assert_eq!(timeout_text(&pool).await, "waited 5 s in connect: 0 in use, 0 ahead, 1 opening");
}

/// One checkout goes through all phases, two seconds each: a connection that
/// does not come back, a throttle, a lease that another holds, a rate permit,
/// a connect. Gives what it answers and when.
async fn through_all_phases(deadline: Duration) -> (String, Duration) {
    let yard = Yard::new();
    yard.then([Act::Succeed, Act::Late(secs(2))]);
    let count = LocalCount::shared(1);
    let rate = LocalRate::shared(Rate::new(1, 1).expect("valid"));
    let pool = builder(&yard)
        .target_ready(0)
        .count(count.clone())
        .rate(rate.clone())
        .throttle_ramp(Duration::ZERO)
        .build()
        .expect("valid");
    let held = pool.get().await.expect("one");
    let start = Instant::now();
    let mut checkout = pool.get_with(GetOptions::new().timeout(deadline));
    let answer = async {
        let result = std::future::poll_fn(|cx| Pin::new(&mut checkout).poll(cx)).await;
        (result.map(|conn| conn.id.to_string()).unwrap_or_else(|e| e.to_string()), start.elapsed())
    };
    let course = async {
        pass(secs(2)).await;
        held.throttled(secs(2));
        held.discard(Discard::Broken);
        settle().await;
        // freed by the pool, and at once taken by somebody else
        let taken = count.take(Instant::now(), forebay::Ask::new(1));
        assert_eq!(taken.leases, 1);
        pass(secs(4)).await;
        for _ in 0..2 {
            rate.reserve(Instant::now(), 0).await.expect("reserved");
        }
        count.give_back(taken);
        pass(secs(4)).await;
    };
    let (answer, ()) = tokio::join!(answer, course);
    assert_eq!(pool.audit(), []);
    answer
}

#[tokio::test(start_paused = true)]
async fn one_deadline_covers_all_phases() {
    for (deadline, text) in [
        (1, "waited 1 s in queue: 1 in use, 0 ahead, 0 opening"),
        (3, "waited 3 s in throttle: 0 in use, 0 ahead, 0 opening"),
        (5, "waited 5 s in lease: 0 in use, 0 ahead, 0 opening"),
        (7, "waited 7 s in rate: 0 in use, 0 ahead, 1 opening"),
        (9, "waited 9 s in connect: 0 in use, 0 ahead, 1 opening"),
    ] {
        assert_eq!(through_all_phases(secs(deadline)).await, (text.to_owned(), secs(deadline)));
    }
    assert_eq!(through_all_phases(secs(11)).await, ("1".to_owned(), secs(10)));
}

#[tokio::test(start_paused = true)]
async fn an_unclaimed_hand_off_goes_to_the_next_and_the_first_keeps_its_place() {
    let pool = builder(&Yard::new()).claim_within(secs(1)).build().expect("valid");
    let held = pool.get().await.expect("one");
    let id = held.id;
    let mut first = queued(&pool, Priority::Normal);
    let mut second = queued(&pool, Priority::Normal);
    let mut third = queued(&pool, Priority::Normal);
    drop(held);
    pass(ms(999)).await;
    assert!(poll(&mut second).is_pending(), "the first may still claim it");
    pass(ms(2)).await;
    assert_eq!(pool.audit(), []);
    let served = claim(&mut second);
    assert_eq!((served.id, pool.stats().unclaimed), (id, 1));
    // back before the connection is: it waits at its old place, before the third
    assert!(poll(&mut first).is_pending());
    drop(served);
    assert!(poll(&mut third).is_pending());
    let served = claim(&mut first);
    drop(served);
    assert_eq!(claim(&mut third).id, id);
    assert_eq!(pool.stats().checkouts, 4);
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn an_unclaimed_hand_off_without_a_next_waits_in_stock_for_the_first() {
    let pool = builder(&Yard::new()).build().expect("valid");
    let held = pool.get().await.expect("one");
    let mut first = queued(&pool, Priority::Normal);
    drop(held);
    pass(ms(1_001)).await;
    let stats = pool.stats();
    assert_eq!((stats.ready(), stats.in_use(), stats.unclaimed), (1, 0, 1));
    assert_eq!(pool.audit(), []);
    drop(claim(&mut first));
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn the_deadline_of_a_waiter_that_did_not_claim_still_holds() {
    let pool = builder(&Yard::new()).build().expect("valid");
    let held = pool.get().await.expect("one");
    let mut away = pool.get_with(GetOptions::new().timeout(secs(5)));
    assert!(poll(&mut away).is_pending());
    drop(held);
    pass(ms(1_001)).await;
    let _other = pool.get().await.expect("moved on to the stock");
    pass(secs(4)).await;
    let Poll::Ready(Err(error)) = poll(&mut away) else { panic!("its time is over") };
    assert_eq!(pool.stats().timeouts, 1);
    assert_eq!(error.to_string(), "waited 5 s in queue: 1 in use, 0 ahead, 0 opening");
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_comes_while_something_is_on_offer_is_judged_when_that_is_taken_back() {
    let pool = builder(&Yard::new()).build().expect("valid");
    let held = pool.get().await.expect("one");
    let mut waiter = pool.get_with(GetOptions::new().timeout(secs(2)));
    assert!(poll(&mut waiter).is_pending());
    pass(ms(1_500)).await;
    drop(held);
    pass(secs(1)).await;
    let Poll::Ready(Err(error)) = poll(&mut waiter) else { panic!("its time is over") };
    assert_eq!((pool.stats().timeouts, pool.stats().unclaimed), (1, 1));
    assert_eq!(error.to_string(), "waited 2.5 s in queue: 0 in use, 0 ahead, 0 opening");
    assert_eq!((pool.stats().ready(), pool.audit()), (1, vec![]));
}

#[tokio::test(start_paused = true)]
async fn dropping_a_checkout_that_was_handed_a_connection_passes_it_on() {
    let pool = builder(&Yard::new()).build().expect("valid");
    let held = pool.get().await.expect("one");
    let id = held.id;
    let first = queued(&pool, Priority::Normal);
    let mut second = queued(&pool, Priority::Normal);
    drop(held);
    drop(first);
    assert_eq!(claim(&mut second).id, id, "at once, without the driver");
    assert_eq!(pool.stats().cancelled, 1);
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn an_invalidated_hand_off_is_neither_claimed_nor_passed_on() {
    // claimed: the waiter gets a new one; dropped: it does not land in the stock
    for dropped in [false, true] {
        let pool = builder(&Yard::new()).build().expect("valid");
        let held = pool.get().await.expect("one");
        let mut waiter = queued(&pool, Priority::Normal);
        drop(held);
        pool.invalidate();
        if dropped {
            drop(waiter);
        } else {
            assert!(poll(&mut waiter).is_pending(), "the old one was given back");
            settle().await;
            assert_eq!(claim(&mut waiter).id, 1);
        }
        settle().await;
        assert_eq!(pool.stats().discarded(Discard::OldGeneration), 1);
        assert_eq!(pool.get().await.expect("one").id, 1);
        assert_eq!(pool.audit(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_may_not_use_the_source_is_passed_over_and_served_first_by_another() {
    let settings = Settings { max_open: 1, ..Settings::default() };
    let spec = |name| SourceSpec::new(name, Yard::new()).settings(settings.clone());
    let pool = Pool::over([spec("a"), spec("b")]).stagger(None).build().expect("valid");
    let hold = |other: &str| pool.get_with(GetOptions::new().exclude(other));
    let a = hold("b").await.expect("a");
    let b = hold("a").await.expect("b");
    let mut only_b = hold("a");
    assert!(poll(&mut only_b).is_pending());
    let mut second = queued(&pool, Priority::Normal);
    let mut third = queued(&pool, Priority::Normal);
    drop(a);
    assert!(poll(&mut only_b).is_pending());
    assert!(poll(&mut third).is_pending());
    let a = claim(&mut second);
    assert_eq!(&*a.source(), "a");
    drop(b);
    assert!(poll(&mut third).is_pending());
    assert_eq!(&*claim(&mut only_b).source(), "b");
    assert_eq!(&*claim(&mut third).source(), "b");
    let nowhere = pool.get_with(GetOptions::new().exclude("a").exclude("b")).await;
    assert!(matches!(nowhere, Err(GetError::NoSource)));
    assert_eq!(pool.audit(), []);
}
