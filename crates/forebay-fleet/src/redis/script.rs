//! The scripts that run inside Redis, what they are given, and what their answers
//! mean. Numbers go through Lua's doubles, so each is bounded to what they hold.

use redis::{Cmd, FromRedisValue, Value};

use super::fault::garbled;
use super::link::{Fault, Links};
use crate::keeper::KeeperError;
use crate::message::{
    Answer, BackendInfo, Booking, Limits, MemberId, MemberInfo, Profile, Report, Reserve, Reserved,
};

/// Ten years; longer times are taken for this.
const TIME_MAX_MS: u64 = 10 * 366 * 24 * 3600 * 1000;
/// Larger weights are taken for this.
const WEIGHT_MAX: u32 = (1 << 24) - 1;

macro_rules! script {
    ($name:literal) => {
        concat!(
            include_str!("scripts/books.lua"),
            include_str!("scripts/rate.lua"),
            include_str!(concat!("scripts/", $name, ".lua"))
        )
    };
}

/// One script, with the name by which the server has it once it has seen it.
pub(super) struct Script {
    name: &'static str,
    code: &'static str,
    hash: String,
}

/// All of them.
pub(super) struct Scripts {
    pub(super) report: Script,
    pub(super) reserve: Script,
    pub(super) refused: Script,
    pub(super) setup: Script,
    pub(super) inspect: Script,
    pub(super) reap: Script,
}

impl Scripts {
    pub(super) fn new() -> Self {
        let script = |name, code| {
            let hash = redis::Script::new(code).get_hash().to_owned();
            Script { name, code, hash }
        };
        Self {
            report: script("report", script!("report")),
            reserve: script("reserve", script!("reserve")),
            refused: script("refused", script!("refused")),
            setup: script("setup", script!("setup")),
            inspect: script("inspect", script!("inspect")),
            reap: script("reap", script!("reap")),
        }
    }
}

/// The key of one backend; all share a hash tag, and so a slot of a cluster.
pub(super) fn key(backend: &str, name: &str) -> String {
    format!("{{proxy:bucket:{backend}}}:{name}")
}

/// In the order in which scripts expect them.
const KEYS: [&str; 11] = [
    "book", "count", "max", "members", "profiles", "expiry", "waiting", "rich", "opens", "rates",
    "bursts",
];

/// The channel on which a backend's news are announced.
pub(super) fn channel(backend: &str) -> String {
    key(backend, "news")
}

/// The backend that a channel belongs to.
pub(super) fn backend_of(channel: &str) -> Option<&str> {
    channel.strip_prefix("{proxy:bucket:")?.strip_suffix("}:news")
}

impl Script {
    /// Runs it on a backend's books. A server that does not know it, because it was
    /// restarted, flushed or has taken over, is given the whole text.
    pub(super) async fn run(
        &self,
        links: &Links,
        backend: &str,
        keep_s: u64,
        args: &[Vec<u8>],
    ) -> Result<Value, KeeperError> {
        let command = |verb: &str, code: &str| -> Cmd {
            let mut cmd = redis::cmd(verb);
            cmd.arg(code).arg(KEYS.len());
            for name in KEYS {
                cmd.arg(key(backend, name));
            }
            cmd.arg(channel(backend)).arg(keep_s).arg(args);
            cmd
        };
        match links.query(&command("EVALSHA", &self.hash)).await {
            Err(Fault::Server(error)) if error.code() == Some("NOSCRIPT") => {
                tracing::debug!(script = self.name, "redis is given a script it does not have");
                Ok(links.query(&command("EVAL", self.code)).await?)
            }
            result => Ok(result?),
        }
    }
}

fn arg(value: impl ToString) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn millis(value: u64) -> Vec<u8> {
    arg(value.min(TIME_MAX_MS))
}

fn generation(nonce: u64) -> Vec<u8> {
    arg(format!("{nonce:016x}"))
}

pub(super) fn report_args(report: &Report) -> Vec<Vec<u8>> {
    let profile = &report.profile;
    let limits = &profile.limits;
    let said = serde_json::to_string(profile).unwrap_or_default();
    vec![
        arg(&report.member),
        arg(report.seq),
        arg(report.held),
        arg(report.want),
        arg(report.waiters),
        arg(report.share),
        report.elapsed_ms.map_or_else(Vec::new, millis),
        millis(report.pause_ms),
        arg(u8::from(report.leave)),
        generation(report.nonce),
        arg(profile.weight.clamp(1, WEIGHT_MAX)),
        arg(profile.divisor),
        arg(limits.open.min(Limits::MAX)),
        arg(limits.rate.min(Limits::MAX)),
        arg(limits.burst.min(Limits::MAX)),
        arg(limits.version.min(Limits::VERSION_MAX)),
        millis(profile.ttl_ms),
        millis(profile.heartbeat_ms),
        millis(profile.margin_ms),
        millis(profile.reclaim_ms),
        said.into_bytes(),
    ]
}

pub(super) fn reserve_args(reserve: &Reserve) -> Vec<Vec<u8>> {
    vec![
        arg(reserve.permits.min(Limits::MAX)),
        millis(reserve.max_wait_ms),
        arg(reserve.limits.rate.min(Limits::MAX)),
        arg(reserve.limits.burst.min(Limits::MAX)),
        generation(reserve.nonce),
        millis(reserve.ttl_ms),
    ]
}

pub(super) fn refused_args(limits: &Limits, nonce: u64, ttl_ms: u64) -> Vec<Vec<u8>> {
    let (rate, burst) = (limits.rate.min(Limits::MAX), limits.burst.min(Limits::MAX));
    vec![arg(rate), arg(burst), generation(nonce), millis(ttl_ms)]
}

pub(super) fn setup_args(nonce: u64) -> Vec<Vec<u8>> {
    vec![generation(nonce)]
}

pub(super) fn reap_args(member: &MemberId) -> Vec<Vec<u8>> {
    vec![arg(member)]
}

/// A value of the kind that a script's answer has there.
pub(super) fn read<T: FromRedisValue>(value: Value, what: &str) -> Result<T, KeeperError> {
    redis::from_redis_value(value).map_err(|_| garbled(what))
}

pub(super) fn read_answer(value: Value) -> Result<Answer, KeeperError> {
    type Booked = (String, u32, u32, u32, bool, u32, String, u32, u32, u64);
    let mut parts: Vec<Value> = read(value, "a report")?;
    if parts.is_empty() {
        return Err(garbled("a report"));
    }
    let kind: String = read(parts.remove(0), "a report")?;
    match kind.as_str() {
        "stale" => Ok(Answer::Stale),
        "reaped" => Ok(Answer::Reaped),
        "booked" => {
            let booked: Booked = read(Value::Array(parts), "a report")?;
            let (generation, held, share, recall, contended, ..) = booked.clone();
            let (.., limit, limit_by, total, members, declaring_ms) = booked;
            Ok(Answer::Booked(Booking {
                generation,
                held,
                share,
                recall,
                contended,
                limit,
                limit_by,
                total,
                members,
                declaring_ms,
            }))
        }
        _ => Err(garbled("a report")),
    }
}

pub(super) fn read_reserved(value: Value) -> Result<Reserved, KeeperError> {
    let (lead_us, interval_us, permits) = read(value, "a reservation")?;
    Ok(Reserved { lead_us, interval_us, permits })
}

/// A page as the scripts keep it.
#[derive(serde::Deserialize)]
struct Page {
    held: u32,
    reserved: u32,
    want: u32,
    waiters: u32,
    share: u32,
    recall: u32,
    renewed: u64,
}

pub(super) fn read_info(backend: &str, value: Value) -> Result<BackendInfo, KeeperError> {
    type Books = (
        String,
        u64,
        u32,
        u32,
        u64,
        Vec<(String, String)>,
        std::collections::BTreeMap<String, String>,
    );
    let what = "an inspection";
    let (generation, now_ms, limit, total, declaring_ms, pages, profiles): Books =
        read(value, what)?;
    let mut members = Vec::with_capacity(pages.len());
    for (member, page) in pages {
        let page: Page = serde_json::from_str(&page).map_err(|_| garbled(what))?;
        let profile = profiles.get(&member).ok_or_else(|| garbled(what))?;
        let profile: Profile = serde_json::from_str(profile).map_err(|_| garbled(what))?;
        members.push(MemberInfo {
            member: MemberId::from_stored(member),
            profile,
            held: page.held + page.reserved,
            want: page.want,
            waiters: page.waiters,
            share: page.share,
            recall: page.recall,
            silent_ms: Some(now_ms.saturating_sub(page.renewed)),
        });
    }
    members.sort_by(|a, b| a.member.cmp(&b.member));
    let backend = backend.to_owned();
    Ok(BackendInfo { backend, generation, limit, total, declaring_ms, members })
}
