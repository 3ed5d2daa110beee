//! All that was measured on one server, as a table and as JSON.

use serde_json::{Map, Value, json};

use super::count::Tally;
use super::median;
use super::ours::{Apart, Filled};

/// Opens a second in one round.
pub(crate) struct Round {
    pub(crate) ours: f64,
    pub(crate) theirs: f64,
}

/// The figures of one server.
pub(crate) struct Figures {
    pub(crate) server: &'static str,
    pub(crate) filled: Filled,
    /// Round trips of the seeds' scheme for as many connections, opened and closed.
    pub(crate) seeds_trips: u64,
    /// Without those that had to be sent again.
    pub(crate) seeds_least: u64,
    pub(crate) rounds: Vec<Round>,
    pub(crate) trickle: Apart,
    pub(crate) contended: Apart,
}

impl Figures {
    fn per_open(&self) -> f64 {
        per(self.filled.life.trips, self.filled.opened)
    }

    fn seeds_per_open(&self) -> f64 {
        per(self.seeds_trips, self.filled.opened)
    }

    fn ratio(&self) -> f64 {
        median(self.rounds.iter().map(|round| round.ours / round.theirs).collect())
    }

    pub(crate) fn print(&self) {
        let Filled { opened, fill, checkouts, life, permits_lost } = &self.filled;
        println!("\n{}", self.server);
        row("", &["reports", "permits", "heartbeats", "round trips", "per open"]);
        tally(&format!("join, fill {opened}"), fill, *opened);
        tally("  checkouts", checkouts, 0);
        tally("  … close, leave: all", life, *opened);
        let seeds = self.seeds_trips.to_string();
        let each = format!("{:.3}", self.seeds_per_open());
        row("  the seeds' scheme", &["", "", "", &seeds, &each]);
        let again = self.seeds_trips - self.seeds_least;
        println!("  {again} of these were sent again; {permits_lost} of our permits went unused");
        for (name, run) in [("trickle", &self.trickle), ("contended", &self.contended)] {
            let name = format!("{name}, {} in {:.1} s", run.opened, run.took.as_secs_f64());
            tally(&name, &run.tally, run.opened);
        }
        let of = |which: fn(&Round) -> f64| median(self.rounds.iter().map(which).collect());
        println!(
            "  opens a second, coordinator's work only, medians of {} rounds: {:.0}, the seeds' scheme \
             {:.0}; ratio {:.1}",
            self.rounds.len(),
            of(|round| round.ours),
            of(|round| round.theirs),
            self.ratio()
        );
    }
}

fn tally(name: &str, tally: &Tally, opened: u64) {
    let each = if opened > 0 { format!("{:.3}", per(tally.trips, opened)) } else { String::new() };
    let [reports, reserves, heartbeats, trips] =
        [tally.reports, tally.reserves, tally.heartbeats, tally.trips].map(|n| n.to_string());
    row(&format!("  {name}"), &[&reports, &reserves, &heartbeats, &trips, &each]);
}

fn row(name: &str, cells: &[&str]) {
    let cells: String = cells.iter().map(|cell| format!("{cell:>12}")).collect();
    println!("{name:<28}{cells}");
}

fn per(trips: u64, opened: u64) -> f64 {
    trips as f64 / opened.max(1) as f64
}

/// The last line.
pub(crate) fn json(figures: &[Figures], quick: bool) -> Value {
    let each = |value: &dyn Fn(&Figures) -> Value| -> Value {
        let of = |one: &Figures| (one.server.to_owned(), value(one));
        Value::Object(figures.iter().map(of).collect::<Map<String, Value>>())
    };
    let rounded = |value: f64| json!((value * 1000.0).round() / 1000.0);
    let apart = |run: &Apart| rounded(per(run.tally.trips, run.opened));
    json!({
        "round_trips_per_open": each(&|one| rounded(one.per_open())),
        "checkout_round_trips": figures.iter().map(|one| one.filled.checkouts.trips).sum::<u64>(),
        "acquire_throughput_ratio": each(&|one| rounded(one.ratio())),
        "seeds_round_trips_per_open": each(&|one| rounded(one.seeds_per_open())),
        "heartbeats": each(&|one| json!(one.filled.life.heartbeats)),
        "trickle": each(&|one| apart(&one.trickle)),
        "contended": each(&|one| apart(&one.contended)),
        "quick": quick,
    })
}
