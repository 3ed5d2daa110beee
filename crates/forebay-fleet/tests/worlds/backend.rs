//! The backend of the random fleet: it counts what it sees itself. A socket is
//! open there from the first packet until some time after it was closed; a stopped
//! process's sockets stay open, a dead one's are gone at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay::{Connector, Failure, Instant, Killer, LetGo, Opened};
use parking_lot::Mutex;
use tokio::time::{sleep, sleep_until};

use crate::time::Watch;

/// One socket as the backend has it.
#[derive(Debug, Clone, Copy)]
pub struct Socket {
    pub process: usize,
    /// How often its process had been reaped when it was opened.
    pub life: u64,
    pub opened_at: Instant,
    /// The handshake is over.
    pub established: bool,
    gone_at: Option<Instant>,
}

/// A connect that arrived.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    pub at: Instant,
    pub process: usize,
}

/// How the backend behaves.
#[derive(Debug, Clone, Copy)]
pub struct Manners {
    pub handshake: Duration,
    /// It lets go of a closed connection within this.
    pub lag: Duration,
    /// Chances in a thousand.
    pub fails: u32,
    pub hangs: u32,
    pub too_many: u32,
    pub too_fast: u32,
    /// Credentials take this long.
    pub credentials: Duration,
}

type Watcher = Box<dyn Fn(Arrival) + Send>;

pub struct Backend {
    inner: Mutex<Inner>,
    /// Told of every connect.
    pub on_connect: Mutex<Option<Watcher>>,
}

struct Inner {
    sockets: BTreeMap<u64, Socket>,
    next: u64,
    manners: Manners,
    rng: fastrand::Rng,
}

impl Backend {
    pub fn new(manners: Manners, seed: u64) -> Arc<Self> {
        let rng = fastrand::Rng::with_seed(seed);
        let inner = Inner { sockets: BTreeMap::new(), next: 0, manners, rng };
        Arc::new(Self { inner: Mutex::new(inner), on_connect: Mutex::new(None) })
    }

    /// The sockets that it has open.
    pub fn sockets(&self) -> Vec<Socket> {
        self.inner.lock().current().copied().collect()
    }

    pub fn open(&self) -> usize {
        self.inner.lock().current().count()
    }

    pub fn open_by(&self, process: usize) -> usize {
        self.inner.lock().current().filter(|socket| socket.process == process).count()
    }

    /// Connects that have arrived.
    pub fn connects(&self) -> u64 {
        self.inner.lock().next
    }

    pub fn manners(&self, change: impl FnOnce(&mut Manners)) {
        change(&mut self.inner.lock().manners);
    }

    /// A process has died: its kernel closes everything.
    pub fn died(&self, process: usize) {
        self.inner.lock().sockets.retain(|_, socket| socket.process != process);
    }

    fn close(&self, id: u64) -> Instant {
        let mut inner = self.inner.lock();
        let lag = inner.manners.lag.mul_f64(inner.rng.f64());
        let gone_at = Instant::now() + lag;
        let known = inner.sockets.get_mut(&id);
        known.map_or(gone_at, |socket| *socket.gone_at.get_or_insert(gone_at))
    }
}

impl Inner {
    fn current(&mut self) -> impl Iterator<Item = &Socket> {
        let now = Instant::now();
        self.sockets.retain(|_, socket| socket.gone_at.is_none_or(|at| at > now));
        self.sockets.values()
    }
}

/// One process's way to the backend.
pub struct Site {
    pub backend: Arc<Backend>,
    pub process: usize,
    /// Behind the gates of the application.
    pub watch: Watch,
    pub life: Box<dyn Fn() -> u64 + Send + Sync>,
}

/// One connection.
pub struct Conn {
    pub opened_at: Instant,
    seat: Seat,
}

/// Closes the socket when it is dropped.
struct Seat {
    backend: Arc<Backend>,
    id: u64,
    dead: Arc<AtomicBool>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.backend.close(self.id);
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the backend said no: {0:?}")]
pub struct Refused(Failure);

impl Connector for Site {
    type Conn = Conn;
    type Key = ();
    type Error = Refused;
    const KILLS: bool = true;

    async fn prepare(&self, _key: &()) -> Result<(), Refused> {
        let wait = self.backend.inner.lock().manners.credentials;
        if !wait.is_zero() {
            sleep(wait).await;
        }
        self.watch.pass().await;
        Ok(())
    }

    async fn connect(&self, _key: &()) -> Result<Opened<Conn>, Refused> {
        self.watch.pass().await;
        let at = Instant::now();
        let life = (self.life)();
        let (seat, wait, outcome) = {
            let mut inner = self.backend.inner.lock();
            let manners = inner.manners;
            let mut hit = |chance: u32| inner.rng.u32(0..1000) < chance;
            let outcome = if hit(manners.fails) {
                Some(Failure::Unknown)
            } else if hit(manners.too_many) {
                Some(Failure::TooMany)
            } else if hit(manners.too_fast) {
                Some(Failure::TooFast(None))
            } else {
                None
            };
            let hangs = hit(manners.hangs);
            let wait = if hangs {
                Duration::from_secs(86_400)
            } else {
                manners.handshake.mul_f64(0.5 + inner.rng.f64())
            };
            inner.next += 1;
            let id = inner.next;
            if outcome.is_none_or(|failure| failure == Failure::Unknown) {
                let process = self.process;
                let socket =
                    Socket { process, life, opened_at: at, established: false, gone_at: None };
                inner.sockets.insert(id, socket);
            }
            (Seat { backend: self.backend.clone(), id, dead: Arc::default() }, wait, outcome)
        };
        if let Some(tell) = &*self.backend.on_connect.lock() {
            tell(Arrival { at, process: self.process });
        }
        sleep(wait).await;
        self.watch.pass().await;
        if let Some(failure) = outcome {
            return Err(Refused(failure));
        }
        if let Some(socket) = self.backend.inner.lock().sockets.get_mut(&seat.id) {
            socket.established = true;
        }
        let (backend, id, dead) = (self.backend.clone(), seat.id, seat.dead.clone());
        let killer = Killer::new(move || {
            dead.store(true, Ordering::SeqCst);
            backend.close(id);
        });
        Ok(Opened::new(Conn { opened_at: at, seat }).with_killer(killer))
    }

    fn is_broken(&self, conn: &Conn) -> bool {
        conn.seat.dead.load(Ordering::SeqCst)
    }

    async fn close(&self, conn: Conn) -> LetGo {
        self.watch.pass().await;
        let gone_at = self.backend.close(conn.seat.id);
        let confirms = self.backend.inner.lock().rng.u32(0..4) > 0;
        if !confirms {
            return LetGo::Unconfirmed;
        }
        sleep_until(gone_at).await;
        self.watch.pass().await;
        LetGo::Confirmed
    }

    fn classify(&self, error: &Refused) -> Failure {
        error.0
    }
}
