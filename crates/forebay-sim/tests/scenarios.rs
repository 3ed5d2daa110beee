//! Every shipped scenario comes out as its file says, and the same seed gives the
//! same bytes: curves, report and all.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::path::{Path, PathBuf};

use forebay_sim::output::{csv, json, report};
use forebay_sim::{Recording, Scenario, run};

/// Too large for a build without optimisation; `cargo xtask bench sim` runs it.
const LARGE: &[&str] = &["internet-scale"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios")
}

fn load(name: &str) -> Scenario {
    let path = folder().join(format!("{name}.yaml"));
    Scenario::load(&path).unwrap_or_else(|error| panic!("{error}"))
}

fn names() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .expect("the scenarios")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn verdicts(recording: &Recording) -> String {
    let line = |v: &forebay_sim::Verdict| {
        format!("{} held {} (asked {}, seen {})", v.name, v.held, v.asked, v.seen)
    };
    recording.verdicts.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A run of a scenario, made twice and found the same.
fn twice(name: &str) -> Recording {
    let scenario = load(name);
    let first = run(&scenario, |_, _| {});
    assert!(first.as_expected(), "{name} (seed {}):\n{}", first.seed, verdicts(&first));
    assert_eq!(first.totals.breaches, 0, "{name}: the engine broke a promise");
    let again = run(&scenario, |_, _| {});
    assert!(csv(&first) == csv(&again), "{name}: the curves differ");
    assert!(json(&first) == json(&again), "{name}: the figures differ");
    assert!(report(&first) == report(&again), "{name}: the reports differ");
    first
}

/// Every pool was at its goal as soon as the limits allow: within 2 %, or the
/// handshake's 99th percentile.
fn filled_in_own_time(recording: &Recording) {
    let own = recording.totals.own_time;
    let took = recording.totals.converged_at.expect("filled");
    let allowed = own + (0.02 * own).max(0.12);
    let name = &recording.scenario;
    assert!(took <= allowed, "{name}: {took} s where {own} s would do");
}

#[test]
fn every_scenario_comes_out_as_its_file_says_and_twice_the_same() {
    let names = names();
    assert!(names.len() >= 12, "{names:?}");
    let own = ["ecs-400wps", "workload-test", "local", "ecs-150wps"];
    let rest = names.iter().map(String::as_str).filter(|name| !own.contains(name));
    for name in rest.filter(|name| !LARGE.contains(name)) {
        twice(name);
    }
}

#[test]
fn small_fleets_fill_in_their_own_time() {
    for name in ["local", "ecs-150wps"] {
        filled_in_own_time(&twice(name));
    }
}

#[test]
fn more_than_twice_too_many_share_the_cap_evenly_and_in_their_own_time() {
    let recording = twice("ecs-400wps");
    filled_in_own_time(&recording);
    assert_eq!(recording.totals.most_open, 10_000);
    for (service, usable, fair) in &recording.totals.fairness {
        let off = (f64::from(*usable) - fair).abs();
        assert!(off <= 0.02 * fair, "{service}: {usable} of {fair}");
    }
}

#[test]
fn a_workload_wastes_no_open() {
    let recording = twice("workload-test");
    assert!(recording.totals.served > 1000);
    assert_eq!(recording.totals.wasted, 0);
}

#[test]
fn another_seed_gives_another_run() {
    let scenario = load("local");
    let other = Scenario { seed: scenario.seed + 1, ..scenario.clone() };
    assert_ne!(csv(&run(&scenario, |_, _| {})), csv(&run(&other, |_, _| {})));
}
