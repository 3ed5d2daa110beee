//! The pool's one background task. It sleeps until the next thing is due or
//! somebody signals, lets the state decide, and carries the decisions out:
//! each open, close, reset and check is a task of its own, so a connector that
//! hangs or panics costs that connection and nothing else.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;

use crate::budget::BudgetError;
use crate::clock::Instant;
use crate::connector::{Connector, Failure, LetGo};
use crate::hub::Hub;
use crate::live::{Live, Place, Verdict};
use crate::reason::{Discard, OpenFailure};
use crate::source::Step;

/// How long a rate budget may take to answer a reservation.
const RESERVE_LIMIT: Duration = Duration::from_secs(30);

/// Runs until the pool is closed and every connection is gone.
pub(crate) fn drive<C: Connector>(hub: Arc<Hub<C>>) -> impl Future<Output = ()> + Send {
    // if the runtime ends before the pool, even before the first poll, waiters
    // must not wait for nobody
    let abandoned = Abandon(hub);
    async move { run(&abandoned.0).await }
}

async fn run<C: Connector>(hub: &Arc<Hub<C>>) {
    while let Some(next) = turn(hub) {
        match next {
            Some(at) => {
                let _ = hub.clock.until(at, hub.signal.notified()).await;
            }
            None => hub.signal.notified().await,
        }
    }
    hub.changed.notify_waiters();
}

/// Lets the state decide and carries the decisions out. Gives when to look
/// again, if ever; `None` once all is over.
fn turn<C: Connector>(hub: &Arc<Hub<C>>) -> Option<Option<Instant>> {
    hub.rough.verify(&hub.clock);
    let now = hub.clock.now();
    let mut state = hub.state.lock();
    let before = state.conns.len();
    state.tick(now);
    if state.conns.len() < before {
        hub.changed.notify_waiters();
    }
    let outbox = &mut state.outbox;
    let opens = std::mem::take(&mut outbox.opens);
    let closes = std::mem::take(&mut outbox.closes);
    let resets = std::mem::take(&mut outbox.resets);
    let checks = std::mem::take(&mut outbox.checks);
    let kills = std::mem::take(&mut outbox.kills);
    let events = std::mem::take(&mut outbox.events);
    let next = state.armed_until;
    let ended = state.closed && state.conns.is_empty();
    hub.unlock_loudly(state);
    hub.tell(&events);
    for killer in kills {
        killer.kill();
    }
    for id in opens {
        let slot = Slot::new(hub, id);
        let span = tracing::debug_span!("open", source = %slot.name(), connection = id);
        tokio::spawn(open(slot).instrument(span));
    }
    for live in closes {
        let slot = Slot::new(hub, live.id);
        let span = tracing::debug_span!("close", source = %slot.name(), connection = live.id);
        tokio::spawn(close(slot, live).instrument(span));
    }
    for live in resets {
        let slot = Slot::new(hub, live.id);
        let span = tracing::debug_span!("reset", source = %slot.name(), connection = live.id);
        tokio::spawn(refresh(slot, live, OpenFailure::Reset).instrument(span));
    }
    for live in checks {
        let slot = Slot::checking(hub, live.id);
        let span = tracing::debug_span!("check", source = %slot.name(), connection = live.id);
        tokio::spawn(refresh(slot, live, OpenFailure::Check).instrument(span));
    }
    (!ended).then_some(next)
}

struct Abandon<C: Connector>(Arc<Hub<C>>);

impl<C: Connector> Drop for Abandon<C> {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

/// A connection's slot in the hands of a background task. However the task
/// ends, a panic included, the slot is not lost.
struct Slot<C: Connector> {
    hub: Arc<Hub<C>>,
    id: u32,
    source: usize,
    /// Counts as a check under way.
    checks: bool,
    settled: bool,
}

impl<C: Connector> Slot<C> {
    fn new(hub: &Arc<Hub<C>>, id: u32) -> Self {
        let source = hub.state.lock().conns[id as usize].source as usize;
        Self { hub: hub.clone(), id, source, checks: false, settled: false }
    }

    fn checking(hub: &Arc<Hub<C>>, id: u32) -> Self {
        let mut slot = Self::new(hub, id);
        slot.checks = true;
        slot
    }

    fn name(&self) -> Arc<str> {
        self.hub.state.lock().sources[self.source].name.clone()
    }

    fn settings<R>(&self, read: impl FnOnce(&crate::settings::Settings) -> R) -> R {
        read(&self.hub.state.lock().sources[self.source].settings)
    }

    fn settle(mut self) {
        self.settled = true;
        self.hub.changed.notify_waiters();
    }
}

impl<C: Connector> Drop for Slot<C> {
    fn drop(&mut self) {
        if self.checks {
            self.hub.with(|state, _| {
                state.sources[self.source].checking -= 1;
                state.wake_driver = true; // the next check may start
            });
        }
        if self.settled {
            return;
        }
        let (id, source) = (self.id, self.source);
        self.hub.with(|state, now| {
            let error = "the connector panicked".to_owned();
            state.open_failed(source, OpenFailure::Panic, None, error, now);
            state.give_up(id, now);
        });
        self.hub.changed.notify_waiters();
    }
}

impl<C: Connector> crate::state::State<C> {
    /// Frees a slot whose background task has ended in no orderly way. What it
    /// had was dropped with it, and nobody knows when the backend lets go.
    fn give_up(&mut self, id: u32, now: Instant) {
        let entry = &mut self.conns[id as usize];
        match entry.place {
            Place::Opening(step) if step != Step::Connect => self.open_ended(id, false, now),
            Place::Opening(_) => {
                self.open_ended(id, true, now);
                self.release_after_grace(id, now);
            }
            Place::Closing => self.release_after_grace(id, now),
            Place::InUse => {
                self.suspects -= u32::from(std::mem::take(&mut entry.suspect));
                if let Some(at) = entry.agenda_at.take() {
                    self.agenda.remove(&(at, id));
                }
                entry.place = Place::Closing;
                let source = &mut self.sources[entry.source as usize];
                source.in_use -= 1;
                source.closing += 1;
                source.tallies.discards[Discard::Broken as usize] += 1;
                self.release_after_grace(id, now);
            }
            Place::Ready | Place::Detached => {}
        }
    }

    /// Keeps the slot and the lease of a closed connection for `close_grace`.
    fn release_after_grace(&mut self, id: u32, now: Instant) {
        if self.driverless {
            return self.released(id, false, now);
        }
        let entry = &mut self.conns[id as usize];
        let at = now + self.sources[entry.source as usize].settings.close_grace;
        entry.agenda_at = Some(at);
        self.agenda.insert((at, id));
        self.wake_driver = true;
    }
}

/// How an open failed.
struct Failed {
    reason: OpenFailure,
    retry_after: Option<Duration>,
    error: String,
    /// Something of it may be left at the backend.
    maybe_left: bool,
}

/// need ─► count lease (held already) ─► credentials ─► rate permit ─► connect ─► reservoir
async fn open<C: Connector>(slot: Slot<C>) {
    let hub = slot.hub.clone();
    let id = slot.id;
    match attempt(&slot).await {
        Ok(Some(opened)) => {
            let lost = opened.lost.clone();
            hub.with(|state, now| state.opened(id, opened, now));
            if let Some(lost) = lost {
                crate::holding::listen(&hub, id, &lost);
            }
        }
        Ok(None) => hub.with(|state, now| {
            state.sources[slot.source].tallies.abandoned += 1;
            state.open_ended(id, false, now);
        }),
        Err(failed) => {
            let grace = slot.settings(|settings| settings.close_grace);
            let until = hub.with(|state, now| {
                state.open_failed(
                    slot.source,
                    failed.reason,
                    failed.retry_after,
                    failed.error,
                    now,
                );
                state.open_ended(id, failed.maybe_left, now);
                now + grace
            });
            if failed.maybe_left {
                hub.clock.sleep_until(until).await;
                hub.with(|state, now| state.released(id, false, now));
            }
        }
    }
    slot.settle();
}

/// One attempt; `None` if it turned out not to be needed.
async fn attempt<C: Connector>(
    slot: &Slot<C>,
) -> Result<Option<crate::connector::Opened<C::Conn>>, Failed> {
    let hub = &slot.hub;
    let connector = &hub.connectors[slot.source];
    let limit = slot.settings(|settings| settings.connect_timeout);
    let key = {
        let state = hub.state.lock();
        let number = state.conns[slot.id as usize].key;
        state.keys.get(number).key.clone()
    };
    // before the connect nothing is at the backend: a drain need not wait for it
    let permitted = tokio::select! {
        biased;
        permitted = permit(slot, &key) => permitted?,
        () = hub.closed() => false,
    };
    if !permitted || !hub.with(|state, now| state.step(slot.id, Step::Connect, now)) {
        return Ok(None);
    }
    let deadline = hub.clock.now() + limit;
    let connected = tokio::select! {
        biased;
        connected = hub.clock.until(deadline, connector.connect(&key)) => connected,
        () = hub.disowned(slot.id) => return Err(Failed {
            reason: OpenFailure::Lease,
            retry_after: None,
            error: "the lease ran out during the connect".to_owned(),
            maybe_left: true,
        }),
    };
    match connected {
        Some(Ok(opened)) => Ok(Some(opened)),
        Some(Err(error)) => Err(classify(slot, connector.classify(&error), describe(&error))),
        None => Err(Failed {
            reason: OpenFailure::Connect,
            retry_after: None,
            error: format!("no connection within {limit:?}"),
            maybe_left: true,
        }),
    }
}

/// What comes before a connect: credentials, then a permit of the rate. `false`
/// if the open turned out not to be needed.
async fn permit<C: Connector>(slot: &Slot<C>, key: &C::Key) -> Result<bool, Failed> {
    let hub = &slot.hub;
    let (limit, rate) = slot.settings(|settings| (settings.connect_timeout, settings.rate.clone()));
    let connector = &hub.connectors[slot.source];
    let prepared = hub.clock.until(hub.clock.now() + limit, connector.prepare(key)).await;
    let refused = |error: String| Failed {
        reason: OpenFailure::Credentials,
        retry_after: None,
        error,
        maybe_left: false,
    };
    match prepared {
        Some(Ok(())) => {}
        Some(Err(error)) => return Err(refused(describe(&error))),
        None => return Err(refused(format!("no credentials within {limit:?}"))),
    }

    if let Some(rate) = rate {
        if !hub.with(|state, now| state.step(slot.id, Step::Rate, now)) {
            return Ok(false);
        }
        loop {
            let (now, more) = hub.with(|state, now| {
                (now, state.sources[slot.source].will_open(state.demand(now)[slot.source], now))
            });
            let reserved = hub.clock.until(now + RESERVE_LIMIT, rate.reserve(now, more)).await;
            let permit = reserved
                .unwrap_or_else(|| {
                    Err(BudgetError::new(format!("no answer within {RESERVE_LIMIT:?}")))
                })
                .map_err(|error| Failed {
                    reason: OpenFailure::Rate,
                    retry_after: None,
                    error: describe(&error),
                    maybe_left: false,
                })?;
            hub.clock.sleep_until(permit.go_at).await;
            if hub.clock.now() <= permit.good_until {
                break;
            }
            hub.with(|state, _| state.sources[slot.source].tallies.permits_dropped += 1);
        }
    }
    Ok(true)
}

/// Tells the budgets what the backend refused, and how to go on.
fn classify<C: Connector>(slot: &Slot<C>, failure: Failure, error: String) -> Failed {
    let now = slot.hub.clock.now();
    let (rate, count) = slot.settings(|settings| (settings.rate.clone(), settings.count.clone()));
    let mut reason = OpenFailure::Connect;
    let mut retry_after = None;
    match failure {
        Failure::TooFast(after) => {
            reason = OpenFailure::Rate;
            retry_after = after;
            if let Some(rate) = rate {
                rate.refused(now);
            }
        }
        Failure::TooMany => {
            reason = OpenFailure::Lease;
            if let Some(count) = count {
                count.refused(now);
            }
        }
        Failure::Credentials => reason = OpenFailure::Credentials,
        Failure::Unknown | Failure::Refused => {}
    }
    Failed { reason, retry_after, error, maybe_left: failure == Failure::Unknown }
}

/// Closes a connection and frees its slot once the backend has let go.
async fn close<C: Connector>(slot: Slot<C>, live: Box<Live<C>>) {
    let hub = slot.hub.clone();
    let id = slot.id;
    let grace = slot.settings(|settings| settings.close_grace);
    let deadline = hub.clock.now() + grace;
    let let_go = hub.clock.until(deadline, hub.connectors[slot.source].close(live.conn)).await;
    let confirmed = let_go == Some(LetGo::Confirmed);
    if !confirmed {
        let killer = hub.state.lock().conns[id as usize].killer.clone();
        if let Some(killer) = killer {
            killer.kill();
        }
        // only now is it certain to be closed here
        hub.clock.sleep_until(hub.clock.now() + grace).await;
    }
    hub.with(|state, now| state.released(id, confirmed, now));
    slot.settle();
}

/// Resets or checks a connection, then gives it back or discards it.
async fn refresh<C: Connector>(slot: Slot<C>, mut live: Box<Live<C>>, kind: OpenFailure) {
    let hub = slot.hub.clone();
    let connector = &hub.connectors[slot.source];
    let (check_limit, reset_limit) =
        slot.settings(|settings| (settings.check_timeout, settings.reset_timeout));
    let outcome = if kind == OpenFailure::Check {
        let deadline = hub.clock.now() + check_limit;
        hub.clock.until(deadline, connector.check(&mut live.conn)).await
    } else {
        let deadline = hub.clock.now() + reset_limit;
        hub.clock.until(deadline, connector.reset(&mut live.conn)).await
    };
    let error = match outcome {
        Some(Ok(())) => None,
        Some(Err(error)) => Some(describe(&error)),
        None => Some(format!("{kind} took too long")),
    };
    hub.with(|state, now| match error {
        None => state.refreshed(live, kind == OpenFailure::Check, now),
        Some(error) => {
            let source = &mut state.sources[slot.source];
            source.tallies.failures[kind as usize] += 1;
            let name = source.name.clone();
            state.announce(crate::observer::Event::OpenFailed {
                source: name,
                reason: kind,
                error,
            });
            state.put(live, Verdict::Discard(Discard::Broken), now);
        }
    });
    slot.settle();
}

impl<C: Connector> crate::state::State<C> {
    /// A reset or check has ended well. A checked connection keeps its idle time.
    fn refreshed(&mut self, live: Box<Live<C>>, checked: bool, now: Instant) {
        let entry = &self.conns[live.id as usize];
        let (id, idle_since) = (live.id, entry.since);
        self.put(live, Verdict::Clean, now);
        if checked
            && let Some(entry) = self.conns.get_mut(id as usize)
            && entry.place == Place::Ready
        {
            entry.since = idle_since;
            let source = &mut self.sources[entry.source as usize];
            let max_idle = source.settings.max_idle;
            source.trim_at = source.trim_at.zip(max_idle).map(|(at, max)| at.min(idle_since + max));
            let stock = &mut source.stocks[entry.key as usize];
            stock.remove(&mut self.conns, id);
            let used_later = |other: &u32| self.conns[*other as usize].since >= idle_since;
            let newer = stock.iter_back(&self.conns).find(used_later);
            let next = newer.map_or(stock.head, |newer| self.conns[newer as usize].link.next);
            stock.insert_before(&mut self.conns, id, next);
        }
    }
}

/// An error with its causes, for logs and for waiting checkouts.
pub(crate) fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
