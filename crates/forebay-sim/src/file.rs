//! Scenario files. One format in YAML: our keys, and those of the seeds' simulator
//! unchanged. What is left out has the values of Aurora DSQL's connection contract, of
//! a Redis that keeps the books, and of the pool's own settings. What is unknown,
//! impossible or contradictory is refused with its line and column, so whatever comes
//! out of here can be run.
//!
//! Spans of time are written `45s`, `1h30m`, `100ms`; rates are plain numbers a second;
//! shares are `0.5` or `50%`. A spread of time is a span (always the same), or
//! `{p50, p99}`, `{mean}` or `{min, max}`.

mod assertion;
mod backend;
mod event;
mod keys;
mod nearest;
mod node;
mod service;
mod span;
mod table;
mod trace;
mod whole;

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::scenario::Scenario;
use nearest::nearest;
use node::At;
use table::{Field, Table};

/// The largest scenario file.
const FILE_BYTES_MAX: usize = 4 << 20;
/// The longest run.
const DURATION_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// A scenario file that cannot be run: which, where, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileError {
    file: String,
    at: Option<At>,
    message: String,
}

impl FileError {
    /// The file: the scenario's, or a trace that it names.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The line, from 1; `None` if the file could not be read at all.
    pub fn line(&self) -> Option<u64> {
        self.at.map(|at| at.line)
    }

    /// The column, from 1.
    pub fn column(&self) -> Option<u64> {
        self.at.map(|at| at.column)
    }

    /// What is wrong and what was expected.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some(At { line, column }) => {
                write!(f, "{}:{line}:{column}: {}", self.file, self.message)
            }
            None => write!(f, "{}: {}", self.file, self.message),
        }
    }
}

impl std::error::Error for FileError {}

/// What is wrong and where, before it is known in which file.
#[derive(Debug)]
struct Fault {
    /// If it is not in the scenario's own file.
    file: Option<PathBuf>,
    at: Option<At>,
    message: String,
}

impl Fault {
    fn new(at: At, message: impl Into<String>) -> Self {
        Self { file: None, at: Some(at), message: message.into() }
    }

    fn somewhere(at: Option<At>, message: impl Into<String>) -> Self {
        Self { file: None, at, message: message.into() }
    }

    fn and(mut self, hint: &str) -> Self {
        self.message.push_str(hint);
        self
    }

    fn in_file(self, scenario: &Path) -> FileError {
        let file = self.file.as_deref().unwrap_or(scenario);
        FileError { file: file.display().to_string(), at: self.at, message: self.message }
    }
}

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// If the file cannot be read, or describes nothing that can be run.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, FileError> {
        let path = path.as_ref();
        let text = read_bounded(path, FILE_BYTES_MAX).map_err(|fault| {
            let hint = if fault.at.is_none() { near_file(path) } else { String::new() };
            fault.and(&hint).in_file(path)
        })?;
        Self::parse(&text, path)
    }

    /// Reads a scenario from the text of a file, which is named in errors, gives the
    /// scenario its name if the text does not, and next to which traces are looked for.
    ///
    /// # Errors
    /// If the text describes nothing that can be run.
    pub fn parse(text: &str, file: impl AsRef<Path>) -> Result<Self, FileError> {
        let file = file.as_ref();
        read(text, file).map_err(|fault| fault.in_file(file))
    }
}

fn read(text: &str, file: &Path) -> Result<Scenario, Fault> {
    if text.len() > FILE_BYTES_MAX {
        return Err(too_large(FILE_BYTES_MAX));
    }
    let root = node::read(text)?;
    let table = Table::new(&root, "a scenario", keys::SCENARIO)?;

    let duration_field = table.need("duration")?;
    let duration = duration_field.span_above_zero()?;
    if duration > DURATION_MAX {
        let most = span::show_span(DURATION_MAX);
        return Err(duration_field
            .fault(format!("is {}; a run may last {most} at most", span::show_span(duration))));
    }
    let name = match table.get("name") {
        Some(field) => field.name()?,
        None => stem(file),
    };
    let seed = or(table.get("seed"), 1, |field| field.whole(0..=u64::MAX))?;
    let sample_every = or(table.get("sample_every"), Duration::from_secs(1), |field| {
        let every = field.span_above_zero()?;
        if every > duration {
            return Err(field.fault(format!(
                "({}) is longer than the run ({} of `duration`)",
                span::show_span(every),
                span::show_span(duration)
            )));
        }
        Ok(every)
    })?;
    let sample_every = sample_every.min(duration);

    let backends = backend::read_all(&table)?;
    let coordinator = backend::read_coordinator(table.get("coordinator"))?;
    let folder = file.parent().unwrap_or_else(|| Path::new(""));
    let services = service::read_all(table.need("services")?, &backends, folder)?;
    let mut scenario = Scenario {
        name,
        seed,
        duration,
        sample_every,
        backends,
        coordinator,
        services,
        events: Vec::new(),
        assertions: Default::default(),
        expect_failures: Vec::new(),
    };
    scenario.assertions = assertion::read(&table, &scenario)?;
    scenario.events = event::read_all(&table, &scenario)?;
    scenario.expect_failures = assertion::read_expected(table.get("expect_failures"), &scenario)?;
    whole::check(&table, &scenario)?;
    Ok(scenario)
}

/// A key's value, or what holds without it.
fn or<'n, T>(
    field: Option<Field<'n>>,
    otherwise: T,
    read: impl FnOnce(Field<'n>) -> Result<T, Fault>,
) -> Result<T, Fault> {
    field.map_or(Ok(otherwise), read)
}

/// As [`or`], where the word `none` is a value too.
fn or_none<'n, T>(
    field: Option<Field<'n>>,
    otherwise: Option<T>,
    read: impl FnOnce(Field<'n>) -> Result<T, Fault>,
) -> Result<Option<T>, Fault> {
    match field {
        Some(field) if field.is_none() => Ok(None),
        Some(field) => read(field).map(Some).map_err(|fault| match field.node.value {
            node::Value::Nothing => fault.and(" (write `none` if that is meant)"),
            _ => fault,
        }),
        None => Ok(otherwise),
    }
}

/// One of the names that there are.
fn known_name<'k>(
    field: Field<'_>,
    what: &str,
    known: impl Iterator<Item = &'k str> + Clone,
) -> Result<String, Fault> {
    let name = field.text()?;
    if known.clone().any(|known| known == name) {
        return Ok(name);
    }
    const LISTED: usize = 5;
    let hint = nearest(&name, known.clone()).map_or_else(
        || {
            let names: Vec<_> =
                known.clone().take(LISTED).map(|name| format!("`{name}`")).collect();
            let more = known.count().saturating_sub(LISTED);
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            format!("there are {}{more}", names.join(", "))
        },
        |near| format!("did you mean `{near}`?"),
    );
    Err(Fault::new(field.node.at, format!("there is no {what} {}; {hint}", node::quoted(&name))))
}

/// The file's name without its ending.
fn stem(file: &Path) -> String {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    if table::is_name(&stem) { stem.into_owned() } else { "scenario".to_owned() }
}

/// Reads a file of text that must not be larger than it should.
fn read_bounded(path: &Path, bytes_max: usize) -> Result<String, Fault> {
    let unreadable = |error: std::io::Error| {
        let message = match error.kind() {
            std::io::ErrorKind::NotFound => "no such file".to_owned(),
            _ => format!("cannot be read: {error}"),
        };
        Fault::somewhere(None, message)
    };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(bytes_max as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() > bytes_max {
        return Err(too_large(bytes_max));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = good.iter().filter(|byte| **byte == b'\n').count() + 1;
        let last = good.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        let column = String::from_utf8_lossy(last).chars().count() + 1;
        let at = At { line: line as u64, column: column as u64 };
        Fault::new(at, "expected text in UTF-8; found a byte that is none")
    })
}

fn too_large(bytes_max: usize) -> Fault {
    Fault::somewhere(None, format!("is larger than {} MiB", bytes_max >> 20))
}

/// A hint at the file that was probably meant.
fn near_file(path: &Path) -> String {
    const LISTED_MAX: usize = 1000;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let Ok(listing) = std::fs::read_dir(folder.unwrap_or_else(|| Path::new("."))) else {
        return String::new();
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut names: Vec<_> = listing
        .take(LISTED_MAX)
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.ends_with(".yaml") || name.ends_with(".yml"))
        .collect();
    names.sort();
    match nearest(&name, names.iter().map(String::as_str)) {
        Some(near) if !path.exists() => {
            format!("; did you mean `{}`?", path.with_file_name(near).display())
        }
        _ => String::new(),
    }
}
