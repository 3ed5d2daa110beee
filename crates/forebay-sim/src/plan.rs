//! A plan: what the limits allow a fleet, by arithmetic and without a run. Does it
//! fit, how long do a cold start, a rolling restart and a recovery take at best,
//! and which setting is in the way.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::record::seconds;
use crate::scenario::{BackendModel, Scenario, Service};

/// What the limits allow.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// The scenario's name.
    pub scenario: String,
    /// Everything fits.
    pub fits: bool,
    /// For each kind of backend.
    pub backends: Vec<BackendPlan>,
}

/// What one backend allows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BackendPlan {
    /// The backend.
    pub backend: String,
    /// Pools that use it.
    pub pools: u32,
    /// Connections they want.
    pub wanted: u64,
    /// Connections they may have.
    pub allowed: Option<u64>,
    /// What each pool gets of that, if it is less than wanted: the smallest and the largest.
    pub shares: Option<(f64, f64)>,
    /// Opens a second that only replace what has grown old.
    pub replacements_per_second: f64,
    /// Opens a second that are allowed.
    pub rate: Option<u32>,
    /// From nothing to full, in seconds, at best.
    pub cold_start: f64,
    /// The shortest time between two instances of a rolling restart at which the
    /// stock of the others does not suffer, in seconds.
    pub restart_every: f64,
    /// A rolling restart of everything, in seconds.
    pub rolling_restart: f64,
    /// From the loss of every connection to full, in seconds, with an empty bucket.
    pub recovery: f64,
    /// What each pool may keep while the coordinator is away: the smallest.
    pub offline_share: Option<u32>,
    /// What to change, most pressing first.
    pub advice: Vec<String>,
}

/// Works out what the limits allow.
///
/// ```
/// # let text = "duration: 10s\nservices: [{name: web, target_ready: 5}]\n";
/// let scenario = forebay_sim::Scenario::parse(text, "small")?;
/// let plan = forebay_sim::plan(&scenario);
/// assert!(plan.fits, "{plan}");
/// # Ok::<(), forebay_sim::FileError>(())
/// ```
pub fn plan(scenario: &Scenario) -> Plan {
    let backends: Vec<BackendPlan> =
        scenario.backends.iter().map(|backend| plan_one(scenario, backend)).collect();
    let fits = backends.iter().all(|backend| backend.advice.is_empty());
    Plan { scenario: scenario.name.clone(), fits, backends }
}

fn plan_one(scenario: &Scenario, backend: &BackendModel) -> BackendPlan {
    let users: Vec<&Service> = scenario
        .services
        .iter()
        .filter(|service| service.backends.is_empty() || service.backends.contains(&backend.name))
        .collect();
    let pools: u32 = users.iter().map(|service| service.instances).sum();
    let total = |of: fn(&Service) -> u32| -> u64 {
        users.iter().map(|s| u64::from(s.instances) * u64::from(of(s))).sum()
    };
    let wanted = total(|service| service.target_ready);
    let allowed = backend.open.map(|open| u64::from(open - backend.reserve.min(open)));
    let held = allowed.map_or(wanted, |allowed| wanted.min(allowed));
    let part = held as f64 / wanted.max(1) as f64;
    let replacements: f64 = users
        .iter()
        .map(|service| {
            let useful = service.base_lifetime.saturating_sub(service.guard_window);
            let conns = f64::from(service.instances) * f64::from(service.target_ready) * part;
            conns / seconds(useful).max(1e-3)
        })
        .sum();
    let rate = backend.rate.map(|rate| rate - backend.rate_reserve.min(rate));
    let handshake = seconds(backend.handshake.median());
    let pace = |opens: f64, at_once: f64| {
        let over = (opens - at_once).max(0.0);
        rate.map_or(0.0, |rate| over / (f64::from(rate)).max(1e-9)) + handshake
    };
    let last_start = users
        .iter()
        .map(|s| s.start_delay + s.start_step * s.instances.saturating_sub(1))
        .max()
        .unwrap_or_default();
    let largest = users.iter().map(|service| service.target_ready).max().unwrap_or(0);
    // while one fills again, the others go on replacing what grows old
    let spare = rate.map(|rate| (f64::from(rate) - replacements).max(1e-9));
    let restart_every = spare.map_or(handshake, |spare| f64::from(largest) / spare + handshake);
    let mut plan = BackendPlan {
        backend: backend.name.clone(),
        pools,
        wanted,
        allowed,
        shares: (held < wanted).then(|| shares(&users, held)),
        replacements_per_second: replacements,
        rate,
        cold_start: pace(held as f64, f64::from(backend.burst)) + seconds(last_start),
        restart_every,
        rolling_restart: restart_every * f64::from(pools),
        recovery: pace(held as f64, 0.0),
        offline_share: offline_share(scenario, backend, pools),
        advice: Vec::new(),
    };
    advise(&mut plan, scenario, backend, &users);
    plan
}

/// The least and the most that a pool gets where not all fits.
fn shares(users: &[&Service], held: u64) -> (f64, f64) {
    let mut claims = Vec::new();
    for service in users {
        let claim = crate::census::Claim { target: service.target_ready, weight: service.weight };
        claims.extend(std::iter::repeat_n(claim, service.instances as usize));
    }
    let shares = crate::census::fair_shares(&claims, u32::try_from(held).ok());
    let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
    (least, shares.iter().copied().fold(0.0, f64::max))
}

fn offline_share(scenario: &Scenario, backend: &BackendModel, pools: u32) -> Option<u32> {
    let coordinator = scenario.coordinator.as_ref()?;
    let open = backend.open?.saturating_sub(backend.reserve);
    Some(open / pools.max(coordinator.divisor).max(1))
}

fn advise(plan: &mut BackendPlan, scenario: &Scenario, backend: &BackendModel, users: &[&Service]) {
    if let (Some((least, most)), Some(allowed)) = (plan.shares, plan.allowed) {
        plan.advice.push(format!(
            "{} connections are wanted and {allowed} allowed: each pool gets {least:.0} to {most:.0}; \
             set target_ready (and max_open) to {most:.0} or less, run fewer instances, or have the \
             limit raised to {}",
            plan.wanted,
            plan.wanted + u64::from(backend.reserve),
        ));
    }
    if let Some(rate) = plan.rate
        && plan.replacements_per_second > 0.8 * f64::from(rate)
    {
        let held = plan.allowed.map_or(plan.wanted, |allowed| allowed.min(plan.wanted));
        let guard = users.iter().map(|service| service.guard_window).max().unwrap_or_default();
        let life = Duration::from_secs_f64((held as f64 / (0.5 * f64::from(rate))).ceil()) + guard;
        plan.advice.push(format!(
            "replacing what grows old takes {:.1} of {rate} opens a second: set base_lifetime to at \
             least {life:?}, so that half of the rate is left for everything else",
            plan.replacements_per_second,
        ));
    }
    for service in users {
        if let Some(life) = backend.lifetime
            && service.base_lifetime + service.lifetime_jitter / 2 > life
        {
            plan.advice.push(format!(
                "{} lets connections live up to {:?}, but the backend closes them after {life:?}: \
                 lower base_lifetime",
                service.name,
                service.base_lifetime + service.lifetime_jitter / 2,
            ));
        }
    }
    if scenario.coordinator.is_none()
        && plan.pools > 1
        && (plan.allowed.is_some() || plan.rate.is_some())
    {
        plan.advice.push(
            "nobody coordinates: each instance alone may use the whole limit; add a coordinator"
                .to_owned(),
        );
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.fits { "fits" } else { "does not fit as it is" };
        writeln!(f, "{}: {verdict}", self.scenario)?;
        for plan in &self.backends {
            write!(f, "\n{}\n{plan}", plan.backend)?;
        }
        Ok(())
    }
}

impl fmt::Display for BackendPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let none = || "no limit".to_owned();
        let mut row = |name: &str, value: String| writeln!(f, "  {name:<26} {value}");
        row("pools", self.pools.to_string())?;
        row("connections wanted", self.wanted.to_string())?;
        row("connections allowed", self.allowed.map_or_else(none, |n| n.to_string()))?;
        if let Some((least, most)) = self.shares {
            row("each pool gets", format!("{least:.0} to {most:.0}"))?;
        }
        let rate = self.rate.map_or_else(none, |rate| format!("{rate}/s"));
        row(
            "opens to replace the old",
            format!("{:.2}/s of {rate}", self.replacements_per_second),
        )?;
        row("cold start", format!("{:.1} s", self.cold_start))?;
        row("rolling restart, every", format!("{:.1} s", self.restart_every))?;
        row("rolling restart, in all", format!("{:.1} s", self.rolling_restart))?;
        row("recovery from nothing", format!("{:.1} s", self.recovery))?;
        if let Some(share) = self.offline_share {
            row("each keeps, coordinator away", share.to_string())?;
        }
        for advice in &self.advice {
            writeln!(f, "  → {advice}")?;
        }
        Ok(())
    }
}
