//! `forebay sim` as a user runs it: exit codes, what is written and what is not,
//! and the same bytes from the same seed.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

/// Four connections, quickly.
const SMALL: &str = "
seed: 1
duration: 5s
services: [{name: api, instances: 2, target_ready: 2}]
assert: {converge_within: 2s, max_refused: 0}
";

/// A rate of one a second does not allow five connections in a second.
const TOO_SLOW: &str = "
seed: 1
duration: 10s
backend: {name: slow, open: 100, rate: 1, burst: 1}
services: [{name: api, target_ready: 5}]
assert: {converge_within: 1s}
";

/// A directory of its own for one test.
struct Place(PathBuf);

impl Place {
    fn new(test: &str) -> Self {
        let name = format!("forebay-sim-{}-{test}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    fn put(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).expect("a file");
    }

    fn get(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Everything in it, by name.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("a directory");
        let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
        let mut names: Vec<String> =
            entries.map(|entry| name(entry).to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn sim(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.arg("sim").args(args).current_dir(&self.0).env("LC_ALL", "C.UTF-8");
        let Output { status, stdout, stderr } = command.output().expect("the binary runs");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (status.code(), text(stdout), text(stderr))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_run_that_holds_prints_a_summary_and_exits_with_0() {
    let place = Place::new("holds");
    place.put("small.yaml", SMALL);
    let (code, out, err) = place.sim(&["small.yaml"]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert!(out.starts_with("small  5 s simulated"), "{out}");
    assert!(out.contains("✓ converge_within") && out.ends_with("assertions held\n"), "{out}");
    assert!(!out.contains('\x1b'), "colours without a terminal: {out:?}");
    assert_eq!(place.names(), ["small.yaml"], "nothing is written unasked");
}

#[test]
fn a_failed_assertion_is_named_with_its_first_instant_and_exits_with_1() {
    let place = Place::new("fails");
    place.put("slow.yaml", TOO_SLOW);
    let (code, out, _) = place.sim(&["slow.yaml"]);
    assert_eq!(code, Some(1), "{out}");
    let line = out.lines().find(|line| line.contains("✗ converge_within")).expect("its line");
    assert!(line.contains("first at 1 s"), "{line}");

    for flag in ["--quiet", "--json"] {
        let (code, out, err) = place.sim(&["slow.yaml", flag]);
        assert_eq!(code, Some(1), "{out}");
        assert_eq!(out.is_empty(), flag == "--quiet", "{out}");
        assert!(err.starts_with("forebay: slow: converge_within failed"), "{err}");
        assert!(err.ends_with("first at 1 s\n"), "{err}");
    }
}

#[test]
fn what_is_meant_to_fail_and_does_exits_with_0() {
    let place = Place::new("meant");
    place.put("slow.yaml", &format!("{TOO_SLOW}expect_failures: [converge_within]\n"));
    let (code, out, _) = place.sim(&["slow.yaml"]);
    assert_eq!(code, Some(0), "{out}");
    assert!(out.contains("failed, as it was meant to"), "{out}");
    place.put("small.yaml", &format!("{SMALL}expect_failures: [converge_within]\n"));
    let (code, out, _) = place.sim(&["small.yaml"]);
    assert_eq!(code, Some(1), "it held, but was meant to fail: {out}");
}

#[test]
fn bad_input_exits_with_2_and_writes_nothing() {
    let place = Place::new("bad");
    place.put("small.yaml", SMALL);
    place.put("typo.yaml", &SMALL.replace("duration", "durration"));
    place.put("kept.csv", "as it was");
    let before = place.names();
    let outputs = ["--out", "kept.csv", "--report", "page.html"];
    for (files, says) in [
        (&["typo.yaml"][..], "forebay: typo.yaml:3:1: "),
        (&["missing.yaml"], "forebay: missing.yaml: no such file"),
        (&[], "required"),
    ] {
        let (code, out, err) = place.sim(&[files, &outputs].concat());
        assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
        assert!(err.contains(says), "{err}");
    }
    // the good one of two is not run either, and both bad ones are told
    fs::create_dir(place.0.join("pages")).expect("a directory");
    let (code, out, err) =
        place.sim(&["small.yaml", "typo.yaml", "missing.yaml", "--report", "pages"]);
    assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
    assert_eq!(err.lines().filter(|line| line.starts_with("forebay: ")).count(), 2, "{err}");
    assert!(fs::read_dir(place.0.join("pages")).expect("it is there").next().is_none());
    fs::remove_dir(place.0.join("pages")).expect("it is empty");
    assert_eq!((place.names(), place.get("kept.csv").as_str()), (before, "as it was"));
}

#[test]
fn places_that_cannot_be_are_refused_before_anything_runs() {
    let place = Place::new("places");
    place.put("a.yaml", SMALL);
    place.put("b.yaml", SMALL);
    let before = place.names();
    for (args, says) in [
        (&["a.yaml", "--out", "no/such/x.csv"][..], "there is no directory no/such"),
        (&["a.yaml", "--out", "no/"], "there is no directory no"),
        (&["a.yaml", "b.yaml", "--out", "x.csv"], "2 scenarios need a directory"),
        (&["a.yaml", "--report", "a.yaml"], "would overwrite a scenario"),
        (&["a.yaml", "a.yaml", "--out", "."], "two scenarios would become"),
        (&["a.yaml", "--out", "x", "--report", "x"], "name the same file"),
        (&["--compare", "a.yaml", "b.yaml", "--report", "b.yaml"], "overwrite a scenario"),
        (&["--compare", "a.yaml"], "2 values required"),
        (&["--compare", "a.yaml", "b.yaml", "--out", "x.csv"], "cannot be used with"),
    ] {
        let (code, out, err) = place.sim(args);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{args:?}: {err}");
        assert!(err.contains(says), "{args:?}: {err}");
    }
    assert_eq!((place.names(), place.get("a.yaml").as_str()), (before, SMALL));
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_one_does_not() {
    let place = Place::new("bytes");
    let spread =
        "backend: {name: db, open: 100, rate: 100, burst: 10, handshake: {min: 5ms, max: 400ms}}";
    place.put("small.yaml", &format!("{SMALL}sample_every: 50ms\n{spread}\n"));
    let run = |name: &str, seed: &str| {
        let (csv, page) = (format!("{name}.csv"), format!("{name}.html"));
        let (code, out, err) =
            place.sim(&["small.yaml", "--json", "--seed", seed, "--out", &csv, "--report", &page]);
        assert_eq!(code, Some(0), "{err}");
        [out, place.get(&csv), place.get(&page)]
    };
    let [one, again, other] = [run("one", "7"), run("again", "7"), run("other", "8")];
    assert_eq!(one, again);
    assert!(one.iter().zip(&other).all(|(one, other)| one != other));
    assert!(one[0].contains("\"seed\": 7"));
    assert!(one[1].starts_with("t,service,") && one[2].starts_with("<!DOCTYPE html>"));
    let rest = ["again.csv", "again.html", "one.csv", "one.html", "other.csv", "other.html"];
    assert_eq!(place.names()[..6], rest, "and nothing half-written beside them");
    assert_eq!(place.names().len(), 7);
}

#[test]
fn several_scenarios_get_a_summary_each_and_the_worst_exit_code() {
    let place = Place::new("several");
    place.put("small.yaml", SMALL);
    place.put("slow.yaml", TOO_SLOW);
    let (code, out, _) = place.sim(&["slow.yaml", "small.yaml", "--report", ".", "--out", "./"]);
    assert_eq!(code, Some(1), "{out}");
    assert!(out.starts_with("slow  ") && out.contains("\n\nsmall  "), "{out}");
    let names = ["slow.csv", "slow.html", "slow.yaml", "small.csv", "small.html", "small.yaml"];
    assert_eq!(place.names(), names);
    let (code, out, _) = place.sim(&["slow.yaml", "small.yaml", "--json"]);
    assert_eq!(code, Some(1));
    assert!(out.starts_with("[\n{\n") && out.ends_with("}\n]\n"), "{out}");
    assert_eq!(out.matches("\n},\n{\n").count(), 1);
}

#[test]
fn two_settings_are_put_side_by_side() {
    let place = Place::new("compare");
    place.put("a.yaml", SMALL);
    place.put("b.yaml", &SMALL.replace("target_ready: 2", "target_ready: 3"));
    let (code, out, err) = place.sim(&["--compare", "a.yaml", "b.yaml", "--report", "both.html"]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    let line = out.lines().find(|line| line.starts_with("connections opened")).expect("a row");
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words, ["connections", "opened", "4", "6", "+2", "(+50", "%)"]);
    assert!(place.get("both.html").contains("B · b"));
    let (_, out, _) = place.sim(&["--compare", "a.yaml", "b.yaml", "--json"]);
    assert!(out.starts_with('{') && out.contains("\"difference\": 2.0"), "{out}");
}

#[test]
fn a_plan_says_without_a_run_whether_everything_fits() {
    let place = Place::new("plan");
    place.put("small.yaml", SMALL);
    place.put("cramped.yaml", &TOO_SLOW.replace("open: 100", "open: 3"));
    let (code, out, err) = place.sim(&["plan", "small.yaml"]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    let (code, out, _) = place.sim(&["plan", "small.yaml", "cramped.yaml"]);
    assert_eq!(code, Some(1), "{out}");
    assert!(out.contains("small") && out.contains("cramped"), "{out}");
    let (code, out, _) = place.sim(&["plan", "cramped.yaml", "--json"]);
    assert_eq!(code, Some(1), "{out}");
    assert!(out.starts_with('{') && out.contains("\"fits\": false"), "{out}");
    assert_eq!(place.sim(&["plan", "missing.yaml"]).0, Some(2));
    assert_eq!(place.sim(&["plan"]).0, Some(2));
    assert_eq!(place.sim(&["small.yaml", "plan", "small.yaml"]).0, Some(2), "not both");
}

#[test]
fn help_teaches() {
    let place = Place::new("help");
    let (code, out, _) = place.sim(&["--help"]);
    assert_eq!(code, Some(0));
    for part in ["Examples:", "--compare", "Exit codes:", "scenarios/*.yaml"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert!(out.lines().all(|line| line.chars().count() <= 110), "{out}");
}
