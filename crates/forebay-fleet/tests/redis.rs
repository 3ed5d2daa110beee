//! The Redis keeper on a real server, in real time: reaping, transfers and recalls
//! with their announcements, the rate, what operators do and see, and what a
//! report costs the server. FOREBAY_TEST_REDIS is the server's URL.

#![cfg(feature = "redis")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod redis_support;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use forebay_fleet::{
    Answer, Keeper, Limits, MemberId, News, RateBook, RedisKeeper, Reserve, Reserved,
};
use redis::aio::MultiplexedConnection;
use redis_support::{
    LONG, Player, Server, keeper, key, profile, raw, server_program, shared_url, unique, until,
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// A backend whose books are ready.
async fn ready(name: &str) -> Option<(String, RedisKeeper, String)> {
    let url = shared_url()?;
    let (keeper, backend) = (keeper(&url), unique(name));
    assert!(keeper.setup(&backend).await.expect("a setup"));
    Some((url, keeper, backend))
}

/// News, from a keeper that has subscribed.
async fn listening(url: &str, keeper: RedisKeeper, backend: &str) -> UnboundedReceiver<News> {
    let (sender, news) = unbounded_channel();
    tokio::spawn(async move { keeper.listen(sender).await });
    let mut raw = raw(url).await;
    until("the listener has subscribed", async || {
        let mut cmd = redis::cmd("PUBSUB");
        cmd.arg("NUMSUB").arg(key(backend, "news"));
        let (_, count): (String, u32) = cmd.query_async(&mut raw).await.expect("a count");
        (count > 0).then_some(())
    })
    .await;
    news
}

async fn next(news: &mut UnboundedReceiver<News>) -> MemberId {
    let one = tokio::time::timeout(LONG, news.recv()).await;
    one.expect("news in time").expect("the listener lives").member
}

#[tokio::test]
async fn leases_of_a_silent_member_go_to_others_not_before_reclaim_and_it_is_told() {
    let Some((_, keeper, backend)) = ready("silent").await else { return };
    let mut short = profile(5);
    (short.ttl_ms, short.heartbeat_ms, short.margin_ms, short.reclaim_ms) = (200, 50, 50, 300);
    let mut silent = Player::new(&backend, "silent", short.clone());
    let mut other = Player::new(&backend, "other", short);
    silent.ask(&keeper, 0, 5).await;
    let renewed = Instant::now();
    assert_eq!(silent.ask(&keeper, 5, 5).await.held, 5);
    assert_eq!(other.ask(&keeper, 0, 5).await.held, 0);
    until("the leases come", async || (other.ask(&keeper, 0, 5).await.held == 5).then_some(()))
        .await;
    assert!(renewed.elapsed() >= Duration::from_millis(300), "reaped too soon");
    let late = keeper.report(&silent.report(5, 5)).await.expect("an answer");
    assert_eq!(late, Answer::Reaped);
    // a new life of the same instance joins
    silent.member = MemberId::new("silent", 2);
    silent.seq = 0;
    assert_eq!(silent.ask(&keeper, 0, 5).await.held, 0);
}

#[tokio::test]
async fn a_lease_given_back_is_moved_to_who_waits_and_announced_to_it() {
    let Some((url, keeper_a, backend)) = ready("transfer").await else { return };
    let keeper_b = keeper(&url);
    let mut a = Player::new(&backend, "a", profile(2));
    let mut b = Player::new(&backend, "b", profile(2));
    a.ask(&keeper_a, 0, 2).await;
    b.ask(&keeper_b, 0, 0).await;
    let mut news = listening(&url, keeper_b, &backend).await;
    assert_eq!(b.ask(&keeper_a, 0, 1).await.held, 0);
    assert_eq!(next(&mut news).await, a.member, "a lease of the richer is asked back");
    assert_eq!(a.ask(&keeper_a, 2, 2).await.recall, 1);
    let given = a.ask(&keeper_a, 1, 1).await;
    assert_eq!((given.held, given.recall, given.total), (1, 0, 2));
    assert_eq!(next(&mut news).await, b.member, "and moved to who asked");
    assert_eq!(b.ask(&keeper_a, 0, 1).await.held, 1);
}

#[tokio::test]
async fn with_more_askers_than_slots_leases_go_round() {
    let Some((_, keeper, backend)) = ready("rotation").await else { return };
    let mut quick = profile(1);
    quick.heartbeat_ms = 5;
    let mut players: Vec<Player> =
        ["a", "b", "c"].iter().map(|name| Player::new(&backend, name, quick.clone())).collect();
    let mut turns = BTreeMap::<usize, u32>::new();
    let deadline = Instant::now() + LONG;
    while turns.len() < 3 || turns.values().any(|turns| *turns < 3) {
        assert!(Instant::now() < deadline, "{turns:?}");
        let mut held = 0;
        for (index, player) in players.iter_mut().enumerate() {
            let keep = player.held;
            let booking = player.ask(&keeper, keep, 1).await;
            if booking.recall > 0 {
                // its connection has come back
                *turns.entry(index).or_default() += 1;
                let after = keep.max(booking.held) - booking.recall;
                let report = player.report(after, after);
                drop(keeper.report(&report).await.expect("an answer"));
                player.held = after;
            }
            held += player.held;
        }
        assert!(held <= 1, "the limit is 1");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn operators_set_up_list_inspect_and_reap() {
    let Some((_, keeper, backend)) = ready("operator").await else { return };
    assert!(!keeper.setup(&backend).await.expect("an answer"), "there are books already");
    assert!(keeper.backends().await.expect("a list").contains(&backend));
    let nobody = keeper.inspect(&unique("nobody")).await.expect("an answer");
    assert_eq!((nobody.generation.as_str(), nobody.members.len()), ("", 0));
    let mut a = Player::new(&backend, "a", profile(3));
    let mut b = Player::new(&backend, "b", profile(3));
    a.ask(&keeper, 0, 3).await;
    b.ask(&keeper, 0, 2).await;
    let books = keeper.inspect(&backend).await.expect("books");
    assert_eq!((books.limit, books.total, books.declaring_ms), (3, 3, 0));
    assert_eq!(books.generation.len(), 16);
    let [first, second] = books.members.as_slice() else { panic!("{books:?}") };
    assert_eq!((&first.member, first.held, first.recall), (&a.member, 3, 1));
    assert_eq!((&second.member, second.held, second.want), (&b.member, 0, 2));
    assert_eq!(first.profile, a.profile);
    assert!(first.silent_ms.is_some());
    assert_eq!(keeper.reap(&backend, &a.member).await.expect("an answer"), Some(3));
    assert_eq!(keeper.reap(&backend, &a.member).await.expect("an answer"), None);
    assert_eq!(b.ask(&keeper, 0, 2).await.held, 2, "what was taken back is given at once");
    assert_eq!(keeper.report(&a.report(3, 3)).await.expect("an answer"), Answer::Reaped);
}

#[tokio::test]
async fn the_plain_keys_say_what_they_said_in_the_seed_and_nothing_lives_for_ever() {
    let Some((url, keeper, backend)) = ready("keys").await else { return };
    let mut raw = raw(&url).await;
    let mut a = Player::new(&backend, "a", profile(50));
    a.ask(&keeper, 0, 23).await;
    a.ask(&keeper, 23, 70).await;
    let mut cmd = redis::cmd("MGET");
    cmd.arg(key(&backend, "count")).arg(key(&backend, "max"));
    let plain: (u32, u32) = cmd.query_async(&mut raw).await.expect("two numbers");
    assert_eq!(plain, (50, 50));
    let mut names = vec!["book", "count", "max", "members", "profiles", "expiry", "waiting"];
    names.extend(["rich", "opens", "rates", "bursts"]);
    for name in names {
        let mut cmd = redis::cmd("TTL");
        let left: i64 = cmd.arg(key(&backend, name)).query_async(&mut raw).await.expect("a ttl");
        assert!(left > 6 * 24 * 3600, "{name} is kept for {left} s");
    }
}

#[tokio::test]
async fn books_that_lost_a_part_are_begun_anew() {
    let Some((url, keeper, backend)) = ready("evicted").await else { return };
    let mut raw = raw(&url).await;
    let mut a = Player::new(&backend, "a", profile(9));
    let before = a.ask(&keeper, 0, 4).await;
    for part in ["members", "expiry", "rich", "opens"] {
        let mut cmd = redis::cmd("DEL");
        cmd.arg(key(&backend, part)).exec_async(&mut raw).await.expect("evicted");
        let after = a.ask(&keeper, 4, 4).await;
        assert_ne!(after.generation, String::new());
        assert!(after.declaring_ms > 0, "{part}: {after:?}");
        assert_eq!((after.held, after.total), (4, 4), "{part}");
    }
    assert_ne!(before.generation, format!("{:016x}", 7), "setup draws its own");
}

fn reserve(backend: &str, permits: u32, limits: Limits) -> Reserve {
    let (max_wait_ms, nonce, ttl_ms) = (30_000, 7, 1_000);
    Reserve { backend: backend.to_owned(), permits, limits, max_wait_ms, nonce, ttl_ms }
}

async fn rate_state(raw: &mut MultiplexedConnection, backend: &str) -> (RateBook, u64) {
    let mut cmd = redis::cmd("HMGET");
    cmd.arg(key(backend, "book")).arg(&["tat_us", "halvings", "refused_us", "rate_us"]);
    let (tat_us, halvings, refused_us, now_us): (u64, u32, u64, u64) =
        cmd.query_async(raw).await.expect("a book");
    (RateBook { tat_us, halvings, refused_us }, now_us)
}

#[tokio::test]
async fn the_script_reserves_and_slows_down_as_the_rate_book_does() {
    let Some((url, keeper, _)) = ready("rate").await else { return };
    let mut raw = raw(&url).await;
    for seed in 0..20_u64 {
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let backend = unique("rate");
        let (rate, burst) = (rng.u32(1..2000), rng.u32(0..50));
        let limits = Limits { open: 5, rate, burst, version: 0 };
        let mut model = if rng.bool() {
            assert!(keeper.setup(&backend).await.expect("a setup"));
            Some(RateBook::default())
        } else {
            None
        };
        for _ in 0..25 {
            if rng.u32(0..5) == 0 {
                keeper.refused(&backend, &limits).await.expect("done");
                let (stored, now_us) = rate_state(&mut raw, &backend).await;
                let mut book = model.unwrap_or_else(|| RateBook::empty(&limits, now_us));
                book.refused(&limits, now_us);
                assert_eq!(stored, book, "{limits:?}");
                model = Some(book);
                continue;
            }
            let mut call = reserve(&backend, rng.u32(1..50), limits);
            call.max_wait_ms = rng.u64(0..3000);
            let reserved = keeper.reserve(&call).await.expect("an answer");
            let (stored, now_us) = rate_state(&mut raw, &backend).await;
            let mut book = model.unwrap_or_else(|| RateBook::empty(&limits, now_us));
            assert_eq!(reserved, book.reserve(&call, &limits, now_us), "{limits:?} {call:?}");
            assert_eq!(stored, book);
            // time passes for the pace to recover, in the books of both
            if rng.u32(0..4) == 0 {
                let past = rng.u64(0..25_000_000);
                book.tat_us = book.tat_us.saturating_sub(past);
                book.refused_us = book.refused_us.saturating_sub(past);
                let mut cmd = redis::cmd("HSET");
                cmd.arg(key(&backend, "book")).arg("tat_us").arg(book.tat_us);
                cmd.arg("refused_us").arg(book.refused_us);
                cmd.exec_async(&mut raw).await.expect("stored");
            }
            model = Some(book);
        }
    }
}

#[tokio::test]
async fn a_backend_without_books_gets_an_empty_bucket_and_a_window() {
    let Some(url) = shared_url() else { return };
    let (keeper, backend) = (keeper(&url), unique("unknown"));
    let limits = Limits { open: 5, rate: 10, burst: 1000, version: 0 };
    let first = keeper.reserve(&reserve(&backend, 1, limits)).await.expect("an answer");
    // what may have been promised before is waited for: 2 s, and one interval
    assert_eq!(first, Reserved { lead_us: 2_100_000, interval_us: 100_000, permits: 1 });
    let mut a = Player::new(&backend, "a", profile(5));
    let booking = a.ask(&keeper, 0, 5).await;
    assert!(booking.declaring_ms > 0 && booking.held == 0, "{booking:?}");
    until("the window of one second ends", async || {
        (a.ask(&keeper, 0, 5).await.held == 5).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_limits_of_the_members_count_for_the_rate() {
    let Some((_, keeper, backend)) = ready("limits").await else { return };
    let mut member = profile(5);
    member.limits = Limits { open: 5, rate: 1000, burst: 1, version: 3 };
    Player::new(&backend, "a", member.clone()).ask(&keeper, 0, 0).await;
    (member.limits.rate, member.limits.version) = (2, 2);
    Player::new(&backend, "old", member).ask(&keeper, 0, 0).await;
    let said = Limits { open: 5, rate: 7, burst: 7, version: 0 };
    let reserved = keeper.reserve(&reserve(&backend, 1, said)).await.expect("an answer");
    assert_eq!(reserved.interval_us, 1000);
    // the newest limits say nothing of a rate: then not the old ones, but the caller's
    let mut newest = profile(5);
    newest.limits = Limits { open: 5, rate: 0, burst: 0, version: 4 };
    Player::new(&backend, "newest", newest).ask(&keeper, 0, 0).await;
    let reserved = keeper.reserve(&reserve(&backend, 1, said)).await.expect("an answer");
    assert_eq!(reserved.interval_us, 142_858);
}

#[tokio::test]
async fn a_clock_set_back_does_not_stop_the_rate() {
    let Some((url, keeper, backend)) = ready("clock").await else { return };
    let mut raw = raw(&url).await;
    let limits = Limits { open: 5, rate: 10, burst: 1, version: 0 };
    keeper.reserve(&reserve(&backend, 20, limits)).await.expect("an answer");
    let (book, now_us) = rate_state(&mut raw, &backend).await;
    let hour = 3_600_000_000;
    let mut cmd = redis::cmd("HSET");
    cmd.arg(key(&backend, "book")).arg("tat_us").arg(book.tat_us + hour);
    cmd.arg("rate_us").arg(now_us + hour).exec_async(&mut raw).await.expect("stored");
    let after = keeper.reserve(&reserve(&backend, 1, limits)).await.expect("an answer");
    assert_eq!(after.permits, 1, "{after:?}");
    assert!((1_900_000..=2_000_000).contains(&after.lead_us), "two seconds ahead: {after:?}");
}

/// Commands that the server has run, its own questions left out.
async fn commands(raw: &mut MultiplexedConnection) -> u64 {
    let mut cmd = redis::cmd("INFO");
    let info: String = cmd.arg("commandstats").query_async(raw).await.expect("statistics");
    let calls = info.lines().filter_map(|line| {
        let calls = line.split_once("calls=")?.1.split(',').next()?;
        calls.parse::<u64>().ok()
    });
    calls.sum()
}

#[tokio::test]
async fn what_a_report_costs_the_server_does_not_grow_with_the_members() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program, &[]).await;
    let (keeper, mut raw) = (keeper(&server.url()), raw(&server.url()).await);
    let mut costs = Vec::new();
    for members in [10_u32, 1000] {
        let backend = unique("cost");
        keeper.setup(&backend).await.expect("a setup");
        let mut players: Vec<Player> = (0..members)
            .map(|index| Player::new(&backend, &format!("m{index:04}"), profile(members)))
            .collect();
        for player in &mut players {
            player.ask(&keeper, 0, 3).await;
        }
        let mut most = 0;
        for player in &mut players[3..8] {
            let before = commands(&mut raw).await;
            let held = player.held;
            player.ask(&keeper, held, 3).await;
            // one of them is our own question
            most = most.max(commands(&mut raw).await - before - 1);
        }
        costs.push(most);
    }
    println!("commands of one report with 10 and 1000 members: {costs:?}");
    assert!(costs[1] <= costs[0] + 4, "{costs:?}");
    assert!(costs[1] < 60, "{costs:?}");
}
