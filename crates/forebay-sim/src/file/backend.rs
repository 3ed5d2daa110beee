//! The backends and the coordinator of a scenario file.

use std::time::Duration;

use forebay_fleet::{BackendLimits, Limits, MemberSettings, OnLoss};

use super::node::Value;
use super::table::{Field, Table, is_name, twice};
use super::{Fault, keys, or, or_none};
use crate::scenario::{BackendModel, Coordinator, Refusal, Spread};

/// Backends, copies included.
const BACKENDS_MAX: u32 = 10_000;

/// Aurora DSQL's contract, which is what holds for what a file leaves out.
fn dsql() -> BackendModel {
    let ms = Duration::from_micros;
    BackendModel {
        name: "backend".to_owned(),
        copies: 1,
        open: Some(10_000),
        rate: Some(100),
        burst: 1_000,
        reserve: 0,
        rate_reserve: 0,
        handshake: Spread::Percentiles { p50: ms(15_500), p99: ms(120_000) },
        fail: 0.0,
        hang: 0.0,
        lifetime: Some(Duration::from_secs(3600)),
        refusal: Refusal::Coded,
        let_go: Spread::Fixed(Duration::from_millis(1)),
    }
}

/// `backend` or `backends`, or one like DSQL. The seeds say the rate with
/// `limiterPerSec` and the name with `endpoint`.
pub(super) fn read_all(scenario: &Table<'_>) -> Result<Vec<BackendModel>, Fault> {
    let mut usual = dsql();
    if let Some(field) = scenario.get("endpoint") {
        let endpoint = field.text()?;
        if is_name(&endpoint) {
            usual.name = endpoint;
        }
    }
    let limiter = scenario.get("limiterPerSec");
    if let Some(field) = limiter {
        usual.rate = Some(field.count(1..=Limits::MAX)?);
    }
    let fields = match (scenario.get("backend"), scenario.get("backends")) {
        (None, None) => return Ok(vec![usual]),
        (Some(one), None) => vec![one],
        (None, Some(list)) => list.list("a list of backends")?,
        (Some(one), Some(list)) => {
            let later = std::cmp::max_by_key(one, list, |field| field.key_at);
            let earlier = std::cmp::min_by_key(one, list, |field| field.key_at);
            return Err(twice(earlier.key, later.key, later.key_at));
        }
    };
    if fields.is_empty() {
        let field = scenario.need("backends")?;
        return Err(field.fault("is empty; expected at least one backend"));
    }
    let several = fields.len() > 1;
    let mut backends: Vec<BackendModel> = Vec::new();
    let mut total = 0;
    for field in fields {
        let table = field.table("a backend", keys::BACKEND)?;
        if let (Some(limiter), Some(rate)) = (limiter, table.get("rate")) {
            return Err(twice(limiter.key, rate.key, rate.key_at));
        }
        if several {
            table.need("name")?;
        }
        let backend = read_one(&table, &usual)?;
        if let Some(name) = table.get("name")
            && backends.iter().any(|other| other.name == backend.name)
        {
            return Err(name.fault(format!("`{}` is the name of another backend", backend.name)));
        }
        total += backend.copies;
        if total > BACKENDS_MAX {
            let message = format!("there are {total} backends by here; at most {BACKENDS_MAX}");
            return Err(Fault::new(table.at, message));
        }
        backends.push(backend);
    }
    Ok(backends)
}

fn read_one(table: &Table<'_>, usual: &BackendModel) -> Result<BackendModel, Fault> {
    let limit = |field: Field<'_>| field.count(1..=Limits::MAX);
    let reserve = |field: Field<'_>| field.count(0..=Limits::MAX);
    let backend = BackendModel {
        name: or(table.get("name"), usual.name.clone(), |field| field.name())?,
        copies: or(table.get("copies"), usual.copies, |field| field.count(1..=BACKENDS_MAX))?,
        open: or_none(table.get("open"), usual.open, limit)?,
        rate: or_none(table.get("rate"), usual.rate, limit)?,
        burst: or(table.get("burst"), usual.burst, limit)?,
        reserve: or(table.get("reserve"), usual.reserve, reserve)?,
        rate_reserve: or(table.get("rate_reserve"), usual.rate_reserve, reserve)?,
        handshake: or(table.get("handshake"), usual.handshake, |field| field.spread())?,
        fail: or(table.get("fail"), usual.fail, |field| field.share())?,
        hang: or(table.get("hang"), usual.hang, |field| field.share())?,
        lifetime: or_none(table.get("lifetime"), usual.lifetime, |field| field.span_above_zero())?,
        refusal: or(table.get("refusal"), usual.refusal, |field| {
            field.word(&[("coded", Refusal::Coded), ("silent", Refusal::Silent)])
        })?,
        let_go: or(table.get("let_go"), usual.let_go, |field| field.spread())?,
    };
    if let Some(field) = table.get("hang")
        && backend.fail + backend.hang > 1.0
    {
        let BackendModel { fail, hang, .. } = backend;
        return Err(field.fault(format!("({hang}) and `fail` ({fail}) are more than 1 together")));
    }
    for (reserve, kept, limit, most) in [
        ("reserve", backend.reserve, "open", backend.open),
        ("rate_reserve", backend.rate_reserve, "rate", backend.rate),
    ] {
        if let (Some(field), Some(most)) = (table.get(reserve), most)
            && kept >= most
        {
            let message = format!("({kept}) leaves nothing of `{limit}` ({most})");
            return Err(field.fault(message));
        }
    }
    let limits = BackendLimits {
        open: backend.open,
        reserve: backend.reserve,
        rate: backend.rate,
        rate_reserve: backend.rate_reserve,
        burst: backend.burst,
        version: 0,
    };
    limits.check().map_err(|error| table.fault(&error.to_string()))?;
    Ok(backend)
}

/// A Redis nearby whose books were set up before.
fn redis() -> Coordinator {
    let MemberSettings { on_loss, ttl, heartbeat, margin, request_timeout, divisor, .. } =
        MemberSettings::new("instance", "service");
    Coordinator {
        announces: true,
        latency: Spread::Percentiles {
            p50: Duration::from_millis(1),
            p99: Duration::from_millis(5),
        },
        loss: 0.0,
        on_loss,
        ttl,
        heartbeat,
        margin,
        request_timeout,
        reclaim_after: ttl,
        divisor,
        is_set_up: true,
    }
}

/// A DynamoDB in the same region.
fn dynamodb() -> Coordinator {
    let latency =
        Spread::Percentiles { p50: Duration::from_millis(5), p99: Duration::from_millis(25) };
    Coordinator { announces: false, latency, ..redis() }
}

/// `coordinator`: `none`, a kind, or a mapping.
pub(super) fn read_coordinator(field: Option<Field<'_>>) -> Result<Option<Coordinator>, Fault> {
    let Some(field) = field else { return Ok(Some(redis())) };
    if field.is_none() {
        return Ok(None);
    }
    let kinds = [("redis", true), ("dynamodb", false)];
    let usual_of = |is_redis| if is_redis { redis() } else { dynamodb() };
    if !matches!(field.node.value, Value::Map(_)) {
        let words = [("none", None), ("redis", Some(true)), ("dynamodb", Some(false))];
        let or_mapping = |fault: Fault| fault.and(" (or a mapping with more about it)");
        return Ok(field.word(&words).map_err(or_mapping)?.map(usual_of));
    }
    let table = field.table("a coordinator", keys::COORDINATOR)?;
    let usual = usual_of(or(table.get("kind"), true, |field| field.word(&kinds))?);
    let ttl = or(table.get("ttl"), usual.ttl, |field| field.span())?;
    let policies = [("share", OnLoss::Share), ("fence", OnLoss::Fence), ("hold", OnLoss::Hold)];
    let span = |key, usual| or(table.get(key), usual, |field| field.span());
    let coordinator = Coordinator {
        announces: or(table.get("announces"), usual.announces, |field| field.flag())?,
        latency: or(table.get("latency"), usual.latency, |field| field.spread())?,
        loss: or(table.get("loss"), usual.loss, |field| field.share())?,
        on_loss: or(table.get("on_loss"), usual.on_loss, |field| field.word(&policies))?,
        ttl,
        heartbeat: span("heartbeat", usual.heartbeat)?,
        margin: span("margin", usual.margin)?,
        request_timeout: span("request_timeout", usual.request_timeout)?,
        reclaim_after: span("reclaim_after", ttl)?,
        divisor: or(table.get("divisor"), usual.divisor, |field| field.count(1..=10_000))?,
        is_set_up: or(table.get("is_set_up"), usual.is_set_up, |field| field.flag())?,
    };
    let settings = MemberSettings {
        ttl: coordinator.ttl,
        heartbeat: coordinator.heartbeat,
        margin: coordinator.margin,
        request_timeout: coordinator.request_timeout,
        reclaim_after: coordinator.reclaim_after,
        divisor: coordinator.divisor,
        ..MemberSettings::new("instance", "service")
    };
    settings.check().map_err(|error| table.fault(&error.to_string()))?;
    Ok(Some(coordinator))
}
