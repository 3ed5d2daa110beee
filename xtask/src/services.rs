//! The services tests talk to: bringing them up for one run, and `cargo xtask services`, which
//! keeps them up between runs. Only PostgreSQL so far; another one adds a module next to it and a
//! line in each function below.

mod account;
mod install;
mod keeper;
pub(crate) mod postgres;
mod state;

use std::path::PathBuf;
use std::process::ExitCode;

use crate::error::{Error, Result};
use crate::lock::Lock;
use crate::process::quote;
use crate::wants_help;
use crate::workspace::Workspace;

const HELP: &str = "\
Keep the services the tests need running between runs.

Usage: cargo xtask services up|down|status

  up       start what is not running yet and print, on stdout, shell lines with their addresses:
           eval \"$(cargo xtask services up)\" puts them into the environment of a shell
  down     stop what `up` started, and nothing else
  status   say what runs, and where

`cargo xtask test` needs none of this: it starts services of its own and stops them. With services
up it uses those instead, which saves some seconds a run and lets `cargo test` alone reach them:

  eval \"$(cargo xtask services up)\"
  cargo test -p forebay --all-features postgres

PostgreSQL listens on a free port of 127.0.0.1, with its data in a folder of its own below the
system's folder for temporary files; `down` deletes that. What `up` started is on record in
.services/ at the root of the checkout.
";

/// A service that could not be brought up.
#[derive(Debug)]
pub(crate) struct Missing {
    /// What people call it.
    pub(crate) service: &'static str,
    /// The variable that would have held its address.
    pub(crate) variable: &'static str,
    /// Why there is none.
    pub(crate) reason: String,
}

/// The services of one run. Dropping this stops those that were started for it.
#[derive(Debug, Default)]
pub(crate) struct Running {
    env: Vec<(String, String)>,
    missing: Vec<Missing>,
    _own: Vec<postgres::Private>,
}

impl Running {
    /// Finds or starts every service. One that cannot be had is not an error here but in
    /// [`missing`](Self::missing).
    pub(crate) fn acquire(workspace: &Workspace) -> Result<Self> {
        let mut running = Self::default();
        match postgres::acquire(workspace) {
            Ok(postgres::Acquired { url, private }) => {
                running.env.push((postgres::VARIABLE.to_owned(), url.clone()));
                running.env.push((postgres::USUAL_VARIABLE.to_owned(), url));
                running._own.extend(private);
            }
            Err(postgres::Unavailable::Missing(reason)) => running.missing.push(Missing {
                service: postgres::NAME,
                variable: postgres::VARIABLE,
                reason,
            }),
            Err(postgres::Unavailable::Failed(error)) => return Err(error),
        }
        Ok(running)
    }

    /// The variables that tell tests where the services are.
    pub(crate) fn env(&self) -> &[(String, String)] {
        &self.env
    }

    /// The services that are not there.
    pub(crate) fn missing(&self) -> &[Missing] {
        &self.missing
    }
}

/// Runs the command.
pub(crate) fn run(workspace: &Workspace, args: &[String]) -> Result<ExitCode> {
    if wants_help(args) {
        print!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    }
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["up"] => {
            let _lock = lock(workspace)?;
            let url = postgres::up(&state_path(workspace))?;
            println!("export {}={}", postgres::VARIABLE, quote(&url));
        }
        ["down"] => {
            let _lock = lock(workspace)?;
            postgres::down(&state_path(workspace))?;
        }
        ["status"] => println!("{}", postgres::status(&state_path(workspace))),
        [] => print!("{HELP}"),
        _ => {
            return Err(Error::usage("`cargo xtask services` takes one of up, down and status"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Where the record of PostgreSQL is. Not below `target`, so that `cargo clean` does not lose
/// track of a running server.
fn state_path(workspace: &Workspace) -> PathBuf {
    workspace.root.join(".services").join("postgres")
}

fn lock(workspace: &Workspace) -> Result<Lock> {
    Lock::take(&workspace.root.join(".services").join("lock"), "another `cargo xtask services`")
}
