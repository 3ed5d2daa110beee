//! What a scenario costs as a whole: pools, connections, rows. More than a machine can
//! hold is refused before anything runs.

use forebay_fleet::Limits;

use super::node::At;
use super::span::show_span;
use super::table::{Field, Table};
use super::{Fault, keys};
use crate::scenario::{Action, Scenario, Service};

/// Pools: instances, each with one for each of its backends.
const POOLS_MAX: u64 = 20_000;
/// Figures in the curves: a row for each sample, a column for each service.
const FIGURES_MAX: u64 = 5_000_000;
/// Rows of the curves.
const ROWS_MAX: u64 = 1_000_000;

/// Refuses what is too large, and services that never start.
pub(super) fn check(table: &Table<'_>, scenario: &Scenario) -> Result<(), Fault> {
    let services = table.need("services")?.list("a list of services")?;
    let mut pools = 0;
    let mut connections = 0;
    for (service, field) in scenario.services.iter().zip(&services) {
        starts_in_time(service, *field, scenario)?;
        let at = field.node.at;
        let instances = most_instances(service, scenario);
        let backends = backends_of(service, scenario);
        pools += instances * backends;
        if pools > POOLS_MAX {
            let message = format!(
                "there are {pools} pools by here (service `{}`: {instances} instances × {backends} \
                 backends); at most {POOLS_MAX}",
                service.name
            );
            return Err(Fault::new(at, message));
        }
        connections += wanted(service, instances, scenario);
        too_many(connections, at)?;
    }
    let rows = scenario.duration.as_nanos().div_ceil(scenario.sample_every.as_nanos().max(1));
    let rows = u64::try_from(rows).unwrap_or(u64::MAX);
    if rows > ROWS_MAX || rows.saturating_mul(services.len() as u64) > FIGURES_MAX {
        let message = format!(
            "{rows} rows × {} services of figures are too many: `duration` is {}, `sample_every` is \
             {}; at most {ROWS_MAX} rows and {FIGURES_MAX} figures",
            services.len(),
            show_span(scenario.duration),
            show_span(scenario.sample_every)
        );
        let field = table.get("sample_every").map_or_else(|| table.need("duration"), Ok)?;
        return Err(Fault::new(field.node.at, message));
    }
    Ok(())
}

fn starts_in_time(service: &Service, field: Field<'_>, scenario: &Scenario) -> Result<(), Fault> {
    let steps = service.start_step.saturating_mul(service.instances.saturating_sub(1));
    let last = service.start_delay.saturating_add(steps);
    if last < scenario.duration {
        return Ok(());
    }
    let table = field.table("a service", keys::SERVICE)?;
    let place = table.get("start_delay").or(table.get("start_step"));
    Err(Fault::new(
        place.map_or(table.at, |field| field.node.at),
        format!(
            "service `{}`: its last instance starts at {}; expected an instant before the end of \
             the run ({})",
            service.name,
            show_span(last),
            show_span(scenario.duration)
        ),
    ))
}

/// The most instances that a service has at any time.
fn most_instances(service: &Service, scenario: &Scenario) -> u64 {
    let scaled = scenario.events.iter().filter_map(|event| match &event.action {
        Action::Scale { service: name, instances } if *name == service.name => Some(*instances),
        _ => None,
    });
    u64::from(scaled.fold(service.instances, u32::max))
}

fn backends_of(service: &Service, scenario: &Scenario) -> u64 {
    let used = scenario.backends.iter().filter(|backend| is_used(service, &backend.name));
    used.map(|backend| u64::from(backend.copies)).sum()
}

fn is_used(service: &Service, backend: &str) -> bool {
    service.backends.is_empty() || service.backends.iter().any(|name| name == backend)
}

/// Connections that a service could have open at once.
fn wanted(service: &Service, instances: u64, scenario: &Scenario) -> u64 {
    let used = scenario.backends.iter().filter(|backend| is_used(service, &backend.name));
    used.map(|backend| {
        let cap = u64::from(backend.open.unwrap_or(u32::MAX));
        (instances * u64::from(service.max_open)).min(cap) * u64::from(backend.copies)
    })
    .sum()
}

fn too_many(connections: u64, at: At) -> Result<(), Fault> {
    let most = u64::from(Limits::MAX);
    if connections <= most {
        return Ok(());
    }
    let message =
        format!("there are up to {connections} connections by here; at most {most} in one run");
    Err(Fault::new(at, message))
}
