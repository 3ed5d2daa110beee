//! The settings of a source and of a pool, their defaults, and what is refused
//! as contradictory. Reading settings from the environment is in `env`.

use std::sync::Arc;
use std::time::Duration;

use crate::backoff::BackoffSettings;
use crate::budget::{CountBudget, RateBudget};
use crate::clock::FAR;
use crate::connector::Connector;
use crate::error::BuildError;

/// How one source is stocked. [`Settings::default`] is what the builder starts from.
///
/// ```
/// let settings = forebay::Settings { max_open: 50, ..Default::default() };
/// assert_eq!(settings.target_ready(), 50);
/// ```
#[derive(Clone)]
pub struct Settings {
    /// Most connections in every state. Default 100.
    pub max_open: u32,
    /// Ready connections to keep. Default: `max_open`.
    pub target_ready: Option<u32>,
    /// What the initial fill waits for, and below which the stock is reported low.
    /// Default: `target_ready`.
    pub low_watermark: Option<u32>,
    /// How far the stock may shrink while connections stay unused for `max_idle`.
    /// Default: `target_ready`, so it does not shrink.
    pub min_idle: Option<u32>,
    /// Most connections in use. Default: no limit but `max_open`.
    pub max_in_use: Option<u32>,
    /// Most opens under way at once. Default 16.
    pub max_opening: u32,
    /// A connection lives this long, plus or minus half of `lifetime_jitter`. Default 11 min.
    pub base_lifetime: Duration,
    /// The width of the spread of lives. Default 2 min.
    pub lifetime_jitter: Duration,
    /// A connection with less than this left is not handed out. Default 45 s.
    pub guard_window: Duration,
    /// A connection is replaced this long before it retires. Default 5 s.
    pub lead: Duration,
    /// Age at which a connection in use is killed. Default: never.
    pub hard_life: Option<Duration>,
    /// Surplus connections idle for this long are closed; zero keeps no surplus at
    /// all, `None` keeps it for good. Default 5 min.
    pub max_idle: Option<Duration>,
    /// Idle connections are checked this often. Default: never.
    pub idle_check: Option<Duration>,
    /// Time limit of credentials and of a connect, each. Default 10 s.
    pub connect_timeout: Duration,
    /// Time limit of a reset. Default 5 s.
    pub reset_timeout: Duration,
    /// Time limit of a check. Default 5 s.
    pub check_timeout: Duration,
    /// How long a lease is kept after a close that the backend has not confirmed. Default 1 s.
    pub close_grace: Duration,
    /// What happens after failed opens.
    pub backoff: BackoffSettings,
    /// Share of the checkouts under [`Strategy::Weighted`]. Default 1.
    pub weight: u32,
    /// How fast connections may be opened. Default: no limit.
    pub rate: Option<Arc<dyn RateBudget>>,
    /// How many connections may be open in all. Default: no limit but `max_open`.
    pub count: Option<Arc<dyn CountBudget>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_open: 100,
            target_ready: None,
            low_watermark: None,
            min_idle: None,
            max_in_use: None,
            max_opening: 16,
            base_lifetime: Duration::from_secs(11 * 60),
            lifetime_jitter: Duration::from_secs(2 * 60),
            guard_window: Duration::from_secs(45),
            lead: Duration::from_secs(5),
            hard_life: None,
            max_idle: Some(Duration::from_secs(5 * 60)),
            idle_check: None,
            connect_timeout: Duration::from_secs(10),
            reset_timeout: Duration::from_secs(5),
            check_timeout: Duration::from_secs(5),
            close_grace: Duration::from_secs(1),
            backoff: BackoffSettings::default(),
            weight: 1,
            rate: None,
            count: None,
        }
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("max_open", &self.max_open)
            .field("target_ready", &self.target_ready())
            .field("low_watermark", &self.low_watermark())
            .field("min_idle", &self.min_idle())
            .field("base_lifetime", &self.base_lifetime)
            .field("lifetime_jitter", &self.lifetime_jitter)
            .field("guard_window", &self.guard_window)
            .field("rate", &self.rate.is_some())
            .field("count", &self.count.is_some())
            .finish_non_exhaustive()
    }
}

impl Settings {
    /// No reservoir: warm up to `max_open`, then keep that size. Connections live
    /// for 55 minutes, give or take one; they are opened one at a time (raise
    /// `max_opening` to warm up faster), each within 10 s, with waits of 200 ms to
    /// 5 s after failures and, after five in a row, a breaker; idle ones are kept.
    ///
    /// ```
    /// let settings = forebay::Settings { max_opening: 8, ..forebay::Settings::standard() };
    /// assert_eq!(settings.target_ready(), settings.max_open);
    /// ```
    pub fn standard() -> Self {
        Self {
            max_open: 100,
            target_ready: None,
            max_opening: 1,
            base_lifetime: Duration::from_secs(55 * 60),
            max_idle: None,
            connect_timeout: Duration::from_secs(10),
            backoff: BackoffSettings {
                base: Duration::from_millis(200),
                max: Duration::from_secs(5),
                breaker_after: 5,
                ..BackoffSettings::default()
            },
            ..Self::default()
        }
    }

    /// Ready connections to keep.
    pub fn target_ready(&self) -> u32 {
        self.target_ready.unwrap_or(self.max_open)
    }

    /// What the initial fill waits for.
    pub fn low_watermark(&self) -> u32 {
        self.low_watermark.unwrap_or_else(|| self.target_ready())
    }

    /// The stock's floor.
    pub fn min_idle(&self) -> u32 {
        self.min_idle.unwrap_or_else(|| self.target_ready())
    }

    /// Most connections in use.
    pub(crate) fn in_use_cap(&self) -> u32 {
        self.max_in_use.unwrap_or(self.max_open)
    }

    /// Refuses what cannot work.
    ///
    /// # Errors
    /// The first contradiction found, with the names and the values of both settings.
    pub fn check(&self, source_name: &str) -> Result<(), BuildError> {
        for (name, value) in [
            ("max_open", self.max_open),
            ("max_opening", self.max_opening),
            ("weight", self.weight),
            ("max_in_use", self.max_in_use.unwrap_or(1)),
            ("breaker_after", self.backoff.breaker_after),
        ] {
            if value == 0 {
                return Err(BuildError::Zero { source_name: source_name.to_owned(), name });
            }
        }
        for (name, value) in [
            ("base_lifetime", self.base_lifetime),
            ("connect_timeout", self.connect_timeout),
            ("reset_timeout", self.reset_timeout),
            ("check_timeout", self.check_timeout),
            ("hard_life", self.hard_life.unwrap_or(Duration::MAX)),
            ("idle_check", self.idle_check.unwrap_or(Duration::MAX)),
            ("backoff.base", self.backoff.base),
        ] {
            if value.is_zero() {
                return Err(BuildError::Zero { source_name: source_name.to_owned(), name });
            }
        }
        let shortest = self.base_lifetime.saturating_sub(self.lifetime_jitter / 2);
        let longest = self.base_lifetime.saturating_add(self.lifetime_jitter / 2);
        let counts = [
            ("target_ready", self.target_ready(), "max_open", self.max_open),
            ("min_idle", self.min_idle.unwrap_or(0), "max_open", self.max_open),
            ("min_idle", self.min_idle.unwrap_or(0), "target_ready", self.target_ready()),
            ("low_watermark", self.low_watermark(), "target_ready", self.target_ready()),
            ("max_in_use", self.in_use_cap(), "max_open", self.max_open),
        ];
        let contradiction = |low_name, low, relation, high_name, high| {
            let source_name = source_name.to_owned();
            BuildError::Contradiction { source_name, low_name, low, relation, high_name, high }
        };
        for (low_name, low, high_name, high) in counts {
            if low > high {
                let (low, high) = (low.to_string(), high.to_string());
                return Err(contradiction(low_name, low, "not exceed", high_name, high));
            }
        }
        let BackoffSettings { base, max, breaker_max, .. } = self.backoff;
        let waits = [
            ("backoff.base", base, "backoff.max", max),
            ("backoff.max", max, "backoff.breaker_max", breaker_max),
        ];
        for (low_name, low, high_name, high) in waits {
            if low > high {
                let (low, high) = (format!("{low:?}"), format!("{high:?}"));
                return Err(contradiction(low_name, low, "not exceed", high_name, high));
            }
        }
        let spans = [
            ("guard_window", self.guard_window, "base_lifetime", self.base_lifetime),
            ("lifetime_jitter / 2", self.lifetime_jitter / 2, "base_lifetime", self.base_lifetime),
            (
                "guard_window + lead",
                self.guard_window.saturating_add(self.lead),
                "base_lifetime - lifetime_jitter / 2",
                shortest,
            ),
            (
                "base_lifetime + lifetime_jitter / 2",
                longest.min(FAR),
                "hard_life",
                self.hard_life.unwrap_or(Duration::MAX),
            ),
        ];
        for (low_name, low, high_name, high) in spans {
            if low >= high {
                let (low, high) = (format!("{low:?}"), format!("{high:?}"));
                return Err(contradiction(low_name, low, "be below", high_name, high));
            }
        }
        Ok(())
    }

    /// With spans that can be added to an instant.
    pub(crate) fn bounded(mut self) -> Self {
        for span in [
            &mut self.base_lifetime,
            &mut self.connect_timeout,
            &mut self.reset_timeout,
            &mut self.check_timeout,
            &mut self.close_grace,
            &mut self.backoff.base,
            &mut self.backoff.max,
            &mut self.backoff.breaker_max,
        ] {
            *span = (*span).min(FAR);
        }
        for span in [&mut self.hard_life, &mut self.max_idle, &mut self.idle_check] {
            *span = span.map(|span| span.min(FAR));
        }
        self
    }
}

/// Which source serves a checkout when several could.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Strategy {
    /// Each in turn.
    RoundRobin,
    /// The one with the fewest connections in use.
    LeastInUse,
    /// The one throttled longest ago, then the fewest in use.
    #[default]
    ThrottleAware,
    /// In proportion to [`Settings::weight`].
    Weighted,
}

/// The settings of a pool as a whole.
#[derive(Debug, Clone)]
pub(crate) struct PoolSettings {
    pub(crate) timeout: Duration,
    pub(crate) brief_wait: Duration,
    pub(crate) initial_fill: Duration,
    pub(crate) max_waiters: u32,
    pub(crate) claim_within: Duration,
    pub(crate) priority_age: Duration,
    pub(crate) max_retry_after: Option<Duration>,
    pub(crate) throttle_ramp: Duration,
    pub(crate) stagger: Option<Duration>,
    pub(crate) strategy: Strategy,
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            brief_wait: Duration::from_millis(100),
            initial_fill: Duration::from_secs(30),
            max_waiters: 1000,
            claim_within: Duration::from_secs(1),
            priority_age: Duration::from_secs(5),
            max_retry_after: None,
            throttle_ramp: Duration::from_secs(2),
            stagger: Some(Duration::from_secs(5)),
            strategy: Strategy::default(),
        }
    }
}

impl PoolSettings {
    /// Refuses what cannot work.
    pub(crate) fn check(&self) -> Result<(), BuildError> {
        // a hand-off that had to be claimed in no time could never be claimed
        if self.claim_within.is_zero() {
            return Err(BuildError::PoolZero { name: "claim_within" });
        }
        Ok(())
    }

    /// With spans that can be added to an instant.
    pub(crate) fn bounded(mut self) -> Self {
        for span in [
            &mut self.timeout,
            &mut self.brief_wait,
            &mut self.initial_fill,
            &mut self.claim_within,
            &mut self.priority_age,
            &mut self.throttle_ramp,
        ] {
            *span = (*span).min(FAR);
        }
        self.stagger = self.stagger.map(|span| span.min(FAR));
        self
    }
}

/// One way to get connections: a connector and the limits that come with it.
///
/// ```
/// # struct Db; impl forebay::Connector for Db { type Conn = (); type Key = (); type Error = std::io::Error;
/// #   async fn connect(&self, _: &()) -> Result<forebay::Opened<()>, std::io::Error> { Ok(forebay::Opened::new(())) } }
/// use forebay::{Settings, SourceSpec};
/// let source = SourceSpec::new("user-1", Db).settings(Settings { max_open: 52, ..Default::default() });
/// # let _ = source;
/// ```
pub struct SourceSpec<C: Connector> {
    pub(crate) name: String,
    pub(crate) connector: C,
    pub(crate) settings: Settings,
    pub(crate) prefill: Vec<C::Key>,
}

impl<C: Connector> SourceSpec<C> {
    /// A source with default settings that is filled for the default key.
    pub fn new(name: impl Into<String>, connector: C) -> Self {
        Self {
            name: name.into(),
            connector,
            settings: Settings::default(),
            prefill: vec![C::Key::default()],
        }
    }

    /// Sets the limits.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Sets the keys that the stock is filled for. An empty list fills recently
    /// used keys only.
    #[must_use]
    pub fn prefill(mut self, keys: impl IntoIterator<Item = C::Key>) -> Self {
        self.prefill = keys.into_iter().collect();
        self
    }
}
