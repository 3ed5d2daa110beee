//! The binary as a user runs it: exit codes, help, and a run of a second or two
//! whose own backend says whether the limits were kept.

use std::process::{Command, Output};

fn forebay(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(args).env_remove("NO_COLOR").output().expect("the binary runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

/// The figures of all rows with this name.
fn figures(text: &str, name: &str) -> Vec<u64> {
    let rows = text.lines().filter_map(|line| line.trim_start().strip_prefix(name));
    let words = rows.filter_map(|rest| rest.split_whitespace().next());
    words.filter_map(|word| word.replace(',', "").parse().ok()).collect()
}

#[test]
fn a_run_keeps_every_limit_and_says_so() {
    // real sockets in real time: a failure while the machine froze shows nothing
    let mut runs = (0..5).map(|_| forebay(&["dev", "--for", "2s", "--seed", "1"]));
    let froze = |run: &Output| stdout(run).contains("this process once stood still");
    let output = runs.find(|run| run.status.success() || !froze(run));
    let output = output.expect("a run in which the machine did not freeze");
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    assert_eq!(figures(&text, "refusals"), [0], "{text}");
    assert_eq!(figures(&text, "cut off"), [0], "{text}");
    assert_eq!(figures(&text, "breaches"), [0], "{text}");
    assert_eq!(figures(&text, "still open"), [0], "{text}");
    assert!(figures(&text, "checkouts")[0] > 0, "{text}");
    assert!(text.contains("seed 1") && text.contains("every limit was kept"), "{text}");
    assert!(!text.contains('\x1b'), "colours without a terminal: {text:?}");
}

#[test]
fn a_pool_that_ignores_the_rate_is_refused_and_the_exit_code_tells() {
    let output = forebay(&["dev", "--for", "1s", "--seed", "1", "--no-pacing"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}{}", stderr(&output));
    assert!(figures(&text, "refusals")[0] > 0, "{text}");
    assert!(text.contains("the backend refused: too fast"), "{text}");
    assert!(text.contains("not every limit was kept"), "{text}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_drains_and_is_no_failure() {
    use std::io::{BufRead, BufReader, Read};
    use std::process::Stdio;

    let mut child = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["dev", "--seed", "1"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    // the first reading shows that all is under way
    let mut line = String::new();
    while !line.contains("checkouts/s") {
        line.clear();
        assert!(out.read_line(&mut line).expect("text") > 0, "it ended by itself");
    }
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
    let mut text = String::new();
    out.read_to_string(&mut text).expect("text");
    assert_eq!(child.wait().expect("it ends").code(), Some(0), "{text}");
    assert_eq!(figures(&text, "still open"), [0], "{text}");
}

#[test]
fn bad_arguments_are_explained_and_end_with_2() {
    for (args, explanation) in [
        (&["dev", "--for", "10"][..], "10s"),
        (&["dev", "--max-open", "0"], "1..=10000"),
        (&["dev", "--target-ready", "60"], "--target-ready (60) must not exceed --max-open (50)"),
        (&["dev", "--burst", "1"], "must be at least 6"),
        (&["dev", "--maxopen", "5"], "--max-open"),
        (&["deb"], "dev"),
        (&[], "Usage"),
    ] {
        let output = forebay(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(explanation), "{args:?}: {}", stderr(&output));
        assert_eq!(stdout(&output), "", "{args:?}");
    }
}

#[test]
fn help_teaches() {
    let help = forebay(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    assert!(stdout(&help).contains("forebay dev"), "{}", stdout(&help));
    let help = forebay(&["dev", "--help"]);
    for word in ["What it shows", "Examples", "Exit codes", "--lifetime", "[default: 50]"] {
        assert!(stdout(&help).contains(word), "no {word} in {}", stdout(&help));
    }
    let version = stdout(&forebay(&["--version"]));
    assert_eq!(version.trim(), format!("forebay {}", env!("CARGO_PKG_VERSION")));
}
