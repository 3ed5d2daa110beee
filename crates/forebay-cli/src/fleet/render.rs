//! A backend's books as text: a heading and a row for each member.

use std::fmt::Write;
use std::time::Duration;

use forebay_fleet::{BackendInfo, Limits, MemberInfo};

use crate::dev::paint::{Paint, span, thousands};

const TITLES: [&str; 9] =
    ["member", "service", "peer", "held", "want", "waiters", "share", "recall", "silent"];
/// The first columns hold words, the others figures.
const WORDS: usize = 3;

/// One backend.
pub(super) fn backend(info: &BackendInfo, paint: Paint) -> String {
    let mut text = String::new();
    let name = paint.bold(&printable(&info.backend));
    if info.generation.is_empty() {
        let _ = writeln!(text, "{name}  no books; members make them, or `forebay fleet setup`");
        return text;
    }
    let total = match limit(info.limit) {
        Some(limit) if info.total > info.limit => {
            paint.red(&format!("{} of {limit} leases", thousands(info.total.into())))
        }
        Some(limit) => format!("{} of {limit} leases", thousands(info.total.into())),
        None if info.members.is_empty() => "no leases".to_owned(),
        None => format!("{} leases, no limit", thousands(info.total.into())),
    };
    let members = match info.members.len() {
        1 => "1 member".to_owned(),
        n => format!("{n} members"),
    };
    let generation = paint.dim(&format!("generation {}", printable(&info.generation)));
    let _ = writeln!(text, "{name}  {total}, {members}  {generation}");
    if info.declaring_ms > 0 {
        let left = span(Duration::from_millis(info.declaring_ms));
        let note = format!(
            "declaring for another {left}: the books were lost or are new, nothing is granted"
        );
        let _ = writeln!(text, "  {}", paint.yellow(&note));
    }
    text.push_str(&table(&info.members, paint));
    text
}

/// `None` if connections are not limited in number.
fn limit(limit: u32) -> Option<String> {
    (limit > 0 && limit < Limits::MAX).then(|| thousands(limit.into()))
}

fn table(members: &[MemberInfo], paint: Paint) -> String {
    if members.is_empty() {
        return String::new();
    }
    let rows: Vec<[String; 9]> = members.iter().map(cells).collect();
    let mut widths = TITLES.map(|title| title.chars().count());
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &[String; 9]| {
        let cells = row.iter().zip(widths).enumerate().map(|(i, (cell, width))| {
            if i < WORDS { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        format!("  {}", cells.collect::<Vec<_>>().join("  ")).trim_end().to_owned()
    };
    let mut text = String::new();
    let _ = writeln!(text, "{}", paint.dim(&line(&TITLES.map(str::to_owned))));
    for (row, info) in rows.iter().zip(members) {
        let row = line(row);
        let silent = info.silent_ms.unwrap_or(0);
        let row = if silent >= info.profile.ttl_ms {
            paint.red(&row)
        } else if silent > info.profile.heartbeat_ms * 3 / 2 {
            paint.yellow(&row)
        } else {
            row
        };
        let _ = writeln!(text, "{row}");
    }
    text
}

fn cells(info: &MemberInfo) -> [String; 9] {
    let or_dash = |text: &str| match printable(text) {
        text if text.is_empty() => "-".to_owned(),
        text => text,
    };
    let number = |n: u32| thousands(n.into());
    [
        printable(info.member.as_str()),
        or_dash(&info.profile.service),
        or_dash(&info.profile.peer),
        number(info.held),
        number(info.want),
        number(info.waiters),
        number(info.share),
        number(info.recall),
        info.silent_ms.map_or_else(|| "?".to_owned(), |ms| span(Duration::from_millis(ms))),
    ]
}

/// What members say of themselves is not to reach the terminal as commands.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use forebay_fleet::{MemberId, Profile};

    use super::*;

    fn member(instance: &str, silent_ms: Option<u64>) -> MemberInfo {
        MemberInfo {
            member: MemberId::new(instance, 0xbeef),
            profile: Profile {
                service: "web".to_owned(),
                peer: String::new(),
                weight: 1,
                limits: Limits { open: 40, rate: 0, burst: 0, version: 0 },
                ttl_ms: 30_000,
                heartbeat_ms: 10_000,
                margin_ms: 5_000,
                reclaim_ms: 30_000,
                divisor: 3,
            },
            held: 14,
            want: 20,
            waiters: 3,
            share: 13,
            recall: 0,
            silent_ms,
        }
    }

    fn info(members: Vec<MemberInfo>) -> BackendInfo {
        BackendInfo {
            backend: "orders".to_owned(),
            generation: "abc".to_owned(),
            limit: 40,
            total: 28,
            declaring_ms: 0,
            members,
        }
    }

    #[test]
    fn a_backend_is_a_heading_and_a_table() {
        let text =
            backend(&info(vec![member("web-1", Some(2_100)), member("w", None)]), Paint(false));
        assert_eq!(
            text,
            "orders  28 of 40 leases, 2 members  generation abc\n  \
             member                  service  peer  held  want  waiters  share  recall  silent\n  \
             web-1@000000000000beef  web      -       14    20        3     13       0   2.1 s\n  \
             w@000000000000beef      web      -       14    20        3     13       0       ?\n"
        );
    }

    #[test]
    fn what_is_wrong_stands_out() {
        let mut books = info(vec![member("late", Some(31_000)), member("slow", Some(16_000))]);
        books.declaring_ms = 12_000;
        books.total = 41;
        let text = backend(&books, Paint(true));
        assert!(text.contains("\x1b[1;31m41 of 40 leases\x1b[0m"), "{text:?}");
        assert!(text.contains("\x1b[1;31m  late@"), "{text:?}");
        assert!(text.contains("\x1b[33m  slow@"), "{text:?}");
        assert!(text.contains("declaring for another 12 s"), "{text:?}");
    }

    #[test]
    fn names_cannot_steer_the_terminal() {
        let text = backend(&info(vec![member("a\x1b[2Jb", None)]), Paint(false));
        assert!(text.contains("a?[2Jb") && !text.contains('\x1b'), "{text:?}");
    }

    #[test]
    fn a_backend_without_books_says_so() {
        let none = BackendInfo { generation: String::new(), ..info(Vec::new()) };
        assert!(backend(&none, Paint(false)).starts_with("orders  no books"));
    }
}
