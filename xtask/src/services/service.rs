//! What xtask has to know about a service to find, start and stop it. Everything that is the same
//! for all of them is in `lifecycle`; servers that are one plain process share `daemon`, too.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Result;
use crate::services::account::Account;
use crate::services::state::State;
use crate::workspace::Workspace;

/// A kind of server the tests talk to.
pub(crate) trait Service: Sync {
    /// What people call it.
    fn name(&self) -> &'static str;

    /// One word for the names of its files and folders.
    fn word(&self) -> &'static str;

    /// The variable in which tests look for its address.
    fn variable(&self) -> &'static str;

    /// The variable in which programs usually look for it.
    fn usual_variable(&self) -> Option<&'static str> {
        None
    }

    /// The variable that tells tests how to start servers of their own, for those that restart
    /// them or need several.
    fn own_variable(&self) -> Option<&'static str> {
        None
    }

    /// What that variable holds.
    fn own_value(&self, _programs: &Path) -> String {
        String::new()
    }

    /// Where its programs are; installs them if need be. The error says why there are none.
    fn programs(&self, workspace: &Workspace) -> std::result::Result<PathBuf, String>;

    /// Who it runs as.
    fn account(&self, programs: &Path) -> Result<Account>;

    /// Makes a server in `folder` and waits until it accepts connections.
    fn start(&self, programs: &Path, account: Account, folder: &Path) -> Result<State>;

    /// The command that stops the server in `folder` and waits until it is gone. `hurry` says that
    /// nobody wants its data.
    fn stop_command(
        &self,
        programs: &Path,
        account: Account,
        folder: &Path,
        hurry: bool,
    ) -> Command;

    /// Whether the process on record is there and still is the server in the folder on record:
    /// after a crash its number may have gone to someone else.
    fn is_ours(&self, state: &State) -> bool;

    /// Whether such a server answers at `port` of the loopback address.
    fn answers(&self, port: u16) -> bool;

    /// The address tests are given for `port`.
    fn url(&self, port: u16) -> String;
}

/// A service, or a part of it, that could not be had.
#[derive(Debug)]
pub(crate) struct Missing {
    /// What people call it.
    pub(crate) service: &'static str,
    /// The variable that would have told tests about it.
    pub(crate) variable: &'static str,
    /// Why there is none.
    pub(crate) reason: String,
}
