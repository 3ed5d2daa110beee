//! Members with pools behind them, on one table: they come to even holdings, never
//! have more open than the limit, and leave nothing behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use forebay::{Clock, Connector, Killer, LetGo, Opened, Pool};
use forebay_fleet::{BackendLimits, Keeper, Link, Member, MemberSettings};

use crate::common::{Place, agree};
use crate::conformance::{backend, set_up};

const LIMIT: u32 = 12;

/// Counts what is open.
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
        let open = self.open.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(open, Ordering::SeqCst);
        Ok(Opened::new(Conn(self.open.clone())).with_killer(Killer::new(|| {})))
    }

    async fn close(&self, conn: Conn) -> LetGo {
        drop(conn);
        LetGo::Confirmed
    }
}

#[tokio::test]
async fn members_come_to_even_holdings_within_the_limit() {
    let Some(place) = Place::find("members").await else { return };
    let name = backend("members");
    set_up(&place.keeper(), &name).await;
    let db = Db::default();
    let mut fleet = Vec::new();
    for i in 0..3 {
        let mut settings = MemberSettings::new(format!("m{i}"), "web");
        settings.heartbeat = Duration::from_millis(500);
        settings.request_timeout = Duration::from_secs(5);
        let keeper: Arc<dyn Keeper> = Arc::new(place.keeper());
        let member = Member::spawn(settings, keeper, Clock::tokio()).expect("a member");
        let budgets = member.backend(&name, BackendLimits::new(LIMIT, 100, 100)).expect("new");
        let pool = Pool::builder(db.clone())
            .max_open(LIMIT)
            .stagger(None)
            .count(budgets.count)
            .rate(budgets.rate)
            .build()
            .expect("a pool");
        fleet.push((member, pool));
    }
    let even = async {
        loop {
            let ready = fleet.iter().map(|(_, pool)| pool.stats().sources[0].ready);
            if ready.eq([LIMIT / 3; 3]) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    if tokio::time::timeout(Duration::from_secs(60), even).await.is_err() {
        let states: Vec<_> = fleet.iter().map(|(member, _)| member.state()).collect();
        panic!("not even after a minute: {states:#?}");
    }
    assert!(db.most.load(Ordering::SeqCst) <= LIMIT);
    assert_eq!(agree(&place, &place.keeper(), &name).await, LIMIT);
    for (member, pool) in fleet {
        pool.drain(Duration::from_secs(20)).await;
        assert_eq!(member.state()[0].link, Link::Current);
        assert!(member.leave(Duration::from_secs(20)).await, "left in time");
    }
    assert_eq!(agree(&place, &place.keeper(), &name).await, 0);
    assert!(db.most.load(Ordering::SeqCst) <= LIMIT);
}
