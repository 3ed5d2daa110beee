//! The rate budget of a fleet: permits fetched from the keeper, several at a
//! time, on the member's own thread. Pools ask through a channel; whatever asks
//! while a call is under way shares the next one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay::{BoxFuture, BudgetError, Clock, Instant, PERMIT_GOOD_FOR, Permit, RateBudget};
use tokio::sync::{mpsc, oneshot};

use crate::account::Link;
use crate::count::FleetCount;
use crate::keeper::Keeper;
use crate::message::{Limits, Reserve};
use crate::rate::{HORIZON, RateBook};
use crate::settings::MemberSettings;

/// The most permits fetched ahead of being asked for.
const AHEAD_MAX: u32 = 64;
/// If permits are this far away, others want them too, and none is fetched ahead.
const CROWDED_US: i64 = 1_000_000;

type Reply = oneshot::Sender<Result<Permit, BudgetError>>;

/// Somebody who asked for a permit.
struct Waiting {
    reply: Reply,
    since: Instant,
}

pub(crate) enum Ask {
    Permit { more: u32, reply: Reply },
    Refused,
}

/// A member's share in how fast connections to one backend may be opened. Give
/// it to every pool in this process that uses the backend.
#[derive(Debug)]
pub struct FleetRate {
    asks: mpsc::UnboundedSender<Ask>,
    figures: Arc<Figures>,
}

/// What became of permits.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    fetched: AtomicU64,
    burned: AtomicU64,
}

impl FleetRate {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Ask>) {
        let (asks, inbox) = mpsc::unbounded_channel();
        (Self { asks, figures: Arc::default() }, inbox)
    }

    pub(crate) fn figures(&self) -> Arc<Figures> {
        self.figures.clone()
    }

    /// Permits reserved with the keeper.
    pub fn fetched(&self) -> u64 {
        self.figures.fetched.load(Ordering::Relaxed)
    }

    /// Permits that ran out before a pool asked for them.
    pub fn burned(&self) -> u64 {
        self.figures.burned.load(Ordering::Relaxed)
    }
}

impl RateBudget for FleetRate {
    fn reserve(&self, _now: Instant, more: u32) -> BoxFuture<'_, Result<Permit, BudgetError>> {
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            let left = || BudgetError::new("this process has left the fleet");
            self.asks.send(Ask::Permit { more, reply }).map_err(|_| left())?;
            answer.await.unwrap_or_else(|_| Err(left()))
        })
    }

    fn refused(&self, _now: Instant) {
        // after leaving the fleet there is nobody to tell
        let _ = self.asks.send(Ask::Refused);
    }
}

/// Serves one backend's asks until the budget is dropped.
pub(crate) struct Pacer {
    pub(crate) backend: String,
    pub(crate) settings: MemberSettings,
    pub(crate) keeper: Arc<dyn Keeper>,
    pub(crate) count: Arc<FleetCount>,
    pub(crate) clock: Clock,
    pub(crate) rng: fastrand::Rng,
    pub(crate) figures: Arc<Figures>,
    pub(crate) stock: VecDeque<Permit>,
    pub(crate) ahead: u32,
    pub(crate) lead_us: i64,
    pub(crate) offline: Option<RateBook>,
    pub(crate) base: Instant,
}

impl Pacer {
    pub(crate) async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Ask>) {
        let mut waiting: VecDeque<Waiting> = VecDeque::new();
        let mut more = 0;
        let mut retry_at = self.base;
        loop {
            // nobody waits, or the next permits are still far away
            let first = if waiting.is_empty() {
                let Some(first) = inbox.recv().await else { return };
                Some(first)
            } else {
                let clock = self.clock.clone();
                tokio::select! {
                    biased;
                    first = inbox.recv() => match first {
                        Some(first) => Some(first),
                        None => return,
                    },
                    () = clock.sleep_until(retry_at) => None,
                }
            };
            let mut refused = false;
            let mut next = first;
            while let Some(ask) = next {
                match ask {
                    Ask::Permit { more: also, reply } => {
                        more = also;
                        waiting.push_back(Waiting { reply, since: self.clock.now() });
                    }
                    Ask::Refused => refused = true,
                }
                next = inbox.try_recv().ok();
            }
            if refused {
                self.tell_refused().await;
            }
            let lead = self.serve(&mut waiting, more, retry_at).await;
            if let Some(lead) = lead {
                // not all at the same instant, and not only when the first is due
                let early = HORIZON.mul_f64(0.5 + 0.4 * self.rng.f64());
                retry_at = self.clock.now() + lead.saturating_sub(early);
            }
            self.give_up(&mut waiting);
        }
    }

    /// Ends the waiting of those who have waited for too long.
    fn give_up(&mut self, waiting: &mut VecDeque<Waiting>) {
        let (now, most) = (self.clock.now(), self.settings.max_wait);
        let lead = Duration::from_micros(self.lead_us.max(0) as u64);
        while waiting.front().is_some_and(|first| now >= first.since + most) {
            if let Some(late) = waiting.pop_front() {
                let wait = most + lead;
                // whoever has given up does not need to know
                let _ = late.reply.send(Err(BudgetError::WaitTooLong { wait, most }));
            }
        }
    }

    async fn tell_refused(&mut self) {
        self.figures.burned.fetch_add(self.stock.len() as u64, Ordering::Relaxed);
        self.stock.clear();
        let deadline = self.clock.now() + self.settings.request_timeout;
        let limits = self.limits();
        let told = self.clock.until(deadline, self.keeper.refused(&self.backend, &limits)).await;
        if !matches!(told, Some(Ok(()))) {
            tracing::warn!(backend = self.backend, "a refusal could not be told to the fleet");
        }
    }

    /// Serves who waits; if the next permits are too far away, says how far.
    async fn serve(
        &mut self,
        waiting: &mut VecDeque<Waiting>,
        more: u32,
        retry_at: Instant,
    ) -> Option<Duration> {
        for attempt in 0..3 {
            // whoever has given up wants none
            waiting.retain(|waiting| !waiting.reply.is_closed());
            self.hand_out(waiting);
            if waiting.is_empty() || attempt == 0 && self.clock.now() < retry_at {
                return None;
            }
            let ahead = if self.lead_us > CROWDED_US { 0 } else { self.ahead.min(more) };
            match self.fetch(waiting.len() as u32 + ahead).await {
                Ok(0) => return Some(Duration::from_micros(self.lead_us.max(0) as u64)),
                Ok(_) => {}
                Err(error) => {
                    refuse(waiting, &error);
                    return None;
                }
            }
        }
        self.hand_out(waiting);
        let slow = BudgetError::new(format!(
            "the {} keeper takes longer to answer than a permit is good for ({PERMIT_GOOD_FOR:?})",
            self.keeper.name()
        ));
        refuse(waiting, &slow);
        None
    }

    fn limits(&self) -> Limits {
        self.count.with(|account, _| account.limits())
    }

    /// Serves from what was fetched, leaving out what has run out.
    fn hand_out(&mut self, waiting: &mut VecDeque<Waiting>) {
        let now = self.clock.now();
        while let Some(permit) = self.stock.front().copied() {
            if permit.good_until < now.max(permit.go_at) {
                self.stock.pop_front();
                self.figures.burned.fetch_add(1, Ordering::Relaxed);
                self.ahead /= 2;
                continue;
            }
            let Some(Waiting { reply, .. }) = waiting.pop_front() else { return };
            self.stock.pop_front();
            if let Err(Ok(unused)) = reply.send(Ok(permit)) {
                self.stock.push_front(unused);
            } else if self.stock.is_empty() {
                self.ahead = (self.ahead * 2).clamp(8, AHEAD_MAX);
            }
        }
    }

    /// Fetches permits and says how many; none if the next are too far away.
    async fn fetch(&mut self, permits: u32) -> Result<u32, BudgetError> {
        let (link, share) =
            self.count.with(|account, now| (account.link, account.offline_share(now)));
        match link {
            Link::Current => self.offline = None,
            _ if share.is_some() => return self.permit_alone(permits, share),
            _ => {
                let away = format!("the {} keeper has not been heard", self.keeper.name());
                return Err(BudgetError::new(format!("{away}: no permits for now")));
            }
        }
        let reserve = Reserve {
            backend: self.backend.clone(),
            permits,
            limits: self.limits(),
            max_wait_ms: HORIZON.as_millis() as u64,
            nonce: self.rng.u64(..),
            ttl_ms: self.settings.ttl.as_millis() as u64,
        };
        let sent = self.clock.now();
        let deadline = sent + self.settings.request_timeout;
        let answer = self.clock.until(deadline, self.keeper.reserve(&reserve)).await;
        let received = self.clock.now();
        let reserved = match answer {
            Some(Ok(reserved)) => reserved,
            Some(Err(error)) => return Err(BudgetError::new(error.to_string())),
            None => {
                let name = self.keeper.name();
                let limit = self.settings.request_timeout;
                return Err(BudgetError::new(format!(
                    "the {name} keeper did not answer in {limit:?}"
                )));
            }
        };
        self.lead_us = reserved.lead_us;
        self.figures.fetched.fetch_add(u64::from(reserved.permits), Ordering::Relaxed);
        for i in 0..i64::from(reserved.permits) {
            let lead = reserved.lead_us.saturating_add(i * reserved.interval_us as i64).max(0);
            let lead = Duration::from_micros(lead as u64);
            // the keeper made its answer between the two: neither too early nor too late
            let good_until = sent + lead + PERMIT_GOOD_FOR;
            self.stock.push_back(Permit { go_at: received + lead, good_until });
        }
        Ok(reserved.permits)
    }

    /// The keeper is away, and this member lives on its share of the rate.
    fn permit_alone(
        &mut self,
        permits: u32,
        share: Option<(u32, u32)>,
    ) -> Result<u32, BudgetError> {
        let (share, limit) = share.unwrap_or((0, 1));
        let part = |whole: u32| (u64::from(whole) * u64::from(share) / u64::from(limit)) as u32;
        // below one a second there is no whole number: slower, by a longer interval, is not offered
        let whole = self.limits();
        let limits = Limits { rate: part(whole.rate), burst: part(whole.burst).max(1), ..whole };
        if limits.rate == 0 {
            return Err(BudgetError::new(
                "the keeper is away, and the share of the rate is below one a second",
            ));
        }
        let now = self.clock.now();
        let now_us = now.saturating_duration_since(self.base).as_micros() as u64;
        let book = self.offline.get_or_insert_with(|| RateBook::empty(&limits, now_us));
        let reserve = Reserve {
            backend: String::new(),
            permits,
            limits,
            max_wait_ms: HORIZON.as_millis() as u64,
            nonce: 0,
            ttl_ms: 0,
        };
        let reserved = book.reserve(&reserve, &limits, now_us);
        for i in 0..i64::from(reserved.permits) {
            let lead = (reserved.lead_us + i * reserved.interval_us as i64).max(0);
            self.stock.push_back(Permit::at(now + Duration::from_micros(lead as u64)));
        }
        self.lead_us = reserved.lead_us;
        Ok(reserved.permits)
    }
}

fn refuse(waiting: &mut VecDeque<Waiting>, error: &BudgetError) {
    for Waiting { reply, .. } in waiting.drain(..) {
        // whoever has given up does not need to know
        let _ = reply.send(Err(error.clone()));
    }
}
