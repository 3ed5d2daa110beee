//! A pool of tokio-postgres sessions: many tasks, few sessions, transactions and a dropped query.
//!
//! Set FOREBAY_TEST_POSTGRES or DATABASE_URL to the address of a server:
//! `DATABASE_URL=postgres://postgres@127.0.0.1/postgres cargo run -p forebay --example tokio_postgres`
//!
//! The connector is in `tokio_postgres/connector.rs`, ready to be copied.

// Not engine code: real time is fine here.
#![allow(clippy::disallowed_methods)]

#[path = "tokio_postgres/connector.rs"]
mod connector;

use std::process::ExitCode;
use std::time::Duration;

use connector::Postgres;
use forebay::{Discard, GetOptions, LocalRate, Pool, Rate, Stats};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const TASKS: i32 = 200;

#[tokio::main]
async fn main() -> ExitCode {
    let given = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
    let Some(address) = given("FOREBAY_TEST_POSTGRES").or_else(|| given("DATABASE_URL")) else {
        eprintln!(
            "set FOREBAY_TEST_POSTGRES or DATABASE_URL to the address of a PostgreSQL server,"
        );
        eprintln!("for example postgres://postgres@127.0.0.1:5432/postgres");
        return ExitCode::from(2);
    };
    match run(&address).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(address: &str) -> Outcome<()> {
    let pool = Pool::builder(Postgres::new(address, "forebay-example")?)
        .max_open(10)
        .rate(LocalRate::shared(Rate::new(100, 10)?))
        .idle_check(Some(Duration::from_secs(30)))
        .stagger(None)
        .build()?;
    pool.filled().await?;

    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        tasks.spawn(work(pool.clone(), task));
    }
    let mut sum = 0;
    while let Some(done) = tasks.join_next().await {
        sum += done??;
    }
    println!("{TASKS} tasks over 10 sessions gave {sum}");

    // a caller that loses patience: its session is discarded, not handed on
    let session = pool.get_with(GetOptions::new().timeout(Duration::from_secs(5))).await?;
    let slow = session.query("SELECT pg_sleep(60)", &[]);
    let _ = tokio::time::timeout(Duration::from_millis(50), slow).await;
    drop(session);

    report(&pool.stats());
    let drained = pool.drain(Duration::from_secs(15)).await;
    println!("drained: {} left", drained.left);
    Ok(())
}

/// A transaction and a query, each on a session of its own.
async fn work(pool: Pool<Postgres>, task: i32) -> Outcome<i64> {
    let mut session = pool.get().await?;
    let transaction = session.transaction().await?;
    transaction.execute("CREATE TEMPORARY TABLE note (n int8) ON COMMIT DROP", &[]).await?;
    transaction.execute("INSERT INTO note VALUES ($1)", &[&i64::from(task)]).await?;
    transaction.commit().await?;
    drop(session); // back in the pool, to be reset in the background

    let session = pool.get().await?;
    let rows = session.query("SELECT $1::int8 * 2", &[&i64::from(task)]).await?;
    Ok(rows[0].get(0))
}

fn report(stats: &Stats) {
    println!("checkouts          {:>8}", stats.checkouts);
    println!("  had to wait      {:>8}", stats.empty);
    println!("  ran out of time  {:>8}", stats.timeouts);
    println!("sessions opened    {:>8}", stats.opened());
    println!("  in mid-response  {:>8}", stats.discarded(Discard::UnknownState));
    for (name, times) in [("wait", &stats.wait), ("open", &stats.create), ("use", &stats.r#use)] {
        let [median, p99] = [0.5, 0.99].map(|q| times.quantile(q));
        println!("{name:<6} median {median:>8.1?}   99 % {p99:>8.1?}   most {:>8.1?}", times.max());
    }
}
