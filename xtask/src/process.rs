//! Commands that can be run and shown: each one prints as the line a person would paste into a
//! shell at the workspace root to repeat it.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Context, Error, Result};

/// A command with the variables it sets.
#[derive(Debug, Clone)]
pub(crate) struct Cmd {
    program: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
    dir: PathBuf,
}

impl Cmd {
    /// `program`, to be run in `dir`.
    pub(crate) fn new(program: impl Into<String>, dir: &Path) -> Self {
        Self { program: program.into(), args: Vec::new(), env: Vec::new(), dir: dir.to_owned() }
    }

    /// `cargo` with the words of `line`, to be run in `dir`.
    pub(crate) fn cargo(line: &str, dir: &Path) -> Self {
        Self::new("cargo", dir).args(line.split_whitespace())
    }

    /// Adds arguments.
    pub(crate) fn args(mut self, args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets a variable that is part of the command as shown.
    pub(crate) fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Runs the command with `services` added to its environment, its output going straight to
    /// the terminal. A status other than success is an error.
    pub(crate) fn run(&self, services: &[(String, String)]) -> Result<()> {
        let mut command = if self.program == "cargo" {
            // Cargo names itself to what it runs; that is the toolchain the workspace asked for.
            Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        } else {
            Command::new(&self.program)
        };
        // `cargo run` describes xtask's own package in the environment. Handed on, that would make
        // build scripts which watch these variables run again after every plain `cargo build`.
        for (name, _) in env::vars_os() {
            if name.to_str().is_some_and(describes_package) {
                command.env_remove(&name);
            }
        }
        let status = command
            .args(&self.args)
            .envs(services.iter().map(|(name, value)| (name, value)))
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.dir)
            .status()
            .context(|| format!("cannot start `{}`", self.program))?;
        if status.success() { Ok(()) } else { Err(Error::new(status.to_string())) }
    }
}

impl fmt::Display for Cmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.env {
            write!(f, "{name}={} ", quote(value))?;
        }
        f.write_str(&quote(&self.program))?;
        for arg in &self.args {
            write!(f, " {}", quote(arg))?;
        }
        Ok(())
    }
}

fn describes_package(variable: &str) -> bool {
    variable.starts_with("CARGO_PKG_")
        || matches!(
            variable,
            "CARGO_MANIFEST_DIR" | "CARGO_MANIFEST_PATH" | "CARGO_BIN_NAME" | "CARGO_CRATE_NAME"
        )
}

/// `word` as a shell would have to be given it.
pub(crate) fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::{Cmd, quote};
    use std::path::Path;

    #[test]
    fn a_command_is_shown_as_it_would_be_typed() {
        let cmd = Cmd::cargo("test -p forebay --release", Path::new("."))
            .env("RUSTFLAGS", "--cfg shuttle")
            .args(["--", "it's"]);
        assert_eq!(
            cmd.to_string(),
            r"RUSTFLAGS='--cfg shuttle' cargo test -p forebay --release -- 'it'\''s'"
        );
    }

    #[test]
    fn an_empty_word_stays_a_word() {
        assert_eq!(quote(""), "''");
    }

    #[test]
    fn failure_is_an_error_that_names_the_status() {
        let dir = Path::new(".");
        assert!(Cmd::new("true", dir).run(&[]).is_ok());
        let error = Cmd::new("false", dir).run(&[]).unwrap_err().to_string();
        assert!(error.contains('1'), "{error}");
        let service = [("FOREBAY_TEST_X".to_owned(), "y".to_owned())];
        let check = Cmd::new("sh", dir).args(["-c", r#"test "$FOREBAY_TEST_X" = y"#]);
        assert!(check.run(&service).is_ok());
        assert!(check.run(&[]).is_err());
    }
}
