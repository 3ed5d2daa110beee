//! The table itself: whether it is as needed, and making it.

use std::time::Duration;

use aws_sdk_dynamodb::operation::create_table::CreateTableError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
    TableDescription, TableStatus, TimeToLiveSpecification, TimeToLiveStatus,
};

use crate::keeper::KeeperError;

use super::DynamoKeeper;
use super::errors::{Call, busy, explain, no_table, unusable, wrong_schema};

const TTL: &str = "ttl_epoch";
/// How long to wait for a table that is being made.
const ACTIVE_WITHIN: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What [`DynamoKeeper::setup_table`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableSetup {
    /// It made the table.
    pub created: bool,
    /// It switched time to live on.
    pub ttl_enabled: bool,
}

impl DynamoKeeper {
    /// Makes the table as needed, with on-demand billing and time to live on
    /// `ttl_epoch`. Does what is missing, so it can be run again at any time.
    pub async fn setup_table(&self) -> Result<TableSetup, KeeperError> {
        let created = self.create().await?;
        let until = self.clock.now() + ACTIVE_WITHIN;
        loop {
            match self.check_table().await {
                Ok(()) => break,
                Err(KeeperError::Busy { .. }) if self.clock.now() < until => {}
                // DescribeTable may be behind CreateTable
                Err(KeeperError::Unusable { .. }) if created && self.clock.now() < until => {}
                Err(error) => return Err(error),
            }
            self.clock.sleep_until(self.clock.now() + LOOK_EVERY).await;
        }
        let ttl_enabled = self.ttl().await? != Some(true);
        if ttl_enabled {
            self.enable_ttl().await?;
        }
        Ok(TableSetup { created, ttl_enabled })
    }

    /// Whether the table can be used as it is.
    pub(super) async fn check_all(&self) -> Result<(), KeeperError> {
        self.check_credentials().await?;
        self.check_table().await?;
        match self.ttl().await {
            Ok(Some(true)) => Ok(()),
            Ok(_) => Err(unusable(
                format!("time to live is not switched on for {TTL} in the table {}", self.table),
                "run `forebay fleet setup dynamodb`, or switch it on in the table's settings",
            )),
            Err(KeeperError::Unusable { reason, .. }) => {
                tracing::warn!(
                    table = self.table,
                    "whether time to live is on cannot be checked ({reason}): allow \
                     dynamodb:DescribeTimeToLive, or see to it that it is on for {TTL}"
                );
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    async fn check_table(&self) -> Result<(), KeeperError> {
        let answer = self.client.describe_table().table_name(&self.table).send().await;
        let answer = answer.map_err(|error| explain(&self.table, Call::DescribeTable, &error))?;
        let Some(table) = answer.table() else { return Err(no_table(&self.table)) };
        check_schema(&self.table, table)?;
        match table.table_status() {
            Some(TableStatus::Active | TableStatus::Updating) | None => Ok(()),
            Some(TableStatus::Creating) => {
                Err(busy(format!("the table {} is being made", self.table)))
            }
            Some(status) => Err(unusable(
                format!("the table {} is {}", self.table, status.as_str().to_lowercase()),
                "wait until it is gone and make it anew with `forebay fleet setup dynamodb`, or mend it",
            )),
        }
    }

    /// Whether time to live is on for the right attribute; `None` if it is off.
    async fn ttl(&self) -> Result<Option<bool>, KeeperError> {
        let answer = self.client.describe_time_to_live().table_name(&self.table).send().await;
        let answer = answer.map_err(|error| explain(&self.table, Call::DescribeTtl, &error))?;
        let Some(ttl) = answer.time_to_live_description() else { return Ok(None) };
        Ok(match ttl.time_to_live_status() {
            Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling) => {
                Some(ttl.attribute_name() == Some(TTL))
            }
            _ => None,
        })
    }

    async fn create(&self) -> Result<bool, KeeperError> {
        let pk = AttributeDefinition::builder()
            .attribute_name("pk")
            .attribute_type(ScalarAttributeType::S)
            .build();
        let hash = KeySchemaElement::builder().attribute_name("pk").key_type(KeyType::Hash).build();
        let (Ok(pk), Ok(hash)) = (pk, hash) else {
            return Err(unusable("the table's schema is incomplete", "report this"));
        };
        let made = self
            .client
            .create_table()
            .table_name(&self.table)
            .attribute_definitions(pk)
            .key_schema(hash)
            .billing_mode(BillingMode::PayPerRequest)
            .send()
            .await;
        let Err(error) = made else { return Ok(true) };
        match error.as_service_error() {
            Some(CreateTableError::ResourceInUseException(_)) => Ok(false),
            _ => Err(explain(&self.table, Call::CreateTable, &error)),
        }
    }

    async fn enable_ttl(&self) -> Result<(), KeeperError> {
        let ttl = TimeToLiveSpecification::builder().enabled(true).attribute_name(TTL).build();
        let ttl = ttl.map_err(|error| unusable(error.to_string(), "report this"))?;
        let call = self.client.update_time_to_live().table_name(&self.table);
        let done = call.time_to_live_specification(ttl).send().await;
        done.map_err(|error| explain(&self.table, Call::UpdateTtl, &error))?;
        Ok(())
    }
}

fn check_schema(name: &str, table: &TableDescription) -> Result<(), KeeperError> {
    let schema = table.key_schema();
    let types = table.attribute_definitions();
    let is_text = types
        .iter()
        .any(|d| d.attribute_name() == "pk" && *d.attribute_type() == ScalarAttributeType::S);
    let fits = match schema {
        [only] => only.attribute_name() == "pk" && *only.key_type() == KeyType::Hash && is_text,
        _ => false,
    };
    if fits {
        return Ok(());
    }
    let found: Vec<String> = schema
        .iter()
        .map(|element| {
            let name = element.attribute_name();
            let kind = types.iter().find(|d| d.attribute_name() == name);
            let kind = kind.map_or("?", |d| d.attribute_type().as_str());
            format!("{name}:{kind} {}", element.key_type().as_str())
        })
        .collect();
    Err(wrong_schema(name, &found.join(", ")))
}
