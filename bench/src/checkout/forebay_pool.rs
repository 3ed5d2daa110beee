//! Forebay under test, with its default settings: statistics on, connections
//! that live 11 minutes and are not handed out in their last 45 seconds.

use std::convert::Infallible;
use std::time::Duration;

use anyhow::Result;
use forebay::{Connector, GuardRef, Opened, Pool};

use super::subject::{NoopConn, Subject};
use super::{CONNECTIONS, OURS};

/// Opens no-op connections.
pub(crate) struct Noop;

impl Connector for Noop {
    type Conn = NoopConn;
    type Key = ();
    type Error = Infallible;

    async fn connect(&self, _key: &()) -> Result<Opened<NoopConn>, Infallible> {
        Ok(Opened::new(NoopConn::new()))
    }
}

/// Only the size is set, and `stagger(None)` so that all connections are there
/// at once; the lifetime (11 min) and the guard window (45 s) are the defaults.
#[derive(Clone)]
pub(crate) struct Forebay(Pool<Noop>);

impl Subject for Forebay {
    const NAME: &'static str = OURS;
    const FAIR: bool = true;

    type Guard<'a> = GuardRef<'a, Noop>;

    async fn build() -> Result<Self> {
        let pool = Pool::builder(Noop)
            .max_open(CONNECTIONS)
            .target_ready(CONNECTIONS)
            .stagger(None)
            .build()?;
        pool.ready(CONNECTIONS, Duration::from_secs(5)).await?;
        Ok(Self(pool))
    }

    async fn get(&self) -> Result<GuardRef<'_, Noop>> {
        Ok(self.0.get_ref().await?)
    }
}
