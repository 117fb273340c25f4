//! A rate limit.

use std::time::Duration;

use vigie_detect::Instant;

use super::verdict::Verdict;
use crate::{cost::Bandwidth, drop_reason::DropReason, error::PipelineError};

/// Passes packets within a rate and a burst, by a token bucket, and drops the rest ([`DropReason::Metered`]). Frames count
/// with their Ethernet headers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a pipeline takes it"]
pub struct Meter {
    rate: Bandwidth,
    burst_bytes: u64,
    /// The time at which the bucket will be full if nothing more comes: the time until then gives the missing tokens. This single
    /// number loses nothing to rounding, however short the intervals between packets are.
    full_at: Instant,
}

/// The longest Ethernet header plus one byte.
const BURST_MIN: u64 = 64;

impl Meter {
    /// Creates a meter with a rate, and a burst: the bytes that may pass at once after a pause.
    ///
    /// # Errors
    /// [`PipelineError::Burst`] if no frame fits into the burst: below 64 bytes.
    pub const fn new(rate: Bandwidth, burst_bytes: u64) -> Result<Self, PipelineError> {
        if burst_bytes < BURST_MIN {
            return Err(PipelineError::Burst { bytes: burst_bytes });
        }
        Ok(Self { rate, burst_bytes, full_at: Instant::from_nanos(0) })
    }

    getters! {
        /// Returns the rate.
        rate: Bandwidth,

        /// Returns the burst in bytes.
        burst_bytes: u64,
    }

    /// Passes so many bytes, of a frame or a message, or drops them all.
    #[inline]
    pub(super) fn decide(&mut self, bytes: usize, now: Instant) -> Verdict {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        if self.take(bytes, now) { Verdict::Pass } else { Verdict::Drop(DropReason::Metered) }
    }

    /// Takes tokens for a frame, if there are enough.
    fn take(&mut self, bytes: u64, now: Instant) -> bool {
        let full_at = self.full_at.max(now) + self.rate.time(bytes);
        // Rounded up by a nanosecond, so that a frame of exactly the burst fits.
        let depth = self.rate.time(self.burst_bytes) + Duration::from_nanos(1);
        if full_at.saturating_duration_since(now) > depth {
            return false;
        }
        self.full_at = full_at;
        true
    }
}
