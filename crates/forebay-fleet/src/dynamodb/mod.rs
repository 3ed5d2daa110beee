//! The DynamoDB keeper: a fleet's books in one table, changed by transactions on
//! condition that nobody else has changed them. See docs/fleet-dynamodb.md for the
//! layout, the permissions and the costs.

mod books;
mod clock;
mod draft;
mod errors;
mod items;
mod operate;
mod rate;
mod table;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_config::SdkConfig;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::config::timeout::TimeoutConfig;
use aws_sdk_dynamodb::config::{
    BehaviorVersion, Builder, ProvideCredentials, Region, SharedCredentialsProvider,
};
use forebay::{BoxFuture, Clock};
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use crate::keeper::{Keeper, KeeperError, News};
use crate::message::{Answer, BackendInfo, Limits, MemberId, Report, Reserve, Reserved};

use self::clock::{Observer, ServerClock};
use self::errors::{NAME, no_credentials, no_region, without_credentials};
use self::items::Page;
use self::rate::RateCopy;
use self::watch::Watch;

pub use self::table::TableSetup;

/// Most calls under way at once; others wait for their turn, within their time.
const CALLS_MAX: usize = 48;

/// Where the books are, and how long to wait for them.
#[derive(Clone)]
pub struct DynamoSettings {
    /// The table.
    pub table: String,
    /// Where DynamoDB is, if not where the region says.
    pub endpoint_url: Option<String>,
    /// The region, if it is not to come from the environment.
    pub region: Option<String>,
    /// The longest a connection may take to be made.
    pub connect_timeout: Duration,
    /// The longest a call may take, with all its tries.
    pub request_timeout: Duration,
    /// By which members are judged and waits are timed.
    pub clock: Clock,
    /// The machine's clock, read once; for tests.
    pub wall: Option<SystemTime>,
    /// For waits and tokens that are to be the same in each run; for tests. Two
    /// keepers with the same seed must not write to the same table.
    pub seed: Option<u64>,
}

impl DynamoSettings {
    /// A table in the environment's region, with the usual timeouts.
    pub fn new(table: impl Into<String>) -> Self {
        Self {
            table: table.into(),
            endpoint_url: None,
            region: None,
            connect_timeout: Duration::from_secs(1),
            request_timeout: Duration::from_secs(2),
            clock: Clock::tokio(),
            wall: None,
            seed: None,
        }
    }
}

impl std::fmt::Debug for DynamoSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // an endpoint's address may hold a password
        f.debug_struct("DynamoSettings")
            .field("table", &self.table)
            .field("endpoint_url", &self.endpoint_url.as_ref().map(|_| "…"))
            .field("region", &self.region)
            .field("connect_timeout", &self.connect_timeout)
            .field("request_timeout", &self.request_timeout)
            .finish_non_exhaustive()
    }
}

/// Keeps the books of a fleet in a DynamoDB table.
///
/// ```no_run
/// # async fn example() -> Result<(), forebay_fleet::KeeperError> {
/// use forebay_fleet::{DynamoKeeper, DynamoSettings, Keeper};
/// let keeper = DynamoKeeper::connect(DynamoSettings::new("dsql-connections")).await?;
/// keeper.check().await?;
/// # Ok(()) }
/// ```
pub struct DynamoKeeper {
    client: Client,
    credentials: Option<SharedCredentialsProvider>,
    table: String,
    timeout: Duration,
    clock: Clock,
    server: Arc<ServerClock>,
    rng: Mutex<fastrand::Rng>,
    backends: Mutex<BTreeMap<String, Arc<Backend>>>,
    /// Bounds the connections, of which each request under way needs one.
    busy: Semaphore,
    /// What is due may have changed.
    due_changed: Notify,
}

/// What is known here of one backend.
#[derive(Debug, Default)]
struct Backend {
    books: Mutex<Books>,
    /// Held over the request, so that this process does not compete with itself.
    rate: tokio::sync::Mutex<RateCopy>,
}

#[derive(Debug, Default)]
struct Books {
    page: Option<Arc<Page>>,
    watch: Watch,
    /// Who reports from here.
    me: Option<MemberId>,
    /// The last thing that was due and that somebody was told of.
    announced: Option<Instant>,
    /// Somebody was told that the counter item disagrees.
    warned: bool,
}

impl DynamoKeeper {
    /// With credentials and region from the environment: variables, profile, or the
    /// role of the task, pod or instance.
    pub async fn connect(settings: DynamoSettings) -> Result<Self, KeeperError> {
        let mut loader = aws_config::defaults(BehaviorVersion::latest());
        if let Some(region) = settings.region.clone() {
            loader = loader.region(Region::new(region));
        }
        let keeper = Self::from_sdk_config(&loader.load().await, settings)?;
        keeper.check_credentials().await?;
        Ok(keeper)
    }

    /// With credentials, region and HTTP client of a configuration that exists.
    pub fn from_sdk_config(
        config: &SdkConfig,
        settings: DynamoSettings,
    ) -> Result<Self, KeeperError> {
        let Some(credentials) = config.credentials_provider() else {
            return Err(no_credentials());
        };
        Self::build(Builder::from(config), Some(credentials), settings)
    }

    /// With the configuration of a client that exists. Its own retries are not
    /// used: what may be sent again, and when, is for the keeper to say.
    pub fn from_client(client: &Client, settings: DynamoSettings) -> Result<Self, KeeperError> {
        Self::build(client.config().to_builder(), None, settings)
    }

    fn build(
        mut config: Builder,
        credentials: Option<SharedCredentialsProvider>,
        settings: DynamoSettings,
    ) -> Result<Self, KeeperError> {
        if let Some(region) = &settings.region {
            config = config.region(Region::new(region.clone()));
        }
        if let Some(url) = &settings.endpoint_url {
            config = config.endpoint_url(url);
        }
        if config.clone().build().region().is_none() {
            if settings.endpoint_url.is_none() {
                return Err(no_region());
            }
            // DynamoDB Local does not care, but a signature names one
            config = config.region(Region::from_static("us-east-1"));
        }
        let wall = settings.wall.unwrap_or_else(wall_clock);
        let server = Arc::new(ServerClock::new(settings.clock.clone(), wall));
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(settings.connect_timeout)
            .operation_attempt_timeout(settings.request_timeout)
            .operation_timeout(settings.request_timeout)
            .build();
        let config = config
            .retry_config(RetryConfig::disabled())
            .timeout_config(timeouts)
            .interceptor(Observer(server.clone()));
        Ok(Self {
            client: Client::from_conf(config.build()),
            credentials,
            table: settings.table,
            timeout: settings.request_timeout,
            clock: settings.clock,
            server,
            rng: Mutex::new(fastrand::Rng::with_seed(settings.seed.unwrap_or_else(any_seed))),
            backends: Mutex::new(BTreeMap::new()),
            busy: Semaphore::new(CALLS_MAX),
            due_changed: Notify::new(),
        })
    }

    /// Requests sent so far, those for reading and for watching included.
    pub fn round_trips(&self) -> u64 {
        self.server.round_trips()
    }

    async fn check_credentials(&self) -> Result<(), KeeperError> {
        match &self.credentials {
            Some(provider) => match provider.provide_credentials().await {
                Ok(_) => Ok(()),
                Err(error) => Err(without_credentials(&error)),
            },
            None => Ok(()),
        }
    }

    fn backend(&self, name: &str) -> Arc<Backend> {
        let mut backends = self.backends.lock();
        if let Some(backend) = backends.get(name) {
            return backend.clone();
        }
        backends.entry(name.to_owned()).or_default().clone()
    }

    /// A number below `end`.
    fn random(&self, end: u64) -> u64 {
        self.rng.lock().u64(0..end.max(1))
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads the machine's clock")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}

#[expect(clippy::disallowed_methods, reason = "two processes must not draw the same numbers")]
fn any_seed() -> u64 {
    fastrand::u64(..)
}

impl std::fmt::Debug for DynamoKeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DynamoKeeper").field("table", &self.table).finish_non_exhaustive()
    }
}

impl Keeper for DynamoKeeper {
    fn name(&self) -> &'static str {
        NAME
    }

    fn check(&self) -> BoxFuture<'_, Result<(), KeeperError>> {
        Box::pin(self.check_all())
    }

    fn report<'a>(&'a self, report: &'a Report) -> BoxFuture<'a, Result<Answer, KeeperError>> {
        Box::pin(self.book_report(report))
    }

    fn reserve<'a>(&'a self, reserve: &'a Reserve) -> BoxFuture<'a, Result<Reserved, KeeperError>> {
        Box::pin(self.reserve_permits(reserve))
    }

    fn refused<'a>(
        &'a self,
        backend: &'a str,
        limits: &'a Limits,
    ) -> BoxFuture<'a, Result<(), KeeperError>> {
        Box::pin(self.slow_down(backend, limits))
    }

    fn listen(&self, news: UnboundedSender<News>) -> BoxFuture<'_, KeeperError> {
        Box::pin(self.tell_when_due(news))
    }

    fn setup<'a>(&'a self, backend: &'a str) -> BoxFuture<'a, Result<bool, KeeperError>> {
        Box::pin(self.setup_backend(backend))
    }

    fn inspect<'a>(&'a self, backend: &'a str) -> BoxFuture<'a, Result<BackendInfo, KeeperError>> {
        Box::pin(self.show(backend))
    }

    fn backends(&self) -> BoxFuture<'_, Result<Vec<String>, KeeperError>> {
        Box::pin(self.list_backends())
    }

    fn reap<'a>(
        &'a self,
        backend: &'a str,
        member: &'a MemberId,
    ) -> BoxFuture<'a, Result<Option<u32>, KeeperError>> {
        Box::pin(self.reap_member(backend, member))
    }
}
