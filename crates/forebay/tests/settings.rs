//! What `build()` refuses: settings that are zero or contradict each other, with
//! the names and the values of both sides in the message, and pools without a
//! source, with too many, with two of one name, or without a runtime.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::time::Duration;

use common::{Yard, ms, pass, secs};
use forebay::{BackoffSettings, BuildError, Builder, Pool, Rate, Settings, SourceSpec};

/// The error of a pool with these settings.
fn refused(change: impl FnOnce(Builder<Yard>) -> Builder<Yard>) -> String {
    let builder = change(Pool::builder(Yard::new()).stagger(None));
    builder.build().err().expect("a setting that cannot work").to_string()
}

#[tokio::test(start_paused = true)]
async fn a_zero_is_refused_by_name() {
    let zero = Duration::ZERO;
    let no_wait = BackoffSettings { base: zero, ..BackoffSettings::default() };
    let no_breaker = BackoffSettings { breaker_after: 0, ..BackoffSettings::default() };
    let weightless = Settings { weight: 0, ..Settings::default() };
    for (name, text) in [
        ("max_open", refused(|b| b.max_open(0))),
        ("max_opening", refused(|b| b.max_opening(0))),
        ("weight", refused(|b| b.settings(weightless))),
        ("max_in_use", refused(|b| b.max_in_use(0))),
        ("breaker_after", refused(|b| b.backoff(no_breaker))),
        ("base_lifetime", refused(|b| b.base_lifetime(zero))),
        ("connect_timeout", refused(|b| b.connect_timeout(zero))),
        ("reset_timeout", refused(|b| b.reset_timeout(zero))),
        ("check_timeout", refused(|b| b.check_timeout(zero))),
        ("hard_life", refused(|b| b.hard_life(Some(zero)))),
        ("idle_check", refused(|b| b.idle_check(Some(zero)))),
        ("backoff.base", refused(|b| b.backoff(no_wait))),
    ] {
        assert_eq!(text, format!("source `default`: {name} is 0; it must be at least 1"));
    }
    // a hand-off that must be claimed in no time could never be claimed
    assert_eq!(refused(|b| b.claim_within(zero)), "claim_within is 0; it must be at least 1");
}

#[tokio::test(start_paused = true)]
async fn counts_that_contradict_each_other_are_refused_with_both_values() {
    for (error, text) in [
        (
            refused(|b| b.max_open(5).target_ready(6)),
            "target_ready (6) must not exceed max_open (5)",
        ),
        (refused(|b| b.max_open(5).min_idle(6)), "min_idle (6) must not exceed max_open (5)"),
        (
            refused(|b| b.max_open(5).target_ready(3).min_idle(4)),
            "min_idle (4) must not exceed target_ready (3)",
        ),
        (
            refused(|b| b.max_open(5).target_ready(3).low_watermark(4)),
            "low_watermark (4) must not exceed target_ready (3)",
        ),
        (refused(|b| b.max_open(5).max_in_use(6)), "max_in_use (6) must not exceed max_open (5)"),
    ] {
        assert_eq!(error, format!("source `default`: {text}"));
    }
}

#[tokio::test(start_paused = true)]
async fn spans_that_contradict_each_other_are_refused_with_both_values() {
    let backoff = BackoffSettings::default();
    let high_base = BackoffSettings { base: secs(6), ..backoff };
    let high_max = BackoffSettings { max: secs(31), ..backoff };
    for (error, text) in [
        (
            refused(|b| b.base_lifetime(secs(45)).lifetime_jitter(ms(0))),
            "guard_window (45s) must be below base_lifetime (45s)",
        ),
        (
            refused(|b| b.base_lifetime(secs(60)).lifetime_jitter(secs(120))),
            "lifetime_jitter / 2 (60s) must be below base_lifetime (60s)",
        ),
        (
            refused(|b| b.base_lifetime(secs(60)).lifetime_jitter(secs(20))),
            "guard_window + lead (50s) must be below base_lifetime - lifetime_jitter / 2 (50s)",
        ),
        (
            refused(|b| b.hard_life(Some(secs(12 * 60)))),
            "base_lifetime + lifetime_jitter / 2 (720s) must be below hard_life (720s)",
        ),
        (refused(|b| b.backoff(high_base)), "backoff.base (6s) must not exceed backoff.max (5s)"),
        (
            refused(|b| b.backoff(high_max)),
            "backoff.max (31s) must not exceed backoff.breaker_max (30s)",
        ),
    ] {
        assert_eq!(error, format!("source `default`: {text}"));
    }
}

#[tokio::test(start_paused = true)]
async fn settings_at_their_bounds_are_accepted_and_work() {
    let pool = Pool::builder(Yard::new())
        .max_open(5)
        .target_ready(5)
        .low_watermark(5)
        .min_idle(5)
        .max_in_use(5)
        .base_lifetime(secs(60))
        .lifetime_jitter(secs(20) - ms(1))
        .hard_life(Some(secs(70)))
        .stagger(None)
        .build()
        .expect("each value is just within its bound");
    pass(secs(600)).await;
    assert_eq!((pool.stats().ready(), pool.audit()), (5, vec![]));
}

#[tokio::test(start_paused = true)]
async fn spans_without_end_neither_panic_nor_hinder() {
    let forever = Duration::MAX;
    let text = refused(|b| b.guard_window(forever));
    assert!(text.starts_with("source `default`: guard_window (18446744073709551615."), "{text}");
    let pool = Pool::builder(Yard::new())
        .max_open(2)
        .base_lifetime(forever)
        .max_idle(Some(forever))
        .idle_check(Some(forever))
        .connect_timeout(forever)
        .reset_timeout(forever)
        .check_timeout(forever)
        .close_grace(forever)
        .timeout(forever)
        .claim_within(forever)
        .initial_fill(forever)
        .stagger(None)
        .build()
        .expect("a life without end is a life");
    pool.filled().await.expect("filled");
    let (held, other) = (pool.get().await.expect("one"), pool.get().await.expect("the other"));
    let third = pool.clone();
    let waiter = tokio::spawn(async move {
        let options = forebay::GetOptions::new().timeout(forever);
        third.get_with(options).await.map(|conn| conn.id)
    });
    pass(secs(3600)).await;
    drop(held);
    waiter.await.expect("joined").expect("served");
    drop(other);
    pass(secs(3600 * 24 * 365)).await;
    assert_eq!((pool.stats().ready(), pool.stats().opened(), pool.audit()), (2, 2, vec![]));
    assert_eq!(pool.drain(forever).await.left, 0);
}

#[tokio::test(start_paused = true)]
async fn the_source_at_fault_is_named() {
    let bad = Settings { max_open: 3, target_ready: Some(4), ..Settings::default() };
    let pool = Pool::over([
        SourceSpec::new("user-1", Yard::new()),
        SourceSpec::new("user-2", Yard::new()).settings(bad),
    ]);
    let error = pool.build().err().expect("user-2 cannot work");
    assert_eq!(error.to_string(), "source `user-2`: target_ready (4) must not exceed max_open (3)");
}

#[tokio::test(start_paused = true)]
async fn a_pool_has_one_to_sixty_four_sources_of_different_names() {
    let none = Pool::<Yard>::over([]).build().err().expect("no source");
    assert_eq!(none, BuildError::SourceCount { given: 0, max: 64 });
    assert_eq!(none.to_string(), "a pool has 1 to 64 sources, not 0");
    let many = |n: usize| {
        let sources = (0..n).map(|i| SourceSpec::new(format!("source-{i}"), Yard::new()));
        Pool::over(sources).stagger(None).max_open(1).build()
    };
    let error = many(65).err().expect("too many");
    assert_eq!(error.to_string(), "a pool has 1 to 64 sources, not 65");
    let full = many(64).expect("as many as there may be");
    full.ready(64, secs(1)).await.expect("each source opens");
    assert_eq!(full.audit(), []);
    let twice = Pool::builder(Yard::new()).source(SourceSpec::new("default", Yard::new())).build();
    let error = twice.err().expect("two of one name");
    assert_eq!(error.to_string(), "two sources are named `default`");
}

#[test]
fn outside_a_runtime_nothing_is_built() {
    let error = Pool::builder(Yard::new()).build().err().expect("no runtime");
    assert_eq!(
        error.to_string(),
        "build() must be called inside a tokio runtime: the pool's driver runs there"
    );
}

#[test]
fn a_rate_that_never_opens_anything_is_refused() {
    for (per_second, burst) in [(0, 1), (1, 0)] {
        let error = Rate::new(per_second, burst).expect_err("never opens");
        assert_eq!(
            error.to_string(),
            format!(
                "a rate of {per_second}/s with burst {burst} never opens anything: both must be at least 1"
            )
        );
    }
}
