//! What a pool costs while nothing happens: wake-ups of its driver over five
//! quiet minutes of virtual time, and memory for each ready connection.
//!
//! Memory is the growth of the process's resident set while a pool of 100,000
//! no-op connections (`--quick`: 10,000) fills, divided by their number: the
//! pool's own books, the box around each connection and the allocator's slack.
//! The last line is JSON.

use std::time::Duration;

use anyhow::{Context, Result};
use forebay::{Connector, Opened, Pool};

struct Noop;

impl Connector for Noop {
    type Conn = u64;
    type Key = ();
    type Error = std::convert::Infallible;

    async fn connect(&self, _key: &()) -> Result<Opened<u64>, Self::Error> {
        Ok(Opened::new(7))
    }
}

async fn filled(n: u32) -> Result<Pool<Noop>> {
    let pool = Pool::builder(Noop).max_open(n).max_opening(256).stagger(None).build()?;
    pool.ready(n, Duration::from_secs(60)).await?;
    Ok(pool)
}

/// The resident set of this process, in bytes.
fn resident() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("VmRSS")?;
    let kib: u64 = line.split_whitespace().nth(1).context("a number")?.parse()?;
    Ok(kib * 1024)
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<()> {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let n = if quick { 10_000 } else { 100_000 };

    let pool = filled(1000).await?;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let before = pool.stats().wakeups;
    tokio::time::sleep(Duration::from_secs(300)).await;
    let stats = pool.stats();
    let wakeups = stats.wakeups - before;
    println!(
        "{} connections at rest: {wakeups} wake-ups in 5 minutes; timers armed: 1 (the next expiry)",
        stats.ready()
    );
    drop(pool);

    let before = resident()?;
    let pool = filled(n).await?;
    let bytes = resident()?.saturating_sub(before) / u64::from(n);
    println!("{} connections ready: {bytes} bytes each", pool.stats().ready());
    println!(
        "{}",
        serde_json::json!({ "wakeups_in_5_min": wakeups, "bytes_per_ready_connection": bytes })
    );
    Ok(())
}
