//! Worlds in which nothing goes wrong: what the reservoir promises when it is
//! let alone. The stock does not dip while slots are free, dips by at most
//! `max_opening` at the cap, and nothing is opened in vain.

use std::time::Duration;

use forebay::Pool;
use tokio::time::sleep;

use crate::common::{Yard, ms, pass, secs};

/// A source with lives of some seconds and time enough to replace what retires.
struct Calm {
    target: u32,
    max_open: u32,
    max_opening: u32,
    base: Duration,
    jitter: Duration,
    guard: Duration,
    lead: Duration,
    handshake: Duration,
    max_idle: Option<Duration>,
    seed: u64,
}

impl Calm {
    fn draw(seed: u64) -> (Self, fastrand::Rng) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let target = rng.u32(1..16);
        let base = ms(rng.u64(20_000..60_000));
        let calm = Self {
            target,
            max_open: target * 2 + 1,
            max_opening: target,
            base,
            jitter: base.mul_f64(rng.f64() / 2.0),
            guard: ms(rng.u64(0..5_000)),
            lead: ms(rng.u64(1_000..5_000)),
            handshake: ms(rng.u64(100..500)),
            max_idle: [None, Some(ms(rng.u64(2_000..30_000)))][rng.usize(..2)],
            seed,
        };
        (calm, rng)
    }

    async fn start(&self) -> (Yard, Pool<Yard>) {
        let yard = Yard::new().handshake(self.handshake);
        let pool = Pool::builder(yard.clone())
            .max_open(self.max_open)
            .target_ready(self.target)
            .max_opening(self.max_opening)
            .base_lifetime(self.base)
            .lifetime_jitter(self.jitter)
            .guard_window(self.guard)
            .lead(self.lead)
            .max_idle(self.max_idle)
            .seed(self.seed)
            .stagger(None)
            .build()
            .expect("valid");
        pool.ready(self.target, secs(60)).await.expect("filled");
        (yard, pool)
    }
}

/// Users that never hold more than the target at once.
fn load(pool: &Pool<Yard>, users: u32, rng: &mut fastrand::Rng) -> tokio::task::JoinSet<()> {
    let mut set = tokio::task::JoinSet::new();
    for _ in 0..users {
        let (pool, mut rng) = (pool.clone(), rng.fork());
        set.spawn(async move {
            loop {
                sleep(ms(rng.u64(0..2_000))).await;
                let guard = pool.get().await.expect("served");
                sleep(ms(rng.u64(0..1_000))).await;
                drop(guard);
            }
        });
    }
    set
}

pub async fn a_stock_with_free_slots_does_not_dip(seed: u64) {
    let (calm, _) = Calm::draw(seed);
    let (_yard, pool) = calm.start().await;
    let step = ms(50);
    let steps = (calm.base * 8).as_millis() / step.as_millis();
    for _ in 0..steps {
        pass(step).await;
        let ready = pool.stats().ready();
        assert!(ready >= calm.target, "seed {seed}: {ready} ready of {}", calm.target);
    }
    assert_eq!((pool.stats().sources[0].wasted, pool.audit()), (0, vec![]), "seed {seed}");
}

pub async fn at_the_cap_the_stock_dips_by_max_opening_at_most(seed: u64) {
    let (mut calm, mut rng) = Calm::draw(seed);
    calm.max_open = calm.target;
    calm.max_opening = rng.u32(1..=calm.target);
    // time enough to replace all of them one after the other
    let rounds = calm.target.div_ceil(calm.max_opening);
    calm.lead = (calm.handshake + ms(10)) * (rounds + 1);
    calm.max_idle = None;
    let (yard, pool) = calm.start().await;
    let step = ms(50);
    let steps = (calm.base * 8).as_millis() / step.as_millis();
    let mut dipped = false;
    for _ in 0..steps {
        pass(step).await;
        let ready = pool.stats().ready();
        dipped |= ready < calm.target;
        let least = calm.target - calm.max_opening;
        assert!(ready >= least, "seed {seed}: {ready} ready, at least {least} promised");
    }
    let stats = pool.stats();
    assert!(dipped, "seed {seed}: no slot is free, so something had to give way");
    assert!(stats.discarded(forebay::Discard::ReplacedInPlace) > 0, "seed {seed}");
    assert!(yard.most_open() <= calm.max_open, "seed {seed}");
    assert_eq!((stats.sources[0].wasted, pool.audit()), (0, vec![]), "seed {seed}");
}

pub async fn a_steady_load_wastes_nothing_and_never_waits(seed: u64) {
    let (calm, mut rng) = Calm::draw(seed);
    let (yard, pool) = calm.start().await;
    let users = load(&pool, calm.target, &mut rng);
    for _ in 0..80 {
        pass(calm.base / 10).await;
        assert_eq!(pool.audit(), [], "seed {seed}");
    }
    let stats = pool.stats();
    assert!(stats.checkouts > 0 && stats.opened() > u64::from(calm.target), "seed {seed}");
    assert_eq!(stats.empty, 0, "seed {seed}: somebody found nothing ready");
    let wasted = stats.sources[0].wasted;
    assert_eq!(wasted, 0, "seed {seed}: {wasted} of {} in vain", stats.opened());
    drop(users);
    pool.drain(secs(30)).await;
    assert_eq!((yard.open(), pool.stats().open()), (0, 0), "seed {seed}");
}
