//! `forebay fleet setup`: books for new backends. What is there already stays.

use std::io::{Write, stdout};

use forebay_fleet::Keeper;

use super::args::{Kind, SetupDynamo, SetupRedis};
use super::{Error, Outcome, place};

pub(super) async fn run(kind: &Kind) -> Result<Outcome, Error> {
    match kind {
        Kind::Redis(args) => redis(args).await,
        Kind::Dynamodb(args) => dynamodb(args).await,
    }
}

async fn redis(args: &SetupRedis) -> Result<Outcome, Error> {
    let keeper = place::redis(&args.url, &args.access).await?;
    keeper.check().await?;
    writeln!(stdout(), "the server can be used")?;
    backends(keeper.as_ref(), &args.backends).await
}

#[cfg(feature = "dynamodb")]
async fn dynamodb(args: &SetupDynamo) -> Result<Outcome, Error> {
    let keeper = place::dynamodb(&args.table, &args.access).await?;
    let done = keeper.setup_table().await?;
    let table = &args.table;
    match done.created {
        true => writeln!(stdout(), "table {table}: made, with on-demand billing")?,
        false => writeln!(stdout(), "table {table}: is there already")?,
    }
    match done.ttl_enabled {
        true => writeln!(stdout(), "time to live: switched on for ttl_epoch")?,
        false => writeln!(stdout(), "time to live: was on already")?,
    }
    backends(keeper.as_ref(), &args.backends).await
}

#[cfg(not(feature = "dynamodb"))]
async fn dynamodb(args: &SetupDynamo) -> Result<Outcome, Error> {
    let keeper = place::dynamodb(&args.table, &args.access).await?;
    backends(keeper.as_ref(), &args.backends).await
}

async fn backends(keeper: &dyn Keeper, backends: &[String]) -> Result<Outcome, Error> {
    for backend in backends {
        match keeper.setup(backend).await? {
            true => writeln!(stdout(), "backend {backend}: books made, its members need not wait")?,
            false => writeln!(stdout(), "backend {backend}: has books already, left as they are")?,
        }
    }
    Ok(Outcome::Done)
}
