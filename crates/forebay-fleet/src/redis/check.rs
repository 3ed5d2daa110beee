//! Looks whether a server can keep the books: its version, its role, what it does
//! when memory runs out, and what the user may do.

use redis::aio::MultiplexedConnection;

use super::dial::Dialler;
use super::fault::{describe, garbled, unusable};
use super::link::Links;
use super::script;
use crate::keeper::KeeperError;

/// The oldest version whose scripts behave as ours need.
const OLDEST: (u32, u32) = (6, 2);

/// Tries every command that the scripts use on keys of its own, and lists what
/// the user may not do.
const TRIAL: &str = include_str!("scripts/trial.lua");

pub(super) async fn check(dialler: &Dialler, links: &Links, nonce: u64) -> Result<(), KeeperError> {
    let mut server = dialler.any_server().await?;
    let info = Info::ask(&mut server).await?;
    check_version(&info)?;
    check_mode(&info, dialler.settings().is_cluster())?;
    if info.get("role") == Some("slave") && !dialler.settings().is_cluster() {
        return Err(unusable(
            "the server is a read-only replica",
            "give the address of the primary, or use redis+sentinel so that failovers are followed",
        ));
    }
    check_memory(&info);
    check_permissions(dialler, links, nonce).await
}

fn check_version(info: &Info) -> Result<(), KeeperError> {
    // Valkey and others say here which Redis they are like
    let found = info.get("redis_version").ok_or_else(|| garbled("INFO"))?;
    let mut numbers = found.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < OLDEST {
        let (major, minor) = OLDEST;
        let reason = format!("the server is Redis {found}, and {major}.{minor} or newer is needed");
        return Err(unusable(reason, "upgrade the server; Valkey will do as well"));
    }
    if info.get("run_id").is_none() {
        tracing::warn!(
            "this redis does not tell its run id: after a failover that lost writes the books may \
             be wrong for one ttl; use a server whose INFO has run_id, or on_loss: fence"
        );
    }
    Ok(())
}

fn check_mode(info: &Info, cluster: bool) -> Result<(), KeeperError> {
    let mode = info.get("redis_mode").or_else(|| info.get("server_mode")).unwrap_or("standalone");
    match (mode, cluster) {
        ("cluster", false) => Err(unusable(
            "the server is a node of a cluster",
            "begin the URL with redis+cluster and name several nodes",
        )),
        ("standalone", true) => Err(unusable(
            "the server is not part of a cluster",
            "begin the URL with redis or rediss",
        )),
        ("sentinel", _) => Err(unusable(
            "the server is a sentinel",
            "begin the URL with redis+sentinel and end it with the name of the primary",
        )),
        _ => Ok(()),
    }
}

fn check_memory(info: &Info) {
    let policy = info.get("maxmemory_policy").unwrap_or("noeviction");
    let bounded = info.get("maxmemory").is_some_and(|most| most != "0");
    // without an own limit a server evicts nothing now, but somebody may set one
    if policy != "noeviction" {
        tracing::warn!(
            policy,
            bounded,
            "this redis may evict the books when its memory is full, and then the fleet stands still \
             for one ttl; set maxmemory-policy to noeviction, or use a server of its own"
        );
    }
}

async fn check_permissions(
    dialler: &Dialler,
    links: &Links,
    nonce: u64,
) -> Result<(), KeeperError> {
    let backend = format!("forebay-check-{nonce:016x}");
    let mut cmd = redis::cmd("EVAL");
    cmd.arg(TRIAL).arg(3);
    for name in ["book", "members", "waiting"] {
        cmd.arg(script::key(&backend, name));
    }
    cmd.arg(script::channel(&backend));
    let refused: Vec<String> = script::read(links.query(&cmd).await?, "a trial of permissions")?;
    if !refused.is_empty() {
        return Err(unusable(
            format!("the user may not do what is needed: {}", refused.join(", ")),
            "grant what docs/fleet-redis.md lists under permissions, with ACL SETUSER",
        ));
    }
    let mut cmd = redis::cmd("EVALSHA");
    let answer =
        links.query(cmd.arg("0".repeat(40)).arg(1).arg(script::key(&backend, "book"))).await;
    match answer {
        Err(super::link::Fault::Server(error)) if error.code() == Some("NOSCRIPT") => {}
        Err(fault) => return Err(fault.into()),
        Ok(_) => return Err(garbled("EVALSHA")),
    }
    for verb in ["SADD", "SREM"] {
        let mut cmd = redis::cmd(verb);
        links.query(cmd.arg(super::BACKENDS).arg(&backend)).await?;
    }
    let mut cmd = redis::cmd("SMEMBERS");
    links.query(cmd.arg(super::BACKENDS)).await?;
    let (pushes, _heard) = tokio::sync::mpsc::unbounded_channel();
    let mut subscriber = dialler.subscriber(pushes).await?;
    let subscribed = subscriber.subscribe(script::channel(&backend)).await;
    subscribed.map_err(|error| describe(&error))
}

/// What the server says of itself.
struct Info(String);

impl Info {
    async fn ask(server: &mut MultiplexedConnection) -> Result<Self, KeeperError> {
        let mut all = String::new();
        // in one call only since Redis 7
        for section in ["server", "replication", "memory"] {
            let mut cmd = redis::cmd("INFO");
            let said: String =
                cmd.arg(section).query_async(server).await.map_err(|error| describe(&error))?;
            all.push_str(&said);
            all.push('\n');
        }
        Ok(Self(all))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| {
            let (found, value) = line.trim_end().split_once(':')?;
            (found == name).then_some(value)
        })
    }
}
