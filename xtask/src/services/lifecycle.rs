//! The life of a server, whatever its kind: one for a single run, stopped and deleted with it, or
//! one that stays up between runs and is on record in `.services`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Context, Error, Result};
use crate::services::account::Account;
use crate::services::folder;
use crate::services::keeper::Keeper;
use crate::services::progress::Progress;
use crate::services::service::{Missing, Service};
use crate::services::state::State;
use crate::workspace::Workspace;

/// Variables and their values.
pub(crate) type Env = Vec<(String, String)>;

/// What could be had of a service.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The variables that tell tests about it.
    pub(crate) env: Env,
    /// What could not be had.
    pub(crate) missing: Option<Missing>,
    /// Where it comes from, for people.
    pub(crate) origin: Option<String>,
    /// The server itself, if it was started for this run.
    pub(crate) private: Option<Private>,
}

/// A server that stops when this is dropped.
#[derive(Debug)]
pub(crate) struct Private {
    keeper: Option<Keeper>,
    folder: PathBuf,
}

impl Drop for Private {
    fn drop(&mut self) {
        drop(self.keeper.take());
        // The keeper has the server's rights, which may not reach as far as the folder's parent.
        folder::remove(&self.folder);
    }
}

/// The server of the environment, else the one on record, else a private one.
pub(crate) fn acquire(service: &dyn Service, workspace: &Workspace) -> Result<Found> {
    let (name, variable) = (service.name(), service.variable());
    if let Some(url) = given(variable) {
        let mut found = Found {
            env: addresses(service, &url),
            origin: Some(format!("{name}: the one in {variable}")),
            ..Found::default()
        };
        match service.own_variable() {
            Some(own) if given(own).is_none() => match service.programs(workspace) {
                Ok(programs) => found.env.extend(own_servers(service, &programs)),
                Err(reason) => {
                    found.missing = Some(Missing { service: name, variable: own, reason });
                }
            },
            _ => {}
        }
        return Ok(found);
    }
    let recorded = State::read(&workspace.services_dir().join(service.word()))?;
    if let Some(state) = recorded.filter(|state| is_up(service, state)) {
        let url = service.url(state.port);
        let mut env = addresses(service, &url);
        env.extend(own_servers(service, &state.programs));
        let origin = Some(format!("{name}: the one of `cargo xtask services up`, {url}"));
        return Ok(Found { env, origin, ..Found::default() });
    }
    let programs = match service.programs(workspace) {
        Ok(programs) => programs,
        Err(reason) => {
            let missing = Some(Missing { service: name, variable, reason });
            return Ok(Found { missing, ..Found::default() });
        }
    };
    let (state, private) = start_private(service, &programs)?;
    let url = service.url(state.port);
    let mut env = addresses(service, &url);
    env.extend(own_servers(service, &programs));
    let origin = Some(format!("{name}: started for this run, {url}"));
    Ok(Found { env, missing: None, origin, private: Some(private) })
}

/// Starts a server that stays, unless one does already; returns the variables about it.
pub(crate) fn up(service: &dyn Service, workspace: &Workspace) -> Result<Env> {
    let name = service.name();
    let record = workspace.services_dir().join(service.word());
    if let Some(state) = State::read(&record)? {
        if is_up(service, &state) {
            eprintln!("xtask: {name} is up already, process {}", state.pid);
            return Ok(exports(service, &state));
        }
        if service.is_ours(&state) {
            return Err(Error::new(format!(
                "{name}, process {}, is there but does not answer; `cargo xtask services down` \
                 stops it",
                state.pid
            )));
        }
        // It died, or the machine was restarted.
        folder::remove(&state.folder);
    }
    let programs =
        service.programs(workspace).map_err(|why| Error::new(format!("no {name}: {why}")))?;
    let account = service.account(&programs)?;
    let folder = folder::make(service.word(), account)?;
    let progress = Progress::of(format!("starting {name}"));
    let started = service.start(&programs, account, &folder).and_then(|state| {
        state.write(&record).inspect_err(|_| stop(service, &state, account, true))?;
        Ok(state)
    });
    drop(progress);
    let state = started.inspect_err(|_| folder::remove(&folder))?;
    eprintln!("xtask: {name} is up, process {}; its folder is {}", state.pid, folder.display());
    Ok(exports(service, &state))
}

/// Stops the server on record, if it still is the one that was started.
pub(crate) fn down(service: &dyn Service, workspace: &Workspace) -> Result<()> {
    let name = service.name();
    let record = workspace.services_dir().join(service.word());
    let Some(state) = State::read(&record)? else {
        eprintln!("xtask: {name} was not up");
        return Ok(());
    };
    if service.is_ours(&state) {
        let progress = Progress::of(format!("stopping {name}"));
        stop(service, &state, Account::owner_of(&state.folder)?, false);
        drop(progress);
        if service.is_ours(&state) {
            return Err(Error::new(format!("{name}, process {}, does not stop", state.pid)));
        }
        eprintln!("xtask: {name} is down");
    } else {
        eprintln!("xtask: {name} was gone already");
    }
    folder::remove(&state.folder);
    fs::remove_file(&record).context(|| format!("cannot delete {}", record.display()))
}

/// One line about the server on record.
pub(crate) fn status(service: &dyn Service, workspace: &Workspace) -> String {
    let name = service.name();
    match State::read(&workspace.services_dir().join(service.word())) {
        Ok(Some(state)) if is_up(service, &state) => {
            format!("{name}: up, process {}, {}", state.pid, service.url(state.port))
        }
        Ok(Some(state)) if service.is_ours(&state) => {
            format!("{name}: process {} is there but does not answer", state.pid)
        }
        Ok(Some(_)) => format!("{name}: down (it was up, and is gone)"),
        Ok(None) => format!("{name}: down"),
        Err(error) => format!("{name}: unknown ({error})"),
    }
}

/// What the environment says in `variable`, if anything.
pub(crate) fn given(variable: &str) -> Option<String> {
    env::var(variable).ok().filter(|value| !value.is_empty())
}

fn start_private(service: &dyn Service, programs: &Path) -> Result<(State, Private)> {
    let account = service.account(programs)?;
    let folder = folder::make(service.word(), account)?;
    let mut private = Private { keeper: None, folder: folder.clone() };
    // The keeper comes first: a run may well be interrupted while its server is starting.
    let stop = service.stop_command(programs, account, &folder, true);
    private.keeper = Some(Keeper::start(account, &folder, &stop)?);
    let _progress = Progress::of(format!("starting {}", service.name()));
    let state = service.start(programs, account, &folder)?;
    Ok((state, private))
}

fn is_up(service: &dyn Service, state: &State) -> bool {
    service.is_ours(state) && service.answers(state.port)
}

fn stop(service: &dyn Service, state: &State, account: Account, hurry: bool) {
    let mut stop = service.stop_command(&state.programs, account, &state.folder, hurry);
    match stop.output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => eprintln!("xtask: {}", String::from_utf8_lossy(&output.stderr).trim()),
        Err(error) => {
            let program = stop.get_program().to_string_lossy().into_owned();
            eprintln!("xtask: cannot start {program}: {error}");
        }
    }
}

fn addresses(service: &dyn Service, url: &str) -> Env {
    [Some(service.variable()), service.usual_variable()]
        .into_iter()
        .flatten()
        .map(|variable| (variable.to_owned(), url.to_owned()))
        .collect()
}

/// How to start servers of one's own, unless the environment says so already.
fn own_servers(service: &dyn Service, programs: &Path) -> Option<(String, String)> {
    let variable = service.own_variable().filter(|variable| given(variable).is_none())?;
    Some((variable.to_owned(), service.own_value(programs)))
}

/// For a shell that wants to talk to the server on record. The usual variable is left out: it may
/// be in use there for something else.
fn exports(service: &dyn Service, state: &State) -> Env {
    let own =
        service.own_variable().map(|own| (own.to_owned(), service.own_value(&state.programs)));
    [(service.variable().to_owned(), service.url(state.port))].into_iter().chain(own).collect()
}
