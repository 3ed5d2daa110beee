//! A few members and pools in one process, under paused time.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use forebay::{Clock, Connector, Killer, LetGo, Opened, Pool};
use forebay_fleet::{BackendLimits, Keeper, Link, Member, MemberSettings, ModelKeeper};

#[derive(Clone, Default)]
struct Db {
    open: Arc<AtomicU32>,
    most: Arc<AtomicU32>,
}

struct Conn(Arc<AtomicU32>);

impl Drop for Conn {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Connector for Db {
    type Conn = Conn;
    type Key = ();
    type Error = std::io::Error;
    const KILLS: bool = true;

    async fn connect(&self, _key: &()) -> Result<Opened<Conn>, std::io::Error> {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let open = self.open.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(open, Ordering::SeqCst);
        Ok(Opened::new(Conn(self.open.clone())).with_killer(Killer::new(|| {})))
    }

    async fn close(&self, conn: Conn) -> LetGo {
        drop(conn);
        LetGo::Confirmed
    }
}

#[tokio::test(start_paused = true)]
async fn members_share_a_limit_fairly() {
    let clock = Clock::tokio();
    let keeper = Arc::new(ModelKeeper::new(clock.clone()));
    keeper.setup("db").await.expect("setup");
    let db = Db::default();
    let mut pools = Vec::new();
    let mut members = Vec::new();
    for i in 0..3 {
        let settings =
            MemberSettings { seed: Some(i), ..MemberSettings::new(format!("m{i}"), "web") };
        let member = Member::spawn(settings, keeper.clone(), clock.clone()).expect("member");
        let backend = member.backend("db", BackendLimits::new(40, 100, 100)).expect("backend");
        let pool = Pool::builder(db.clone())
            .max_open(30)
            .stagger(None)
            .count(backend.count.clone())
            .rate(backend.rate.clone())
            .build()
            .expect("pool");
        pools.push(pool);
        members.push(member);
    }
    for t in 0..12 {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let stats: Vec<u32> = pools.iter().map(|pool| pool.stats().sources[0].ready).collect();
        let ledger = keeper.ledger("db").expect("books");
        println!("{t} {stats:?} total {} most {}", ledger.total(), db.most.load(Ordering::SeqCst));
    }
    let stats: Vec<u32> = pools.iter().map(|pool| pool.stats().sources[0].ready).collect();
    assert_eq!(stats.iter().sum::<u32>(), 40);
    assert!(stats.iter().all(|n| (13..=14).contains(n)), "{stats:?}");
    assert!(db.most.load(Ordering::SeqCst) <= 40);
    for pool in pools {
        pool.drain(Duration::from_secs(5)).await;
    }
    for member in members {
        assert_eq!(member.state()[0].link, Link::Current);
        assert!(member.leave(Duration::from_secs(5)).await);
    }
    assert_eq!(keeper.ledger("db").expect("books").members.len(), 0);
}
