//! What a count budget does to a pool from outside: killing, disowning, recalling;
//! epochs of leases; and what it may ask of a connector. A keeper of leases relies
//! on each of these when it has been away for too long.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use common::{Act, Yard, ms, pass, secs, settle};
use forebay::{
    Ask, BoxFuture, BudgetError, BuildError, Connector, CountBudget, Discard, Grant, Holder,
    Instant, Opened, Permit, Pool, RateBudget, Settings,
};

/// A budget that a test plays the keeper of.
#[derive(Default)]
struct Keeper(Mutex<Books>);

#[derive(Default)]
struct Books {
    limit: u32,
    epoch: u64,
    /// Leases out, by epoch.
    out: BTreeMap<u64, i64>,
    coming: i64,
    most: Option<u32>,
    fences: bool,
    holders: Vec<Holder>,
}

impl Keeper {
    fn new(limit: u32) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Books { limit, ..Books::default() })))
    }

    fn books(&self) -> std::sync::MutexGuard<'_, Books> {
        self.0.lock().expect("books")
    }

    fn holder(&self) -> Holder {
        self.books().holders[0].clone()
    }

    fn out(&self, epoch: u64) -> i64 {
        self.books().out.get(&epoch).copied().unwrap_or(0)
    }

    /// Asks for all but so many leases back.
    fn recall_to(&self, most: u32) {
        self.books().most = Some(most);
        self.holder().wake();
    }
}

impl CountBudget for Keeper {
    fn take(&self, _now: Instant, ask: Ask) -> Grant {
        let mut books = self.books();
        let (epoch, limit) = (books.epoch, i64::from(books.limit));
        let out = books.out.entry(epoch).or_default();
        let leases = ask.want.min((limit - *out).max(0) as u32);
        *out += i64::from(leases);
        Grant { leases, epoch }
    }

    fn give_back(&self, back: Grant) {
        let mut books = self.books();
        *books.out.entry(back.epoch).or_default() -= i64::from(back.leases);
        books.coming -= i64::from(back.leases);
    }

    fn watch(&self, holder: Holder) {
        self.books().holders.push(holder);
    }

    fn needs_killer(&self) -> bool {
        self.books().fences
    }

    fn coming_back(&self, leases: Grant) {
        self.books().coming += i64::from(leases.leases);
    }

    fn excess(&self) -> u32 {
        let books = self.books();
        let staying = books.out.values().sum::<i64>() - books.coming;
        books.most.map_or(0, |most| (staying - i64::from(most)).max(0) as u32)
    }
}

async fn stocked(yard: &Yard, keeper: &Arc<Keeper>) -> Pool<Yard> {
    let pool = Pool::builder(yard.clone())
        .max_open(8)
        .stagger(None)
        .count(keeper.clone())
        .close_grace(secs(1))
        .build()
        .expect("a pool");
    pass(ms(10)).await;
    pool
}

fn kills(yard: &Yard) -> u32 {
    yard.server.kills.load(Ordering::SeqCst)
}

#[tokio::test(start_paused = true)]
async fn keep_kills_the_idle_before_those_in_use_and_no_more_than_needed() {
    let (yard, keeper) = (Yard::new(), Keeper::new(5));
    let pool = stocked(&yard, &keeper).await;
    let held = [pool.try_get().expect("ready"), pool.try_get().expect("ready")];
    assert_eq!(keeper.holder().keep(3), 3);
    assert_eq!(kills(&yard), 2, "two of the three idle ones");
    assert_eq!(keeper.holder().keep(1), 1);
    assert_eq!(kills(&yard), 4, "the last idle one, then one in use");
    assert_eq!(held.iter().filter(|conn| conn.killed.load(Ordering::SeqCst)).count(), 1);
    assert_eq!(keeper.holder().keep(1), 1);
    assert_eq!(kills(&yard), 4, "what is dead is not killed again");
    keeper.books().limit = 0;
    drop(held);
    pass(secs(2)).await;
    assert_eq!((yard.open(), keeper.out(0)), (1, 1));
    assert_eq!(pool.stats().discarded(Discard::Killed), 1);
}

#[tokio::test(start_paused = true)]
async fn keep_works_before_the_pools_runtime_has_run_again() {
    let (yard, keeper) = (Yard::new(), Keeper::new(3));
    let pool = stocked(&yard, &keeper).await;
    let conn = pool.try_get().expect("ready");
    let holder = keeper.holder();
    // no await: the pool's tasks stand still, as on a blocked runtime
    let kept = std::thread::spawn(move || holder.keep(0)).join().expect("no panic");
    assert_eq!((kept, kills(&yard)), (0, 3));
    assert!(conn.killed.load(Ordering::SeqCst));
}

#[tokio::test(start_paused = true)]
async fn what_waits_to_be_closed_is_killed_too() {
    let mut yard = Yard::new();
    yard.lets_go_after = Some(ms(500));
    let keeper = Keeper::new(2);
    let pool = stocked(&yard, &keeper).await;
    pool.invalidate();
    settle().await;
    assert_eq!((kills(&yard), pool.stats().sources[0].closing), (0, 2));
    keeper.holder().keep(0);
    assert_eq!(kills(&yard), 2);
}

#[tokio::test(start_paused = true)]
async fn a_connect_under_way_is_given_up_when_its_lease_is_lost() {
    for revoked in [false, true] {
        let (yard, keeper) = (Yard::new(), Keeper::new(1));
        yard.then([Act::Hang, Act::Hang]);
        let pool = stocked(&yard, &keeper).await;
        assert_eq!((yard.open(), pool.stats().sources[0].opening), (1, 1));
        keeper.books().limit = 0;
        if revoked {
            keeper.holder().revoke();
        } else {
            assert_eq!(keeper.holder().keep(0), 0);
        }
        settle().await;
        assert_eq!(yard.open(), 0, "revoked: {revoked}");
        // what is left of it at the backend is not known
        assert_eq!((keeper.out(0), pool.stats().sources[0].closing), (1, 1));
        pass(secs(2)).await;
        assert_eq!(keeper.out(0), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_connect_that_succeeds_as_its_lease_is_lost_is_not_kept() {
    let yard = Yard::new().handshake(secs(1));
    let keeper = Keeper::new(2);
    let pool = stocked(&yard, &keeper).await;
    assert_eq!(pool.stats().sources[0].opening, 2);
    assert_eq!(keeper.holder().keep(1), 1);
    keeper.books().limit = 1;
    pass(secs(3)).await;
    assert_eq!((yard.most_open(), pool.stats().ready(), keeper.out(0)), (2, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn revoke_disowns_everything_and_later_leases_are_of_another_epoch() {
    let (yard, keeper) = (Yard::new(), Keeper::new(4));
    let pool = stocked(&yard, &keeper).await;
    let in_use = pool.try_get().expect("ready");
    let old = in_use.id;
    keeper.books().epoch = 1;
    keeper.holder().revoke();
    assert_eq!(kills(&yard), 4, "the idle ones too, whoever would have to close them");
    assert!(pool.try_get().is_err(), "nothing of the old epoch is handed out");
    pass(secs(2)).await;
    assert_eq!((keeper.out(0), keeper.out(1)), (1, 4));
    let new = pool.try_get().expect("opened under the new epoch");
    assert!(new.id > old);
    drop((in_use, new));
    pass(secs(2)).await;
    assert_eq!((keeper.out(0), keeper.out(1), yard.open()), (0, 4, 4));
}

#[tokio::test(start_paused = true)]
async fn what_was_handed_over_before_a_revoke_is_not_claimed_after_it() {
    let (yard, keeper) = (Yard::new(), Keeper::new(1));
    let pool = stocked(&yard, &keeper).await;
    let first = pool.try_get().expect("ready");
    let mut waiting = pool.get();
    assert!(common::poll(&mut waiting).is_pending());
    let old = first.id;
    drop(first);
    keeper.books().epoch = 1;
    keeper.holder().revoke();
    let conn = waiting.await.expect("one of the new epoch");
    assert!(conn.id > old);
}

#[tokio::test(start_paused = true)]
async fn a_recalled_lease_goes_back_although_somebody_waits_here() {
    let (yard, keeper) = (Yard::new(), Keeper::new(2));
    let pool = Arc::new(stocked(&yard, &keeper).await);
    let held = [pool.try_get().expect("ready"), pool.try_get().expect("ready")];
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let pool = pool.clone();
            tokio::spawn(async move {
                let conn = pool.get().await.expect("a turn");
                tokio::time::sleep(ms(100)).await;
                drop(conn);
            })
        })
        .collect();
    settle().await;
    keeper.books().limit = 1;
    keeper.recall_to(1);
    settle().await;
    drop(held);
    settle().await;
    assert_eq!((keeper.out(0), yard.open()), (1, 1), "one goes back, one goes round");
    for waiter in waiters {
        waiter.await.expect("served by the one that is left");
    }
    assert_eq!(pool.stats().discarded(Discard::LeaseRecalled), 1);
}

#[tokio::test(start_paused = true)]
async fn a_close_that_hangs_keeps_its_lease_until_the_backend_had_its_grace() {
    let mut yard = Yard::new();
    // the socket is open until the close is given up, after close_grace
    yard.lets_go_after = Some(secs(3600));
    let keeper = Keeper::new(1);
    let pool = stocked(&yard, &keeper).await;
    keeper.books().limit = 0;
    pool.invalidate();
    pass(ms(900)).await;
    assert_eq!((yard.open(), keeper.out(0)), (1, 1));
    pass(ms(200)).await;
    assert_eq!((yard.open(), keeper.out(0)), (0, 1), "closed here, perhaps not yet there");
    pass(secs(1)).await;
    assert_eq!(keeper.out(0), 0);
}

/// A connector without killers.
struct Gentle;

impl Connector for Gentle {
    type Conn = ();
    type Key = ();
    type Error = std::io::Error;

    async fn connect(&self, _key: &()) -> Result<Opened<()>, std::io::Error> {
        Ok(Opened::new(()))
    }
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_fences_refuses_a_connector_without_killers() {
    let keeper = Keeper::new(1);
    keeper.books().fences = true;
    let built = Pool::builder(Gentle).count(keeper.clone()).build();
    assert!(matches!(built, Err(BuildError::NoKiller(_))));
    keeper.books().fences = false;
    assert!(Pool::builder(Gentle).count(keeper).build().is_ok());
}

/// Notes how much more each reservation was told of.
#[derive(Default)]
struct Foreseen(Mutex<Vec<u32>>);

impl RateBudget for Foreseen {
    fn reserve(&self, now: Instant, more: u32) -> BoxFuture<'_, Result<Permit, BudgetError>> {
        self.0.lock().expect("noted").push(more);
        Box::pin(std::future::ready(Ok(Permit::at(now))))
    }
}

#[tokio::test(start_paused = true)]
async fn a_rate_budget_is_told_how_many_opens_will_follow() {
    let rate = Arc::new(Foreseen::default());
    let yard = Yard::new().handshake(ms(10));
    let settings = Settings { max_open: 10, max_opening: 4, ..Settings::default() };
    let pool = Pool::builder(yard).settings(settings).stagger(None).rate(rate.clone()).build();
    let pool = pool.expect("a pool");
    pass(secs(1)).await;
    assert_eq!(pool.stats().ready(), 10);
    let told = rate.0.lock().expect("noted").clone();
    assert_eq!(told[..4], [6, 6, 6, 6], "four are under way, six follow");
    assert_eq!((told.len(), told.last()), (10, Some(&0)));
}
