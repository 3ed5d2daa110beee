//! A scenario: backends and their limits, a coordinator, services with their
//! settings and workloads, events on a timeline, and what must hold. These are the
//! checked values that a run works with; `file` reads them from YAML.

use std::time::Duration;

use forebay_fleet::OnLoss;

/// Everything a run needs.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Its name: the file's, unless it says otherwise.
    pub name: String,
    /// All chance comes from here.
    pub seed: u64,
    /// How long it runs.
    pub duration: Duration,
    /// How often figures are taken for the curves. Assertions do not depend on it.
    pub sample_every: Duration,
    /// The backends; at least one.
    pub backends: Vec<BackendModel>,
    /// Who shares the limits out; `None` if every member knows them only by itself.
    pub coordinator: Option<Coordinator>,
    /// The services; at least one.
    pub services: Vec<Service>,
    /// What happens, in order of time.
    pub events: Vec<Event>,
    /// What must hold.
    pub assertions: Assertions,
    /// Assertions that are meant to fail, by name; a run is as expected if just these do.
    pub expect_failures: Vec<String>,
}

/// One backend, as it behaves; several alike with `count`.
#[derive(Debug, Clone, PartialEq)]
pub struct BackendModel {
    /// Its name; with `copies` above 1 followed by `-1`, `-2`, …
    pub name: String,
    /// How many there are of it.
    pub copies: u32,
    /// Most connections open; `None` for no cap.
    pub open: Option<u32>,
    /// Connections it lets be opened a second; `None` for no limit.
    pub rate: Option<u32>,
    /// And at once, after a quiet time.
    pub burst: u32,
    /// Of the open cap, left for outsiders.
    pub reserve: u32,
    /// Of the rate, left for outsiders.
    pub rate_reserve: u32,
    /// How long a connect takes.
    pub handshake: Spread,
    /// Share of connects that fail.
    pub fail: f64,
    /// Share of connects that are never answered.
    pub hang: f64,
    /// The backend closes a connection after this long.
    pub lifetime: Option<Duration>,
    /// How a connect over a limit is refused.
    pub refusal: Refusal,
    /// How long after a close the backend counts the connection as open.
    pub let_go: Spread,
}

/// How a connect over a limit is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// With an error that says so.
    Coded,
    /// With an end of file or a timeout, as if the network were bad.
    Silent,
}

/// A random span of time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Spread {
    /// Always the same.
    Fixed(Duration),
    /// Anything between the two, equally likely.
    Uniform(Duration, Duration),
    /// Log-normal, by its median and its 99th percentile.
    Percentiles {
        /// The median.
        p50: Duration,
        /// The 99th percentile.
        p99: Duration,
    },
    /// Exponential, by its mean.
    Exponential(Duration),
}

/// Who shares the limits out.
#[derive(Debug, Clone, PartialEq)]
pub struct Coordinator {
    /// Whether it announces changes (as Redis does) or has to be asked (as DynamoDB).
    pub announces: bool,
    /// There and back.
    pub latency: Spread,
    /// Share of messages lost, each way.
    pub loss: f64,
    /// What members do while it is away.
    pub on_loss: OnLoss,
    /// See `MemberSettings`.
    pub ttl: Duration,
    /// See `MemberSettings`.
    pub heartbeat: Duration,
    /// See `MemberSettings`.
    pub margin: Duration,
    /// See `MemberSettings`.
    pub request_timeout: Duration,
    /// See `MemberSettings`.
    pub reclaim_after: Duration,
    /// See `MemberSettings`.
    pub divisor: u32,
    /// The books were set up before, so that nobody waits for a declaration window.
    pub is_set_up: bool,
}

/// A number of alike members.
#[derive(Debug, Clone, PartialEq)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// How many instances; each is a member with a pool for each backend.
    pub instances: u32,
    /// The backends it uses, by name; empty for all.
    pub backends: Vec<String>,
    /// See `forebay::Settings`.
    pub target_ready: u32,
    /// See `forebay::Settings`.
    pub max_open: u32,
    /// See `forebay::Settings`.
    pub min_idle: Option<u32>,
    /// See `forebay::Settings`.
    pub low_watermark: Option<u32>,
    /// See `forebay::Settings`.
    pub max_opening: u32,
    /// See `forebay::Settings`.
    pub base_lifetime: Duration,
    /// See `forebay::Settings`.
    pub lifetime_jitter: Duration,
    /// See `forebay::Settings`.
    pub guard_window: Duration,
    /// See `forebay::Settings`.
    pub max_idle: Option<Duration>,
    /// See `forebay::Settings`.
    pub connect_timeout: Duration,
    /// When its first instance starts.
    pub start_delay: Duration,
    /// Between one instance and the next.
    pub start_step: Duration,
    /// Its weight among the shares.
    pub weight: u32,
    /// How the members' clocks are set.
    pub clock: ClockModel,
    /// What it does with its connections, per instance and backend; `None` for nothing.
    pub workload: Option<Workload>,
}

/// How far the clocks of a service's members are off.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ClockModel {
    /// Up to this much ahead or behind, drawn for each member.
    pub offset: Duration,
    /// Up to this many millionths too fast or too slow, drawn for each member.
    pub drift_ppm: f64,
}

/// Who asks for connections, and for how long.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// When requests come. They come whether or not earlier ones were served.
    pub arrivals: Arrivals,
    /// How long each uses a connection.
    pub hold: Spread,
    /// How long each waits for one.
    pub max_wait: Duration,
    /// At most so many at once; more that arrive are not sent. `None` for no bound.
    pub max_in_use: Option<u32>,
    /// Share of the requests in each class: low, normal, high.
    pub priorities: [f64; 3],
    /// When it begins, after the instance's start.
    pub starts_after: Duration,
}

/// When requests come.
#[derive(Debug, Clone, PartialEq)]
pub enum Arrivals {
    /// So many a second, evenly.
    Constant(f64),
    /// So many a second on average, independently of each other.
    Poisson(f64),
    /// So many at once, again and again.
    Bursts {
        /// At once.
        size: u32,
        /// Between bursts.
        every: Duration,
    },
    /// At these instants after the start.
    Trace(Vec<Duration>),
}

/// Something that happens.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// When it begins.
    pub at: Duration,
    /// What.
    pub action: Action,
    /// Everything is as before again this long after the event is over;
    /// overrides the scenario's assertion.
    pub recover_within: Option<Duration>,
}

/// What happens. Services are named, empty for all.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// The backend closes connections.
    Drop {
        /// Share of them.
        fraction: f64,
        /// Those that are idle.
        idle: bool,
        /// Those in use.
        in_use: bool,
        /// Of these services.
        services: Vec<String>,
    },
    /// Instances are stopped, drained and started again, one after the other.
    RollingRestart {
        /// Between one and the next.
        every: Duration,
        /// Of these services.
        services: Vec<String>,
    },
    /// Instances die without a word; the backend sees their sockets close.
    Crash {
        /// Share of them.
        fraction: f64,
        /// Started again after this long, if at all.
        restart_after: Option<Duration>,
        /// Of these services.
        services: Vec<String>,
    },
    /// Instances are stopped (as by SIGSTOP) and go on later; their sockets stay open.
    Pause {
        /// Share of them.
        fraction: f64,
        /// For how long.
        lasts: Duration,
        /// Of these services.
        services: Vec<String>,
    },
    /// Instances cannot reach the coordinator.
    Partition {
        /// Share of them.
        fraction: f64,
        /// For how long.
        lasts: Duration,
        /// Of these services.
        services: Vec<String>,
    },
    /// The coordinator is away for everybody, then comes back.
    CoordinatorOutage {
        /// For how long.
        lasts: Duration,
        /// With its data.
        keeps_data: bool,
    },
    /// The backend refuses or hangs every connect, and closes what is open.
    BackendOutage {
        /// For how long.
        lasts: Duration,
        /// Existing connections are closed too.
        drops: bool,
        /// By name; empty for all.
        backends: Vec<String>,
    },
    /// Instances are added (above 0) or removed.
    Scale {
        /// The service.
        service: String,
        /// How many instances it has from then on.
        instances: u32,
    },
    /// The workload of services is multiplied.
    Load {
        /// By this.
        factor: f64,
        /// For how long.
        lasts: Duration,
        /// Of these services.
        services: Vec<String>,
    },
}

/// What must hold. Each is checked only if given.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Assertions {
    /// `max_connects_per_second`: in every window w, connects ≤ this × (w + 100 ms) + burst.
    pub max_connects_per_second: Option<u32>,
    /// `converge_within`: every pool at min(target, fair share) by then.
    pub converge_within: Option<Duration>,
    /// `stable_for`: and stays there for this long.
    pub stable_for: Option<Duration>,
    /// `max_closures_per_second`: connections closed in every second.
    pub max_closures_per_second: Option<u32>,
    /// `zero_empty`: no request found no connection ready, once converged.
    pub zero_empty: bool,
    /// `recover_within`: after each event everything is as before.
    pub recover_within: Option<Duration>,
    /// `open_cap`: the backend never saw more than its cap.
    pub open_cap: bool,
    /// `max_wasted`: connections opened and closed before their time without ever being used.
    pub max_wasted: Option<u64>,
    /// `wait_p50`, `wait_p99`, `wait_max`: how long requests waited.
    pub wait_p50: Option<Duration>,
    /// See `wait_p50`.
    pub wait_p99: Option<Duration>,
    /// See `wait_p50`.
    pub wait_max: Option<Duration>,
    /// `max_failed`: requests that got no connection in time.
    pub max_failed: Option<u64>,
    /// `fair_within`: at the end, no pool further than this share from its fair share.
    pub fair_within: Option<f64>,
    /// `max_refused`: connects that the backend refused for a limit.
    pub max_refused: Option<u64>,
}
