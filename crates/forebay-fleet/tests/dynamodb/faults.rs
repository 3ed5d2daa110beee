//! What goes wrong, and what is said about it: tables that are missing or of the
//! wrong kind, no region, no credentials, nobody there, clocks that are off.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider, future};
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
};
use forebay_fleet::{DynamoKeeper, DynamoSettings, Keeper, KeeperError, Reserve};

use crate::common::Place;
use crate::conformance::{Peer, backend, limits, set_up};

fn unusable(error: KeeperError, words: &[&str]) {
    let text = error.to_string();
    assert!(matches!(error, KeeperError::Unusable { .. }), "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
}

#[tokio::test]
async fn without_a_table_the_error_says_how_to_make_one() {
    let Some(place) = Place::bare("missing") else { return };
    let keeper = place.keeper();
    let words = [place.table.as_str(), "forebay fleet setup dynamodb"];
    unusable(keeper.check().await.expect_err("no table"), &words);
    let report = Peer::new("db", "a", 10).next(0, 1);
    unusable(keeper.report(&report).await.expect_err("no table"), &words);
    let refused = keeper.refused("db", &limits(10)).await;
    unusable(refused.expect_err("no table"), &words);
    unusable(keeper.setup("db").await.expect_err("no table"), &words);
}

#[tokio::test]
async fn setting_up_a_table_twice_does_nothing_the_second_time() {
    let Some(place) = Place::find("twice").await else { return };
    let again = place.keeper().setup_table().await.expect("as it should be");
    assert!(!again.created && !again.ttl_enabled, "{again:?}");
    place.keeper().check().await.expect("as it should be");
}

/// Makes a table with these keys.
async fn make(place: &Place, keys: &[(&str, ScalarAttributeType, KeyType)]) {
    let mut call = place.client.create_table().table_name(&place.table);
    for (name, kind, role) in keys {
        let attribute =
            AttributeDefinition::builder().attribute_name(*name).attribute_type(kind.clone());
        let element = KeySchemaElement::builder().attribute_name(*name).key_type(role.clone());
        call = call.attribute_definitions(attribute.build().expect("complete"));
        call = call.key_schema(element.build().expect("complete"));
    }
    call.billing_mode(BillingMode::PayPerRequest).send().await.expect("made");
}

#[tokio::test]
async fn a_table_of_another_kind_is_refused_with_what_was_found() {
    let text = ScalarAttributeType::S;
    let cases = [
        (
            "sort",
            vec![("pk", text.clone(), KeyType::Hash), ("sk", text.clone(), KeyType::Range)],
            "sk:S RANGE",
        ),
        ("number", vec![("pk", ScalarAttributeType::N, KeyType::Hash)], "pk:N HASH"),
        ("name", vec![("id", text.clone(), KeyType::Hash)], "id:S HASH"),
    ];
    for (test, keys, found) in cases {
        let Some(place) = Place::bare(test) else { return };
        make(&place, &keys).await;
        let keeper = place.keeper();
        let words = [found, "pk", "forebay fleet setup dynamodb"];
        unusable(keeper.check().await.expect_err("wrong"), &words);
        unusable(keeper.setup_table().await.expect_err("wrong"), &words);
        let report = Peer::new("db", "a", 10).next(0, 1);
        unusable(keeper.report(&report).await.expect_err("wrong"), &["key schema", "pk"]);
    }
}

#[tokio::test]
async fn a_table_without_time_to_live_is_told_and_mended() {
    let Some(place) = Place::bare("ttl") else { return };
    make(&place, &[("pk", ScalarAttributeType::S, KeyType::Hash)]).await;
    let keeper = place.keeper();
    unusable(keeper.check().await.expect_err("no ttl"), &["ttl_epoch", "forebay fleet setup"]);
    let setup = keeper.setup_table().await.expect("mended");
    assert!(!setup.created && setup.ttl_enabled, "{setup:?}");
    keeper.check().await.expect("mended");
}

#[tokio::test]
async fn books_that_cannot_be_read_are_told() {
    let Some(place) = Place::find("foreign").await else { return };
    let text = |text: &str| aws_sdk_dynamodb::types::AttributeValue::S(text.to_owned());
    let call = place.client.put_item().table_name(&place.table);
    let call = call.item("pk", text("dsqllease_registry#db")).item("books", text("{}"));
    call.send().await.expect("put");
    let report = Peer::new("db", "a", 10).next(0, 1);
    let error = place.keeper().report(&report).await.expect_err("unreadable");
    unusable(error, &["dsqllease_registry#db", "delete the item"]);
}

#[tokio::test]
async fn without_a_region_or_credentials_the_error_says_what_to_set() {
    let config = || SdkConfig::builder().behavior_version(BehaviorVersion::latest());
    let mut settings = DynamoSettings::new("leases");
    let bare = config().region(Region::new("eu-west-1")).build();
    let error = DynamoKeeper::from_sdk_config(&bare, settings.clone()).expect_err("none");
    unusable(error, &["credentials", "AWS_PROFILE"]);
    let nobody = SharedCredentialsProvider::new(Nobody);
    let empty = config().credentials_provider(nobody).build();
    let error = DynamoKeeper::from_sdk_config(&empty, settings.clone());
    unusable(error.expect_err("no region"), &["region", "AWS_REGION"]);
    settings.region = Some("eu-west-1".to_owned());
    settings.endpoint_url = Some("http://127.0.0.1:9".to_owned());
    let keeper = DynamoKeeper::from_sdk_config(&empty, settings).expect("a keeper");
    let report = Peer::new("db", "a", 10).next(0, 1);
    let error = keeper.report(&report).await.expect_err("no credentials");
    unusable(error, &["credentials", "AWS_PROFILE"]);
    unusable(keeper.check().await.expect_err("no credentials"), &["credentials"]);
}

/// Has no credentials to give.
#[derive(Debug)]
struct Nobody;

impl ProvideCredentials for Nobody {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::ready(Err(CredentialsError::not_loaded_no_source()))
    }
}

#[tokio::test]
async fn a_keeper_that_is_not_there_or_does_not_answer_is_away() {
    let Some(place) = Place::bare("away") else { return };
    let report = Peer::new("db", "a", 10).next(0, 1);
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = silent.local_addr().expect("an address");
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let nobody = closed.local_addr().expect("an address");
    drop(closed);
    for address in [address, nobody] {
        let mut settings = place.settings();
        settings.endpoint_url = Some(format!("http://{address}"));
        settings.request_timeout = Duration::from_millis(300);
        let keeper = place.with(settings);
        let error = keeper.report(&report).await.expect_err("nobody there");
        assert!(matches!(error, KeeperError::Away { .. }), "{error}");
    }
}

/// Counts warnings that say NTP.
struct Warnings(Arc<AtomicU64>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(bool);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 |= format!("{value:?}").contains("NTP");
            }
        }
        let mut text = Text(false);
        event.record(&mut text);
        self.0.fetch_add(u64::from(text.0), Ordering::SeqCst);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn a_clock_that_is_minutes_off_is_corrected_and_warned_about_once() {
    let Some(place) = Place::find("skew").await else { return };
    let name = &backend("skew");
    set_up(&place.keeper(), name).await;
    let warnings = Arc::new(AtomicU64::new(0));
    let _guard = tracing::subscriber::set_default(Warnings(warnings.clone()));
    let minutes = |count: u64| Duration::from_secs(60 * count);
    let walls = [
        (SystemTime::now(), 0),
        (SystemTime::now() + minutes(10), 1),
        (SystemTime::now() - minutes(7), 1),
    ];
    let start = tokio::time::Instant::now();
    // 205 permits: after a burst of 5, those of the next 20 s
    let mut expected_us = 20_100_000;
    for (round, (wall, warns)) in walls.into_iter().enumerate() {
        let before = warnings.load(Ordering::SeqCst);
        let mut settings = place.settings();
        settings.wall = Some(wall);
        let keeper = place.with(settings);
        let mut wish = Reserve {
            backend: name.clone(),
            permits: if round == 0 { 205 } else { 50 },
            limits: limits(10),
            max_wait_ms: 120_000,
            nonce: 1,
            ttl_ms: 30_000,
        };
        keeper.reserve(&wish).await.expect("permits");
        wish.permits = 1;
        let next = keeper.reserve(&wish).await.expect("a permit");
        let at_us = next.lead_us + start.elapsed().as_micros() as i64;
        // a second is as sharp as a `Date` is, and requests take their time
        let apart_us = 1_000_000 + start.elapsed().as_micros() as i64;
        let off_us = at_us - expected_us;
        assert!(off_us.abs() <= apart_us, "{at_us} us instead of {expected_us}, round {round}");
        expected_us += 5_100_000;
        assert_eq!(warnings.load(Ordering::SeqCst) - before, warns, "warnings at {wall:?}");
    }
}
