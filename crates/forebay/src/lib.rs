//! A connection pool for backends that ration connections.
//!
//! Forebay keeps a stock of ready connections in front of a backend, so that a
//! request never waits for a handshake, and keeps within the backend's limits on
//! how fast connections may be opened, how many may be open and how long they live.
//!
//! ```
//! use std::time::Duration;
//! use forebay::{Connector, LocalRate, Opened, Pool, Rate};
//!
//! struct Tcp(std::net::SocketAddr);
//!
//! impl Connector for Tcp {
//!     type Conn = tokio::net::TcpStream;
//!     type Key = ();
//!     type Error = std::io::Error;
//!
//!     async fn connect(&self, _key: &()) -> Result<Opened<Self::Conn>, Self::Error> {
//!         Ok(Opened::new(tokio::net::TcpStream::connect(self.0).await?))
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! # let address = listener.local_addr()?;
//! let pool = Pool::builder(Tcp(address))
//!     .max_open(50)
//!     .target_ready(20)
//!     .rate(LocalRate::shared(Rate::new(100, 1000)?))
//!     .build()?;
//! let conn = pool.get().await?;   // a guard: derefs to the TcpStream
//! drop(conn);                     // back in the pool
//! pool.drain(Duration::from_secs(15)).await;
//! # Ok(()) }
//! ```
//!
//! The way through the code: [`Pool::get`] makes a [`Checkout`]; its poll takes
//! from or queues in the state; the driver task ages, refills and closes.

#[cfg(any(feature = "deadpool", feature = "bb8"))]
pub mod adapters;
mod audit;
mod backoff;
mod budget;
mod builder;
mod checkout;
mod clock;
mod connector;
mod demand;
mod desk;
mod driver;
mod env;
mod error;
mod guard;
mod histogram;
mod holding;
mod hub;
mod invariant;
mod keys;
#[doc(hidden)]
pub mod lenient;
mod list;
mod live;
mod lost;
#[cfg(shuttle)]
#[doc(hidden)]
pub mod model;
mod need;
mod observer;
mod opening;
mod pool;
mod queue;
mod reason;
mod returns;
mod select;
mod settings;
mod source;
mod state;
mod stats;
mod sync;
mod throttle;
mod tick;
mod tickets;

pub use backoff::BackoffSettings;
pub use budget::{
    Ask, BudgetError, CountBudget, Grant, Holder, InvalidRate, LocalCount, LocalRate,
    PERMIT_GOOD_FOR, Permit, Rate, RateBudget, Standing,
};
pub use builder::Builder;
pub use checkout::{Checkout, CheckoutRef, GetOptions};
pub use clock::{BoxFuture, Clock, Instant, TimeSource};
pub use connector::{Connector, Failure, Killer, LetGo, Opened, Returned};
pub use env::EnvSettings;
pub use error::{BuildError, GetError, NotReady, Phase, Timeout};
pub use guard::{Detached, Guard, GuardRef};
pub use histogram::Histogram;
pub use invariant::Invariant;
pub use lenient::Correction;
pub use lost::Lost;
pub use need::Figures;
pub use observer::{Event, Observer};
pub use pool::{Drained, Pool, Source};
pub use queue::Priority;
pub use reason::{Discard, OpenFailure};
pub use settings::{Settings, SourceSpec, Strategy};
pub use stats::{SourceStats, Stats};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
