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
        let wire = Wire::new(TcpStream::connect(self.0).await?)?;
        let mut conn = Conn { wire, midway: false };
        let greeting = conn.answer().await?;
        if greeting != WELCOME {
            let refusals = [Refusal::TooFast, Refusal::TooMany];
            let refusal = refusals.into_iter().find(|refusal| refusal.as_str() == greeting);
            return Err(refusal.map_or(Error::Unexpected(greeting), Error::Refused));
        }
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
