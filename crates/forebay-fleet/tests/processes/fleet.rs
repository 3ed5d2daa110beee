//! A fleet of children as a test sees it: starts them, stops and kills them, cuts
//! them off, waits for them to come to rest, and asks the books. Children end with
//! the test, also when it panics.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_fleet::{BackendInfo, Keeper};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::backend::Backend;
use crate::child::{self, Brief, Line, State, Times};
use crate::keepers::{CREDENTIALS, Kind, LONG, unique};
use crate::relay::Relay;
use crate::{MS, now};

/// What a busy machine may take longer than the protocol says.
pub const SLACK: u64 = 1000 * MS;

/// A bucket that is new gives nothing for as long as older permits may still be used.
pub const BUCKET_REST: u64 = 2000 * MS;

/// Connections that the backend lets be open.
pub const LIMIT: u32 = 12;

pub const TIMES: Times = Times {
    ttl: Duration::from_millis(3000),
    heartbeat: Duration::from_millis(500),
    margin: Duration::from_millis(800),
    request: Duration::from_millis(300),
    close_grace: Duration::from_millis(300),
};

/// How a fleet is to be.
#[derive(Debug, Clone)]
pub struct Plan {
    pub kind: Kind,
    pub on_loss: &'static str,
    pub dead_man: bool,
    pub times: Times,
    pub rate: u32,
    pub burst: u32,
    /// One for each member.
    pub appetites: Vec<u32>,
    pub throw_away: bool,
    pub credentials_ms: u64,
}

impl Plan {
    /// Three members that would each like all there is.
    pub fn new(kind: Kind, on_loss: &'static str) -> Self {
        Self {
            kind,
            on_loss,
            dead_man: false,
            times: TIMES,
            rate: 500,
            burst: 100,
            appetites: vec![LIMIT; 3],
            throw_away: false,
            credentials_ms: 0,
        }
    }
}

pub struct Fleet {
    pub plan: Plan,
    pub id: String,
    pub backend: Backend,
    pub members: Vec<Process>,
    runtime: tokio::runtime::Runtime,
    keeper: Arc<dyn Keeper>,
}

pub struct Process {
    pub pid: u32,
    pub appetite: u32,
    pub relay: Relay,
    child: Child,
    told: Arc<Mutex<Told>>,
}

#[derive(Debug, Default)]
pub struct Told {
    pub state: Option<State>,
    /// When each checkout began, and the connection that it got.
    pub got: Vec<(u64, u64)>,
    pub blocked: bool,
}

impl Fleet {
    /// Starts a fleet on the server that all tests share.
    pub fn shared(plan: Plan) -> Option<Self> {
        let address = plan.kind.shared()?;
        Some(Self::start(plan, address))
    }

    /// Starts a fleet, and waits until it has all connections and moves none.
    pub fn start(plan: Plan, server: SocketAddr) -> Self {
        let id = unique("processes");
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().expect("a runtime");
        let keeper = runtime.block_on(async {
            let keeper = plan.kind.keeper(server, &id).await;
            assert!(keeper.setup(&id).await.expect("books"));
            keeper
        });
        let backend = Backend::start();
        let mut fleet = Self { plan, id, backend, members: Vec::new(), runtime, keeper };
        for (i, appetite) in fleet.plan.appetites.clone().into_iter().enumerate() {
            fleet.members.push(fleet.spawn(i, appetite, server));
        }
        fleet
    }

    pub fn spawn(&self, i: usize, appetite: u32, server: SocketAddr) -> Process {
        let relay = Relay::start(server);
        let plan = &self.plan;
        let brief = Brief {
            keeper: plan.kind.place(relay.address, &self.id),
            id: self.id.clone(),
            backend: self.backend.address,
            instance: format!("member-{i}"),
            on_loss: plan.on_loss.to_owned(),
            dead_man: plan.dead_man,
            times: plan.times,
            limit: LIMIT,
            rate: plan.rate,
            burst: plan.burst,
            appetite,
            throw_away: plan.throw_away,
            credentials_ms: plan.credentials_ms,
        };
        Process::spawn(&brief, relay)
    }

    /// What the books say.
    pub fn books(&self) -> BackendInfo {
        // a server that has just been started may still be reading its data
        let begun = now();
        loop {
            match self.runtime.block_on(self.keeper.inspect(&self.id)) {
                Ok(books) => return books,
                Err(error) => assert!(now() < begun + nanos(LONG), "no books: {error}"),
            }
            wait(10 * MS);
        }
    }

    /// From here on the books are looked up at another server.
    pub fn look_at(&mut self, server: SocketAddr) {
        self.keeper = self.runtime.block_on(self.plan.kind.keeper(server, &self.id));
    }

    /// Leases that the books have for a member.
    pub fn booked(&self, member: usize) -> u32 {
        let name = format!("member-{member}");
        let books = self.books();
        books.members.iter().filter(|m| m.member.instance() == name).map(|m| m.held).sum()
    }

    pub fn ttl(&self) -> u64 {
        nanos(self.plan.times.ttl)
    }

    pub fn heartbeat(&self) -> u64 {
        nanos(self.plan.times.heartbeat)
    }

    pub fn close_grace(&self) -> u64 {
        nanos(self.plan.times.close_grace)
    }

    /// Waits until all slots are used, fairly shared, and no connection has come or
    /// gone for a while.
    pub fn rest(&self) {
        let quiet = 2 * self.heartbeat();
        self.until("all slots are used, fairly, and rest", LONG, || {
            let log = self.backend.log();
            let last = log.events.last().map_or(0, |event| event.at);
            let parts = self.members.iter().map(|member| log.open_of(member.pid).len() as u32);
            // each has what it would like, or as many as the richest less one
            let richest = parts.clone().max().unwrap_or(0);
            let mut fairly = parts.zip(&self.members);
            let fairly = fairly.all(|(part, m)| part >= m.appetite.min(richest.max(1) - 1).max(1));
            fairly && log.open() == LIMIT && now() > last + quiet
        });
    }

    /// Waits for something; fails the test if it does not come in time. Gives when it came.
    pub fn until(&self, what: &str, within: Duration, mut is_so: impl FnMut() -> bool) -> u64 {
        let begun = now();
        while !is_so() {
            let late = now() > begun + nanos(within);
            assert!(!late, "not within {within:?}: {what}\n{}", self.describe());
            std::thread::sleep(Duration::from_millis(5));
        }
        now()
    }

    /// For the message of a check that fails.
    pub fn describe(&self) -> String {
        let states: Vec<_> = self.members.iter().map(|m| (m.pid, m.told().state.clone())).collect();
        let log = self.backend.log();
        let last = log.events.iter().rev().take(30).rev();
        let at = now();
        let last: Vec<_> = last.map(|e| (e.open, -(((at - e.at) / MS) as i64))).collect();
        let books = self.runtime.block_on(async {
            let books = self.keeper.inspect(&self.id);
            tokio::time::timeout(Duration::from_secs(1), books).await
        });
        format!(
            "{:?} {}\nmembers: {states:#?}\nbooks: {books:#?}\nbackend late by {} ms at worst; open, ms ago: {last:?}",
            self.plan.kind,
            self.plan.on_loss,
            log.stall / MS
        )
    }

    /// Fails the test if more than `most` were open at any instant between the two.
    pub fn stays_within(&self, most: u32, from: u64, until: u64) {
        let seen = self.backend.log().most(from, until);
        assert!(seen <= most, "{seen} open, {most} allowed\n{}", self.describe());
    }

    /// Fails the test if a pool or a member says that it broke a rule.
    pub fn all_is_well(&self) {
        for member in &self.members {
            let breaches = member.told().state.as_ref().map_or(0, |state| state.breaches);
            assert_eq!(breaches, 0, "{}", self.describe());
        }
    }
}

impl Process {
    fn spawn(brief: &Brief, relay: Relay) -> Self {
        let program = std::env::current_exe().expect("this program");
        let text = serde_json::to_string(brief).expect("a brief");
        let mut child = Command::new(program)
            .args(["--exact", child::TEST, "--nocapture", "--test-threads", "1"])
            .env(child::VARIABLE, text)
            .envs(CREDENTIALS)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child process");
        let told = Arc::new(Mutex::new(Told::default()));
        let (out, theirs) = (child.stdout.take().expect("its stdout"), told.clone());
        std::thread::spawn(move || listen(BufReader::new(out), &theirs));
        Self { pid: child.id(), appetite: brief.appetite, relay, child, told }
    }

    pub fn told(&self) -> std::sync::MutexGuard<'_, Told> {
        self.told.lock().expect("nobody panics with it")
    }

    pub fn signal(&self, signal: Signal) -> u64 {
        let before = now();
        kill(Pid::from_raw(self.pid as i32), signal).expect("our own child");
        before
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().expect("its stdin"), "{line}").expect("it listens");
    }

    /// The signal that has ended it, if any has.
    pub fn ended_by(&mut self) -> Option<i32> {
        self.child.try_wait().expect("our own child").and_then(|status| status.signal())
    }

    pub fn state(&self) -> State {
        self.told().state.clone().expect("it has said so")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // ends one that is stopped, too
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn listen(out: impl BufRead, told: &Mutex<Told>) {
    for line in out.lines().map_while(Result::ok) {
        let Some(text) = line.strip_prefix(child::MARK) else { continue };
        let Ok(line) = serde_json::from_str(text) else { continue };
        let mut told = told.lock().expect("nobody panics with it");
        match line {
            Line::State(state) => told.state = Some(state),
            Line::Got { begun, serial } => told.got.push((begun, serial)),
            Line::Blocked(blocked) => told.blocked = blocked,
        }
    }
}

pub fn nanos(span: Duration) -> u64 {
    span.as_nanos() as u64
}

pub fn wait(span: u64) {
    std::thread::sleep(Duration::from_nanos(span));
}

/// Runs the same case for several policies at once.
pub fn for_each<T: Copy + Send + Sync>(cases: &[T], case: impl Fn(T) + Sync) {
    std::thread::scope(|scope| {
        let threads: Vec<_> = cases.iter().map(|one| scope.spawn(|| case(*one))).collect();
        for thread in threads {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
}
