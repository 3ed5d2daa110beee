//! A backend that counts: it notes each connection when it accepts it and when it
//! has let go of it, with the instant, in one order.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::{MS, now};

/// As a real server it needs a while to end a session after it has read the
/// client's end of file. The session counts until then.
const LET_GO_AFTER: Duration = Duration::from_millis(20);

pub struct Backend {
    pub address: SocketAddr,
    log: Arc<Mutex<Log>>,
    stop: watch::Sender<bool>,
}

#[derive(Debug, Default)]
pub struct Log {
    pub events: Vec<Event>,
    pub visits: BTreeMap<u64, Visit>,
    open: u32,
    /// By how much this backend itself was late at worst.
    pub stall: u64,
}

#[derive(Debug, Clone, Copy)]
pub struct Event {
    pub at: u64,
    /// Connections open from here on.
    pub open: u32,
}

/// One connection.
#[derive(Debug, Clone, Copy)]
pub struct Visit {
    pub accepted: u64,
    /// The process it came from, and when that began to connect.
    pub from: Option<(u32, u64)>,
    pub closed: Option<u64>,
}

impl Backend {
    pub fn start() -> Self {
        let (stop, stopped) = watch::channel(false);
        let log = Arc::new(Mutex::new(Log::default()));
        let (ready, address) = std::sync::mpsc::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let (runtime, theirs) = (runtime.expect("a runtime"), log.clone());
        std::thread::spawn(move || {
            runtime.block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
                ready.send(listener.local_addr().expect("an address")).expect("someone waits");
                tokio::spawn(watch_stalls(theirs.clone()));
                serve(listener, theirs, stopped).await;
            });
        });
        Self { address: address.recv().expect("the backend has begun"), log, stop }
    }

    pub fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().expect("nobody panics with it")
    }

    pub fn open(&self) -> u32 {
        self.log().open
    }

    /// Connections of one process that are open.
    pub fn open_of(&self, pid: u32) -> Vec<u64> {
        self.log().open_of(pid)
    }
}

impl Log {
    pub fn open(&self) -> u32 {
        self.open
    }

    pub fn open_of(&self, pid: u32) -> Vec<u64> {
        let mine = |visit: &Visit| visit.from.is_some_and(|(from, _)| from == pid);
        let open = self.visits.iter().filter(|(_, v)| v.closed.is_none() && mine(v));
        open.map(|(serial, _)| *serial).collect()
    }

    /// The most that were open at any instant between the two.
    pub fn most(&self, from: u64, until: u64) -> u32 {
        let before = self.events.iter().take_while(|event| event.at <= from).last();
        let within = self.events.iter().filter(|event| event.at > from && event.at <= until);
        within.chain(before).map(|event| event.open).max().unwrap_or(0)
    }

    /// How many of a process's connections were closed between the two.
    pub fn closed(&self, pid: Option<u32>, from: u64, until: u64) -> usize {
        let in_time = |visit: &&Visit| visit.closed.is_some_and(|at| at > from && at <= until);
        let mine = |visit: &&Visit| pid.is_none() || visit.from.map(|(from, _)| from) == pid;
        self.visits.values().filter(in_time).filter(mine).count()
    }

    /// The connections that a process opened between the two.
    pub fn opened(&self, pid: u32, from: u64, until: u64) -> Vec<u64> {
        let mine = |visit: &Visit| visit.from.is_some_and(|(from, _)| from == pid);
        let in_time = |visit: &Visit| visit.accepted > from && visit.accepted <= until;
        let opened = self.visits.iter().filter(|(_, visit)| mine(visit) && in_time(visit));
        opened.map(|(serial, _)| *serial).collect()
    }

    fn accepted(&mut self) -> u64 {
        let (at, serial) = (now(), self.visits.len() as u64 + 1);
        self.open += 1;
        self.events.push(Event { at, open: self.open });
        self.visits.insert(serial, Visit { accepted: at, from: None, closed: None });
        serial
    }

    fn let_go(&mut self, serial: u64) {
        let at = now();
        self.open -= 1;
        self.events.push(Event { at, open: self.open });
        if let Some(visit) = self.visits.get_mut(&serial) {
            visit.closed = Some(at);
        }
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

async fn serve(listener: TcpListener, log: Arc<Mutex<Log>>, mut stopped: watch::Receiver<bool>) {
    loop {
        let accepted = tokio::select! {
            biased;
            _ = stopped.changed() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else { continue };
        let serial = log.lock().expect("nobody panics with it").accepted();
        tokio::spawn(visit(stream, serial, log.clone()));
    }
}

/// Says the connection's number, learns who is there, then answers each byte with
/// one, until the other side ends.
async fn visit(mut stream: TcpStream, serial: u64, log: Arc<Mutex<Log>>) {
    let talk = async {
        stream.write_all(&serial.to_be_bytes()).await?;
        let (pid, sent) = (stream.read_u32().await?, stream.read_u64().await?);
        if let Some(visit) = log.lock().expect("nobody panics with it").visits.get_mut(&serial) {
            visit.from = Some((pid, sent));
        }
        loop {
            let byte = stream.read_u8().await?;
            stream.write_u8(byte).await?;
        }
    };
    let ended: std::io::Result<()> = talk.await;
    drop(ended);
    tokio::time::sleep(LET_GO_AFTER).await;
    // first it is gone, then the client may learn of that
    log.lock().expect("nobody panics with it").let_go(serial);
    drop(stream);
}

async fn watch_stalls(log: Arc<Mutex<Log>>) {
    loop {
        let due = now() + 5 * MS;
        tokio::time::sleep(Duration::from_millis(5)).await;
        let late = now().saturating_sub(due);
        let mut log = log.lock().expect("nobody panics with it");
        log.stall = log.stall.max(late);
    }
}
