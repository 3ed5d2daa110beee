//! The Redis keeper and servers that are restarted, flushed, fail over, or let in
//! only who has a certificate and a password. Each test starts servers of its own
//! with the program that FOREBAY_TEST_REDIS_SERVER names.

#![cfg(feature = "redis")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod redis_support;

use std::path::Path;
use std::time::{Duration, Instant};

use forebay_fleet::{Answer, Booking, Keeper, KeeperError, Limits, RedisKeeper, Reserve};
use redis_support::{Player, Server, keeper, key, profile, raw, server_program, unique, until};

/// Reports until the keeper is there again.
async fn ask_until_back(
    player: &mut Player,
    keeper: &RedisKeeper,
    held: u32,
    want: u32,
) -> Booking {
    until("the keeper comes back", async || {
        let report = player.report(held, want);
        match keeper.report(&report).await {
            Ok(Answer::Booked(booking)) => Some(booking),
            Ok(other) => panic!("{other:?}"),
            Err(KeeperError::Away { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    })
    .await
}

fn reserve(backend: &str) -> Reserve {
    let limits = Limits { open: 9, rate: 100, burst: BURST, version: 0 };
    let (permits, max_wait_ms, nonce, ttl_ms) = (1, 30_000, 7, 1_000);
    Reserve { backend: backend.to_owned(), permits, limits, max_wait_ms, nonce, ttl_ms }
}

/// A minute's worth, so that a full bucket is told from an empty one whatever the test is late by.
const BURST: u32 = 6000;

/// Of members that are to see a window end.
const TTL_MS: u64 = 600;

/// Two members with 6 of 9 leases.
async fn two(keeper: &RedisKeeper, backend: &str, ttl_ms: u64) -> [Player; 2] {
    keeper.setup(backend).await.expect("a setup");
    let mut short = profile(9);
    short.limits.burst = BURST;
    (short.ttl_ms, short.reclaim_ms, short.heartbeat_ms) = (ttl_ms, ttl_ms, 100);
    let mut players = ["a", "b"].map(|name| Player::new(backend, name, short.clone()));
    for player in &mut players {
        player.ask(keeper, 0, 3).await;
        player.ask(keeper, 3, 3).await;
    }
    players
}

/// What must hold after data was lost or may have been: members declare, nothing is
/// granted for one ttl, the bucket is empty, and then everything goes on.
async fn declares(keeper: &RedisKeeper, backend: &str, [a, b]: &mut [Player; 2]) {
    let begun = Instant::now();
    let held = a.held;
    let first = ask_until_back(a, keeper, held, 9).await;
    assert!(first.declaring_ms > 0, "{first:?}");
    assert_eq!(first.held, held, "nothing is granted while the books are rebuilt");
    let reserved = keeper.reserve(&reserve(backend)).await.expect("an answer");
    // a full one would be a minute ahead
    assert!(reserved.lead_us > -30_000_000, "the bucket begins empty: {reserved:?}");
    let second = ask_until_back(b, keeper, 3, 3).await;
    assert_eq!((second.held, second.total), (3, 3 + held), "what members say is booked");
    until("the window ends", async || {
        b.ask(keeper, 3, 3).await;
        let booking = a.ask(keeper, held, 6).await;
        (booking.held == 6).then_some(booking)
    })
    .await;
    assert!(begun.elapsed() >= Duration::from_millis(TTL_MS), "the window lasts one ttl");
    assert_eq!(keeper.inspect(backend).await.expect("books").total, 9);
}

#[tokio::test]
async fn after_a_flush_members_declare_what_they_hold() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program, &[]).await;
    let (keeper, backend) = (keeper(&server.url()), unique("flush"));
    let mut players = two(&keeper, &backend, TTL_MS).await;
    let mut raw = raw(&server.url()).await;
    redis::cmd("FLUSHALL").exec_async(&mut raw).await.expect("flushed");
    declares(&keeper, &backend, &mut players).await;
    assert_eq!(keeper.backends().await.expect("a list"), [backend], "listed again");
}

#[tokio::test]
async fn scripts_are_given_again_to_a_server_that_forgot_them() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program, &[]).await;
    let (keeper, backend) = (keeper(&server.url()), unique("scripts"));
    let [mut a, _] = two(&keeper, &backend, 60_000).await;
    let mut raw = raw(&server.url()).await;
    redis::cmd("SCRIPT").arg("FLUSH").exec_async(&mut raw).await.expect("flushed");
    let booking = a.ask(&keeper, 3, 4).await;
    assert_eq!((booking.held, booking.declaring_ms), (4, 0), "no other consequence");
    redis::cmd("SCRIPT").arg("FLUSH").exec_async(&mut raw).await.expect("flushed");
    keeper.reserve(&reserve(&backend)).await.expect("permits");
    keeper.refused(&backend, &a.profile.limits).await.expect("noted");
}

#[tokio::test]
async fn after_a_restart_without_data_members_declare_what_they_hold() {
    let Some(program) = server_program() else { return };
    let mut server = Server::start(&program, &[]).await;
    let (keeper, backend) = (keeper(&server.url()), unique("restart"));
    let mut players = two(&keeper, &backend, TTL_MS).await;
    let before = keeper.inspect(&backend).await.expect("books").generation;
    server.restart().await;
    declares(&keeper, &backend, &mut players).await;
    assert_ne!(keeper.inspect(&backend).await.expect("books").generation, before);
}

#[tokio::test]
async fn after_a_restart_with_data_the_other_run_id_opens_a_window() {
    let Some(program) = server_program() else { return };
    let persistent = ["--appendonly", "yes", "--appendfsync", "always"];
    let mut server = Server::start(&program, &persistent).await;
    let (keeper, backend) = (keeper(&server.url()), unique("restart"));
    let mut players = two(&keeper, &backend, TTL_MS).await;
    let before = keeper.inspect(&backend).await.expect("books").generation;
    server.restart().await;
    declares(&keeper, &backend, &mut players).await;
    assert_eq!(keeper.inspect(&backend).await.expect("books").generation, before);
}

#[tokio::test]
async fn while_the_server_is_gone_calls_fail_at_once() {
    let Some(program) = server_program() else { return };
    let mut server = Server::start(&program, &[]).await;
    let (keeper, backend) = (keeper(&server.url()), unique("gone"));
    let [mut a, _] = two(&keeper, &backend, 60_000).await;
    server.kill();
    for _ in 0..3000 {
        let report = a.report(3, 3);
        let error = keeper.report(&report).await.expect_err("nobody is there");
        assert!(matches!(error, KeeperError::Away { .. }), "{error}");
    }
    server.run();
    server.is_up().await;
    assert!(ask_until_back(&mut a, &keeper, 3, 3).await.declaring_ms > 0);
}

#[tokio::test]
async fn many_calls_at_once_share_a_bounded_number_of_connections() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program, &[]).await;
    let settings = forebay_fleet::RedisSettings::from_url(&server.url()).expect("a valid url");
    let keeper = RedisKeeper::new(settings.pool_size(3)).expect("valid settings");
    let keeper = std::sync::Arc::new(keeper);
    let mut raw = raw(&server.url()).await;
    let mut clients = async || -> usize {
        let list: String =
            redis::cmd("CLIENT").arg("LIST").query_async(&mut raw).await.expect("a list");
        // one of them is ours
        list.lines().count() - 1
    };
    keeper.setup("one").await.expect("a setup");
    assert_eq!(clients().await, 1, "one call, one connection");
    let mut tasks = tokio::task::JoinSet::new();
    for index in 0..1000 {
        let keeper = keeper.clone();
        tasks.spawn(async move { keeper.setup(&format!("backend-{index}")).await });
    }
    while let Some(done) = tasks.join_next().await {
        assert!(done.expect("no panic").expect("a setup"));
    }
    let open = clients().await;
    assert!((2..=3).contains(&open), "{open} connections");
}

/// Stops a server, so that it answers nobody and keeps its connections.
fn signal(server: &Server, name: &str) {
    let mut command = std::process::Command::new("kill");
    let done = command.arg(format!("-{name}")).arg(server.id().to_string()).status();
    assert!(done.expect("kill runs").success());
}

#[tokio::test]
async fn a_connection_that_went_silent_is_replaced_though_callers_give_up_sooner() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program, &[]).await;
    let (keeper, backend) = (keeper(&server.url()), unique("silent"));
    let [mut a, _] = two(&keeper, &backend, 60_000).await;
    let mut raw = raw(&server.url()).await;
    let accepted = async |raw: &mut redis::aio::MultiplexedConnection| -> u64 {
        let mut cmd = redis::cmd("INFO");
        let info: String = cmd.arg("stats").query_async(raw).await.expect("statistics");
        let line = info.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        line.expect("a count").trim().parse().expect("a number")
    };
    let before = accepted(&mut raw).await;
    signal(&server, "STOP");
    for _ in 0..3 {
        let report = a.report(3, 3);
        let call = tokio::time::timeout(Duration::from_millis(50), keeper.report(&report)).await;
        assert!(!matches!(call, Ok(Ok(_))), "a stopped server answers nobody");
    }
    signal(&server, "CONT");
    ask_until_back(&mut a, &keeper, 3, 3).await;
    assert!(accepted(&mut raw).await > before, "there is a new connection");
}

#[tokio::test]
async fn a_failover_by_sentinel_to_a_stale_replica_is_followed_and_noticed() {
    let Some(program) = server_program() else { return };
    let mut primary = Server::start(&program, &[]).await;
    let of = format!("127.0.0.1 {}", primary.port);
    let replica = Server::start(&program, &["--replicaof", &of]).await;
    let mut seen = raw(&replica.url()).await;
    until("the replica follows", async || {
        let mut cmd = redis::cmd("INFO");
        let info: String = cmd.arg("replication").query_async(&mut seen).await.expect("info");
        info.contains("master_link_status:up").then_some(())
    })
    .await;
    let mut sentinel = Server::new(&program, &["--sentinel"]);
    let text = format!(
        "port {}\nbind 127.0.0.1\ndir {}\nsentinel monitor fleet 127.0.0.1 {} 1\n\
         sentinel down-after-milliseconds fleet 500\nsentinel failover-timeout fleet 5000\n",
        sentinel.port,
        sentinel.directory.display(),
        primary.port
    );
    sentinel.run_file("sentinel.conf", &text);
    sentinel.is_up().await;
    let url = format!("redis+sentinel://127.0.0.1:{}/fleet", sentinel.port);
    let (keeper, backend) = (keeper(&url), unique("failover"));
    keeper.check().await.expect("usable");
    let mut asked = raw(&sentinel.url()).await;
    until("the sentinel knows the replica", async || {
        let mut cmd = redis::cmd("INFO");
        let info: String = cmd.arg("sentinel").query_async(&mut asked).await.expect("info");
        info.contains("slaves=1").then_some(())
    })
    .await;
    let mut players = two(&keeper, &backend, TTL_MS).await;
    // from here on the replica misses what the primary books
    redis::cmd("REPLICAOF").arg("127.0.0.1").arg("1").exec_async(&mut seen).await.expect("cut off");
    assert_eq!(players[0].ask(&keeper, 3, 5).await.held, 5);
    primary.kill();
    declares(&keeper, &backend, &mut players).await;
    // its promotion closed the old one
    let mut seen = raw(&replica.url()).await;
    let cmd = redis::cmd("ROLE");
    let role: Vec<redis::Value> = cmd.query_async(&mut seen).await.expect("a role");
    assert_eq!(role[0], redis::Value::BulkString(b"master".to_vec()), "it has taken over");
    let books: u32 = redis::cmd("GET")
        .arg(key(&backend, "count"))
        .query_async(&mut seen)
        .await
        .expect("the new primary has the books");
    assert_eq!(books, 9);
}

/// An authority, a server's certificate and a client's, as files.
fn certificates(directory: &Path) {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
    let write = |name: &str, text: String| {
        std::fs::write(directory.join(name), text).expect("a file");
    };
    let authority_key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.distinguished_name.push(DnType::CommonName, "authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    write("ca.pem", params.self_signed(&authority_key).expect("an authority").pem());
    let issuer = Issuer::new(params, authority_key);
    for (name, host) in [("server", "127.0.0.1"), ("client", "client")] {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec![host.to_owned()]).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, name);
        let cert = params.signed_by(&key, &issuer).expect("a certificate");
        write(&format!("{name}.pem"), cert.pem());
        write(&format!("{name}.key"), key.serialize_pem());
    }
}

#[tokio::test]
async fn tls_with_a_client_certificate_and_an_acl_user_with_the_least_permissions() {
    use forebay_fleet::{RedisKeeper, RedisSettings};
    let Some(program) = server_program() else { return };
    let mut server = Server::new(&program, &[]);
    certificates(&server.directory);
    let file = |name: &str| server.directory.join(name);
    // exactly what docs/fleet-redis.md says
    let document = include_str!("../../../docs/fleet-redis.md");
    let grant = document.lines().find_map(|line| line.strip_prefix("ACL SETUSER forebay "));
    let grant = grant.expect("the document grants permissions").replace(">PASSWORD", ">s3cret");
    std::fs::write(file("users.acl"), format!("user default off\nuser forebay {grant}\n"))
        .expect("a file of users");
    let text = format!(
        "port 0\ntls-port {port}\nbind 127.0.0.1\nsave \"\"\ndir {dir}\naclfile {dir}/users.acl\n\
         tls-cert-file {dir}/server.pem\ntls-key-file {dir}/server.key\n\
         tls-ca-cert-file {dir}/ca.pem\ntls-auth-clients yes\n",
        port = server.port,
        dir = server.directory.display()
    );
    let (ca, cert, client_key) = (file("ca.pem"), file("client.pem"), file("client.key"));
    server.run_file("redis.conf", &text);
    server.is_up().await;
    let url = format!("rediss://forebay:s3cret@127.0.0.1:{}", server.port);
    let settings = RedisSettings::from_url(&url).expect("a valid url");
    let open = RedisKeeper::new(settings.clone().ca_file(&ca).client_cert(&cert, &client_key));
    let keeper = open.expect("valid settings");
    keeper.check().await.expect("the documented permissions are enough");
    let backend = unique("tls");
    let mut players = two(&keeper, &backend, TTL_MS).await;
    assert_eq!(players[0].ask(&keeper, 3, 4).await.held, 4);
    assert_eq!(keeper.backends().await.expect("a list"), std::slice::from_ref(&backend));
    keeper.inspect(&backend).await.expect("books");
    keeper.reserve(&reserve(&backend)).await.expect("permits");
    keeper.refused(&backend, &players[0].profile.limits).await.expect("noted");
    // announcements as well
    let (sender, mut news) = tokio::sync::mpsc::unbounded_channel();
    let listening = async { panic!("{}", keeper.listen(sender).await) };
    let heard = async {
        until("something is announced", async || {
            keeper.reap(&backend, &players[0].member).await.expect("reaped");
            players[0].member = forebay_fleet::MemberId::new("a", fastrand::u64(..));
            players[0].seq = 0;
            players[0].ask(&keeper, 0, 9).await;
            players[1].ask(&keeper, 0, 9).await;
            news.try_recv().ok()
        })
        .await
    };
    tokio::select! { () = listening => {}, _ = heard => {} }
    // and without the authority's certificate nobody is trusted
    let distrustful = RedisKeeper::new(settings.client_cert(&cert, &client_key));
    let error = distrustful.expect("valid settings").check().await.expect_err("an unknown issuer");
    let text = error.to_string();
    assert!(text.contains("ca_file") && !text.contains("s3cret"), "{text}");
}
