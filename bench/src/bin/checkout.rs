//! Compares, in one run, what a checkout costs in forebay and in deadpool, bb8,
//! mobc, fast_pool and sqlx's pool: every pool with 16 no-op connections on a
//! runtime of two workers, in interleaved rounds. See `--help`.

#[path = "../checkout/mod.rs"]
mod checkout;

use std::env;

use anyhow::Result;

use checkout::args::{self, Action};
use checkout::callgrind::{self, Instructions};
use checkout::{CONNECTIONS, WORKERS, report, rounds};

fn main() -> Result<()> {
    match args::parse(env::args().skip(1))? {
        Action::Help => println!("{}", args::HELP),
        Action::Count { pool, iterations } => (pool.counted)(iterations)?,
        Action::Callgrind { pools, iterations } => {
            let iterations = iterations.unwrap_or(callgrind::ITERATIONS);
            report::print_instructions(&callgrind::run(&pools, iterations)?);
        }
        Action::Compare { pools, cases, rounds, quick, callgrind } => {
            println!(
                "{CONNECTIONS} connections, {WORKERS} workers, {rounds} rounds: medians over the \
                 rounds; 'x ours' is the median of the quotients within a round"
            );
            let results = rounds::run(&pools, &cases, rounds, quick)?;
            report::print_tables(&pools, &results);
            report::print_doubts(&pools, &results);
            let instructions = if callgrind {
                callgrind::run(&pools, callgrind::ITERATIONS)?
            } else {
                println!("\ncallgrind: left out of this run");
                Instructions::new()
            };
            report::print_instructions(&instructions);
            println!();
            let json = report::json(&pools, &results, &instructions, rounds, quick);
            println!("{json}");
        }
    }
    Ok(())
}
