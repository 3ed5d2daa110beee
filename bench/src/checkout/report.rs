//! The report of the `checkout` benchmark: a table to read, and one JSON object
//! with the ratios and the medians they come from.

use serde_json::{Map, Value, json};

use super::callgrind::Instructions;
use super::ratios::{Figure, Ratio, ratio, rows};
use super::rounds::{Case, Entry, Medians, Results, Waits};
use super::{OURS, WORKERS};

/// Prints the table of each case that was run.
pub(crate) fn print_tables(pools: &[Entry], results: &Results) {
    for case in Case::ALL {
        let rows: Vec<_> = rows(pools, results, case).collect();
        if rows.is_empty() {
            continue;
        }
        println!("\n{}", case.name());
        println!(
            "  {:<10} {:>9} {:>19} {:>7} {:>9} {:>6} {:>10} {:>10} {:>10} {:>10} {:>13}",
            "pool",
            "ns/op",
            "(least..greatest)",
            "x ours",
            "cpu ns/op",
            "opened",
            "p50",
            "p99",
            "p99.9",
            "max",
            "(worst round)"
        );
        for (pool, medians) in rows {
            let (least, greatest) = medians.spread;
            let columns = |waits: Waits| {
                let columns = [waits.p50, waits.p99, waits.p999, waits.max];
                columns.map(|nanos| format!(" {:>10}", duration(nanos)))
            };
            let waits = medians.waits.map_or_else(String::new, |waits| {
                let longest = medians.longest.map_or_else(String::new, duration);
                columns(waits).concat() + &format!(" {:>13}", format!("({longest})"))
            });
            let stuck = match medians.stuck {
                0 => String::new(),
                stuck => format!("  ({stuck} tasks stuck)"),
            };
            println!(
                "  {:<10} {:>9.1} {:>19} {:>7} {:>9.1} {:>6}{waits}{stuck}",
                pool.name,
                medians.ns_per_op,
                format!("({least:.1}..{greatest:.1})"),
                medians.paired.map_or_else(String::new, |paired| format!("{:.2}", paired.time)),
                medians.cpu_ns_per_op,
                medians.opened,
            );
        }
    }
}

/// How many cores the busiest pool kept busy with 512 tasks: well below the
/// number of workers, it tells that other programs took the rest, and that the
/// figures, the waits above all, are to be had again on a quieter machine.
fn cores_used(pools: &[Entry], results: &Results) -> Option<f64> {
    rows(pools, results, Case::Contended512)
        .map(|(_, medians)| medians.cpu_ns_per_op / medians.ns_per_op)
        .max_by(f64::total_cmp)
}

/// Says so if the machine was too busy, or changed too much, for the figures to
/// mean much.
pub(crate) fn print_doubts(pools: &[Entry], results: &Results) {
    let workers = u32::try_from(WORKERS).map_or(f64::NAN, f64::from);
    if let Some(cores) = cores_used(pools, results)
        && cores < 0.9 * workers
    {
        println!("\ndoubtful: only {cores:.2} of {WORKERS} cores were to be had; try again");
    }
    let figures = Case::ALL.map(Figure::Time).into_iter().chain([Figure::WorstWait]);
    for figure in figures {
        if let Some(ratio) = ratio(pools, results, figure)
            && ratio.is_doubtful()
        {
            let Ratio { of_medians, paired, .. } = ratio;
            println!(
                "\ndoubtful: {figure:?} is {of_medians:.2} by the medians and {paired:.2} round \
                 by round: the machine's speed changed; trust the latter, or try again"
            );
        }
    }
}

/// Prints the instructions per checkout.
pub(crate) fn print_instructions(instructions: &Instructions) {
    if instructions.is_empty() {
        return;
    }
    println!("\ninstructions per get and return (callgrind, uncontended, one thread)");
    for (name, count) in instructions {
        println!("  {name:<10} {count:>9.1}");
    }
}

/// The JSON object; a ratio is null where the run had not all it takes.
pub(crate) fn json(
    pools: &[Entry],
    results: &Results,
    instructions: &Instructions,
    rounds: usize,
    quick: bool,
) -> Value {
    let ratio = |figure| ratio(pools, results, figure);
    let uncontended = ratio(Figure::Time(Case::Uncontended));
    let contended_64 = ratio(Figure::Time(Case::Contended64));
    let contended_512 = ratio(Figure::Time(Case::Contended512));
    let contended = contended_64.zip(contended_512).map(|(few, many)| few.lower(many));
    let worst_wait = ratio(Figure::WorstWait);
    let value = |ratio: Option<Ratio>| ratio.map(|ratio| rounded(ratio.of_medians));
    let paired = |ratio: Option<Ratio>| ratio.map(|ratio| rounded(ratio.paired));
    let peer = |ratio: Option<Ratio>| ratio.map(|ratio| ratio.peer);
    let per_pool = |pool: &Entry| {
        let mut cases = Map::new();
        cases.insert("fair".into(), json!(pool.fair));
        let count = instructions.get(pool.name).copied().map(rounded);
        cases.insert("instructions_per_get".into(), json!(count));
        for case in Case::ALL {
            if let Some(medians) = results.get(&(case, pool.name)) {
                cases.insert(case.name().into(), case_json(medians));
            }
        }
        (pool.name.to_owned(), Value::Object(cases))
    };
    json!({
        "uncontended_ratio": value(uncontended),
        "contended_ratio": value(contended),
        "contended_64_ratio": value(contended_64),
        "contended_512_ratio": value(contended_512),
        "worst_wait_ratio": value(worst_wait),
        "paired": {
            "uncontended_ratio": paired(uncontended),
            "contended_ratio": paired(contended),
            "contended_64_ratio": paired(contended_64),
            "contended_512_ratio": paired(contended_512),
            "worst_wait_ratio": paired(worst_wait),
        },
        "instructions_per_get": instructions.get(OURS).copied().map(rounded),
        "peers": {
            "uncontended": peer(uncontended),
            "contended_64": peer(contended_64),
            "contended_512": peer(contended_512),
            "worst_wait": peer(worst_wait),
        },
        "cores_used": cores_used(pools, results).map(rounded),
        "rounds": rounds,
        "quick": quick,
        "pools": pools.iter().map(per_pool).collect::<Map<_, _>>(),
    })
}

fn case_json(medians: &Medians) -> Value {
    let waits = |waits: Waits| {
        let Waits { p50, p99, p999, max } = waits;
        json!({ "p50": p50, "p99": p99, "p99_9": p999, "max": max })
    };
    json!({
        "ns_per_op": rounded(medians.ns_per_op),
        "ns_per_op_least": rounded(medians.spread.0),
        "ns_per_op_greatest": rounded(medians.spread.1),
        "cpu_ns_per_op": rounded(medians.cpu_ns_per_op),
        "wait_ns": medians.waits.map(waits),
        "longest_wait_ns": medians.longest,
        "paired_ratio": medians.paired.map(|paired| rounded(paired.time)),
        "paired_worst_wait_ratio": medians.paired.and_then(|p| p.worst_wait).map(rounded),
        "opened": medians.opened,
        "stuck": medians.stuck,
    })
}

/// Three decimals are more than the machine is good for.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// A duration as one reads it.
fn duration(nanos: u64) -> String {
    let (unit, size) = match nanos {
        0..10_000 => return format!("{nanos} ns"),
        10_000..10_000_000 => ("us", 1_000),
        _ => ("ms", 1_000_000),
    };
    format!("{}.{} {unit}", nanos / size, nanos % size * 10 / size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkout::rounds::{Paired, entries};

    fn medians(ns_per_op: f64, max: u64) -> Medians {
        Medians {
            ns_per_op,
            spread: (ns_per_op, ns_per_op),
            cpu_ns_per_op: ns_per_op,
            waits: Some(Waits { p50: max, p99: max, p999: max, max }),
            longest: Some(max),
            opened: 16,
            stuck: 0,
            paired: Some(Paired { time: ns_per_op / 100.0, worst_wait: Some(max as f64 / 3e3) }),
        }
    }

    #[test]
    fn ratios_take_the_best_peer_and_the_lower_case() {
        let pools = entries();
        let mut results = Results::new();
        for case in Case::ALL {
            for pool in &pools {
                results.insert((case, pool.name), medians(400.0, 9_000));
            }
            results.insert((case, OURS), Medians { paired: None, ..medians(100.0, 3_000) });
        }
        results.insert((Case::Contended64, "deadpool"), medians(150.0, 9_000));
        results.insert((Case::Contended512, "mobc"), medians(300.0, 6_000));
        // bb8 is not fair, so its short wait must not count.
        results.insert((Case::Contended512, "bb8"), medians(400.0, 1_000));
        let report = json(&pools, &results, &Instructions::new(), 7, false);
        assert_eq!(report["uncontended_ratio"], json!(4.0));
        assert_eq!(report["contended_ratio"], json!(1.5));
        assert_eq!(report["contended_512_ratio"], json!(3.0));
        assert_eq!(report["worst_wait_ratio"], json!(2.0));
        for ratio in ["uncontended_ratio", "contended_ratio", "worst_wait_ratio"] {
            assert_eq!(report["paired"][ratio], report[ratio]);
        }
        assert_eq!(report["peers"]["worst_wait"], json!("mobc"));
        assert_eq!(report["instructions_per_get"], Value::Null);
        assert_eq!(report["pools"]["bb8"]["contended_512"]["wait_ns"]["max"], json!(1_000));
    }

    #[test]
    fn ratios_are_null_without_peers() {
        let pools = &entries()[..1];
        let results = Results::from([((Case::Uncontended, OURS), medians(100.0, 1))]);
        let report = json(pools, &results, &Instructions::new(), 1, true);
        assert_eq!(report["uncontended_ratio"], Value::Null);
        assert_eq!(report["contended_ratio"], Value::Null);
        assert_eq!(report["worst_wait_ratio"], Value::Null);
    }

    #[test]
    fn durations_read_well() {
        assert_eq!(duration(950), "950 ns");
        assert_eq!(duration(12_340), "12.3 us");
        assert_eq!(duration(12_340_000), "12.3 ms");
    }
}
