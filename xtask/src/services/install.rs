//! Finding the programs of a PostgreSQL server, and installing them where that is possible
//! without asking: as root on a Debian-like system.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::lock::Lock;
use crate::services::account::is_root;
use crate::workspace::entries;

/// Names the folder of the programs, for installations in unusual places.
const BIN_VARIABLE: &str = "FOREBAY_POSTGRES_BIN";

/// The folder with `postgres`, `initdb` and `pg_ctl`; installs them if need be. The error says why
/// there is none.
pub(crate) fn programs() -> Result<PathBuf, String> {
    if let Some(dir) = env::var_os(BIN_VARIABLE).filter(|dir| !dir.is_empty()) {
        let dir = PathBuf::from(dir);
        return if complete(&dir) {
            Ok(dir)
        } else {
            Err(format!(
                "{BIN_VARIABLE} names {}, which lacks postgres, initdb or pg_ctl",
                dir.display()
            ))
        };
    }
    // Another run may be halfway through installing them; half a server is worse than none.
    if is_root() && lock_path().exists() {
        drop(take_turn()?);
    }
    if let Some(dir) = find() {
        return Ok(dir);
    }
    install()?;
    find().ok_or_else(|| "its programs are nowhere to be found after installing it".to_owned())
}

/// Looks where Debian and others put the programs, newest version first, then along `PATH`.
fn find() -> Option<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = Vec::new();
    for dir in entries(Path::new("/usr/lib/postgresql")).unwrap_or_default() {
        let version = dir.file_name().and_then(|name| name.to_str()?.parse().ok()).unwrap_or(0);
        versions.push((version, dir.join("bin")));
    }
    versions.sort();
    let path = env::var_os("PATH").unwrap_or_default();
    versions
        .into_iter()
        .rev()
        .map(|(_, dir)| dir)
        .chain(env::split_paths(&path))
        .find(|dir| complete(dir))
}

fn complete(dir: &Path) -> bool {
    ["postgres", "initdb", "pg_ctl"].iter().all(|program| dir.join(program).is_file())
}

fn install() -> Result<(), String> {
    let by_hand = format!(
        "install it (Debian: `apt-get install postgresql`) or name the folder of its programs in \
         {BIN_VARIABLE}"
    );
    if !Path::new("/usr/bin/apt-get").is_file() {
        return Err(format!("it is not installed, and there is no apt-get; {by_hand}"));
    }
    if !is_root() {
        return Err(format!("it is not installed, and only root may install it; {by_hand}"));
    }
    let _turn = take_turn()?;
    if find().is_some() {
        return Ok(());
    }
    eprintln!("xtask: PostgreSQL is not installed; installing it with apt-get");
    let attempts = 3;
    for attempt in 1..=attempts {
        let updated = apt_get(&["update"]);
        if apt_get(&["install", "-y", "--no-install-recommends", "postgresql"]) {
            return Ok(());
        }
        let trouble = if updated { "install" } else { "update" };
        eprintln!("xtask: apt-get {trouble} failed (attempt {attempt} of {attempts})");
        if attempt < attempts {
            thread::sleep(Duration::from_secs(5));
        }
    }
    Err(format!("it is not installed, and apt-get could not install it; {by_hand}"))
}

/// Package lists and packages have locks of their own, but not all of them can be waited for.
fn take_turn() -> Result<Lock, String> {
    Lock::take(&lock_path(), "another installation").map_err(|error| error.to_string())
}

/// Not in a folder for temporary files, where anyone could hold it: only root installs.
fn lock_path() -> PathBuf {
    PathBuf::from("/run/forebay-xtask-install.lock")
}

fn apt_get(args: &[&str]) -> bool {
    Command::new("apt-get")
        .args(["-q", "-o", "DPkg::Lock::Timeout=300"])
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
