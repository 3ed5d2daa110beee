//! A keeper that counts what a member says to it. A report that changes nothing
//! and comes when a heartbeat is due is a heartbeat, and listed apart; one that
//! changes nothing but comes earlier, to see whether others have let go, is not.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::{AddAssign, Sub};
use std::sync::Arc;
use std::time::Duration;

use forebay::BoxFuture;
use forebay_fleet::{
    Answer, BackendInfo, DynamoKeeper, Keeper, KeeperError, Limits, MemberId, News, Report,
    Reserve, Reserved,
};
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;

/// On joining a backend the Redis keeper also puts it into the set of all backends
/// and listens to its news.
const REDIS_JOIN: u64 = 2;
/// A call that was broken off never ends; it is not waited for longer than this many times 5 ms.
const QUIET_LOOKS: u32 = 400;

/// What was said so far, or between two points in time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    /// Reports other than heartbeats.
    pub(crate) reports: u64,
    /// Requests for permits, and word of refusals.
    pub(crate) reserves: u64,
    /// Reports that only say "still here".
    pub(crate) heartbeats: u64,
    /// Round trips of all but the heartbeats.
    pub(crate) trips: u64,
}

impl Sub for Tally {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            reports: self.reports - before.reports,
            reserves: self.reserves - before.reserves,
            heartbeats: self.heartbeats - before.heartbeats,
            // a call that was broken off as the first tally was taken may be a heartbeat's
            trips: self.trips.saturating_sub(before.trips),
        }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, more: Self) {
        self.reports += more.reports;
        self.reserves += more.reserves;
        self.heartbeats += more.heartbeats;
        self.trips += more.trips;
    }
}

/// Passes everything on, and counts.
pub(crate) struct Counted {
    keeper: Arc<dyn Keeper>,
    /// Counts its own requests: a call may take several.
    dynamo: Option<Arc<DynamoKeeper>>,
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    tally: Tally,
    /// What each member had, and wanted, after its last report.
    last: BTreeMap<MemberId, (u32, u32)>,
    begun: u64,
    ended: u64,
    /// Requests that heartbeats took.
    beats: u64,
}

impl Book {
    fn report(&mut self, joins: bool) {
        self.tally.reports += 1;
        self.tally.trips += if joins { 1 + REDIS_JOIN } else { 1 };
    }

    fn reserve(&mut self) {
        self.begun += 1;
        self.tally.reserves += 1;
        self.tally.trips += 1;
    }
}

impl Counted {
    pub(crate) fn redis(keeper: impl Keeper) -> Arc<Self> {
        Arc::new(Self { keeper: Arc::new(keeper), dynamo: None, book: Mutex::default() })
    }

    pub(crate) fn dynamo(keeper: DynamoKeeper) -> Arc<Self> {
        let dynamo = Arc::new(keeper);
        let keeper: Arc<dyn Keeper> = dynamo.clone();
        Arc::new(Self { keeper, dynamo: Some(dynamo), book: Mutex::default() })
    }

    /// Up to now, once what is under way has ended: the requests of a heartbeat are
    /// known to be one's only then.
    pub(crate) async fn tally(&self) -> Tally {
        for _ in 0..QUIET_LOOKS {
            let under_way = {
                let book = self.book.lock();
                book.begun - book.ended
            };
            if under_way == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let book = self.book.lock();
        let trips = self.requests().map_or(book.tally.trips, |requests| requests - book.beats);
        Tally { trips, ..book.tally }
    }

    fn requests(&self) -> Option<u64> {
        self.dynamo.as_ref().map(|keeper| keeper.round_trips())
    }

    /// The requests of a call count as a heartbeat's only if nothing else was
    /// under way with it.
    async fn beat<T>(&self, call: impl Future<Output = T>) -> T {
        let before = self.requests();
        let (begun, alone) = {
            let book = self.book.lock();
            (book.begun, book.begun == book.ended + 1)
        };
        let result = call.await;
        let mut book = self.book.lock();
        if alone && book.begun == begun {
            book.beats += self.requests().unwrap_or(0) - before.unwrap_or(0);
        }
        result
    }

    fn is_heartbeat(&self, report: &Report) -> bool {
        let due = report.profile.heartbeat_ms * 9 / 10;
        let said = (report.held, report.want);
        report.elapsed_ms.is_some_and(|elapsed| elapsed >= due)
            && !report.leave
            && self.book.lock().last.get(&report.member) == Some(&said)
    }

    async fn counted_report(&self, report: &Report) -> Result<Answer, KeeperError> {
        self.book.lock().begun += 1;
        let call = self.keeper.report(report);
        let answer = if self.is_heartbeat(report) {
            self.book.lock().tally.heartbeats += 1;
            self.beat(call).await
        } else {
            self.book.lock().report(report.seq == 1);
            call.await
        };
        let mut book = self.book.lock();
        book.ended += 1;
        if let Ok(Answer::Booked(booking)) = &answer {
            let after = (booking.held, report.want.max(booking.held));
            book.last.insert(report.member.clone(), after);
        }
        answer
    }

    async fn counted<T>(&self, call: impl Future<Output = T>) -> T {
        self.book.lock().reserve();
        let result = call.await;
        self.book.lock().ended += 1;
        result
    }
}

impl Keeper for Counted {
    fn name(&self) -> &'static str {
        self.keeper.name()
    }

    fn check(&self) -> BoxFuture<'_, Result<(), KeeperError>> {
        self.keeper.check()
    }

    fn report<'a>(&'a self, report: &'a Report) -> BoxFuture<'a, Result<Answer, KeeperError>> {
        Box::pin(self.counted_report(report))
    }

    fn reserve<'a>(&'a self, reserve: &'a Reserve) -> BoxFuture<'a, Result<Reserved, KeeperError>> {
        Box::pin(self.counted(self.keeper.reserve(reserve)))
    }

    fn refused<'a>(
        &'a self,
        backend: &'a str,
        limits: &'a Limits,
    ) -> BoxFuture<'a, Result<(), KeeperError>> {
        Box::pin(self.counted(self.keeper.refused(backend, limits)))
    }

    fn listen(&self, news: UnboundedSender<News>) -> BoxFuture<'_, KeeperError> {
        self.keeper.listen(news)
    }

    fn announces(&self) -> bool {
        self.keeper.announces()
    }

    fn setup<'a>(&'a self, backend: &'a str) -> BoxFuture<'a, Result<bool, KeeperError>> {
        self.keeper.setup(backend)
    }

    fn inspect<'a>(&'a self, backend: &'a str) -> BoxFuture<'a, Result<BackendInfo, KeeperError>> {
        self.keeper.inspect(backend)
    }

    fn backends(&self) -> BoxFuture<'_, Result<Vec<String>, KeeperError>> {
        self.keeper.backends()
    }

    fn reap<'a>(
        &'a self,
        backend: &'a str,
        member: &'a MemberId,
    ) -> BoxFuture<'a, Result<Option<u32>, KeeperError>> {
        self.keeper.reap(backend, member)
    }
}
