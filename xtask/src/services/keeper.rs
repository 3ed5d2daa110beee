//! Cleans up after this process, however it ends. A keeper is a small shell that waits for the
//! end of its input, which comes when xtask closes it or dies (interrupted, killed, panicking);
//! then it runs the command that stops the server and deletes the server's folder.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::error::{Context, Result};
use crate::services::account::Account;

/// `$1` is the folder to delete, the rest the command that stops the server. It has a process
/// group of its own, so an interrupt from the terminal passes it by; the signals are ignored for
/// those who send them to everything.
const SCRIPT: &str = r#"
trap '' HUP INT TERM
while read -r _; do :; done
folder=$1
shift
"$@"
cd /
rm -rf -- "$folder"
"#;

/// A waiting keeper; dropping it makes it act, and waits until it has.
#[derive(Debug)]
pub(crate) struct Keeper(Child);

impl Keeper {
    /// Starts a keeper that will run `stop` as `account` and then delete `folder`.
    pub(crate) fn start(account: Account, folder: &Path, stop: &Command) -> Result<Self> {
        let mut command = account.command(Path::new("/bin/sh"), folder);
        command
            .args(["-c", SCRIPT, "forebay-keeper"])
            .arg(folder)
            .arg(stop.get_program())
            .args(stop.get_args())
            // Holding on to our output would keep a pipeline behind us waiting.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        let child = command.spawn().context(|| "cannot start /bin/sh".to_owned())?;
        Ok(Self(child))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        if let Err(error) = self.0.wait() {
            eprintln!("xtask: cannot wait for the clean-up of a service: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Keeper;
    use crate::services::account::Account;
    use std::env;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::process::{self, Command};

    #[test]
    fn a_dropped_keeper_stops_the_server_and_deletes_its_folder() {
        let parent = env::temp_dir().join(format!("forebay-keeper-test-{}", process::id()));
        let folder = parent.join("a folder");
        fs::create_dir_all(&folder).unwrap();
        fs::set_permissions(&parent, fs::Permissions::from_mode(0o777)).unwrap();
        let account = Account::unprivileged().unwrap();
        account.own(&folder).unwrap();
        fs::write(folder.join("data"), "x").unwrap();

        let stopped = parent.join("stopped");
        let mut stop = Command::new("touch");
        stop.arg(&stopped);
        let keeper = Keeper::start(account, &folder, &stop).unwrap();
        assert!(folder.exists() && !stopped.exists(), "it acted too early");
        drop(keeper);
        assert!(stopped.exists(), "it did not stop the server");
        assert!(!folder.exists(), "it left the folder behind");
        fs::remove_dir_all(&parent).unwrap();
    }
}
