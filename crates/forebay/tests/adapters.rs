//! Managers written for deadpool and bb8 behind a Forebay pool: what is called
//! when and how often, and that what fails its manager's test is not handed out
//! again. Most run in virtual time over a manager that only counts; one per
//! adapter goes over real sockets, where nothing is claimed about time.

#![cfg(all(feature = "deadpool", feature = "bb8"))]
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::bb8::ManageConnection;
use ::deadpool::managed::{Manager, Metrics, RecycleError, RecycleResult};
use common::{ms, pass, secs, settle};
use forebay::adapters::{FromBb8, FromDeadpool, Managed};
use forebay::{
    Builder, Connector, Discard, Event, Failure, GetError, Observer, OpenFailure, Pool, Returned,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What a manager was asked for.
#[derive(Default)]
struct Desk {
    created: AtomicU32,
    /// Recycles and validations begun.
    tested: AtomicU32,
    detached: AtomicU32,
    /// Tests fail.
    sick: AtomicBool,
    /// Tests never end.
    hangs: AtomicBool,
    /// Creating fails.
    closed: AtomicBool,
    /// What each recycle was told: how often before, and whether it knows when.
    metrics: Mutex<Vec<(usize, bool)>>,
}

impl Desk {
    /// One test, which takes a second.
    async fn test(&self) -> Result<(), Code> {
        self.tested.fetch_add(1, Ordering::SeqCst);
        if self.hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(secs(1)).await;
        if self.sick.load(Ordering::SeqCst) { Err(Code(13)) } else { Ok(()) }
    }

    fn create(&self) -> Result<Slip, Code> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Code(7));
        }
        Ok(Slip { number: self.created.fetch_add(1, Ordering::SeqCst), torn: false })
    }

    fn count(counter: &AtomicU32) -> u32 {
        counter.load(Ordering::SeqCst)
    }
}

/// A connection of the counting managers.
#[derive(Debug)]
struct Slip {
    number: u32,
    torn: bool,
}

/// An error without any of the usual traits but what bb8 demands.
#[derive(Debug)]
struct Code(u8);

/// A manager that only counts, for both libraries.
#[derive(Clone, Default)]
struct Clerk(Arc<Desk>);

impl Manager for Clerk {
    type Type = Slip;
    type Error = Code;

    async fn create(&self) -> Result<Slip, Code> {
        self.0.create()
    }

    async fn recycle(&self, _slip: &mut Slip, metrics: &Metrics) -> RecycleResult<Code> {
        let seen = (metrics.recycle_count, metrics.recycled.is_some());
        self.0.metrics.lock().expect("metrics").push(seen);
        self.0.test().await.map_err(RecycleError::Backend)
    }

    fn detach(&self, _slip: &mut Slip) {
        self.0.detached.fetch_add(1, Ordering::SeqCst);
    }
}

impl ManageConnection for Clerk {
    type Connection = Slip;
    type Error = Code;

    async fn connect(&self) -> Result<Slip, Code> {
        self.0.create()
    }

    async fn is_valid(&self, _slip: &mut Slip) -> Result<(), Code> {
        self.0.test().await
    }

    fn has_broken(&self, slip: &mut Slip) -> bool {
        slip.torn
    }
}

fn in_words(code: &Code) -> String {
    format!("code {}", code.0)
}

fn from_deadpool(clerk: &Clerk) -> FromDeadpool<Clerk> {
    FromDeadpool::described_by(clerk.clone(), in_words)
}

fn from_bb8(clerk: &Clerk) -> FromBb8<Clerk> {
    FromBb8::described_by(clerk.clone(), in_words)
}

fn pool<C: Connector>(connector: C, set: impl FnOnce(Builder<C>) -> Builder<C>) -> Pool<C> {
    set(Pool::builder(connector).max_open(2).stagger(None)).build().expect("valid")
}

#[tokio::test(start_paused = true)]
async fn a_deadpool_manager_creates_per_open_and_recycles_per_return() {
    let clerk = Clerk::default();
    let pool = pool(from_deadpool(&clerk), |builder| builder);
    pool.ready(2, secs(1)).await.expect("full");
    assert_eq!(Desk::count(&clerk.0.tested), 0, "not before the first use");
    for round in 0..3 {
        let conn = pool.get().await.expect("one");
        assert_eq!(conn.number, 1, "the most recently used");
        assert_eq!(Managed::metrics(&conn).recycle_count, round);
        drop(conn);
        settle().await;
        assert_eq!(pool.stats().in_use(), 1, "counted as in use while it is recycled");
        pass(secs(1)).await;
        assert_eq!(pool.stats().ready(), 2);
    }
    assert_eq!(*clerk.0.metrics.lock().expect("metrics"), [(0, false), (1, true), (2, true)]);
    assert_eq!((Desk::count(&clerk.0.created), Desk::count(&clerk.0.detached)), (2, 0));
    assert_eq!(pool.audit(), []);
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_not_handed_on_before_it_is_recycled() {
    let clerk = Clerk::default();
    let pool = pool(from_deadpool(&clerk), |builder| builder.max_open(1));
    drop(pool.get().await.expect("one"));
    let start = tokio::time::Instant::now();
    let next = pool.get().await.expect("the same");
    assert_eq!((next.number, start.elapsed()), (0, secs(1)));
}

#[tokio::test(start_paused = true)]
async fn a_recycle_that_fails_or_hangs_discards_the_connection() {
    let clerk = Clerk::default();
    let pool = pool(from_deadpool(&clerk), |builder| builder.reset_timeout(secs(3)));
    clerk.0.sick.store(true, Ordering::SeqCst);
    let first = pool.get().await.expect("one").number;
    pass(secs(5)).await;
    clerk.0.sick.store(false, Ordering::SeqCst);
    clerk.0.hangs.store(true, Ordering::SeqCst);
    let second = pool.get().await.expect("another").number;
    pass(secs(5)).await;
    clerk.0.hangs.store(false, Ordering::SeqCst);
    assert_ne!(first, second);
    let stats = pool.stats();
    assert_eq!(stats.discarded(Discard::Broken), 2);
    assert_eq!(stats.sources[0].failed(OpenFailure::Reset), 2);
    assert_eq!((stats.ready(), stats.opened()), (2, 4), "replaced");
    assert_eq!(Desk::count(&clerk.0.detached), 2);
    for _ in 0..2 {
        let number = pool.get().await.expect("a fresh one").number;
        assert!(number != first && number != second);
    }
}

#[tokio::test(start_paused = true)]
async fn idle_connections_of_a_deadpool_manager_are_recycled_as_their_check() {
    let clerk = Clerk::default();
    let pool = pool(from_deadpool(&clerk), |builder| builder.idle_check(Some(secs(10))));
    pass(secs(19)).await;
    assert_eq!(Desk::count(&clerk.0.tested), 2, "each once");
    clerk.0.sick.store(true, Ordering::SeqCst);
    pass(secs(10)).await;
    clerk.0.sick.store(false, Ordering::SeqCst);
    pass(secs(5)).await;
    let stats = pool.stats();
    assert_eq!(stats.sources[0].failed(OpenFailure::Check), 2);
    assert_eq!((stats.discarded(Discard::Broken), stats.ready()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn every_connection_that_leaves_is_detached_once() {
    let clerk = Clerk::default();
    let pool = pool(from_deadpool(&clerk), |builder| builder.max_open(4));
    pool.ready(4, secs(1)).await.expect("full");
    pool.get().await.expect("one").discard(Discard::Broken);
    let kept = pool.get().await.expect("one").detach();
    pass(secs(3)).await;
    assert_eq!(Desk::count(&clerk.0.detached), 1, "one discarded; the other is still there");
    drop(kept);
    pool.drain(secs(10)).await;
    let created = Desk::count(&clerk.0.created);
    assert_eq!(Desk::count(&clerk.0.detached), created);
}

#[test]
fn connections_are_detached_even_if_the_runtime_ends_first() {
    let clerk = Clerk::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let pool = runtime.block_on(async {
        let pool = pool(from_deadpool(&clerk), |builder| builder);
        pool.ready(2, secs(30)).await.expect("full");
        pool
    });
    let held = pool.try_get().expect("one");
    drop(runtime);
    assert!(matches!(pool.try_get(), Err(GetError::Closed)));
    assert_eq!(Desk::count(&clerk.0.detached), 1, "the one in stock");
    drop(held);
    assert_eq!(Desk::count(&clerk.0.detached), 2);
}

#[tokio::test(start_paused = true)]
async fn errors_of_any_type_are_put_into_words_and_classified() {
    let clerk = Clerk::default();
    clerk.0.closed.store(true, Ordering::SeqCst);
    let refused = |_: &Code| Failure::TooMany;
    let one = pool(from_deadpool(&clerk).classify(refused), |builder| builder.timeout(secs(2)));
    let two = pool(from_bb8(&clerk).classify(refused), |builder| builder.timeout(secs(2)));
    for (error, stats) in [
        (one.get().await.expect_err("nothing opens"), one.stats()),
        (two.get().await.expect_err("nothing opens"), two.stats()),
    ] {
        assert!(error.to_string().ends_with("last open failed: code 7"), "{error}");
        assert!(stats.sources[0].failed(OpenFailure::Lease) > 0);
        assert_eq!(stats.sources[0].failed(OpenFailure::Connect), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_bb8_manager_connects_per_open_and_validates_per_return() {
    let clerk = Clerk::default();
    let pool = pool(from_bb8(&clerk), |builder| builder);
    pool.ready(2, secs(1)).await.expect("full");
    for round in 0..3 {
        assert_eq!(Desk::count(&clerk.0.tested), round);
        drop(pool.get().await.expect("one"));
        settle().await;
        assert_eq!(pool.stats().in_use(), 1, "counted as in use while it is validated");
        pass(secs(1)).await;
    }
    assert_eq!((Desk::count(&clerk.0.created), pool.stats().ready()), (2, 2));
    clerk.0.sick.store(true, Ordering::SeqCst);
    let first = pool.get().await.expect("one").number;
    pass(secs(1)).await;
    clerk.0.sick.store(false, Ordering::SeqCst);
    pass(secs(4)).await;
    assert_eq!(pool.stats().discarded(Discard::Broken), 1);
    let (a, b) = (pool.get().await.expect("one"), pool.get().await.expect("another"));
    assert!(a.number != first && b.number != first);
}

#[tokio::test(start_paused = true)]
async fn what_has_broken_is_discarded_without_being_validated() {
    let clerk = Clerk::default();
    let pool = pool(from_bb8(&clerk), |builder| builder);
    let mut conn = pool.get().await.expect("one");
    conn.torn = true;
    drop(conn);
    pass(secs(2)).await;
    let stats = pool.stats();
    assert_eq!(stats.discarded(Discard::Broken), 1);
    assert_eq!((Desk::count(&clerk.0.tested), stats.ready()), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn without_validation_a_connection_goes_straight_back() {
    let clerk = Clerk::default();
    let pool = pool(from_bb8(&clerk).validate(false), |builder| {
        builder.max_open(1).idle_check(Some(secs(10)))
    });
    let first = pool.get().await.expect("one").number;
    assert_eq!(pool.try_get().expect("at once").number, first);
    assert_eq!(Desk::count(&clerk.0.tested), 0);
    pass(secs(11)).await;
    assert_eq!(Desk::count(&clerk.0.tested), 1, "checked when idle all the same");
    clerk.0.sick.store(true, Ordering::SeqCst);
    pass(secs(11)).await;
    assert_eq!(pool.stats().sources[0].failed(OpenFailure::Check), 1);
}

/// For connectors that need `&mut` to find out.
#[tokio::test(start_paused = true)]
async fn a_connection_that_comes_back_broken_is_counted_as_broken() {
    let yard = common::Yard::new();
    let pool = Pool::builder(yard.clone()).max_open(1).stagger(None).build().expect("valid");
    pool.get().await.expect("one").state = Returned::Broken;
    pass(ms(10)).await;
    assert_eq!(pool.stats().discarded(Discard::Broken), 1);
    assert_eq!(yard.connects(), 2);
}

/// An echo server on the loopback address that can hang up on everybody.
struct Echo {
    address: std::net::SocketAddr,
    hang_up: tokio::sync::watch::Sender<u32>,
    /// Connections that the server has.
    open: tokio::sync::watch::Sender<u32>,
}

impl Echo {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (hang_up, told) = tokio::sync::watch::channel(0);
        let open = tokio::sync::watch::Sender::new(0);
        let tally = open.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (mut told, tally) = (told.clone(), tally.clone());
                told.mark_unchanged();
                tally.send_modify(|open| *open += 1);
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    tokio::select! {
                        _ = tokio::io::copy(&mut from, &mut to) => {}
                        _ = told.changed() => {}
                    }
                    drop(stream);
                    tally.send_modify(|open| *open -= 1);
                });
            }
        });
        Self { address, hang_up, open }
    }

    /// Closes every connection, and waits until that is done.
    async fn hang_up(&self) {
        self.hang_up.send_modify(|times| *times += 1);
        let mut open = self.open.subscribe();
        open.wait_for(|open| *open == 0).await.expect("a server");
    }
}

async fn ping(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"x").await?;
    stream.read_u8().await.map(drop)
}

/// A manager over real sockets, for both libraries.
struct Tcp(std::net::SocketAddr);

impl Manager for Tcp {
    type Type = TcpStream;
    type Error = std::io::Error;

    async fn create(&self) -> std::io::Result<TcpStream> {
        TcpStream::connect(self.0).await
    }

    async fn recycle(&self, stream: &mut TcpStream, _: &Metrics) -> RecycleResult<std::io::Error> {
        Ok(ping(stream).await?)
    }
}

impl ManageConnection for Tcp {
    type Connection = TcpStream;
    type Error = std::io::Error;

    async fn connect(&self) -> std::io::Result<TcpStream> {
        TcpStream::connect(self.0).await
    }

    async fn is_valid(&self, stream: &mut TcpStream) -> std::io::Result<()> {
        ping(stream).await
    }

    fn has_broken(&self, stream: &mut TcpStream) -> bool {
        stream.take_error().is_err()
    }
}

/// Passes discards on.
struct Watcher(tokio::sync::mpsc::UnboundedSender<Discard>);

impl Observer for Watcher {
    fn event(&self, event: &Event) {
        if let Event::Discarded { reason, .. } = event {
            let _ = self.0.send(*reason);
        }
    }
}

/// Uses a pool over an echo server, lets the server hang up, and goes on until
/// the dead connections are weeded out.
async fn outlive_a_hang_up<C: Connector>(
    make: impl FnOnce(std::net::SocketAddr) -> C,
    stream: impl Fn(&mut C::Conn) -> &mut TcpStream,
) {
    let echo = Echo::start().await;
    let (sender, mut discards) = tokio::sync::mpsc::unbounded_channel();
    let builder = Pool::builder(make(echo.address)).max_open(2).close_grace(ms(10)).stagger(None);
    let builder = builder.reset_timeout(secs(60)).timeout(secs(60));
    let pool = builder.observer(Watcher(sender)).build().expect("valid");
    pool.ready(2, secs(60)).await.expect("full");
    for _ in 0..8 {
        let mut conn = pool.get().await.expect("one");
        ping(stream(&mut conn)).await.expect("an answer");
    }
    assert!(discards.try_recv().is_err(), "what works is kept");
    echo.hang_up().await;
    let mut dead = 0;
    loop {
        let mut conn = pool.get().await.expect("one");
        if ping(stream(&mut conn)).await.is_ok() {
            break;
        }
        drop(conn);
        dead += 1;
        // the limit only ends a test that would otherwise hang
        let discarded = tokio::time::timeout(secs(60), discards.recv()).await;
        assert_eq!(discarded.expect("discarded"), Some(Discard::Broken));
    }
    assert!(dead == 1 || dead == 2, "each at most once, not {dead}");
    pool.drain(Duration::from_secs(60)).await;
}

#[tokio::test]
async fn a_deadpool_manager_over_sockets_survives_a_server_that_hangs_up() {
    let make = |address| FromDeadpool::new(Tcp(address));
    outlive_a_hang_up(make, |conn: &mut Managed<Tcp>| &mut **conn).await;
}

#[tokio::test]
async fn a_bb8_manager_over_sockets_survives_a_server_that_hangs_up() {
    let make = |address| FromBb8::new(Tcp(address));
    outlive_a_hang_up(make, |conn: &mut TcpStream| conn).await;
}
