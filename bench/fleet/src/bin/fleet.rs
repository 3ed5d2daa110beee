//! Round trips to the coordinator per opened connection and per checkout, against
//! the seeds' scheme: the same workload on the same Redis and the same DynamoDB.
//! Their addresses are in FOREBAY_TEST_REDIS and FOREBAY_TEST_DYNAMODB; `cargo xtask
//! bench fleet` finds or starts them.

#[path = "../fleet/mod.rs"]
mod fleet;

use std::time::Duration;

use anyhow::{Context, Result, bail};

use fleet::ours;
use fleet::report::{self, Figures, Round};
use fleet::seeds::Seeds;
use fleet::servers::Server;
use fleet::{BURST, HANDSHAKE, LIMIT, OPENING, RATE, Sizes};

const HELP: &str = "\
Round trips to the coordinator per opened connection, against the seeds' scheme.

Usage: fleet [--quick] [--only redis|dynamodb]

  --quick   small numbers, one round: only see that it works
  --only    one server alone

FOREBAY_TEST_REDIS (redis://...) and FOREBAY_TEST_DYNAMODB (http://...) say where the servers are.

A member fills a pool of 1,000 with nothing in its way, serves 100,000 checkouts from it, closes
it and leaves. The seeds' scheme asks for each connection and gives each back: in Redis by a
script each, in DynamoDB by a transaction each and an update for the rate permit. Heartbeats are
listed apart; those of the seeds' scheme are left out. A trickle of single opens, and three
members that compete for 100 leases, are shown beside it. The last line is JSON.
";

struct Options {
    quick: bool,
    only: Option<String>,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let Some(options) = parse(std::env::args().skip(1))? else {
        print!("{HELP}");
        return Ok(());
    };
    let sizes = if options.quick { Sizes::QUICK } else { Sizes::FULL };
    println!(
        "fill of {}, limit {LIMIT}, rate {RATE}/s with a burst of {BURST}, {OPENING} opens at \
         once, handshake {HANDSHAKE:?}",
        sizes.fill
    );
    let mut figures = Vec::new();
    for server in servers(&options).await? {
        let measured = measure(&server, &sizes).await;
        let cleaned = server.clean_up().await;
        let measured = measured.with_context(|| format!("on {}", server.name()))?;
        cleaned?;
        measured.print();
        figures.push(measured);
    }
    println!();
    println!("{}", report::json(&figures, options.quick));
    Ok(())
}

fn parse(args: impl Iterator<Item = String>) -> Result<Option<Options>> {
    let mut options = Options { quick: false, only: None };
    let mut args = args;
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--help" | "-h" => return Ok(None),
            "--quick" => options.quick = true,
            "--only" => match args.next() {
                Some(name) if name == "redis" || name == "dynamodb" => options.only = Some(name),
                _ => bail!("--only takes redis or dynamodb"),
            },
            other => bail!("no option `{other}`; see --help"),
        }
    }
    Ok(Some(options))
}

async fn servers(options: &Options) -> Result<Vec<Server>> {
    let wanted = |name: &str| options.only.as_deref().is_none_or(|only| only == name);
    let mut servers = Vec::new();
    if wanted("redis") {
        servers.push(Server::redis(address("FOREBAY_TEST_REDIS")?));
    }
    if wanted("dynamodb") {
        servers.push(Server::dynamo(&address("FOREBAY_TEST_DYNAMODB")?).await?);
    }
    Ok(servers)
}

fn address(variable: &str) -> Result<String> {
    let address = std::env::var(variable).ok().filter(|address| !address.is_empty());
    address.with_context(|| format!("{variable} is not set; run this as `cargo xtask bench fleet`"))
}

async fn measure(server: &Server, sizes: &Sizes) -> Result<Figures> {
    let filled = ours::fill(server, sizes).await?;
    let seeds = Seeds::new(server).await?;
    let (leases, _) = seeds.fill(sizes.fill, HANDSHAKE).await?;
    seeds.release(leases).await?;
    let (seeds_trips, seeds_least) = (seeds.trips(), seeds.least(sizes.fill));
    seeds.clean_up().await?;
    let mut rounds = Vec::new();
    for _ in 0..=sizes.rounds * server.rounds_for_one() {
        rounds.push(round(server, sizes.fill).await?);
    }
    // the first warms up
    rounds.remove(0);
    let trickle = ours::trickle(server, sizes.trickle).await?;
    let contended = ours::contended(server).await?;
    let server = server.name();
    Ok(Figures { server, filled, seeds_trips, seeds_least, rounds, trickle, contended })
}

/// One after the other, so that both have the machine as it is at that time.
async fn round(server: &Server, n: u32) -> Result<Round> {
    let ours = ours::throughput(server, n, Some(RATE)).await?;
    // the seeds' scheme has no rate in Redis
    let leases_only = match server {
        Server::Redis { .. } => Some(ours::throughput(server, n, None).await?),
        Server::Dynamo { .. } => None,
    };
    let seeds = Seeds::new(server).await?;
    let (leases, took) = seeds.fill(n, Duration::ZERO).await?;
    seeds.release(leases).await?;
    seeds.clean_up().await?;
    Ok(Round { ours, leases_only, theirs: f64::from(n) / took.as_secs_f64() })
}
