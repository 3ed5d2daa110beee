//! A connection on its way from need to reservoir, and out of the books again
//! once the backend has let go of it.

use std::time::Duration;

use crate::budget::{Lease, Standing};
use crate::clock::Instant;
use crate::connector::{Connector, Opened};
use crate::list::Link;
use crate::live::{Entry, Live, Place, Ripeness, Verdict};
use crate::observer::Event;
use crate::reason::{Discard, OpenFailure};
use crate::source::Step;
use crate::state::State;

impl<C: Connector> State<C> {
    /// Starts an open in a slot whose lease is held.
    pub(crate) fn start_open(&mut self, index: usize, key: u32, lease: Lease, now: Instant) {
        let source = &mut self.sources[index];
        source.opening += 1;
        source.steps[Step::Credentials as usize] += 1;
        self.keys.get_mut(key).conns += 1;
        let id = self.conns.insert(Entry {
            place: Place::Opening(Step::Credentials),
            ripeness: Ripeness::Fresh,
            suspect: false,
            source: index as u32,
            key,
            link: Link::default(),
            live: None,
            since: now,
            retire_at: now,
            expires_at: now,
            born: now,
            checked_at: now,
            agenda_at: None,
            generation: source.generation,
            killer: None,
            lost: None,
            lease: Some(lease),
            reopen: None,
            disowned: false,
        });
        self.outbox.opens.push(id as u32);
        self.wake_driver = true;
    }

    /// An open has come to its next step. `false`: it is no longer wanted.
    pub(crate) fn step(&mut self, id: u32, step: Step, now: Instant) -> bool {
        let entry = &mut self.conns[id as usize];
        let Place::Opening(before) = entry.place else { return false };
        let disowned = entry.disowned;
        let source = &mut self.sources[entry.source as usize];
        source.steps[before as usize] -= 1;
        source.steps[step as usize] += 1;
        entry.place = Place::Opening(step);
        entry.generation = source.generation;
        entry.born = now;
        let index = entry.source as usize;
        if self.closed || disowned || self.sources[index].standing(now) != Standing::Good {
            return false;
        }
        let source = &self.sources[index];
        let figures = source.figures(self.demand(now)[index]);
        let coming = match step {
            Step::Credentials | Step::Rate => figures.opening,
            // those behind it, which still wait for a permit, are the ones to give up:
            // its own permit would be lost
            Step::Connect => source.steps[Step::Connect as usize],
        };
        figures.fresh + coming <= figures.target + figures.waiters
    }

    /// A connection has been opened; its life is drawn here, once.
    pub(crate) fn opened(&mut self, id: u32, opened: Opened<C::Conn>, now: Instant) {
        let entry = &mut self.conns[id as usize];
        let source = &mut self.sources[entry.source as usize];
        let settings = &source.settings;
        let life = settings.base_lifetime - settings.lifetime_jitter / 2
            + settings.lifetime_jitter.mul_f64(self.rng.f64());
        let took = now.saturating_duration_since(entry.born);
        entry.place = Place::InUse;
        entry.expires_at = entry.born + life;
        entry.retire_at = entry.expires_at - settings.guard_window;
        let ripe_at = entry.retire_at - settings.lead;
        entry.agenda_at = Some(ripe_at);
        entry.checked_at = now;
        entry.since = now;
        entry.killer = opened.killer;
        entry.lost = opened.lost;
        self.agenda.insert((ripe_at, id));
        source.opening -= 1;
        source.steps[Step::Connect as usize] -= 1;
        source.in_use += 1;
        source.tallies.opened += 1;
        source.last_failure = None;
        let healed = source.backoff.succeeded(&source.settings.backoff);
        let name = source.name.clone();
        let live = Box::new(Live {
            conn: opened.conn,
            id,
            source: entry.source,
            key: entry.key,
            uses: 0,
            generation: entry.generation,
            hand_out_before: entry.retire_at - self.margin,
            expires_at: entry.expires_at,
            timed: false,
            taken_at: None,
            handed_at: now,
            desk: None,
        });
        self.tallies.create.record(took);
        // more may be needed now that a place among the opens is free
        self.wake_driver = true;
        if healed {
            self.announce(Event::Breaker { source: name.clone(), open: false });
        }
        self.announce(Event::Opened { source: name, took });
        // judged like one that comes back: much may have happened meanwhile
        let disowned = self.conns[id as usize].disowned;
        let verdict =
            if disowned { Verdict::Discard(Discard::LeaseRecalled) } else { Verdict::Clean };
        self.put(live, verdict, now);
    }

    /// An open has ended without a connection. While something may be left at
    /// the backend the entry stays, closing, until `released`.
    pub(crate) fn open_ended(&mut self, id: u32, maybe_left: bool, now: Instant) {
        let entry = &mut self.conns[id as usize];
        let Place::Opening(step) = entry.place else { return };
        let source = &mut self.sources[entry.source as usize];
        source.opening -= 1;
        source.steps[step as usize] -= 1;
        source.closing += 1;
        entry.place = Place::Closing;
        if !maybe_left {
            self.released(id, true, now);
        }
        self.wake_driver = true;
    }

    /// A step of opening failed: count it and back off.
    pub(crate) fn open_failed(
        &mut self,
        index: usize,
        reason: OpenFailure,
        retry_after: Option<Duration>,
        error: String,
        now: Instant,
    ) {
        let source = &mut self.sources[index];
        let was_open = source.backoff.is_open(&source.settings.backoff);
        source.tallies.failures[reason as usize] += 1;
        source.backoff.failed(now, &source.settings.backoff, retry_after, &mut self.rng);
        source.last_failure = Some(error.clone());
        let open = source.backoff.is_open(&source.settings.backoff);
        let name = source.name.clone();
        self.announce(Event::OpenFailed { source: name.clone(), reason, error });
        if open && !was_open {
            self.announce(Event::Breaker { source: name, open: true });
        }
    }

    /// The backend has let go of a closed connection, or the grace is over.
    pub(crate) fn released(&mut self, id: u32, confirmed: bool, now: Instant) {
        let mut entry = self.conns.remove(id as usize);
        debug_assert_eq!(entry.place, Place::Closing);
        self.keys.get_mut(entry.key).conns -= 1;
        let index = entry.source as usize;
        let source = &mut self.sources[index];
        source.closing -= 1;
        source.tallies.unconfirmed += u64::from(!confirmed);
        let name = source.name.clone();
        if let Some(key) = entry.reopen {
            source.reopening -= 1;
            self.keys.get_mut(key).conns -= 1;
            let good =
                source.standing(now) == Standing::Good && source.excess() == 0 && !entry.disowned;
            if let Some(lease) = entry.lease.take().filter(|_| good && !self.closed) {
                self.start_open(index, self.key_to_reopen(index, key), lease, now);
            }
        }
        drop(entry);
        self.wake_driver = true;
        self.announce(Event::Released { source: name, confirmed });
    }
}
