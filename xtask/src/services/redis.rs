//! A private Redis server: alone, on a free port of the loopback address, with nothing on disk.
//! Tests that need a cluster, Sentinel, TLS or restarts start servers of their own; they are told
//! where the program is.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::Result;
use crate::services::account::Account;
use crate::services::daemon;
use crate::services::install::{self, Package, which};
use crate::services::lifecycle::given;
use crate::services::service::Service;
use crate::services::state::State;
use crate::workspace::Workspace;

/// Names the program to tests, and to us if it is set already.
const PROGRAM_VARIABLE: &str = "FOREBAY_TEST_REDIS_SERVER";

/// Debian's `redis-server` is a link to this program of `redis-tools`, plus a system service that
/// starts by itself. We want the program and no service, so we make the link ourselves.
const PROGRAM_OF_TOOLS: &str = "/usr/bin/redis-check-rdb";

/// Redis.
#[derive(Debug)]
pub(crate) struct Redis;

impl Service for Redis {
    fn name(&self) -> &'static str {
        "Redis"
    }

    fn word(&self) -> &'static str {
        "redis"
    }

    fn variable(&self) -> &'static str {
        "FOREBAY_TEST_REDIS"
    }

    fn own_variable(&self) -> Option<&'static str> {
        Some(PROGRAM_VARIABLE)
    }

    /// The path of `redis-server`; with `--sentinel` it is a Sentinel.
    fn own_value(&self, programs: &Path) -> String {
        programs.display().to_string()
    }

    fn programs(&self, workspace: &Workspace) -> std::result::Result<PathBuf, String> {
        if let Some(program) = given(PROGRAM_VARIABLE) {
            let program = PathBuf::from(program);
            return if is_server(&program) {
                Ok(program)
            } else {
                let program = program.display();
                Err(format!("{PROGRAM_VARIABLE} names {program}, which is no redis-server"))
            };
        }
        let link = workspace.services_dir().join("programs").join("redis-server");
        let find =
            || which("redis-server").filter(|program| is_server(program)).or_else(|| linked(&link));
        let package = Package {
            name: self.name(),
            debian: "redis-tools",
            by_hand: "install it (Debian: `apt-get install redis-server`) or name its program in \
                      FOREBAY_TEST_REDIS_SERVER",
        };
        install::find_or_install(&package, find)
    }

    fn account(&self, programs: &Path) -> Result<Account> {
        Ok(daemon::account(programs.parent().unwrap_or(Path::new("/"))))
    }

    fn start(&self, programs: &Path, account: Account, folder: &Path) -> Result<State> {
        daemon::start(self, programs, account, folder, |port| {
            let (program, port) = (programs.display().to_string(), port.to_string());
            let folder = folder.display().to_string();
            let mut line = vec![program, "--port".to_owned(), port, "--dir".to_owned(), folder];
            line.extend(SETTINGS.map(str::to_owned));
            line
        })
    }

    fn stop_command(&self, _: &Path, account: Account, folder: &Path, _hurry: bool) -> Command {
        daemon::stop_command(account, folder)
    }

    fn is_ours(&self, state: &State) -> bool {
        daemon::is_ours(state)
    }

    fn answers(&self, port: u16) -> bool {
        let mut reply = [0; 7];
        daemon::connect(port)
            .and_then(|mut stream| {
                stream.write_all(b"PING\r\n")?;
                stream.read_exact(&mut reply)
            })
            .is_ok_and(|()| reply == *b"+PONG\r\n")
    }

    fn url(&self, port: u16) -> String {
        format!("redis://127.0.0.1:{port}/")
    }
}

/// Nothing is written to disk, for nobody wants the data back.
const SETTINGS: [&str; 8] =
    ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--daemonize", "no"];

/// Whether `program` takes itself for a Redis server.
fn is_server(program: &Path) -> bool {
    Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .is_ok_and(|output| output.stdout.starts_with(b"Redis server "))
}

/// The link to the program of `redis-tools`, made if need be: a server by that name alone.
fn linked(link: &Path) -> Option<PathBuf> {
    if !Path::new(PROGRAM_OF_TOOLS).is_file() {
        return None;
    }
    if !link.exists() {
        fs::create_dir_all(link.parent()?).ok()?;
        // Fails if another run has just made it, which is as good.
        let _ = symlink(PROGRAM_OF_TOOLS, link);
    }
    is_server(link).then(|| link.to_owned())
}
