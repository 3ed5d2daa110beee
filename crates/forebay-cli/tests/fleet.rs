//! `forebay fleet` as an operator runs it, against real servers. FOREBAY_TEST_REDIS
//! is a server's URL, FOREBAY_TEST_DYNAMODB the address of DynamoDB Local; a test
//! whose server is missing says so and passes. The members in the books are reports
//! made here.

#![cfg(all(feature = "redis", feature = "dynamodb"))]

use std::process::{Command, Stdio};
use std::sync::Arc;

use forebay_fleet::{
    Answer, DynamoKeeper, DynamoSettings, Keeper, Limits, MemberId, Profile, RedisKeeper,
    RedisSettings, Report,
};

/// A server with its arguments, and a backend that only this test uses.
struct Scene {
    keeper: Arc<dyn Keeper>,
    place: Vec<String>,
    setup: Vec<String>,
    backend: String,
}

/// What differs from one run to the next, so that runs do not meet.
fn unique(name: &str) -> String {
    format!("cli-{name}-{:x}", fastrand::u64(..))
}

fn server(variable: &str) -> Option<String> {
    let url = std::env::var(variable).ok().filter(|url| !url.is_empty());
    if url.is_none() {
        println!("skipped: {variable} is not set");
    }
    url
}

impl Scene {
    fn redis(name: &str) -> Option<Self> {
        let url = server("FOREBAY_TEST_REDIS")?;
        let settings = RedisSettings::from_url(&url).expect("a URL");
        Some(Self {
            keeper: Arc::new(RedisKeeper::new(settings).expect("settings")),
            place: vec!["--redis".into(), url.clone()],
            setup: vec!["setup".into(), "redis".into(), "--url".into(), url],
            backend: unique(name),
        })
    }

    async fn dynamodb(name: &str) -> Option<Self> {
        let url = server("FOREBAY_TEST_DYNAMODB")?;
        let table = unique(name);
        let settings = DynamoSettings {
            endpoint_url: Some(url.clone()),
            region: Some("us-east-1".to_owned()),
            ..DynamoSettings::new(&table)
        };
        let there = vec!["--endpoint-url".to_owned(), url, "--region".into(), "us-east-1".into()];
        let with = |first: &[&str]| {
            first.iter().map(|arg| (*arg).to_owned()).chain(there.clone()).collect()
        };
        Some(Self {
            keeper: Arc::new(DynamoKeeper::connect(settings).await.expect("a keeper")),
            place: with(&["--dynamodb", &table]),
            setup: with(&["setup", "dynamodb", "--table", &table]),
            backend: unique(name),
        })
    }

    /// Runs a task on this server: its exit code and all it said.
    fn run(&self, args: &[&str]) -> (Option<i32>, String) {
        let (task, rest) = args.split_first().expect("a task");
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.arg("fleet");
        match *task {
            "setup" => command.args(&self.setup),
            task => command.arg(task).args(&self.place),
        };
        command.args(["--backend", &self.backend]).args(rest).stdin(Stdio::null());
        command.env("AWS_ACCESS_KEY_ID", "test").env("AWS_SECRET_ACCESS_KEY", "test");
        let output = command.output().expect("the binary runs");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (output.status.code(), text(output.stdout) + &text(output.stderr))
    }

    /// A member joins, takes some leases, and then says how long it may be silent.
    async fn join(&self, instance: &str, ttl_ms: u64, leases: u32) -> MemberId {
        let member = MemberId::new(instance, 7);
        let first = 600_000;
        for (seq, held, want, ttl_ms) in
            [(1, 0, 0, first), (2, 0, leases, first), (3, leases, leases, ttl_ms)]
        {
            let report = Report {
                backend: self.backend.clone(),
                member: member.clone(),
                seq,
                generation: None,
                held,
                want,
                waiters: 0,
                share: 0,
                elapsed_ms: None,
                pause_ms: 0,
                leave: false,
                nonce: fastrand::u64(..),
                profile: Profile {
                    service: "web".to_owned(),
                    peer: "10.1.2.3:80".to_owned(),
                    weight: 1,
                    limits: Limits { open: 40, rate: 0, burst: 0, version: 0 },
                    ttl_ms,
                    heartbeat_ms: 1_000,
                    margin_ms: first,
                    reclaim_ms: 3_600_000,
                    divisor: 3,
                },
            };
            let answer = self.keeper.report(&report).await.expect("an answer");
            assert!(matches!(answer, Answer::Booked(_)), "{answer:?}");
        }
        member
    }
}

/// Whether this process has credentials. If not, the test runs again in one that
/// has: for DynamoDB Local any will do, but they come from the environment.
fn has_credentials(test: &str) -> bool {
    if std::env::var_os("AWS_ACCESS_KEY_ID").is_some() {
        return true;
    }
    let mut again = Command::new(std::env::current_exe().expect("this test"));
    again.args([test, "--exact", "--nocapture"]);
    again.env("AWS_ACCESS_KEY_ID", "test").env("AWS_SECRET_ACCESS_KEY", "test");
    assert!(again.status().expect("it runs").success());
    false
}

/// Everything an operator does, in order.
async fn tour(scene: &Scene) {
    let backend = &scene.backend;
    let (code, text) = scene.run(&["setup"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains(&format!("backend {backend}: books made")), "{text}");
    let (code, text) = scene.run(&["setup"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains(&format!("backend {backend}: has books already")), "{text}");

    // one that is heard, one whose ttl is over at once
    let alive = scene.join("alive", 600_000, 3).await;
    let dead = scene.join("dead", 1, 5).await;
    let (code, text) = scene.run(&["status"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains(&format!("{backend}  8 of 40 leases, 2 members")), "{text}");
    let row = text.lines().find(|line| line.contains(alive.as_str())).expect("a row");
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells[1..6], ["web", "10.1.2.3:80", "3", "3", "0"], "{text}");
    assert!(!text.contains('\x1b'), "colours without a terminal: {text:?}");
    let (code, text) = scene.run(&["status", "--json"]);
    assert_eq!(code, Some(0), "{text}");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(json["backends"][0]["total"], 8, "{text}");
    assert_eq!(json["backends"][0]["members"][1]["member"], dead.as_str(), "{text}");

    let (code, text) = scene.run(&["reap", "--member", "alive", "--yes"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("within its ttl of 600 s; --force reaps it all the same"), "{text}");
    let (code, text) = scene.run(&["reap", "--member", "nobody", "--yes"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("no member `nobody`; its members are alive@"), "{text}");
    let (code, text) = scene.run(&["reap", "--member", dead.as_str(), "--yes"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("up to 5 connections over the limit"), "{text}");
    assert!(text.contains(&format!("reaped {dead}: 5 leases went back")), "{text}");
    let (code, text) = scene.run(&["reap", "--member", "alive", "--yes", "--force"]);
    assert_eq!(code, Some(0), "{text}");
    let books = scene.keeper.inspect(backend).await.expect("books");
    assert_eq!((books.total, books.members.len()), (0, 0));
}

#[tokio::test]
async fn redis_is_set_up_shown_and_reaped() {
    let Some(scene) = Scene::redis("tour") else { return };
    tour(&scene).await;
}

#[tokio::test]
async fn dynamodb_is_set_up_shown_and_reaped() {
    if !has_credentials("dynamodb_is_set_up_shown_and_reaped") {
        return;
    }
    let Some(scene) = Scene::dynamodb("tour").await else { return };
    let (code, text) = scene.run(&["status"]);
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("make it with `forebay fleet setup dynamodb`"), "{text}");
    let setup = scene.run(&["setup"]).1;
    assert!(setup.contains(": made, with on-demand billing"), "{setup}");
    assert!(setup.contains("time to live: switched on for ttl_epoch"), "{setup}");
    let again = scene.run(&["setup"]).1;
    assert!(again.contains(": is there already"), "{again}");
    assert!(again.contains("time to live: was on already"), "{again}");
    let scene = Scene { backend: unique("tour"), ..scene };
    tour(&scene).await;
}

#[test]
fn a_backend_without_books_is_said_to_have_none() {
    let Some(scene) = Scene::redis("none") else { return };
    let (code, text) = scene.run(&["status"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("no books; members make them"), "{text}");
    let (code, text) = scene.run(&["reap", "--member", "m", "--yes"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("has no members"), "{text}");
}

#[test]
fn watching_shows_the_books_again_and_again() {
    use std::io::{BufRead, BufReader};
    let Some(scene) = Scene::redis("watch") else { return };
    let mut child = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["fleet", "status", "--json", "--watch=0.1", "--backend", &scene.backend])
        .args(&scene.place)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let seen: Vec<String> = lines.take(3).map(|line| line.expect("a line")).collect();
    assert!(seen.iter().all(|line| line.starts_with(r#"{"backends":[{"backend":"cli-watch-"#)));
    // its reader is gone: it ends by itself, and that is no failure
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}
