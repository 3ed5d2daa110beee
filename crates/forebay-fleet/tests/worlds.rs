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
#[path = "worlds/blocked.rs"]
mod blocked;
#[path = "worlds/book.rs"]
mod book;
#[path = "worlds/cases.rs"]
mod cases;
#[path = "worlds/director.rs"]
mod director;
#[path = "worlds/fault.rs"]
#[allow(dead_code, reason = "the mistakes are made in `faults`")]
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
#[path = "worlds/rules.rs"]
mod rules;
#[path = "worlds/scene.rs"]
mod scene;
#[path = "worlds/time.rs"]
mod time;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

use book::Note;
use fault::Fault;
use parking_lot::Mutex;
use plan::Plan;

/// How many worlds are run unless told otherwise.
const USUAL: u64 = 2500;
/// After so many failing worlds the rest is not run.
const FAILURES_MAX: usize = 20;

/// What must have happened somewhere, or the worlds have become too dull to
/// show anything.
const EVENTS: [&str; 22] = [
    "block",
    "clock step",
    "connect",
    "cut",
    "doubled",
    "join",
    "kill",
    "leave",
    "limit",
    "outage",
    "over",
    "pause",
    "reaped",
    "refusals",
    "report",
    "restart with data",
    "restart with stale data",
    "restart without data",
    "slow credentials",
    "stop",
    "storm",
    "unreliable",
];

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

/// Runs worlds on as many threads as there are cores and adds up what happened.
fn run_all(seeds: std::ops::Range<u64>) -> BTreeMap<&'static str, u64> {
    let next = AtomicU64::new(seeds.start);
    let failed: Mutex<BTreeMap<u64, String>> = Mutex::default();
    let seen: Mutex<BTreeMap<&'static str, u64>> = Mutex::default();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= seeds.end || failed.lock().len() >= FAILURES_MAX {
                        return;
                    }
                    match run(seed) {
                        Ok(notes) => {
                            let mut seen = seen.lock();
                            notes.iter().for_each(|note| *seen.entry(note.what).or_default() += 1);
                        }
                        Err(text) => drop(failed.lock().insert(seed, text)),
                    }
                }
            });
        }
    });
    let failed = failed.into_inner();
    for (seed, text) in &failed {
        let breach = text.lines().find(|line| line.starts_with("at ")).unwrap_or_default();
        println!("seed {seed}: {breach}");
    }
    if let Some((_, text)) = failed.first_key_value() {
        panic!("{text}");
    }
    seen.into_inner()
}

#[test]
fn every_promise_holds_in_random_fleets() {
    let seen = run_all(seeds(USUAL));
    println!("{seen:#?}");
    if seeds(USUAL).count() as u64 >= USUAL {
        let missing: Vec<_> = EVENTS.iter().filter(|what| !seen.contains_key(**what)).collect();
        assert!(missing.is_empty(), "never happened: {missing:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [3, 5, 42] {
        let (first, second) = (run(seed).expect("kept"), run(seed).expect("kept"));
        let parting = first.iter().zip(&second).position(|(a, b)| a != b);
        assert_eq!(parting.map(|at| (first[at], second[at])), None, "seed {seed}");
        assert_eq!(first.len(), second.len(), "seed {seed}");
        assert!(first.len() > 300, "seed {seed} is a dull world");
    }
}
