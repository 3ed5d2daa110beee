//! The one place of the Redis keeper that waits: for servers, which live in real time.

use std::time::Duration;

/// Lets time pass.
#[expect(clippy::disallowed_methods, reason = "a server is waited for in real time")]
pub(super) async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

/// `None` if it takes longer.
#[expect(clippy::disallowed_methods, reason = "a server is waited for in real time")]
pub(super) async fn within<T>(time: Duration, what: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(time, what).await.ok()
}

/// Draws between half of a time and the whole.
pub(super) fn jitter(time: Duration, rng: &mut fastrand::Rng) -> Duration {
    time.mul_f64(0.5 + rng.f64() / 2.0)
}

/// A generator that differs from process to process.
#[expect(clippy::disallowed_methods, reason = "members must not wait in step")]
pub(super) fn generator(seed: Option<u64>) -> fastrand::Rng {
    fastrand::Rng::with_seed(seed.unwrap_or_else(|| fastrand::u64(..)))
}
