//! A checkout dropped after any number of polls, or left unpolled, loses no
//! connection, no slot and no wake-up; what is dropped in the middle of its use
//! is not used again.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use common::{Conn, Yard, ms, pass, secs, settle};
use forebay::{Checkout, Discard, GetError, GetOptions, Guard, LocalCount, Pool, Returned};

/// A waker that counts.
#[derive(Default)]
struct Bell(AtomicU32);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Bell {
    fn rings(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

type Answer = Poll<Result<Guard<Yard>, GetError>>;

/// Polls a checkout by hand: nobody else does.
fn poll(checkout: &mut Checkout<'_, Yard>, bell: &Arc<Bell>) -> Answer {
    let waker = Waker::from(bell.clone());
    Pin::new(checkout).poll(&mut Context::from_waker(&waker))
}

/// What a checkout meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Situation {
    /// A connection is ready.
    Stock,
    /// The only connection is in use and comes back.
    HandOff,
    /// It comes back dirty and is reset first.
    Reset,
    /// The only connection is being opened.
    Opening,
    /// The source is throttled and comes back.
    Throttled,
    /// What it is handed is dead.
    Dead,
}

const SITUATIONS: [Situation; 6] = [
    Situation::Stock,
    Situation::HandOff,
    Situation::Reset,
    Situation::Opening,
    Situation::Throttled,
    Situation::Dead,
];

struct Scene {
    situation: Situation,
    yard: Yard,
    budget: Arc<LocalCount>,
    pool: Pool<Yard>,
    held: Option<Guard<Yard>>,
}

impl Scene {
    async fn set(situation: Situation) -> Self {
        let yard = Yard::new().handshake(ms(20));
        let budget = LocalCount::shared(1);
        let pool = Pool::builder(yard.clone())
            .max_open(1)
            .count(budget.clone())
            .throttle_ramp(ms(10))
            .stagger(None)
            .build()
            .expect("valid");
        let mut held = None;
        if situation != Situation::Opening {
            pool.ready(1, secs(1)).await.expect("filled");
        }
        match situation {
            Situation::HandOff | Situation::Reset | Situation::Dead => {
                held = Some(pool.get().await.expect("the only one"));
            }
            Situation::Throttled => pool.source("default").expect("there").throttled(ms(50)),
            Situation::Stock | Situation::Opening => {}
        }
        Self { situation, yard, budget, pool, held }
    }

    /// What happens between two polls.
    async fn go_on(&mut self) {
        if let Some(mut held) = self.held.take() {
            if self.situation == Situation::Reset {
                held.state = Returned::NeedsReset;
            }
            let killed = held.killed.clone();
            drop(held);
            return killed.store(self.situation == Situation::Dead, Ordering::SeqCst);
        }
        pass(ms(30)).await;
    }

    /// Nothing is lost: the next checkout is served, and all ends at zero.
    async fn end(mut self, what: &str) {
        assert_eq!(self.pool.audit(), [], "{what}");
        drop(self.held.take());
        let served = tokio::time::timeout(secs(5), self.pool.get()).await;
        drop(served.unwrap_or_else(|_| panic!("{what}: the next waits")).expect("served"));
        let stats = self.pool.stats();
        assert_eq!((stats.waiting, stats.in_use(), stats.open()), (0, 0, 1), "{what}");
        assert_eq!((self.yard.open(), self.budget.held()), (1, 1), "{what}");
        assert_eq!(self.pool.audit(), [], "{what}");
        self.pool.drain(secs(5)).await;
        assert_eq!((self.yard.open(), self.budget.held()), (0, 0), "{what}");
    }
}

/// Polls a checkout `polls` times with something happening in between, then
/// drops it. `true` if it had completed before.
async fn cut(scene: &mut Scene, polls: u32) -> bool {
    let pool = scene.pool.clone();
    let bell = Arc::new(Bell::default());
    let mut checkout = pool.get();
    for _ in 0..polls {
        if let Poll::Ready(answer) = poll(&mut checkout, &bell) {
            answer.expect("served");
            return true;
        }
        scene.go_on().await;
    }
    false
}

#[tokio::test(start_paused = true)]
async fn a_checkout_may_be_dropped_after_any_number_of_polls() {
    for situation in SITUATIONS {
        let mut completed = false;
        for polls in 0..8 {
            let mut scene = Scene::set(situation).await;
            completed = cut(&mut scene, polls).await;
            scene.end(&format!("{situation:?} dropped after {polls} polls")).await;
        }
        assert!(completed, "{situation:?} never completed, so it was not exhausted");
    }
}

#[tokio::test(start_paused = true)]
async fn a_checkout_dropped_after_any_number_of_polls_lets_the_next_waiter_through() {
    for situation in SITUATIONS {
        for polls in 1..8 {
            let what = format!("{situation:?} dropped after {polls} polls");
            let mut scene = Scene::set(situation).await;
            let pool = scene.pool.clone();
            let bell = Arc::new(Bell::default());
            let mut first = pool.get();
            let mut kept = None;
            let mut behind = None;
            for _ in 0..polls {
                if let Poll::Ready(answer) = poll(&mut first, &bell) {
                    kept = Some(answer.expect("served"));
                    break;
                }
                let pool = pool.clone();
                behind.get_or_insert_with(|| {
                    tokio::spawn(async move { pool.get().await.map(|conn| conn.id) })
                });
                settle().await;
                scene.go_on().await;
            }
            drop(first);
            drop(kept);
            if let Some(behind) = behind {
                let id = tokio::time::timeout(secs(5), behind).await;
                id.unwrap_or_else(|_| panic!("{what}: the next waits"))
                    .expect("no panic")
                    .expect("served");
            }
            scene.end(&what).await;
        }
    }
}

async fn full(yard: &Yard, max_open: u32) -> Pool<Yard> {
    let pool = Pool::builder(yard.clone()).max_open(max_open).stagger(None).build().expect("valid");
    pool.ready(max_open, secs(1)).await.expect("filled");
    pool
}

#[tokio::test(start_paused = true)]
async fn dropping_a_checkout_that_was_handed_one_wakes_the_next() {
    let pool = full(&Yard::new(), 1).await;
    let held = pool.get().await.expect("the only one");
    let (first_bell, next_bell) = (Arc::new(Bell::default()), Arc::new(Bell::default()));
    let (mut first, mut next) = (pool.get(), pool.get());
    assert!(poll(&mut first, &first_bell).is_pending());
    assert!(poll(&mut next, &next_bell).is_pending());
    drop(held);
    assert_eq!((first_bell.rings(), next_bell.rings()), (1, 0), "handed to the older");
    assert_eq!(pool.stats().in_use(), 1);
    drop(first);
    assert_eq!(next_bell.rings(), 1, "passed on at once");
    assert!(matches!(poll(&mut next, &next_bell), Poll::Ready(Ok(_))));
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn dropping_a_waiting_checkout_does_not_wake_or_hold_anybody() {
    let pool = full(&Yard::new(), 1).await;
    let held = pool.get().await.expect("the only one");
    let (first_bell, next_bell) = (Arc::new(Bell::default()), Arc::new(Bell::default()));
    let (mut first, mut next) = (pool.get(), pool.get());
    assert!(poll(&mut first, &first_bell).is_pending());
    assert!(poll(&mut next, &next_bell).is_pending());
    drop(first);
    assert_eq!((pool.stats().waiting, next_bell.rings()), (1, 0));
    drop(held);
    assert_eq!((first_bell.rings(), next_bell.rings()), (0, 1));
    assert!(matches!(poll(&mut next, &next_bell), Poll::Ready(Ok(_))));
}

#[tokio::test(start_paused = true)]
async fn the_last_waker_is_the_one_that_is_woken() {
    let pool = full(&Yard::new(), 1).await;
    let held = pool.get().await.expect("the only one");
    let (before, after) = (Arc::new(Bell::default()), Arc::new(Bell::default()));
    let mut checkout = pool.get();
    assert!(poll(&mut checkout, &before).is_pending());
    assert!(poll(&mut checkout, &after).is_pending());
    drop(held);
    assert_eq!((before.rings(), after.rings()), (0, 1));
}

/// A waker that looks at the pool when it is dropped.
struct Nosy(Pool<Yard>);

impl Wake for Nosy {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Nosy {
    fn drop(&mut self) {
        let _ = self.0.stats();
    }
}

#[tokio::test(start_paused = true)]
async fn wakers_are_dropped_without_a_lock() {
    let pool = full(&Yard::new(), 1).await;
    let held = pool.get().await.expect("the only one");
    // the first lies in the queue, the others in turn on the desk
    for polls in 1..=3 {
        let mut checkout = pool.get();
        for _ in 0..polls {
            let waker = Waker::from(Arc::new(Nosy(pool.clone())));
            let mut cx = Context::from_waker(&waker);
            assert!(Pin::new(&mut checkout).poll(&mut cx).is_pending());
        }
        drop(checkout);
        assert_eq!(pool.stats().waiting, 0);
    }
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn what_an_unpolled_checkout_was_handed_moves_on_and_its_ticket_is_kept() {
    let pool = full(&Yard::new(), 1).await;
    let held = pool.get().await.expect("the only one");
    let bells: Vec<Arc<Bell>> = (0..3).map(|_| Arc::new(Bell::default())).collect();
    let (mut asleep, mut second, mut third) = (pool.get(), pool.get(), pool.get());
    assert!(poll(&mut asleep, &bells[0]).is_pending());
    assert!(poll(&mut second, &bells[1]).is_pending());
    drop(held);
    pass(ms(990)).await;
    assert!(poll(&mut second, &bells[1]).is_pending(), "claim_within is not over");
    pass(ms(20)).await;
    assert_eq!((bells[1].rings(), pool.stats().unclaimed), (1, 1));
    let Poll::Ready(Ok(held)) = poll(&mut second, &bells[1]) else { panic!("moved on") };
    // the sleeper is back before a younger waiter, and at its old place
    assert!(poll(&mut third, &bells[2]).is_pending());
    assert!(poll(&mut asleep, &bells[0]).is_pending());
    drop(held);
    assert_eq!(bells[2].rings(), 0);
    assert!(matches!(poll(&mut asleep, &bells[0]), Poll::Ready(Ok(_))));
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn an_unpolled_checkout_that_comes_back_is_opened_for() {
    let pool = Pool::builder(Yard::new())
        .max_open(2)
        .target_ready(0)
        .stagger(None)
        .build()
        .expect("valid");
    let bell = Arc::new(Bell::default());
    let mut asleep = pool.get();
    assert!(poll(&mut asleep, &bell).is_pending());
    pass(secs(2)).await;
    let _held = pool.try_get().expect("unclaimed, so in stock");
    // a slot is free, and nothing but this poll says that somebody waits
    assert!(poll(&mut asleep, &bell).is_pending());
    pass(ms(10)).await;
    assert!(matches!(poll(&mut asleep, &bell), Poll::Ready(Ok(_))), "nothing was opened");
}

#[tokio::test(start_paused = true)]
async fn a_checkout_left_unpolled_beyond_its_deadline_ends_with_a_timeout() {
    let pool = full(&Yard::new(), 1).await;
    for handed in [false, true] {
        let held = pool.get().await.expect("the only one");
        let bell = Arc::new(Bell::default());
        let mut asleep = pool.get_with(GetOptions::new().timeout(ms(500)));
        assert!(poll(&mut asleep, &bell).is_pending());
        if handed {
            drop(held);
            pass(secs(5)).await;
        } else {
            pass(secs(5)).await;
            drop(held);
        }
        assert_eq!(bell.rings(), 1);
        assert_eq!(pool.stats().ready(), 1, "it keeps nothing");
        let answer = poll(&mut asleep, &bell);
        assert!(matches!(answer, Poll::Ready(Err(GetError::Timeout(_)))), "handed: {handed}");
        assert_eq!(pool.audit(), []);
    }
}

/// A checkout that was handed a connection which then went out of date.
#[derive(Debug, Clone, Copy)]
enum OutOfDate {
    Invalidated,
    Retired,
    Killed,
}

#[tokio::test(start_paused = true)]
async fn what_went_out_of_date_between_the_hand_off_and_the_claim_is_not_used() {
    for how in [OutOfDate::Invalidated, OutOfDate::Retired, OutOfDate::Killed] {
        for claims in [true, false] {
            let pool = Pool::builder(Yard::new())
                .max_open(1)
                .base_lifetime(secs(60))
                .lifetime_jitter(Duration::ZERO)
                .guard_window(secs(10))
                .claim_within(secs(600))
                .timeout(secs(600))
                .stagger(None)
                .build()
                .expect("valid");
            let held = pool.get().await.expect("the only one");
            let (old, killed) = (held.id, held.killed.clone());
            let bell = Arc::new(Bell::default());
            let mut checkout = pool.get();
            assert!(poll(&mut checkout, &bell).is_pending());
            pass(secs(20)).await;
            drop(held);
            assert_eq!(bell.rings(), 1, "handed over");
            match how {
                OutOfDate::Invalidated => pool.invalidate(),
                OutOfDate::Retired => pass(secs(31)).await,
                OutOfDate::Killed => killed.store(true, Ordering::SeqCst),
            }
            let next = if claims {
                let mut checkout = checkout;
                let first = poll(&mut checkout, &bell);
                assert!(first.is_pending(), "{how:?}: the old one was claimed");
                checkout.await
            } else {
                drop(checkout);
                assert_eq!(pool.audit(), []);
                pool.get().await
            };
            let next = next.expect("served");
            assert_ne!(next.id, old, "{how:?}, claims: {claims}");
            assert!(next.remaining() >= secs(10));
            assert_eq!(pool.audit(), []);
        }
    }
}

/// Sends a query and reads the answer; in between the connection is of no use
/// to anybody else.
async fn query(conn: &mut Conn) {
    conn.state = Returned::Unknown;
    tokio::time::sleep(secs(1)).await;
    conn.state = Returned::Clean;
}

#[tokio::test(start_paused = true)]
async fn a_query_dropped_in_mid_response_costs_its_connection() {
    let yard = Yard::new();
    let pool = full(&yard, 1).await;
    let first = pool.get().await.expect("the only one").id;
    let whole = async {
        let mut conn = pool.get().await.expect("the only one");
        query(&mut conn).await;
    };
    whole.await;
    assert_eq!(pool.get().await.expect("the only one").id, first, "a whole query does not");
    let cut = async {
        let mut conn = pool.get().await.expect("the only one");
        query(&mut conn).await;
    };
    tokio::time::timeout(ms(100), cut).await.expect_err("dropped in the middle");
    let next = pool.get().await.expect("another");
    assert_ne!(next.id, first);
    assert_eq!(pool.stats().discarded(Discard::UnknownState), 1);
    assert_eq!((yard.open(), pool.audit()), (1, vec![]));
}
