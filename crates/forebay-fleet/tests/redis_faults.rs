//! What the Redis keeper says of servers that cannot be used, or not by us: each
//! fault has its own words and a remedy, and no password is ever in them.

#![cfg(feature = "redis")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod redis_support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_fleet::{Keeper, KeeperError, RedisKeeper, RedisSettings};
use redis_support::{
    Player, Server, keeper, profile, raw, server_program, shared_url, unique, until,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// What the check says of a server that will not do.
async fn verdict(url: &str) -> String {
    let error = keeper(url).check().await.expect_err("it cannot be used");
    let text = error.to_string();
    println!("{text}");
    assert!(!text.contains("s3cret"), "{text}");
    text
}

fn says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

#[tokio::test]
async fn a_server_as_it_should_be_passes() {
    let Some(url) = shared_url() else { return };
    let (keeper, mut raw) = (keeper(&url), raw(&url).await);
    keeper.check().await.expect("usable");
    let mut cmd = redis::cmd("KEYS");
    let left: Vec<String> = cmd.arg("*forebay-check-*").query_async(&mut raw).await.expect("keys");
    assert!(left.is_empty(), "the check leaves nothing behind: {left:?}");
}

#[tokio::test]
async fn wrong_missing_and_weak_logins_are_told_apart() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program, &["--requirepass", "right"]).await;
    let at = format!("127.0.0.1:{}", server.port);
    says(&verdict(&format!("redis://:s3cret@{at}")).await, &["does not accept", "password"]);
    says(&verdict(&format!("redis://nobody:s3cret@{at}")).await, &["does not accept", "ACL LIST"]);
    says(&verdict(&format!("redis://{at}")).await, &["does not accept", "password()"]);
    let mut raw = raw(&format!("redis://:right@{at}")).await;
    let mut cmd = redis::cmd("ACL");
    cmd.arg(&["SETUSER", "weak", "on", ">s3cret", "~*", "&*", "+@all", "-zadd", "-publish"]);
    cmd.exec_async(&mut raw).await.expect("a user");
    let weak = verdict(&format!("redis://weak:s3cret@{at}")).await;
    says(&weak, &["may not", "ZADD", "PUBLISH", "fleet-redis.md"]);
    assert!(!weak.contains("HSET"), "{weak}");
    let mut cmd = redis::cmd("ACL");
    cmd.arg(&["SETUSER", "keyless", "on", ">s3cret", "~other:*", "&*", "+@all"]);
    cmd.exec_async(&mut raw).await.expect("a user");
    says(&verdict(&format!("redis://keyless:s3cret@{at}")).await, &["may not", "ACL SETUSER"]);
    // the wrong password of a running member
    let keeper = keeper(&format!("redis://:s3cret@{at}"));
    let report = Player::new(&unique("login"), "a", profile(1)).report(0, 1);
    let error = keeper.report(&report).await.expect_err("it is not let in");
    assert!(matches!(error, KeeperError::Unusable { .. }), "{error}");
}

/// Answers INFO, and nothing else.
async fn fake(info: &'static str) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut bytes = [0; 4096];
                while let Ok(count) = stream.read(&mut bytes).await {
                    if count == 0 {
                        return;
                    }
                    for _ in 0..bytes[..count].iter().filter(|byte| **byte == b'*').count() {
                        let answer = format!("${}\r\n{info}\r\n", info.len());
                        stream.write_all(answer.as_bytes()).await.expect("written");
                    }
                }
            });
        }
    });
    format!("redis://{address}")
}

#[tokio::test]
async fn an_old_server_is_named_with_what_is_needed() {
    let old =
        fake("redis_version:5.0.14\r\nredis_mode:standalone\r\nrole:master\r\nrun_id:abc\r\n")
            .await;
    says(&verdict(&old).await, &["5.0.14", "6.2", "upgrade"]);
    let nothing = fake("hello:there\r\n").await;
    says(&verdict(&nothing).await, &["makes no sense", "Redis server"]);
}

#[tokio::test]
async fn a_replica_is_refused_with_the_way_to_the_primary() {
    let Some(program) = server_program() else { return };
    let primary = Server::start(&program, &[]).await;
    let of = format!("127.0.0.1 {}", primary.port);
    let replica = Server::start(&program, &["--replicaof", &of]).await;
    let mut seen = raw(&replica.url()).await;
    until("the replica follows", async || {
        let mut cmd = redis::cmd("INFO");
        let info: String = cmd.arg("replication").query_async(&mut seen).await.expect("info");
        info.contains("master_link_status:up").then_some(())
    })
    .await;
    says(&verdict(&replica.url()).await, &["replica", "primary", "redis+sentinel"]);
    let keeper = keeper(&replica.url());
    let report = Player::new(&unique("replica"), "a", profile(1)).report(0, 1);
    let error = keeper.report(&report).await.expect_err("it takes no writes");
    says(&error.to_string(), &["read-only replica", "primary"]);
    // promoted, it is found without being told
    redis::cmd("REPLICAOF").arg(&["NO", "ONE"]).exec_async(&mut seen).await.expect("promoted");
    until("it takes writes", async || keeper.report(&report).await.ok()).await;
}

#[tokio::test]
async fn the_kind_of_servers_is_found_out_when_it_is_another_one() {
    let Some(program) = server_program() else { return };
    let node = Server::start(&program, &["--cluster-enabled", "yes"]).await;
    says(&verdict(&node.url()).await, &["node of a cluster", "redis+cluster"]);
    let plain = Server::start(&program, &[]).await;
    let cluster = plain.url().replace("redis://", "redis+cluster://");
    says(&verdict(&cluster).await, &["not part of a cluster", "redis or rediss"]);
    says(&verdict(&format!("{}/99", plain.url())).await, &["no database", "databases"]);
    let sentinel = plain.url().replace("redis://", "redis+sentinel://") + "/main";
    says(&verdict(&sentinel).await, &["not a sentinel", "sentinels"]);
    let mut guard = Server::new(&program, &["--sentinel"]);
    let port = guard.port;
    guard.run_file("sentinel.conf", &format!("port {port}\nbind 127.0.0.1\n"));
    guard.is_up().await;
    says(&verdict(&guard.url()).await, &["sentinel"]);
    let unknown = format!("redis+sentinel://127.0.0.1:{port}/main");
    says(&verdict(&unknown).await, &["no primary", "main", "SENTINEL MASTERS"]);
    // TLS where there is none is an error, and not a wait for ever
    let tls = plain.url().replace("redis://", "rediss://");
    let settings = RedisSettings::from_url(&tls).expect("valid");
    let keeper = RedisKeeper::new(settings.dial_timeout(Duration::from_millis(300)));
    let error = keeper.expect("valid").check().await.expect_err("no TLS there");
    says(&error.to_string(), &["no TLS", "begin the URL with redis"]);
}

#[tokio::test]
async fn nobody_at_the_address_is_said_soon() {
    let text = verdict(&format!("redis://127.0.0.1:{}", redis_support::free_port())).await;
    says(&text, &["away", "refused", "running"]);
    // a host that accepts and says nothing
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = silent.local_addr().expect("an address");
    let settings = RedisSettings::from_url(&format!("redis://:s3cret@{address}")).expect("valid");
    let short = Duration::from_millis(50);
    let settings = settings.dial_timeout(short).read_timeout(short).write_timeout(short);
    let keeper = RedisKeeper::new(settings).expect("valid");
    let report = Player::new("silent", "a", profile(1)).report(0, 1);
    let error = keeper.report(&report).await.expect_err("no answer");
    assert!(matches!(error, KeeperError::Away { .. }), "{error}");
    drop(silent);
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    let valid = || RedisSettings::from_url("redis://:s3cret@host").expect("valid");
    let wrong = [
        (valid().pool_size(0), "pool_size"),
        (valid().dial_timeout(Duration::ZERO), "dial_timeout"),
        (valid().read_timeout(Duration::from_secs(6000)), "read_timeout"),
        (valid().reconnect(Duration::from_secs(2), Duration::from_secs(1)), "swap"),
        (valid().keep(Duration::from_secs(1)), "kept"),
        (valid().ca_file("/nowhere"), "rediss"),
        (RedisSettings::from_url("rediss://host").expect("valid").ca_file("/nowhere"), "/nowhere"),
        (RedisSettings::from_url("redis://me@host").expect("valid"), "user without a password"),
        (RedisSettings::from_url("redis+cluster://host/1").expect("valid"), "only database 0"),
    ];
    for (settings, expected) in wrong {
        assert!(!format!("{settings:?}").contains("s3cret"));
        let error = RedisKeeper::new(settings).expect_err(expected).to_string();
        says(&error, &[expected]);
        assert!(!error.contains("s3cret"), "{error}");
    }
    let keeper = RedisKeeper::new(valid()).expect("valid");
    assert!(!format!("{keeper:?}").contains("s3cret"));
}

/// Collects warnings.
struct Warnings(Arc<Mutex<String>>);

struct Words<'a>(&'a mut String);

impl tracing::field::Visit for Words<'_> {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!("{field}={value:?} "));
    }
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut Words(&mut self.0.lock().expect("not poisoned")));
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn a_server_that_may_evict_the_books_is_warned_about() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program, &["--maxmemory-policy", "allkeys-lru"]).await;
    let said = Arc::new(Mutex::new(String::new()));
    let guard = tracing::subscriber::set_default(Warnings(said.clone()));
    keeper(&server.url()).check().await.expect("usable all the same");
    drop(guard);
    says(&said.lock().expect("not poisoned"), &["allkeys-lru", "noeviction"]);
}
