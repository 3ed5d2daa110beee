//! Budgets that pools share: the rate is kept in every window as the server
//! sees it, permits grow stale, the count is never exceeded by the sum, and a
//! member that has lost its standing lets go of everything.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use common::{Act, Yard, ms, pass, secs, settle};
use forebay::{
    Ask, BoxFuture, BudgetError, Builder, Clock, CountBudget, Discard, GetError, GetOptions, Grant,
    Holder, Instant, LocalCount, LocalRate, PERMIT_GOOD_FOR, Permit, Pool, Rate, RateBudget,
    Standing, TimeSource,
};

fn builder(yard: &Yard) -> Builder<Yard> {
    Pool::builder(yard.clone()).stagger(None).seed(7)
}

fn rate(per_second: u32, burst: u32) -> Arc<LocalRate> {
    LocalRate::shared(Rate::new(per_second, burst).expect("valid"))
}

/// When connects reached the server, since `start`, in seconds.
fn connects(yard: &Yard, start: Instant) -> Vec<f64> {
    let connects = yard.server.connects.lock().expect("connects");
    connects.iter().map(|at| (*at - start).as_secs_f64()).collect()
}

/// No window `w` holds more than `rate × (w + 0.1) + burst` connects.
fn assert_rate(connects: &[f64], per_second: u32, burst: u32) {
    for (i, from) in connects.iter().enumerate() {
        for (j, to) in connects.iter().enumerate().skip(i) {
            let (window, n) = (to - from, (j - i + 1) as f64);
            let most = f64::from(per_second) * (window + PERMIT_GOOD_FOR.as_secs_f64());
            assert!(n <= most + f64::from(burst) + 1e-6, "{n} connects in {window} s");
        }
    }
}

/// The seeds of a property: `FOREBAY_SEED` alone, or so many.
fn seeds(n: u64) -> impl Iterator<Item = u64> {
    let only: Option<u64> =
        std::env::var("FOREBAY_SEED").ok().map(|seed| seed.parse().expect("a number"));
    only.map_or(0..n, |seed| seed..seed + 1)
}

/// Two pools at one server share a rate; users come and go, connections break,
/// connects fail, stocks are invalidated.
async fn a_random_schedule(seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (per_second, burst) = (rng.u32(1..50), rng.u32(1..30));
    let budget = rate(per_second, burst);
    let yard = Yard::new().handshake(ms(rng.u64(..300)));
    for _ in 0..rng.u32(..60) {
        let acts = [Act::Succeed, Act::Refuse, Act::Fail, Act::TooFast(None), Act::Late(secs(2))];
        yard.then([acts[rng.usize(..acts.len())]]);
    }
    let start = Instant::now();
    let pools: Vec<Pool<Yard>> = (0..2)
        .map(|_| {
            let max_open = rng.u32(1..40);
            let settings = builder(&yard).max_open(max_open).target_ready(rng.u32(..=max_open));
            let settings = settings.max_opening(rng.u32(1..20)).rate(budget.clone()).seed(seed);
            settings.stagger(Some(ms(rng.u64(..3000)))).build().expect("valid")
        })
        .collect();
    let mut users = Vec::new();
    for _ in 0..rng.u64(1..20) {
        let (pool, mut rng) = (pools[rng.usize(..2)].clone(), rng.fork());
        users.push(tokio::spawn(async move {
            for _ in 0..20 {
                tokio::time::sleep(ms(rng.u64(..1500))).await;
                let options = GetOptions::new().timeout(ms(rng.u64(1..2000)));
                let Ok(mut conn) = pool.get_with(options).await else { continue };
                tokio::time::sleep(ms(rng.u64(..1000))).await;
                conn.broken = rng.u32(..4) == 0;
                if rng.u32(..30) == 0 {
                    pool.invalidate();
                }
            }
        }));
    }
    for user in users {
        user.await.expect("no user panics");
        assert!(pools.iter().all(|pool| pool.audit().is_empty()));
    }
    assert_rate(&connects(&yard, start), per_second, burst);
}

#[tokio::test(start_paused = true)]
async fn the_rate_is_kept_in_every_window_over_random_schedules() {
    for seed in seeds(60) {
        println!("FOREBAY_SEED={seed}");
        a_random_schedule(seed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
    let yard = Yard::new().handshake(ms(100));
    let start = Instant::now();
    let settings = builder(&yard).max_open(50).max_opening(50).rate(rate(10, 5));
    let pool = settings.build().expect("valid");
    pool.filled().await.expect("full");
    assert_eq!(start.elapsed(), ms(4500 + 100), "45 at ten a second, and a handshake");
    let at = connects(&yard, start);
    assert!(at[..5].iter().all(|at| *at == 0.0), "{at:?}");
    assert!(at[5..].iter().enumerate().all(|(i, at)| (at - 0.1 * (i + 1) as f64).abs() < 1e-6));
    assert_rate(&at, 10, 5);
    assert_eq!(pool.audit(), []);
}

/// A budget that takes its time to answer at first.
struct Slow {
    answers: AtomicU32,
    slow: u32,
}

impl RateBudget for Slow {
    fn reserve(&self, now: Instant, _more: u32) -> BoxFuture<'_, Result<Permit, BudgetError>> {
        let answer = self.answers.fetch_add(1, Ordering::SeqCst);
        let wait = if answer < self.slow { PERMIT_GOOD_FOR + ms(1) } else { PERMIT_GOOD_FOR };
        Box::pin(async move {
            tokio::time::sleep(wait).await;
            Ok(Permit::at(now))
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_permit_that_comes_too_late_is_dropped_counted_and_reserved_anew() {
    let (yard, start) = (Yard::new(), Instant::now());
    let budget = Arc::new(Slow { answers: AtomicU32::new(0), slow: 3 });
    let pool = builder(&yard).max_open(1).rate(budget.clone()).build().expect("valid");
    pool.filled().await.expect("in the end");
    assert_eq!(start.elapsed(), ms(3 * 101 + 100), "a permit is good for 100 ms, not for 101");
    assert_eq!(pool.stats().sources[0].permits_dropped, 3);
    assert_eq!((budget.answers.load(Ordering::SeqCst), yard.connects()), (4, 1));
    assert_eq!(pool.audit(), []);
}

/// The clock of a process that is stopped for a while: what falls due then
/// happens when it goes on.
#[derive(Clone)]
struct Stopped {
    from: Instant,
    until: Instant,
}

impl TimeSource for Stopped {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep_until(&self, at: Instant) -> BoxFuture<'static, ()> {
        let at = if at > self.from && at < self.until { self.until } else { at };
        Box::pin(tokio::time::sleep_until(at))
    }
}

#[tokio::test(start_paused = true)]
async fn permits_of_a_process_that_was_stopped_are_not_used_in_a_heap() {
    let (yard, start) = (Yard::new(), Instant::now());
    let clock = Stopped { from: start + ms(450), until: start + ms(2000) };
    let settings = builder(&yard).max_open(20).max_opening(20).rate(rate(10, 1));
    let pool = settings.clock(Clock::custom(clock)).build().expect("valid");
    pool.filled().await.expect("full");
    let at = connects(&yard, start);
    // five before the stop, one whose permit is still good, the rest anew at the rate
    assert_eq!(pool.stats().sources[0].permits_dropped, 14);
    assert_rate(&at, 10, 1);
    assert_eq!((at.len(), pool.audit()), (20, vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_says_too_fast_is_asked_at_half_the_pace() {
    let yard = Yard::new();
    yard.then([Act::Succeed; 10]).then([Act::TooFast(Some(secs(3)))]);
    let start = Instant::now();
    let settings = builder(&yard).max_open(100).max_opening(1).rate(rate(10, 1));
    let pool = settings.build().expect("valid");
    pool.ready(40, secs(60)).await.expect("in time");
    let at = connects(&yard, start);
    let gaps: Vec<u64> =
        at.windows(2).map(|pair| ((pair[1] - pair[0]) * 1000.0).round() as u64).collect();
    assert_eq!(gaps[..10], [100; 10]);
    assert!(gaps[10] >= 3000, "not before it said: {gaps:?}");
    assert!(gaps[11..30].iter().all(|gap| *gap == 200), "half the pace: {gaps:?}");
    assert_eq!(
        (pool.stats().sources[0].failed(forebay::OpenFailure::Rate), pool.audit()),
        (1, vec![])
    );
    pool.ready(100, secs(60)).await.expect("in time");
    let at = connects(&yard, start);
    assert!(at[100] - at[99] < 0.11, "after ten quiet seconds the full pace again");
}

#[tokio::test(start_paused = true)]
async fn pools_that_share_a_count_never_exceed_it_together_and_both_get_some() {
    for seed in seeds(20) {
        println!("FOREBAY_SEED={seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let limit = rng.u32(4..20);
        let count = LocalCount::shared(limit);
        // one server for both: it counts what both have open
        let mut yard = Yard::new().handshake(ms(rng.u64(..200)));
        yard.lets_go_after = Some(ms(rng.u64(..900)));
        for _ in 0..20 {
            let acts = [Act::Succeed, Act::Refuse, Act::Succeed, Act::Late(secs(1))];
            yard.then([acts[rng.usize(..acts.len())]]);
        }
        let pools = [0, 1].map(|_| {
            let settings = builder(&yard).max_open(limit).target_ready(limit / 4);
            let settings = settings.max_idle(Some(secs(5))).base_lifetime(secs(120));
            let settings = settings.lifetime_jitter(secs(60)).count(count.clone());
            settings.seed(rng.u64(..)).build().expect("valid")
        });
        let mut users = Vec::new();
        for user in 0..limit as usize * 2 {
            let (pool, mut rng) = (pools[user % 2].clone(), rng.fork());
            users.push(tokio::spawn(async move {
                for _ in 0..50 {
                    tokio::time::sleep(ms(rng.u64(..12_000))).await;
                    let mut conn = pool.get().await.expect("within the timeout");
                    tokio::time::sleep(ms(rng.u64(..3000))).await;
                    conn.broken = rng.u32(..20) == 0;
                }
            }));
        }
        for user in users {
            user.await.expect("served");
            assert!(pools.iter().all(|pool| pool.audit().is_empty()));
            assert!(count.held() <= limit);
        }
        assert!(yard.most_open() <= limit, "{} of {limit}", yard.most_open());
        let open: u32 = pools.iter().map(|pool| pool.stats().open()).sum();
        assert_eq!(count.held(), open);
        assert!(pools.iter().all(|pool| pool.stats().checkouts == u64::from(limit) * 50));
    }
}

#[tokio::test(start_paused = true)]
async fn two_pools_that_share_a_limit_give_back_no_more_than_asked_for() {
    let count = LocalCount::shared(10);
    let pools: Vec<Pool<Yard>> = (0..2)
        .map(|_| {
            let yard = Yard { lets_go_after: Some(ms(500)), ..Yard::new() };
            let pool = Pool::builder(yard).max_open(5).count(count.clone()).stagger(None);
            pool.build().expect("valid")
        })
        .collect();
    pass(secs(1)).await;
    count.set_limit(7);
    pass(secs(10)).await;
    let recalled: u64 =
        pools.iter().map(|pool| pool.stats().discarded(Discard::LeaseRecalled)).sum();
    assert_eq!((recalled, count.held()), (3, 7));
}

/// A count budget whose holder can lose its standing.
#[derive(Default)]
struct Fence {
    standing: Mutex<Standing>,
    held: AtomicU32,
    holders: Mutex<Vec<Holder>>,
    refusals: AtomicU64,
}

impl Fence {
    fn set(&self, standing: Standing) {
        *self.standing.lock().expect("standing") = standing;
        self.holders.lock().expect("holders").retain(Holder::wake);
    }
}

impl CountBudget for Fence {
    fn take(&self, _now: Instant, ask: Ask) -> Grant {
        self.held.fetch_add(ask.want, Ordering::SeqCst);
        Grant { leases: ask.want, epoch: 0 }
    }

    fn give_back(&self, back: Grant) {
        self.held.fetch_sub(back.leases, Ordering::SeqCst);
    }

    fn watch(&self, holder: Holder) {
        self.holders.lock().expect("holders").push(holder);
    }

    fn standing(&self, _now: Instant) -> Standing {
        *self.standing.lock().expect("standing")
    }

    fn refused(&self, _now: Instant) {
        self.refusals.fetch_add(1, Ordering::SeqCst);
    }
}

/// Six open: three in use, three ready.
async fn fenced(standing: Standing) -> (Yard, Arc<Fence>, Pool<Yard>, Vec<forebay::Guard<Yard>>) {
    let (yard, fence) = (Yard::new(), Arc::new(Fence::default()));
    let pool = builder(&yard).max_open(6).count(fence.clone()).build().expect("valid");
    pool.filled().await.expect("full");
    let mut guards = Vec::new();
    for _ in 0..3 {
        guards.push(pool.get().await.expect("one"));
    }
    fence.set(standing);
    // even before the driver has run
    assert!(matches!(pool.try_get(), Err(GetError::Empty { .. })));
    settle().await;
    let stats = pool.stats();
    assert_eq!((stats.ready(), stats.in_use()), (0, 3), "what is idle is closed");
    assert_eq!(stats.discarded(Discard::LeaseRecalled), 3);
    assert_eq!((fence.held.load(Ordering::SeqCst), yard.open()), (3, 3));
    (yard, fence, pool, guards)
}

#[tokio::test(start_paused = true)]
async fn a_fenced_member_hands_out_nothing_opens_nothing_and_keeps_nothing_that_comes_back() {
    let (yard, fence, pool, mut guards) = fenced(Standing::Fenced).await;
    let before = yard.connects();
    let error = pool.get().await.expect_err("fenced");
    assert_eq!(error.to_string(), "waited 30 s in lease: 3 in use, 0 ahead, 0 opening");
    assert_eq!(yard.server.kills.load(Ordering::SeqCst), 0, "its users may end what they do");
    let waiting = pool.clone();
    let waiter = tokio::spawn(async move { waiting.get().await.map(|conn| conn.id) });
    settle().await;
    drop(guards.pop());
    settle().await;
    assert_eq!((pool.stats().discarded(Discard::LeaseRecalled), pool.stats().waiting), (4, 1));
    assert_eq!((fence.held.load(Ordering::SeqCst), yard.open(), yard.connects()), (2, 2, before));
    fence.set(Standing::Good);
    waiter.await.expect("joined").expect("served in good standing");
    pass(ms(1)).await;
    assert_eq!((pool.stats().ready(), pool.stats().in_use(), pool.audit()), (4, 2, vec![]));
}

#[tokio::test(start_paused = true)]
async fn an_expired_member_kills_what_is_in_use() {
    let (yard, fence, pool, guards) = fenced(Standing::Expired).await;
    assert!(guards.iter().all(|guard| guard.killed.load(Ordering::SeqCst)));
    assert_eq!(pool.stats().sources[0].kills, 3);
    drop(guards);
    settle().await;
    assert_eq!((pool.stats().discarded(Discard::Killed), pool.stats().open()), (3, 0));
    assert_eq!((fence.held.load(Ordering::SeqCst), yard.open(), pool.audit()), (0, 0, vec![]));
    pass(secs(60)).await;
    assert_eq!(yard.open(), 0, "nothing is opened");
}

#[tokio::test(start_paused = true)]
async fn an_open_under_way_when_the_fence_falls_is_closed_and_not_handed_out() {
    let (yard, fence) = (Yard::new().handshake(secs(1)), Arc::new(Fence::default()));
    let pool = builder(&yard).max_open(2).count(fence.clone()).build().expect("valid");
    let waiting = pool.clone();
    let waiter = tokio::spawn(async move { waiting.get().await.map(|conn| conn.id) });
    pass(ms(500)).await;
    fence.set(Standing::Fenced);
    pass(ms(500)).await;
    let stats = pool.stats();
    assert_eq!((stats.open(), stats.waiting, stats.checkouts), (0, 1, 0));
    assert_eq!(stats.discarded(Discard::LeaseRecalled), 2);
    assert_eq!((fence.held.load(Ordering::SeqCst), pool.audit()), (0, vec![]));
    waiter.abort();
}

#[tokio::test(start_paused = true)]
async fn the_keeper_is_told_when_the_backend_says_too_many() {
    let (yard, fence) = (Yard::new(), Arc::new(Fence::default()));
    yard.then([Act::TooMany]);
    let pool = builder(&yard).max_open(1).count(fence.clone()).build().expect("valid");
    pool.filled().await.expect("at the second attempt");
    assert_eq!(fence.refusals.load(Ordering::SeqCst), 1);
    assert_eq!((fence.held.load(Ordering::SeqCst), pool.audit()), (1, vec![]));
}

/// A keeper that never answers.
struct Silent;

impl RateBudget for Silent {
    fn reserve(&self, _now: Instant, _more: u32) -> BoxFuture<'_, Result<Permit, BudgetError>> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test(start_paused = true)]
async fn a_keeper_that_never_answers_is_a_failure_and_no_lost_slot() {
    let builder = Pool::builder(Yard::new()).max_open(1).stagger(None).timeout(secs(40));
    let pool = builder.rate(Arc::new(Silent)).build().expect("valid");
    let error = pool.get().await.expect_err("no permit");
    assert!(error.to_string().ends_with("last open failed: no answer within 30s"), "{error}");
    assert_eq!(pool.stats().sources[0].failed(forebay::OpenFailure::Rate), 1);
    assert_eq!(pool.audit(), []);
}
