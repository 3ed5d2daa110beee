//! A YAML document as a tree in which every key and value knows where it stands.
//! Limits on size, depth and aliases are set here; what keys mean is not known here.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{DuplicateKeyPolicy, MessageFormatter, Spanned, UserMessageFormatter};

use super::Fault;

/// Mappings and lists inside each other; the format itself needs seven.
const DEPTH_MAX: usize = 16;
/// Keys, values, lists and mappings.
const NODES_MAX: usize = 250_000;
/// What aliases (`*name`) may add to that.
const REPLAYED_MAX: usize = 100_000;

/// Where something stands, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct At {
    pub(super) line: u64,
    pub(super) column: u64,
}

/// A value and where it stands.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) at: At,
    pub(super) value: Value,
}

/// A value as YAML knows it.
#[derive(Debug)]
pub(super) enum Value {
    Nothing,
    Flag(bool),
    Whole(i128),
    Number(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A key, where it stands, and its value.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) key_at: At,
    pub(super) node: Node,
}

/// Reads one document.
pub(super) fn read(text: &str) -> Result<Node, Fault> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: DEPTH_MAX,
            flow_nesting_limit: DEPTH_MAX,
            max_documents: 1,
            max_nodes: NODES_MAX,
            max_events: 3 * NODES_MAX,
            max_recorded_anchor_events: REPLAYED_MAX,
            // one anchor for what all services share is a good use of it
            enforce_alias_anchor_ratio: false,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: REPLAYED_MAX,
        },
        duplicate_keys: DuplicateKeyPolicy::Error,
        // `on` and `no` are words here
        strict_booleans: true,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| Fault::somewhere(error.location().map(At::from), message(&error)))
}

/// What is wrong with a text that is no YAML, or too much of it.
fn message(error: &serde_saphyr::Error) -> String {
    use serde_saphyr::Error;
    use serde_saphyr::budget::BudgetBreach;

    match without_aliases(error) {
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("the key {} is there already; keep one of the two", quoted(key))
        }
        Error::Budget { breach: BudgetBreach::Documents { .. }, .. } => {
            "expected one document; found the beginning of a second".to_owned()
        }
        Error::Budget { breach: BudgetBreach::Depth { .. }, .. } => {
            format!("expected at most {DEPTH_MAX} mappings and lists inside each other; found more")
        }
        Error::Budget {
            breach: BudgetBreach::Nodes { .. } | BudgetBreach::Events { .. }, ..
        } => {
            format!("expected at most {NODES_MAX} keys and values; found more")
        }
        Error::Budget { .. } | Error::AliasReplayLimitExceeded { .. } => {
            format!("expected aliases to add at most {REPLAYED_MAX} keys and values; found more")
        }
        other => {
            // the parser's own words, without what a terminal would obey
            let words = UserMessageFormatter.format_message(other);
            let mut chars = words.chars().filter(|c| !c.is_control());
            chars.next().map(|c| c.to_ascii_lowercase()).into_iter().chain(chars).collect()
        }
    }
}

/// The error itself, where it came up behind an alias.
fn without_aliases(mut error: &serde_saphyr::Error) -> &serde_saphyr::Error {
    while let serde_saphyr::Error::AliasError { error: inner, .. } = error {
        error = inner;
    }
    error
}

impl From<serde_saphyr::Location> for At {
    fn from(location: serde_saphyr::Location) -> Self {
        // a document without anything in it has no place but its beginning
        Self { line: location.line().max(1), column: location.column().max(1) }
    }
}

impl Node {
    /// What stands here, for messages.
    pub(super) fn found(&self) -> String {
        match &self.value {
            Value::Nothing => "nothing".to_owned(),
            Value::Flag(flag) => format!("`{flag}`"),
            Value::Whole(number) => format!("the number {number}"),
            Value::Number(number) => format!("the number {number}"),
            Value::Text(text) => quoted(text),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a mapping".to_owned(),
        }
    }
}

/// A text from the file, in quotes, of bearable length and without control characters.
pub(super) fn quoted(text: &str) -> String {
    const SHOWN: usize = 60;
    let more = if text.chars().nth(SHOWN).is_some() { "…" } else { "" };
    let shown: String = text.chars().take(SHOWN).collect();
    format!("{shown:?}{more}")
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned { value, referenced, .. } = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Self { at: referenced.into(), value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a value, a list or a mapping")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Nothing)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Nothing)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Whole(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Whole(number.into()))
    }

    fn visit_i128<E>(self, number: i128) -> Result<Value, E> {
        Ok(Value::Whole(number))
    }

    fn visit_u128<E>(self, number: u128) -> Result<Value, E> {
        Ok(Value::Whole(i128::try_from(number).unwrap_or(i128::MAX)))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Number(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = list.next_element()? {
            nodes.push(node);
        }
        Ok(Value::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let node = map.next_value()?;
            entries.push(Entry { key: key.value, key_at: key.referenced.into(), node });
        }
        Ok(Value::Map(entries))
    }
}
