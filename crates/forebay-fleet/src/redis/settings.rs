//! Where the Redis keeper's servers are and how to get in: one URL, and setters
//! for the rest. What is wrong is said when the keeper is made, before anything is
//! dialled; no password and no key is ever shown.

use std::path::{Path, PathBuf};
use std::time::Duration;

use redis::{ClientTlsConfig, TlsCertificates};

use super::url;

/// What is wrong with the settings, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("redis settings: {problem}; {remedy}")]
pub struct RedisSettingsError {
    /// What is wrong.
    pub problem: String,
    /// What to do.
    pub remedy: String,
}

impl RedisSettingsError {
    pub(super) fn new(problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { problem: problem.into(), remedy: remedy.into() }
    }
}

/// A server's host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// How the servers stand to each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Topology {
    One(Address),
    Cluster(Vec<Address>),
    Sentinel { master: String, sentinels: Vec<Address> },
}

/// A name and a password, the name optional as in Redis.
#[derive(Clone, Default)]
pub(super) struct Login {
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let password = self.password.as_ref().map(|_| "redacted");
        f.debug_struct("Login").field("user", &self.user).field("password", &password).finish()
    }
}

/// Settings of a [`RedisKeeper`](super::RedisKeeper).
///
/// ```
/// use forebay_fleet::RedisSettings;
/// let settings = RedisSettings::from_url("rediss://budget:s3cret@redis.example:6379/2")?;
/// assert!(!format!("{settings:?}").contains("s3cret"));
/// RedisSettings::from_url("redis+cluster://10.0.0.1:6379,10.0.0.2:6379,10.0.0.3:6379")?;
/// RedisSettings::from_url("redis+sentinel://10.0.0.1:26379,10.0.0.2:26379/mymaster")?;
/// # Ok::<(), forebay_fleet::RedisSettingsError>(())
/// ```
#[derive(Debug, Clone)]
pub struct RedisSettings {
    pub(super) topology: Topology,
    pub(super) tls: bool,
    pub(super) login: Login,
    pub(super) sentinel_login: Login,
    pub(super) database: u16,
    pub(super) ca_file: Option<PathBuf>,
    pub(super) client_files: Option<(PathBuf, PathBuf)>,
    pub(super) pool_size: usize,
    pub(super) dial_timeout: Duration,
    pub(super) read_timeout: Duration,
    pub(super) write_timeout: Duration,
    pub(super) reconnect_min: Duration,
    pub(super) reconnect_max: Duration,
    pub(super) keep: Duration,
    pub(super) seed: Option<u64>,
}

impl RedisSettings {
    /// From a URL: `redis://[user:password@]host[:port][/database]`, with
    /// `rediss` for TLS, `redis+cluster` or `rediss+cluster` with several hosts
    /// separated by commas, `redis+sentinel` or `rediss+sentinel` with the hosts
    /// of the sentinels and `/master-name[/database]`. A password with signs that
    /// mean something in a URL has them percent-encoded.
    ///
    /// # Errors
    /// If the URL is not one of these. The error does not repeat the URL.
    pub fn from_url(url: &str) -> Result<Self, RedisSettingsError> {
        let parsed = url::parse(url)?;
        Ok(Self {
            topology: parsed.topology,
            tls: parsed.tls,
            login: parsed.login,
            sentinel_login: Login::default(),
            database: parsed.database,
            ca_file: None,
            client_files: None,
            pool_size: 20,
            dial_timeout: Duration::from_secs(5),
            read_timeout: Duration::from_secs(3),
            write_timeout: Duration::from_secs(3),
            reconnect_min: Duration::from_millis(100),
            reconnect_max: Duration::from_secs(5),
            keep: Duration::from_secs(7 * 24 * 3600),
            seed: None,
        })
    }

    /// The ACL user; without one, the server's default user.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.login.user = Some(user.into());
        self
    }

    /// The password of the user.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.login.password = Some(password.into());
        self
    }

    /// User and password of the sentinels, where they have other ones.
    #[must_use]
    pub fn sentinel_login(mut self, user: Option<String>, password: Option<String>) -> Self {
        self.sentinel_login = Login { user, password };
        self
    }

    /// The number of the database; a cluster has only 0.
    #[must_use]
    pub fn database(mut self, database: u16) -> Self {
        self.database = database;
        self
    }

    /// A file of certificate authorities in PEM, instead of the system's.
    #[must_use]
    pub fn ca_file(mut self, path: impl AsRef<Path>) -> Self {
        self.ca_file = Some(path.as_ref().to_owned());
        self
    }

    /// A client certificate and its key, both files in PEM.
    #[must_use]
    pub fn client_cert(mut self, cert: impl AsRef<Path>, key: impl AsRef<Path>) -> Self {
        self.client_files = Some((cert.as_ref().to_owned(), key.as_ref().to_owned()));
        self
    }

    /// The most connections to the server; 20. One carries many calls at once, so
    /// that more are opened only under load. A cluster has one to each node.
    #[must_use]
    pub fn pool_size(mut self, connections: usize) -> Self {
        self.pool_size = connections;
        self
    }

    /// How long connecting may take; 5 s.
    #[must_use]
    pub fn dial_timeout(mut self, timeout: Duration) -> Self {
        self.dial_timeout = timeout;
        self
    }

    /// How long an answer may take; 3 s. A call gives up after this and
    /// [`write_timeout`](Self::write_timeout) together.
    #[must_use]
    pub fn read_timeout(mut self, timeout: Duration) -> Self {
        self.read_timeout = timeout;
        self
    }

    /// How long sending may take; 3 s.
    #[must_use]
    pub fn write_timeout(mut self, timeout: Duration) -> Self {
        self.write_timeout = timeout;
        self
    }

    /// How long to wait before connecting again, at first and at most; 100 ms and
    /// 5 s. Each wait is drawn between half and the whole of it.
    #[must_use]
    pub fn reconnect(mut self, min: Duration, max: Duration) -> Self {
        (self.reconnect_min, self.reconnect_max) = (min, max);
        self
    }

    /// How long the books of a backend outlive its last report; 7 days. Longer
    /// than any member's `reclaim_ms`.
    #[must_use]
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = keep;
        self
    }

    /// Makes what is drawn at random repeatable, for tests.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    pub(super) fn response_timeout(&self) -> Duration {
        self.read_timeout + self.write_timeout
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.topology, Topology::Cluster(_))
    }

    /// Looks through all of it.
    pub(super) fn validate(&self) -> Result<(), RedisSettingsError> {
        let timeouts = [
            ("dial_timeout", self.dial_timeout),
            ("read_timeout", self.read_timeout),
            ("write_timeout", self.write_timeout),
            ("the first reconnect wait", self.reconnect_min),
            ("the longest reconnect wait", self.reconnect_max),
        ];
        for (name, value) in timeouts {
            if value < Duration::from_millis(1) || value > Duration::from_secs(600) {
                let problem = format!("{name} is {value:?}");
                return Err(RedisSettingsError::new(problem, "set 1 ms to 10 min"));
            }
        }
        if self.reconnect_min > self.reconnect_max {
            let problem = "the first reconnect wait is longer than the longest";
            return Err(RedisSettingsError::new(problem, "swap them"));
        }
        if self.keep < Duration::from_secs(60) || self.keep > Duration::from_secs(3600 * 24 * 366) {
            let problem = format!("books would be kept for {:?}", self.keep);
            return Err(RedisSettingsError::new(problem, "set a minute to a year"));
        }
        if self.pool_size == 0 || self.pool_size > 1000 {
            let problem = format!("pool_size is {}", self.pool_size);
            return Err(RedisSettingsError::new(problem, "set 1 to 1000; 20 is plenty"));
        }
        if self.is_cluster() && self.database != 0 {
            let problem = format!("database {} of a cluster", self.database);
            return Err(RedisSettingsError::new(problem, "a cluster has only database 0"));
        }
        if !self.tls && (self.ca_file.is_some() || self.client_files.is_some()) {
            let problem = "certificates without TLS";
            return Err(RedisSettingsError::new(problem, "begin the URL with rediss"));
        }
        if self.login.user.is_some() && self.login.password.is_none() {
            let problem = "a user without a password";
            return Err(RedisSettingsError::new(problem, "give both, or neither"));
        }
        Ok(())
    }

    /// Reads the files of certificates; `None` if there are none to read.
    pub(super) fn certificates(&self) -> Result<Option<TlsCertificates>, RedisSettingsError> {
        let root_cert = self.ca_file.as_deref().map(read_pem).transpose()?;
        let client_tls = match &self.client_files {
            None => None,
            Some((cert, key)) => {
                let (client_cert, client_key) = (read_pem(cert)?, read_pem(key)?);
                Some(ClientTlsConfig { client_cert, client_key })
            }
        };
        let some = root_cert.is_some() || client_tls.is_some();
        Ok(some.then_some(TlsCertificates { client_tls, root_cert }))
    }
}

fn read_pem(path: &Path) -> Result<Vec<u8>, RedisSettingsError> {
    let file = path.display();
    let bytes = std::fs::read(path).map_err(|error| {
        let problem = format!("{file} cannot be read: {error}");
        RedisSettingsError::new(problem, "check the path and its permissions")
    })?;
    if !bytes.windows(11).any(|window| window == b"-----BEGIN ") {
        let problem = format!("{file} holds nothing in PEM");
        return Err(RedisSettingsError::new(
            problem,
            "convert it with openssl x509 or openssl pkey",
        ));
    }
    Ok(bytes)
}
