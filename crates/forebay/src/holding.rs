//! What others may do to a pool from threads of their own, while its runtime may
//! be blocked: a count budget kills connections at once and disowns those whose
//! leases count no more; a connector says that an idle connection has died.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::budget::Holding;
use crate::clock::Instant;
use crate::connector::{Connector, Killer};
use crate::hub::Hub;
use crate::live::{Place, Ripeness};
use crate::lost::Lost;
use crate::reason::Discard;
use crate::state::State;

impl<C: Connector> Holding for Hub<C> {
    fn wake(&self) {
        self.signal.notify_one();
    }

    fn keep(&self, source: usize, most: u32) -> u32 {
        // what was handed over and not yet claimed is looked at again
        self.wary.store(true, Ordering::Relaxed);
        let mut killers = Vec::new();
        let kept = self.with(|state, now| state.keep(source, most, &mut killers, now));
        kill(&killers);
        self.disowning.notify_waiters();
        kept
    }

    fn revoke(&self, source: usize) {
        self.wary.store(true, Ordering::Relaxed);
        let mut killers = Vec::new();
        self.with(|state, now| {
            state.keep(source, 0, &mut killers, now);
            state.disown(source, now);
        });
        kill(&killers);
        self.disowning.notify_waiters();
    }

    fn lost(&self, id: u32, lost: &Lost) {
        self.with(|state, now| state.lost(id, lost, now));
    }
}

/// Lets a connection that dies while it is ready be discarded at once.
pub(crate) fn listen<C: Connector>(hub: &Arc<Hub<C>>, id: u32, lost: &Lost) {
    let pool: Arc<dyn Holding> = hub.clone();
    if !lost.belongs_to(Arc::downgrade(&pool), id) {
        hub.with(|state, now| state.lost(id, lost, now));
    }
}

fn kill(killers: &[Killer]) {
    for killer in killers {
        killer.kill();
    }
}

impl<C: Connector> State<C> {
    /// Leaves at most `most` connections of a source alive, as far as they can be killed.
    fn keep(&mut self, index: usize, most: u32, killers: &mut Vec<Killer>, now: Instant) -> u32 {
        let alive = |state: &Self| {
            let source = &state.sources[index];
            let dead = state.conns.iter().filter(|(_, entry)| {
                entry.source as usize == index
                    && match entry.place {
                        Place::InUse | Place::Detached => entry.ripeness == Ripeness::Dead,
                        Place::Opening(_) => entry.disowned,
                        Place::Ready | Place::Closing => false,
                    }
            });
            (source.opening + source.ready + source.in_use + source.detached)
                .saturating_sub(dead.count() as u32)
        };
        while alive(self) > most
            && let Some(id) = self.longest_idle(index, None)
        {
            self.discard_ready(id, Discard::LeaseRecalled, now);
        }
        // whoever is to close these may be blocked
        let closing = self
            .conns
            .iter()
            .filter(|(_, entry)| entry.source as usize == index && entry.place == Place::Closing);
        killers.extend(closing.filter_map(|(_, entry)| entry.killer.clone()));
        let mut over = alive(self).saturating_sub(most);
        for (_, entry) in &mut self.conns {
            let opening = matches!(entry.place, Place::Opening(_)) && !entry.disowned;
            if over > 0 && entry.source as usize == index && opening {
                entry.disowned = true;
                over -= 1;
            }
        }
        for (_, entry) in &mut self.conns {
            let held = matches!(entry.place, Place::InUse | Place::Detached);
            if over == 0 || entry.source as usize != index || !held {
                continue;
            }
            if let Some(killer) = entry.killer.clone().filter(|_| entry.ripeness != Ripeness::Dead)
            {
                entry.ripeness = Ripeness::Dead;
                if entry.place == Place::InUse {
                    self.suspects += u32::from(!std::mem::replace(&mut entry.suspect, true));
                }
                self.sources[index].tallies.kills += 1;
                killers.push(killer);
                over -= 1;
            }
        }
        alive(self)
    }

    /// Nothing opened or being opened by now is handed out any more, nor its lease used again.
    fn disown(&mut self, index: usize, now: Instant) {
        self.sources[index].generation += 1;
        let mine = self.conns.iter_mut().filter(|(_, entry)| entry.source as usize == index);
        mine.for_each(|(_, entry)| entry.disowned = true);
        self.discard_stock(index, Discard::LeaseRecalled, now);
        self.wake_driver = true;
    }
}

/// The handle that a source's count budget gets.
pub(crate) fn holder<C: Connector>(hub: &Arc<Hub<C>>, source: usize) -> crate::budget::Holder {
    let pool: Arc<dyn Holding> = hub.clone();
    crate::budget::Holder::new(Arc::downgrade(&pool), source)
}
