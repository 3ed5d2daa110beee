//! A member's side with the clock in hand: what each answer, and each silence,
//! makes of it.

use super::*;
use crate::settings::BackendLimits;

struct Desk {
    account: Account,
    now: Instant,
}

impl Desk {
    fn new(change: impl FnOnce(&mut MemberSettings)) -> Self {
        let mut settings = MemberSettings::new("web-1", "web");
        change(&mut settings);
        let profile = settings.profile(BackendLimits::new(20, 10, 10).for_fleet());
        let now = forebay::Clock::tokio().now();
        let rng = fastrand::Rng::with_seed(1);
        Self { account: Account::new("db", profile, &settings, rng, true, now), now }
    }

    fn pass(&mut self, seconds: f64) -> Todo {
        self.now += Duration::from_secs_f64(seconds);
        self.account.tick(self.now)
    }

    fn report(&mut self) -> Report {
        self.account.compose(self.now)
    }

    fn answer(&mut self, seq: u64, held: u32, share: u32) -> Todo {
        let booking = Booking { held, share, limit: 20, members: 2, ..Booking::default() };
        self.account.answered(seq, Answer::Booked(booking), self.now)
    }

    /// A member that has joined and holds so many, all taken by a pool.
    fn joined(mut self, leases: u32, share: u32) -> Self {
        let join = self.report();
        self.answer(join.seq, 0, share);
        self.take(leases);
        let ask = self.report();
        assert_eq!((ask.held, ask.want), (0, leases));
        self.answer(ask.seq, leases, share);
        assert_eq!(self.take(leases), leases);
        self
    }

    fn take(&mut self, want: u32) -> u32 {
        self.account.take(self.now, Ask::new(want)).0
    }
}

#[test]
fn nothing_is_taken_before_the_keeper_has_answered_and_then_what_it_booked() {
    let mut desk = Desk::new(|_| {});
    assert_eq!(desk.take(3), 0);
    let mut desk = desk.joined(5, 4);
    assert_eq!((desk.take(1), desk.account.standing(desk.now)), (0, Standing::Good));
}

#[test]
fn from_a_report_on_no_more_is_used_than_it_says() {
    let mut desk = Desk::new(|_| {}).joined(5, 4);
    desk.account.give_back(2, 1);
    let report = desk.report();
    let spare = report.held - desk.account.taken();
    assert_eq!(desk.take(5), spare, "while it is under way");
    desk.account.lost(report.seq, desk.now);
    assert_eq!(desk.take(5), 0, "and after it was lost: it may have been booked");
}

#[test]
fn a_call_under_way_is_not_looked_at_over_and_over() {
    let mut desk = Desk::new(|_| {}).joined(5, 4);
    desk.pass(10.0);
    desk.report();
    // stopped for a while: the call is overdue, and ends by itself when it is polled
    desk.pass(5.0);
    assert!(desk.account.next_wake(desk.now) > desk.now);
}

#[test]
fn the_fence_falls_in_two_steps_counted_from_the_sending() {
    let mut desk = Desk::new(|settings| settings.on_loss = OnLoss::Fence).joined(5, 4);
    let renewed = desk.now;
    desk.pass(10.0);
    let lost = desk.report();
    desk.account.lost(lost.seq, desk.now);
    assert_eq!(desk.pass(14.9).keep, None);
    assert_eq!(desk.account.standing(desk.now), Standing::Good);
    assert_eq!(desk.pass(0.1).keep, None);
    assert_eq!(desk.account.standing(renewed + Duration::from_secs(25)), Standing::Fenced);
    assert_eq!(desk.pass(2.5).keep, Some(0));
    assert_eq!(desk.account.standing(desk.now), Standing::Expired);
    assert_eq!(desk.pass(0.1).keep, None, "once");
}

#[test]
fn a_share_is_gone_down_to_by_ttl_and_up_to_only_later() {
    let mut desk = Desk::new(|_| {}).joined(5, 8);
    desk.pass(25.0);
    assert_eq!(desk.pass(2.5).keep, Some(8));
    assert_eq!((desk.account.standing(desk.now), desk.take(9)), (Standing::Good, 0));
    desk.pass(14.4);
    assert_eq!(desk.take(9), 0, "ttl + heartbeat + timeout is not over");
    assert!(desk.pass(0.2).wake);
    assert_eq!(desk.take(9), 3);
}

#[test]
fn held_leases_stay_and_none_are_added() {
    let mut desk = Desk::new(|settings| settings.on_loss = OnLoss::Hold).joined(5, 2);
    desk.pass(25.0);
    assert_eq!(desk.pass(3.0).keep, None);
    desk.account.give_back(1, 1);
    assert_eq!(desk.take(5), 0);
    let report = desk.report();
    assert_eq!(report.held, 4);
}

#[test]
fn whoever_slept_past_its_fence_asks_before_it_uses_or_kills_anything() {
    for on_loss in [OnLoss::Share, OnLoss::Fence, OnLoss::Hold] {
        let mut desk = Desk::new(|settings| settings.on_loss = on_loss).joined(5, 4);
        desk.now += Duration::from_secs(60);
        assert_ne!(desk.account.standing(desk.now), Standing::Good, "before anything has run");
        let todo = desk.pass(0.0);
        assert_eq!((todo.report, todo.keep, desk.account.link), (true, None, Link::Doubt));
        let report = desk.report();
        let todo = desk.account.answered(report.seq, Answer::Reaped, desk.now);
        assert!(todo.revoke);
        assert_eq!((desk.account.overshoot, desk.account.taken()), (5, 0));
        assert_ne!(*desk.account.member(), report.member);
        assert_eq!(desk.report().seq, 1, "joins anew and declares nothing");
    }
}

#[test]
fn leases_of_another_life_do_not_count_and_new_ones_wait_for_them() {
    let mut desk = Desk::new(|_| {}).joined(5, 4);
    let report = desk.report();
    desk.account.answered(report.seq, Answer::Reaped, desk.now);
    let mut desk = {
        let join = desk.report();
        desk.answer(join.seq, 3, 4);
        desk
    };
    assert_eq!(desk.take(3), 0, "old connections may still be there");
    desk.account.give_back(5, 1);
    assert_eq!((desk.take(3), desk.account.taken()), (3, 3));
    desk.account.give_back(1, 1);
    assert_eq!(desk.account.taken(), 3, "what is left of the old life gives nothing back");
}

#[test]
fn a_member_has_left_only_when_a_report_that_said_so_was_booked() {
    let mut desk = Desk::new(|_| {}).joined(1, 4);
    desk.account.leave();
    let report = desk.report();
    assert_eq!((report.leave, report.held), (false, 1));
    // the last lease comes back while that is on its way
    desk.account.give_back(1, 1);
    desk.answer(report.seq, 1, 4);
    assert_ne!(desk.account.link, Link::Left);
    assert!(desk.pass(0.0).report, "at once");
    let report = desk.report();
    assert_eq!((report.leave, report.held), (true, 0));
    desk.answer(report.seq, 0, 0);
    assert_eq!(desk.account.link, Link::Left);
}

#[test]
fn whoever_renews_no_more_uses_nothing_more() {
    let mut desk = Desk::new(|_| {}).joined(3, 4);
    assert!(desk.account.abandon().revoke);
    assert_eq!((desk.account.standing(desk.now), desk.take(1)), (Standing::Fenced, 0));
}

#[test]
fn a_cold_share_has_its_part_of_the_rate_too() {
    let desk = Desk::new(|settings| settings.cold_share = 5);
    assert_eq!(desk.account.offline_share(desk.now), Some((5, 20)));
    let desk = Desk::new(|_| {});
    assert_eq!(desk.account.offline_share(desk.now), None);
}
