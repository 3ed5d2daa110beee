//! How the books lie in the table: the names of the items, and their attributes.

use aws_sdk_dynamodb::types::AttributeValue;

use crate::ledger::Ledger;
use crate::message::MemberId;
use crate::rate::RateBook;

use super::errors::unusable;
use crate::keeper::KeeperError;

/// An item as the SDK has it.
#[expect(clippy::disallowed_types, reason = "the SDK's type; nothing iterates over it")]
pub(super) type Item = std::collections::HashMap<String, AttributeValue>;

pub(super) const REGISTRY: &str = "dsqllease_registry#";

/// A tombstone is kept for this long after its member has gone.
pub(super) const TOMBSTONE_S: u64 = 24 * 3600;
/// A rate that nobody uses is forgotten after this long; the next bucket starts empty.
pub(super) const RATE_S: u64 = 24 * 3600;
/// DynamoDB's limit for an item is 400 KiB; this leaves room for the other attributes.
pub(super) const BOOKS_BYTES_MAX: usize = 390 * 1024;

pub(super) fn registry_key(backend: &str) -> String {
    format!("{REGISTRY}{backend}")
}

pub(super) fn counter_key(backend: &str) -> String {
    format!("dsqllease_counter#{backend}")
}

pub(super) fn lease_key(backend: &str, member: &MemberId) -> String {
    format!("dsqllease#{backend}#{member}")
}

pub(super) fn rate_key(backend: &str) -> String {
    format!("dsqlconnect#{backend}")
}

pub(super) fn text(value: impl Into<String>) -> AttributeValue {
    AttributeValue::S(value.into())
}

pub(super) fn number(value: impl std::fmt::Display) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

pub(super) fn key(pk: impl Into<String>) -> Item {
    Item::from([("pk".to_owned(), text(pk))])
}

pub(super) fn get_text<'a>(item: &'a Item, name: &str) -> Option<&'a str> {
    item.get(name).and_then(|value| value.as_s().ok()).map(String::as_str)
}

pub(super) fn get_number(item: &Item, name: &str) -> Option<u64> {
    item.get(name).and_then(|value| value.as_n().ok()).and_then(|text| text.parse().ok())
}

pub(super) fn is_gone(item: &Item) -> bool {
    item.contains_key("gone")
}

/// The books of a backend as they were at one version of the registry item.
#[derive(Debug, Clone)]
pub(super) struct Page {
    pub(super) ledger: Ledger,
    pub(super) version: u64,
}

impl Page {
    pub(super) fn read(item: &Item) -> Result<Self, KeeperError> {
        let foreign = || {
            let pk = get_text(item, "pk").unwrap_or("?");
            unusable(
                format!("the item {pk} cannot be read"),
                "it was written by something else or by a newer version: upgrade, or delete the item \
                 (its members then declare what they hold)",
            )
        };
        let version = get_number(item, "version").ok_or_else(foreign)?;
        let books = get_text(item, "books").ok_or_else(foreign)?;
        let ledger = serde_json::from_str(books).map_err(|_| foreign())?;
        Ok(Self { ledger, version })
    }

    pub(super) fn write(&self, backend: &str, now_ms: u64) -> Result<Item, KeeperError> {
        let books = serde_json::to_string(&self.ledger)
            .map_err(|error| unusable(format!("books of {backend}: {error}"), "report this"))?;
        if books.len() > BOOKS_BYTES_MAX {
            return Err(unusable(
                format!(
                    "the books of {backend} do not fit an item with {} members",
                    self.ledger.members.len()
                ),
                "keep a fleet of this size in Redis, or split it over several backends",
            ));
        }
        Ok(Item::from([
            ("pk".to_owned(), text(registry_key(backend))),
            ("version".to_owned(), number(self.version)),
            ("generation".to_owned(), text(&self.ledger.generation)),
            ("books".to_owned(), text(books)),
            ("updated_ms".to_owned(), number(now_ms)),
        ]))
    }
}

/// A backend's rate as it was at one version of its item.
#[derive(Debug, Clone)]
pub(super) struct RatePage {
    pub(super) book: RateBook,
    pub(super) version: u64,
}

impl RatePage {
    /// `None` if the item is none of ours; it is then written anew.
    pub(super) fn read(item: &Item) -> Option<Self> {
        let book = RateBook {
            tat_us: get_number(item, "tat_us")?,
            halvings: u32::try_from(get_number(item, "halvings")?).ok()?,
            refused_us: get_number(item, "refused_us")?,
        };
        Some(Self { book, version: get_number(item, "version")? })
    }

    pub(super) fn write(&self, backend: &str, now_us: u64) -> Item {
        Item::from([
            ("pk".to_owned(), text(rate_key(backend))),
            ("version".to_owned(), number(self.version)),
            ("tat_us".to_owned(), number(self.book.tat_us)),
            ("halvings".to_owned(), number(self.book.halvings)),
            ("refused_us".to_owned(), number(self.book.refused_us)),
            ("updated_ms".to_owned(), number(now_us / 1000)),
            ("ttl_epoch".to_owned(), number(now_us / 1_000_000 + RATE_S)),
        ])
    }
}
