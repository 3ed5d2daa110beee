//! A pool's way to a modelled backend: the connector of every simulated pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay::{Connector, Failure, Instant, Killer, LetGo, Lost, Opened};

use crate::clocks::MemberClock;
use crate::scenario::Refusal;
use crate::site::{Cause, Fate, Site};

/// Connects one member to one backend.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) site: Arc<Site>,
    pub(crate) clock: MemberClock,
    pub(crate) owner: usize,
}

/// The member's end of a connection. Dropped, its socket closes.
pub(crate) struct Wire {
    id: u64,
    site: Arc<Site>,
    dead: Arc<AtomicBool>,
    pub(crate) busy: Arc<AtomicBool>,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.site.gone(self.id, now());
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the backend refused: {cause:?}")]
pub(crate) struct Refused {
    cause: Cause,
    silent: bool,
}

#[expect(clippy::disallowed_methods, reason = "a backend lives by the run's virtual time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Waits on the run's own time, which does not stop for anybody.
#[expect(clippy::disallowed_methods, reason = "a backend lives by the run's virtual time")]
pub(crate) async fn pass(span: std::time::Duration) {
    tokio::time::sleep(span).await;
}

impl Connector for Link {
    type Conn = Wire;
    type Key = ();
    type Error = Refused;
    const KILLS: bool = true;

    async fn connect(&self, _key: &()) -> Result<Opened<Wire>, Refused> {
        self.clock.gate().await;
        let (lost, dead, busy) = (Lost::new(), Arc::default(), Arc::default());
        let silent = self.site.model.refusal == Refusal::Silent;
        let fate =
            self.site.arrive(self.owner, lost.clone(), Arc::clone(&dead), Arc::clone(&busy), now());
        let wire = |id| Wire {
            id,
            site: self.site.clone(),
            dead: Arc::clone(&dead),
            busy: Arc::clone(&busy),
        };
        match fate {
            Fate::Accepted(id, took) => {
                let wire = wire(id);
                pass(took).await;
                self.clock.gate().await;
                let killer = {
                    let (site, dead) = (self.site.clone(), Arc::clone(&dead));
                    Killer::new(move || {
                        dead.store(true, Ordering::Relaxed);
                        site.gone(id, now());
                    })
                };
                Ok(Opened::new(wire).with_killer(killer).with_lost(lost))
            }
            Fate::Refused(cause, took) => {
                pass(took).await;
                self.clock.gate().await;
                Err(Refused { cause, silent })
            }
            Fate::Hangs(id) => {
                let _wire = wire(id);
                std::future::pending().await
            }
        }
    }

    fn is_broken(&self, conn: &Wire) -> bool {
        conn.dead.load(Ordering::Relaxed)
    }

    async fn close(&self, conn: Wire) -> LetGo {
        pass(self.site.let_go()).await;
        drop(conn);
        LetGo::Confirmed
    }

    fn classify(&self, error: &Refused) -> Failure {
        match error.cause {
            Cause::TooFast if !error.silent => Failure::TooFast(None),
            Cause::TooMany if !error.silent => Failure::TooMany,
            // nothing was left there, but nobody could know
            Cause::Failed if !error.silent => Failure::Refused,
            _ => Failure::Unknown,
        }
    }
}
