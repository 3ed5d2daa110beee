//! The parts of the `checkout` benchmark: the pools under test, the loops they
//! all run, the interleaved rounds, and the report made of them.

pub(crate) mod args;
pub(crate) mod callgrind;
pub(crate) mod contended;
pub(crate) mod forebay_pool;
pub(crate) mod peers;
pub(crate) mod ratios;
pub(crate) mod report;
pub(crate) mod rounds;
pub(crate) mod sqlx_pool;
pub(crate) mod subject;
pub(crate) mod uncontended;

/// Connections in every pool, opened before anything is measured.
pub(crate) const CONNECTIONS: u32 = 16;

/// Worker threads of the runtime of every timed case.
pub(crate) const WORKERS: usize = 2;

/// The name the report and the ratios know our own pool by.
pub(crate) const OURS: &str = "forebay";
