//! What happens in a scenario: our `events`, and the seeds' `scenario`.

use std::time::Duration;

use super::service::INSTANCES_MAX;
use super::span::show_span;
use super::table::{Field, Table};
use super::{Fault, keys, known_name, or};
use crate::scenario::{Action, Event, Scenario};

/// Entries of `events`.
const EVENTS_MAX: usize = 10_000;
/// The largest factor of a load.
const FACTOR_MAX: f64 = 1_000.0;

/// Everything that happens, in order of time.
pub(super) fn read_all(table: &Table<'_>, scenario: &Scenario) -> Result<Vec<Event>, Fault> {
    let mut events = Vec::new();
    if let Some(field) = table.get("scenario") {
        events.extend(read_kind(field, scenario)?);
    }
    if let Some(field) = table.get("events") {
        let fields = field.list("a list of events")?;
        if fields.len() > EVENTS_MAX {
            return Err(field.fault(format!("has {} entries; at most {EVENTS_MAX}", fields.len())));
        }
        for field in fields {
            events.push(read_one(field, scenario)?);
        }
    }
    // stable: those of one instant stay in the order of the file
    events.sort_by_key(|event| event.at);
    Ok(events)
}

#[derive(Clone, Copy)]
enum Kind {
    ColdStart,
    RollingRestart,
    MassDrop,
}

/// The seeds' way. What they do not say: a restart or a drop comes after a third of the
/// run, every 30 s, and takes half; after a drop the stock is back within the time that
/// it had to converge.
fn read_kind(field: Field<'_>, scenario: &Scenario) -> Result<Option<Event>, Fault> {
    let table = field.table("a scenario's kind", keys::KIND)?;
    let kinds = [
        ("cold_start", Kind::ColdStart),
        ("rolling_restart", Kind::RollingRestart),
        ("mass_drop", Kind::MassDrop),
    ];
    let kind = or(table.get("kind"), Kind::ColdStart, |field| field.word(&kinds))?;
    // read whatever the kind, so that a slip does not go unseen
    let every = or(table.get("rollEvery"), Duration::from_secs(30), |field| field.span())?;
    let drop_at = or(table.get("dropAt"), scenario.duration / 3, |field| field.span())?;
    let fraction = or(table.get("dropFraction"), 0.5, |field| field.share())?;
    match kind {
        Kind::ColdStart => Ok(None),
        Kind::RollingRestart => {
            if let Some(field) = table.get("rollEvery") {
                field.span_above_zero()?;
            }
            let action = Action::RollingRestart { every, services: Vec::new() };
            Ok(Some(Event { at: scenario.duration / 3, action, recover_within: None }))
        }
        Kind::MassDrop => {
            if let Some(field) = table.get("dropAt") {
                before_end(field, drop_at, scenario)?;
            }
            let services = Vec::new();
            let action = Action::Drop { fraction, idle: true, in_use: true, services };
            let recover_within = scenario
                .assertions
                .converge_within
                .filter(|within| drop_at.saturating_add(*within) <= scenario.duration);
            Ok(Some(Event { at: drop_at, action, recover_within }))
        }
    }
}

fn read_one(field: Field<'_>, scenario: &Scenario) -> Result<Event, Fault> {
    let table = field.table("an event", keys::EVENT)?;
    let when = table.need("at")?;
    let at = when.span()?;
    before_end(when, at, scenario)?;
    let recover = table.get("recover_within");
    let recover_within = recover.map(|field| field.span_above_zero()).transpose()?;
    let mut actions = table.fields().filter(|(key, _)| !matches!(*key, "at" | "recover_within"));
    let Some((name, field)) = actions.next() else {
        return Err(Fault::new(
            table.at,
            "an event needs an action: `drop`, `rolling_restart`, `crash`, `pause`, `partition`, \
             `coordinator_outage`, `backend_outage`, `scale` or `load`",
        ));
    };
    if let Some((_, second)) = actions.next() {
        let message = format!(
            "an event has one action, and this has `{}` already; make it two events",
            field.key
        );
        return Err(Fault::new(second.key_at, message));
    }
    let action = read_action(name, field, scenario)?;
    let event = Event { at, action, recover_within };
    if let Some(within) = recover_within.or(scenario.assertions.recover_within) {
        let over = over_at(&event, scenario);
        if over.saturating_add(within) > scenario.duration {
            let message = format!(
                "is {}: the event is over at {}, so `recover_within` ({}) cannot be judged by the \
                 end of the run ({})",
                show_span(at),
                show_span(over),
                show_span(within),
                show_span(scenario.duration)
            );
            return Err(when.fault(message));
        }
    }
    Ok(event)
}

fn before_end(field: Field<'_>, at: Duration, scenario: &Scenario) -> Result<(), Fault> {
    if at < scenario.duration {
        return Ok(());
    }
    let (at, end) = (show_span(at), show_span(scenario.duration));
    Err(field.fault(format!("is {at}; expected an instant before the end of the run ({end})")))
}

fn read_action(name: &str, field: Field<'_>, scenario: &Scenario) -> Result<Action, Fault> {
    let of = |what, keys| field.table(what, keys);
    match name {
        "drop" => {
            let table = of("a drop", keys::DROP)?;
            let flag = |key| or(table.get(key), true, |field: Field<'_>| field.flag());
            let (idle, in_use) = (flag("idle")?, flag("in_use")?);
            if !idle && !in_use {
                return Err(Fault::new(
                    field.node.at,
                    "a drop needs connections to drop: `idle` and `in_use` are both false",
                ));
            }
            let fraction = fraction(&table)?;
            Ok(Action::Drop { fraction, idle, in_use, services: services(&table, scenario)? })
        }
        "rolling_restart" => {
            let table = of("a rolling restart", keys::ROLLING_RESTART)?;
            let every = table.need("every")?.span_above_zero()?;
            Ok(Action::RollingRestart { every, services: services(&table, scenario)? })
        }
        "crash" => {
            let table = of("a crash", keys::CRASH)?;
            let restart_after = table.get("restart_after").filter(|field| !field.is_none());
            Ok(Action::Crash {
                fraction: fraction(&table)?,
                restart_after: restart_after.map(|field| field.span()).transpose()?,
                services: services(&table, scenario)?,
            })
        }
        "pause" => {
            let table = of("a pause", keys::PAUSE)?;
            Ok(Action::Pause {
                fraction: fraction(&table)?,
                lasts: lasts(&table)?,
                services: services(&table, scenario)?,
            })
        }
        "partition" => {
            needs_coordinator(field, scenario)?;
            let table = of("a partition", keys::PAUSE)?;
            Ok(Action::Partition {
                fraction: fraction(&table)?,
                lasts: lasts(&table)?,
                services: services(&table, scenario)?,
            })
        }
        "coordinator_outage" => {
            needs_coordinator(field, scenario)?;
            let table = of("a coordinator's outage", keys::COORDINATOR_OUTAGE)?;
            let keeps_data = or(table.get("keeps_data"), true, |field| field.flag())?;
            Ok(Action::CoordinatorOutage { lasts: lasts(&table)?, keeps_data })
        }
        "backend_outage" => {
            let table = of("a backend's outage", keys::BACKEND_OUTAGE)?;
            let known = scenario.backends.iter().map(|backend| backend.name.as_str());
            Ok(Action::BackendOutage {
                lasts: lasts(&table)?,
                drops: or(table.get("drops"), true, |field| field.flag())?,
                backends: names(&table, "backends", "backend", known)?,
            })
        }
        "scale" => {
            let table = of("a scaling", keys::SCALE)?;
            let known = scenario.services.iter().map(|service| service.name.as_str());
            let service = known_name(table.need("service")?, "service", known)?;
            let instances = table.need("instances")?.count(0..=INSTANCES_MAX)?;
            Ok(Action::Scale { service, instances })
        }
        _ => {
            let table = of("a load", keys::LOAD)?;
            let factor = table.need("factor")?.number(FACTOR_MAX)?;
            let services = services(&table, scenario)?;
            let has_load = scenario.services.iter().any(|service| {
                service.workload.is_some()
                    && (services.is_empty() || services.contains(&service.name))
            });
            if !has_load {
                let message = "multiplies a workload, and none of these services has one";
                return Err(Fault::new(field.key_at, format!("`{}` {message}", field.key)));
            }
            Ok(Action::Load { factor, lasts: lasts(&table)?, services })
        }
    }
}

/// The share that an event concerns: all, unless it says less.
fn fraction(table: &Table<'_>) -> Result<f64, Fault> {
    or(table.get("fraction"), 1.0, |field| field.share())
}

fn lasts(table: &Table<'_>) -> Result<Duration, Fault> {
    table.need("lasts")?.span_above_zero()
}

fn services(table: &Table<'_>, scenario: &Scenario) -> Result<Vec<String>, Fault> {
    let known = scenario.services.iter().map(|service| service.name.as_str());
    names(table, "services", "service", known)
}

fn names<'k>(
    table: &Table<'_>,
    key: &str,
    what: &str,
    known: impl Iterator<Item = &'k str> + Clone,
) -> Result<Vec<String>, Fault> {
    let Some(field) = table.get(key) else { return Ok(Vec::new()) };
    let names = field.names()?;
    if names.is_empty() {
        return Err(field.fault("is empty; leave it out to mean all"));
    }
    names.into_iter().map(|field| known_name(field, what, known.clone())).collect()
}

fn needs_coordinator(field: Field<'_>, scenario: &Scenario) -> Result<(), Fault> {
    if scenario.coordinator.is_some() {
        return Ok(());
    }
    let message = format!("`{}` needs a coordinator, and this scenario has none", field.key);
    Err(Fault::new(field.key_at, message))
}

/// When an event is over, as far as the file tells.
fn over_at(event: &Event, scenario: &Scenario) -> Duration {
    let lasts = match &event.action {
        Action::Drop { .. } | Action::Scale { .. } => Duration::ZERO,
        Action::Crash { restart_after, .. } => restart_after.unwrap_or_default(),
        Action::RollingRestart { every, services } => {
            let concerned = scenario
                .services
                .iter()
                .filter(|service| services.is_empty() || services.contains(&service.name));
            let instances: u32 = concerned.map(|service| service.instances).sum();
            every.saturating_mul(instances)
        }
        Action::Pause { lasts, .. }
        | Action::Partition { lasts, .. }
        | Action::CoordinatorOutage { lasts, .. }
        | Action::BackendOutage { lasts, .. }
        | Action::Load { lasts, .. } => *lasts,
    };
    event.at.saturating_add(lasts)
}
