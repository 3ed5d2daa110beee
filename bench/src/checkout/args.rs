//! The command line of the `checkout` benchmark.

use anyhow::{Context, Result, bail, ensure};

use super::rounds::{Case, Entry, entries};

/// What `--help` prints.
pub(crate) const HELP: &str = "\
Compares forebay's checkout with that of other pools, all on no-op connections.

    checkout [--quick] [--only POOL] [--case CASE] [--rounds N] [--no-callgrind]
    checkout --only POOL --case uncontended --iterations N
    checkout --callgrind [--only POOL] [--iterations N]

    --quick         a smoke run of a few seconds; its figures mean little
    --only POOL     only this pool: forebay, deadpool, bb8, mobc, fast_pool, sqlx
    --case CASE     only this case: uncontended, contended_64, contended_512
    --rounds N      interleaved rounds (42; 2 with --quick)
    --no-callgrind  leave out counting instructions, as --quick does
    --iterations N  take and return N times on a current-thread runtime, untimed
    --callgrind     only count instructions, by running this under valgrind

The last line of a timed run is one JSON object.";

/// What to do.
pub(crate) enum Action {
    /// Print [`HELP`].
    Help,
    /// Take and return so many times, untimed.
    Count { pool: Entry, iterations: u64 },
    /// Only count instructions.
    Callgrind { pools: Vec<Entry>, iterations: Option<u64> },
    /// The timed rounds.
    Compare { pools: Vec<Entry>, cases: Vec<Case>, rounds: usize, quick: bool, callgrind: bool },
}

/// Reads the command line, without the program's name.
pub(crate) fn parse(args: impl IntoIterator<Item = String>) -> Result<Action> {
    let mut args = args.into_iter();
    let mut pools = entries();
    let mut cases = Case::ALL.to_vec();
    let mut rounds = None;
    let mut iterations = None;
    let (mut quick, mut callgrind, mut no_callgrind) = (false, false, false);
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--help" | "-h" => return Ok(Action::Help),
            "--quick" => quick = true,
            "--callgrind" => callgrind = true,
            "--no-callgrind" => no_callgrind = true,
            "--only" => {
                let name = value()?;
                pools.retain(|pool| pool.name == name);
                ensure!(!pools.is_empty(), "there is no pool {name}");
            }
            "--case" => {
                let name = value()?;
                cases.retain(|case| case.name() == name);
                ensure!(!cases.is_empty(), "there is no case {name}");
            }
            "--rounds" => {
                let number: usize = value()?.parse().context("--rounds needs a number")?;
                ensure!(number > 0, "--rounds needs at least 1");
                rounds = Some(number);
            }
            "--iterations" => {
                let number: u64 = value()?.parse().context("--iterations needs a number")?;
                ensure!(number > 0, "--iterations needs at least 1");
                iterations = Some(number);
            }
            _ => bail!("unknown argument {arg}\n\n{HELP}"),
        }
    }
    if callgrind {
        return Ok(Action::Callgrind { pools, iterations });
    }
    if let Some(iterations) = iterations {
        let ([pool], [Case::Uncontended]) = (pools.as_slice(), cases.as_slice()) else {
            bail!("--iterations needs --only POOL --case uncontended");
        };
        let pool = *pool;
        return Ok(Action::Count { pool, iterations });
    }
    Ok(Action::Compare {
        pools,
        cases,
        rounds: rounds.unwrap_or(if quick { 2 } else { 42 }),
        quick,
        callgrind: !quick && !no_callgrind,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<Action> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn reads_what_callgrind_is_given() {
        let action = of("--only bb8 --case uncontended --iterations 30");
        let Ok(Action::Count { pool, iterations }) = action else {
            panic!("not understood as counting");
        };
        assert_eq!((pool.name, iterations), ("bb8", 30));
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        for line in [
            "--only nobody",
            "--case rush",
            "--iterations 3",
            "--iterations 0",
            "--rounds 0",
            "--rounds",
            "--fast",
        ] {
            assert!(of(line).is_err(), "{line}");
        }
    }
}
