//! Several sources behind one queue: which one serves, whose caps hold when
//! another is benched, and what a broken one costs the others.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Act, Yard, ms, pass, poll, secs, settle};
use forebay::{
    Checkout, GetError, GetOptions, LocalCount, OpenFailure, Pool, Settings, SourceSpec, Strategy,
};
use tokio::time::Instant;

fn queued(pool: &Pool<Yard>) -> Checkout<'_, Yard> {
    let mut checkout = pool.get();
    assert!(poll(&mut checkout).is_pending());
    checkout
}

/// Sources `a`, `b`, `c`, …, each with a server of its own, and a full stock.
async fn pool(strategy: Strategy, settings: &[Settings]) -> Pool<Yard> {
    let specs = settings
        .iter()
        .zip("abc".chars())
        .map(|(settings, name)| SourceSpec::new(name, Yard::new()).settings(settings.clone()));
    let pool = Pool::over(specs).strategy(strategy).stagger(None).seed(3).build().expect("valid");
    let full = settings.iter().map(Settings::target_ready).sum();
    pool.ready(full, secs(1)).await.expect("full");
    pool
}

fn holds(max_open: u32) -> Settings {
    Settings { max_open, ..Settings::default() }
}

/// The sources of `n` checkouts, each given back before the next.
async fn served(pool: &Pool<Yard>, n: usize) -> String {
    let mut names = String::new();
    for _ in 0..n {
        names.push_str(&pool.get().await.expect("ready").source());
        assert_eq!(pool.audit(), []);
    }
    names
}

fn tally(names: &str) -> BTreeMap<char, usize> {
    let mut counts = BTreeMap::new();
    for name in names.chars() {
        *counts.entry(name).or_default() += 1;
    }
    counts
}

#[tokio::test(start_paused = true)]
async fn round_robin_takes_each_in_turn_and_skips_what_is_empty() {
    let pool = pool(Strategy::RoundRobin, &[holds(2), holds(2), holds(2)]).await;
    assert_eq!(served(&pool, 7).await, "abcabca");
    let only_b = || GetOptions::new().exclude("a").exclude("c");
    let _all_of_b = (
        pool.get_with(only_b()).await.expect("ready"),
        pool.get_with(only_b()).await.expect("ready"),
    );
    assert_eq!(served(&pool, 5).await, "cacac");
}

#[tokio::test(start_paused = true)]
async fn least_in_use_takes_the_least_burdened() {
    let pool = pool(Strategy::LeastInUse, &[holds(3), holds(3), holds(3)]).await;
    let mut held = Vec::new();
    for _ in 0..9 {
        held.push(pool.get().await.expect("ready"));
        let stats = pool.stats();
        let in_use: Vec<u32> = stats.sources.iter().map(|source| source.in_use).collect();
        let (most, least) = (in_use.iter().max(), in_use.iter().min());
        assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1), "{in_use:?}");
    }
    held.retain(|conn| *conn.source() != *"b");
    assert_eq!(&*pool.get().await.expect("ready").source(), "b");
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn throttle_aware_takes_the_one_throttled_longest_ago_then_the_least_in_use() {
    let pool = pool(Strategy::ThrottleAware, &[holds(2), holds(2), holds(2)]).await;
    assert_eq!(served(&pool, 4).await, "abca", "without a throttle they share");
    for name in ["b", "a"] {
        pool.source(name).expect("it").throttled(ms(10));
        pass(secs(5)).await;
    }
    let mut held = Vec::new();
    let mut names = String::new();
    for _ in 0..6 {
        let conn = pool.get().await.expect("ready");
        names.push_str(&conn.source());
        held.push(conn);
    }
    assert_eq!(names, "ccbbaa");
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn weighted_shares_are_in_proportion() {
    let weights = [1, 2, 5].map(|weight| Settings { weight, ..holds(4) });
    let pool = pool(Strategy::Weighted, &weights).await;
    let names = served(&pool, 800).await;
    assert_eq!(tally(&names), BTreeMap::from([('a', 100), ('b', 200), ('c', 500)]));
    // in every stretch of eight, not only in the long run
    for window in names.as_bytes().chunks(8) {
        let counts = tally(std::str::from_utf8(window).expect("ascii"));
        assert_eq!(counts, BTreeMap::from([('a', 1), ('b', 2), ('c', 5)]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_weighted_source_that_was_benched_does_not_catch_up_in_a_rush() {
    let weights = [1, 1].map(|weight| Settings { weight, ..holds(4) });
    let pool = pool(Strategy::Weighted, &weights).await;
    pool.source("a").expect("it").throttled(secs(10));
    assert_eq!(tally(&served(&pool, 1000).await), BTreeMap::from([('b', 1000)]));
    pass(secs(15)).await;
    let counts = tally(&served(&pool, 20).await);
    assert!(counts[&'b'] >= 9, "a owes its rest to nobody: {counts:?}");
}

#[tokio::test(start_paused = true)]
async fn caps_hold_at_every_server_while_another_source_is_benched() {
    let yards = [Yard::new().handshake(ms(5)), Yard::new().handshake(ms(5))];
    let caps = [(4, 2), (5, 3)];
    let specs = yards.iter().zip(caps).zip(["a", "b"]).map(|((yard, (open, in_use)), name)| {
        let settings = Settings {
            max_open: open,
            max_in_use: Some(in_use),
            target_ready: Some(2),
            ..Settings::default()
        };
        SourceSpec::new(name, yard.clone()).settings(settings)
    });
    let pool = Pool::over(specs).stagger(None).timeout(secs(600)).build().expect("valid");
    // how many users hold a connection of each source, and the most there ever were
    let used: Arc<Mutex<BTreeMap<String, (u32, u32)>>> = Arc::default();
    let users: Vec<_> = (0..30)
        .map(|user: u64| {
            let (pool, used) = (pool.clone(), used.clone());
            tokio::spawn(async move {
                for _ in 0..20 {
                    let conn = pool.get().await.expect("in time");
                    let name = conn.source().to_string();
                    let bump = |by: i32| {
                        let mut used = used.lock().expect("counts");
                        let (now, most) = used.entry(name.clone()).or_default();
                        *now = now.saturating_add_signed(by);
                        *most = (*most).max(*now);
                    };
                    bump(1);
                    tokio::time::sleep(ms(10 + user % 7)).await;
                    bump(-1);
                }
            })
        })
        .collect();
    for benched in ["a", "b", "a"] {
        pass(ms(300)).await;
        pool.source(benched).expect("it").throttled(ms(500));
        for _ in 0..40 {
            pass(ms(10)).await;
            assert_eq!(pool.audit(), []);
        }
    }
    for user in users {
        user.await.expect("served");
    }
    let used = used.lock().expect("counts");
    for ((yard, (open, in_use)), name) in yards.iter().zip(caps).zip(["a", "b"]) {
        assert!(yard.most_open() <= open, "{name}: {} open at the server", yard.most_open());
        assert_eq!(used[name], (0, in_use), "{name}: used up to its cap and not beyond");
    }
}

/// Sources `a` and `b` that keep no stock and open only when asked to.
fn on_demand(a: &Yard, b: &Yard) -> Pool<Yard> {
    let settings = Settings { max_open: 10, target_ready: Some(0), ..Settings::default() };
    let spec = |name, yard: &Yard| SourceSpec::new(name, yard.clone()).settings(settings.clone());
    Pool::over([spec("a", a), spec("b", b)]).stagger(None).seed(5).build().expect("valid")
}

#[tokio::test(start_paused = true)]
async fn waiters_are_opened_for_once_and_not_once_per_source() {
    let (a, b) = (Yard::new().handshake(ms(50)), Yard::new().handshake(ms(50)));
    let pool = on_demand(&a, &b);
    let mut waiters: Vec<_> = (0..14).map(|_| queued(&pool)).collect();
    for _ in 0..20 {
        pass(ms(10)).await;
        assert_eq!(pool.audit(), []);
    }
    assert_eq!((a.connects(), b.connects()), (10, 4), "the first has ten slots");
    assert!(waiters.iter_mut().all(|waiter| poll(waiter).is_ready()));
    assert_eq!(pool.stats().sources.iter().map(|source| source.wasted).sum::<u64>(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_source_at_its_cap_on_use_is_not_opened_for_nothing() {
    let (a, b) = (Yard::new(), Yard::new());
    let settings = Settings { max_open: 10, target_ready: Some(0), ..Settings::default() };
    let of_a = Settings { max_in_use: Some(2), ..settings.clone() };
    let specs = [
        SourceSpec::new("a", a.clone()).settings(of_a),
        SourceSpec::new("b", b.clone()).settings(settings),
    ];
    let pool = Pool::over(specs).stagger(None).build().expect("valid");
    let mut held = Vec::new();
    for _ in 0..6 {
        held.push(pool.get_with(GetOptions::new().timeout(secs(1))).await.expect("b has room"));
    }
    assert_eq!((a.connects(), b.connects()), (2, 4));
    // with nothing but a to wait for, its eight free slots are left alone
    let only_a = || pool.get_with(GetOptions::new().exclude("b"));
    let mut waiters: Vec<_> = (0..5).map(|_| only_a()).collect();
    assert!(waiters.iter_mut().all(|waiter| poll(waiter).is_pending()));
    pass(secs(1)).await;
    assert_eq!(a.connects(), 2);
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_refuses_does_not_stop_the_other() {
    let (a, b) = (Yard::new(), Yard::new());
    a.then(std::iter::repeat_n(Act::Refuse, 10_000));
    let pool = on_demand(&a, &b);
    let start = Instant::now();
    let mut held = Vec::new();
    for _ in 0..10 {
        let conn = pool.get().await.expect("the other is well");
        assert_eq!(&*conn.source(), "b");
        held.push(conn);
        assert_eq!(pool.audit(), []);
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(b.connects(), 10, "each is opened once");
    let stats = pool.stats();
    assert_eq!(stats.sources[0].failed(OpenFailure::Connect) as usize, a.connects());
    assert_eq!(stats.sources[1].failed(OpenFailure::Connect), 0);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_has_recovered_is_used_again() {
    let (a, b) = (Yard::new(), Yard::new());
    a.then([Act::Refuse]);
    let pool = on_demand(&a, &b);
    let mut held = vec![pool.get().await.expect("of b")];
    pass(secs(1)).await;
    for _ in 0..3 {
        held.push(pool.get().await.expect("opened"));
        settle().await;
    }
    let names: String = held.iter().map(|conn| conn.source().to_string()).collect();
    assert!(names.contains('a'), "{names}");
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn a_source_without_leases_does_not_stop_the_other() {
    let (a, b) = (Yard::new(), Yard::new());
    let settings = Settings { max_open: 5, target_ready: Some(0), ..Settings::default() };
    let of_a = Settings { count: Some(LocalCount::shared(1)), ..settings.clone() };
    let specs = [
        SourceSpec::new("a", a.clone()).settings(of_a),
        SourceSpec::new("b", b.clone()).settings(settings),
    ];
    let pool = Pool::over(specs).stagger(None).build().expect("valid");
    let mut held = Vec::new();
    for _ in 0..6 {
        held.push(pool.get_with(GetOptions::new().timeout(secs(1))).await.expect("b has room"));
    }
    assert_eq!((a.connects(), b.connects()), (1, 5));
    let error = pool.get_with(GetOptions::new().timeout(secs(1))).await.expect_err("all in use");
    assert!(matches!(error, GetError::Timeout(_)), "{error}");
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_kept_makes_room_under_the_cap_on_use() {
    let pool = Pool::builder(Yard::new()).max_open(2).max_in_use(1).stagger(None);
    let pool = pool.build().expect("valid");
    pool.ready(2, secs(1)).await.expect("full");
    let held = pool.get().await.expect("one");
    let mut waiter = queued(&pool);
    settle().await;
    assert!(poll(&mut waiter).is_pending());
    let _kept = held.detach();
    settle().await;
    assert!(poll(&mut waiter).is_ready(), "the other one may be used now");
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn a_stock_that_may_not_be_used_does_not_keep_another_source_from_being_opened() {
    // b has failed once, but a can do nothing for the waiter however much it has ready
    let (a, b) = (Yard::new(), Yard::new());
    b.then([Act::Refuse]);
    let of_a = Settings { max_in_use: Some(1), ..holds(4) };
    let of_b = Settings { target_ready: Some(0), ..holds(4) };
    let specs = [SourceSpec::new("a", a).settings(of_a), SourceSpec::new("b", b).settings(of_b)];
    let pool = Pool::over(specs).stagger(None).build().expect("valid");
    pool.ready(4, secs(1)).await.expect("a is full");
    let _held = pool.get().await.expect("of a");
    let second = pool.get_with(GetOptions::new().timeout(secs(2))).await;
    assert_eq!(&*second.expect("opened at the second attempt").source(), "b");
    assert_eq!(pool.audit(), []);
}
