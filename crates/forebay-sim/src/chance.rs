//! Drawing from the spreads of a scenario. Every part of a run has a generator
//! of its own, seeded from the scenario's seed and the part's place, so that one
//! part's draws do not move another's.

use std::time::Duration;

use crate::scenario::Spread;

/// The normal quantile of 99 %.
const Z99: f64 = 2.326_347_874;

/// A generator for one part of a run.
pub(crate) fn generator(seed: u64, part: &str, index: u64) -> fastrand::Rng {
    let mut hash = seed ^ 0x9e37_79b9_7f4a_7c15;
    for byte in part.bytes().chain(index.to_le_bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    }
    fastrand::Rng::with_seed(hash)
}

impl Spread {
    /// One draw.
    pub(crate) fn draw(self, rng: &mut fastrand::Rng) -> Duration {
        match self {
            Self::Fixed(span) => span,
            Self::Uniform(low, high) => low + high.saturating_sub(low).mul_f64(rng.f64()),
            Self::Exponential(mean) => mean.mul_f64(-(1.0 - rng.f64()).ln()),
            Self::Percentiles { p50, p99 } => {
                let sigma = (p99.as_secs_f64() / p50.as_secs_f64().max(1e-9)).ln().max(0.0) / Z99;
                // two uniform draws make a normal one
                let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
                let normal = radius * (std::f64::consts::TAU * rng.f64()).cos();
                // a tail of hours helps nobody
                p50.mul_f64((sigma * normal).exp().min(1000.0))
            }
        }
    }

    /// Half of all draws are below.
    pub(crate) fn median(self) -> Duration {
        match self {
            Self::Fixed(span) => span,
            Self::Uniform(low, high) => (low + high) / 2,
            Self::Exponential(mean) => mean.mul_f64(std::f64::consts::LN_2),
            Self::Percentiles { p50, .. } => p50,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_the_percentiles_asked_for() {
        let ms = Duration::from_millis;
        let spread = Spread::Percentiles { p50: ms(15), p99: ms(120) };
        let mut rng = generator(7, "test", 0);
        let mut draws: Vec<Duration> = (0..100_000).map(|_| spread.draw(&mut rng)).collect();
        draws.sort();
        let at = |q: f64| draws[(q * draws.len() as f64) as usize].as_secs_f64();
        assert!((at(0.5) / 0.015 - 1.0).abs() < 0.02, "{}", at(0.5));
        assert!((at(0.99) / 0.120 - 1.0).abs() < 0.05, "{}", at(0.99));
    }

    #[test]
    fn parts_draw_independently_and_repeatably() {
        let draw = |part, index| generator(1, part, index).u64(..);
        assert_eq!(draw("a", 1), draw("a", 1));
        assert_ne!(draw("a", 1), draw("a", 2));
        assert_ne!(draw("a", 1), draw("b", 1));
    }
}
