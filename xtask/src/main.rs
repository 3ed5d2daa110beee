//! `cargo xtask`: the project's chores. This file only picks the command; each command lives in a
//! module of its own and brings its own help text.

mod bench;
mod error;
mod interop;
mod lock;
mod process;
mod services;
mod skipped;
mod steps;
mod test;
mod workspace;

use std::process::ExitCode;

use crate::error::{Error, Result};
use crate::workspace::Workspace;

const HELP: &str = "\
cargo xtask: the project's chores

Usage: cargo xtask COMMAND [ARGS]

Commands:
  test       start the services the tests need, run every check, stop the services
  bench      run a benchmark (without a name: list them)
  interop    run the drivers of other languages against the services
  services   start, stop or show the services that stay up between runs
  help       show this text

`cargo xtask COMMAND --help` explains a command.
";

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error}");
            if error.is_usage() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

fn run() -> Result<ExitCode> {
    let mut args = Vec::new();
    for arg in std::env::args_os().skip(1) {
        let arg = arg
            .into_string()
            .map_err(|arg| Error::usage(format!("argument {arg:?} is not valid UTF-8")))?;
        args.push(arg);
    }
    let Some((command, rest)) = args.split_first() else {
        print!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    };
    let workspace = Workspace::locate()?;
    match command.as_str() {
        "test" => test::run(&workspace, rest),
        "bench" => bench::run(&workspace, rest),
        "interop" => interop::run(&workspace, rest),
        "services" => services::run(&workspace, rest),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(ExitCode::SUCCESS)
        }
        unknown => Err(Error::usage(format!(
            "no command `{unknown}`; the commands are test, bench, interop and services \
             (see `cargo xtask help`)"
        ))),
    }
}

/// Whether `args` asks for help before any `--`, behind which words belong to someone else.
fn wants_help(args: &[String]) -> bool {
    args.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--help" || arg == "-h")
}

#[cfg(test)]
mod tests {
    use super::wants_help;

    #[test]
    fn help_behind_two_dashes_belongs_to_the_test_binaries() {
        let args = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        assert!(wants_help(&args(&["--only", "doc", "--help"])));
        assert!(wants_help(&args(&["-h"])));
        assert!(!wants_help(&args(&["--", "--help"])));
        assert!(!wants_help(&args(&[])));
    }
}
