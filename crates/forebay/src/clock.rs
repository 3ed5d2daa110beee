//! The one handle through which the engine sees time. Production uses tokio's
//! clock; the simulator gives each member a clock of its own, with offset,
//! drift and freezes, by implementing [`TimeSource`]. Nothing else in this
//! crate reads a clock.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

pub use tokio::time::Instant;

/// A boxed future, as returned by the traits that are used behind `dyn`.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where time comes from when it does not come from tokio.
pub trait TimeSource: Send + Sync + 'static {
    /// The present instant on this clock.
    fn now(&self) -> Instant;
    /// Completes once [`now`](Self::now) has reached `at`.
    fn sleep_until(&self, at: Instant) -> BoxFuture<'static, ()>;
}

/// A cheap handle to a clock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// use std::time::Duration;
/// let clock = forebay::Clock::tokio();
/// let start = clock.now();
/// clock.sleep_until(start + Duration::from_secs(3600)).await;
/// assert!(clock.now() >= start + Duration::from_secs(3600));
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Clock(Option<Arc<dyn TimeSource>>);

impl Clock {
    /// Tokio's clock: real time, or paused time under `tokio::time::pause`.
    pub fn tokio() -> Self {
        Self(None)
    }

    /// A clock of your own.
    pub fn custom(source: impl TimeSource) -> Self {
        Self(Some(Arc::new(source)))
    }

    /// The present instant.
    #[inline]
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the clock")]
    pub fn now(&self) -> Instant {
        match &self.0 {
            None => Instant::now(),
            Some(source) => source.now(),
        }
    }

    /// Completes at `at`, at once if that has passed.
    #[expect(clippy::disallowed_methods, reason = "the one place that sleeps")]
    pub async fn sleep_until(&self, at: Instant) {
        match &self.0 {
            None => tokio::time::sleep_until(at).await,
            Some(source) => source.sleep_until(at).await,
        }
    }

    /// Runs `future` until it completes or `at` comes; `None` if `at` came first.
    pub async fn until<T>(&self, at: Instant, future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            value = future => Some(value),
            () = self.sleep_until(at) => None,
        }
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Clock(custom)" } else { "Clock(tokio)" })
    }
}
