//! The Redis keeper on a real cluster: three masters on loopback and a replica of
//! one of them. FOREBAY_TEST_REDIS_SERVER is the program to start them with.

#![cfg(feature = "redis")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod redis_support;

use std::collections::BTreeSet;
use std::path::Path;

use forebay_fleet::{Answer, Keeper, KeeperError, Limits, Reserve};
use redis::aio::MultiplexedConnection;
use redis_support::{Player, Server, keeper, key, profile, raw, server_program, unique, until};

struct Cluster {
    masters: Vec<Server>,
    replica: Server,
    /// By master; each has a third of the slots.
    raws: Vec<MultiplexedConnection>,
}

async fn run(raw: &mut MultiplexedConnection, words: &[&str]) -> redis::Value {
    let mut cmd = redis::cmd(words[0]);
    cmd.arg(&words[1..]).query_async(raw).await.expect("an answer")
}

async fn text(raw: &mut MultiplexedConnection, words: &[&str]) -> String {
    redis::from_redis_value(run(raw, words).await).expect("text")
}

impl Cluster {
    async fn start(program: &Path) -> Self {
        let args = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"];
        let mut masters = Vec::new();
        let mut raws = Vec::new();
        for _ in 0..3 {
            masters.push(Server::start(program, &args).await);
        }
        for master in &masters {
            raws.push(raw(&master.url()).await);
        }
        let replica = Server::start(program, &args).await;
        let mut raw_replica = raw(&replica.url()).await;
        let first = masters[0].port.to_string();
        for (index, connection) in raws.iter_mut().enumerate() {
            let slots = index * 16384 / 3..(index + 1) * 16384 / 3;
            let mut cmd = redis::cmd("CLUSTER");
            cmd.arg("ADDSLOTS").arg(slots.collect::<Vec<_>>());
            cmd.exec_async(connection).await.expect("slots");
            run(connection, &["CLUSTER", "MEET", "127.0.0.1", &first]).await;
        }
        run(&mut raw_replica, &["CLUSTER", "MEET", "127.0.0.1", &first]).await;
        let id = text(&mut raws[0], &["CLUSTER", "MYID"]).await;
        until("the replica knows its master", async || {
            let mut cmd = redis::cmd("CLUSTER");
            cmd.arg("REPLICATE").arg(&id).exec_async(&mut raw_replica).await.ok()
        })
        .await;
        let mut all = raws.clone();
        all.push(raw_replica);
        for connection in &mut all {
            until("the cluster is whole", async || {
                let info = text(connection, &["CLUSTER", "INFO"]).await;
                let nodes = text(connection, &["CLUSTER", "NODES"]).await;
                let whole = info.contains("cluster_state:ok")
                    && info.contains("cluster_known_nodes:4")
                    && nodes.contains(" slave ") | nodes.contains("slave");
                whole.then_some(())
            })
            .await;
        }
        until("the replica is up to date", async || {
            let info = text(&mut raws[0], &["INFO", "replication"]).await;
            info.contains("state=online").then_some(())
        })
        .await;
        Self { masters, replica, raws }
    }

    fn url(&self) -> String {
        let nodes: Vec<String> = self
            .masters
            .iter()
            .chain([&self.replica])
            .map(|node| format!("127.0.0.1:{}", node.port))
            .collect();
        format!("redis+cluster://{}", nodes.join(","))
    }

    /// A backend whose slot a master has.
    async fn backend_on(&mut self, master: i64) -> String {
        loop {
            let backend = unique("cluster");
            let book = key(&backend, "book");
            let slot = run(&mut self.raws[0], &["CLUSTER", "KEYSLOT", &book]).await;
            let slot: i64 = redis::from_redis_value(slot).expect("a slot");
            if (master * 16384 / 3..(master + 1) * 16384 / 3).contains(&slot) {
                return backend;
            }
        }
    }
}

fn reserve(backend: &str) -> Reserve {
    let limits = Limits { open: 9, rate: 100, burst: 10, version: 0 };
    let (permits, max_wait_ms, nonce, ttl_ms) = (1, 30_000, 7, 1_000);
    Reserve { backend: backend.to_owned(), permits, limits, max_wait_ms, nonce, ttl_ms }
}

#[tokio::test]
async fn three_masters_keep_the_books_each_of_its_backends_and_a_failover_opens_a_window() {
    let Some(program) = server_program() else { return };
    let mut cluster = Cluster::start(&program).await;
    let keeper = keeper(&cluster.url());
    keeper.check().await.expect("usable");
    let mut players = Vec::new();
    for master in 0..3 {
        let backend = cluster.backend_on(master).await;
        assert!(keeper.setup(&backend).await.expect("a setup"));
        let mut short = profile(4);
        (short.ttl_ms, short.reclaim_ms) = (60_000, 60_000);
        let mut a = Player::new(&backend, "a", short.clone());
        let mut b = Player::new(&backend, "b", short);
        a.ask(&keeper, 0, 4).await;
        assert_eq!(b.ask(&keeper, 0, 1).await.held, 0);
        assert_eq!(a.ask(&keeper, 3, 3).await.total, 4);
        assert_eq!(b.ask(&keeper, 0, 1).await.held, 1);
        keeper.reserve(&reserve(&backend)).await.expect("permits");
        keeper.refused(&backend, &a.profile.limits).await.expect("noted");
        assert_eq!(keeper.inspect(&backend).await.expect("books").total, 4);
        players.push([a, b]);
    }
    // all keys of a backend lie on its own master
    let mut slots = BTreeSet::new();
    for (master, [a, _]) in players.iter().enumerate() {
        let keys = run(&mut cluster.raws[master], &["KEYS", &format!("*{}*", a.backend)]).await;
        let keys: Vec<String> = redis::from_redis_value(keys).expect("keys");
        assert!(keys.len() >= 10, "{keys:?}");
        for key in keys {
            let slot = run(&mut cluster.raws[0], &["CLUSTER", "KEYSLOT", &key]).await;
            slots.insert(redis::from_redis_value::<u32>(slot).expect("a slot"));
        }
    }
    assert_eq!(slots.len(), 3, "one slot for each backend");
    let mut listed = keeper.backends().await.expect("a list");
    let mut expected: Vec<String> = players.iter().map(|[a, _]| a.backend.clone()).collect();
    listed.sort();
    expected.sort();
    assert_eq!(listed, expected);
    announces(&keeper, &mut players[2]).await;

    cluster.masters[0].kill();
    let [a, _] = &mut players[0];
    let declaring = until("the replica has taken over", async || {
        let report = a.report(3, 3);
        match keeper.report(&report).await {
            Ok(Answer::Booked(booking)) => Some(booking),
            Ok(other) => panic!("{other:?}"),
            Err(KeeperError::Unusable { reason, .. }) => panic!("{reason}"),
            Err(_) => None,
        }
    })
    .await;
    assert!(declaring.declaring_ms > 0, "another server has the books: {declaring:?}");
    assert_eq!((declaring.held, declaring.total), (3, 4));
    let [a, _] = &mut players[1];
    assert_eq!(a.ask(&keeper, 3, 3).await.declaring_ms, 0, "the others go on");
}

/// In a cluster any node passes on what another one's script announces.
async fn announces(keeper: &forebay_fleet::RedisKeeper, [a, b]: &mut [Player; 2]) {
    let (sender, mut news) = tokio::sync::mpsc::unbounded_channel();
    let listening = async { panic!("{}", keeper.listen(sender).await) };
    let heard = until("a transfer is announced", async || {
        b.ask(keeper, 0, 4).await;
        a.ask(keeper, 0, 0).await;
        a.ask(keeper, 0, 4).await;
        news.try_recv().ok()
    });
    tokio::select! { () = listening => {}, _ = heard => {} }
}
