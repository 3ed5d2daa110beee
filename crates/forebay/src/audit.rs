//! The whole catalogue of invariants, recounted from scratch: every list, every
//! total, every connection. For tests and simulations, which call it after each step.

use crate::clock::Instant;
use crate::connector::Connector;
use crate::desk::Hand;
use crate::invariant::{Invariant, check};
use crate::live::{Place, Ripeness};
use crate::state::State;

impl<C: Connector> State<C> {
    /// The promises that do not hold at `now`.
    pub(crate) fn audit(&self, now: Instant) -> Vec<Invariant> {
        let mut breaches = Vec::new();
        for index in 0..self.sources.len() {
            self.audit_source(index, &mut breaches);
        }
        self.audit_queue(now, &mut breaches);
        for (id, entry) in &self.conns {
            let listed = entry.agenda_at.is_none_or(|at| self.agenda.contains(&(at, id as u32)));
            check!(breaches, Conservation, listed);
        }
        let scheduled = self.conns.iter().filter(|(_, entry)| entry.agenda_at.is_some()).count();
        check!(breaches, Conservation, scheduled == self.agenda.len());
        breaches
    }

    fn audit_source(&self, index: usize, breaches: &mut Vec<Invariant>) {
        let source = &self.sources[index];
        let count = |wanted: fn(&Place) -> bool| {
            let mine = self.conns.iter().filter(|(_, entry)| entry.source as usize == index);
            mine.filter(|(_, entry)| wanted(&entry.place)).count() as u32
        };
        check!(breaches, Conservation, source.opening == count(|p| matches!(p, Place::Opening(_))));
        check!(breaches, Conservation, source.ready == count(|p| *p == Place::Ready));
        check!(breaches, Conservation, source.in_use == count(|p| *p == Place::InUse));
        check!(breaches, Conservation, source.closing == count(|p| *p == Place::Closing));
        check!(breaches, Conservation, source.detached == count(|p| *p == Place::Detached));
        check!(breaches, Conservation, source.steps.iter().sum::<u32>() == source.opening);
        let stocked: Vec<u32> =
            source.stocks.iter().flat_map(|stock| stock.iter(&self.conns)).collect();
        let fresh = stocked.iter().filter(|id| {
            let entry = &self.conns[**id as usize];
            entry.live.is_some() && entry.ripeness == Ripeness::Fresh
        });
        check!(breaches, Conservation, stocked.len() as u32 == source.ready);
        check!(breaches, Conservation, fresh.count() as u32 == source.fresh);
        let reopening = self.conns.iter().filter(|(_, entry)| {
            entry.source as usize == index
                && entry.place == Place::Closing
                && entry.reopen.is_some()
        });
        check!(breaches, Conservation, reopening.count() as u32 == source.reopening);
        check!(breaches, Cap, source.open() <= source.settings.max_open);
        let mut mine = self.conns.iter().filter(|(_, entry)| entry.source as usize == index);
        check!(breaches, Leases, mine.all(|(_, entry)| entry.lease.is_some()));
    }

    /// Nothing usable lies in stock while somebody who may have it waits.
    fn audit_queue(&self, now: Instant, breaches: &mut Vec<Invariant>) {
        for (index, source) in self.sources.iter().enumerate() {
            if !source.is_usable(now) || source.throttle.is_some() {
                continue; // a ramp's next step is the driver's to take
            }
            for (key, stock) in source.stocks.iter().enumerate() {
                let usable = stock.iter(&self.conns).any(|id| {
                    let entry = &self.conns[id as usize];
                    entry.retire_at > now
                });
                let wanted = self.queue.first_for(key as u32, index).is_some();
                check!(breaches, NoIdleWhileWaiting, !(usable && wanted));
            }
        }
        for desk in 0..self.queue.desks() {
            if let Hand::Handed(live) = &self.desks.get(desk).lock().hand {
                let entry = &self.conns[live.id as usize];
                check!(breaches, Conservation, entry.place == Place::InUse);
            }
        }
    }
}
