//! What happens in a world, drawn from its seed before it begins.

use std::time::Duration;

use forebay_fleet::{BackendLimits, MemberSettings, OnLoss};

use crate::backend::Manners;
use crate::fault::Fault;
use crate::judge::Times;
use crate::process::Recipe;

/// What is done to a world.
#[derive(Debug, Clone, Copy)]
pub enum Act {
    Freeze { who: usize, lasts: Duration, vm: bool },
    Block { who: usize, lasts: Duration },
    Kill { who: usize, back_after: Option<Duration> },
    Leave { who: usize, back_after: Duration },
    Join,
    Cut { who: usize, up: bool, down: bool, lasts: Duration },
    Storm { lost: u32, doubled: u32, late: u32, lasts: Duration },
    Outage { lasts: Duration, restart: Option<Restart> },
    Restart(Restart),
    Snapshot,
    StepClock { by_ms: i64 },
    Limit { open: u32 },
    Credentials { take: Duration, lasts: Duration },
    Refuse { too_many: u32, too_fast: u32, lasts: Duration },
    Unreliable { fails: u32, hangs: u32, lasts: Duration },
}

/// What a keeper has when it comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    WithData,
    WithoutData,
    Stale,
}

#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub times: Times,
    pub policy: OnLoss,
    pub recipes: Vec<Recipe>,
    pub limits: BackendLimits,
    pub manners: Manners,
    pub acts: Vec<(Duration, Act)>,
    /// Faults end here, and what is left must heal.
    pub calm_at: Duration,
    pub reclaim: Duration,
    pub setup: bool,
}

/// A span between the two, evenly drawn.
fn span(rng: &mut fastrand::Rng, from: f64, to: f64, unit: Duration) -> Duration {
    unit.mul_f64(from + (to - from) * rng.f64())
}

impl Plan {
    pub fn draw(seed: u64, fault: Fault) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let unit = if rng.bool() { Duration::from_millis(200) } else { Duration::from_secs(1) };
        let times = Times {
            ttl: unit * 30,
            heartbeat: unit * 10,
            margin: unit * 5,
            request_timeout: unit * 2,
            close_grace: unit,
            drift: if rng.bool() { 0.0 } else { 0.01 },
            slack: Duration::from_millis(150),
        };
        let policy = rng.choice([OnLoss::Share, OnLoss::Fence, OnLoss::Hold]).unwrap_or_default();
        let members = rng.usize(2..=6);
        let open = if rng.u32(0..5) == 0 { rng.u32(1..=4) } else { rng.u32(5..=40) };
        let burst = if rng.bool() { rng.u32(1..=3) } else { rng.u32(1..=open.max(2)) };
        let rate = if rng.bool() { rng.u32(2..=6) } else { rng.u32(10..=60) };
        let limits = BackendLimits::new(open, rate, burst);
        // lives so short that something is always being opened
        let life = (rng.u32(0..3) == 0).then(|| times.ttl * rng.u32(1..4));
        let reclaim = if rng.u32(0..4) == 0 { times.ttl * rng.u32(2..4) } else { times.ttl };
        let weighted = rng.u32(0..3) == 0;
        let announces = rng.u32(0..3) > 0;
        let recipes = (0..members + 2)
            .map(|i| Recipe {
                settings: MemberSettings {
                    weight: if weighted { rng.u32(1..=4) } else { 1 },
                    ttl: times.ttl,
                    heartbeat: times.heartbeat,
                    margin: times.margin,
                    request_timeout: times.request_timeout,
                    reclaim_after: reclaim,
                    on_loss: policy,
                    divisor: 1,
                    close_grace: times.close_grace,
                    ..MemberSettings::new(format!("m{i}"), "web")
                },
                limits,
                max_open: open + 4,
                target_ready: open + 4,
                clients: rng.u32(0..=6),
                hold: span(&mut rng, 0.0, 2.0, unit),
                think: span(&mut rng, 0.0, 4.0, unit),
                offset: Duration::from_secs(rng.u64(0..7200)),
                pace: 1.0 + times.drift * (2.0 * rng.f64() - 1.0),
                announces,
                delay: Duration::from_millis(rng.u64(0..40)),
                connect_timeout: unit * 10,
                life,
                fault,
            })
            .collect();
        let manners = Manners {
            handshake: Duration::from_millis(rng.u64(1..100)),
            lag: times.close_grace.mul_f64(0.9 * rng.f64()),
            fails: 0,
            hangs: 0,
            too_many: 0,
            too_fast: 0,
            credentials: Duration::ZERO,
        };
        let calm_at = times.ttl * rng.u32(4..9);
        let mut acts = Vec::new();
        for _ in 0..rng.u32(1..8) {
            let at = calm_at.mul_f64(rng.f64());
            acts.push((at, act(&mut rng, &times, members, open)));
        }
        for _ in 0..4 {
            acts.push((calm_at.mul_f64(rng.f64()), Act::Snapshot));
        }
        if rng.bool() {
            // while much is being opened
            let fill = Duration::from_secs_f64(f64::from(open) / f64::from(rate));
            let lasts = times.ttl.min(Duration::from_secs(4)).mul_f64(rng.f64());
            let who = rng.usize(0..members);
            acts.push((
                fill.min(calm_at).mul_f64(rng.f64()),
                Act::Freeze { who, lasts, vm: false },
            ));
        }
        acts.sort_by_key(|(at, _)| *at);
        let setup = rng.u32(0..4) > 0;
        Self { seed, times, policy, recipes, limits, manners, acts, calm_at, reclaim, setup }
    }

    /// The members of the start; the other recipes are for those who join.
    pub fn members(&self) -> usize {
        self.recipes.len() - 2
    }
}

fn act(rng: &mut fastrand::Rng, times: &Times, members: usize, open: u32) -> Act {
    let who = rng.usize(0..members);
    let ttl = times.ttl;
    let lasts = span(rng, 0.05, 2.0, ttl);
    let restart = rng
        .choice([Restart::WithData, Restart::WithoutData, Restart::Stale])
        .unwrap_or(Restart::WithData);
    match rng.u32(0..16) {
        0..=2 => Act::Freeze { who, lasts, vm: rng.u32(0..4) == 0 },
        3 => Act::Block { who, lasts },
        4 => Act::Kill { who, back_after: rng.bool().then_some(lasts / 2) },
        5 => Act::Leave { who, back_after: lasts },
        6 => Act::Join,
        7 | 8 => {
            let side = rng.u32(0..3);
            Act::Cut { who, up: side != 1, down: side != 0, lasts }
        }
        9 | 10 => Act::Storm {
            lost: rng.u32(0..300),
            doubled: rng.u32(0..300),
            late: rng.u32(0..200),
            lasts,
        },
        11 => Act::Outage { lasts, restart: rng.bool().then_some(restart) },
        12 => Act::Restart(restart),
        13 => {
            let small = times.margin.as_millis() as i64 / 4;
            let far = ttl.as_millis() as i64 * 10;
            let most = if rng.bool() { small } else { far };
            let by_ms = rng.i64(-most..=most);
            let within = times.margin.as_millis() as i64;
            // what lies between is beyond what members allow for and not yet noticed
            Act::StepClock {
                by_ms: if by_ms.abs() < within { by_ms.clamp(-small, small) } else { by_ms },
            }
        }
        14 => Act::Limit { open: rng.u32(1..=open + 4) },
        _ => match rng.u32(0..3) {
            0 => Act::Credentials { take: span(rng, 0.0, 0.3, ttl), lasts },
            1 => Act::Refuse { too_many: rng.u32(0..300), too_fast: rng.u32(0..300), lasts },
            _ => Act::Unreliable { fails: rng.u32(0..300), hangs: rng.u32(0..200), lasts },
        },
    }
}

impl Act {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Freeze { vm: false, .. } => "stop",
            Self::Freeze { vm: true, .. } => "pause",
            Self::Block { .. } => "block",
            Self::Kill { .. } => "kill",
            Self::Leave { .. } => "leave",
            Self::Join => "join",
            Self::Cut { .. } => "cut",
            Self::Storm { .. } => "storm",
            Self::Outage { .. } => "outage",
            Self::Restart(Restart::WithData) => "restart with data",
            Self::Restart(Restart::WithoutData) => "restart without data",
            Self::Restart(Restart::Stale) => "restart with stale data",
            Self::Snapshot => "snapshot",
            Self::StepClock { .. } => "clock step",
            Self::Limit { .. } => "limit",
            Self::Credentials { .. } => "slow credentials",
            Self::Refuse { .. } => "refusals",
            Self::Unreliable { .. } => "unreliable",
        }
    }

    pub fn who(&self) -> u64 {
        match self {
            Self::Freeze { who, .. }
            | Self::Block { who, .. }
            | Self::Kill { who, .. }
            | Self::Leave { who, .. }
            | Self::Cut { who, .. } => *who as u64,
            _ => 0,
        }
    }
}

impl Plan {
    /// A world in which nothing happens by itself: default times, equal members that
    /// always want more than there is.
    pub fn still(members: usize, policy: OnLoss, limits: BackendLimits) -> Self {
        let unit = Duration::from_secs(1);
        let mut plan = Self::draw(1, Fault::None);
        plan.times = Times {
            ttl: unit * 30,
            heartbeat: unit * 10,
            margin: unit * 5,
            request_timeout: unit * 2,
            close_grace: unit,
            drift: 0.0,
            slack: Duration::from_millis(150),
        };
        let open = limits.open.unwrap_or(100);
        let recipe = |i: usize| Recipe {
            settings: MemberSettings {
                on_loss: policy,
                divisor: 1,
                ..MemberSettings::new(format!("m{i}"), "web")
            },
            limits,
            max_open: open + 4,
            target_ready: open + 4,
            clients: 0,
            hold: Duration::ZERO,
            think: Duration::ZERO,
            offset: Duration::from_secs(1000 * i as u64),
            pace: 1.0,
            announces: true,
            delay: Duration::from_millis(10),
            connect_timeout: unit * 10,
            life: None,
            fault: Fault::None,
        };
        plan.recipes = (0..members + 2).map(recipe).collect();
        (plan.policy, plan.limits, plan.setup) = (policy, limits, true);
        plan.manners.handshake = Duration::from_millis(20);
        plan.manners.lag = unit / 2;
        plan.acts.clear();
        plan.reclaim = plan.times.ttl;
        plan.calm_at = Duration::from_secs(86_400);
        plan
    }
}
