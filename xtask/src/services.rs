//! The services tests talk to: bringing them up for one run, and `cargo xtask services`, which
//! keeps them up between runs. A further one adds a module next to these and a line in [`ALL`].

mod account;
mod daemon;
mod dynamodb;
mod folder;
mod install;
mod keeper;
mod lifecycle;
mod maven;
pub(crate) mod postgres;
mod progress;
mod redis;
mod service;
mod state;

use std::process::ExitCode;
use std::thread;

use crate::error::{Error, Result};
use crate::lock::Lock;
use crate::process::quote;
use crate::wants_help;
use crate::workspace::Workspace;

use self::lifecycle::{Env, Found, Private};
pub(crate) use self::service::{Missing, Service};

/// Every service there is.
pub(crate) static ALL: [&dyn Service; 3] =
    [&postgres::Postgres, &redis::Redis, &dynamodb::DynamoDb];

/// The services whose addresses a program looks for, by its source text.
pub(crate) fn named_in(source: &str) -> Vec<&'static dyn Service> {
    let names = |service: &&'static dyn Service| {
        source.contains(service.variable())
            || service.usual_variable().is_some_and(|usual| source.contains(usual))
    };
    ALL.into_iter().filter(names).collect()
}

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

Each listens on a free port, with its data (if any) in a folder of its own below the system's
folder for temporary files; `down` deletes that. PostgreSQL and Redis listen on 127.0.0.1 only;
DynamoDB Local, which has no setting for it, on every address. What `up` started is on record in
.services/ at the root of the checkout; .services/programs/ has what was fetched for it.

  FOREBAY_TEST_POSTGRES           postgres://postgres@127.0.0.1:PORT/postgres
  FOREBAY_TEST_REDIS              redis://127.0.0.1:PORT/
  FOREBAY_TEST_REDIS_SERVER       the program redis-server, for tests that start servers
  FOREBAY_TEST_DYNAMODB           http://127.0.0.1:PORT
  FOREBAY_TEST_DYNAMODB_COMMAND   the command line of a server, for tests that start servers: one
                                  argument a line, the program first, {port} for the port

PostgreSQL and Redis are installed with apt-get if they are missing and this is root on Debian.
DynamoDB Local needs Java 17 or newer, and Maven to fetch it the first time. If one of them cannot
be had the others come up all the same, and `up` ends with an error.
";

/// The services of one run. Dropping this stops those that were started for it.
#[derive(Debug, Default)]
pub(crate) struct Running {
    env: Env,
    missing: Vec<Missing>,
    _own: Vec<Private>,
}

impl Running {
    /// Finds or starts the services, all at once. One that cannot be had is not an error here but
    /// in [`missing`](Self::missing).
    pub(crate) fn acquire(
        workspace: &Workspace,
        services: &[&'static dyn Service],
    ) -> Result<Self> {
        // All of them come before the first error, which stops the others as it is returned.
        let found: Vec<Result<Found>> =
            each(services, |service| lifecycle::acquire(service, workspace));
        let mut running = Self::default();
        for found in found.into_iter().collect::<Result<Vec<Found>>>()? {
            if let Some(origin) = found.origin {
                println!("{origin}");
            }
            running.env.extend(found.env);
            running.missing.extend(found.missing);
            running._own.extend(found.private);
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
            let mut errors = Vec::new();
            for result in each(&ALL, |service| lifecycle::up(service, workspace)) {
                match result {
                    Ok(env) => {
                        for (name, value) in env {
                            println!("export {name}={}", quote(&value));
                        }
                    }
                    Err(error) => errors.push(error),
                }
            }
            all_well(&errors)?;
        }
        ["down"] => {
            let _lock = lock(workspace)?;
            let results = each(&ALL, |service| lifecycle::down(service, workspace));
            all_well(&results.into_iter().filter_map(Result::err).collect::<Vec<_>>())?;
        }
        ["status"] => {
            for service in ALL {
                println!("{}", lifecycle::status(service, workspace));
            }
        }
        [] => print!("{HELP}"),
        _ => {
            return Err(Error::usage("`cargo xtask services` takes one of up, down and status"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Does the same to each service at the same time; the results are in the order of the services.
fn each<T: Send>(
    services: &[&'static dyn Service],
    work: impl Fn(&'static dyn Service) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    thread::scope(|scope| {
        let threads: Vec<_> =
            services.iter().map(|service| scope.spawn(|| work(*service))).collect();
        let panicked = |_| Err(Error::new("a thread panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    })
}

fn all_well(errors: &[Error]) -> Result<()> {
    if errors.is_empty() {
        return Ok(());
    }
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    Err(Error::new(texts.join("\nxtask: ")))
}

fn lock(workspace: &Workspace) -> Result<Lock> {
    Lock::take(&workspace.services_dir().join("lock"), "another `cargo xtask services`")
}
