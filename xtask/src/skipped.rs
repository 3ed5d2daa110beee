//! Counts the tests that skip themselves when a service is missing, so that a green run without
//! the service says how much it left out.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Context, Result};
use crate::workspace::{Workspace, entries};

/// The number of tests in the integration test files of `crates` that mention `variable`, with
/// the files they are in (relative to the root).
pub(crate) fn count(workspace: &Workspace, variable: &str) -> Result<(usize, Vec<String>)> {
    let mut tests = 0;
    let mut files = Vec::new();
    for package in entries(&workspace.root.join("crates"))? {
        for path in sources(&package.join("tests"))? {
            let source =
                fs::read_to_string(&path).context(|| format!("cannot read {}", path.display()))?;
            if source.contains(variable) {
                tests += count_tests(&source);
                files.push(workspace.relative(&path));
            }
        }
    }
    Ok((tests, files))
}

fn sources(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in entries(dir)? {
        if path.is_dir() {
            found.extend(sources(&path)?);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            found.push(path);
        }
    }
    Ok(found)
}

/// Counts `#[test]`, `#[tokio::test]` and `#[tokio::test(...)]`.
fn count_tests(source: &str) -> usize {
    source
        .lines()
        .filter_map(|line| line.trim().strip_prefix("#["))
        .filter(|attribute| {
            let path = attribute.split(['(', ']']).next().unwrap_or_default();
            path == "test" || path.ends_with("::test")
        })
        .count()
}

#[cfg(test)]
mod tests {
    use super::count_tests;

    #[test]
    fn test_attributes_are_counted_and_others_are_not() {
        let source = "
            #[cfg(test)]
            #[test]
            fn a() {}
            #[tokio::test]
            async fn b() {}
            #[tokio::test(start_paused = true)]
            async fn c() {}
            #[test_case(1)]
            fn d() {}
        ";
        assert_eq!(count_tests(source), 3);
    }
}
