//! The events of a scenario, as they happen to a run.

use std::sync::Arc;
use std::time::Duration;

use crate::link::{now, pass};
use crate::record::{Mark, seconds};
use crate::scenario::{Action, Event};
use crate::world::World;

/// Lets one event happen at its time, and marks it.
pub(crate) async fn happen(world: Arc<World>, event: Event) {
    pass(event.at).await;
    let nonce = event.at.as_micros() as u64;
    let mut lasts = Duration::ZERO;
    let what = match event.action {
        Action::Drop { fraction, idle, in_use, services } => {
            let owners = world.owners(&services);
            let mut dropped = 0;
            for site in &world.sites {
                dropped += site.cut(now(), |owner, busy, rng| {
                    let hit = if busy { in_use } else { idle };
                    hit && owners.binary_search(&owner).is_ok() && rng.f64() < fraction
                });
            }
            format!("{dropped} connections dropped")
        }
        Action::RollingRestart { every, services } => {
            let owners = world.owners(&services);
            lasts = every * owners.len() as u32;
            let text = format!("rolling restart of {} instances", owners.len());
            mark(&world, &event.at, lasts, &text);
            for owner in owners {
                tokio::spawn(restart(world.clone(), owner));
                pass(every).await;
            }
            return;
        }
        Action::Crash { fraction, restart_after, services } => {
            let owners = world.choose(&services, fraction, nonce);
            lasts = restart_after.unwrap_or_default();
            for &owner in &owners {
                if let Some(instance) = world.take_instance(owner) {
                    let service = instance.service;
                    let figures = instance.crash(&world);
                    world.bury(service, figures);
                }
                world.expect(owner, restart_after.is_some());
            }
            let text = format!("{} instances crashed", owners.len());
            if let Some(after) = restart_after {
                mark(&world, &event.at, lasts, &text);
                pass(after).await;
                owners.iter().for_each(|owner| world.start_instance(*owner));
                return;
            }
            text
        }
        Action::Pause { fraction, lasts: span, services } => {
            lasts = span;
            let owners = world.choose(&services, fraction, nonce);
            for &owner in &owners {
                world.with_instance(owner, |instance| instance.clock.stop(Some(span)));
            }
            format!("{} instances paused", owners.len())
        }
        Action::Partition { fraction, lasts: span, services } => {
            lasts = span;
            let owners = world.choose(&services, fraction, nonce);
            for &owner in &owners {
                world.with_instance(owner, |instance| {
                    *instance.cut_until.lock() = Some(now() + span);
                });
            }
            format!("{} instances cut off from the coordinator", owners.len())
        }
        Action::CoordinatorOutage { lasts: span, keeps_data } => {
            lasts = span;
            if let Some(hall) = &world.hall {
                *hall.away_until.lock() = Some(now() + span);
                let data = keeps_data.then(|| hall.keeper.snapshot());
                hall.keeper.restart(data);
            }
            let data = if keeps_data { "with" } else { "without" };
            format!("coordinator away, back {data} its data")
        }
        Action::BackendOutage { lasts: span, drops, backends } => {
            lasts = span;
            for site in &world.sites {
                if backends.is_empty() || backends.contains(&site.model.name) {
                    site.down(now() + span);
                    if drops {
                        site.cut(now(), |_, _, _| true);
                    }
                }
            }
            "backend away".to_owned()
        }
        Action::Scale { service, instances } => scale(&world, &service, instances),
        Action::Load { factor, lasts: span, services } => {
            let named = |name: &String| services.is_empty() || services.contains(name);
            let all = world.scenario.services.iter().enumerate();
            let hit: Vec<usize> =
                all.filter(|(_, spec)| named(&spec.name)).map(|(index, _)| index).collect();
            hit.iter().for_each(|service| world.multiply_load(*service, factor));
            mark(&world, &event.at, span, &format!("load × {factor}"));
            pass(span).await;
            hit.iter().for_each(|service| world.multiply_load(*service, 1.0 / factor));
            return;
        }
    };
    mark(&world, &event.at, lasts, &what);
}

fn mark(world: &World, at: &Duration, lasts: Duration, what: &str) {
    let (at, until) = (seconds(*at), seconds(*at + lasts));
    let mark = Mark { at, until, what: what.to_owned(), recovered_at: None };
    world.books.lock().marks.push(mark);
}

/// Stops an instance in good order and starts it again.
async fn restart(world: Arc<World>, owner: usize) {
    if let Some(instance) = world.take_instance(owner) {
        let service = instance.service;
        let figures = instance.stop().await;
        world.bury(service, figures);
    }
    world.start_instance(owner);
}

fn scale(world: &Arc<World>, service: &str, instances: u32) -> String {
    let owners = world.owners(&[service.to_owned()]);
    let Some(index) = world.scenario.services.iter().position(|spec| spec.name == service) else {
        return format!("no service `{service}`");
    };
    let before = owners.len();
    for _ in before..instances as usize {
        let owner = world.add_slot(index);
        world.set_goals();
        world.start_instance(owner);
    }
    for &owner in owners.iter().skip(instances as usize) {
        world.expect(owner, false);
        if let Some(instance) = world.take_instance(owner) {
            let world = world.clone();
            tokio::spawn(async move {
                let service = instance.service;
                let figures = instance.stop().await;
                world.bury(service, figures);
            });
        }
    }
    format!("{service} scaled from {before} to {instances}")
}
