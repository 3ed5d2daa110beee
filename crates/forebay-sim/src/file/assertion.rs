//! What must hold in a scenario: our `assert`, the seeds' keys that begin with it, and
//! what is meant to fail.

use std::time::Duration;

use super::node::Value;
use super::span::show_span;
use super::table::{Field, Table, twice};
use super::{Fault, keys, known_name};
use crate::scenario::{Assertions, Scenario};

/// The seeds' assertions and ours.
const SEEDS: [(&str, &str); 5] = [
    ("assertMaxConnectsPerSec", "max_connects_per_second"),
    ("assertConvergeWithin", "converge_within"),
    ("assertStableFor", "stable_for"),
    ("assertMaxClosurePerSec", "max_closures_per_second"),
    ("assertZeroEmptyEvents", "zero_empty"),
];

/// `assert` and the seeds' keys. Where a backend has a cap, `open_cap` is on unless
/// the file says otherwise.
pub(super) fn read(table: &Table<'_>, scenario: &Scenario) -> Result<Assertions, Fault> {
    let mut assertions = Assertions {
        open_cap: scenario.backends.iter().any(|backend| backend.open.is_some()),
        ..Assertions::default()
    };
    let ours = table.get("assert");
    let ours = ours.map(|field| field.table("assertions", keys::ASSERT)).transpose()?;
    for (seeds, name) in SEEDS {
        let Some(field) = table.get(seeds) else { continue };
        if let Some(other) = ours.as_ref().and_then(|ours| ours.get(name)) {
            let first = if other.key_at < field.key_at { other } else { field };
            let second = if other.key_at < field.key_at { field } else { other };
            return Err(twice(first.key, second.key, second.key_at));
        }
        // there, nothing is asserted with what is 0
        if !is_zero(field) {
            read_one(&mut assertions, name, field, scenario)?;
        }
    }
    for (name, field) in ours.iter().flat_map(Table::fields) {
        read_one(&mut assertions, name, field, scenario)?;
    }
    if let (Some(within), Some(stable)) = (assertions.converge_within, assertions.stable_for)
        && within.saturating_add(stable) > scenario.duration
    {
        let field = match ours.as_ref().and_then(|ours| ours.get("stable_for")) {
            Some(field) => field,
            None => table.need("assertStableFor")?,
        };
        return Err(field.fault(format!(
            "({}) after convergence within {} is past the end of the run ({})",
            show_span(stable),
            show_span(within),
            show_span(scenario.duration)
        )));
    }
    Ok(assertions)
}

fn is_zero(field: Field<'_>) -> bool {
    match &field.node.value {
        Value::Whole(number) => *number == 0,
        Value::Number(number) => *number == 0.0,
        Value::Text(_) => field.span().is_ok_and(|span| span.is_zero()),
        _ => false,
    }
}

fn read_one(
    assertions: &mut Assertions,
    name: &str,
    field: Field<'_>,
    scenario: &Scenario,
) -> Result<(), Fault> {
    let in_run = || {
        let span = field.span_above_zero()?;
        if span > scenario.duration {
            let (span, end) = (show_span(span), show_span(scenario.duration));
            return Err(field.fault(format!("is {span}, past the end of the run ({end})")));
        }
        Ok::<Duration, Fault>(span)
    };
    let total = || field.whole(0..=u64::MAX).map(Some);
    let per_second = || field.count(1..=u32::MAX).map(Some);
    match name {
        "max_connects_per_second" => assertions.max_connects_per_second = per_second()?,
        "converge_within" => assertions.converge_within = Some(in_run()?),
        "stable_for" => assertions.stable_for = Some(in_run()?),
        "max_closures_per_second" => assertions.max_closures_per_second = per_second()?,
        "zero_empty" => assertions.zero_empty = field.flag()?,
        "recover_within" => assertions.recover_within = Some(in_run()?),
        "open_cap" => {
            let asked = field.flag()?;
            if asked && !assertions.open_cap {
                return Err(field.fault("needs a cap, and no backend has one (`open`)"));
            }
            assertions.open_cap = asked;
        }
        "max_wasted" => assertions.max_wasted = total()?,
        "wait_p50" => assertions.wait_p50 = Some(field.span()?),
        "wait_p99" => assertions.wait_p99 = Some(field.span()?),
        "wait_max" => assertions.wait_max = Some(field.span()?),
        "max_failed" => assertions.max_failed = total()?,
        "fair_within" => assertions.fair_within = Some(field.share()?),
        _ => assertions.max_refused = total()?,
    }
    Ok(())
}

/// `expect_failures`: names of assertions that this scenario makes.
pub(super) fn read_expected(
    field: Option<Field<'_>>,
    scenario: &Scenario,
) -> Result<Vec<String>, Fault> {
    let Some(field) = field else { return Ok(Vec::new()) };
    let made = made(scenario);
    let mut names = Vec::new();
    for field in field.names()? {
        let name = known_name(field, "assertion", keys::ASSERT.iter().map(|(name, _)| *name))?;
        if !made.contains(&name.as_str()) {
            return Err(field.fault(format!("names `{name}`, which is not asserted here")));
        }
        if names.contains(&name) {
            return Err(field.fault(format!("names `{name}` twice")));
        }
        names.push(name);
    }
    Ok(names)
}

/// The assertions that a scenario makes.
fn made(scenario: &Scenario) -> Vec<&'static str> {
    let Assertions {
        max_connects_per_second,
        converge_within,
        stable_for,
        max_closures_per_second,
        zero_empty,
        recover_within,
        open_cap,
        max_wasted,
        wait_p50,
        wait_p99,
        wait_max,
        max_failed,
        fair_within,
        max_refused,
    } = &scenario.assertions;
    let recovers = scenario.events.iter().any(|event| event.recover_within.is_some());
    let all = [
        ("max_connects_per_second", max_connects_per_second.is_some()),
        ("converge_within", converge_within.is_some()),
        ("stable_for", stable_for.is_some()),
        ("max_closures_per_second", max_closures_per_second.is_some()),
        ("zero_empty", *zero_empty),
        ("recover_within", recover_within.is_some() || recovers),
        ("open_cap", *open_cap),
        ("max_wasted", max_wasted.is_some()),
        ("wait_p50", wait_p50.is_some()),
        ("wait_p99", wait_p99.is_some()),
        ("wait_max", wait_max.is_some()),
        ("max_failed", max_failed.is_some()),
        ("fair_within", fair_within.is_some()),
        ("max_refused", max_refused.is_some()),
    ];
    all.into_iter().filter(|(_, is_made)| *is_made).map(|(name, _)| name).collect()
}
