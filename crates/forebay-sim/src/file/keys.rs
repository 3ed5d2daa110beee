//! Every key of a scenario file: our spelling, and the one of the seeds' simulator
//! where it has one. A file of theirs is read unchanged.

use super::table::Keys;

/// The file itself. The last two rows and those with `assert` are theirs alone: they
/// say in their way what `backend`, `assert` and `events` say in ours.
pub(super) const SCENARIO: Keys = &[
    ("name", ""),
    ("seed", ""),
    ("duration", ""),
    ("sample_every", "sampleEvery"),
    ("backend", ""),
    ("backends", ""),
    ("coordinator", ""),
    ("services", ""),
    ("events", ""),
    ("assert", ""),
    ("expect_failures", ""),
    ("endpoint", ""),
    ("assertMaxConnectsPerSec", ""),
    ("assertConvergeWithin", ""),
    ("assertStableFor", ""),
    ("assertMaxClosurePerSec", ""),
    ("assertZeroEmptyEvents", ""),
    ("limiterPerSec", ""),
    ("scenario", ""),
];

/// `backend`, or an element of `backends`.
pub(super) const BACKEND: Keys = &[
    ("name", ""),
    ("copies", ""),
    ("open", ""),
    ("rate", ""),
    ("burst", ""),
    ("reserve", ""),
    ("rate_reserve", ""),
    ("handshake", ""),
    ("fail", ""),
    ("hang", ""),
    ("lifetime", ""),
    ("refusal", ""),
    ("let_go", ""),
];

pub(super) const SPREAD: Keys = &[("p50", ""), ("p99", ""), ("mean", ""), ("min", ""), ("max", "")];

pub(super) const COORDINATOR: Keys = &[
    ("kind", ""),
    ("announces", ""),
    ("latency", ""),
    ("loss", ""),
    ("on_loss", ""),
    ("ttl", ""),
    ("heartbeat", ""),
    ("margin", ""),
    ("request_timeout", ""),
    ("reclaim_after", ""),
    ("divisor", ""),
    ("is_set_up", ""),
];

/// An element of `services`.
pub(super) const SERVICE: Keys = &[
    ("name", ""),
    ("instances", ""),
    ("backends", ""),
    ("target_ready", "targetReady"),
    ("max_open", ""),
    ("min_idle", ""),
    ("low_watermark", ""),
    ("max_opening", ""),
    ("base_lifetime", "baseLifetime"),
    ("lifetime_jitter", "jitter"),
    ("guard_window", "guardWindow"),
    ("max_idle", ""),
    ("connect_timeout", ""),
    ("start_delay", "startDelay"),
    ("start_step", ""),
    ("weight", ""),
    ("clock", ""),
    ("workload", ""),
];

pub(super) const CLOCK: Keys = &[("offset", ""), ("drift_ppm", "")];

/// `holdJitter`, `spawnEvery` and `arrivalBurst` are the seeds' alone.
pub(super) const WORKLOAD: Keys = &[
    ("enabled", ""),
    ("arrivals", ""),
    ("hold", "holdTime"),
    ("max_wait", "maxWait"),
    ("max_in_use", "maxInUse"),
    ("priorities", ""),
    ("starts_after", ""),
    ("holdJitter", ""),
    ("spawnEvery", ""),
    ("arrivalBurst", ""),
];

pub(super) const ARRIVALS: Keys =
    &[("constant", ""), ("poisson", ""), ("bursts", ""), ("trace", "")];

pub(super) const BURSTS: Keys = &[("size", ""), ("every", "")];

pub(super) const PRIORITIES: Keys = &[("low", ""), ("normal", ""), ("high", "")];

/// The seeds' way to say what happens.
pub(super) const KIND: Keys =
    &[("kind", ""), ("rollEvery", ""), ("dropAt", ""), ("dropFraction", "")];

/// An element of `events`: when, and one action.
pub(super) const EVENT: Keys = &[
    ("at", ""),
    ("recover_within", ""),
    ("drop", ""),
    ("rolling_restart", ""),
    ("crash", ""),
    ("pause", ""),
    ("partition", ""),
    ("coordinator_outage", ""),
    ("backend_outage", ""),
    ("scale", ""),
    ("load", ""),
];

pub(super) const DROP: Keys = &[("fraction", ""), ("idle", ""), ("in_use", ""), ("services", "")];
pub(super) const ROLLING_RESTART: Keys = &[("every", ""), ("services", "")];
pub(super) const CRASH: Keys = &[("fraction", ""), ("restart_after", ""), ("services", "")];
pub(super) const PAUSE: Keys = &[("fraction", ""), ("lasts", ""), ("services", "")];
pub(super) const COORDINATOR_OUTAGE: Keys = &[("lasts", ""), ("keeps_data", "")];
pub(super) const BACKEND_OUTAGE: Keys = &[("lasts", ""), ("drops", ""), ("backends", "")];
pub(super) const SCALE: Keys = &[("service", ""), ("instances", "")];
pub(super) const LOAD: Keys = &[("factor", ""), ("lasts", ""), ("services", "")];

/// The names of assertions, as they are reported and as `expect_failures` lists them.
pub(super) const ASSERT: Keys = &[
    ("max_connects_per_second", ""),
    ("converge_within", ""),
    ("stable_for", ""),
    ("max_closures_per_second", ""),
    ("zero_empty", ""),
    ("recover_within", ""),
    ("open_cap", ""),
    ("max_wasted", ""),
    ("wait_p50", ""),
    ("wait_p99", ""),
    ("wait_max", ""),
    ("max_failed", ""),
    ("fair_within", ""),
    ("max_refused", ""),
];

/// Where else a key may be at home, for those who put it in the wrong place.
pub(super) const SECTIONS: &[(&str, Keys)] = &[
    ("`assert`", ASSERT),
    ("`backend`", BACKEND),
    ("`coordinator`", COORDINATOR),
    ("a service", SERVICE),
    ("a service's `workload`", WORKLOAD),
    ("an element of `events`", EVENT),
    ("`scenario`", KIND),
    ("the scenario itself", SCENARIO),
];
