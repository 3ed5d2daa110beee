//! How fast the simulator is: simulated seconds per second as a fleet grows, and what the largest costs.
//!
//! The fleet is that of `scenarios/local.yaml`, with once, ten and a hundred times
//! the instances and limits that grow with them; then `scenarios/ecs-400wps.yaml`
//! and `scenarios/internet-scale.yaml` (a million connections; `--quick` leaves it
//! out). Each runs in a process of its own, so that the memory stated is its own.
//! The last line is JSON.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use forebay_sim::Scenario;
use serde_json::{Value, json};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [run, name, factor] = &args[..]
        && run == "--run"
    {
        return run_one(name, factor.parse()?);
    }
    let quick = args.iter().any(|arg| arg == "--quick");
    let mut runs = vec![("local", 1), ("local", 10), ("local", 100), ("ecs-400wps", 1)];
    if !quick {
        runs.push(("internet-scale", 1));
    }
    let mut results = serde_json::Map::new();
    println!(
        "{:<18} {:>8} {:>12} {:>14} {:>12} {:>10}",
        "scenario", "members", "opened", "simulated s/s", "µs per open", "MiB"
    );
    for (name, factor) in runs {
        let result = in_own_process(name, factor)?;
        let of = |key: &str| result[key].as_f64().unwrap_or(f64::NAN);
        println!(
            "{:<18} {:>8} {:>12} {:>14.0} {:>12.1} {:>10.0}",
            format!("{name} ×{factor}"),
            of("members"),
            of("opened"),
            of("simulated_per_second"),
            of("us_per_open"),
            of("mib")
        );
        results.insert(format!("{name}_x{factor}"), result);
    }
    let speed = |key: &str| results[key]["us_per_open"].as_f64().unwrap_or(f64::NAN);
    let growth = speed("local_x100") / speed("local_x1");
    results.insert("cost_per_open_x100_over_x1".to_owned(), json!(growth));
    println!("{}", Value::Object(results));
    Ok(())
}

/// Runs one scenario in a child process and reads what it says.
fn in_own_process(name: &str, factor: u32) -> Result<Value> {
    let output = Command::new(std::env::current_exe()?)
        .args(["--run", name, &factor.to_string()])
        .output()
        .context("a process of its own")?;
    ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("the child's figures")
}

fn run_one(name: &str, factor: u32) -> Result<()> {
    let place = concat!(env!("CARGO_MANIFEST_DIR"), "/../scenarios/");
    let mut scenario = Scenario::load(format!("{place}{name}.yaml"))?;
    for service in &mut scenario.services {
        service.instances *= factor;
    }
    for backend in &mut scenario.backends {
        backend.open = backend.open.map(|open| open * factor);
        backend.rate = backend.rate.map(|rate| rate * factor);
        backend.burst *= factor;
    }
    let start = Instant::now();
    let recording = forebay_sim::run(&scenario, |_, _| {});
    let took = start.elapsed().as_secs_f64();
    ensure!(recording.totals.breaches == 0, "the engine broke a promise");
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).context("VmHWM")?;
    let kib: f64 = line.split_whitespace().nth(1).context("a number")?.parse()?;
    let opened = recording.totals.opened;
    println!(
        "{}",
        json!({
            "members": recording.members,
            "opened": opened,
            "seconds": took,
            "simulated_per_second": recording.seconds / took,
            "us_per_open": took * 1e6 / opened as f64,
            "mib": kib / 1024.0,
            "as_expected": recording.as_expected(),
        })
    );
    Ok(())
}
