//! The promises of "what always holds" that concern one process, in random
//! worlds under paused time: random settings, backends that do everything badly,
//! clients that wait, vanish, fall asleep, panic and leave dirt behind. After
//! every step all promises are judged, from the pool's own books and from what
//! the servers saw. Everything follows from one seed.
//!
//! `FOREBAY_SEEDS=n` runs n seeds instead of the usual number, `FOREBAY_SEED=x`
//! exactly one.

#![allow(unreachable_pub, clippy::disallowed_methods, clippy::disallowed_types)]

#[path = "properties/backend.rs"]
mod backend;
#[path = "properties/book.rs"]
mod book;
#[path = "properties/clients.rs"]
mod clients;
#[path = "properties/director.rs"]
mod director;
#[path = "properties/plan.rs"]
mod plan;

use std::collections::BTreeMap;

use book::{Book, Note};
use forebay::{Event, Observer};

const SEEDS: u64 = 200;

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

fn run(seed: u64) -> Vec<Note> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    match runtime.block_on(director::run(seed)) {
        Ok(trace) => trace,
        Err(text) => panic!(
            "{text}seed {seed} fails; run it again with\n  \
             FOREBAY_SEED={seed} cargo test -p forebay --test properties"
        ),
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn every_promise_holds_in_random_worlds() {
    if let Some(seed) = number("FOREBAY_SEED") {
        run(seed);
        return;
    }
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    let seeds = number("FOREBAY_SEEDS").unwrap_or(SEEDS);
    for seed in 0..seeds {
        for note in run(seed) {
            *seen.entry(note.what).or_default() += 1;
        }
    }
    println!("{seeds} worlds: {seen:#?}");
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
