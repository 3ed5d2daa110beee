//! The promises of "what always holds" that concern one process, in random
//! worlds under paused time: random settings, backends that do everything badly,
//! clients that wait, vanish, fall asleep, panic and leave dirt behind. After
//! every step all promises are judged, from the pool's own books and from what
//! the servers saw. Everything follows from one seed.
//!
//! `FOREBAY_SEEDS=n` runs n seeds instead of the usual number, `FOREBAY_SEED=x`
//! exactly one.

#![allow(unreachable_pub, clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

#[path = "properties/backend.rs"]
mod backend;
#[path = "properties/book.rs"]
mod book;
#[path = "properties/calm.rs"]
mod calm;
#[path = "properties/clients.rs"]
mod clients;
#[path = "properties/director.rs"]
mod director;
#[path = "properties/plan.rs"]
mod plan;

use std::collections::BTreeMap;
use std::future::Future;

use book::{Book, Note};
use forebay::{Event, Observer};

/// Worlds in which everything goes wrong, and worlds in which nothing does.
const ROUGH: u64 = 200;
const CALM: u64 = 12;

/// What must have happened somewhere, or the worlds have become too dull to
/// show anything.
const EVENTS: [&str; 24] = [
    "broken",
    "closed",
    "detached",
    "dirty",
    "drained",
    "evicted",
    "expired_on_return",
    "expiring_soon_on_scan",
    "gave up",
    "idle",
    "insufficient_remaining_lifetime",
    "killed",
    "lease_recalled",
    "no source",
    "old_generation",
    "open failed",
    "panic",
    "queue full",
    "replaced_in_place",
    "reservoir_full",
    "throttled",
    "timeout",
    "unclaimed",
    "unknown_state",
];

/// Writes what a pool announces into the trace.
pub struct Witness(Book);

impl Observer for Witness {
    fn event(&self, event: &Event) {
        match event {
            Event::Opened { took, .. } => self.0.note("opened", took.as_micros() as u64, 0),
            Event::OpenFailed { reason, .. } => self.0.note("open failed", *reason as u64, 0),
            Event::Discarded { reason, uses, .. } => {
                self.0.note(reason.as_str(), *reason as u64, u64::from(*uses));
            }
            Event::Released { confirmed, .. } => self.0.note("released", u64::from(*confirmed), 0),
            Event::Unclaimed => self.0.note("unclaimed", 0, 0),
            Event::Breach(invariant) => self.0.breach(invariant.as_str().to_owned()),
            _ => {}
        }
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(future)
}

fn run(seed: u64) -> Vec<Note> {
    match block_on(director::run(seed)) {
        Ok(trace) => trace,
        Err(text) => panic!(
            "{text}seed {seed} fails; run it again with\n  \
             FOREBAY_SEED={seed} cargo test -p forebay --test properties"
        ),
    }
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
fn every_promise_holds_in_random_worlds() {
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in seeds(ROUGH) {
        for note in run(seed) {
            *seen.entry(note.what).or_default() += 1;
        }
    }
    println!("{seen:#?}");
    if seeds(ROUGH).count() as u64 >= ROUGH {
        let missing: Vec<_> = EVENTS.iter().filter(|what| !seen.contains_key(**what)).collect();
        assert!(missing.is_empty(), "never happened: {missing:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [1, 7, 42] {
        let (first, second) = (run(seed), run(seed));
        let parting = first.iter().zip(&second).position(|(a, b)| a != b);
        assert_eq!(parting.map(|at| (first[at], second[at])), None, "seed {seed}");
        assert_eq!(first.len(), second.len(), "seed {seed}");
        assert!(first.len() > 1000, "seed {seed} is a dull world");
    }
}

#[test]
fn a_stock_with_free_slots_does_not_dip() {
    seeds(CALM).for_each(|seed| block_on(calm::a_stock_with_free_slots_does_not_dip(seed)));
}

#[test]
fn at_the_cap_the_stock_dips_by_max_opening_at_most() {
    for seed in seeds(CALM) {
        block_on(calm::at_the_cap_the_stock_dips_by_max_opening_at_most(seed));
    }
}

#[test]
fn a_steady_load_wastes_nothing_and_never_waits() {
    seeds(CALM).for_each(|seed| block_on(calm::a_steady_load_wastes_nothing_and_never_waits(seed)));
}
