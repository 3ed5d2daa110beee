//! A run as one self-contained HTML page.

use std::fmt::Write;

use super::figures::figures;
use super::page::page;
use super::plot::{Curve, Limit, POINTS_HALF, POINTS_SMALL, POINTS_WIDE, Plot, Shape};
use super::series::{by_second, highest, service, spread, sum};
use super::words::{count, instant};
use super::{scale, sections};
use crate::record::{Mark, Recording, ServiceSample};

/// Services that get a plot of their own at most.
const OWN_PLOTS: usize = 12;
/// Close-ups at most.
const CLOSE_UPS: usize = 6;
/// A close-up of more than this share of the run shows nothing new.
const WORTH: f64 = 0.4;

/// The page.
pub fn report(recording: &Recording) -> String {
    let figures = figures(recording);
    let mut body = sections::header(recording);
    body.push_str(&sections::cards(recording));
    body.push_str(&sections::tiles(&figures));
    body.push_str(&whole(recording));
    body.push_str(&sections::events(recording));
    body.push_str(&close_ups(recording));
    body.push_str(&services(recording));
    body.push_str(&sections::tables(recording, &figures));
    page(&format!("{} · forebay sim", recording.scenario), &body)
}

/// A plot over the whole run.
fn plot<'a>(recording: &'a Recording, title: &str, about: &str, curves: Vec<Curve>) -> Plot<'a> {
    Plot {
        title: title.to_owned(),
        about: about.to_owned(),
        unit: "",
        from: 0.0,
        to: end(recording),
        curves,
        limit: None,
        marks: &recording.events,
        height: 150,
        top: None,
        times: 5,
        points: POINTS_HALF,
    }
}

/// Where the time axis ends.
pub(crate) fn end(recording: &Recording) -> f64 {
    let last = recording.samples.last().map_or(0.0, |sample| sample.at);
    let end = recording.seconds.max(last);
    if end > 0.0 { end } else { 1.0 }
}

/// Ready, target, and what there is of in use and opening.
fn stock(recording: &Recording) -> Vec<Curve> {
    let curve = |name, class, shape, of: fn(&ServiceSample) -> f64| {
        Curve::new(name, class, shape, sum(recording, of))
    };
    let mut curves = vec![
        curve("ready", "ready", Shape::Area, |one| one.ready.into()),
        curve("in use", "in-use", Shape::Line, |one| one.in_use.into()),
        curve("target", "target", Shape::Line, |one| one.target.into()),
        curve("opening", "opening", Shape::Line, |one| one.opening.into()),
    ];
    without_nothing(&mut curves);
    curves
}

/// Leaves out uses and opens where there are none: a line at 0 tells nothing.
fn without_nothing(curves: &mut Vec<Curve>) {
    curves.retain(|curve| {
        !matches!(curve.class, "in-use" | "opening") || highest(&curve.points) > 0.0
    });
}

/// Whether instances came or went after the first twentieth of the run.
fn members_change(recording: &Recording, members: &[scale::Point]) -> bool {
    let settled = end(recording) / 20.0;
    members.windows(2).any(|pair| pair[1].0 > settled && pair[0].1 != pair[1].1)
}

/// The limit of opens per second, if there is one.
pub(crate) fn rate_limit(recording: &Recording) -> Option<Limit> {
    let limit = recording.rate_limit;
    let name = format!("limit {}/s", count(limit.into()));
    (limit > 0).then(|| Limit { at: limit.into(), name })
}

/// The cap of open connections, if there is one.
pub(crate) fn open_limit(recording: &Recording) -> Option<Limit> {
    let limit = recording.open_limit;
    (limit > 0).then(|| Limit { at: limit.into(), name: format!("cap {}", count(limit.into())) })
}

/// Waits as a curve in a unit that suits them.
pub(crate) fn waits(recording: &Recording) -> (Vec<scale::Point>, &'static str) {
    let points = sum(recording, |one| one.longest_wait);
    let (factor, unit) = if highest(&points) < 2.0 { (1000.0, " ms") } else { (1.0, " s") };
    (points.into_iter().map(|(at, wait)| (at, wait * factor)).collect(), unit)
}

/// The whole run: the stock, and what the backends and the requests saw.
fn whole(recording: &Recording) -> String {
    let mut html = String::from("<h2>The whole run</h2>\n<div class=\"wide\">\n");
    let about = "Connections of all services together.";
    let main = plot(recording, "Connections", about, stock(recording));
    html.push_str(&Plot { height: 240, times: 8, points: POINTS_WIDE, ..main }.draw());
    html.push_str("</div>\n<div class=\"grid\">\n");

    let mut opens = vec![Curve::new(
        "begun",
        "connects",
        Shape::Steps,
        by_second(recording, |second| second.connects),
    )];
    for (name, class, points) in [
        ("refused", "refused", by_second(recording, |second| second.refused)),
        ("failed", "failed", by_second(recording, |second| second.failed)),
    ] {
        if highest(&points) > 0.0 {
            opens.push(Curve::new(name, class, Shape::Stairs, points));
        }
    }
    let about = "Connects begun in each second at all backends.";
    let opens = plot(recording, "Opens per second", about, opens);
    html.push_str(&Plot { unit: "/s", limit: rate_limit(recording), ..opens }.draw());

    let closed = by_second(recording, |second| second.closed);
    let closed = vec![Curve::new("closed", "closed", Shape::Steps, closed)];
    let about = "Connections closed in each second.";
    html.push_str(
        &Plot { unit: "/s", ..plot(recording, "Closes per second", about, closed) }.draw(),
    );

    let open = by_second(recording, |second| second.most_open);
    let mut open = vec![Curve::new("open", "open", Shape::Area, open)];
    let leases: Vec<_> = at_samples(recording, |sample| sample.leases);
    if highest(&leases) > 0.0 {
        open.push(Curve::new("leases", "leases", Shape::Line, leases));
    }
    let about = "Most connections that the backends saw open in each second.";
    let open = plot(recording, "Open connections", about, open);
    html.push_str(&Plot { limit: open_limit(recording), ..open }.draw());

    let members = at_samples(recording, |sample| sample.members);
    if members_change(recording, &members) {
        let members = vec![Curve::new("alive", "members", Shape::Stairs, members)];
        html.push_str(&plot(recording, "Instances", "Instances alive.", members).draw());
    }
    if recording.totals.requests > 0 {
        let (wait, unit) = waits(recording);
        let wait = vec![Curve::new("longest", "wait", Shape::Line, wait)];
        let about = "The longest wait for a connection that ended in each interval.";
        html.push_str(&Plot { unit, ..plot(recording, "Longest wait", about, wait) }.draw());
        let waiting = sum(recording, |one| one.waiting.into());
        if highest(&waiting) > 0.0 {
            let waiting = vec![Curve::new("waiting", "waiting", Shape::Area, waiting)];
            let about = "Requests that wait for a connection.";
            html.push_str(&plot(recording, "Requests waiting", about, waiting).draw());
        }
    }
    html.push_str("</div>\n");
    html
}

fn at_samples(
    recording: &Recording,
    of: impl Fn(&crate::record::Sample) -> u32,
) -> Vec<scale::Point> {
    recording.samples.iter().map(|sample| (sample.at, f64::from(of(sample)))).collect()
}

/// The start and each event from near, where the whole run hides them.
fn close_ups(recording: &Recording) -> String {
    let whole = end(recording);
    let every = match &recording.samples[..] {
        [first, second, ..] => second.at - first.at,
        _ => return String::new(),
    };
    let least = 12.0 * every;
    let mut stretches = Vec::new();
    if let Some(converged) = recording.totals.converged_at {
        stretches.push(("The start".to_owned(), 0.0, (converged * 1.6).max(least)));
    }
    for (index, mark) in recording.events.iter().enumerate() {
        let (from, to) = around(mark, least);
        let title = format!("{} · {}", index + 1, mark.what);
        stretches.push((title, from.max(0.0), to.min(whole)));
    }
    stretches.retain(|(_, from, to)| to - from < whole * WORTH);
    if stretches.is_empty() {
        return String::new();
    }
    let left = stretches.len().saturating_sub(CLOSE_UPS);
    let mut html = String::from(
        "<h2>From near</h2>\n<p class=\"lead\">Ready and in use against the target, where the whole \
         run is too coarse to tell.",
    );
    if left > 0 {
        let _ = write!(html, " The first {CLOSE_UPS} of {}.", stretches.len());
    }
    html.push_str("</p>\n<div class=\"grid\">\n");
    let curves = stock(recording);
    for (title, from, to) in stretches.into_iter().take(CLOSE_UPS) {
        let about = format!("Connections from {} to {}.", instant(from), instant(to));
        let near = plot(recording, &title, &about, curves.clone());
        html.push_str(&Plot { from, to, times: 5, ..near }.draw());
    }
    html.push_str("</div>\n");
    html
}

/// The time around an event: a little before it to a little after its recovery.
fn around(mark: &Mark, least: f64) -> (f64, f64) {
    let over = mark.recovered_at.unwrap_or(mark.until).max(mark.until);
    let long = (over - mark.at).max(least);
    (mark.at - long * 0.25, mark.at + long * 1.6)
}

/// A plot for each service; or, of many, how far apart they are.
fn services(recording: &Recording) -> String {
    let n = recording.services.len();
    if n < 2 {
        return String::new();
    }
    let mut html = String::from("<h2>Services</h2>\n");
    if n > OWN_PLOTS {
        let _ = write!(
            html,
            "<p class=\"lead\">Connections ready or in use as a share of the target: the lowest, the \
             median and the highest of {n} services.</p>\n<div class=\"wide\">\n"
        );
        let [low, median, high] = spread(recording);
        let curves = vec![
            Curve::new("highest", "high-share", Shape::Line, high),
            Curve::new("median", "mid-share", Shape::Line, median),
            Curve::new("lowest", "low-share", Shape::Area, low),
        ];
        let about = "How far apart the services are.";
        let spread = plot(recording, "Share of the target", about, curves);
        html.push_str(
            &Plot { unit: " %", height: 200, times: 8, points: POINTS_WIDE, ..spread }.draw(),
        );
        html.push_str("</div>\n");
        return html;
    }
    let tops: Vec<f64> = (0..n)
        .map(|index| {
            highest(&service(recording, index, |one| {
                one.target.max(one.ready).max(one.in_use).into()
            }))
        })
        .collect();
    let most = tops.iter().copied().fold(0.0, f64::max);
    let least = tops.iter().copied().fold(f64::INFINITY, f64::min);
    let alike = least * 4.0 >= most;
    let _ = write!(
        html,
        "<p class=\"lead\">Ready and in use against the target{}.</p>\n<div class=\"{}\">\n",
        if alike { ", on one scale" } else { "; each has a scale of its own" },
        // two or four stand better in two columns than in three
        if n % 3 == 1 || n == 2 { "grid" } else { "small" }
    );
    for (index, name) in recording.services.iter().enumerate() {
        let curve = |name, class, shape, of: fn(&ServiceSample) -> f64| {
            Curve::new(name, class, shape, service(recording, index, of))
        };
        let mut curves = vec![
            curve("ready", "ready", Shape::Area, |one| one.ready.into()),
            curve("in use", "in-use", Shape::Line, |one| one.in_use.into()),
            curve("target", "target", Shape::Line, |one| one.target.into()),
        ];
        without_nothing(&mut curves);
        let one = plot(recording, name, &format!("Connections of {name}."), curves);
        let top = alike.then_some(most);
        html.push_str(&Plot { height: 100, times: 3, points: POINTS_SMALL, top, ..one }.draw());
    }
    html.push_str("</div>\n");
    html
}
