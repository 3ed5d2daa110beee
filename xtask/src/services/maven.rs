//! Fetching a Java program with everything it needs. Where from is Maven's business: its settings
//! name the repositories.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::lock::Lock;
use crate::services::install::which;
use crate::services::progress::Progress;

/// Pinned, so that what is fetched once is all that is ever needed.
const GOAL: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies";
/// Two of these and still nothing: the repositories are out of reach.
const ATTEMPTS: u32 = 2;
/// Tens of megabytes over a slow line; a stalled one should not hold up a run for ever.
const PATIENCE: Duration = Duration::from_secs(300);

/// A program in Maven's terms.
#[derive(Debug)]
pub(crate) struct Artifact {
    /// Whose it is.
    pub(crate) group: &'static str,
    /// What it is called.
    pub(crate) name: &'static str,
    /// Which one.
    pub(crate) version: &'static str,
}

/// A folder in `parent` with the files of `artifact` and of all it depends on; fetches them if it
/// is not there yet. The error says why there is none.
pub(crate) fn fetch(artifact: &Artifact, parent: &Path) -> Result<PathBuf, String> {
    let Artifact { name, version, .. } = artifact;
    let folder = parent.join(format!("{name}-{version}"));
    if folder.is_dir() {
        return Ok(folder);
    }
    let mvn = which("mvn").ok_or("there is no Maven (`mvn`) to fetch it with")?;
    let _turn = Lock::take(&parent.join("maven.lock"), "another run to fetch Java programs")
        .map_err(|error| error.to_string())?;
    if folder.is_dir() {
        return Ok(folder);
    }
    eprintln!("xtask: fetching {name} {version} with Maven, once");
    let _progress = Progress::of(format!("fetching {name} {version}"));
    let draft = parent.join(format!("{name}-{version}.draft"));
    let mut reason = String::new();
    for attempt in 1..=ATTEMPTS {
        match fetch_into(artifact, &mvn, &draft) {
            Ok(()) => {
                // Whole or not at all.
                fs::rename(draft.join("files"), &folder)
                    .and_then(|()| fs::remove_dir_all(&draft))
                    .map_err(|error| format!("cannot finish {}: {error}", folder.display()))?;
                return Ok(folder);
            }
            Err(why) => {
                eprintln!("xtask: fetching failed (attempt {attempt} of {ATTEMPTS})");
                reason = why;
            }
        }
    }
    Err(format!("Maven could not fetch it: {reason}"))
}

fn fetch_into(artifact: &Artifact, mvn: &Path, draft: &Path) -> Result<(), String> {
    let trouble = |error: std::io::Error| format!("cannot write {}: {error}", draft.display());
    if draft.exists() {
        fs::remove_dir_all(draft).map_err(trouble)?;
    }
    fs::create_dir_all(draft).map_err(trouble)?;
    fs::write(draft.join("pom.xml"), project(artifact)).map_err(trouble)?;
    let log = draft.join("log");
    let output = File::create(&log).map_err(trouble)?;
    let again = output.try_clone().map_err(trouble)?;
    let mut child = Command::new(mvn)
        // Asks again for what it could not get last time (-U).
        .args(["--batch-mode", "--quiet", "-U", "-Dstyle.color=never", GOAL])
        .arg(format!("-DoutputDirectory={}", draft.join("files").display()))
        .current_dir(draft)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(again)
        .spawn()
        .map_err(|error| format!("cannot start {}: {error}", mvn.display()))?;
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if start.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(100)),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("no end after {}s", PATIENCE.as_secs()));
            }
            Err(error) => return Err(format!("cannot wait for Maven: {error}")),
        }
    };
    if status.success() && draft.join("files").is_dir() {
        return Ok(());
    }
    let text = fs::read_to_string(&log).unwrap_or_default();
    Err(first_error(&text).map_or_else(|| status.to_string(), str::to_owned))
}

/// A project that does nothing but depend on the artifact.
fn project(artifact: &Artifact) -> String {
    let Artifact { group, name, version } = artifact;
    format!(
        "<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>forebay</groupId>
  <artifactId>services</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>{group}</groupId>
      <artifactId>{name}</artifactId>
      <version>{version}</version>
    </dependency>
  </dependencies>
</project>
"
    )
}

/// The line in which Maven says what went wrong; the many after it say how to learn more.
fn first_error(log: &str) -> Option<&str> {
    log.lines().find_map(|line| Some(line.split_once("[ERROR]")?.1.trim()))
}

#[cfg(test)]
mod tests {
    use super::first_error;

    #[test]
    fn of_many_errors_the_first_is_the_reason() {
        let log = "\u{1b}[0m[ERROR] Could not find it -> [Help 1]\n[ERROR] \n[ERROR] Re-run";
        assert_eq!(first_error(log), Some("Could not find it -> [Help 1]"));
        assert_eq!(first_error("killed\n"), None);
    }
}
