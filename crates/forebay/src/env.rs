//! Settings from the environment: the `DSQL_RESERVOIR_*` variables of the
//! Temporal DSQL plugin, read as leniently as the plugin reads them. What cannot
//! be used is replaced by something that can, logged, and listed, so that a
//! deployment starts and its operator can see with what. Settings given in code
//! are not treated like this: there `build()` refuses.

use std::fmt;
use std::time::Duration;

use crate::settings::Settings;

const ENABLED: &str = "DSQL_RESERVOIR_ENABLED";
const TARGET_READY: &str = "DSQL_RESERVOIR_TARGET_READY";
const LOW_WATERMARK: &str = "DSQL_RESERVOIR_LOW_WATERMARK";
const BASE_LIFETIME: &str = "DSQL_RESERVOIR_BASE_LIFETIME";
const LIFETIME_JITTER: &str = "DSQL_RESERVOIR_LIFETIME_JITTER";
const GUARD_WINDOW: &str = "DSQL_RESERVOIR_GUARD_WINDOW";

/// What the environment asks for.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EnvSettings {
    /// `DSQL_RESERVOIR_ENABLED`: the reservoir's settings rather than
    /// [`Settings::standard`].
    pub enabled: bool,
    /// Settings that `build()` accepts if `max_open` is at least 1.
    pub settings: Settings,
    /// What was given and could not be used as it was.
    pub corrections: Vec<Correction>,
}

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

impl Settings {
    /// Reads the `DSQL_RESERVOIR_*` variables. `max_open` comes from elsewhere,
    /// as it does for the plugin. Every correction is logged as a warning.
    ///
    /// ```
    /// let env = forebay::Settings::from_env(100);
    /// for correction in &env.corrections {
    ///     eprintln!("{correction}");
    /// }
    /// assert!(env.settings.check("default").is_ok());
    /// ```
    pub fn from_env(max_open: u32) -> EnvSettings {
        let var = |name: &str| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned());
        Self::from_vars(var, max_open)
    }

    /// As [`from_env`](Self::from_env), from any other place that has variables.
    ///
    /// ```
    /// use forebay::Settings;
    /// let vars = |name: &str| match name {
    ///     "DSQL_RESERVOIR_ENABLED" => Some("true".to_owned()),
    ///     "DSQL_RESERVOIR_TARGET_READY" => Some("500".to_owned()),
    ///     _ => None,
    /// };
    /// let env = Settings::from_vars(vars, 100);
    /// assert_eq!(env.settings.target_ready(), 100);
    /// assert_eq!(
    ///     env.corrections[0].to_string(),
    ///     "DSQL_RESERVOIR_TARGET_READY: 500 is over max_open (100); using 100"
    /// );
    /// ```
    pub fn from_vars(var: impl Fn(&str) -> Option<String>, max_open: u32) -> EnvSettings {
        let mut reader = Reader { var: &var, corrections: Vec::new() };
        let enabled = reader.boolean(ENABLED);
        let settings = if enabled {
            reader.reservoir(max_open)
        } else {
            // the other variables are the reservoir's, which is off
            Self { max_open, ..Self::standard() }
        };
        for correction in &reader.corrections {
            let Correction { variable, given, used, why } = correction;
            tracing::warn!(variable, given, used, why, "corrected a setting of the environment");
        }
        EnvSettings { enabled, settings, corrections: reader.corrections }
    }
}

struct Reader<'a> {
    var: &'a dyn Fn(&str) -> Option<String>,
    corrections: Vec<Correction>,
}

impl Reader<'_> {
    fn reservoir(&mut self, max_open: u32) -> Settings {
        let mut target_ready = self.count(TARGET_READY, max_open, max_open);
        let low_watermark = self.count(LOW_WATERMARK, max_open, "the target");
        if let (Some(target), Some(low)) = (target_ready, low_watermark)
            && target < low
        {
            let why = format!("is below {LOW_WATERMARK} ({low})");
            self.correct(TARGET_READY, target, low, why);
            target_ready = Some(low);
        }
        let defaults = Settings::default();
        let mut settings = Settings {
            max_open,
            target_ready,
            low_watermark,
            base_lifetime: self.life(BASE_LIFETIME, defaults.base_lifetime),
            lifetime_jitter: self.span(LIFETIME_JITTER, defaults.lifetime_jitter),
            guard_window: self.span(GUARD_WINDOW, defaults.guard_window),
            ..defaults
        };
        self.fit_into_life(&mut settings);
        settings
    }

    /// Shortens what takes up the whole of a connection's life, one after the
    /// other and only as far as needed: jitter to at most half of it, guard
    /// window and lead to at most a quarter. That leaves a quarter of it, and
    /// more, in which a connection can be handed out.
    fn fit_into_life(&mut self, settings: &mut Settings) {
        let life = settings.base_lifetime;
        let why = format!("leaves nothing of a life of {}", Shown(life));
        let usable = |settings: &Settings| {
            let spent = settings.lifetime_jitter / 2 + settings.guard_window + settings.lead;
            spent < life
        };
        let default = Settings::default();
        if !usable(settings) && settings.lifetime_jitter > life / 2 {
            let used = default.lifetime_jitter.min(life / 2);
            self.correct(LIFETIME_JITTER, Shown(settings.lifetime_jitter), Shown(used), &why);
            settings.lifetime_jitter = used;
        }
        if !usable(settings) && settings.guard_window > life / 4 {
            let used = default.guard_window.min(life / 4);
            self.correct(GUARD_WINDOW, Shown(settings.guard_window), Shown(used), &why);
            settings.guard_window = used;
        }
        if !usable(settings) {
            let (lead, used) = (Shown(settings.lead), Shown(life / 4));
            let why = format!("is too short to replace a connection {lead} before it retires");
            self.correct(BASE_LIFETIME, Shown(life), format!("it, with {used} for that"), why);
            settings.lead = life / 4;
        }
    }

    /// The value of a variable; one that is empty counts as not set.
    fn given(&self, name: &str) -> Option<String> {
        let value = (self.var)(name)?;
        let value = value.trim();
        (!value.is_empty()).then(|| value.to_owned())
    }

    fn boolean(&mut self, name: &'static str) -> bool {
        let Some(given) = self.given(name) else { return false };
        match given.as_str() {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
            "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
            _ => {
                self.correct(name, given, "false", "is not a boolean (true, false, 1, 0, t, f)");
                false
            }
        }
    }

    /// A number of connections; `None` leaves the setting to its default.
    fn count(&mut self, name: &'static str, max_open: u32, default: impl ToString) -> Option<u32> {
        let given = self.given(name)?;
        let (used, why) = match given.parse::<i64>() {
            Err(_) => (None, "is not a whole number".to_owned()),
            Ok(..=0) => (None, "is not at least 1".to_owned()),
            Ok(n) if n > i64::from(max_open) => {
                (Some(max_open), format!("is over max_open ({max_open})"))
            }
            Ok(n) => return u32::try_from(n).ok(),
        };
        match used {
            Some(used) => self.correct(name, given, used, why),
            None => self.correct(name, given, default, why),
        }
        used
    }

    /// A duration that may be zero; below that it is taken for zero.
    fn span(&mut self, name: &'static str, default: Duration) -> Duration {
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
    fn life(&mut self, name: &'static str, default: Duration) -> Duration {
        let Some(given) = self.given(name) else { return default };
        let why = match nanoseconds(&given) {
            None => NOT_A_DURATION,
            Some(..=0) => "is not above zero",
            Some(n) => return Duration::from_nanos(n.unsigned_abs()),
        };
        self.correct(name, given, Shown(default), why);
        default
    }

    fn correct(
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
#[derive(Clone, Copy)]
struct Shown(Duration);

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
