//! A backend as it behaves: handshakes that take their time, a cap, a token
//! bucket, failures, connections that it closes by itself. It counts what it sees,
//! and assertions ask it and not the pools.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay::{Instant, Lost};
use parking_lot::Mutex;

use crate::chance::generator;
use crate::record::Second;
use crate::scenario::BackendModel;

/// One backend.
pub(crate) struct Site {
    pub(crate) model: BackendModel,
    pub(crate) name: String,
    start: Instant,
    state: Mutex<State>,
}

struct State {
    rng: fastrand::Rng,
    next: u64,
    conns: BTreeMap<u64, Wire>,
    ends: BTreeSet<(Instant, u64)>,
    tokens: f64,
    refilled: Instant,
    down_until: Option<Instant>,
    seen: Seen,
}

/// What a backend has seen.
#[derive(Default, Clone)]
pub(crate) struct Seen {
    pub(crate) seconds: Vec<Second>,
    /// The instant of every connect, in microseconds.
    pub(crate) connects_us: Vec<u64>,
    pub(crate) most_open: u32,
    /// When a connect first came that would have gone over the cap.
    pub(crate) over_cap_at: Option<f64>,
    pub(crate) refused: u64,
    pub(crate) first_refused_at: Option<f64>,
    pub(crate) failed: u64,
}

/// The backend's end of a connection.
struct Wire {
    owner: usize,
    lost: Lost,
    dead: Arc<AtomicBool>,
    busy: Arc<AtomicBool>,
}

/// What becomes of a connect.
pub(crate) enum Fate {
    /// It is accepted after this long.
    Accepted(u64, Duration),
    /// It is answered with an error after this long.
    Refused(Cause, Duration),
    /// It is never answered.
    Hangs(u64),
}

/// Why a connect was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    TooFast,
    TooMany,
    Failed,
}

impl Site {
    pub(crate) fn new(
        model: &BackendModel,
        name: String,
        seed: u64,
        index: u64,
        now: Instant,
    ) -> Self {
        Self {
            model: model.clone(),
            name,
            start: now,
            state: Mutex::new(State {
                rng: generator(seed, "site", index),
                next: 0,
                conns: BTreeMap::new(),
                ends: BTreeSet::new(),
                tokens: f64::from(model.burst),
                refilled: now,
                down_until: None,
                seen: Seen::default(),
            }),
        }
    }

    /// A connect arrives from a member; from here on the backend counts it.
    pub(crate) fn arrive(
        &self,
        owner: usize,
        lost: Lost,
        dead: Arc<AtomicBool>,
        busy: Arc<AtomicBool>,
        now: Instant,
    ) -> Fate {
        let mut state = self.state.lock();
        let at = self.seconds_at(now);
        state.seen.connects_us.push((now - self.start).as_micros() as u64);
        state.second(at).connects += 1;
        let took = self.model.handshake.draw(&mut state.rng);
        if state.down_until.is_some_and(|until| now < until) {
            state.second(at).failed += 1;
            state.seen.failed += 1;
            return Fate::Refused(Cause::Failed, took);
        }
        if let Some(cause) = self.over(&mut state, now) {
            state.second(at).refused += 1;
            state.seen.refused += 1;
            state.seen.first_refused_at.get_or_insert(at);
            if cause == Cause::TooMany {
                state.seen.over_cap_at.get_or_insert(at);
            }
            return Fate::Refused(cause, took);
        }
        let luck = state.rng.f64();
        if luck < self.model.fail {
            state.second(at).failed += 1;
            state.seen.failed += 1;
            return Fate::Refused(Cause::Failed, took);
        }
        let id = state.next;
        state.next += 1;
        state.second(at);
        state.conns.insert(id, Wire { owner, lost, dead, busy });
        let open = state.conns.len() as u32;
        state.seen.most_open = state.seen.most_open.max(open);
        let most = &mut state.second(at).most_open;
        *most = (*most).max(open);
        if luck < self.model.fail + self.model.hang {
            return Fate::Hangs(id);
        }
        if let Some(life) = self.model.lifetime {
            state.ends.insert((now + took + life, id));
        }
        Fate::Accepted(id, took)
    }

    /// Whether a limit forbids one more, by the backend's own count.
    fn over(&self, state: &mut State, now: Instant) -> Option<Cause> {
        if let Some(rate) = self.model.rate {
            let passed = now.saturating_duration_since(state.refilled).as_secs_f64();
            state.refilled = now;
            let full = f64::from(self.model.burst.max(1));
            state.tokens = (state.tokens + passed * f64::from(rate)).min(full);
            if state.tokens < 1.0 - 1e-6 {
                return Some(Cause::TooFast);
            }
            state.tokens -= 1.0;
        }
        let open = state.conns.len() as u32;
        self.model.open.is_some_and(|cap| open >= cap).then_some(Cause::TooMany)
    }

    /// The backend has let go of a connection.
    pub(crate) fn gone(&self, id: u64, now: Instant) {
        let mut state = self.state.lock();
        let at = self.seconds_at(now);
        state.second(at);
        if state.conns.remove(&id).is_some() {
            state.second(at).closed += 1;
        }
    }

    /// The backend closes connections that `chosen` picks; whoever holds them learns it.
    pub(crate) fn cut(
        &self,
        now: Instant,
        mut chosen: impl FnMut(usize, bool, &mut fastrand::Rng) -> bool,
    ) -> u32 {
        let mut told = Vec::new();
        {
            let mut state = self.state.lock();
            let state = &mut *state;
            let ids: Vec<u64> = state
                .conns
                .iter()
                .filter(|(_, wire)| {
                    chosen(wire.owner, wire.busy.load(Ordering::Relaxed), &mut state.rng)
                })
                .map(|(id, _)| *id)
                .collect();
            let at = self.seconds_at(now);
            state.second(at);
            for id in ids {
                if let Some(wire) = state.conns.remove(&id) {
                    wire.dead.store(true, Ordering::Relaxed);
                    told.push(wire.lost);
                    state.second(at).closed += 1;
                }
            }
        }
        for lost in &told {
            lost.tell();
        }
        told.len() as u32
    }

    /// No connect succeeds until then.
    pub(crate) fn down(&self, until: Instant) {
        self.state.lock().down_until = Some(until);
    }

    /// Closes what has lived for too long, for as long as the run lasts.
    #[expect(clippy::disallowed_methods, reason = "a backend lives by the run's virtual time")]
    pub(crate) async fn live(self: Arc<Self>) {
        let Some(life) = self.model.lifetime else { return };
        loop {
            let next = self.state.lock().ends.first().map(|(at, _)| *at);
            // what is opened meanwhile ends later than this
            let next = next.unwrap_or_else(|| Instant::now() + life);
            tokio::time::sleep_until(next).await;
            let now = Instant::now();
            let mut ended = BTreeSet::new();
            {
                let mut state = self.state.lock();
                while let Some(&(at, id)) = state.ends.first().filter(|(at, _)| *at <= now) {
                    state.ends.remove(&(at, id));
                    ended.insert(id);
                }
            }
            self.end(&ended, now);
        }
    }

    fn end(&self, ended: &BTreeSet<u64>, now: Instant) {
        let mut told = Vec::new();
        let mut state = self.state.lock();
        let at = self.seconds_at(now);
        state.second(at);
        for id in ended {
            if let Some(wire) = state.conns.remove(id) {
                wire.dead.store(true, Ordering::Relaxed);
                told.push(wire.lost);
                state.second(at).closed += 1;
            }
        }
        drop(state);
        told.iter().for_each(Lost::tell);
    }

    pub(crate) fn open(&self) -> u32 {
        self.state.lock().conns.len() as u32
    }

    /// What it has seen up to `now`.
    pub(crate) fn seen(&self, now: Instant) -> Seen {
        let mut state = self.state.lock();
        state.second(self.seconds_at(now));
        state.seen.clone()
    }

    pub(crate) fn let_go(&self) -> Duration {
        self.model.let_go.draw(&mut self.state.lock().rng)
    }

    fn seconds_at(&self, now: Instant) -> f64 {
        crate::record::seconds(now.saturating_duration_since(self.start))
    }
}

impl State {
    fn second(&mut self, at: f64) -> &mut Second {
        let index = at as usize;
        if self.seen.seconds.len() <= index {
            let open = self.conns.len() as u32;
            let empty = Second { most_open: open, ..Second::default() };
            self.seen.seconds.resize(index + 1, empty);
        }
        &mut self.seen.seconds[index]
    }
}
