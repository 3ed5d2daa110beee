//! The clients of the random world: how they ask, how they wait, and how they
//! treat what they get.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use forebay::{Checkout, Discard, GetError, GetOptions, Guard, Pool, Priority, Returned};
use tokio::time::{Instant, sleep, timeout};

use crate::backend::{Site, planned_panic};
use crate::book::{Book, GRAIN, Waiting};

/// What a client asks for.
#[derive(Debug, Clone)]
pub struct Want {
    pub pool: usize,
    pub key: u32,
    pub priority: Priority,
    /// Sources (by site) that it does not want.
    pub excluded: Vec<usize>,
    /// By when it must have an answer.
    pub deadline: Instant,
}

/// How a client waits.
#[derive(Debug, Clone)]
enum Patience {
    /// Polls whenever it is woken, to the end.
    Prompt,
    /// Drops the checkout after a time.
    Until(Duration),
    /// Drops the checkout after so many polls.
    Polls(u32),
    /// Leaves the checkout unpolled for a while, then awaits or drops it.
    Asleep(Duration, bool),
}

/// How a client ends its use.
#[derive(Debug, Clone, Copy)]
enum Ending {
    Clean,
    Dirty,
    MidResponse,
    Broken,
    Discard,
    Detach,
    Panic,
    Throttled,
}

/// Settings that the clients go by.
#[derive(Debug, Clone)]
pub struct Manners {
    pub keys: u32,
    pub timeout: Duration,
    pub brief_wait: Duration,
    pub claim_within: Duration,
    pub hold: Duration,
    /// In per cent: how many clients do something odd.
    pub odd: u8,
}

pub struct Client {
    pub id: u32,
    pub book: Book,
    pub rng: fastrand::Rng,
    pub manners: Manners,
    /// The sites behind the pool, by the names of its sources.
    pub sites: Vec<(String, usize)>,
    pub pool_index: usize,
}

impl Client {
    /// One life: ask, wait, use, end.
    pub async fn live(mut self, pool: Pool<Site>) {
        if self.rng.u8(..4) == 0 {
            // so that some ask at the same instant as others end
            let span = self.span(Duration::from_millis(5));
            sleep(span).await;
        }
        let (want, options) = self.choose();
        let patience = self.patience();
        let checkout = match &options {
            None => pool.get(),
            Some(options) => pool.get_with(options.clone()),
        };
        let prompt = matches!(patience, Patience::Prompt);
        let place = self.book.arrived(self.id, &want, prompt);
        let result = self.wait(checkout, &patience, &place).await;
        self.book.open().waiting.remove(&self.id);
        match result {
            Some(Ok(guard)) => self.hold(place, guard, prompt).await,
            Some(Err(error)) => self.failed(&want, &error, prompt),
            None => self.book.note("gave up", u64::from(self.id), 0),
        }
    }

    /// As `live`, with a connection that was ready.
    pub async fn live_with(mut self, guard: Guard<Site>) {
        let want = Want {
            pool: self.pool_index,
            key: 0,
            priority: Priority::Normal,
            excluded: Vec::new(),
            deadline: Instant::now(),
        };
        let place = self.book.arrived(self.id, &want, true);
        self.hold(place, guard, true).await;
    }

    fn is_odd(&mut self) -> bool {
        self.rng.u8(..100) < self.manners.odd
    }

    fn choose(&mut self) -> (Want, Option<GetOptions<u32>>) {
        let now = Instant::now();
        let mut want = Want {
            pool: self.pool_index,
            key: 0,
            priority: Priority::Normal,
            excluded: Vec::new(),
            deadline: now + self.manners.timeout,
        };
        if self.rng.u8(..4) == 0 {
            return (want, None);
        }
        let mut options = GetOptions::new();
        want.key = self.rng.u32(..self.manners.keys);
        options = options.key(want.key);
        want.priority = match self.rng.u8(..20) {
            0 => Priority::Health,
            1..=3 => Priority::High,
            4..=6 => Priority::Low,
            _ => Priority::Normal,
        };
        options = options.priority(want.priority);
        if self.rng.u8(..5) == 0 {
            let (name, site) = self.sites[self.rng.usize(..self.sites.len())].clone();
            want.excluded.push(site);
            options = options.exclude(name);
        }
        match self.rng.u8(..8) {
            0 => {
                want.deadline = now + self.manners.brief_wait;
                options = options.brief();
            }
            1 | 2 => {
                let span = self.span(self.manners.timeout * 2);
                want.deadline = now + span;
                options = options.timeout(span);
            }
            3 => {
                want.deadline = now + self.span(self.manners.timeout);
                options = options.deadline(want.deadline);
            }
            _ => {}
        }
        (want, Some(options))
    }

    fn patience(&mut self) -> Patience {
        if !self.is_odd() {
            return Patience::Prompt;
        }
        match self.rng.u8(..4) {
            0 => Patience::Until(self.span(self.manners.timeout)),
            1 => Patience::Polls(self.rng.u32(0..4)),
            2 => Patience::Asleep(self.span(self.manners.claim_within * 3), true),
            _ => Patience::Asleep(self.span(self.manners.claim_within * 3), false),
        }
    }

    fn span(&mut self, most: Duration) -> Duration {
        Duration::from_millis(self.rng.u64(0..=most.as_millis() as u64))
    }

    async fn wait(
        &mut self,
        mut checkout: Checkout<'_, Site>,
        patience: &Patience,
        place: &Waiting,
    ) -> Option<Result<Guard<Site>, GetError>> {
        if matches!(patience, Patience::Polls(0)) {
            return None;
        }
        if let Poll::Ready(result) = poll_once(&mut checkout).await {
            return Some(result);
        }
        self.book.open().waiting.insert(self.id, place.clone());
        match patience {
            Patience::Prompt => Some(checkout.await),
            Patience::Until(span) => timeout(*span, checkout).await.ok(),
            Patience::Polls(most) => {
                let mut polls = 1;
                poll_fn(|cx| {
                    polls += 1;
                    if polls > *most {
                        return Poll::Ready(None);
                    }
                    Pin::new(&mut checkout).poll(cx).map(Some)
                })
                .await
            }
            Patience::Asleep(span, come_back) => {
                sleep(*span).await;
                if !*come_back {
                    return None;
                }
                self.book.woke_up(self.id);
                Some(checkout.await)
            }
        }
    }

    fn failed(&mut self, want: &Want, error: &GetError, prompt: bool) {
        let now = Instant::now();
        let kind = match error {
            GetError::Timeout(_) => "timeout",
            GetError::QueueFull { .. } => "queue full",
            GetError::Throttled { .. } => "throttled",
            GetError::NoSource => "no source",
            GetError::Closed => "closed",
            _ => "other",
        };
        self.book.note(kind, u64::from(self.id), 0);
        let early = matches!(error, GetError::Timeout(_)) && now < want.deadline;
        let late = prompt && now > want.deadline + GRAIN;
        let none_left = want.excluded.len() == self.sites.len();
        if early || late {
            let (client, deadline) = (self.id, want.deadline);
            let off = (now - deadline).max(deadline - now);
            self.book.breach(format!("client {client}: {kind}, {off:?} off its deadline"));
        }
        let refused = matches!(error, GetError::NoSource);
        if refused != none_left && !matches!(error, GetError::Closed) {
            self.book.breach(format!("client {}: {error} for {want:?}", self.id));
        }
    }

    async fn hold(&mut self, place: Waiting, mut guard: Guard<Site>, prompt: bool) {
        let remaining = guard.remaining();
        let late = Instant::now() > place.want.deadline + GRAIN;
        if prompt && late {
            self.book.breach(format!("client {} was served after its deadline", self.id));
        }
        self.book.got(place, &mut guard, remaining);
        let span = match self.rng.u8(..10) {
            0..=3 => Duration::ZERO,
            9 => self.span(self.manners.hold * 20),
            _ => self.span(self.manners.hold),
        };
        if !span.is_zero() {
            sleep(span).await;
        }
        self.end(guard).await;
    }

    async fn end(&mut self, mut guard: Guard<Site>) {
        let id = self.id;
        let ending = self.ending();
        match ending {
            Ending::Clean => {
                self.book.done(&mut guard, "return", None);
            }
            Ending::Dirty => {
                guard.residue = Some(id);
                guard.state = Returned::NeedsReset;
                self.book.done(&mut guard, "dirty", None);
            }
            Ending::MidResponse => {
                guard.residue = Some(id);
                guard.state = Returned::Unknown;
                let why = Some("it was in the middle of a response");
                self.book.done(&mut guard, "mid-response", why);
            }
            Ending::Broken => {
                guard.broken = true;
                self.book.done(&mut guard, "broken", Some("it was broken"));
            }
            Ending::Discard => {
                self.book.done(&mut guard, "discard", Some("it was discarded"));
                return guard.discard(Discard::Broken);
            }
            Ending::Detach => {
                self.book.done(&mut guard, "detach", Some("it was detached"));
                let detached = guard.detach();
                let span = self.span(self.manners.hold * 3);
                sleep(span).await;
                return drop(detached);
            }
            Ending::Panic => {
                guard.residue = Some(id);
                self.book.done(&mut guard, "panic", Some("its user panicked"));
                let _holding = guard;
                planned_panic();
            }
            Ending::Throttled => {
                let retry_after = self.span(self.manners.hold * 5);
                self.book.throttled(guard.site, retry_after);
                guard.throttled(retry_after);
                self.book.done(&mut guard, "return", None);
            }
        }
        drop(guard);
    }

    fn ending(&mut self) -> Ending {
        if !self.is_odd() {
            return if self.rng.u8(..3) == 0 { Ending::Dirty } else { Ending::Clean };
        }
        match self.rng.u8(..8) {
            0 | 1 => Ending::Dirty,
            2 => Ending::MidResponse,
            3 => Ending::Broken,
            4 => Ending::Discard,
            5 => Ending::Detach,
            6 => Ending::Panic,
            _ => Ending::Throttled,
        }
    }
}

/// Polls once with the task's own waker.
async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx))).await
}
