//! A backend that rations its connections, on a loopback port of this process:
//! real sockets, a made-up protocol of lines. It says `welcome` to those it
//! admits and the reason to those it refuses, answers `ping X` with `pong X`,
//! and cuts off whoever stays beyond the lifetime.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};

use super::ledger::{Counts, Ledger, Limits};
use super::wire::Wire;

/// The greeting of a connection that was admitted.
pub(crate) const WELCOME: &str = "welcome";

/// How long to wait when the system has no socket to give.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// A running backend; it ends when dropped.
pub(crate) struct Backend {
    address: SocketAddr,
    ledger: Shared,
    accepting: JoinHandle<()>,
}

#[derive(Clone)]
struct Shared(Arc<Mutex<Ledger>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Ledger> {
        // the ledger is only integers: a panic elsewhere leaves them as good as before
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backend {
    /// Listens on a free port.
    pub(crate) async fn start(
        limits: Limits,
        handshake: Duration,
        service: Duration,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let ledger = Shared(Arc::new(Mutex::new(Ledger::new(limits, Instant::now()))));
        let host = Host { ledger: ledger.clone(), limits, handshake, service };
        let accepting = tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => host.receive(stream),
                    Err(_) => sleep(ACCEPT_AGAIN).await,
                }
            }
        });
        Ok(Self { address, ledger, accepting })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it has seen so far.
    pub(crate) fn counts(&self) -> Counts {
        self.ledger.lock().counts(Instant::now())
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

struct Host {
    ledger: Shared,
    limits: Limits,
    handshake: Duration,
    service: Duration,
}

impl Host {
    /// Admits or refuses; the limits are applied at the moment of arrival.
    fn receive(&self, stream: TcpStream) {
        let now = Instant::now();
        let admitted = self.ledger.lock().admit(now);
        let Ok(wire) = Wire::new(stream) else {
            if admitted.is_ok() {
                self.ledger.lock().leave(false);
            }
            return;
        };
        match admitted {
            Err(refusal) => {
                tokio::spawn(async move {
                    // whoever does not listen to the reason is refused all the same
                    let _ = wire.send(refusal.as_str()).await;
                    wire.finish().await;
                });
            }
            Ok(()) => {
                let ledger = self.ledger.clone();
                let (handshake, service) = (self.handshake, self.service);
                let end = now + self.limits.lifetime;
                tokio::spawn(async move {
                    let mut wire = wire;
                    let talk = converse(&mut wire, &ledger, handshake, service);
                    let cut_off = timeout_at(end, talk).await.is_err();
                    // counted before the client can see the end, so that a client
                    // which has seen it may open another at once
                    ledger.lock().leave(cut_off);
                    drop(wire);
                });
            }
        }
    }
}

/// Greets and answers until the client leaves.
async fn converse(
    wire: &mut Wire,
    ledger: &Shared,
    handshake: Duration,
    service: Duration,
) -> io::Result<()> {
    sleep(handshake).await;
    wire.send(WELCOME).await?;
    while let Some(line) = wire.receive().await? {
        let Some(what) = line.strip_prefix("ping") else {
            return wire.send("not understood").await;
        };
        sleep(service).await;
        wire.send(&format!("pong{what}")).await?;
        ledger.lock().answered();
    }
    Ok(())
}
