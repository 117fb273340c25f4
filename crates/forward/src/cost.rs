//! The cost of moving or processing bytes: a fixed time plus a time per byte.

use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

use crate::error::ModelError;
pub use crate::error::TIME_MAX;

/// Nanoseconds in a second.
const NANOS_PER_S: u128 = 1_000_000_000;

/// Bytes per second; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bandwidth(NonZeroU64);

impl Bandwidth {
    /// One byte per second.
    pub const SLOWEST: Self = Self(NonZeroU64::MIN);

    /// Creates a bandwidth from bytes per second.
    ///
    /// # Errors
    /// [`ModelError::NoBytes`] if it is zero.
    pub fn new(bytes_per_s: u64) -> Result<Self, ModelError> {
        NonZeroU64::new(bytes_per_s).map(Self).ok_or(ModelError::NoBytes)
    }

    /// Returns the bandwidth at which `bytes` take `time`, rounded to the nearest byte per second.
    ///
    /// # Errors
    /// [`ModelError::NoBytes`] if that is less than one byte per second, [`ModelError::NoTime`] if `time`
    /// is zero.
    pub fn measured(bytes: u64, time: Duration) -> Result<Self, ModelError> {
        if time.is_zero() {
            return Err(ModelError::NoTime);
        }
        let rounded = (u128::from(bytes) * NANOS_PER_S + time.as_nanos() / 2) / time.as_nanos();
        Self::new(u64::try_from(rounded).unwrap_or(u64::MAX))
    }

    /// Returns the bytes per second.
    #[must_use]
    pub const fn bytes_per_s(self) -> u64 {
        self.0.get()
    }

    /// Returns the time that `bytes` take, rounded to the nearest nanosecond.
    #[must_use]
    pub fn time(self, bytes: u64) -> Duration {
        let rate = u128::from(self.bytes_per_s());
        let rounded = (u128::from(bytes) * NANOS_PER_S + rate / 2) / rate;
        Duration::from_nanos(u64::try_from(rounded).unwrap_or(u64::MAX))
    }
}

/// Shows megabytes (10⁶ bytes) per second.
impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Rounded to a tenth in integers, so that no float decides a digit.
        let tenths =
            self.bytes_per_s() / 100_000 + u64::from(self.bytes_per_s() % 100_000 >= 50_000);
        write!(f, "{}.{} MB/s", tenths / 10, tenths % 10)
    }
}

/// The time of an operation on n bytes: a fixed part, and a part per byte.
///
/// It is what [fast-forward, §2.1] writes as a function, such as T_pci(n). *Deviation:* the paper leaves
/// the shape open and gives one point (Table 2); a line is the simplest shape that has the start-up cost
/// of real links and buses.
///
/// ```
/// # use std::time::Duration;
/// # use vigie_forward::{Bandwidth, Cost};
/// // The paper's bus: 11 µs for 2048 bytes.
/// let bus = Cost::per_byte(Bandwidth::measured(2048, Duration::from_micros(11))?);
/// assert_eq!(bus.at(1024), Duration::from_nanos(5_500));
/// # Ok::<(), vigie_forward::ModelError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cost {
    fixed: Duration,
    bandwidth: Option<Bandwidth>,
}

impl Cost {
    /// Zero.
    pub const ZERO: Self = Self::fixed(Duration::ZERO);

    /// Creates a cost that is the same for any number of bytes.
    #[must_use]
    pub const fn fixed(time: Duration) -> Self {
        Self { fixed: time, bandwidth: None }
    }

    /// Creates a cost in proportion to the number of bytes.
    #[must_use]
    pub const fn per_byte(bandwidth: Bandwidth) -> Self {
        Self { fixed: Duration::ZERO, bandwidth: Some(bandwidth) }
    }

    /// Adds a fixed time.
    #[must_use]
    pub const fn plus(self, time: Duration) -> Self {
        Self { fixed: self.fixed.saturating_add(time), ..self }
    }

    /// Returns the line through two measured points, each a number of bytes and its time.
    ///
    /// If the second point takes no longer than the first, the cost is fixed, their mean; if the line would be negative
    /// at zero bytes, the cost is in proportion, through the second point.
    ///
    /// # Errors
    /// [`ModelError::SamePoint`] unless the second point has more bytes than the first.
    pub fn through(first: (u64, Duration), second: (u64, Duration)) -> Result<Self, ModelError> {
        let bytes = second.0.checked_sub(first.0).filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or(ModelError::SamePoint { bytes: first.0 })?;
        let Some(time) = second.1.checked_sub(first.1).filter(|time| !time.is_zero()) else {
            return Ok(Self::fixed(first.1.saturating_add(second.1) / 2));
        };
        let bandwidth = Bandwidth::measured(bytes, time)?;
        match first.1.checked_sub(bandwidth.time(first.0)) {
            Some(fixed) => Ok(Self::per_byte(bandwidth).plus(fixed)),
            None => Ok(Self::per_byte(Bandwidth::measured(second.0, second.1)?)),
        }
    }

    /// Returns the time for `bytes`.
    #[must_use]
    pub fn at(self, bytes: u64) -> Duration {
        let moving = self.bandwidth.map_or(Duration::ZERO, |bandwidth| bandwidth.time(bytes));
        self.fixed.saturating_add(moving)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(time: u64) -> Duration {
        Duration::from_micros(time)
    }

    #[test]
    fn bandwidths_are_rounded_to_the_nearest() {
        // Goal: the paper's points survive the way through bytes per second. Method: there and back.
        for time in [us(11), us(15), Duration::from_nanos(1), us(142)] {
            let bandwidth = Bandwidth::measured(2048, time).unwrap();
            assert_eq!(bandwidth.time(2048), time);
        }
        assert_eq!(Bandwidth::new(136_549_999).unwrap().to_string(), "136.5 MB/s");
        assert_eq!(Bandwidth::new(136_550_000).unwrap().to_string(), "136.6 MB/s");
    }

    #[test]
    fn what_is_no_bandwidth_is_refused() {
        // Goal: typed errors, no division by zero, no overflow. Method: the edges.
        assert_eq!(Bandwidth::new(0), Err(ModelError::NoBytes));
        assert_eq!(Bandwidth::measured(5, Duration::ZERO), Err(ModelError::NoTime));
        assert_eq!(Bandwidth::measured(0, us(5)), Err(ModelError::NoBytes));
        let fastest = Bandwidth::measured(u64::MAX, Duration::from_nanos(1)).unwrap();
        assert_eq!(fastest.bytes_per_s(), u64::MAX);
        assert_eq!(Bandwidth::new(1).unwrap().time(u64::MAX), Duration::from_nanos(u64::MAX));
        assert_eq!(Cost::fixed(Duration::MAX).plus(us(1)).at(7), Duration::MAX);
    }

    #[test]
    fn a_line_goes_through_its_points_where_it_can() {
        // Goal: two measurements give a line, and noise gives something sensible. Method: each shape.
        let line = Cost::through((64, us(2)), (2112, us(12))).unwrap();
        assert_eq!((line.at(64), line.at(2112)), (us(2), us(12)));
        assert_eq!(line.at(0), Duration::from_nanos(1_687), "2 µs less 64 bytes of 2048 in 10 µs");
        let flat = Cost::through((64, us(3)), (128, us(1))).unwrap();
        assert_eq!((flat.at(0), flat.at(1 << 30)), (us(2), us(2)));
        let steep = Cost::through((64, us(1)), (128, us(8))).unwrap();
        assert_eq!((steep.at(0), steep.at(128)), (Duration::ZERO, us(8)));
        let error = ModelError::SamePoint { bytes: 64 };
        assert_eq!(Cost::through((64, us(1)), (64, us(2))), Err(error));
        assert_eq!(Cost::through((64, us(1)), (2, us(2))), Err(error));
    }
}
