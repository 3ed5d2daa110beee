//! A fixed-size histogram of durations: four buckets to each power of two from
//! a quarter of a microsecond to nine hours, so a reading is at most 25 % off. Recording
//! is a shift and an increment; it lives under the pool's lock and needs no atomics.

use std::time::Duration;

/// 4 buckets for each of 36 powers of two.
const BUCKETS: usize = 144;

/// Durations, counted in buckets.
///
/// ```
/// use std::time::Duration;
/// let mut h = forebay::Histogram::default();
/// for ms in 1..=100 { h.record(Duration::from_millis(ms)); }
/// let p50 = h.quantile(0.5);
/// assert!(p50 >= Duration::from_millis(50) && p50 <= Duration::from_millis(63));
/// assert_eq!(h.max(), Duration::from_millis(100));
/// ```
#[derive(Clone)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    count: u64,
    sum_nanos: u128,
    max_nanos: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], count: 0, sum_nanos: 0, max_nanos: 0 }
    }
}

impl Histogram {
    /// Counts one duration.
    #[inline]
    pub fn record(&mut self, value: Duration) {
        self.record_n(value, 1);
    }

    /// Counts one duration that stands for `n`.
    pub(crate) fn record_n(&mut self, value: Duration, n: u64) {
        let nanos = u64::try_from(value.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(nanos)] += n;
        self.count += n;
        self.sum_nanos += u128::from(nanos) * u128::from(n);
        self.max_nanos = self.max_nanos.max(nanos);
    }

    /// Notes a largest value that was seen and not counted.
    pub(crate) fn raise_max(&mut self, value: Duration) {
        let nanos = u64::try_from(value.as_nanos()).unwrap_or(u64::MAX);
        self.max_nanos = self.max_nanos.max(nanos);
    }

    /// Counts `n` durations too short to be measured.
    pub(crate) fn add_zeros(&mut self, n: u64) {
        self.counts[0] += n;
        self.count += n;
    }

    /// Adds all that another histogram has counted.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum_nanos += other.sum_nanos;
        self.max_nanos = self.max_nanos.max(other.max_nanos);
    }

    /// How many were recorded.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their sum.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(u64::try_from(self.sum_nanos).unwrap_or(u64::MAX))
    }

    /// The largest, exactly.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_nanos)
    }

    /// The duration that a share `q` (0 to 1) of all does not exceed, from above.
    pub fn quantile(&self, q: f64) -> Duration {
        let rank = (q.clamp(0.0, 1.0) * self.count as f64).ceil() as u64;
        let mut seen = 0;
        for (index, n) in self.counts.iter().enumerate() {
            seen += n;
            if seen >= rank.max(1) {
                return Duration::from_nanos(upper(index).min(self.max_nanos));
            }
        }
        Duration::ZERO
    }

    /// Each bucket that is not empty: its upper bound and its count.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        self.counts
            .iter()
            .enumerate()
            .filter(|(_, n)| **n > 0)
            .map(|(index, n)| (Duration::from_nanos(upper(index)), *n))
    }
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Histogram")
            .field("count", &self.count)
            .field("p50", &self.quantile(0.5))
            .field("p99", &self.quantile(0.99))
            .field("max", &self.max())
            .finish()
    }
}

/// The bucket of a value: its power of two in microseconds and the next two bits.
#[inline]
fn bucket(nanos: u64) -> usize {
    let units = nanos >> 8; // a quarter of a microsecond, nearly
    if units < 4 {
        return units as usize;
    }
    let power = 63 - units.leading_zeros() as usize;
    let sub = (units >> (power - 2)) as usize & 3;
    ((power - 1) * 4 + sub).min(BUCKETS - 1)
}

/// The largest value of a bucket.
fn upper(index: usize) -> u64 {
    if index < 4 {
        return ((index as u64 + 1) << 8) - 1;
    }
    let (power, sub) = (index / 4 + 1, index as u64 % 4);
    (((5 + sub) << (power - 2)) << 8) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_within_its_bucket_and_buckets_are_in_order() {
        for nanos in (0..100_000_000_u64).step_by(997) {
            let index = bucket(nanos);
            assert!(nanos <= upper(index), "{nanos} over bucket {index}");
            assert!(index == 0 || nanos > upper(index - 1), "{nanos} under bucket {index}");
        }
    }
}
