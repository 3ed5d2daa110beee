//! Scenario files that cannot be run: each is refused with the file, the line and the
//! column, what was expected and, where one is near, the key or name that was meant.
//! Nothing that can be written in a file brings the reader down.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::path::{Path, PathBuf};

use forebay_sim::Scenario;

fn refusal(text: &str) -> String {
    match Scenario::parse(text, "test.yaml") {
        Ok(_) => "is accepted".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// A folder that is gone when the test is over.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("forebay-sim-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).expect("a file");
        path
    }

    fn load(&self, name: &str) -> String {
        match Scenario::load(self.0.join(name)) {
            Ok(_) => "is accepted".to_owned(),
            Err(error) => {
                let folder = format!("{}/", self.0.display());
                error.to_string().replace(&folder, "")
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_cannot_be_run_is_refused_at_its_line_and_column() {
    let cases = include_str!("files/refused.txt").split_once("\n\n").expect("a first paragraph").1;
    let mut wrong = Vec::new();
    let mut count = 0;
    for case in cases.split("\n\n").filter(|case| !case.starts_with("## ")) {
        let (file, expected) = case.trim_end().split_once("\n=> ").expect("a file and a refusal");
        let seen = refusal(&format!("{file}\n"));
        count += 1;
        if seen != format!("test.yaml:{expected}") {
            wrong.push(format!("{file}\nexpected {expected}\nseen     {seen}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(count > 120, "only {count} cases");
}

#[test]
fn an_error_tells_its_parts() {
    let error = Scenario::parse("duration: 60\n", "a/b.yaml").expect_err("a number without a unit");
    assert_eq!(error.file(), "a/b.yaml");
    assert_eq!((error.line(), error.column()), (Some(1), Some(11)));
    assert!(error.message().starts_with("`duration`: expected a duration"), "{error}");
    assert_eq!(error.to_string(), format!("a/b.yaml:1:11: {}", error.message()));
}

#[test]
fn of_several_errors_the_first_in_a_mapping_is_told() {
    let text = "duration: 1m\nservices:\n  - name: web\n    colour: 1\n    tagetReady: x\n";
    assert!(refusal(text).starts_with("test.yaml:4:5: unknown key `colour`"), "{}", refusal(text));
}

#[test]
fn an_empty_file_and_tabs_are_refused() {
    assert!(refusal("").starts_with("test.yaml:1:1: expected a scenario"), "{}", refusal(""));
    let tabs = "duration: 1m\nservices:\n\t- name: web\n";
    assert!(refusal(tabs).starts_with("test.yaml:3:2: tabs"), "{}", refusal(tabs));
}

#[test]
fn line_ends_and_a_byte_order_mark_do_not_move_the_place() {
    let text = "duration: 1m\nservices:\n  - name: web\n    target_ready: x\n";
    let expected = "test.yaml:4:19: `target_ready`: expected a whole number; found \"x\"";
    assert_eq!(refusal(text), expected);
    assert_eq!(refusal(&text.replace('\n', "\r\n")), expected);
    assert_eq!(refusal(&format!("\u{feff}{text}")), expected);
}

#[test]
fn what_a_terminal_would_obey_does_not_come_out_again() {
    for text in [
        "\"\\e[31mred\": 1\nduration: 1m\n",
        "duration: \"\\e[31mred\"\n",
        "duration: 1m\nservices: [{name: \"\\e[31mred\", target_ready: 5}]\n",
        "duration: 1m\n\"\\e[31m\": 1\n\"\\e[31m\": 1\n",
        "duration: 1m\ncoordinator: \"\\a\"\nservices: [{name: web, target_ready: 5}]\n",
    ] {
        let seen = refusal(text);
        assert!(seen.starts_with("test.yaml:"), "{seen}");
        assert!(!seen.contains(char::is_control), "{seen:?}");
    }
    let long = refusal(&format!("duration: {}\n", "x".repeat(1_000_000)));
    assert!(long.len() < 300, "{} characters", long.len());
}

#[test]
fn a_missing_file_is_named_with_the_nearest() {
    let folder = Folder::new("missing");
    folder.write("ecs-400wps.yaml", "");
    folder.write("notes.txt", "");
    let hint = format!("; did you mean `{}`?", "ecs-400wps.yaml");
    assert_eq!(folder.load("ecs400wps.yaml"), format!("ecs400wps.yaml: no such file{hint}"));
    assert_eq!(folder.load("other.yaml"), "other.yaml: no such file");
    let error = Scenario::load(folder.0.join("none/x.yaml")).expect_err("no such folder");
    assert_eq!((error.line(), error.column(), error.message()), (None, None, "no such file"));
    let error = Scenario::load(&folder.0).expect_err("a folder is no file");
    assert!(error.message().starts_with("cannot be read: "), "{error}");
}

#[test]
fn a_file_that_is_no_text_or_too_large_is_refused() {
    let folder = Folder::new("sizes");
    folder.write("bytes.yaml", b"duration: 1m\nname: caf\xe9\n");
    let seen = folder.load("bytes.yaml");
    assert_eq!(seen, "bytes.yaml:2:10: expected text in UTF-8; found a byte that is none");
    let text = "duration: 1m\nservices: [{name: web, target_ready: 5}]\n#";
    let filler = (4 << 20) - text.len();
    folder.write("full.yaml", format!("{text}{}", "x".repeat(filler)));
    assert_eq!(folder.load("full.yaml"), "is accepted");
    let larger = format!("{text}{}", "x".repeat(filler + 1));
    folder.write("larger.yaml", &larger);
    assert_eq!(folder.load("larger.yaml"), "larger.yaml: is larger than 4 MiB");
    assert_eq!(refusal(&larger), "test.yaml: is larger than 4 MiB");
    if Path::new("/dev/zero").exists() {
        let endless = Scenario::load("/dev/zero").expect_err("no end");
        assert_eq!(endless.message(), "is larger than 4 MiB");
    }
}

#[test]
fn a_trace_is_refused_at_its_own_line() {
    let folder = Folder::new("traces");
    let scenario = "duration: 1m\nservices:\n  - name: web\n    target_ready: 5\n    workload:\n      \
                    arrivals: {trace: t.txt}\n";
    folder.write("a.yaml", scenario);
    assert_eq!(folder.load("a.yaml"), "a.yaml:6:25: `trace` t.txt: no such file");
    for (trace, expected) in [
        ("0\n1s\n", "is accepted"),
        ("# none\n\n", "a.yaml:6:25: `trace` t.txt: has no instants in it"),
        (
            "0\n\n  soon\n",
            "t.txt:3:3: expected a duration after the start, such as 1.25s; found \"soon\"",
        ),
        (
            "0\n2s\n1s\n",
            "t.txt:3:1: 1s comes after 2s; expected instants after the start in order, not the \
             spans between them",
        ),
    ] {
        folder.write("t.txt", trace);
        assert_eq!(folder.load("a.yaml"), expected);
    }
    folder.write("t.txt", b"0\n\xff\n");
    let seen = folder.load("a.yaml");
    assert_eq!(seen, "t.txt:2:1: expected text in UTF-8; found a byte that is none");
    folder.write("t.txt", "0\n".repeat(1_000_001));
    assert_eq!(folder.load("a.yaml"), "t.txt:1000001:1: a trace has at most 1000000 instants");
    folder.write("t.txt", "0".repeat((16 << 20) + 1));
    assert_eq!(folder.load("a.yaml"), "a.yaml:6:25: `trace` t.txt: is larger than 16 MiB");
}

#[test]
fn bombs_do_not_go_off() {
    let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..12 {
        let again = vec![format!("*a{}", i - 1); 10].join(", ");
        laughs.push_str(&format!("a{i}: &a{i} [{again}]\n"));
    }
    let merged: String = (0..20_000).map(|i| format!("- {{<<: *a, name: b{i}}}\n")).collect();
    let steps: String = (0..2_000).map(|i| format!("{}a:\n", " ".repeat(i))).collect();
    for (bomb, expected) in [
        (laughs, "aliases to add at most"),
        ("a: &a [*a]\n".to_owned(), "recursive reference"),
        ("[".repeat(1_000_000), "recursion limit"),
        ("{a: ".repeat(500_000), "recursion limit"),
        (steps, "at most 16 mappings and lists"),
        (format!("a: [{}]\n", "1,".repeat(300_000)), "at most 250000 keys and values"),
        (format!("- &a {{name: a, target_ready: 5}}\n{merged}"), "aliases to add at most"),
        ("---\n".repeat(1_000_000), "expected one document"),
        (format!("? {}\n", "x".repeat(3_000_000)), "test.yaml:"),
        ("&a ".repeat(1_000_000), "test.yaml:"),
        ("!!t ".repeat(1_000_000), "test.yaml:"),
    ] {
        let seen = refusal(&bomb);
        assert!(seen.contains(expected), "{seen}");
        assert!(seen.starts_with("test.yaml:"), "{seen}");
        assert!(seen.len() < 1000, "{seen}");
    }
}

/// Shipped files with a few bytes changed: read or refused, always with a place.
#[test]
fn damaged_files_are_read_or_refused_with_a_place() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut texts = vec![include_str!("files/full.yaml").to_owned()];
    for name in ["mass-drop", "workload-test", "rolling-restart", "too-small-cap"] {
        let path = folder.join(name).with_extension("yaml");
        texts.push(std::fs::read_to_string(path).expect("a shipped file"));
    }
    let odd: Vec<char> = "{}[]:,-#&*!|>'\"%@ \n\t09azé".chars().collect();
    let mut rng = fastrand::Rng::with_seed(4);
    let mut refused = 0;
    for round in 0..3_000 {
        let mut chars: Vec<char> = texts[round % texts.len()].chars().collect();
        for _ in 0..rng.usize(1..4) {
            let at = rng.usize(..chars.len());
            match rng.u8(..4) {
                0 => drop(chars.remove(at)),
                1 => chars.insert(at, odd[rng.usize(..odd.len())]),
                2 => chars.swap(at, rng.usize(..at + 1)),
                _ => chars.truncate(at.max(1)),
            }
        }
        let text: String = chars.into_iter().collect();
        if let Err(error) = Scenario::parse(&text, "test.yaml") {
            assert!(error.line().is_some() && error.column().is_some(), "{error}\n{text}");
            let line = usize::try_from(error.line().unwrap_or(0)).expect("a line");
            assert!((1..=text.lines().count() + 1).contains(&line), "{error}\n{text}");
            refused += 1;
        }
    }
    assert!(refused > 500, "only {refused} were refused");
}
