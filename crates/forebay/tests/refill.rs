//! Opening in the background: how many and when, what happens when opens fail,
//! hang, come late or panic, and that nothing is opened in vain.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Act, Yard, ms, pass, secs, settle};
use forebay::{
    BackoffSettings, BoxFuture, BudgetError, Builder, Discard, Event, Figures, Instant, LocalCount,
    LocalRate, Observer, OpenFailure, Permit, Pool, Rate, RateBudget,
};
use proptest::prelude::*;

fn builder(yard: &Yard) -> Builder<Yard> {
    Pool::builder(yard.clone()).stagger(None).seed(7)
}

fn failed(pool: &Pool<Yard>, reason: OpenFailure) -> u64 {
    pool.stats().sources[0].failed(reason)
}

/// When connects reached the server, since `start`.
fn connects(yard: &Yard, start: Instant) -> Vec<Duration> {
    yard.server.connects.lock().expect("connects").iter().map(|at| *at - start).collect()
}

proptest! {
    #[test]
    fn the_need_is_the_formula(
        target: u32, waiters: u32, fresh: u32, opening: u32,
        open: u32, max_open: u32, max_opening: u32, scale in 0_u32..32,
    ) {
        // small figures meet more often
        let figures = Figures {
            target: target >> scale,
            waiters: waiters >> scale,
            fresh: fresh >> scale,
            opening: opening >> scale,
            open: open >> scale,
            max_open: max_open >> scale,
            max_opening: max_opening >> scale,
        };
        let wide = |n: u32| i128::from(n);
        let f = figures;
        let short = wide(f.target) + wide(f.waiters) - wide(f.fresh) - wide(f.opening);
        let slots = wide(f.max_open) - wide(f.open);
        let lanes = wide(f.max_opening) - wide(f.opening);
        let expected = [short, slots, lanes].into_iter().min().expect("three").max(0);
        prop_assert_eq!(wide(figures.need()), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn opens_run_side_by_side_up_to_max_opening_and_follow_each_other_at_once() {
    let yard = Yard::new().handshake(secs(1));
    let start = Instant::now();
    let pool = builder(&yard).max_open(10).max_opening(4).build().expect("valid");
    for _ in 0..30 {
        pass(ms(100)).await;
        let stats = pool.stats();
        assert!(stats.sources[0].opening <= 4);
        assert_eq!(pool.audit(), []);
    }
    let at: Vec<u64> = connects(&yard, start).iter().map(|at| at.as_millis() as u64).collect();
    assert_eq!(at, [0, 0, 0, 0, 1000, 1000, 1000, 1000, 2000, 2000]);
    assert_eq!(pool.stats().ready(), 10);
}

#[tokio::test(start_paused = true)]
async fn what_is_taken_is_replaced_at_once_and_a_pool_at_rest_sleeps() {
    let yard = Yard::new().handshake(ms(100));
    let pool = builder(&yard).max_open(10).target_ready(5).build().expect("valid");
    pass(secs(1)).await;
    let before = pool.stats().wakeups;
    pass(secs(300)).await;
    assert_eq!(pool.stats().wakeups, before, "nothing changes, nobody looks");
    let start = Instant::now();
    let held = pool.get().await.expect("one");
    settle().await;
    assert_eq!(connects(&yard, start).len(), 6);
    assert_eq!(connects(&yard, start)[5], ms(0), "no polling in between");
    drop(held);
    assert_eq!(pool.audit(), []);
}

/// The waits between connects that all fail, in ms.
async fn waits(seed: u64, backoff: BackoffSettings, most_opening: u32) -> Vec<u64> {
    let yard = Yard::new();
    yard.then([Act::Refuse; 1000]);
    let settings = builder(&yard).max_open(most_opening).backoff(backoff).seed(seed);
    let pool = settings.build().expect("valid");
    let start = Instant::now();
    pass(secs(600)).await;
    assert_eq!(pool.audit(), []);
    let mut at: Vec<u64> = connects(&yard, start).iter().map(|at| at.as_millis() as u64).collect();
    at.dedup();
    at.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

fn assert_waits(waits: &[u64], ceilings: impl IntoIterator<Item = u64>) {
    for (wait, full) in waits.iter().zip(ceilings) {
        assert!((full / 2..=full * 3 / 2 + 1).contains(wait), "{wait} of {full}: {waits:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn failures_back_off_with_jitter_to_a_ceiling() {
    let patient = BackoffSettings { breaker_after: 1000, ..BackoffSettings::default() };
    let first = waits(1, patient, 1).await;
    assert_waits(&first, [250, 500, 1000, 2000, 4000].into_iter().chain([5000; 100]));
    assert!(first.len() > 90, "the ceiling is five seconds: {}", first.len());
    assert_ne!(first, waits(2, patient, 1).await, "each in its own time");
    assert_eq!(first, waits(1, patient, 1).await, "and again the same from the same seed");
    let breaks = waits(1, BackoffSettings::default(), 1).await;
    let ceilings = [250, 500, 1000, 2000, 4000, 8000, 16_000];
    assert_waits(&breaks, ceilings.into_iter().chain([30_000; 20]));
}

/// One blip of a backend that fails all sixteen opens under way must not cost
/// as much as sixteen failures one after the other.
#[tokio::test(start_paused = true)]
async fn attempts_that_fail_together_are_one_step_of_the_wait() {
    let waits = waits(3, BackoffSettings::default(), 16).await;
    assert_waits(&waits, [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000]);
}

/// Keeps what `Breaker` events said.
#[derive(Clone, Default)]
struct Breaks(Arc<Mutex<Vec<bool>>>);

impl Observer for Breaks {
    fn event(&self, event: &Event) {
        if let Event::Breaker { open, .. } = event {
            self.0.lock().expect("breaks").push(*open);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_breaker_opens_lets_one_through_at_a_time_and_closes_on_success() {
    let yard = Yard::new().handshake(ms(10));
    yard.then([Act::Refuse; 10]);
    let breaks = Breaks::default();
    let told = || breaks.0.lock().expect("breaks").clone();
    let pool = builder(&yard).max_open(4).observer(breaks.clone()).build().expect("valid");
    let broken = || pool.stats().sources[0].breaker_open;
    let failures = || failed(&pool, OpenFailure::Connect);
    pass(ms(10)).await;
    assert_eq!((failures(), broken(), told()), (4, false, vec![]), "five make it break");
    pass(ms(400)).await;
    assert_eq!((failures(), broken(), told()), (8, true, vec![true]));
    let start = Instant::now();
    while broken() {
        pass(ms(1)).await;
        assert!(!broken() || pool.stats().sources[0].opening <= 1, "one at a time");
        assert_eq!(pool.audit(), []);
        assert!(start.elapsed() < secs(60));
    }
    assert_eq!((failures(), told()), (10, vec![true, false]));
    assert_eq!((yard.connects(), pool.stats().ready()), (14, 1), "one success, then the rest");
    pass(ms(10)).await;
    assert_eq!((pool.stats().ready(), failures()), (4, 10));
}

/// A rate budget that has nothing to give.
struct Dry;

impl RateBudget for Dry {
    fn reserve(&self, _now: Instant, _more: u32) -> BoxFuture<'_, Result<Permit, BudgetError>> {
        Box::pin(std::future::ready(Err(BudgetError::new("the keeper is away"))))
    }
}

#[tokio::test(start_paused = true)]
async fn what_stopped_an_open_is_counted_by_reason() {
    let all = |pool: &Pool<Yard>| -> Vec<(OpenFailure, u64)> {
        assert_eq!(pool.audit(), []);
        let counts = OpenFailure::ALL.iter().map(|reason| (*reason, failed(pool, *reason)));
        counts.filter(|(_, n)| *n > 0).collect()
    };
    let one = |yard: &Yard| builder(yard).max_open(1);
    for (act, reason) in [
        (Act::Fail, OpenFailure::Connect),
        (Act::Refuse, OpenFailure::Connect),
        (Act::TooFast(None), OpenFailure::Rate),
        (Act::TooMany, OpenFailure::Lease),
        (Act::Panic, OpenFailure::Panic),
    ] {
        let yard = Yard::new();
        yard.then([act]);
        let pool = one(&yard).build().expect("valid");
        pass(secs(5)).await;
        assert_eq!((all(&pool), pool.stats().ready()), (vec![(reason, 1)], 1), "{act:?}");
    }

    let yard = Yard::new();
    yard.server.prepare_fails.store(true, Ordering::SeqCst);
    let pool = one(&yard).build().expect("valid");
    pass(ms(1)).await;
    assert_eq!((all(&pool), yard.connects()), (vec![(OpenFailure::Credentials, 1)], 0));

    let yard = Yard::new();
    yard.server.prepare_hangs.store(true, Ordering::SeqCst);
    let pool = one(&yard).build().expect("valid");
    let error = pool.ready(1, secs(10) + ms(1)).await.expect_err("no credentials");
    let text = error.to_string();
    assert!(text.ends_with("last open failed: no credentials within 10s"), "{text}");
    assert_eq!((all(&pool), yard.connects()), (vec![(OpenFailure::Credentials, 1)], 0));

    let pool = one(&Yard::new()).rate(Arc::new(Dry)).build().expect("valid");
    let error = pool.ready(1, ms(1)).await.expect_err("no permit");
    let text = error.to_string();
    assert!(text.ends_with("last open failed: the keeper is away"), "{text}");
    assert_eq!(all(&pool), [(OpenFailure::Rate, 1)]);

    let count = LocalCount::shared(0);
    let pool = one(&Yard::new()).count(count.clone()).build().expect("valid");
    pass(secs(60)).await;
    assert_eq!(all(&pool), [(OpenFailure::Lease, 1)], "once, not at each look");
    assert!(pool.stats().sources[0].lease_refused);
    count.set_limit(1);
    settle().await;
    assert_eq!((pool.stats().ready(), pool.stats().sources[0].lease_refused), (1, false));

    let yard = Yard::new();
    let pool = one(&yard).idle_check(Some(secs(60))).build().expect("valid");
    pass(secs(59)).await;
    yard.server.sick.store(true, Ordering::SeqCst);
    pass(secs(1)).await;
    assert_eq!(all(&pool), [(OpenFailure::Check, 1)]);
    assert_eq!((pool.stats().discarded(Discard::Broken), pool.stats().ready()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_connect_that_hangs_is_given_up_and_its_slot_kept_for_the_grace() {
    let yard = Yard::new();
    yard.then([Act::Hang]);
    let count = LocalCount::shared(1);
    let pool = builder(&yard).max_open(1).count(count.clone()).build().expect("valid");
    let figures = || {
        assert_eq!(pool.audit(), []);
        let source = &pool.stats().sources[0];
        (source.opening, source.closing, source.unconfirmed, yard.connects())
    };
    pass(secs(10) - ms(1)).await;
    assert_eq!(figures(), (1, 0, 0, 1));
    pass(ms(1)).await;
    assert_eq!(figures(), (0, 1, 0, 1), "given up after connect_timeout");
    assert_eq!(failed(&pool, OpenFailure::Connect), 1);
    pass(secs(1) - ms(1)).await;
    assert_eq!((figures(), count.held()), ((0, 1, 0, 1), 1), "something may be left there");
    pass(ms(1)).await;
    assert_eq!(figures(), (0, 0, 1, 2), "after close_grace the slot is opened anew");
    assert_eq!((pool.stats().ready(), count.held(), yard.most_open()), (1, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn after_a_clear_no_the_slot_is_free_at_once_after_an_unclear_one_it_is_kept() {
    for (act, kept) in [(Act::Refuse, 0), (Act::Fail, 1), (Act::Panic, 1)] {
        let yard = Yard::new();
        yard.then([act]);
        let count = LocalCount::shared(5);
        let pool = builder(&yard).max_open(1).count(count.clone()).build().expect("valid");
        settle().await;
        assert_eq!((pool.stats().sources[0].closing, count.held()), (kept, kept), "{act:?}");
        pass(secs(1) - ms(1)).await;
        assert_eq!(pool.stats().sources[0].unconfirmed, 0, "{act:?}");
        pass(ms(1)).await;
        assert_eq!(pool.stats().sources[0].unconfirmed, u64::from(kept), "{act:?}");
        pass(secs(1)).await;
        assert_eq!((pool.stats().ready(), count.held(), pool.audit()), (1, 1, vec![]), "{act:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_connect_that_comes_late_is_used_if_it_comes_in_time() {
    for (late, opened) in [(secs(10) - ms(1), 1), (secs(10) + ms(1), 0)] {
        let yard = Yard::new();
        yard.then([Act::Late(late)]);
        let pool = builder(&yard).max_open(1).build().expect("valid");
        pass(secs(10) + ms(1)).await;
        let stats = pool.stats();
        assert_eq!((stats.opened(), stats.ready()), (opened, opened as u32));
        assert_eq!(failed(&pool, OpenFailure::Connect), 1 - opened);
        // a life counts from the connect: the backend counts it so
        if let Ok(conn) = pool.try_get() {
            assert!(conn.remaining() <= secs(720 - 10), "{:?}", conn.remaining());
        }
        assert_eq!(pool.audit(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn a_connector_that_panics_costs_that_connection_only() {
    let yard = Yard::new().handshake(ms(10));
    yard.then([Act::Succeed, Act::Panic, Act::Succeed, Act::Panic]);
    let pool = builder(&yard).max_open(4).build().expect("valid");
    pass(ms(10)).await;
    assert_eq!((pool.stats().ready(), failed(&pool, OpenFailure::Panic)), (2, 2));
    let conn = pool.get().await.expect("the others are good");
    pass(secs(5)).await;
    assert_eq!((pool.stats().ready(), pool.audit()), (3, vec![]), "and the pool goes on");
    drop(conn);
    assert_eq!((yard.open(), pool.stats().open(), pool.stats().breaches), (4, 4, 0));
}

#[tokio::test(start_paused = true)]
async fn an_open_that_is_no_longer_needed_is_given_up_before_its_connect() {
    let yard = Yard::new();
    let rate = LocalRate::shared(Rate::new(1, 1).expect("valid"));
    let count = LocalCount::shared(5);
    let settings = builder(&yard).max_open(5).target_ready(0).rate(rate).count(count.clone());
    let pool = settings.build().expect("valid");
    let _held = pool.get().await.expect("the first permit");
    let other = pool.clone();
    let waiter = tokio::spawn(async move { other.get().await.map(|conn| conn.id) });
    pass(ms(500)).await;
    assert_eq!((pool.stats().sources[0].opening, count.held()), (1, 2), "it waits for a permit");
    waiter.abort();
    pass(secs(5)).await;
    let source = &pool.stats().sources[0];
    assert_eq!((source.opening, source.abandoned, source.wasted), (0, 1, 0));
    assert_eq!((yard.connects(), count.held(), pool.audit()), (1, 1, vec![]));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_opened_in_vain_while_the_load_goes_up_and_down() {
    let yard = Yard::new().handshake(ms(150));
    let rate = LocalRate::shared(Rate::new(20, 20).expect("valid"));
    let settings = builder(&yard).max_open(60).target_ready(10).max_idle(Some(secs(60)));
    let pool = settings.rate(rate).build().expect("valid");
    pool.filled().await.expect("full");
    let mut users = Vec::new();
    for user in 0..30_u64 {
        let pool = pool.clone();
        users.push(tokio::spawn(async move {
            let mut rng = fastrand::Rng::with_seed(user);
            let start = Instant::now();
            while start.elapsed() < secs(12 * 3600) {
                // a wave of ten minutes within one of three hours
                let hours = start.elapsed().as_secs_f64() / 3600.0;
                let wave = (hours * 6.0).sin() + (hours / 3.0 * 6.3).sin();
                let rest = 20_000.0 * (1.1 + wave / 2.0);
                tokio::time::sleep(ms(rng.u64(..rest as u64 + 1))).await;
                let conn = pool.get().await.expect("within the timeout");
                tokio::time::sleep(ms(rng.u64(..8000))).await;
                drop(conn);
            }
            assert_eq!(pool.audit(), []);
        }));
    }
    for user in users {
        user.await.expect("no assertion failed");
    }
    let stats = pool.stats();
    assert!(stats.checkouts > 20_000, "{}", stats.checkouts);
    assert_eq!((stats.sources[0].wasted, stats.empty, stats.breaches), (0, 0, 0));
    assert!(yard.most_open() <= 60);
}
