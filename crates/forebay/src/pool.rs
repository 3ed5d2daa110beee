//! The pool as an application sees it: get a connection, watch the stock, drain.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::builder::Builder;
use crate::checkout::{Checkout, CheckoutRef, GetOptions, Wait, accept};
use crate::clock::{FAR, Instant};
use crate::connector::Connector;
use crate::desk::Hand;
use crate::error::{GetError, NotReady};
use crate::guard::Guard;
use crate::hub::Hub;
use crate::invariant::Invariant;
use crate::keys::DEFAULT_KEY;
use crate::queue::Priority;
use crate::reason::Discard;
use crate::settings::SourceSpec;
use crate::source::SourceState;
use crate::stats::{Stats, Waits};

/// One or more sources behind one fair queue. Clones share the pool; when the
/// last one is dropped the stock is closed.
///
/// ```
/// use forebay::{Connector, Opened, Pool};
///
/// struct Db;
/// impl Connector for Db {
///     type Conn = String;
///     type Key = ();
///     type Error = std::io::Error;
///     async fn connect(&self, _key: &()) -> Result<Opened<String>, std::io::Error> {
///         Ok(Opened::new("a session".to_owned()))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = Pool::builder(Db).max_open(10).stagger(None).build()?;
/// let conn = pool.get().await?;
/// assert_eq!(*conn, "a session");
/// # Ok(()) }
/// ```
pub struct Pool<C: Connector> {
    handle: Arc<Handle<C>>,
}

/// Closes the pool with its last clone; guards keep the hub alive beyond that.
struct Handle<C: Connector> {
    hub: Arc<Hub<C>>,
}

impl<C: Connector> Drop for Handle<C> {
    fn drop(&mut self) {
        self.hub.close();
    }
}

impl<C: Connector> Clone for Pool<C> {
    fn clone(&self) -> Self {
        Self { handle: self.handle.clone() }
    }
}

/// What a drain has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// Connections still open because their users hold them.
    pub left: u32,
    /// Connections killed at the deadline.
    pub killed: u32,
}

impl<C: Connector> Pool<C> {
    pub(crate) fn new(hub: Arc<Hub<C>>) -> Self {
        Self { handle: Arc::new(Handle { hub }) }
    }

    /// A pool with one source, named `default`.
    pub fn builder(connector: C) -> Builder<C> {
        Builder::new(vec![SourceSpec::new("default", connector)])
    }

    /// A pool over several sources.
    ///
    /// ```
    /// # struct Db; impl forebay::Connector for Db { type Conn = (); type Key = (); type Error = std::io::Error;
    /// #   async fn connect(&self, _: &()) -> Result<forebay::Opened<()>, std::io::Error> { Ok(forebay::Opened::new(())) } }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use forebay::{GetOptions, Pool, SourceSpec};
    /// let pool = Pool::over([SourceSpec::new("user-1", Db), SourceSpec::new("user-2", Db)])
    ///     .max_open(52)
    ///     .stagger(None)
    ///     .build()?;
    /// let conn = pool.get_with(GetOptions::new().exclude("user-1")).await?;
    /// assert_eq!(&*conn.source(), "user-2");
    /// # Ok(()) }
    /// ```
    pub fn over(sources: impl IntoIterator<Item = SourceSpec<C>>) -> Builder<C> {
        Builder::new(sources.into_iter().collect())
    }

    fn hub(&self) -> &Arc<Hub<C>> {
        &self.handle.hub
    }

    /// Checks a connection out, waiting for at most the pool's `timeout`.
    ///
    /// Cancel-safe: dropping the future loses nothing.
    #[inline]
    pub fn get(&self) -> Checkout<'_, C> {
        Checkout(self.get_ref())
    }

    /// Checks a connection out as the options say.
    pub fn get_with(&self, options: GetOptions<C::Key>) -> Checkout<'_, C> {
        let excluded = self.numbers(&options.exclude);
        let GetOptions { key, priority, wait, .. } = options;
        Checkout(CheckoutRef::new(self.hub(), key, excluded, priority, wait))
    }

    /// As [`get`](Self::get), with a guard that borrows from the pool: it counts
    /// no reference, which threads that share a busy pool would have to pass around.
    #[inline]
    pub fn get_ref(&self) -> CheckoutRef<'_, C> {
        CheckoutRef::new(self.hub(), None, 0, Priority::Normal, Wait::Default)
    }

    /// The sources with these names, as bits.
    fn numbers(&self, names: &[String]) -> u64 {
        if names.is_empty() {
            return 0;
        }
        let state = self.hub().state.lock();
        let named = state
            .sources
            .iter()
            .enumerate()
            .filter(|(_, source)| names.iter().any(|name| **name == *source.name));
        named.fold(0, |bits, (index, _)| bits | (1 << index))
    }

    /// Checks a connection out if one is ready, without waiting.
    ///
    /// # Errors
    /// [`GetError::Empty`] if none is.
    pub fn try_get(&self) -> Result<Guard<C>, GetError> {
        let hub = self.hub();
        loop {
            let taken = hub.with(|state, now| {
                if state.closed {
                    return Err(GetError::Closed);
                }
                match state.take(now, DEFAULT_KEY, 0) {
                    Some(mut live) => {
                        live.timed = state.count_checkout();
                        Ok(live)
                    }
                    None => {
                        state.empty += 1;
                        Err(GetError::Empty {
                            in_use: state.sources.iter().map(|source| source.in_use).sum(),
                            opening: state.sources.iter().map(|source| source.opening).sum(),
                        })
                    }
                }
            });
            match accept(hub, taken?) {
                Ok(guard) => return Ok(guard.into_owned()),
                Err(dead) => hub.discard_dead(dead),
            }
        }
    }

    /// Waits until `n` connections are usable (ready or in use).
    ///
    /// # Errors
    /// If they are not within `within`: the stock goes on filling.
    pub async fn ready(&self, n: u32, within: Duration) -> Result<(), NotReady> {
        self.reach(n, within, |source| source.ready + source.in_use).await
    }

    /// Waits until the sources' figures add up to `n`.
    async fn reach(
        &self,
        n: u32,
        within: Duration,
        figure: impl Fn(&SourceState) -> u32,
    ) -> Result<(), NotReady> {
        let hub = self.hub();
        let usable = || hub.state.lock().sources.iter().map(&figure).sum::<u32>();
        let start = hub.clock.now();
        let full = async {
            loop {
                let changed = hub.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                let usable = usable();
                if usable >= n || hub.state.lock().closed {
                    return usable;
                }
                changed.await;
            }
        };
        let reached = hub.clock.until(start + within.min(FAR), full).await;
        match reached {
            Some(usable) if usable >= n => Ok(()),
            _ => {
                let state = hub.state.lock();
                let failures = state.sources.iter().find_map(|s| s.last_failure.clone());
                drop(state);
                Err(NotReady {
                    usable: usable(),
                    wanted: n,
                    waited: hub.clock.now() - start,
                    last_failure: failures,
                })
            }
        }
    }

    /// Waits for the initial fill: until every source has its low watermark, for
    /// at most the pool's `initial_fill`.
    ///
    /// # Errors
    /// As [`ready`](Self::ready).
    pub async fn filled(&self) -> Result<(), NotReady> {
        let (n, within) = {
            let state = self.hub().state.lock();
            let n = state.sources.iter().map(|s| s.settings.low_watermark()).sum();
            (n, state.settings.initial_fill)
        };
        // what one source has too many does not make up for another's lack
        let figure = |source: &SourceState| {
            (source.ready + source.in_use).min(source.settings.low_watermark())
        };
        self.reach(n, within, figure).await
    }

    /// A snapshot of counters, gauges and histograms.
    pub fn stats(&self) -> Stats {
        let now = self.hub().clock.now();
        self.hub().state.lock().stats(&self.hub().waits, now)
    }

    /// Recounts everything and gives the promises that do not hold: none, ever.
    /// Costs time in proportion to the connections; meant for tests.
    pub fn audit(&self) -> Vec<Invariant> {
        let now = self.hub().clock.now();
        self.hub().state.lock().audit(now)
    }

    /// A handle to a source by its name.
    pub fn source(&self, name: &str) -> Option<Source<'_, C>> {
        let state = self.hub().state.lock();
        let index = state.sources.iter().position(|source| *source.name == *name)?;
        Some(Source { hub: self.hub(), index })
    }

    /// Starts a new generation on every source: connections opened before are
    /// not handed out again.
    pub fn invalidate(&self) {
        self.hub().wary.store(true, Ordering::Relaxed);
        self.hub().with(|state, now| {
            for index in 0..state.sources.len() {
                state.invalidate(index, now);
            }
        });
    }

    /// Closes the pool: waiting checkouts end with [`GetError::Closed`], the stock
    /// is closed, connections in use are closed as they come back. Completes when
    /// all are gone, or at the deadline after killing what can be killed.
    pub async fn drain(&self, within: Duration) -> Drained {
        let hub = self.hub();
        hub.close();
        let deadline = hub.clock.now() + within.min(FAR);
        let _ = hub.clock.until(deadline, self.emptied()).await;
        let before = self.kills();
        let killers = hub.with(|state, _| {
            for index in 0..state.sources.len() {
                state.kill_in_use(index);
            }
            std::mem::take(&mut state.outbox.kills)
        });
        // done here: whoever has drained may end the runtime next
        for killer in &killers {
            killer.kill();
        }
        let left = self.open_but_detached();
        Drained { left, killed: (self.kills() - before) as u32 }
    }

    async fn emptied(&self) {
        loop {
            let changed = self.hub().changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.open_but_detached() == 0 {
                return;
            }
            changed.await;
        }
    }

    fn open_but_detached(&self) -> u32 {
        let state = self.hub().state.lock();
        state.sources.iter().map(|source| source.open() - source.detached).sum()
    }

    fn kills(&self) -> u64 {
        let state = self.hub().state.lock();
        state.sources.iter().map(|source| source.tallies.kills).sum()
    }
}

/// A source of a running pool.
pub struct Source<'a, C: Connector> {
    hub: &'a Arc<Hub<C>>,
    index: usize,
}

impl<C: Connector> Source<'_, C> {
    /// Starts a new generation: connections opened before are not handed out again.
    pub fn invalidate(&self) {
        self.hub.wary.store(true, Ordering::Relaxed);
        self.hub.with(|state, now| state.invalidate(self.index, now));
    }

    /// Does not use this source for `retry_after`.
    pub fn throttled(&self, retry_after: Duration) {
        self.hub.throttled(self.index, retry_after);
    }
}

impl<C: Connector> crate::state::State<C> {
    fn invalidate(&mut self, index: usize, now: Instant) {
        self.sources[index].generation += 1;
        self.discard_stock(index, Discard::OldGeneration, now);
        self.wake_driver = true;
    }

    pub(crate) fn stats(&self, waits: &Waits, now: Instant) -> Stats {
        let tallies = &self.tallies;
        // what lies on a desk has not been taken yet
        let handed = (0..self.queue.desks())
            .filter(|desk| matches!(self.desks.get(*desk).lock().hand, Hand::Handed(..)));
        let checkouts = self.checkouts - handed.count() as u64;
        Stats {
            checkouts,
            empty: self.empty,
            timeouts: tallies.timeouts,
            refused_full: tallies.refused_full,
            refused_throttled: tallies.refused_throttled,
            unclaimed: tallies.unclaimed,
            cancelled: tallies.cancelled,
            waiting: self.queue.waiting(),
            wakeups: tallies.wakeups,
            breaches: tallies.breaches,
            wait: waits.total(checkouts),
            create: tallies.create.clone(),
            r#use: tallies.r#use.clone(),
            sources: self.sources.iter().map(|source| source.stats(now)).collect(),
        }
    }
}
