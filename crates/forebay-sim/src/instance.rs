//! One instance of a service: a member of the fleet with a pool for each backend
//! it uses, and whoever draws connections from them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use forebay::{
    Clock, CountBudget, GetOptions, Histogram, LocalCount, LocalRate, Pool, Priority, Rate,
    RateBudget, Stats, TimeSource as _,
};
use forebay_fleet::{BackendLimits, Member, MemberSettings};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::chance::generator;
use crate::clocks::MemberClock;
use crate::link::{Link, now};
use crate::record::seconds;
use crate::scenario::{Arrivals, Service, Workload};
use crate::wire::Wire;
use crate::world::World;

type Budgets = (Option<Arc<dyn CountBudget>>, Option<Arc<dyn RateBudget>>);

/// How long a drain and a leave may take.
const GRACE: Duration = Duration::from_secs(15);

/// What requests of one service have seen.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) requests: u64,
    pub(crate) served: u64,
    pub(crate) failed: u64,
    pub(crate) first_failed: Option<f64>,
    pub(crate) empty_after: Vec<f64>,
    pub(crate) waits: Histogram,
    pub(crate) longest_since_sample: Duration,
}

/// One living instance.
pub(crate) struct Instance {
    pub(crate) service: usize,
    pub(crate) owner: usize,
    pub(crate) clock: MemberClock,
    pub(crate) cut_until: Arc<Mutex<Option<forebay::Instant>>>,
    member: Option<Member>,
    pub(crate) pools: Vec<Pool<Link>>,
    work: JoinSet<()>,
}

impl Instance {
    /// Starts an instance in its place; `life` counts its restarts.
    pub(crate) fn start(world: &Arc<World>, service: usize, owner: usize, life: u64) -> Self {
        let spec = &world.scenario.services[service];
        let seed = world.scenario.seed;
        let mut rng = generator(seed, "instance", (owner as u64) << 16 | life);
        let offset = spec.clock.offset.mul_f64(rng.f64());
        let clock = MemberClock::new(offset, spec.clock.drift_ppm * (rng.f64() * 2.0 - 1.0));
        let handle = clock.handle();
        let cut_until = Arc::new(Mutex::new(None));
        let member = world.hall.as_ref().and_then(|hall| {
            let wire = Wire {
                hall: hall.clone(),
                clock: clock.clone(),
                cut_until: cut_until.clone(),
                rng: Mutex::new(generator(seed, "wire", (owner as u64) << 16 | life)),
            };
            let settings = settings(world, spec, owner, rng.u64(..));
            let member = Member::spawn(settings, Arc::new(wire), handle.clone());
            member.inspect_err(|error| tracing::error!(%error, "a member could not start")).ok()
        });
        let mut instance = Self {
            service,
            owner,
            clock,
            cut_until,
            member,
            pools: Vec::new(),
            work: JoinSet::new(),
        };
        for (nth, &site) in world.sites_of(service).iter().enumerate() {
            let seed = rng.u64(..);
            instance.add_pool(world, spec, site, world.place(owner, nth), seed, &handle);
        }
        instance
    }

    fn add_pool(
        &mut self,
        world: &Arc<World>,
        spec: &Service,
        site: usize,
        place: usize,
        seed: u64,
        handle: &Clock,
    ) {
        let site = world.sites[site].clone();
        let model = &site.model;
        let link = Link { site: site.clone(), clock: self.clock.clone(), owner: self.owner };
        let mut builder = Pool::builder(link)
            .max_open(spec.max_open)
            .target_ready(spec.target_ready)
            .max_opening(spec.max_opening)
            .base_lifetime(spec.base_lifetime)
            .lifetime_jitter(spec.lifetime_jitter)
            .guard_window(spec.guard_window)
            .max_idle(spec.max_idle)
            .connect_timeout(spec.connect_timeout)
            .stagger(None)
            .seed(seed)
            .clock(handle.clone())
            .observer(world.census.begin(place));
        if let Some(min_idle) = spec.min_idle {
            builder = builder.min_idle(min_idle);
        }
        if let Some(low) = spec.low_watermark {
            builder = builder.low_watermark(low);
        }
        let limits = BackendLimits {
            open: model.open,
            reserve: model.reserve,
            rate: model.rate,
            rate_reserve: model.rate_reserve,
            // a permit may be used a little late, so the burst is not used to the last
            burst: headroom(model.burst, model.rate),
            version: 0,
        };
        let (count, rate) = self.budgets(&site.name, limits);
        if let Some(count) = count.filter(|_| model.open.is_some()) {
            builder = builder.count(count);
        }
        if let Some(rate) = rate.filter(|_| model.rate.is_some()) {
            builder = builder.rate(rate);
        }
        match builder.build() {
            Ok(pool) => {
                if let Some(workload) = &spec.workload {
                    let rng = fastrand::Rng::with_seed(seed.rotate_left(17));
                    let drawer = Drawer {
                        world: world.clone(),
                        pool: pool.clone(),
                        workload: workload.clone(),
                        clock: self.clock.clone(),
                        service: self.service,
                        rng,
                        busy: Arc::default(),
                    };
                    self.work.spawn(drawer.run());
                }
                self.pools.push(pool);
            }
            Err(error) => tracing::error!(%error, "a pool could not be built"),
        }
    }

    /// From the fleet, or this process's own where nobody coordinates.
    fn budgets(&self, backend: &str, limits: BackendLimits) -> Budgets {
        let Some(member) = &self.member else {
            let count = limits.open.map(|open| LocalCount::shared(open) as Arc<dyn CountBudget>);
            let rate = limits.rate.and_then(|rate| Rate::new(rate, limits.burst).ok());
            return (count, rate.map(|rate| LocalRate::shared(rate) as Arc<dyn RateBudget>));
        };
        match member.backend(backend, limits) {
            Ok(budgets) => (Some(budgets.count), Some(budgets.rate)),
            Err(error) => {
                tracing::error!(%error, "a backend could not be added");
                (None, None)
            }
        }
    }

    pub(crate) fn stats(&self) -> Vec<Stats> {
        self.pools.iter().map(Pool::stats).collect()
    }

    pub(crate) fn reaped(&self) -> u64 {
        let states = self.member.as_ref().map(Member::state).unwrap_or_default();
        states.iter().map(|state| state.reaped).sum()
    }

    /// Stops as one should: no new work, connections drained, leases given back.
    pub(crate) async fn stop(mut self) -> (Vec<Stats>, u64) {
        self.work.abort_all();
        let mut drains = JoinSet::new();
        for pool in &self.pools {
            let pool = pool.clone();
            drains.spawn(async move { pool.drain(GRACE).await });
        }
        while drains.join_next().await.is_some() {}
        let stats = (self.stats(), self.reaped());
        if let Some(member) = self.member.take() {
            member.leave(GRACE).await;
        }
        stats
    }

    /// Dies without a word. Its kernel closes its sockets.
    pub(crate) fn crash(mut self, world: &World) -> (Vec<Stats>, u64) {
        self.clock.stop(None);
        self.work.abort_all();
        let stats = (self.stats(), self.reaped());
        for site in &world.sites {
            site.cut(now(), |owner, _, _| owner == self.owner);
        }
        stats
    }
}

fn settings(world: &World, spec: &Service, owner: usize, seed: u64) -> MemberSettings {
    let defaults = MemberSettings::new(format!("{}-{owner}", spec.name), spec.name.clone());
    let Some(coordinator) = &world.scenario.coordinator else { return defaults };
    MemberSettings {
        weight: spec.weight,
        ttl: coordinator.ttl,
        heartbeat: coordinator.heartbeat,
        margin: coordinator.margin,
        request_timeout: coordinator.request_timeout,
        reclaim_after: coordinator.reclaim_after,
        on_loss: coordinator.on_loss,
        divisor: coordinator.divisor,
        seed: Some(seed),
        ..defaults
    }
}

/// What is left of a burst when permits may be used 100 ms late.
pub(crate) fn headroom(burst: u32, rate: Option<u32>) -> u32 {
    burst.saturating_sub(rate.unwrap_or(0).div_ceil(10)).max(1)
}

/// Draws connections from one pool as its workload says.
struct Drawer {
    world: Arc<World>,
    pool: Pool<Link>,
    workload: Workload,
    clock: MemberClock,
    service: usize,
    rng: fastrand::Rng,
    busy: Arc<AtomicU32>,
}

impl Drawer {
    async fn run(mut self) {
        let start = self.clock.now() + self.workload.starts_after;
        let mut requests = JoinSet::new();
        let mut next = start;
        let mut nth = 0;
        loop {
            let Some((at, size)) = self.arrival(start, next, nth) else {
                while requests.join_next().await.is_some() {}
                return;
            };
            self.clock.sleep_until(at).await;
            while requests.try_join_next().is_some() {}
            let size = self.scaled(size);
            for _ in 0..size {
                let most = self.workload.max_in_use.unwrap_or(u32::MAX);
                if self.busy.load(Ordering::Relaxed) < most {
                    self.busy.fetch_add(1, Ordering::Relaxed);
                    requests.spawn(self.request());
                }
            }
            next = at;
            nth += 1;
        }
    }

    /// The instant and number of the next requests.
    fn arrival(
        &mut self,
        start: forebay::Instant,
        last: forebay::Instant,
        nth: usize,
    ) -> Option<(forebay::Instant, u32)> {
        let factor = self.world.load(self.service).max(1e-9);
        Some(match &self.workload.arrivals {
            Arrivals::Constant(per_second) => {
                (last + Duration::from_secs_f64(1.0 / (per_second * factor)), 1)
            }
            Arrivals::Poisson(per_second) => {
                let gap = -(1.0 - self.rng.f64()).ln() / (per_second * factor);
                (last + Duration::from_secs_f64(gap), 1)
            }
            Arrivals::Bursts { size, every } => (last + *every, *size),
            Arrivals::Trace(instants) => (start + *instants.get(nth)?, 1),
        })
    }

    fn scaled(&mut self, size: u32) -> u32 {
        match self.workload.arrivals {
            // these already come more often
            Arrivals::Constant(_) | Arrivals::Poisson(_) => size,
            _ => (f64::from(size) * self.world.load(self.service) + self.rng.f64()) as u32,
        }
    }

    fn request(&mut self) -> impl Future<Output = ()> + Send + 'static {
        let [low, normal, _] = self.workload.priorities;
        let draw = self.rng.f64();
        let priority = if draw < low {
            Priority::Low
        } else if draw < low + normal {
            Priority::Normal
        } else {
            Priority::High
        };
        let hold = self.workload.hold.draw(&mut self.rng);
        let options = GetOptions::new().timeout(self.workload.max_wait).priority(priority);
        let (world, pool) = (self.world.clone(), self.pool.clone());
        let (clock, busy, service) = (self.clock.clone(), self.busy.clone(), self.service);
        async move {
            let asked = now();
            let mut checkout = pool.get_with(options);
            let (empty, got) = tokio::select! {
                biased;
                got = &mut checkout => (false, got),
                () = std::future::ready(()) => (true, checkout.await),
            };
            let waited = now() - asked;
            let at = seconds(asked - world.start);
            {
                let mut tally = world.tallies[service].lock();
                tally.requests += 1;
                tally.longest_since_sample = tally.longest_since_sample.max(waited);
                if empty {
                    tally.empty_after.push(at);
                }
                match &got {
                    Ok(_) => {
                        tally.served += 1;
                        tally.waits.record(waited);
                    }
                    Err(_) => {
                        tally.failed += 1;
                        tally.first_failed.get_or_insert(at);
                    }
                }
            }
            if let Ok(conn) = got {
                conn.busy.store(true, Ordering::Relaxed);
                clock.sleep_until(clock.now() + hold).await;
                conn.busy.store(false, Ordering::Relaxed);
            }
            busy.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
