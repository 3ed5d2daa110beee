//! What time it is at DynamoDB. Members share instants through the rate item, so
//! their clocks must agree; a member's own clock is believed as far as the `Date`
//! of the responses allows, and is moved into those bounds otherwise. Only the
//! rate and the order of waiters depend on this, never who holds a lease.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::config::interceptors::{
    BeforeDeserializationInterceptorContextRef, BeforeTransmitInterceptorContextRef,
};
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use aws_smithy_types::DateTime;
use aws_smithy_types::config_bag::{Storable, StoreReplace};
use aws_smithy_types::date_time::Format;
use forebay::Clock;
use parking_lot::Mutex;
use tokio::time::Instant;

const SECOND_US: i64 = 1_000_000;
/// What is known of the difference grows stale by one part in this many.
const DRIFT: i64 = 5_000;
/// A clock that is off by more than this is worth a warning.
const OFF_MAX_US: i64 = 3 * SECOND_US;

/// The server's time less ours, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bounds {
    lo_us: i64,
    hi_us: i64,
    at_us: i64,
}

impl Bounds {
    /// The server's clock showed the second `date` at some time between `sent_us`
    /// and `received_us` on ours.
    fn of(date: i64, sent_us: i64, received_us: i64) -> Self {
        Self {
            lo_us: date * SECOND_US - received_us,
            hi_us: (date + 1) * SECOND_US - sent_us,
            at_us: received_us,
        }
    }

    /// Both hold, the older one less sharply. If they cannot, a clock was moved,
    /// and the newer one counts.
    fn and(self, newer: Self) -> Self {
        let stale = (newer.at_us - self.at_us).max(0) / DRIFT;
        let lo_us = newer.lo_us.max(self.lo_us - stale);
        let hi_us = newer.hi_us.min(self.hi_us + stale);
        if lo_us > hi_us { newer } else { Self { lo_us, hi_us, ..newer } }
    }

    /// By how much our clock must be moved to lie within.
    fn correction(self) -> i64 {
        0_i64.clamp(self.lo_us, self.hi_us)
    }
}

/// Our own clock, corrected; and the count of requests, which is taken at the
/// same place.
#[derive(Debug)]
pub(super) struct ServerClock {
    clock: Clock,
    anchor: Instant,
    anchor_us: i64,
    bounds: Mutex<Option<Bounds>>,
    warned: AtomicBool,
    round_trips: AtomicU64,
}

impl ServerClock {
    /// `wall` is read now and never again: afterwards time passes as `clock` says.
    pub(super) fn new(clock: Clock, wall: SystemTime) -> Self {
        let since = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self {
            anchor: clock.now(),
            anchor_us: micros(since),
            clock,
            bounds: Mutex::new(None),
            warned: AtomicBool::new(false),
            round_trips: AtomicU64::new(0),
        }
    }

    /// Microseconds since 1970 at the server.
    pub(super) fn now_us(&self) -> u64 {
        let ours = self.ours_us(self.clock.now());
        let correction = self.bounds.lock().map_or(0, Bounds::correction);
        (ours + correction).max(0) as u64
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.now_us() / 1000
    }

    pub(super) fn round_trips(&self) -> u64 {
        self.round_trips.load(Ordering::Relaxed)
    }

    fn ours_us(&self, at: Instant) -> i64 {
        self.anchor_us + micros(at.saturating_duration_since(self.anchor))
    }

    fn learn(&self, date: i64, sent: Instant, received: Instant) {
        let news = Bounds::of(date, self.ours_us(sent), self.ours_us(received));
        let mut bounds = self.bounds.lock();
        let known = bounds.map_or(news, |known| known.and(news));
        *bounds = Some(known);
        drop(bounds);
        let off = known.correction();
        if off.abs() > OFF_MAX_US && !self.warned.swap(true, Ordering::Relaxed) {
            let side = if off > 0 { "behind" } else { "ahead of" };
            tracing::warn!(
                off_s = off.abs() / SECOND_US,
                "this machine's clock is {} s {side} DynamoDB's; permits are corrected for it, but \
                 requests signed more than some minutes off are refused: let NTP (chrony) set the clock",
                off.abs() / SECOND_US
            );
        }
    }
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX / 4)
}

/// Looks at each request and response of the SDK.
#[derive(Debug)]
pub(super) struct Observer(pub(super) std::sync::Arc<ServerClock>);

/// When the request at hand was sent.
#[derive(Debug)]
struct Sent(Instant);

impl Storable for Sent {
    type Storer = StoreReplace<Self>;
}

impl Intercept for Observer {
    fn name(&self) -> &'static str {
        "forebay server clock"
    }

    fn read_before_transmit(
        &self,
        _context: &BeforeTransmitInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        cfg: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        self.0.round_trips.fetch_add(1, Ordering::Relaxed);
        cfg.interceptor_state().store_put(Sent(self.0.clock.now()));
        Ok(())
    }

    fn read_after_transmit(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        cfg: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let date = context.response().headers().get("date");
        let date = date.and_then(|date| DateTime::from_str(date, Format::HttpDate).ok());
        if let (Some(date), Some(sent)) = (date, cfg.load::<Sent>()) {
            self.0.learn(date.secs(), sent.0, self.0.clock.now());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: i64 = 1_700_000_000;

    #[test]
    fn a_clock_within_the_bounds_is_left_alone() {
        let bounds = Bounds::of(T, T * SECOND_US + 300_000, T * SECOND_US + 310_000);
        assert_eq!(bounds.correction(), 0);
    }

    #[test]
    fn a_clock_minutes_ahead_is_brought_back_to_within_a_second() {
        let ahead = 300 * SECOND_US;
        let at = T * SECOND_US + 400_000 + ahead;
        let bounds = Bounds::of(T, at, at + 5_000);
        let error = bounds.correction() + ahead;
        assert!(error.abs() <= SECOND_US, "off by {error} us");
    }

    #[test]
    fn several_responses_sharpen_what_is_known() {
        let behind = -120 * SECOND_US;
        let mut known: Option<Bounds> = None;
        for k in 0..50 {
            let server = T * SECOND_US + k * 137_000;
            let ours = server + behind;
            let news = Bounds::of(server.div_euclid(SECOND_US), ours - 2_000, ours + 2_000);
            known = Some(known.map_or(news, |known| known.and(news)));
        }
        let error = known.expect("bounds").correction() + behind;
        assert!(error.abs() <= 50_000, "off by {error} us");
    }

    #[test]
    fn a_response_that_contradicts_the_bounds_replaces_them() {
        let at = T * SECOND_US;
        let before = Bounds::of(T, at, at + 1000);
        let moved = Bounds::of(T + 90, at + SECOND_US, at + SECOND_US + 1000);
        assert_eq!(before.and(moved), moved);
    }

    #[test]
    fn old_bounds_give_way_to_drift() {
        let known = Bounds { lo_us: -10, hi_us: 10, at_us: 0 };
        let hour = 3600 * SECOND_US;
        let wide = Bounds { lo_us: -SECOND_US, hi_us: SECOND_US, at_us: hour };
        let both = known.and(wide);
        assert_eq!((both.lo_us, both.hi_us), (-10 - hour / DRIFT, 10 + hour / DRIFT));
    }
}
