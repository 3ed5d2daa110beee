//! The folders servers live in: made fresh below a folder for temporary files, recognisable by
//! their names, so that nothing else is ever deleted.

use std::env;
use std::fs::{self, DirBuilder};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{Context, Error, Result};
use crate::services::account::Account;

/// How the names of these folders begin.
const PREFIX: &str = "forebay-";

/// A folder for a server called `word` that only `account` can look into, in the first place where
/// it may have one.
pub(crate) fn make(word: &str, account: Account) -> Result<PathBuf> {
    // Root's own temporary folder is often closed to others.
    let parents = [env::temp_dir(), PathBuf::from("/tmp"), PathBuf::from("/var/tmp")];
    let parent = parents.iter().find(|parent| account.can_enter(parent)).ok_or_else(|| {
        Error::new("the servers' user may enter none of the folders for temporary files")
    })?;
    // A process is later recognised by its folder, as the system spells it.
    let parent =
        parent.canonicalize().context(|| format!("cannot look up {}", parent.display()))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let folder = parent.join(format!("{PREFIX}{word}-{}-{now}", process::id()));
    DirBuilder::new()
        .mode(0o700)
        .create(&folder)
        .context(|| format!("cannot create {}", folder.display()))?;
    account.own(&folder)?;
    Ok(folder)
}

/// Deletes a folder made here; any other stays.
pub(crate) fn remove(folder: &Path) {
    let made_here = folder
        .file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| name.starts_with(PREFIX));
    if made_here
        && folder.exists()
        && let Err(error) = fs::remove_dir_all(folder)
    {
        eprintln!("xtask: cannot delete {}: {error}", folder.display());
    }
}

/// A port of the loopback address nobody listens on just now.
pub(crate) fn free_port() -> Result<u16> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .context(|| "cannot find a free port".to_owned())
}

#[cfg(test)]
mod tests {
    use super::{make, remove};
    use crate::services::account::Account;
    use std::fs;

    #[test]
    fn only_folders_made_here_are_deleted() {
        let folder = make("folder-test", Account::own_account()).unwrap();
        let other = folder.join("data");
        fs::create_dir(&other).unwrap();
        remove(&other);
        assert!(other.exists());
        remove(&folder);
        assert!(!folder.exists());
    }
}
