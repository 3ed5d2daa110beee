//! The `forebay` binary. This file parses the arguments, picks the command and
//! gives the exit code; what a command does is in a module of its own.

mod dev;
mod fleet;
mod sim;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

/// Everything was as it should be.
const OK: u8 = 0;
/// The command ran, and found something wrong.
const FAILED: u8 = 1;
/// The arguments or the input make no sense; clap uses the same number.
const BAD_ARGUMENTS: u8 = 2;

const EXAMPLES: &str = "\
Examples:
  forebay dev                           see the pool work: nothing to install or configure
  forebay sim scenarios/local.yaml      what a fleet will do, before it is paid for
  forebay fleet status --redis URL      who holds how many connections right now

`forebay COMMAND --help` explains each.";

const ABOUT: &str = "\
The connection layer for backends that ration connections: it keeps a stock of
ready connections, and keeps within the backend's limits.";

#[derive(Parser)]
#[command(name = "forebay", version, about = ABOUT, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Dev(dev::Args),
    Fleet(fleet::Args),
    Sim(sim::Args),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Dev(args) => match dev::run(&args) {
            Ok(good) => finished(good),
            Err(dev::Error::Arguments(message)) => refuse("dev", &message),
            Err(error) => {
                eprintln!("forebay: {error}");
                ExitCode::from(FAILED)
            }
        },
        Command::Fleet(args) => fleet::run(&args),
        Command::Sim(args) => match sim::run(&args) {
            Ok(good) => finished(good),
            Err(sim::Error::Arguments(message)) => refuse("sim", &message),
            Err(error) => {
                error.to_string().lines().for_each(|line| eprintln!("forebay: {line}"));
                ExitCode::from(BAD_ARGUMENTS)
            }
        },
    }
}

fn finished(good: bool) -> ExitCode {
    ExitCode::from(if good { OK } else { FAILED })
}

/// Says what is wrong with the arguments in the way clap does.
fn refuse(command: &str, message: &str) -> ExitCode {
    let mut cli = Cli::command();
    cli.build();
    if let Some(command) = cli.find_subcommand_mut(command) {
        // a terminal that is gone leaves nobody to be told
        let _ = command.error(ErrorKind::ValueValidation, message).print();
    }
    ExitCode::from(BAD_ARGUMENTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_declared_without_contradiction() {
        Cli::command().debug_assert();
    }
}
