//! What becomes of ready connections that nobody takes: the surplus over the
//! target leaves, an unused stock fades to its floor and comes back, and idle
//! connections are checked in the background.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{Conn, Refused, Yard, ms, pass, secs, settle};
use forebay::{
    Builder, Connector, Discard, Failure, Guard, LetGo, OpenFailure, Opened, Pool, Returned,
};
use tokio::time::Instant;

const MAX_IDLE: Duration = secs(300);

fn builder(yard: &Yard) -> Builder<Yard> {
    Pool::builder(yard.clone()).stagger(None).seed(7)
}

async fn take<C: Connector>(pool: &Pool<C>, n: usize) -> Vec<Guard<C>> {
    let mut guards = Vec::new();
    for _ in 0..n {
        guards.push(pool.get().await.expect("within the timeout"));
    }
    guards
}

/// Ready connections, and those discarded for a reason.
fn figures<C: Connector>(pool: &Pool<C>, reason: Discard) -> (u32, u64) {
    assert_eq!(pool.audit(), []);
    (pool.stats().ready(), pool.stats().discarded(reason))
}

/// Two ready and six in use; ten at most.
async fn eight_open(builder: Builder<Yard>) -> (Pool<Yard>, Vec<Guard<Yard>>) {
    let pool = builder.max_open(10).target_ready(2).build().expect("valid");
    let guards = take(&pool, 6).await;
    settle().await;
    assert_eq!((pool.stats().ready(), pool.stats().in_use()), (2, 6));
    (pool, guards)
}

#[tokio::test(start_paused = true)]
async fn the_surplus_over_the_target_leaves_after_max_idle_and_not_before() {
    let yard = Yard::new();
    let (pool, guards) = eight_open(builder(&yard)).await;
    drop(guards);
    pass(MAX_IDLE - ms(1)).await;
    assert_eq!(figures(&pool, Discard::Idle), (8, 0));
    pass(ms(1)).await;
    assert_eq!(figures(&pool, Discard::Idle), (2, 6));
    assert_eq!((yard.open(), pool.stats().sources[0].wasted), (2, 0), "only what was used left");
}

#[tokio::test(start_paused = true)]
async fn each_part_of_the_surplus_leaves_in_its_own_time() {
    let (pool, guards) = eight_open(builder(&Yard::new())).await;
    for guard in guards {
        drop(guard);
        pass(secs(10)).await;
    }
    pass(MAX_IDLE - secs(60) - ms(1)).await;
    for gone in 0..=6 {
        assert_eq!(figures(&pool, Discard::Idle), (8 - gone, u64::from(gone)));
        pass(if gone == 0 { ms(1) } else { secs(10) }).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_surplus_that_is_used_in_between_stays() {
    let (pool, guards) = eight_open(builder(&Yard::new())).await;
    drop(guards);
    // the six are needed every four minutes: at these times only the target is left
    for _ in 0..60 {
        pass(secs(240)).await;
        drop(take(&pool, 6).await);
        assert_eq!(pool.audit(), []);
    }
    let stats = pool.stats();
    assert_eq!((stats.discarded(Discard::Idle), stats.sources[0].wasted), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn with_no_idle_time_what_comes_back_to_a_full_stock_is_closed() {
    let yard = Yard::new();
    let (pool, guards) = eight_open(builder(&yard).max_idle(Some(Duration::ZERO))).await;
    for (gone, guard) in (1..).zip(guards) {
        drop(guard);
        settle().await;
        assert_eq!(figures(&pool, Discard::ReservoirFull), (2, gone));
    }
    assert_eq!((yard.open(), pool.stats().discarded(Discard::Idle)), (2, 0));
    pass(secs(3600)).await;
    assert_eq!(figures(&pool, Discard::ReservoirFull), (2, 6), "the stock itself stays");
}

#[tokio::test(start_paused = true)]
async fn without_an_idle_time_the_surplus_lives_out_its_life() {
    let (pool, guards) = eight_open(builder(&Yard::new()).max_idle(None)).await;
    drop(guards);
    pass(secs(600 - 45) - ms(1)).await;
    assert_eq!(figures(&pool, Discard::ExpiringSoonOnScan), (8, 0));
    pass(secs(3600)).await;
    assert_eq!(pool.stats().ready(), 2, "the surplus is not replaced");
    assert_eq!((pool.stats().discarded(Discard::Idle), pool.audit()), (0, vec![]));
}

#[tokio::test(start_paused = true)]
async fn an_unused_stock_fades_to_its_floor_without_thrashing_and_comes_back() {
    let yard = Yard::new();
    let settings = builder(&yard).max_open(20).target_ready(10).min_idle(2);
    let pool = settings.max_idle(Some(secs(60))).build().expect("valid");
    pool.filled().await.expect("full");
    pass(secs(60) - ms(1)).await;
    assert_eq!(figures(&pool, Discard::Idle), (10, 0));
    pass(ms(1)).await;
    assert_eq!(figures(&pool, Discard::Idle), (2, 8));
    assert_eq!(pool.stats().sources[0].target, 2);
    let before = pool.stats().opened();
    let hours = 12;
    for _ in 0..hours * 60 {
        pass(secs(60)).await;
        assert!((2..=4).contains(&pool.stats().ready()), "two, and replacements on the way");
    }
    let stats = pool.stats();
    assert_eq!(stats.discarded(Discard::Idle), 8, "none closed as idle any more");
    let retired = stats.discarded(Discard::ExpiringSoonOnScan);
    assert_eq!(stats.opened() - before, retired + u64::from(stats.ready() - 2));
    let turns = f64::from(hours) * 3600.0 / 610.0;
    assert!((retired as f64 / (2.0 * turns) - 1.0).abs() < 0.05, "{retired} in {turns} lives");

    let first = take(&pool, 1).await;
    settle().await;
    assert_eq!(pool.stats().ready() + pool.stats().sources[0].opening, 2, "one of two is no need");
    let second = take(&pool, 2).await;
    settle().await;
    assert_eq!((pool.stats().ready(), pool.stats().sources[0].target), (10, 10), "used up: all");
    drop((first, second));
    pass(secs(60)).await;
    assert_eq!((pool.stats().ready(), pool.audit()), (2, vec![]), "and it fades again");
}

#[tokio::test(start_paused = true)]
async fn idle_connections_are_checked_in_the_background() {
    let yard = Yard::new();
    let checks = || yard.server.checks.load(Ordering::SeqCst);
    let pool = builder(&yard).max_open(4).idle_check(Some(secs(30))).build().expect("valid");
    pool.filled().await.expect("full");
    pass(secs(30) - ms(1)).await;
    assert_eq!(checks(), 0);
    pass(ms(1)).await;
    assert_eq!(checks(), 4, "each once");
    pass(secs(30)).await;
    assert_eq!((checks(), pool.stats().ready()), (8, 4));
    assert_eq!(pool.audit(), []);
    // used every ten seconds nothing is idle for thirty
    for _ in 0..18 {
        pass(secs(10)).await;
        drop(take(&pool, 4).await);
    }
    assert_eq!(checks(), 8, "what is used is not checked");

    yard.server.sick.store(true, Ordering::SeqCst);
    pass(secs(30)).await;
    let stats = pool.stats();
    assert_eq!((stats.discarded(Discard::Broken), checks()), (4, 12));
    assert_eq!(stats.sources[0].failed(OpenFailure::Check), 4);
    assert_eq!((stats.ready(), stats.opened(), pool.audit()), (4, 8, vec![]), "replaced");
}

#[tokio::test(start_paused = true)]
async fn a_check_is_no_use_and_no_return() {
    let yard = Yard::new();
    let settings = builder(&yard).max_open(4).target_ready(4).min_idle(1);
    let pool = settings.idle_check(Some(secs(40))).build().expect("valid");
    pool.filled().await.expect("full");
    let held = take(&pool, 3).await;
    pass(secs(17)).await;
    let ids: Vec<u64> = held.iter().map(|guard| guard.id).collect();
    for guard in held {
        pass(secs(1)).await;
        drop(guard);
    }
    // the one that was left is checked at 40 s and 80 s, the three at about 60 s
    pass(secs(70)).await;
    assert_eq!(yard.server.checks.load(Ordering::SeqCst), 5);
    assert_eq!(take(&pool, 1).await[0].id, ids[2], "the most recently used is still on top");
    pass(MAX_IDLE - secs(90) - ms(1)).await;
    assert_eq!(figures(&pool, Discard::Idle), (4, 0));
    pass(ms(1)).await;
    assert_eq!(figures(&pool, Discard::Idle), (3, 1), "a check did not make it look used");
    assert_eq!(pool.stats().r#use.count(), 4);
}

/// A yard whose checks take a second.
struct SlowChecks(Yard);

impl Connector for SlowChecks {
    type Conn = Conn;
    type Key = u32;
    type Error = Refused;

    async fn connect(&self, key: &u32) -> Result<Opened<Conn>, Refused> {
        self.0.connect(key).await
    }

    async fn check(&self, conn: &mut Conn) -> Result<(), Refused> {
        let checks = self.0.server.checks.load(Ordering::SeqCst);
        tokio::time::sleep(secs(1)).await;
        assert!(checks < 100, "a check panics");
        self.0.check(conn).await
    }

    async fn close(&self, conn: Conn) -> LetGo {
        self.0.close(conn).await
    }

    fn state(&self, conn: &mut Conn) -> Returned {
        self.0.state(conn)
    }

    fn classify(&self, error: &Refused) -> Failure {
        self.0.classify(error)
    }
}

#[tokio::test(start_paused = true)]
async fn slow_checks_take_a_quarter_of_the_stock_at_a_time() {
    let yard = Yard::new();
    let pool = Pool::builder(SlowChecks(yard.clone())).stagger(None).max_open(8);
    let pool = pool.idle_check(Some(secs(30))).build().expect("valid");
    pool.filled().await.expect("full");
    pass(secs(29)).await;
    let start = Instant::now();
    let mut least = 8;
    while yard.server.checks.load(Ordering::SeqCst) < 8 {
        pass(ms(100)).await;
        let stats = pool.stats();
        assert_eq!((stats.ready() + stats.in_use(), pool.audit()), (8, vec![]));
        least = least.min(stats.ready());
        assert!(start.elapsed() < secs(30), "checks go on");
    }
    assert_eq!(least, 6, "three quarters stay ready");
    assert_eq!(start.elapsed().as_secs(), 5, "two at a time, one after the other");
    // a panicking check costs its connection, and its place among the checks is free again
    yard.server.checks.store(100, Ordering::SeqCst);
    pass(secs(60)).await;
    yard.server.checks.store(0, Ordering::SeqCst);
    pass(secs(60)).await;
    assert!(pool.stats().sources[0].failed(OpenFailure::Panic) >= 8);
    assert!(yard.server.checks.load(Ordering::SeqCst) >= 8, "checks go on");
    let stats = pool.stats();
    assert_eq!((stats.ready() + stats.in_use(), pool.audit()), (8, vec![]));
}
