//! The keepers' servers: those that all tests share, and a test's own, which can
//! be killed, restarted and replaced. Own ones end with the test.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_fleet::{DynamoKeeper, DynamoSettings, Keeper, RedisKeeper, RedisSettings};

use crate::child::Where;

/// Only reached if something is wrong.
pub const LONG: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Redis,
    Dynamo,
}

impl Kind {
    /// The server that all tests share; `None`, and a word about it, if there is none.
    pub fn shared(self) -> Option<SocketAddr> {
        let variable = match self {
            Self::Redis => "FOREBAY_TEST_REDIS",
            Self::Dynamo => "FOREBAY_TEST_DYNAMODB",
        };
        let url = given(variable)?;
        let address = url.split("//").nth(1).expect("a url").trim_end_matches('/');
        Some(address.parse().expect("a numeric address"))
    }

    /// How a child gets to a server at `address`.
    pub fn place(self, address: SocketAddr, id: &str) -> Where {
        match self {
            Self::Redis => Where::Redis { url: format!("redis://{address}") },
            Self::Dynamo => Where::Dynamo { url: format!("http://{address}"), table: table(id) },
        }
    }

    /// The test's own way to the books.
    pub async fn keeper(self, address: SocketAddr, id: &str) -> Arc<dyn Keeper> {
        match self.place(address, id) {
            Where::Redis { url } => {
                let settings = RedisSettings::from_url(&url).expect("a url");
                Arc::new(RedisKeeper::new(settings).expect("settings"))
            }
            Where::Dynamo { url, table } => {
                let mut settings = DynamoSettings::new(table);
                settings.endpoint_url = Some(url);
                settings.connect_timeout = LONG;
                settings.request_timeout = LONG;
                let keeper = DynamoKeeper::from_sdk_config(&sdk(), settings).expect("a keeper");
                // a table that is there already stays as it is
                keeper.setup_table().await.expect("a table");
                Arc::new(keeper)
            }
        }
    }
}

/// DynamoDB Local wants a signature, whoever made it.
pub const CREDENTIALS: [(&str, &str); 4] = [
    ("AWS_ACCESS_KEY_ID", "test"),
    ("AWS_SECRET_ACCESS_KEY", "test"),
    ("AWS_REGION", "eu-west-1"),
    ("AWS_EC2_METADATA_DISABLED", "true"),
];

fn sdk() -> aws_config::SdkConfig {
    let credentials =
        aws_credential_types::Credentials::new("test", "test", None, None, "processes");
    aws_config::SdkConfig::builder()
        .behavior_version(aws_config::BehaviorVersion::latest())
        .region(aws_config::Region::new("eu-west-1"))
        .credentials_provider(aws_credential_types::provider::SharedCredentialsProvider::new(
            credentials,
        ))
        .build()
}

fn table(id: &str) -> String {
    format!("table-{id}")
}

fn given(variable: &str) -> Option<String> {
    let value = std::env::var(variable).ok().filter(|value| !value.is_empty());
    if value.is_none() {
        println!("skipped: {variable} is not set");
    }
    value
}

/// A name that no other test, and no earlier run, has used.
pub fn unique(name: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanos = time.expect("after 1970").as_nanos();
    format!("{name}-{}-{nanos}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// A server of the test's own.
pub struct Server {
    line: Vec<String>,
    folder: PathBuf,
    pub address: SocketAddr,
    child: Option<Child>,
}

impl Server {
    /// A Redis that writes everything down before it answers, or nothing at all.
    pub fn redis(keeps_data: bool, more: &[&str]) -> Option<Self> {
        let mut server = Self::new(vec![given("FOREBAY_TEST_REDIS_SERVER")?]);
        let (port, folder) = (server.address.port().to_string(), server.folder.clone());
        let aof = if keeps_data { "yes" } else { "no" };
        let line = ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", aof]
            .into_iter()
            .chain(["--appendfsync", "always", "--dir", folder.to_str().expect("a plain path")])
            .chain(more.iter().copied());
        server.line.extend(line.map(str::to_owned));
        server.run();
        Some(server)
    }

    /// A DynamoDB Local that has its tables on disk, or in memory.
    pub fn dynamo(keeps_data: bool) -> Option<Self> {
        let command = given("FOREBAY_TEST_DYNAMODB_COMMAND")?;
        let mut server = Self::new(Vec::new());
        for part in command.lines() {
            match part {
                "{port}" => server.line.push(server.address.port().to_string()),
                "-inMemory" if keeps_data => {
                    let folder = server.folder.to_str().expect("a plain path").to_owned();
                    server.line.extend(["-dbPath".to_owned(), folder]);
                }
                part => server.line.push(part.to_owned()),
            }
        }
        server.run();
        Some(server)
    }

    fn new(line: Vec<String>) -> Self {
        let folder = std::env::temp_dir().join(unique("forebay-processes"));
        std::fs::create_dir_all(&folder).expect("a folder");
        Self { line, folder, address: free_address(), child: None }
    }

    /// Starts it and waits until it can be reached.
    pub fn run(&mut self) {
        let log = std::fs::File::create(self.folder.join("log")).expect("a log file");
        let mut command = Command::new(&self.line[0]);
        command.args(&self.line[1..]).current_dir(&self.folder).stdin(Stdio::null()).stdout(log);
        self.child = Some(command.stderr(Stdio::null()).spawn().expect("a server process"));
        let until = Instant::now() + LONG;
        while std::net::TcpStream::connect(self.address).is_err() {
            assert!(Instant::now() < until, "the server at {} never came up", self.address);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// As kill -9 does it.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.kill());
            drop(child.wait());
        }
    }

    /// Sends a Redis a command and gives what it says.
    pub fn tell(&self, words: &[&str]) -> String {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(self.address).expect("a connection");
        stream.set_read_timeout(Some(LONG)).expect("a time limit");
        stream.write_all(format!("{}\r\n", words.join(" ")).as_bytes()).expect("sent");
        let mut bytes = vec![0; 64 * 1024];
        let n = stream.read(&mut bytes).expect("an answer");
        String::from_utf8_lossy(&bytes[..n]).into_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

/// An address that nobody has at the moment.
fn free_address() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address")
}
