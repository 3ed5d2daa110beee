//! Users that panic, connectors that panic, and guards that are dropped where
//! no runtime runs: each costs at most its own connection.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use common::{Yard, ms, pass, secs, settle};
use forebay::{Connector, Discard, Failure, LetGo, LocalCount, Opened, Pool, Returned};

/// A panic that prints nothing.
fn planned_panic() -> ! {
    resume_unwind(Box::new("a planned panic"))
}

async fn full(yard: &Yard, max_open: u32) -> Pool<Yard> {
    let pool = Pool::builder(yard.clone()).max_open(max_open).stagger(None).build().expect("valid");
    pool.ready(max_open, secs(1)).await.expect("filled");
    pool
}

#[tokio::test(start_paused = true)]
async fn a_user_that_panics_costs_its_connection_and_the_waiter_gets_another() {
    let yard = Yard::new();
    let pool = full(&yard, 1).await;
    let held = pool.get().await.expect("the only one");
    let id = held.id;
    let other = pool.clone();
    let waiter = tokio::spawn(async move { other.get().await.map(|conn| conn.id) });
    settle().await;
    let user = tokio::spawn(async move {
        let _held = held;
        planned_panic();
    });
    user.await.expect_err("it panicked");
    assert_ne!(waiter.await.expect("no panic").expect("served"), id);
    assert_eq!(pool.stats().discarded(Discard::UnknownState), 1);
    assert_eq!((yard.open(), pool.audit()), (1, vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_outlives_a_caught_panic_is_used_again() {
    let pool = full(&Yard::new(), 1).await;
    let held = pool.get().await.expect("the only one");
    let id = held.id;
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _seen = &held;
        planned_panic();
    }));
    caught.expect_err("it panicked");
    drop(held);
    assert_eq!(pool.get().await.expect("the only one").id, id, "nobody dropped it midway");
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_waiting_passes_on_what_was_handed_over() {
    let pool = full(&Yard::new(), 1).await;
    let held = pool.get().await.expect("the only one");
    let other = pool.clone();
    let waiter = tokio::spawn(async move {
        let mut checkout = std::pin::pin!(other.get());
        let _ = std::future::poll_fn(|cx| Poll::Ready(checkout.as_mut().poll(cx))).await;
        tokio::time::sleep(ms(500)).await;
        planned_panic();
    });
    settle().await;
    drop(held);
    assert_eq!(pool.stats().in_use(), 1, "handed over, not claimed");
    waiter.await.expect_err("it panicked");
    assert_eq!((pool.stats().ready(), pool.audit()), (1, vec![]));
    drop(pool.get().await.expect("the only one"));
}

/// Completes a future on a plain thread, without any runtime.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        std::thread::park();
    }
}

#[tokio::test(start_paused = true)]
async fn a_guard_dropped_outside_any_runtime_goes_to_the_waiters() {
    let pool = full(&Yard::new(), 1).await;
    let held = pool.get().await.expect("the only one");
    let id = held.id;
    let inside = {
        let pool = pool.clone();
        tokio::spawn(async move { pool.get().await.map(|conn| conn.id) })
    };
    settle().await;
    std::thread::spawn(move || drop(held)).join().expect("dropped");
    assert_eq!(inside.await.expect("no panic").expect("served"), id);

    // nor does the waiter need one: the driver below stands still meanwhile
    let held = pool.get().await.expect("the only one");
    let outside = {
        let pool = pool.clone();
        std::thread::spawn(move || block_on(pool.get()).map(|conn| conn.id))
    };
    while pool.stats().waiting == 0 {
        std::thread::yield_now();
    }
    std::thread::spawn(move || drop(held)).join().expect("dropped");
    assert_eq!(outside.join().expect("no panic").expect("served"), id);
    assert_eq!(pool.audit(), []);
}

#[test]
fn a_guard_that_outlives_its_runtime_gives_its_lease_back() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let (yard, budget) = (Yard::new(), LocalCount::shared(5));
    let (pool, held, detached) = runtime.block_on(async {
        let pool = Pool::builder(yard.clone())
            .max_open(3)
            .count(budget.clone())
            .stagger(None)
            .build()
            .expect("valid");
        pool.ready(3, secs(1)).await.expect("filled");
        let held = pool.get().await.expect("one");
        let detached = pool.get().await.expect("another").detach();
        (pool, held, detached)
    });
    drop(runtime);
    assert_eq!(budget.held(), 2, "the stock is gone");
    drop(held);
    drop(detached);
    assert_eq!((budget.held(), yard.open()), (0, 0));
    assert!(pool.try_get().is_err());
    assert_eq!(pool.audit(), []);
}

/// Calls of a connector that may panic, by number.
const CALLS: [&str; 7] = ["prepare", "connect", "is_broken", "state", "reset", "check", "close"];

/// Panics in one call, once.
struct Touchy {
    panics_in: &'static str,
    calls: Arc<AtomicU32>,
}

impl Touchy {
    fn touch(&self, call: &'static str) {
        if call == self.panics_in && self.calls.fetch_add(1, Ordering::SeqCst) == 1 {
            planned_panic();
        }
    }
}

impl Connector for Touchy {
    type Conn = bool;
    type Key = ();
    type Error = std::io::Error;

    async fn prepare(&self, _key: &()) -> Result<(), std::io::Error> {
        self.touch("prepare");
        Ok(())
    }

    async fn connect(&self, _key: &()) -> Result<Opened<bool>, std::io::Error> {
        self.touch("connect");
        Ok(Opened::new(false))
    }

    fn is_broken(&self, _conn: &bool) -> bool {
        self.touch("is_broken");
        false
    }

    fn state(&self, conn: &mut bool) -> Returned {
        self.touch("state");
        if *conn { Returned::NeedsReset } else { Returned::Clean }
    }

    async fn reset(&self, conn: &mut bool) -> Result<(), std::io::Error> {
        self.touch("reset");
        *conn = false;
        Ok(())
    }

    async fn check(&self, _conn: &mut bool) -> Result<(), std::io::Error> {
        self.touch("check");
        Ok(())
    }

    async fn close(&self, _conn: bool) -> LetGo {
        self.touch("close");
        LetGo::Confirmed
    }

    fn classify(&self, _error: &std::io::Error) -> Failure {
        Failure::Refused
    }
}

#[tokio::test(start_paused = true)]
async fn a_connector_that_panics_in_any_call_costs_one_connection() {
    for panics_in in CALLS {
        let (calls, budget) = (Arc::new(AtomicU32::new(0)), LocalCount::shared(3));
        let pool = Pool::builder(Touchy { panics_in, calls: calls.clone() })
            .max_open(3)
            .count(budget.clone())
            .idle_check(Some(secs(1)))
            .stagger(None)
            .build()
            .expect("valid");
        for round in 0..20 {
            let mut guards = Vec::new();
            for _ in 0..3 {
                guards.push(pool.get().await.unwrap_or_else(|e| panic!("{panics_in}: {e}")));
            }
            for guard in &mut guards {
                **guard = true;
            }
            if round % 5 == 0 {
                guards.pop().expect("one").discard(Discard::Broken);
            }
            drop(guards);
            pass(secs(2)).await;
            assert_eq!(pool.audit(), [], "{panics_in}");
        }
        assert!(calls.load(Ordering::SeqCst) > 1, "{panics_in} was not called often enough");
        let stats = pool.stats();
        assert_eq!((stats.ready(), stats.open(), budget.held()), (3, 3, 3), "{panics_in}");
        pool.drain(secs(5)).await;
        assert_eq!((pool.stats().open(), budget.held()), (0, 0), "{panics_in}");
    }
}
