//! A private DynamoDB Local: a Java program that Maven fetches once into `.services`, run with its
//! tables in memory and one set of them for everybody, whatever credentials and region they use.
//! It has no setting for the address it listens on, so it listens on all of them.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::Result;
use crate::services::account::Account;
use crate::services::install::which;
use crate::services::maven::{self, Artifact};
use crate::services::service::Service;
use crate::services::state::State;
use crate::services::{daemon, lifecycle};
use crate::workspace::Workspace;

const ARTIFACT: Artifact =
    Artifact { group: "com.amazonaws", name: "DynamoDBLocal", version: "2.6.1" };
const MAIN_CLASS: &str = "com.amazonaws.services.dynamodbv2.local.main.ServerRunner";
/// The oldest Java that runs it.
const JAVA: u32 = 17;

/// Stands for the port in the command line that tests are given.
const PORT: &str = "{port}";

/// DynamoDB Local.
#[derive(Debug)]
pub(crate) struct DynamoDb;

impl Service for DynamoDb {
    fn name(&self) -> &'static str {
        "DynamoDB Local"
    }

    fn word(&self) -> &'static str {
        "dynamodb"
    }

    fn variable(&self) -> &'static str {
        "FOREBAY_TEST_DYNAMODB"
    }

    fn own_variable(&self) -> Option<&'static str> {
        Some("FOREBAY_TEST_DYNAMODB_COMMAND")
    }

    /// The command line of a server, one argument a line (paths may have spaces in them, but not
    /// line breaks), the program first. One of the arguments is `{port}`, to be replaced by the
    /// port. The server may run in any folder and writes nothing there.
    fn own_value(&self, programs: &Path) -> String {
        command_line(&java().unwrap_or_else(|| "java".into()), programs, PORT).join("\n")
    }

    /// The folder with its jars and native libraries.
    fn programs(&self, workspace: &Workspace) -> std::result::Result<PathBuf, String> {
        let java = java().ok_or_else(|| format!("there is no Java ({JAVA} or newer)"))?;
        match java_version(&java) {
            Some(version) if version >= JAVA => {}
            Some(version) => {
                let java = java.display();
                return Err(format!("{java} is Java {version}, and it needs {JAVA} or newer"));
            }
            None => return Err(format!("{} does not tell its version", java.display())),
        }
        maven::fetch(&ARTIFACT, &workspace.services_dir().join("programs"))
    }

    fn account(&self, programs: &Path) -> Result<Account> {
        Ok(daemon::account(programs))
    }

    fn start(&self, programs: &Path, account: Account, folder: &Path) -> Result<State> {
        let java = java().unwrap_or_else(|| "java".into());
        daemon::start(self, programs, account, folder, |port| {
            command_line(&java, programs, &port.to_string())
        })
    }

    fn stop_command(&self, _: &Path, account: Account, folder: &Path, _hurry: bool) -> Command {
        daemon::stop_command(account, folder)
    }

    fn is_ours(&self, state: &State) -> bool {
        daemon::is_ours(state)
    }

    /// Any answer in HTTP will do: an unsigned request is refused, which takes a working server.
    fn answers(&self, port: u16) -> bool {
        let request =
            format!("GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n");
        let mut reply = [0; 7];
        daemon::connect(port)
            .and_then(|mut stream| {
                stream.write_all(request.as_bytes())?;
                stream.read_exact(&mut reply)
            })
            .is_ok_and(|()| reply == *b"HTTP/1.")
    }

    fn url(&self, port: u16) -> String {
        format!("http://127.0.0.1:{port}")
    }
}

fn command_line(java: &Path, programs: &Path, port: &str) -> Vec<String> {
    let (java, programs) = (java.display(), programs.display());
    let mut line = vec![java.to_string()];
    // A small server that is gone in minutes: little memory, and no time for optimising. The
    // performance data would be a file in the folder for temporary files.
    line.extend(
        ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
            .map(str::to_owned),
    );
    line.push(format!("-Djava.library.path={programs}"));
    line.extend(["-cp".to_owned(), format!("{programs}/*"), MAIN_CLASS.to_owned()]);
    line.extend(["-inMemory", "-sharedDb", "-disableTelemetry", "-port", port].map(str::to_owned));
    line
}

/// The Java of `JAVA_HOME`, else the one on the `PATH`.
fn java() -> Option<PathBuf> {
    lifecycle::given("JAVA_HOME")
        .map(|home| PathBuf::from(home).join("bin").join("java"))
        .filter(|java| java.is_file())
        .or_else(|| which("java"))
}

fn java_version(java: &Path) -> Option<u32> {
    let output = Command::new(java).arg("-version").stdin(Stdio::null()).output().ok()?;
    parse_java_version(&String::from_utf8_lossy(&output.stderr))
}

/// The number people use: 17 for `"17.0.15"`, 8 for `"1.8.0_412"`.
fn parse_java_version(text: &str) -> Option<u32> {
    let quoted = text.split("version \"").nth(1)?;
    let mut numbers = quoted.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().ok());
    match numbers.next()?? {
        1 => numbers.next()?,
        version => Some(version),
    }
}

#[cfg(test)]
mod tests {
    use super::{DynamoDb, PORT, parse_java_version};
    use crate::services::service::Service;
    use std::path::Path;

    #[test]
    fn old_and_new_versions_of_java_are_understood() {
        let new = "openjdk version \"17.0.15\" 2025-04-15\nOpenJDK Runtime Environment";
        assert_eq!(parse_java_version(new), Some(17));
        assert_eq!(parse_java_version("openjdk version \"21\" 2023-09-19"), Some(21));
        assert_eq!(parse_java_version("java version \"1.8.0_412\""), Some(8));
        let hint = "Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version \"25-ea\" 2025-09-16";
        assert_eq!(parse_java_version(hint), Some(25));
        assert_eq!(parse_java_version("no Java here"), None);
    }

    #[test]
    fn the_command_for_tests_has_one_argument_a_line_and_a_place_for_the_port() {
        let command = DynamoDb.own_value(Path::new("/a folder/jars"));
        let lines: Vec<&str> = command.lines().collect();
        assert_eq!(lines.iter().filter(|line| **line == PORT).count(), 1);
        assert!(lines.contains(&"/a folder/jars/*"), "{command}");
        assert!(lines.iter().all(|line| !line.is_empty()));
    }
}
