//! Trace files: the instants at which requests came, one span after the start a line.

use std::path::Path;
use std::time::Duration;

use super::node::{At, quoted};
use super::span::{parse_span, show_span};
use super::table::Field;
use super::{Fault, read_bounded};

/// The largest trace file.
const TRACE_BYTES_MAX: usize = 16 << 20;
/// The most instants in it.
const INSTANTS_MAX: usize = 1_000_000;

/// Reads the trace that a field names, relative to the scenario's folder. Empty lines
/// and those that begin with `#` do not count.
pub(super) fn read(field: Field<'_>, folder: &Path) -> Result<Vec<Duration>, Fault> {
    let name = field.text()?;
    let path = folder.join(&name);
    let text = read_bounded(&path, TRACE_BYTES_MAX).map_err(|fault| match fault.at {
        None => field.fault(format!("{}: {}", path.display(), fault.message)),
        Some(_) => Fault { file: Some(path.clone()), ..fault },
    })?;
    let mut instants: Vec<Duration> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let word = line.trim();
        if word.is_empty() || word.starts_with('#') {
            continue;
        }
        let refuse = |message: String| {
            let column = line.chars().take_while(|c| c.is_whitespace()).count() as u64 + 1;
            let at = At { line: i as u64 + 1, column };
            Fault { file: Some(path.clone()), ..Fault::new(at, message) }
        };
        let at = parse_span(word).ok_or_else(|| {
            refuse(format!(
                "expected a duration after the start, such as 1.25s; found {}",
                quoted(word)
            ))
        })?;
        if let Some(last) = instants.last()
            && *last > at
        {
            return Err(refuse(format!(
                "{} comes after {}; expected instants after the start in order, not the spans \
                 between them",
                show_span(at),
                show_span(*last)
            )));
        }
        if instants.len() == INSTANTS_MAX {
            return Err(refuse(format!("a trace has at most {INSTANTS_MAX} instants")));
        }
        instants.push(at);
    }
    if instants.is_empty() {
        return Err(field.fault(format!("{}: has no instants in it", path.display())));
    }
    Ok(instants)
}
