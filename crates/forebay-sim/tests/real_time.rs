//! The simulator against reality: one scenario under virtual time, and the same
//! fleet in real time with real sockets in front of a backend that counts. The two
//! curves of opened connections agree to within half a second and two connections.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::sync::Arc;
use std::time::Duration;

use forebay::{Clock, Connector, Killer, LetGo, Opened, Pool};
use forebay_fleet::{BackendLimits, Keeper as _, Member, MemberSettings, ModelKeeper};
use forebay_sim::{Scenario, run};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const MEMBERS: u64 = 3;
const TARGET: u32 = 30;
const OPEN: u32 = 60;
const RATE: u32 = 20;
const BURST: u32 = 12;
const HANDSHAKE: Duration = Duration::from_millis(40);
const STEP: Duration = Duration::from_millis(100);
const STEPS: u32 = 50;
/// How far apart the curves may be: this many steps, and this many connections.
const STEPS_OFF: usize = 5;
const OFF: i64 = 2;

/// What the simulator says: connections opened after each step.
fn simulated() -> Vec<i64> {
    let text = format!(
        "{{duration: 5s, sample_every: 100ms, backend: {{open: {OPEN}, rate: {RATE}, burst: {BURST}, \
         handshake: 40ms}}, services: [{{name: web, instances: {MEMBERS}, target_ready: {TARGET}}}]}}"
    );
    let scenario = Scenario::parse(&text, "real").unwrap_or_else(|error| panic!("{error}"));
    let recording = run(&scenario, |_, _| {});
    let at = |step: u32| f64::from(step) * STEP.as_secs_f64();
    let opened = |until: f64| {
        let sample = recording.samples.iter().rev().find(|sample| sample.at <= until + 1e-6);
        sample.map_or(0, |sample| sample.services.iter().map(|s| s.opened as i64).sum())
    };
    (0..=STEPS).map(|step| opened(at(step))).collect()
}

/// A backend that greets after the handshake's time, and counts.
#[derive(Default)]
struct Seen {
    opened: i64,
    open: i64,
    most: i64,
}

async fn serve(listener: TcpListener, seen: Arc<Mutex<Seen>>) {
    while let Ok((mut socket, _)) = listener.accept().await {
        let seen = seen.clone();
        {
            let mut seen = seen.lock();
            seen.open += 1;
            seen.most = seen.most.max(seen.open);
        }
        tokio::spawn(async move {
            tokio::time::sleep(HANDSHAKE).await;
            if socket.write_all(b"!").await.is_ok() {
                seen.lock().opened += 1;
            }
            let mut byte = [0];
            while matches!(socket.read(&mut byte).await, Ok(1..)) {}
            seen.lock().open -= 1;
        });
    }
}

struct Tcp(std::net::SocketAddr);

impl Connector for Tcp {
    type Conn = TcpStream;
    type Key = ();
    type Error = std::io::Error;
    const KILLS: bool = true;

    async fn connect(&self, _key: &()) -> Result<Opened<TcpStream>, std::io::Error> {
        let mut socket = TcpStream::connect(self.0).await?;
        socket.read_exact(&mut [0]).await?;
        // nothing is cut in this test
        Ok(Opened::new(socket).with_killer(Killer::new(|| {})))
    }

    async fn close(&self, mut socket: TcpStream) -> LetGo {
        let _ = socket.shutdown().await;
        while matches!(socket.read(&mut [0; 16]).await, Ok(1..)) {}
        LetGo::Confirmed
    }
}

/// What happens: the same, with sockets, on the clock on the wall.
async fn real() -> (Vec<i64>, i64) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let place = listener.local_addr().expect("an address");
    let seen: Arc<Mutex<Seen>> = Arc::default();
    tokio::spawn(serve(listener, seen.clone()));
    let keeper = Arc::new(ModelKeeper::new(Clock::tokio()));
    keeper.setup("db").await.expect("set up");
    let limits = BackendLimits::new(OPEN, RATE, BURST - RATE / 10);
    let mut fleet = Vec::new();
    let start = tokio::time::Instant::now();
    for i in 0..MEMBERS {
        let settings =
            MemberSettings { seed: Some(i), ..MemberSettings::new(format!("m{i}"), "web") };
        let member = Member::spawn(settings, keeper.clone(), Clock::tokio()).expect("a member");
        let budgets = member.backend("db", limits).expect("a backend");
        let pool = Pool::builder(Tcp(place))
            .max_open(TARGET)
            .stagger(None)
            .count(budgets.count)
            .rate(budgets.rate)
            .build()
            .expect("a pool");
        fleet.push((member, pool));
    }
    let mut curve = Vec::new();
    for step in 0..=STEPS {
        tokio::time::sleep_until(start + STEP * step).await;
        curve.push(seen.lock().opened);
    }
    let most = seen.lock().most;
    (curve, most)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_simulated_curve_is_the_real_one() {
    let simulated = tokio::task::spawn_blocking(simulated).await.expect("a run");
    assert_eq!(simulated.last(), Some(&i64::from(OPEN)), "{simulated:?}");
    let (real, most) = real().await;
    assert!(most <= i64::from(OPEN), "{most} open");
    for (step, opened) in real.iter().enumerate() {
        let before = simulated[step.saturating_sub(STEPS_OFF)] - OFF;
        let after = simulated[(step + STEPS_OFF).min(simulated.len() - 1)] + OFF;
        assert!(
            (before..=after).contains(opened),
            "after {} ms {opened} were open, not {before} to {after}\nreal {real:?}\nsimulated {simulated:?}",
            step * 100
        );
    }
}
