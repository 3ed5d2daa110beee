//! Servers that are one plain process: started in the background in their own folder, with their
//! number in a file there and their output in another, and stopped by that number.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Context, Error, Result};
use crate::services::account::Account;
use crate::services::folder::free_port;
use crate::services::service::Service;
use crate::services::state::State;

/// The number is on file before there is a server, and without a folder for it there will be none:
/// whoever stops this has no moment to fear in which it is there but unknown.
const LAUNCH: &str = r#"trap '' HUP; echo $$ >pid && exec "$@""#;

/// `$1` is the server's folder. Numbers are used again: only a process in that folder is stopped.
const STOP: &str = r#"
folder=$1
[ -f "$folder/pid" ] && read -r pid <"$folder/pid" || exit 0
ours() {
    kill -0 "$pid" 2>/dev/null || return 1
    [ ! -e /proc/self/cwd ] || [ "$(readlink "/proc/$pid/cwd")" = "$folder" ]
}
ours && kill "$pid"
tries=0
while ours; do
    tries=$((tries + 1))
    [ "$tries" -ne 100 ] || kill -KILL "$pid"
    [ "$tries" -lt 150 ] || exit 1
    sleep 0.1
done
exit 0
"#;

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long one attempt to talk to it may take.
pub(crate) const REPLY_WITHIN: Duration = Duration::from_secs(2);

/// Starts the command line that `line` gives for a port, and waits until the service answers.
pub(crate) fn start(
    service: &dyn Service,
    programs: &Path,
    account: Account,
    folder: &Path,
    line: impl Fn(u16) -> Vec<String>,
) -> Result<State> {
    // A free port may be taken by someone else before the server gets to it.
    let attempts = 5;
    for _ in 0..attempts {
        let port = free_port()?;
        if let Some(pid) = launch(service, account, folder, port, &line(port))? {
            let (folder, programs) = (folder.to_owned(), programs.to_owned());
            return Ok(State { pid, port, folder, programs });
        }
    }
    Err(Error::new(format!("{} found no free port in {attempts} attempts", service.name())))
}

/// The process that now answers at `port`, or `None` if the port was taken.
fn launch(
    service: &dyn Service,
    account: Account,
    folder: &Path,
    port: u16,
    line: &[String],
) -> Result<Option<u32>> {
    let path = folder.join("log");
    let log = File::create(&path).context(|| format!("cannot create {}", path.display()))?;
    let again = log.try_clone().context(|| "cannot share a file".to_owned())?;
    let mut child = account
        .command(Path::new("/bin/sh"), folder)
        .args(["-c", LAUNCH, "forebay-launch"])
        .args(line)
        .stdout(log)
        .stderr(again)
        // An interrupt from the terminal is for us; the keeper does the rest.
        .process_group(0)
        .spawn()
        .context(|| "cannot start /bin/sh".to_owned())?;
    let pid = child.id();
    // Someone has to take note of its end, or its number stays in use as long as we live.
    let (ended, end) = mpsc::channel();
    thread::spawn(move || ended.send(child.wait()));

    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if let Ok(status) = end.recv_timeout(Duration::from_millis(20)) {
            let text = fs::read_to_string(&path).unwrap_or_default();
            if text.contains("ddress already in use") {
                return Ok(None);
            }
            let status = status.map_or_else(|error| error.to_string(), |s| s.to_string());
            let (name, text) = (service.name(), text.trim());
            return Err(Error::new(format!("{name} does not start: {status}\n{text}")));
        }
        if listens(pid, port) && service.answers(port) {
            return Ok(Some(pid));
        }
    }
    // A private server has its keeper for this; one that is to stay has nobody else.
    let _ = stop_command(account, folder).output();
    let text = fs::read_to_string(&path).unwrap_or_default();
    let (name, text, patience) = (service.name(), text.trim(), PATIENCE.as_secs());
    Err(Error::new(format!("{name} does not answer within {patience}s\n{text}")))
}

/// The command that stops the server in `folder` and waits until it is gone.
pub(crate) fn stop_command(account: Account, folder: &Path) -> Command {
    let mut stop = account.command(Path::new("/bin/sh"), Path::new("/"));
    stop.args(["-c", STOP, "forebay-stop"]).arg(folder);
    stop
}

/// An account without special rights, if it can get at the programs in `folder`; else our own.
pub(crate) fn account(folder: &Path) -> Account {
    match Account::unprivileged() {
        Ok(account) if account.can_enter(folder) => account,
        _ => Account::own_account(),
    }
}

/// Whether the process on record runs in the folder on record.
pub(crate) fn is_ours(state: &State) -> bool {
    let on_file = fs::read_to_string(state.folder.join("pid"))
        .is_ok_and(|text| text.trim() == state.pid.to_string());
    on_file
        && if Path::new("/proc/self/cwd").exists() {
            fs::read_link(format!("/proc/{}/cwd", state.pid)).is_ok_and(|cwd| cwd == state.folder)
        } else {
            let mut probe = Command::new("kill");
            probe.args(["-0", &state.pid.to_string()]);
            probe.output().is_ok_and(|output| output.status.success())
        }
}

/// A connection to `port` for one short question.
pub(crate) fn connect(port: u16) -> std::io::Result<TcpStream> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let stream = TcpStream::connect_timeout(&address, REPLY_WITHIN)?;
    stream.set_read_timeout(Some(REPLY_WITHIN))?;
    Ok(stream)
}

/// Whether `pid` itself listens on `port`, rather than a server of someone who was faster. Where
/// this cannot be seen, an answer has to do.
fn listens(pid: u32, port: u16) -> bool {
    let tables: String = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .collect();
    let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return !Path::new("/proc/self/fd").exists();
    };
    let sockets: Vec<String> =
        listeners(&tables, port).map(|inode| format!("socket:[{inode}]")).collect();
    files.flatten().filter_map(|file| fs::read_link(file.path()).ok()).any(|target| {
        target.to_str().is_some_and(|target| sockets.iter().any(|socket| socket == target))
    })
}

/// The inodes of the sockets that listen on `port`, from the system's tables.
fn listeners(tables: &str, port: u16) -> impl Iterator<Item = &str> {
    const LISTENING: &str = "0A";
    let suffix = format!(":{port:04X}");
    tables.lines().filter_map(move |line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        (local.ends_with(&suffix) && *state == LISTENING).then_some(*inode)
    })
}

#[cfg(test)]
mod tests {
    use super::{is_ours, listeners, listens, stop_command};
    use crate::services::account::Account;
    use crate::services::folder;
    use crate::services::state::State;
    use std::fs;
    use std::net::TcpListener;
    use std::process::{self, Command};

    #[test]
    fn a_listener_is_told_from_a_connection_and_from_other_ports() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0  0 111 1 0 100
   1: 0100007F:1F90 0100007F:9999 01 00000000:00000000 00:00000000 00000000  0  0 222 1 0 100
   2: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0  0 333 1 0 100";
        assert_eq!(listeners(table, 0x1F90).collect::<Vec<_>>(), ["111"]);
        assert_eq!(listeners(table, 80).count(), 0);
    }

    #[test]
    fn a_process_is_seen_to_listen() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(listens(process::id(), port));
    }

    // Elsewhere a process does not show its folder.
    #[cfg(target_os = "linux")]
    #[test]
    fn only_a_process_in_its_folder_is_stopped() {
        let account = Account::own_account();
        let folder = folder::make("daemon-test", account).unwrap();
        let mut stranger = Command::new("sleep").arg("60").current_dir("/").spawn().unwrap();
        fs::write(folder.join("pid"), format!("{}\n", stranger.id())).unwrap();
        let state = State {
            pid: stranger.id(),
            port: 1,
            folder: folder.clone(),
            programs: "/usr/bin".into(),
        };
        assert!(!is_ours(&state));
        assert!(stop_command(account, &folder).status().unwrap().success());
        assert!(stranger.try_wait().unwrap().is_none(), "a stranger was stopped");

        let mut ours = Command::new("sleep").arg("60").current_dir(&folder).spawn().unwrap();
        fs::write(folder.join("pid"), format!("{}\n", ours.id())).unwrap();
        assert!(is_ours(&State { pid: ours.id(), ..state }));
        assert!(stop_command(account, &folder).status().unwrap().success());
        assert!(!ours.wait().unwrap().success());
        stranger.kill().unwrap();
        stranger.wait().unwrap();
        folder::remove(&folder);
    }
}
