//! The services of a scenario file, and what they do with their connections.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use forebay::{BuildError, Settings};
use forebay_fleet::Limits;

use super::node::{At, Value};
use super::span::{parse_span, show_span};
use super::table::{Field, Table, twice};
use super::{Fault, keys, known_name, or, or_none, trace};
use crate::scenario::{Arrivals, BackendModel, ClockModel, Service, Spread, Workload};

/// Entries of `services`.
const SERVICES_MAX: usize = 10_000;
/// Instances of one service.
pub(super) const INSTANCES_MAX: u32 = 20_000;
/// Opens under way at once in a pool, where a file does not say: the engine's default.
const MAX_OPENING: u32 = 16;
/// Requests a second for each instance and backend.
const ARRIVALS_MAX: f64 = 1_000_000.0;

/// All services. A name stands for one service only.
pub(super) fn read_all(
    field: Field<'_>,
    backends: &[BackendModel],
    folder: &Path,
) -> Result<Vec<Service>, Fault> {
    let fields = field.list("a list of services")?;
    if fields.is_empty() {
        return Err(field.fault("is empty; expected at least one service"));
    }
    if fields.len() > SERVICES_MAX {
        let count = fields.len();
        return Err(field.fault(format!(
            "has {count} entries; at most {SERVICES_MAX} (a service may have many `instances`)"
        )));
    }
    let mut names = BTreeSet::new();
    let mut services = Vec::new();
    for field in fields {
        let table = field.table("a service", keys::SERVICE)?;
        let service = read_one(&table, backends, folder)?;
        if !names.insert(service.name.clone()) {
            let name = table.need("name")?;
            let message = format!(
                "`{}` is the name of another service; for several alike, use `instances`",
                service.name
            );
            return Err(name.fault(message));
        }
        services.push(service);
    }
    Ok(services)
}

fn read_one(table: &Table<'_>, backends: &[BackendModel], folder: &Path) -> Result<Service, Fault> {
    let usual = Settings::default();
    let count = |key, otherwise, low| {
        or(table.get(key), otherwise, |field: Field<'_>| field.count(low..=Limits::MAX))
    };
    let maybe = |key| table.get(key).map(|field| field.count(0..=Limits::MAX)).transpose();
    let span = |key, otherwise| or(table.get(key), otherwise, |field: Field<'_>| field.span());

    let name = table.need("name")?.name()?;
    let target = table.need("target_ready")?;
    let target_ready = target.count(0..=Limits::MAX)?;
    if target_ready == 0 && table.get("max_open").is_none() {
        return Err(target.fault("is 0, and so is `max_open`, which follows it; set `max_open`"));
    }
    let mut used = Vec::new();
    if let Some(field) = table.get("backends") {
        for field in field.names()? {
            let known = backends.iter().map(|backend| backend.name.as_str());
            let name = known_name(field, "backend", known)?;
            if used.contains(&name) {
                return Err(field.fault(format!("names `{name}` twice")));
            }
            used.push(name);
        }
    }
    let service = Service {
        instances: or(table.get("instances"), 1, |field| field.count(1..=INSTANCES_MAX))?,
        backends: used,
        target_ready,
        max_open: count("max_open", target_ready, 1)?,
        min_idle: maybe("min_idle")?,
        low_watermark: maybe("low_watermark")?,
        max_opening: count("max_opening", MAX_OPENING, 1)?,
        base_lifetime: span("base_lifetime", usual.base_lifetime)?,
        lifetime_jitter: span("lifetime_jitter", usual.lifetime_jitter)?,
        guard_window: span("guard_window", usual.guard_window)?,
        max_idle: or_none(table.get("max_idle"), usual.max_idle, |field| field.span())?,
        connect_timeout: span("connect_timeout", usual.connect_timeout)?,
        start_delay: span("start_delay", Duration::ZERO)?,
        start_step: span("start_step", Duration::ZERO)?,
        weight: or(table.get("weight"), 1, |field| field.count(1..=10_000))?,
        clock: or(table.get("clock"), ClockModel::default(), read_clock)?,
        workload: or(table.get("workload"), None, |field| read_workload(field, folder))?,
        name,
    };
    let settings = Settings {
        max_open: service.max_open,
        target_ready: Some(service.target_ready),
        low_watermark: service.low_watermark,
        min_idle: service.min_idle,
        max_opening: service.max_opening,
        base_lifetime: service.base_lifetime,
        lifetime_jitter: service.lifetime_jitter,
        guard_window: service.guard_window,
        max_idle: service.max_idle,
        connect_timeout: service.connect_timeout,
        ..usual
    };
    settings.check(&service.name).map_err(|error| {
        let name = &service.name;
        table.fault(&match error {
            BuildError::Contradiction { low_name, low, relation, high_name, high, .. } => {
                let (low, high) = (in_our_words(&low), in_our_words(&high));
                format!("service `{name}`: {low_name} ({low}) must {relation} {high_name} ({high})")
            }
            BuildError::Zero { name: key, .. } => {
                format!("service `{name}`: {key} is 0; it must be above 0")
            }
            other => other.to_string(),
        })
    })?;
    Ok(service)
}

/// A value as the engine prints it, with spans as they are written in a file.
fn in_our_words(value: &str) -> String {
    parse_span(value).map_or_else(|| value.to_owned(), show_span)
}

fn read_clock(field: Field<'_>) -> Result<ClockModel, Fault> {
    let table = field.table("a clock", keys::CLOCK)?;
    Ok(ClockModel {
        offset: or(table.get("offset"), Duration::ZERO, |field| field.span())?,
        drift_ppm: or(table.get("drift_ppm"), 0.0, |field| match field.node.value {
            Value::Whole(0) => Ok(0.0),
            // ten per cent: no clock is worse and still called one
            _ => field.number(100_000.0),
        })?,
    })
}

/// A workload is on unless it says `enabled: false`.
fn read_workload(field: Field<'_>, folder: &Path) -> Result<Option<Workload>, Fault> {
    let table = field.table("a workload", keys::WORKLOAD)?;
    let enabled = or(table.get("enabled"), true, |field| field.flag())?;
    let hold =
        or(table.get("hold"), Spread::Fixed(Duration::from_millis(10)), |field| field.spread())?;
    let workload = Workload {
        arrivals: read_arrivals(&table, folder)?,
        hold: with_jitter(hold, &table)?,
        max_wait: or(table.get("max_wait"), Duration::from_secs(30), |field| field.span())?,
        max_in_use: or_none(table.get("max_in_use"), None, |field| field.count(1..=Limits::MAX))?,
        priorities: or(table.get("priorities"), [0.0, 1.0, 0.0], read_priorities)?,
        starts_after: or(table.get("starts_after"), Duration::ZERO, |field| field.span())?,
    };
    Ok(enabled.then_some(workload))
}

/// The seeds' `holdJitter`: up to this much longer than `holdTime`.
fn with_jitter(hold: Spread, table: &Table<'_>) -> Result<Spread, Fault> {
    let Some(field) = table.get("holdJitter") else { return Ok(hold) };
    let jitter = field.span()?;
    match hold {
        Spread::Fixed(hold) if jitter.is_zero() => Ok(Spread::Fixed(hold)),
        Spread::Fixed(hold) => Ok(Spread::Uniform(hold, hold.saturating_add(jitter))),
        _ => Err(twice("hold", field.key, field.key_at)),
    }
}

/// Ours: `arrivals` with one way in which requests come. The seeds': bursts of
/// `arrivalBurst` every `spawnEvery`.
fn read_arrivals(table: &Table<'_>, folder: &Path) -> Result<Arrivals, Fault> {
    let burst_size = |field: Field<'_>| field.count(1..=1_000_000);
    let every = |field: Field<'_>| {
        let every = field.span_above_zero()?;
        if every < Duration::from_micros(1) {
            return Err(field.expected("a duration of 1us or more"));
        }
        Ok(every)
    };
    let (spawn, burst) = (table.get("spawnEvery"), table.get("arrivalBurst"));
    let Some(field) = table.get("arrivals") else {
        if spawn.is_none() && burst.is_none() && table.get("enabled").is_none() {
            return Err(Fault::new(
                table.at,
                "a workload needs the key `arrivals` (or `spawnEvery` and `arrivalBurst`)",
            ));
        }
        return Ok(Arrivals::Bursts {
            size: or(burst, 1, burst_size)?,
            every: or(spawn, Duration::from_millis(100), every)?,
        });
    };
    if let Some(theirs) = spawn.or(burst) {
        return Err(twice(field.key, theirs.key, theirs.key_at));
    }
    let ways = field.table("arrivals", keys::ARRIVALS)?;
    let given: Vec<_> = ways.fields().collect();
    let [(way, field)] = given[..] else {
        let expected = "`constant`, `poisson`, `bursts` or `trace`";
        let message = format!("needs one of {expected}; found {}", given.len());
        return Err(field.fault(message));
    };
    match way {
        "constant" => Ok(Arrivals::Constant(field.number(ARRIVALS_MAX)?)),
        "poisson" => Ok(Arrivals::Poisson(field.number(ARRIVALS_MAX)?)),
        "bursts" => {
            let table = field.table("bursts", keys::BURSTS)?;
            let size = table.need("size")?;
            Ok(Arrivals::Bursts { size: burst_size(size)?, every: every(table.need("every")?)? })
        }
        _ => trace::read(field, folder).map(Arrivals::Trace),
    }
}

fn read_priorities(field: Field<'_>) -> Result<[f64; 3], Fault> {
    let table = field.table("priorities", keys::PRIORITIES)?;
    let share = |key| or(table.get(key), 0.0, |field: Field<'_>| field.share());
    let shares = [share("low")?, share("normal")?, share("high")?];
    let sum: f64 = shares.iter().sum();
    if (sum - 1.0).abs() > 1e-9 {
        let sum = (sum * 1e6).round() / 1e6;
        let at: At = field.node.at;
        return Err(Fault::new(
            at,
            format!("`{}` add up to {sum}; they must add up to 1", field.key),
        ));
    }
    Ok(shares)
}
