//! What a pool has to offer to be measured: one small trait, statically
//! dispatched, so that every pool runs in exactly the same loops, and the no-op
//! connection they all hand out.

use std::future::Future;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;

use super::CONNECTIONS;

/// Connections opened since the last [`reset_opened`]: a pool that needs more
/// than [`CONNECTIONS`] of them broke its limit or threw some away.
static OPENED: AtomicU64 = AtomicU64::new(0);

/// A connection that does nothing, so that only the pool is measured.
#[derive(Debug)]
pub(crate) struct NoopConn {
    id: u64,
}

impl NoopConn {
    /// Opens a connection, and counts it.
    pub(crate) fn new() -> Self {
        Self { id: OPENED.fetch_add(1, Ordering::Relaxed) }
    }

    /// The number of this connection; read once per checkout, so that the
    /// guard is really used.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }
}

/// Starts counting opened connections from nought.
pub(crate) fn reset_opened() {
    OPENED.store(0, Ordering::Relaxed);
}

/// Connections opened since [`reset_opened`].
pub(crate) fn opened() -> u64 {
    OPENED.load(Ordering::Relaxed)
}

/// A pool under test.
///
/// The guard may borrow from the pool, since bb8 hands out a borrowing guard by
/// preference and its owned one costs more; all others hand out owned guards.
pub(crate) trait Subject: Clone + Send + Sync + 'static {
    /// The name in the report and for `--only`.
    const NAME: &'static str;

    /// Whether waiters are served in the order they came.
    const FAIR: bool;

    /// A connection taken from the pool; dropping it gives it back.
    type Guard<'a>: Deref<Target = NoopConn> + Send;

    /// Builds the pool, with [`CONNECTIONS`] connections open and idle.
    fn build() -> impl Future<Output = Result<Self>> + Send;

    /// Takes one connection, waiting for it if there is none.
    fn get(&self) -> impl Future<Output = Result<Self::Guard<'_>>> + Send;
}

/// Opens all connections of a pool that opens them only on demand, by holding
/// them all at once, and lets those that are given back by a spawned task
/// (mobc, sqlx) arrive.
pub(crate) async fn fill<S: Subject>(pool: &S) -> Result<()> {
    let mut guards = Vec::new();
    for _ in 0..CONNECTIONS {
        guards.push(pool.get().await?);
    }
    drop(guards);
    tokio::time::sleep(Duration::from_millis(2)).await;
    Ok(())
}
