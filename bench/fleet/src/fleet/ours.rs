//! What is done with Forebay: a real member on its own thread, a real pool, and a
//! keeper that counts. Each run has a backend of its own, made beforehand as
//! `forebay fleet setup` makes it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use forebay::{Connector, LetGo, Opened, Pool};
use forebay_fleet::{Backend, BackendLimits, Keeper, Member, MemberSettings};

use super::count::{Counted, Tally};
use super::servers::{Server, unique};
use super::{BURST, HANDSHAKE, LIMIT, LONG, OPENING, RATE, Sizes};

/// Checkouts in a row before a pause.
const BATCH: u32 = 1_000;
/// Between two opens of a trickle.
const DRIP: Duration = Duration::from_millis(20);
/// Members that compete, and what for.
const MEMBERS: usize = 3;
const SCARCE: u32 = 100;

/// A connection that costs nothing but the time of its handshake.
#[derive(Clone, Copy)]
struct Dummy(Duration);

impl Connector for Dummy {
    type Conn = ();
    type Key = ();
    type Error = std::convert::Infallible;

    async fn connect(&self, _key: &()) -> Result<Opened<()>, Self::Error> {
        if !self.0.is_zero() {
            tokio::time::sleep(self.0).await;
        }
        Ok(Opened::new(()))
    }

    async fn close(&self, (): ()) -> LetGo {
        LetGo::Confirmed
    }
}

/// A member and what it says.
struct Party {
    member: Member,
    counted: Arc<Counted>,
    before: Tally,
}

impl Party {
    async fn join(server: &Server, settings: MemberSettings) -> Result<Self> {
        let counted = server.counted()?;
        let keeper: Arc<dyn Keeper> = counted.clone();
        let member = Member::start(settings, move || async move { Ok(keeper) }).await?;
        let before = counted.tally().await;
        Ok(Self { member, counted, before })
    }

    /// Since it joined.
    async fn tally(&self) -> Tally {
        self.counted.tally().await - self.before
    }

    async fn leave(self) -> Result<Arc<Counted>> {
        ensure!(self.member.leave(LONG).await, "the member could not leave");
        Ok(self.counted)
    }
}

fn settings() -> MemberSettings {
    MemberSettings::new(unique("bench"), "bench")
}

fn pool(backend: &Backend, size: u32, handshake: Duration) -> forebay::Builder<Dummy> {
    Pool::builder(Dummy(handshake))
        .max_open(size)
        .max_opening(OPENING)
        .stagger(None)
        .count(backend.count.clone())
}

/// What a fill and all that follows took.
pub(crate) struct Filled {
    pub(crate) opened: u64,
    /// Joining and filling.
    pub(crate) fill: Tally,
    /// Checkouts on the full pool.
    pub(crate) checkouts: Tally,
    /// All of it: joining, filling, checkouts, closing, leaving.
    pub(crate) life: Tally,
    pub(crate) permits_lost: u64,
}

/// Fills a pool, uses it, closes it and leaves.
pub(crate) async fn fill(server: &Server, sizes: &Sizes) -> Result<Filled> {
    let id = server.set_up().await?;
    let party = Party::join(server, settings()).await?;
    let backend = party.member.backend(&id, BackendLimits::new(LIMIT, RATE, BURST))?;
    let pool = pool(&backend, sizes.fill, HANDSHAKE).rate(backend.rate.clone()).build()?;
    pool.ready(sizes.fill, LONG).await?;
    let fill = party.tally().await;
    checkouts(&pool, sizes).await?;
    let checkouts = party.tally().await - fill;
    let opened = pool.stats().opened();
    let permits_lost = backend.rate.fetched().saturating_sub(opened);
    pool.drain(LONG).await;
    let before = party.before;
    let life = party.leave().await?.tally().await - before;
    Ok(Filled { opened, fill, checkouts, life, permits_lost })
}

async fn checkouts(pool: &Pool<Dummy>, sizes: &Sizes) -> Result<()> {
    let batches = sizes.checkouts.div_ceil(BATCH);
    let pause = sizes.checkout_time / batches;
    for _ in 0..batches {
        for _ in 0..BATCH {
            drop(pool.get().await?);
        }
        tokio::time::sleep(pause).await;
    }
    Ok(())
}

/// Opens a second if connections cost nothing: joining, leases, permits if the rate
/// is shared too, and what the pool itself does.
pub(crate) async fn throughput(server: &Server, n: u32, rate: Option<u32>) -> Result<f64> {
    let id = server.set_up().await?;
    let party = Party::join(server, settings()).await?;
    let start = Instant::now();
    let limits = BackendLimits { rate, ..BackendLimits::new(LIMIT, RATE, BURST) };
    let backend = party.member.backend(&id, limits)?;
    let mut pool = pool(&backend, n, Duration::ZERO);
    if rate.is_some() {
        pool = pool.rate(backend.rate.clone());
    }
    let pool = pool.build()?;
    pool.ready(n, LONG).await?;
    let took = start.elapsed();
    pool.drain(LONG).await;
    party.leave().await?;
    Ok(f64::from(n) / took.as_secs_f64())
}

/// What a run without a bar took.
pub(crate) struct Apart {
    pub(crate) opened: u64,
    pub(crate) tally: Tally,
    pub(crate) took: Duration,
}

/// Opens one connection after the other, each because somebody asks for it.
pub(crate) async fn trickle(server: &Server, n: u32) -> Result<Apart> {
    let id = server.set_up().await?;
    let party = Party::join(server, settings()).await?;
    let start = Instant::now();
    let backend = party.member.backend(&id, BackendLimits::new(LIMIT, RATE, BURST))?;
    let pool = pool(&backend, n, HANDSHAKE).rate(backend.rate.clone()).target_ready(0).build()?;
    let mut guards = Vec::new();
    for _ in 0..n {
        guards.push(pool.get().await?);
        tokio::time::sleep(DRIP).await;
    }
    let (tally, took) = (party.tally().await, start.elapsed());
    let opened = pool.stats().opened();
    drop(guards);
    pool.drain(LONG).await;
    party.leave().await?;
    Ok(Apart { opened, tally, took })
}

/// One member has all the leases, two others come and want as many, until each has
/// its share. Heartbeats are a tenth of the usual.
pub(crate) async fn contended(server: &Server) -> Result<Apart> {
    let id = server.set_up().await?;
    let settings = || MemberSettings {
        ttl: Duration::from_secs(10),
        heartbeat: Duration::from_secs(1),
        margin: Duration::from_secs(2),
        reclaim_after: Duration::from_secs(10),
        ..settings()
    };
    let (mut parties, mut pools) = (Vec::new(), Vec::new());
    let start = Instant::now();
    for _ in 0..MEMBERS {
        let party = Party::join(server, settings()).await?;
        let backend = party.member.backend(&id, BackendLimits::new(SCARCE, RATE, BURST))?;
        let pool = pool(&backend, SCARCE, HANDSHAKE).rate(backend.rate.clone()).build()?;
        if pools.is_empty() {
            pool.ready(SCARCE, LONG).await?;
        }
        parties.push(party);
        pools.push(pool);
    }
    let share = SCARCE / MEMBERS as u32;
    loop {
        let ready: Vec<u32> = pools.iter().map(|pool| pool.stats().ready()).collect();
        if ready.iter().sum::<u32>() == SCARCE
            && ready.iter().all(|n| (share..share + 2).contains(n))
        {
            break;
        }
        ensure!(start.elapsed() < LONG, "no fair shares after {LONG:?}: {ready:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let took = start.elapsed();
    let mut tally = Tally::default();
    for party in &parties {
        tally += party.tally().await;
    }
    let opened = pools.iter().map(|pool| pool.stats().opened()).sum();
    for pool in pools {
        pool.drain(LONG).await;
    }
    for party in parties {
        party.leave().await?;
    }
    Ok(Apart { opened, tally, took })
}
