//! `cargo xtask interop`: runs the drivers of other languages. A driver is a folder below
//! `interop/` with an executable `run`; finding them on disk keeps this file free of languages.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::error::{Error, Result};
use crate::process::Cmd;
use crate::services::Running;
use crate::services::postgres::Postgres;
use crate::wants_help;
use crate::workspace::{Workspace, entries};

const HELP: &str = "\
Run the drivers of other languages against PostgreSQL.

Usage: cargo xtask interop [NAME]...

A driver is a folder interop/NAME with an executable `run`. It is started inside its folder with
the server in its environment (FOREBAY_TEST_POSTGRES and DATABASE_URL) and passes by exiting
with status 0. Without a NAME every driver runs; all of them run even if one fails.

The server comes and goes as with `cargo xtask test`.
";

/// Runs the command.
pub(crate) fn run(workspace: &Workspace, args: &[String]) -> Result<ExitCode> {
    if wants_help(args) {
        print!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    }
    let folder = workspace.root.join("interop");
    let drivers: Vec<(String, PathBuf)> = entries(&folder)?
        .into_iter()
        .filter(|dir| executable(&dir.join("run")))
        .filter_map(|dir| Some((dir.file_name()?.to_str()?.to_owned(), dir)))
        .collect();
    if let Some(unknown) = args.iter().find(|arg| drivers.iter().all(|(name, _)| name != *arg)) {
        let names: Vec<&str> = drivers.iter().map(|(name, _)| name.as_str()).collect();
        return Err(Error::usage(format!(
            "no driver `{unknown}`; interop/ has {}",
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        )));
    }
    if drivers.is_empty() {
        println!("no interop drivers yet");
        return Ok(ExitCode::SUCCESS);
    }
    let running = Running::acquire(workspace, &[&Postgres])?;
    if let Some(missing) = running.missing().first() {
        return Err(Error::new(format!("no {}: {}", missing.service, missing.reason)));
    }
    let mut failed = Vec::new();
    let mut passed = 0;
    for (name, dir) in drivers.iter().filter(|(name, _)| args.is_empty() || args.contains(name)) {
        println!("\n=== {name}");
        match Cmd::new(dir.join("run").display().to_string(), dir).run(running.env()) {
            Ok(()) => passed += 1,
            Err(error) => {
                println!("--- {name}: {error}");
                failed.push(name.as_str());
            }
        }
    }
    drop(running);
    if failed.is_empty() {
        println!("\nxtask: all {passed} interop drivers passed");
        Ok(ExitCode::SUCCESS)
    } else {
        Err(Error::new(format!(
            "interop drivers failed: {}; repeat with `cargo xtask interop {}`",
            failed.join(", "),
            failed.join(" ")
        )))
    }
}

fn executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
