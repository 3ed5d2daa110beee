//! The one case that needs real time and a real thread: every worker of the
//! application is blocked past the ttl, and the fence must fall all the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use forebay::{BoxFuture, Clock, Connector, Killer, Opened, Pool};
use forebay_fleet::{
    Answer, BackendInfo, BackendLimits, Keeper, KeeperError, Limits, Link, Member, MemberId,
    MemberSettings, ModelKeeper, OnLoss, Report, Reserve, Reserved,
};

/// A keeper that can be cut off.
struct Cut {
    inner: ModelKeeper,
    away: Arc<AtomicBool>,
}

impl Cut {
    fn through<'a, T: Send + 'a>(&self, answer: BoxFuture<'a, T>) -> BoxFuture<'a, T> {
        if self.away.load(Ordering::SeqCst) {
            return Box::pin(std::future::pending());
        }
        answer
    }
}

impl Keeper for Cut {
    fn name(&self) -> &'static str {
        "model"
    }

    fn check(&self) -> BoxFuture<'_, Result<(), KeeperError>> {
        self.inner.check()
    }

    fn report<'a>(&'a self, report: &'a Report) -> BoxFuture<'a, Result<Answer, KeeperError>> {
        self.through(self.inner.report(report))
    }

    fn reserve<'a>(&'a self, reserve: &'a Reserve) -> BoxFuture<'a, Result<Reserved, KeeperError>> {
        self.through(self.inner.reserve(reserve))
    }

    fn refused<'a>(
        &'a self,
        backend: &'a str,
        limits: &'a Limits,
    ) -> BoxFuture<'a, Result<(), KeeperError>> {
        self.through(self.inner.refused(backend, limits))
    }

    fn setup<'a>(&'a self, backend: &'a str) -> BoxFuture<'a, Result<bool, KeeperError>> {
        self.inner.setup(backend)
    }

    fn inspect<'a>(&'a self, backend: &'a str) -> BoxFuture<'a, Result<BackendInfo, KeeperError>> {
        self.inner.inspect(backend)
    }

    fn backends(&self) -> BoxFuture<'_, Result<Vec<String>, KeeperError>> {
        self.inner.backends()
    }

    fn reap<'a>(
        &'a self,
        backend: &'a str,
        member: &'a MemberId,
    ) -> BoxFuture<'a, Result<Option<u32>, KeeperError>> {
        self.inner.reap(backend, member)
    }
}

/// Counts connections that nobody has killed or closed.
#[derive(Clone, Default)]
struct Live(Arc<AtomicU32>);

struct Conn {
    live: Live,
    dead: Arc<AtomicBool>,
}

impl Conn {
    fn end(live: &Live, dead: &AtomicBool) {
        if !dead.swap(true, Ordering::SeqCst) {
            live.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        Self::end(&self.live, &self.dead);
    }
}

impl Connector for Live {
    type Conn = Conn;
    type Key = ();
    type Error = std::io::Error;
    const KILLS: bool = true;

    async fn connect(&self, _key: &()) -> Result<Opened<Conn>, std::io::Error> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let dead = Arc::new(AtomicBool::new(false));
        let (live, flag) = (self.clone(), dead.clone());
        let killer = Killer::new(move || Conn::end(&live, &flag));
        Ok(Opened::new(Conn { live: self.clone(), dead }).with_killer(killer))
    }

    fn is_broken(&self, conn: &Conn) -> bool {
        conn.dead.load(Ordering::SeqCst)
    }
}

/// One thread runs the whole application, and is blocked.
#[tokio::test(flavor = "current_thread")]
async fn a_member_on_its_own_thread_fences_itself_while_every_worker_is_blocked() {
    let away = Arc::new(AtomicBool::new(false));
    let settings = MemberSettings {
        ttl: Duration::from_millis(1000),
        heartbeat: Duration::from_millis(200),
        margin: Duration::from_millis(300),
        request_timeout: Duration::from_millis(100),
        reclaim_after: Duration::from_millis(1000),
        on_loss: OnLoss::Fence,
        ..MemberSettings::new("web-1", "web")
    };
    let cut = away.clone();
    let member = Member::start(settings, move || async move {
        let inner = ModelKeeper::new(Clock::tokio());
        inner.setup("db").await?;
        Ok(Arc::new(Cut { inner, away: cut }) as Arc<dyn Keeper>)
    });
    let member = member.await.expect("a member");
    let budgets = member.backend("db", BackendLimits::new(4, 1000, 1000)).expect("a backend");
    let live = Live::default();
    let pool = Pool::builder(live.clone())
        .max_open(4)
        .stagger(None)
        .count(budgets.count.clone())
        .rate(budgets.rate.clone())
        .build()
        .expect("a pool");
    pool.ready(4, Duration::from_secs(20)).await.expect("filled");
    let used = [pool.get().await.expect("ready"), pool.get().await.expect("ready")];
    assert_eq!(live.0.load(Ordering::SeqCst), 4);
    away.store(true, Ordering::SeqCst);
    // ttl and as much again: the last report before the cut may just have been sent
    std::thread::sleep(Duration::from_millis(2000));
    assert_eq!(live.0.load(Ordering::SeqCst), 0, "alive after ttl");
    assert_eq!(budgets.count.link(), Link::Lapsed);
    assert!(pool.try_get().is_err());
    drop(used);
}
