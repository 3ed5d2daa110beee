//! Who lives and who is reaped, by beats and each keeper's own clock; windows.

use std::time::Duration;

use forebay_fleet::{Answer, DynamoKeeper, Keeper, News};

use crate::common::{Hand, Place, agree};
use crate::conformance::{Peer, backend, booked, send, set_up, total};

const HEARTBEAT: Duration = Duration::from_secs(10);

/// A keeper whose clock is put forward by hand.
fn with_hand(place: &Place) -> (DynamoKeeper, Hand) {
    let hand = Hand::default();
    let mut settings = place.settings();
    settings.clock = hand.clock();
    (place.with(settings), hand)
}

#[tokio::test]
async fn a_member_whose_beat_stands_still_is_reaped_and_its_leases_move() {
    let Some(place) = Place::find("reap").await else { return };
    let name = &backend("reap");
    let ours = place.keeper();
    let (theirs, hand) = with_hand(&place);
    set_up(&ours, name).await;
    let [mut dead, mut live] = ["dead", "live"].map(|n| Peer::new(name, n, 10));
    assert_eq!(dead.wants(&ours, 6).await.held, 6);
    assert_eq!(live.wants(&theirs, 10).await.held, 4);
    for _ in 0..2 {
        hand.forward(HEARTBEAT);
        assert_eq!(live.wants(&theirs, 10).await.held, 4, "not yet");
    }
    hand.forward(HEARTBEAT);
    let booking = live.wants(&theirs, 10).await;
    assert_eq!((booking.held, booking.members), (10, 1));
    assert_eq!(agree(&place, &theirs, name).await, 10);
    let tombstone = place.item(&format!("dsqllease#{name}#{}", dead.id)).await.expect("kept");
    assert!(tombstone.contains_key("ttl_epoch") && tombstone.contains_key("gone"));
    let lease = place.item(&format!("dsqllease#{name}#{}", live.id)).await.expect("a lease");
    assert!(!lease.contains_key("ttl_epoch"), "a live lease must not be deleted by DynamoDB");
    assert_eq!(send(&ours, &dead.next(6, 6)).await, Answer::Reaped);
    assert_eq!(agree(&place, &theirs, name).await, 10);
}

#[tokio::test]
async fn a_member_that_only_beats_lives() {
    let Some(place) = Place::find("beats").await else { return };
    let name = &backend("beats");
    let ours = place.keeper();
    let (theirs, hand) = with_hand(&place);
    set_up(&ours, name).await;
    let [mut quiet, mut judge] = ["quiet", "judge"].map(|n| Peer::new(name, n, 10));
    quiet.wants(&ours, 6).await;
    judge.wants(&theirs, 4).await;
    for _ in 0..8 {
        quiet.wants(&ours, 6).await;
        hand.forward(HEARTBEAT);
        assert_eq!(judge.wants(&theirs, 4).await.members, 2);
    }
    assert_eq!(quiet.wants(&ours, 6).await.held, 6);
}

#[tokio::test]
async fn a_beat_at_the_last_moment_saves_a_member() {
    let Some(place) = Place::find("late").await else { return };
    let name = &backend("late");
    let ours = place.keeper();
    let (theirs, hand) = with_hand(&place);
    set_up(&ours, name).await;
    let [mut slow, mut judge] = ["slow", "judge"].map(|n| Peer::new(name, n, 10));
    slow.wants(&ours, 6).await;
    judge.wants(&theirs, 4).await;
    for _ in 0..2 {
        hand.forward(HEARTBEAT);
        judge.wants(&theirs, 4).await;
    }
    // the judge last looked before this
    hand.forward(HEARTBEAT - Duration::from_secs(5));
    judge.wants(&theirs, 4).await;
    slow.wants(&ours, 6).await;
    slow.wants(&ours, 6).await;
    hand.forward(Duration::from_secs(5));
    let booking = judge.wants(&theirs, 5).await;
    assert_eq!((booking.members, booking.total), (2, 10));
    assert_eq!(slow.wants(&ours, 6).await.held, 6);
}

#[tokio::test]
async fn a_keeper_that_was_cut_off_judges_nobody_by_that_time() {
    let Some(place) = Place::find("cut").await else { return };
    let name = &backend("cut");
    let ours = place.keeper();
    let (theirs, hand) = with_hand(&place);
    set_up(&ours, name).await;
    let [mut a, mut b] = ["a", "b"].map(|n| Peer::new(name, n, 10));
    a.wants(&ours, 6).await;
    b.wants(&theirs, 4).await;
    hand.forward(HEARTBEAT * 6);
    assert_eq!(b.wants(&theirs, 4).await.members, 2);
    hand.forward(HEARTBEAT * 2);
    assert_eq!(b.wants(&theirs, 4).await.members, 2);
    assert_eq!(a.wants(&ours, 6).await.held, 6);
}

#[tokio::test]
async fn after_a_long_outage_members_say_what_they_have_grown_to() {
    let Some(place) = Place::find("grown").await else { return };
    let name = &backend("grown");
    let keeper = place.keeper();
    set_up(&keeper, name).await;
    let [mut a, mut b] = ["a", "b"].map(|n| Peer::new(name, n, 10));
    a.wants(&keeper, 2).await;
    b.wants(&keeper, 2).await;
    for peer in [&mut a, &mut b] {
        peer.elapsed_ms = Some(45_000);
    }
    // both had a share of five
    let booking = a.reports(&keeper, 5, 9).await;
    assert_eq!((booking.held, booking.total), (5, 7));
    assert!(booking.declaring_ms > 0, "nothing is granted before the others have spoken");
    let booking = b.reports(&keeper, 5, 5).await;
    assert_eq!((booking.held, booking.total), (5, 10));
    assert_eq!(agree(&place, &keeper, name).await, 10);
}

#[tokio::test]
async fn a_window_closes_once_one_keeper_has_seen_it_open_for_a_ttl() {
    let Some(place) = Place::find("window").await else { return };
    let name = &backend("window");
    let ours = place.keeper();
    let (theirs, hand) = with_hand(&place);
    let [mut a, mut b] = ["a", "b"].map(|n| Peer::new(name, n, 10));
    assert_eq!(a.wants(&ours, 4).await.held, 0);
    assert!(b.wants(&theirs, 4).await.declaring_ms > 0);
    for _ in 0..2 {
        hand.forward(HEARTBEAT);
        let booking = b.wants(&theirs, 4).await;
        assert_eq!(booking.held, 0);
        assert!(booking.declaring_ms > 0);
        assert_eq!(a.wants(&ours, 4).await.held, 0);
    }
    hand.forward(HEARTBEAT);
    let booking = b.wants(&theirs, 4).await;
    assert_eq!((booking.held, booking.declaring_ms), (4, 0));
    let booking = a.wants(&ours, 4).await;
    assert_eq!((booking.held, booking.declaring_ms), (4, 0));
    assert_eq!(agree(&place, &ours, name).await, 8);
}

#[tokio::test]
async fn a_table_that_was_lost_is_made_anew_from_what_members_say() {
    let Some(place) = Place::find("lost").await else { return };
    let name = &backend("lost");
    let (keeper, hand) = with_hand(&place);
    set_up(&keeper, name).await;
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|n| Peer::new(name, n, 10));
    a.wants(&keeper, 5).await;
    let before = b.wants(&keeper, 3).await.generation;
    place.client.delete_table().table_name(&place.table).send().await.expect("deleted");
    keeper.setup_table().await.expect("a table");
    let booking = a.wants(&keeper, 8).await;
    assert_eq!((booking.held, booking.total), (5, 5));
    assert!(booking.declaring_ms > 0);
    assert_ne!(booking.generation, before);
    assert_eq!(c.wants(&keeper, 4).await.held, 0);
    assert_eq!(b.wants(&keeper, 3).await.total, 8);
    for _ in 0..3 {
        hand.forward(HEARTBEAT);
        c.wants(&keeper, 1).await;
        b.wants(&keeper, 3).await;
        a.wants(&keeper, 5).await;
    }
    c.wants(&keeper, 1).await;
    assert_eq!((a.held, b.held, c.held), (5, 3, 1));
    assert_eq!(agree(&place, &keeper, name).await, 9);
}

#[tokio::test]
async fn who_was_reaped_cannot_declare_even_when_the_registry_is_lost() {
    let Some(place) = Place::find("tomb").await else { return };
    let name = &backend("tomb");
    let keeper = place.keeper();
    set_up(&keeper, name).await;
    let [mut a, mut b] = ["a", "b"].map(|n| Peer::new(name, n, 10));
    a.wants(&keeper, 5).await;
    b.wants(&keeper, 3).await;
    assert_eq!(keeper.reap(name, &a.id).await.expect("reaped"), Some(5));
    let pk = aws_sdk_dynamodb::types::AttributeValue::S(format!("dsqllease_registry#{name}"));
    let call = place.client.delete_item().table_name(&place.table);
    call.key("pk", pk).send().await.expect("deleted");
    assert_eq!(send(&keeper, &a.next(5, 5)).await, Answer::Reaped);
    assert_eq!(b.wants(&keeper, 3).await.held, 3);
    assert_eq!(agree(&place, &keeper, name).await, 3);
}

#[tokio::test]
async fn a_lease_item_that_somebody_deleted_comes_back_with_the_next_heartbeat() {
    let Some(place) = Place::find("undone").await else { return };
    let name = &backend("undone");
    let keeper = place.keeper();
    set_up(&keeper, name).await;
    let mut a = Peer::new(name, "a", 10);
    a.wants(&keeper, 5).await;
    a.wants(&keeper, 5).await;
    let pk = format!("dsqllease#{name}#{}", a.id);
    let key = aws_sdk_dynamodb::types::AttributeValue::S(pk.clone());
    let call = place.client.delete_item().table_name(&place.table);
    call.key("pk", key).send().await.expect("deleted");
    assert_eq!(a.wants(&keeper, 5).await.held, 5);
    assert!(place.item(&pk).await.is_some());
    assert_eq!(total(&keeper, name).await, 5);
}

#[tokio::test]
async fn a_member_is_woken_when_another_is_due_to_be_reaped() {
    let Some(place) = Place::find("wake").await else { return };
    let name = &backend("wake");
    let ours = place.keeper();
    let (theirs, hand) = with_hand(&place);
    set_up(&ours, name).await;
    let [mut dead, mut live] = ["dead", "live"].map(|n| Peer::new(name, n, 10));
    dead.wants(&ours, 6).await;
    let (sender, mut news) = tokio::sync::mpsc::unbounded_channel();
    let theirs = std::sync::Arc::new(theirs);
    let listener = theirs.clone();
    let listening = tokio::spawn(async move { listener.listen(sender).await });
    live.wants(&*theirs, 10).await;
    for _ in 0..2 {
        hand.forward(HEARTBEAT);
        live.wants(&*theirs, 10).await;
    }
    assert!(news.try_recv().is_err(), "nothing is due");
    hand.forward(HEARTBEAT);
    let told = tokio::time::timeout(Duration::from_secs(60), news.recv()).await.expect("news");
    assert_eq!(told, Some(News { backend: name.clone(), member: live.id.clone() }));
    assert_eq!(booked(&*theirs, &live.next(live.held, 10)).await.held, 10);
    listening.abort();
}
