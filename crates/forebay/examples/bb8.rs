//! A manager written for bb8, behind a Forebay pool: a server that hangs up, and what comes of it.
//!
//! The server is an echo service started right here, so there is nothing to set up:
//! `cargo run -p forebay --features bb8 --example bb8`

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bb8::ManageConnection;
use forebay::adapters::FromBb8;
use forebay::{Event, Failure, Observer, Pool};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// As you would write it for bb8.
struct Echo(SocketAddr);

impl ManageConnection for Echo {
    type Connection = TcpStream;
    type Error = io::Error;

    async fn connect(&self) -> io::Result<TcpStream> {
        TcpStream::connect(self.0).await
    }

    async fn is_valid(&self, conn: &mut TcpStream) -> io::Result<()> {
        say(conn, b"ping").await.map(drop)
    }

    fn has_broken(&self, conn: &mut TcpStream) -> bool {
        // a server that hung up has left an end-of-file to read
        matches!(conn.try_read(&mut [0]), Ok(0))
    }
}

async fn say(conn: &mut TcpStream, words: &[u8]) -> io::Result<Vec<u8>> {
    conn.write_all(words).await?;
    let mut answer = vec![0; words.len()];
    conn.read_exact(&mut answer).await?;
    Ok(answer)
}

/// Prints what happens to connections.
struct Printer;

impl Observer for Printer {
    fn event(&self, event: &Event) {
        match event {
            Event::Opened { .. } => println!("  opened"),
            Event::Discarded { reason, uses, .. } => {
                println!("  discarded after {uses} uses: {reason}");
            }
            _ => {}
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = start_server().await?;
    // a refused connect leaves nothing at the server: its slot is free at once
    let connector = FromBb8::new(Echo(address)).classify(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => Failure::Refused,
        _ => Failure::Unknown,
    });
    let pool = Pool::builder(connector)
        .max_open(2)
        .idle_check(Some(Duration::from_secs(30)))
        .close_grace(Duration::from_millis(50))
        .stagger(None)
        .observer(Printer)
        .build()?;
    pool.filled().await?;

    // the server hangs up after its third answer, the validations included
    for turn in 0..8 {
        let mut conn = pool.get().await?;
        match say(&mut conn, b"hello").await {
            Ok(_) => println!("turn {turn}: answered"),
            Err(error) => println!("turn {turn}: {error}"),
        }
    }
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
                let mut buffer = [0; 64];
                for _ in 0..3 {
                    let n = stream.read(&mut buffer).await?;
                    stream.write_all(&buffer[..n]).await?;
                }
                io::Result::Ok(())
            });
        }
    });
    Ok(address)
}
