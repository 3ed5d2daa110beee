//! How fast connects arrived at the backend: in every window w at most
//! rate × (w + ε) + burst.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay::Instant;

use crate::backend::Arrival;

/// Watches the arrivals.
#[derive(Debug)]
pub struct Rates {
    start: Instant,
    per_second: f64,
    burst: f64,
    /// How long after its instant a permit may be used, and what clocks add to that.
    tolerance: Duration,
    count: f64,
    /// The least of (number − rate × time) so far.
    least: f64,
    /// Granted twice, because the keeper did not know of it any more.
    extra: f64,
    /// Until then a process's permits may be from before its machine was paused.
    paused: BTreeMap<usize, Instant>,
}

impl Rates {
    pub fn new(per_second: u32, burst: u32, tolerance: Duration, drift: f64) -> Self {
        Self {
            start: Instant::now(),
            per_second: f64::from(per_second) * (1.0 + 2.0 * drift),
            burst: f64::from(burst),
            tolerance,
            count: 0.0,
            least: f64::INFINITY,
            extra: 0.0,
            paused: BTreeMap::new(),
        }
    }

    /// More may arrive than the keeper can know of.
    pub fn allow(&mut self, extra: f64) {
        self.extra += extra;
    }

    pub fn slept(&mut self, process: usize, until: Instant) {
        self.paused.insert(process, until);
    }

    pub fn arrived(&mut self, arrival: Arrival, excused: bool) -> Result<(), String> {
        let paused = self.paused.get(&arrival.process).is_some_and(|until| arrival.at <= *until);
        if excused || paused {
            return Ok(());
        }
        let Self { per_second, burst, .. } = *self;
        let at = (arrival.at - self.start).as_secs_f64() * per_second;
        self.least = self.least.min(self.count - at);
        self.count += 1.0;
        let most = burst + self.extra + per_second * self.tolerance.as_secs_f64();
        let seen = self.count - at - self.least;
        if seen > most + 1e-6 {
            let over = seen - most;
            return Err(format!(
                "connects arrive faster than {per_second}/s with a burst of {burst}: {over:.1} too many"
            ));
        }
        Ok(())
    }
}
