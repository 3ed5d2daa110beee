//! A member's side of one backend's books, as plain computation: how many leases
//! it may use at an instant, what it reports, what an answer or its absence means,
//! when it must fence itself. `now` is always an argument.
//!
//! The one rule behind it all: what the keeper has booked for a member is never
//! less than what the member uses. So a report says what is *kept*, from that
//! moment no more than that is used, and only the answer can raise it.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay::{Ask, Instant, Standing};

use crate::message::{Answer, Booking, Limits, MemberId, Profile, Report};
use crate::settings::{MemberSettings, OnLoss};

/// Where a member is with the keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Link {
    /// The keeper has not answered yet: nothing may be opened.
    Never,
    /// The last report was answered in time.
    Current,
    /// The member has slept past its fence and does not know what became of its leases.
    Doubt,
    /// The keeper is away, and [`OnLoss`] says what may be kept.
    Lapsed,
    /// The member has left.
    Left,
}

/// What the shell has to do after a [`tick`](Account::tick) or an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Todo {
    /// Send a report now.
    pub(crate) report: bool,
    /// Kill connections until at most so many are alive.
    pub(crate) keep: Option<u32>,
    /// Disown and kill everything: these leases are gone.
    pub(crate) revoke: bool,
    /// Let the pools look again.
    pub(crate) wake: bool,
}

/// A report that has not been answered yet.
#[derive(Debug, Clone, Copy)]
struct InFlight {
    seq: u64,
    at: Instant,
    held: u32,
    leave: bool,
}

/// What a pool would like to have besides what it has.
#[derive(Debug, Clone, Copy)]
struct Wish {
    leases: u32,
    waiters: u32,
    at: Instant,
}

/// One member's account with one backend.
#[derive(Debug)]
pub(crate) struct Account {
    backend: String,
    instance: String,
    settings: MemberSettings,
    profile: Profile,
    rng: fastrand::Rng,
    /// Counts this process's lives; tells old leases from new ones.
    pub(crate) life: u64,
    member: MemberId,
    pub(crate) link: Link,
    seq: u64,
    generation: Option<String>,
    /// Leases the keeper is known to have booked for this member.
    booked: u32,
    /// Leases that pools have.
    taken: u32,
    /// Of these, the ones whose connections are being closed.
    coming_back: u32,
    /// Leases of former lives that are still out.
    strays: u32,
    reaped_at: Option<Instant>,
    /// What each pool would still like to have.
    wishes: BTreeMap<u64, Wish>,
    used_since_report: bool,
    pub(crate) last: Booking,
    in_flight: Option<InFlight>,
    /// When the last answered report was sent.
    renewed: Option<Instant>,
    next_report: Instant,
    failures: u32,
    urgent: bool,
    killed: bool,
    grown: bool,
    doubt_until: Option<Instant>,
    /// Leases that pools had when it woke past its fence: they close before the answer comes.
    doubted: u32,
    pause: Duration,
    leaving: bool,
    announced: bool,
    pub(crate) reaped: u64,
    pub(crate) overshoot: u64,
}

impl Account {
    pub(crate) fn new(
        backend: &str,
        profile: Profile,
        settings: &MemberSettings,
        mut rng: fastrand::Rng,
        announced: bool,
        now: Instant,
    ) -> Self {
        let member = MemberId::new(&settings.instance, rng.u64(..));
        Self {
            backend: backend.to_owned(),
            instance: settings.instance.clone(),
            settings: settings.clone(),
            profile,
            rng,
            life: 1,
            member,
            link: Link::Never,
            seq: 0,
            generation: None,
            booked: 0,
            taken: 0,
            coming_back: 0,
            strays: 0,
            reaped_at: None,
            wishes: BTreeMap::new(),
            used_since_report: false,
            last: Booking::default(),
            in_flight: None,
            renewed: None,
            next_report: now,
            failures: 0,
            urgent: false,
            killed: false,
            grown: false,
            doubt_until: None,
            doubted: 0,
            pause: Duration::ZERO,
            leaving: false,
            announced,
            reaped: 0,
            overshoot: 0,
        }
    }

    pub(crate) fn member(&self) -> &MemberId {
        &self.member
    }

    pub(crate) fn taken(&self) -> u32 {
        self.taken
    }

    /// The limits as this member has them.
    pub(crate) fn limits(&self) -> Limits {
        self.profile.limits
    }

    /// Changes what it says of the backend's limits.
    pub(crate) fn set_profile(&mut self, profile: Profile) {
        self.profile = profile;
        self.urgent = true;
    }

    // ---- what pools do ----

    /// Takes leases; what is missing is asked for with the next report. `true` if
    /// that should go soon.
    pub(crate) fn take(&mut self, now: Instant, ask: Ask) -> (u32, bool) {
        let free = self.cap(now).saturating_sub(self.taken);
        let given = if self.standing(now) == Standing::Good { ask.want.min(free) } else { 0 };
        self.taken += given;
        self.used_since_report |= given > 0;
        let before = self.wish();
        let leases = ask.want - given + ask.more;
        if leases > 0 {
            self.wishes.insert(ask.asker, Wish { leases, waiters: ask.waiters, at: now });
        } else {
            self.wishes.remove(&ask.asker);
        }
        // what has been asked for before is on its way, or not to be had
        let missing = self.taken + self.wish() > self.booked;
        let news = missing && self.wish() + given > before;
        (given, news && self.link == Link::Current && self.mark_urgent())
    }

    /// How many leases could be taken at once.
    pub(crate) fn room(&self, now: Instant) -> u32 {
        self.cap(now).saturating_sub(self.taken)
    }

    /// What pools would still like to have.
    fn wish(&self) -> u32 {
        self.wishes.values().map(|wish| wish.leases).sum()
    }

    /// Leases of a life come back; `true` if a report should go soon.
    pub(crate) fn give_back(&mut self, n: u32, life: u64) -> bool {
        if life != self.life {
            self.strays = self.strays.saturating_sub(n);
            return self.strays == 0;
        }
        self.taken = self.taken.saturating_sub(n);
        self.coming_back = self.coming_back.saturating_sub(n);
        let wanted = self.last.recall > 0 || self.last.contended || self.leaving;
        wanted && self.mark_urgent()
    }

    pub(crate) fn coming_back(&mut self, n: u32, life: u64) {
        if life == self.life {
            self.coming_back = (self.coming_back + n).min(self.taken);
        }
    }

    /// The backend has too many connections open.
    pub(crate) fn refused(&mut self) -> bool {
        let jitter = 1.0 + self.rng.f64();
        self.pause = self.settings.margin.min(Duration::from_secs(2)).mul_f64(jitter);
        self.mark_urgent()
    }

    fn mark_urgent(&mut self) -> bool {
        !std::mem::replace(&mut self.urgent, true)
    }

    /// What this member may do at `now`.
    pub(crate) fn standing(&self, now: Instant) -> Standing {
        match self.link {
            Link::Never if self.settings.cold_share > 0 => Standing::Good,
            Link::Never | Link::Doubt | Link::Left => Standing::Fenced,
            Link::Current | Link::Lapsed => {
                let lapsed = self.soft().is_none_or(|soft| now >= soft);
                let expired = self.hard().is_none_or(|hard| now >= hard);
                match (self.settings.on_loss, self.link) {
                    _ if !lapsed => Standing::Good,
                    (OnLoss::Fence, _) if expired => Standing::Expired,
                    (OnLoss::Share | OnLoss::Hold, Link::Lapsed) => Standing::Good,
                    // good until ttl, and most of them will be kept: nothing is closed for
                    // the moment that the member's thread needs to notice
                    (OnLoss::Share | OnLoss::Hold, _) if !expired => Standing::Good,
                    // past its fence, and nobody has looked yet what became of the leases
                    _ => Standing::Fenced,
                }
            }
        }
    }

    /// Until when [`standing`](Self::standing) is good if nothing happens.
    pub(crate) fn good_until(&self, now: Instant) -> Option<Instant> {
        if self.standing(now) != Standing::Good {
            return None;
        }
        match self.link {
            Link::Current => self.soft(),
            _ => Some(now + Duration::from_secs(3600)),
        }
    }

    /// Leases that may be used.
    fn cap(&self, now: Instant) -> u32 {
        if self.link == Link::Never {
            return self.settings.cold_share;
        }
        if self.strays > 0 && self.reaped_at.is_some_and(|at| now < at + self.settings.close_grace)
        {
            return 0;
        }
        self.allowance(now).min(self.in_flight.map_or(u32::MAX, |call| call.held))
    }

    fn allowance(&self, now: Instant) -> u32 {
        if self.link != Link::Lapsed {
            return self.booked.saturating_sub(self.last.recall);
        }
        match self.settings.on_loss {
            OnLoss::Fence => 0,
            OnLoss::Hold => self.taken,
            OnLoss::Share if self.grow_at().is_some_and(|at| now >= at) => self.last.share,
            OnLoss::Share => self.last.share.min(self.booked),
        }
    }

    /// Leases to be given back by closing what is idle.
    pub(crate) fn excess(&self) -> u32 {
        let staying = self.taken.saturating_sub(self.coming_back);
        let most = match self.link {
            Link::Current => self.booked.saturating_sub(self.last.recall),
            Link::Lapsed if self.settings.on_loss == OnLoss::Share => self.last.share,
            _ => staying,
        };
        staying.saturating_sub(most)
    }

    // ---- time ----

    /// From here nothing is handed out, and what is idle is closed.
    fn soft(&self) -> Option<Instant> {
        self.renewed.map(|at| at + self.settings.ttl - self.settings.margin)
    }

    /// From here connections in use are killed.
    fn hard(&self) -> Option<Instant> {
        self.renewed.map(|at| at + self.settings.ttl - self.settings.margin / 2)
    }

    /// By now every member has gone down to its share.
    fn grow_at(&self) -> Option<Instant> {
        let MemberSettings { ttl, heartbeat, request_timeout, .. } = self.settings;
        self.renewed.map(|at| at + ttl + heartbeat + request_timeout)
    }

    /// The share of the limit that this member has while the keeper is away, once
    /// it may be used to the full.
    pub(crate) fn offline_share(&self, now: Instant) -> Option<(u32, u32)> {
        if self.link == Link::Never && self.settings.cold_share > 0 {
            let limit = self.limits().open.max(1);
            return Some((self.settings.cold_share.min(limit), limit));
        }
        let alone = self.link == Link::Lapsed
            && self.settings.on_loss == OnLoss::Share
            && self.grow_at().is_some_and(|at| now >= at);
        alone.then_some((self.last.share, self.last.limit.max(1)))
    }

    /// When the kernel should end this process unless it has been heard of.
    pub(crate) fn dead_at(&self) -> Option<Instant> {
        match self.link {
            Link::Current => self.hard(),
            Link::Lapsed | Link::Doubt if !self.killed => {
                self.renewed.map(|at| at + self.settings.ttl)
            }
            _ => None,
        }
    }

    /// Brings the account up to `now`.
    pub(crate) fn tick(&mut self, now: Instant) -> Todo {
        let mut todo = Todo::default();
        let lapsed = self.soft().is_some_and(|soft| now >= soft);
        let expired = self.hard().is_some_and(|hard| now >= hard);
        if self.link == Link::Current && lapsed {
            if expired {
                // stopped for so long that others may have the leases by now: ask first
                self.link = Link::Doubt;
                self.doubt_until = Some(now + self.settings.request_timeout);
                self.doubted = self.taken;
                todo.report = true;
                self.in_flight = None;
            } else {
                self.link = Link::Lapsed;
            }
            todo.wake = true;
        }
        if self.link == Link::Doubt && self.doubt_until.is_some_and(|until| now >= until) {
            self.link = Link::Lapsed;
            self.doubt_until = None;
            todo.wake = true;
        }
        if self.link == Link::Lapsed && expired && !self.killed {
            self.killed = true;
            todo.keep = match self.settings.on_loss {
                OnLoss::Fence => Some(0),
                OnLoss::Share => Some(self.last.share),
                OnLoss::Hold => None,
            };
            todo.wake = true;
        }
        if self.offline_share(now).is_some() && !std::mem::replace(&mut self.grown, true) {
            todo.wake = true;
        }
        // a pool that nothing happens to does not ask again by itself
        todo.wake |= self.wishes.values().any(|wish| now >= wish.at + self.settings.heartbeat);
        self.wishes.retain(|_, wish| now < wish.at + self.settings.heartbeat * 2);
        let due = now >= self.next_report || self.urgent && self.failures == 0;
        todo.report |= due && self.in_flight.is_none() && self.link != Link::Left;
        todo
    }

    /// When to [`tick`](Self::tick) again at the latest.
    pub(crate) fn next_wake(&self, now: Instant) -> Instant {
        // a call under way ends by itself, and to look at it before that helps nobody
        let idle = self.in_flight.is_none();
        let at = if idle { self.next_report.max(now) } else { now + self.settings.heartbeat };
        let ahead = [self.soft(), self.hard(), self.grow_at(), self.doubt_until];
        ahead.into_iter().flatten().filter(|next| *next > now).fold(at, Instant::min)
    }

    // ---- reports and answers ----

    /// The next report. From here on no more than it says is used.
    pub(crate) fn compose(&mut self, now: Instant) -> Report {
        self.seq += 1;
        self.urgent = false;
        let lent = self.link == Link::Current || self.link == Link::Doubt;
        let wish = if self.leaving { 0 } else { self.wish() };
        let spare = if lent { self.booked.saturating_sub(self.taken) } else { 0 };
        let idle_may_stay = self.used_since_report
            && !(self.last.contended || self.last.recall > 0 || self.leaving);
        let kept = if idle_may_stay { spare } else { spare.min(wish) };
        let mut held = self.taken + kept;
        if lent {
            let asked_for = self.booked.saturating_sub(self.last.recall);
            held = held.min(asked_for.max(self.taken)).min(self.booked);
        }
        // a join that is not answered must leave nothing granted behind
        let (held, want) = match self.seq {
            1 => (0, 0),
            _ => (held, held.max(self.taken + wish)),
        };
        self.used_since_report = false;
        let pause_ms = std::mem::take(&mut self.pause).as_millis() as u64;
        let leave = self.leaving && self.taken == 0;
        self.in_flight = Some(InFlight { seq: self.seq, at: now, held, leave });
        self.next_report = now + self.settings.heartbeat;
        Report {
            backend: self.backend.clone(),
            member: self.member.clone(),
            seq: self.seq,
            generation: self.generation.clone(),
            held,
            want,
            waiters: self.wishes.values().map(|wish| wish.waiters).sum(),
            share: self.last.share,
            elapsed_ms: self.renewed.map(|at| now.saturating_duration_since(at).as_millis() as u64),
            pause_ms,
            leave,
            nonce: self.rng.u64(..),
            profile: self.profile.clone(),
        }
    }

    /// What the answer to the report with number `seq` means.
    pub(crate) fn answered(&mut self, seq: u64, answer: Answer, now: Instant) -> Todo {
        let Some(call) = self.in_flight.filter(|call| call.seq == seq) else {
            return Todo::default();
        };
        self.in_flight = None;
        self.failures = 0;
        match answer {
            Answer::Stale => {
                // after an unanswered join: it had been booked
                self.booked = self.booked.min(call.held);
                self.next_report = now;
                Todo::default()
            }
            Answer::Reaped => self.was_reaped(now),
            Answer::Booked(booking) => self.was_booked(call, booking, now),
        }
    }

    fn was_booked(&mut self, call: InFlight, booking: Booking, now: Instant) -> Todo {
        if call.leave {
            self.link = Link::Left;
            return Todo { wake: true, ..Todo::default() };
        }
        let resumed = self.link != Link::Current;
        let granted = booking.held > call.held;
        self.link = Link::Current;
        self.killed = false;
        self.grown = false;
        self.doubt_until = None;
        self.doubted = 0;
        self.renewed = Some(call.at);
        self.generation = Some(booking.generation.clone());
        self.booked = booking.held;
        self.last = booking;
        let missing = self.taken + self.wish() > self.booked;
        // what is asked back and not used goes back at once, wished for or not
        let idle = self.booked > self.taken + self.wish()
            || self.last.recall > 0 && self.booked > self.taken;
        if idle && (self.last.contended || self.last.recall > 0) || call.seq == 1 && missing {
            self.urgent = true;
        }
        if missing || self.last.declaring_ms > 0 {
            // keepers that announce nothing are asked now and then
            let calm = self.settings.heartbeat / if self.announced { 2 } else { 10 };
            let jitter = 0.75 + self.rng.f64() / 2.0;
            self.next_report = self.next_report.min(now + calm.mul_f64(jitter));
        }
        Todo { wake: granted || resumed || self.excess() > 0, ..Todo::default() }
    }

    /// Others may have the leases of this life: begin another one.
    fn was_reaped(&mut self, now: Instant) -> Todo {
        self.reaped += 1;
        self.overshoot += u64::from(self.taken.max(std::mem::take(&mut self.doubted)));
        self.strays += self.taken;
        self.reaped_at = Some(now);
        self.life += 1;
        self.member = MemberId::new(&self.instance, self.rng.u64(..));
        self.link = if self.leaving { Link::Left } else { Link::Never };
        (self.seq, self.booked, self.taken, self.coming_back) = (0, 0, 0, 0);
        self.generation = None;
        self.last = Booking { limit: self.last.limit, ..Booking::default() };
        self.renewed = None;
        self.doubt_until = None;
        self.killed = false;
        self.next_report = now;
        Todo { revoke: true, wake: true, ..Todo::default() }
    }

    /// The report with number `seq` was not answered. The keeper may have booked it.
    pub(crate) fn lost(&mut self, seq: u64, now: Instant) {
        let Some(call) = self.in_flight.filter(|call| call.seq == seq) else { return };
        self.in_flight = None;
        self.booked = self.booked.min(call.held);
        if self.link == Link::Never && call.seq == 1 {
            self.seq = 0;
        }
        // pools that were refused their share while it was under way are to look again
        self.grown = false;
        self.failures += 1;
        let base = self.settings.request_timeout / 2;
        let wait = base * 2_u32.saturating_pow(self.failures.min(6) - 1);
        let wait = wait.min(self.settings.heartbeat).mul_f64(0.5 + self.rng.f64());
        self.next_report = now + wait;
    }

    /// Gives everything back as it comes, and leaves once nothing is left.
    pub(crate) fn leave(&mut self) {
        self.leaving = true;
        self.urgent = true;
        if self.link == Link::Never && self.in_flight.is_none() {
            self.link = Link::Left;
        }
    }

    /// Nobody renews any more: nothing may be opened or handed out.
    pub(crate) fn abandon(&mut self) -> Todo {
        self.link = Link::Left;
        Todo { revoke: true, ..Todo::default() }
    }

    /// Something has changed for this member in the keeper's books.
    pub(crate) fn news(&mut self) -> bool {
        self.mark_urgent()
    }
}

#[cfg(test)]
mod tests;
