//! A connection in the hands of its user. The guard returns it when dropped,
//! on any thread, inside or outside a runtime; a detached connection carries
//! its lease along until it is dropped.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use crate::connector::{Connector, Returned};
use crate::hub::Hub;
use crate::live::{Live, Verdict};
use crate::reason::Discard;
use crate::state::State;

/// A connection checked out of a pool. Derefs to the connection; dropping it
/// gives it back.
///
/// ```
/// # use forebay::{Connector, Opened, Pool};
/// # struct Db; impl Connector for Db { type Conn = String; type Key = (); type Error = std::io::Error;
/// #   async fn connect(&self, _: &()) -> Result<Opened<String>, std::io::Error> { Ok(Opened::new("session".into())) } }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = Pool::builder(Db).max_open(2).stagger(None).build()?;
/// let mut conn = pool.get().await?;
/// conn.push_str(" used");
/// drop(conn); // back in the pool
/// # Ok(()) }
/// ```
pub struct GuardRef<'a, C: Connector> {
    hub: Home<'a, C>,
    /// Present until the guard is dropped, discarded or detached.
    live: Option<Box<Live<C>>>,
}

/// A guard that does not borrow from its pool: what [`Pool::get`](crate::Pool::get) gives.
pub type Guard<C> = GuardRef<'static, C>;

/// The way back to the pool.
pub(crate) enum Home<'a, C: Connector> {
    /// Costs nothing: no reference is counted.
    Borrowed(&'a Arc<Hub<C>>),
    Owned(Arc<Hub<C>>),
}

impl<C: Connector> Deref for Home<'_, C> {
    type Target = Arc<Hub<C>>;

    #[inline]
    fn deref(&self) -> &Arc<Hub<C>> {
        match self {
            Self::Borrowed(hub) => hub,
            Self::Owned(hub) => hub,
        }
    }
}

/// The conn is there for as long as the guard can be reached.
const HELD: &str = "a guard holds its connection until it is dropped";

impl<'a, C: Connector> GuardRef<'a, C> {
    #[inline]
    pub(crate) fn new(hub: &'a Arc<Hub<C>>, live: Box<Live<C>>) -> Self {
        Self { hub: Home::Borrowed(hub), live: Some(live) }
    }

    /// A guard that does not borrow from its pool, to be kept in a structure or
    /// given to another task.
    pub fn into_owned(mut self) -> Guard<C> {
        GuardRef { hub: Home::Owned(Arc::clone(&self.hub)), live: self.live.take() }
    }

    fn live(&self) -> &Live<C> {
        self.live.as_ref().expect(HELD)
    }

    /// The name of the source that the connection came from.
    pub fn source(&self) -> Arc<str> {
        let index = self.live().source as usize;
        self.hub.state.lock().sources[index].name.clone()
    }

    /// How long the connection lives yet. At checkout at least the guard window.
    pub fn remaining(&self) -> Duration {
        let now = self.hub.clock.now();
        let id = self.live().id as usize;
        self.hub.state.lock().conns[id].expires_at.saturating_duration_since(now)
    }

    /// Says that the backend asked this connection's source to wait. The source
    /// is not used until then; connections in use stay so.
    pub fn throttled(&self, retry_after: Duration) {
        let index = self.live().source as usize;
        self.hub.throttled(index, retry_after);
    }

    /// Closes the connection instead of giving it back.
    pub fn discard(mut self, reason: Discard) {
        self.give_back(Verdict::Discard(reason));
    }

    /// Keeps the connection for good. It still counts against the pool's caps
    /// and holds its lease until the [`Detached`] value is dropped.
    pub fn detach(mut self) -> Detached<C> {
        let mut live = self.live.take();
        if let Some(live) = &mut live {
            let (id, desk) = (live.id, live.desk.take());
            self.hub.with(|state, _| state.detach(id, desk));
        }
        Detached { hub: Arc::clone(&self.hub), live }
    }

    #[inline]
    fn give_back(&mut self, verdict: Verdict) {
        if let Some(mut live) = self.live.take() {
            let hub = &**self.hub;
            let used = live.taken_at.take().map(|at| hub.clock.now() - at);
            // as a rule the time is needed only if somebody waits
            let dated = verdict != Verdict::Clean || !hub.rough.is_trusted();
            let now = (dated || hub.desks.is_crowded()).then(|| hub.rough.now(&hub.clock));
            let mut state = hub.state.lock();
            if let Some(used) = used {
                state.tallies.r#use.record_n(used, hub.timed_share());
            }
            let judged = if dated { Some(live) } else { state.put_undated(live) };
            let delivery = judged.and_then(|live| {
                state.put_back(live, verdict, now.unwrap_or_else(|| hub.rough.now(&hub.clock)))
            });
            hub.unlock(state);
            if let Some(delivery) = delivery {
                hub.deliver(delivery);
            }
        }
    }
}

impl<C: Connector> Deref for GuardRef<'_, C> {
    type Target = C::Conn;

    #[inline]
    fn deref(&self) -> &C::Conn {
        &self.live().conn
    }
}

impl<C: Connector> DerefMut for GuardRef<'_, C> {
    #[inline]
    fn deref_mut(&mut self) -> &mut C::Conn {
        &mut self.live.as_mut().expect(HELD).conn
    }
}

impl<C: Connector> Drop for GuardRef<'_, C> {
    #[inline]
    fn drop(&mut self) {
        let Some(live) = self.live.as_mut() else { return };
        let verdict = if std::thread::panicking() {
            Verdict::Discard(Discard::UnknownState)
        } else {
            let connector = &self.hub.connectors[live.source as usize];
            judge(connector, &mut live.conn)
        };
        self.give_back(verdict);
    }
}

/// In which state a connection comes back. A connector that panics here costs
/// this connection only.
#[inline]
fn judge<C: Connector>(connector: &C, conn: &mut C::Conn) -> Verdict {
    let asked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        if connector.is_broken(conn) {
            return Verdict::Discard(Discard::Broken);
        }
        match connector.state(conn) {
            Returned::Clean => Verdict::Clean,
            Returned::NeedsReset => Verdict::Reset,
            Returned::Broken => Verdict::Discard(Discard::Broken),
            Returned::Unknown => Verdict::Discard(Discard::UnknownState),
        }
    }));
    asked.unwrap_or(Verdict::Discard(Discard::UnknownState))
}

impl<C: Connector> fmt::Debug for GuardRef<'_, C>
where
    C::Conn: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&**self).finish()
    }
}

/// A connection that its user keeps. Dropping it closes it and then gives its
/// lease back.
pub struct Detached<C: Connector> {
    hub: Arc<Hub<C>>,
    live: Option<Box<Live<C>>>,
}

impl<C: Connector> Deref for Detached<C> {
    type Target = C::Conn;

    fn deref(&self) -> &C::Conn {
        &self.live.as_ref().expect(HELD).conn
    }
}

impl<C: Connector> DerefMut for Detached<C> {
    fn deref_mut(&mut self) -> &mut C::Conn {
        &mut self.live.as_mut().expect(HELD).conn
    }
}

impl<C: Connector> Drop for Detached<C> {
    fn drop(&mut self) {
        if let Some(live) = self.live.take() {
            self.hub.with(|state: &mut State<C>, now| state.drop_detached(live, now));
        }
    }
}
