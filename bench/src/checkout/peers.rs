//! The pools forebay is compared with, apart from sqlx (see `sqlx_pool`), each
//! with the settings it has by default in production, and the size of 16.

use std::convert::Infallible;

use anyhow::{Result, anyhow};

use super::CONNECTIONS;
use super::subject::{NoopConn, Subject, fill};

/// The manager of all peers: opens a no-op connection, and finds every
/// connection well.
pub(crate) struct Noop;

/// deadpool 0.13, managed. Default `PoolConfig` (no timeouts, idle connections
/// in FIFO order) with `max_size` 16, no hooks; its check is the manager's own
/// `recycle`, here a no-op. Waiters queue in a tokio semaphore, first come first
/// served.
#[derive(Clone)]
pub(crate) struct Deadpool(deadpool::managed::Pool<Noop>);

impl deadpool::managed::Manager for Noop {
    type Type = NoopConn;
    type Error = Infallible;

    async fn create(&self) -> Result<NoopConn, Infallible> {
        Ok(NoopConn::new())
    }

    async fn recycle(
        &self,
        _conn: &mut NoopConn,
        _metrics: &deadpool::managed::Metrics,
    ) -> deadpool::managed::RecycleResult<Infallible> {
        Ok(())
    }
}

impl Subject for Deadpool {
    const NAME: &'static str = "deadpool";
    const FAIR: bool = true;

    type Guard<'a> = deadpool::managed::Object<Noop>;

    async fn build() -> Result<Self> {
        let pool = deadpool::managed::Pool::builder(Noop).max_size(CONNECTIONS as usize).build()?;
        let pool = Self(pool);
        fill(&pool).await?;
        Ok(pool)
    }

    async fn get(&self) -> Result<Self::Guard<'_>> {
        Ok(self.0.get().await?)
    }
}

/// bb8 0.9. Default builder (`test_on_check_out(true)`, lifetime 30 min, idle
/// timeout 10 min, connection timeout 30 s, FIFO) with `max_size` 16;
/// `is_valid` is a no-op and `has_broken` always false. Uses `get`, which its
/// documentation prefers to the dearer `get_owned`. A newcomer may take a
/// connection ahead of those that wait, so it is not counted as fair.
#[derive(Clone)]
pub(crate) struct Bb8(bb8::Pool<Noop>);

impl bb8::ManageConnection for Noop {
    type Connection = NoopConn;
    type Error = Infallible;

    async fn connect(&self) -> Result<NoopConn, Infallible> {
        Ok(NoopConn::new())
    }

    async fn is_valid(&self, _conn: &mut NoopConn) -> Result<(), Infallible> {
        Ok(())
    }

    fn has_broken(&self, _conn: &mut NoopConn) -> bool {
        false
    }
}

impl Subject for Bb8 {
    const NAME: &'static str = "bb8";
    const FAIR: bool = false;

    type Guard<'a> = bb8::PooledConnection<'a, Noop>;

    async fn build() -> Result<Self> {
        let pool = bb8::Pool::builder().max_size(CONNECTIONS).build(Noop).await?;
        let pool = Self(pool);
        fill(&pool).await?;
        Ok(pool)
    }

    async fn get(&self) -> Result<Self::Guard<'_>> {
        Ok(self.0.get().await?)
    }
}

/// mobc 0.9. Default builder (`test_on_check_out(true)` at every checkout, get
/// timeout 30 s, no lifetimes) with `max_open` and `max_idle` 16; `check` is a
/// no-op. A connection is given back by a spawned task; waiters queue in a tokio
/// semaphore, first come first served.
#[derive(Clone)]
pub(crate) struct Mobc(mobc::Pool<Noop>);

#[mobc::async_trait]
impl mobc::Manager for Noop {
    type Connection = NoopConn;
    type Error = Infallible;

    async fn connect(&self) -> Result<NoopConn, Infallible> {
        Ok(NoopConn::new())
    }

    async fn check(&self, conn: NoopConn) -> Result<NoopConn, Infallible> {
        Ok(conn)
    }
}

impl Subject for Mobc {
    const NAME: &'static str = "mobc";
    const FAIR: bool = true;

    type Guard<'a> = mobc::Connection<Noop>;

    async fn build() -> Result<Self> {
        let size = u64::from(CONNECTIONS);
        let pool = mobc::Pool::builder().max_open(size).max_idle(size).build(Noop);
        let pool = Self(pool);
        fill(&pool).await?;
        Ok(pool)
    }

    async fn get(&self) -> Result<Self::Guard<'_>> {
        Ok(self.0.get().await?)
    }
}

/// fast_pool 1.0, as it comes (check at every checkout, here a no-op, within
/// 10 s; get timeout 30 s) with `max_open` and `max_idle` 16. Connections travel
/// through a channel from which a newcomer may take one ahead of those that
/// wait, so it is not counted as fair.
#[derive(Clone)]
pub(crate) struct FastPool(fast_pool::Pool<Noop>);

impl fast_pool::Manager for Noop {
    type Connection = NoopConn;
    type Error = String;

    async fn connect(&self) -> Result<NoopConn, String> {
        Ok(NoopConn::new())
    }

    async fn check(&self, _conn: &mut NoopConn) -> Result<(), String> {
        Ok(())
    }
}

impl Subject for FastPool {
    const NAME: &'static str = "fast_pool";
    const FAIR: bool = false;

    type Guard<'a> = fast_pool::ConnectionGuard<Noop>;

    async fn build() -> Result<Self> {
        let size = u64::from(CONNECTIONS);
        let pool = fast_pool::Pool::new(Noop);
        pool.set_max_open(size);
        pool.set_max_idle_conns(size);
        let pool = Self(pool);
        fill(&pool).await?;
        Ok(pool)
    }

    async fn get(&self) -> Result<Self::Guard<'_>> {
        self.0.get().await.map_err(|error| anyhow!(error))
    }
}
