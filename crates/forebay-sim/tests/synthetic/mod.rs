//! Recordings made by hand, for tests of the outputs: a cold start, a mass drop,
//! a workload, and names that try to break out.

use forebay_sim::{Mark, Recording, Sample, Second, ServiceSample, Totals, Verdict};

/// Services of the run by [`recording`].
pub(crate) const SERVICES: [&str; 4] = ["history", "matching", "frontend", "worker"];

/// A quarter of an hour of four services; half the connections are lost at 300 s,
/// and the coordinator is away from 600 s to 660 s.
pub(crate) fn recording() -> Recording {
    made("mass-drop", &SERVICES.map(str::to_owned), 900, 50)
}

/// A cold start of many services.
pub(crate) fn crowd() -> Recording {
    let names: Vec<String> = (1..=44).map(|n| format!("service-{n:02}")).collect();
    let mut crowd = made("ecs-400wps", &names, 1800, 500);
    crowd.open_limit = 10_000;
    crowd.verdicts.push(verdict("fair_within", false, "within 2 %", "3.1 % off", Some(90.25)));
    crowd
}

/// A run whose names are written to break out of what they stand in.
pub(crate) fn hostile() -> Recording {
    let names = ["<script>alert(1)</script>", "a,\"b\"\nc", "x\u{1b}[2Jy", "]]>&amp;'"];
    let mut run = made("</title><b onload=\"x\">", &names.map(str::to_owned), 60, 5);
    run.verdicts.push(verdict("<i>", false, "\"'<>&", "<svg/onload=x>", Some(1.0)));
    run.totals.discarded.push(("<u>".to_owned(), 3));
    run
}

pub(crate) fn verdict(
    name: &str,
    held: bool,
    asked: &str,
    seen: &str,
    first: Option<f64>,
) -> Verdict {
    Verdict {
        name: name.to_owned(),
        held,
        asked: asked.to_owned(),
        seen: seen.to_owned(),
        first_violation: first,
        expected_to_fail: false,
    }
}

/// Numbers that look like chance and never change.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((self.0 >> 33) % u64::from(n.max(1))) as u32
    }
}

fn made(name: &str, services: &[String], seconds: u32, target: u32) -> Recording {
    let n = services.len() as u32;
    let mut dice = Dice(7);
    let mut sum = vec![ServiceSample { target, ..ServiceSample::default() }; services.len()];
    let (mut samples, mut seconds_seen) = (Vec::new(), Vec::new());
    for at in 0..=seconds {
        let mut seen = Second::default();
        let left = 100_u32;
        let mut left = if at == 0 { 0 } else { left };
        for one in &mut sum {
            if at == 300 {
                let lost = one.ready / 2;
                one.ready -= lost;
                one.discarded += u64::from(lost);
                seen.closed += lost;
            }
            let retired =
                if at > 20 && dice.below(4) == 0 { dice.below(3).min(one.ready) } else { 0 };
            one.ready -= retired;
            one.discarded += u64::from(retired);
            seen.closed += retired;
            one.in_use = if at > 5 { dice.below(target / 3 + 2).min(target / 2) } else { 0 };
            let usable = target.saturating_sub(one.in_use);
            one.ready = one.ready.min(usable);
            let need = usable - one.ready;
            let opens = need.min(left).min(if seconds > 1000 { left / 20 + 1 } else { 30 });
            left -= opens;
            one.ready += opens;
            one.opened += u64::from(opens);
            one.opening = opens / 3;
            seen.connects += opens;
            one.served += u64::from(one.in_use) * 20;
            one.waiting = if (300..304).contains(&at) { dice.below(8) } else { 0 };
            one.empty += u64::from(one.waiting);
            one.longest_wait =
                if one.waiting > 0 { 0.05 } else { 1e-5 } * f64::from(dice.below(9) + 1);
        }
        let open = sum.iter().map(|one| one.ready + one.in_use).sum();
        seen.most_open = open;
        let members = if (300..310).contains(&at) { n - 1 } else { n };
        samples.push(Sample {
            at: at.into(),
            services: sum.clone(),
            open,
            leases: open + n,
            members,
        });
        if at < seconds {
            seconds_seen.push(seen);
        }
    }
    let events = if seconds > 700 {
        vec![
            mark(300.0, 300.0, "half of the connections dropped", Some(302.4)),
            mark(600.0, 660.0, "coordinator away", Some(661.5)),
        ]
    } else {
        Vec::new()
    };
    Recording {
        scenario: name.to_owned(),
        seed: 42,
        seconds: seconds.into(),
        members: n,
        services: services.to_vec(),
        verdicts: vec![
            verdict("max_connects_per_second", true, "at most 100/s", "97/s at most", None),
            verdict("converge_within", true, "within 1 min", "2.1 s", None),
            verdict("zero_empty", true, "none", "none", None),
            verdict("open_cap", true, "never above 10,000", "212 at most", None),
        ],
        totals: totals(&sum, services),
        samples,
        seconds_seen,
        events,
        open_limit: 250,
        rate_limit: 100,
    }
}

fn mark(at: f64, until: f64, what: &str, recovered_at: Option<f64>) -> Mark {
    Mark { at, until, what: what.to_owned(), recovered_at }
}

fn totals(sum: &[ServiceSample], services: &[String]) -> Totals {
    let usable = |one: &ServiceSample| one.ready + one.in_use;
    let shares = services.iter().zip(sum);
    Totals {
        opened: sum.iter().map(|one| one.opened).sum(),
        discarded: vec![("retired".to_owned(), 1234), ("lost".to_owned(), 100)],
        requests: sum.iter().map(|one| one.served).sum(),
        served: sum.iter().map(|one| one.served).sum(),
        empty: sum.iter().map(|one| one.empty).sum(),
        wait: [2.1e-5, 0.0034, 0.41],
        most_open: 212,
        converged_at: Some(2.12),
        own_time: 2.05,
        coordinator_calls: 4321,
        fairness: shares.map(|(name, one)| (name.clone(), usable(one), 50.0)).collect(),
        ..Totals::default()
    }
}
