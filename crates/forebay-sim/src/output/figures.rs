//! The key figures of a run: one list, from which the summary, the page, its table
//! and the comparison are made.

use super::words::{count, percent, span};
use crate::record::Recording;

/// One figure.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Figure {
    /// Its name in JSON.
    pub(crate) key: &'static str,
    /// Its name for people.
    pub(crate) name: &'static str,
    /// The value; `None` if there is none.
    pub(crate) value: Option<f64>,
    pub(crate) unit: Unit,
    pub(crate) better: Better,
    /// What else to know about it.
    pub(crate) remark: String,
}

/// What a figure counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Count,
    Seconds,
    Share,
}

/// Which of two values is the better one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Better {
    Less,
    More,
    Neither,
}

impl Figure {
    /// The value as text.
    pub(crate) fn text(&self) -> String {
        self.value.map_or_else(|| self.none().to_owned(), |value| self.unit.text(value))
    }

    /// What it means that there is no value.
    fn none(&self) -> &'static str {
        match self.key {
            "converged_after" | "longest_recovery" => "never",
            _ => "none",
        }
    }

    /// Whether it shows a fault: something that should be 0 and is not.
    pub(crate) fn is_fault(&self) -> bool {
        let should_be_0 = matches!(self.key, "refused" | "failed" | "breaches");
        let never = self.value.is_none() && self.none() == "never";
        never || (should_be_0 && self.value.is_some_and(|value| value > 0.0))
    }
}

impl Unit {
    pub(crate) fn text(self, value: f64) -> String {
        match self {
            Self::Count => count(value.round().max(0.0) as u64),
            Self::Seconds => span(value),
            Self::Share => percent(value),
        }
    }
}

/// The key figures, in order of interest.
pub(crate) fn figures(recording: &Recording) -> Vec<Figure> {
    use Better::{Less, More, Neither};
    use Unit::{Count, Seconds, Share};

    let totals = &recording.totals;
    let figure = |key, name, value: Option<f64>, unit, better, remark: &str| Figure {
        key,
        name,
        value,
        unit,
        better,
        remark: remark.to_owned(),
    };
    let number = |key, name, value: u64, better, remark: &str| {
        figure(key, name, Some(value as f64), Count, better, remark)
    };
    let seconds = || recording.seconds_seen.iter();
    let peak = |most: Option<u32>| u64::from(most.unwrap_or(0));
    let connects = peak(seconds().map(|second| second.connects).max());
    let closed = peak(seconds().map(|second| second.closed).max());
    let rate = match recording.rate_limit {
        0 => String::new(),
        limit => format!("limit {}/s and a burst", count(limit.into())),
    };
    let cap = match recording.open_limit {
        0 => String::new(),
        limit => format!("cap {} in all", count(limit.into())),
    };
    let own = format!("limits allow {}", span(totals.own_time));
    let has_requests = totals.requests > 0;
    let wait = |index: usize| has_requests.then(|| totals.wait[index]);

    let mut list = vec![
        figure("converged_after", "converged after", totals.converged_at, Seconds, Less, &own),
        figure(
            "own_time",
            "least the limits allow",
            Some(totals.own_time),
            Seconds,
            Neither,
            "to converge",
        ),
    ];
    if !recording.events.is_empty() {
        let over = recording.events.iter().map(|mark| Some(mark.recovered_at? - mark.until));
        let longest = over.collect::<Option<Vec<f64>>>();
        let longest = longest.map(|all| all.into_iter().fold(0.0, f64::max));
        let all = super::words::counted(recording.events.len() as u64, "event");
        list.push(figure("longest_recovery", "longest recovery", longest, Seconds, Less, &all));
    }
    list.extend([
        number("opened", "connections opened", totals.opened, Neither, ""),
        number("wasted", "wasted opens", totals.wasted, Less, "closed early and never used"),
        number("refused", "connects refused", totals.refused, Less, "by a limit"),
        number("open_failures", "connects failed", totals.open_failures, Less, "not by a limit"),
        number("most_connects", "most connects in a second", connects, Neither, &rate),
        number("most_closed", "most closed in a second", closed, Less, ""),
        number("most_open", "most open at one backend", totals.most_open.into(), Neither, &cap),
    ]);
    if has_requests {
        list.extend([
            number("requests", "requests", totals.requests, Neither, ""),
            number("served", "requests served", totals.served, More, ""),
            number("empty", "found nothing ready", totals.empty, Less, "and waited"),
            number("failed", "requests failed", totals.failed, Less, "nothing in time"),
            figure("wait_p50", "wait, median", wait(0), Seconds, Less, ""),
            figure("wait_p99", "wait, 99th percentile", wait(1), Seconds, Less, ""),
            figure("wait_max", "wait, longest", wait(2), Seconds, Less, ""),
        ]);
    }
    if totals.fairness.len() > 1 {
        let off = worst_share(recording);
        list.push(figure(
            "furthest_off_share",
            "furthest off its fair share",
            off,
            Share,
            Less,
            "at the end",
        ));
    }
    list.extend([
        number("coordinator_calls", "coordinator calls", totals.coordinator_calls, Less, ""),
        number("reaped", "members reaped", totals.reaped, Neither, ""),
        number("breaches", "broken promises", totals.breaches, Less, "of the engine"),
    ]);
    list
}

/// How far the service furthest off its fair share is from it.
fn worst_share(recording: &Recording) -> Option<f64> {
    let shares = recording.totals.fairness.iter().filter(|(_, _, share)| *share > 0.0);
    shares.map(|(_, usable, share)| (f64::from(*usable) - share).abs() / share).reduce(f64::max)
}
