//! The rounds: in every round each pool runs each case, and each round begins
//! with another pool, so that noise on the machine meets all of them alike;
//! then the median over the rounds of each figure. Many short rounds rather than
//! few long ones: whenever the machine takes a worker off its core, the worst
//! wait of that window is the machine's and not the pool's, and only while most
//! windows are spared that does the median of the worst waits tell of the pool.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};

use super::forebay_pool::Forebay;
use super::peers::{Bb8, Deadpool, FastPool, Mobc};
use super::sqlx_pool::Sqlx;
use super::subject::Subject;
use super::{OURS, contended, uncontended};

/// How long a case runs before it is measured, and while it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub(crate) warm_up: Duration,
    pub(crate) measure: Duration,
}

impl Window {
    const fn millis(warm_up: u64, measure: u64) -> Self {
        Self { warm_up: Duration::from_millis(warm_up), measure: Duration::from_millis(measure) }
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Case {
    Uncontended,
    Contended64,
    Contended512,
}

impl Case {
    pub(crate) const ALL: [Self; 3] = [Self::Uncontended, Self::Contended64, Self::Contended512];

    /// The name in the report and for `--case`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Uncontended => "uncontended",
            Self::Contended64 => "contended_64",
            Self::Contended512 => "contended_512",
        }
    }

    const fn window(self, quick: bool) -> Window {
        match (self, quick) {
            (Self::Uncontended, false) => Window::millis(5, 25),
            (Self::Contended64, false) => Window::millis(15, 45),
            (Self::Contended512, false) => Window::millis(25, 50),
            (Self::Uncontended, true) => Window::millis(5, 10),
            (Self::Contended64, true) => Window::millis(15, 30),
            (Self::Contended512, true) => Window::millis(25, 50),
        }
    }
}

/// How long waits were, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waits {
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
}

/// What one window of one case showed of one pool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) ns_per_op: f64,
    pub(crate) cpu_ns_per_op: f64,
    pub(crate) waits: Option<Waits>,
    /// Connections opened in all.
    pub(crate) opened: u64,
    /// Tasks that got no connection though nobody competed any more.
    pub(crate) stuck: u64,
}

/// A pool in the list of those to run.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) fair: bool,
    timed: fn(Case, Window) -> Result<Sample>,
    /// Takes and returns a connection so many times, untimed.
    pub(crate) counted: fn(u64) -> Result<()>,
}

impl Entry {
    fn of<S: Subject>() -> Self {
        Self {
            name: S::NAME,
            fair: S::FAIR,
            timed: |case, window| match case {
                Case::Uncontended => uncontended::timed::<S>(window),
                Case::Contended64 => contended::timed::<S>(64, window),
                Case::Contended512 => contended::timed::<S>(512, window),
            },
            counted: uncontended::counted::<S>,
        }
    }
}

/// All pools, ours first.
pub(crate) fn entries() -> Vec<Entry> {
    vec![
        Entry::of::<Forebay>(),
        Entry::of::<Deadpool>(),
        Entry::of::<Bb8>(),
        Entry::of::<Mobc>(),
        Entry::of::<FastPool>(),
        Entry::of::<Sqlx>(),
    ]
}

/// A peer's figures divided by ours of the same round: the median of the
/// quotients. On a virtual machine of two cores, contended rounds were seen to
/// come in two speeds, nearly three times apart, that last for seconds and meet
/// all pools alike (presumably as the host moves the cores). The medians of two
/// pools may then come from different kinds of rounds; these quotients rarely
/// mix them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paired {
    pub(crate) time: f64,
    pub(crate) worst_wait: Option<f64>,
}

/// The medians over all rounds of one pool in one case.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Medians {
    pub(crate) ns_per_op: f64,
    /// The least and the greatest of all rounds.
    pub(crate) spread: (f64, f64),
    pub(crate) cpu_ns_per_op: f64,
    /// The median of each figure; `max` is the median of each round's worst wait.
    pub(crate) waits: Option<Waits>,
    /// The worst wait of all rounds.
    pub(crate) longest: Option<u64>,
    /// The greatest of all rounds.
    pub(crate) opened: u64,
    /// The sum of all rounds.
    pub(crate) stuck: u64,
    /// The comparison with our pool, unless it is ours, or ours was not run.
    pub(crate) paired: Option<Paired>,
}

/// The medians by case and name of the pool.
pub(crate) type Results = BTreeMap<(Case, &'static str), Medians>;

/// Runs the rounds.
pub(crate) fn run(pools: &[Entry], cases: &[Case], rounds: usize, quick: bool) -> Result<Results> {
    let mut samples: BTreeMap<(Case, &'static str), Vec<Sample>> = BTreeMap::new();
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        for &case in cases {
            for turn in 0..pools.len() {
                let pool = pools[(round + turn) % pools.len()];
                let sample = (pool.timed)(case, case.window(quick))
                    .with_context(|| format!("{} in case {}", pool.name, case.name()))?;
                samples.entry((case, pool.name)).or_default().push(sample);
            }
        }
    }
    let of_pool = |(&(case, name), mine): (&(Case, &'static str), &Vec<Sample>)| {
        let ours = samples.get(&(case, OURS)).filter(|_| name != OURS);
        let paired = ours.map(|ours| paired(mine, ours));
        ((case, name), Medians { paired, ..medians(mine) })
    };
    Ok(samples.iter().map(of_pool).collect())
}

/// Compares a peer with our pool round by round.
fn paired(peer: &[Sample], ours: &[Sample]) -> Paired {
    let rounds = || peer.iter().zip(ours);
    let waits = |(peer, ours): (&Sample, &Sample)| {
        Some(peer.waits?.max as f64 / ours.waits?.max.max(1) as f64)
    };
    let worst_wait: Vec<f64> = rounds().filter_map(waits).collect();
    Paired {
        time: median(rounds().map(|(peer, ours)| peer.ns_per_op / ours.ns_per_op).collect()),
        worst_wait: (!worst_wait.is_empty()).then(|| median(worst_wait)),
    }
}

/// The median; of an even number of values the mean of the middle two.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// The median of whole numbers; of an even number of them the mean of the
/// middle two.
fn median_whole(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    let middle = values.len() / 2;
    match values.len() {
        0 => 0,
        len if len % 2 == 1 => values[middle],
        _ => u64::midpoint(values[middle - 1], values[middle]),
    }
}

fn medians(samples: &[Sample]) -> Medians {
    let float = |of: fn(&Sample) -> f64| samples.iter().map(of).collect::<Vec<_>>();
    let waits: Vec<Waits> = samples.iter().filter_map(|sample| sample.waits).collect();
    let wait = |of: fn(&Waits) -> u64| median_whole(waits.iter().map(of).collect());
    let times = float(|sample| sample.ns_per_op);
    Medians {
        spread: (
            times.iter().copied().fold(f64::INFINITY, f64::min),
            times.iter().copied().fold(0.0, f64::max),
        ),
        ns_per_op: median(times),
        cpu_ns_per_op: median(float(|sample| sample.cpu_ns_per_op)),
        waits: (!waits.is_empty()).then(|| Waits {
            p50: wait(|waits| waits.p50),
            p99: wait(|waits| waits.p99),
            p999: wait(|waits| waits.p999),
            max: wait(|waits| waits.max),
        }),
        longest: waits.iter().map(|waits| waits.max).max(),
        opened: samples.iter().map(|sample| sample.opened).max().unwrap_or(0),
        stuck: samples.iter().map(|sample| sample.stuck).sum(),
        paired: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_and_even() {
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(vec![4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
        assert!(median(Vec::new()).is_nan());
        assert_eq!(median_whole(vec![9, 1, 5]), 5);
        assert_eq!(median_whole(vec![9, 1, 5, 7]), 6);
        assert_eq!(median_whole(Vec::new()), 0);
    }

    #[test]
    fn pairing_compares_within_the_round() {
        let sample = |ns_per_op: f64, max: u64| Sample {
            ns_per_op,
            cpu_ns_per_op: ns_per_op,
            waits: Some(Waits { p50: 1, p99: 1, p999: 1, max }),
            opened: 16,
            stuck: 0,
        };
        let ours = [sample(100.0, 50), sample(300.0, 150), sample(310.0, 200)];
        let peer = [sample(200.0, 150), sample(600.0, 450), sample(155.0, 200)];
        let paired = paired(&peer, &ours);
        assert!((paired.time - 2.0).abs() < 1e-9);
        assert!(paired.worst_wait.is_some_and(|ratio| (ratio - 3.0).abs() < 1e-9));
    }

    #[test]
    fn names_are_distinct_and_ours_comes_first() {
        let mut names: Vec<_> = entries().iter().map(|entry| entry.name).collect();
        assert_eq!(names.first(), Some(&crate::checkout::OURS));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), entries().len());
    }
}
