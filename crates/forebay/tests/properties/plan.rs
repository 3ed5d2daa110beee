//! What one random world is like: every setting drawn from the seed, within
//! what `build()` accepts, and on a scale where lives are short.

use std::sync::Arc;
use std::time::Duration;

use forebay::{
    BackoffSettings, Clock, LocalCount, LocalRate, Pool, Rate, Settings, SourceSpec, Strategy,
};

use crate::backend::{Faults, Site};
use crate::book::{Book, SiteBook, Watch};
use crate::clients::Manners;

/// How a world ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Everybody goes home, then the pools are drained.
    Drain,
    /// The pools are drained while clients wait and hold.
    DrainBusy,
    /// Everybody goes home and the pools are dropped.
    Drop,
}

#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub steps: u32,
    pub crowd: u32,
    pub end: End,
    pub manners: Manners,
    /// The settings of each pool's sources.
    pub pools: Vec<Vec<(Settings, Faults)>>,
    pub prefill: Vec<u32>,
    pub limit: Option<u32>,
    pub rate: Option<Rate>,
    pub priority_age: Duration,
    pub max_waiters: u32,
    pub max_retry_after: Option<Duration>,
    pub throttle_ramp: Duration,
    pub stagger: Option<Duration>,
    pub strategy: Strategy,
}

/// A running world.
pub struct World {
    pub plan: Plan,
    pub book: Book,
    pub pools: Vec<Pool<Site>>,
    /// The names of each pool's sources and their sites.
    pub sites: Vec<Vec<(String, usize)>>,
    pub count: Option<Arc<LocalCount>>,
}

fn ms(rng: &mut fastrand::Rng, from: u64, to: u64) -> Duration {
    Duration::from_millis(rng.u64(from..=to))
}

fn one_in(rng: &mut fastrand::Rng, n: u8) -> bool {
    rng.u8(..n) == 0
}

impl Plan {
    pub fn draw(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let rng = &mut rng;
        let pools = if one_in(rng, 4) { 2 } else { 1 };
        let rough = !one_in(rng, 4);
        let sources: Vec<Vec<(Settings, Faults)>> = (0..pools)
            .map(|_| {
                let many = if one_in(rng, 2) { 1 } else { rng.usize(2..=3) };
                (0..many).map(|_| (settings(rng), faults(rng, rough))).collect()
            })
            .collect();
        let keys = if one_in(rng, 2) { 1 } else { rng.u32(2..=3) };
        let prefill = (0..keys).filter(|_| !one_in(rng, 3)).collect();
        let timeout = ms(rng, 20, 1500);
        let claim_within = ms(rng, 5, 200);
        let hold = ms(rng, 1, 60);
        let odd = if rough { rng.u8(5..50) } else { rng.u8(0..20) };
        Self {
            seed,
            steps: 1000,
            crowd: rng.u32(4..40),
            end: [End::Drain, End::Drain, End::DrainBusy, End::Drop][rng.usize(..4)],
            manners: Manners {
                keys,
                timeout,
                brief_wait: Duration::from_millis(10),
                claim_within,
                hold,
                odd,
            },
            pools: sources,
            prefill,
            limit: one_in(rng, 3).then(|| rng.u32(1..30)),
            rate: one_in(rng, 3)
                .then(|| Rate::new(rng.u32(20..400), rng.u32(1..12)).expect("valid")),
            priority_age: ms(rng, 0, 300),
            max_waiters: rng.u32(1..100),
            max_retry_after: one_in(rng, 4).then(|| ms(rng, 0, 100)),
            throttle_ramp: ms(rng, 0, 200),
            stagger: one_in(rng, 3).then(|| ms(rng, 0, 100)),
            strategy: [
                Strategy::RoundRobin,
                Strategy::LeastInUse,
                Strategy::ThrottleAware,
                Strategy::Weighted,
            ][rng.usize(..4)],
        }
    }

    /// Builds the pools and their servers.
    pub fn start(self) -> World {
        let rng = fastrand::Rng::with_seed(self.seed ^ 0x5eed);
        let book = Book::new(rng, self.pools.len(), self.priority_age);
        let count = self.limit.map(LocalCount::shared);
        let rate = self.rate.map(LocalRate::shared);
        book.open().count.clone_from(&count);
        book.open().rate = self.rate;
        let mut world =
            World { book, pools: Vec::new(), sites: Vec::new(), count, plan: self.clone() };
        for (index, sources) in self.pools.iter().enumerate() {
            let mut specs = Vec::new();
            let mut named = Vec::new();
            for (settings, faults) in sources {
                let mut settings = settings.clone();
                settings.count = world.count.clone().map(|count| count as _);
                settings.rate = rate.clone().map(|rate| rate as _);
                let mut pages = world.book.open();
                let site = pages.sites.len();
                pages.sites.push(SiteBook::new(index, &settings, *faults));
                drop(pages);
                let connector = Site {
                    book: world.book.clone(),
                    index: site,
                    handshake: settings.connect_timeout / 3,
                    close_grace: settings.close_grace,
                    connect_timeout: settings.connect_timeout,
                    kills: settings.hard_life.is_some() || site.is_multiple_of(2),
                };
                let name = format!("source-{site}");
                specs.push(SourceSpec::new(&name, connector).settings(settings));
                named.push((name, site));
            }
            let builder = Pool::over(specs)
                .prefill(self.prefill.clone())
                .timeout(self.manners.timeout)
                .brief_wait(self.manners.brief_wait)
                .claim_within(self.manners.claim_within)
                .priority_age(self.priority_age)
                .max_waiters(self.max_waiters)
                .max_retry_after(self.max_retry_after)
                .throttle_ramp(self.throttle_ramp)
                .stagger(self.stagger)
                .strategy(self.strategy)
                .clock(Clock::custom(Watch::new(&world.book)))
                .seed(self.seed.wrapping_add(index as u64))
                .observer(crate::Witness(world.book.clone()));
            world.pools.push(builder.build().expect("a plan is valid"));
            world.sites.push(named);
        }
        world
    }
}

fn settings(rng: &mut fastrand::Rng) -> Settings {
    let max_open = rng.u32(1..20);
    let target = rng.u32(0..=max_open);
    let base = ms(rng, 100, 3000);
    let lifetime_jitter = ms(rng, 0, base.as_millis() as u64);
    let shortest = (base - lifetime_jitter / 2).as_millis() as u64;
    let guard_window = ms(rng, 0, shortest / 3);
    let lead = ms(rng, 0, shortest / 3);
    let longest = (base + lifetime_jitter / 2).as_millis() as u64;
    Settings {
        max_open,
        target_ready: Some(target),
        low_watermark: Some(rng.u32(0..=target)),
        min_idle: one_in(rng, 2).then(|| rng.u32(0..=target)),
        max_in_use: one_in(rng, 4).then(|| rng.u32(1..=max_open)),
        max_opening: rng.u32(1..6),
        base_lifetime: base,
        lifetime_jitter,
        guard_window,
        lead,
        hard_life: one_in(rng, 2).then(|| ms(rng, longest + 1, longest + 300)),
        max_idle: [Some(Duration::ZERO), Some(ms(rng, 20, 1000)), None][rng.usize(..3)],
        idle_check: one_in(rng, 3).then(|| ms(rng, 20, 500)),
        connect_timeout: ms(rng, 3, 150),
        reset_timeout: ms(rng, 3, 50),
        check_timeout: ms(rng, 3, 50),
        close_grace: ms(rng, 1, 80),
        backoff: BackoffSettings {
            base: ms(rng, 1, 30),
            max: ms(rng, 30, 100),
            breaker_after: rng.u32(1..6),
            breaker_max: ms(rng, 100, 300),
        },
        weight: rng.u32(1..4),
        ..Settings::default()
    }
}

fn faults(rng: &mut fastrand::Rng, rough: bool) -> Faults {
    if !rough || one_in(rng, 4) {
        return Faults::default();
    }
    Faults {
        prepare: rng.u8(0..10),
        connect: rng.u8(0..40),
        close: rng.u8(0..60),
        reset: rng.u8(0..30),
        check: rng.u8(0..30),
        judge: if one_in(rng, 2) { 0 } else { rng.u8(0..5) },
    }
}
