//! The arguments of `forebay sim`.

use std::path::PathBuf;

const ABOUT: &str = "Run scenarios: real pools and the real fleet protocol under virtual time";

const EXPLANATION: &str = "\
What it does:
  A scenario file describes backends and their limits, a coordinator, services
  with their pools and workloads, events on a timeline, and what must hold. The
  simulator runs the very code that runs in production, against modelled backends
  and a modelled clock: half an hour passes in seconds, and the same seed gives
  the same bytes.

Examples:
  forebay sim scenarios/local.yaml                  run it, see what came of it
  forebay sim scenarios/mass-drop.yaml --report drop.html
                                                    and as one page with plots
  forebay sim scenarios/*.yaml --quiet              as a check in CI: the exit code tells
  forebay sim scenarios/*.yaml --report pages/      a page for each, in a directory
  forebay sim big.yaml --out big.csv --seed 7       curves for a spreadsheet; other chances
  forebay sim --compare before.yaml after.yaml --report both.html
                                                    what a change of settings does
  forebay sim local.yaml --json | jq .totals
  forebay sim plan scenarios/ecs-400wps.yaml        without a run: does it fit, how long does it take

Exit codes:
  0  every assertion came out as expected
  1  one did not; each is named with the first instant at which it failed
  2  a scenario that cannot be run, or an output that cannot be written; a bad
     scenario or argument is found before anything runs, and nothing is written";

/// The arguments, as typed.
#[derive(clap::Args)]
#[command(about = ABOUT, after_help = EXPLANATION)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(disable_help_subcommand = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<Task>,

    /// Scenario files
    #[arg(value_name = "FILE", required_unless_present = "compare")]
    pub(crate) files: Vec<PathBuf>,

    /// Run two scenarios and show them side by side
    #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with_all = ["files", "out"])]
    pub(crate) compare: Option<Vec<PathBuf>>,

    /// Draw all chance from this seed instead of the scenario's
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// Write the curves as CSV; of several scenarios, into this directory
    #[arg(long, value_name = "FILE.csv")]
    pub(crate) out: Option<PathBuf>,

    /// Write a page with plots; of several scenarios, into this directory
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,

    /// Print everything as JSON instead of the summary; of several scenarios, an array
    #[arg(long)]
    pub(crate) json: bool,

    /// Print nothing but assertions that failed
    #[arg(long, short)]
    pub(crate) quiet: bool,

    /// No colours, also if the output is a terminal (as NO_COLOR=1)
    #[arg(long)]
    pub(crate) no_color: bool,
}

/// What else can be done with scenarios than to run them.
#[derive(clap::Subcommand)]
pub(crate) enum Task {
    Plan(PlanArgs),
}

const PLAN_ABOUT: &str = "Say by arithmetic what the limits allow, without a run";

const PLAN_EXPLANATION: &str = "\
What it says:
  For each backend of a scenario: whether what its services want fits into its
  limits, how long a cold start, a rolling restart and a recovery take at best,
  and which setting to change if something is in the way.

Examples:
  forebay sim plan scenarios/local.yaml
  forebay sim plan before.yaml after.yaml
  forebay sim plan big.yaml --json | jq '.backends[].advice'

Exit codes:
  0  everything fits
  1  something does not; what to change is named
  2  a scenario that makes no sense";

/// The arguments of `forebay sim plan`.
#[derive(clap::Args)]
#[command(about = PLAN_ABOUT, after_help = PLAN_EXPLANATION)]
pub(crate) struct PlanArgs {
    /// Scenario files
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// Print everything as JSON; of several scenarios, an array
    #[arg(long)]
    pub(crate) json: bool,
}

impl Args {
    /// The scenario files, whichever way they were given.
    pub(crate) fn scenarios(&self) -> &[PathBuf] {
        self.compare.as_ref().unwrap_or(&self.files)
    }
}
