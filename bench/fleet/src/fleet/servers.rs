//! The servers that both schemes are measured on, and names in them that no other
//! run has used. What a run leaves there is removed at its end where it can be.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::config::{BehaviorVersion, Config, Credentials, Region};
use forebay_fleet::{DynamoKeeper, DynamoSettings, Keeper, RedisKeeper, RedisSettings};
use redis::aio::MultiplexedConnection;

use super::LONG;
use super::count::Counted;

/// A server with room for this run.
pub(crate) enum Server {
    Redis { url: String },
    Dynamo { config: Box<Config>, table: String },
}

impl Server {
    pub(crate) fn redis(url: String) -> Self {
        Self::Redis { url }
    }

    /// With a table of its own.
    pub(crate) async fn dynamo(address: &str) -> Result<Self> {
        let config = Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("eu-west-1"))
            .endpoint_url(address)
            .credentials_provider(Credentials::new("bench", "bench", None, None, "bench"))
            // each request is one round trip, and counted by whoever sends it
            .retry_config(RetryConfig::disabled())
            .build();
        let table = unique("forebay-bench");
        let server = Self::Dynamo { config: Box::new(config), table };
        server.dynamo_keeper()?.setup_table().await?;
        Ok(server)
    }

    /// For the JSON and the tables.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Redis { .. } => "redis",
            Self::Dynamo { .. } => "dynamodb",
        }
    }

    /// How many rounds are as dear as one on DynamoDB.
    pub(crate) fn rounds_for_one(&self) -> usize {
        match self {
            Self::Redis { .. } => 5,
            Self::Dynamo { .. } => 1,
        }
    }

    /// A keeper that counts, with connections of its own, for one member.
    pub(crate) fn counted(&self) -> Result<Arc<Counted>> {
        Ok(match self {
            Self::Redis { url } => Counted::redis(redis_keeper(url)?),
            Self::Dynamo { .. } => Counted::dynamo(self.dynamo_keeper()?),
        })
    }

    /// Makes the books of a new fleet, as `forebay fleet setup` does; gives its name.
    pub(crate) async fn set_up(&self) -> Result<String> {
        let backend = unique("bench");
        match self {
            Self::Redis { url } => redis_keeper(url)?.setup(&backend).await?,
            Self::Dynamo { .. } => self.dynamo_keeper()?.setup(&backend).await?,
        };
        Ok(backend)
    }

    /// A connection to Redis for many tasks at once.
    pub(crate) async fn connection(url: &str) -> Result<MultiplexedConnection> {
        let patient = redis::AsyncConnectionConfig::new().set_response_timeout(Some(LONG));
        let client = redis::Client::open(url)?;
        client
            .get_multiplexed_async_connection_with_config(&patient)
            .await
            .context("redis cannot be reached")
    }

    /// Removes what can be removed.
    pub(crate) async fn clean_up(&self) -> Result<()> {
        if let Self::Dynamo { config, table } = self {
            let client = Client::from_conf(Config::clone(config));
            client.delete_table().table_name(table).send().await?;
        }
        Ok(())
    }

    fn dynamo_keeper(&self) -> Result<DynamoKeeper> {
        let Self::Dynamo { config, table } = self else { anyhow::bail!("not DynamoDB") };
        let mut settings = DynamoSettings::new(table);
        settings.request_timeout = Duration::from_secs(10);
        Ok(DynamoKeeper::from_client(&Client::from_conf(Config::clone(config)), settings)?)
    }
}

fn redis_keeper(url: &str) -> Result<RedisKeeper> {
    Ok(RedisKeeper::new(RedisSettings::from_url(url)?)?)
}

/// A name that no other run has used.
pub(crate) fn unique(name: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{name}-{}-{:x}-{count}", std::process::id(), since_1970.as_millis())
}
