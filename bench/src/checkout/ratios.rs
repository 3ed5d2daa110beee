//! The ratios the benchmark is about: a figure of the best peer divided by ours,
//! so that above 1 our pool is ahead. Each is had in two ways, from the medians
//! and round by round, which agree unless the machine changed during the run.

use super::OURS;
use super::rounds::{Case, Entry, Medians, Results};

/// What is compared.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Figure {
    /// Time per checkout, of all peers.
    Time(Case),
    /// The worst wait with 512 tasks, of the peers that are fair.
    WorstWait,
}

/// The best peer's figure divided by ours.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ratio {
    /// The median of the peer with the least one, divided by our median.
    pub(crate) of_medians: f64,
    /// That peer.
    pub(crate) peer: &'static str,
    /// The least, over all peers, of the median of the quotients of each round.
    pub(crate) paired: f64,
}

impl Ratio {
    /// The lower one in each of the two ways.
    pub(crate) fn lower(self, other: Self) -> Self {
        let lower = if self.of_medians <= other.of_medians { self } else { other };
        Self { paired: self.paired.min(other.paired), ..lower }
    }

    /// Whether the two ways disagree by more than a tenth.
    pub(crate) fn is_doubtful(self) -> bool {
        (self.paired / self.of_medians - 1.0).abs() > 0.1
    }
}

/// The pools that ran this case, in their order.
pub(crate) fn rows<'a>(
    pools: &'a [Entry],
    results: &'a Results,
    case: Case,
) -> impl Iterator<Item = (&'a Entry, &'a Medians)> {
    pools.iter().filter_map(move |pool| Some((pool, results.get(&(case, pool.name))?)))
}

/// The ratio of a figure, if our pool and a peer were run.
pub(crate) fn ratio(pools: &[Entry], results: &Results, figure: Figure) -> Option<Ratio> {
    let (case, fair_only) = match figure {
        Figure::Time(case) => (case, false),
        Figure::WorstWait => (Case::Contended512, true),
    };
    let median = |medians: &Medians| match figure {
        Figure::Time(_) => Some(medians.ns_per_op),
        Figure::WorstWait => Some(medians.waits?.max as f64),
    };
    let paired = |medians: &Medians| match figure {
        Figure::Time(_) => Some(medians.paired?.time),
        Figure::WorstWait => medians.paired?.worst_wait,
    };
    let ours = median(results.get(&(case, OURS))?)?;
    let peers = || {
        rows(pools, results, case)
            .filter(|(pool, _)| pool.name != OURS && (pool.fair || !fair_only))
    };
    let (peer, best) = peers()
        .filter_map(|(pool, medians)| Some((pool.name, median(medians)?)))
        .min_by(|(_, one), (_, other)| one.total_cmp(other))?;
    let paired = peers().filter_map(|(_, medians)| paired(medians)).min_by(f64::total_cmp)?;
    (ours > 0.0).then_some(Ratio { of_medians: best / ours, peer, paired })
}
