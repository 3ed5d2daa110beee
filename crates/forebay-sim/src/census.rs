//! Who is where it should be: every pool's usable connections against its goal,
//! kept up to date by the pools' own events, so that the instant at which all are
//! there is exact and does not depend on sampling.

use std::sync::Arc;

use forebay::{Event, Instant, Observer};
use parking_lot::Mutex;

use crate::link::now;
use crate::record::seconds;

/// All pools of a run.
pub(crate) struct Census {
    start: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    pools: Vec<Entry>,
    below: i64,
    /// Whether all were at their goals, from each instant on.
    turns: Vec<(f64, bool)>,
    breaches: u64,
}

#[derive(Default, Clone)]
struct Entry {
    usable: i64,
    goal: Option<i64>,
    /// Counts the lives of the pool in this place; events of a former one do not count.
    life: u64,
}

impl Entry {
    fn is_below(&self) -> bool {
        self.goal.is_some_and(|goal| self.usable < goal)
    }
}

/// Tells the census what happens in one life of one pool.
pub(crate) struct Clerk {
    census: Arc<Census>,
    place: usize,
    life: u64,
}

impl Census {
    pub(crate) fn new(places: usize) -> Self {
        let state = State { pools: vec![Entry::default(); places], ..State::default() };
        Self { start: now(), state: Mutex::new(state) }
    }

    /// The pool in a place begins a new life, with nothing open.
    pub(crate) fn begin(self: &Arc<Self>, place: usize) -> Clerk {
        let life = self.change(place, |entry| {
            entry.life += 1;
            entry.usable = 0;
            entry.life
        });
        Clerk { census: self.clone(), place, life }
    }

    /// What each pool should have; `None` for those that should not be there.
    pub(crate) fn set_goals(&self, goals: &[Option<u32>]) {
        let mut state = self.state.lock();
        let places = goals.len().max(state.pools.len());
        state.pools.resize(places, Entry::default());
        for (entry, goal) in state.pools.iter_mut().zip(goals) {
            entry.goal = goal.map(i64::from);
        }
        state.below = state.pools.iter().filter(|entry| entry.is_below()).count() as i64;
        self.turn(&mut state);
    }

    fn change<R>(&self, place: usize, change: impl FnOnce(&mut Entry) -> R) -> R {
        let mut state = self.state.lock();
        let entry = &mut state.pools[place];
        let before = entry.is_below();
        let result = change(entry);
        let after = entry.is_below();
        state.below += i64::from(after) - i64::from(before);
        if before != after {
            self.turn(&mut state);
        }
        result
    }

    fn turn(&self, state: &mut State) {
        let all = state.below == 0;
        if state.turns.last().is_none_or(|(_, before)| *before != all) {
            let at = seconds(now().saturating_duration_since(self.start));
            state.turns.push((at, all));
        }
    }

    /// Since when, and until when, all pools were at their goals.
    pub(crate) fn turns(&self) -> Vec<(f64, bool)> {
        self.state.lock().turns.clone()
    }

    pub(crate) fn breaches(&self) -> u64 {
        self.state.lock().breaches
    }

    pub(crate) fn usable(&self, place: usize) -> u32 {
        self.state.lock().pools[place].usable.max(0) as u32
    }
}

impl Observer for Clerk {
    fn event(&self, event: &Event) {
        let by = match event {
            Event::Opened { .. } => 1,
            Event::Discarded { .. } => -1,
            Event::Breach(_) => {
                self.census.state.lock().breaches += 1;
                return;
            }
            _ => return,
        };
        self.census.change(self.place, |entry| {
            if entry.life == self.life {
                entry.usable += by;
            }
        });
    }
}

/// One pool's claim on a backend.
#[derive(Clone, Copy)]
pub(crate) struct Claim {
    pub(crate) target: u32,
    pub(crate) weight: u32,
}

/// What each claim gets of `cap` in all fairness: as much as it wants where all
/// fits, else equal parts by weight, with what some do not want going to the others.
pub(crate) fn fair_shares(claims: &[Claim], cap: Option<u32>) -> Vec<f64> {
    let wanted: u64 = claims.iter().map(|claim| u64::from(claim.target)).sum();
    let Some(cap) = cap.filter(|cap| u64::from(*cap) < wanted) else {
        return claims.iter().map(|claim| f64::from(claim.target)).collect();
    };
    let mut order: Vec<usize> = (0..claims.len()).collect();
    let level = |claim: &Claim| f64::from(claim.target) / f64::from(claim.weight);
    order.sort_by(|a, b| level(&claims[*a]).total_cmp(&level(&claims[*b])));
    let mut left = f64::from(cap);
    let mut weights: f64 = claims.iter().map(|claim| f64::from(claim.weight)).sum();
    let mut shares = vec![0.0; claims.len()];
    for index in order {
        let claim = &claims[index];
        let part = left * f64::from(claim.weight) / weights;
        shares[index] = part.min(f64::from(claim.target));
        left -= shares[index];
        weights -= f64::from(claim.weight);
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_some_do_not_want_goes_to_the_others() {
        let claims = [(5, 1), (100, 1), (100, 2)].map(|(target, weight)| Claim { target, weight });
        let shares = fair_shares(&claims, Some(65));
        assert_eq!(shares, [5.0, 20.0, 40.0]);
        assert_eq!(fair_shares(&claims, Some(205)), [5.0, 100.0, 100.0]);
        assert_eq!(fair_shares(&claims, None), [5.0, 100.0, 100.0]);
    }
}
