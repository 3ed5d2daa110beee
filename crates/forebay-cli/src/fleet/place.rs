//! Finds the keeper that the arguments name. Which keepers there can be depends on
//! the features this binary was built with.

use std::sync::Arc;

use forebay_fleet::Keeper;

use super::Error;
use super::args::{DynamoAccess, Place, RedisAccess};

/// The keeper to look at.
pub(super) async fn keeper(place: &Place) -> Result<Arc<dyn Keeper>, Error> {
    match (&place.which.redis, &place.which.dynamodb) {
        (Some(url), _) => redis(url, &place.redis_access).await,
        (None, Some(table)) => Ok(dynamodb(table, &place.dynamo_access).await?),
        (None, None) => Err(Error::Arguments("--redis or --dynamodb is needed".to_owned())),
    }
}

#[cfg(feature = "redis")]
pub(super) async fn redis(url: &str, access: &RedisAccess) -> Result<Arc<dyn Keeper>, Error> {
    use forebay_fleet::{RedisKeeper, RedisSettings};

    let bad = |error: forebay_fleet::RedisSettingsError| Error::Arguments(error.to_string());
    let mut settings = RedisSettings::from_url(url).map_err(bad)?;
    if let Some(file) = &access.password_file {
        let password = std::fs::read_to_string(file).map_err(|error| {
            Error::Arguments(format!("--password-file {}: {error}", file.display()))
        })?;
        settings = settings.password(password.trim_end_matches(['\r', '\n']));
    }
    if let Some(file) = &access.ca_file {
        settings = settings.ca_file(file);
    }
    if let (Some(cert), Some(key)) = (&access.client_cert, &access.client_key) {
        settings = settings.client_cert(cert, key);
    }
    Ok(Arc::new(RedisKeeper::new(settings).map_err(bad)?))
}

#[cfg(not(feature = "redis"))]
pub(super) async fn redis(_: &str, _: &RedisAccess) -> Result<Arc<dyn Keeper>, Error> {
    Err(Error::NotBuilt { keeper: "Redis", feature: "redis" })
}

#[cfg(feature = "dynamodb")]
pub(super) async fn dynamodb(
    table: &str,
    access: &DynamoAccess,
) -> Result<Arc<forebay_fleet::DynamoKeeper>, Error> {
    use forebay_fleet::{DynamoKeeper, DynamoSettings};

    let settings = DynamoSettings {
        region: access.region.clone(),
        endpoint_url: access.endpoint_url.clone(),
        // an operator has more patience than a member
        request_timeout: std::time::Duration::from_secs(10),
        ..DynamoSettings::new(table)
    };
    Ok(Arc::new(DynamoKeeper::connect(settings).await?))
}

#[cfg(not(feature = "dynamodb"))]
pub(super) async fn dynamodb(_: &str, _: &DynamoAccess) -> Result<Arc<dyn Keeper>, Error> {
    Err(Error::NotBuilt { keeper: "DynamoDB", feature: "dynamodb" })
}
