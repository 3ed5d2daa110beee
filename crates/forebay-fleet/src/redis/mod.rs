//! Budgets kept in Redis, Valkey or what speaks like them. The books are Lua
//! scripts (`scripts/`), each one atomic step with the server's own clock; this
//! side connects, runs them, and passes on what is announced.
//!
//! What is not here: rules. Those are in [`Ledger`](crate::Ledger) and
//! [`RateBook`](crate::RateBook), and the scripts follow them.

mod check;
mod dial;
mod fault;
mod link;
mod listen;
mod script;
mod settings;
mod url;
mod wait;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

pub use settings::{RedisSettings, RedisSettingsError};

use crate::keeper::{Keeper, KeeperError, News};
use crate::message::{Answer, BackendInfo, Limits, MemberId, Report, Reserve, Reserved};
use dial::Dialler;
use link::Links;
use script::{Script, Scripts};

/// The set of all backends. It cannot share a hash tag with each of them, so it
/// is written apart from the books.
const BACKENDS: &str = "proxy:buckets";

/// A [`Keeper`] in Redis. Nothing is dialled before the first call, which must be
/// made in a Tokio runtime.
///
/// ```no_run
/// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
/// use forebay_fleet::{Keeper, RedisKeeper, RedisSettings};
/// let keeper = RedisKeeper::new(RedisSettings::from_url("redis://127.0.0.1:6379")?)?;
/// keeper.check().await?;
/// # Ok(()) }
/// ```
pub struct RedisKeeper {
    dialler: Arc<Dialler>,
    links: Links,
    scripts: Scripts,
    keep_s: u64,
    /// Backends that were reported on: those in the set of all, and those whose
    /// channels are listened to.
    backends: watch::Sender<BTreeSet<String>>,
    /// The longest ttl seen, for windows that a call without one opens.
    ttl_ms: AtomicU64,
    rng: Mutex<fastrand::Rng>,
}

impl std::fmt::Debug for RedisKeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisKeeper").field("settings", self.dialler.settings()).finish()
    }
}

impl RedisKeeper {
    /// A keeper with these settings.
    ///
    /// # Errors
    /// If the settings contradict each other, or a certificate cannot be read.
    pub fn new(settings: RedisSettings) -> Result<Self, RedisSettingsError> {
        let rng = Mutex::new(wait::generator(settings.seed));
        let keep_s = settings.keep.as_secs();
        let dialler = Arc::new(Dialler::new(settings)?);
        let links = Links::new(&dialler);
        let (backends, ttl_ms) = (watch::Sender::default(), AtomicU64::new(30_000));
        Ok(Self { dialler, links, scripts: Scripts::new(), keep_s, backends, ttl_ms, rng })
    }

    async fn run(
        &self,
        script: &Script,
        backend: &str,
        args: Vec<Vec<u8>>,
    ) -> Result<redis::Value, KeeperError> {
        script.run(&self.links, backend, self.keep_s, &args).await
    }

    /// Puts a backend in the set of all, once.
    async fn enlist(&self, backend: &str) -> Result<(), KeeperError> {
        if self.backends.borrow().contains(backend) {
            return Ok(());
        }
        let mut cmd = redis::cmd("SADD");
        self.links.query(cmd.arg(BACKENDS).arg(backend)).await?;
        self.backends.send_if_modified(|backends| backends.insert(backend.to_owned()));
        Ok(())
    }

    /// The books were lost, and so perhaps the set of all backends.
    async fn enlist_again(&self, backend: &str) -> Result<(), KeeperError> {
        let mut cmd = redis::cmd("SADD");
        self.links.query(cmd.arg(BACKENDS).arg(backend)).await?;
        Ok(())
    }

    fn nonce(&self) -> u64 {
        self.rng.lock().u64(..)
    }
}

impl Keeper for RedisKeeper {
    fn name(&self) -> &'static str {
        fault::NAME
    }

    fn check(&self) -> BoxFuture<'_, Result<(), KeeperError>> {
        Box::pin(check::check(&self.dialler, &self.links, self.nonce()))
    }

    fn report<'a>(&'a self, report: &'a Report) -> BoxFuture<'a, Result<Answer, KeeperError>> {
        Box::pin(async move {
            self.ttl_ms.fetch_max(report.profile.ttl_ms, Ordering::Relaxed);
            self.enlist(&report.backend).await?;
            let args = script::report_args(report);
            let value = self.run(&self.scripts.report, &report.backend, args).await?;
            let answer = script::read_answer(value)?;
            if matches!(&answer, Answer::Booked(booking) if booking.declaring_ms > 0) {
                // the answer counts more than the list
                drop(self.enlist_again(&report.backend).await);
            }
            Ok(answer)
        })
    }

    fn reserve<'a>(&'a self, reserve: &'a Reserve) -> BoxFuture<'a, Result<Reserved, KeeperError>> {
        Box::pin(async move {
            self.ttl_ms.fetch_max(reserve.ttl_ms, Ordering::Relaxed);
            let args = script::reserve_args(reserve);
            let value = self.run(&self.scripts.reserve, &reserve.backend, args).await?;
            script::read_reserved(value)
        })
    }

    fn refused<'a>(
        &'a self,
        backend: &'a str,
        limits: &'a Limits,
    ) -> BoxFuture<'a, Result<(), KeeperError>> {
        Box::pin(async move {
            let ttl_ms = self.ttl_ms.load(Ordering::Relaxed);
            let args = script::refused_args(limits, self.nonce(), ttl_ms);
            self.run(&self.scripts.refused, backend, args).await.map(drop)
        })
    }

    fn listen(&self, news: UnboundedSender<News>) -> BoxFuture<'_, KeeperError> {
        let rng = wait::generator(Some(self.nonce()));
        Box::pin(listen::listen(&self.dialler, self.backends.subscribe(), news, rng))
    }

    fn announces(&self) -> bool {
        true
    }

    fn setup<'a>(&'a self, backend: &'a str) -> BoxFuture<'a, Result<bool, KeeperError>> {
        Box::pin(async move {
            self.enlist_again(backend).await?;
            let args = script::setup_args(self.nonce());
            script::read(self.run(&self.scripts.setup, backend, args).await?, "a setup")
        })
    }

    fn inspect<'a>(&'a self, backend: &'a str) -> BoxFuture<'a, Result<BackendInfo, KeeperError>> {
        Box::pin(async move {
            let value = self.run(&self.scripts.inspect, backend, Vec::new()).await?;
            script::read_info(backend, value)
        })
    }

    fn backends(&self) -> BoxFuture<'_, Result<Vec<String>, KeeperError>> {
        Box::pin(async move {
            let mut cmd = redis::cmd("SMEMBERS");
            let value = self.links.query(cmd.arg(BACKENDS)).await?;
            let mut listed: Vec<String> = script::read(value, "a list of backends")?;
            listed.sort();
            let mut backends = Vec::with_capacity(listed.len());
            for backend in listed {
                let mut cmd = redis::cmd("EXISTS");
                let value = self.links.query(cmd.arg(script::key(&backend, "book"))).await?;
                if script::read(value, "a list of backends")? {
                    backends.push(backend);
                }
            }
            Ok(backends)
        })
    }

    fn reap<'a>(
        &'a self,
        backend: &'a str,
        member: &'a MemberId,
    ) -> BoxFuture<'a, Result<Option<u32>, KeeperError>> {
        Box::pin(async move {
            let value = self.run(&self.scripts.reap, backend, script::reap_args(member)).await?;
            let had: i64 = script::read(value, "a reaping")?;
            Ok(u32::try_from(had).ok())
        })
    }
}
