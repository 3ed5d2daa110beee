//! A table of its own in DynamoDB Local for each test.

#![allow(dead_code, unreachable_pub)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_sdk_dynamodb::Client;
use forebay::{BoxFuture, Clock, TimeSource};
use forebay_fleet::{DynamoKeeper, DynamoSettings, Keeper};
use tokio::time::Instant;

/// Where a test keeps its books.
pub struct Place {
    pub table: String,
    pub config: SdkConfig,
    pub client: Client,
}

impl Place {
    /// A place with a table; `None`, and a word about it, if there is no server.
    pub async fn find(test: &str) -> Option<Self> {
        let place = Self::bare(test)?;
        let setup = place.keeper().setup_table().await.expect("a table");
        assert!(setup.created && setup.ttl_enabled, "{setup:?}");
        Some(place)
    }

    /// A place without a table.
    pub fn bare(test: &str) -> Option<Self> {
        let address = std::env::var("FOREBAY_TEST_DYNAMODB").ok().filter(|a| !a.is_empty());
        let Some(address) = address else {
            println!("skipped: FOREBAY_TEST_DYNAMODB is not set");
            return None;
        };
        let credentials = Credentials::new("test", "test", None, None, "test");
        let config = SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("eu-west-1"))
            .endpoint_url(address)
            .credentials_provider(SharedCredentialsProvider::new(credentials))
            .build();
        let table = format!("t{}-{:08x}-{test}", std::process::id(), fastrand::u32(..));
        let client = Client::new(&config);
        Some(Self { table, config, client })
    }

    /// Settings that are patient with a server that shares the machine.
    pub fn settings(&self) -> DynamoSettings {
        let mut settings = DynamoSettings::new(&self.table);
        settings.connect_timeout = Duration::from_secs(20);
        settings.request_timeout = Duration::from_secs(30);
        settings
    }

    /// A keeper with connections of its own.
    pub fn keeper(&self) -> DynamoKeeper {
        self.with(self.settings())
    }

    pub fn with(&self, settings: DynamoSettings) -> DynamoKeeper {
        DynamoKeeper::from_sdk_config(&self.config, settings).expect("a keeper")
    }

    /// `active` of the counter item.
    pub async fn active(&self, backend: &str) -> Option<i64> {
        let pk = format!("dsqllease_counter#{backend}");
        let item = self.item(&pk).await?;
        item.get("active")?.as_n().ok()?.parse().ok()
    }

    pub async fn item(
        &self,
        pk: &str,
    ) -> Option<std::collections::HashMap<String, aws_sdk_dynamodb::types::AttributeValue>> {
        let key = aws_sdk_dynamodb::types::AttributeValue::S(pk.to_owned());
        let call = self.client.get_item().table_name(&self.table).consistent_read(true);
        call.key("pk", key).send().await.expect("an answer").item
    }
}

/// Books and counter must say the same.
pub async fn agree(place: &Place, keeper: &dyn Keeper, backend: &str) -> u32 {
    let info = keeper.inspect(backend).await.expect("books");
    assert_eq!(place.active(backend).await, Some(i64::from(info.total)), "{info:?}");
    info.total
}

/// Real time, put forward by hand.
#[derive(Debug, Clone, Default)]
pub struct Hand(Arc<AtomicU64>);

impl Hand {
    pub fn forward(&self, by: Duration) {
        self.0.fetch_add(by.as_millis() as u64, Ordering::SeqCst);
    }

    pub fn clock(&self) -> Clock {
        Clock::custom(self.clone())
    }
}

impl TimeSource for Hand {
    fn now(&self) -> Instant {
        Instant::now() + Duration::from_millis(self.0.load(Ordering::SeqCst))
    }

    fn sleep_until(&self, at: Instant) -> BoxFuture<'static, ()> {
        let hand = self.clone();
        Box::pin(async move {
            while hand.now() < at {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
    }
}
