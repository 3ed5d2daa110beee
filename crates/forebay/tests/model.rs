//! Hand-off under every order that a scheduler can think of: the pool's locks
//! are shuttle's, the test plays the driver. A lost wake-up shows as a deadlock,
//! a connection in two hands as a failed assertion.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p forebay --release --test model`

#![cfg(shuttle)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay::model::Hand;
use forebay::{
    BoxFuture, Builder, Checkout, Clock, Connector, Discard, GetError, GetOptions, Guard, Instant,
    LocalCount, Opened, Pool, TimeSource,
};
use shuttle::future::block_on;
use shuttle::thread;

const RANDOM: usize = 10_000;
const PCT: usize = 10_000;
/// How many changes of priority a probabilistic schedule makes.
const DEPTH: usize = 3;

fn check(model: fn()) {
    shuttle::check_random(model, RANDOM);
    shuttle::check_pct(model, PCT, DEPTH);
}

/// Opens numbered connections at once.
#[derive(Default)]
struct Yard(AtomicU32);

struct Conn {
    id: u32,
    in_hand: AtomicBool,
}

impl Connector for Yard {
    type Conn = Conn;
    type Key = ();
    type Error = Infallible;

    async fn connect(&self, _key: &()) -> Result<Opened<Conn>, Infallible> {
        let id = self.0.fetch_add(1, Ordering::SeqCst);
        Ok(Opened::new(Conn { id, in_hand: AtomicBool::new(false) }))
    }
}

/// A clock that moves when it is told to.
#[derive(Clone)]
struct Hands {
    start: Instant,
    passed: Arc<AtomicU64>,
}

impl Hands {
    fn new() -> Self {
        Self { start: Instant::now(), passed: Arc::default() }
    }

    fn pass(&self, span: Duration) {
        self.passed.fetch_add(span.as_millis() as u64, Ordering::SeqCst);
    }
}

impl TimeSource for Hands {
    fn now(&self) -> Instant {
        self.start + Duration::from_millis(self.passed.load(Ordering::SeqCst))
    }

    fn sleep_until(&self, _at: Instant) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

/// A pool with `n` connections in stock and no more to be had, unless one is
/// discarded and a driver runs.
struct Scene {
    pool: Pool<Yard>,
    driver: Hand<Yard>,
    clock: Hands,
    budget: Arc<LocalCount>,
}

fn scene(n: u32) -> Scene {
    scene_with(n, |builder| builder)
}

fn scene_with(n: u32, settings: impl FnOnce(Builder<Yard>) -> Builder<Yard>) -> Scene {
    let (clock, budget) = (Hands::new(), LocalCount::shared(n));
    let builder = Pool::builder(Yard::default())
        .max_open(n)
        .target_ready(0)
        .max_idle(None)
        .count(budget.clone())
        .clock(Clock::custom(clock.clone()))
        .seed(1)
        .stagger(None);
    let (driver, pool) = Hand::build(settings(builder)).expect("valid");
    (0..n).for_each(|_| driver.stock());
    Scene { pool, driver, clock, budget }
}

/// Uses a connection that nobody else may use meanwhile.
fn hold(guard: &Guard<Yard>) {
    assert!(!guard.in_hand.swap(true, Ordering::SeqCst), "{} is in two hands", guard.id);
    thread::yield_now();
    assert!(guard.in_hand.swap(false, Ordering::SeqCst));
}

fn get_and_return(pool: &Pool<Yard>) {
    let guard = block_on(pool.get()).expect("served");
    hold(&guard);
}

fn poll_once(checkout: &mut Checkout<'_, Yard>) -> Poll<Result<Guard<Yard>, GetError>> {
    Pin::new(checkout).poll(&mut Context::from_waker(Waker::noop()))
}

impl Scene {
    /// Nothing is lost: all is in stock, and after the end nothing is left.
    fn end(self, ready: u32) {
        let stats = self.pool.stats();
        assert_eq!((stats.ready(), stats.in_use(), stats.waiting), (ready, 0, 0));
        assert_eq!(self.pool.audit(), []);
        self.driver.close();
        while self.driver.turn() {}
        assert_eq!((self.pool.stats().open(), self.budget.held()), (0, 0));
    }
}

#[test]
fn three_getters_share_one_connection() {
    check(|| {
        let scene = scene(1);
        thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| get_and_return(&scene.pool));
            }
        });
        assert_eq!(scene.pool.stats().checkouts, 3);
        scene.end(1);
    });
}

#[test]
fn three_getters_share_two_connections_twice() {
    check(|| {
        let scene = scene(2);
        thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| (0..2).for_each(|_| get_and_return(&scene.pool)));
            }
        });
        assert_eq!(scene.pool.stats().checkouts, 6);
        scene.end(2);
    });
}

#[test]
fn a_waiting_checkout_is_dropped_while_the_return_hands_to_it() {
    check(|| {
        let scene = scene(1);
        let held = scene.pool.try_get().expect("the only one");
        thread::scope(|s| {
            s.spawn(|| {
                let mut checkout = scene.pool.get();
                let _ = poll_once(&mut checkout);
                thread::yield_now();
            });
            s.spawn(|| get_and_return(&scene.pool));
            drop(held);
        });
        scene.end(1);
    });
}

#[test]
fn a_handed_checkout_is_dropped_while_another_joins() {
    check(|| {
        let scene = scene(1);
        let held = scene.pool.try_get().expect("the only one");
        let mut checkout = scene.pool.get();
        assert!(poll_once(&mut checkout).is_pending());
        drop(held);
        thread::scope(|s| {
            s.spawn(move || drop(checkout));
            s.spawn(|| get_and_return(&scene.pool));
            s.spawn(|| get_and_return(&scene.pool));
        });
        scene.end(1);
    });
}

#[test]
fn a_checkout_moves_to_another_thread_while_it_is_handed_one() {
    check(|| {
        let scene = scene(1);
        let held = scene.pool.try_get().expect("the only one");
        let mut checkout = scene.pool.get();
        assert!(poll_once(&mut checkout).is_pending(), "with a waker that wakes nobody");
        thread::scope(|s| {
            s.spawn(move || hold(&block_on(checkout).expect("served")));
            s.spawn(|| get_and_return(&scene.pool));
            drop(held);
        });
        scene.end(1);
    });
}

#[test]
fn a_connection_comes_back_while_the_pool_is_closed() {
    check(|| {
        let scene = scene(1);
        let held = scene.pool.try_get().expect("the only one");
        thread::scope(|s| {
            s.spawn(|| match block_on(scene.pool.get()) {
                Ok(guard) => hold(&guard),
                Err(error) => assert!(matches!(error, GetError::Closed), "{error}"),
            });
            s.spawn(|| drop(held));
            s.spawn(|| scene.driver.close());
        });
        scene.end(0);
    });
}

#[test]
fn an_unclaimed_hand_off_is_claimed_while_it_is_taken_back() {
    check(|| {
        let scene = scene_with(1, |builder| builder.claim_within(Duration::from_secs(1)));
        let held = scene.pool.try_get().expect("the only one");
        thread::scope(|s| {
            s.spawn(|| get_and_return(&scene.pool));
            s.spawn(|| get_and_return(&scene.pool));
            s.spawn(|| {
                scene.clock.pass(Duration::from_secs(2));
                scene.driver.turn();
                scene.clock.pass(Duration::from_secs(2));
                scene.driver.turn();
            });
            drop(held);
        });
        assert_eq!(scene.pool.stats().checkouts, 3, "each claim is counted once");
        scene.end(1);
    });
}

#[test]
fn an_unclaimed_hand_off_is_dropped_while_it_is_taken_back() {
    check(|| {
        let scene = scene_with(1, |builder| builder.claim_within(Duration::from_secs(1)));
        let held = scene.pool.try_get().expect("the only one");
        let mut asleep = scene.pool.get();
        assert!(poll_once(&mut asleep).is_pending());
        drop(held);
        scene.clock.pass(Duration::from_secs(2));
        thread::scope(|s| {
            s.spawn(move || drop(asleep));
            s.spawn(|| scene.driver.turn());
            s.spawn(|| get_and_return(&scene.pool));
        });
        scene.end(1);
    });
}

#[test]
fn a_deadline_comes_while_the_connection_comes_back() {
    check(|| {
        let scene = scene(1);
        let held = scene.pool.try_get().expect("the only one");
        let options = || GetOptions::new().timeout(Duration::from_secs(1));
        thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| match block_on(scene.pool.get_with(options())) {
                    Ok(guard) => hold(&guard),
                    Err(error) => assert!(matches!(error, GetError::Timeout(_)), "{error}"),
                });
            }
            s.spawn(|| {
                scene.clock.pass(Duration::from_secs(2));
                scene.driver.turn();
                drop(held);
            });
        });
        scene.end(1);
    });
}

#[test]
fn discards_release_once_and_the_waiters_get_others() {
    check(|| {
        let scene = scene(2);
        let driver = shuttle::future::spawn(scene.driver.clone().drive());
        thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    let guard = block_on(scene.pool.get()).expect("served");
                    hold(&guard);
                    guard.discard(Discard::Broken);
                });
            }
        });
        scene.driver.close();
        block_on(driver).expect("the driver ends");
        assert_eq!((scene.pool.stats().open(), scene.budget.held()), (0, 0));
        assert_eq!(scene.pool.stats().discarded(Discard::Broken), 3);
    });
}

#[test]
fn a_detached_connection_is_dropped_while_the_pool_is_closed() {
    check(|| {
        let scene = scene(2);
        let driver = shuttle::future::spawn(scene.driver.clone().drive());
        let detached = scene.pool.try_get().expect("one").detach();
        let held = scene.pool.try_get().expect("another");
        thread::scope(|s| {
            s.spawn(move || drop(detached));
            s.spawn(move || drop(held.detach()));
            s.spawn(|| scene.driver.close());
        });
        block_on(driver).expect("the driver ends");
        assert_eq!((scene.pool.stats().open(), scene.budget.held()), (0, 0));
        assert_eq!(scene.pool.audit(), []);
    });
}

#[test]
fn what_was_handed_over_is_not_claimed_after_an_invalidation() {
    check(|| {
        let scene = scene(1);
        let driver = shuttle::future::spawn(scene.driver.clone().drive());
        let held = scene.pool.try_get().expect("the only one");
        let (old, over) = (held.id, AtomicBool::new(false));
        thread::scope(|s| {
            s.spawn(|| {
                let mut checkout = scene.pool.get();
                let (guard, was_over) = block_on(std::future::poll_fn(|cx| {
                    let was_over = over.load(Ordering::SeqCst);
                    Pin::new(&mut checkout).poll(cx).map(|guard| (guard, was_over))
                }));
                let guard = guard.expect("served");
                assert!(!was_over || guard.id != old, "the old one was claimed");
                hold(&guard);
            });
            s.spawn(|| drop(held));
            s.spawn(|| {
                scene.pool.invalidate();
                over.store(true, Ordering::SeqCst);
            });
        });
        scene.driver.close();
        block_on(driver).expect("the driver ends");
        assert_eq!((scene.pool.stats().open(), scene.budget.held()), (0, 0));
    });
}
