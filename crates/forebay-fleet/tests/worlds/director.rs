//! Runs one world: starts the processes, does what the plan says, judges at every
//! step, then lets everything heal and judges what is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay::{Clock, Instant};
use forebay_fleet::{BackendLimits, Keeper, ModelKeeper, OnLoss, Snapshot};
use parking_lot::Mutex;
use tokio::time::{sleep, sleep_until};

use crate::backend::Backend;
use crate::book::{Book, Note};
use crate::judge::{Judge, Ruling};
use crate::net::Weather;
use crate::plan::{Act, Plan, Restart};
use crate::process::{BACKEND, Fate, Process, Thaw};
use crate::rates::Rates;

pub struct World {
    pub plan: Plan,
    pub keeper: Arc<ModelKeeper>,
    pub backend: Arc<Backend>,
    pub processes: Arc<Mutex<Vec<Arc<Process>>>>,
    pub book: Book,
    pub judge: Arc<Judge>,
    rng: Mutex<fastrand::Rng>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    snapshot: Option<Snapshot>,
    version: u32,
    limits: Option<BackendLimits>,
    joined: usize,
    outages: u32,
    storm: Weather,
    looks: usize,
}

/// Runs a world; what happened, or the first broken promise with what came before it.
pub async fn run(plan: Plan) -> Result<Vec<Note>, String> {
    let world = World::new(plan).await;
    let start = Instant::now();
    let step = world.plan.times.heartbeat / 10;
    let mut next = start;
    let mut acts = world.plan.acts.clone().into_iter().peekable();
    loop {
        while let Some((at, act)) = acts.peek().copied().filter(|(at, _)| start + *at <= next) {
            acts.next();
            sleep_until(start + at).await;
            world.book.note(act.name(), act.who(), 0);
            world.clone().act(act);
        }
        if next >= start + world.plan.calm_at {
            break;
        }
        sleep_until(next).await;
        world.look()?;
        next += step;
    }
    world.calm();
    let heal = crate::heal::time(&world.plan);
    while Instant::now() < start + world.plan.calm_at + heal {
        sleep(step).await;
        world.look()?;
    }
    crate::heal::check(&world).await;
    world.verdict()?;
    world.book.clear_judge();
    *world.backend.on_connect.lock() = None;
    Ok(world.book.notes())
}

impl World {
    pub async fn new(plan: Plan) -> Arc<Self> {
        let mut rng = fastrand::Rng::with_seed(plan.seed ^ 0x5eed);
        let keeper = Arc::new(ModelKeeper::new(Clock::tokio()));
        if plan.setup {
            keeper.setup(BACKEND).await.expect("a modelled keeper");
        }
        let backend = Backend::new(plan.manners, rng.u64(..));
        let book = Book::new();
        let processes: Arc<Mutex<Vec<Arc<Process>>>> = Arc::default();
        let limits = plan.limits;
        let longest = Duration::from_secs(4).mul_f64(plan.times.drift * 2.0);
        let tolerance = forebay::PERMIT_GOOD_FOR + longest + Duration::from_millis(5);
        let rate = limits.rate.unwrap_or(1);
        let judge = Arc::new(Judge {
            keeper: keeper.clone(),
            backend: backend.clone(),
            processes: processes.clone(),
            book: book.clone(),
            times: plan.times,
            state: Mutex::new(Ruling::default()),
            restarts: AtomicU64::new(0),
            rates: Mutex::new(Rates::new(rate, limits.burst, tolerance, plan.times.drift)),
        });
        let looks = Arc::downgrade(&judge);
        book.set_judge(move || {
            if let Some(judge) = looks.upgrade() {
                judge.look();
            }
        });
        let arrivals = Arc::downgrade(&judge);
        *backend.on_connect.lock() = Some(Box::new(move |arrival| {
            if let Some(judge) = arrivals.upgrade() {
                judge.arrived(arrival);
            }
        }));
        // alone with the keeper away, each may open one at a time
        if plan.policy == OnLoss::Share {
            judge.rates.lock().allow(plan.recipes.len() as f64);
        }
        let state = State { limits: Some(limits), ..State::default() };
        let world = Arc::new(Self {
            keeper,
            backend,
            processes,
            book,
            judge,
            rng: Mutex::new(rng),
            state: Mutex::new(state),
            plan,
        });
        for recipe in 0..world.plan.members() {
            world.start(recipe);
        }
        world
    }

    /// Starts a process by a recipe.
    pub fn start(&self, recipe: usize) -> usize {
        let index = self.processes.lock().len();
        let seed = self.rng.lock().u64(..);
        let mut recipe = self.plan.recipes[recipe].clone();
        let (storm, outage) = {
            let state = self.state.lock();
            recipe.limits = state.limits.unwrap_or(recipe.limits);
            (state.storm, state.outages > 0)
        };
        let (keeper, backend) = (&self.keeper, &self.backend);
        let process = Process::start(index, recipe, keeper, backend, &self.book, seed);
        process.net.line.lock().weather = storm;
        process.net.line.lock().outage = outage;
        self.processes.lock().push(process);
        index
    }

    /// One step's judgement.
    pub fn look(&self) -> Result<(), String> {
        self.judge.look();
        let looks = {
            let mut state = self.state.lock();
            state.looks += 1;
            state.looks
        };
        for process in self.processes.lock().iter() {
            // copying statistics is costly
            if (looks + process.index) % 8 != 0 {
                continue;
            }
            let stats = process.pool.stats();
            let (open, out) = (stats.open(), process.spy.out());
            if open != out || stats.breaches > 0 {
                let index = process.index;
                self.book.breach(format!("process {index} has {open} connections, {out} leases"));
            }
        }
        self.verdict()
    }

    fn verdict(&self) -> Result<(), String> {
        match self.book.broken() {
            Some(breach) => Err(format!("{}{breach}\n{:#?}\n", self.book.tail(60), self.brief())),
            None => Ok(()),
        }
    }

    fn brief(&self) -> Vec<String> {
        let of = |process: &Arc<Process>| {
            let state = process.state().map(|s| (s.member, s.link, s.held, s.share, s.reaped));
            let stats = process.pool.stats();
            let source = &stats.sources[0];
            format!(
                "{} {:?} {state:?} open {} opening {} ready {} in use {} closing {}",
                process.index,
                process.fate(),
                stats.open(),
                source.opening,
                source.ready,
                source.in_use,
                source.closing
            )
        };
        let mut lines: Vec<String> = self.processes.lock().iter().map(of).collect();
        lines.push(format!("{:?} limit {:?}", self.plan.policy, self.plan.limits));
        if let Some(ledger) = self.keeper.ledger(BACKEND) {
            lines.push(format!("window {:?} {}", ledger.window, ledger.windows));
            for (member, e) in &ledger.members {
                lines.push(format!(
                    "{member} held {} reserved {} recall {} expected {} want {} waiters {} share {} silent {} ms",
                    e.held, e.reserved, e.recall, e.expected, e.want, e.waiters, e.share,
                    ledger.last_ms as i64 - e.renewed_ms as i64
                ));
            }
        }
        lines
    }

    /// The process that runs now in a place, if any.
    fn at(&self, place: usize) -> Option<Arc<Process>> {
        let instance = format!("m{place}");
        let all = self.processes.lock();
        let known = all.iter().rev().find(|p| p.recipe.settings.instance == instance);
        known.filter(|process| process.is_alive()).cloned()
    }

    fn all(&self, change: impl Fn(&Process)) {
        self.processes.lock().iter().for_each(|process| change(process));
    }

    fn restart(&self, restart: Restart) {
        let snapshot = match restart {
            Restart::WithData => Some(self.keeper.snapshot()),
            Restart::WithoutData => None,
            Restart::Stale => self.state.lock().snapshot.take(),
        };
        self.keeper.restart(snapshot);
        self.judge.restarts.fetch_add(1, Ordering::SeqCst);
        // whoever was reaped can declare itself again, and nobody can tell
        self.all(|process| {
            let mut thawed = process.thawed.lock();
            *thawed = thawed.map(Thaw::forgiven);
        });
    }

    /// Whether the leases of a process have gone to others.
    fn is_reaped(&self, process: &Process) -> bool {
        let Some(state) = process.state() else { return false };
        let run_id = self.judge.run_id();
        let known = self.keeper.edit(BACKEND, |ledger| {
            let lossy = ledger.window.is_some_and(|window| window.lossy);
            lossy || ledger.run_id != run_id || ledger.members.contains_key(&state.member)
        });
        known == Some(false)
    }

    /// Does something to the world, and undoes it later.
    pub fn act(self: Arc<Self>, act: Act) {
        match act {
            Act::Freeze { who, lasts, vm } => {
                let Some(process) = self.at(who).filter(|p| p.fate() == Fate::Runs) else { return };
                process.freeze(vm);
                let lasts = lasts.min(self.remaining());
                self.later(lasts, move |world| {
                    let reaped = world.is_reaped(&process);
                    if vm {
                        let until = Instant::now() + Duration::from_secs(3);
                        world.judge.rates.lock().slept(process.index, until);
                    }
                    process.thaw(reaped);
                });
            }
            Act::Block { who, lasts } => {
                let Some(process) = self.at(who) else { return };
                process.block(true);
                self.later(lasts, move |_| process.block(false));
            }
            Act::Kill { who, back_after } => {
                let Some(process) = self.at(who) else { return };
                process.die(&self.backend);
                if let Some(back_after) = back_after {
                    self.later(back_after, move |world| {
                        world.start(who);
                    });
                }
            }
            Act::Leave { who, back_after } => {
                let Some(process) = self.at(who).filter(|p| p.fate() == Fate::Runs) else { return };
                let within = self.plan.times.heartbeat * 2;
                tokio::spawn(async move {
                    process.leave(within).await;
                });
                self.later(back_after, move |world| {
                    world.start(who);
                });
            }
            Act::Join => {
                let joined = self.state.lock().joined;
                if joined < 2 {
                    self.state.lock().joined += 1;
                    self.start(self.plan.members() + joined);
                }
            }
            Act::Cut { who, up, down, lasts } => {
                let Some(process) = self.at(who) else { return };
                let set = move |process: &Process, cut: bool| {
                    let mut line = process.net.line.lock();
                    line.weather.cut_up = up && cut;
                    line.weather.cut_down = down && cut;
                };
                set(&process, true);
                self.later(lasts, move |_| set(&process, false));
            }
            Act::Storm { lost, doubled, late, lasts } => {
                let storm = Weather { lost, doubled, late, ..Weather::default() };
                self.storm(storm);
                self.later(lasts, |world| world.storm(Weather::default()));
            }
            Act::Outage { lasts, restart } => {
                self.outage(1);
                self.later(lasts, move |world| {
                    if let Some(restart) = restart {
                        world.restart(restart);
                    }
                    world.outage(-1);
                });
            }
            Act::Restart(restart) => self.restart(restart),
            Act::Snapshot => self.state.lock().snapshot = Some(self.keeper.snapshot()),
            Act::StepClock { by_ms } => {
                // until somebody notices a leap, what lies ahead is granted again
                let ahead = self.plan.limits.rate.unwrap_or(1) * 2 + self.plan.limits.burst + 1;
                self.judge.rates.lock().allow(f64::from(ahead));
                self.keeper.step_clock(by_ms);
            }
            Act::Limit { open } => self.limit(open),
            Act::Credentials { take, lasts } => {
                self.backend.manners(|manners| manners.credentials = take);
                self.later(lasts, |world| world.well());
            }
            Act::Refuse { too_many, too_fast, lasts } => {
                self.backend.manners(|manners| {
                    (manners.too_many, manners.too_fast) = (too_many, too_fast);
                });
                self.later(lasts, |world| world.well());
            }
            Act::Unreliable { fails, hangs, lasts } => {
                self.backend.manners(|manners| (manners.fails, manners.hangs) = (fails, hangs));
                self.later(lasts, |world| world.well());
            }
        }
    }

    fn well(&self) {
        let manners = self.plan.manners;
        self.backend.manners(|now| *now = manners);
    }

    fn storm(&self, storm: Weather) {
        self.state.lock().storm = storm;
        self.all(|process| {
            let mut line = process.net.line.lock();
            let Weather { cut_up, cut_down, .. } = line.weather;
            line.weather = Weather { cut_up, cut_down, ..storm };
        });
    }

    fn outage(&self, by: i32) {
        let outages = {
            let mut state = self.state.lock();
            state.outages = state.outages.saturating_add_signed(by);
            state.outages
        };
        self.all(|process| process.net.line.lock().outage = outages > 0);
    }

    fn limit(&self, open: u32) {
        let limits = {
            let mut state = self.state.lock();
            state.version += 1;
            let limits =
                BackendLimits { version: state.version, open: Some(open), ..self.plan.limits };
            state.limits = Some(limits);
            limits
        };
        for process in self.processes.lock().iter().cloned() {
            tokio::spawn(async move {
                // whoever is stopped hears of it later
                process.watch.pass().await;
                if let Some(member) = &*process.member.lock() {
                    member.set_limits(BACKEND, limits).expect("limits that work");
                }
            });
        }
    }

    fn remaining(&self) -> Duration {
        self.plan.calm_at.saturating_sub(self.book.elapsed())
    }

    /// Undoes something, at the latest when the world calms down.
    fn later(self: &Arc<Self>, after: Duration, undo: impl FnOnce(&World) + Send + 'static) {
        let (world, after) = (self.clone(), after.min(self.remaining()));
        tokio::spawn(async move {
            sleep(after).await;
            world.book.note("undone", 0, 0);
            undo(&world);
        });
    }

    /// The network and the backend are well again.
    fn calm(&self) {
        self.book.note("calm", 0, 0);
        self.storm(Weather::default());
        self.well();
    }
}
