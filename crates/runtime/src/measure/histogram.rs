//! Histograms with a bucket per power of two.

use std::time::Duration;

/// The number of buckets; the last one also counts times over 9 minutes.
pub(crate) const BUCKETS: usize = 40;

/// Returns the bucket for a time.
pub(crate) const fn bucket(nanos: u64) -> usize {
    let index = (u64::BITS - nanos.leading_zeros()) as usize;
    if index < BUCKETS { index } else { BUCKETS - 1 }
}

/// A histogram of times: bucket 0 counts those of 0 ns, bucket `i` those from 2^(i-1) ns up to 2^i ns
/// exclusive; the last, number 39, also counts everything longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Histogram {
    pub(crate) counts: [u64; BUCKETS],
}

impl Histogram {
    pub(crate) const fn new() -> Self {
        Self { counts: [0; BUCKETS] }
    }

    /// Returns the count of each bucket.
    #[must_use]
    pub const fn buckets(&self) -> &[u64] {
        &self.counts
    }

    /// Returns how many times were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns an upper bound for `percent` of the times, 0 to 100: the upper end of a bucket, so at most
    /// twice the true value. `None` if nothing was counted.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Option<Duration> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let share = (percent / 100.0).clamp(0.0, 1.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "between 0 and the count; a rank need not be exact beyond 2^53"
        )]
        let rank = ((share * count as f64).ceil() as u64).clamp(1, count);
        let mut below = 0;
        let bucket = self.counts.iter().position(|&count| {
            below += count;
            below >= rank
        })?;
        Some(Duration::from_nanos((1 << bucket) - 1))
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each time is in the bucket whose bounds are documented. Method: the bounds of all buckets.
    #[test]
    fn buckets_have_their_bounds() {
        assert_eq!(bucket(0), 0);
        for index in 1..BUCKETS - 1 {
            assert_eq!(bucket(1 << (index - 1)), index);
            assert_eq!(bucket((1 << index) - 1), index);
        }
        assert_eq!(bucket(1 << (BUCKETS - 1)), BUCKETS - 1);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    /// Goal: percentiles are upper ends of the bucket that contains the rank. Method: known counts, and
    /// input out of range.
    #[test]
    fn percentiles_of_known_counts() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.percentile(50.0), None);
        histogram.counts[bucket(100)] = 98;
        histogram.counts[bucket(5_000)] = 1;
        histogram.counts[bucket(1_000_000)] = 1;
        let nanos = |percent| histogram.percentile(percent).map(|time| time.as_nanos());
        assert_eq!(histogram.count(), 100);
        assert_eq!(nanos(0.0), Some(127));
        assert_eq!(nanos(98.0), Some(127));
        assert_eq!(nanos(99.0), Some(8191));
        assert_eq!(nanos(99.1), Some(1_048_575));
        assert_eq!(nanos(-5.0), Some(127));
        assert_eq!(nanos(1e9), Some(1_048_575));
        assert_eq!(nanos(f64::NAN), Some(127));
    }
}
