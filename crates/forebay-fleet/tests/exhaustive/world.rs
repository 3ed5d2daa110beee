//! The world around the members: the keeper, whose books are the real [`Ledger`],
//! a network that delays, loses and doubles, and a backend that counts.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use forebay_fleet::{Answer, Entry, Ledger, MemberId, Moment, Report};

use super::member::{Body, Heard, Member, Message};
use super::model::{Fleet, Plant, TTL};

/// The keeper's books, with their hash at hand.
#[derive(Clone, Debug)]
pub(crate) struct Books {
    pub(crate) ledger: Arc<Ledger>,
    hash: u64,
}

impl Books {
    pub(crate) fn new(ledger: Ledger) -> Self {
        let mut hasher = std::hash::DefaultHasher::new();
        let Ledger { generation, run_id, window, windows, .. } = &ledger;
        (generation, run_id, windows).hash(&mut hasher);
        window.map(|w| (w.until_ms, w.lossy, w.trusting)).hash(&mut hasher);
        (ledger.last_ms, ledger.heard_ms, ledger.paused_until_ms).hash(&mut hasher);
        for (member, e) in &ledger.members {
            (member.as_str(), e.seq, e.held, e.reserved, e.recall, e.expected).hash(&mut hasher);
            (e.want, e.waiters, e.waiting_since_ms, e.share).hash(&mut hasher);
            (e.joined_ms, e.renewed_ms, e.declared).hash(&mut hasher);
        }
        Self { hash: hasher.finish(), ledger: Arc::new(ledger) }
    }
}

impl PartialEq for Books {
    fn eq(&self, other: &Self) -> bool {
        self.ledger == other.ledger
    }
}

impl Hash for Books {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct World {
    /// The keeper's clock.
    pub(crate) now: u8,
    pub(crate) books: Option<Books>,
    pub(crate) members: Vec<Member>,
    /// Reports on their way, by member.
    pub(crate) network: Vec<Vec<Message>>,
    pub(crate) run: u8,
    pub(crate) slow: u8,
    pub(crate) doubles: u8,
    pub(crate) crashes: u8,
    pub(crate) freezes: u8,
}

/// What becomes of a report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fate {
    /// It is booked and answered at once.
    Answered,
    /// It is booked and answered at once, and arrives again at some time.
    Doubled,
    /// It is booked, the answer is lost.
    Unanswered,
    Lost,
    /// It arrives at some time, and so does the answer.
    Slow,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// The keeper's clock advances; members are then so far behind.
    Tick(Vec<u8>),
    Open(usize),
    Close(usize),
    LetGo(usize),
    Report {
        member: usize,
        ask: bool,
        fate: Fate,
    },
    /// A report arrives that was slow, or arrives again.
    Deliver {
        member: usize,
        message: Message,
    },
    Hear(usize),
    Crash(usize),
    Boot(usize),
    Freeze(usize),
    Thaw(usize),
    LoseBooks,
}

impl World {
    pub(crate) fn ledger(&self) -> Option<&Ledger> {
        self.books.as_ref().map(|books| books.ledger.as_ref())
    }

    pub(crate) fn at_backend(&self) -> u8 {
        self.members.iter().map(Member::at_backend).sum()
    }

    /// Whether the keeper has booked at least what each member uses: not so if a
    /// lease has been given back twice, or before its time.
    pub(crate) fn covered(&self) -> bool {
        let Some(ledger) = self.ledger() else { return true };
        if ledger.window.is_some() {
            return true;
        }
        self.members.iter().enumerate().all(|(i, member)| {
            let entry = ledger.members.get(&id(i, member.life));
            let booked = entry.map_or(0, |entry| entry.held + entry.reserved);
            u32::from(member.at_backend()) <= booked || member.overslept()
        })
    }

    pub(crate) fn take(&mut self, fleet: &Fleet, step: Step) {
        match step {
            Step::Tick(behind) => {
                self.now += 1;
                for (member, behind) in self.members.iter_mut().zip(behind) {
                    while member.clock < self.now.saturating_sub(behind) {
                        member.clock += 1;
                        member.tick(fleet.plant);
                    }
                }
            }
            Step::Open(i) => self.members[i].open += 1,
            Step::Close(i) => {
                self.members[i].open -= 1;
                self.members[i].closing += 1;
            }
            Step::LetGo(i) => self.members[i].closing -= 1,
            Step::Report { member: i, ask, fate } => {
                let message = self.members[i].compose(ask, fleet.limit, fleet.plant);
                let timeout = if fate == Fate::Slow { 2 } else { 1 };
                self.members[i].call.iter_mut().for_each(|call| call.until = call.at + timeout);
                match fate {
                    Fate::Answered | Fate::Doubled => {
                        self.deliver(fleet, i, message);
                        self.members[i].hear(fleet.plant);
                    }
                    Fate::Unanswered => {
                        self.book(fleet, i, message);
                    }
                    Fate::Lost | Fate::Slow => {}
                }
                if matches!(fate, Fate::Slow | Fate::Doubled) {
                    self.slow += u8::from(fate == Fate::Slow);
                    self.doubles += u8::from(fate == Fate::Doubled);
                    self.network[i].push(message);
                }
            }
            Step::Deliver { member: i, message } => {
                self.network[i].retain(|other| *other != message);
                self.deliver(fleet, i, message);
            }
            Step::Hear(i) => self.members[i].hear(fleet.plant),
            Step::Crash(i) => {
                self.crashes += 1;
                self.members[i] = self.members[i].dead();
            }
            Step::Boot(i) => self.members[i] = self.members[i].reborn(),
            Step::Freeze(i) => {
                self.freezes += 1;
                self.members[i].body = Body::Frozen;
            }
            Step::Thaw(i) => {
                self.members[i].body = Body::Runs;
                self.members[i].tick(fleet.plant);
            }
            Step::LoseBooks => {
                self.books = None;
                self.run += 1;
            }
        }
    }

    /// Takes out what cannot matter any more, so that worlds that differ in nothing
    /// else are one: how many reports there were, and when exactly something was
    /// beyond the age up to which the ledger asks.
    pub(crate) fn forget(&mut self) {
        for i in 0..self.members.len() {
            self.renumber(i);
        }
        let Some(ledger) = self.ledger() else { return };
        let mut ledger = ledger.clone();
        let now = u64::from(self.now);
        ledger.last_ms = 0;
        ledger.heard_ms = ledger.heard_ms.max(now.saturating_sub(TTL.into()));
        let windows = std::mem::replace(&mut ledger.windows, 1);
        let since = |entry: &Entry| entry.waiting_since_ms;
        let longest = ledger.members.values().filter_map(since).min();
        for entry in ledger.members.values_mut() {
            entry.declared = u64::from(entry.declared == windows);
            if entry.joined_ms < now {
                entry.joined_ms = 0;
            }
            if let Some(since) = &mut entry.waiting_since_ms
                && self.members.len() == 2
            {
                let first = longest == Some(*since);
                *since = (*since).max(now.saturating_sub(if first { 3 } else { 2 }));
            }
        }
        self.books = Some(Books::new(ledger));
    }

    /// Numbers a member's reports anew, in the same order; 1 stays what it is.
    fn renumber(&mut self, i: usize) {
        let life = self.members[i].life;
        let mut seen: Vec<u8> = vec![self.members[i].seq];
        seen.extend(self.members[i].call.map(|call| call.seq));
        seen.extend(self.network[i].iter().filter(|m| m.life == life).map(|m| m.seq));
        let entry = self.ledger().and_then(|ledger| ledger.members.get(&id(i, life)));
        seen.extend(entry.map(|entry| entry.seq as u8));
        seen.sort_unstable();
        seen.dedup();
        let rank = |seq: u8| match seq {
            0 | 1 => seq,
            _ => 2 + seen.iter().filter(|other| **other > 1 && **other < seq).count() as u8,
        };
        let member = &mut self.members[i];
        member.seq = rank(member.seq);
        if let Some(call) = &mut member.call {
            call.seq = rank(call.seq);
        }
        for message in self.network[i].iter_mut().filter(|m| m.life == life) {
            message.seq = rank(message.seq);
        }
        if let Some(books) = &mut self.books
            && let Some(entry) = Arc::make_mut(&mut books.ledger).members.get_mut(&id(i, life))
        {
            entry.seq = u64::from(rank(entry.seq as u8));
        }
    }

    /// A report is booked, and its answer there to be heard.
    fn deliver(&mut self, fleet: &Fleet, i: usize, message: Message) {
        let answer = self.book(fleet, i, message);
        let member = &mut self.members[i];
        if let Some(call) = &mut member.call
            && (call.seq, member.life) == (message.seq, message.life)
        {
            call.answer = Some(answer);
        }
    }

    /// The keeper books a report.
    fn book(&mut self, fleet: &Fleet, i: usize, message: Message) -> Heard {
        let now_ms = u64::from(self.now);
        let run_id = format!("run-{}", self.run);
        let moment = Moment { now_ms, run_id: &run_id, by_time: true };
        let mut report = Report {
            backend: String::new(),
            member: id(i, message.life),
            seq: u64::from(message.seq),
            generation: None,
            held: u32::from(message.held),
            want: u32::from(message.want),
            waiters: u32::from(message.want > message.held),
            share: 0,
            elapsed_ms: message.elapsed.map(u64::from),
            pause_ms: 0,
            leave: false,
            nonce: 0,
            profile: fleet.profile(),
        };
        let mut ledger = match &self.books {
            Some(books) => books.ledger.as_ref().clone(),
            None => Ledger::unknown(0, u64::from(TTL), moment),
        };
        match (fleet.plant, ledger.members.get_mut(&report.member)) {
            (Plant::Relative, Some(entry)) => {
                report.held = entry.held.saturating_add_signed(message.change.into());
                report.want = report.want.max(report.held);
                report.seq = entry.seq + 1;
                entry.held = entry.held.max(report.held);
            }
            (Plant::Redeclare, None) if report.held > 0 => {
                let join = Report { seq: 1, held: 0, want: 0, ..report.clone() };
                ledger.step(&join, moment);
                if let Some(entry) = ledger.members.get_mut(&report.member) {
                    (entry.seq, entry.held) = (0, report.held);
                }
            }
            _ => {}
        }
        let stepped = ledger.step(&report, moment);
        ledger.last_ms = 0;
        self.books = Some(Books::new(ledger));
        match stepped.answer {
            Answer::Stale => Heard::Stale,
            Answer::Reaped => Heard::Reaped,
            Answer::Booked(booking) => {
                Heard::Booked { held: booking.held as u8, recall: booking.recall as u8 }
            }
        }
    }

    /// Whether all slots are in use again once nothing more goes wrong: whoever
    /// runs reports each tick and opens all it may, clocks in step.
    pub(crate) fn mended(&self, fleet: &Fleet) -> bool {
        let mut world = self.clone();
        world.network.iter_mut().for_each(Vec::clear);
        if world.members.iter().all(|member| member.body == Body::Dead) {
            return true;
        }
        for _ in 0..5 * TTL {
            for i in 0..world.members.len() {
                world.work(fleet, i);
            }
            world.take(fleet, Step::Tick(vec![0; world.members.len()]));
        }
        let all = u32::from(fleet.limit);
        u32::from(world.at_backend()) == all
            && world.ledger().is_some_and(|ledger| ledger.total() == all)
    }

    /// One member's fault-free turn.
    pub(crate) fn work(&mut self, fleet: &Fleet, i: usize) {
        match self.members[i].body {
            Body::Dead => return,
            Body::Frozen => self.take(fleet, Step::Thaw(i)),
            Body::Runs => {}
        }
        while self.members[i].closing > 0 {
            self.take(fleet, Step::LetGo(i));
        }
        match self.members[i].call {
            Some(call) if call.answer.is_some() => self.take(fleet, Step::Hear(i)),
            _ => self.members[i].lost(),
        }
        self.take(fleet, Step::Report { member: i, ask: true, fate: Fate::Answered });
        while self.members[i].may_open(fleet.plant) {
            self.take(fleet, Step::Open(i));
        }
    }
}

fn id(member: usize, life: u8) -> MemberId {
    MemberId::new(["a", "b", "c"][member], u64::from(life))
}
