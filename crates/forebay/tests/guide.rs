//! The snippets of docs/library.md, compiled and run. The last test holds the
//! two together: every snippet of the guide stands in this file, line by line.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use common::Yard;
use forebay::{
    Connector, Discard, Event, Failure, GetError, GetOptions, Guard, Killer, LetGo, LocalCount,
    LocalRate, Observer, Opened, Phase, Pool, Priority, Rate, Returned, Settings, SourceSpec,
};
use tokio::net::{TcpListener, TcpStream};
use wire::Wire;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Stands for a driver: what a connector needs to know of one.
mod wire {
    use std::io;
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    pub(crate) struct Wire {
        closed: Arc<AtomicBool>,
        pub(crate) mid_reply: bool,
        pub(crate) dirty: bool,
    }

    pub(crate) struct Socket(Arc<AtomicBool>);

    impl Socket {
        pub(crate) fn shutdown(&self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    impl Wire {
        pub(crate) async fn connect(_server: SocketAddr) -> io::Result<Self> {
            Ok(Self { closed: Arc::default(), mid_reply: false, dirty: false })
        }

        pub(crate) fn socket(&self) -> Socket {
            Socket(self.closed.clone())
        }

        pub(crate) fn is_closed(&self) -> bool {
            self.closed.load(Ordering::SeqCst)
        }

        pub(crate) async fn send(&mut self, words: &str) -> io::Result<()> {
            self.dirty = words != "RESET SESSION";
            Ok(())
        }

        pub(crate) async fn until_end_of_file(self) -> io::Result<()> {
            Ok(())
        }
    }
}

struct Tcp(SocketAddr);

impl Connector for Tcp {
    type Conn = TcpStream;
    type Key = ();
    type Error = io::Error;

    async fn connect(&self, _key: &()) -> io::Result<Opened<TcpStream>> {
        Ok(Opened::new(TcpStream::connect(self.0).await?))
    }
}

#[tokio::test]
async fn a_pool_in_ten_lines() -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let pool = Pool::builder(Tcp(address)).max_open(50).target_ready(20).build()?;

    let conn = pool.get().await?; // a guard: derefs to the TcpStream
    conn.set_nodelay(true)?;
    drop(conn); // back in the pool

    pool.drain(Duration::from_secs(15)).await;
    Ok(())
}

struct Db {
    server: SocketAddr,
}

impl Connector for Db {
    type Conn = Wire;
    type Key = ();
    type Error = io::Error;

    async fn connect(&self, _key: &()) -> io::Result<Opened<Wire>> {
        let wire = Wire::connect(self.server).await?;
        let socket = wire.socket();
        Ok(Opened::new(wire).with_killer(Killer::new(move || socket.shutdown())))
    }

    fn is_broken(&self, wire: &Wire) -> bool {
        wire.is_closed()
    }

    fn state(&self, wire: &mut Wire) -> Returned {
        if wire.mid_reply {
            Returned::Unknown
        } else if wire.dirty {
            Returned::NeedsReset
        } else {
            Returned::Clean
        }
    }

    async fn reset(&self, wire: &mut Wire) -> io::Result<()> {
        wire.send("RESET SESSION").await
    }

    async fn check(&self, wire: &mut Wire) -> io::Result<()> {
        wire.send("PING").await
    }

    async fn close(&self, wire: Wire) -> LetGo {
        match wire.until_end_of_file().await {
            Ok(()) => LetGo::Confirmed,
            Err(_) => LetGo::Unconfirmed,
        }
    }

    fn classify(&self, error: &io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Failure::Refused,
            io::ErrorKind::PermissionDenied => Failure::Credentials,
            _ => Failure::Unknown,
        }
    }
}

fn db() -> Db {
    Db { server: SocketAddr::from(([127, 0, 0, 1], 5432)) }
}

#[tokio::test(start_paused = true)]
async fn a_connector_with_every_method() -> Outcome {
    let pool = Pool::builder(db()).max_open(1).stagger(None).build()?;
    pool.get().await?.send("SET TIMEZONE").await?;
    pool.get().await?.mid_reply = true;
    assert!(!pool.get().await?.dirty);
    assert_eq!(pool.stats().discarded(Discard::UnknownState), 1);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn budgets_shared_by_pools() -> Outcome {
    let (orders, billing) = (Yard::new(), Yard::new());
    let rate = LocalRate::shared(Rate::new(100, 1000)?); // 100 a second, 1000 at once
    let count = LocalCount::shared(60);

    let orders = Pool::builder(orders).max_open(50).rate(rate.clone()).count(count.clone());
    let billing = Pool::builder(billing).max_open(50).rate(rate).count(count.clone());
    let (orders, billing) = (orders.build()?, billing.build()?);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!((count.held(), orders.stats().open() + billing.stats().open()), (60, 60));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn several_sources_and_throttling() -> Outcome {
    let (first, second) = (Yard::new(), Yard::new());
    let settings = Settings { max_open: 52, target_ready: Some(4), ..Settings::default() };
    let pool = Pool::over([
        SourceSpec::new("user-1", first).settings(settings.clone()),
        SourceSpec::new("user-2", second).settings(settings),
    ])
    .max_retry_after(Some(Duration::from_secs(60)))
    .build()?;

    let conn = pool.get().await?;
    // the backend answered 429 with Retry-After: 30
    conn.throttled(Duration::from_secs(30));
    let busy = conn.source();
    drop(conn);

    let conn = pool.get().await?;
    assert_ne!(conn.source(), busy, "the other one serves meanwhile");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn keys() -> Outcome {
    let connector = Yard::new();
    let pool = Pool::builder(connector).max_open(20).prefill([1, 2]).build()?;
    let conn = pool.get_with(GetOptions::new().key(7)).await?;
    assert_eq!(conn.key, 7);
    Ok(())
}

async fn is_alive(pool: &Pool<Db>) -> bool {
    let options = GetOptions::new().priority(Priority::Health).timeout(Duration::from_secs(2));
    match pool.get_with(options).await {
        Ok(mut conn) => conn.send("PING").await.is_ok(),
        Err(_) => false,
    }
}

#[tokio::test(start_paused = true)]
async fn priorities() -> Outcome {
    let pool = Pool::builder(db()).max_open(1).stagger(None).build()?;
    assert!(is_alive(&pool).await);
    let _held = pool.get().await?;
    assert!(!is_alive(&pool).await);
    Ok(())
}

async fn checkout(pool: &Pool<Db>) -> Result<Guard<Db>, String> {
    let options = GetOptions::new().timeout(Duration::from_secs(2));
    match pool.get_with(options).await {
        Ok(conn) => Ok(conn),
        Err(GetError::Timeout(timeout)) => Err(match timeout.phase {
            Phase::Queue => format!("all {} connections are in use", timeout.in_use),
            Phase::Throttle => "the backend asked us to wait".to_owned(),
            Phase::Lease => "the fleet holds every connection it may".to_owned(),
            Phase::Rate => format!("{} ahead, opening too slowly", timeout.ahead),
            _ => timeout.to_string(),
        }),
        Err(GetError::QueueFull { waiting, .. }) => Err(format!("{waiting} wait already")),
        Err(error) => Err(error.to_string()),
    }
}

#[tokio::test(start_paused = true)]
async fn deadlines() -> Outcome {
    let pool = Pool::builder(db()).max_open(1).stagger(None).build()?;
    let _held = checkout(&pool).await?;
    assert_eq!(checkout(&pool).await.err().as_deref(), Some("all 1 connections are in use"));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn giving_back() -> Outcome {
    let pool = Pool::builder(db()).max_open(3).stagger(None).build()?;
    let conn = pool.get().await?;
    conn.discard(Discard::Broken); // closed, not given back

    let conn = pool.get().await?;
    let mut kept = conn.detach(); // yours for good, and still counted
    kept.send("LISTEN").await?;
    drop(kept); // closed; its place is free once the backend has let go
    assert_eq!(pool.stats().discarded(Discard::Broken), 1);
    Ok(())
}

struct Log;

impl Observer for Log {
    fn event(&self, event: &Event) {
        match event {
            Event::OpenFailed { source, reason, error } => {
                eprintln!("{source}: {reason} failed: {error}");
            }
            Event::Low { source, low: true } => eprintln!("{source}: stock is low"),
            _ => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn watching() -> Outcome {
    let connector = Yard::new();
    let pool = Pool::builder(connector).observer(Log).build()?;
    pool.filled().await?;

    let stats = pool.stats();
    println!("{} ready, {} in use, {} waiting", stats.ready(), stats.in_use(), stats.waiting);
    println!("99 % of checkouts waited at most {:?}", stats.wait.quantile(0.99));
    for source in &stats.sources {
        println!("{}: opened {}, wasted {}", source.name, source.opened, source.wasted);
        println!("{}: too old {}", source.name, source.discarded(Discard::ExpiringSoonOnScan));
    }
    assert_eq!(stats.ready(), 100);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn draining() -> Outcome {
    let pool = Pool::builder(db()).max_open(3).stagger(None).build()?;
    let held = pool.get().await?;
    let drained = pool.drain(Duration::from_secs(15)).await;
    if drained.left > 0 {
        eprintln!("{} connections are still in use, {} killed", drained.left, drained.killed);
    }
    assert_eq!((drained.left, drained.killed, held.is_closed()), (1, 1, true));
    Ok(())
}

#[cfg(feature = "deadpool")]
#[tokio::test(start_paused = true)]
async fn adapters() -> Outcome {
    use deadpool::managed::{Manager, Metrics, RecycleResult};
    use forebay::adapters::FromDeadpool;

    struct Redis;
    impl Manager for Redis {
        type Type = ();
        type Error = io::Error;
        async fn create(&self) -> io::Result<()> {
            Ok(())
        }
        async fn recycle(&self, (): &mut (), _: &Metrics) -> RecycleResult<io::Error> {
            Ok(())
        }
    }
    let manager = Redis;
    let pool = Pool::builder(FromDeadpool::new(manager))
        .idle_check(Some(Duration::from_secs(30)))
        .build()?;
    pool.get().await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn the_standard_mode() -> Outcome {
    let connector = Yard::new();
    let settings = Settings { max_opening: 8, ..Settings::standard() };
    let pool = Pool::builder(connector).settings(settings).stagger(None).build()?;
    if let Err(short) = pool.filled().await {
        eprintln!("{short}"); // and go on: the rest comes in the background
    }
    assert_eq!(pool.stats().ready(), 100);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn the_environment() -> Outcome {
    let connector = Yard::new();
    let env = Settings::from_env(100);
    for correction in &env.corrections {
        eprintln!("{correction}");
    }
    let pool = Pool::builder(connector).settings(env.settings).build()?;
    pool.get().await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn eleven_minutes_pass_in_no_time() {
    let pool = Pool::builder(db()).max_open(3).seed(7).stagger(None).build().expect("valid");
    pool.filled().await.expect("filled");
    tokio::time::sleep(Duration::from_secs(12 * 60)).await;
    assert_eq!(pool.stats().ready(), 3);
    assert_eq!(pool.stats().opened(), 6, "each was replaced once");
    assert_eq!(pool.audit(), []);
}

#[test]
fn every_snippet_of_the_guide_is_compiled_here() {
    let trimmed = |text: &str| -> Vec<String> {
        text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
    };
    let here = trimmed(include_str!("guide.rs"));
    let guide = include_str!("../../../docs/library.md");
    let mut blocks = 0;
    for block in guide.split("```rust\n").skip(1) {
        let block = trimmed(block.split("```").next().unwrap_or_default());
        assert!(
            here.windows(block.len()).any(|lines| lines == block),
            "not in tests/guide.rs:\n{}",
            block.join("\n")
        );
        blocks += 1;
    }
    assert!(blocks > 10, "only {blocks} snippets found");
}
