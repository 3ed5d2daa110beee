//! `forebay sim`: runs scenario files and shows what came of them. This file loads
//! everything first, runs, and writes last, so that bad input leaves no trace.

mod args;
mod files;
mod progress;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use forebay_sim::output::{Style, compare, csv, failures, json, plan_json, report, summary};
use forebay_sim::{FileError, Recording, Scenario};

pub(crate) use args::Args;
use args::{PlanArgs, Task};
use progress::Progress;

/// Why nothing, or not everything, could be shown.
#[derive(Debug)]
pub(crate) enum Error {
    /// The arguments contradict each other or what is there.
    Arguments(String),
    /// Scenarios that cannot be run.
    Scenarios(Vec<FileError>),
    /// An output that cannot be written.
    Output(PathBuf, std::io::Error),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Arguments(message) => f.write_str(message),
            Self::Scenarios(errors) => {
                let lines: Vec<String> = errors.iter().map(FileError::to_string).collect();
                f.write_str(&lines.join("\n"))
            }
            Self::Output(place, error) => write!(f, "cannot write {}: {error}", place.display()),
        }
    }
}

/// Runs it all; `true` if every assertion came out as expected.
pub(crate) fn run(args: &Args) -> Result<bool, Error> {
    if let Some(Task::Plan(args)) = &args.command {
        return plan(args);
    }
    let files = args.scenarios();
    let places = |flag, path: &Option<PathBuf>, extension, of: &[PathBuf]| {
        let path = path.as_deref();
        path.map(|path| files::places(flag, path, extension, of))
            .transpose()
            .map_err(Error::Arguments)
    };
    // a comparison is one page, named after the first
    let pages = if args.compare.is_some() { &files[..1] } else { files };
    let outs = places("--out", &args.out, "csv", files)?;
    let reports = places("--report", &args.report, "html", pages)?;
    let clash = |one: &[PathBuf], other: &[PathBuf]| {
        one.iter().any(|a| other.iter().any(|b| a == b || files::same(a, b)))
    };
    if let (Some(outs), Some(reports)) = (&outs, &reports)
        && clash(outs, reports)
    {
        return Err(Error::Arguments("--out and --report name the same file".to_owned()));
    }
    if args.compare.is_some() && clash(reports.as_deref().unwrap_or_default(), files) {
        return Err(Error::Arguments("--report would overwrite a scenario".to_owned()));
    }
    let scenarios = load(files, args.seed)?;

    if args.compare.is_some() {
        let [a, b] = &scenarios[..] else {
            return Err(Error::Arguments("--compare takes two scenarios".to_owned()));
        };
        let page = reports.as_ref().and_then(|places| places.first());
        return side_by_side(args, a, b, page.map(PathBuf::as_path));
    }

    let mut good = true;
    let mut documents = Vec::new();
    for (index, scenario) in scenarios.iter().enumerate() {
        let recording = one(scenario, args);
        if let Some(places) = &outs {
            put(&places[index], &csv(&recording))?;
        }
        if let Some(places) = &reports {
            put(&places[index], &report(&recording))?;
        }
        good &= recording.as_expected();
        if args.json {
            documents.push(json(&recording));
        }
        if args.json || args.quiet {
            failures(&recording).iter().for_each(|line| eprintln!("forebay: {line}"));
        } else {
            let gap = if index > 0 { "\n" } else { "" };
            print(&format!("{gap}{}", summary(&recording, style(args.no_color))));
        }
    }
    print_documents(&documents);
    Ok(good)
}

/// Says what the limits allow; `true` if everything fits.
fn plan(args: &PlanArgs) -> Result<bool, Error> {
    let scenarios = load(&args.files, None)?;
    let plans: Vec<_> = scenarios.iter().map(forebay_sim::plan).collect();
    if args.json {
        print_documents(&plans.iter().map(plan_json).collect::<Vec<_>>());
    } else {
        let texts: Vec<String> = plans.iter().map(|plan| plan.to_string()).collect();
        let texts: Vec<&str> = texts.iter().map(|text| text.trim_end()).collect();
        print(&style(true).safe(&format!("{}\n", texts.join("\n\n"))));
    }
    Ok(plans.iter().all(|plan| plan.fits))
}

/// Prints one document as it is, several as an array.
fn print_documents(documents: &[String]) {
    match documents {
        [] => {}
        [document] => print(document),
        documents => {
            let all: Vec<&str> = documents.iter().map(|one| one.trim_end()).collect();
            print(&format!("[\n{}\n]\n", all.join(",\n")));
        }
    }
}

/// Reads all scenarios, or tells what is wrong with each that cannot be run.
fn load(files: &[PathBuf], seed: Option<u64>) -> Result<Vec<Scenario>, Error> {
    let (mut scenarios, mut errors) = (Vec::new(), Vec::new());
    for file in files {
        match Scenario::load(file) {
            Ok(scenario) => scenarios.push(scenario),
            Err(error) => errors.push(error),
        }
    }
    if !errors.is_empty() {
        return Err(Error::Scenarios(errors));
    }
    if let Some(seed) = seed {
        scenarios.iter_mut().for_each(|scenario| scenario.seed = seed);
    }
    Ok(scenarios)
}

/// Runs one scenario.
fn one(scenario: &Scenario, args: &Args) -> Recording {
    let bar = Progress::begin(&scenario.name, args.quiet);
    let recording = forebay_sim::run(scenario, |now, end| bar.at(now, end));
    bar.end();
    recording
}

/// Runs both and shows them side by side.
fn side_by_side(
    args: &Args,
    a: &Scenario,
    b: &Scenario,
    page: Option<&Path>,
) -> Result<bool, Error> {
    let (a, b) = (one(a, args), one(b, args));
    let both = compare(&a, &b);
    if let Some(page) = page {
        put(page, &both.report())?;
    }
    if args.json {
        print(&both.json());
    }
    if args.json || args.quiet {
        let lines = [&a, &b].map(failures);
        lines.iter().flatten().for_each(|line| eprintln!("forebay: {line}"));
    } else {
        print(&both.text(style(args.no_color)));
    }
    Ok(both.as_expected())
}

fn put(place: &Path, text: &str) -> Result<(), Error> {
    files::write(place, text).map_err(|error| Error::Output(place.to_owned(), error))
}

fn print(text: &str) {
    // a reader that has gone away (`| head`) has seen enough
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

/// What the standard output can show.
fn style(no_color: bool) -> Style {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let dumb = set("TERM").is_some_and(|term| term == "dumb");
    let terminal = std::io::stdout().is_terminal();
    let colour = terminal && !dumb && !no_color && set("NO_COLOR").is_none();
    // the first that is set counts, as for the C library
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
    let locale = locale.map(|value| value.to_string_lossy().to_lowercase()).unwrap_or_default();
    let utf8 = cfg!(windows) || locale.contains("utf-8") || locale.contains("utf8");
    Style { colour, utf8 }
}
