//! Every reason for which a connection is discarded: counted once, under its
//! own name, and its lease given back once, when the backend has let go of the
//! connection or, if nobody can say when that is, after the grace.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use common::{Act, Conn, Refused, Yard, ms, pass, secs, settle};
use forebay::{
    BoxFuture, Builder, Checkout, Clock, Connector, Discard, GetOptions, Guard, LetGo, LocalCount,
    Opened, Pool, Returned, TimeSource,
};
use tokio::time::Instant;

const LIFE: Duration = secs(660);
const GUARD: Duration = secs(45);

/// The bed as it is.
const PLAIN: fn(Builder<Yard>) -> Builder<Yard> = |builder| builder;

/// When the backend says that it has let go, for how long a lease is held then,
/// and how many closes go unconfirmed.
const WAYS: [(Option<Duration>, Duration, u64); 2] =
    [(Some(ms(500)), ms(500), 0), (None, secs(1), 1)];

/// A clock that can be pushed on without waking those who sleep by it.
#[derive(Clone, Default)]
struct Jumpy(Arc<AtomicU64>);

impl TimeSource for Jumpy {
    fn now(&self) -> Instant {
        Instant::now() + ms(self.0.load(Ordering::SeqCst))
    }

    fn sleep_until(&self, at: Instant) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep_until(at - ms(self.0.load(Ordering::SeqCst))))
    }
}

/// A pool that keeps what it is given but opens nothing of its own accord.
struct Bed {
    yard: Yard,
    count: Arc<LocalCount>,
    pool: Pool<Yard>,
    clock: Jumpy,
}

impl Bed {
    fn new(lets_go_after: Option<Duration>, change: fn(Builder<Yard>) -> Builder<Yard>) -> Self {
        let yard = Yard { lets_go_after, ..Yard::new() };
        let (count, clock) = (LocalCount::shared(4), Jumpy::default());
        let builder = Pool::builder(yard.clone())
            .max_open(4)
            .target_ready(0)
            .max_idle(None)
            .lifetime_jitter(ms(0))
            .count(count.clone())
            .clock(Clock::custom(clock.clone()))
            .stagger(None);
        Self { pool: change(builder).build().expect("valid"), yard, count, clock }
    }

    async fn get(&self) -> Guard<Yard> {
        self.pool.get().await.expect("opened")
    }

    /// One connection, idle.
    async fn stock(&self) {
        drop(self.get().await);
        assert_eq!((self.pool.stats().ready(), self.count.held()), (1, 1));
    }

    fn jump(&self, span: Duration) {
        self.clock.0.fetch_add(span.as_millis() as u64, Ordering::SeqCst);
    }

    /// What was discarded, with how many of each.
    fn discards(&self) -> Vec<(Discard, u64)> {
        assert_eq!(self.pool.audit(), []);
        let stats = self.pool.stats();
        let counts = Discard::ALL.iter().map(|reason| (*reason, stats.discarded(*reason)));
        counts.filter(|(_, n)| *n > 0).collect()
    }

    fn closing(&self) -> (u32, u64, u32) {
        let stats = self.pool.stats();
        (stats.sources[0].closing, stats.sources[0].unconfirmed, self.count.held())
    }
}

/// What `trigger` does discards one connection for `reason`; its lease is held
/// until the backend has let go.
async fn discards_one(
    reason: Discard,
    change: fn(Builder<Yard>) -> Builder<Yard>,
    trigger: impl AsyncFn(&Bed),
) {
    for (lets_go_after, held_for, unconfirmed) in WAYS {
        let bed = Bed::new(lets_go_after, change);
        trigger(&bed).await;
        settle().await;
        assert_eq!(bed.discards(), [(reason, 1)]);
        let held = bed.count.held();
        assert_eq!(bed.closing(), (1, 0, held));
        pass(held_for - ms(1)).await;
        assert_eq!(bed.closing(), (1, 0, held), "{reason}: not before the backend has let go");
        pass(ms(1)).await;
        assert_eq!(bed.closing(), (0, unconfirmed, held - 1), "{reason}: then at once");
        pass(secs(30)).await;
        assert_eq!(bed.closing(), (0, unconfirmed, held - 1), "{reason}: and never again");
        assert_eq!(bed.discards(), [(reason, 1)]);
        assert_eq!(bed.yard.open(), held - 1);
    }
}

#[tokio::test(start_paused = true)]
async fn one_found_dead_at_checkout_is_expired_on_checkout() {
    discards_one(Discard::ExpiredOnCheckout, PLAIN, async |bed: &Bed| {
        bed.stock().await;
        bed.jump(LIFE);
        assert!(bed.pool.try_get().is_err());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_whose_life_ends_in_use_is_expired_on_return() {
    discards_one(Discard::ExpiredOnReturn, PLAIN, async |bed: &Bed| {
        let held = bed.get().await;
        pass(LIFE).await;
        drop(held);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_found_dead_in_the_expiry_order_is_expired_on_scan() {
    discards_one(Discard::ExpiredOnScan, PLAIN, async |bed: &Bed| {
        bed.stock().await;
        pass(secs(5)).await;
        // the driver, set for the lead before the guard window, sleeps past the end
        bed.jump(LIFE);
        pass(LIFE - GUARD - secs(10)).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_with_too_little_left_at_checkout_or_return_is_counted_as_such() {
    let reason = Discard::InsufficientRemainingLifetime;
    discards_one(reason, PLAIN, async |bed: &Bed| {
        bed.stock().await;
        bed.jump(LIFE - GUARD);
        assert!(bed.pool.try_get().is_err());
    })
    .await;
    discards_one(reason, PLAIN, async |bed: &Bed| {
        let held = bed.get().await;
        pass(LIFE - GUARD).await;
        drop(held);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_that_reaches_its_guard_window_in_stock_is_expiring_soon_on_scan() {
    discards_one(Discard::ExpiringSoonOnScan, PLAIN, async |bed: &Bed| {
        bed.stock().await;
        pass(LIFE - GUARD - ms(1)).await;
        assert_eq!(bed.discards(), []);
        pass(ms(1)).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_that_comes_back_to_a_stock_without_surplus_is_reservoir_full() {
    let no_surplus = |b: Builder<Yard>| b.max_idle(Some(Duration::ZERO));
    discards_one(Discard::ReservoirFull, no_surplus, async |bed: &Bed| drop(bed.get().await)).await;
}

#[tokio::test(start_paused = true)]
async fn one_is_broken_if_the_connector_sees_it_or_the_user_says_so() {
    discards_one(Discard::Broken, PLAIN, async |bed: &Bed| {
        let mut held = bed.get().await;
        held.broken = true;
        drop(held);
    })
    .await;
    discards_one(Discard::Broken, PLAIN, async |bed: &Bed| {
        bed.get().await.discard(Discard::Broken);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_whose_reset_fails_is_broken() {
    discards_one(Discard::Broken, PLAIN, async |bed: &Bed| {
        bed.yard.server.sick.store(true, Ordering::SeqCst);
        let mut held = bed.get().await;
        held.state = Returned::NeedsReset;
        drop(held);
        pass(ms(1)).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_in_mid_response_or_dropped_by_a_panic_is_of_unknown_state() {
    discards_one(Discard::UnknownState, PLAIN, async |bed: &Bed| {
        let mut held = bed.get().await;
        held.state = Returned::Unknown;
        drop(held);
    })
    .await;
    discards_one(Discard::UnknownState, PLAIN, async |bed: &Bed| {
        let held = bed.get().await;
        let user = tokio::spawn(async move {
            let _held = held;
            panic!("user code panics");
        });
        assert!(user.await.expect_err("it panicked").is_panic());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn after_an_invalidate_one_is_of_an_old_generation_wherever_it_was() {
    let reason = Discard::OldGeneration;
    discards_one(reason, PLAIN, async |bed: &Bed| {
        bed.stock().await;
        bed.pool.invalidate();
    })
    .await;
    discards_one(reason, PLAIN, async |bed: &Bed| {
        let held = bed.get().await;
        bed.pool.invalidate();
        settle().await;
        assert_eq!(bed.discards(), [], "its user may end what it does");
        drop(held);
    })
    .await;
    discards_one(
        reason,
        |b| b.max_open(1),
        async |bed: &Bed| {
            let held = bed.get().await;
            let mut waiting = Box::pin(bed.pool.get());
            assert!(is_pending(&mut waiting).await);
            drop(held); // handed over, not yet claimed
            bed.pool.invalidate();
            drop(waiting);
        },
    )
    .await;
    discards_one(reason, PLAIN, async |bed: &Bed| {
        bed.yard.then([Act::Late(secs(1))]);
        let mut waiting = Box::pin(bed.pool.get());
        assert!(is_pending(&mut waiting).await);
        pass(ms(500)).await;
        bed.pool.source("default").expect("there").invalidate();
        let conn = waiting.await.expect("another was opened");
        assert_eq!((conn.id, bed.yard.connects()), (1, 2), "of the new generation");
    })
    .await;
}

async fn is_pending(checkout: &mut Pin<Box<Checkout<'_, Yard>>>) -> bool {
    std::future::poll_fn(|cx| Poll::Ready(checkout.as_mut().poll(cx).is_pending())).await
}

#[tokio::test(start_paused = true)]
async fn what_was_handed_over_before_an_invalidate_is_not_claimed_after_it() {
    let bed = Bed::new(Some(ms(500)), |b| b.max_open(1));
    let held = bed.get().await;
    let mut waiting = Box::pin(bed.pool.get());
    assert!(is_pending(&mut waiting).await);
    drop(held);
    bed.pool.invalidate();
    let conn = waiting.await.expect("opened in its place");
    assert_eq!((conn.id, bed.discards()), (1, vec![(Discard::OldGeneration, 1)]));
    assert_eq!((bed.yard.most_open(), bed.count.held()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn one_unused_for_max_idle_is_idle() {
    discards_one(
        Discard::Idle,
        |b| b.max_idle(Some(secs(60))),
        async |bed: &Bed| {
            bed.stock().await;
            pass(secs(60)).await;
        },
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn after_a_drain_one_is_drained_wherever_it_was() {
    let drain = |bed: &Bed| {
        let pool = bed.pool.clone();
        tokio::spawn(async move { pool.drain(secs(60)).await });
    };
    discards_one(Discard::Drained, PLAIN, async |bed: &Bed| {
        bed.stock().await;
        drain(bed);
    })
    .await;
    discards_one(Discard::Drained, PLAIN, async |bed: &Bed| {
        let held = bed.get().await;
        drain(bed);
        pass(secs(1)).await;
        assert_eq!(bed.discards(), [], "its user may end what it does");
        drop(held);
    })
    .await;
    discards_one(Discard::Drained, PLAIN, async |bed: &Bed| {
        bed.yard.then([Act::Late(secs(1))]);
        let mut waiting = Box::pin(bed.pool.get());
        assert!(is_pending(&mut waiting).await);
        pass(ms(500)).await;
        drain(bed);
        assert_eq!(waiting.await.expect_err("closed").to_string(), "the pool is closed");
        pass(ms(500)).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_killed_at_its_hard_life_or_at_the_end_of_a_drain_is_killed() {
    discards_one(
        Discard::Killed,
        |b| b.hard_life(Some(LIFE * 2)),
        async |bed: &Bed| {
            let held = bed.get().await;
            pass(LIFE * 2).await;
            assert!(held.killed.load(Ordering::SeqCst));
            assert_eq!(bed.closing(), (0, 0, 1), "a lease is kept while its user holds on");
            drop(held);
        },
    )
    .await;
    discards_one(Discard::Killed, PLAIN, async |bed: &Bed| {
        let held = bed.get().await;
        let drained = bed.pool.drain(secs(15)).await;
        assert_eq!((drained.killed, drained.left), (1, 1));
        drop(held);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_that_is_detached_keeps_its_lease_until_it_is_dropped() {
    discards_one(Discard::Detached, PLAIN, async |bed: &Bed| {
        let kept = bed.get().await.detach();
        pass(LIFE * 10).await;
        assert_eq!((bed.discards(), bed.closing()), (vec![], (0, 0, 1)));
        assert_eq!((bed.pool.stats().sources[0].detached, kept.broken), (1, false));
        drop(kept);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_idle_over_a_lowered_limit_is_lease_recalled() {
    discards_one(Discard::LeaseRecalled, PLAIN, async |bed: &Bed| {
        bed.stock().await;
        bed.count.set_limit(0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn no_more_leases_are_recalled_than_asked_for() {
    let bed = Bed::new(Some(ms(500)), |b| b);
    let mut guards = vec![bed.get().await, bed.get().await, bed.get().await];
    let detached = bed.get().await.detach();
    guards.truncate(2); // one idle, two in use, one detached
    bed.count.set_limit(1);
    settle().await;
    assert_eq!(bed.discards(), [(Discard::LeaseRecalled, 1)], "what is idle");
    drop(guards.pop());
    settle().await;
    assert_eq!(bed.discards(), [(Discard::LeaseRecalled, 2)], "what comes back");
    drop(detached);
    pass(ms(400)).await;
    drop(guards.pop());
    settle().await;
    // three are closing, and one may stay
    let recalled = (Discard::LeaseRecalled, 2);
    assert_eq!(bed.discards(), [recalled, (Discard::Detached, 1)]);
    pass(secs(10)).await;
    assert_eq!(bed.discards(), [recalled, (Discard::Detached, 1)]);
    assert_eq!((bed.count.held(), bed.pool.stats().ready(), bed.yard.open()), (1, 1, 1));
}

/// The lease of these goes on to the connection that takes their place.
#[tokio::test(start_paused = true)]
async fn replaced_in_place_and_evicted_pass_their_lease_on_once_the_backend_has_let_go() {
    for (lets_go_after, held_for, unconfirmed) in WAYS {
        let full = |b: Builder<Yard>| b.max_open(1).target_ready(1);
        let bed = Bed::new(lets_go_after, full);
        pass(LIFE - GUARD - secs(5)).await;
        assert_eq!(bed.discards(), [(Discard::ReplacedInPlace, 1)]);
        pass(held_for - ms(1)).await;
        assert_eq!((bed.closing(), bed.yard.connects()), ((1, 0, 1), 1));
        pass(ms(1)).await;
        assert_eq!((bed.closing(), bed.yard.connects()), ((0, unconfirmed, 1), 2));
        assert_eq!(
            (bed.yard.most_open(), bed.discards()),
            (1, vec![(Discard::ReplacedInPlace, 1)])
        );

        let bed = Bed::new(lets_go_after, |b| b.max_open(1));
        bed.stock().await;
        let start = Instant::now();
        let conn = bed.pool.get_with(GetOptions::new().key(7)).await.expect("in its slot");
        assert_eq!((conn.key, start.elapsed()), (7, held_for));
        assert_eq!(
            (bed.closing(), bed.discards()),
            ((0, unconfirmed, 1), vec![(Discard::Evicted, 1)])
        );
        assert_eq!(bed.yard.most_open(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_wanted_back_is_not_passed_on_to_a_replacement() {
    let bed = Bed::new(Some(ms(500)), |b| b.max_open(1).target_ready(1));
    pass(LIFE - GUARD - secs(5)).await;
    assert_eq!((bed.discards(), bed.closing()), (vec![(Discard::ReplacedInPlace, 1)], (1, 0, 1)));
    bed.count.set_limit(0);
    pass(secs(10)).await;
    assert_eq!((bed.yard.connects(), bed.closing()), (1, (0, 0, 0)), "nothing is opened for it");
    assert_eq!(bed.discards(), [(Discard::ReplacedInPlace, 1)]);
}

/// A yard whose closes panic.
struct Shaky(Yard);

impl Connector for Shaky {
    type Conn = Conn;
    type Key = u32;
    type Error = Refused;

    async fn connect(&self, key: &u32) -> Result<Opened<Conn>, Refused> {
        self.0.connect(key).await
    }

    async fn close(&self, _conn: Conn) -> LetGo {
        panic!("a close panics");
    }
}

#[tokio::test(start_paused = true)]
async fn a_close_that_panics_keeps_its_lease_for_the_grace_and_costs_nothing_else() {
    let count = LocalCount::shared(2);
    let pool = Pool::builder(Shaky(Yard::new())).max_open(2).target_ready(0).count(count.clone());
    let pool = pool.stagger(None).build().expect("valid");
    pool.get().await.expect("opened").discard(Discard::Broken);
    pass(secs(1) - ms(1)).await;
    let closing = || (pool.stats().sources[0].closing, pool.stats().sources[0].unconfirmed);
    assert_eq!((closing(), count.held(), pool.audit()), ((1, 0), 1, vec![]));
    pass(ms(1)).await;
    assert_eq!((closing(), count.held(), pool.audit()), ((0, 1), 0, vec![]));
    assert_eq!(pool.stats().discarded(Discard::Broken), 1);
    pool.get().await.expect("the pool goes on");
}
