//! How long a cold pool takes to fill, against the best its rate budget allows.
//!
//! 1,000 connections with a handshake of 100 ms, opened at 100 a second, with a
//! burst of 1 and with a burst of 1,000, under virtual time. The best possible
//! ("own time") is `max(0, target − burst) ÷ rate` plus one handshake. The last
//! line is JSON with the ratio of the time taken to the own time.

use std::time::Duration;

use anyhow::Result;
use forebay::{Connector, LocalRate, Opened, Pool, Rate};

const TARGET: u32 = 1000;
const PER_SECOND: u32 = 100;
const HANDSHAKE: Duration = Duration::from_millis(100);

struct Slow;

impl Connector for Slow {
    type Conn = ();
    type Key = ();
    type Error = std::convert::Infallible;

    async fn connect(&self, _key: &()) -> Result<Opened<()>, Self::Error> {
        tokio::time::sleep(HANDSHAKE).await;
        Ok(Opened::new(()))
    }
}

/// The ratio of the time to full to the own time.
async fn fill(burst: u32) -> Result<f64> {
    let start = tokio::time::Instant::now();
    let pool = Pool::builder(Slow)
        .max_open(TARGET)
        .max_opening(TARGET)
        .rate(LocalRate::shared(Rate::new(PER_SECOND, burst)?))
        .stagger(None)
        .build()?;
    pool.ready(TARGET, Duration::from_secs(3600)).await?;
    let took = start.elapsed();
    let own = Duration::from_secs(1) * TARGET.saturating_sub(burst) / PER_SECOND + HANDSHAKE;
    let stats = pool.stats();
    println!(
        "burst {burst:>4}: full after {took:?}, own time {own:?}, {} opened, {} permits dropped, {} driver wake-ups",
        stats.opened(),
        stats.sources[0].permits_dropped,
        stats.wakeups,
    );
    Ok(took.as_secs_f64() / own.as_secs_f64())
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<()> {
    println!(
        "filling {TARGET} connections at {PER_SECOND}/s, handshake {HANDSHAKE:?}, virtual time"
    );
    let (one, thousand) = (fill(1).await?, fill(1000).await?);
    println!("{}", serde_json::json!({ "ratio_burst_1": one, "ratio_burst_1000": thousand }));
    Ok(())
}
