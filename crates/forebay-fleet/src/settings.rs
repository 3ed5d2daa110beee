//! How a member behaves, and what it says of the backends it uses.

use std::time::Duration;

use crate::message::{Limits, Profile};

/// What a member does while the keeper is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnLoss {
    /// Goes down to its offline share by `ttl`, and up to it a little later.
    #[default]
    Share,
    /// Closes everything by `ttl`: the limit holds whatever happens. Needs connectors
    /// that give a killer.
    Fence,
    /// Keeps what it has and opens nothing new.
    Hold,
}

impl OnLoss {
    /// The word used in configuration and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Share => "share",
            Self::Fence => "fence",
            Self::Hold => "hold",
        }
    }
}

impl std::str::FromStr for OnLoss {
    type Err = InvalidSettings;

    fn from_str(text: &str) -> Result<Self, InvalidSettings> {
        [Self::Share, Self::Fence, Self::Hold]
            .into_iter()
            .find(|policy| policy.as_str() == text)
            .ok_or_else(|| invalid(format!("on_loss is `{text}`; it must be share, fence or hold")))
    }
}

/// Settings that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidSettings {
    message: String,
}

pub(crate) fn invalid(message: impl Into<String>) -> InvalidSettings {
    InvalidSettings { message: message.into() }
}

/// How a member behaves.
///
/// ```
/// use forebay_fleet::{MemberSettings, OnLoss};
/// let settings = MemberSettings { on_loss: OnLoss::Fence, ..MemberSettings::new("web-1", "web") };
/// assert_eq!(settings.ttl.as_secs(), 30);
/// assert!(settings.check().is_ok());
/// ```
#[derive(Debug, Clone)]
pub struct MemberSettings {
    /// The instance: by default the host's name.
    pub instance: String,
    /// The service that it is an instance of.
    pub service: String,
    /// Where it can be reached, for operators; may be empty.
    pub peer: String,
    /// Its weight among the shares. Default 1.
    pub weight: u32,
    /// Leases are good for this long after the last answered report was sent. Default 30 s.
    pub ttl: Duration,
    /// How often it reports. Default 10 s.
    pub heartbeat: Duration,
    /// How early it fences itself. Half of it is for clocks that go at different
    /// speeds, the other half for the backend to let go. Default 5 s.
    pub margin: Duration,
    /// How long an answer is waited for. Default 2 s.
    pub request_timeout: Duration,
    /// After this much silence its leases go to others. Default: `ttl`.
    pub reclaim_after: Duration,
    /// What it does while the keeper is away. Default [`OnLoss::Share`].
    pub on_loss: OnLoss,
    /// An offline share is at most the limit divided by this. Default 3.
    pub divisor: u32,
    /// Opens up to this many although the keeper has never been reached. Voids the
    /// promise to stay below the limit. Default 0.
    pub cold_share: u32,
    /// Linux: the kernel kills the process if it was stopped past its leases. Default off.
    pub dead_man: bool,
    /// After being reaped, new leases wait this long for old connections to be gone.
    /// Default 1 s.
    pub close_grace: Duration,
    /// The longest wait for a rate permit. Default 30 s.
    pub max_wait: Duration,
    /// Seeds the generator; default: from chance.
    pub seed: Option<u64>,
}

impl MemberSettings {
    /// The defaults, for an instance of a service.
    pub fn new(instance: impl Into<String>, service: impl Into<String>) -> Self {
        Self {
            instance: instance.into(),
            service: service.into(),
            peer: String::new(),
            weight: 1,
            ttl: Duration::from_secs(30),
            heartbeat: Duration::from_secs(10),
            margin: Duration::from_secs(5),
            request_timeout: Duration::from_secs(2),
            reclaim_after: Duration::from_secs(30),
            on_loss: OnLoss::default(),
            divisor: 3,
            cold_share: 0,
            dead_man: false,
            close_grace: Duration::from_secs(1),
            max_wait: Duration::from_secs(30),
            seed: None,
        }
    }

    /// Refuses what cannot work, with the values in the message.
    ///
    /// # Errors
    /// If a value is zero that must not be, or two contradict each other.
    pub fn check(&self) -> Result<(), InvalidSettings> {
        let Self { ttl, heartbeat, margin, request_timeout, reclaim_after, .. } = self;
        for (name, text) in [("instance", &self.instance), ("service", &self.service)] {
            if text.is_empty() || text.len() > 200 || text.contains(|c: char| c.is_control()) {
                return Err(invalid(format!(
                    "{name} is {text:?}; it must have 1 to 200 printable characters"
                )));
            }
        }
        if self.instance.contains(['@', '#']) {
            return Err(invalid(format!(
                "instance `{}` must contain no `@` or `#`",
                self.instance
            )));
        }
        for (name, value) in [
            ("ttl", ttl),
            ("heartbeat", heartbeat),
            ("margin", margin),
            ("request_timeout", request_timeout),
        ] {
            if *value < Duration::from_millis(10) {
                return Err(invalid(format!("{name} is {value:?}; it must be at least 10 ms")));
            }
        }
        if *heartbeat + *request_timeout + *margin >= *ttl {
            return Err(invalid(format!(
                "heartbeat ({heartbeat:?}) + request_timeout ({request_timeout:?}) + margin \
                 ({margin:?}) must be below ttl ({ttl:?}), or one lost answer closes everything"
            )));
        }
        if reclaim_after < ttl {
            return Err(invalid(format!(
                "reclaim_after ({reclaim_after:?}) must not be below ttl ({ttl:?})"
            )));
        }
        for (name, value) in [("weight", self.weight), ("divisor", self.divisor)] {
            if value == 0 || value > 10_000 {
                return Err(invalid(format!("{name} is {value}; it must be 1 to 10000")));
            }
        }
        if self.dead_man && !cfg!(target_os = "linux") {
            return Err(invalid("dead_man works on Linux only"));
        }
        Ok(())
    }

    /// What it tells the keeper of itself.
    pub(crate) fn profile(&self, limits: Limits) -> Profile {
        let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX / 4);
        Profile {
            service: self.service.clone(),
            peer: self.peer.clone(),
            weight: self.weight,
            limits,
            ttl_ms: ms(self.ttl),
            heartbeat_ms: ms(self.heartbeat),
            margin_ms: ms(self.margin),
            reclaim_ms: ms(self.reclaim_after),
            divisor: self.divisor,
        }
    }
}

/// What the fleet may do to one backend, and what is left to outsiders.
///
/// ```
/// use forebay_fleet::BackendLimits;
/// // Aurora DSQL, with ten connections left for psql
/// let limits = BackendLimits { reserve: 10, ..BackendLimits::new(10_000, 100, 1_000) };
/// assert!(limits.check().is_ok());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackendLimits {
    /// Connections the backend lets be open; `None` if only the rate is shared.
    pub open: Option<u32>,
    /// Of these, not for the fleet.
    pub reserve: u32,
    /// Connections the backend lets be opened a second; `None` if only the count is shared.
    pub rate: Option<u32>,
    /// Of these, not for the fleet.
    pub rate_reserve: u32,
    /// Connections it lets be opened at once after a quiet time.
    pub burst: u32,
    /// Rises with each deliberate change.
    pub version: u32,
}

impl BackendLimits {
    /// Limits on both.
    pub fn new(open: u32, rate: u32, burst: u32) -> Self {
        Self { open: Some(open), reserve: 0, rate: Some(rate), rate_reserve: 0, burst, version: 0 }
    }

    /// Refuses what cannot work, with the values in the message.
    ///
    /// # Errors
    /// If nothing would be left for the fleet, or a value is too large to be kept.
    pub fn check(&self) -> Result<(), InvalidSettings> {
        for (name, limit, reserve) in
            [("open", self.open, self.reserve), ("rate", self.rate, self.rate_reserve)]
        {
            let Some(limit) = limit else { continue };
            if limit <= reserve {
                return Err(invalid(format!(
                    "the reserve ({reserve}) leaves nothing of the {name} limit ({limit})"
                )));
            }
            if limit > Limits::MAX {
                return Err(invalid(format!(
                    "the {name} limit is {limit}; it must not exceed {}",
                    Limits::MAX
                )));
            }
        }
        if self.rate.is_some() && (self.burst == 0 || self.burst > Limits::MAX) {
            return Err(invalid(format!(
                "burst is {}; it must be 1 to {}",
                self.burst,
                Limits::MAX
            )));
        }
        if self.version > Limits::VERSION_MAX {
            return Err(invalid(format!(
                "the version of the limits is {}; it must not exceed {}",
                self.version,
                Limits::VERSION_MAX
            )));
        }
        Ok(())
    }

    /// As the keeper sees them.
    pub(crate) fn for_fleet(&self) -> Limits {
        Limits {
            open: self.open.map_or(Limits::MAX, |open| open - self.reserve),
            rate: self.rate.map_or(0, |rate| rate - self.rate_reserve),
            burst: if self.rate.is_some() { self.burst } else { 0 },
            version: self.version,
        }
    }
}
