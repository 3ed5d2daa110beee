//! A day in the life of a pool: does the stock dip when connections expire, and
//! how many opens does that cost?
//!
//! 500 connections that live 11 minutes give or take one, guard window 45 s, for
//! 24 hours of virtual time (`--quick`: 2 hours), under a light load. Once with
//! spare slots (replacement before expiry) and once with none (replacement in
//! place). The stock is looked at after every event, not sampled. The last line
//! is JSON: the least of ready + in use ÷ target after the first fill, empty
//! checkouts, and opens after the first fill ÷ (connections × time ÷ (mean life − guard)).

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result};
use forebay::{Connector, Event, LetGo, LocalRate, Observer, Opened, Pool, Rate};

/// Connections in all: those in use and the ready stock behind them.
const TARGET: u32 = 500;
/// Connections in use at a time.
const IN_USE: u32 = 3;
const MEAN_LIFE: Duration = Duration::from_secs(11 * 60);
const GUARD: Duration = Duration::from_secs(45);
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

    async fn close(&self, _conn: ()) -> LetGo {
        tokio::time::sleep(HANDSHAKE / 10).await;
        LetGo::Confirmed
    }
}

/// Looks at the stock after every event.
#[derive(Clone, Default)]
struct Watch {
    pool: Arc<OnceLock<Pool<Slow>>>,
    least: Arc<AtomicU32>,
}

impl Observer for Watch {
    fn event(&self, _event: &Event) {
        if let Some(pool) = self.pool.get() {
            let source = &pool.stats().sources[0];
            self.least.fetch_min(source.ready + source.in_use, Ordering::Relaxed);
        }
    }
}

struct Day {
    least_stock: f64,
    empty: u64,
    opens_ratio: f64,
}

async fn live(name: &str, spare: u32, span: Duration) -> Result<Day> {
    let watch = Watch { least: Arc::new(AtomicU32::new(u32::MAX)), ..Watch::default() };
    let pool = Pool::builder(Slow)
        .max_open(TARGET + spare)
        .target_ready(TARGET - IN_USE)
        .rate(LocalRate::shared(Rate::new(100, 1000)?))
        .observer(watch.clone())
        .seed(11)
        .stagger(None)
        .build()?;
    pool.ready(TARGET - IN_USE, Duration::from_secs(60)).await?;
    let conns = [pool.get().await?, pool.get().await?, pool.get().await?];
    pool.ready(TARGET, Duration::from_secs(60)).await?;
    drop(conns);
    let opened_first = pool.stats().opened();
    watch.pool.set(pool.clone()).ok().context("set once")?;
    let start = tokio::time::Instant::now();
    while start.elapsed() < span {
        let conns = [pool.get().await?, pool.get().await?, pool.get().await?];
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(conns);
        tokio::time::sleep(Duration::from_millis(480)).await;
    }
    let stats = pool.stats();
    let opens = stats.opened() - opened_first;
    let own = f64::from(TARGET) * span.as_secs_f64() / (MEAN_LIFE - GUARD).as_secs_f64();
    let day = Day {
        least_stock: f64::from(watch.least.load(Ordering::Relaxed)) / f64::from(TARGET),
        empty: stats.empty,
        opens_ratio: opens as f64 / own,
    };
    println!(
        "{name:<10} {} checkouts, {} empty; least stock {:.1} %; {opens} opens, {:.4} × connections × time ÷ (mean life − guard); {} wasted, {} breaches",
        stats.checkouts,
        day.empty,
        day.least_stock * 100.0,
        day.opens_ratio,
        stats.sources[0].wasted,
        stats.breaches,
    );
    Ok(day)
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<()> {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let hours = if quick { 2 } else { 24 };
    let span = Duration::from_secs(hours * 3600);
    println!(
        "{TARGET} connections, lives of 11 min ± 1 min, guard 45 s, {hours} h of virtual time"
    );
    let ahead = live("ahead", TARGET / 10, span).await?;
    let in_place = live("in place", 0, span).await?;
    println!(
        "{}",
        serde_json::json!({
            "least_stock": ahead.least_stock.min(in_place.least_stock),
            "empty": ahead.empty + in_place.empty,
            "opens_ratio": ahead.opens_ratio.max(in_place.opens_ratio),
            "ahead": { "least_stock": ahead.least_stock, "opens_ratio": ahead.opens_ratio },
            "in_place": { "least_stock": in_place.least_stock, "opens_ratio": in_place.opens_ratio },
            "hours": hours,
        })
    );
    Ok(())
}
