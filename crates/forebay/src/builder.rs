//! Puts a pool together: one source with its settings spelled out here, or many
//! given as [`SourceSpec`]s. `build` refuses what cannot work and starts the driver.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::time::Duration;

use crate::budget::{CountBudget, RateBudget};
use crate::clock::{Clock, Instant, RoughClock};
use crate::connector::Connector;
use crate::driver;
use crate::error::BuildError;
use crate::hub::Hub;
use crate::keys::Keys;
use crate::observer::Observer;
use crate::pool::Pool;
use crate::settings::{PoolSettings, Settings, SourceSpec, Strategy};
use crate::source::SourceState;
use crate::state::State;
use crate::stats::Waits;
use crate::sync::Mutex;

/// Sources are told apart by the bits of a word.
const SOURCES_MAX: usize = 64;

/// Collects the settings of a pool; see [`Pool::builder`].
pub struct Builder<C: Connector> {
    sources: Vec<SourceSpec<C>>,
    pool: PoolSettings,
    clock: Clock,
    seed: Option<u64>,
    observer: Option<Arc<dyn Observer>>,
}

macro_rules! source_setters {
    ($($(#[$meta:meta])* $name:ident: $type:ty $(=> $wrap:ident)?;)*) => {$(
        $(#[$meta])*
        #[must_use]
        pub fn $name(mut self, $name: $type) -> Self {
            for source in &mut self.sources {
                source.settings.$name = source_setters!(@value $name $name.clone(), $($wrap)?);
            }
            self
        }
    )*};
    (@value $name:ident $value:expr, Some) => { Some($value) };
    (@value $name:ident $value:expr,) => { $value };
}

macro_rules! pool_setters {
    ($($(#[$meta:meta])* $name:ident: $type:ty;)*) => {$(
        $(#[$meta])*
        #[must_use]
        pub fn $name(mut self, $name: $type) -> Self {
            self.pool.$name = $name;
            self
        }
    )*};
}

/// Settings of the sources. With several sources, each call sets all of those
/// given so far.
impl<C: Connector> Builder<C> {
    source_setters! {
        /// Most connections in every state. Default 100.
        max_open: u32;
        /// Ready connections to keep. Default: `max_open`.
        target_ready: u32 => Some;
        /// What the initial fill waits for; below it the stock is reported low.
        /// Default: `target_ready`.
        low_watermark: u32 => Some;
        /// How far an unused stock may shrink. Default: `target_ready`.
        min_idle: u32 => Some;
        /// Most connections in use. Default: `max_open`.
        max_in_use: u32 => Some;
        /// Most opens under way at once. Default 16.
        max_opening: u32;
        /// A connection lives this long, give or take half of `lifetime_jitter`. Default 11 min.
        base_lifetime: Duration;
        /// The width of the spread of lives. Default 2 min.
        lifetime_jitter: Duration;
        /// A connection with less than this left is not handed out. Default 45 s.
        guard_window: Duration;
        /// A connection is replaced this long before it retires. Default 5 s.
        lead: Duration;
        /// Age at which a connection in use is killed; needs a `Killer`. Default: never.
        hard_life: Option<Duration>;
        /// How long a surplus connection may idle. Default 5 min.
        max_idle: Option<Duration>;
        /// How often idle connections are checked. Default: never.
        idle_check: Option<Duration>;
        /// Time limit of credentials and of a connect, each. Default 10 s.
        connect_timeout: Duration;
        /// Time limit of a reset. Default 5 s.
        reset_timeout: Duration;
        /// Time limit of a check. Default 5 s.
        check_timeout: Duration;
        /// How long a lease is kept after a close that the backend did not confirm. Default 1 s.
        close_grace: Duration;
        /// What happens after failed opens.
        backoff: crate::backoff::BackoffSettings;
        /// How fast connections may be opened.
        rate: Arc<dyn RateBudget> => Some;
        /// How many connections may be open over all who share the budget.
        count: Arc<dyn CountBudget> => Some;
    }
}

impl<C: Connector> Builder<C> {
    pool_setters! {
        /// How long `get` waits, all phases together. Default 30 s.
        timeout: Duration;
        /// How long [`GetOptions::brief`](crate::GetOptions::brief) waits. Default 100 ms.
        brief_wait: Duration;
        /// How long [`Pool::filled`] waits. Default 30 s.
        initial_fill: Duration;
        /// Checkouts that may wait; more are refused at once. Default 1000.
        max_waiters: u32;
        /// A hand-off not claimed within this goes to the next waiter. Default 1 s.
        claim_within: Duration;
        /// A waiter overtakes the next higher class once it has waited this much
        /// longer. Default 5 s.
        priority_age: Duration;
        /// If every source is throttled for longer than this, `get` fails at once.
        /// Default: it waits.
        max_retry_after: Option<Duration>;
        /// A source that was throttled comes back over this time. Default 2 s.
        throttle_ramp: Duration;
        /// The first fill starts after a random delay up to this; a waiting checkout
        /// is not delayed. Default 5 s; `None` turns it off.
        stagger: Option<Duration>;
        /// Which source serves a checkout. Default [`Strategy::ThrottleAware`].
        strategy: Strategy;
    }

    pub(crate) fn new(sources: Vec<SourceSpec<C>>) -> Self {
        Self {
            sources,
            pool: PoolSettings::default(),
            clock: Clock::default(),
            seed: None,
            observer: None,
        }
    }

    /// Replaces all settings of the sources given so far.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        for source in &mut self.sources {
            source.settings = settings.clone();
        }
        self
    }

    /// Adds a source.
    #[must_use]
    pub fn source(mut self, source: SourceSpec<C>) -> Self {
        self.sources.push(source);
        self
    }

    /// The keys that the stocks are filled for. Default: the default key.
    #[must_use]
    pub fn prefill(mut self, keys: impl IntoIterator<Item = C::Key>) -> Self {
        let keys: Vec<C::Key> = keys.into_iter().collect();
        for source in &mut self.sources {
            source.prefill.clone_from(&keys);
        }
        self
    }

    /// The clock that the pool lives by. Default: tokio's.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Seeds the generator of lives and delays, for runs that can be repeated.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Watches the pool's events.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Checks the settings, starts the driver and begins to fill.
    ///
    /// # Errors
    /// If settings contradict each other, or outside a tokio runtime.
    pub fn build(self) -> Result<Pool<C>, BuildError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| BuildError::NoRuntime)?;
        let hub = self.hub()?;
        runtime.spawn(driver::drive(hub.clone()));
        Ok(Pool::new(hub))
    }

    /// Everything but the driver.
    pub(crate) fn hub(self) -> Result<Arc<Hub<C>>, BuildError> {
        let given = self.sources.len();
        if given == 0 || given > SOURCES_MAX {
            return Err(BuildError::SourceCount { given, max: SOURCES_MAX });
        }
        self.pool.check()?;
        let mut names = BTreeSet::new();
        for source in &self.sources {
            source.settings.check(&source.name)?;
            let count = source.settings.count.as_ref();
            if !C::KILLS && count.is_some_and(|count| count.needs_killer()) {
                return Err(BuildError::NoKiller(source.name.clone()));
            }
            if !names.insert(source.name.as_str()) {
                return Err(BuildError::DuplicateSource(source.name.clone()));
            }
        }
        let now = self.clock.now();
        let pool = self.pool.bounded();
        let mut rng = fastrand::Rng::with_seed(self.seed.unwrap_or_else(random_seed));
        let hold_until = pool.stagger.map(|most| now + most.mul_f64(rng.f64()));
        let mut keys = Keys::new();
        let mut sources = Vec::new();
        let mut connectors = Vec::new();
        let signal = Arc::new(tokio::sync::Notify::new());
        for spec in self.sources {
            let mut source = source_state(&spec, hold_until, &mut keys);
            source.asker = ASKERS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            sources.push(source);
            connectors.push(spec.connector);
        }
        let observed = self.observer.is_some();
        let rough = RoughClock::new(&self.clock);
        let mut state = State::new(pool, sources, keys, rng, observed);
        state.margin = rough.margin();
        let counts = state.sources.iter().map(|source| source.settings.count.clone());
        let hub = Arc::new(Hub {
            desks: state.desks.clone(),
            waits: Waits::default(),
            counts: counts.collect(),
            wary: false.into(),
            state: Mutex::new(state),
            connectors,
            rough,
            clock: self.clock,
            signal,
            changed: tokio::sync::Notify::new(),
            closing: tokio::sync::Notify::new(),
            disowning: tokio::sync::Notify::new(),
            observer: self.observer,
        });
        for (index, count) in hub.counts.iter().enumerate() {
            if let Some(count) = count {
                count.watch(crate::holding::holder(&hub, index));
            }
        }
        Ok(hub)
    }
}

/// Numbers the sources of all pools of this process.
static ASKERS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);

fn source_state<C: Connector>(
    spec: &SourceSpec<C>,
    hold_until: Option<Instant>,
    keys: &mut Keys<C::Key>,
) -> SourceState {
    let mut state = SourceState::new(&spec.name, spec.settings.clone().bounded(), hold_until);
    state.prefill = spec.prefill.iter().map(|key| keys.keep(key)).collect();
    state
}

/// A seed that differs from process to process and from pool to pool.
#[expect(clippy::disallowed_types, reason = "only here is chance wanted from outside")]
fn random_seed() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}
