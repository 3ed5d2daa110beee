//! Leases: granting, giving back, moving, taking away; each report once.

use forebay_fleet::{Answer, Keeper, MemberId};

use super::{Peer, booked, send, set_up, total};

pub async fn leases_are_granted_up_to_the_limit(keeper: &dyn Keeper, backend: &str) {
    set_up(keeper, backend).await;
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| Peer::new(backend, name, 10));
    assert_eq!(a.wants(keeper, 4).await.held, 4);
    let booking = b.wants(keeper, 10).await;
    assert_eq!((booking.held, booking.total, booking.limit), (6, 10, 10));
    let booking = c.wants(keeper, 1).await;
    assert_eq!((booking.held, booking.total, booking.members), (0, 10, 3));
    assert!(booking.contended);
    assert_eq!(total(keeper, backend).await, 10);
}

pub async fn a_lost_answer_does_not_cost_leases(keeper: &dyn Keeper, backend: &str) {
    set_up(keeper, backend).await;
    let mut a = Peer::new(backend, "a", 10);
    a.wants(keeper, 0).await;
    let lost = a.next(0, 4);
    assert_eq!(booked(keeper, &lost).await.held, 4);
    // the member never saw that answer, and goes by what it has
    let booking = a.reports(keeper, 0, 4).await;
    assert_eq!((booking.held, booking.total), (4, 4));
    let lost = a.next(4, 6);
    assert_eq!(booked(keeper, &lost).await.held, 6);
    let booking = a.reports(keeper, 4, 4).await;
    assert_eq!((booking.held, booking.total), (4, 4));
}

pub async fn a_report_is_not_booked_twice(keeper: &dyn Keeper, backend: &str) {
    set_up(keeper, backend).await;
    let mut a = Peer::new(backend, "a", 10);
    let join = a.next(0, 3);
    assert_eq!(booked(keeper, &join).await.held, 3);
    assert_eq!(send(keeper, &join).await, Answer::Stale);
    let more = a.next(3, 5);
    assert_eq!(booked(keeper, &more).await.held, 5);
    assert_eq!(send(keeper, &more).await, Answer::Stale);
    assert_eq!(send(keeper, &join).await, Answer::Stale);
    // two more until nothing changes any more, the offline share included
    a.reports(keeper, 5, 5).await;
    a.reports(keeper, 5, 5).await;
    let beat = a.next(5, 5);
    assert_eq!(booked(keeper, &beat).await.held, 5);
    assert_eq!(send(keeper, &beat).await, Answer::Stale, "a heartbeat counts too");
    assert_eq!(total(keeper, backend).await, 5);
}

pub async fn a_late_report_is_not_booked(keeper: &dyn Keeper, backend: &str) {
    set_up(keeper, backend).await;
    let mut a = Peer::new(backend, "a", 10);
    a.wants(keeper, 5).await;
    a.wants(keeper, 5).await;
    let late = a.next(0, 0);
    // overtaken by a heartbeat, which need not have touched the books
    assert_eq!(a.reports(keeper, 5, 5).await.held, 5);
    assert_eq!(send(keeper, &late).await, Answer::Stale);
    assert_eq!(total(keeper, backend).await, 5);
    let late = a.next(5, 8);
    assert_eq!(a.reports(keeper, 2, 2).await.held, 2);
    assert_eq!(send(keeper, &late).await, Answer::Stale);
    assert_eq!(total(keeper, backend).await, 2);
}

pub async fn leases_cannot_be_released_twice(keeper: &dyn Keeper, backend: &str) {
    set_up(keeper, backend).await;
    let [mut a, mut b] = ["a", "b"].map(|name| Peer::new(backend, name, 10));
    a.wants(keeper, 5).await;
    b.wants(keeper, 5).await;
    let release = a.next(2, 2);
    assert_eq!(booked(keeper, &release).await.total, 7);
    assert_eq!(send(keeper, &release).await, Answer::Stale);
    assert_eq!(a.reports(keeper, 2, 2).await.total, 7);
    assert_eq!(b.wants(keeper, 5).await.total, 7);
}

pub async fn a_released_lease_goes_to_the_poorest_waiter(keeper: &dyn Keeper, backend: &str) {
    set_up(keeper, backend).await;
    let [mut rich, mut poor, mut poorest] =
        ["rich", "poor", "poorest"].map(|name| Peer::new(backend, name, 6));
    rich.wants(keeper, 4).await;
    poor.wants(keeper, 2).await;
    assert_eq!(poor.wants(keeper, 3).await.held, 2);
    assert_eq!(poorest.wants(keeper, 1).await.held, 0);
    assert_eq!(rich.reports(keeper, 3, 3).await.total, 6, "moved at once, to nobody's gap");
    assert_eq!(poor.wants(keeper, 3).await.held, 2, "it has waited longer, but has more");
    assert_eq!(poorest.wants(keeper, 1).await.held, 1);
    assert_eq!(total(keeper, backend).await, 6);
}

pub async fn leases_are_recalled_until_the_holdings_are_even(keeper: &dyn Keeper, backend: &str) {
    set_up(keeper, backend).await;
    let [mut a, mut b] = ["a", "b"].map(|name| Peer::new(backend, name, 10));
    a.wants(keeper, 10).await;
    assert_eq!(b.wants(keeper, 10).await.held, 0);
    let booking = a.wants(keeper, 10).await;
    assert_eq!(booking.recall, 5);
    assert!(booking.contended);
    // given back as they become idle, while it would like to have more
    a.reports(keeper, 8, 10).await;
    assert_eq!(b.wants(keeper, 10).await.held, 2);
    assert_eq!(a.wants(keeper, 10).await.recall, 3);
    a.reports(keeper, 5, 10).await;
    assert_eq!(b.wants(keeper, 10).await.held, 5);
    let booking = a.wants(keeper, 10).await;
    assert_eq!((booking.held, booking.recall, booking.total), (5, 0, 10));
}

pub async fn who_leaves_gives_everything_back(keeper: &dyn Keeper, backend: &str) {
    set_up(keeper, backend).await;
    let [mut a, mut b] = ["a", "b"].map(|name| Peer::new(backend, name, 10));
    a.wants(keeper, 7).await;
    b.wants(keeper, 3).await;
    let mut goodbye = a.next(0, 0);
    goodbye.leave = true;
    booked(keeper, &goodbye).await;
    assert_eq!(total(keeper, backend).await, 3);
    assert_eq!(b.wants(keeper, 10).await.held, 10);
    assert_eq!(send(keeper, &a.next(0, 0)).await, Answer::Reaped);
    assert_eq!(total(keeper, backend).await, 10);
}

pub async fn who_was_reaped_is_told_so_and_cannot_declare(keeper: &dyn Keeper, backend: &str) {
    set_up(keeper, backend).await;
    let [mut a, mut b] = ["a", "b"].map(|name| Peer::new(backend, name, 10));
    a.wants(keeper, 7).await;
    b.wants(keeper, 1).await;
    assert_eq!(keeper.reap(backend, &MemberId::new("nobody", 1)).await.expect("no fault"), None);
    assert_eq!(keeper.reap(backend, &a.id).await.expect("reaped"), Some(7));
    assert_eq!(keeper.reap(backend, &a.id).await.expect("no fault"), None);
    assert_eq!(b.wants(keeper, 10).await.held, 10);
    for held in [7, 0] {
        assert_eq!(send(keeper, &a.next(held, 7)).await, Answer::Reaped, "holding {held}");
    }
    let info = keeper.inspect(backend).await.expect("books");
    assert!(info.members.iter().all(|member| member.member != a.id), "{info:?}");
    assert_eq!(info.total, 10);
    // as another life it is welcome
    let mut again = Peer::new(backend, "a", 10);
    assert_eq!(again.wants(keeper, 1).await.members, 2);
}

pub async fn holding_more_than_was_booked_is_being_reaped(keeper: &dyn Keeper, backend: &str) {
    set_up(keeper, backend).await;
    let [mut a, mut b] = ["a", "b"].map(|name| Peer::new(backend, name, 10));
    a.wants(keeper, 4).await;
    b.wants(keeper, 1).await;
    assert_eq!(send(keeper, &a.next(5, 5)).await, Answer::Reaped);
    assert_eq!(total(keeper, backend).await, 1);
    assert_eq!(send(keeper, &a.next(4, 4)).await, Answer::Reaped);
    assert_eq!(b.wants(keeper, 10).await.held, 10);
    let mut stranger = Peer::new(backend, "stranger", 10);
    assert_eq!(send(keeper, &stranger.next(3, 3)).await, Answer::Reaped);
}

pub async fn the_heartbeats_of_a_quiet_fleet_change_nothing(keeper: &dyn Keeper, backend: &str) {
    set_up(keeper, backend).await;
    let mut peers = ["a", "b", "c"].map(|name| Peer::new(backend, name, 10));
    for _ in 0..4 {
        for peer in &mut peers {
            peer.wants(keeper, 2).await;
        }
    }
    let before = keeper.inspect(backend).await.expect("books");
    for _ in 0..3 {
        for peer in &mut peers {
            let booking = peer.wants(keeper, 2).await;
            assert_eq!((booking.held, booking.recall, booking.total), (2, 0, 6));
            assert_eq!((booking.members, booking.contended), (3, false));
        }
    }
    let mut after = keeper.inspect(backend).await.expect("books");
    for (after, before) in after.members.iter_mut().zip(&before.members) {
        after.silent_ms = before.silent_ms;
    }
    assert_eq!(after, before);
}

pub async fn after_a_refusal_nothing_is_granted_for_a_while(keeper: &dyn Keeper, backend: &str) {
    set_up(keeper, backend).await;
    let [mut a, mut b] = ["a", "b"].map(|name| Peer::new(backend, name, 10));
    assert_eq!(a.wants(keeper, 2).await.held, 2);
    let mut refused = a.next(2, 4);
    refused.pause_ms = 600_000;
    assert_eq!(booked(keeper, &refused).await.held, 2);
    assert_eq!(b.wants(keeper, 1).await.held, 0);
    assert_eq!(b.wants(keeper, 1).await.held, 0);
}

pub async fn setup_makes_books_once_and_they_can_be_listed(keeper: &dyn Keeper, backend: &str) {
    let nothing = keeper.inspect(backend).await.expect("an answer");
    assert_eq!((nothing.generation.as_str(), nothing.members.len()), ("", 0));
    assert!(keeper.setup(backend).await.expect("set up"));
    let mut a = Peer::new(backend, "a", 10);
    a.wants(keeper, 4).await;
    assert!(!keeper.setup(backend).await.expect("an answer"), "there are books");
    assert_eq!(a.wants(keeper, 4).await.held, 4);
    assert!(keeper.backends().await.expect("a list").contains(&backend.to_owned()));
    let info = keeper.inspect(backend).await.expect("books");
    assert_eq!((info.limit, info.total, info.declaring_ms), (10, 4, 0));
    assert_eq!(Some(info.generation), a.generation);
    let [member] = info.members.as_slice() else { panic!("{:?}", info.members) };
    assert_eq!((&member.member, member.held, member.want), (&a.id, 4, 4));
    assert_eq!(member.profile, a.profile);
}
