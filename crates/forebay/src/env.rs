//! Settings from the environment: the `DSQL_RESERVOIR_*` variables of the
//! Temporal DSQL plugin, read as leniently as the plugin reads them. What cannot
//! be used is replaced by something that can, logged, and listed, so that a
//! deployment starts and its operator can see with what. Settings given in code
//! are not treated like this: there `build()` refuses.

use crate::lenient::{Correction, Reader, Shown, variable};
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
        Self::from_vars(variable, max_open)
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
        let mut reader = Reader::new(&var);
        let enabled = reader.boolean(ENABLED, false);
        let settings = if enabled {
            reservoir(&mut reader, max_open)
        } else {
            // the other variables are the reservoir's, which is off
            Self { max_open, ..Self::standard() }
        };
        EnvSettings { enabled, settings, corrections: reader.finish() }
    }
}

fn reservoir(reader: &mut Reader<'_>, max_open: u32) -> Settings {
    let mut target_ready = reader.count(TARGET_READY, max_open, "max_open", max_open);
    let low_watermark = reader.count(LOW_WATERMARK, max_open, "max_open", "the target");
    if let (Some(target), Some(low)) = (target_ready, low_watermark)
        && target < low
    {
        let why = format!("is below {LOW_WATERMARK} ({low})");
        reader.correct(TARGET_READY, target, low, why);
        target_ready = Some(low);
    }
    let defaults = Settings::default();
    let mut settings = Settings {
        max_open,
        target_ready,
        low_watermark,
        base_lifetime: reader.life(BASE_LIFETIME, defaults.base_lifetime),
        lifetime_jitter: reader.span(LIFETIME_JITTER, defaults.lifetime_jitter),
        guard_window: reader.span(GUARD_WINDOW, defaults.guard_window),
        ..defaults
    };
    fit_into_life(reader, &mut settings);
    settings
}

/// Shortens what takes up the whole of a connection's life, one after the
/// other and only as far as needed: jitter to at most half of it, guard
/// window and lead to at most a quarter. That leaves a quarter of it, and
/// more, in which a connection can be handed out.
fn fit_into_life(reader: &mut Reader<'_>, settings: &mut Settings) {
    let life = settings.base_lifetime;
    let why = format!("leaves nothing of a life of {}", Shown(life));
    let usable = |settings: &Settings| {
        let spent = settings.lifetime_jitter / 2 + settings.guard_window + settings.lead;
        spent < life
    };
    let default = Settings::default();
    if !usable(settings) && settings.lifetime_jitter > life / 2 {
        let used = default.lifetime_jitter.min(life / 2);
        reader.correct(LIFETIME_JITTER, Shown(settings.lifetime_jitter), Shown(used), &why);
        settings.lifetime_jitter = used;
    }
    if !usable(settings) && settings.guard_window > life / 4 {
        let used = default.guard_window.min(life / 4);
        reader.correct(GUARD_WINDOW, Shown(settings.guard_window), Shown(used), &why);
        settings.guard_window = used;
    }
    if !usable(settings) {
        let (lead, used) = (Shown(settings.lead), Shown(life / 4));
        let why = format!("is too short to replace a connection {lead} before it retires");
        reader.correct(BASE_LIFETIME, Shown(life), format!("it, with {used} for that"), why);
        settings.lead = life / 4;
    }
}
