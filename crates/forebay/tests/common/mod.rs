//! A backend made for tests: it counts what a real server would count, and
//! fails, hangs, delays and dirties on demand.
#![allow(dead_code, unreachable_pub, clippy::disallowed_methods, clippy::disallowed_types)]

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay::{Checkout, Connector, Failure, GetError, Guard, Killer, LetGo, Opened, Returned};
use tokio::time::Instant;

/// What the next connects do; an empty script means success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    Succeed,
    Fail,
    Refuse,
    TooFast(Option<Duration>),
    TooMany,
    Hang,
    Panic,
    /// Succeeds after this much more time.
    Late(Duration),
}

#[derive(Default)]
pub struct Server {
    /// Open at the backend, until it has let go.
    pub open: AtomicU32,
    pub most_open: AtomicU32,
    pub connects: Mutex<Vec<Instant>>,
    pub closes: AtomicU32,
    pub checks: AtomicU32,
    pub resets: AtomicU32,
    pub kills: AtomicU32,
    pub script: Mutex<VecDeque<Act>>,
    /// Whether checks and resets fail.
    pub sick: AtomicBool,
    /// Resets hang.
    pub reset_hangs: AtomicBool,
    pub prepare_hangs: AtomicBool,
    pub prepare_fails: AtomicBool,
    next: AtomicU64,
}

/// Opens connections to a [`Server`].
#[derive(Clone, Default)]
pub struct Yard {
    pub server: Arc<Server>,
    pub handshake: Duration,
    /// The time the backend takes to let go; `None` does not confirm.
    pub lets_go_after: Option<Duration>,
}

/// One connection.
#[derive(Debug)]
pub struct Conn {
    pub id: u64,
    pub key: u32,
    pub state: Returned,
    pub broken: bool,
    /// What a user left on it; a reset wipes it.
    pub residue: Option<String>,
    pub killed: Arc<AtomicBool>,
    server: Tally,
}

/// Counts a connection as open until dropped.
struct Tally(Arc<Server>);

impl std::fmt::Debug for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tally")
    }
}

impl Tally {
    fn new(server: &Arc<Server>) -> Self {
        let open = server.open.fetch_add(1, Ordering::SeqCst) + 1;
        server.most_open.fetch_max(open, Ordering::SeqCst);
        Self(server.clone())
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused(pub Act);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the backend said no ({:?})", self.0)
    }
}

impl std::error::Error for Refused {}

impl Yard {
    pub fn new() -> Self {
        Self { lets_go_after: Some(Duration::ZERO), ..Self::default() }
    }

    pub fn handshake(mut self, handshake: Duration) -> Self {
        self.handshake = handshake;
        self
    }

    pub fn then(&self, acts: impl IntoIterator<Item = Act>) -> &Self {
        self.server.script.lock().expect("script").extend(acts);
        self
    }

    pub fn connects(&self) -> usize {
        self.server.connects.lock().expect("connects").len()
    }

    pub fn open(&self) -> u32 {
        self.server.open.load(Ordering::SeqCst)
    }

    pub fn most_open(&self) -> u32 {
        self.server.most_open.load(Ordering::SeqCst)
    }
}

impl Connector for Yard {
    type Conn = Conn;
    type Key = u32;
    type Error = Refused;

    async fn prepare(&self, _key: &u32) -> Result<(), Refused> {
        if self.server.prepare_hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if self.server.prepare_fails.load(Ordering::SeqCst) {
            return Err(Refused(Act::Fail));
        }
        Ok(())
    }

    async fn connect(&self, key: &u32) -> Result<Opened<Conn>, Refused> {
        self.server.connects.lock().expect("connects").push(Instant::now());
        let act = self.server.script.lock().expect("script").pop_front().unwrap_or(Act::Succeed);
        // the backend has it from the first packet on
        let tally = Tally::new(&self.server);
        if !self.handshake.is_zero() {
            tokio::time::sleep(self.handshake).await;
        }
        match act {
            Act::Succeed => {}
            Act::Late(by) => tokio::time::sleep(by).await,
            Act::Hang => std::future::pending().await,
            Act::Panic => panic!("a connector panics"),
            refused => return Err(Refused(refused)),
        }
        let killed = Arc::new(AtomicBool::new(false));
        let (flag, server) = (killed.clone(), self.server.clone());
        let killer = Killer::new(move || {
            if !flag.swap(true, Ordering::SeqCst) {
                server.kills.fetch_add(1, Ordering::SeqCst);
            }
        });
        let conn = Conn {
            id: self.server.next.fetch_add(1, Ordering::SeqCst),
            key: *key,
            state: Returned::Clean,
            broken: false,
            residue: None,
            killed,
            server: tally,
        };
        Ok(Opened::new(conn).with_killer(killer))
    }

    fn is_broken(&self, conn: &Conn) -> bool {
        conn.broken || conn.killed.load(Ordering::SeqCst)
    }

    fn state(&self, conn: &mut Conn) -> Returned {
        conn.state
    }

    async fn reset(&self, conn: &mut Conn) -> Result<(), Refused> {
        self.server.resets.fetch_add(1, Ordering::SeqCst);
        if self.server.reset_hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        if self.server.sick.load(Ordering::SeqCst) {
            return Err(Refused(Act::Fail));
        }
        conn.residue = None;
        conn.state = Returned::Clean;
        Ok(())
    }

    async fn check(&self, _conn: &mut Conn) -> Result<(), Refused> {
        self.server.checks.fetch_add(1, Ordering::SeqCst);
        if self.server.sick.load(Ordering::SeqCst) {
            return Err(Refused(Act::Fail));
        }
        Ok(())
    }

    async fn close(&self, conn: Conn) -> LetGo {
        self.server.closes.fetch_add(1, Ordering::SeqCst);
        match self.lets_go_after {
            None => {
                drop(conn);
                LetGo::Unconfirmed
            }
            Some(after) => {
                if !after.is_zero() {
                    tokio::time::sleep(after).await;
                }
                drop(conn);
                LetGo::Confirmed
            }
        }
    }

    fn classify(&self, error: &Refused) -> Failure {
        match error.0 {
            Act::Refuse => Failure::Refused,
            Act::TooFast(after) => Failure::TooFast(after),
            Act::TooMany => Failure::TooMany,
            _ => Failure::Unknown,
        }
    }
}

/// Polls a checkout once; nobody is woken by it.
pub fn poll(checkout: &mut Checkout<'_, Yard>) -> Poll<Result<Guard<Yard>, GetError>> {
    Pin::new(checkout).poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls a checkout that must have been handed a connection.
#[track_caller]
pub fn claim(checkout: &mut Checkout<'_, Yard>) -> Guard<Yard> {
    match poll(checkout) {
        Poll::Ready(result) => result.expect("handed a connection"),
        Poll::Pending => panic!("still waiting"),
    }
}

/// Lets everything that can happen now happen, without time passing.
pub async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

/// Lets this much virtual time pass, and what falls due in it happen.
pub async fn pass(span: Duration) {
    tokio::time::sleep(span).await;
    settle().await;
}

pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}
