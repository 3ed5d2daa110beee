//! Instructions per checkout: runs this very program under valgrind's callgrind
//! twice, the second time with twice as many checkouts, and takes the
//! difference, so that starting up, filling the pool and ending cancel out.

use std::collections::BTreeMap;
use std::env;
use std::io::ErrorKind;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::rounds::{Case, Entry};

/// Checkouts of the shorter run.
pub(crate) const ITERATIONS: u64 = 20_000;

/// Instructions per checkout by name of the pool.
pub(crate) type Instructions = BTreeMap<&'static str, f64>;

/// Counts the instructions of each pool; says so and counts none where valgrind
/// is not installed.
pub(crate) fn run(pools: &[Entry], iterations: u64) -> Result<Instructions> {
    let mut counts = Instructions::new();
    for pool in pools {
        let Some(once) = collected(pool.name, iterations)? else {
            println!("callgrind: valgrind not installed, skipped");
            return Ok(Instructions::new());
        };
        let twice = collected(pool.name, iterations * 2)?
            .context("valgrind was there a moment ago and is gone")?;
        ensure!(twice > once, "twice the checkouts took no more instructions");
        counts.insert(pool.name, (twice - once) as f64 / iterations as f64);
    }
    Ok(counts)
}

/// Instructions of one whole run, or `None` if there is no valgrind.
fn collected(pool: &str, iterations: u64) -> Result<Option<u64>> {
    let program = env::current_exe().context("this program does not know where it is")?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--"])
        .arg(program)
        .args(["--only", pool, "--case", Case::Uncontended.name()])
        .args(["--iterations", &iterations.to_string()])
        .stdin(Stdio::null())
        .output();
    let output = match output {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        output => output.context("valgrind does not start")?,
    };
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "callgrind failed on {pool}: {said}");
    parse(&said).map(Some).with_context(|| format!("callgrind named no count: {said}"))
}

/// The number in callgrind's line `==PID== Collected : NNN`.
fn parse(said: &str) -> Option<u64> {
    let (_, after) = said.lines().filter_map(|line| line.split_once("Collected")).next_back()?;
    after.trim_start_matches([' ', ':']).trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_count() {
        let said = "==7== Events    : Ir\n==7== Collected : 123456\n==7== I refs: 123,456\n";
        assert_eq!(parse(said), Some(123_456));
        assert_eq!(parse("nothing of the kind"), None);
    }
}
