//! A run as text for a terminal.

use std::fmt::Write;

use super::figures::{Figure, figures};
use super::sections::{conclusion, outcome, setting, share_of};
use super::words::{count, counted, instant, span};
use crate::record::{Recording, ServiceSample, Verdict};

/// Services that are listed at most.
const SERVICES: usize = 16;
/// And of more than that, those furthest below their target.
const LOWEST: usize = 8;

/// Columns for the names of figures.
pub(crate) const NAMES: usize = 29;
/// What follows the escape character in our colours.
const COLOURS: [&str; 5] = ["[0m", "[1m", "[2m", "[1;31m", "[32m"];

/// What the terminal can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Style {
    /// Colours are wanted.
    pub colour: bool,
    /// It shows characters beyond ASCII.
    pub utf8: bool,
}

/// The summary.
pub fn summary(recording: &Recording, style: Style) -> String {
    let mut text = String::new();
    let name = style.bold(&recording.scenario);
    let _ = writeln!(text, "{name}  {}", setting(recording, " · "));
    verdicts(&mut text, recording, style);
    events(&mut text, recording, style);
    services(&mut text, recording, style);
    let _ = writeln!(text, "\n{}", style.bold("whole run"));
    for figure in figures(recording) {
        total(&mut text, &figure, style);
    }
    for (reason, n) in &recording.totals.discarded {
        row(&mut text, &format!("discarded: {}", spoken(reason)), &count(*n), "", style);
    }
    let end = conclusion(recording);
    let end = if recording.as_expected() { style.green(&end) } else { style.red(&end) };
    let _ = writeln!(text, "\n{end}");
    style.safe(&text)
}

/// A line for each assertion that did not come out as expected: its name, what was
/// asked and seen, and the first instant at which it did not hold.
pub fn failures(recording: &Recording) -> Vec<String> {
    let wrong = recording.verdicts.iter().filter(|verdict| !outcome(verdict).0);
    let line = |verdict: &Verdict| {
        let Verdict { name, asked, seen, .. } = verdict;
        let first = verdict.first_violation.filter(|_| !verdict.held);
        let first = first.map(|at| format!("; first at {}", instant(at))).unwrap_or_default();
        let word = outcome(verdict).1;
        format!("{}: {name} {word}: asked {asked}, seen {seen}{first}", recording.scenario)
    };
    wrong.map(line).collect()
}

fn verdicts(text: &mut String, recording: &Recording, style: Style) {
    if recording.verdicts.is_empty() {
        return;
    }
    let wide = |of: fn(&Verdict) -> &str| {
        recording.verdicts.iter().map(|one| width(of(one))).max().unwrap_or(0)
    };
    let (name, asked, seen) =
        (wide(|one| &one.name), wide(|one| &one.asked), wide(|one| &one.seen));
    let _ = writeln!(text, "\n{}", style.bold("assertions"));
    for verdict in &recording.verdicts {
        let (good, word) = outcome(verdict);
        let mut remarks = Vec::new();
        if let Some(at) = verdict.first_violation.filter(|_| !verdict.held) {
            remarks.push(format!("first at {}", instant(at)));
        }
        if verdict.expected_to_fail {
            remarks.push(word.to_owned());
        }
        let line = format!(
            "  {} {}  {}  {}  {}",
            style.sign(good),
            pad(&verdict.name, name),
            pad(&verdict.asked, asked),
            pad(&verdict.seen, seen),
            if good { remarks.join("; ") } else { style.red(&remarks.join("; ")) },
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

fn events(text: &mut String, recording: &Recording, style: Style) {
    if recording.events.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{}", style.bold("events"));
    let at: Vec<String> = recording.events.iter().map(|mark| instant(mark.at)).collect();
    let wide = at.iter().map(|at| width(at)).max().unwrap_or(0);
    let what = recording.events.iter().map(|mark| width(&mark.what)).max().unwrap_or(0);
    for (at, mark) in at.iter().zip(&recording.events) {
        let after = match mark.recovered_at {
            Some(at) if at > mark.until => format!("recovered in {}", span(at - mark.until)),
            Some(_) => "recovered at once".to_owned(),
            None => style.red("did not recover"),
        };
        let _ = writeln!(text, "  {}  {}  {after}", pad(at, wide), pad(&mark.what, what));
    }
}

fn services(text: &mut String, recording: &Recording, style: Style) {
    let Some(last) = recording.samples.last() else { return };
    let mut all: Vec<(&String, &ServiceSample)> =
        recording.services.iter().zip(&last.services).collect();
    let n = all.len();
    let title = if n > SERVICES {
        let below =
            |one: &ServiceSample| f64::from(one.ready + one.in_use) / f64::from(one.target.max(1));
        all.sort_by(|a, b| below(a.1).total_cmp(&below(b.1)));
        all.truncate(LOWEST);
        format!("the {LOWEST} of {} lowest on their target", counted(n as u64, "service"))
    } else {
        "services at the end".to_owned()
    };
    let names = all.iter().map(|(name, _)| width(name)).max().unwrap_or(0).max(width(&title));
    let columns = ["target", "ready", "in use", "share", "off", "opened", "empty", "failed"];
    let heads: String = columns.iter().map(|head| format!(" {head:>8}")).collect();
    let _ = writeln!(text, "\n{}{}", style.bold(&pad(&title, names + 2)), style.dim(&heads));
    for (name, one) in all {
        let (share, off) = share_of(recording, name);
        let cells = [
            count(one.target.into()),
            count(one.ready.into()),
            count(one.in_use.into()),
            share,
            off,
            count(one.opened),
            count(one.empty),
            count(one.failed),
        ];
        let cells: String = cells.iter().map(|cell| format!(" {cell:>8}")).collect();
        let _ = writeln!(text, "  {}{}", pad(name, names), cells.trim_end());
    }
}

fn total(text: &mut String, figure: &Figure, style: Style) {
    let value = format!("{:>13}", figure.text());
    let value = if figure.is_fault() { style.red(&value) } else { value };
    row(text, figure.name, &value, &figure.remark, style);
}

fn row(text: &mut String, name: &str, value: &str, remark: &str, style: Style) {
    let line = format!("  {}  {value:>13}  {}", pad(name, NAMES), style.dim(remark));
    let _ = writeln!(text, "{}", line.trim_end());
}

/// A name of the code as words.
pub(crate) fn spoken(name: &str) -> String {
    name.replace('_', " ")
}

/// Characters, which is columns for what is written here.
pub(crate) fn width(text: &str) -> usize {
    text.chars().count()
}

/// Filled with spaces to a width.
pub(crate) fn pad(text: &str, to: usize) -> String {
    format!("{text}{}", " ".repeat(to.saturating_sub(width(text))))
}

/// Filled with spaces on the left.
pub(crate) fn pad_left(text: &str, to: usize) -> String {
    format!("{}{text}", " ".repeat(to.saturating_sub(width(text))))
}

impl Style {
    fn with(self, code: &str, text: &str) -> String {
        if self.colour && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.with("1;31", text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.with("32", text)
    }

    /// The sign of a verdict, always as wide as its like.
    pub(crate) fn sign(self, good: bool) -> String {
        match (good, self.utf8) {
            (true, true) => self.green("✓"),
            (false, true) => self.red("✗"),
            (true, false) => self.green("ok    "),
            (false, false) => self.red("FAILED"),
        }
    }

    /// The text as the terminal can show it: nothing that it would take for a command
    /// (but our own colours), and ASCII alone if that is all it shows.
    pub fn safe(self, text: &str) -> String {
        let mut safe = String::with_capacity(text.len());
        for (at, c) in text.char_indices() {
            // of commands only our own colours go through
            let ours = || COLOURS.iter().any(|code| text[at + 1..].starts_with(code));
            match c {
                '\n' => safe.push('\n'),
                '\x1b' if self.colour && ours() => safe.push(c),
                c if c.is_control() => safe.push(if self.utf8 { '\u{fffd}' } else { '?' }),
                c if c.is_ascii() || self.utf8 => safe.push(c),
                'µ' => safe.push('u'),
                '·' => safe.push(','),
                '−' | '–' => safe.push('-'),
                '≤' => safe.push_str("<="),
                '≥' => safe.push_str(">="),
                '×' => safe.push('x'),
                '…' => safe.push_str("..."),
                _ => safe.push('?'),
            }
        }
        safe
    }
}
