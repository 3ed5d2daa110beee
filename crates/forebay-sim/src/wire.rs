//! A member's way to the coordinator: messages take time, get lost, and do not
//! get through while the member is cut off or the coordinator is away.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay::{BoxFuture, Instant};
use forebay_fleet::{
    Answer, BackendInfo, Keeper, KeeperError, Limits, MemberId, ModelKeeper, News, Report, Reserve,
    Reserved,
};
use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::clocks::MemberClock;
use crate::link::{now, pass};
use crate::scenario::Spread;

/// The coordinator as a whole.
pub(crate) struct Hall {
    pub(crate) keeper: ModelKeeper,
    pub(crate) away_until: Mutex<Option<Instant>>,
    pub(crate) calls: AtomicU64,
    pub(crate) announces: bool,
    pub(crate) latency: Spread,
    pub(crate) loss: f64,
}

/// One member's way there.
pub(crate) struct Wire {
    pub(crate) hall: Arc<Hall>,
    pub(crate) clock: MemberClock,
    pub(crate) cut_until: Arc<Mutex<Option<Instant>>>,
    pub(crate) rng: Mutex<fastrand::Rng>,
}

impl Wire {
    fn is_cut(&self) -> bool {
        let now = now();
        self.cut_until.lock().is_some_and(|until| now < until)
            || self.hall.away_until.lock().is_some_and(|until| now < until)
    }

    /// One way: a message that does not arrive is waited for in vain.
    async fn cross(&self) {
        let (span, lost) = {
            let mut rng = self.rng.lock();
            (self.hall.latency.draw(&mut rng) / 2, rng.f64() < self.hall.loss)
        };
        pass(span).await;
        if lost || self.is_cut() {
            std::future::pending::<()>().await;
        }
    }

    async fn call<T>(&self, ask: impl Future<Output = T>) -> T {
        self.hall.calls.fetch_add(1, Ordering::Relaxed);
        self.cross().await;
        let answer = ask.await;
        self.cross().await;
        self.clock.gate().await;
        answer
    }
}

impl Keeper for Wire {
    fn name(&self) -> &'static str {
        "modelled"
    }

    fn check(&self) -> BoxFuture<'_, Result<(), KeeperError>> {
        self.hall.keeper.check()
    }

    fn report<'a>(&'a self, report: &'a Report) -> BoxFuture<'a, Result<Answer, KeeperError>> {
        Box::pin(self.call(async { self.hall.keeper.report(report).await }))
    }

    fn reserve<'a>(&'a self, reserve: &'a Reserve) -> BoxFuture<'a, Result<Reserved, KeeperError>> {
        Box::pin(self.call(async { self.hall.keeper.reserve(reserve).await }))
    }

    fn refused<'a>(
        &'a self,
        backend: &'a str,
        limits: &'a Limits,
    ) -> BoxFuture<'a, Result<(), KeeperError>> {
        Box::pin(self.call(async { self.hall.keeper.refused(backend, limits).await }))
    }

    fn listen(&self, news: UnboundedSender<News>) -> BoxFuture<'_, KeeperError> {
        if !self.hall.announces {
            return Box::pin(std::future::pending());
        }
        Box::pin(async move {
            let (sender, mut inbox) = unbounded_channel();
            let listening = self.hall.keeper.listen(sender);
            let pass_on = async {
                while let Some(message) = inbox.recv().await {
                    let span = self.hall.latency.draw(&mut self.rng.lock()) / 2;
                    pass(span).await;
                    self.clock.gate().await;
                    if !self.is_cut() && news.send(message).is_err() {
                        break;
                    }
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                biased;
                error = listening => error,
                () = pass_on => KeeperError::Away { keeper: "modelled", reason: "gone".into() },
            }
        })
    }

    fn announces(&self) -> bool {
        self.hall.announces
    }

    fn setup<'a>(&'a self, backend: &'a str) -> BoxFuture<'a, Result<bool, KeeperError>> {
        self.hall.keeper.setup(backend)
    }

    fn inspect<'a>(&'a self, backend: &'a str) -> BoxFuture<'a, Result<BackendInfo, KeeperError>> {
        self.hall.keeper.inspect(backend)
    }

    fn backends(&self) -> BoxFuture<'_, Result<Vec<String>, KeeperError>> {
        self.hall.keeper.backends()
    }

    fn reap<'a>(
        &'a self,
        backend: &'a str,
        member: &'a MemberId,
    ) -> BoxFuture<'a, Result<Option<u32>, KeeperError>> {
        self.hall.keeper.reap(backend, member)
    }
}
