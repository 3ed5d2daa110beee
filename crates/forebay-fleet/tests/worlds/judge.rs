//! The promises, judged from what the backend, the keeper's books and the processes
//! themselves show: FLEET.md 1, 2, 5, 6. Whatever is excused here is excused there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay::Instant;
use forebay_fleet::{Ledger, Link, MemberId, ModelKeeper, OnLoss};
use parking_lot::Mutex;

use crate::backend::{Arrival, Backend};
use crate::book::Book;
use crate::process::{BACKEND, Fate, Process};
use crate::rates::Rates;

/// The times that all members of a world share.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    pub ttl: Duration,
    pub heartbeat: Duration,
    pub margin: Duration,
    pub request_timeout: Duration,
    pub close_grace: Duration,
    /// Clocks run by at most this much too fast or too slow.
    pub drift: f64,
    /// For messages that are not late, and for what runs first after a thaw.
    pub slack: Duration,
}

pub struct Judge {
    pub keeper: Arc<ModelKeeper>,
    pub backend: Arc<Backend>,
    pub processes: Arc<Mutex<Vec<Arc<Process>>>>,
    pub book: Book,
    pub times: Times,
    pub state: Mutex<Ruling>,
    pub rates: Mutex<Rates>,
    pub restarts: AtomicU64,
}

/// What the judge remembers from look to look.
#[derive(Debug, Default)]
pub struct Ruling {
    /// The limit that counts: a lowered one counts once it has been kept.
    cap: u32,
    share_cap: u32,
    total: u32,
    /// So many leases that others may have were declared again.
    tainted: usize,
    /// Processes whose connections may be too many, and until when.
    excused: BTreeMap<usize, Instant>,
    /// Of these, the ones that peers outlasted at the keeper: they go by their share.
    cut: BTreeMap<usize, Instant>,
    /// What a process had when it lost the keeper.
    held_at_loss: BTreeMap<usize, usize>,
    lives: BTreeMap<usize, (u64, Instant)>,
    /// Those whose leases and shares went to others, and who do not know it.
    unaware: BTreeMap<usize, MemberId>,
    /// One of them has declared itself again.
    share_tainted: bool,
    pub over: usize,
}

impl Judge {
    /// Looks at everything.
    pub fn look(&self) {
        let now = Instant::now();
        // until somebody reports after a restart, the books are those of another server
        let run_id = self.run_id();
        let ledger = self.keeper.ledger(BACKEND).filter(|ledger| ledger.run_id == run_id);
        let mut state = self.state.lock();
        self.ledger(&mut state, ledger.as_ref());
        let processes = self.processes.lock().clone();
        for process in &processes {
            if process.fate() != Fate::Dead {
                self.excuse(&mut state, process, &processes, now);
            }
            if process.is_alive() {
                self.covered(&state, process, ledger.as_ref(), now);
                self.on_loss(&mut state, process, now);
                self.old_lives(&mut state, process, now);
            }
        }
        let lossy = ledger.as_ref().is_none_or(|l| l.window.is_some_and(|window| window.lossy));
        if lossy {
            let excused = processes.iter().filter(|p| self.is_excused(&state, p.index, now));
            let theirs = excused.map(|process| process.spy.out() as usize).sum();
            state.tainted = state.tainted.max(theirs);
        }
        self.open(&mut state, now);
        self.shares(&mut state, &processes, ledger.as_ref(), now);
    }

    /// The keeper's server.
    pub fn run_id(&self) -> String {
        format!("run-{}", self.restarts.load(Ordering::SeqCst))
    }

    /// A connect has arrived at the backend.
    pub fn arrived(&self, arrival: Arrival) {
        let cut = self.state.lock().cut.get(&arrival.process).is_some_and(|at| *at >= arrival.at);
        if let Err(text) = self.rates.lock().arrived(arrival, cut) {
            self.book.breach(text);
        }
        self.book.note("connect", arrival.process as u64, self.backend.open() as u64);
        self.look();
    }

    fn is_excused(&self, state: &Ruling, process: usize, now: Instant) -> bool {
        state.excused.get(&process).is_some_and(|until| *until >= now)
    }

    /// Leases booked stay within the limit; declared ones may be more, but then only fall.
    fn ledger(&self, state: &mut Ruling, ledger: Option<&Ledger>) {
        let Some(ledger) = ledger.filter(|ledger| !ledger.members.is_empty()) else {
            state.total = 0;
            return;
        };
        let (limit, total) = (ledger.limits().0.open, ledger.total());
        let declaring = ledger.window.is_some_and(|window| window.trusting);
        if limit > state.cap {
            state.cap = limit;
        }
        if total > state.cap && total > state.total && !declaring {
            self.book.breach(format!("{total} leases are booked under a limit of {limit}"));
        }
        let open = self.backend.open();
        if limit < state.cap && total <= limit && open <= limit as usize {
            state.cap = limit;
        }
        if total <= limit && ledger.window.is_none() && open <= limit as usize {
            state.tainted = 0;
        }
        state.total = total;
    }

    /// Notes who may have more than the books say, by FLEET.md 1 and 5.
    fn excuse(&self, state: &mut Ruling, process: &Process, all: &[Arc<Process>], now: Instant) {
        let times = &self.times;
        let heard = process.net.line.lock().heard;
        let mut until = match process.fate() {
            Fate::Frozen { .. } => Some(now),
            _ => None,
        };
        if let Some(thaw) = *process.thawed.lock() {
            let awake = thaw.at + times.heartbeat + times.close_grace + times.slack;
            until = until.max(Some(awake));
            let answered = heard.answered_sent.is_some_and(|(at, _)| at > thaw.at);
            if thaw.vm
                && !answered
                && let Some((_, sent)) = heard.answered_sent
                && process.watch.shows() < sent + times.ttl
            {
                // it does not know that it slept
                until = until.max(Some(now + times.close_grace + times.slack));
            }
        }
        if process.recipe.settings.on_loss != OnLoss::Fence
            && let Some((sent, _)) = heard.answered_sent
        {
            let silent =
                times.heartbeat + times.request_timeout - times.ttl.mul_f64(times.drift * 2.5);
            let others = all.iter().filter(|other| other.index != process.index);
            let heard_of = |other: &Arc<Process>| other.net.line.lock().heard.booked_at;
            if others.filter_map(heard_of).any(|at| at > sent + silent) {
                let soon = now + times.close_grace + times.slack;
                state.cut.insert(process.index, soon);
                until = until.max(Some(soon));
            }
        }
        if let Some(until) = until {
            let before = state.excused.entry(process.index).or_insert(until);
            *before = until.max(*before);
        }
    }

    /// What a process has open is booked for it.
    fn covered(&self, state: &Ruling, process: &Process, ledger: Option<&Ledger>, now: Instant) {
        let (Some(ledger), Some(member)) = (ledger, process.state()) else { return };
        if self.is_excused(state, process.index, now) {
            return;
        }
        let sockets = self.backend.sockets();
        let mine = sockets
            .iter()
            .filter(|socket| socket.process == process.index && socket.life == member.reaped);
        let mine = mine.count() as u32;
        let window = ledger.window;
        let offline =
            member.link == Link::Lapsed && process.recipe.settings.on_loss == OnLoss::Share;
        let Some(entry) = ledger.members.get(&member.member) else {
            if mine > 0 && !window.is_some_and(|window| window.lossy) {
                self.book.breach(format!(
                    "process {} has {mine} connections and no place in the books ({:?})",
                    process.index, member.link
                ));
            }
            return;
        };
        if !window.is_some_and(|window| window.trusting)
            && !offline
            && mine > entry.held + entry.reserved
        {
            self.book.breach(format!(
                "process {} has {mine} connections and {} leases booked ({:?})",
                process.index,
                entry.held + entry.reserved,
                member.link
            ));
        }
    }

    /// From ttl after its last answered report was sent a process has what its policy leaves it.
    fn on_loss(&self, state: &mut Ruling, process: &Process, now: Instant) {
        let times = &self.times;
        if process.fate() != Fate::Runs {
            return;
        }
        let thawed = process
            .thawed
            .lock()
            .is_some_and(|thaw| now <= thaw.at + times.heartbeat + times.close_grace + times.slack);
        let sockets = self.backend.sockets();
        let blocked = process.is_blocked(times.close_grace + times.slack);
        let Some(member) = process.state() else { return };
        // what is being opened by a blocked runtime cannot be reached
        let mine = sockets.iter().filter(|socket| {
            socket.process == process.index
                && socket.life == member.reaped
                && (socket.established || !blocked)
        });
        let mine = mine.count();
        let sent = process.net.line.lock().heard.answered_sent;
        let shows = process.watch.shows();
        let lapsed = sent.is_none_or(|(_, own)| shows >= own + times.ttl - times.margin);
        if !lapsed {
            state.held_at_loss.remove(&process.index);
            return;
        }
        let at_loss =
            *state.held_at_loss.entry(process.index).or_insert(process.spy.out() as usize);
        let keeps = match process.recipe.settings.on_loss {
            OnLoss::Fence => 0,
            OnLoss::Share => member.share as usize,
            OnLoss::Hold => at_loss,
        };
        let keeps = if sent.is_none() { 0 } else { keeps };
        let due = sent.is_none_or(|(_, own)| shows >= own + times.ttl);
        if due && !thawed && mine > keeps {
            self.book.breach(format!(
                "process {} has {mine} connections although the keeper is lost; it may keep {keeps} ({:?})",
                process.index, member.link
            ));
        }
    }

    /// Once it knows that it was reaped, everything of that life goes.
    fn old_lives(&self, state: &mut Ruling, process: &Process, now: Instant) {
        let times = &self.times;
        let Some(member) = process.state() else { return };
        let life = state.lives.entry(process.index).or_insert((0, now));
        if life.0 != member.reaped {
            *life = (member.reaped, now);
        }
        let since = process.thawed.lock().map_or(life.1, |thaw| thaw.at.max(life.1));
        let late = now > since + times.heartbeat + times.close_grace + times.slack;
        let sockets = self.backend.sockets();
        let blocked = process.is_blocked(times.close_grace + times.slack);
        let old = sockets.iter().filter(|s| {
            s.process == process.index && s.life < member.reaped && (s.established || !blocked)
        });
        let old = old.count();
        if late && old > 0 && process.fate() == Fate::Runs {
            self.book.breach(format!(
                "process {} still has {old} connections of a life that was reaped",
                process.index
            ));
        }
    }

    /// The backend's own count.
    fn open(&self, state: &mut Ruling, now: Instant) {
        let sockets = self.backend.sockets();
        let excused = sockets.iter().filter(|s| self.is_excused(state, s.process, now)).count();
        let cap = state.cap as usize + state.tainted;
        if sockets.len() > cap {
            self.book.note("over", (sockets.len() - cap) as u64, excused as u64);
            state.over += 1;
        }
        if sockets.len() > cap + excused {
            self.book.breach(format!(
                "the backend has {} connections under a limit of {cap}, {excused} of them excused",
                sockets.len()
            ));
        }
    }

    /// What members believe to be their offline shares adds up to the limit at most.
    fn shares(
        &self,
        state: &mut Ruling,
        all: &[Arc<Process>],
        ledger: Option<&Ledger>,
        now: Instant,
    ) {
        let Some(ledger) = ledger.filter(|ledger| !ledger.members.is_empty()) else { return };
        let lossy = ledger.window.is_some_and(|window| window.lossy);
        let limit = ledger.limits().0.open;
        let believed = all.iter().filter(|process| process.is_alive()).filter_map(|process| {
            let member = process.state()?;
            let known = ledger.members.contains_key(&member.member)
                || lossy && !self.is_excused(state, process.index, now);
            (known && member.link != Link::Never).then_some(member.share)
        });
        let sum: u32 = believed.sum();
        for process in all.iter().filter(|process| process.is_alive()) {
            let Some(member) = process.state().map(|state| state.member) else { continue };
            if lossy {
                state.share_tainted |= state.unaware.get(&process.index) == Some(&member);
            } else if !ledger.members.contains_key(&member) {
                state.unaware.insert(process.index, member);
            }
        }
        state.share_cap = state.share_cap.max(limit);
        if sum > state.share_cap && !state.share_tainted {
            self.book.breach(format!("offline shares add up to {sum} under a limit of {limit}"));
        }
        let alive = all.iter().filter(|process| process.is_alive());
        let most: u32 = alive.filter_map(|process| process.state()).map(|state| state.share).sum();
        if most <= limit {
            state.share_cap = limit;
            state.share_tainted &= lossy;
        }
    }
}
