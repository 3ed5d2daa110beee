//! The keeper's books of one backend, as plain computation: who holds how many
//! leases, who waits, whose leases are asked back, what each may keep while the
//! keeper is away. The modelled keeper and the DynamoDB keeper run this code; the
//! Redis keeper's script does the same in Lua, and a test holds the two together.
//!
//! Promises, after every step: leases booked never rise above the limit; offline
//! shares never add up to more than it; no report is booked twice or out of order.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::message::{Answer, Booking, Limits, MemberId, MemberInfo, Profile, Report};

/// Most leases moved in one step. What is left is moved by the next reports.
const MOVES_MAX: u32 = 1000;

/// The books of one backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// Random; another one means that everything before has been lost.
    pub generation: String,
    /// The server that these books were last kept by, where that can be told.
    pub run_id: String,
    /// While it is open nothing is granted, nobody is reaped.
    pub window: Option<Window>,
    /// Counts the windows.
    pub windows: u64,
    /// When the books were last touched.
    pub last_ms: u64,
    /// When a member that was not new last reported.
    pub heard_ms: u64,
    /// The backend refused: no grants until then.
    pub paused_until_ms: u64,
    /// Entries by member.
    pub members: BTreeMap<MemberId, Entry>,
}

/// A declaration window: members say what they hold, and the books are set right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// When it ends; `u64::MAX` if whoever keeps the books decides that.
    pub until_ms: u64,
    /// Data may have been lost: whoever the books do not know may still be a member.
    pub lossy: bool,
    /// Members are believed, even where the books have less.
    pub trusting: bool,
}

/// One member's page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The last report booked.
    pub seq: u64,
    /// Leases it has.
    pub held: u32,
    /// Leases moved to it that it does not know of yet.
    pub reserved: u32,
    /// Leases it is asked to give back.
    pub recall: u32,
    /// Leases that have been asked back from others for it.
    pub expected: u32,
    /// Leases it would like to have.
    pub want: u32,
    /// Checkouts waiting there.
    pub waiters: u32,
    /// Since when it has had less than it wants.
    pub waiting_since_ms: Option<u64>,
    /// The most it may believe its offline share to be.
    pub share: u32,
    /// When it joined.
    pub joined_ms: u64,
    /// When it last reported.
    pub renewed_ms: u64,
    /// The window in which it last said what it holds.
    pub declared: u64,
    /// What it says of itself.
    pub profile: Profile,
}

impl Entry {
    fn booked(&self) -> u32 {
        self.held + self.reserved
    }

    /// What it will have once all that was asked back has come.
    fn lasting(&self) -> u32 {
        self.booked().saturating_sub(self.recall)
    }

    fn unmet(&self) -> u32 {
        self.want.saturating_sub(self.booked())
    }
}

/// Why a window is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doubt {
    /// The books are new, or another server has them.
    Lost,
    /// The server's clock was moved.
    Clock,
    /// Nobody was heard for so long that somebody would be reaped for it.
    Silence,
}

/// What a keeper knows besides the books.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'a> {
    /// The time; only its differences matter.
    pub now_ms: u64,
    /// The server that keeps the books, where that can be told.
    pub run_id: &'a str,
    /// Whether members are reaped, and windows closed, by `now_ms`. If not,
    /// whoever keeps the books calls [`Ledger::reap`] and [`Ledger::close_window`].
    pub by_time: bool,
}

/// What is asked of all pages together.
struct Sums {
    limits: Limits,
    limit_by: String,
    members: u32,
    total: u32,
    recalled: u32,
    expected: u32,
    weights: u64,
    promised: u64,
    contended: bool,
}

impl Sums {
    /// Leases booked beyond the limit.
    fn over(&self) -> u32 {
        self.total.saturating_sub(self.limits.open)
    }

    /// The share of the limit that a member's weight gives it.
    fn fair_share(&self, entry: &Entry) -> u32 {
        let part = u64::from(self.limits.open) * u64::from(entry.profile.weight);
        (part / self.weights.max(1)) as u32
    }
}

/// What came of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stepped {
    /// For the member that reported.
    pub answer: Answer,
    /// Others for whom something has changed: leases to collect or to give back.
    pub news: BTreeSet<MemberId>,
    /// Members whose leases went back to the fleet.
    pub reaped: Vec<MemberId>,
}

impl Ledger {
    /// Books where there were none: everyone says first what they hold.
    pub fn unknown(nonce: u64, ttl_ms: u64, moment: Moment<'_>) -> Self {
        let mut ledger = Self::ready(nonce, moment);
        ledger.open_window(ttl_ms, Doubt::Lost, moment);
        ledger
    }

    /// Books for a fleet that is known to be new, as `forebay fleet setup` makes them.
    pub fn ready(nonce: u64, moment: Moment<'_>) -> Self {
        Self {
            generation: format!("{nonce:016x}"),
            run_id: moment.run_id.to_owned(),
            window: None,
            windows: 0,
            last_ms: moment.now_ms,
            heard_ms: moment.now_ms,
            paused_until_ms: 0,
            members: BTreeMap::new(),
        }
    }

    /// Books one report.
    pub fn step(&mut self, report: &Report, moment: Moment<'_>) -> Stepped {
        let now = moment.now_ms;
        self.notice_loss(report, moment);
        self.last_ms = now;
        let mut stepped =
            Stepped { answer: Answer::Reaped, news: BTreeSet::new(), reaped: Vec::new() };
        if moment.by_time && self.can_judge(report, now) {
            if self.window.is_some_and(|window| window.until_ms <= now) {
                self.close_window();
            }
            stepped.reaped = self.reap_expired(now);
        }
        if let Err(answer) = self.admit(report, now) {
            stepped.answer = answer;
            self.distribute(None, now, &mut stepped.news);
            return stepped;
        }
        if report.leave && report.held == 0 {
            self.members.remove(&report.member);
            self.distribute(None, now, &mut stepped.news);
            let limit = self.limits().0.open;
            let generation = self.generation.clone();
            stepped.answer = Answer::Booked(Booking { generation, limit, ..Booking::default() });
            return stepped;
        }
        self.book(report, now);
        self.distribute(Some(&report.member), now, &mut stepped.news);
        let mut sums = self.sums();
        self.recall_surplus(&report.member, &mut sums);
        self.forget_lost_recalls(&report.member, &mut sums);
        self.recall_for(report, now, &mut sums, &mut stepped.news);
        self.end_needless_recalls(&report.member, &mut sums);
        let share = self.offer_share(&report.member, &sums);
        stepped.answer = Answer::Booked(self.booking(&report.member, share, now, sums));
        stepped
    }

    /// Opens a window when the server is another one or its clock was moved.
    fn notice_loss(&mut self, report: &Report, moment: Moment<'_>) {
        let (now, ttl) = (moment.now_ms, report.profile.ttl_ms);
        let margin = report.profile.margin_ms;
        if self.run_id != moment.run_id {
            moment.run_id.clone_into(&mut self.run_id);
            // another server has another clock
            if moment.by_time {
                self.set_back(now);
            }
            return self.open_window(ttl, Doubt::Lost, moment);
        }
        if !moment.by_time {
            return;
        }
        let gone_back = now + margin < self.last_ms;
        // what comes late says nothing of the clock
        let entry = self.members.get(&report.member).filter(|entry| report.seq > entry.seq);
        let gone_ahead = entry.zip(report.elapsed_ms).is_some_and(|(entry, elapsed)| {
            now.saturating_sub(entry.renewed_ms) > elapsed.saturating_add(margin)
        });
        // all were cut off together: nobody's leases went to others meanwhile, and each
        // may have gone over to its share. If the last one heard of is not yet overdue,
        // the others would still be taken for dead.
        let usual = report.profile.heartbeat_ms + margin;
        let quiet = now.saturating_sub(self.heard_ms) >= ttl.saturating_sub(usual).max(usual);
        let overdue = |entry: &Entry| now >= entry.renewed_ms + ttl;
        let silent = quiet && entry.is_some() && self.members.values().any(overdue);
        if gone_back {
            self.set_back(now);
        }
        // a report that was long under way looks like a leap, too, when all were silent
        if gone_back || gone_ahead && !silent {
            self.open_window(ttl, Doubt::Clock, moment);
        } else if silent {
            self.open_window(ttl, Doubt::Silence, moment);
        }
    }

    /// Nothing can have happened later than now: else it would last for as long as
    /// the clock was set back, or nobody be reaped.
    fn set_back(&mut self, now: u64) {
        self.paused_until_ms = self.paused_until_ms.min(now);
        for entry in self.members.values_mut() {
            entry.joined_ms = entry.joined_ms.min(now);
            entry.renewed_ms = entry.renewed_ms.min(now);
            entry.waiting_since_ms = entry.waiting_since_ms.map(|since| since.min(now));
        }
    }

    fn open_window(&mut self, ttl_ms: u64, doubt: Doubt, moment: Moment<'_>) {
        let before = self.window;
        let lossy = doubt == Doubt::Lost || before.is_some_and(|window| window.lossy);
        let trusting = doubt != Doubt::Clock || before.is_some_and(|window| window.trusting);
        let until_ms = if moment.by_time { moment.now_ms + ttl_ms } else { u64::MAX };
        self.window = Some(Window { until_ms, lossy, trusting });
        self.windows += 1;
        self.heard_ms = moment.now_ms;
    }

    /// Everyone alive has said what they hold.
    pub fn close_window(&mut self) {
        self.window = None;
    }

    /// Whether a report shows how much time has passed: if the clock was moved, it
    /// has been noticed by now. Whoever has just joined, was never answered or comes
    /// late cannot tell.
    fn can_judge(&self, report: &Report, now: u64) -> bool {
        let entry = self.members.get(&report.member);
        report.elapsed_ms.is_some()
            && entry.is_some_and(|entry| {
                report.seq > entry.seq && now >= entry.joined_ms + entry.profile.heartbeat_ms
            })
    }

    /// Removes those that have been silent for too long.
    fn reap_expired(&mut self, now: u64) -> Vec<MemberId> {
        if self.window.is_some() {
            return Vec::new();
        }
        let expired: Vec<MemberId> = self
            .members
            .iter()
            .filter(|(_, entry)| entry.renewed_ms + entry.profile.reclaim_ms <= now)
            .map(|(member, _)| member.clone())
            .collect();
        for member in &expired {
            self.members.remove(member);
        }
        expired
    }

    /// Takes a member's leases back, if it still has the page that was judged.
    pub fn reap(&mut self, member: &MemberId) -> Option<Entry> {
        self.members.remove(member)
    }

    /// Finds the page of a report, or makes it; refuses what must not be booked.
    fn admit(&mut self, report: &Report, now: u64) -> Result<(), Answer> {
        let lossy = self.window.is_some_and(|window| window.lossy);
        let Some(entry) = self.members.get_mut(&report.member) else {
            let joins = report.seq == 1 && report.held == 0;
            if joins || lossy {
                let held = if joins { 0 } else { report.held };
                self.members.insert(report.member.clone(), self.page(report, held, now));
                return Ok(());
            }
            return Err(Answer::Reaped);
        };
        if report.seq <= entry.seq {
            return Err(Answer::Stale);
        }
        let trusting = self.window.is_some_and(|window| window.trusting);
        // one that was sent before the window and arrived in it does not count for good
        if trusting && (entry.declared != self.windows || report.held > entry.held) {
            entry.held = report.held;
            entry.reserved = 0;
            entry.declared = self.windows;
        } else if report.held > entry.held {
            // leases that the books do not have: somebody else may have them
            self.members.remove(&report.member);
            return Err(Answer::Reaped);
        }
        Ok(())
    }

    fn page(&self, report: &Report, held: u32, now: u64) -> Entry {
        Entry {
            seq: 0,
            held,
            reserved: 0,
            recall: 0,
            expected: 0,
            want: 0,
            waiters: 0,
            waiting_since_ms: None,
            share: 0,
            joined_ms: now,
            renewed_ms: now,
            declared: self.windows,
            profile: report.profile.clone(),
        }
    }

    /// Books what is kept; what was moved to the member is now collected.
    fn book(&mut self, report: &Report, now: u64) {
        if report.pause_ms > 0 {
            self.paused_until_ms = self.paused_until_ms.max(now + report.pause_ms);
        }
        let Some(entry) = self.members.get_mut(&report.member) else { return };
        if now >= entry.joined_ms + entry.profile.heartbeat_ms {
            self.heard_ms = self.heard_ms.max(now);
        }
        entry.seq = report.seq;
        entry.renewed_ms = now;
        entry.profile.clone_from(&report.profile);
        entry.recall = entry.recall.saturating_sub(entry.held.saturating_sub(report.held));
        entry.want = report.want.max(report.held);
        entry.waiters = report.waiters;
        // it goes by what it says, and learns of more only by this answer
        entry.share = report.share;
        let collected = entry.reserved.min(entry.want - report.held);
        entry.held = report.held + collected;
        entry.reserved = 0;
        entry.recall = entry.recall.min(entry.held);
        entry.settle(now);
    }

    /// Gives free leases to those who wait, the poorest first, and among equals
    /// who has waited longest.
    fn distribute(&mut self, me: Option<&MemberId>, now: u64, news: &mut BTreeSet<MemberId>) {
        if self.window.is_some() || now < self.paused_until_ms {
            return;
        }
        if !self.members.values().any(|entry| entry.unmet() > 0) {
            return;
        }
        let mut free = self.limits().0.open.saturating_sub(self.total());
        for _ in 0..MOVES_MAX {
            let waiting = || self.members.iter().filter(|(_, entry)| entry.unmet() > 0);
            let unmet: u64 = waiting().map(|(_, entry)| u64::from(entry.unmet())).sum();
            let Some((member, entry)) = waiting().min_by(|(_, a), (_, b)| {
                let poorer = (u64::from(a.booked()) * u64::from(b.profile.weight))
                    .cmp(&(u64::from(b.booked()) * u64::from(a.profile.weight)));
                poorer.then(a.waiting_since_ms.cmp(&b.waiting_since_ms))
            }) else {
                return;
            };
            if free == 0 {
                return;
            }
            let alone = u64::from(entry.unmet()) == unmet || unmet <= u64::from(free);
            let given = if alone { entry.unmet().min(free) } else { 1 };
            let member = member.clone();
            if me != Some(&member) {
                news.insert(member.clone());
            }
            let Some(entry) = self.members.get_mut(&member) else { return };
            if me == Some(&member) {
                entry.held += given
            } else {
                entry.reserved += given
            }
            entry.expected = entry.expected.saturating_sub(given);
            entry.waiting_since_ms = Some(now);
            entry.settle(now);
            free -= given;
        }
    }

    /// Over a lowered limit, asks the member for what it has over its share of it. Not
    /// while the books may count those who have long gone.
    fn recall_surplus(&mut self, member: &MemberId, sums: &mut Sums) {
        if self.window.is_some_and(|window| window.lossy) {
            return;
        }
        let over = sums.over().saturating_sub(sums.recalled);
        if let Some(entry) = self.members.get_mut(member) {
            let fair = sums.fair_share(entry);
            let more = over.min(entry.lasting().saturating_sub(fair)).min(entry.held);
            entry.recall += more;
            sums.recalled += more;
        }
    }

    /// What was asked back from somebody who has gone, or went to another one, does
    /// not come any more.
    fn forget_lost_recalls(&mut self, member: &MemberId, sums: &mut Sums) {
        let lost = sums.expected.saturating_sub(sums.recalled.saturating_sub(sums.over()));
        if let Some(entry) = self.members.get_mut(member) {
            let fewer = entry.expected.min(lost);
            entry.expected -= fewer;
            sums.expected -= fewer;
        }
    }

    /// Asks leases back from those who have most, as far as that makes it fairer;
    /// and for one who has none and has waited long, from anybody.
    fn recall_for(
        &mut self,
        report: &Report,
        now: u64,
        sums: &mut Sums,
        news: &mut BTreeSet<MemberId>,
    ) {
        let me = &report.member;
        for _ in 0..MOVES_MAX {
            let Some(mine) = self.members.get(me) else { return };
            if mine.unmet() <= mine.expected || self.window.is_some() {
                return;
            }
            let others = self.members.iter().filter(|(other, _)| *other != me);
            // by what they would have left: of two that are equally rich the heavier
            // one misses one lease less
            let left = |entry: &Entry| u64::from(entry.lasting() - 1);
            let richest = others.filter(|(_, e)| e.lasting() > 0).max_by(|(_, a), (_, b)| {
                (left(a) * u64::from(b.profile.weight))
                    .cmp(&(left(b) * u64::from(a.profile.weight)))
            });
            let Some((donor, theirs)) = richest else { return };
            let will_have = u64::from(mine.booked() + mine.expected);
            let fairer = u64::from(theirs.lasting()).saturating_sub(1)
                * u64::from(mine.profile.weight)
                >= (will_have + 1) * u64::from(theirs.profile.weight);
            let waited = mine.waiting_since_ms.map_or(0, |since| now.saturating_sub(since));
            let turn =
                will_have == 0 && report.waiters > 0 && waited >= report.profile.heartbeat_ms;
            if !(fairer || turn) {
                return;
            }
            let donor = donor.clone();
            news.insert(donor.clone());
            if let Some(theirs) = self.members.get_mut(&donor) {
                theirs.recall += 1;
                sums.recalled += 1;
            }
            if let Some(mine) = self.members.get_mut(me) {
                mine.expected += 1;
                sums.expected += 1;
            }
        }
    }

    /// Takes back recalls that nobody waits for any more.
    fn end_needless_recalls(&mut self, member: &MemberId, sums: &mut Sums) {
        let needless = sums.recalled.saturating_sub(sums.expected + sums.over());
        if let Some(entry) = self.members.get_mut(member) {
            let fewer = entry.recall.min(needless);
            entry.recall -= fewer;
            sums.recalled -= fewer;
        }
    }

    /// The offline share to tell a member. Raised only by what the others are
    /// known to go without; lowered in the books once the member has said so.
    fn offer_share(&mut self, member: &MemberId, sums: &Sums) -> u32 {
        let limit = sums.limits.open;
        let lossy = self.window.is_some_and(|window| window.lossy);
        let Some(entry) = self.members.get_mut(member) else { return 0 };
        let most = limit / sums.members.max(entry.profile.divisor).max(1);
        let target = sums.fair_share(entry).min(most);
        let free = u64::from(limit).saturating_sub(sums.promised) as u32;
        if target > entry.share && !lossy {
            entry.share += free.min(target - entry.share);
        }
        target.min(entry.share)
    }

    /// Everything that is asked of all pages, in one walk.
    fn sums(&self) -> Sums {
        let (limits, limit_by) = self.limits();
        let mut sums = Sums {
            limits,
            limit_by,
            members: 0,
            total: 0,
            recalled: 0,
            expected: 0,
            weights: 0,
            promised: 0,
            contended: false,
        };
        for entry in self.members.values() {
            sums.members += 1;
            sums.total += entry.booked();
            sums.recalled += entry.recall;
            sums.expected += entry.expected;
            sums.weights += u64::from(entry.profile.weight);
            sums.promised += u64::from(entry.share);
            sums.contended |= entry.unmet() > 0;
        }
        sums
    }

    /// The limits that count, and whose open limit that is: the lowest of each
    /// among the members with the highest version.
    pub fn limits(&self) -> (Limits, String) {
        let mut counts = Limits { open: 0, rate: 0, burst: 0, version: 0 };
        let mut whose = None;
        // a rate of nothing is a rate that is not shared
        let lower = |counts: u32, says: u32| match (counts, says) {
            (0, one) | (one, 0) => one,
            (one, other) => one.min(other),
        };
        for (member, entry) in &self.members {
            let said = entry.profile.limits;
            if whose.is_none() || said.version > counts.version {
                (counts, whose) = (said, Some(member));
            } else if said.version == counts.version {
                if said.open < counts.open {
                    whose = Some(member);
                }
                counts.open = counts.open.min(said.open);
                counts.rate = lower(counts.rate, said.rate);
                counts.burst = lower(counts.burst, said.burst);
            }
        }
        (counts, whose.map_or_else(String::new, |member| member.as_str().to_owned()))
    }

    /// Leases booked for all members.
    pub fn total(&self) -> u32 {
        self.members.values().map(Entry::booked).sum()
    }

    fn booking(&self, member: &MemberId, share: u32, now: u64, sums: Sums) -> Booking {
        let entry = self.members.get(member);
        Booking {
            generation: self.generation.clone(),
            held: entry.map_or(0, |entry| entry.held),
            share,
            recall: entry.map_or(0, |entry| entry.recall),
            contended: sums.contended,
            limit: sums.limits.open,
            limit_by: sums.limit_by,
            total: sums.total,
            members: sums.members,
            declaring_ms: self.window.map_or(0, |window| window.until_ms.saturating_sub(now)),
        }
    }

    /// The members, for listing.
    pub fn list(&self, now_ms: Option<u64>) -> Vec<MemberInfo> {
        let info = |(member, entry): (&MemberId, &Entry)| MemberInfo {
            member: member.clone(),
            profile: entry.profile.clone(),
            held: entry.booked(),
            want: entry.want,
            waiters: entry.waiters,
            share: entry.share,
            recall: entry.recall,
            silent_ms: now_ms.map(|now| now.saturating_sub(entry.renewed_ms)),
        };
        self.members.iter().map(info).collect()
    }
}

impl Entry {
    /// Brings what follows from `want` up to date.
    fn settle(&mut self, now: u64) {
        let unmet = self.unmet();
        self.expected = self.expected.min(unmet);
        if unmet == 0 {
            self.waiting_since_ms = None;
        } else if self.waiting_since_ms.is_none() {
            self.waiting_since_ms = Some(now);
        }
    }
}

#[cfg(test)]
mod tests;
