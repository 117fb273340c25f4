//! Rank 0's part: how often, and how long it took.

use std::time::Duration;

use super::keys::REST;
use super::{Measure, MeasureResult, PingPong};
use crate::clock::{nanoseconds, now, sleep};
use crate::error::Failure;
use crate::host::Usage;

/// A sample lasts at least this long, so that reading the clock (25 ns) is not part of it.
const SAMPLE_MIN: Duration = Duration::from_micros(50);

/// Nothing comes for at least this long, so that falling asleep once is not part of the figure.
const QUIET_MIN: Duration = Duration::from_millis(500);

/// Operations per sample, at most.
const OPERATIONS_MAX: u32 = 1 << 16;

/// Leads a measure for about `budget`.
pub(crate) fn lead(
    rank: &mut dyn PingPong,
    measure: Measure,
    budget: Duration,
) -> Result<MeasureResult, Failure> {
    let before = Usage::of_this_process();
    let mut measure_result = match measure {
        Measure::Quiet => {
            sleep(budget.max(QUIET_MIN));
            MeasureResult { operations: 1, ..MeasureResult::default() }
        }
        _ => timed(rank, measure, budget)?,
    };
    rank.stop(measure)?;
    let used = Usage::of_this_process().since(before);
    (measure_result.wall_ns, measure_result.cpu_ns) = (used.at_ns, used.cpu_ns);
    Ok(measure_result)
}

/// Follows a measure, and tells what that used.
pub(crate) fn follow(rank: &mut dyn PingPong, measure: Measure) -> Result<MeasureResult, Failure> {
    let before = Usage::of_this_process();
    rank.follow(measure)?;
    let used = Usage::of_this_process().since(before);
    Ok(MeasureResult { wall_ns: used.at_ns, cpu_ns: used.cpu_ns, ..MeasureResult::default() })
}

/// Measures in batches: a quarter of the budget warms up and finds how many operations fill a sample. A measure that
/// [has rests](Measure::has_rests) is taken operation by operation.
fn timed(
    rank: &mut dyn PingPong,
    measure: Measure,
    budget: Duration,
) -> Result<MeasureResult, Failure> {
    let rests = measure.has_rests();
    let mut measure_result = MeasureResult { operations: 1, ..MeasureResult::default() };
    let begun = now();
    loop {
        let is_warm = rests || begun.elapsed() >= budget / 4;
        if rests {
            sleep(REST);
        }
        let at = now();
        rank.perform(measure, measure_result.operations)?;
        let computed = if measure.is_busy() { REST } else { Duration::ZERO };
        let elapsed = at.elapsed().saturating_sub(computed);
        measure_result.operations_all += u64::from(measure_result.operations);
        if is_warm {
            measure_result.samples_ns.push(nanoseconds(elapsed));
        } else if elapsed < SAMPLE_MIN
            && measure_result.operations < OPERATIONS_MAX
            && !measure.is_busy()
        {
            measure_result.operations *= 2;
        }
        if is_warm && begun.elapsed() >= budget {
            return Ok(measure_result);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A system in which nothing costs anything.
    #[derive(Default)]
    struct Free {
        performed: u64,
        is_stopped: bool,
    }

    impl PingPong for Free {
        fn perform(&mut self, _measure: Measure, count: u32) -> Result<(), Failure> {
            self.performed += u64::from(count);
            Ok(())
        }

        fn stop(&mut self, _measure: Measure) -> Result<(), Failure> {
            self.is_stopped = true;
            Ok(())
        }

        fn follow(&mut self, _measure: Measure) -> Result<(), Failure> {
            Ok(())
        }
    }

    #[test]
    fn a_leader_counts_and_stops() {
        // Goal: every operation is counted, there is a sample whatever the budget, and the followers
        // are told; a quiet measure performs nothing. Method: a system without cost, no time at all.
        for measure in [Measure::Latency { bytes: 8 }, Measure::Waiting { bytes: 8 }] {
            let mut free = Free::default();
            let measure_result = lead(&mut free, measure, Duration::ZERO).unwrap();
            assert_eq!(measure_result.operations_all, free.performed);
            assert!(!measure_result.samples_ns.is_empty() && free.is_stopped);
        }
        let mut free = Free::default();
        let measure_result = lead(&mut free, Measure::Quiet, Duration::ZERO).unwrap();
        assert_eq!(
            (free.performed, measure_result.samples_ns.len(), free.is_stopped),
            (0, 0, true)
        );
    }
}
