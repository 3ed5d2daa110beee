//! The `forebay` binary. This file parses the arguments, picks the command and
//! gives the exit code; what a command does is in a module of its own.

mod dev;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

/// Everything was as it should be.
const OK: u8 = 0;
/// The command ran, and found something wrong.
const FAILED: u8 = 1;
/// The arguments make no sense; clap uses the same number.
const BAD_ARGUMENTS: u8 = 2;

const EXAMPLES: &str = "\
Example:
  forebay dev        see the pool work: nothing to install, nothing to configure

`forebay dev --help` explains what it shows.";

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
}

fn main() -> ExitCode {
    let Command::Dev(args) = Cli::parse().command;
    match dev::run(&args) {
        Ok(true) => ExitCode::from(OK),
        Ok(false) => ExitCode::from(FAILED),
        Err(dev::Error::Arguments(message)) => refuse("dev", &message),
        Err(error) => {
            eprintln!("forebay: {error}");
            ExitCode::from(FAILED)
        }
    }
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
