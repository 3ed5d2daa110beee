//! A whole fleet under virtual time: real members, real pools, a modelled keeper
//! behind a network that loses, doubles and delays, processes that stop, die and
//! come back, each with a clock of its own. After every step the promises of the
//! protocol are judged, from what the backend itself counts. All from one seed.
//!
//! `FOREBAY_SEEDS=n` runs n seeds instead of the usual number, `FOREBAY_SEED=x`
//! exactly one.

#![allow(unreachable_pub, clippy::disallowed_methods, clippy::disallowed_types)]

#[path = "worlds/backend.rs"]
mod backend;
#[path = "worlds/book.rs"]
mod book;
#[path = "worlds/director.rs"]
mod director;
#[path = "worlds/fault.rs"]
mod fault;
#[path = "worlds/heal.rs"]
mod heal;
#[path = "worlds/judge.rs"]
mod judge;
#[path = "worlds/net.rs"]
mod net;
#[path = "worlds/plan.rs"]
mod plan;
#[path = "worlds/process.rs"]
mod process;
#[path = "worlds/rates.rs"]
mod rates;
#[path = "worlds/time.rs"]
mod time;

use std::collections::BTreeMap;
use std::future::Future;

use book::Note;
use fault::Fault;
use plan::Plan;

/// How many worlds are run unless told otherwise.
const USUAL: u64 = 200;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(future)
}

fn run(seed: u64) -> Result<Vec<Note>, String> {
    block_on(async { director::run(Plan::draw(seed, Fault::None)).await }).map_err(|text| {
        format!(
            "{text}seed {seed} fails; run it again with\n  \
             FOREBAY_SEED={seed} cargo test -p forebay-fleet --test worlds"
        )
    })
}

/// The seeds to run: one that was asked for, else as many as were asked for,
/// else the usual number.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |variable| std::env::var(variable).ok()?.parse::<u64>().ok();
    match number("FOREBAY_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("FOREBAY_SEEDS").unwrap_or(usual),
    }
}

#[test]
fn every_promise_holds_in_random_fleets() {
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in seeds(USUAL) {
        for note in run(seed).unwrap_or_else(|text| panic!("{text}")) {
            *seen.entry(note.what).or_default() += 1;
        }
    }
    println!("{seen:#?}");
}

#[test]
#[ignore = "for looking at many failures at once"]
fn survey() {
    for seed in seeds(USUAL) {
        if let Err(text) = run(seed) {
            let line = text.lines().find(|line| line.starts_with("at ")).unwrap_or("?");
            println!("seed {seed}: {line}");
        }
    }
}
