//! FLEET.md 10 (a) to (g) with real processes: each member is a child of this test,
//! its pool opens TCP connections to a backend in the test that counts them, and
//! reaches its keeper through a relay that can be cut. Processes are stopped and
//! killed by signals, keepers restarted, emptied and failed over; what counts is
//! what the backend saw.
//!
//! Times are short by configuration alone. Where something must have happened
//! *by* an instant, `SLACK` is added for a machine that is busy; that no more
//! than the limit was open is never given any.
//!
//! FOREBAY_TEST_REDIS, FOREBAY_TEST_REDIS_SERVER, FOREBAY_TEST_DYNAMODB and
//! FOREBAY_TEST_DYNAMODB_COMMAND say where the keepers are; without them tests
//! skip themselves.

#![cfg(all(target_os = "linux", feature = "redis", feature = "dynamodb"))]
#![allow(dead_code, unreachable_pub, clippy::disallowed_methods, clippy::disallowed_types)]

#[path = "processes/backend.rs"]
mod backend;
#[path = "processes/child.rs"]
mod child;
#[path = "processes/cuts.rs"]
mod cuts;
#[path = "processes/fleet.rs"]
mod fleet;
#[path = "processes/keepers.rs"]
mod keepers;
#[path = "processes/outages.rs"]
mod outages;
#[path = "processes/pauses.rs"]
mod pauses;
#[path = "processes/rates.rs"]
mod rates;
#[path = "processes/relay.rs"]
mod relay;

/// Nanoseconds on the clock that all processes of this machine share.
fn now() -> u64 {
    let clock = nix::time::ClockId::CLOCK_MONOTONIC;
    let time = nix::time::clock_gettime(clock).expect("this clock exists");
    std::time::Duration::from(time).as_nanos() as u64
}

const MS: u64 = 1_000_000;
