//! A private PostgreSQL server: made in a fresh folder, listening on a free port of the loopback
//! address only, fast rather than durable, and stopped and deleted by whoever started it.

use std::env;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::{Context, Error, Result};
use crate::services::account::Account;
use crate::services::keeper::Keeper;
use crate::services::state::State;
use crate::services::{install, state_path};
use crate::workspace::Workspace;

/// What people call it.
pub(crate) const NAME: &str = "PostgreSQL";
/// The variable tests look at.
pub(crate) const VARIABLE: &str = "FOREBAY_TEST_POSTGRES";
/// The variable programs usually look at.
pub(crate) const USUAL_VARIABLE: &str = "DATABASE_URL";

/// How the folders of servers are called, so that nothing else is ever deleted.
const FOLDER_PREFIX: &str = "forebay-postgres-";

/// Durability is for data someone wants back.
const SETTINGS: &str = "\
listen_addresses = '127.0.0.1'
max_connections = 200
fsync = off
synchronous_commit = off
full_page_writes = off
autovacuum = off
";

/// A server to talk to.
#[derive(Debug)]
pub(crate) struct Acquired {
    /// Its address.
    pub(crate) url: String,
    /// The server itself, if it was started for this run.
    pub(crate) private: Option<Private>,
}

/// Why there is no server.
#[derive(Debug)]
pub(crate) enum Unavailable {
    /// Its programs are not here.
    Missing(String),
    /// They are, but something went wrong.
    Failed(Error),
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
        remove_folder(&self.folder);
    }
}

/// The server of the environment, else the one on record, else a private one.
pub(crate) fn acquire(workspace: &Workspace) -> std::result::Result<Acquired, Unavailable> {
    if let Some(url) = env::var(VARIABLE).ok().filter(|url| !url.is_empty()) {
        println!("PostgreSQL: the one in {VARIABLE}");
        return Ok(Acquired { url, private: None });
    }
    let recorded = State::read(&state_path(workspace)).map_err(Unavailable::Failed)?;
    if let Some(state) = recorded.filter(is_up) {
        let url = url(state.port);
        println!("PostgreSQL: the one of `cargo xtask services up`, {url}");
        return Ok(Acquired { url, private: None });
    }
    let programs = install::programs().map_err(Unavailable::Missing)?;
    let (state, private) = start_private(&programs).map_err(Unavailable::Failed)?;
    let url = url(state.port);
    println!("PostgreSQL: started for this run, {url}");
    Ok(Acquired { url, private: Some(private) })
}

/// Starts a server that stays, unless one does already; returns its address.
pub(crate) fn up(record: &Path) -> Result<String> {
    if let Some(state) = State::read(record)? {
        if is_up(&state) {
            eprintln!("xtask: PostgreSQL is up already, process {}", state.pid);
            return Ok(url(state.port));
        }
        // It died, or the machine was restarted.
        remove_folder(&state.folder);
    }
    let programs =
        install::programs().map_err(|why| Error::new(format!("no PostgreSQL: {why}")))?;
    let account = Account::unprivileged()?;
    let folder = make_folder(account)?;
    let started = start(&programs, account, &folder).and_then(|state| {
        state.write(record).inspect_err(|_| stop(&state, account, "immediate"))?;
        Ok(state)
    });
    let state = started.inspect_err(|_| remove_folder(&folder))?;
    eprintln!("xtask: PostgreSQL is up, process {}; data in {}", state.pid, folder.display());
    Ok(url(state.port))
}

/// Stops the server on record, if it still is the one that was started.
pub(crate) fn down(record: &Path) -> Result<()> {
    let Some(state) = State::read(record)? else {
        eprintln!("xtask: PostgreSQL was not up");
        return Ok(());
    };
    if is_ours(&state) {
        stop(&state, Account::unprivileged()?, "fast");
        if is_ours(&state) {
            return Err(Error::new(format!("PostgreSQL, process {}, does not stop", state.pid)));
        }
        eprintln!("xtask: PostgreSQL is down");
    } else {
        eprintln!("xtask: PostgreSQL was gone already");
    }
    remove_folder(&state.folder);
    fs::remove_file(record).context(|| format!("cannot delete {}", record.display()))
}

/// One line about the server on record.
pub(crate) fn status(record: &Path) -> String {
    match State::read(record) {
        Ok(Some(state)) if is_up(&state) => {
            format!("PostgreSQL: up, process {}, {}", state.pid, url(state.port))
        }
        Ok(Some(state)) if is_ours(&state) => {
            format!("PostgreSQL: process {} is there but does not answer", state.pid)
        }
        Ok(Some(_)) => "PostgreSQL: down (it was up, and is gone)".to_owned(),
        Ok(None) => "PostgreSQL: down".to_owned(),
        Err(error) => format!("PostgreSQL: unknown ({error})"),
    }
}

fn url(port: u16) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/postgres")
}

fn start_private(programs: &Path) -> Result<(State, Private)> {
    let account = Account::unprivileged()?;
    let folder = make_folder(account)?;
    let mut private = Private { keeper: None, folder: folder.clone() };
    // The keeper comes first: a run may well be interrupted while its server is starting.
    let stop = stop_command(programs, account, &folder, "immediate");
    private.keeper = Some(Keeper::start(account, &folder, &stop)?);
    let state = start(programs, account, &folder)?;
    Ok((state, private))
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

fn stop_command(programs: &Path, account: Account, folder: &Path, mode: &str) -> Command {
    let mut stop = command(programs, "pg_ctl", account, folder);
    stop.args(["stop", "-w", "-t", "30", "-m", mode, "-D"]).arg(folder.join("data"));
    stop
}

fn stop(state: &State, account: Account, mode: &str) {
    let mut stop = stop_command(&state.programs, account, &state.folder, mode);
    match stop.output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => eprintln!("xtask: {}", String::from_utf8_lossy(&output.stderr).trim()),
        Err(error) => eprintln!("xtask: cannot start pg_ctl: {error}"),
    }
}

/// A folder only `account` can look into, in the first place where it may have one.
fn make_folder(account: Account) -> Result<PathBuf> {
    // Root's own temporary folder is often closed to others.
    let parents = [env::temp_dir(), PathBuf::from("/tmp"), PathBuf::from("/var/tmp")];
    let parent = parents.iter().find(|parent| account.can_enter(parent)).ok_or_else(|| {
        Error::new("PostgreSQL's user may enter none of the folders for temporary files")
    })?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let folder = parent.join(format!("{FOLDER_PREFIX}{}-{now}", process::id()));
    DirBuilder::new()
        .mode(0o700)
        .create(&folder)
        .context(|| format!("cannot create {}", folder.display()))?;
    account.own(&folder)?;
    Ok(folder)
}

fn remove_folder(folder: &Path) {
    let made_here = folder
        .file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| name.starts_with(FOLDER_PREFIX));
    if made_here
        && folder.exists()
        && let Err(error) = fs::remove_dir_all(folder)
    {
        eprintln!("xtask: cannot delete {}: {error}", folder.display());
    }
}

fn free_port() -> Result<u16> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .context(|| "cannot find a free port".to_owned())
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

/// Whether the server on record is still there and is the one in its folder.
fn is_ours(state: &State) -> bool {
    identity(&state.folder) == Some((state.pid, state.port)) && process_serves(state)
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

fn is_up(state: &State) -> bool {
    is_ours(state) && answers(state.port)
}

/// Whether a PostgreSQL server answers at `port`: asked for TLS, it says yes or no in one byte.
fn answers(port: u16) -> bool {
    const LENGTH_AND_TLS_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];
    let patience = Duration::from_secs(2);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut reply = [0];
    TcpStream::connect_timeout(&address, patience)
        .and_then(|mut stream| {
            stream.set_read_timeout(Some(patience))?;
            stream.write_all(&LENGTH_AND_TLS_REQUEST)?;
            stream.read_exact(&mut reply)
        })
        .is_ok_and(|()| matches!(reply, [b'S' | b'N']))
}
