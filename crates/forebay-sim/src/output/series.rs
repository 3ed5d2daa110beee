//! A recording as curves.

use super::csv::all;
use super::scale::Point;
use crate::record::{Recording, Second, ServiceSample};

/// A figure of all services together, by time.
pub(crate) fn sum(recording: &Recording, of: impl Fn(&ServiceSample) -> f64) -> Vec<Point> {
    let samples = recording.samples.iter();
    samples.map(|sample| (sample.at, of(&all(&sample.services)))).collect()
}

/// A figure of one service, by time.
pub(crate) fn service(
    recording: &Recording,
    index: usize,
    of: impl Fn(&ServiceSample) -> f64,
) -> Vec<Point> {
    let samples = recording.samples.iter();
    samples.filter_map(|sample| Some((sample.at, of(sample.services.get(index)?)))).collect()
}

/// A figure of each second; it holds until the second is over.
pub(crate) fn by_second(recording: &Recording, of: impl Fn(&Second) -> u32) -> Vec<Point> {
    let seconds = recording.seconds_seen.iter().enumerate();
    seconds.map(|(at, second)| (at as f64, f64::from(of(second)))).collect()
}

/// Of the services' shares of their targets that are there (ready or in use), in
/// percent: the lowest, the median and the highest, by time.
pub(crate) fn spread(recording: &Recording) -> [Vec<Point>; 3] {
    let mut curves = [Vec::new(), Vec::new(), Vec::new()];
    for sample in &recording.samples {
        let wanting = sample.services.iter().filter(|service| service.target > 0);
        let mut shares: Vec<f64> = wanting
            .map(|one| 100.0 * f64::from(one.ready + one.in_use) / f64::from(one.target))
            .collect();
        shares.sort_by(f64::total_cmp);
        let (Some(low), Some(high)) = (shares.first(), shares.last()) else { continue };
        curves[0].push((sample.at, *low));
        curves[1].push((sample.at, shares[shares.len() / 2]));
        curves[2].push((sample.at, *high));
    }
    curves
}

/// The highest value.
pub(crate) fn highest(points: &[Point]) -> f64 {
    points.iter().map(|point| point.1).filter(|y| y.is_finite()).fold(0.0, f64::max)
}

/// The points of a stretch of time, and one more on either side.
pub(crate) fn between(points: &[Point], from: f64, to: f64) -> Vec<Point> {
    let first = points.partition_point(|point| point.0 < from).saturating_sub(1);
    let last = points.partition_point(|point| point.0 <= to).saturating_add(1);
    points.get(first..last.min(points.len())).unwrap_or_default().to_vec()
}
