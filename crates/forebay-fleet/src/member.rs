//! A member of the fleet: joins, reports for every backend it uses, listens for
//! news, fences itself, leaves. All of it runs on a thread of its own with a small
//! runtime, so that a blocked application cannot make it miss a heartbeat or a
//! fence; under virtual time it runs wherever it is spawned.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use forebay::Clock;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::account::{Account, Link};
use crate::count::FleetCount;
use crate::deadman::DeadMan;
use crate::keeper::{Keeper, KeeperError, News};
use crate::message::MemberId;
use crate::pace::{FleetRate, Pacer};
use crate::settings::{BackendLimits, InvalidSettings, MemberSettings};

/// Why a member could not start, or a backend not be added.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FleetError {
    /// Settings that cannot work.
    #[error(transparent)]
    Invalid(#[from] InvalidSettings),
    /// The keeper cannot be used at all.
    #[error(transparent)]
    Keeper(#[from] KeeperError),
    /// The thread, its runtime or the dead-man timer could not be made.
    #[error("the member's thread could not start: {0}")]
    Thread(#[from] std::io::Error),
    /// A backend was added twice.
    #[error("backend `{0}` has been added already; share its budgets instead")]
    Duplicate(String),
    /// The member has left the fleet.
    #[error("this member has left the fleet")]
    Left,
}

/// One process's part in the fleet. Dropping it without [leaving](Self::leave)
/// closes every connection that pools still have under its leases, since nobody
/// renews them any more.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// use std::sync::Arc;
/// use forebay_fleet::{BackendLimits, Member, MemberSettings, ModelKeeper};
///
/// let keeper = Arc::new(ModelKeeper::new(forebay::Clock::tokio()));
/// let settings = MemberSettings::new("web-1", "web");
/// let member = Member::spawn(settings, keeper, forebay::Clock::tokio()).expect("valid settings");
/// let backend = member.backend("orders", BackendLimits::new(100, 10, 10)).expect("new");
/// // give `backend.count` and `backend.rate` to the pool's builder
/// # drop(backend);
/// member.leave(std::time::Duration::from_secs(1)).await;
/// # }
/// ```
#[derive(Debug)]
pub struct Member {
    shared: Arc<Shared>,
    orders: mpsc::UnboundedSender<Order>,
}

/// The budgets of one backend.
#[derive(Debug, Clone)]
pub struct Backend {
    /// How many connections may be open.
    pub count: Arc<FleetCount>,
    /// How fast they may be opened.
    pub rate: Arc<FleetRate>,
}

/// How a member stands with the keeper, for one backend.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BackendState {
    /// The backend.
    pub backend: String,
    /// The member in its present life.
    pub member: MemberId,
    /// Where it is with the keeper.
    pub link: Link,
    /// Leases that pools of this process have.
    pub held: u32,
    /// Its share while the keeper is away.
    pub share: u32,
    /// The limit that counts.
    pub limit: u32,
    /// Members alive.
    pub members: u32,
    /// Leases booked for all members.
    pub total: u32,
    /// How often this process was reaped.
    pub reaped: u64,
    /// Connections it still had when it learned that.
    pub overshoot: u64,
    /// Reports sent, and those of them that were plain heartbeats.
    pub reports: u64,
}

#[derive(Debug)]
struct Shared {
    settings: MemberSettings,
    clock: Clock,
    announces: bool,
    state: Mutex<State>,
    dead_man: Option<DeadMan>,
}

#[derive(Debug)]
struct State {
    backends: BTreeMap<String, Tended>,
    rng: fastrand::Rng,
    left: bool,
}

#[derive(Debug, Clone)]
struct Tended {
    budgets: Backend,
    reports: Arc<std::sync::atomic::AtomicU64>,
}

/// What the member's runtime is asked to do.
enum Order {
    Tend(String, Tended, mpsc::UnboundedReceiver<crate::pace::Ask>),
}

impl Member {
    /// Starts a member on a thread of its own. `keeper` is made there, and is
    /// tried again for as long as it cannot be reached.
    ///
    /// # Errors
    /// If the settings cannot work, or the keeper says that it cannot be used.
    pub async fn start<F, M>(settings: MemberSettings, make: M) -> Result<Self, FleetError>
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future<Output = Result<Arc<dyn Keeper>, KeeperError>>,
    {
        settings.check()?;
        let (ready, started) = tokio::sync::oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("forebay-fleet".to_owned()).spawn(move || {
            runtime.block_on(async move {
                let made = async {
                    let keeper = make().await?;
                    usable(keeper.as_ref(), settings.request_timeout).await?;
                    Self::spawn_parts(settings, keeper, Clock::tokio())
                };
                match made.await {
                    Ok((member, work)) => {
                        // if nobody waits for the member any more it leaves at once
                        let _ = ready.send(Ok(member));
                        work.await;
                    }
                    Err(error) => {
                        let _ = ready.send(Err(error));
                    }
                }
            });
        })?;
        started.await.unwrap_or(Err(FleetError::Left))
    }

    /// Starts a member on the current runtime, with a clock of its own: for tests
    /// and simulations, where no thread may be started.
    ///
    /// # Errors
    /// If the settings cannot work.
    pub fn spawn(
        settings: MemberSettings,
        keeper: Arc<dyn Keeper>,
        clock: Clock,
    ) -> Result<Self, FleetError> {
        settings.check()?;
        let (member, work) = Self::spawn_parts(settings, keeper, clock)?;
        tokio::spawn(work);
        Ok(member)
    }

    fn spawn_parts(
        settings: MemberSettings,
        keeper: Arc<dyn Keeper>,
        clock: Clock,
    ) -> Result<(Self, impl Future<Output = ()> + Send + 'static), FleetError> {
        let dead_man = if settings.dead_man { Some(DeadMan::new()?) } else { None };
        let seed = settings.seed.unwrap_or_else(random_seed);
        let (orders, inbox) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            announces: keeper.announces(),
            clock,
            state: Mutex::new(State {
                backends: BTreeMap::new(),
                rng: fastrand::Rng::with_seed(seed),
                left: false,
            }),
            dead_man,
            settings,
        });
        let work = run(shared.clone(), keeper, inbox);
        Ok((Self { shared, orders }, work))
    }

    /// Joins the fleet of a backend and gives its budgets.
    ///
    /// # Errors
    /// If the limits cannot work, or the backend was added before.
    pub fn backend(&self, id: &str, limits: BackendLimits) -> Result<Backend, FleetError> {
        limits.check()?;
        let limits = limits.for_fleet();
        let shared = &self.shared;
        let now = shared.clock.now();
        let mut state = shared.state.lock();
        if state.left {
            return Err(FleetError::Left);
        }
        if state.backends.contains_key(id) {
            return Err(FleetError::Duplicate(id.to_owned()));
        }
        let rng = fastrand::Rng::with_seed(state.rng.u64(..));
        let profile = shared.settings.profile(limits);
        let account = Account::new(id, profile, &shared.settings, rng, shared.announces, now);
        let count = FleetCount::new(account, shared.settings.on_loss, shared.clock.clone());
        let (rate, inbox) = FleetRate::new();
        let budgets = Backend { count: Arc::new(count), rate: Arc::new(rate) };
        let tended = Tended { budgets: budgets.clone(), reports: Arc::default() };
        state.backends.insert(id.to_owned(), tended.clone());
        self.orders
            .send(Order::Tend(id.to_owned(), tended, inbox))
            .map_err(|_| FleetError::Left)?;
        Ok(budgets)
    }

    /// Changes what this member says of a backend's limits. Raise the version with
    /// each deliberate change.
    ///
    /// # Errors
    /// If the limits cannot work, or the backend is not known.
    pub fn set_limits(&self, id: &str, limits: BackendLimits) -> Result<(), FleetError> {
        limits.check()?;
        let state = self.shared.state.lock();
        let tended = state.backends.get(id).ok_or(FleetError::Left)?;
        let profile = self.shared.settings.profile(limits.for_fleet());
        tended.budgets.count.with(|account, _| account.set_profile(profile));
        tended.budgets.count.poke.notify_one();
        Ok(())
    }

    /// How it stands with the keeper, for each backend.
    pub fn state(&self) -> Vec<BackendState> {
        let state = self.shared.state.lock();
        let of = |(id, tended): (&String, &Tended)| {
            let reports = tended.reports.load(std::sync::atomic::Ordering::Relaxed);
            tended.budgets.count.with(|account, _| BackendState {
                backend: id.clone(),
                member: account.member().clone(),
                link: account.link,
                held: account.taken(),
                share: account.last.share,
                limit: account.last.limit,
                members: account.last.members,
                total: account.last.total,
                reaped: account.reaped,
                overshoot: account.overshoot,
                reports,
            })
        };
        state.backends.iter().map(of).collect()
    }

    /// Leaves the fleet once the pools have given back their leases, or at the
    /// deadline; `true` if everything was given back and the keeper said so. Drain
    /// the pools first.
    pub async fn leave(self, within: Duration) -> bool {
        let shared = &self.shared;
        let counts: Vec<Arc<FleetCount>> = {
            let mut state = shared.state.lock();
            state.left = true;
            state.backends.values().map(|tended| tended.budgets.count.clone()).collect()
        };
        for count in &counts {
            count.with(|account, _| account.leave());
            count.poke.notify_one();
        }
        let deadline = shared.clock.now() + within;
        let all_left = || counts.iter().all(|count| count.link() == Link::Left);
        let step = Duration::from_millis(5);
        while !all_left() && shared.clock.now() < deadline {
            shared.clock.sleep_until((shared.clock.now() + step).min(deadline)).await;
        }
        all_left()
    }
}

/// Tries a keeper once: an outage is waited out later, anything else is final.
async fn usable(keeper: &dyn Keeper, limit: Duration) -> Result<(), FleetError> {
    let clock = Clock::tokio();
    match clock.until(clock.now() + limit * 2, keeper.check()).await {
        Some(Err(error @ KeeperError::Unusable { .. })) => Err(error.into()),
        Some(Err(error)) => {
            tracing::warn!(%error, "the keeper is tried again in the background");
            Ok(())
        }
        Some(Ok(())) | None => Ok(()),
    }
}

/// Everything a member does, until it is dropped or has left.
async fn run(
    shared: Arc<Shared>,
    keeper: Arc<dyn Keeper>,
    mut orders: mpsc::UnboundedReceiver<Order>,
) {
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(listen(shared.clone(), keeper.clone()));
    // ends when the member is dropped
    while let Some(order) = orders.recv().await {
        let Order::Tend(id, tended, inbox) = order;
        let pacer = {
            let mut state = shared.state.lock();
            Pacer {
                backend: id.clone(),
                settings: shared.settings.clone(),
                keeper: keeper.clone(),
                count: tended.budgets.count.clone(),
                clock: shared.clock.clone(),
                rng: fastrand::Rng::with_seed(state.rng.u64(..)),
                figures: tended.budgets.rate.figures(),
                stock: VecDeque::new(),
                ahead: 8,
                lead_us: 0,
                offline: None,
                base: shared.clock.now(),
            }
        };
        tasks.spawn(pacer.run(inbox));
        tasks.spawn(tend(shared.clone(), keeper.clone(), id, tended));
    }
    drop(tasks);
    // nobody renews from here on: what pools still have would outlive its leases
    let backends = shared.state.lock().backends.clone();
    for tended in backends.values() {
        let count = &tended.budgets.count;
        count.carry_out(count.with(|account, _| account.abandon()));
    }
    if let Some(dead_man) = &shared.dead_man {
        dead_man.disarm();
    }
}

/// Passes news on to the accounts they are for.
async fn listen(shared: Arc<Shared>, keeper: Arc<dyn Keeper>) {
    loop {
        let (sender, mut inbox) = mpsc::unbounded_channel::<News>();
        let deliver = async {
            while let Some(news) = inbox.recv().await {
                let tended = shared.state.lock().backends.get(&news.backend).cloned();
                let Some(tended) = tended else { continue };
                let count = &tended.budgets.count;
                if count.with(|account, _| *account.member() == news.member && account.news()) {
                    count.poke.notify_one();
                }
            }
            std::future::pending().await
        };
        let error = tokio::select! {
            biased;
            error = keeper.listen(sender) => error,
            never = deliver => never,
        };
        tracing::debug!(%error, "news are fetched by looking until they can be listened to again");
        let pause = shared.settings.heartbeat / 4;
        let jitter = 0.5 + shared.state.lock().rng.f64();
        shared.clock.sleep_until(shared.clock.now() + pause.mul_f64(jitter)).await;
    }
}

/// Reports for one backend, and fences this member when reports are not answered.
async fn tend(shared: Arc<Shared>, keeper: Arc<dyn Keeper>, id: String, tended: Tended) {
    let count = &tended.budgets.count;
    let clock = &shared.clock;
    let mut call: Option<(u64, forebay::BoxFuture<'_, _>)> = None;
    let mut told = Told::default();
    loop {
        let (todo, report) = count.with(|account, now| {
            let todo = account.tick(now);
            (todo, todo.report.then(|| account.compose(now)))
        });
        count.carry_out(todo);
        if let Some(report) = report {
            tended.reports.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let (keeper, clock) = (keeper.clone(), clock.clone());
            let deadline = clock.now() + shared.settings.request_timeout;
            let seq = report.seq;
            let ask = async move { clock.until(deadline, keeper.report(&report)).await };
            call = Some((seq, Box::pin(ask)));
        }
        let (link, wake_at, dead_at) =
            count.with(|account, now| (account.link, account.next_wake(now), account.dead_at()));
        if let Some(dead_man) = &shared.dead_man {
            dead_man.set(&id, dead_at, clock.now());
        }
        if link == Link::Left {
            return;
        }
        let asked = async {
            match &mut call {
                Some((_, ask)) => ask.await,
                None => std::future::pending().await,
            }
        };
        let answer = tokio::select! {
            biased;
            answer = asked => answer,
            () = clock.sleep_until(wake_at) => continue,
            () = count.poke.notified() => continue,
        };
        let Some((seq, _)) = call.take() else { continue };
        match answer {
            Some(Ok(answer)) => {
                let todo = count.with(|account, now| account.answered(seq, answer, now));
                count.carry_out(todo);
                told.answered(&id, count);
            }
            failed => {
                count.with(|account, now| account.lost(seq, now));
                let error = failed.and_then(Result::err);
                told.lost(&id, keeper.name(), error, shared.settings.request_timeout);
            }
        }
    }
}

/// What has been logged, so that nothing is said over and over.
#[derive(Default)]
struct Told {
    away: bool,
    other_limit: Option<u32>,
    declaring: bool,
    reaped: u64,
}

impl Told {
    fn answered(&mut self, id: &str, count: &FleetCount) {
        let (last, reaped, limits) =
            count.with(|account, _| (account.last.clone(), account.reaped, account.limits()));
        if std::mem::take(&mut self.away) {
            tracing::info!(backend = id, "the keeper answers again");
        }
        if reaped > self.reaped {
            self.reaped = reaped;
            tracing::warn!(
                backend = id,
                "this member was silent for so long that its leases went to others; it closes its \
                 connections and joins anew"
            );
            return;
        }
        let other = Some(last.limit).filter(|limit| *limit != limits.open);
        if other != self.other_limit {
            self.other_limit = other;
            if let Some(limit) = other {
                tracing::warn!(
                    backend = id,
                    ours = limits.open,
                    counts = limit,
                    theirs = last.limit_by,
                    "members disagree on the limit; the lowest of the newest version counts: give \
                     all the same limit, and a higher version to a new one"
                );
            }
        }
        let declaring = last.declaring_ms > 0;
        if declaring && !self.declaring {
            tracing::warn!(
                backend = id,
                for_ms = last.declaring_ms,
                "the keeper is new or has lost data: members declare what they hold, and nothing \
                 new is granted meanwhile (for a new fleet, run `forebay fleet setup` first)"
            );
        }
        self.declaring = declaring;
    }

    fn lost(&mut self, id: &str, keeper: &str, error: Option<KeeperError>, limit: Duration) {
        if std::mem::replace(&mut self.away, true) {
            return;
        }
        match error {
            Some(error) => tracing::warn!(backend = id, %error, "a report failed"),
            None => {
                tracing::warn!(backend = id, keeper, ?limit, "a report was not answered in time")
            }
        }
    }
}

/// A seed that differs from process to process.
#[expect(clippy::disallowed_types, reason = "only here is chance wanted from outside")]
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}
