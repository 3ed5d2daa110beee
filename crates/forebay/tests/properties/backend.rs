//! The backends of the random world: servers that count what they see, and do
//! everything badly that a server or a connector can do badly.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay::{Connector, Failure, Killer, LetGo, Opened, Returned};
use tokio::time::{Instant, sleep};

use crate::book::Book;

/// How likely, in per cent, each misdeed is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    pub prepare: u8,
    pub connect: u8,
    pub close: u8,
    pub reset: u8,
    pub check: u8,
    /// `is_broken` or `state` panics.
    pub judge: u8,
}

/// What a background call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    Well,
    Fail,
    Refuse,
    TooFast,
    TooMany,
    Hang,
    Panic,
    Late,
}

/// The connector to one server of the world.
#[derive(Clone)]
pub struct Site {
    pub book: Book,
    pub index: usize,
    pub handshake: Duration,
    pub close_grace: Duration,
    pub connect_timeout: Duration,
    /// Hands out killers.
    pub kills: bool,
}

/// One connection.
pub struct Conn {
    pub id: u64,
    pub site: usize,
    pub key: u32,
    pub born: Instant,
    pub state: Returned,
    pub broken: bool,
    /// Who left something on it; a reset wipes it.
    pub residue: Option<u32>,
    pub dead: Arc<AtomicBool>,
    /// Between its checkout and its return.
    pub in_hand: bool,
    /// Its user is about to give it back.
    pub coming_back: bool,
    seat: Seat,
}

/// A connection as the server counts it: from the first packet until some time
/// after the socket is closed.
struct Seat {
    book: Book,
    site: usize,
    /// The server lets go up to this long after the close; zero if it is known to have.
    lag: Duration,
}

impl Seat {
    fn take(site: &Site) -> Self {
        site.book.seated(site.index);
        Self { book: site.book.clone(), site: site.index, lag: site.close_grace }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.book.left(self.site, self.lag);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused(Act);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the backend said no ({:?})", self.0)
    }
}

impl std::error::Error for Refused {}

/// A panic that is meant: it unwinds like any other but prints nothing.
pub fn planned_panic() -> ! {
    std::panic::resume_unwind(Box::new("a planned panic"))
}

impl Site {
    fn act(&self, chance: impl Fn(&Faults) -> u8, acts: &[Act]) -> Act {
        self.book.act(self.index, chance, acts)
    }

    /// Does what is asked, or one of the misdeeds.
    async fn misbehave(&self, act: Act) -> Result<(), Refused> {
        match act {
            Act::Well => Ok(()),
            Act::Hang => std::future::pending().await,
            Act::Panic => planned_panic(),
            Act::Late => {
                sleep(self.book.span(self.connect_timeout * 2)).await;
                Ok(())
            }
            refused => Err(Refused(refused)),
        }
    }
}

impl Connector for Site {
    type Conn = Conn;
    type Key = u32;
    type Error = Refused;

    async fn prepare(&self, _key: &u32) -> Result<(), Refused> {
        let act = self.act(|f| f.prepare, &[Act::Fail, Act::Hang, Act::Panic, Act::Late]);
        self.misbehave(act).await
    }

    async fn connect(&self, key: &u32) -> Result<Opened<Conn>, Refused> {
        let born = Instant::now();
        let id = self.book.connecting(self.index);
        let mut seat = Seat::take(self);
        if !self.handshake.is_zero() {
            sleep(self.book.span(self.handshake)).await;
        }
        let acts = [
            Act::Fail,
            Act::Refuse,
            Act::Refuse,
            Act::TooFast,
            Act::TooMany,
            Act::Hang,
            Act::Panic,
            Act::Late,
            Act::Late,
        ];
        let act = self.act(|f| f.connect, &acts);
        if matches!(act, Act::Refuse | Act::TooFast | Act::TooMany) {
            seat.lag = Duration::ZERO;
        }
        self.misbehave(act).await?;
        let dead = Arc::new(AtomicBool::new(false));
        self.book.connected(self.index, id, &dead);
        let conn = Conn {
            id,
            site: self.index,
            key: *key,
            born,
            state: Returned::Clean,
            broken: false,
            residue: None,
            dead: dead.clone(),
            in_hand: false,
            coming_back: false,
            seat,
        };
        let opened = Opened::new(conn);
        if !self.kills {
            return Ok(opened);
        }
        Ok(opened.with_killer(Killer::new(move || dead.store(true, Ordering::SeqCst))))
    }

    fn is_broken(&self, conn: &Conn) -> bool {
        if self.act(|f| f.judge, &[Act::Panic]) == Act::Panic {
            self.book.lost(conn.site, conn.id, "its judge panicked");
            planned_panic();
        }
        let broken = conn.broken || conn.dead.load(Ordering::SeqCst);
        if broken && !conn.coming_back {
            // a waiter that is handed this one goes on waiting, and others may be served
            self.book.disturbed(self.index);
        }
        broken
    }

    fn state(&self, conn: &mut Conn) -> Returned {
        if self.act(|f| f.judge, &[Act::Panic]) == Act::Panic {
            self.book.lost(conn.site, conn.id, "its judge panicked");
            planned_panic();
        }
        conn.coming_back = false;
        conn.state
    }

    async fn reset(&self, conn: &mut Conn) -> Result<(), Refused> {
        sleep(self.book.span(Duration::from_millis(3))).await;
        let act = self.act(|f| f.reset, &[Act::Fail, Act::Hang, Act::Panic, Act::Late]);
        self.misbehave(act).await?;
        conn.residue = None;
        conn.state = Returned::Clean;
        Ok(())
    }

    async fn check(&self, _conn: &mut Conn) -> Result<(), Refused> {
        sleep(self.book.span(Duration::from_millis(3))).await;
        let act = self.act(|f| f.check, &[Act::Fail, Act::Hang, Act::Panic, Act::Late]);
        self.misbehave(act).await
    }

    /// The server sees the close at once and lets go within the grace, but
    /// does not always say so.
    async fn close(&self, mut conn: Conn) -> LetGo {
        let acts = [Act::Fail, Act::Hang, Act::Panic, Act::Late];
        match self.act(|f| f.close, &acts) {
            Act::Well => {
                sleep(self.book.span(self.close_grace / 2)).await;
                conn.seat.lag = Duration::ZERO;
                drop(conn);
                LetGo::Confirmed
            }
            Act::Fail => LetGo::Unconfirmed,
            Act::Late => {
                drop(conn);
                sleep(self.close_grace * 2).await;
                LetGo::Confirmed
            }
            Act::Panic => {
                drop(conn);
                planned_panic();
            }
            _ => {
                drop(conn);
                std::future::pending().await
            }
        }
    }

    fn classify(&self, error: &Refused) -> Failure {
        match error.0 {
            Act::Refuse => Failure::Refused,
            Act::TooFast => Failure::TooFast(None),
            Act::TooMany => Failure::TooMany,
            _ => Failure::Unknown,
        }
    }
}
