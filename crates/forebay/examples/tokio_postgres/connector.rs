//! A connector for tokio-postgres without TLS, written the way one for
//! production should be: it knows when an answer was not read to its end, it
//! closes a connection from under a running query, and it says that the server
//! has let go only once it has.

// Not engine code: real time is fine here. The example and the tests each use parts of it.
#![allow(dead_code, unreachable_pub, clippy::disallowed_methods)]

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use forebay::{Connector, Failure, Killer, LetGo, Opened, Returned};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_postgres::config::Host;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{CancelToken, Client, Config, Connection, NoTls, Row, Transaction};

/// A server that has not closed its side this long after we closed ours is not
/// waited for any more.
const FAREWELL: Duration = Duration::from_secs(10);

/// Opens sessions on one server.
#[derive(Clone)]
pub struct Postgres {
    config: Config,
    host: String,
    port: u16,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot reach the server")]
    Unreachable(#[source] io::Error),
    #[error(transparent)]
    Postgres(#[from] tokio_postgres::Error),
    #[error("the address names no TCP host; this connector knows no Unix sockets")]
    NoHost,
}

impl Postgres {
    /// For the first host of a `postgres://` address or a list of `key=value`s.
    /// `application_name` is what the sessions are called in `pg_stat_activity`.
    pub fn new(address: &str, application_name: &str) -> Result<Self, Error> {
        let mut config: Config = address.parse()?;
        config.application_name(application_name);
        let Some(Host::Tcp(host)) = config.get_hosts().first() else { return Err(Error::NoHost) };
        let host = host.clone();
        let port = config.get_ports().first().copied().unwrap_or(5432);
        Ok(Self { config, host, port })
    }

    async fn dial(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Drives a session until it ends or is killed, then waits until the server
    /// has closed its side too.
    async fn serve(
        self,
        connection: Connection<Line, tokio_postgres::tls::NoTlsStream>,
        farewell: Arc<Mutex<Option<TcpStream>>>,
        kill: Arc<Notify>,
        cancel: CancelToken,
    ) -> LetGo {
        let killed = tokio::select! {
            biased;
            () = kill.notified() => true,
            _ = connection => false,
        };
        // the connection is gone: a query under way has failed by now
        let stream = farewell.lock().expect("never held over a panic").take();
        let Some(mut stream) = stream else { return LetGo::Unconfirmed };
        let parting = async {
            if killed && let Ok(stream) = self.dial().await {
                // else the server would run the query to its end before it looks up
                let _ = cancel.cancel_query_raw(stream, NoTls).await;
            }
            let _ = stream.shutdown().await;
            let mut rest = [0; 4096];
            while stream.read(&mut rest).await.is_ok_and(|n| n > 0) {}
        };
        match tokio::time::timeout(FAREWELL, parting).await {
            Ok(()) => LetGo::Confirmed,
            Err(_) => LetGo::Unconfirmed,
        }
    }
}

impl Connector for Postgres {
    type Conn = Session;
    type Key = ();
    type Error = Error;

    async fn connect(&self, _key: &()) -> Result<Opened<Session>, Error> {
        let stream = self.dial().await.map_err(Error::Unreachable)?;
        let farewell = Arc::new(Mutex::new(None));
        let line = Line { stream: Some(stream), farewell: farewell.clone() };
        let (client, connection) = self.config.connect_raw(line, NoTls).await?;
        let kill = Arc::new(Notify::new());
        let cancel = client.cancel_token();
        let task = self.clone().serve(connection, farewell, kill.clone(), cancel);
        let session = Session {
            client,
            unfinished: AtomicU32::new(0),
            used: AtomicBool::new(false),
            kill: kill.clone(),
            task: tokio::spawn(task),
        };
        Ok(Opened::new(session).with_killer(Killer::new(move || kill.notify_one())))
    }

    fn is_broken(&self, session: &Session) -> bool {
        session.client.is_closed()
    }

    fn state(&self, session: &mut Session) -> Returned {
        if *session.unfinished.get_mut() > 0 {
            Returned::Unknown
        } else if *session.used.get_mut() {
            Returned::NeedsReset
        } else {
            Returned::Clean
        }
    }

    /// Refused by the server inside a transaction, and then the session is
    /// discarded, which is right. It also forgets prepared statements, among them
    /// those by which tokio-postgres looks up types of your own: if you use such,
    /// put the parts of `DISCARD ALL` that you need in its place.
    async fn reset(&self, session: &mut Session) -> Result<(), Error> {
        session.client.batch_execute("DISCARD ALL").await?;
        *session.used.get_mut() = false;
        Ok(())
    }

    async fn check(&self, session: &mut Session) -> Result<(), Error> {
        Ok(session.client.batch_execute("").await?)
    }

    /// The task ends once the server has closed its side of the socket. A
    /// PostgreSQL backend does so by exiting, after it has given up its place, so
    /// this proves that the server counts it no more. It proves nothing about a
    /// server behind a proxy: what closed its side then is the proxy.
    async fn close(&self, session: Session) -> LetGo {
        let Session { client, mut unfinished, kill, task, .. } = session;
        if *unfinished.get_mut() > 0 {
            // a polite end would wait for the answer
            kill.notify_one();
        }
        drop(client);
        task.await.unwrap_or(LetGo::Unconfirmed)
    }

    fn classify(&self, error: &Error) -> Failure {
        match error {
            Error::Unreachable(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                Failure::Refused
            }
            Error::Unreachable(_) => Failure::Unknown,
            Error::NoHost => Failure::Refused,
            Error::Postgres(error) => match error.code() {
                Some(&SqlState::TOO_MANY_CONNECTIONS) => Failure::TooMany,
                Some(&SqlState::INVALID_PASSWORD)
                | Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION) => Failure::Credentials,
                // an answer of the server, after which it hangs up
                Some(_) => Failure::Refused,
                None => Failure::Unknown,
            },
        }
    }
}

/// A session. Statements go through here and not to the client, so that one
/// whose future was dropped before its answer was read is known to be under way.
pub struct Session {
    client: Client,
    /// Statements begun and not answered to the end.
    unfinished: AtomicU32,
    /// Something was sent since the last reset. Which statements leave something
    /// behind (`SET`, `LISTEN`, locks, temporary tables, …) cannot be told from
    /// their text, so all count.
    used: AtomicBool,
    kill: Arc<Notify>,
    task: JoinHandle<LetGo>,
}

impl Session {
    pub async fn query(
        &self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        self.used.store(true, Ordering::Relaxed);
        watched(&self.unfinished, self.client.query(sql, params)).await
    }

    pub async fn execute(
        &self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, tokio_postgres::Error> {
        self.used.store(true, Ordering::Relaxed);
        watched(&self.unfinished, self.client.execute(sql, params)).await
    }

    pub async fn transaction(&mut self) -> Result<Work<'_>, tokio_postgres::Error> {
        self.used.store(true, Ordering::Relaxed);
        let unfinished = &self.unfinished;
        let transaction = watched(unfinished, self.client.transaction()).await?;
        Ok(Work { transaction, unfinished })
    }
}

/// A transaction; rolled back unless committed.
pub struct Work<'a> {
    transaction: Transaction<'a>,
    unfinished: &'a AtomicU32,
}

impl Work<'_> {
    pub async fn execute(
        &self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, tokio_postgres::Error> {
        watched(self.unfinished, self.transaction.execute(sql, params)).await
    }

    pub async fn commit(self) -> Result<(), tokio_postgres::Error> {
        watched(self.unfinished, self.transaction.commit()).await
    }
}

/// Counts a statement as unfinished from its first poll to its last. Dropped in
/// between, it stays counted.
async fn watched<T>(unfinished: &AtomicU32, statement: impl Future<Output = T>) -> T {
    unfinished.fetch_add(1, Ordering::Relaxed);
    let answer = statement.await;
    unfinished.fetch_sub(1, Ordering::Relaxed);
    answer
}

/// A socket that is handed back when tokio-postgres drops it, so that the
/// server's end-of-file can be awaited.
struct Line {
    /// Present until dropped.
    stream: Option<TcpStream>,
    farewell: Arc<Mutex<Option<TcpStream>>>,
}

impl Line {
    fn stream(self: Pin<&mut Self>) -> Pin<&mut TcpStream> {
        Pin::new(self.get_mut().stream.as_mut().expect("present until dropped"))
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        *self.farewell.lock().expect("never held over a panic") = self.stream.take();
    }
}

impl AsyncRead for Line {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream().poll_read(cx, buf)
    }
}

impl AsyncWrite for Line {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(cx)
    }
}
