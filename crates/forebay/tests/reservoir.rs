//! The ready stock of one source over the lives of its connections: how long
//! they live, when they are replaced, what is never handed out, and what the
//! first fill waits for. Idle time is in `idle`, opening in `refill`.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use common::{Act, Yard, ms, pass, secs, settle};
use forebay::{
    BoxFuture, Builder, Clock, Discard, Event, Guard, LocalCount, Observer, Pool, Settings,
    SourceSpec, TimeSource,
};
use tokio::time::Instant;

const GUARD: Duration = secs(45);

/// A pool without staggered start.
fn builder(yard: &Yard) -> Builder<Yard> {
    Pool::builder(yard.clone()).stagger(None).seed(7)
}

fn ready(pool: &Pool<Yard>) -> u32 {
    pool.stats().ready()
}

async fn take(pool: &Pool<Yard>, n: usize) -> Vec<Guard<Yard>> {
    let mut guards = Vec::new();
    for _ in 0..n {
        guards.push(pool.get().await.expect("within the timeout"));
    }
    guards
}

/// Notes the least stock ever seen after an event, once the pool is full.
#[derive(Clone, Default)]
struct Least(Arc<(OnceLock<Pool<Yard>>, AtomicU32)>);

impl Least {
    fn watch(&self, pool: &Pool<Yard>) {
        self.0.1.store(u32::MAX, Ordering::SeqCst);
        assert!(self.0.0.set(pool.clone()).is_ok());
    }

    fn ready(&self) -> u32 {
        self.0.1.load(Ordering::SeqCst)
    }
}

impl Observer for Least {
    fn event(&self, _event: &Event) {
        if let Some(pool) = self.0.0.get() {
            self.0.1.fetch_min(ready(pool), Ordering::SeqCst);
            assert_eq!(pool.audit(), []);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn lives_are_the_base_give_or_take_half_the_jitter_and_drawn_once() {
    let yard = Yard::new();
    let pool = builder(&yard).max_open(200).build().expect("valid");
    pool.filled().await.expect("full");
    let start = Instant::now();
    let lives = |guards: &[Guard<Yard>]| -> Vec<(u64, Duration)> {
        let mut lives: Vec<_> =
            guards.iter().map(|guard| (guard.id, start.elapsed() + guard.remaining())).collect();
        lives.sort_unstable();
        lives
    };
    let first = lives(&take(&pool, 200).await);
    let spans = || first.iter().map(|(_, life)| *life);
    let (least, most) = (spans().min().expect("some"), spans().max().expect("some"));
    assert!(least >= secs(600) && most <= secs(720), "11 min ± 1 min: {least:?} to {most:?}");
    assert!(most - least > secs(110), "the whole width is used: {least:?} to {most:?}");
    let mean = spans().sum::<Duration>() / 200;
    assert!(mean > secs(650) && mean < secs(670), "in the middle of it: {mean:?}");
    for _ in 0..5 {
        pass(secs(60)).await;
        assert_eq!(lives(&take(&pool, 200).await), first, "a return does not change a life");
    }
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn what_is_handed_out_always_has_the_guard_window_left() {
    let yard = Yard::new().handshake(ms(80));
    let pool = builder(&yard).max_open(12).target_ready(6).build().expect("valid");
    let mut users = Vec::new();
    for user in 0..10_u64 {
        let pool = pool.clone();
        users.push(tokio::spawn(async move {
            let mut rng = fastrand::Rng::with_seed(user);
            let mut checkouts = 0_u32;
            let end = Instant::now() + secs(8 * 3600);
            while Instant::now() < end {
                let conn = pool.get().await.expect("within the timeout");
                assert!(conn.remaining() >= GUARD, "{:?} left", conn.remaining());
                checkouts += 1;
                // now and then longer than a life
                let most = if rng.u32(..50) == 0 { 900_000 } else { 20_000 };
                tokio::time::sleep(ms(rng.u64(..most))).await;
                drop(conn);
                assert_eq!(pool.audit(), []);
                tokio::time::sleep(ms(rng.u64(..20_000))).await;
            }
            checkouts
        }));
    }
    for user in users {
        assert!(user.await.expect("no assertion failed") > 300);
    }
    assert!(yard.most_open() <= 12);
    let stats = pool.stats();
    let late = stats.discarded(Discard::ExpiredOnReturn);
    assert!(late > 0 && stats.discarded(Discard::InsufficientRemainingLifetime) > 0);
}

#[tokio::test(start_paused = true)]
async fn with_a_free_slot_the_replacement_comes_first_and_the_stock_never_dips() {
    let yard = Yard::new().handshake(ms(100));
    let least = Least::default();
    let pool = builder(&yard).max_open(40).target_ready(20).observer(least.clone()).build();
    let pool = pool.expect("valid");
    pool.filled().await.expect("full");
    least.watch(&pool);
    let hours = 24;
    for _ in 0..hours {
        pass(secs(3600)).await;
    }
    assert_eq!(least.ready(), 20, "every event looked at");
    assert!(yard.most_open() <= 40);
    let stats = pool.stats();
    let retired = stats.discarded(Discard::ExpiringSoonOnScan);
    let all: u64 = Discard::ALL.iter().map(|reason| stats.discarded(*reason)).sum();
    assert_eq!(retired, all, "none left in any other way");
    assert_eq!(stats.opened(), 20 + retired + u64::from(stats.open() - 20));
    assert_eq!((stats.sources[0].wasted, stats.empty), (0, 0));
    // each place in the stock is opened anew a guard window and the lead before the end
    let turns = hours as f64 * 3600.0 / (660.0 - 45.0 - 5.0);
    let opens = stats.opened() as f64;
    assert!((opens / (20.0 * turns) - 1.0).abs() < 0.02, "{opens} opens in {turns} lives");
}

#[tokio::test(start_paused = true)]
async fn a_replacement_is_opened_the_lead_before_its_forerunner_retires() {
    let yard = Yard::new();
    let pool = builder(&yard).max_open(2).target_ready(1).lifetime_jitter(ms(0)).build();
    let pool = pool.expect("valid");
    pool.filled().await.expect("full");
    let figures = || {
        let stats = pool.stats();
        (stats.sources[0].ready, stats.sources[0].fresh, stats.opened())
    };
    pass(secs(660 - 45 - 5) - ms(1)).await;
    assert_eq!(figures(), (1, 1, 1));
    pass(ms(1)).await;
    assert_eq!(figures(), (2, 1, 2), "five seconds early");
    pass(secs(5) - ms(1)).await;
    assert_eq!(figures(), (2, 1, 2));
    pass(ms(1)).await;
    assert_eq!(figures(), (1, 1, 2), "the old one goes when its guard window begins");
    assert_eq!(pool.audit(), []);
}

/// Hours without a free slot: everything is replaced in place.
async fn replaced_in_place(builder: Builder<Yard>, yard: &Yard, most_opening: u32) {
    let least = Least::default();
    let pool = builder
        .target_ready(20)
        .max_opening(most_opening)
        .observer(least.clone())
        .build()
        .expect("valid");
    pool.filled().await.expect("full");
    least.watch(&pool);
    for _ in 0..12 {
        pass(secs(3600)).await;
    }
    let dip = 20 - least.ready();
    assert!(dip >= 1 && dip <= most_opening, "a dip of {dip}");
    assert_eq!(yard.most_open(), 20, "as the server counts");
    let stats = pool.stats();
    let replaced = stats.discarded(Discard::ReplacedInPlace);
    let all: u64 = Discard::ALL.iter().map(|reason| stats.discarded(*reason)).sum();
    assert_eq!(replaced, all, "none left in any other way");
    assert_eq!(stats.opened(), u64::from(stats.ready()) + replaced);
    assert_eq!((stats.sources[0].wasted, stats.empty), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn without_a_free_slot_replacement_is_in_place_and_the_dip_is_bounded() {
    for most_opening in [1, 3] {
        let yard = Yard::new().handshake(ms(100));
        replaced_in_place(builder(&yard).max_open(20), &yard, most_opening).await;
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_free_lease_replacement_is_in_place_too() {
    let yard = Yard::new().handshake(ms(100));
    let count = LocalCount::shared(20);
    replaced_in_place(builder(&yard).max_open(40).count(count.clone()), &yard, 2).await;
    assert_eq!(count.held(), 20);
}

#[tokio::test(start_paused = true)]
async fn equal_lives_at_the_cap_dip_no_deeper() {
    let yard = Yard::new().handshake(ms(100));
    replaced_in_place(builder(&yard).max_open(20).lifetime_jitter(ms(0)), &yard, 3).await;
}

#[tokio::test(start_paused = true)]
async fn a_hard_life_ends_a_connection_in_the_hands_of_its_user() {
    let yard = Yard::new();
    let settings = builder(&yard).max_open(2).target_ready(1).lifetime_jitter(ms(0));
    let pool = settings.hard_life(Some(secs(1800))).build().expect("valid");
    let held = pool.get().await.expect("one");
    pass(secs(1800) - ms(1)).await;
    assert!(!held.killed.load(Ordering::SeqCst), "not before");
    pass(ms(1)).await;
    assert!(held.killed.load(Ordering::SeqCst), "not after");
    assert_eq!((pool.stats().sources[0].kills, yard.server.kills.load(Ordering::SeqCst)), (1, 1));
    assert_eq!((pool.stats().in_use(), pool.audit()), (1, vec![]), "its user still holds it");
    drop(held);
    pass(secs(3600)).await;
    let stats = pool.stats();
    assert_eq!(stats.discarded(Discard::Killed), 1);
    assert_eq!((stats.sources[0].kills, stats.ready(), yard.open()), (1, 1, 1), "none in stock");
}

/// Keeps what `Low` events said.
#[derive(Clone, Default)]
struct Lows(Arc<Mutex<Vec<bool>>>);

impl Observer for Lows {
    fn event(&self, event: &Event) {
        if let Event::Low { low, source } = event {
            assert_eq!(&**source, "default");
            self.0.lock().expect("lows").push(*low);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stock_below_its_low_watermark_is_reported_as_low() {
    let yard = Yard::new();
    let lows = Lows::default();
    let told = || lows.0.lock().expect("lows").clone();
    let settings = builder(&yard).max_open(4).low_watermark(3).observer(lows.clone());
    let pool = settings.build().expect("valid");
    assert!(pool.stats().sources[0].low, "empty at first");
    pool.filled().await.expect("full");
    settle().await;
    assert_eq!((pool.stats().sources[0].low, told()), (false, vec![false]));
    let guards = take(&pool, 4).await;
    settle().await;
    assert_eq!((pool.stats().sources[0].low, told()), (false, vec![false]), "in use is not lost");
    yard.then([Act::Refuse; 4]);
    for guard in guards.into_iter().take(2) {
        guard.discard(Discard::Broken);
    }
    settle().await;
    assert_eq!((pool.stats().sources[0].low, told()), (true, vec![false, true]));
    pass(secs(30)).await;
    assert_eq!((pool.stats().sources[0].low, told()), (false, vec![false, true, false]));
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_filled_before_a_random_delay_but_a_waiter_is_not_delayed() {
    let mut delays = Vec::new();
    for seed in 0..40 {
        let yard = Yard::new();
        let pool = Pool::builder(yard.clone()).max_open(3).seed(seed).build().expect("valid");
        let start = Instant::now();
        pass(secs(5)).await;
        let connects = yard.server.connects.lock().expect("connects").clone();
        assert_eq!(connects.len(), 3, "five seconds at most");
        assert!(connects.iter().all(|at| *at == connects[0]), "then all at once");
        delays.push(connects[0] - start);
        assert_eq!(pool.audit(), []);
    }
    delays.sort_unstable();
    assert!(delays[0] < secs(1) && delays[39] > secs(4), "spread over the span: {delays:?}");

    let (yard, start) = (Yard::new(), Instant::now());
    let pool = Pool::builder(yard.clone()).max_open(3).stagger(Some(secs(3600))).build();
    let pool = pool.expect("valid");
    drop(pool.get().await.expect("opened for the waiter"));
    assert_eq!((start.elapsed(), yard.connects()), (ms(0), 1), "at once, and only that one");
    pass(secs(3600)).await;
    assert_eq!((ready(&pool), pool.audit()), (3, vec![]));

    let off = builder(&Yard::new()).max_open(3).build().expect("valid");
    let start = Instant::now();
    off.filled().await.expect("full");
    assert_eq!(start.elapsed(), ms(0), "None turns it off");
}

#[tokio::test(start_paused = true)]
async fn filled_waits_for_the_low_watermark() {
    let yard = Yard::new().handshake(secs(1));
    let pool = builder(&yard).max_open(10).low_watermark(5).max_opening(2).build().expect("valid");
    let start = Instant::now();
    pool.filled().await.expect("filled");
    assert_eq!((start.elapsed(), ready(&pool)), (secs(3), 6));
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn filled_gives_up_after_thirty_seconds_and_says_what_it_has() {
    let yard = Yard::new();
    yard.then([Act::Succeed, Act::Succeed]).then([Act::Refuse; 1000]);
    let pool = builder(&yard).max_open(4).max_opening(1).build().expect("valid");
    let error = pool.filled().await.expect_err("two of four");
    assert_eq!(
        error.to_string(),
        "2 of 4 connections after 30s; last open failed: the backend said no (Refuse)"
    );
    yard.server.script.lock().expect("script").clear();
    pool.ready(4, secs(120)).await.expect("it goes on filling");
    let soon = builder(&yard).max_open(4).initial_fill(secs(2)).stagger(Some(secs(4000))).build();
    let error = soon.expect("valid").filled().await.expect_err("not begun");
    assert_eq!(error.to_string(), "0 of 4 connections after 2s");
}

#[tokio::test(start_paused = true)]
async fn filled_waits_for_every_source_and_not_for_the_sum() {
    let (rich, poor) = (Yard::new(), Yard::new());
    poor.then([Act::Refuse; 1000]);
    let settings = Settings { max_open: 10, low_watermark: Some(2), ..Settings::default() };
    let pool = Pool::over([
        SourceSpec::new("rich", rich).settings(settings.clone()),
        SourceSpec::new("poor", poor).settings(settings),
    ]);
    let pool = pool.stagger(None).build().expect("valid");
    let error = pool.filled().await.expect_err("ten of one are not two of each");
    assert_eq!(
        error.to_string(),
        "2 of 4 connections after 30s; last open failed: the backend said no (Refuse)"
    );
    assert_eq!(ready_of(&pool), [10, 0]);
}

fn ready_of(pool: &Pool<Yard>) -> Vec<u32> {
    pool.stats().sources.iter().map(|source| source.ready).collect()
}

/// A clock that can be pushed on without waking those who sleep by it.
#[derive(Clone, Default)]
struct Jumpy(Arc<AtomicU64>);

impl Jumpy {
    fn jump(&self, span: Duration) {
        self.0.fetch_add(span.as_millis() as u64, Ordering::SeqCst);
    }
}

impl TimeSource for Jumpy {
    fn now(&self) -> Instant {
        Instant::now() + ms(self.0.load(Ordering::SeqCst))
    }

    fn sleep_until(&self, at: Instant) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep_until(at - ms(self.0.load(Ordering::SeqCst))))
    }
}

#[tokio::test(start_paused = true)]
async fn a_stale_head_does_not_hide_ready_connections() {
    let (yard, clock) = (Yard::new(), Jumpy::default());
    let pool = builder(&yard).max_open(4).clock(Clock::custom(clock.clone())).build();
    let pool = pool.expect("valid");
    pool.filled().await.expect("full");
    // back by falling life: those with the least left lie on top
    let mut guards = take(&pool, 4).await;
    guards.sort_by_key(|guard| guard.remaining());
    let (lives, ids): (Vec<_>, Vec<_>) =
        guards.iter().map(|guard| (guard.remaining(), guard.id)).unzip();
    while let Some(guard) = guards.pop() {
        drop(guard);
    }
    // the driver sleeps until the first is dead and the second has too little left
    clock.jump(lives[0].max(lives[1] - GUARD) + ms(1));
    let conn = pool.try_get().expect("the two below are good");
    assert_eq!(conn.id, ids[2]);
    assert!(conn.remaining() >= GUARD);
    let stats = pool.stats();
    assert_eq!(stats.discarded(Discard::ExpiredOnCheckout), 1);
    assert_eq!(stats.discarded(Discard::InsufficientRemainingLifetime), 1);
    assert_eq!(pool.audit(), []);
}
