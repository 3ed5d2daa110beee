//! The scheme of the seeds' documents. In Redis: one script per acquire and one
//! per release, on a counter, a limit and a hash of what the instance has. In
//! DynamoDB: a transaction per acquire (counter and lease item), an update per rate
//! permit (an item for each second), a transaction per release. Only what concerns
//! connections is here, without heartbeats and joining: those are not counted on
//! either side. A request that met another one is sent again, and counted again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::types::{AttributeValue, Delete, Put, TransactWriteItem, Update};
use aws_sdk_dynamodb::{Client, Config};
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;

use super::servers::{Server, unique};
use super::{LIMIT, OPENING};

/// Tries before it is given up.
const TRIES_MAX: u32 = 200;
/// Permits a second: so many that the rate does not bind, as the burst on our side.
const PERMITS: u32 = 10_000;
/// Connections to Redis, by default there.
const POOL_SIZE: usize = 20;

const ACQUIRE: &str = "
local most = tonumber(redis.call('GET', KEYS[2]) or '0')
if most == 0 then return -2 end
local open = tonumber(redis.call('GET', KEYS[1]) or '0')
if open >= most then return -1 end
redis.call('HINCRBY', KEYS[3], ARGV[1], 1)
return redis.call('INCR', KEYS[1])
";

const RELEASE: &str = "
local open = tonumber(redis.call('GET', KEYS[1]) or '0')
if open <= 0 then return -1 end
redis.call('HINCRBY', KEYS[2], ARGV[1], -1)
redis.call('PUBLISH', ARGV[2], 'released')
return redis.call('DECR', KEYS[1])
";

/// One fleet of one instance under the seeds' scheme.
#[derive(Clone)]
pub(crate) struct Seeds {
    how: How,
    backend: String,
    trips: Arc<AtomicU64>,
}

/// The connections of a client as seed 003 has it: each is used by one command at a time.
type Conns = Arc<Vec<tokio::sync::Mutex<MultiplexedConnection>>>;

#[derive(Clone)]
enum How {
    Redis { conns: Conns, acquire: String, release: String, instance: String },
    Dynamo { client: Client, table: String },
}

impl Seeds {
    /// Ready to acquire: connected, scripts loaded, limit set.
    pub(crate) async fn new(server: &Server) -> Result<Self> {
        let backend = unique("seeds");
        let how = match server {
            Server::Redis { url } => {
                let mut conn = Server::connection(url).await?;
                let mut load = async |script: &str| -> Result<String> {
                    let mut cmd = redis::cmd("SCRIPT");
                    Ok(cmd.arg("LOAD").arg(script).query_async(&mut conn).await?)
                };
                let (acquire, release) = (load(ACQUIRE).await?, load(RELEASE).await?);
                let most = bucket_key(&backend, "max");
                redis::cmd("SET").arg(most).arg(LIMIT).exec_async(&mut conn).await?;
                let mut conns = vec![tokio::sync::Mutex::new(conn)];
                while conns.len() < POOL_SIZE {
                    conns.push(tokio::sync::Mutex::new(Server::connection(url).await?));
                }
                let (conns, instance) = (Arc::new(conns), unique("instance"));
                How::Redis { conns, acquire, release, instance }
            }
            Server::Dynamo { config, table } => {
                let client = Client::from_conf(Config::clone(config));
                How::Dynamo { client, table: table.clone() }
            }
        };
        Ok(Self { how, backend, trips: Arc::default() })
    }

    /// Requests so far.
    pub(crate) fn trips(&self) -> u64 {
        self.trips.load(Ordering::Relaxed)
    }

    /// Requests that `n` connections need, opened and closed, if none is sent again.
    pub(crate) fn least(&self, n: u32) -> u64 {
        let each = match self.how {
            How::Redis { .. } => 2,
            How::Dynamo { .. } => 3,
        };
        each * u64::from(n)
    }

    /// Opens connections, as many at once as our pool would, each taking `handshake`
    /// once it may be opened. Gives their leases and the time it took.
    pub(crate) async fn fill(
        &self,
        n: u32,
        handshake: Duration,
    ) -> Result<(Vec<String>, Duration)> {
        let leases: Vec<String> = (0..n).map(|_| lease_id()).collect();
        let start = Instant::now();
        self.each(leases.clone(), Work::Open(handshake)).await?;
        Ok((leases, start.elapsed()))
    }

    /// Closes connections.
    pub(crate) async fn release(&self, leases: Vec<String>) -> Result<()> {
        self.each(leases, Work::Close).await
    }

    /// Removes what has no end of its own.
    pub(crate) async fn clean_up(self) -> Result<()> {
        if let How::Redis { conns, instance, .. } = &self.how {
            let mut conn = conns[0].lock().await;
            let [count, most] = ["count", "max"].map(|key| bucket_key(&self.backend, key));
            let mut cmd = redis::cmd("DEL");
            cmd.arg(count).arg(most).arg(conns_key(instance)).exec_async(&mut *conn).await?;
        }
        Ok(())
    }

    async fn each(&self, leases: Vec<String>, work: Work) -> Result<()> {
        let todo = Arc::new(Mutex::new(leases));
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..OPENING as usize {
            let (seeds, todo) = (self.clone(), todo.clone());
            tasks.spawn(async move {
                loop {
                    let Some(lease) = todo.lock().pop() else { return Ok(()) };
                    match work {
                        Work::Open(handshake) => seeds.open(task, &lease, handshake).await?,
                        Work::Close => seeds.close(task, &lease).await?,
                    }
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            let ended: Result<()> = ended?;
            ended?;
        }
        Ok(())
    }

    async fn open(&self, task: usize, lease: &str, handshake: Duration) -> Result<()> {
        match &self.how {
            How::Redis { conns, acquire, instance, .. } => {
                let [count, most] = ["count", "max"].map(|key| bucket_key(&self.backend, key));
                let mut cmd = redis::cmd("EVALSHA");
                cmd.arg(acquire).arg(3).arg(count).arg(most).arg(conns_key(instance));
                self.trips.fetch_add(1, Ordering::Relaxed);
                let mut conn = conns[task % POOL_SIZE].lock().await;
                let open: i64 = cmd.arg(&self.backend).query_async(&mut *conn).await?;
                if open < 1 {
                    bail!("the seeds' acquire script answered {open}");
                }
            }
            How::Dynamo { client, table } => {
                let items = acquire_items(table, &self.backend, lease)?;
                transact(client, &items, &self.trips).await?;
                permit(client, table, &self.backend, &self.trips).await?;
            }
        }
        if !handshake.is_zero() {
            tokio::time::sleep(handshake).await;
        }
        Ok(())
    }

    async fn close(&self, task: usize, lease: &str) -> Result<()> {
        match &self.how {
            How::Redis { conns, release, instance, .. } => {
                let mut cmd = redis::cmd("EVALSHA");
                cmd.arg(release).arg(2).arg(bucket_key(&self.backend, "count"));
                cmd.arg(conns_key(instance)).arg(&self.backend);
                cmd.arg(format!("proxy:release:{}", self.backend));
                self.trips.fetch_add(1, Ordering::Relaxed);
                let mut conn = conns[task % POOL_SIZE].lock().await;
                let open: i64 = cmd.query_async(&mut *conn).await?;
                if open < 0 {
                    bail!("the seeds' release script answered {open}");
                }
            }
            How::Dynamo { client, table } => {
                let items = release_items(table, &self.backend, lease)?;
                transact(client, &items, &self.trips).await?;
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Work {
    Open(Duration),
    Close,
}

fn bucket_key(backend: &str, key: &str) -> String {
    format!("proxy:bucket:{backend}:{key}")
}

fn conns_key(instance: &str) -> String {
    format!("proxy:instance:{instance}:conns")
}

/// Counts up if there is room, and writes the lease.
fn acquire_items(table: &str, backend: &str, lease: &str) -> Result<[TransactWriteItem; 2]> {
    let now = now_ms();
    let count = Update::builder()
        .table_name(table)
        .key("pk", counter_key(backend))
        .update_expression("SET active = if_not_exists(active, :none) + :one, updated_ms = :now")
        .condition_expression("attribute_not_exists(active) OR active < :most")
        .expression_attribute_values(":none", number(0))
        .expression_attribute_values(":one", number(1))
        .expression_attribute_values(":most", number(LIMIT))
        .expression_attribute_values(":now", number(now));
    let put = Put::builder()
        .table_name(table)
        .item("pk", lease_key(backend, lease))
        .item("ttl_epoch", number(now / 1000 + 180))
        .item("service_name", AttributeValue::S("bench".to_owned()))
        .item("created_ms", number(now));
    Ok([
        TransactWriteItem::builder().update(count.build()?).build(),
        TransactWriteItem::builder().put(put.build()?).build(),
    ])
}

/// Deletes the lease, and counts down.
fn release_items(table: &str, backend: &str, lease: &str) -> Result<[TransactWriteItem; 2]> {
    let delete = Delete::builder().table_name(table).key("pk", lease_key(backend, lease));
    let count = Update::builder()
        .table_name(table)
        .key("pk", counter_key(backend))
        .update_expression("SET active = active - :one, updated_ms = :now")
        .condition_expression("attribute_exists(active) AND active >= :one")
        .expression_attribute_values(":one", number(1))
        .expression_attribute_values(":now", number(now_ms()));
    Ok([
        TransactWriteItem::builder().delete(delete.build()?).build(),
        TransactWriteItem::builder().update(count.build()?).build(),
    ])
}

async fn transact(client: &Client, items: &[TransactWriteItem], trips: &AtomicU64) -> Result<()> {
    for tried in 0..TRIES_MAX {
        trips.fetch_add(1, Ordering::Relaxed);
        let call = client.transact_write_items().set_transact_items(Some(items.to_vec()));
        let Err(error) = call.send().await else { return Ok(()) };
        let met_another = error.as_service_error().is_some_and(|error| {
            // the reasons are in the message, too
            let text = error.message().unwrap_or_default();
            error.is_transaction_in_progress_exception() || text.contains("TransactionConflict")
        });
        if !met_another {
            return Err(error).context("a transaction of the seeds' scheme failed");
        }
        back_off(tried).await;
    }
    bail!("a transaction of the seeds' scheme met another {TRIES_MAX} times")
}

/// One permit of the present second.
async fn permit(client: &Client, table: &str, backend: &str, trips: &AtomicU64) -> Result<()> {
    for tried in 0..TRIES_MAX {
        let now = now_ms();
        let second = now / 1000;
        trips.fetch_add(1, Ordering::Relaxed);
        let call = client
            .update_item()
            .table_name(table)
            .key("pk", AttributeValue::S(format!("dsqlconnect#{backend}#{second}")))
            .update_expression("SET updated_at_ms = :now, ttl_epoch = :end ADD #count :one")
            .condition_expression("attribute_not_exists(#count) OR #count <= :last")
            .expression_attribute_names("#count", "count")
            .expression_attribute_values(":one", number(1))
            .expression_attribute_values(":last", number(PERMITS - 1))
            .expression_attribute_values(":now", number(now))
            .expression_attribute_values(":end", number(second + 180));
        let Err(error) = call.send().await else { return Ok(()) };
        if !conflicts(&error) {
            return Err(error).context("a permit of the seeds' scheme was not given");
        }
        back_off(tried).await;
    }
    bail!("a permit of the seeds' scheme met another {TRIES_MAX} times")
}

fn conflicts<E: ProvideErrorMetadata>(error: &SdkError<E>) -> bool {
    error.code() == Some("TransactionConflictException")
}

/// Short, so that little of the time is waiting.
async fn back_off(tried: u32) {
    let most = Duration::from_millis(1) * 2_u32.pow(tried.min(5));
    tokio::time::sleep(most.mul_f64(fastrand::f64())).await;
}

fn counter_key(backend: &str) -> AttributeValue {
    AttributeValue::S(format!("dsqllease_counter#{backend}"))
}

fn lease_key(backend: &str, lease: &str) -> AttributeValue {
    AttributeValue::S(format!("dsqllease#{backend}#{lease}"))
}

fn number(value: impl ToString) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

fn lease_id() -> String {
    format!("{:032x}", fastrand::u128(..))
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
