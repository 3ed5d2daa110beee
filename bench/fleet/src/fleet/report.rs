//! All that was measured on one server, as a table and as JSON.

use serde_json::{Map, Value, json};

use super::count::Tally;
use super::median;
use super::ours::{Apart, Filled};

/// Opens a second in one round.
pub(crate) struct Round {
    pub(crate) ours: f64,
    /// Without a shared rate, where the seeds' scheme has none.
    pub(crate) leases_only: Option<f64>,
    pub(crate) theirs: f64,
}

const OURS: fn(&Round) -> Option<f64> = |round| Some(round.ours);
const LEASES_ONLY: fn(&Round) -> Option<f64> = |round| round.leases_only;

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

    /// The median of ours ÷ theirs within a round; `None` if it was not measured.
    fn ratio(&self, ours: fn(&Round) -> Option<f64>) -> Option<f64> {
        let ratio = |round: &Round| Some(ours(round)? / round.theirs);
        self.rounds.iter().map(ratio).collect::<Option<Vec<f64>>>().map(median)
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
        let theirs = median(self.rounds.iter().map(|round| round.theirs).collect());
        println!(
            "  opens a second if connects cost nothing, medians of {} rounds: the seeds' scheme {theirs:.0}",
            self.rounds.len(),
        );
        for (name, ours) in [("leases and permits", OURS), ("leases alone", LEASES_ONLY)] {
            if let Some(ratio) = self.ratio(ours) {
                let speed = median(self.rounds.iter().filter_map(ours).collect());
                println!("    ours, {name}: {speed:.0}, ratio {ratio:.2}");
            }
        }
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
    let each = |value: &dyn Fn(&Figures) -> Option<f64>| -> Value {
        let of = |one: &Figures| Some((one.server.to_owned(), rounded(value(one)?)));
        Value::Object(figures.iter().filter_map(of).collect::<Map<String, Value>>())
    };
    let beats = |one: &Figures| (one.server.to_owned(), json!(one.filled.life.heartbeats));
    let apart = |run: &Apart| Some(per(run.tally.trips, run.opened));
    json!({
        "round_trips_per_open": each(&|one| Some(one.per_open())),
        "checkout_round_trips": figures.iter().map(|one| one.filled.checkouts.trips).sum::<u64>(),
        "acquire_throughput_ratio": each(&|one| one.ratio(OURS)),
        "leases_only_throughput_ratio": each(&|one| one.ratio(LEASES_ONLY)),
        "seeds_round_trips_per_open": each(&|one| Some(one.seeds_per_open())),
        "heartbeats": figures.iter().map(beats).collect::<Map<String, Value>>(),
        "trickle": each(&|one| apart(&one.trickle)),
        "contended": each(&|one| apart(&one.contended)),
        "quick": quick,
    })
}

fn rounded(value: f64) -> Value {
    json!((value * 1000.0).round() / 1000.0)
}
