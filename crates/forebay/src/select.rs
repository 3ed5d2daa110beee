//! Which source serves a checkout, as a pure choice among candidates.

use crate::clock::Instant;
use crate::settings::Strategy;

/// What the choice looks at in one source.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) source: usize,
    pub(crate) in_use: u32,
    pub(crate) weight: u32,
    pub(crate) credit: i64,
    pub(crate) last_throttled: Option<Instant>,
}

/// Chooses one of the candidates, which are in the order of their sources.
/// `turn` is the source after the one chosen last.
pub(crate) fn choose(
    strategy: Strategy,
    candidates: impl Iterator<Item = Candidate>,
    turn: usize,
) -> Option<usize> {
    // ties are broken in turn, so equal sources share the work
    let in_turn = |source: usize| (source < turn, source);
    let chosen = match strategy {
        Strategy::RoundRobin => candidates.min_by_key(|c| in_turn(c.source)),
        Strategy::LeastInUse => candidates.min_by_key(|c| (c.in_use, in_turn(c.source))),
        Strategy::ThrottleAware => {
            candidates.min_by_key(|c| (c.last_throttled, c.in_use, in_turn(c.source)))
        }
        Strategy::Weighted => {
            candidates.min_by_key(|c| (-(c.credit + i64::from(c.weight)), in_turn(c.source)))
        }
    };
    chosen.map(|candidate| candidate.source)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(source: usize, in_use: u32, weight: u32) -> Candidate {
        Candidate { source, in_use, weight, credit: 0, last_throttled: None }
    }

    #[test]
    fn round_robin_takes_each_in_turn() {
        let all = [candidate(0, 9, 1), candidate(1, 0, 1), candidate(2, 0, 1)];
        let mut turn = 0;
        let chosen: Vec<usize> = (0..4)
            .map(|_| {
                let source = choose(Strategy::RoundRobin, all.into_iter(), turn).expect("some");
                turn = (source + 1) % 3;
                source
            })
            .collect();
        assert_eq!(chosen, [0, 1, 2, 0]);
    }

    #[test]
    fn least_in_use_and_throttle_aware_prefer_the_unburdened() {
        let now = crate::clock::Clock::tokio().now();
        let mut all = [candidate(0, 3, 1), candidate(1, 1, 1), candidate(2, 2, 1)];
        assert_eq!(choose(Strategy::LeastInUse, all.into_iter(), 0), Some(1));
        all[1].last_throttled = Some(now);
        assert_eq!(choose(Strategy::ThrottleAware, all.into_iter(), 0), Some(2));
    }
}
