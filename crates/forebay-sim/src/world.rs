//! A run: builds the backends, the coordinator and the instances of a scenario
//! under virtual time, lets the events happen, and takes the figures down.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay::{Clock, Discard, Instant, Stats};
use forebay_fleet::{Keeper as _, ModelKeeper};
use parking_lot::Mutex;

use crate::census::{Census, Claim, fair_shares};
use crate::chance::generator;
use crate::instance::{Instance, Tally};
use crate::link::{now, pass};
use crate::record::{Mark, Recording, Sample, ServiceSample, Totals, seconds};
use crate::scenario::Scenario;
use crate::site::Site;
use crate::wire::Hall;

/// Runs a scenario to its end. `progress` is told the simulated time and the end,
/// in seconds.
///
/// ```
/// # let text = "duration: 10s\nservices: [{name: web, target_ready: 5}]\n";
/// let scenario = forebay_sim::Scenario::parse(text, "small")?;
/// let recording = forebay_sim::run(&scenario, |_now, _end| {});
/// assert_eq!(recording.totals.opened, 5);
/// # Ok::<(), forebay_sim::FileError>(())
/// ```
pub fn run(scenario: &Scenario, mut progress: impl FnMut(f64, f64)) -> Recording {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap_or_else(|error| unreachable!("a runtime without a reactor is made: {error}"));
    let recording = runtime.block_on(async {
        let world = Arc::new(World::new(scenario));
        world.open().await;
        world.watch(&mut progress).await;
        crate::judge::judge(&world)
    });
    // what is still under way waits for a time that never comes
    runtime.shutdown_background();
    recording
}

/// Everything of a run.
pub(crate) struct World {
    pub(crate) scenario: Scenario,
    pub(crate) start: Instant,
    pub(crate) sites: Vec<Arc<Site>>,
    pub(crate) hall: Option<Arc<Hall>>,
    pub(crate) census: Arc<Census>,
    pub(crate) tallies: Vec<Mutex<Tally>>,
    pub(crate) books: Mutex<Books>,
    slots: Mutex<Vec<Slot>>,
    loads: Vec<Mutex<f64>>,
    lives: AtomicU64,
    sites_of: Vec<Vec<usize>>,
}

/// A place for an instance.
pub(crate) struct Slot {
    pub(crate) service: usize,
    first_place: usize,
    /// It should be there.
    pub(crate) expected: bool,
    pub(crate) instance: Option<Instance>,
    lives: u64,
}

/// What has been taken down.
#[derive(Default)]
pub(crate) struct Books {
    pub(crate) samples: Vec<Sample>,
    pub(crate) marks: Vec<Mark>,
    /// Of instances that are gone, by service.
    pub(crate) past: Vec<Past>,
    pub(crate) last_start: f64,
    pub(crate) reaped: u64,
}

/// Figures of instances that are gone.
#[derive(Default, Clone)]
pub(crate) struct Past {
    opened: u64,
    discarded: u64,
    empty: u64,
    wasted: u64,
    by_reason: Vec<u64>,
}

impl World {
    fn new(scenario: &Scenario) -> Self {
        let start = now();
        let mut sites = Vec::new();
        let mut names = Vec::new();
        for model in &scenario.backends {
            for copy in 1..=model.copies {
                let name = match model.copies {
                    1 => model.name.clone(),
                    _ => format!("{}-{copy}", model.name),
                };
                names.push(model.name.clone());
                let index = sites.len() as u64;
                sites.push(Arc::new(Site::new(model, name, scenario.seed, index, start)));
            }
        }
        let uses = |service: &crate::scenario::Service| {
            let used =
                |name: &String| service.backends.is_empty() || service.backends.contains(name);
            (0..sites.len()).filter(|site| used(&names[*site])).collect::<Vec<usize>>()
        };
        let sites_of: Vec<Vec<usize>> = scenario.services.iter().map(uses).collect();
        let hall = scenario.coordinator.as_ref().map(|coordinator| {
            Arc::new(Hall {
                keeper: ModelKeeper::new(Clock::tokio()),
                away_until: Mutex::new(None),
                calls: AtomicU64::new(0),
                announces: coordinator.announces,
                latency: coordinator.latency,
                loss: coordinator.loss,
            })
        });
        let services = scenario.services.len();
        let books = Books { past: vec![Past::default(); services], ..Books::default() };
        Self {
            start,
            sites,
            hall,
            census: Arc::new(Census::new(0)),
            tallies: (0..services).map(|_| Mutex::default()).collect(),
            books: Mutex::new(books),
            slots: Mutex::default(),
            loads: (0..services).map(|_| Mutex::new(1.0)).collect(),
            lives: AtomicU64::new(0),
            sites_of,
            scenario: scenario.clone(),
        }
    }

    /// Seconds since the start.
    pub(crate) fn at(&self) -> f64 {
        seconds(now() - self.start)
    }

    pub(crate) fn sites_of(&self, service: usize) -> &[usize] {
        &self.sites_of[service]
    }

    /// Where the census keeps the `nth` pool of an instance.
    pub(crate) fn place(&self, owner: usize, nth: usize) -> usize {
        self.slots.lock()[owner].first_place + nth
    }

    pub(crate) fn load(&self, service: usize) -> f64 {
        *self.loads[service].lock()
    }

    pub(crate) fn multiply_load(&self, service: usize, factor: f64) {
        *self.loads[service].lock() *= factor;
    }

    /// Sets everything in motion.
    async fn open(self: &Arc<Self>) {
        if let Some(hall) = &self.hall
            && self.scenario.coordinator.as_ref().is_some_and(|c| c.is_set_up)
        {
            for site in &self.sites {
                // a keeper in memory does not fail
                let _ = hall.keeper.setup(&site.name).await;
            }
        }
        for site in &self.sites {
            tokio::spawn(site.clone().live());
        }
        let mut starts = Vec::new();
        for (index, service) in self.scenario.services.iter().enumerate() {
            for nth in 0..service.instances {
                starts.push((self.add_slot(index), service.start_delay + service.start_step * nth));
            }
        }
        self.set_goals();
        let last = starts.iter().map(|(_, at)| *at).max().unwrap_or_default();
        self.books.lock().last_start = seconds(last);
        for (owner, at) in starts {
            let world = self.clone();
            tokio::spawn(async move {
                pass(at).await;
                world.start_instance(owner);
            });
        }
        for event in self.scenario.events.clone() {
            tokio::spawn(crate::events::happen(self.clone(), event));
        }
    }

    /// A place for one more instance of a service.
    pub(crate) fn add_slot(&self, service: usize) -> usize {
        let mut slots = self.slots.lock();
        let first_place =
            slots.last().map_or(0, |slot| slot.first_place + self.sites_of[slot.service].len());
        slots.push(Slot { service, first_place, expected: true, instance: None, lives: 0 });
        slots.len() - 1
    }

    /// The places of a service's instances, or of all.
    pub(crate) fn owners(&self, services: &[String]) -> Vec<usize> {
        let named = |slot: &Slot| {
            services.is_empty() || services.contains(&self.scenario.services[slot.service].name)
        };
        let slots = self.slots.lock();
        let mine = slots.iter().enumerate().filter(|(_, slot)| slot.expected && named(slot));
        mine.map(|(owner, _)| owner).collect()
    }

    /// Some of the instances of services, chosen by chance.
    pub(crate) fn choose(&self, services: &[String], fraction: f64, nonce: u64) -> Vec<usize> {
        let mut owners = self.owners(services);
        let mut rng = generator(self.scenario.seed, "choose", nonce);
        rng.shuffle(&mut owners);
        let count = (owners.len() as f64 * fraction).round() as usize;
        owners.truncate(count);
        owners.sort_unstable();
        owners
    }

    /// Says that an instance should be there, or not.
    pub(crate) fn expect(&self, owner: usize, expected: bool) {
        self.slots.lock()[owner].expected = expected;
        self.set_goals();
    }

    pub(crate) fn start_instance(self: &Arc<Self>, owner: usize) {
        let (service, life) = {
            let mut slots = self.slots.lock();
            let slot = &mut slots[owner];
            if slot.instance.is_some() || !slot.expected {
                return;
            }
            slot.lives += 1;
            (slot.service, slot.lives)
        };
        self.lives.fetch_add(1, Ordering::Relaxed);
        let instance = Instance::start(self, service, owner, life);
        self.slots.lock()[owner].instance = Some(instance);
    }

    pub(crate) fn take_instance(&self, owner: usize) -> Option<Instance> {
        self.slots.lock()[owner].instance.take()
    }

    /// Looks at a living instance.
    pub(crate) fn with_instance(&self, owner: usize, look: impl FnOnce(&Instance)) {
        if let Some(instance) = &self.slots.lock()[owner].instance {
            look(instance);
        }
    }

    /// Keeps the figures of an instance that is gone.
    pub(crate) fn bury(&self, service: usize, (stats, reaped): (Vec<Stats>, u64)) {
        let mut books = self.books.lock();
        books.reaped += reaped;
        books.past[service].add(&stats);
    }

    /// Works out anew what each pool should have.
    pub(crate) fn set_goals(&self) {
        let shares = self.shares();
        let goals: Vec<Option<u32>> = shares
            .iter()
            .map(|share| {
                share.map(|(target, share)| {
                    let binds = share < f64::from(target) - 1e-9;
                    if binds { (share.floor() as u32).saturating_sub(1) } else { target }
                })
            })
            .collect();
        self.census.set_goals(&goals);
    }

    /// For each place: the pool's target, and its fair share of the backend.
    pub(crate) fn shares(&self) -> Vec<Option<(u32, f64)>> {
        let slots = self.slots.lock();
        let places =
            slots.last().map_or(0, |slot| slot.first_place + self.sites_of[slot.service].len());
        let mut shares = vec![None; places];
        let mut claims: Vec<Vec<(usize, Claim)>> = vec![Vec::new(); self.sites.len()];
        for slot in slots.iter().filter(|slot| slot.expected) {
            let spec = &self.scenario.services[slot.service];
            for (nth, &site) in self.sites_of[slot.service].iter().enumerate() {
                // a stock that fades when it is not used is only owed what it keeps
                let target = spec.min_idle.unwrap_or(u32::MAX).min(spec.target_ready);
                let claim = Claim { target, weight: spec.weight };
                claims[site].push((slot.first_place + nth, claim));
            }
        }
        for (site, claims) in self.sites.iter().zip(&claims) {
            let cap = site.model.open.map(|open| open.saturating_sub(site.model.reserve));
            let list: Vec<Claim> = claims.iter().map(|(_, claim)| *claim).collect();
            for ((place, claim), share) in claims.iter().zip(fair_shares(&list, cap)) {
                shares[*place] = Some((claim.target, share));
            }
        }
        shares
    }

    /// Usable connections of a service at present, and its fair share of all.
    pub(crate) fn fairness(&self, service: usize) -> (u32, f64, f64) {
        let shares = self.shares();
        let slots = self.slots.lock();
        let mut sum = (0, 0.0, 0.0_f64);
        for slot in slots.iter().filter(|slot| slot.expected && slot.service == service) {
            for nth in 0..self.sites_of[service].len() {
                let place = slot.first_place + nth;
                let usable = self.census.usable(place);
                let fair = shares[place].map_or(0.0, |(_, share)| share);
                sum.0 += usable;
                sum.1 += fair;
                // one lease more or less is as fair as whole numbers can be
                let off = (f64::from(usable) - fair).abs() - 1.0;
                sum.2 = sum.2.max(off / fair.max(1.0));
            }
        }
        sum
    }

    /// Takes samples until the end.
    async fn watch(&self, progress: &mut impl FnMut(f64, f64)) {
        let end = seconds(self.scenario.duration);
        for at in self.sample_times() {
            pass((self.start + at).saturating_duration_since(now())).await;
            self.sample();
            progress(self.at(), end);
        }
    }

    /// Every `sample_every`, and closer together where something has just begun.
    fn sample_times(&self) -> std::collections::BTreeSet<Duration> {
        let Scenario { duration, sample_every, events, .. } = &self.scenario;
        let mut times = std::collections::BTreeSet::from([Duration::ZERO, *duration]);
        let mut at = Duration::ZERO;
        while at < *duration {
            times.insert(at);
            at += *sample_every;
        }
        for begin in events.iter().map(|event| event.at).chain([Duration::ZERO]) {
            let close = (1..=20_u32).map(|nth| begin + *sample_every * nth / 20);
            times.extend(close.filter(|at| at < duration));
        }
        times
    }

    fn sample(&self) {
        let mut services: Vec<ServiceSample> = Vec::new();
        for (index, past) in self.books.lock().past.iter().enumerate() {
            let mut tally = self.tallies[index].lock();
            services.push(ServiceSample {
                opened: past.opened,
                discarded: past.discarded,
                served: tally.served,
                failed: tally.failed,
                empty: tally.empty_after.len() as u64,
                longest_wait: seconds(std::mem::take(&mut tally.longest_since_sample)),
                ..ServiceSample::default()
            });
        }
        let mut members = 0;
        for slot in self.slots.lock().iter() {
            let Some(instance) = &slot.instance else { continue };
            members += 1;
            let sum = &mut services[instance.service];
            for stats in instance.stats() {
                for source in &stats.sources {
                    sum.target += source.target;
                    sum.ready += source.ready;
                    sum.in_use += source.in_use;
                    sum.opening += source.opening;
                    sum.closing += source.closing;
                    sum.opened += source.opened;
                    sum.discarded += all_discards(source);
                }
                sum.waiting += stats.waiting;
            }
        }
        let leases = self.hall.as_ref().map_or(0, |hall| {
            let totals = self.sites.iter().filter_map(|site| hall.keeper.ledger(&site.name));
            totals.map(|ledger| ledger.total()).sum()
        });
        let open = self.sites.iter().map(|site| site.open()).sum();
        let sample = Sample { at: self.at(), services, open, leases, members };
        self.books.lock().samples.push(sample);
    }

    /// The totals, with those of instances that are gone.
    pub(crate) fn totals(&self) -> Totals {
        let mut past = Past::default();
        let mut reaped = self.books.lock().reaped;
        for one in &self.books.lock().past {
            past.merge(one);
        }
        for slot in self.slots.lock().iter() {
            if let Some(instance) = &slot.instance {
                past.add(&instance.stats());
                reaped += instance.reaped();
            }
        }
        let mut totals = Totals {
            opened: past.opened,
            wasted: past.wasted,
            reaped,
            breaches: self.census.breaches(),
            ..Totals::default()
        };
        for (reason, count) in Discard::ALL.iter().zip(&past.by_reason) {
            if *count > 0 {
                totals.discarded.push((reason.to_string(), *count));
            }
        }
        let mut waits = forebay::Histogram::default();
        for tally in &self.tallies {
            let tally = tally.lock();
            totals.requests += tally.requests;
            totals.served += tally.served;
            totals.failed += tally.failed;
            totals.empty += tally.empty_after.len() as u64;
            waits.add(&tally.waits);
        }
        totals.wait = [waits.quantile(0.5), waits.quantile(0.99), waits.max()].map(seconds);
        totals.coordinator_calls =
            self.hall.as_ref().map_or(0, |hall| hall.calls.load(Ordering::Relaxed));
        totals
    }

    pub(crate) fn members_ever(&self) -> u32 {
        self.lives.load(Ordering::Relaxed) as u32
    }
}

impl Past {
    fn add(&mut self, stats: &[Stats]) {
        self.by_reason.resize(Discard::ALL.len(), 0);
        for stats in stats {
            self.empty += stats.empty;
            for source in &stats.sources {
                self.opened += source.opened;
                self.wasted += source.wasted;
                self.discarded += all_discards(source);
                for (sum, reason) in self.by_reason.iter_mut().zip(Discard::ALL) {
                    *sum += source.discarded(*reason);
                }
            }
        }
    }

    fn merge(&mut self, other: &Self) {
        self.opened += other.opened;
        self.wasted += other.wasted;
        self.discarded += other.discarded;
        self.empty += other.empty;
        self.by_reason.resize(Discard::ALL.len(), 0);
        for (sum, count) in self.by_reason.iter_mut().zip(&other.by_reason) {
            *sum += count;
        }
    }
}

fn all_discards(source: &forebay::SourceStats) -> u64 {
    Discard::ALL.iter().map(|reason| source.discarded(*reason)).sum()
}
