//! One process of the random fleet: a member, a pool with its clients, and a
//! witness between the two that counts leases.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forebay::{
    Ask, BackoffSettings, CountBudget, GetOptions, Grant, Holder, Instant, Pool, Settings, Standing,
};
use forebay_fleet::{
    BackendLimits, BackendState, FleetRate, Link, Member, MemberSettings, ModelKeeper,
};
use parking_lot::Mutex;

use crate::backend::{Backend, Site};
use crate::book::Book;
use crate::fault::Fault;
use crate::net::{Far, Heard, Line, Net, Weather};
use crate::time::{Gate, Watch};

pub const BACKEND: &str = "db";

/// What a process is made of.
#[derive(Debug, Clone)]
pub struct Recipe {
    pub settings: MemberSettings,
    pub limits: BackendLimits,
    pub max_open: u32,
    pub target_ready: u32,
    pub clients: u32,
    pub hold: Duration,
    pub think: Duration,
    pub offset: Duration,
    pub pace: f64,
    pub announces: bool,
    pub delay: Duration,
    pub connect_timeout: Duration,
    /// How long connections live; `None` for ever.
    pub life: Option<Duration>,
    pub fault: Fault,
}

/// What has become of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Runs,
    /// Stopped; `vm` if its clock stands too.
    Frozen {
        since: Instant,
        vm: bool,
    },
    Dead,
    Left,
}

pub struct Process {
    pub index: usize,
    pub recipe: Recipe,
    pub watch: Watch,
    run: Arc<Gate>,
    app: Arc<Gate>,
    pub member: Arc<Mutex<Option<Member>>>,
    pub pool: Pool<Site>,
    pub rate: Arc<FleetRate>,
    pub spy: Arc<Spy>,
    pub net: Arc<Net>,
    pub fate: Mutex<Fate>,
    pub thawed: Mutex<Option<Thaw>>,
    unblocked: Mutex<Option<Instant>>,
    pub served: Arc<Mutex<u64>>,
    book: Book,
}

/// When a process went on.
#[derive(Debug, Clone, Copy)]
pub struct Thaw {
    pub at: Instant,
    pub vm: bool,
    /// It had been reaped meanwhile.
    pub reaped: bool,
}

impl Thaw {
    /// The keeper has forgotten that it was reaped.
    pub fn forgiven(self) -> Self {
        Self { reaped: false, ..self }
    }
}

impl Process {
    pub fn start(
        index: usize,
        recipe: Recipe,
        keeper: &Arc<ModelKeeper>,
        backend: &Arc<Backend>,
        book: &Book,
        seed: u64,
    ) -> Arc<Self> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let dial = Watch::new(recipe.offset, recipe.pace, rng.u64(..));
        let (run, app) = (Arc::new(Gate::default()), Arc::new(Gate::default()));
        let watch = dial.behind(&run);
        let app_watch = watch.behind(&app);
        let line = Line {
            weather: Weather::default(),
            outage: false,
            heard: Heard::default(),
            rng: fastrand::Rng::with_seed(rng.u64(..)),
            delay: recipe.delay,
            timeout: recipe.settings.request_timeout,
            known: 0,
        };
        let net = Arc::new(Net {
            keeper: keeper.clone(),
            book: book.clone(),
            index,
            watch: watch.clone(),
            announces: recipe.announces,
            fault: recipe.fault,
            line: Mutex::new(line),
        });
        let settings = MemberSettings { seed: Some(rng.u64(..)), ..recipe.settings.clone() };
        let member = Member::spawn(settings, Arc::new(Far(net.clone())), watch.clock());
        let member = member.expect("settings that work");
        let budgets = member.backend(BACKEND, recipe.limits).expect("limits that work");
        let member = Arc::new(Mutex::new(Some(member)));
        let spy = Arc::new(Spy {
            inner: recipe.fault.count(budgets.count.clone()),
            out: Mutex::default(),
            book: book.clone(),
        });
        let lives = member.clone();
        let site = Site {
            backend: backend.clone(),
            process: index,
            watch: app_watch.clone(),
            life: Box::new(move || state_of(&lives).map_or(0, |state| state.reaped)),
        };
        let life = recipe.life.unwrap_or(Duration::from_secs(86_400));
        let pool = Pool::builder(site)
            .settings(Settings {
                base_lifetime: life,
                lifetime_jitter: life / 2,
                guard_window: life / 8,
                lead: life / 8,
                max_open: recipe.max_open,
                target_ready: Some(recipe.target_ready),
                close_grace: recipe.settings.close_grace,
                connect_timeout: recipe.connect_timeout,
                backoff: BackoffSettings {
                    base: Duration::from_millis(50),
                    max: Duration::from_millis(500),
                    breaker_after: 8,
                    breaker_max: Duration::from_secs(1),
                },
                count: Some(spy.clone()),
                rate: Some(recipe.fault.rate(budgets.rate.clone())),
                ..Settings::default()
            })
            .stagger(None)
            .clock(app_watch.clock())
            .seed(rng.u64(..))
            .build()
            .expect("a pool");
        let process = Arc::new(Self {
            index,
            watch,
            run,
            app,
            member,
            pool,
            rate: budgets.rate,
            spy,
            net,
            fate: Mutex::new(Fate::Runs),
            thawed: Mutex::new(None),
            unblocked: Mutex::new(None),
            served: Arc::default(),
            book: book.clone(),
            recipe,
        });
        for _ in 0..process.recipe.clients {
            tokio::spawn(client(process.clone(), app_watch.clone(), rng.u64(..)));
        }
        process
    }

    pub fn fate(&self) -> Fate {
        *self.fate.lock()
    }

    pub fn is_alive(&self) -> bool {
        matches!(self.fate(), Fate::Runs | Fate::Frozen { .. })
    }

    /// Whether its application is blocked, or was until shortly before.
    pub fn is_blocked(&self, lately: Duration) -> bool {
        let since = Instant::now().checked_sub(lately);
        self.app.is_shut() || self.unblocked.lock().is_some_and(|at| Some(at) >= since)
    }

    pub fn state(&self) -> Option<BackendState> {
        state_of(&self.member)
    }

    pub fn freeze(&self, vm: bool) {
        if self.fate() == Fate::Runs {
            *self.fate.lock() = Fate::Frozen { since: Instant::now(), vm };
            self.run.shut();
            if vm {
                self.watch.stand(true);
            }
        }
    }

    /// Goes on; `reaped` if the keeper has given its leases to others.
    pub fn thaw(&self, reaped: bool) {
        if let Fate::Frozen { vm, .. } = self.fate() {
            *self.fate.lock() = Fate::Runs;
            // one that was alone before goes by its share
            let reaped = reaped && self.state().is_some_and(|state| state.link == Link::Current);
            *self.thawed.lock() = Some(Thaw { at: Instant::now(), vm, reaped });
            if vm {
                self.watch.stand(false);
            }
            self.run.open();
            // before anything else in the process has run
            if let Ok(guard) = self.pool.try_get() {
                self.checked_out(Instant::now(), guard.opened_at);
            }
        }
    }

    /// The application's runtime is blocked, or goes on.
    pub fn block(&self, blocked: bool) {
        if blocked {
            self.app.shut();
        } else {
            self.app.open();
            *self.unblocked.lock() = Some(Instant::now());
        }
    }

    pub fn die(&self, backend: &Backend) {
        *self.fate.lock() = Fate::Dead;
        self.run.shut();
        self.app.shut();
        backend.died(self.index);
    }

    /// Drains and leaves.
    pub async fn leave(&self, within: Duration) -> bool {
        self.pool.drain(within / 2).await;
        let Some(member) = self.member.lock().take() else { return false };
        *self.fate.lock() = Fate::Left;
        member.leave(within / 2).await
    }

    /// Judges what a checkout that began at `begun` got.
    fn checked_out(&self, begun: Instant, opened_at: Instant) {
        *self.served.lock() += 1;
        if let Some(thaw) = *self.thawed.lock()
            && thaw.reaped
            && !thaw.vm
            && begun >= thaw.at
            && opened_at < thaw.at
            && self.was_answered_since(thaw.at)
        {
            self.book.breach(format!(
                "process {} hands out a connection of the life before it was stopped",
                self.index
            ));
        }
    }

    /// Nothing was lost on its way to the keeper and back since `at`.
    fn was_answered_since(&self, at: Instant) -> bool {
        let fences = self.recipe.settings.on_loss == forebay_fleet::OnLoss::Fence;
        let line = self.net.line.lock();
        fences
            || !line.heard.trouble && line.weather.is_fair() && !line.outage
            || line.heard.answered_at.is_some_and(|answered| answered > at)
    }
}

fn state_of(member: &Mutex<Option<Member>>) -> Option<BackendState> {
    member.lock().as_ref().and_then(|member| member.state().pop())
}

/// Takes connections, uses them for a while and gives them back, for ever.
async fn client(process: Arc<Process>, watch: Watch, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let clock = watch.clock();
    loop {
        let think = process.recipe.think.mul_f64(rng.f64() * 2.0);
        clock.sleep_until(clock.now() + think).await;
        let begun = Instant::now();
        let timeout = process.recipe.settings.heartbeat * 3;
        match process.pool.get_with(GetOptions::new().timeout(timeout)).await {
            Ok(guard) => {
                let hold = process.recipe.hold.mul_f64(rng.f64() * 2.0);
                let until = clock.now() + hold;
                process.checked_out(begun, guard.opened_at);
                clock.sleep_until(until).await;
                drop(guard);
            }
            Err(forebay::GetError::Closed) => return,
            Err(_) => {}
        }
    }
}

/// Stands between a pool and its count budget and keeps count of the leases.
pub struct Spy {
    inner: Arc<dyn CountBudget>,
    out: Mutex<BTreeMap<u64, u32>>,
    book: Book,
}

impl Spy {
    /// Leases that the pool has, of all epochs.
    pub fn out(&self) -> u32 {
        self.out.lock().values().sum()
    }
}

impl CountBudget for Spy {
    fn take(&self, now: Instant, ask: Ask) -> Grant {
        let grant = self.inner.take(now, ask);
        if grant.leases > 0 {
            *self.out.lock().entry(grant.epoch).or_default() += grant.leases;
        }
        grant
    }

    fn give_back(&self, back: Grant) {
        let mut out = self.out.lock();
        let known = out.get_mut(&back.epoch).filter(|leases| **leases >= back.leases);
        match known {
            Some(leases) => *leases -= back.leases,
            None => self.book.breach(format!("{back:?} was given back twice")),
        }
        drop(out);
        self.inner.give_back(back);
    }

    fn watch(&self, holder: Holder) {
        self.inner.watch(holder);
    }

    fn needs_killer(&self) -> bool {
        self.inner.needs_killer()
    }

    fn standing(&self, now: Instant) -> Standing {
        self.inner.standing(now)
    }

    fn coming_back(&self, leases: Grant) {
        self.inner.coming_back(leases);
    }

    fn excess(&self) -> u32 {
        self.inner.excess()
    }

    fn refused(&self, now: Instant) {
        self.inner.refused(now);
    }
}
