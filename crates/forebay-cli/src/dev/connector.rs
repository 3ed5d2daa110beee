//! Opens connections to the [backend](super::backend), as a service's own
//! connector would: greeting, refusals told apart, a killer, a close that waits
//! for the backend to let go, and no connection used again in mid-answer.

use std::io;
use std::net::SocketAddr;

use forebay::{Connector, Failure, Killer, LetGo, Opened, Returned};
use tokio::net::TcpStream;

use super::backend::WELCOME;
use super::ledger::Refusal;
use super::wire::Wire;

/// Opens connections to one address.
pub(crate) struct Tcp(pub(crate) SocketAddr);

/// One connection.
pub(crate) struct Conn {
    wire: Wire,
    /// A request was sent and its answer not read.
    midway: bool,
}

/// Why a connection could not be opened or used.
#[derive(Debug)]
pub(crate) enum Error {
    Refused(Refusal),
    Io(io::Error),
    /// The backend said something else than it should.
    Unexpected(String),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(refusal) => write!(f, "the backend refused: {}", refusal.as_str()),
            Self::Io(error) => error.fmt(f),
            Self::Unexpected(line) => write!(f, "the backend said `{line}`"),
        }
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Conn {
    /// Connects and reads the greeting.
    async fn open(address: SocketAddr) -> Result<Self, Error> {
        let wire = Wire::new(TcpStream::connect(address).await?)?;
        let mut conn = Self { wire, midway: false };
        let greeting = conn.answer().await?;
        if greeting == WELCOME {
            return Ok(conn);
        }
        let mut refusals = [Refusal::TooFast, Refusal::TooMany].into_iter();
        let refusal = refusals.find(|refusal| refusal.as_str() == greeting);
        Err(refusal.map_or(Error::Unexpected(greeting), Error::Refused))
    }

    /// Sends one request and reads its answer. If this is dropped midway, or
    /// fails, the connection says so when it comes back.
    pub(crate) async fn ping(&mut self, number: u64) -> Result<(), Error> {
        self.midway = true;
        self.wire.send(&format!("ping {number}")).await?;
        let answer = self.answer().await?;
        if answer != format!("pong {number}") {
            return Err(Error::Unexpected(answer));
        }
        self.midway = false;
        Ok(())
    }

    async fn answer(&mut self) -> Result<String, Error> {
        let answer = self.wire.receive().await?;
        answer.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof).into())
    }
}

impl Connector for Tcp {
    type Conn = Conn;
    type Key = ();
    type Error = Error;

    async fn connect(&self, _key: &()) -> Result<Opened<Conn>, Error> {
        let conn = Conn::open(self.0).await?;
        let killer = Killer::new(conn.wire.killer());
        Ok(Opened::new(conn).with_killer(killer))
    }

    fn is_broken(&self, conn: &Conn) -> bool {
        !conn.midway && !conn.wire.is_quiet()
    }

    fn state(&self, conn: &mut Conn) -> Returned {
        if conn.midway { Returned::Unknown } else { Returned::Clean }
    }

    async fn close(&self, conn: Conn) -> LetGo {
        if conn.wire.finish().await { LetGo::Confirmed } else { LetGo::Unconfirmed }
    }

    fn classify(&self, error: &Error) -> Failure {
        match error {
            Error::Refused(Refusal::TooFast) => Failure::TooFast(None),
            Error::Refused(Refusal::TooMany) => Failure::TooMany,
            Error::Io(_) | Error::Unexpected(_) => Failure::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::backend::Backend;
    use super::super::ledger::Limits;
    use super::*;

    const LAX: Limits = Limits {
        max_open: 100,
        per_second: 10_000,
        burst: 10_000,
        lifetime: Duration::from_secs(3600),
    };

    async fn backend(limits: Limits, service: Duration) -> (Backend, Tcp) {
        let backend = Backend::start(limits, Duration::ZERO, service).await.unwrap();
        let tcp = Tcp(backend.address());
        (backend, tcp)
    }

    async fn refusal(tcp: &Tcp) -> Failure {
        tcp.classify(&Conn::open(tcp.0).await.err().expect("a refusal"))
    }

    #[tokio::test(start_paused = true)]
    async fn opens_beyond_the_burst_are_refused_as_too_fast() {
        let limits = Limits { per_second: 1, burst: 2, ..LAX };
        let (backend, tcp) = backend(limits, Duration::ZERO).await;
        let _held = [Conn::open(tcp.0).await.unwrap(), Conn::open(tcp.0).await.unwrap()];
        assert_eq!(refusal(&tcp).await, Failure::TooFast(None));
        assert_eq!((backend.counts().too_fast, backend.counts().open), (1, 2));
    }

    /// The backend counts a connection as gone before its client can know, so a
    /// client that waits for the end never meets its own ghost.
    #[tokio::test]
    async fn once_a_close_is_confirmed_the_backend_has_room() {
        let (backend, tcp) = backend(Limits { max_open: 1, ..LAX }, Duration::ZERO).await;
        for _ in 0..100 {
            let mut conn = Conn::open(tcp.0).await.unwrap();
            conn.ping(7).await.unwrap();
            assert_eq!(refusal(&tcp).await, Failure::TooMany);
            assert_eq!(tcp.close(conn).await, LetGo::Confirmed);
            assert_eq!(backend.counts().open, 0);
        }
        let counts = backend.counts();
        assert_eq!((counts.opened, counts.most_open, counts.too_many), (100, 1, 100));
    }

    #[tokio::test(start_paused = true)]
    async fn who_stays_beyond_the_lifetime_is_cut_off_and_known_as_broken() {
        let limits = Limits { lifetime: Duration::from_secs(10), ..LAX };
        let (backend, tcp) = backend(limits, Duration::ZERO).await;
        let mut conn = Conn::open(tcp.0).await.unwrap();
        tokio::time::sleep(Duration::from_secs(9)).await;
        assert!(conn.ping(1).await.is_ok() && !tcp.is_broken(&conn));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(tcp.is_broken(&conn));
        assert_eq!((backend.counts().cut_off, backend.counts().open), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_dropped_midway_makes_the_state_unknown_and_the_close_still_sure() {
        let (backend, tcp) = backend(LAX, Duration::from_millis(100)).await;
        let mut conn = Conn::open(tcp.0).await.unwrap();
        conn.ping(1).await.unwrap();
        assert_eq!(tcp.state(&mut conn), Returned::Clean);
        let dropped = tokio::time::timeout(Duration::from_millis(10), conn.ping(2)).await;
        assert!(dropped.is_err());
        assert_eq!(tcp.state(&mut conn), Returned::Unknown);
        assert_eq!(tcp.close(conn).await, LetGo::Confirmed);
        assert_eq!(backend.counts().open, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_killer_ends_a_request_under_way() {
        let (_backend, tcp) = backend(LAX, Duration::from_secs(600)).await;
        let mut conn = Conn::open(tcp.0).await.unwrap();
        let kill = conn.wire.killer();
        let start = tokio::time::Instant::now();
        let (answer, ()) = tokio::join!(conn.ping(1), async { kill() });
        assert!(answer.is_err());
        assert!(start.elapsed() < Duration::from_secs(600));
        kill(); // once more does no harm
        drop(conn);
        kill();
    }
}
