//! What a pool says about itself: events as they happen, and statistics that
//! add up.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Poll;
use std::time::Duration;

use common::{Act, Yard, ms, pass, poll, secs, settle};
use forebay::{
    BackoffSettings, Builder, Discard, Event, GetError, GetOptions, Observer, OpenFailure, Pool,
    Stats,
};

/// Keeps what it was told, in words.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Observer for Log {
    fn event(&self, event: &Event) {
        self.0.lock().expect("log").push(words(event));
    }
}

impl Log {
    /// What was told since the last call.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("log"))
    }
}

fn words(event: &Event) -> String {
    match event {
        Event::Opened { source, took } => format!("{source} opened in {took:?}"),
        Event::OpenFailed { source, reason, error } => {
            format!("{source} failed, {reason}: {error}")
        }
        Event::Discarded { source, reason, age, uses } => {
            format!("{source} discarded, {reason}, {age:?} old, used {uses}")
        }
        Event::Released { source, confirmed } => {
            format!("{source} released, confirmed {confirmed}")
        }
        Event::Throttled { source, retry_after } => format!("{source} throttled {retry_after:?}"),
        Event::Low { source, low } => format!("{source} low {low}"),
        Event::Breaker { source, open } => format!("{source} breaker open {open}"),
        Event::TimedOut { waited } => format!("timed out after {waited:?}"),
        Event::Unclaimed => "unclaimed".to_owned(),
        other => format!("{other:?}"),
    }
}

fn watched(yard: &Yard, max_open: u32) -> (Builder<Yard>, Log) {
    let log = Log::default();
    let builder = Pool::builder(yard.clone()).max_open(max_open).stagger(None).seed(4);
    (builder.observer(log.clone()), log)
}

#[tokio::test(start_paused = true)]
async fn the_life_of_a_connection_is_announced() {
    let yard = Yard::new().handshake(ms(20));
    let (builder, log) = watched(&yard, 2);
    let pool = builder.low_watermark(2).build().expect("valid");
    pass(ms(20)).await;
    assert_eq!(
        log.take(),
        ["default opened in 20ms", "default opened in 20ms", "default low false"]
    );
    assert!(!pool.stats().sources[0].low);
    let held = pool.get().await.expect("ready");
    pass(secs(1)).await;
    assert!(log.take().is_empty(), "checkouts are counted, not announced");
    held.discard(Discard::Broken);
    settle().await;
    let low = [
        "default discarded, broken, 1.02s old, used 1",
        "default low true",
        "default released, confirmed true",
    ];
    assert_eq!(log.take(), low);
    assert!(pool.stats().sources[0].low);
    pass(ms(20)).await;
    assert_eq!(log.take(), ["default opened in 20ms", "default low false"]);
    pass(secs(60)).await;
    assert!(log.take().is_empty());
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn a_close_that_nobody_confirms_is_announced_as_such() {
    let mut yard = Yard::new();
    yard.lets_go_after = None;
    let (builder, log) = watched(&yard, 1);
    let pool = builder.close_grace(secs(2)).build().expect("valid");
    let held = pool.get().await.expect("one");
    settle().await;
    log.take();
    held.discard(Discard::Broken);
    pass(ms(1_999)).await;
    assert_eq!(
        log.take(),
        ["default discarded, broken, 0ns old, used 1", "default low true"],
        "its slot is kept for the grace"
    );
    pass(ms(2)).await;
    assert_eq!(log.take()[0], "default released, confirmed false");
    assert_eq!((pool.stats().sources[0].unconfirmed, pool.audit()), (1, vec![]));
}

#[tokio::test(start_paused = true)]
async fn failures_and_the_breaker_are_announced() {
    let yard = Yard::new();
    yard.then([Act::Refuse, Act::TooMany, Act::TooFast(None)]);
    let (builder, log) = watched(&yard, 1);
    let backoff = BackoffSettings { breaker_after: 3, ..BackoffSettings::default() };
    let pool = builder.backoff(backoff).build().expect("valid");
    pass(secs(60)).await;
    assert_eq!(
        log.take(),
        [
            "default failed, connect: the backend said no (Refuse)",
            "default released, confirmed true",
            "default failed, lease: the backend said no (TooMany)",
            "default released, confirmed true",
            "default failed, rate: the backend said no (TooFast(None))",
            "default breaker open true",
            "default released, confirmed true",
            "default breaker open false",
            "default opened in 0ns",
            "default low false",
        ]
    );
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn throttles_timeouts_and_unclaimed_hand_offs_are_announced() {
    let yard = Yard::new();
    let (builder, log) = watched(&yard, 1);
    let pool = builder.build().expect("valid");
    let held = pool.get().await.expect("one");
    settle().await;
    log.take();
    pool.get_with(GetOptions::new().timeout(secs(3))).await.expect_err("in use");
    assert_eq!(log.take(), ["timed out after 3s"]);
    pool.get_with(GetOptions::new().timeout(Duration::ZERO)).await.expect_err("in use");
    assert_eq!(log.take(), ["timed out after 0ns"], "told at once, not when the driver next looks");
    let mut away = pool.get_with(GetOptions::new().timeout(secs(5)));
    assert!(poll(&mut away).is_pending());
    drop(held);
    pass(ms(1_001)).await;
    assert_eq!(log.take(), ["unclaimed"]);
    pass(secs(4)).await;
    assert!(poll(&mut away).is_ready(), "its time is over");
    assert_eq!(log.take(), ["timed out after 5.001s"]);
    pool.source("default").expect("it").throttled(secs(7));
    assert_eq!(log.take(), ["default throttled 7s"]);
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn each_source_speaks_under_its_own_name() {
    let log = Log::default();
    let specs = ["a", "b"].map(|name| forebay::SourceSpec::new(name, Yard::new()));
    let pool = Pool::over(specs).max_open(1).stagger(None).observer(log.clone());
    let pool = pool.build().expect("valid");
    pass(ms(1)).await;
    let mut said = log.take();
    said.sort();
    assert_eq!(said, ["a low false", "a opened in 0ns", "b low false", "b opened in 0ns"]);
    pool.source("b").expect("it").throttled(secs(1));
    assert_eq!(log.take(), ["b throttled 1s"]);
}

/// Asks the pool for its figures whenever it hears something.
#[derive(Clone, Default)]
struct Curious {
    pool: Arc<OnceLock<Pool<Yard>>>,
    heard: Arc<Mutex<Vec<Stats>>>,
}

impl Observer for Curious {
    fn event(&self, _event: &Event) {
        if let Some(pool) = self.pool.get() {
            assert_eq!(pool.audit(), []);
            self.heard.lock().expect("stats").push(pool.stats());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_observer_may_look_into_the_pool() {
    let curious = Curious::default();
    let yard = Yard::new();
    yard.then([Act::Refuse]);
    let pool = Pool::builder(yard).max_open(2).stagger(None).observer(curious.clone());
    let pool = pool.build().expect("valid");
    assert!(curious.pool.set(pool.clone()).is_ok());
    pool.ready(2, secs(60)).await.expect("full");
    let held = pool.get().await.expect("ready");
    // from the driver, from a task of ours, and from a thread outside any runtime
    pool.get_with(GetOptions::new().timeout(ms(1))).await.expect("the other").throttled(ms(1));
    std::thread::spawn(move || held.discard(Discard::Broken)).join().expect("no deadlock");
    pass(secs(60)).await;
    pool.drain(secs(1)).await;
    settle().await;
    let heard = curious.heard.lock().expect("stats");
    let in_use: Vec<u32> = heard.iter().map(Stats::in_use).collect();
    assert!(heard.len() >= 9 && in_use.contains(&2), "{in_use:?}");
    assert_eq!(heard.last().expect("some").open(), 0);
}

/// What must hold of the figures at any time when no checkout is being polled.
#[track_caller]
fn assert_adds_up(stats: &Stats) {
    assert_eq!(stats.wait.count(), stats.checkouts, "each checkout waited, if for no time");
    let gone: u64 = Discard::ALL.iter().map(|reason| stats.discarded(*reason)).sum();
    let source = &stats.sources[0];
    let alive = source.ready + source.in_use + source.detached;
    assert_eq!(stats.opened(), gone + u64::from(alive), "each one opened is somewhere");
    assert_eq!(stats.create.count(), stats.opened());
    assert_eq!(stats.open(), alive + source.opening + source.closing);
    assert_eq!(stats.breaches, 0);
}

#[tokio::test(start_paused = true)]
async fn counters_gauges_and_histograms_add_up() {
    let yard = Yard::new().handshake(ms(20));
    let pool = Pool::builder(yard.clone()).max_open(2).max_waiters(2).stagger(None);
    let pool = pool.build().expect("valid");
    pool.ready(2, secs(1)).await.expect("full");
    let stats = pool.stats();
    assert_eq!((stats.create.count(), stats.create.sum(), stats.create.max()), (2, ms(40), ms(20)));
    assert_adds_up(&stats);

    // two are used for 30 and 50 ms; a third checkout waits for the first of them
    let first = pool.get().await.expect("ready");
    let second = pool.get().await.expect("ready");
    let mut third = pool.get();
    let cancelled = pool.get();
    assert!(poll(&mut third).is_pending());
    let mut cancelled = cancelled;
    assert!(poll(&mut cancelled).is_pending());
    assert!(matches!(pool.get().await, Err(GetError::QueueFull { .. })));
    let stats = pool.stats();
    assert_eq!((stats.ready(), stats.in_use(), stats.waiting), (0, 2, 2));
    drop(cancelled);
    pass(ms(30)).await;
    drop(first);
    let Poll::Ready(Ok(third)) = poll(&mut third) else { panic!("handed over") };
    pool.get_with(GetOptions::new().timeout(ms(10))).await.expect_err("both in use");
    assert!(matches!(pool.try_get(), Err(GetError::Empty { .. })));
    pass(ms(10)).await;
    drop(second);
    drop(third);
    let stats = pool.stats();
    assert_eq!((stats.checkouts, stats.empty), (3, 5));
    assert_eq!((stats.timeouts, stats.refused_full, stats.cancelled), (1, 1, 1));
    assert_eq!((stats.wait.sum(), stats.wait.max()), (ms(30), ms(30)));
    assert_eq!((stats.r#use.count(), stats.r#use.sum()), (3, ms(30 + 50 + 20)));
    assert_eq!(stats.r#use.max(), ms(50));
    assert_adds_up(&stats);

    // one dies in stock: its checkout goes on to the other and counts once
    let dying = pool.get().await.expect("ready");
    let killed = dying.killed.clone();
    drop(dying);
    killed.store(true, Ordering::SeqCst);
    drop(pool.get().await.expect("the other"));
    let stats = pool.stats();
    assert_eq!((stats.checkouts, stats.discarded(Discard::Broken)), (5, 1));
    assert_eq!((stats.r#use.count(), stats.r#use.sum()), (5, ms(100)));
    assert_adds_up(&stats);
    pass(ms(20)).await;

    // the same with a waiter, which waits on
    let held = [pool.get().await.expect("ready"), pool.get().await.expect("ready")];
    let mut waiter = pool.get();
    assert!(poll(&mut waiter).is_pending());
    let killed = held[0].killed.clone();
    let [dying, other] = held;
    drop(dying);
    killed.store(true, Ordering::SeqCst);
    pass(ms(5)).await;
    assert!(poll(&mut waiter).is_pending(), "what it was handed was dead");
    pass(ms(20)).await;
    let Poll::Ready(Ok(served)) = poll(&mut waiter) else { panic!("a new one was opened") };
    let _kept = served.detach();
    drop(other);
    let stats = pool.stats();
    assert_eq!((stats.checkouts, stats.wait.sum()), (8, ms(30 + 25)));
    assert_eq!((stats.ready(), stats.sources[0].detached), (1, 1));
    assert_eq!(stats.sources[0].failed(OpenFailure::Connect), 0);
    assert_adds_up(&stats);
    assert_eq!((yard.connects(), pool.audit()), (4, vec![]));
}
