//! What a run leaves behind: curves by time, figures of events, and how each
//! assertion came out. Outputs are made of this and of nothing else, so the same
//! run gives the same bytes.

use std::time::Duration;

use serde::Serialize;

/// Everything a run leaves behind.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Recording {
    /// The scenario's name.
    pub scenario: String,
    /// Its seed.
    pub seed: u64,
    /// How long it ran, in virtual seconds.
    pub seconds: f64,
    /// Instances that ever lived.
    pub members: u32,
    /// The services' names, in order.
    pub services: Vec<String>,
    /// The curves, one row for each `sample_every`.
    pub samples: Vec<Sample>,
    /// Opens, closes and refusals in each whole second, over all backends.
    pub seconds_seen: Vec<Second>,
    /// What happened, for marks on the curves.
    pub events: Vec<Mark>,
    /// How each assertion came out.
    pub verdicts: Vec<Verdict>,
    /// Totals.
    pub totals: Totals,
    /// The open limit that counts over all backends; 0 if none.
    pub open_limit: u32,
    /// The rate limit of one backend; 0 if none.
    pub rate_limit: u32,
}

/// One row of the curves.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sample {
    /// When.
    pub at: f64,
    /// One for each service, in order.
    pub services: Vec<ServiceSample>,
    /// Connections that the backends see.
    pub open: u32,
    /// Leases booked by the coordinator.
    pub leases: u32,
    /// Instances alive.
    pub members: u32,
}

/// A service at an instant, summed over its instances and backends.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct ServiceSample {
    /// Ready connections wanted.
    pub target: u32,
    /// Ready connections.
    pub ready: u32,
    /// Connections in use.
    pub in_use: u32,
    /// Opens under way.
    pub opening: u32,
    /// Connections being closed.
    pub closing: u32,
    /// Requests waiting.
    pub waiting: u32,
    /// Connections opened so far.
    pub opened: u64,
    /// Connections discarded so far.
    pub discarded: u64,
    /// Requests that found nothing ready, so far.
    pub empty: u64,
    /// Requests served so far.
    pub served: u64,
    /// Requests that got nothing in time, so far.
    pub failed: u64,
    /// The longest wait that ended since the last row, in seconds.
    pub longest_wait: f64,
}

/// What the backends saw in one second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Second {
    /// Connects begun.
    pub connects: u32,
    /// Of these, refused for a limit.
    pub refused: u32,
    /// Of these, failed otherwise.
    pub failed: u32,
    /// Connections closed.
    pub closed: u32,
    /// Most open at once.
    pub most_open: u32,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Mark {
    /// When.
    pub at: f64,
    /// When it was over.
    pub until: f64,
    /// What, in a few words.
    pub what: String,
    /// When everything was as before, if that happened.
    pub recovered_at: Option<f64>,
}

/// How an assertion came out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// Its name, as in the scenario file.
    pub name: String,
    /// Whether it held.
    pub held: bool,
    /// What was asked, in words: "at most 100/s".
    pub asked: String,
    /// What was seen: "97/s at most".
    pub seen: String,
    /// The first instant at which it did not hold.
    pub first_violation: Option<f64>,
    /// It was meant to fail.
    pub expected_to_fail: bool,
}

/// Totals of a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Totals {
    /// Connections opened.
    pub opened: u64,
    /// Connects refused by a backend for a limit.
    pub refused: u64,
    /// Connects that failed otherwise.
    pub open_failures: u64,
    /// Connections discarded, by reason.
    pub discarded: Vec<(String, u64)>,
    /// Opened and closed before their time without ever being used.
    pub wasted: u64,
    /// Requests.
    pub requests: u64,
    /// Requests served.
    pub served: u64,
    /// Requests that found nothing ready.
    pub empty: u64,
    /// Requests that got nothing in time.
    pub failed: u64,
    /// Waits, in seconds: median, 99th percentile, longest.
    pub wait: [f64; 3],
    /// Most connections that any backend saw at once.
    pub most_open: u32,
    /// When every pool was at its goal, in seconds after the last start; `None` if never.
    pub converged_at: Option<f64>,
    /// The shortest time in which that can be done under the limits.
    pub own_time: f64,
    /// Calls to the coordinator.
    pub coordinator_calls: u64,
    /// How often a member was reaped.
    pub reaped: u64,
    /// Broken promises of the engine; anything but 0 is a bug.
    pub breaches: u64,
    /// For each service: usable connections at the end, and its fair share.
    pub fairness: Vec<(String, u32, f64)>,
}

impl Recording {
    /// Whether just those assertions failed that were meant to.
    pub fn as_expected(&self) -> bool {
        self.verdicts.iter().all(|verdict| verdict.held != verdict.expected_to_fail)
    }
}

/// Seconds as a plain number.
pub(crate) fn seconds(span: Duration) -> f64 {
    span.as_micros() as f64 / 1e6
}
