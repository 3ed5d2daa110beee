//! What the tests of the Redis keeper share: finding or starting servers, reports
//! with sensible defaults, and a look into the books past the keeper.

#![allow(dead_code, unreachable_pub, clippy::disallowed_methods, clippy::disallowed_types)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_fleet::{
    Answer, Booking, Keeper, Limits, MemberId, Profile, RedisKeeper, RedisSettings, Report,
};
use redis::aio::MultiplexedConnection;

/// Only reached if something is wrong.
pub const LONG: Duration = Duration::from_secs(60);

/// The server that all tests share, or a word about why a test is skipped.
pub fn shared_url() -> Option<String> {
    let url = std::env::var("FOREBAY_TEST_REDIS").ok().filter(|url| !url.is_empty());
    if url.is_none() {
        println!("skipped: FOREBAY_TEST_REDIS is not set");
    }
    url
}

/// The program to start servers of one's own with.
pub fn server_program() -> Option<PathBuf> {
    let path = std::env::var_os("FOREBAY_TEST_REDIS_SERVER").filter(|path| !path.is_empty());
    if path.is_none() {
        println!("skipped: FOREBAY_TEST_REDIS_SERVER is not set");
    }
    path.map(PathBuf::from)
}

pub fn keeper(url: &str) -> RedisKeeper {
    let settings = RedisSettings::from_url(url).expect("a valid url");
    RedisKeeper::new(settings.reconnect(Duration::from_millis(5), Duration::from_millis(50)))
        .expect("valid settings")
}

pub async fn raw(url: &str) -> MultiplexedConnection {
    let client = redis::Client::open(url).expect("a valid url");
    let config = redis::AsyncConnectionConfig::new()
        .set_response_timeout(Some(LONG))
        .set_connection_timeout(Some(LONG));
    client.get_multiplexed_async_connection_with_config(&config).await.expect("a server")
}

/// A name that no other test, and no earlier run, has used.
pub fn unique(name: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanos = time.expect("after 1970").as_nanos();
    format!("{name}-{}-{nanos}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

pub fn key(backend: &str, name: &str) -> String {
    format!("{{proxy:bucket:{backend}}}:{name}")
}

pub fn profile(open: u32) -> Profile {
    Profile {
        service: "test".to_owned(),
        peer: "127.0.0.1:1".to_owned(),
        weight: 1,
        limits: Limits { open, rate: 100, burst: 10, version: 0 },
        ttl_ms: 30_000,
        heartbeat_ms: 10_000,
        margin_ms: 5_000,
        reclaim_ms: 30_000,
        divisor: 1,
    }
}

/// A member as a test plays it.
#[derive(Debug, Clone)]
pub struct Player {
    pub backend: String,
    pub member: MemberId,
    pub seq: u64,
    pub held: u32,
    pub share: u32,
    pub profile: Profile,
    /// When the last report that was answered was sent.
    answered: Option<std::time::Instant>,
}

impl Player {
    pub fn new(backend: &str, name: &str, profile: Profile) -> Self {
        let (backend, member) = (backend.to_owned(), MemberId::new(name, 1));
        Self { backend, member, seq: 0, held: 0, share: 0, profile, answered: None }
    }

    /// The next report, keeping what it has.
    pub fn report(&mut self, held: u32, want: u32) -> Report {
        self.seq += 1;
        Report {
            backend: self.backend.clone(),
            member: self.member.clone(),
            seq: self.seq,
            generation: None,
            held,
            want,
            waiters: want.saturating_sub(held),
            share: self.share,
            elapsed_ms: self.answered.map(|at| at.elapsed().as_millis() as u64),
            pause_ms: 0,
            leave: false,
            nonce: 7,
            profile: self.profile.clone(),
        }
    }

    pub async fn ask(&mut self, keeper: &RedisKeeper, held: u32, want: u32) -> Booking {
        let report = self.report(held, want);
        let sent = std::time::Instant::now();
        let answer = keeper.report(&report).await.expect("an answer");
        self.answered = Some(sent);
        let Answer::Booked(booking) = answer else { panic!("{answer:?}") };
        (self.held, self.share) = (booking.held, booking.share);
        booking
    }
}

/// Waits for something in the world outside; fails the test if it does not come.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let looking = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LONG, looking).await.unwrap_or_else(|_| panic!("never: {what}"))
}

/// A server of the test's own, ended with the test.
pub struct Server {
    program: PathBuf,
    args: Vec<String>,
    pub directory: PathBuf,
    pub port: u16,
    child: Option<Child>,
}

impl Server {
    pub fn new(program: &Path, args: &[&str]) -> Self {
        let directory = std::env::temp_dir().join(unique("forebay-redis"));
        std::fs::create_dir_all(&directory).expect("a directory");
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Self { program: program.to_owned(), args, directory, port: free_port(), child: None }
    }

    /// Starts it and waits until it answers.
    pub async fn start(program: &Path, args: &[&str]) -> Self {
        let mut server = Self::new(program, args);
        server.run();
        server.is_up().await;
        server
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn run(&mut self) {
        let mut command = Command::new(&self.program);
        let tls = self.args.iter().any(|arg| arg == "--tls-port");
        if !tls {
            command.arg("--port").arg(self.port.to_string());
        }
        let log = std::fs::File::create(self.directory.join("log")).expect("a log file");
        command.args(["--save", "", "--bind", "127.0.0.1", "--dir"]).arg(&self.directory);
        command.args(&self.args).stdin(Stdio::null()).stdout(log);
        self.child = Some(command.stderr(Stdio::null()).spawn().expect("a server process"));
    }

    /// Runs a sentinel or other program that is told everything by a file.
    pub fn run_file(&mut self, file: &str, text: &str) {
        let path = self.directory.join(file);
        std::fs::write(&path, text).expect("a file of settings");
        let log = std::fs::File::create(self.directory.join("log")).expect("a log file");
        let mut command = Command::new(&self.program);
        command.arg(&path).args(&self.args).stdin(Stdio::null()).stdout(log);
        self.child = Some(command.stderr(Stdio::null()).spawn().expect("a server process"));
    }

    pub async fn is_up(&self) {
        until("the server accepts connections", async || {
            tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await.ok()
        })
        .await;
    }

    pub fn id(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// As kill -9 does it.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.kill());
            drop(child.wait());
        }
    }

    pub async fn restart(&mut self) {
        self.kill();
        self.run();
        self.is_up().await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        drop(std::fs::remove_dir_all(&self.directory));
    }
}

/// A port that nobody has. Low enough that a cluster's bus port, 10,000 higher, exists.
pub fn free_port() -> u16 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let start = 20_000 + u64::from(std::process::id() % 500) * 40;
    loop {
        let port = (start + NEXT.fetch_add(1, Ordering::Relaxed)) as u16;
        let free = |port| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
        if free(port) && free(port + 10_000) {
            return port;
        }
    }
}
