//! What a child process is: a member of the fleet with a pool, and work that wants
//! more connections than there are. It says on stdout what it does, and ends when
//! its stdin does. The test binary runs itself with one test and a variable.

use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay::{Connector, Discard, Killer, LetGo, Opened, Pool};
use forebay_fleet::{
    Backend, BackendLimits, DynamoKeeper, DynamoSettings, Keeper, KeeperError, Member,
    MemberSettings, RedisKeeper, RedisSettings,
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::now;

/// Holds the [`Brief`] of a child, in JSON.
pub const VARIABLE: &str = "FOREBAY_PROCESSES_BRIEF";
/// The name by which the test binary is asked to be one.
pub const TEST: &str = "child::is_a_member_when_asked_to";
/// What it runs on: the number of threads that can be blocked.
pub const WORKERS: usize = 2;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Brief {
    pub keeper: Where,
    pub id: String,
    pub backend: SocketAddr,
    pub instance: String,
    pub on_loss: String,
    pub dead_man: bool,
    pub times: Times,
    pub limit: u32,
    pub rate: u32,
    pub burst: u32,
    /// Connections this process would like to have.
    pub appetite: u32,
    /// Connections are closed after use.
    pub throw_away: bool,
    /// Fetching credentials takes up to this long.
    pub credentials_ms: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Where {
    Redis { url: String },
    Dynamo { url: String, table: String },
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Times {
    pub ttl: Duration,
    pub heartbeat: Duration,
    pub margin: Duration,
    pub request: Duration,
    pub close_grace: Duration,
}

/// What a child says of itself, over and over.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct State {
    pub link: String,
    pub held: u32,
    pub share: u32,
    pub members: u32,
    pub total: u32,
    pub reaped: u64,
    pub overshoot: u64,
    pub permits_dropped: u64,
    pub breaches: u64,
}

/// What a child says on a line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Line {
    State(State),
    /// A checkout that began then got the connection with this number.
    Got {
        begun: u64,
        serial: u64,
    },
    /// All workers are blocked, or are not any more.
    Blocked(bool),
}

/// Marks the lines among those of the test harness.
pub const MARK: &str = "@@";

fn say(line: &Line) {
    let text = serde_json::to_string(line).expect("a line");
    let mut out = std::io::stdout().lock();
    // fails when the parent is gone: then this process ends as well
    if writeln!(out, "\n{MARK}{text}").and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}

#[test]
fn is_a_member_when_asked_to() {
    let Ok(brief) = std::env::var(VARIABLE) else { return };
    let brief: Brief = serde_json::from_str(&brief).expect("a brief");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .expect("a runtime");
    let handle = runtime.handle().clone();
    let (more, wanted) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || obey(&handle, &more));
    runtime.block_on(live(brief, wanted));
}

/// Does what the parent says, on a thread of its own; ends the process with it.
fn obey(runtime: &tokio::runtime::Handle, more: &UnboundedSender<u32>) {
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        if let Some(ms) = line.strip_prefix("block ") {
            block(runtime, Duration::from_millis(ms.parse().expect("a number")));
        } else if let Some(connections) = line.strip_prefix("more ") {
            more.send(connections.parse().expect("a number")).expect("it lives");
        }
    }
    std::process::exit(0);
}

/// Blocks every thread of the application's runtime at the same time.
fn block(runtime: &tokio::runtime::Handle, span: Duration) {
    let barrier = Arc::new(std::sync::Barrier::new(WORKERS + 1));
    for _ in 0..WORKERS {
        let barrier = barrier.clone();
        runtime.spawn(async move {
            barrier.wait();
            std::thread::sleep(span);
            barrier.wait();
        });
    }
    barrier.wait();
    say(&Line::Blocked(true));
    barrier.wait();
    say(&Line::Blocked(false));
}

async fn live(brief: Brief, mut wanted: UnboundedReceiver<u32>) {
    let settings = MemberSettings {
        on_loss: brief.on_loss.parse().expect("a policy"),
        ttl: brief.times.ttl,
        heartbeat: brief.times.heartbeat,
        margin: brief.times.margin,
        request_timeout: brief.times.request,
        reclaim_after: brief.times.ttl,
        close_grace: brief.times.close_grace,
        dead_man: brief.dead_man,
        ..MemberSettings::new(&brief.instance, "processes")
    };
    let (at, times) = (brief.keeper.clone(), brief.times);
    let member = Member::start(settings, move || reach(at, times)).await.expect("a member");
    let limits = BackendLimits::new(brief.limit, brief.rate, brief.burst);
    let budgets = member.backend(&brief.id, limits).expect("budgets");
    let pool = begin(&brief, &budgets, brief.appetite);
    std::thread::spawn(move || {
        loop {
            say(&Line::State(state(&member, &pool)));
            std::thread::sleep(Duration::from_millis(25));
        }
    });
    let mut others = Vec::new();
    while let Some(more) = wanted.recv().await {
        others.push(begin(&brief, &budgets, more));
    }
}

/// A pool, and work for it.
fn begin(brief: &Brief, budgets: &Backend, appetite: u32) -> Pool<Db> {
    let pool = Pool::builder(Db { at: brief.backend, credentials_ms: brief.credentials_ms })
        .max_open(appetite)
        .close_grace(brief.times.close_grace)
        .stagger(None)
        .timeout(Duration::from_secs(20))
        .backoff(forebay::BackoffSettings {
            base: Duration::from_millis(20),
            max: Duration::from_millis(200),
            ..Default::default()
        })
        .count(budgets.count.clone())
        .rate(budgets.rate.clone())
        .build()
        .expect("a pool");
    // some are in use at any time and some are idle
    for _ in 0..appetite.div_ceil(3) {
        tokio::spawn(work(pool.clone(), brief.throw_away));
    }
    pool
}

fn state(member: &Member, pool: &Pool<Db>) -> State {
    let stats = pool.stats();
    let state = member.state().remove(0);
    State {
        link: format!("{:?}", state.link),
        held: state.held,
        share: state.share,
        members: state.members,
        total: state.total,
        reaped: state.reaped,
        overshoot: state.overshoot,
        permits_dropped: stats.sources[0].permits_dropped,
        breaches: stats.breaches,
    }
}

async fn reach(at: Where, times: Times) -> Result<Arc<dyn Keeper>, KeeperError> {
    let (short, long) = (Duration::from_millis(20), times.heartbeat / 2);
    match at {
        Where::Redis { url } => {
            let settings = RedisSettings::from_url(&url).expect("a url");
            let settings = settings
                .reconnect(short, long)
                .dial_timeout(times.request)
                .read_timeout(times.request)
                .write_timeout(times.request);
            Ok(Arc::new(RedisKeeper::new(settings).expect("settings")))
        }
        Where::Dynamo { url, table } => {
            let mut settings = DynamoSettings::new(table);
            settings.endpoint_url = Some(url);
            settings.connect_timeout = times.request;
            settings.request_timeout = times.request;
            Ok(Arc::new(DynamoKeeper::connect(settings).await?))
        }
    }
}

async fn work(pool: Pool<Db>, throw_away: bool) {
    loop {
        let begun = now();
        match pool.get().await {
            Ok(mut conn) => {
                say(&Line::Got { begun, serial: conn.serial });
                conn.ask().await;
                tokio::time::sleep(Duration::from_millis(20)).await;
                conn.ask().await;
                if throw_away {
                    conn.discard(Discard::Broken);
                }
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The backend as a pool sees it.
struct Db {
    at: SocketAddr,
    credentials_ms: u64,
}

struct Conn {
    stream: TcpStream,
    serial: u64,
    broken: bool,
}

impl Conn {
    async fn ask(&mut self) {
        let asked = async {
            self.stream.write_u8(1).await?;
            self.stream.read_u8().await
        };
        self.broken |= asked.await.is_err();
    }
}

impl Connector for Db {
    type Conn = Conn;
    type Key = ();
    type Error = std::io::Error;
    const KILLS: bool = true;

    async fn prepare(&self, _key: &()) -> Result<(), std::io::Error> {
        if self.credentials_ms > 0 {
            let took = fastrand::u64(0..=self.credentials_ms);
            tokio::time::sleep(Duration::from_millis(took)).await;
        }
        Ok(())
    }

    async fn connect(&self, _key: &()) -> Result<Opened<Conn>, std::io::Error> {
        let sent = now();
        let mut stream = TcpStream::connect(self.at).await?;
        stream.set_nodelay(true)?;
        let serial = stream.read_u64().await?;
        stream.write_u32(std::process::id()).await?;
        stream.write_u64(sent).await?;
        let stream = stream.into_std()?;
        let other = stream.try_clone()?;
        let stream = TcpStream::from_std(stream)?;
        // only the sending side: a socket shut down for reading would say end of
        // file by itself, and `close` waits for the backend's
        let killer = Killer::new(move || drop(other.shutdown(std::net::Shutdown::Write)));
        Ok(Opened::new(Conn { stream, serial, broken: false }).with_killer(killer))
    }

    fn is_broken(&self, conn: &Conn) -> bool {
        conn.broken
    }

    async fn close(&self, mut conn: Conn) -> LetGo {
        drop(conn.stream.shutdown().await);
        let mut rest = [0; 64];
        while let Ok(1..) = conn.stream.read(&mut rest).await {}
        LetGo::Confirmed
    }
}
