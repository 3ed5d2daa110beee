//! Who is still alive, and how long a declaration window has been open, as seen
//! by one process on its own monotonic clock. A member lives while its `beat`
//! changes; nobody's wall clock is compared with anybody's.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::ledger::Ledger;
use crate::message::MemberId;

/// So many members look after all others; the rest look after these. In a fleet
/// of up to this size everyone looks after everyone.
const WATCHERS: usize = 8;
/// Most members reaped in one transaction.
const REAPED_MAX: usize = 20;

/// A member's beat; `None` if its lease item is missing.
type Beat = Option<u64>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    beat: Beat,
    /// When we knew of this beat: it is no younger.
    since: Instant,
}

/// What one process has seen of one backend.
#[derive(Debug, Default)]
pub(super) struct Watch {
    generation: String,
    seen: BTreeMap<MemberId, Seen>,
    looked: Option<Instant>,
    /// The number of the window that is open, and since when we know.
    window: Option<(u64, Instant)>,
    /// When we last heard anything at all.
    heard: Option<Instant>,
}

impl Watch {
    /// After a time without answers nobody is judged by it: the others may have
    /// been cut off as we were, and have their time again from now.
    pub(super) fn wake(&mut self, now: Instant, heartbeat: Duration) {
        if self.heard.is_some_and(|heard| now > heard + heartbeat * 3 / 2) {
            self.seen.clear();
            self.window = None;
            self.heard = None;
        }
    }

    /// The books were like this at `at`, or earlier.
    pub(super) fn books(&mut self, ledger: &Ledger, at: Instant) {
        if self.generation != ledger.generation {
            *self = Self { generation: ledger.generation.clone(), ..Self::default() };
        }
        self.heard = Some(at);
        self.seen.retain(|member, _| ledger.members.contains_key(member));
        self.window = ledger.window.map(|_| match self.window {
            Some((number, since)) if number == ledger.windows => (number, since),
            _ => (ledger.windows, at),
        });
    }

    /// The beat of a member was this at `at`, or earlier.
    pub(super) fn beat(&mut self, member: &MemberId, beat: Beat, at: Instant) {
        self.heard = Some(at);
        match self.seen.get(member) {
            Some(seen) if seen.beat == beat => {}
            _ => {
                self.seen.insert(member.clone(), Seen { beat, since: at });
            }
        }
    }

    /// Whom to look at now, if it is time. That is a little sooner than the next
    /// heartbeat, which is not to be missed for coming early.
    pub(super) fn look(
        &mut self,
        ledger: &Ledger,
        me: &MemberId,
        heartbeat: Duration,
        now: Instant,
    ) -> Vec<MemberId> {
        if self.looked.is_some_and(|looked| now < looked + heartbeat * 3 / 4) {
            return Vec::new();
        }
        self.looked = Some(now);
        let mut order: Vec<&MemberId> = ledger.members.keys().collect();
        order.sort_by_key(|member| scatter(member));
        let everyone = order.iter().take(WATCHERS).any(|watcher| *watcher == me);
        let count = if everyone { order.len() } else { WATCHERS };
        order.into_iter().take(count).filter(|member| *member != me).cloned().collect()
    }

    /// Members whose beat has not changed for as long as they allow, with that beat.
    pub(super) fn expired(
        &self,
        ledger: &Ledger,
        me: &MemberId,
        now: Instant,
    ) -> Vec<(MemberId, Beat)> {
        if ledger.window.is_some() || self.generation != ledger.generation {
            return Vec::new();
        }
        self.ends(ledger, me)
            .filter(|(_, _, end)| *end <= now)
            .take(REAPED_MAX)
            .map(|(member, beat, _)| (member.clone(), beat))
            .collect()
    }

    /// The others, their beats, and when they are dead unless they change.
    fn ends<'a>(
        &'a self,
        ledger: &'a Ledger,
        me: &'a MemberId,
    ) -> impl Iterator<Item = (&'a MemberId, Beat, Instant)> {
        self.seen.iter().filter(move |(member, _)| *member != me).filter_map(|(member, seen)| {
            let entry = ledger.members.get(member)?;
            let end = seen.since + Duration::from_millis(entry.profile.reclaim_ms);
            Some((member, seen.beat, end))
        })
    }

    /// When there will be something to do that no message announces: somebody to
    /// reap, or a window to close.
    pub(super) fn next_due(&self, ledger: &Ledger, me: &MemberId) -> Option<Instant> {
        if self.generation != ledger.generation {
            return None;
        }
        match self.window {
            Some((_, since)) => Some(since + window_length(ledger, 0)),
            None => self.ends(ledger, me).map(|(_, _, end)| end).min(),
        }
    }

    /// How much longer the window in these books stays open; zero if it is time
    /// to close it, `None` if there is none.
    pub(super) fn window_left(
        &self,
        ledger: &Ledger,
        ttl: Duration,
        now: Instant,
    ) -> Option<Duration> {
        ledger.window?;
        let since = match self.window {
            Some((number, since))
                if number == ledger.windows && self.generation == ledger.generation =>
            {
                since
            }
            _ => now,
        };
        Some((since + ttl).saturating_duration_since(now))
    }
}

/// How long a window is open: as long as the slowest member may take to be heard.
pub(super) fn window_length(ledger: &Ledger, ttl_ms: u64) -> Duration {
    let ttls = ledger.members.values().map(|entry| entry.profile.ttl_ms);
    Duration::from_millis(ttls.max().unwrap_or(0).max(ttl_ms))
}

/// An order that has nothing to do with names, so that a rack or a deployment
/// that fails does not take all watchers with it.
fn scatter(member: &MemberId) -> u64 {
    // FNV-1a, with a last mixing step since short inputs leave its upper bits alike
    let hash = member.as_str().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Moment;
    use crate::message::{Limits, Profile, Report};

    const HEARTBEAT: Duration = Duration::from_secs(10);

    fn fleet(count: u64) -> (Ledger, Vec<MemberId>) {
        let moment = Moment { now_ms: 0, run_id: "", by_time: false };
        let mut ledger = Ledger::ready(7, moment);
        let members: Vec<MemberId> = (0..count).map(|k| MemberId::new("web", k)).collect();
        for member in &members {
            let report = Report {
                backend: "db".to_owned(),
                member: member.clone(),
                seq: 1,
                generation: None,
                held: 0,
                want: 0,
                waiters: 0,
                share: 0,
                elapsed_ms: None,
                pause_ms: 0,
                leave: false,
                nonce: 0,
                profile: Profile {
                    service: "web".to_owned(),
                    peer: String::new(),
                    weight: 1,
                    limits: Limits { open: 10, rate: 0, burst: 0, version: 0 },
                    ttl_ms: 30_000,
                    heartbeat_ms: 10_000,
                    margin_ms: 5_000,
                    reclaim_ms: 30_000,
                    divisor: 1,
                },
            };
            ledger.step(&report, moment);
        }
        (ledger, members)
    }

    fn start() -> Instant {
        forebay::Clock::tokio().now()
    }

    #[test]
    fn a_member_is_dead_once_its_beat_has_not_changed_for_long() {
        let (ledger, m) = fleet(3);
        let (mut watch, t) = (Watch::default(), start());
        let s = Duration::from_secs;
        watch.books(&ledger, t);
        watch.beat(&m[1], Some(5), t);
        watch.beat(&m[2], Some(9), t);
        watch.beat(&m[1], Some(6), t + s(10));
        watch.beat(&m[2], Some(9), t + s(20));
        assert_eq!(watch.next_due(&ledger, &m[0]), Some(t + s(30)));
        assert_eq!(watch.expired(&ledger, &m[0], t + s(29)), []);
        assert_eq!(watch.expired(&ledger, &m[0], t + s(30)), [(m[2].clone(), Some(9))]);
        assert_eq!(watch.expired(&ledger, &m[2], t + s(30)), [], "not itself");
        assert_eq!(watch.expired(&ledger, &m[0], t + s(40)).len(), 2);
    }

    #[test]
    fn time_without_answers_does_not_count_against_the_others() {
        let (ledger, m) = fleet(2);
        let (mut watch, t) = (Watch::default(), start());
        watch.books(&ledger, t);
        watch.beat(&m[1], Some(5), t);
        let back = t + Duration::from_secs(60);
        watch.wake(back, HEARTBEAT);
        assert_eq!(watch.expired(&ledger, &m[0], back), []);
        watch.books(&ledger, back);
        watch.beat(&m[1], Some(5), back);
        let later = back + Duration::from_secs(29);
        assert_eq!(watch.expired(&ledger, &m[0], later), []);
        assert_eq!(watch.expired(&ledger, &m[0], later + Duration::from_secs(1)).len(), 1);
    }

    #[test]
    fn a_window_is_over_once_it_was_seen_open_for_long_and_nobody_is_reaped_in_it() {
        let (mut ledger, m) = fleet(2);
        let (mut watch, t) = (Watch::default(), start());
        let (ttl, s) = (Duration::from_secs(30), Duration::from_secs);
        ledger.window =
            Some(crate::ledger::Window { until_ms: u64::MAX, lossy: true, trusting: true });
        ledger.windows = 1;
        watch.books(&ledger, t);
        watch.beat(&m[1], Some(5), t);
        watch.books(&ledger, t + s(12));
        assert_eq!(watch.window_left(&ledger, ttl, t + s(12)), Some(s(18)));
        assert_eq!(watch.expired(&ledger, &m[0], t + s(100)), []);
        assert_eq!(watch.next_due(&ledger, &m[0]), Some(t + s(30)));
        // another window is another time
        ledger.windows = 2;
        watch.books(&ledger, t + s(20));
        assert_eq!(watch.window_left(&ledger, ttl, t + s(30)), Some(s(20)));
        assert_eq!(watch.window_left(&ledger, ttl, t + s(50)), Some(s(0)));
    }

    #[test]
    fn in_a_large_fleet_a_few_look_after_all_and_all_after_these_few() {
        let (ledger, members) = fleet(60);
        let t = start();
        let looks = |me: &MemberId| Watch::default().look(&ledger, me, HEARTBEAT, t);
        let watchers: Vec<&MemberId> = members.iter().filter(|m| looks(m).len() == 59).collect();
        assert_eq!(watchers.len(), WATCHERS);
        for member in members.iter().filter(|member| !watchers.contains(member)) {
            let looked_at = looks(member);
            assert_eq!(looked_at.len(), WATCHERS);
            assert!(watchers.iter().all(|watcher| looked_at.contains(watcher)));
        }
    }
}
