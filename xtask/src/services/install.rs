//! Finding programs, and installing them where that is possible without asking: as root on a
//! Debian-like system.

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::lock::Lock;
use crate::services::account::is_root;
use crate::workspace::entries;

/// Names the folder of PostgreSQL's programs, for installations in unusual places.
const BIN_VARIABLE: &str = "FOREBAY_POSTGRES_BIN";

/// Something Debian has a package of.
#[derive(Debug)]
pub(crate) struct Package {
    /// What people call it.
    pub(crate) name: &'static str,
    /// What Debian calls it.
    pub(crate) debian: &'static str,
    /// What to do where it cannot be installed from here.
    pub(crate) by_hand: &'static str,
}

/// What `find` finds, after installing `package` if need be. The error says why there is nothing.
pub(crate) fn find_or_install(
    package: &Package,
    find: impl Fn() -> Option<PathBuf>,
) -> Result<PathBuf, String> {
    // Another run may be halfway through installing it; half a server is worse than none.
    if is_root() && lock_path().exists() {
        drop(take_turn()?);
    }
    if let Some(found) = find() {
        return Ok(found);
    }
    let by_hand = package.by_hand;
    if !Path::new("/usr/bin/apt-get").is_file() {
        return Err(format!("it is not installed, and there is no apt-get; {by_hand}"));
    }
    if !is_root() {
        return Err(format!("it is not installed, and only root may install it; {by_hand}"));
    }
    let _turn = take_turn()?;
    if let Some(found) = find() {
        return Ok(found);
    }
    eprintln!("xtask: {} is not installed; installing it with apt-get", package.name);
    if !install(package.debian) {
        return Err(format!("it is not installed, and apt-get could not install it; {by_hand}"));
    }
    find().ok_or_else(|| {
        format!("its programs are nowhere to be found after installing it; {by_hand}")
    })
}

/// The program called `name` on the `PATH`.
pub(crate) fn which(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|program| program.is_absolute() && program.is_file())
}

/// The folder with `postgres`, `initdb` and `pg_ctl`.
pub(crate) fn postgres() -> Result<PathBuf, String> {
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
    let package = Package {
        name: "PostgreSQL",
        debian: "postgresql",
        by_hand: "install it (Debian: `apt-get install postgresql`) or name the folder of its \
                  programs in FOREBAY_POSTGRES_BIN",
    };
    find_or_install(&package, find_postgres)
}

/// Looks where Debian and others put the programs, newest version first, then along `PATH`.
fn find_postgres() -> Option<PathBuf> {
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

fn install(package: &str) -> bool {
    let attempts = 3;
    for attempt in 1..=attempts {
        let updated = apt_get(&["update"]);
        if apt_get(&["install", "-y", "--no-install-recommends", package]) {
            return true;
        }
        let trouble = if updated { "install" } else { "update" };
        eprintln!("xtask: apt-get {trouble} failed (attempt {attempt} of {attempts})");
        if attempt < attempts {
            thread::sleep(Duration::from_secs(5));
        }
    }
    false
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
        // What `cargo xtask services up` says on stdout is for a shell to evaluate.
        .stdout(io::stderr())
        .status()
        .is_ok_and(|status| status.success())
}
