//! How long requests compute: distributions of service times.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A distribution of service times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum ServiceTime {
    /// Always the same.
    Fixed {
        /// The time.
        us: f64,
    },
    /// Exponential.
    Exponential {
        /// The mean.
        mean_us: f64,
    },
    /// One of two times.
    Bimodal {
        /// The short one.
        short_us: f64,
        /// The long one.
        long_us: f64,
        /// How often it is the long one, from 0 to 1.
        long_share: f64,
    },
}

impl ServiceTime {
    /// Draws a time.
    pub(crate) fn draw(self, random: &mut fastrand::Rng) -> Duration {
        let us = match self {
            Self::Fixed { us } => us,
            Self::Exponential { mean_us } => exponential(random, mean_us),
            Self::Bimodal { short_us, long_us, long_share } => {
                if random.f64() < long_share {
                    long_us
                } else {
                    short_us
                }
            }
        };
        Duration::from_secs_f64(us / 1e6)
    }

    /// Returns the mean in microseconds.
    pub(crate) fn mean_us(self) -> f64 {
        match self {
            Self::Fixed { us } => us,
            Self::Exponential { mean_us } => mean_us,
            Self::Bimodal { short_us, long_us, long_share } => {
                long_share * long_us + (1.0 - long_share) * short_us
            }
        }
    }
}

/// Draws from an exponential distribution with this mean.
pub(crate) fn exponential(random: &mut fastrand::Rng, mean: f64) -> f64 {
    // `1 - u` is never zero.
    -mean * (1.0 - random.f64()).ln()
}

impl fmt::Display for ServiceTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed { us } => write!(f, "{us} µs"),
            Self::Exponential { mean_us } => write!(f, "{mean_us} µs (exponential)"),
            Self::Bimodal { short_us, long_us, long_share } => {
                let (short, long) = (100.0 * (1.0 - long_share), 100.0 * long_share);
                write!(f, "{short} % {short_us} µs and {long} % {long_us} µs")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_times_have_their_mean() {
        // Goal: each distribution has the mean that it states. Method: a fixed seed, 200 000 draws,
        // against five standard errors.
        let bimodal = ServiceTime::Bimodal { short_us: 10.0, long_us: 10_000.0, long_share: 0.005 };
        for (service, deviation) in [
            (ServiceTime::Fixed { us: 25.0 }, 1e-6),
            (ServiceTime::Exponential { mean_us: 20.0 }, 20.0),
            (bimodal, 9_990.0 * (0.005_f64 * 0.995).sqrt()),
        ] {
            let mut random = fastrand::Rng::with_seed(7);
            let draws = 200_000;
            let sum: f64 = (0..draws).map(|_| service.draw(&mut random).as_secs_f64() * 1e6).sum();
            let mean = sum / f64::from(draws);
            let error = 5.0 * deviation / f64::from(draws).sqrt() + 1e-3;
            assert!((mean - service.mean_us()).abs() <= error, "{service}: {mean}");
        }
    }
}
