//! `cargo xtask test`: runs the steps one after the other, stops at the first that fails with the
//! command to repeat it, and ends with a summary of all of them.

use std::env;
use std::fmt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::lock::Lock;
use crate::process::quote;
use crate::services::postgres::{USUAL_VARIABLE, VARIABLE};
use crate::services::{Missing, Running, Service};
use crate::skipped;
use crate::steps::{self, Services, Step};
use crate::wants_help;
use crate::workspace::Workspace;

const HELP: &str = "\
Start what the tests need, run everything, stop what was started.

Usage: cargo xtask test [--only STEP]... [--list] [-- FILTER...]

Options:
  --only STEP   run this step alone; may be given several times. STEP is a name from --list or
                one of the groups `examples` and `benches`. Services come up if it wants them.
  --list        print the steps and the command behind each, and run nothing
  -- FILTER...  passed to the test binaries; runs only the steps that have any (test, model)

Examples:
  cargo xtask test                         everything, as CI does
  cargo xtask test --only test             only `cargo test`, with the services
  cargo xtask test --only test -- fifo     only the tests with `fifo` in their name
  cargo xtask test -- fifo --nocapture     the same and the model checks, showing their output
  cargo xtask test --only examples         only the examples

Steps run in order and the first failure ends the run with the command that repeats it. Examples
are the files in crates/*/examples, benchmarks those in bench/src/bin and bench/*/src/bin (run
with --quick); a new file is a new step.

Services: every run starts its own PostgreSQL, Redis and DynamoDB Local on free ports and stops
them at the end, also when the run fails or is interrupted, so runs may overlap. It does not start
one that the environment names already or that `cargo xtask services up` has running. PostgreSQL
and Redis are installed with apt-get if they are missing and this is root on Debian; DynamoDB
Local is fetched with Maven and needs Java. If there is no server in the end, what needs it is
skipped and counted; with CI=true in the environment that is a failure.

Environment:
  FOREBAY_TEST_POSTGRES           postgres://... of a server to use
  FOREBAY_POSTGRES_BIN            folder with postgres, initdb and pg_ctl to use
  FOREBAY_TEST_REDIS              redis://... of a server to use
  FOREBAY_TEST_REDIS_SERVER       program redis-server to use, also for tests that start servers
  FOREBAY_TEST_DYNAMODB           http://... of a server to use
  FOREBAY_TEST_DYNAMODB_COMMAND   command line for tests that start servers: one argument a line,
                                  the program first, {port} for the port
  FOREBAY_SEED                    seed of the one case that randomised tests should run
  CI                              true: nothing may be skipped
";

/// The command line of `cargo xtask test`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    only: Vec<String>,
    list: bool,
    filter: Vec<String>,
}

/// How a step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed,
    Skipped(String),
    NotRun,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("passed"),
            Self::Failed => f.write_str("FAILED"),
            Self::Skipped(why) => write!(f, "skipped: {why}"),
            Self::NotRun => f.write_str("not run"),
        }
    }
}

/// A finished step, for the summary.
#[derive(Debug)]
struct Line {
    name: String,
    elapsed: Duration,
    outcome: Outcome,
}

/// Runs the command.
pub(crate) fn run(workspace: &Workspace, args: &[String]) -> Result<ExitCode> {
    if wants_help(args) {
        print!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    }
    let options = parse(args)?;
    let steps = steps::all(workspace, &options.filter)?;
    let steps = steps::select(steps, &options.only, !options.filter.is_empty())?;
    if options.list {
        list(&steps);
        return Ok(ExitCode::SUCCESS);
    }

    let wanted = steps::wanted(&steps);
    let mut running = Running::default();
    let mut lines: Vec<Line> = Vec::new();
    let mut failure = None;
    for (index, step) in steps.iter().enumerate() {
        if failure.is_some() {
            lines.push(Line::new(step, Duration::ZERO, Outcome::NotRun));
            continue;
        }
        // Two runs in one checkout share cargo's output folder, where one run may replace the very
        // program that the other is about to start: take turns, step by step.
        let turn = match &step.command {
            Some(_) => {
                let path = workspace.target_dir().join("xtask.lock");
                Some(Lock::take(&path, "a step of another `cargo xtask test`")?)
            }
            None => None,
        };
        println!("\n=== [{}/{}] {}: {}", index + 1, steps.len(), step.name, step.about);
        let start = Instant::now();
        let result = perform(workspace, step, &wanted, &mut running);
        let elapsed = start.elapsed();
        drop(turn);
        match result {
            Ok(outcome) => {
                println!("--- {}: {outcome} ({})", step.name, seconds(elapsed));
                lines.push(Line::new(step, elapsed, outcome));
            }
            Err(error) => {
                println!("--- {}: FAILED ({})", step.name, seconds(elapsed));
                lines.push(Line::new(step, elapsed, Outcome::Failed));
                failure = Some((step, error));
            }
        }
    }
    drop(running);

    summarise(&lines);
    if let Some((step, error)) = failure {
        return Err(Error::new(explain(step, &error, &options.filter)));
    }
    println!("{}", verdict(&lines));
    Ok(ExitCode::SUCCESS)
}

impl Line {
    fn new(step: &Step, elapsed: Duration, outcome: Outcome) -> Self {
        Self { name: step.name.clone(), elapsed, outcome }
    }
}

fn parse(args: &[String]) -> Result<Options> {
    let mut options = Options::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--list" => options.list = true,
            "--only" => {
                let step = args.next().ok_or_else(|| {
                    Error::usage("--only takes the name of a step (see `cargo xtask test --list`)")
                })?;
                options.only.push(step.clone());
            }
            "--" => options.filter.extend(args.by_ref().cloned()),
            other => match other.strip_prefix("--only=") {
                Some(step) => options.only.push(step.to_owned()),
                None => {
                    return Err(Error::usage(format!(
                        "`cargo xtask test` knows no `{other}`; words for the test binaries go \
                         behind `--` (see `cargo xtask test --help`)"
                    )));
                }
            },
        }
    }
    Ok(options)
}

fn list(steps: &[Step]) {
    let width = steps.iter().map(|step| step.name.len()).max().unwrap_or(0);
    for step in steps {
        println!("{:width$}  {}", step.name, step.about);
        if let Some(command) = &step.command {
            println!("{:width$}  $ {command}", "");
        }
    }
}

fn perform(
    workspace: &Workspace,
    step: &Step,
    wanted: &[&'static dyn Service],
    running: &mut Running,
) -> Result<Outcome> {
    let Some(command) = &step.command else {
        *running = Running::acquire(workspace, wanted)?;
        return missing(workspace, running.missing());
    };
    if let Services::Required(variables) = &step.services
        && let Some(missing) = running.missing().iter().find(|m| variables.contains(&m.variable))
    {
        return Ok(Outcome::Skipped(format!("no {}", missing.service)));
    }
    println!("$ {command}");
    let env = if step.services == Services::Unused { &[] } else { running.env() };
    command.run(env)?;
    Ok(Outcome::Passed)
}

/// Says what the lack of services means; in CI it is an error.
fn missing(workspace: &Workspace, missing: &[Missing]) -> Result<Outcome> {
    if missing.is_empty() {
        return Ok(Outcome::Passed);
    }
    let mut reasons = Vec::new();
    let mut skips = Vec::new();
    for Missing { service, variable, reason } in missing {
        let (tests, files) = skipped::count(workspace, variable)?;
        println!("no {service}: {reason}");
        if tests > 0 {
            println!("{tests} tests skip themselves without it: {}", files.join(", "));
        }
        reasons.push(format!("{service} is missing: {reason}"));
        skips.push(format!("no {service} ({tests} tests skip themselves)"));
    }
    if ci() {
        return Err(Error::new(format!(
            "{} (CI is set: nothing may be skipped)",
            reasons.join("; ")
        )));
    }
    Ok(Outcome::Skipped(skips.join(", ")))
}

fn ci() -> bool {
    env::var("CI").is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false"))
}

fn summarise(lines: &[Line]) {
    let width = lines.iter().map(|line| line.name.len()).max().unwrap_or(0);
    println!("\n=== summary");
    for Line { name, elapsed, outcome } in lines {
        match outcome {
            Outcome::NotRun => println!("{name:width$}  {:>8}  {outcome}", ""),
            _ => println!("{name:width$}  {:>8}  {outcome}", seconds(*elapsed)),
        }
    }
}

fn verdict(lines: &[Line]) -> String {
    let skipped = lines.iter().filter(|line| matches!(line.outcome, Outcome::Skipped(_))).count();
    let passed = lines.len() - skipped;
    if skipped == 0 {
        format!("xtask: all {passed} steps passed")
    } else {
        format!("xtask: {passed} steps passed, {skipped} skipped")
    }
}

/// Brings up services that stay and takes over their addresses.
const UP: &str = r#"eval "$(cargo xtask services up)"; "#;

fn explain(step: &Step, error: &Error, filter: &[String]) -> String {
    let mut text = format!("step `{}` failed: {error}", step.name);
    text.push_str(&format!("\n  repeat it:   cargo xtask test --only {}", step.name));
    if !filter.is_empty() {
        text.push_str(" --");
    }
    for word in filter {
        text.push_str(&format!(" {}", quote(word)));
    }
    if let Some(command) = &step.command {
        // The run's own server is gone by now; `services up` has one that stays.
        let services = match &step.services {
            Services::Unused => String::new(),
            Services::Required(variables) if variables.contains(&VARIABLE) => {
                format!("{UP}{USUAL_VARIABLE}=${VARIABLE} ")
            }
            Services::Used | Services::Required(_) => UP.to_owned(),
        };
        text.push_str(&format!("\n  or by hand:  {services}{command}"));
    }
    text
}

fn seconds(elapsed: Duration) -> String {
    format!("{:.1}s", elapsed.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::{Line, Options, Outcome, explain, parse, verdict};
    use crate::error::Error;
    use crate::process::Cmd;
    use crate::steps::{Services, Step};
    use std::path::Path;
    use std::time::Duration;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn words_behind_two_dashes_are_the_filter() {
        let options = parse(&words(&["--only", "test", "--only=doc", "--", "fifo", "--list"]));
        let expected = Options {
            only: words(&["test", "doc"]),
            list: false,
            filter: words(&["fifo", "--list"]),
        };
        assert_eq!(options.unwrap(), expected);
        assert!(parse(&words(&["--only"])).unwrap_err().is_usage());
        assert!(parse(&words(&["fifo"])).unwrap_err().is_usage());
    }

    #[test]
    fn the_verdict_owns_up_to_skipped_steps() {
        let line = |outcome| Line { name: String::new(), elapsed: Duration::ZERO, outcome };
        let mut lines = vec![line(Outcome::Passed), line(Outcome::Passed)];
        assert_eq!(verdict(&lines), "xtask: all 2 steps passed");
        lines.push(line(Outcome::Skipped("no PostgreSQL".to_owned())));
        assert_eq!(verdict(&lines), "xtask: 2 steps passed, 1 skipped");
    }

    #[test]
    fn a_failure_comes_with_the_commands_that_repeat_it() {
        let step = Step {
            name: "test".to_owned(),
            group: "test",
            about: String::new(),
            services: Services::Used,
            takes_filter: true,
            command: Some(Cmd::cargo("test --workspace -- fifo", Path::new("."))),
        };
        let text = explain(&step, &Error::new("exit status: 101"), &words(&["fifo"]));
        assert_eq!(
            text,
            "step `test` failed: exit status: 101\n  \
             repeat it:   cargo xtask test --only test -- fifo\n  \
             or by hand:  eval \"$(cargo xtask services up)\"; cargo test --workspace -- fifo"
        );
    }
}
