//! A real PostgreSQL behind a pool, through the connector of the tokio-postgres
//! example. The server is asked what it sees. FOREBAY_TEST_POSTGRES is its
//! address; without it these tests skip themselves. They run in real time, since
//! the server does, and claim nothing about how long anything takes.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

#[path = "../examples/tokio_postgres/connector.rs"]
mod connector;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use connector::Postgres;
use forebay::{Builder, Discard, Pool};
use tokio_postgres::{Client, NoTls};

/// Only reached if something is wrong.
const LONG: Duration = Duration::from_secs(60);

/// The server, seen from outside the pool.
struct Server {
    client: Client,
    application: String,
}

impl Server {
    /// `None`, and a word about it, if there is none to test with.
    async fn find(test: &str) -> Option<(Self, Builder<Postgres>)> {
        let Some(address) = std::env::var("FOREBAY_TEST_POSTGRES").ok().filter(|a| !a.is_empty())
        else {
            println!("skipped: FOREBAY_TEST_POSTGRES is not set");
            return None;
        };
        let application = format!("forebay-{test}-{}", std::process::id());
        let (client, connection) =
            tokio_postgres::connect(&address, NoTls).await.expect("a server at that address");
        tokio::spawn(connection);
        let postgres = Postgres::new(&address, &application).expect("an address");
        // generous, so that only the server's word ends a close
        let builder = Pool::builder(postgres).close_grace(LONG).reset_timeout(LONG).timeout(LONG);
        Some((Self { client, application }, builder.stagger(None)))
    }

    /// How many sessions of the pool the server has.
    async fn sessions(&self) -> i64 {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1";
        self.client.query_one(sql, &[&self.application]).await.expect("a count").get(0)
    }

    /// Comes back once a session of the pool sleeps in a query.
    async fn sees_a_sleeper(&self) {
        let sql = "SELECT count(*) FROM pg_stat_activity
                   WHERE application_name = $1 AND wait_event = 'PgSleep'";
        let sleepers = async || -> i64 {
            self.client.query_one(sql, &[&self.application]).await.expect("a count").get(0)
        };
        soon(async { while sleepers().await == 0 {} }).await;
    }
}

/// Ends a test that would otherwise hang.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.expect("it did not happen")
}

async fn pid(session: &connector::Session) -> i32 {
    session.query("SELECT pg_backend_pid()", &[]).await.expect("a row")[0].get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_tasks_share_twenty_sessions_and_the_server_never_sees_more() {
    const MAX_OPEN: u32 = 20;
    let Some((server, builder)) = Server::find("cap").await else { return };
    let pool = builder.max_open(MAX_OPEN).build().expect("valid");
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..200_i32 {
        let pool = pool.clone();
        tasks.spawn(async move {
            for turn in 0..5 {
                let session = pool.get().await.expect("a session");
                let sql = "SELECT $1::int4, current_setting('work_mem'), set_config('work_mem', '1MB', false)";
                let rows = session.query(sql, &[&task]).await.expect("a row");
                assert_eq!(rows[0].get::<_, i32>(0), task, "its own answer");
                assert_ne!(rows[0].get::<_, &str>(1), "1MB", "nothing of the last user");
                // some leave early, so that sessions are replaced at the cap
                if turn == task % 25 {
                    session.discard(Discard::Broken);
                }
            }
        });
    }
    let over = Arc::new(AtomicBool::new(false));
    let watching = {
        let over = over.clone();
        async move {
            let mut most = 0;
            while !over.load(Ordering::Relaxed) {
                most = most.max(server.sessions().await);
            }
            (server, most)
        }
    };
    let watching = tokio::spawn(watching);
    while let Some(done) = tasks.join_next().await {
        done.expect("no task fails");
    }
    over.store(true, Ordering::Relaxed);
    let (server, most) = watching.await.expect("watched");
    assert!((1..=i64::from(MAX_OPEN)).contains(&most), "the server saw {most} sessions");

    let stats = pool.stats();
    assert_eq!((stats.checkouts, stats.timeouts, stats.breaches), (1000, 0, 0));
    assert_eq!(stats.discarded(Discard::Broken), 40);
    assert_eq!(pool.drain(LONG).await.left, 0);
    assert_eq!(server.sessions().await, 0, "gone at the server when the drain ends");
    assert_eq!(pool.stats().sources[0].unconfirmed, 0);
}

#[tokio::test]
async fn a_query_dropped_in_mid_response_is_discarded_and_nobody_sees_its_rows() {
    let Some((server, builder)) = Server::find("drop").await else { return };
    let pool = builder.max_open(1).build().expect("valid");
    let session = pool.get().await.expect("a session");
    let first = pid(&session).await;
    // most rows are sent, then the server sleeps before the last
    let sql = "SELECT repeat('secret', 2000), CASE n WHEN 50 THEN pg_sleep(3600) END
               FROM generate_series(1, 50) n";
    tokio::select! {
        biased;
        _ = session.query(sql, &[]) => panic!("the answer has no end"),
        () = server.sees_a_sleeper() => {}
    }
    drop(session);

    let session = pool.get().await.expect("another session");
    assert_ne!(pid(&session).await, first);
    let rows = session.query("SELECT 'mine'", &[]).await.expect("a row");
    let answers: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(answers, ["mine"]);
    assert_eq!(server.sessions().await, 1, "the server has stopped the first");
    assert_eq!(pool.stats().discarded(Discard::UnknownState), 1);
    drop(session);
    assert_eq!(pool.drain(LONG).await.left, 0);
    assert_eq!(server.sessions().await, 0);
}

#[tokio::test]
async fn a_statement_of_a_transaction_dropped_in_mid_response_is_discarded_too() {
    let Some((server, builder)) = Server::find("drop-work").await else { return };
    let pool = builder.max_open(1).build().expect("valid");
    let mut session = pool.get().await.expect("a session");
    let work = session.transaction().await.expect("begun");
    tokio::select! {
        biased;
        _ = work.execute("SELECT pg_sleep(3600)", &[]) => panic!("nobody wakes it"),
        () = server.sees_a_sleeper() => {}
    }
    drop(work);
    drop(session);
    pid(&pool.get().await.expect("another session")).await;
    assert_eq!(pool.stats().discarded(Discard::UnknownState), 1);
    assert_eq!(server.sessions().await, 1);
}

#[tokio::test]
async fn a_transaction_left_open_by_hand_is_not_handed_on() {
    let Some((server, builder)) = Server::find("open-work").await else { return };
    let pool = builder.max_open(1).build().expect("valid");
    let session = pool.get().await.expect("a session");
    let first = pid(&session).await;
    session.execute("BEGIN", &[]).await.expect("begun");
    drop(session);
    let session = pool.get().await.expect("another session");
    assert_ne!(pid(&session).await, first);
    assert_eq!(pool.stats().discarded(Discard::Broken), 1, "its reset was refused");
    assert_eq!(server.sessions().await, 1);
}

#[tokio::test]
async fn the_end_of_a_drain_kills_a_query_under_way() {
    let Some((server, builder)) = Server::find("drain").await else { return };
    let pool = builder.max_open(2).build().expect("valid");
    let session = pool.get().await.expect("a session");
    let query = tokio::spawn(async move {
        let answer = session.query("SELECT pg_sleep(3600)", &[]).await;
        answer.expect_err("killed").is_closed()
    });
    server.sees_a_sleeper().await;
    let drained = pool.drain(Duration::ZERO).await;
    assert_eq!(drained.killed, 1);
    assert!(
        soon(query).await.expect("it ended"),
        "the user was told that the connection is closed"
    );
    assert_eq!(pool.drain(LONG).await.left, 0);
    assert_eq!(server.sessions().await, 0, "the server has stopped the query");
    assert_eq!(pool.stats().sources[0].unconfirmed, 0);
}

#[tokio::test]
async fn a_query_beyond_the_hard_life_is_killed_and_its_slot_is_used_again() {
    let Some((server, builder)) = Server::find("hard-life").await else { return };
    let builder = builder.max_open(1).lifetime_jitter(Duration::ZERO).guard_window(Duration::ZERO);
    let builder = builder.lead(Duration::ZERO).base_lifetime(Duration::from_secs(1));
    let pool = builder.hard_life(Some(Duration::from_millis(1100))).build().expect("valid");
    let session = pool.get().await.expect("a session");
    let answer = soon(session.query("SELECT pg_sleep(3600)", &[])).await;
    assert!(answer.expect_err("killed").is_closed());
    drop(session);
    drop(pool.get().await.expect("another session"));
    assert_eq!(pool.stats().sources[0].kills, 1);
    assert!(server.sessions().await <= 1);
    assert_eq!(pool.drain(LONG).await.left, 0);
    assert_eq!(server.sessions().await, 0);
}
