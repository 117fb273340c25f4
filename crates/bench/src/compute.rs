//! The computation that tasks do beside the I/O: a busy step of known duration.

use std::fmt;
use std::hint;
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::clock;

/// How long a step of [`YieldEvery::Never`] lasts: such a task computes step after step and never
/// yields, so the length only says how often it looks at the clock.
const ENDLESS_STEP: Duration = Duration::from_secs(1);

/// How many additions stand between two looks at the clock: about 30 ns of work.
const ADDITIONS_PER_UNIT: u64 = 64;

/// Units after which a compute task adds its work to that of the process: some 15 µs.
const UNITS_PER_REPORT: u64 = 256;

/// Units of work that this process's compute tasks have done. Each task adds, anyone reads;
/// `Relaxed`, because the number orders nothing.
static WORK: AtomicU64 = AtomicU64::new(0);

/// Returns the units of work that this process's compute tasks have done so far.
pub(crate) fn work() -> u64 {
    WORK.load(Ordering::Relaxed)
}

/// Things that tasks have done, whatever a load counts. Each task adds, anyone reads; `Relaxed`, because
/// the number orders nothing.
static OPERATIONS: AtomicU64 = AtomicU64::new(0);

/// Counts one thing that a task has done: a message passed, a timer fired, a call made.
pub(crate) fn note_operation() {
    OPERATIONS.fetch_add(1, Ordering::Relaxed);
}

/// Returns how many operations this process's tasks have noted so far.
pub(crate) fn operations() -> u64 {
    OPERATIONS.load(Ordering::Relaxed)
}

/// How long a unit of work takes on an idle core, so that a given time can be made an amount of work:
/// the work of a thread that loses its core takes longer then, and is not less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Pace {
    unit_ps: u64,
}

impl Pace {
    /// Measures the pace of this machine: the best of some tries, since a try can only be disturbed.
    /// Takes some 20 ms.
    pub(crate) fn measure() -> Self {
        const TRIES: u32 = 20;
        const UNITS: u64 = 10_000;
        let try_once = |_| {
            let start = clock::now();
            for _ in 0..UNITS {
                unit();
            }
            clock::nanoseconds(start.elapsed()) * 1_000 / UNITS
        };
        Self { unit_ps: (0..TRIES).map(try_once).min().unwrap_or(1).max(1) }
    }

    /// Returns the pace that was measured first in this process, so that all systems compute as much.
    pub(crate) fn of_this_machine() -> Self {
        static PACE: OnceLock<Pace> = OnceLock::new();
        *PACE.get_or_init(Self::measure)
    }

    /// Does the work of `time`.
    pub(crate) fn spend(self, time: Duration) {
        for _ in 0..self.units(time) {
            unit();
        }
    }

    /// Does the work of `time`, and adds its units to the [`work`] of this process as it goes.
    pub(crate) fn spend_counted(self, time: Duration) {
        let mut left = self.units(time);
        while left > 0 {
            let part = left.min(UNITS_PER_REPORT);
            for _ in 0..part {
                unit();
            }
            WORK.fetch_add(part, Ordering::Relaxed);
            left -= part;
        }
    }

    /// Returns how many cores did `units` of work in `time`.
    pub(crate) fn cores(self, units: u64, time: Duration) -> f64 {
        units as f64 * (self.unit_ps as f64 / 1e12) / time.as_secs_f64()
    }

    fn units(self, time: Duration) -> u64 {
        u64::try_from(time.as_nanos() * 1_000 / u128::from(self.unit_ps)).unwrap_or(u64::MAX)
    }
}

/// One unit of work.
fn unit() {
    let mut sum = 0_u64;
    for addend in 0..ADDITIONS_PER_UNIT {
        sum = hint::black_box(sum.wrapping_add(addend));
    }
}

/// Computes for `step`, and adds the units to the [`work`] of this process as it goes, so that a long
/// step can be watched from outside.
pub(crate) fn counted(step: Duration) {
    compute(step, |units| {
        WORK.fetch_add(units, Ordering::Relaxed);
    });
}

/// Computes for `step` and returns how many units of work it did.
///
/// The step is calibrated by the clock and not by a count of instructions: it ends at the first
/// look at the clock after `step`. A thread that loses its core meanwhile therefore does less work
/// in the step, never a longer step, and the returned units tell by how much.
///
/// # Cost
/// One clock reading (20 to 50 ns) per unit.
#[expect(
    clippy::must_use_candidate,
    reason = "the time spent is the effect; few ask for the units"
)]
pub fn busy(step: Duration) -> u64 {
    let mut units = 0;
    compute(step, |more| units += more);
    units
}

/// Computes for `step` and hands the units over, some at a time.
fn compute(step: Duration, mut report: impl FnMut(u64)) {
    let start = clock::now();
    let mut units = 0_u64;
    loop {
        unit();
        units += 1;
        if start.elapsed() >= step {
            return report(units);
        }
        if units == UNITS_PER_REPORT {
            report(units);
            units = 0;
        }
    }
}

/// How often a compute task gives its thread back to the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[expect(clippy::exhaustive_enums, reason = "a task yields or it does not")]
pub enum YieldEvery {
    /// After each step of this length.
    Step(Duration),
    /// Never: the task keeps its thread for as long as the process lives.
    Never,
}

impl YieldEvery {
    /// Returns the length of one busy step.
    #[must_use]
    pub const fn step(self) -> Duration {
        match self {
            Self::Step(step) => step,
            Self::Never => ENDLESS_STEP,
        }
    }

    /// Tells whether the task ever yields.
    #[must_use]
    pub const fn yields(self) -> bool {
        matches!(self, Self::Step(_))
    }
}

impl fmt::Display for YieldEvery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(step) => write!(f, "{step:?}"),
            Self::Never => f.write_str("never"),
        }
    }
}

impl From<YieldEvery> for String {
    fn from(every: YieldEvery) -> Self {
        every.to_string()
    }
}

impl TryFrom<String> for YieldEvery {
    type Error = ParseDurationError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl FromStr for YieldEvery {
    type Err = ParseDurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "never" {
            return Ok(Self::Never);
        }
        parse_duration(text).map(Self::Step)
    }
}

/// A text that is no duration.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[error("{text:?} is not a duration: write a number and one of ns, us, ms, s (as in 100us, 1.5ms)")]
pub struct ParseDurationError {
    /// The given text.
    pub text: String,
}

/// Parses a duration such as `10ms`, `100us`, `1.5s` or `250ns`; `µs` is understood as well.
///
/// # Errors
/// [`ParseDurationError`] if the unit is missing or unknown, or the number is zero, negative, not a
/// number, or too large for a [`Duration`].
pub fn parse_duration(text: &str) -> Result<Duration, ParseDurationError> {
    let error = || ParseDurationError { text: text.to_owned() };
    let unit_at = text.find(|c: char| c.is_alphabetic()).ok_or_else(error)?;
    let (number, unit) = text.split_at(unit_at);
    let per_second: f64 = match unit {
        "ns" => 1e9,
        "us" | "µs" | "μs" => 1e6,
        "ms" => 1e3,
        "s" => 1.0,
        _ => return Err(error()),
    };
    let number: f64 = number.trim_end().parse().map_err(|_| error())?;
    let duration = Duration::try_from_secs_f64(number / per_second).map_err(|_| error())?;
    if duration.is_zero() { Err(error()) } else { Ok(duration) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_every_unit() {
        // Goal: each documented unit is understood. Method: a table.
        for (text, nanoseconds) in [
            ("250ns", 250),
            ("100us", 100_000),
            ("100µs", 100_000),
            ("10ms", 10_000_000),
            ("1.5ms", 1_500_000),
            ("2 s", 2_000_000_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_nanos(nanoseconds)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration() {
        // Goal: each kind of bad input is refused, and the error repeats it. Method: a table.
        for text in ["", "10", "ms", "-1ms", "0s", "10 min", "NaNs", "infs", "1e300s", "1ms1"] {
            let error = parse_duration(text).expect_err(text);
            assert_eq!(error.text, text);
        }
    }

    #[test]
    fn yield_every_survives_its_text() {
        // Goal: what is shown can be given again. Method: there and back.
        for text in ["10ms", "100us", "5us", "1.5s", "never"] {
            let every: YieldEvery = text.parse().unwrap();
            assert_eq!(every.to_string().parse(), Ok(every));
        }
    }

    #[test]
    fn counted_work_adds_up() {
        // Goal: no unit is lost between reports. Method: a step that reports more than once, by sums.
        let (mut reports, mut sum) = (0, 0);
        while reports < 2 {
            (reports, sum) = (0, 0);
            compute(Duration::from_millis(1), |units| {
                reports += 1;
                sum += units;
            });
        }
        assert!(sum > UNITS_PER_REPORT * (reports - 1) && sum <= UNITS_PER_REPORT * reports);
        let before = work();
        counted(Duration::from_nanos(1));
        assert!(work() > before);
    }

    #[test]
    fn a_step_does_work() {
        // Goal: a step reports its work. Method: the shortest step; no claim about time.
        assert!(busy(Duration::from_nanos(1)) >= 1);
    }
}
