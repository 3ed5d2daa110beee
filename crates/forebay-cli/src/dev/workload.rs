//! The tasks that use the pool: get a connection, send a request, give it back,
//! rest. They end when the pool is drained, as a service's own work would.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay::{GetError, Pool};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::args::Plan;
use super::connector::{Error, Tcp};

/// What the tasks saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Requests that got their answer.
    pub(crate) answered: AtomicU64,
    /// Requests given up midway, on purpose.
    pub(crate) given_up: AtomicU64,
    /// Requests whose connection failed.
    pub(crate) failed: AtomicU64,
    /// Answers that belonged to somebody else's request.
    pub(crate) mixed_up: AtomicU64,
}

/// Waits for the first fill, then runs the tasks until the pool is drained.
pub(crate) async fn run(pool: Pool<Tcp>, plan: Plan, seen: Arc<Seen>) {
    // a stock that is late is no reason not to start: the tasks will queue
    let _ = pool.filled().await;
    let mut seeds = fastrand::Rng::with_seed(plan.seed);
    let mut tasks = JoinSet::new();
    for _ in 0..plan.tasks {
        tasks.spawn(work(pool.clone(), plan.clone(), seen.clone(), seeds.fork()));
    }
    drop(pool);
    while tasks.join_next().await.is_some() {}
}

async fn work(pool: Pool<Tcp>, plan: Plan, seen: Arc<Seen>, mut rng: fastrand::Rng) {
    loop {
        sleep(plan.pause.mul_f64(2.0 * rng.f64())).await;
        let mut conn = match pool.get().await {
            Ok(conn) => conn,
            Err(GetError::Closed) => return,
            Err(_) => continue, // counted by the pool
        };
        let request = conn.ping(rng.u64(..));
        let patience = if plan.give_up > 0 && rng.u32(..plan.give_up) == 0 {
            plan.service.mul_f64(rng.f64())
        } else {
            Duration::MAX
        };
        let counter = match timeout(patience, request).await {
            Ok(Ok(())) => &seen.answered,
            Ok(Err(Error::Unexpected(_))) => &seen.mixed_up,
            Ok(Err(_)) => &seen.failed,
            Err(_) => &seen.given_up,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
