//! A connection that dies while it is idle is replaced before anybody draws it.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay::{Connector, Discard, LetGo, Lost, Opened, Pool};

/// Hands out numbered connections and keeps the way to tell that each is lost.
#[derive(Clone, Default)]
struct Wires(Arc<Mutex<Vec<Lost>>>);

impl Connector for Wires {
    type Conn = usize;
    type Key = ();
    type Error = std::io::Error;

    async fn connect(&self, _key: &()) -> Result<Opened<usize>, std::io::Error> {
        let lost = Lost::new();
        let mut wires = self.0.lock().expect("wires");
        wires.push(lost.clone());
        Ok(Opened::new(wires.len() - 1).with_lost(lost))
    }

    async fn close(&self, _conn: usize) -> LetGo {
        LetGo::Confirmed
    }
}

impl Wires {
    fn cut(&self, id: usize) {
        let lost = self.0.lock().expect("wires")[id].clone();
        lost.tell();
    }
}

async fn pool(wires: &Wires) -> Pool<Wires> {
    let pool = Pool::builder(wires.clone()).max_open(4).stagger(None).build().expect("a pool");
    pool.ready(4, Duration::from_secs(5)).await.expect("filled");
    pool
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_that_dies_is_replaced_before_it_is_drawn() {
    let wires = Wires::default();
    let pool = pool(&wires).await;
    wires.cut(1);
    wires.cut(1);
    tokio::time::sleep(Duration::from_millis(10)).await;
    let stats = pool.stats();
    assert_eq!(stats.sources[0].ready, 4);
    assert_eq!(stats.sources[0].discarded(Discard::Broken), 1);
    let drawn: Vec<_> = (0..4).map(|_| pool.try_get().expect("ready")).collect();
    assert!(drawn.iter().all(|conn| **conn != 1));
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn a_connection_in_use_is_left_to_its_user() {
    let wires = Wires::default();
    let pool = pool(&wires).await;
    let conn = pool.get().await.expect("a connection");
    wires.cut(*conn);
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(pool.stats().sources[0].in_use, 1);
    drop(conn);
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn news_of_a_connection_that_is_gone_do_not_touch_its_successor() {
    let wires = Wires::default();
    let pool = pool(&wires).await;
    let conn = pool.get().await.expect("a connection");
    let id = *conn;
    conn.discard(Discard::Broken);
    tokio::time::sleep(Duration::from_millis(10)).await;
    wires.cut(id);
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(pool.stats().sources[0].opened, 5);
    assert_eq!(pool.stats().sources[0].ready, 4);
}
