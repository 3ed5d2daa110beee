//! A manager written for deadpool, behind a Forebay pool: more tasks than connections.
//!
//! The server is an echo service started right here, so there is nothing to set up:
//! `cargo run -p forebay --features deadpool --example deadpool`

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use deadpool::managed::{Manager, Metrics, RecycleResult};
use forebay::adapters::{FromDeadpool, Managed};
use forebay::{Discard, LocalRate, Pool, Rate};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// As you would write it for deadpool.
struct Echo(SocketAddr);

impl Manager for Echo {
    type Type = TcpStream;
    type Error = io::Error;

    async fn create(&self) -> io::Result<TcpStream> {
        TcpStream::connect(self.0).await
    }

    async fn recycle(&self, conn: &mut TcpStream, _: &Metrics) -> RecycleResult<io::Error> {
        say(conn, b"ping").await.map(drop).map_err(Into::into)
    }
}

async fn say(conn: &mut TcpStream, words: &[u8]) -> io::Result<Vec<u8>> {
    conn.write_all(words).await?;
    let mut answer = vec![0; words.len()];
    conn.read_exact(&mut answer).await?;
    Ok(answer)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = start_server().await?;
    let pool = Pool::builder(FromDeadpool::new(Echo(address)))
        .max_open(4)
        .rate(LocalRate::shared(Rate::new(100, 10)?))
        .idle_check(Some(Duration::from_secs(30)))
        .stagger(None)
        .build()?;
    pool.filled().await?;

    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..32 {
        let pool = pool.clone();
        tasks.spawn(async move {
            for turn in 0..25 {
                let words = format!("task {task}, turn {turn}");
                let mut conn = pool.get().await?;
                assert_eq!(say(&mut conn, words.as_bytes()).await?, words.as_bytes());
            }
            Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done?.map_err(|error| error.to_string())?;
    }

    let conn = pool.get().await?;
    println!("one of the connections was recycled {} times", Managed::metrics(&conn).recycle_count);
    drop(conn);
    let stats = pool.stats();
    println!("{} checkouts over {} connections", stats.checkouts, stats.opened());
    println!("{} of them found nothing ready and waited", stats.empty);
    println!("wait: median {:.1?}, longest {:.1?}", stats.wait.quantile(0.5), stats.wait.max());
    println!("discarded as broken: {}", stats.discarded(Discard::Broken));
    let drained = pool.drain(Duration::from_secs(5)).await;
    println!("drained, {} left", drained.left);
    Ok(())
}

async fn start_server() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                tokio::io::copy(&mut from, &mut to).await
            });
        }
    });
    Ok(address)
}
