//! The parts of the `fleet` benchmark: the servers, a keeper that counts, what is
//! done with Forebay, the same as the seeds' documents describe it, and the report.

pub(crate) mod count;
pub(crate) mod ours;
pub(crate) mod report;
pub(crate) mod seeds;
pub(crate) mod servers;

use std::time::Duration;

/// How much is done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// Connections of a fill.
    pub(crate) fill: u32,
    /// Checkouts on the filled pool.
    pub(crate) checkouts: u32,
    /// They are spread over this time, so that heartbeats fall into it.
    pub(crate) checkout_time: Duration,
    /// Rounds of the comparison of throughputs, after one that does not count.
    pub(crate) rounds: usize,
    /// Opens of a trickle.
    pub(crate) trickle: u32,
}

impl Sizes {
    pub(crate) const FULL: Self = Self {
        fill: 1_000,
        checkouts: 100_000,
        checkout_time: Duration::from_secs(21),
        rounds: 7,
        trickle: 100,
    };
    pub(crate) const QUICK: Self = Self {
        fill: 100,
        checkouts: 2_000,
        checkout_time: Duration::from_millis(100),
        rounds: 1,
        trickle: 10,
    };
}

/// Connections that may be open; no fill comes near it.
pub(crate) const LIMIT: u32 = 10_000;
/// Opens a second.
pub(crate) const RATE: u32 = 100;
/// Opens at once after a quiet time: a fill and no more.
pub(crate) const BURST: u32 = 1_000;
/// Opens under way at once.
pub(crate) const OPENING: u32 = 64;
/// What a connect takes where it takes anything.
pub(crate) const HANDSHAKE: Duration = Duration::from_millis(5);
/// Only reached if something is wrong.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// The middle value.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
