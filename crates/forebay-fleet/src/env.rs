//! A fleet's budgets from the environment: the `DSQL_CONNECTION_*`,
//! `DSQL_STAGGERED_STARTUP*` and `DSQL_DISTRIBUTED_*` variables of the Temporal DSQL
//! plugin. Read leniently, as [`forebay::Settings::from_env`] reads the reservoir's,
//! with one exception: a budget that is switched on without a table is refused.

use std::time::Duration;

use forebay::lenient::{Reader, variable};
use forebay::{Correction, Rate};

use crate::message::Limits;
use crate::settings::{BackendLimits, InvalidSettings, invalid};

const RATE: &str = "DSQL_CONNECTION_RATE_LIMIT";
const BURST: &str = "DSQL_CONNECTION_BURST_LIMIT";
const STAGGER: &str = "DSQL_STAGGERED_STARTUP";
const STAGGER_MAX: &str = "DSQL_STAGGERED_STARTUP_MAX_DELAY";
const FLEET_RATE_ENABLED: &str = "DSQL_DISTRIBUTED_RATE_LIMITER_ENABLED";
const FLEET_RATE_TABLE: &str = "DSQL_DISTRIBUTED_RATE_LIMITER_TABLE";
const FLEET_RATE: &str = "DSQL_DISTRIBUTED_RATE_LIMITER_LIMIT";
const FLEET_RATE_WAIT: &str = "DSQL_DISTRIBUTED_RATE_LIMITER_MAX_WAIT";
const COUNT_ENABLED: &str = "DSQL_DISTRIBUTED_CONN_LEASE_ENABLED";
const COUNT_TABLE: &str = "DSQL_DISTRIBUTED_CONN_LEASE_TABLE";
const COUNT: &str = "DSQL_DISTRIBUTED_CONN_LIMIT";

/// Opens a second of one process, and of the fleet, if nothing else is said.
const RATE_DEFAULT: u32 = 10;
const BURST_DEFAULT: u32 = 100;
const FLEET_RATE_DEFAULT: u32 = 100;
const COUNT_DEFAULT: u32 = 10_000;
const STAGGER_DEFAULT: Duration = Duration::from_secs(5);
const WAIT_DEFAULT: Duration = Duration::from_secs(30);

/// The budgets that the environment asks for.
///
/// ```
/// use forebay_fleet::FleetEnv;
/// let vars = |name: &str| match name {
///     "DSQL_DISTRIBUTED_CONN_LEASE_ENABLED" => Some("true".to_owned()),
///     "DSQL_DISTRIBUTED_CONN_LEASE_TABLE" => Some("temporal-dsql-conn-lease".to_owned()),
///     _ => None,
/// };
/// let env = FleetEnv::from_vars(vars)?;
/// assert_eq!(env.tables[0].table, "temporal-dsql-conn-lease");
/// assert_eq!(env.tables[0].limits.open, Some(10_000));
/// // the rate is not shared: each process has its own
/// assert_eq!(env.local_rate.map(|rate| rate.per_second()), Some(10));
/// # Ok::<(), forebay_fleet::InvalidSettings>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FleetEnv {
    /// How fast this process opens connections by itself; `None` if the fleet's rate
    /// takes its place.
    pub local_rate: Option<Rate>,
    /// What is shared, by the table it is kept in: nothing, one table for either or
    /// both budgets, or one for each. Every table takes a member of its own.
    pub tables: Vec<EnvTable>,
    /// For [`MemberSettings::max_wait`](crate::MemberSettings::max_wait).
    pub max_wait: Duration,
    /// For the pool's `stagger`: the initial fill begins after a random part of it.
    pub stagger: Option<Duration>,
    /// What was given and could not be used as it was.
    pub corrections: Vec<Correction>,
}

/// What is shared through one DynamoDB table. Use a backend's `count` only if
/// `limits.open` is given, and its `rate` only if `limits.rate` is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EnvTable {
    /// The table.
    pub table: String,
    /// What is kept there.
    pub limits: BackendLimits,
}

impl FleetEnv {
    /// Reads the variables of this process. Every correction is logged as a warning.
    ///
    /// # Errors
    /// If a budget is switched on and its table is not named.
    pub fn from_env() -> Result<Self, InvalidSettings> {
        Self::from_vars(variable)
    }

    /// As [`from_env`](Self::from_env), from any other place that has variables.
    ///
    /// # Errors
    /// If a budget is switched on and its table is not named.
    pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> Result<Self, InvalidSettings> {
        let mut reader = Reader::new(&var);
        let rate_table = table(&mut reader, FLEET_RATE_ENABLED, FLEET_RATE_TABLE)?;
        let count_table = table(&mut reader, COUNT_ENABLED, COUNT_TABLE)?;
        let rate = rate_table.is_some().then(|| limit(&mut reader, FLEET_RATE, FLEET_RATE_DEFAULT));
        let open = count_table.is_some().then(|| limit(&mut reader, COUNT, COUNT_DEFAULT));
        let max_wait = match rate {
            Some(_) => reader.life(FLEET_RATE_WAIT, WAIT_DEFAULT),
            None => WAIT_DEFAULT,
        };
        let local_rate = match rate {
            Some(_) => None,
            None => {
                let per_second = limit(&mut reader, RATE, RATE_DEFAULT);
                let burst = limit(&mut reader, BURST, BURST_DEFAULT);
                Rate::new(per_second, burst).ok()
            }
        };
        let stagger = reader
            .boolean(STAGGER, true)
            .then(|| reader.span(STAGGER_MAX, STAGGER_DEFAULT))
            .filter(|delay| !delay.is_zero());
        Ok(Self {
            local_rate,
            tables: tables(count_table.zip(open), rate_table.zip(rate)),
            max_wait,
            stagger,
            corrections: reader.finish(),
        })
    }
}

/// The table of a budget that is switched on.
fn table(
    reader: &mut Reader<'_>,
    enabled: &'static str,
    table: &str,
) -> Result<Option<String>, InvalidSettings> {
    if !reader.boolean(enabled, false) {
        return Ok(None);
    }
    let missing = || {
        invalid(format!(
            "{enabled} is true and {table} is not set; name a DynamoDB table (`forebay fleet setup \
             dynamodb --table NAME` makes one), or set {enabled} to false"
        ))
    };
    reader.given(table).ok_or_else(missing).map(Some)
}

fn limit(reader: &mut Reader<'_>, name: &'static str, default: u32) -> u32 {
    reader.count(name, Limits::MAX, "the largest limit", default).unwrap_or(default)
}

fn tables(open: Option<(String, u32)>, rate: Option<(String, u32)>) -> Vec<EnvTable> {
    // within one second the plugin lets all of the limit go at once
    let limits = |open: Option<u32>, rate: Option<u32>| BackendLimits {
        open,
        reserve: 0,
        rate,
        rate_reserve: 0,
        burst: rate.unwrap_or(0),
        version: 0,
    };
    match (open, rate) {
        (Some((table, open)), Some((other, rate))) if table == other => {
            vec![EnvTable { table, limits: limits(Some(open), Some(rate)) }]
        }
        (open, rate) => {
            let open =
                open.map(|(table, open)| EnvTable { table, limits: limits(Some(open), None) });
            let rate =
                rate.map(|(table, rate)| EnvTable { table, limits: limits(None, Some(rate)) });
            open.into_iter().chain(rate).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(vars: &[(&str, &str)]) -> Result<FleetEnv, InvalidSettings> {
        FleetEnv::from_vars(|name| {
            vars.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    fn told(env: &FleetEnv) -> Vec<String> {
        env.corrections.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn without_variables_only_this_process_is_paced() {
        let env = read(&[]).expect("nothing is wrong");
        let rate = env.local_rate.expect("a rate");
        assert_eq!((rate.per_second(), rate.burst()), (10, 100));
        assert_eq!((env.tables.as_slice(), env.max_wait), (&[][..], WAIT_DEFAULT));
        assert_eq!((env.stagger, env.corrections.as_slice()), (Some(STAGGER_DEFAULT), &[][..]));
    }

    #[test]
    fn the_rate_of_the_fleet_takes_the_place_of_the_local_one() {
        let env = read(&[
            (FLEET_RATE_ENABLED, "true"),
            (FLEET_RATE_TABLE, "rates"),
            (FLEET_RATE_WAIT, "1m"),
            (RATE, "nonsense nobody reads"),
        ])
        .expect("nothing is wrong");
        assert_eq!((env.local_rate, env.max_wait), (None, Duration::from_secs(60)));
        let [EnvTable { table, limits }] = env.tables.as_slice() else { panic!("{env:?}") };
        assert_eq!((table.as_str(), limits.open), ("rates", None));
        assert_eq!((limits.rate, limits.burst), (Some(100), 100));
        assert!(limits.check().is_ok());
        assert_eq!(told(&env), [""; 0]);
    }

    #[test]
    fn one_table_for_both_is_one_member_and_two_are_two() {
        let both = |rates| {
            let vars = [
                (FLEET_RATE_ENABLED, "1"),
                (FLEET_RATE_TABLE, rates),
                (FLEET_RATE, "50"),
                (COUNT_ENABLED, "T"),
                (COUNT_TABLE, "leases"),
                (COUNT, "500"),
            ];
            read(&vars).expect("nothing is wrong").tables
        };
        let limits = |table: &EnvTable| (table.limits.open, table.limits.rate);
        let one = both("leases");
        assert_eq!(one.iter().map(limits).collect::<Vec<_>>(), [(Some(500), Some(50))]);
        let two = both("rates");
        assert_eq!(
            two.iter().map(limits).collect::<Vec<_>>(),
            [(Some(500), None), (None, Some(50))]
        );
        assert!(two.iter().all(|table| table.limits.check().is_ok()));
    }

    #[test]
    fn a_budget_without_a_table_is_refused_with_the_remedy() {
        for (enabled, table) in
            [(FLEET_RATE_ENABLED, FLEET_RATE_TABLE), (COUNT_ENABLED, COUNT_TABLE)]
        {
            let error =
                read(&[(enabled, "true"), (table, "  ")]).expect_err("no table").to_string();
            assert!(error.starts_with(&format!("{enabled} is true and {table} is not set")));
            assert!(error.contains("forebay fleet setup dynamodb --table NAME"), "{error}");
            assert!(read(&[(enabled, "false"), (table, "")]).is_ok());
        }
    }

    #[test]
    fn what_cannot_be_used_is_corrected_and_said() {
        let env = read(&[
            (RATE, "ten"),
            (BURST, "0"),
            (STAGGER, "yes"),
            (STAGGER_MAX, "-3s"),
            (COUNT_ENABLED, "true"),
            (COUNT_TABLE, "leases"),
            (COUNT, "5000000"),
        ])
        .expect("lenient");
        assert_eq!(env.local_rate.map(|rate| (rate.per_second(), rate.burst())), Some((10, 100)));
        assert_eq!((env.tables[0].limits.open, env.stagger), (Some(Limits::MAX), None));
        assert_eq!(
            told(&env),
            [
                "DSQL_DISTRIBUTED_CONN_LIMIT: 5000000 is over the largest limit (4194303); using \
                 4194303",
                "DSQL_CONNECTION_RATE_LIMIT: ten is not a whole number; using 10",
                "DSQL_CONNECTION_BURST_LIMIT: 0 is not at least 1; using 100",
                "DSQL_STAGGERED_STARTUP: yes is not a boolean (true, false, 1, 0, t, f); using true",
                "DSQL_STAGGERED_STARTUP_MAX_DELAY: -3s is negative; using 0ns",
            ]
        );
    }

    #[test]
    fn the_staggered_start_can_be_switched_off() {
        let env = read(&[(STAGGER, "false"), (STAGGER_MAX, "not read")]).expect("lenient");
        assert_eq!((env.stagger, env.corrections.len()), (None, 0));
        let env = read(&[(STAGGER_MAX, "250ms")]).expect("lenient");
        assert_eq!(env.stagger, Some(Duration::from_millis(250)));
    }
}
