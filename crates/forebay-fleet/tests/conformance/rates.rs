//! Rate permits. Time passes between two calls to a real keeper, so what is
//! compared is the instant at which a permit is good, give or take that time.

use forebay_fleet::{Keeper, Limits, Reserve, Reserved};
use tokio::time::Instant;

use super::{limits, set_up};

/// How far a keeper's clock and a member's may be apart here.
const APART_US: i64 = 1_100_000;

async fn reserve(keeper: &dyn Keeper, backend: &str, permits: u32, max_wait_ms: u64) -> Reserved {
    let wish = Reserve {
        backend: backend.to_owned(),
        permits,
        limits: limits(10),
        max_wait_ms,
        nonce: fastrand::u64(..),
        ttl_ms: 1000,
    };
    keeper.reserve(&wish).await.expect("an answer")
}

/// Whether the lead is what it would have been at `start`, less the time since.
fn about(lead_us: i64, expected_us: i64, start: Instant) -> bool {
    let passed = start.elapsed().as_micros() as i64;
    lead_us <= expected_us + APART_US && lead_us >= expected_us - passed - APART_US
}

pub async fn several_permits_are_reserved_at_once(keeper: &dyn Keeper, backend: &str) {
    set_up(keeper, backend).await;
    let start = Instant::now();
    let first = reserve(keeper, backend, 105, 60_000).await;
    assert_eq!((first.permits, first.interval_us), (105, 100_000));
    assert!(first.lead_us <= -400_000, "the burst goes at once: {first:?}");
    let second = reserve(keeper, backend, 100, 60_000).await;
    assert!(about(second.lead_us, 10_100_000, start), "{second:?}");
    let third = reserve(keeper, backend, 1, 60_000).await;
    assert!(about(third.lead_us, 20_100_000, start), "{third:?}");
}

pub async fn nothing_is_reserved_if_the_wait_would_be_too_long(keeper: &dyn Keeper, backend: &str) {
    set_up(keeper, backend).await;
    let start = Instant::now();
    reserve(keeper, backend, 605, 60_000).await;
    let refused = reserve(keeper, backend, 1, 30_000).await;
    assert_eq!(refused.permits, 0);
    assert!(about(refused.lead_us, 60_100_000, start), "{refused:?}");
    let patient = reserve(keeper, backend, 1, 90_000).await;
    assert_eq!(patient.permits, 1);
    assert!(about(patient.lead_us, 60_100_000, start), "the refused one took nothing: {patient:?}");
}

pub async fn refusals_slow_everyone_down(keeper: &dyn Keeper, backend: &str) {
    set_up(keeper, backend).await;
    let limits: Limits = limits(10);
    assert_eq!(reserve(keeper, backend, 1, 60_000).await.interval_us, 100_000);
    keeper.refused(backend, &limits).await.expect("heard");
    let slow = reserve(keeper, backend, 100, 60_000).await;
    assert_eq!(slow.interval_us, 200_000);
    let start = Instant::now();
    let next = reserve(keeper, backend, 1, 60_000).await;
    assert!(next.lead_us > 15_000_000, "a hundred at half the pace: {next:?}");
    assert!(about(next.lead_us, 20_100_000, start), "{next:?}");
}

pub async fn a_bucket_that_nobody_set_up_starts_empty(keeper: &dyn Keeper, backend: &str) {
    let start = Instant::now();
    let first = reserve(keeper, backend, 50, 60_000).await;
    assert_eq!(first.permits, 50);
    let next = reserve(keeper, backend, 1, 60_000).await;
    // with a full bucket the last of the fifty would have been good 4.5 s from then; and what
    // may have been promised before is waited for, 2 s
    assert!(about(next.lead_us, 7_100_000, start), "{next:?}");
    assert!(first.lead_us + APART_US > 0 || start.elapsed().as_millis() > 100, "{first:?}");
}
