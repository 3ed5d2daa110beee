//! A recording as CSV in long form: at each instant one row for each service and
//! one with the service `*` for all of them, which also carries what the backends
//! saw since the row before.

use std::fmt::Write;

use crate::record::{Recording, Sample, Second, ServiceSample};

const HEADER: &str = "t,service,target,ready,in_use,opening,closing,waiting,opened,discarded,\
empty,served,failed,longest_wait,open,leases,members,connects,refused,connects_failed,closed,\
most_open\n";

/// The service of the rows with sums.
const ALL: &str = "*";

/// What only the rows with sums have.
const NOTHING: &str = ",,,,,,,,";

/// The curves as CSV (RFC 4180, but with plain line feeds).
pub fn csv(recording: &Recording) -> String {
    let mut text = String::from(HEADER);
    let names: Vec<String> = recording.services.iter().map(|name| field(name)).collect();
    let mut told = 0;
    let last = recording.samples.len().saturating_sub(1);
    for (index, sample) in recording.samples.iter().enumerate() {
        for (name, service) in names.iter().zip(&sample.services) {
            row(&mut text, sample.at, name, service);
            text.push_str(NOTHING);
            text.push('\n');
        }
        row(&mut text, sample.at, ALL, &all(&sample.services));
        // Seconds count where they end; what ends after the last row belongs to it.
        let ended = if index == last { usize::MAX } else { (sample.at + 1e-9) as usize };
        let ended = ended.clamp(told, recording.seconds_seen.len().max(told));
        let seen = recording.seconds_seen.get(told..ended).unwrap_or_default();
        told = ended;
        sums(&mut text, sample, seen);
    }
    text
}

fn row(text: &mut String, at: f64, name: &str, service: &ServiceSample) {
    let ServiceSample {
        target,
        ready,
        in_use,
        opening,
        closing,
        waiting,
        opened,
        discarded,
        empty,
        served,
        failed,
        longest_wait,
    } = service;
    let _ = write!(
        text,
        "{at},{name},{target},{ready},{in_use},{opening},{closing},{waiting},{opened},\
         {discarded},{empty},{served},{failed},{longest_wait}"
    );
}

fn sums(text: &mut String, sample: &Sample, seen: &[Second]) {
    let sum = |of: fn(&Second) -> u32| seen.iter().map(|second| u64::from(of(second))).sum::<u64>();
    let _ = writeln!(
        text,
        ",{},{},{},{},{},{},{},{}",
        sample.open,
        sample.leases,
        sample.members,
        sum(|second| second.connects),
        sum(|second| second.refused),
        sum(|second| second.failed),
        sum(|second| second.closed),
        // between two ends of seconds nothing higher is known than what is open now
        seen.iter().map(|second| second.most_open).max().unwrap_or(sample.open),
    );
}

/// All services as one.
pub(crate) fn all(services: &[ServiceSample]) -> ServiceSample {
    services.iter().fold(ServiceSample::default(), |sum, one| ServiceSample {
        target: sum.target.saturating_add(one.target),
        ready: sum.ready.saturating_add(one.ready),
        in_use: sum.in_use.saturating_add(one.in_use),
        opening: sum.opening.saturating_add(one.opening),
        closing: sum.closing.saturating_add(one.closing),
        waiting: sum.waiting.saturating_add(one.waiting),
        opened: sum.opened.saturating_add(one.opened),
        discarded: sum.discarded.saturating_add(one.discarded),
        empty: sum.empty.saturating_add(one.empty),
        served: sum.served.saturating_add(one.served),
        failed: sum.failed.saturating_add(one.failed),
        longest_wait: sum.longest_wait.max(one.longest_wait),
    })
}

/// A name as a field: in quotes where it has to be.
fn field(name: &str) -> String {
    if name.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", name.replace('"', "\"\""))
    } else {
        name.to_owned()
    }
}
