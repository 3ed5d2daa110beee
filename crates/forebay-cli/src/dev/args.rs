//! The arguments of `forebay dev`, and what they amount to: a [`Plan`], which
//! cannot hold contradictions. The flags describe the *backend's* limits; the
//! pool's settings are derived from them here, as an operator would.

use std::time::Duration;

use clap::value_parser;
use forebay::Rate;

use super::ledger::Limits;

const ABOUT: &str = "Run a pool in front of a rationed backend, in this process, and watch it";

const EXPLANATION: &str = "\
What it shows:
  A small backend listens on a loopback port. Like a real one that rations
  connections it limits how fast they are opened, how many are open and how long
  they live, and refuses whatever goes beyond. A pool stands in front of it, and
  tasks get connections from the pool, send a request and give them back.

  Once a second you see the stock, how long tasks waited, and what the backend
  itself counted. Connections live for seconds here, so watch them being replaced
  before they retire: the stock does not run dry, the tasks do not wait, and the
  backend has nothing to refuse.

Examples:
  forebay dev                          until Ctrl-C
  forebay dev --for 20s                for twenty seconds
  forebay dev --tasks 200              more work than connections: it queues, in order
  forebay dev --max-open 8 --target-ready 4 --tasks 4
  forebay dev --no-pacing --for 5s     a pool that ignores the rate, and is refused

Exit codes:
  0  every limit was kept
  1  the backend refused or cut off a connection, or the pool broke a promise
  2  the arguments make no sense";

/// The arguments, as typed.
#[derive(clap::Args)]
#[command(about = ABOUT, after_help = EXPLANATION)]
pub(crate) struct Args {
    /// Most connections open at once; each takes two file descriptors
    #[arg(long, value_name = "N", default_value = "50", value_parser = value_parser!(u32).range(1..=10_000), help_heading = BACKEND)]
    max_open: u32,

    /// Connections opened per second
    #[arg(long, value_name = "N", default_value = "20", value_parser = value_parser!(u32).range(1..=10_000), help_heading = BACKEND)]
    rate: u32,

    /// Connections opened at once after a quiet time
    #[arg(long, value_name = "N", default_value = "10", value_parser = value_parser!(u32).range(1..=100_000), help_heading = BACKEND)]
    burst: u32,

    /// Age at which the backend cuts a connection off
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration, help_heading = BACKEND)]
    lifetime: Duration,

    /// What a new connection costs before it can be used
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = duration, help_heading = BACKEND)]
    handshake: Duration,

    /// How long the backend works on a request
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = duration, help_heading = BACKEND)]
    service: Duration,

    /// Ready connections to keep [default: 20, or --max-open if that is less]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(0..=10_000), help_heading = POOL)]
    target_ready: Option<u32>,

    /// Do not tell the pool the backend's rate, to see what happens then
    #[arg(long, help_heading = POOL)]
    no_pacing: bool,

    /// Tasks that get a connection, send a request and give it back
    #[arg(long, value_name = "N", default_value = "40", value_parser = value_parser!(u32).range(1..=10_000), help_heading = WORK)]
    tasks: u32,

    /// How long a task rests between two requests, on average
    #[arg(long, value_name = "TIME", default_value = "30ms", value_parser = duration, help_heading = WORK)]
    pause: Duration,

    /// One request in N is given up midway; 0 for none
    #[arg(long, value_name = "N", default_value = "1000", help_heading = WORK)]
    give_up: u32,

    /// End after this time [default: run until Ctrl-C]
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    run_for: Option<Duration>,

    /// Draw lives and pauses from this seed [default: a random one]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// No colours, also if the output is a terminal (as NO_COLOR=1)
    #[arg(long)]
    pub(crate) no_color: bool,
}

const BACKEND: &str = "Backend";
const POOL: &str = "Pool";
const WORK: &str = "Work";

/// The stock that is kept if nothing else is asked for.
const TARGET_READY: u32 = 20;

/// The pool keeps this much of the burst in hand, as time at the rate: a permit
/// may be used 100 ms late, and a connect takes its time to arrive. The backend
/// counts arrivals, so without it a late open and one in time could collide.
const IN_HAND: Duration = Duration::from_millis(250);

/// What is going to be run.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) limits: Limits,
    pub(crate) handshake: Duration,
    pub(crate) service: Duration,
    pub(crate) target_ready: u32,
    /// What the pool is told of the backend's rate.
    pub(crate) pace: Option<Rate>,
    pub(crate) lives: Lives,
    pub(crate) tasks: u32,
    pub(crate) pause: Duration,
    pub(crate) give_up: u32,
    pub(crate) run_for: Option<Duration>,
    pub(crate) seed: u64,
}

/// How long the pool lets connections live, so that none reaches the age at
/// which the backend cuts it off.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lives {
    pub(crate) base: Duration,
    pub(crate) jitter: Duration,
    pub(crate) guard: Duration,
    pub(crate) lead: Duration,
}

impl Lives {
    /// Lives between 80 % and 100 % of the backend's limit; the last tenth is
    /// never handed out, and replaced a twentieth before.
    fn within(limit: Duration) -> Self {
        Self { base: limit * 9 / 10, jitter: limit / 5, guard: limit / 10, lead: limit / 20 }
    }
}

impl Args {
    /// What these arguments amount to.
    ///
    /// # Errors
    /// The two that contradict each other, with their values.
    pub(crate) fn plan(&self) -> Result<Plan, String> {
        let target_ready = self.target_ready.unwrap_or(TARGET_READY.min(self.max_open));
        if target_ready > self.max_open {
            let max_open = self.max_open;
            return Err(format!(
                "--target-ready ({target_ready}) must not exceed --max-open ({max_open})"
            ));
        }
        let lives = Lives::within(self.lifetime);
        if self.lifetime < Duration::from_secs(1) {
            return Err(format!("--lifetime ({:?}) must be at least 1s", self.lifetime));
        }
        if self.service >= lives.guard {
            return Err(format!(
                "--service ({:?}) must be below a tenth of --lifetime ({:?}): that is the guard \
                 window, the life a connection has left at least when it is handed out",
                self.service, self.lifetime
            ));
        }
        if self.handshake > HANDSHAKE_MAX {
            return Err(format!("--handshake ({:?}) must not exceed 5s", self.handshake));
        }
        let pace = if self.no_pacing { None } else { Some(self.pace()?) };
        Ok(Plan {
            limits: Limits {
                max_open: self.max_open,
                per_second: self.rate,
                burst: self.burst,
                lifetime: self.lifetime,
            },
            handshake: self.handshake,
            service: self.service,
            target_ready,
            pace,
            lives,
            tasks: self.tasks,
            pause: self.pause,
            give_up: self.give_up,
            run_for: self.run_for,
            // short enough to be typed again
            seed: self.seed.unwrap_or_else(|| fastrand::u64(1..100_000)),
        })
    }

    /// The rate that the pool keeps to: the backend's, with less burst.
    fn pace(&self) -> Result<Rate, String> {
        let in_hand = (f64::from(self.rate) * IN_HAND.as_secs_f64()).ceil() as u32;
        let burst = self.burst.saturating_sub(in_hand);
        Rate::new(self.rate, burst).map_err(|_| {
            format!(
                "--burst ({}) must be at least {} at a --rate of {}: the pool keeps a quarter of a \
                 second's opens in hand for those that arrive late",
                self.burst,
                in_hand + 1,
                self.rate
            )
        })
    }
}

/// Below the pool's time limit of a connect, which is 10 s.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

/// The longest time that can be given.
const TIME_MAX_SECONDS: f64 = 7.0 * 24.0 * 3600.0;

/// Reads `250ms`, `10s`, `1.5s`, `2m` or `1h`.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "" => return Err(format!("a time needs a unit, as in {text}s or {text}ms")),
        _ => return Err("expected a time such as 250ms, 10s, 2m or 1h".to_owned()),
    };
    let number: f64 =
        number.parse().map_err(|_| "expected a time such as 250ms, 10s, 2m or 1h".to_owned())?;
    let seconds = number * scale;
    if seconds > TIME_MAX_SECONDS {
        return Err("the longest time is 168h".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn plan(words: &[&str]) -> Result<Plan, String> {
        let words = std::iter::once(&"dev").chain(words);
        let cli = <Cli as clap::Parser>::try_parse_from(words).map_err(|e| e.to_string())?;
        cli.args.plan()
    }

    #[test]
    fn a_time_has_a_unit() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for bad in ["10", "s", "", "1.2.3s", "-1s", "10 s", "ten", "999h"] {
            assert!(duration(bad).is_err(), "{bad} was accepted");
        }
    }

    #[test]
    fn the_pool_keeps_some_of_the_burst_in_hand() {
        let pace = plan(&[]).unwrap().pace.unwrap();
        assert_eq!((pace.per_second(), pace.burst()), (20, 5));
        assert!(plan(&["--no-pacing", "--burst", "1"]).unwrap().pace.is_none());
    }

    #[test]
    fn no_connection_lives_longer_than_the_backend_lets_it() {
        let plan = plan(&["--lifetime", "20s"]).unwrap();
        assert_eq!(plan.lives.base + plan.lives.jitter / 2, plan.limits.lifetime);
    }

    #[test]
    fn contradictions_are_refused_with_both_values() {
        for (words, values) in [
            (["--target-ready", "60"], ["60", "50"]),
            (["--service", "2s"], ["2s", "10s"]),
            (["--burst", "2"], ["2", "20"]),
            (["--lifetime", "0s"], ["0", "1s"]),
        ] {
            let error = plan(&words).unwrap_err();
            assert!(values.iter().all(|value| error.contains(value)), "{error}");
        }
        assert_eq!(plan(&["--max-open", "8"]).unwrap().target_ready, 8);
    }
}
