//! The arguments of `forebay fleet`, and the help that goes with them.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Subcommand};

const ABOUT: &str = "Look after the budgets that a fleet shares in Redis or DynamoDB";

const EXPLANATION: &str = "\
What it is about:
  Processes that share a backend agree through a keeper, Redis or DynamoDB, on how
  many connections each may have open and how fast they open them. The keeper has
  books for every backend: who is a member, and who holds how many leases.

Examples:
  forebay fleet setup redis --url redis://10.0.0.5:6379 --backend orders
  forebay fleet setup dynamodb --table dsql-connections --backend orders
  forebay fleet status --redis redis://10.0.0.5:6379
  forebay fleet status --dynamodb dsql-connections --backend orders --watch
  forebay fleet reap --redis redis://10.0.0.5:6379 --backend orders --member web-1

Exit codes:
  0  done
  1  there is no such backend or member, or it was left alone
  2  the arguments make no sense
  3  the keeper is away, or cannot be used: the message says why and what to do";

const SETUP: &str = "Make books for new backends, and the table they are kept in";

const SETUP_EXPLANATION: &str = "\
When to run it:
  Before the first process of a new fleet starts. Without it everything works too,
  but keepers that find no books wait for one ttl (30 s) before they grant anything,
  since the books may have been lost while processes hold connections.

  It can be run again at any time: what is there already is left as it is. Do not
  use it to hurry a fleet whose keeper has lost its data; that wait is there to count
  the connections which are still open.";

const REDIS: &str = "In Redis, Valkey, a cluster of them, or behind Sentinel";

const REDIS_EXPLANATION: &str = "\
URLs:
  redis://host:port/database                     rediss:// for TLS
  redis+cluster://host:port,host:port
  redis+sentinel://host:port,host:port/master

Examples:
  forebay fleet setup redis --url redis://10.0.0.5:6379 --backend orders --backend billing
  forebay fleet setup redis --url rediss://forebay@redis.example:6379/2 \\
      --password-file /run/secrets/redis --ca-file ca.pem --backend orders";

const DYNAMODB: &str =
    "In a DynamoDB table: made if need be, with on-demand billing and time to live";

const DYNAMODB_EXPLANATION: &str = "\
Credentials and region come from the environment, as for the AWS command line.

Examples:
  forebay fleet setup dynamodb --table dsql-connections --region eu-central-1
  forebay fleet setup dynamodb --table dsql-connections \\
      --backend abc123.dsql.eu-central-1.on.aws
  forebay fleet setup dynamodb --table test --endpoint-url http://127.0.0.1:8000";

const STATUS: &str = "Show who holds how many connections";

const STATUS_EXPLANATION: &str = "\
Columns:
  held     leases booked for the member, those it has not collected yet included
  want     leases it would like to have
  waiters  checkouts that wait there for a connection
  share    what it may keep while the keeper is away
  recall   leases it has been asked to give back
  silent   since its last report; beyond its ttl the next report of anybody reaps it

Examples:
  forebay fleet status --redis redis://10.0.0.5:6379
  forebay fleet status --dynamodb dsql-connections --backend orders --watch
  forebay fleet status --redis redis://10.0.0.5:6379 --json | jq '.backends[].total'";

const REAP: &str = "Take back the leases of a member that is known to be dead";

const REAP_EXPLANATION: &str = "\
What it does:
  The member's leases go back to the fleet at once, instead of when it has been
  silent for its reclaim_after. That helps with members that died under a long
  reclaim_after. A process that is alive after all learns of it with its next report,
  closes its connections and joins anew; until then the backend may have as many
  connections too many as it held.

Examples:
  forebay fleet reap --redis redis://10.0.0.5:6379 --backend orders --member web-1
  forebay fleet reap --dynamodb dsql-connections --backend orders \\
      --member web-1@00000000deadbeef --yes";

/// The arguments, as typed.
#[derive(clap::Args)]
#[command(about = ABOUT, after_help = EXPLANATION)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) task: Task,
}

#[derive(Subcommand)]
pub(crate) enum Task {
    #[command(about = SETUP, after_help = SETUP_EXPLANATION)]
    Setup {
        #[command(subcommand)]
        kind: Kind,
    },
    #[command(about = STATUS, after_help = STATUS_EXPLANATION)]
    Status(Status),
    #[command(about = REAP, after_help = REAP_EXPLANATION)]
    Reap(Reap),
}

#[derive(Subcommand)]
pub(crate) enum Kind {
    #[command(about = REDIS, after_help = REDIS_EXPLANATION)]
    Redis(SetupRedis),
    #[command(about = DYNAMODB, after_help = DYNAMODB_EXPLANATION)]
    Dynamodb(SetupDynamo),
}

#[derive(clap::Args)]
pub(crate) struct SetupRedis {
    /// Where it is; see below
    #[arg(long)]
    pub(crate) url: String,

    /// A backend to make books for; may be given several times
    #[arg(long = "backend", value_name = "ID", required = true, num_args = 1.., value_parser = backend)]
    pub(crate) backends: Vec<String>,

    #[command(flatten)]
    pub(crate) access: RedisAccess,
}

#[derive(clap::Args)]
pub(crate) struct SetupDynamo {
    /// The table
    #[arg(long)]
    pub(crate) table: String,

    /// A backend to make books for; may be given several times
    #[arg(long = "backend", value_name = "ID", num_args = 1.., value_parser = backend)]
    pub(crate) backends: Vec<String>,

    #[command(flatten)]
    pub(crate) access: DynamoAccess,
}

/// How to get into Redis, beside the URL.
#[derive(clap::Args)]
#[command(next_help_heading = "Redis")]
pub(crate) struct RedisAccess {
    /// A file with the password, which then shows in no list of processes
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,

    /// Certificate authorities in PEM, instead of the system's
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,

    /// A client certificate in PEM
    #[arg(long, value_name = "FILE", requires = "client_key")]
    pub(crate) client_cert: Option<PathBuf>,

    /// Its key in PEM
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    pub(crate) client_key: Option<PathBuf>,
}

/// Where DynamoDB is.
#[derive(clap::Args)]
#[command(next_help_heading = "DynamoDB")]
pub(crate) struct DynamoAccess {
    /// The region [default: the environment's]
    #[arg(long)]
    pub(crate) region: Option<String>,

    /// Where it is, for DynamoDB Local
    #[arg(long, value_name = "URL")]
    pub(crate) endpoint_url: Option<String>,
}

/// Which keeper it is.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Which {
    /// Redis, by its URL (`forebay fleet setup redis --help` shows the forms)
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Option<String>,

    /// DynamoDB, by its table
    #[arg(long, value_name = "TABLE")]
    pub(crate) dynamodb: Option<String>,
}

/// The keeper to look at.
#[derive(clap::Args)]
pub(crate) struct Place {
    #[command(flatten)]
    pub(crate) which: Which,

    #[command(flatten)]
    pub(crate) redis_access: RedisAccess,

    #[command(flatten)]
    pub(crate) dynamo_access: DynamoAccess,
}

#[derive(clap::Args)]
pub(crate) struct Status {
    /// Only this backend
    #[arg(long, value_name = "ID", value_parser = backend)]
    pub(crate) backend: Option<String>,

    /// As JSON; with --watch, one line each time
    #[arg(long)]
    pub(crate) json: bool,

    /// Look again every so many seconds until Ctrl-C [default: 2]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "2", value_parser = seconds)]
    pub(crate) watch: Option<Duration>,

    /// No colours, also if the output is a terminal (as NO_COLOR=1)
    #[arg(long)]
    pub(crate) no_color: bool,

    #[command(flatten)]
    pub(crate) place: Place,
}

#[derive(clap::Args)]
pub(crate) struct Reap {
    /// The backend
    #[arg(long, value_name = "ID", value_parser = backend)]
    pub(crate) backend: String,

    /// The member as `status` shows it; its instance alone if there is one of that name
    #[arg(long)]
    pub(crate) member: String,

    /// Do not ask
    #[arg(long, action = ArgAction::SetTrue)]
    pub(crate) yes: bool,

    /// Also a member that was heard within its ttl
    #[arg(long, action = ArgAction::SetTrue)]
    pub(crate) force: bool,

    #[command(flatten)]
    pub(crate) place: Place,
}

fn backend(text: &str) -> Result<String, String> {
    if text.trim().is_empty() || text.contains(|c: char| c.is_control()) {
        return Err("a backend's id has at least one character, and no control characters".into());
    }
    Ok(text.to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.trim_end_matches('s').parse::<f64>() {
        Ok(seconds @ 0.1..=3600.0) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("expected seconds between 0.1 and 3600".into()),
    }
}
