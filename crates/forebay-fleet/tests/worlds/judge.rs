//! The promises, judged from what the backend, the keeper's books and the processes
//! themselves show: FLEET.md 1, 2, 5, 6. Whatever is excused here is excused there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay::Instant;
use forebay_fleet::{BackendState, Ledger, Link, MemberId, ModelKeeper, OnLoss};
use parking_lot::Mutex;

use crate::backend::{Arrival, Backend, Socket};
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
}

/// Everything as it is at one instant.
struct Scenery {
    now: Instant,
    ledger: Option<Ledger>,
    sockets: Vec<Socket>,
    cast: Vec<Actor>,
}

/// A process that is not dead, and its member if it has not left.
struct Actor {
    process: Arc<Process>,
    fate: Fate,
    member: Option<BackendState>,
}

impl Scenery {
    /// Connections of a process that fit.
    fn count(&self, index: usize, fits: impl Fn(&Socket) -> bool) -> usize {
        self.sockets.iter().filter(|socket| socket.process == index && fits(socket)).count()
    }

    /// The books, unless they are empty.
    fn books(&self) -> Option<&Ledger> {
        self.ledger.as_ref().filter(|ledger| !ledger.members.is_empty())
    }

    fn is_lossy(&self) -> bool {
        self.ledger.as_ref().is_none_or(|l| l.window.is_some_and(|window| window.lossy))
    }

    fn alive(&self) -> impl Iterator<Item = (&Actor, &BackendState)> {
        let alive = self.cast.iter().filter(|actor| actor.fate != Fate::Left);
        alive.filter_map(|actor| actor.member.as_ref().map(|member| (actor, member)))
    }
}

impl Judge {
    /// Looks at everything.
    pub fn look(&self) {
        let run_id = self.run_id();
        let actor = |process: &Arc<Process>| Actor {
            fate: process.fate(),
            member: process.state(),
            process: process.clone(),
        };
        let seen = Scenery {
            now: Instant::now(),
            // until somebody reports after a restart, the books are those of another server
            ledger: self.keeper.ledger(BACKEND).filter(|ledger| ledger.run_id == run_id),
            sockets: self.backend.sockets(),
            cast: self
                .processes
                .lock()
                .iter()
                .filter(|p| p.fate() != Fate::Dead)
                .map(actor)
                .collect(),
        };
        let mut state = self.state.lock();
        self.ledger(&mut state, &seen);
        for actor in &seen.cast {
            self.excuse(&mut state, actor, &seen);
        }
        for (actor, member) in seen.alive() {
            self.covered(&state, actor, member, &seen);
            if actor.fate == Fate::Runs {
                self.on_loss(&mut state, actor, member, &seen);
                self.old_lives(&mut state, actor, member, &seen);
            }
        }
        if seen.is_lossy() {
            let excused = seen.cast.iter().filter(|a| state.excuses(a.process.index, seen.now));
            let theirs = excused.map(|actor| actor.process.spy.out() as usize).sum();
            state.tainted = state.tainted.max(theirs);
        }
        self.open(&mut state, &seen);
        self.shares(&mut state, &seen);
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

    /// Leases booked stay within the limit; declared ones may be more, but then only fall.
    fn ledger(&self, state: &mut Ruling, seen: &Scenery) {
        let Some(ledger) = seen.books() else {
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
        let open = seen.sockets.len();
        // not while somebody may have leases that the books do not have
        if limit < state.cap && total <= limit && open <= limit as usize && !seen.is_lossy() {
            state.cap = limit;
        }
        if total <= limit && ledger.window.is_none() && open <= limit as usize {
            state.tainted = 0;
        }
        state.total = total;
    }

    /// Notes who may have more than the books say, by FLEET.md 1 and 5.
    fn excuse(&self, state: &mut Ruling, actor: &Actor, seen: &Scenery) {
        let (times, now) = (&self.times, seen.now);
        let process = &actor.process;
        let heard = process.net.line.lock().heard;
        let mut until = matches!(actor.fate, Fate::Frozen { .. }).then_some(now);
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
            // also by one that has died since
            let others = self.processes.lock().clone().into_iter();
            let mut others = others.filter(|other| other.index != process.index);
            let heard_of = |other: &Arc<Process>| other.net.line.lock().heard.booked_at;
            if others.any(|other| heard_of(&other).is_some_and(|at| at > sent + silent)) {
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
    fn covered(&self, state: &Ruling, actor: &Actor, member: &BackendState, seen: &Scenery) {
        let index = actor.process.index;
        let Some(ledger) = seen.ledger.as_ref() else { return };
        if state.excuses(index, seen.now) {
            return;
        }
        let mine = seen.count(index, |socket| socket.life == member.reaped) as u32;
        let share = actor.process.recipe.settings.on_loss == OnLoss::Share;
        let link = member.link;
        let Some(entry) = ledger.members.get(&member.member) else {
            if mine > 0 && !seen.is_lossy() {
                self.book.breach(format!(
                    "process {index} has {mine} connections and no place in the books ({link:?})"
                ));
            }
            return;
        };
        let booked = entry.held + entry.reserved;
        let declaring = ledger.window.is_some_and(|window| window.trusting);
        let offline = link == Link::Lapsed && share;
        if !declaring && !offline && mine > booked {
            self.book.breach(format!(
                "process {index} has {mine} connections and {booked} leases booked ({link:?})"
            ));
        }
    }

    /// From ttl after its last answered report was sent a process has what its policy leaves it.
    fn on_loss(&self, state: &mut Ruling, actor: &Actor, member: &BackendState, seen: &Scenery) {
        let (times, process) = (&self.times, &actor.process);
        let sent = process.net.line.lock().heard.answered_sent;
        let shows = process.watch.shows();
        let lapsed = sent.is_none_or(|(_, own)| shows >= own + times.ttl - times.margin);
        if !lapsed {
            state.held_at_loss.remove(&process.index);
            return;
        }
        let at_loss = state.held_at_loss.entry(process.index);
        let at_loss = *at_loss.or_insert_with(|| process.spy.out() as usize);
        let keeps = match process.recipe.settings.on_loss {
            _ if sent.is_none() => 0,
            OnLoss::Fence => 0,
            OnLoss::Share => member.share as usize,
            OnLoss::Hold => at_loss,
        };
        let awake = times.heartbeat + times.close_grace + times.slack;
        let thawed = process.thawed.lock().is_some_and(|thaw| seen.now <= thaw.at + awake);
        let due = sent.is_none_or(|(_, own)| shows >= own + times.ttl);
        // what is being opened by a blocked runtime cannot be reached
        let blocked = process.is_blocked(times.close_grace + times.slack);
        let mine = seen.count(process.index, |socket| {
            socket.life == member.reaped && (socket.established || !blocked)
        });
        if due && !thawed && mine > keeps {
            self.book.breach(format!(
                "process {} has {mine} connections although the keeper is lost; it may keep \
                 {keeps} ({:?})",
                process.index, member.link
            ));
        }
    }

    /// Once it knows that it was reaped, everything of that life goes.
    fn old_lives(&self, state: &mut Ruling, actor: &Actor, member: &BackendState, seen: &Scenery) {
        let (times, process) = (&self.times, &actor.process);
        let life = state.lives.entry(process.index).or_insert((0, seen.now));
        if life.0 != member.reaped {
            *life = (member.reaped, seen.now);
        }
        let since = process.thawed.lock().map_or(life.1, |thaw| thaw.at.max(life.1));
        let late = seen.now > since + times.heartbeat + times.close_grace + times.slack;
        let blocked = process.is_blocked(times.close_grace + times.slack);
        let old = seen.count(process.index, |socket| {
            socket.life < member.reaped && (socket.established || !blocked)
        });
        if late && old > 0 {
            self.book.breach(format!(
                "process {} still has {old} connections of a life that was reaped",
                process.index
            ));
        }
    }

    /// The backend's own count: the limit, and what those who are excused have beyond
    /// their places in the books.
    fn open(&self, state: &mut Ruling, seen: &Scenery) {
        let beyond = |actor: &Actor| {
            let mine = seen.count(actor.process.index, |_| true);
            let ledger = seen.books().filter(|_| !seen.is_lossy());
            let entry =
                ledger.zip(actor.member.as_ref()).and_then(|(l, m)| l.members.get(&m.member));
            mine.saturating_sub(entry.map_or(0, |entry| (entry.held + entry.reserved) as usize))
        };
        let excused = seen.cast.iter().filter(|a| state.excuses(a.process.index, seen.now));
        let excused: usize = excused.map(beyond).sum();
        let (open, cap) = (seen.sockets.len(), state.cap as usize + state.tainted);
        if open > cap {
            self.book.note("over", (open - cap) as u64, excused as u64);
        }
        if open > cap + excused {
            self.book.breach(format!(
                "the backend has {open} connections under a limit of {cap}, {excused} of them excused"
            ));
        }
    }

    /// What members believe to be their offline shares adds up to the limit at most.
    fn shares(&self, state: &mut Ruling, seen: &Scenery) {
        let Some(ledger) = seen.books() else { return };
        let lossy = seen.is_lossy();
        let limit = ledger.limits().0.open;
        let (mut sum, mut most) = (0, 0);
        for (actor, member) in seen.alive() {
            let index = actor.process.index;
            let known = ledger.members.contains_key(&member.member);
            most += member.share;
            if (known || lossy && !state.excuses(index, seen.now)) && member.link != Link::Never {
                sum += member.share;
            }
            if lossy {
                state.share_tainted |= state.unaware.get(&index) == Some(&member.member);
            } else if !known {
                state.unaware.insert(index, member.member.clone());
            }
        }
        state.share_cap = state.share_cap.max(limit);
        if sum > state.share_cap && !state.share_tainted {
            self.book.breach(format!("offline shares add up to {sum} under a limit of {limit}"));
        }
        // an answer from before the limit was lowered may still be under way
        let promised: u32 = ledger.members.values().map(|entry| entry.share).sum();
        if most.max(promised) <= limit {
            state.share_cap = limit;
            state.share_tainted &= lossy;
        }
    }
}

impl Ruling {
    fn excuses(&self, process: usize, now: Instant) -> bool {
        self.excused.get(&process).is_some_and(|until| *until >= now)
    }
}
