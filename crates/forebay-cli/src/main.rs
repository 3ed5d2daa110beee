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
    match parse().command {
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

/// As `Cli::parse`, but an error that quotes an argument does not show a password.
fn parse() -> Cli {
    Cli::try_parse().unwrap_or_else(|error| {
        let shown = error.to_string();
        match without_logins(&shown) {
            // not help, which goes where it was asked for
            hidden if hidden != shown && error.use_stderr() => {
                eprint!("{hidden}");
                std::process::exit(i32::from(BAD_ARGUMENTS))
            }
            _ => error.exit(),
        }
    })
}

/// Takes the user and the password out of every URL.
fn without_logins(text: &str) -> String {
    let mut parts = text.split("://");
    let mut hidden = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find([' ', '\'', '"', '\n']).unwrap_or(part.len());
        let login = part[..end].rfind('@').unwrap_or(0);
        hidden.push_str("://");
        hidden.push_str(if login > 0 { "..." } else { "" });
        hidden.push_str(&part[login..]);
    }
    hidden
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
    fn no_password_of_a_url_is_shown() {
        let text = "found 'redis://u:p@ss@host:1/2' and https://host/a@b\n";
        assert_eq!(without_logins("redis://host"), "redis://host");
        assert_eq!(without_logins(text), "found 'redis://...@host:1/2' and https://...@b\n");
    }

    #[test]
    fn the_arguments_are_declared_without_contradiction() {
        Cli::command().debug_assert();
    }
}
