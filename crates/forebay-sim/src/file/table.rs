//! A mapping whose keys are known, and the values of its keys: each is read as what
//! it must be, or refused with its place and with what was expected instead.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::nearest::{is_same_word, nearest};
use super::node::{At, Entry, Node, Value, quoted};
use super::span::{parse_span, show_span};
use super::{Fault, keys};
use crate::scenario::Spread;

/// The keys of a mapping: our spelling and the one of the seeds, if they have one.
pub(super) type Keys = &'static [(&'static str, &'static str)];

const SPAN: &str = "a duration such as 45s, 1h30m or 100ms";
const SHARE: &str = "a share from 0 to 1, or a percentage such as 50%";

/// A mapping with known keys, each at most once in either spelling.
pub(super) struct Table<'n> {
    /// What it describes: "a service".
    what: &'static str,
    pub(super) at: At,
    keys: Keys,
    entries: &'n [Entry],
}

/// A key that is there, with its value.
#[derive(Clone, Copy)]
pub(super) struct Field<'n> {
    /// As it is spelled in the file; for an element of a list, the list's key.
    pub(super) key: &'n str,
    pub(super) key_at: At,
    pub(super) node: &'n Node,
}

impl<'n> Table<'n> {
    pub(super) fn new(node: &'n Node, what: &'static str, keys: Keys) -> Result<Self, Fault> {
        let Value::Map(entries) = &node.value else {
            let known = keys.iter().map(|(ours, _)| *ours);
            let message = format!(
                "expected {what}: a mapping with keys such as {}; found {}",
                some_of(known),
                node.found()
            );
            return Err(Fault::new(node.at, message));
        };
        let table = Self { what, at: node.at, keys, entries };
        for (i, entry) in entries.iter().enumerate() {
            let ours = table.ours(entry).ok_or_else(|| table.unknown(entry))?;
            let earlier = entries[..i].iter().find(|earlier| table.ours(earlier) == Some(ours));
            if let Some(earlier) = earlier {
                return Err(twice(&earlier.key, &entry.key, entry.key_at));
            }
        }
        Ok(table)
    }

    /// A key's entry, by our spelling.
    pub(super) fn get(&self, ours: &str) -> Option<Field<'n>> {
        debug_assert!(self.keys.iter().any(|(name, _)| *name == ours), "undeclared key {ours}");
        self.entries.iter().find(|entry| self.ours(entry) == Some(ours)).map(Entry::field)
    }

    /// All that is there, in the order of the file, with our spelling.
    pub(super) fn fields(&self) -> impl Iterator<Item = (&'static str, Field<'n>)> + '_ {
        self.entries.iter().filter_map(|entry| Some((self.ours(entry)?, entry.field())))
    }

    /// A key's entry that must be there.
    pub(super) fn need(&self, ours: &str) -> Result<Field<'n>, Fault> {
        self.get(ours).ok_or_else(|| {
            let (ours, seeds) =
                self.keys.iter().find(|(name, _)| *name == ours).copied().unwrap_or_default();
            let or = if seeds.is_empty() { String::new() } else { format!(" (or `{seeds}`)") };
            Fault::new(self.at, format!("{} needs the key `{ours}`{or}", self.what))
        })
    }

    /// A fault that another crate found in the values as a whole: told in the words of
    /// the file, at the first key that it names.
    pub(super) fn fault(&self, message: &str) -> Fault {
        let mut text = String::new();
        let mut at = None;
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        for piece in message.split_inclusive(|c: char| !is_word(c)) {
            let word = piece.trim_end_matches(|c: char| !is_word(c));
            match self.fields().find(|(ours, _)| *ours == word) {
                Some((_, field)) => {
                    at = at.or(Some(field.node.at));
                    text.push_str(&format!("{}{}", field.key, &piece[word.len()..]));
                }
                None => text.push_str(piece),
            }
        }
        Fault::new(at.unwrap_or(self.at), text)
    }

    fn ours(&self, entry: &Entry) -> Option<&'static str> {
        let key = entry.key.as_str();
        let known = self.keys.iter().find(|(ours, seeds)| *ours == key || *seeds == key);
        known.filter(|_| !key.is_empty()).map(|(ours, _)| *ours)
    }

    fn unknown(&self, entry: &Entry) -> Fault {
        let spellings = || self.keys.iter().flat_map(|(ours, seeds)| [*ours, *seeds]);
        let elsewhere = keys::SECTIONS.iter().find_map(|(section, keys)| {
            let mut spellings = keys.iter().flat_map(|(ours, seeds)| [*ours, *seeds]);
            spellings.find(|name| is_same_word(name, &entry.key)).map(|name| (section, name))
        });
        let hint = match (nearest(&entry.key, spellings()), elsewhere) {
            (Some(near), _) => format!("did you mean `{near}`?"),
            (None, Some((section, name))) if name == entry.key => {
                format!("it belongs in {section}")
            }
            (None, Some((section, name))) => format!("did you mean `{name}` in {section}?"),
            (None, _) => format!("known keys: {}", all_of(self.keys.iter().map(|(ours, _)| *ours))),
        };
        let key = quoted(&entry.key);
        let key = key.trim_matches('"');
        Fault::new(entry.key_at, format!("unknown key `{key}` in {}; {hint}", self.what))
    }
}

/// One key in two spellings, or two keys that say the same thing.
pub(super) fn twice(first: &str, second: &str, at: At) -> Fault {
    Fault::new(at, format!("`{second}` says what `{first}` says already; keep one of the two"))
}

impl Entry {
    pub(super) fn field(&self) -> Field<'_> {
        Field { key: &self.key, key_at: self.key_at, node: &self.node }
    }
}

impl<'n> Field<'n> {
    /// A fault of the value.
    pub(super) fn fault(&self, message: impl std::fmt::Display) -> Fault {
        Fault::new(self.node.at, format!("`{}` {message}", self.key))
    }

    /// The value is of another kind than it must be.
    pub(super) fn expected(&self, what: impl std::fmt::Display) -> Fault {
        Fault::new(
            self.node.at,
            format!("`{}`: expected {what}; found {}", self.key, self.node.found()),
        )
    }

    pub(super) fn table(&self, what: &'static str, keys: Keys) -> Result<Table<'n>, Fault> {
        Table::new(self.node, what, keys)
    }

    pub(super) fn list(&self, what: &str) -> Result<Vec<Field<'n>>, Fault> {
        let Value::List(nodes) = &self.node.value else {
            return Err(self.expected(what));
        };
        Ok(nodes.iter().map(|node| Field { node, ..*self }).collect())
    }

    /// A list of names, or one name.
    pub(super) fn names(&self) -> Result<Vec<Field<'n>>, Fault> {
        match self.node.value {
            Value::List(_) => self.list("a list of names"),
            _ => Ok(vec![*self]),
        }
    }

    /// Whether the value is the word `none` (or `never`).
    pub(super) fn is_none(&self) -> bool {
        matches!(&self.node.value, Value::Text(text) if text == "none" || text == "never")
    }

    pub(super) fn text(&self) -> Result<String, Fault> {
        match &self.node.value {
            Value::Text(text) => Ok(text.clone()),
            Value::Whole(number) => Ok(number.to_string()),
            Value::Number(_) | Value::Flag(_) => Err(self.expected("a text, in quotes")),
            _ => Err(self.expected("a text")),
        }
    }

    /// A name that can be shown in a table and told to a coordinator.
    pub(super) fn name(&self) -> Result<String, Fault> {
        let name = self.text()?;
        if !is_name(&name) {
            return Err(self.expected("a name of 1 to 100 printable characters without @ and #"));
        }
        Ok(name)
    }

    /// One of a few words.
    pub(super) fn word<T: Copy>(&self, words: &[(&'static str, T)]) -> Result<T, Fault> {
        let all = all_of(words.iter().map(|(word, _)| *word));
        let Value::Text(text) = &self.node.value else {
            return Err(self.expected(format!("one of {all}")));
        };
        let known = words.iter().find(|(word, _)| word == text);
        known.map(|(_, value)| *value).ok_or_else(|| {
            let near = nearest(text, words.iter().map(|(word, _)| *word));
            let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
            let found = quoted(text);
            Fault::new(
                self.node.at,
                format!("`{}`: expected one of {all}; found {found}{hint}", self.key),
            )
        })
    }

    pub(super) fn flag(&self) -> Result<bool, Fault> {
        match self.node.value {
            Value::Flag(flag) => Ok(flag),
            _ => Err(self.expected("`true` or `false`")),
        }
    }

    /// A whole number in a range.
    pub(super) fn whole(&self, range: RangeInclusive<u64>) -> Result<u64, Fault> {
        let (low, high) = (range.start(), range.end());
        let number = match self.node.value {
            Value::Whole(number) => u64::try_from(number).ok(),
            // as in 100.0; 2^53 is where floats begin to skip numbers
            Value::Number(number)
                if number.fract() == 0.0 && (0.0..9_007_199_254_740_992.0).contains(&number) =>
            {
                Some(number as u64)
            }
            _ => return Err(self.expected("a whole number")),
        };
        let number = number.filter(|number| range.contains(number));
        number.ok_or_else(|| match high {
            &u64::MAX => self.expected(format!("a whole number from {low}")),
            high => self.expected(format!("a whole number from {low} to {high}")),
        })
    }

    /// As [`whole`](Self::whole), for what is counted in 32 bits.
    pub(super) fn count(&self, range: RangeInclusive<u32>) -> Result<u32, Fault> {
        let whole = self.whole(u64::from(*range.start())..=u64::from(*range.end()))?;
        u32::try_from(whole).map_err(|_| self.expected("a whole number"))
    }

    /// A number above 0, not necessarily whole.
    pub(super) fn number(&self, most: f64) -> Result<f64, Fault> {
        let number = match self.node.value {
            Value::Whole(number) => number as f64,
            Value::Number(number) => number,
            _ => return Err(self.expected("a number")),
        };
        if number > 0.0 && number <= most {
            return Ok(number);
        }
        Err(self.expected(format!("a number above 0, at most {most}")))
    }

    pub(super) fn span(&self) -> Result<Duration, Fault> {
        match &self.node.value {
            Value::Text(text) => parse_span(text).ok_or_else(|| self.expected(SPAN)),
            Value::Whole(0) => Ok(Duration::ZERO),
            Value::Whole(number) if *number > 0 => Err(Fault::new(
                self.node.at,
                format!(
                    "`{}`: expected {SPAN}; found the number {number} without a unit; \
                     did you mean `{number}s`?",
                    self.key
                ),
            )),
            _ => Err(self.expected(SPAN)),
        }
    }

    pub(super) fn span_above_zero(&self) -> Result<Duration, Fault> {
        let span = self.span()?;
        if span.is_zero() { Err(self.fault("is 0; it must be above 0")) } else { Ok(span) }
    }

    pub(super) fn share(&self) -> Result<f64, Fault> {
        let share = match &self.node.value {
            Value::Whole(number) => *number as f64,
            Value::Number(number) => *number,
            Value::Text(text) => {
                let percent = text.strip_suffix('%').and_then(|text| text.trim().parse().ok());
                percent.map(|percent: f64| percent / 100.0).ok_or_else(|| self.expected(SHARE))?
            }
            _ => return Err(self.expected(SHARE)),
        };
        if (0.0..=1.0).contains(&share) {
            return Ok(share);
        }
        let hint = match self.node.value {
            Value::Whole(2..=100) => format!("; did you mean `{share}%`?"),
            _ => String::new(),
        };
        Err(self.expected(SHARE).and(&hint))
    }

    /// A span (always the same), or how it is spread.
    pub(super) fn spread(&self) -> Result<Spread, Fault> {
        if !matches!(self.node.value, Value::Map(_)) {
            let expected = format!("{SPAN}, or {{p50, p99}}, {{mean}} or {{min, max}}");
            return match (&self.node.value, self.span()) {
                (_, Ok(span)) => Ok(Spread::Fixed(span)),
                (Value::Whole(1..), Err(fault)) => Err(fault),
                (_, Err(_)) => Err(self.expected(expected)),
            };
        }
        let table = self.table("a spread of time", keys::SPREAD)?;
        let [p50, p99, mean, min, max] = ["p50", "p99", "mean", "min", "max"].map(|k| table.get(k));
        let in_order = |low: Field<'_>, high: Field<'_>| {
            let (from, to) = (low.span()?, high.span()?);
            if from > to {
                let (from, to) = (show_span(from), show_span(to));
                return Err(low.fault(format!("({from}) is above `{}` ({to})", high.key)));
            }
            Ok((from, to))
        };
        match (p50, p99, mean, min, max) {
            (Some(low), Some(high), None, None, None) => {
                low.span_above_zero()?;
                let (p50, p99) = in_order(low, high)?;
                Ok(Spread::Percentiles { p50, p99 })
            }
            (None, None, Some(mean), None, None) => {
                Ok(Spread::Exponential(mean.span_above_zero()?))
            }
            (None, None, None, Some(low), Some(high)) => {
                let (min, max) = in_order(low, high)?;
                Ok(Spread::Uniform(min, max))
            }
            _ => Err(Fault::new(
                self.node.at,
                format!(
                    "`{}`: expected `p50` and `p99`, or `mean`, or `min` and `max`, and nothing else",
                    self.key
                ),
            )),
        }
    }
}

/// Whether a text can be a name.
pub(super) fn is_name(text: &str) -> bool {
    let is_ok = |c: char| !c.is_control() && !matches!(c, '@' | '#');
    !text.trim().is_empty() && text.chars().count() <= 100 && text.chars().all(is_ok)
}

fn all_of<'w>(words: impl Iterator<Item = &'w str>) -> String {
    words.map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

fn some_of<'w>(words: impl Iterator<Item = &'w str>) -> String {
    all_of(words.take(3))
}
