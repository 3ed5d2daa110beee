//! A keeper in memory, with the books of the real ones: for tests and for the
//! simulator, which put delays, losses and partitions in front of it.

use std::collections::BTreeMap;

use forebay::{BoxFuture, Clock, Instant};
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;

use crate::keeper::{Keeper, KeeperError, News};
use crate::ledger::{Ledger, Moment, Stepped};
use crate::message::{Answer, BackendInfo, Limits, MemberId, Report, Reserve, Reserved};
use crate::rate::RateBook;

/// Steps of the clock below this are not told from a slow reader.
const CLOCK_STEP_US: u64 = 1_000_000;

/// Keeps books in memory.
pub struct ModelKeeper {
    clock: Clock,
    base: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    books: BTreeMap<String, Books>,
    listeners: Vec<UnboundedSender<News>>,
    run: u64,
    /// Microseconds added to the clock.
    step_us: i64,
}

#[derive(Clone)]
struct Books {
    ledger: Ledger,
    rate: RateBook,
    run_id: String,
    /// When the rate was last looked at.
    rate_us: u64,
}

impl Books {
    /// After a change of server the bucket is empty; what was promised before counts.
    /// A clock that was set back takes the rate along, one that leapt fills nothing.
    fn settle_rate(&mut self, limits: &Limits, run_id: &str, windows: u64, now_us: u64) {
        let back = self.rate_us.saturating_sub(now_us);
        if back > CLOCK_STEP_US {
            self.rate.tat_us = self.rate.tat_us.saturating_sub(back);
            self.rate.refused_us = self.rate.refused_us.saturating_sub(back);
        }
        self.rate_us = now_us;
        if self.run_id != run_id || windows != self.ledger.windows {
            run_id.clone_into(&mut self.run_id);
            self.rate.drain(limits, now_us);
        }
    }
}

/// What a keeper had at an instant, for coming back with old data.
pub struct Snapshot(BTreeMap<String, Books>);

impl ModelKeeper {
    /// A keeper without books.
    pub fn new(clock: Clock) -> Self {
        // an hour into its life, so that its clock can be set back
        Self { base: clock.now(), clock, state: Mutex::default() }
    }

    fn now_us(&self, state: &State) -> u64 {
        let run = self.clock.now().saturating_duration_since(self.base).as_micros() as i64;
        u64::try_from(run + 3_600_000_000 + state.step_us).unwrap_or(0)
    }

    /// What it has now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.state.lock().books.clone())
    }

    /// Restarts as another server with the data of `snapshot`, or without any.
    pub fn restart(&self, snapshot: Option<Snapshot>) {
        let mut state = self.state.lock();
        state.books = snapshot.map_or_else(BTreeMap::new, |snapshot| snapshot.0);
        state.run += 1;
    }

    /// Moves the keeper's clock.
    pub fn step_clock(&self, by_ms: i64) {
        self.state.lock().step_us += by_ms * 1000;
    }

    /// Looks at a backend's books, or changes them as an accident would.
    pub fn edit<R>(&self, backend: &str, change: impl FnOnce(&mut Ledger) -> R) -> Option<R> {
        self.state.lock().books.get_mut(backend).map(|books| change(&mut books.ledger))
    }

    /// A backend's books, for assertions.
    pub fn ledger(&self, backend: &str) -> Option<Ledger> {
        self.state.lock().books.get(backend).map(|books| books.ledger.clone())
    }
}

impl State {
    fn run_id(&self) -> String {
        format!("run-{}", self.run)
    }

    fn announce(&mut self, backend: &str, stepped: &Stepped) {
        for member in &stepped.news {
            let news = News { backend: backend.to_owned(), member: member.clone() };
            self.listeners.retain(|listener| listener.send(news.clone()).is_ok());
        }
    }

    /// The rate's books; empty where data was lost.
    fn rate(&mut self, reserve: &Reserve, now_us: u64) -> (&mut RateBook, Limits) {
        let run_id = self.run_id();
        let moment = Moment { now_ms: now_us / 1000, run_id: &run_id, by_time: true };
        let books = self.books.entry(reserve.backend.clone()).or_insert_with(|| Books {
            ledger: Ledger::unknown(reserve.nonce, reserve.ttl_ms, moment),
            rate: RateBook::empty(&reserve.limits, now_us),
            run_id: run_id.clone(),
            rate_us: now_us,
        });
        let known = books.ledger.limits().0;
        let limits = if known.rate == 0 { reserve.limits } else { known };
        let windows = books.ledger.windows;
        books.settle_rate(&limits, &run_id, windows, now_us);
        (&mut books.rate, limits)
    }
}

impl Keeper for ModelKeeper {
    fn name(&self) -> &'static str {
        "model"
    }

    fn check(&self) -> BoxFuture<'_, Result<(), KeeperError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn report<'a>(&'a self, report: &'a Report) -> BoxFuture<'a, Result<Answer, KeeperError>> {
        let mut state = self.state.lock();
        let now_us = self.now_us(&state);
        let run_id = state.run_id();
        let moment = Moment { now_ms: now_us / 1000, run_id: &run_id, by_time: true };
        let books = state.books.entry(report.backend.clone()).or_insert_with(|| Books {
            ledger: Ledger::unknown(report.nonce, report.profile.ttl_ms, moment),
            rate: RateBook::empty(&report.profile.limits, now_us),
            run_id: run_id.clone(),
            rate_us: now_us,
        });
        let windows = books.ledger.windows;
        let stepped = books.ledger.step(report, moment);
        books.settle_rate(&report.profile.limits, &run_id, windows, now_us);
        state.announce(&report.backend, &stepped);
        Box::pin(std::future::ready(Ok(stepped.answer)))
    }

    fn reserve<'a>(&'a self, reserve: &'a Reserve) -> BoxFuture<'a, Result<Reserved, KeeperError>> {
        let mut state = self.state.lock();
        let now_us = self.now_us(&state);
        let (rate, limits) = state.rate(reserve, now_us);
        let reserved = rate.reserve(reserve, &limits, now_us);
        Box::pin(std::future::ready(Ok(reserved)))
    }

    fn refused<'a>(
        &'a self,
        backend: &'a str,
        limits: &'a Limits,
    ) -> BoxFuture<'a, Result<(), KeeperError>> {
        let mut state = self.state.lock();
        let now_us = self.now_us(&state);
        if let Some(books) = state.books.get_mut(backend) {
            books.rate.refused(limits, now_us);
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn listen(&self, news: UnboundedSender<News>) -> BoxFuture<'_, KeeperError> {
        self.state.lock().listeners.push(news);
        Box::pin(std::future::pending())
    }

    fn announces(&self) -> bool {
        true
    }

    fn setup<'a>(&'a self, backend: &'a str) -> BoxFuture<'a, Result<bool, KeeperError>> {
        let mut state = self.state.lock();
        let now_us = self.now_us(&state);
        let run_id = state.run_id();
        let is_new = !state.books.contains_key(backend);
        if is_new {
            let moment = Moment { now_ms: now_us / 1000, run_id: &run_id, by_time: true };
            let ledger = Ledger::ready(now_us, moment);
            let rate = RateBook::default();
            let books = Books { ledger, rate, run_id: run_id.clone(), rate_us: now_us };
            state.books.insert(backend.to_owned(), books);
        }
        Box::pin(std::future::ready(Ok(is_new)))
    }

    fn inspect<'a>(&'a self, backend: &'a str) -> BoxFuture<'a, Result<BackendInfo, KeeperError>> {
        let state = self.state.lock();
        let now_ms = self.now_us(&state) / 1000;
        let info = state.books.get(backend).map(|books| BackendInfo {
            backend: backend.to_owned(),
            generation: books.ledger.generation.clone(),
            limit: books.ledger.limits().0.open,
            total: books.ledger.total(),
            declaring_ms: books.ledger.window.map_or(0, |w| w.until_ms.saturating_sub(now_ms)),
            members: books.ledger.list(Some(now_ms)),
        });
        let none = || BackendInfo {
            backend: backend.to_owned(),
            generation: String::new(),
            limit: 0,
            total: 0,
            declaring_ms: 0,
            members: Vec::new(),
        };
        Box::pin(std::future::ready(Ok(info.unwrap_or_else(none))))
    }

    fn backends(&self) -> BoxFuture<'_, Result<Vec<String>, KeeperError>> {
        let names = self.state.lock().books.keys().cloned().collect();
        Box::pin(std::future::ready(Ok(names)))
    }

    fn reap<'a>(
        &'a self,
        backend: &'a str,
        member: &'a MemberId,
    ) -> BoxFuture<'a, Result<Option<u32>, KeeperError>> {
        let mut state = self.state.lock();
        let entry = state.books.get_mut(backend).and_then(|books| books.ledger.reap(member));
        let leases = entry.map(|entry| entry.held + entry.reserved);
        Box::pin(std::future::ready(Ok(leases)))
    }
}
