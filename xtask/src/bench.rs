//! `cargo xtask bench`: runs one benchmark, or all of them, in release mode; without a name it
//! lists them.

use std::process::ExitCode;

use crate::error::{Error, Result};
use crate::process::Cmd;
use crate::services::{Missing, Running, Service, named_in};
use crate::wants_help;
use crate::workspace::{Program, Workspace, package_name};

const HELP: &str = "\
Run a benchmark in release mode.

Usage: cargo xtask bench [NAME|all] [ARGS...]

ARGS go to the benchmark; `cargo xtask bench NAME --help` shows which it takes, and `--quick`
makes every benchmark a smoke run of a few seconds. `all` runs each in turn with the same ARGS
and stops at the first that fails.

Examples:
  cargo xtask bench                     list the benchmarks
  cargo xtask bench checkout            run one
  cargo xtask bench checkout --quick    see that it still works
  cargo xtask bench all                 run them all

A benchmark is a file in bench/src/bin or bench/*/src/bin; its first line of documentation is its
description. One that looks for the address of a server finds it running: servers come and go as
with `cargo xtask test`.
Close other programs first: numbers from a busy machine say little.
";

/// Runs the command.
pub(crate) fn run(workspace: &Workspace, args: &[String]) -> Result<ExitCode> {
    // Help behind a name is the benchmark's.
    if args.first().is_some_and(|arg| wants_help(std::slice::from_ref(arg))) {
        print!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    }
    let benches = workspace.benches()?;
    let Some((name, rest)) = args.split_first() else {
        println!("Benchmarks, for `cargo xtask bench NAME [ARGS...]`:\n{}", table(&benches));
        return Ok(ExitCode::SUCCESS);
    };
    let chosen: Vec<&Program> =
        benches.iter().filter(|bench| name == "all" || bench.name == *name).collect();
    if chosen.is_empty() {
        return Err(Error::usage(format!("no benchmark `{name}`; there are\n{}", table(&benches))));
    }
    // Cargo has taken one `--` off the line already; a second one is a habit worth forgiving.
    let rest = if rest.first().is_some_and(|arg| arg == "--") { &rest[1..] } else { rest };
    for bench in chosen {
        let package = package_name(&workspace.root.join(&bench.package_dir))?;
        let line = format!("run --release -p {package} --bin {} --", bench.name);
        let command = Cmd::cargo(&line, &workspace.root).args(rest);
        let needs = if wants_help(rest) { Vec::new() } else { named_in(&bench.source) };
        let running = Running::acquire(workspace, &needs)?;
        if let Some(missing) = running.missing().iter().find(|lack| needed(&needs, lack)) {
            return Err(Error::new(format!("no {}: {}", missing.service, missing.reason)));
        }
        println!("$ {command}");
        command
            .run(running.env())
            .map_err(|error| Error::new(format!("benchmark `{}` failed: {error}", bench.name)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether what is missing is a server itself; benchmarks start none of their own.
fn needed(needs: &[&'static dyn Service], lack: &Missing) -> bool {
    needs.iter().any(|service| service.variable() == lack.variable)
}

fn table(benches: &[Program]) -> String {
    let width = benches.iter().map(|bench| bench.name.len()).chain([3]).max().unwrap_or(0);
    let mut lines: Vec<String> =
        benches.iter().map(|bench| format!("  {:width$}  {}", bench.name, bench.about)).collect();
    lines.push(format!("  {:width$}  every one of these in turn", "all"));
    lines.join("\n")
}
