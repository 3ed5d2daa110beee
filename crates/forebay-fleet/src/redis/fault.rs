//! What a server's error means for a member, and what an operator can do about it.

use redis::{ErrorKind, RedisError};

use crate::keeper::KeeperError;

/// The name in errors and logs.
pub(super) const NAME: &str = "redis";

pub(super) fn away(reason: impl Into<String>) -> KeeperError {
    KeeperError::Away { keeper: NAME, reason: reason.into() }
}

pub(super) fn unusable(reason: impl Into<String>, remedy: impl Into<String>) -> KeeperError {
    KeeperError::Unusable { keeper: NAME, reason: reason.into(), remedy: remedy.into() }
}

/// Adds where it happened.
pub(super) fn at(place: &impl std::fmt::Display, error: KeeperError) -> KeeperError {
    match error {
        KeeperError::Away { reason, .. } => away(format!("{reason} ({place})")),
        KeeperError::Unusable { reason, remedy, .. } => {
            unusable(format!("{reason} ({place})"), remedy)
        }
        other => other,
    }
}

/// An answer that no script of ours gives.
pub(super) fn garbled(what: &str) -> KeeperError {
    let remedy = "check that the address is that of a Redis server and not of something between";
    unusable(format!("the answer to {what} makes no sense"), remedy)
}

/// Says what an error means.
pub(super) fn describe(error: &RedisError) -> KeeperError {
    let said = error.to_string();
    let code = error.code().unwrap_or_default();
    if is_login(error, code, &said) {
        return unusable(
            "the server does not accept the user or the password",
            "set both in the URL or with user() and password(); ACL LIST on the server shows its users",
        );
    }
    // errors inside a script keep their own code only in the text
    let is = |name: &str| code == name || said.contains(name);
    if is("NOPERM")
        || said.contains("can't run this command")
        || said.contains("can't access at least one")
    {
        return unusable(
            format!("the user may not do what is needed: {said}"),
            "grant what docs/fleet-redis.md lists under permissions, with ACL SETUSER",
        );
    }
    if is("READONLY") {
        return away(
            "the server is a read-only replica; give the address of the primary, or use redis+sentinel \
             or the primary endpoint so that a failover is followed",
        );
    }
    if is("MISCONF") {
        let reason =
            "the server refuses writes because it cannot save to disk; free or repair its disk";
        return busy(reason);
    }
    if is("OOM") {
        return busy("the server is out of memory; raise maxmemory, the books need little of it");
    }
    if is("LOADING") {
        return away("the server is loading its data");
    }
    if is("CLUSTERDOWN") {
        return away("the cluster is down: slots are not served; see CLUSTER INFO on a node");
    }
    if is("MASTERDOWN") {
        return away("the server has lost its primary");
    }
    if is("BUSY") {
        return busy("the server runs another script that takes long; see SLOWLOG and SCRIPT KILL");
    }
    if is("NOREPLICAS") {
        return away(
            "the primary has lost its replicas and takes no writes (min-replicas-to-write)",
        );
    }
    if code == "MOVED" || code == "CROSSSLOT" || said.contains("MOVED ") {
        return unusable(
            "the server is a node of a cluster",
            "begin the URL with redis+cluster and name several nodes",
        );
    }
    if said.contains("cluster support disabled") {
        return unusable(
            "the server is not part of a cluster",
            "begin the URL with redis or rediss",
        );
    }
    if said.contains("unknown command 'SENTINEL'") {
        let remedy = "give the addresses of the sentinels, or begin the URL with redis or rediss";
        return unusable("the server is not a sentinel", remedy);
    }
    if said.contains("unknown command") {
        let remedy = "use Redis 6.2 or newer, or Valkey, with its commands under their own names";
        return unusable(format!("the server lacks a command: {said}"), remedy);
    }
    if said.contains("DB index is out of range") {
        let remedy = "use a lower one, or raise `databases` on the server";
        return unusable("the server has no database of this number", remedy);
    }
    match error.kind() {
        ErrorKind::InvalidClientConfig => unusable(said, "correct the settings"),
        ErrorKind::RESP3NotSupported => unusable(said, "use Redis 6.2 or newer, or Valkey"),
        _ if error.is_timeout() => away("no answer in time"),
        _ if error.is_connection_refusal() => {
            away("connection refused; is the server running there?")
        }
        _ if is_certificate(&said) => {
            let remedy = "give the authority with ca_file(), a certificate with client_cert() if the server wants \
                 one, and as the host the name that the server's certificate has";
            unusable(format!("TLS failed: {said}"), remedy)
        }
        _ => away(said),
    }
}

fn busy(reason: &str) -> KeeperError {
    KeeperError::Busy { keeper: NAME, reason: reason.to_owned() }
}

fn is_login(error: &RedisError, code: &str, said: &str) -> bool {
    error.kind() == ErrorKind::AuthenticationFailed
        || ["WRONGPASS", "NOAUTH"].iter().any(|name| code == *name || said.contains(name))
        || said.contains("AUTH <password> called without any password")
        || said.contains("invalid password")
}

fn is_certificate(said: &str) -> bool {
    ["certificate", "UnknownIssuer", "fatal alert", "HandshakeFailure", "corrupt message"]
        .iter()
        .any(|sign| said.contains(sign))
}

/// Whether a connection that gave this error is of no more use. A failover behind
/// one name leaves us with a server that has become a replica.
pub(super) fn is_broken(error: &RedisError) -> bool {
    let code = error.code().unwrap_or_default();
    error.is_io_error()
        || error.is_unrecoverable_error()
        || ["READONLY", "MASTERDOWN", "NOAUTH", "LOADING"].contains(&code)
        || error.to_string().contains("READONLY")
}
