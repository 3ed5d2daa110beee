//! The parts of a page that are not plots: the outcome, cards, tiles, events and
//! tables.

use std::fmt::Write;

use super::figures::Figure;
use super::summary::spoken;
use super::words::{count, counted, escaped, instant, percent, span};
use crate::record::{Recording, Verdict};

/// Rows of a table of services at most; the page is for people.
const ROWS: usize = 100;

/// How a verdict reads, and whether that is as it should be.
pub(crate) fn outcome(verdict: &Verdict) -> (bool, &'static str) {
    match (verdict.held, verdict.expected_to_fail) {
        (true, false) => (true, "held"),
        (false, false) => (false, "failed"),
        (false, true) => (true, "failed, as it was meant to"),
        (true, true) => (false, "held, but was meant to fail"),
    }
}

/// All verdicts in one sentence.
pub(crate) fn conclusion(recording: &Recording) -> String {
    let all = recording.verdicts.len();
    let wrong = recording.verdicts.iter().filter(|verdict| !outcome(verdict).0).count();
    let meant = recording.verdicts.iter().filter(|verdict| verdict.expected_to_fail).count();
    match (all, wrong, meant) {
        (0, ..) => "nothing was asserted".to_owned(),
        (1, 0, 0) => "the assertion held".to_owned(),
        (_, 0, 0) => format!("all {all} assertions held"),
        (_, 0, _) => format!("as expected: {meant} of {all} assertions failed, as meant to"),
        (_, _, 0) => format!("{wrong} of {} failed", counted(all as u64, "assertion")),
        _ => format!("{wrong} of {} not as expected", counted(all as u64, "assertion")),
    }
}

/// What was run.
pub(crate) fn setting(recording: &Recording, between: &str) -> String {
    let limit = |n: u32, what: &str| (n > 0).then(|| format!("{} {what}", count(n.into())));
    let parts = [
        Some(format!("{} simulated", span(recording.seconds))),
        Some(counted(recording.services.len() as u64, "service")),
        Some(counted(recording.members.into(), "instance")),
        limit(recording.rate_limit, "opens/s a backend"),
        limit(recording.open_limit, "open at most"),
        Some(format!("seed {}", recording.seed)),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(between)
}

/// Title, setting and outcome.
pub(crate) fn header(recording: &Recording) -> String {
    let good = if recording.as_expected() { "good" } else { "bad" };
    format!(
        "<header>\n<p class=\"brand\">forebay sim</p>\n<h1>{}</h1>\n<p class=\"soft\">{}</p>\n\
         <p class=\"outcome {good}\">{} {}</p>\n</header>\n",
        escaped(&recording.scenario),
        escaped(&setting(recording, " · ")),
        sign(recording.as_expected()),
        upper(&conclusion(recording)),
    )
}

pub(crate) fn sign(good: bool) -> char {
    if good { '✓' } else { '✗' }
}

/// A card for each assertion, those not as expected first.
pub(crate) fn cards(recording: &Recording) -> String {
    if recording.verdicts.is_empty() {
        return String::new();
    }
    let mut sorted: Vec<&Verdict> = recording.verdicts.iter().collect();
    sorted.sort_by_key(|verdict| outcome(verdict).0);
    let mut html = String::from("<ul class=\"cards\" aria-label=\"Assertions\">\n");
    for verdict in sorted {
        let (good, word) = outcome(verdict);
        let class = if good { "good" } else { "bad" };
        let meant = match verdict.expected_to_fail {
            true => format!("<b>{word}</b>: "),
            false => String::new(),
        };
        let first = match verdict.first_violation {
            Some(at) if !verdict.held => format!("; first at {}", instant(at)),
            _ => String::new(),
        };
        let _ = writeln!(
            html,
            "<li class=\"card {class}\"><span class=\"sign {class}\" role=\"img\" \
             aria-label=\"{word}\">{}</span><code>{}</code><p>{meant}{}{first}</p>\
             <p class=\"asked\">asked: {}</p></li>",
            sign(good),
            breakable(&verdict.name),
            escaped(&verdict.seen),
            escaped(&verdict.asked),
        );
    }
    html.push_str("</ul>\n");
    html
}

/// The figures people look for first.
const TILES: [&str; 8] = [
    "converged_after",
    "longest_recovery",
    "opened",
    "wasted",
    "refused",
    "empty",
    "wait_p99",
    "furthest_off_share",
];

/// A tile for each of the most important figures.
pub(crate) fn tiles(figures: &[Figure]) -> String {
    let find = |key: &&str| figures.iter().find(|one| one.key == *key);
    let shown: Vec<&Figure> = TILES.iter().filter_map(find).collect();
    // so that no row is left with a single tile
    let rows = match shown.len() {
        ..=5 => "ones",
        6 => "threes",
        _ => "fours",
    };
    let mut html = format!("<dl class=\"tiles {rows}\">\n");
    for figure in shown {
        let class = if figure.is_fault() { " class=\"bad\"" } else { "" };
        let _ = writeln!(
            html,
            "<div class=\"tile\"><dt>{}</dt><dd{class}>{}</dd><dd class=\"note\">{}</dd></div>",
            upper(figure.name),
            figure.text(),
            escaped(&figure.remark),
        );
    }
    html.push_str("</dl>\n");
    html
}

/// What happened, with the numbers that the plots have.
pub(crate) fn events(recording: &Recording) -> String {
    if recording.events.is_empty() {
        return String::new();
    }
    let mut html = String::from(
        "<h2>Events</h2>\n<p class=\"lead\">Numbered in the plots. A shaded band is an event, the \
         lighter one after it is recovery, and the diamond marks its end.</p>\n<ol class=\"events\">\n",
    );
    for (index, mark) in recording.events.iter().enumerate() {
        let lasted = match mark.until - mark.at {
            lasted if lasted > 0.0 => format!(", lasted {}", span(lasted)),
            _ => String::new(),
        };
        let (class, recovered) = match mark.recovered_at {
            Some(at) if at > mark.until => {
                ("good", format!("recovered in {}", span(at - mark.until)))
            }
            Some(_) => ("good", "recovered at once".to_owned()),
            None => ("bad", "did not recover".to_owned()),
        };
        let _ = writeln!(
            html,
            "<li><span class=\"number\">{}</span><span>{}</span><span>{}{lasted}</span>\
             <span class=\"{class}\">{recovered}</span></li>",
            index + 1,
            instant(mark.at),
            escaped(&mark.what),
        );
    }
    html.push_str("</ol>\n");
    html
}

/// All figures and the reasons of discards in two columns, and the services at the end.
pub(crate) fn tables(recording: &Recording, figures: &[Figure]) -> String {
    let mut rows: Vec<String> = figures
        .iter()
        .map(|figure| {
            let (name, remark) = (upper(figure.name), escaped(&figure.remark));
            row(&name, &figure.text(), &remark)
        })
        .collect();
    for (reason, n) in &recording.totals.discarded {
        rows.push(row(&format!("Discarded: {}", escaped(&spoken(reason))), &count(*n), ""));
    }
    let mut html = String::from("<h2>Figures</h2>\n<div class=\"columns\">\n");
    for half in rows.chunks(rows.len().div_ceil(2).max(1)) {
        let _ = write!(
            html,
            "<div class=\"scroll\"><table>\n<thead><tr><th>Whole run</th><th>Value</th><th></th>\
             </tr></thead>\n<tbody>\n{}</tbody></table></div>\n",
            half.concat()
        );
    }
    html.push_str("</div>\n");
    services(&mut html, recording);
    html
}

fn row(name: &str, value: &str, remark: &str) -> String {
    format!(
        "<tr><th scope=\"row\">{name}</th><td>{value}</td><td class=\"note\">{remark}</td></tr>\n"
    )
}

/// The services at the end of the run.
fn services(html: &mut String, recording: &Recording) {
    let Some(last) = recording.samples.last() else { return };
    html.push_str(
        "<h2>Services at the end</h2>\n<div class=\"scroll\"><table>\n<thead><tr><th>Service</th>\
         <th>Target</th><th>Ready</th><th>In use</th><th>Fair share</th><th>Off</th>\
         <th>Opened</th><th>Discarded</th><th>Empty</th><th>Served</th><th>Failed</th>\
         </tr></thead>\n<tbody>\n",
    );
    for (name, one) in recording.services.iter().zip(&last.services).take(ROWS) {
        let (share, off) = share_of(recording, name);
        let _ = writeln!(
            html,
            "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td><td>{share}</td><td>{off}</td>\
             <td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escaped(name),
            count(one.target.into()),
            count(one.ready.into()),
            count(one.in_use.into()),
            count(one.opened),
            count(one.discarded),
            count(one.empty),
            count(one.served),
            count(one.failed),
        );
    }
    html.push_str("</tbody></table></div>\n");
    if recording.services.len() > ROWS {
        let more = counted((recording.services.len() - ROWS) as u64, "service");
        let _ = writeln!(html, "<p class=\"soft\">And {more} more: the CSV has them all.</p>");
    }
}

/// A service's fair share at the end and how far it is off, as text.
pub(crate) fn share_of(recording: &Recording, service: &str) -> (String, String) {
    match recording.totals.fairness.iter().find(|(name, ..)| name == service) {
        Some((_, usable, share)) if *share > 0.0 => {
            let off = f64::from(*usable) / share - 1.0;
            // less than this is shown as nothing
            let sign = if off <= -0.0005 {
                "−"
            } else if off >= 0.0005 {
                "+"
            } else {
                ""
            };
            (count(share.round() as u64), format!("{sign}{}", percent(off)))
        }
        _ => (String::new(), String::new()),
    }
}

/// A name of the code, escaped, that may be broken between its words.
pub(crate) fn breakable(name: &str) -> String {
    escaped(name).replace('_', "_<wbr/>")
}

/// With a capital at its beginning, escaped.
pub(crate) fn upper(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    escaped(&format!("{first}{}", chars.as_str()))
}
