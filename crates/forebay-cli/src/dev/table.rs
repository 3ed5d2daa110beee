//! One reading as text: a table for a terminal, or a line for a log.

use super::args::Plan;
use super::paint::{Paint, Rows, span, thousands};
use super::sample::Sample;

/// Columns of the bar.
const BAR: u32 = 50;

/// The states of a connection, each with the sign it has in the bar.
const READY: char = '=';
const IN_USE: char = '#';
const OPENING: char = '+';
const CLOSING: char = '-';

/// The table.
pub(crate) fn table(sample: &Sample, plan: &Plan, paint: Paint) -> String {
    let (pool, backend, limits) = (&sample.pool, &sample.backend, &plan.limits);
    let mut rows = Rows::new(paint);
    let title = format!("after {} s", sample.elapsed.as_secs_f64().round());
    rows.line(&title, &format!("[{}]", bar(sample, limits.max_open, paint)));
    rows.line("", &legend(sample, paint));

    rows.title("the pool");
    rows.number("checkouts/s", sample.checkouts_per_second.round() as u64, "");
    let (p50, p99) = (span(sample.wait_p50), span(sample.wait_p99));
    let waiting = match pool.waiting {
        0 => "nobody waits now".to_owned(),
        n => format!("{} waiting now", thousands(n.into())),
    };
    rows.text("wait p50", &p50, &format!("p99 {p99}; {waiting}"));
    rows.number("replaced", sample.replaced, "before the backend would have cut them off");
    rows.number("given up midway", sample.given_up, "closed, not used again");
    let last = sample.last_failure.as_deref().unwrap_or_default();
    rows.fault("failed opens", sample.failed_opens, last);
    rows.fault("breaches", sample.breaches, "promises that the pool broke");

    rows.title("what the backend counted");
    let rate = format!("limit {}, and {} at once", limits.per_second, limits.burst);
    rows.number("opens/s", backend.last_second.into(), &rate);
    rows.number("most open", backend.most_open.into(), &format!("limit {}", limits.max_open));
    let refused = format!("{} too fast, {} too many", backend.too_fast, backend.too_many);
    rows.fault("refused", backend.refused(), &refused);
    rows.fault("cut off", backend.cut_off, &format!("older than {}", span(limits.lifetime)));
    rows.finish()
}

/// The connections in every state.
fn states(sample: &Sample) -> [(char, &'static str, u32); 4] {
    [
        (READY, "ready", sample.pool.ready()),
        (IN_USE, "in use", sample.pool.in_use()),
        (OPENING, "opening", sample.opening()),
        (CLOSING, "closing", sample.closing()),
    ]
}

/// The connections as one bar over the cap.
fn bar(sample: &Sample, max_open: u32, paint: Paint) -> String {
    let mut bar = String::new();
    let (mut sum, mut drawn) = (0, 0);
    for (sign, _, count) in states(sample) {
        sum += count;
        // rounded up, so that a single connection shows
        let end = (u64::from(sum) * u64::from(BAR)).div_ceil(u64::from(max_open)) as u32;
        let part = String::from(sign).repeat(end.saturating_sub(drawn) as usize);
        drawn = drawn.max(end);
        bar.push_str(&colour(sign, &part, paint));
    }
    bar + &paint.dim(&".".repeat(BAR.saturating_sub(drawn) as usize))
}

fn legend(sample: &Sample, paint: Paint) -> String {
    let parts = states(sample).map(|(sign, name, count)| {
        let text = format!("{sign} {name} {count:<3}");
        colour(sign, &text, paint)
    });
    format!(" {}", parts.join(" "))
}

/// Text in the colour of a state.
fn colour(sign: char, text: &str, paint: Paint) -> String {
    match sign {
        READY => paint.green(text),
        IN_USE => paint.cyan(text),
        OPENING => paint.yellow(text),
        _ => paint.magenta(text),
    }
}

/// The columns of the plain output, and how wide they are.
const COLUMNS: [(&str, usize); 14] = [
    ("time", 6),
    ("ready", 5),
    ("in-use", 6),
    ("opening", 7),
    ("closing", 7),
    ("waiting", 7),
    ("checkouts/s", 11),
    ("wait-p50", 8),
    ("wait-p99", 8),
    ("opens/s", 9),
    ("most-open", 11),
    ("replaced", 8),
    ("refused", 7),
    ("breaches", 8),
];

/// The heading of the plain output.
pub(crate) fn heading() -> String {
    columns(&COLUMNS.map(|(name, _)| name.to_owned()))
}

/// A reading as one line of the plain output.
pub(crate) fn line(sample: &Sample, plan: &Plan) -> String {
    let (pool, backend, limits) = (&sample.pool, &sample.backend, &plan.limits);
    columns(&[
        format!("{} s", sample.elapsed.as_secs_f64().round()),
        pool.ready().to_string(),
        pool.in_use().to_string(),
        sample.opening().to_string(),
        sample.closing().to_string(),
        pool.waiting.to_string(),
        format!("{:.0}", sample.checkouts_per_second),
        span(sample.wait_p50),
        span(sample.wait_p99),
        format!("{}/{}", backend.last_second, limits.per_second),
        format!("{}/{}", backend.most_open, limits.max_open),
        sample.replaced.to_string(),
        backend.refused().to_string(),
        sample.breaches.to_string(),
    ])
}

fn columns(values: &[String; COLUMNS.len()]) -> String {
    let cells = COLUMNS.iter().zip(values).map(|((_, width), value)| format!("{value:>width$}"));
    cells.collect::<Vec<_>>().join(" ") + "\n"
}
