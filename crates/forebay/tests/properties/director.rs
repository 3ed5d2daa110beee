//! Runs one random world from its seed: draws the steps, lets time pass, and
//! judges after every step what can only be judged from the whole.

use std::time::Duration;

use forebay::{GetOptions, SourceStats, Stats};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep};

use crate::backend::Faults;
use crate::book::{GRAIN, Note, Waiting};
use crate::clients::Client;
use crate::plan::{End, Plan, World};

/// More than the longest chain of tasks that wake each other at one instant.
const SETTLE: u32 = 16;

/// A whole run; the error names what was broken, with the last things that happened.
pub async fn run(seed: u64) -> Result<Vec<Note>, String> {
    let plan = Plan::draw(seed);
    let mut director = Director {
        rng: fastrand::Rng::with_seed(seed ^ 0xd12ec704),
        world: plan.start(),
        clients: JoinSet::new(),
        limit: 0,
        held: 0,
        step: 0,
        drained: false,
    };
    director.limit = director.world.plan.limit.unwrap_or(u32::MAX);
    match director.play().await {
        Ok(()) => Ok(std::mem::take(&mut director.world.book.open().trace)),
        Err(text) => Err(director.report(&text)),
    }
}

struct Director {
    rng: fastrand::Rng,
    world: World,
    clients: JoinSet<()>,
    /// The shared budget's limit, and the leases at the last look.
    limit: u32,
    held: u32,
    step: u32,
    drained: bool,
}

impl Director {
    async fn play(&mut self) -> Result<(), String> {
        let calm: Vec<Faults> = self.faults();
        for step in 0..self.world.plan.steps {
            self.step = step;
            self.act(&calm);
            self.audit()?;
            let span = match self.rng.u8(..20) {
                0..=8 => Duration::ZERO,
                9..=15 => Duration::from_micros(self.rng.u64(0..5_000)),
                16..=18 => Duration::from_micros(self.rng.u64(0..30_000)),
                _ => Duration::from_millis(self.rng.u64(0..200)),
            };
            if !span.is_zero() {
                sleep(span).await;
            }
            self.look().await?;
        }
        match self.world.plan.end {
            End::Drain => {
                self.everybody_goes_home().await?;
                self.nothing_was_lost().await?;
                self.drain().await?;
            }
            End::DrainBusy => {
                self.drained = true;
                for pool in &self.world.pools {
                    pool.drain(Duration::from_millis(self.rng.u64(0..100))).await;
                }
                self.everybody_goes_home().await?;
                self.drain().await?;
            }
            End::Drop => {
                self.everybody_goes_home().await?;
                self.world.pools.clear();
                sleep(Duration::from_secs(2)).await;
            }
        }
        self.all_is_zero()
    }

    fn faults(&self) -> Vec<Faults> {
        self.world.book.open().sites.iter().map(|site| site.faults).collect()
    }

    fn set_faults(&self, faults: impl Fn(usize) -> Faults) {
        let mut pages = self.world.book.open();
        for (index, site) in pages.sites.iter_mut().enumerate() {
            site.faults = faults(index);
        }
    }

    /// One random thing happens.
    fn act(&mut self, usual: &[Faults]) {
        let pool = self.rng.usize(..self.world.pools.len());
        let crowd = self.clients.len() as u32;
        match self.rng.u8(..100) {
            0..=59 if crowd < self.world.plan.crowd => self.client(pool),
            60..=64 => (0..self.world.plan.crowd / 2).for_each(|_| self.client(pool)),
            65..=72 => {
                if let Ok(guard) = self.world.pools[pool].try_get() {
                    let client = self.new_client(pool);
                    self.clients.spawn(client.live_with(guard));
                }
            }
            73 if self.rng.bool() => {
                for (_, site) in &self.world.sites[pool] {
                    self.world.book.invalidated(*site);
                }
                self.world.pools[pool].invalidate();
            }
            74 if self.rng.bool() => {
                let (name, site) = &self.world.sites[pool][0];
                self.world.book.invalidated(*site);
                self.world.pools[pool].source(name).expect("named").invalidate();
            }
            76 | 77 => {
                let index = self.rng.usize(..self.world.sites[pool].len());
                let (name, site) = &self.world.sites[pool][index];
                let retry_after = Duration::from_millis(self.rng.u64(0..150));
                self.world.book.throttled(*site, retry_after);
                self.world.pools[pool].source(name).expect("named").throttled(retry_after);
            }
            78 | 79 => {
                if let (Some(count), Some(limit)) = (&self.world.count, self.world.plan.limit) {
                    self.limit = self.rng.u32(1..=limit * 2);
                    self.world.book.note("limit", u64::from(self.limit), 0);
                    count.set_limit(self.limit);
                }
            }
            80..=84 => self.world.book.kill_one(),
            85 => self.set_faults(|_| Faults::default()),
            86 | 87 => self.set_faults(|index| usual[index]),
            _ => {}
        }
    }

    fn new_client(&mut self, pool: usize) -> Client {
        let mut pages = self.world.book.open();
        pages.clients += 1;
        Client {
            id: pages.clients,
            book: self.world.book.clone(),
            rng: self.rng.fork(),
            manners: self.world.plan.manners.clone(),
            sites: self.world.sites[pool].clone(),
            pool_index: pool,
        }
    }

    fn client(&mut self, pool: usize) {
        let client = self.new_client(pool);
        self.clients.spawn(client.live(self.world.pools[pool].clone()));
    }

    /// Lets everything happen that can happen at this instant, then judges.
    async fn look(&mut self) -> Result<(), String> {
        for turn in 0..SETTLE {
            // also in the midst of things, before every task has had its turn
            if turn % 5 == 0 {
                self.audit()?;
            }
            yield_now().await;
        }
        self.audit()?;
        while self.clients.try_join_next().is_some() {}
        self.judge();
        self.verdict()
    }

    fn verdict(&self) -> Result<(), String> {
        let breaches = &self.world.book.open().breaches;
        if breaches.is_empty() { Ok(()) } else { Err(breaches.join("\n")) }
    }

    fn audit(&self) -> Result<(), String> {
        for pool in &self.world.pools {
            let broken = pool.audit();
            if !broken.is_empty() {
                return Err(format!("audit: {broken:?}"));
            }
        }
        Ok(())
    }

    fn judge(&mut self) {
        let stats: Vec<Stats> = self.world.pools.iter().map(|pool| pool.stats()).collect();
        let mut pages = self.world.book.open();
        pages.judge_caps();
        let now = Instant::now();
        for (pool, stats) in stats.iter().enumerate() {
            if stats.breaches > 0 {
                pages.breach("the pool itself counted a breach".to_owned());
            }
            for (source, (_, site)) in stats.sources.iter().zip(&self.world.sites[pool]) {
                let (counted, seen) = (source.open(), pages.server_open(*site));
                if seen > counted {
                    pages.breach(format!("server {site} counts {seen}, its pool {counted}"));
                }
                let settings = &self.world.plan.pools[pool][position(stats, source)].0;
                if source.opening > settings.max_opening {
                    pages.breach(format!("{} opens at once on server {site}", source.opening));
                }
            }
        }
        let served = std::mem::take(&mut pages.served);
        let pools = self.world.pools.len();
        let disturbed = std::mem::replace(&mut pages.disturbed, vec![false; pools]);
        let waiting: Vec<Waiting> = pages.waiting.values().cloned().collect();
        for waiter in waiting.iter().filter(|waiter| waiter.prompt) {
            if now > waiter.want.deadline + GRAIN {
                pages.breach(format!("client {} waits beyond its deadline", waiter.client));
            }
            let passed = served.iter().find(|(at, other)| is_passed(waiter, other, *at));
            if let Some((_, other)) = passed.filter(|_| !disturbed[waiter.want.pool]) {
                let text = format!("client {} was passed by {}", waiter.client, other.client);
                pages.breach(text);
            }
            let stats = &stats[waiter.want.pool];
            if !self.drained
                && let Some(source) = self.is_stranded(waiter, stats, &pages.sites, now)
            {
                let text = format!("client {} waits, {source} opens nothing", waiter.client);
                pages.breach(text);
            }
        }
        if let Some(count) = &self.world.count {
            let held = count.held();
            if held > self.limit.max(self.held) {
                pages.breach(format!("{held} leases, {} before, limit {}", self.held, self.limit));
            }
            self.held = held;
        }
    }

    /// A source that could open for a waiter and does not, while nothing else is
    /// on the way. Only of sources without a failure so far: others may back off.
    fn is_stranded(
        &self,
        waiter: &Waiting,
        stats: &Stats,
        sites: &[crate::book::SiteBook],
        now: Instant,
    ) -> Option<String> {
        let busy = stats.sources.iter().any(|source| source.opening + source.closing > 0);
        let leased_out = self.world.count.as_ref().is_some_and(|c| c.held() >= self.limit);
        if busy || leased_out || waiter.want.deadline <= now {
            return None;
        }
        let named = stats.sources.iter().zip(&self.world.sites[waiter.want.pool]);
        let idle = named.filter(|(source, (_, site))| {
            let book = &sites[*site];
            // at its cap on use, what lies ready anywhere is a reason to wait
            let capped = stats.ready() > 0 && book.max_in_use < book.max_open;
            book.steady
                && !waiter.want.excluded.contains(site)
                && source.open() < book.max_open
                && source.in_use < book.max_in_use
                && !source.lease_refused
                && !book.is_held_back(now, self.world.plan.throttle_ramp)
                && !capped
        });
        idle.map(|(source, _)| source.name.to_string()).next()
    }

    async fn everybody_goes_home(&mut self) -> Result<(), String> {
        for _ in 0..300 {
            if self.clients.is_empty() {
                return Ok(());
            }
            sleep(Duration::from_millis(50)).await;
            self.look().await?;
        }
        Err(format!("{} clients never came to an end", self.clients.len()))
    }

    /// The backends are well again: every slot can be used at once.
    async fn nothing_was_lost(&mut self) -> Result<(), String> {
        self.set_faults(|_| Faults::default());
        sleep(Duration::from_secs(1)).await;
        self.look().await?;
        let shared = self.world.pools.len();
        for (index, pool) in self.world.pools.iter().enumerate() {
            let caps = self.world.plan.pools[index].iter();
            let slots: u32 = caps.map(|(s, _)| s.max_in_use.unwrap_or(s.max_open)).sum();
            // leases that lie idle with one source, or one pool, are not taken for another
            let leases = match self.world.plan.pools[index].len() {
                _ if self.world.count.is_none() => u32::MAX,
                _ if shared > 1 => continue,
                1 => self.limit,
                _ => 1,
            };
            let waiters = self.world.plan.max_waiters;
            let most = slots.min(leases).min(waiters).max(1);
            let gets = (0..most).map(|_| {
                let options = GetOptions::new().timeout(Duration::from_secs(60));
                let pool = pool.clone();
                tokio::spawn(async move { pool.get_with(options).await })
            });
            let gets: Vec<_> = gets.collect();
            let mut guards = Vec::new();
            for get in gets {
                match get.await.expect("no panic") {
                    Ok(guard) => guards.push(guard),
                    Err(error) => {
                        let got = guards.len();
                        return Err(format!(
                            "pool {index}: only {got} of {most} at once: {error}\n{:?}",
                            pool.stats().sources
                        ));
                    }
                }
            }
            let mut pages = self.world.book.open();
            pages.got[index] += guards.len() as u64;
        }
        Ok(())
    }

    async fn drain(&mut self) -> Result<(), String> {
        for pool in &self.world.pools {
            let drained = pool.drain(Duration::from_secs(2)).await;
            if drained.left > 0 {
                return Err(format!("a drain left something: {drained:?}"));
            }
        }
        sleep(Duration::from_secs(1)).await;
        self.look().await
    }

    fn all_is_zero(&mut self) -> Result<(), String> {
        for (index, pool) in self.world.pools.iter().enumerate() {
            let stats = pool.stats();
            let mut wrong = Vec::new();
            for source in &stats.sources {
                let closed: u64 =
                    forebay::Discard::ALL.iter().map(|reason| source.discarded(*reason)).sum();
                if source.open() > 0 || closed != source.opened {
                    wrong.push(format!("{closed} discarded: {source:?}"));
                }
            }
            let got = self.world.book.open().got[index];
            if stats.checkouts != got || stats.waiting > 0 {
                let (counted, waiting) = (stats.checkouts, stats.waiting);
                wrong.push(format!("{counted} checkouts counted, {got} made, {waiting} waiting"));
            }
            if !wrong.is_empty() {
                return Err(format!("pool {index} at the end: {}", wrong.join("; ")));
            }
        }
        let mut pages = self.world.book.open();
        pages.judge_rate();
        for site in 0..pages.sites.len() {
            let open = pages.server_open(site);
            if open > 0 {
                pages.breach(format!("server {site} still counts {open} at the end"));
            }
        }
        if let Some(held) = self.world.count.as_ref().map(|count| count.held()).filter(|n| *n > 0) {
            pages.breach(format!("{held} leases are still held at the end"));
        }
        drop(pages);
        self.verdict()
    }

    fn report(&self, text: &str) -> String {
        let pages = self.world.book.open();
        let tail = pages.trace.len().saturating_sub(60);
        let lines: Vec<String> = pages.trace[tail..]
            .iter()
            .map(|note| format!("  {:?} {} {} {}", note.at, note.what, note.a, note.b))
            .collect();
        let plan = &self.world.plan;
        let sources: Vec<String> = self
            .world
            .pools
            .iter()
            .flat_map(|pool| pool.stats().sources)
            .map(|source| format!("{source:?}"))
            .collect();
        let held = self.world.count.as_ref().map(|count| count.held());
        format!(
            "step {}: {text}\n{plan:#?}\n{}\n{}\nleases {held:?} of {}\n",
            self.step,
            lines.join("\n"),
            sources.join("\n"),
            self.limit,
        )
    }
}

fn position(stats: &Stats, source: &SourceStats) -> usize {
    stats.sources.iter().position(|other| other.name == source.name).unwrap_or(0)
}

/// Whether `other`, which was served at `at`, had a worse place than one who still
/// waits for the same. Who came, or came back, at that very instant may have come
/// too late.
fn is_passed(waiter: &Waiting, other: &Waiting, at: Instant) -> bool {
    let was_there = waiter.arrived < at || (!waiter.back && waiter.rank.2 < other.rank.2);
    was_there
        && other.prompt
        && other.want.pool == waiter.want.pool
        && other.want.key == waiter.want.key
        && other.want.excluded.is_empty()
        && waiter.want.excluded.is_empty()
        && waiter.rank < other.rank
}
