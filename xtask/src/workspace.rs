//! Where things are: the workspace root, the target folder, and the examples and benchmarks found
//! on disk, so that a new file is picked up without a list to edit.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Context, Error, Result};

/// The checkout this xtask belongs to.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// The folder with the workspace's `Cargo.toml`.
    pub(crate) root: PathBuf,
}

/// A program found as a source file: an example or a benchmark.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// The name cargo gives it.
    pub(crate) name: String,
    /// The folder of its package, relative to the root.
    pub(crate) package_dir: PathBuf,
    /// The first line of its `//!` text.
    pub(crate) about: String,
    /// Its source text.
    pub(crate) source: String,
}

impl Workspace {
    /// Finds the root: the parent of xtask's own folder.
    pub(crate) fn locate() -> Result<Self> {
        // What cargo says at run time wins, for the binary may have been built elsewhere.
        let manifest_dir = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        match manifest_dir.parent() {
            Some(root) if root.join("Cargo.toml").is_file() => Ok(Self { root: root.to_owned() }),
            _ => Err(Error::new(format!(
                "no workspace above {}; run this as `cargo xtask`",
                manifest_dir.display()
            ))),
        }
    }

    /// The folder cargo builds into.
    pub(crate) fn target_dir(&self) -> PathBuf {
        match env::var_os("CARGO_TARGET_DIR") {
            Some(dir) if !dir.is_empty() => self.root.join(dir),
            _ => self.root.join("target"),
        }
    }

    /// The folder with the record of running services and the programs fetched for them. Not below
    /// `target`, so that `cargo clean` neither loses track of a running server nor pulls its
    /// programs from under it.
    pub(crate) fn services_dir(&self) -> PathBuf {
        self.root.join(".services")
    }

    /// `path` as seen from the root where it lies below it.
    pub(crate) fn relative(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).display().to_string()
    }

    /// The benchmarks: every program in `bench/src/bin`, and in that folder of the packages below
    /// `bench`, which are apart for the sake of what they depend on.
    pub(crate) fn benches(&self) -> Result<Vec<Program>> {
        let bench = Path::new("bench");
        let mut found = self.programs(bench, "src/bin")?;
        for path in entries(&self.root.join(bench))? {
            if path.join("Cargo.toml").is_file() {
                let dir = path.strip_prefix(&self.root).unwrap_or(&path);
                found.extend(self.programs(dir, "src/bin")?);
            }
        }
        Ok(found)
    }

    /// The examples of every crate in `crates`.
    pub(crate) fn examples(&self) -> Result<Vec<Program>> {
        let mut found = Vec::new();
        for package in entries(&self.root.join("crates"))? {
            let dir = package.strip_prefix(&self.root).unwrap_or(&package);
            found.extend(self.programs(dir, "examples")?);
        }
        Ok(found)
    }

    fn programs(&self, package_dir: &Path, folder: &str) -> Result<Vec<Program>> {
        let mut found = Vec::new();
        for path in entries(&self.root.join(package_dir).join(folder))? {
            let main = if path.is_dir() { path.join("main.rs") } else { path.clone() };
            let (Some(name), true) = (
                path.file_stem().and_then(|stem| stem.to_str()),
                main.extension().is_some_and(|ext| ext == "rs") && main.is_file(),
            ) else {
                continue;
            };
            let source =
                fs::read_to_string(&main).context(|| format!("cannot read {}", main.display()))?;
            found.push(Program {
                name: name.to_owned(),
                package_dir: package_dir.to_owned(),
                about: first_doc_line(&source),
                source,
            });
        }
        Ok(found)
    }
}

/// What a folder holds, sorted by name; nothing when there is no such folder.
pub(crate) fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    if !dir.is_dir() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).context(|| format!("cannot list {}", dir.display()))? {
        found.push(entry.context(|| format!("cannot list {}", dir.display()))?.path());
    }
    found.sort();
    Ok(found)
}

/// The name a package's manifest in `dir` gives it.
pub(crate) fn package_name(dir: &Path) -> Result<String> {
    let manifest = dir.join("Cargo.toml");
    let text =
        fs::read_to_string(&manifest).context(|| format!("cannot read {}", manifest.display()))?;
    parse_package_name(&text)
        .ok_or_else(|| Error::new(format!("{} names no package", manifest.display())))
}

/// The `name` of the `[package]` table; enough TOML for manifests as cargo writes them.
fn parse_package_name(manifest: &str) -> Option<String> {
    manifest
        .lines()
        .map(str::trim)
        .skip_while(|line| *line != "[package]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .find_map(|line| {
            let (key, value) = line.split_once('=')?;
            (key.trim() == "name").then(|| value.trim().trim_matches('"').to_owned())
        })
}

/// The first line of a file's `//!` text, or nothing.
fn first_doc_line(source: &str) -> String {
    source
        .lines()
        .find_map(|line| line.strip_prefix("//!"))
        .map_or_else(String::new, |line| line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::{first_doc_line, parse_package_name};

    #[test]
    fn the_first_doc_line_describes_a_file() {
        assert_eq!(first_doc_line("//! Checkout cost.\n//! More.\nfn main() {}"), "Checkout cost.");
        assert_eq!(first_doc_line("#![allow(x)]\n//! Late.\n"), "Late.");
        assert_eq!(first_doc_line("fn main() {}"), "");
    }

    #[test]
    fn a_package_is_named_by_its_package_table() {
        let manifest =
            "[lib]\nname = \"other\"\n\n[package]\nedition = \"2024\"\nname = \"bench\"\n";
        assert_eq!(parse_package_name(manifest).as_deref(), Some("bench"));
        assert_eq!(parse_package_name("[package]\n[lib]\nname = \"other\""), None);
    }
}
