//! The record of a server that `cargo xtask services up` started: where its programs and data are
//! and which process and port it has.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::error::{Context, Error, Result};

/// What is on record about a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct State {
    /// Its process.
    pub(crate) pid: u32,
    /// Its port on the loopback address.
    pub(crate) port: u16,
    /// The folder made for it, which goes when it goes.
    pub(crate) folder: PathBuf,
    /// The folder of its programs.
    pub(crate) programs: PathBuf,
}

impl State {
    /// Reads the record at `path`, if there is one.
    pub(crate) fn read(path: &Path) -> Result<Option<Self>> {
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(&text).map(Some).ok_or_else(|| {
                Error::new(format!("cannot make sense of {}; delete it", path.display()))
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Writes the record to `path`, whole or not at all.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let draft = path.with_extension("new");
        fs::write(&draft, self.to_text())
            .and_then(|()| fs::rename(&draft, path))
            .context(|| format!("cannot write {}", path.display()))
    }

    fn to_text(&self) -> String {
        let Self { pid, port, folder, programs } = self;
        let (folder, programs) = (folder.display(), programs.display());
        format!("pid={pid}\nport={port}\nfolder={folder}\nprograms={programs}\n")
    }

    fn parse(text: &str) -> Option<Self> {
        let value =
            |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        Some(Self {
            pid: value("pid")?.parse().ok()?,
            port: value("port")?.parse().ok()?,
            folder: value("folder")?.into(),
            programs: value("programs")?.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::State;

    #[test]
    fn a_record_reads_back_as_written() {
        let state = State {
            pid: 42,
            port: 5433,
            folder: "/tmp/a=b c".into(),
            programs: "/usr/lib/postgresql/15/bin".into(),
        };
        assert_eq!(State::parse(&state.to_text()), Some(state));
        assert_eq!(State::parse("pid=1\nport=x\n"), None);
    }
}
