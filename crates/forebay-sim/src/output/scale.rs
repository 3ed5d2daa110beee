//! Scales of plots: where ticks stand, and how a long curve becomes a short one
//! without losing its extremes.

use super::words;

/// A point of a curve: time and value.
pub(crate) type Point = (f64, f64);

/// Ticks of a value axis from 0; the last one is at or above `max`. Of the round
/// steps that make three to five of them it is the one that leaves least room above.
pub(crate) fn ticks(max: f64, whole: bool) -> Vec<f64> {
    let max = if max.is_finite() && max > 0.0 { max } else { 1.0 };
    let power = 10_f64.powf(max.log10().floor() - 1.0);
    let steps = |step: f64| (max / step - 1e-9).ceil();
    let round = [1.0, 2.0, 2.5, 5.0, 10.0, 20.0, 25.0, 50.0].map(|factor| factor * power);
    let fits = round
        .into_iter()
        .filter(|step| (3.0..=5.0).contains(&steps(*step)) && !(whole && step.fract() != 0.0));
    // of equals the last: fewer ticks
    let best =
        fits.reduce(
            |best, step| {
                if step * steps(step) <= best * steps(best) * 1.000_001 { step } else { best }
            },
        );
    let step = best.unwrap_or(1.0);
    (0..=steps(step) as u32).map(|n| f64::from(n) * step).collect()
}

/// Steps of a time axis, in seconds: what people count time in.
const STEPS: [f64; 26] = [
    0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0,
    900.0, 1800.0, 3600.0, 7200.0, 14_400.0, 21_600.0, 43_200.0, 86_400.0, 172_800.0, 604_800.0,
];

/// Ticks of a time axis, with their labels.
pub(crate) fn time_ticks(from: f64, to: f64, about: u32) -> Vec<(f64, String)> {
    let rough = (to - from) / f64::from(about.max(1));
    let step = STEPS.into_iter().find(|step| *step >= rough * 0.999).unwrap_or(rough);
    let first = (from / step - 1e-9).ceil() as u64;
    let last = (to / step + 1e-9).floor() as u64;
    (first..=last).map(|n| n as f64 * step).map(|at| (at, words::instant(at))).collect()
}

/// At most `most` of the points, in order: the first, the last, and of each stretch
/// between them the lowest and the highest.
pub(crate) fn thin(points: &[Point], most: usize) -> Vec<Point> {
    let most = most.max(4);
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return Vec::new() };
    if points.len() <= most {
        return points.to_vec();
    }
    let inner = &points[1..points.len() - 1];
    let buckets = (most - 2) / 2;
    let mut kept = vec![*first];
    for bucket in 0..buckets {
        let of = |n: usize| n * inner.len() / buckets;
        let (start, end) = (of(bucket), of(bucket + 1));
        let (mut low, mut high) = (start, start);
        for index in start..end {
            if inner[index].1 < inner[low].1 {
                low = index;
            }
            if inner[index].1 > inner[high].1 {
                high = index;
            }
        }
        if start < end {
            kept.push(inner[low.min(high)]);
            if low != high {
                kept.push(inner[low.max(high)]);
            }
        }
    }
    kept.push(*last);
    kept
}

/// Without the points that lie between two of the same value: the line is the same.
pub(crate) fn without_repeats(points: &[Point]) -> Vec<Point> {
    let middle = |index: usize| {
        index > 0
            && index + 1 < points.len()
            && points[index - 1].1 == points[index].1
            && points[index].1 == points[index + 1].1
    };
    (0..points.len()).filter(|index| !middle(*index)).map(|index| points[index]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_reach_the_highest_value() {
        assert_eq!(ticks(97.0, true), [0.0, 25.0, 50.0, 75.0, 100.0]);
        assert_eq!(ticks(100.0, true), [0.0, 25.0, 50.0, 75.0, 100.0]);
        assert_eq!(ticks(22_000.0, true).last(), Some(&25_000.0));
        assert_eq!(ticks(0.0, true), [0.0, 1.0]);
        assert_eq!(ticks(2.0, true), [0.0, 1.0, 2.0]);
        assert_eq!(ticks(f64::NAN, false).last(), Some(&1.0));
        for max in [1e-6, 0.3, 1.0, 7.0, 62.0, 214.0, 22_000.0, 1e6, 123_456_789.0] {
            let ticks = ticks(max, false);
            let top = *ticks.last().expect("there are ticks");
            assert!(top >= max * 0.999 && top <= max * 1.5, "{max}: {ticks:?}");
            assert!((4..=6).contains(&ticks.len()), "{max}: {ticks:?}");
        }
    }

    #[test]
    fn time_is_counted_as_people_count_it() {
        let labels = |from, to| {
            time_ticks(from, to, 6).into_iter().map(|(_, label)| label).collect::<Vec<_>>()
        };
        assert_eq!(labels(0.0, 1200.0), ["0 s", "5 min", "10 min", "15 min", "20 min"]);
        assert_eq!(
            labels(298.0, 306.0),
            ["4 min 58 s", "5 min", "5 min 2 s", "5 min 4 s", "5 min 6 s"]
        );
        assert_eq!(labels(0.0, 5.0), ["0 s", "1 s", "2 s", "3 s", "4 s", "5 s"]);
    }

    #[test]
    fn a_shortened_curve_keeps_its_extremes_its_ends_and_its_order() {
        let mut points: Vec<Point> =
            (0..100_000).map(|n| (f64::from(n), f64::from(n % 7))).collect();
        points[31_337].1 = 1000.0;
        points[77_777].1 = -1000.0;
        let short = thin(&points, 600);
        assert!(short.len() <= 600 && short.len() > 500, "{}", short.len());
        assert!(short.contains(&(31_337.0, 1000.0)) && short.contains(&(77_777.0, -1000.0)));
        assert_eq!((short.first(), short.last()), (points.first(), points.last()));
        assert!(short.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert!(short.iter().all(|point| points[point.0 as usize] == *point));
    }

    #[test]
    fn a_short_curve_stays_as_it_is() {
        let points: Vec<Point> = (0..600).map(|n| (f64::from(n), 1.0)).collect();
        assert_eq!(thin(&points, 600), points);
        assert_eq!(thin(&[], 600), []);
    }

    #[test]
    fn repeats_are_left_out_but_not_corners() {
        let points = [(0.0, 1.0), (1.0, 1.0), (2.0, 1.0), (3.0, 2.0), (4.0, 2.0), (5.0, 2.0)];
        assert_eq!(without_repeats(&points), [(0.0, 1.0), (2.0, 1.0), (3.0, 2.0), (5.0, 2.0)]);
    }
}
