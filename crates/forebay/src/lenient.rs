//! Reading variables leniently: what cannot be used is replaced by something that
//! can, logged, and listed, so that a deployment starts and its operator can see
//! with what. The one place that knows how booleans, counts and durations are
//! written; which variables there are is known to those who read them.

use std::fmt;
use std::time::Duration;

/// A variable that was not used as it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Correction {
    /// The variable.
    pub variable: &'static str,
    /// Its value, or its default if that was corrected.
    pub given: String,
    /// What is used instead.
    pub used: String,
    /// What was wrong.
    pub why: String,
}

impl fmt::Display for Correction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { variable, given, used, why } = self;
        write!(f, "{variable}: {given} {why}; using {used}")
    }
}

/// A variable of this process.
pub fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// Reads variables from anywhere and notes what it had to correct.
pub struct Reader<'a> {
    var: &'a dyn Fn(&str) -> Option<String>,
    corrections: Vec<Correction>,
}

impl fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("corrections", &self.corrections).finish_non_exhaustive()
    }
}

impl<'a> Reader<'a> {
    /// Reads what `var` knows.
    pub fn new(var: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { var, corrections: Vec::new() }
    }

    /// Logs the corrections, each as a warning, and lists them.
    pub fn finish(self) -> Vec<Correction> {
        for correction in &self.corrections {
            let Correction { variable, given, used, why } = correction;
            tracing::warn!(variable, given, used, why, "corrected a setting of the environment");
        }
        self.corrections
    }

    /// The value of a variable; one that is empty counts as not set.
    pub fn given(&self, name: &str) -> Option<String> {
        let value = (self.var)(name)?;
        let value = value.trim();
        (!value.is_empty()).then(|| value.to_owned())
    }

    /// A boolean as Go reads it.
    pub fn boolean(&mut self, name: &'static str, default: bool) -> bool {
        let Some(given) = self.given(name) else { return default };
        match given.as_str() {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
            "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
            _ => {
                self.correct(name, given, default, "is not a boolean (true, false, 1, 0, t, f)");
                default
            }
        }
    }

    /// A number of at least 1 and at most `most`, which is called `most_is`; `None`
    /// leaves the setting to its default.
    pub fn count(
        &mut self,
        name: &'static str,
        most: u32,
        most_is: &str,
        default: impl ToString,
    ) -> Option<u32> {
        let given = self.given(name)?;
        let (used, why) = match given.parse::<i64>() {
            Err(_) => (None, "is not a whole number".to_owned()),
            Ok(..=0) => (None, "is not at least 1".to_owned()),
            Ok(n) if n > i64::from(most) => (Some(most), format!("is over {most_is} ({most})")),
            Ok(n) => return u32::try_from(n).ok(),
        };
        match used {
            Some(used) => self.correct(name, given, used, why),
            None => self.correct(name, given, default, why),
        }
        used
    }

    /// A duration that may be zero; below that it is taken for zero.
    pub fn span(&mut self, name: &'static str, default: Duration) -> Duration {
        let Some(given) = self.given(name) else { return default };
        let (used, why) = match nanoseconds(&given) {
            None => (default, NOT_A_DURATION),
            Some(..0) => (Duration::ZERO, "is negative"),
            Some(n) => return Duration::from_nanos(n.unsigned_abs()),
        };
        self.correct(name, given, Shown(used), why);
        used
    }

    /// A duration that may not be zero.
    pub fn life(&mut self, name: &'static str, default: Duration) -> Duration {
        let Some(given) = self.given(name) else { return default };
        let why = match nanoseconds(&given) {
            None => NOT_A_DURATION,
            Some(..=0) => "is not above zero",
            Some(n) => return Duration::from_nanos(n.unsigned_abs()),
        };
        self.correct(name, given, Shown(default), why);
        default
    }

    /// Notes that something else is used than was given.
    pub fn correct(
        &mut self,
        variable: &'static str,
        given: impl ToString,
        used: impl ToString,
        why: impl ToString,
    ) {
        self.corrections.push(Correction {
            variable,
            given: given.to_string(),
            used: used.to_string(),
            why: why.to_string(),
        });
    }
}

const NOT_A_DURATION: &str = "is not a duration such as 11m, 1h30m, 45s or 250ms";

/// A duration as Go reads it, in nanoseconds: numbers, with or without a
/// fraction, each with its unit, and one sign before all; or `0`.
fn nanoseconds(text: &str) -> Option<i64> {
    let (sign, mut rest) = match text.as_bytes().first()? {
        b'-' => (-1, &text[1..]),
        b'+' => (1, &text[1..]),
        _ => (1, text),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i64 = 0;
    while !rest.is_empty() {
        let (whole, after) = digits(rest);
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => digits(after),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let end = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
        let unit: i64 = match &after[..end] {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let whole: i64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        total = total.checked_add(whole.checked_mul(unit)?)?;
        // what is smaller than a nanosecond is cut off
        let mut worth = unit;
        for digit in fraction.bytes() {
            worth /= 10;
            total = total.checked_add(i64::from(digit - b'0') * worth)?;
        }
        rest = &after[end..];
    }
    Some(sign * total)
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// A duration in the syntax it is read in.
#[derive(Debug, Clone, Copy)]
pub struct Shown(pub Duration);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hours, minutes) = (self.0.as_secs() / 3600, self.0.as_secs() / 60 % 60);
        let rest = self.0 - Duration::from_secs(hours * 3600 + minutes * 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        if !rest.is_zero() || self.0.is_zero() {
            write!(f, "{rest:?}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        const SECOND: i64 = 1_000_000_000;
        for (text, expected) in [
            ("11m", Some(660 * SECOND)),
            ("1h30m", Some(5400 * SECOND)),
            ("45s", Some(45 * SECOND)),
            ("250ms", Some(SECOND / 4)),
            ("1.5h", Some(5400 * SECOND)),
            (".5s", Some(SECOND / 2)),
            ("1.s", Some(SECOND)),
            ("1m0.25s", Some(60 * SECOND + SECOND / 4)),
            ("3us2µs1μs7ns", Some(6007)),
            ("0", Some(0)),
            ("-0", Some(0)),
            ("+2s", Some(2 * SECOND)),
            ("-1m30s", Some(-90 * SECOND)),
            ("1.23456789012ns", Some(1)),
            ("", None),
            ("-", None),
            ("45", None),
            ("s", None),
            (".s", None),
            ("1 m", None),
            ("1d", None),
            ("1m-1s", None),
            ("1.2.3s", None),
            ("eleven minutes", None),
            ("9999999999h", None),
            ("99999999999999999999s", None),
        ] {
            assert_eq!(nanoseconds(text), expected, "{text:?}");
        }
    }

    #[test]
    fn what_is_shown_can_be_read_again() {
        for text in ["11m", "1h30m", "45s", "2m45s", "250ms", "7.5s", "0ns", "1h0.001s"] {
            let nanos = nanoseconds(text).expect("a duration");
            let shown = Shown(Duration::from_nanos(nanos.unsigned_abs())).to_string();
            assert_eq!(nanoseconds(&shown), Some(nanos), "{text} became {shown}");
        }
        assert_eq!(Shown(Duration::from_secs(165)).to_string(), "2m45s");
    }
}
