//! Samples and what they say: mean, percentiles, and how far either can be trusted.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use crate::clock::nanoseconds;

/// Significant decimal digits that the histogram keeps.
const HISTOGRAM_DIGITS: u8 = 3;

/// Two-sided 95 % quantile of the normal distribution.
const NORMAL_95: f64 = 1.96;

/// Durations of one measurement, in the order in which they were taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    nanoseconds: Vec<u64>,
}

impl Samples {
    /// Creates an empty set of samples.
    #[must_use]
    pub const fn new() -> Self {
        Self { nanoseconds: Vec::new() }
    }

    /// Adds one duration.
    pub fn push(&mut self, duration: Duration) {
        self.nanoseconds.push(nanoseconds(duration));
    }

    /// Returns the raw samples in nanoseconds, in the order in which they were taken.
    #[must_use]
    pub fn as_nanoseconds(&self) -> &[u64] {
        &self.nanoseconds
    }

    /// Returns how many samples there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.nanoseconds.len()
    }

    /// Tells whether there is no sample.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.nanoseconds.is_empty()
    }

    /// Returns what the samples say, or `None` if there are none.
    #[must_use]
    pub fn summary(&self) -> Option<Summary> {
        Summary::of(&self.nanoseconds)
    }
}

impl Extend<u64> for Samples {
    fn extend<T: IntoIterator<Item = u64>>(&mut self, nanoseconds: T) {
        self.nanoseconds.extend(nanoseconds);
    }
}

impl FromIterator<u64> for Samples {
    fn from_iter<T: IntoIterator<Item = u64>>(nanoseconds: T) -> Self {
        Self { nanoseconds: nanoseconds.into_iter().collect() }
    }
}

/// Mean and percentiles of some samples, in nanoseconds.
///
/// A percentile is only there if the samples can carry it: at least ten of them lie beyond it
/// (p90 needs 100 samples, p99 needs 1 000, p99.9 needs 10 000).
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Summary {
    /// Number of samples.
    pub count: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Half of the mean's 95 % confidence interval (normal approximation).
    pub mean_error: f64,
    /// Smallest sample.
    pub min: u64,
    /// Tenth percentile, from 100 samples on.
    pub p10: Option<u64>,
    /// Median.
    pub p50: u64,
    /// 95 % confidence interval of the median, from order statistics: it assumes no distribution.
    pub p50_interval: (u64, u64),
    /// Ninetieth percentile, from 100 samples on.
    pub p90: Option<u64>,
    /// Ninety-ninth percentile, from 1 000 samples on.
    pub p99: Option<u64>,
    /// Percentile 99.9, from 10 000 samples on.
    pub p999: Option<u64>,
    /// Largest sample.
    pub max: u64,
}

impl Summary {
    fn of(samples: &[u64]) -> Option<Self> {
        let min = *samples.iter().min()?;
        let max = *samples.iter().max()?;
        let mut histogram = Histogram::<u64>::new_with_max(max.max(2), HISTOGRAM_DIGITS)
            .expect("invariant: three digits and a maximum of two or more are always accepted");
        for &sample in samples {
            histogram.record(sample).expect("invariant: no sample exceeds the maximum");
        }
        let count = samples.len();
        let (mean, mean_error) = mean_and_error(samples);
        let percentile = |quantile: f64, needed: usize| {
            (count >= needed).then(|| histogram.value_at_quantile(quantile).clamp(min, max))
        };
        Some(Self {
            count,
            mean,
            mean_error,
            min,
            p10: percentile(0.10, 100),
            p50: histogram.value_at_quantile(0.50).clamp(min, max),
            p50_interval: median_interval(samples),
            p90: percentile(0.90, 100),
            p99: percentile(0.99, 1_000),
            p999: percentile(0.999, 10_000),
            max,
        })
    }

    /// Returns the figures with their units in the keys, as the JSON rows have them; the number of
    /// samples is `samples`.
    #[must_use]
    pub fn figures(&self) -> Map<String, Value> {
        let us = |nanoseconds: u64| json!(microseconds(nanoseconds));
        let mut figures = Map::new();
        let mut put = |key: &str, value: Value| figures.insert(key.to_owned(), value);
        put("samples", json!(self.count));
        put("mean_us", json!(round(self.mean / 1e3)));
        put("mean_error_us", json!(round(self.mean_error / 1e3)));
        put("min_us", us(self.min));
        put("p50_us", us(self.p50));
        put("p50_low_us", us(self.p50_interval.0));
        put("p50_high_us", us(self.p50_interval.1));
        let optional = [
            ("p10_us", self.p10),
            ("p90_us", self.p90),
            ("p99_us", self.p99),
            ("p99.9_us", self.p999),
        ];
        for (key, value) in optional {
            if let Some(value) = value {
                put(key, us(value));
            }
        }
        put("max_us", us(self.max));
        figures
    }
}

/// Returns the median of some figures, or `None` if there are none. With an even number of figures it
/// is the mean of the two in the middle.
#[must_use]
pub fn median(figures: &[f64]) -> Option<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = sorted[sorted.len() / 2 - 1];
    Some(f64::midpoint(lower, upper))
}

/// Returns `nanoseconds` in microseconds, to the nanosecond.
#[must_use]
pub fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e3
}

fn mean_and_error(samples: &[u64]) -> (f64, f64) {
    let count = samples.len() as f64;
    let mean = samples.iter().map(|&sample| sample as f64).sum::<f64>() / count;
    if samples.len() < 2 {
        return (mean, f64::INFINITY);
    }
    let squares: f64 = samples.iter().map(|&sample| (sample as f64 - mean).powi(2)).sum();
    let deviation = (squares / (count - 1.0)).sqrt();
    (mean, NORMAL_95 * deviation / count.sqrt())
}

/// The ranks n/2 ± 0.98·√n enclose the true median with probability 95 %, whatever the
/// distribution: the number of samples below it is binomial with p = 1/2.
fn median_interval(samples: &[u64]) -> (u64, u64) {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let last = sorted.len() - 1;
    // ⌈√n⌉ is at least 0.98·√n, and whole.
    let reach = (1..=sorted.len()).find(|r| r * r >= sorted.len()).unwrap_or(1);
    let middle = last / 2;
    (sorted[middle.saturating_sub(reach)], sorted[(middle + reach).min(last)])
}

fn round(microseconds: f64) -> f64 {
    (microseconds * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_samples_say_nothing() {
        // Goal: an empty measurement has no figures. Method: the empty set.
        assert_eq!(Samples::new().summary(), None);
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn one_sample_is_its_own_everything() {
        // Goal: no division by zero at n = 1. Method: one sample.
        let summary = Samples::from_iter([7]).summary().unwrap();
        assert_eq!((summary.min, summary.p50, summary.max), (7, 7, 7));
        assert_eq!(summary.p50_interval, (7, 7));
        assert!(summary.mean_error.is_infinite());
        assert_eq!((summary.p10, summary.p90, summary.p99), (None, None, None));
    }

    #[test]
    fn percentiles_of_a_ramp() {
        // Goal: percentiles are right within the histogram's digits. Method: 1..=10_000, known answers.
        let summary = (1..=10_000).collect::<Samples>().summary().unwrap();
        let near = |value: u64, expected: u64| value.abs_diff(expected) * 500 <= expected;
        assert!(near(summary.p10.unwrap(), 1_000));
        assert!(near(summary.p50, 5_000));
        assert!(near(summary.p90.unwrap(), 9_000));
        assert!(near(summary.p99.unwrap(), 9_900));
        assert!(near(summary.p999.unwrap(), 9_990));
        assert!((summary.mean - 5_000.5).abs() < 1e-6);
        assert_eq!((summary.min, summary.max), (1, 10_000));
    }

    #[test]
    fn percentiles_need_their_samples() {
        // Goal: no percentile is claimed from too few samples. Method: one less than needed, and enough.
        let of = |count: u64| (1..=count).collect::<Samples>().summary().unwrap();
        assert!(of(99).p90.is_none() && of(100).p90.is_some());
        assert!(of(999).p99.is_none() && of(1_000).p99.is_some());
        assert!(of(9_999).p999.is_none() && of(10_000).p999.is_some());
    }

    #[test]
    fn the_interval_holds_the_median() {
        // Goal: the interval is ordered and encloses the median for every small n. Method: exhaustive.
        for count in 1..=200_u64 {
            let samples: Samples = (0..count).rev().collect();
            let (low, high) = samples.summary().unwrap().p50_interval;
            assert!(low <= (count - 1) / 2 && count / 2 <= high, "n = {count}");
        }
    }

    #[test]
    fn medians() {
        // Goal: odd and even counts. Method: known answers, unsorted.
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
    }
}
