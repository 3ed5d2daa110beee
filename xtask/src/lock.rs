//! Advisory file locks between xtask processes. The operating system releases them when the
//! holder ends, however it ends, so a killed run never leaves one behind.

use std::fs::{self, File, TryLockError};
use std::path::Path;

use crate::error::{Context, Result};

/// A lock held until dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock at `path`, creating the file; says on stderr when it has to wait for `whom`.
    pub(crate) fn take(path: &Path, whom: &str) -> Result<Self> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).context(|| format!("cannot create {}", parent.display()))?;
        }
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .context(|| format!("cannot open the lock file {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                eprintln!("xtask: waiting for {whom}");
                file.lock().context(|| format!("cannot lock {}", path.display()))?;
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).context(|| format!("cannot lock {}", path.display()));
            }
        }
        Ok(Self { _file: file })
    }
}
