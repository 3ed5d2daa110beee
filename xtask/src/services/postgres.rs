//! A private PostgreSQL server: made in a fresh folder, listening on a free port of the loopback
//! address only, fast rather than durable, and stopped and deleted by whoever started it.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Context, Error, Result};
use crate::services::account::Account;
use crate::services::folder::free_port;
use crate::services::service::Service;
use crate::services::state::State;
use crate::services::{daemon, install};
use crate::workspace::Workspace;

/// The variable tests look at.
pub(crate) const VARIABLE: &str = "FOREBAY_TEST_POSTGRES";
/// The variable programs usually look at.
pub(crate) const USUAL_VARIABLE: &str = "DATABASE_URL";

/// Durability is for data someone wants back.
const SETTINGS: &str = "\
listen_addresses = '127.0.0.1'
max_connections = 200
fsync = off
synchronous_commit = off
full_page_writes = off
autovacuum = off
";

/// PostgreSQL.
#[derive(Debug)]
pub(crate) struct Postgres;

impl Service for Postgres {
    fn name(&self) -> &'static str {
        "PostgreSQL"
    }

    fn word(&self) -> &'static str {
        "postgres"
    }

    fn variable(&self) -> &'static str {
        VARIABLE
    }

    fn usual_variable(&self) -> Option<&'static str> {
        Some(USUAL_VARIABLE)
    }

    fn programs(&self, _: &Workspace) -> std::result::Result<PathBuf, String> {
        install::postgres()
    }

    fn account(&self, _: &Path) -> Result<Account> {
        Account::unprivileged()
    }

    fn start(&self, programs: &Path, account: Account, folder: &Path) -> Result<State> {
        start(programs, account, folder)
    }

    fn stop_command(
        &self,
        programs: &Path,
        account: Account,
        folder: &Path,
        hurry: bool,
    ) -> Command {
        let mode = if hurry { "immediate" } else { "fast" };
        let mut stop = command(programs, "pg_ctl", account, folder);
        stop.args(["stop", "-w", "-t", "30", "-m", mode, "-D"]).arg(folder.join("data"));
        stop
    }

    fn is_ours(&self, state: &State) -> bool {
        identity(&state.folder) == Some((state.pid, state.port)) && process_serves(state)
    }

    /// Asked for TLS, a server says yes or no in one byte.
    fn answers(&self, port: u16) -> bool {
        const LENGTH_AND_TLS_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];
        let mut reply = [0];
        daemon::connect(port)
            .and_then(|mut stream| {
                stream.write_all(&LENGTH_AND_TLS_REQUEST)?;
                stream.read_exact(&mut reply)
            })
            .is_ok_and(|()| matches!(reply, [b'S' | b'N']))
    }

    fn url(&self, port: u16) -> String {
        format!("postgres://postgres@127.0.0.1:{port}/postgres")
    }
}

/// Makes a server in `folder` and waits until it accepts connections.
fn start(programs: &Path, account: Account, folder: &Path) -> Result<State> {
    let data = folder.join("data");
    let mut initdb = command(programs, "initdb", account, folder);
    initdb.args(["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C"]);
    initdb.args(["--no-sync", "--no-instructions", "-D"]).arg(&data);
    let output = initdb.output().context(|| "cannot start initdb".to_owned())?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(Error::new(format!("initdb failed: {}", text.trim())));
    }
    let sockets = folder.display().to_string().replace('\'', "''");
    configure(&data, &format!("{SETTINGS}unix_socket_directories = '{sockets}'\n"))?;

    // A free port may be taken by someone else before the server gets to it.
    let attempts = 5;
    for _ in 0..attempts {
        let port = free_port()?;
        configure(&data, &format!("port = {port}\n"))?;
        let log = folder.join("log");
        // Truncated for each attempt, so that the last one explains itself.
        File::create(&log)
            .context(|| format!("cannot create {}", log.display()))
            .and_then(|_| account.own(&log))?;
        let chatter = folder.join("pg_ctl");
        let chatter =
            File::create(&chatter).context(|| format!("cannot create {}", chatter.display()))?;
        let again = chatter.try_clone().context(|| "cannot share a file".to_owned())?;
        let status = command(programs, "pg_ctl", account, folder)
            .args(["start", "-w", "-t", "60", "-D"])
            .arg(&data)
            .arg("-l")
            .arg(&log)
            .stdout(chatter)
            .stderr(again)
            .status()
            .context(|| "cannot start pg_ctl".to_owned())?;
        if let (true, Some((pid, port))) = (status.success(), identity(folder)) {
            let (folder, programs) = (folder.to_owned(), programs.to_owned());
            return Ok(State { pid, port, folder, programs });
        }
        let text = fs::read_to_string(&log).unwrap_or_default();
        if !text.contains("could not bind") {
            let chatter = fs::read_to_string(folder.join("pg_ctl")).unwrap_or_default();
            return Err(Error::new(format!(
                "PostgreSQL does not start: {}\n{}",
                chatter.trim(),
                text.trim()
            )));
        }
    }
    Err(Error::new(format!("PostgreSQL found no free port in {attempts} attempts")))
}

fn configure(data: &Path, text: &str) -> Result<()> {
    let path = data.join("postgresql.conf");
    OpenOptions::new()
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .context(|| format!("cannot write {}", path.display()))
}

fn command(programs: &Path, name: &str, account: Account, folder: &Path) -> Command {
    let mut command = account.command(&programs.join(name), folder);
    // The caller's own PGDATA, PGPORT and so on are about another server.
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("PG")) {
            command.env_remove(&name);
        }
    }
    command.env("LC_ALL", "C");
    command
}

/// The process and port of the server in `folder`, by its own account.
fn identity(folder: &Path) -> Option<(u32, u16)> {
    let text = fs::read_to_string(folder.join("data").join("postmaster.pid")).ok()?;
    let mut lines = text.lines();
    let pid = lines.next()?.trim().parse().ok()?;
    // Then come the data folder and the time it started.
    let port = lines.nth(2)?.trim().parse().ok()?;
    Some((pid, port))
}

/// Whether the process on record runs on the folder on record: after a crash its number may have
/// gone to someone else. Where processes cannot be looked at this way, `pg_ctl` is the judge.
fn process_serves(state: &State) -> bool {
    if !Path::new("/proc/self/cmdline").exists() {
        return true;
    }
    let folder = state.folder.display().to_string();
    fs::read(format!("/proc/{}/cmdline", state.pid))
        .is_ok_and(|line| String::from_utf8_lossy(&line).contains(&folder))
}
