//! What must be true some time after the last fault: nothing leaked, nobody
//! forgotten, and everybody has a fair share.

use std::sync::Arc;
use std::time::Duration;

use forebay::Settings;

use crate::director::World;
use crate::plan::Plan;
use crate::process::{BACKEND, Fate, Process};

/// How long healing may take.
pub fn time(plan: &Plan) -> Duration {
    let times = &plan.times;
    // whoever vanished last is reaped, a window passes, and shares settle
    let fill =
        f64::from(plan.limits.open.unwrap_or(1) + 4) / f64::from(plan.limits.rate.unwrap_or(1));
    plan.reclaim + times.ttl + times.heartbeat * 6 + Duration::from_secs_f64(fill * 2.0)
}

pub async fn check(world: &World) {
    let processes: Vec<Arc<Process>> = world.processes.lock().clone();
    let alive: Vec<&Arc<Process>> =
        processes.iter().filter(|process| process.fate() == Fate::Runs).collect();
    // the dead are found by the living
    if alive.is_empty() {
        return;
    }
    let Some(ledger) = world.keeper.ledger(BACKEND) else {
        return world.book.breach("the books are gone".to_owned());
    };
    if ledger.members.len() != alive.len() {
        let (known, alive) = (ledger.members.len(), alive.len());
        return world.book.breach(format!("{known} members are known, {alive} are alive"));
    }
    let limit = ledger.limits().0.open;
    let mut held = 0;
    let mut shares = Vec::new();
    for process in &alive {
        let Some(state) = process.state() else { continue };
        let Some(entry) = ledger.members.get(&state.member) else {
            return world.book.breach(format!("process {} is not known", process.index));
        };
        let stats = process.pool.stats();
        let open = stats.open();
        held += open;
        let booked = entry.held + entry.reserved;
        // leases that are being moved are nobody's connections for a moment, nor are those
        // for which it has yet to get permits
        let opens_all_it_can = stats.sources[0].opening >= Settings::default().max_opening;
        if booked > open + 2 && !opens_all_it_can || open > booked {
            world.book.breach(format!(
                "process {} has {open} connections and {booked} leases booked",
                process.index
            ));
        }
        shares.push((process.index, booked, process.recipe.settings.weight));
    }
    // no lease could move and leave its giver as well off as its taker
    for (rich, a, weight_a) in &shares {
        for (poor, b, weight_b) in &shares {
            if a.saturating_sub(1) * weight_b >= (b + 1) * weight_a {
                world.book.breach(format!(
                    "process {rich} has {a} leases at weight {weight_a}, process {poor} has {b} at \
                     {weight_b}"
                ));
            }
        }
    }
    let total = ledger.total();
    if total + 2 < limit || total > limit {
        world.book.breach(format!("{held} of {limit} are open, {total} are booked"));
    }
}
