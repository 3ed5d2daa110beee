//! Connections that come back by themselves. A call never waits for more than one
//! attempt to connect: once an attempt has failed, calls fail at once with its
//! reason while further attempts go on beside them, at growing distances.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use redis::{Cmd, RedisError, Value};
use tokio::sync::watch;

use super::dial::{Conn, Dialler};
use super::fault::{away, describe, is_broken};
use super::wait::{generator, jitter, pass};
use crate::keeper::KeeperError;

/// Calls on one connection before another one is opened.
const DEEP: usize = 64;
/// Calls in a row that got no answer before a connection is given up.
const SILENT_MAX: usize = 2;

/// All connections to the servers.
pub(super) struct Links {
    links: Vec<Arc<Link>>,
}

impl Links {
    pub(super) fn new(dialler: &Arc<Dialler>) -> Self {
        let settings = dialler.settings();
        let count = if settings.is_cluster() { 1 } else { settings.pool_size };
        let link = |number| Arc::new(Link::new(number, Arc::clone(dialler)));
        Self { links: (0..count).map(link).collect() }
    }

    /// Sends a command and waits for its answer.
    pub(super) async fn query(&self, cmd: &Cmd) -> Result<Value, Fault> {
        let link = self.pick();
        let (mut conn, stamp) = link.connection().await.map_err(Fault::Keeper)?;
        let mut flight = Flight { link, stamp, answered: false };
        flight.link.flying.fetch_add(1, Ordering::Relaxed);
        let result = conn.query(cmd).await;
        flight.answered = true;
        flight.link.note(stamp, result.as_ref().err());
        result.map_err(|error| {
            let moves =
                error.code().is_some_and(|code| ["MOVED", "ASK", "TRYAGAIN"].contains(&code));
            if moves && flight.link.dialler.settings().is_cluster() {
                return Fault::Keeper(away("the cluster is moving the backend to another node"));
            }
            Fault::Server(error)
        })
    }

    /// The first connection that is not deep in calls; they are opened in turn.
    fn pick(&self) -> &Arc<Link> {
        let shallow = |link: &&Arc<Link>| link.flying.load(Ordering::Relaxed) < DEEP;
        // while the first is not there, no other is opened: one knocks for all
        let first = &self.links[0];
        if !first.is_up() {
            return first;
        }
        let least = || self.links.iter().min_by_key(|link| link.flying.load(Ordering::Relaxed));
        self.links.iter().find(shallow).or_else(least).unwrap_or(first)
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Fault {
    /// The server's own words.
    Server(RedisError),
    /// It was not asked.
    Keeper(KeeperError),
}

impl From<Fault> for KeeperError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Server(error) => describe(&error),
            Fault::Keeper(error) => error,
        }
    }
}

#[derive(Clone)]
enum State {
    /// Not wanted so far.
    Idle,
    /// The first attempt is under way.
    Connecting,
    /// Connected; the number tells connections apart.
    Up(Conn, u64),
    /// An attempt has failed, and further ones go on.
    Down(KeeperError),
}

struct Link {
    number: usize,
    dialler: Arc<Dialler>,
    state: watch::Sender<State>,
    rng: Mutex<fastrand::Rng>,
    flying: AtomicUsize,
    silent: AtomicUsize,
}

impl Link {
    fn new(number: usize, dialler: Arc<Dialler>) -> Self {
        let rng = Mutex::new(generator(dialler.settings().seed));
        let state = watch::Sender::new(State::Idle);
        let (flying, silent) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { number, dialler, state, rng, flying, silent }
    }

    fn is_up(&self) -> bool {
        matches!(*self.state.borrow(), State::Up(..))
    }

    async fn connection(self: &Arc<Self>) -> Result<(Conn, u64), KeeperError> {
        self.start(|state| matches!(state, State::Idle));
        let mut state = self.state.subscribe();
        let waiting = state.wait_for(|state| !matches!(state, State::Connecting)).await;
        match waiting.as_deref() {
            Ok(State::Up(conn, stamp)) => Ok((conn.clone(), *stamp)),
            Ok(State::Down(error)) => Err(error.clone()),
            Ok(State::Idle | State::Connecting) | Err(_) => Err(away("connecting was broken off")),
        }
    }

    /// Begins to connect, if the state is such that this should be done.
    fn start(self: &Arc<Self>, should: impl Fn(&State) -> bool) {
        let begun = self.state.send_if_modified(|state| {
            let begin = should(state);
            if begin {
                *state = State::Connecting;
            }
            begin
        });
        if begun {
            let attempt = Attempt { link: Arc::clone(self), done: false };
            tokio::spawn(attempt.run());
        }
    }

    /// Takes note of how a call went.
    fn note(self: &Arc<Self>, stamp: u64, error: Option<&RedisError>) {
        match error {
            Some(error) if is_broken(error) => {
                // a cluster's connection mends itself; it is replaced if it does not manage
                let mends_itself = self.dialler.settings().is_cluster();
                if !mends_itself || self.silent.fetch_add(1, Ordering::Relaxed) + 1 >= SILENT_MAX {
                    self.replace(stamp);
                }
            }
            _ => self.silent.store(0, Ordering::Relaxed),
        }
    }

    /// Gives a connection up. The first one is sought again at once, the others
    /// when they are needed.
    fn replace(self: &Arc<Self>, stamp: u64) {
        self.silent.store(0, Ordering::Relaxed);
        let is_this = move |state: &State| matches!(state, State::Up(_, up) if *up == stamp);
        if self.number == 0 && tokio::runtime::Handle::try_current().is_ok() {
            self.start(is_this);
        } else {
            self.state.send_if_modified(|state| {
                let give_up = is_this(state);
                if give_up {
                    *state = State::Idle;
                }
                give_up
            });
        }
    }
}

/// A call that is under way. Dropped without an answer it speaks against its
/// connection: a path that has gone silent is otherwise never noticed by callers
/// that give up sooner than we do.
struct Flight<'a> {
    link: &'a Arc<Link>,
    stamp: u64,
    answered: bool,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.link.flying.fetch_sub(1, Ordering::Relaxed);
        let unanswered = !self.answered;
        if unanswered && self.link.silent.fetch_add(1, Ordering::Relaxed) + 1 >= SILENT_MAX {
            self.link.replace(self.stamp);
        }
    }
}

/// Attempts to connect, until one succeeds or nobody has the keeper any more.
struct Attempt {
    link: Arc<Link>,
    done: bool,
}

impl Attempt {
    async fn run(mut self) {
        let link = Arc::clone(&self.link);
        let mut wait = link.dialler.settings().reconnect_min;
        loop {
            match link.dialler.connect().await {
                Ok(conn) => {
                    let stamp = link.rng.lock().u64(..);
                    self.done = true;
                    link.state.send_replace(State::Up(conn, stamp));
                    return;
                }
                Err(error) => {
                    tracing::debug!(%error, "no connection to redis");
                    link.state.send_replace(State::Down(error));
                }
            }
            // the two are this attempt's own
            if Arc::strong_count(&link) == 2 {
                return;
            }
            let time = jitter(wait, &mut link.rng.lock());
            pass(time).await;
            wait = (wait * 2).min(link.dialler.settings().reconnect_max);
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        // the runtime went away under it: the next call begins anew
        self.link.state.send_if_modified(|state| {
            let unfinished = !matches!(state, State::Up(..));
            if unfinished {
                *state = State::Idle;
            }
            unfinished
        });
    }
}
