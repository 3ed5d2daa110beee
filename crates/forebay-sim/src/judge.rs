//! How the assertions came out, from what the backends saw, from the census and
//! from the requests themselves.

use std::time::Duration;

use crate::instance::headroom;
use crate::output::span;
use crate::record::{Mark, Recording, Second, Verdict, seconds};
use crate::site::Seen;
use crate::world::World;

/// Permits may be used this much late.
const LATE: f64 = 0.1;

/// Takes everything together at the end of a run.
pub(crate) fn judge(world: &World) -> Recording {
    let scenario = &world.scenario;
    let seen: Vec<Seen> = world.sites.iter().map(|site| site.seen(crate::link::now())).collect();
    let turns = world.census.turns();
    let mut totals = world.totals();
    totals.refused = seen.iter().map(|seen| seen.refused).sum();
    totals.open_failures = seen.iter().map(|seen| seen.failed).sum();
    totals.most_open = seen.iter().map(|seen| seen.most_open).max().unwrap_or(0);
    totals.own_time = own_time(world);
    totals.converged_at = turns.iter().find(|(_, all)| *all).map(|(at, _)| *at);
    let mut unfair = 0.0_f64;
    for (index, service) in scenario.services.iter().enumerate() {
        let (usable, fair, off) = world.fairness(index);
        totals.fairness.push((service.name.clone(), usable, fair));
        unfair = unfair.max(off);
    }
    let mut events = world.books.lock().marks.clone();
    events.sort_by(|a, b| a.at.total_cmp(&b.at));
    for event in &mut events {
        event.recovered_at = recovered(&turns, event);
    }
    let mut judge = Judge { world, verdicts: Vec::new() };
    judge.rate(&seen);
    judge.convergence(&turns, totals.converged_at);
    judge.closures(&seen);
    judge.empty(totals.converged_at);
    judge.recovery(&events);
    judge.caps(&seen, totals.most_open);
    judge.counts(&totals, &seen);
    judge.waits(&totals.wait);
    if let Some(most) = scenario.assertions.fair_within {
        let seen = format!("{:.2} % off at most", unfair.max(0.0) * 100.0);
        let asked = format!("every pool within {:.1} % of its fair share", most * 100.0);
        let at = (unfair > most).then(|| seconds(scenario.duration));
        judge.say("fair_within", at, asked, seen);
    }
    let open_limit = world.sites.iter().map(|site| site.model.open.unwrap_or(0)).sum();
    let rate_limit = world.sites.iter().filter_map(|site| site.model.rate).max().unwrap_or(0);
    Recording {
        scenario: scenario.name.clone(),
        seed: scenario.seed,
        seconds: seconds(scenario.duration),
        members: world.members_ever(),
        services: scenario.services.iter().map(|service| service.name.clone()).collect(),
        seconds_seen: merge(&seen, scenario.duration),
        verdicts: judge.verdicts,
        events,
        totals,
        open_limit,
        rate_limit,
        samples: std::mem::take(&mut world.books.lock().samples),
    }
}

/// The shortest time to fill everything: what is over the burst at the rate, one
/// handshake, the last start.
fn own_time(world: &World) -> f64 {
    let shares = world.shares();
    let mut longest = 0.0_f64;
    let fair: f64 = shares.iter().flatten().map(|(_, share)| share).sum();
    for site in &world.sites {
        let model = &site.model;
        let wanted = fair / world.sites.len() as f64;
        let over = (wanted - f64::from(model.burst)).max(0.0);
        let paced = model.rate.map_or(0.0, |rate| over / f64::from(rate - model.rate_reserve));
        longest = longest.max(paced + seconds(model.handshake.median()));
    }
    longest + world.books.lock().last_start
}

/// When all were at their goals again after an event was over.
fn recovered(turns: &[(f64, bool)], event: &Mark) -> Option<f64> {
    let before = turns.iter().rev().find(|(at, _)| *at <= event.until);
    match before {
        Some((_, true)) => Some(event.until),
        _ => turns.iter().find(|(at, all)| *at > event.until && *all).map(|(at, _)| *at),
    }
}

/// What all backends together saw in each second.
fn merge(seen: &[Seen], duration: Duration) -> Vec<Second> {
    let mut merged = vec![Second::default(); duration.as_secs() as usize];
    for (second, all) in merged.iter_mut().enumerate() {
        for one in seen {
            let Some(one) = one.seconds.get(second) else { continue };
            all.connects += one.connects;
            all.refused += one.refused;
            all.failed += one.failed;
            all.closed += one.closed;
            all.most_open += one.most_open;
        }
    }
    merged
}

struct Judge<'a> {
    world: &'a World,
    verdicts: Vec<Verdict>,
}

impl Judge<'_> {
    fn say(&mut self, name: &str, violated_at: Option<f64>, asked: String, seen: String) {
        self.verdicts.push(Verdict {
            name: name.to_owned(),
            held: violated_at.is_none(),
            asked,
            seen,
            first_violation: violated_at,
            expected_to_fail: self.world.scenario.expect_failures.iter().any(|n| n == name),
        });
    }

    fn rate(&mut self, seen: &[Seen]) {
        let Some(most) = self.world.scenario.assertions.max_connects_per_second else { return };
        let mut busiest = 0;
        let mut violated: Option<f64> = None;
        for (site, seen) in self.world.sites.iter().zip(seen) {
            let busy = seen.seconds.iter().map(|second| second.connects).max().unwrap_or(0);
            busiest = busiest.max(busy);
            let burst = f64::from(site.model.burst.max(headroom(site.model.burst, Some(most))));
            let over = over_rate(&seen.connects_us, f64::from(most), burst);
            violated = [violated, over].into_iter().flatten().reduce(f64::min);
        }
        let asked = format!("at most {most}/s over any time, and the burst");
        self.say("max_connects_per_second", violated, asked, format!("busiest second {busiest}"));
    }

    fn convergence(&mut self, turns: &[(f64, bool)], converged: Option<f64>) {
        let assertions = &self.world.scenario.assertions;
        let (within, stable) = (assertions.converge_within, assertions.stable_for);
        if let Some(within) = within.map(seconds) {
            let late = converged.is_none_or(|at| at > within);
            let seen = converged.map_or("never".to_owned(), |at| format!("after {}", span(at)));
            self.say("converge_within", late.then_some(within), span(within), seen);
        }
        if let Some(stable) = stable.map(seconds) {
            let asked = format!("for {} after that", span(stable));
            let fell = converged.and_then(|from| {
                turns.iter().find(|(at, all)| *at > from && !*all).map(|(at, _)| *at)
            });
            let (violated, seen) = match (converged, fell) {
                (None, _) => (Some(0.0), "never converged".to_owned()),
                (Some(from), Some(at)) if at < from + stable => {
                    (Some(at), format!("fell after {}", span(at - from)))
                }
                (Some(_), Some(at)) => (None, format!("until {}", span(at))),
                (Some(_), None) => (None, "to the end".to_owned()),
            };
            self.say("stable_for", violated, asked, seen);
        }
    }

    fn closures(&mut self, seen: &[Seen]) {
        let Some(most) = self.world.scenario.assertions.max_closures_per_second else { return };
        let merged = merge(seen, self.world.scenario.duration);
        let worst = merged.iter().map(|second| second.closed).max().unwrap_or(0);
        let first = merged.iter().position(|second| second.closed > most);
        let asked = format!("at most {most}/s");
        let seen = format!("busiest second {worst}");
        self.say("max_closures_per_second", first.map(|s| s as f64), asked, seen);
    }

    /// Before the stock is filled for the first time there is nothing to be found.
    fn empty(&mut self, converged: Option<f64>) {
        if !self.world.scenario.assertions.zero_empty {
            return;
        }
        let from = converged.unwrap_or(0.0);
        let mut count = 0;
        let mut first: Option<f64> = None;
        for tally in &self.world.tallies {
            for &at in tally.lock().empty_after.iter().filter(|at| **at >= from) {
                count += 1;
                first = Some(first.map_or(at, |first| first.min(at)));
            }
        }
        let asked = "no request finds nothing ready once filled".to_owned();
        self.say("zero_empty", first, asked, format!("{count} did"));
    }

    fn recovery(&mut self, events: &[Mark]) {
        let scenario = &self.world.scenario;
        let own = scenario.events.iter().any(|event| event.recover_within.is_some());
        if scenario.assertions.recover_within.is_none() && !own {
            return;
        }
        let mut worst = 0.0_f64;
        let mut violated = None;
        let mut asked = Vec::new();
        for (event, mark) in scenario.events.iter().zip(events) {
            let Some(within) = event.recover_within.or(scenario.assertions.recover_within) else {
                continue;
            };
            let within = seconds(within);
            asked.push(span(within));
            let took = mark.recovered_at.map(|at| at - mark.until);
            worst = worst.max(took.unwrap_or(f64::INFINITY));
            if took.is_none_or(|took| took > within) {
                violated = violated.or(Some(mark.until + within));
            }
        }
        asked.dedup();
        let seen =
            if worst.is_finite() { format!("{} at most", span(worst)) } else { "not".to_owned() };
        self.say("recover_within", violated, asked.join(", "), seen);
    }

    fn caps(&mut self, seen: &[Seen], most_open: u32) {
        if !self.world.scenario.assertions.open_cap {
            return;
        }
        let first = seen.iter().filter_map(|seen| seen.over_cap_at).reduce(f64::min);
        let caps: Vec<u32> = self.world.sites.iter().filter_map(|site| site.model.open).collect();
        let asked = format!("never over {}", caps.iter().max().copied().unwrap_or(0));
        let seen = match first {
            Some(_) => format!("{most_open}, and more tried"),
            None => format!("{most_open} at most"),
        };
        self.say("open_cap", first, asked, seen);
    }

    fn counts(&mut self, totals: &crate::record::Totals, seen: &[Seen]) {
        let assertions = self.world.scenario.assertions.clone();
        let end = seconds(self.world.scenario.duration);
        if let Some(most) = assertions.max_wasted {
            let at = (totals.wasted > most).then_some(end);
            let seen = format!("{} of {}", totals.wasted, totals.opened);
            self.say("max_wasted", at, format!("at most {most}"), seen);
        }
        if let Some(most) = assertions.max_failed {
            let first = self.world.tallies.iter().filter_map(|tally| tally.lock().first_failed);
            let at = first.reduce(f64::min).filter(|_| totals.failed > most);
            let seen = format!("{} of {}", totals.failed, totals.requests);
            self.say("max_failed", at, format!("at most {most}"), seen);
        }
        if let Some(most) = assertions.max_refused {
            let first = seen.iter().filter_map(|seen| seen.first_refused_at).reduce(f64::min);
            let at = first.filter(|_| totals.refused > most);
            self.say("max_refused", at, format!("at most {most}"), totals.refused.to_string());
        }
    }

    fn waits(&mut self, wait: &[f64; 3]) {
        let assertions = &self.world.scenario.assertions;
        let asked = [
            ("wait_p50", assertions.wait_p50),
            ("wait_p99", assertions.wait_p99),
            ("wait_max", assertions.wait_max),
        ];
        let end = seconds(self.world.scenario.duration);
        for ((name, most), seen) in asked.into_iter().zip(wait) {
            if let Some(most) = most.map(seconds) {
                let at = (*seen > most).then_some(end);
                self.say(name, at, format!("at most {}", span(most)), span(*seen));
            }
        }
    }
}

/// The first connect with which some window held more than rate × (w + late) + burst.
fn over_rate(connects_us: &[u64], rate: f64, burst: f64) -> Option<f64> {
    let mut least = f64::INFINITY;
    for (index, at) in connects_us.iter().enumerate() {
        let at = *at as f64 / 1e6;
        let height = index as f64 - rate * at;
        least = least.min(height);
        if height - least + 1.0 > rate * LATE + burst + 1e-6 {
            return Some(at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_window_with_too_many_connects_is_found() {
        let even: Vec<u64> = (0..1000).map(|i| i * 10_000).collect();
        assert_eq!(over_rate(&even, 100.0, 1.0), None);
        let mut crowded = even.clone();
        crowded.extend([5_000_000; 20]);
        crowded.sort_unstable();
        assert_eq!(over_rate(&crowded, 100.0, 1.0), Some(5.0));
        assert_eq!(over_rate(&crowded, 100.0, 20.0), None);
    }
}
