//! Who a server runs as. PostgreSQL refuses to run as root, and the others should not, so root
//! lends them another account; anyone else runs them as themselves.

use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::{Context, Error, Result};

/// The account to run a server as: another one's user and group, or our own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Account(Option<(u32, u32)>);

impl Account {
    /// Our own account, or `postgres` (failing that, `nobody`) when we are root.
    pub(crate) fn unprivileged() -> Result<Self> {
        if !is_root() {
            return Ok(Self(None));
        }
        for name in ["postgres", "nobody"] {
            if let (Some(user), Some(group)) = (id(&["-u", name]), id(&["-g", name])) {
                return Ok(Self(Some((user, group))));
            }
        }
        Err(Error::new("servers should not run as root, and there is no user `nobody` to lend"))
    }

    /// The account that `path` was handed over to.
    pub(crate) fn owner_of(path: &Path) -> Result<Self> {
        let meta = path.metadata().context(|| format!("cannot look at {}", path.display()))?;
        // Only root can act for someone else.
        Ok(Self((is_root() && meta.uid() != 0).then(|| (meta.uid(), meta.gid()))))
    }

    /// Our own account, whatever its rights.
    pub(crate) fn own_account() -> Self {
        Self(None)
    }

    /// `program`, to be run as this account in `dir` with no input.
    pub(crate) fn command(self, program: &Path, dir: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(dir).stdin(Stdio::null());
        if let Some((user, group)) = self.0 {
            // Also drops root's further groups.
            command.uid(user).gid(group);
        }
        command
    }

    /// Makes this account the owner of `path`.
    pub(crate) fn own(self, path: &Path) -> Result<()> {
        match self.0 {
            Some((user, group)) => chown(path, Some(user), Some(group))
                .context(|| format!("cannot hand over {}", path.display())),
            None => Ok(()),
        }
    }

    /// Whether this account may enter `dir`.
    pub(crate) fn can_enter(self, dir: &Path) -> bool {
        let mut command = self.command(Path::new("true"), dir);
        command.status().is_ok_and(|status| status.success())
    }
}

/// Whether this process is root.
pub(crate) fn is_root() -> bool {
    id(&["-u"]) == Some(0)
}

fn id(args: &[&str]) -> Option<u32> {
    let output = Command::new("id").args(args).stderr(Stdio::null()).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}
