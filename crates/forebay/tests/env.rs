//! Settings from the environment: what is read, what is corrected and how, and
//! that whatever is given ends in settings that a pool accepts.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::{Yard, ms, secs};
use forebay::{Correction, EnvSettings, Pool, Settings};
use proptest::prelude::*;

const PREFIX: &str = "DSQL_RESERVOIR_";

/// Reads variables given without their common prefix.
fn read(vars: &[(&str, &str)], max_open: u32) -> EnvSettings {
    let vars: BTreeMap<String, String> =
        vars.iter().map(|(name, value)| (format!("{PREFIX}{name}"), value.to_string())).collect();
    Settings::from_vars(|name| vars.get(name).cloned(), max_open)
}

/// As `read`, with the reservoir on.
fn reservoir(vars: &[(&str, &str)], max_open: u32) -> EnvSettings {
    let on = [("ENABLED", "true")];
    read(&on.iter().chain(vars).copied().collect::<Vec<_>>(), max_open)
}

fn told(corrections: &[Correction]) -> Vec<String> {
    corrections.iter().map(|correction| correction.to_string().replace(PREFIX, "")).collect()
}

fn lives(settings: &Settings) -> (Duration, Duration, Duration) {
    (settings.base_lifetime, settings.lifetime_jitter, settings.guard_window)
}

#[test]
fn without_variables_it_is_the_standard_mode() {
    let env = read(&[], 40);
    assert!(!env.enabled);
    assert_eq!(env.corrections, []);
    let settings = env.settings;
    assert_eq!((settings.max_open, settings.target_ready()), (40, 40));
    assert_eq!(settings.base_lifetime, secs(55 * 60));
    assert_eq!((settings.max_idle, settings.max_opening), (None, 1));
    assert_eq!((settings.backoff.base, settings.backoff.max), (ms(200), secs(5)));
    assert_eq!((settings.backoff.breaker_after, settings.connect_timeout), (5, secs(10)));
}

#[test]
fn the_reservoir_has_its_own_defaults() {
    let env = reservoir(&[], 40);
    assert!(env.enabled);
    assert_eq!(env.corrections, []);
    let settings = env.settings;
    assert_eq!((settings.target_ready(), settings.low_watermark()), (40, 40));
    assert_eq!(lives(&settings), (secs(660), secs(120), secs(45)));
}

#[test]
fn what_is_given_well_is_used_as_it_is() {
    let env = reservoir(
        &[
            ("TARGET_READY", "50"),
            ("LOW_WATERMARK", " 25 "),
            ("BASE_LIFETIME", "1h30m"),
            ("LIFETIME_JITTER", "0"),
            ("GUARD_WINDOW", "1.5m"),
        ],
        100,
    );
    assert_eq!(env.corrections, []);
    assert_eq!((env.settings.target_ready(), env.settings.low_watermark()), (50, 25));
    assert_eq!(lives(&env.settings), (secs(5400), secs(0), secs(90)));
}

#[test]
fn booleans_are_those_of_go_and_anything_else_is_false() {
    for yes in ["1", "t", "T", "true", "TRUE", "True"] {
        let env = read(&[("ENABLED", yes)], 10);
        assert!(env.enabled && env.corrections.is_empty(), "{yes}");
    }
    for no in ["0", "f", "F", "false", "FALSE", "False", "", " "] {
        let env = read(&[("ENABLED", no)], 10);
        assert!(!env.enabled && env.corrections.is_empty(), "{no:?}");
    }
    let env = read(&[("ENABLED", "yes")], 10);
    assert!(!env.enabled);
    assert_eq!(
        told(&env.corrections),
        ["ENABLED: yes is not a boolean (true, false, 1, 0, t, f); using false"]
    );
}

#[test]
fn with_the_reservoir_off_its_variables_are_not_read() {
    let env = read(&[("TARGET_READY", "many"), ("BASE_LIFETIME", "5m")], 10);
    assert_eq!(env.corrections, []);
    assert_eq!((env.settings.target_ready(), env.settings.base_lifetime), (10, secs(55 * 60)));
}

#[test]
fn a_target_below_the_watermark_is_raised_to_it() {
    let env = reservoir(&[("TARGET_READY", "10"), ("LOW_WATERMARK", "25")], 50);
    assert_eq!((env.settings.target_ready(), env.settings.low_watermark()), (25, 25));
    assert_eq!(
        told(&env.corrections),
        ["TARGET_READY: 10 is below DSQL_RESERVOIR_LOW_WATERMARK (25); using 25"
            .replace(PREFIX, "")]
    );
}

#[test]
fn a_target_alone_takes_the_watermark_along() {
    let env = reservoir(&[("TARGET_READY", "10")], 50);
    assert_eq!((env.settings.target_ready(), env.settings.low_watermark()), (10, 10));
    assert_eq!(env.corrections, []);
}

#[test]
fn counts_that_cannot_be_used_are_corrected() {
    for (given, target, why) in [
        ("0", 50, "is not at least 1; using DEFAULT"),
        ("-3", 50, "is not at least 1; using DEFAULT"),
        ("ten", 50, "is not a whole number; using DEFAULT"),
        ("1.5", 50, "is not a whole number; using DEFAULT"),
        ("99999999999999999999", 50, "is not a whole number; using DEFAULT"),
        ("51", 50, "is over max_open (50); using 50"),
        ("5000000000", 50, "is over max_open (50); using 50"),
    ] {
        let env = reservoir(&[("TARGET_READY", given)], 50);
        assert_eq!(env.settings.target_ready(), target, "{given}");
        let told_as = why.replace("DEFAULT", "50");
        assert_eq!(told(&env.corrections), [format!("TARGET_READY: {given} {told_as}")]);
        let env = reservoir(&[("LOW_WATERMARK", given), ("TARGET_READY", "50")], 50);
        assert_eq!(env.settings.low_watermark(), target, "{given}");
        let told_as = why.replace("DEFAULT", "the target");
        assert_eq!(told(&env.corrections), [format!("LOW_WATERMARK: {given} {told_as}")]);
    }
}

#[test]
fn durations_that_cannot_be_used_are_corrected() {
    let wrong = "is not a duration such as 11m, 1h30m, 45s or 250ms";
    for (name, given, expected, told_as) in [
        ("BASE_LIFETIME", "0", (660, 120, 45), "0 is not above zero; using 11m".to_owned()),
        ("BASE_LIFETIME", "-5m", (660, 120, 45), "-5m is not above zero; using 11m".to_owned()),
        ("BASE_LIFETIME", "11", (660, 120, 45), format!("11 {wrong}; using 11m")),
        ("LIFETIME_JITTER", "-1s", (660, 0, 45), "-1s is negative; using 0ns".to_owned()),
        ("LIFETIME_JITTER", "some", (660, 120, 45), format!("some {wrong}; using 2m")),
        ("GUARD_WINDOW", "-45s", (660, 120, 0), "-45s is negative; using 0ns".to_owned()),
        ("GUARD_WINDOW", "45 s", (660, 120, 45), format!("45 s {wrong}; using 45s")),
    ] {
        let env = reservoir(&[(name, given)], 10);
        let (base, jitter, guard) = expected;
        assert_eq!(lives(&env.settings), (secs(base), secs(jitter), secs(guard)), "{name}={given}");
        assert_eq!(told(&env.corrections), [format!("{name}: {told_as}")]);
    }
}

#[test]
fn a_guard_window_as_long_as_a_life_falls_back() {
    let env = reservoir(&[("GUARD_WINDOW", "11m")], 10);
    assert_eq!(lives(&env.settings), (secs(660), secs(120), secs(45)));
    assert_eq!(
        told(&env.corrections),
        ["GUARD_WINDOW: 11m leaves nothing of a life of 11m; using 45s"]
    );
}

#[test]
fn a_life_too_short_for_the_defaults_shortens_them_with_it() {
    let env = reservoir(&[("BASE_LIFETIME", "30s")], 10);
    assert_eq!(lives(&env.settings), (secs(30), secs(15), ms(7500)));
    assert_eq!(
        told(&env.corrections),
        [
            "LIFETIME_JITTER: 2m leaves nothing of a life of 30s; using 15s",
            "GUARD_WINDOW: 45s leaves nothing of a life of 30s; using 7.5s",
        ]
    );
    let env = reservoir(&[("BASE_LIFETIME", "4s")], 10);
    assert_eq!(env.settings.lead, secs(1));
    assert_eq!(
        told(&env.corrections).last().expect("corrected"),
        "BASE_LIFETIME: 4s is too short to replace a connection 5s before it retires; using it, with 1s for that"
    );
}

/// Runs itself again in a process with the variables, as it may not change its own.
#[test]
fn the_process_environment_is_read() {
    if std::env::var("FOREBAY_TEST_CHILD").is_ok() {
        let env = Settings::from_env(7);
        assert_eq!((env.enabled, env.settings.max_open), (true, 7));
        assert_eq!(env.settings.target_ready(), 3);
        return;
    }
    let status = std::process::Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "the_process_environment_is_read"])
        .envs([("FOREBAY_TEST_CHILD", "1"), ("DSQL_RESERVOIR_ENABLED", "1")])
        .env("DSQL_RESERVOIR_TARGET_READY", "3")
        .status();
    assert!(status.expect("started").success());
}

#[tokio::test(start_paused = true)]
async fn a_pool_of_corrected_settings_works() {
    let env = reservoir(&[("TARGET_READY", "0"), ("BASE_LIFETIME", "1ns")], 3);
    assert_eq!(env.settings.base_lifetime, Duration::from_nanos(1));
    Pool::builder(Yard::new()).settings(env.settings).build().expect("accepted");
    let env = reservoir(&[("TARGET_READY", "2"), ("GUARD_WINDOW", "1h")], 3);
    let builder = Pool::builder(Yard::new()).settings(env.settings);
    let pool = builder.stagger(None).build().expect("accepted");
    pool.filled().await.expect("filled to the watermark");
    assert_eq!(pool.stats().ready(), 2);
}

fn any_value() -> impl Strategy<Value = Option<String>> {
    prop_oneof![
        Just(None),
        "[-+]?[0-9]{0,5}(\\.[0-9]{0,3})?(h|m|s|ms|us|ns)?".prop_map(Some),
        "[0-9]{1,3}m[0-9]{1,2}s".prop_map(Some),
        "\\PC{0,8}".prop_map(Some),
    ]
}

proptest! {
    #[test]
    fn whatever_is_given_a_pool_accepts_the_outcome(
        values in prop::collection::vec(any_value(), 5),
        max_open in 1_u32..200,
    ) {
        let names = ["TARGET_READY", "LOW_WATERMARK", "BASE_LIFETIME", "LIFETIME_JITTER", "GUARD_WINDOW"];
        let env = Settings::from_vars(
            |name| {
                let name = name.strip_prefix(PREFIX)?;
                if name == "ENABLED" {
                    return Some("true".to_owned());
                }
                values[names.iter().position(|known| *known == name)?].clone()
            },
            max_open,
        );
        prop_assert!(env.enabled);
        prop_assert_eq!(env.settings.check("default"), Ok(()), "{:?}", env);
    }
}
