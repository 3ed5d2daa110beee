//! The way between one process and the keeper: slow, lossy, cut in one direction
//! or both; what was sent may arrive twice, and long after anybody waited for it.

use std::sync::Arc;
use std::time::Duration;

use forebay::{BoxFuture, Instant};
use forebay_fleet::{
    Answer, BackendInfo, Keeper, KeeperError, Limits, MemberId, ModelKeeper, News, Report, Reserve,
    Reserved,
};
use parking_lot::Mutex;
use tokio::sync::{mpsc::UnboundedSender, oneshot};
use tokio::time::sleep;

use crate::book::Book;
use crate::fault::Fault;
use crate::time::Watch;

/// How the way is at present.
#[derive(Debug, Clone, Copy, Default)]
pub struct Weather {
    pub cut_up: bool,
    pub cut_down: bool,
    /// Chances in a thousand.
    pub lost: u32,
    pub doubled: u32,
    pub late: u32,
}

impl Weather {
    pub fn is_fair(&self) -> bool {
        !self.cut_up && !self.cut_down && self.lost == 0 && self.late == 0
    }
}

/// What the judge wants to know of a process's talk with the keeper.
#[derive(Debug, Clone, Copy, Default)]
pub struct Heard {
    /// When its last answered report was sent, on the world's clock and its own.
    pub answered_sent: Option<(Instant, Instant)>,
    /// When an answer last reached it.
    pub answered_at: Option<Instant>,
    /// When the keeper last booked a report of it.
    pub booked_at: Option<Instant>,
    /// The weather was not fair when something was sent since the last answer.
    pub trouble: bool,
}

pub struct Net {
    pub keeper: Arc<ModelKeeper>,
    pub book: Book,
    pub index: usize,
    /// Behind the gate of the process.
    pub watch: Watch,
    pub announces: bool,
    pub fault: Fault,
    pub line: Mutex<Line>,
}

pub struct Line {
    pub weather: Weather,
    pub outage: bool,
    pub heard: Heard,
    pub rng: fastrand::Rng,
    pub delay: Duration,
    pub timeout: Duration,
    /// The holding that the process knows to be booked.
    pub known: u32,
}

/// What becomes of one request.
struct Trip {
    up: Option<Duration>,
    down: Option<Duration>,
    again: Option<Duration>,
    /// The sender is told at once that nothing came through.
    told: bool,
}

impl Line {
    fn trip(&mut self) -> Trip {
        let weather = self.weather;
        let mut hit = |chance: u32| self.rng.u32(0..1000) < chance;
        let (lost_up, lost_down) = (hit(weather.lost), hit(weather.lost));
        let (late_up, late_down) = (hit(weather.late), hit(weather.late));
        let doubled = hit(weather.doubled);
        let told = hit(500);
        let mut span = |late: bool| {
            let most = if late { self.timeout * 3 } else { self.delay };
            most.mul_f64(self.rng.f64())
        };
        Trip {
            up: (!lost_up).then(|| span(late_up)),
            down: (!lost_down).then(|| span(late_down)),
            again: doubled.then(|| span(true) * 4),
            told,
        }
    }

    fn is_up(&self) -> bool {
        !self.outage && !self.weather.cut_up
    }

    fn is_down(&self) -> bool {
        !self.outage && !self.weather.cut_down
    }
}

impl Net {
    /// Carries a request to the keeper and its answer back, whoever still waits.
    async fn carry<T: Send + 'static>(
        self: Arc<Self>,
        act: impl Fn(&Net) -> T + Send + 'static,
    ) -> Result<T, KeeperError> {
        let trip = {
            let mut line = self.line.lock();
            let trouble = !line.weather.is_fair() || line.outage;
            line.heard.trouble |= trouble;
            line.trip()
        };
        let (reply, answer) = oneshot::channel();
        let net = self.clone();
        let told = trip.told;
        tokio::spawn(async move {
            let mut reply = Some(reply);
            if let Some(up) = trip.up {
                sleep(up).await;
                if net.line.lock().is_up() {
                    let result = act(&net);
                    if let Some(down) = trip.down {
                        sleep(down).await;
                        if net.line.lock().is_down()
                            && let Some(reply) = reply.take()
                        {
                            let _ = reply.send(result);
                        }
                    }
                }
            }
            drop(reply);
            if let Some(again) = trip.again {
                sleep(again).await;
                if net.line.lock().is_up() {
                    net.book.note("doubled", net.index as u64, 0);
                    act(&net);
                }
            }
        });
        match answer.await {
            Ok(answer) => {
                self.watch.pass().await;
                Ok(answer)
            }
            Err(_) if told => {
                self.watch.pass().await;
                Err(KeeperError::Away { keeper: "model", reason: "lost on the way".to_owned() })
            }
            Err(_) => std::future::pending().await,
        }
    }

    fn book_report(&self, report: &Report, known: u32) -> Answer {
        let answer = self.fault.report(&self.keeper, report, known);
        if matches!(answer, Answer::Booked(_)) {
            self.line.lock().heard.booked_at = Some(Instant::now());
        }
        let held = u64::from(report.held);
        self.book.note("report", self.index as u64 * 100 + report.seq.min(99), held);
        self.book.judge();
        answer
    }
}

/// A keeper as one process sees it.
pub struct Far(pub Arc<Net>);

impl Keeper for Far {
    fn name(&self) -> &'static str {
        "model"
    }

    fn check(&self) -> BoxFuture<'_, Result<(), KeeperError>> {
        self.0.keeper.check()
    }

    fn report<'a>(&'a self, report: &'a Report) -> BoxFuture<'a, Result<Answer, KeeperError>> {
        let (net, report) = (self.0.clone(), report.clone());
        let sent = (Instant::now(), net.watch.shows());
        let known = net.line.lock().known;
        Box::pin(async move {
            let answer = net.clone().carry(move |net| net.book_report(&report, known)).await?;
            let mut line = net.line.lock();
            line.known = 0;
            if let Answer::Booked(booking) = &answer {
                line.known = booking.held;
                line.heard.answered_sent = Some(sent);
            }
            line.heard.answered_at = Some(Instant::now());
            line.heard.trouble = false;
            drop(line);
            if matches!(answer, Answer::Reaped) {
                net.book.note("reaped", net.index as u64, 0);
            }
            Ok(answer)
        })
    }

    fn reserve<'a>(&'a self, reserve: &'a Reserve) -> BoxFuture<'a, Result<Reserved, KeeperError>> {
        let (net, reserve) = (self.0.clone(), reserve.clone());
        Box::pin(
            async move { net.carry(move |net| now_or_never(net.keeper.reserve(&reserve))).await? },
        )
    }

    fn refused<'a>(
        &'a self,
        backend: &'a str,
        limits: &'a Limits,
    ) -> BoxFuture<'a, Result<(), KeeperError>> {
        let (net, backend, limits) = (self.0.clone(), backend.to_owned(), *limits);
        Box::pin(async move {
            net.carry(move |net| now_or_never(net.keeper.refused(&backend, &limits))).await?
        })
    }

    fn listen(&self, news: UnboundedSender<News>) -> BoxFuture<'_, KeeperError> {
        let net = self.0.clone();
        Box::pin(async move {
            if !net.announces {
                return std::future::pending().await;
            }
            let (sender, mut inbox) = tokio::sync::mpsc::unbounded_channel();
            let listen = net.keeper.listen(sender);
            let forward = async {
                while let Some(item) = inbox.recv().await {
                    let trip = net.line.lock().trip();
                    let Some(down) = trip.down else { continue };
                    sleep(down).await;
                    if net.line.lock().is_down() {
                        net.watch.pass().await;
                        let _ = news.send(item);
                    }
                }
            };
            tokio::select! {
                biased;
                error = listen => error,
                () = forward => std::future::pending().await,
            }
        })
    }

    fn announces(&self) -> bool {
        self.0.announces
    }

    fn setup<'a>(&'a self, backend: &'a str) -> BoxFuture<'a, Result<bool, KeeperError>> {
        self.0.keeper.setup(backend)
    }

    fn inspect<'a>(&'a self, backend: &'a str) -> BoxFuture<'a, Result<BackendInfo, KeeperError>> {
        self.0.keeper.inspect(backend)
    }

    fn backends(&self) -> BoxFuture<'_, Result<Vec<String>, KeeperError>> {
        self.0.keeper.backends()
    }

    fn reap<'a>(
        &'a self,
        backend: &'a str,
        member: &'a MemberId,
    ) -> BoxFuture<'a, Result<Option<u32>, KeeperError>> {
        self.0.keeper.reap(backend, member)
    }
}

/// The modelled keeper answers at once.
pub fn now_or_never<T>(future: BoxFuture<'_, T>) -> T {
    let mut future = future;
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("the modelled keeper does not wait"),
    }
}
