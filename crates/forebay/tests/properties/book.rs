//! What is known about the random world from outside the pools: what the
//! servers see, who waits, who holds what, what happened in which order. Every
//! promise that can be judged at one event is judged here.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use forebay::{BoxFuture, LocalCount, PERMIT_GOOD_FOR, Priority, Rate, TimeSource};
use tokio::time::Instant;

use crate::backend::{Act, Conn, Faults};
use crate::clients::Want;

/// The driver's timers have a grain of one millisecond.
pub const GRAIN: Duration = Duration::from_millis(2);

/// Nobody looks at the clock, or waits for the past, so often at one instant,
/// unless in a loop that never comes to rest.
const LOOKS_MAX: u32 = 2_000_000;
const WAITS_MAX: u32 = 20_000;

/// Tokio's clock for a pool, watched: under paused time whoever goes round in
/// circles would stop time for good.
pub struct Watch {
    book: Book,
    /// Looks and waits at this instant.
    counts: Mutex<(Instant, u32, u32)>,
}

impl Watch {
    pub fn new(book: &Book) -> Self {
        Self { book: book.clone(), counts: Mutex::new((Instant::now(), 0, 0)) }
    }

    fn count(&self, looks: u32, waits: u32) -> (Instant, u32, u32) {
        let now = Instant::now();
        let mut counts = self.counts.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if counts.0 != now {
            *counts = (now, 0, 0);
        }
        *counts = (now, counts.1 + looks, counts.2 + waits);
        *counts
    }
}

impl TimeSource for Watch {
    fn now(&self) -> Instant {
        let (now, looks, _) = self.count(1, 0);
        if looks % LOOKS_MAX == LOOKS_MAX - 1 {
            self.book.breach("somebody goes round in circles".to_owned());
            crate::backend::planned_panic();
        }
        now
    }

    fn sleep_until(&self, at: Instant) -> BoxFuture<'static, ()> {
        let (now, _, waits) = self.count(0, 1);
        if waits == WAITS_MAX {
            self.book.breach("the driver spins".to_owned());
        }
        let at = if waits >= WAITS_MAX { at.max(now + GRAIN) } else { at };
        Box::pin(tokio::time::sleep_until(at))
    }
}

/// Something that happened, small enough to be kept for every run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Note {
    pub at: Duration,
    pub what: &'static str,
    pub a: u64,
    pub b: u64,
}

/// A server, and the limits of the source that it stands behind.
#[derive(Debug)]
pub struct SiteBook {
    pub pool: usize,
    pub max_open: u32,
    pub max_in_use: u32,
    pub guard_window: Duration,
    pub hard_life: Option<Duration>,
    pub faults: Faults,
    /// Nothing has gone wrong here yet, so no back-off explains a missing open.
    pub steady: bool,
    seated: u32,
    leaving: Vec<Instant>,
    connects: Vec<Instant>,
    alive: BTreeMap<u64, Arc<AtomicBool>>,
    /// Connections that must never be handed out again, and why.
    gone: BTreeMap<u64, &'static str>,
    /// Connections with a lower number are of an old generation.
    oldest_valid: u64,
    in_hand: u32,
    throttled_until: Option<Instant>,
}

impl SiteBook {
    pub fn new(pool: usize, settings: &forebay::Settings, faults: Faults) -> Self {
        Self {
            pool,
            max_open: settings.max_open,
            max_in_use: settings.max_in_use.unwrap_or(settings.max_open),
            guard_window: settings.guard_window,
            hard_life: settings.hard_life,
            faults,
            steady: true,
            seated: 0,
            leaving: Vec::new(),
            connects: Vec::new(),
            alive: BTreeMap::new(),
            gone: BTreeMap::new(),
            oldest_valid: 0,
            in_hand: 0,
            throttled_until: None,
        }
    }

    /// Connections as the server counts them.
    fn open(&mut self, now: Instant) -> u32 {
        self.leaving.retain(|at| *at > now);
        self.seated + self.leaving.len() as u32
    }

    /// Throttled, or on the ramp back from it.
    pub fn is_held_back(&self, now: Instant, ramp: Duration) -> bool {
        self.throttled_until.is_some_and(|until| until + ramp * 5 / 4 + GRAIN > now)
    }

    pub fn is_throttled(&self, now: Instant) -> bool {
        self.throttled_until.is_some_and(|until| until > now)
    }
}

/// A checkout that waits.
#[derive(Debug, Clone)]
pub struct Waiting {
    pub client: u32,
    pub want: Want,
    /// Its place in the queue: health checks first, then the instant with the
    /// class's handicap, then the order of arrival.
    pub rank: (bool, Instant, u64),
    pub arrived: Instant,
    /// It was asleep until `arrived` and has its old place.
    pub back: bool,
    /// It is polled whenever it is woken.
    pub prompt: bool,
}

pub struct Pages {
    start: Instant,
    rng: fastrand::Rng,
    conns: u64,
    arrivals: u64,
    pub priority_age: Duration,
    pub sites: Vec<SiteBook>,
    pub count: Option<Arc<LocalCount>>,
    pub rate: Option<Rate>,
    pub waiting: BTreeMap<u32, Waiting>,
    /// Served since the last look at fairness.
    pub served: Vec<(Instant, Waiting)>,
    /// Something happened since then that lets a waiter be passed.
    pub disturbed: Vec<bool>,
    /// Connections handed out, by pool.
    pub got: Vec<u64>,
    pub clients: u32,
    pub trace: Vec<Note>,
    pub breaches: Vec<String>,
}

/// The shared book.
#[derive(Clone)]
pub struct Book(Arc<Mutex<Pages>>);

impl Book {
    pub fn new(rng: fastrand::Rng, pools: usize, priority_age: Duration) -> Self {
        Self(Arc::new(Mutex::new(Pages {
            start: Instant::now(),
            rng,
            conns: 0,
            arrivals: 0,
            priority_age,
            sites: Vec::new(),
            count: None,
            rate: None,
            waiting: BTreeMap::new(),
            served: Vec::new(),
            disturbed: vec![false; pools],
            got: vec![0; pools],
            clients: 0,
            trace: Vec::new(),
            breaches: Vec::new(),
        })))
    }

    /// Opens the book. A connection must not be dropped while it is open.
    pub fn open(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn note(&self, what: &'static str, a: u64, b: u64) {
        self.open().note(what, a, b);
    }

    pub fn breach(&self, text: String) {
        self.open().breach(text);
    }

    /// A random time up to `most`, in milliseconds and now and then in between.
    pub fn span(&self, most: Duration) -> Duration {
        let mut pages = self.open();
        let micros = pages.rng.u64(0..=most.as_micros() as u64);
        let rounded = if pages.rng.u8(..4) == 0 { micros } else { micros / 1000 * 1000 };
        Duration::from_micros(rounded)
    }

    /// Decides how a call to the backend goes.
    pub fn act(&self, site: usize, chance: impl Fn(&Faults) -> u8, acts: &[Act]) -> Act {
        let mut pages = self.open();
        let chance = chance(&pages.sites[site].faults);
        if chance == 0 || pages.rng.u8(..100) >= chance {
            return Act::Well;
        }
        pages.sites[site].steady = false;
        let act = acts[pages.rng.usize(..acts.len())];
        pages.note("misdeed", site as u64, act as u64);
        act
    }

    /// A connect has reached the server: the moment when its limits are kept or not.
    pub fn connecting(&self, site: usize) -> u64 {
        let now = Instant::now();
        let mut pages = self.open();
        pages.conns += 1;
        let id = pages.conns;
        pages.note("connect", site as u64, id);
        pages.sites[site].connects.push(now);
        id
    }

    pub fn seated(&self, site: usize) {
        let mut pages = self.open();
        pages.sites[site].seated += 1;
        pages.judge_caps();
    }

    /// A socket was closed; the server lets go within `lag`.
    pub fn left(&self, site: usize, lag: Duration) {
        let mut pages = self.open();
        let micros = lag.as_micros() as u64;
        let lag = if micros == 0 { 0 } else { pages.rng.u64(0..micros) };
        pages.sites[site].seated -= 1;
        pages.sites[site].leaving.push(Instant::now() + Duration::from_micros(lag));
    }

    pub fn connected(&self, site: usize, id: u64, dead: &Arc<AtomicBool>) {
        self.open().sites[site].alive.insert(id, dead.clone());
    }

    /// A connection that must not be handed out again.
    pub fn lost(&self, site: usize, id: u64, why: &'static str) {
        let mut pages = self.open();
        pages.note("lost", site as u64, id);
        pages.sites[site].alive.remove(&id);
        pages.sites[site].gone.insert(id, why);
        let pool = pages.sites[site].pool;
        pages.disturbed[pool] = true;
    }

    pub fn disturbed(&self, site: usize) {
        let mut pages = self.open();
        let pool = pages.sites[site].pool;
        pages.disturbed[pool] = true;
    }

    /// A checkout was polled for the first time.
    pub fn arrived(&self, client: u32, want: &Want, prompt: bool) -> Waiting {
        let mut pages = self.open();
        pages.arrivals += 1;
        pages.note("ask", u64::from(client), want.pool as u64);
        let handicap = pages.priority_age * want.priority as u32;
        let arrived = Instant::now();
        let rank = (want.priority != Priority::Health, arrived + handicap, pages.arrivals);
        Waiting { client, want: want.clone(), rank, arrived, back: false, prompt }
    }

    /// A checkout that was left unpolled is polled again, from now on promptly.
    pub fn woke_up(&self, client: u32) {
        let mut pages = self.open();
        pages.note("woke up", u64::from(client), 0);
        if let Some(waiter) = pages.waiting.get_mut(&client) {
            (waiter.prompt, waiter.back, waiter.arrived) = (true, true, Instant::now());
        }
    }

    /// A checkout got a connection. Every promise about it is judged.
    pub fn got(&self, place: Waiting, conn: &mut Conn, remaining: Duration) {
        let now = Instant::now();
        let (client, want) = (place.client, place.want.clone());
        let mut pages = self.open();
        pages.note("got", u64::from(client), conn.id);
        pages.got[want.pool] += 1;
        pages.waiting.remove(&client);
        let site = &mut pages.sites[conn.site];
        site.in_hand += 1;
        let mut wrong = Vec::new();
        if let Some(why) = site.gone.get(&conn.id) {
            wrong.push(format!("was handed out although {why}"));
        }
        if conn.id < site.oldest_valid {
            wrong.push("is of an old generation".to_owned());
        }
        if conn.in_hand {
            wrong.push("is in two hands".to_owned());
        }
        if let Some(left_by) = conn.residue {
            wrong.push(format!("holds what client {left_by} left on it"));
        }
        if remaining < site.guard_window {
            wrong.push(format!("has {remaining:?} left, guard window {:?}", site.guard_window));
        }
        if conn.key != want.key {
            wrong.push(format!("has key {}, not {}", conn.key, want.key));
        }
        if want.excluded.contains(&conn.site) {
            wrong.push("comes from an excluded source".to_owned());
        }
        if site.pool != want.pool {
            wrong.push("comes from another pool".to_owned());
        }
        if site.in_hand > site.max_in_use {
            wrong.push(format!("is the {}th in use of {}", site.in_hand, site.max_in_use));
        }
        if site.is_throttled(now) {
            wrong.push("comes from a throttled source".to_owned());
        }
        conn.in_hand = true;
        conn.coming_back = false;
        for wrong in wrong {
            let text = format!("client {client}: connection {} {wrong}", conn.id);
            pages.breach(text);
        }
        pages.served.push((now, place));
    }

    /// A user is done with a connection.
    pub fn done(&self, conn: &mut Conn, how: &'static str, lost: Option<&'static str>) {
        conn.in_hand = false;
        conn.coming_back = true;
        let mut pages = self.open();
        pages.note(how, conn.site as u64, conn.id);
        let site = &mut pages.sites[conn.site];
        site.in_hand -= 1;
        let age = Instant::now() - conn.born;
        let overdue = site.hard_life.is_some_and(|life| age > life + GRAIN);
        if let Some(why) = lost {
            site.gone.insert(conn.id, why);
            site.alive.remove(&conn.id);
        }
        if overdue && !conn.dead.load(Ordering::SeqCst) {
            let text = format!("connection {} was in use at the age of {age:?}", conn.id);
            pages.breach(text);
        }
    }

    pub fn invalidated(&self, site: usize) {
        let mut pages = self.open();
        pages.note("invalidate", site as u64, 0);
        let (next, pool) = (pages.conns + 1, pages.sites[site].pool);
        pages.sites[site].oldest_valid = next;
        pages.disturbed[pool] = true;
    }

    pub fn throttled(&self, site: usize, retry_after: Duration) {
        let mut pages = self.open();
        pages.note("throttle", site as u64, retry_after.as_millis() as u64);
        let until = Instant::now() + retry_after;
        let pool = pages.sites[site].pool;
        pages.disturbed[pool] = true;
        let throttled = &mut pages.sites[site].throttled_until;
        *throttled = Some(throttled.map_or(until, |before| before.max(until)));
    }

    /// The server drops a connection that somebody may hold.
    pub fn kill_one(&self) {
        let mut pages = self.open();
        let sites = pages.sites.len();
        let site = pages.rng.usize(..sites);
        let alive = pages.sites[site].alive.len();
        if alive == 0 {
            return;
        }
        let nth = pages.rng.usize(..alive);
        if let Some((id, dead)) = pages.sites[site].alive.iter().nth(nth) {
            dead.store(true, Ordering::SeqCst);
            let id = *id;
            pages.sites[site].alive.remove(&id);
            pages.note("kill", site as u64, id);
        }
    }
}

impl Pages {
    pub fn note(&mut self, what: &'static str, a: u64, b: u64) {
        self.trace.push(Note { at: Instant::now() - self.start, what, a, b });
    }

    pub fn breach(&mut self, text: String) {
        self.note("BREACH", 0, 0);
        self.breaches.push(text);
    }

    pub fn server_open(&mut self, site: usize) -> u32 {
        self.sites[site].open(Instant::now())
    }

    /// What the servers count is within what they allow and what is leased.
    pub fn judge_caps(&mut self) {
        let now = Instant::now();
        let mut total = 0;
        for index in 0..self.sites.len() {
            let open = self.sites[index].open(now);
            total += open;
            let most = self.sites[index].max_open;
            if open > most {
                self.breach(format!("server {index} counts {open} connections of at most {most}"));
            }
        }
        if let Some(held) = self.count.as_ref().map(|count| count.held())
            && total > held
        {
            self.breach(format!("the servers count {total} connections, {held} are leased"));
        }
    }

    /// No window of connects is over the rate: with x(j) = j − rate × t(j), the
    /// worst window is the largest rise of x, found in one pass.
    pub fn judge_rate(&mut self) {
        let Some(rate) = self.rate else { return };
        let per_second = f64::from(rate.per_second());
        let mut times: Vec<Instant> =
            self.sites.iter().flat_map(|site| site.connects.iter().copied()).collect();
        times.sort_unstable();
        let most = per_second * PERMIT_GOOD_FOR.as_secs_f64() + f64::from(rate.burst());
        let mut lowest = f64::INFINITY;
        let mut worst: f64 = 0.0;
        for (n, at) in times.iter().enumerate() {
            let x = n as f64 - per_second * (*at - self.start).as_secs_f64();
            lowest = lowest.min(x);
            worst = worst.max(x - lowest + 1.0);
        }
        if worst > most + 1e-6 {
            self.breach(format!("connects exceed {rate:?}: {worst:.2} of at most {most:.2}"));
        }
    }
}
