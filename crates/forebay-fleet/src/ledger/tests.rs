//! Cases that random fleets have found, one by one, with the clock in hand.

use super::*;

const TTL: u64 = 30_000;
const HEARTBEAT: u64 = 10_000;

struct Fleet {
    ledger: Ledger,
    now: u64,
    run_id: &'static str,
    /// What each member last said and was told.
    pages: BTreeMap<&'static str, (u64, u32, Option<u64>)>,
    weights: BTreeMap<&'static str, u32>,
    limit: u32,
}

impl Fleet {
    fn new(limit: u32) -> Self {
        let (now, run_id) = (1_000_000, "one");
        let ledger = Ledger::ready(7, Moment { now_ms: now, run_id, by_time: true });
        let (pages, weights) = (BTreeMap::new(), BTreeMap::new());
        Self { ledger, now, run_id, pages, weights, limit }
    }

    fn profile(&self, who: &str) -> Profile {
        Profile {
            service: "web".to_owned(),
            peer: String::new(),
            weight: self.weights.get(who).copied().unwrap_or(1),
            limits: Limits { open: self.limit, rate: 0, burst: 0, version: 0 },
            ttl_ms: TTL,
            heartbeat_ms: HEARTBEAT,
            margin_ms: 5_000,
            reclaim_ms: TTL,
            divisor: 1,
        }
    }

    /// The report that a member would send now, holding what it was last told.
    fn report(&self, who: &'static str, held: Option<u32>, want: u32) -> Report {
        let (seq, known, sent) = self.pages.get(who).copied().unwrap_or_default();
        let held = if seq == 0 { 0 } else { held.unwrap_or(known) };
        Report {
            backend: "db".to_owned(),
            member: MemberId::new(who, 1),
            seq: seq + 1,
            generation: None,
            held,
            want: want.max(held),
            waiters: 1,
            share: 0,
            elapsed_ms: sent.map(|at| self.now.saturating_sub(at)),
            pause_ms: 0,
            leave: false,
            nonce: 1,
            profile: self.profile(who),
        }
    }

    fn send(&mut self, who: &'static str, report: &Report) -> Answer {
        let moment = Moment { now_ms: self.now, run_id: self.run_id, by_time: true };
        let answer = self.ledger.step(report, moment).answer;
        let page = self.pages.entry(who).or_default();
        page.0 = page.0.max(report.seq);
        if let Answer::Booked(booking) = &answer {
            (page.1, page.2) = (booking.held, Some(self.now));
        }
        answer
    }

    /// A member says that it keeps what it has and wants so many in all.
    fn says(&mut self, who: &'static str, want: u32) -> Answer {
        let report = self.report(who, None, want);
        self.send(who, &report)
    }

    fn keeps(&mut self, who: &'static str, held: u32, want: u32) -> Answer {
        let report = self.report(who, Some(held), want);
        self.send(who, &report)
    }

    fn entry(&self, who: &str) -> Option<&Entry> {
        self.ledger.members.get(&MemberId::new(who, 1))
    }

    fn held(&self, who: &str) -> u32 {
        self.entry(who).map_or(0, Entry::booked)
    }

    /// Lets members report for a while, each in turn.
    fn live(&mut self, ms: u64, wants: &[(&'static str, u32)]) {
        for _ in 0..ms / 1000 {
            self.now += 1000;
            for (who, want) in wants {
                // what is asked back comes back at once
                let keep = self.entry(who).map(|entry| entry.held - entry.recall.min(entry.held));
                let keep = keep.map(|keep| keep.min(self.pages[who].1));
                let report = self.report(who, keep, *want);
                self.send(who, &report);
            }
        }
    }
}

#[test]
fn a_clock_set_back_makes_nobody_immortal_and_no_pause_endless() {
    let mut fleet = Fleet::new(10);
    fleet.live(20_000, &[("a", 10), ("b", 10)]);
    let mut refused = fleet.report("a", None, 10);
    refused.pause_ms = 2_000;
    fleet.send("a", &refused);
    fleet.now -= 500_000;
    fleet.live(3 * TTL, &[("a", 10)]);
    assert!(fleet.entry("b").is_none(), "dead since long before");
    assert_eq!(fleet.held("a"), 10);
}

#[test]
fn the_clock_of_another_server_makes_nobody_immortal_either() {
    let mut fleet = Fleet::new(10);
    fleet.live(20_000, &[("a", 10), ("b", 10)]);
    fleet.run_id = "two";
    fleet.now -= 500_000;
    fleet.live(3 * TTL, &[("a", 10)]);
    assert_eq!((fleet.entry("b"), fleet.held("a")), (None, 10));
}

#[test]
fn a_copy_that_comes_late_neither_opens_a_window_nor_reaps() {
    let mut fleet = Fleet::new(10);
    fleet.live(20_000, &[("a", 5), ("b", 5)]);
    let late = fleet.report("a", None, 5);
    fleet.says("a", 5);
    fleet.now += 8_000;
    assert_eq!(fleet.send("a", &late), Answer::Stale);
    assert_eq!(fleet.ledger.windows, 0);
    // the clock leaps, and the first to come is another late copy
    fleet.now += 600_000;
    assert_eq!(fleet.send("a", &late), Answer::Stale);
    assert_eq!(fleet.ledger.members.len(), 2, "nobody was silent for ten minutes");
    fleet.says("b", 5);
    assert!(fleet.ledger.window.is_some(), "and whoever is heard next notices");
}

#[test]
fn whoever_was_never_answered_cannot_tell_a_leap_of_the_clock() {
    let mut fleet = Fleet::new(10);
    fleet.live(20_000, &[("a", 5), ("c", 1)]);
    fleet.says("b", 1);
    fleet.now += 15_500;
    fleet.says("c", 1);
    // a leap that makes of a late heartbeat a dead member
    fleet.now += 14_900;
    fleet.pages.insert("b", (1, 0, None));
    fleet.says("b", 1);
    assert!(fleet.entry("a").is_some());
}

#[test]
fn a_lease_asked_back_that_went_to_another_is_not_waited_for_for_ever() {
    let mut fleet = Fleet::new(12);
    fleet.live(20_000, &[("a", 12)]);
    fleet.now += 1000;
    fleet.says("b", 12);
    fleet.says("b", 12);
    assert_eq!(fleet.entry("b").map(|entry| entry.expected), Some(6));
    // another asks just before they come back, and has half of them
    fleet.says("c", 12);
    fleet.keeps("a", 6, 12);
    fleet.live(20_000, &[("a", 12), ("b", 12), ("c", 12)]);
    assert_eq!(["a", "b", "c"].map(|who| fleet.held(who)), [4, 4, 4]);
}

#[test]
fn what_nobody_was_asked_for_is_not_expected() {
    let mut fleet = Fleet::new(36);
    let all = ["a", "b", "c", "d"].map(|who| (who, 40));
    fleet.live(30_000, &all);
    // as it was left by leases that went other ways
    for (who, held, expected) in [("a", 10, 0), ("b", 8, 1), ("c", 9, 0), ("d", 9, 0)] {
        let entry = fleet.ledger.members.get_mut(&MemberId::new(who, 1)).expect("known");
        (entry.held, entry.expected) = (held, expected);
        fleet.pages.entry(who).and_modify(|page| page.1 = held);
    }
    fleet.live(10_000, &all);
    assert_eq!(["a", "b", "c", "d"].map(|who| fleet.held(who)), [9, 9, 9, 9]);
}

#[test]
fn of_equally_rich_members_the_one_that_misses_least_gives() {
    let mut fleet = Fleet::new(21);
    let weights = [("a", 3), ("b", 3), ("c", 4), ("d", 1), ("e", 1)];
    fleet.weights = BTreeMap::from(weights);
    let all = weights.map(|(who, _)| (who, 30));
    fleet.live(10_000, &[all[0], all[1], all[3], all[4]]);
    fleet.live(60_000, &all);
    let shares = weights.map(|(who, _)| fleet.held(who));
    for (rich, (_, heavy)) in shares.iter().zip(weights) {
        for (poor, (_, light)) in shares.iter().zip(weights) {
            assert!(rich.saturating_sub(1) * light < (poor + 1) * heavy, "{shares:?}");
        }
    }
}

#[test]
fn members_that_were_all_cut_off_together_are_not_taken_for_dead() {
    for outage in [16_000, 22_000, 28_000, 31_000, 90_000] {
        let mut fleet = Fleet::new(10);
        fleet.live(20_000, &[("a", 5)]);
        fleet.now += 9_000;
        fleet.says("b", 5);
        fleet.live(10_000, &[("a", 5)]);
        fleet.now += 9_000;
        fleet.says("b", 5);
        let before = (fleet.held("a"), fleet.held("b"));
        fleet.now += outage;
        assert!(matches!(fleet.says("b", 5), Answer::Booked(_)), "after {outage}");
        assert!(matches!(fleet.says("a", 5), Answer::Booked(_)), "after {outage}");
        assert_eq!((fleet.held("a"), fleet.held("b")), before, "after {outage}");
    }
}

#[test]
fn a_single_survivor_still_reaps_the_dead() {
    let mut fleet = Fleet::new(10);
    fleet.live(20_000, &[("a", 10), ("b", 10)]);
    for _ in 0..4 {
        fleet.now += HEARTBEAT;
        fleet.says("a", 10);
    }
    assert_eq!((fleet.entry("b"), fleet.held("a")), (None, 10));
}

#[test]
fn a_window_lasts_until_somebody_who_knows_the_time_closes_it() {
    let mut fleet = Fleet::new(10);
    fleet.live(20_000, &[("a", 5), ("b", 5)]);
    // all data is lost, and only `a` has said what it holds when the clock leaps
    fleet.run_id = "two";
    fleet.ledger.members.clear();
    fleet.says("a", 5);
    fleet.now += 600_000;
    assert!(matches!(fleet.says("b", 5), Answer::Booked(_)), "its word still counts");
    assert_eq!((fleet.held("a"), fleet.held("b")), (5, 5));
}

#[test]
fn nobody_gives_way_to_leases_of_the_lost_past() {
    let mut fleet = Fleet::new(10);
    fleet.live(20_000, &[("a", 5), ("b", 5)]);
    let stale = fleet.ledger.clone();
    let mut gone = fleet.report("b", Some(0), 0);
    gone.leave = true;
    fleet.send("b", &gone);
    fleet.pages.remove("b");
    fleet.live(20_000, &[("a", 10)]);
    assert_eq!(fleet.held("a"), 10);
    // a replica that has not heard of it takes over
    (fleet.ledger, fleet.run_id) = (stale, "two");
    for _ in 0..8 {
        fleet.now += 5_000;
        let Answer::Booked(booking) = fleet.says("a", 10) else { panic!("known") };
        assert_eq!((booking.held, booking.recall), (10, 0));
    }
    assert_eq!(fleet.ledger.total(), 10);
}

#[test]
fn a_late_copy_in_a_window_does_not_count_against_the_member() {
    let mut fleet = Fleet::new(10);
    fleet.live(20_000, &[("a", 1)]);
    let old = fleet.report("a", None, 1);
    fleet.live(20_000, &[("a", 5)]);
    fleet.run_id = "two";
    fleet.ledger.members.clear();
    fleet.send("a", &old);
    assert_eq!(fleet.held("a"), 1);
    fleet.pages.insert("a", (old.seq + 30, 5, Some(fleet.now)));
    assert!(matches!(fleet.says("a", 5), Answer::Booked(_)));
    assert_eq!(fleet.held("a"), 5);
}

#[test]
fn reports_are_booked_once_in_order_and_never_for_more_than_was_booked() {
    let mut fleet = Fleet::new(10);
    fleet.live(20_000, &[("a", 8)]);
    let give = fleet.report("a", Some(3), 3);
    fleet.send("a", &give);
    assert_eq!((fleet.send("a", &give), fleet.held("a")), (Answer::Stale, 3));
    assert_eq!(fleet.keeps("a", 4, 4), Answer::Reaped);
    assert_eq!(fleet.ledger.total(), 0);
    assert_eq!(fleet.keeps("a", 3, 3), Answer::Reaped, "once reaped, always reaped");
}
