//! Who may have how much: weights, limits that change or differ, offline shares,
//! and books that were lost.

use forebay_fleet::Keeper;

use super::{Peer, booked, set_up, total};

pub async fn holdings_follow_the_weights(keeper: &dyn Keeper, backend: &str) {
    set_up(keeper, backend).await;
    let [mut light, mut heavy] = ["light", "heavy"].map(|name| Peer::new(backend, name, 8));
    heavy.profile.weight = 3;
    light.wants(keeper, 8).await;
    for _ in 0..12 {
        for peer in [&mut heavy, &mut light] {
            let booking = peer.wants(keeper, 8).await;
            if booking.recall > 0 {
                peer.reports(keeper, booking.held - booking.recall, 8).await;
            }
            assert!(total(keeper, backend).await <= 8);
        }
    }
    heavy.wants(keeper, 8).await;
    light.wants(keeper, 8).await;
    assert_eq!(light.held + heavy.held, 8);
    assert!(light.held.abs_diff(2) <= 1, "{} and {}", light.held, heavy.held);
}

pub async fn a_lowered_limit_is_reached_by_giving_back(keeper: &dyn Keeper, backend: &str) {
    set_up(keeper, backend).await;
    let [mut a, mut b] = ["a", "b"].map(|name| Peer::new(backend, name, 10));
    a.wants(keeper, 10).await;
    b.wants(keeper, 0).await;
    for peer in [&mut a, &mut b] {
        peer.profile.limits.open = 4;
        peer.profile.limits.version = 1;
    }
    let booking = a.wants(keeper, 10).await;
    assert_eq!((booking.limit, booking.held, booking.total), (4, 10, 10));
    assert!(booking.recall >= 6, "{booking:?}");
    assert_eq!(b.wants(keeper, 1).await.held, 0, "nothing is granted above the new limit");
    let mut most = 10;
    for _ in 0..6 {
        let booking = a.yields(keeper, a.held).await;
        assert!(booking.total <= most, "{booking:?}");
        most = booking.total;
        b.wants(keeper, 1).await;
    }
    assert!(a.held + b.held <= 4, "{} and {}", a.held, b.held);
    assert_eq!(b.held, 1);
}

pub async fn the_newest_version_of_the_limits_counts(keeper: &dyn Keeper, backend: &str) {
    set_up(keeper, backend).await;
    let [mut old, mut new] = ["old", "new"].map(|name| Peer::new(backend, name, 3));
    new.profile.limits.open = 8;
    new.profile.limits.version = 2;
    assert_eq!(old.wants(keeper, 5).await.limit, 3);
    let booking = new.wants(keeper, 1).await;
    assert_eq!((booking.limit, booking.held), (8, 1));
    assert_eq!(booking.limit_by, new.id.as_str());
    let booking = old.wants(keeper, 5).await;
    assert_eq!((booking.limit, booking.held), (8, 5));
}

pub async fn the_lowest_limit_wins_and_is_named(keeper: &dyn Keeper, backend: &str) {
    set_up(keeper, backend).await;
    let mut high = Peer::new(backend, "high", 10);
    let mut low = Peer::new(backend, "low", 6);
    assert_eq!(high.wants(keeper, 5).await.limit, 10);
    let booking = low.wants(keeper, 5).await;
    assert_eq!((booking.limit, booking.held), (6, 1));
    let booking = high.wants(keeper, 10).await;
    assert_eq!((booking.limit, booking.limit_by.as_str()), (6, low.id.as_str()));
    assert_eq!(total(keeper, backend).await, 6);
}

pub async fn offline_shares_never_add_up_to_more_than_the_limit(
    keeper: &dyn Keeper,
    backend: &str,
) {
    set_up(keeper, backend).await;
    let mut peers: Vec<Peer> = Vec::new();
    for joined in 0..5_usize {
        peers.push(Peer::new(backend, &format!("p{joined}"), 12));
        for round in 0..3_usize {
            for k in 0..peers.len() {
                let k = (k + round) % peers.len();
                peers[k].wants(keeper, 1).await;
                let believed: u32 = peers.iter().map(|peer| peer.share).sum();
                assert!(believed <= 12, "{believed} with {} members", peers.len());
            }
        }
        if joined == 0 {
            assert_eq!(peers[0].share, 12, "alone it may have everything");
        }
    }
    assert!(peers.iter().all(|peer| peer.share == 2), "{peers:?}");
    // one goes, the others get its part
    let mut goodbye = peers[0].next(0, 0);
    goodbye.leave = true;
    booked(keeper, &goodbye).await;
    peers.remove(0);
    for _ in 0..3 {
        for peer in &mut peers {
            peer.wants(keeper, 1).await;
        }
    }
    assert!(peers.iter().all(|peer| peer.share == 3), "{peers:?}");
}

pub async fn a_keeper_without_books_grants_nothing_at_first(keeper: &dyn Keeper, backend: &str) {
    let [mut a, mut b] = ["a", "b"].map(|name| Peer::new(backend, name, 10));
    let booking = a.wants(keeper, 4).await;
    assert_eq!(booking.held, 0);
    assert!((1..=30_000).contains(&booking.declaring_ms), "{booking:?}");
    let other = b.wants(keeper, 4).await;
    assert_eq!((other.held, &other.generation), (0, &booking.generation));
    assert_eq!(a.wants(keeper, 4).await.held, 0);
}

pub async fn what_members_declare_in_a_window_counts(keeper: &dyn Keeper, backend: &str) {
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| Peer::new(backend, name, 10));
    (a.seq, b.seq) = (41, 7);
    let booking = a.reports(keeper, 7, 9).await;
    assert_eq!((booking.held, booking.total), (7, 7));
    let booking = b.reports(keeper, 6, 6).await;
    assert_eq!((booking.held, booking.total), (6, 13), "more than the limit is told as it is");
    assert_eq!(c.wants(keeper, 1).await.held, 0);
    let booking = b.reports(keeper, 2, 2).await;
    assert_eq!((booking.held, booking.total), (2, 9));
    // the one before may have been sent long ago and have arrived only now; nobody is granted
    // anything meanwhile, so the last word counts
    let booking = b.reports(keeper, 3, 3).await;
    assert_eq!((booking.held, booking.total), (3, 10));
}
