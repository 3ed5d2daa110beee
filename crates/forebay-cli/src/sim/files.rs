//! Where outputs go. Places are checked before anything runs; a file is written
//! beside its place and renamed, so nobody ever sees half of one.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The places of one kind of output, one for each scenario.
///
/// A directory gets a file for each, named after the scenario's; a file can take
/// one scenario only.
///
/// # Errors
/// If a place cannot be written to, as far as that can be known, or would be
/// written twice, or is a scenario itself.
pub(crate) fn places(
    flag: &str,
    path: &Path,
    extension: &str,
    scenarios: &[PathBuf],
) -> Result<Vec<PathBuf>, String> {
    let shown = path.display();
    let directory = path.is_dir() || shown.to_string().ends_with(std::path::is_separator);
    let places: Vec<PathBuf> = if directory {
        scenarios
            .iter()
            .map(|file| {
                let mut name = file.file_stem().unwrap_or_default().to_owned();
                name.push(format!(".{extension}"));
                path.join(name)
            })
            .collect()
    } else if let [_] = scenarios {
        vec![path.to_owned()]
    } else {
        let n = scenarios.len();
        return Err(format!("{flag} {shown}: {n} scenarios need a directory, and this is none"));
    };
    for (index, place) in places.iter().enumerate() {
        let parent = parent(place);
        if !parent.is_dir() {
            return Err(format!("{flag} {shown}: there is no directory {}", parent.display()));
        }
        if place.is_dir() {
            return Err(format!("{flag} {shown}: {} is a directory", place.display()));
        }
        if places[..index].contains(place) {
            return Err(format!("{flag} {shown}: two scenarios would become {}", place.display()));
        }
        if scenarios.iter().any(|scenario| same(scenario, place)) {
            return Err(format!("{flag} {shown}: that would overwrite a scenario"));
        }
    }
    Ok(places)
}

/// Writes a file whole or not at all.
///
/// # Errors
/// If that fails; then nothing is left behind.
pub(crate) fn write(place: &Path, text: &str) -> io::Result<()> {
    let mut name = std::ffi::OsString::from(".");
    name.push(place.file_name().unwrap_or_default());
    name.push(format!(".{}.tmp", std::process::id()));
    let beside = parent(place).join(name);
    let written = fs::File::create(&beside).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        // a rename must not overtake the bytes
        file.sync_all()?;
        fs::rename(&beside, place)
    });
    if written.is_err() {
        // the first error is the one to be told
        let _ = fs::remove_file(&beside);
    }
    written
}

fn parent(place: &Path) -> &Path {
    place.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether both are the same existing file.
pub(crate) fn same(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}
