//! The loop of the paper's figure 4, as one member runs it, and its results.

use std::hint;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::transport_costs::TransportCosts;
use crate::clock::{nanoseconds, now, sleep};
use crate::error::BenchError;
use crate::host::Usage;
use crate::process::Child;
use crate::report::{REACTION, Repetition};

/// Figure: processor time of all members divided by the elapsed time.
pub(crate) const CPU_CORES: &str = "cpu_cores";

/// Samples of one member that are kept; a run with more keeps the later ones.
const SAMPLES_MAX: usize = 20_000;

/// Barriers before the first that counts.
const WARM_UP: u64 = 20;

/// The work of every member between two barriers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Laps {
    /// Members.
    pub(crate) members: u32,
    /// The length of the run.
    pub(crate) budget: Duration,
    /// The length of the loop between two barriers; the paper's has 30 µs [eth-barrier, §4.3].
    pub(crate) dummy: Duration,
    /// Each member's loop is longer by this much than that of the member before: skewed arrival.
    pub(crate) skew: Duration,
    /// The last member sleeps this long before each barrier, and is late; zero: it is not.
    pub(crate) late: Duration,
}

impl Laps {
    /// Plans barriers that follow on each other at once, 300 ms long.
    pub(crate) const fn new(members: u32) -> Self {
        let budget = Duration::from_millis(300);
        let (dummy, skew, late) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        Self { members, budget, dummy, skew, late }
    }

    /// How long a member is busy before each barrier.
    fn busy(&self, rank: u32) -> Duration {
        self.dummy + self.skew * rank
    }

    /// Whether barriers follow on each other at once. Then rank 0 alone reads the clock, and once for each: for 32
    /// tasks, two readings of each would cost as much as the barrier.
    const fn is_at_once(&self) -> bool {
        self.dummy.is_zero() && self.skew.is_zero() && self.late.is_zero()
    }

    /// Whether a member sleeps before each barrier.
    pub(super) fn is_late(&self, rank: u32) -> bool {
        !self.late.is_zero() && rank + 1 == self.members
    }
}

/// The number of barriers after which a run ends: 0 while it is unknown. Rank 0 sets it before it enters the last
/// one, and every member reads it after each.
pub(super) trait StopCount {
    fn set(&self, count: u64);
    fn count(&self) -> u64;
}

impl StopCount for AtomicU64 {
    fn set(&self, count: u64) {
        // The barrier itself orders this before all reads; a barrier that does not is faulty.
        self.store(count, Ordering::Release);
    }

    fn count(&self) -> u64 {
        self.load(Ordering::Acquire)
    }
}

/// The observations of one member.
#[derive(Debug)]
pub(super) struct MemberTimer<'a, E> {
    laps: Laps,
    rank: u32,
    end: &'a E,
    count: u64,
    begun: std::time::Instant,
    entered: std::time::Instant,
    samples: Vec<u64>,
    extremes: Extremes,
}

/// The costs of one member's barriers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Extremes {
    min_ns: u64,
    sum_ns: u64,
    max_ns: u64,
    count: u64,
}

impl<'a, E: StopCount> MemberTimer<'a, E> {
    pub(super) fn new(laps: Laps, rank: u32, end: &'a E) -> Self {
        let begun = now();
        let samples = Vec::with_capacity(if rank == 0 { SAMPLES_MAX } else { 0 });
        let extremes = Extremes { min_ns: u64::MAX, sum_ns: 0, max_ns: 0, count: 0 };
        Self { laps, rank, end, count: 0, begun, entered: begun, samples, extremes }
    }

    /// How long this member must sleep now, by its system's means: zero if it is not late.
    pub(super) fn lateness(&self) -> Duration {
        if self.laps.is_late(self.rank) { self.laps.late } else { Duration::ZERO }
    }

    /// Right before the barrier.
    #[inline]
    pub(super) fn enter(&mut self) {
        let busy = self.laps.busy(self.rank);
        if !busy.is_zero() {
            let begun = now();
            while begun.elapsed() < busy {
                hint::spin_loop();
            }
        }
        let is_at_once = self.laps.is_at_once();
        if !is_at_once {
            self.entered = now();
        }
        if self.rank == 0 && self.end.count() == 0 {
            let is_over = self.entered.duration_since(self.begun) >= self.laps.budget;
            // Enough for a median, even if a member is late.
            let least = if self.laps.late.is_zero() { 2 * WARM_UP } else { 5 };
            if is_over && self.count >= least {
                self.end.set(self.count + 1);
            }
        }
    }

    /// Right after the barrier. Returns whether there is another one.
    #[inline]
    pub(super) fn leave(&mut self) -> bool {
        self.count += 1;
        let is_at_once = self.laps.is_at_once();
        if is_at_once && self.rank != 0 {
            return self.goes_on();
        }
        let left = now();
        let elapsed = nanoseconds(left.duration_since(self.entered));
        if is_at_once {
            self.entered = left;
        }
        if self.count > WARM_UP || !self.laps.late.is_zero() {
            let Extremes { min_ns, sum_ns, max_ns, count } = self.extremes;
            self.extremes = Extremes {
                min_ns: min_ns.min(elapsed),
                sum_ns: sum_ns + elapsed,
                max_ns: max_ns.max(elapsed),
                count: count + 1,
            };
            if self.rank == 0 {
                // Only barriers after the longest warm-up count.
                if self.samples.len() < SAMPLES_MAX {
                    self.samples.push(elapsed);
                } else if let Ok(place) = usize::try_from(self.count % SAMPLES_MAX as u64) {
                    self.samples[place] = elapsed;
                }
            }
        }
        self.goes_on()
    }

    #[inline]
    fn goes_on(&self) -> bool {
        let end = self.end.count();
        end == 0 || self.count < end
    }

    pub(super) fn finish(self) -> MemberCosts {
        MemberCosts { extremes: self.extremes, samples_ns: self.samples }
    }
}

/// The results of the process of a member.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct MemberResult {
    pub(super) costs: MemberCosts,
    pub(super) used: Usage,
    pub(super) found: Option<TransportCosts>,
}

/// The costs of one member's barriers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MemberCosts {
    extremes: Extremes,
    /// Of rank 0 alone.
    samples_ns: Vec<u64>,
}

/// The costs of a group's barriers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct GroupCosts {
    /// The mean, over all timed members, of the shortest, the mean and the longest barrier of each
    /// [eth-barrier, §4.3].
    pub(crate) min_ns: f64,
    /// As above.
    pub(crate) mean_ns: f64,
    /// As above.
    pub(crate) max_ns: f64,
    /// Barriers that counted.
    pub(crate) count: u64,
    /// Rank 0's.
    pub(crate) samples_ns: Vec<u64>,
    /// Time that passed.
    pub(crate) wall_ns: u64,
    /// Processor time of all members.
    pub(crate) cpu_ns: u64,
    /// The transport's costs as the members measured them, and the expectation from that.
    pub(crate) found: Option<TransportCosts>,
}

impl GroupCosts {
    /// Waits for the results of the members' processes, and combines them.
    pub(super) fn of_processes(
        members: &mut [Child],
        timeout: Duration,
    ) -> Result<Self, BenchError> {
        let (mut all, mut found) = (Vec::new(), None);
        let (mut wall_ns, mut cpu_ns) = (0, 0);
        for member in members {
            let result: MemberResult = member.result(timeout)?;
            all.push(result.costs);
            wall_ns = result.used.at_ns.max(wall_ns);
            cpu_ns += result.used.cpu_ns;
            found = found.or(result.found);
        }
        Ok(Self { wall_ns, cpu_ns, found, ..Self::of(all) })
    }

    /// Combines the members' results; times of the run are left at zero.
    pub(crate) fn of(members: Vec<MemberCosts>) -> Self {
        let timed = members.iter().filter(|member| member.extremes.count > 0).count();
        let size = timed.max(1) as f64;
        let mut all = Self::default();
        for MemberCosts { extremes, samples_ns } in members {
            let Extremes { min_ns, sum_ns, max_ns, count } = extremes;
            if count > 0 {
                all.min_ns += min_ns as f64 / size;
                all.mean_ns += sum_ns as f64 / count as f64 / size;
            }
            all.max_ns += max_ns as f64 / size;
            all.count = all.count.max(count);
            if all.samples_ns.is_empty() {
                all.samples_ns = samples_ns;
            }
        }
        all
    }

    /// Returns the figures of a turn.
    pub(super) fn repetition(self) -> Repetition {
        let repetition = Repetition::default()
            .samples(REACTION, self.samples_ns.into_iter().collect())
            .figure("min_us", self.min_ns / 1e3)
            .figure("mean_us", self.mean_ns / 1e3)
            .figure("max_us", self.max_ns / 1e3)
            .figure(CPU_CORES, self.cpu_ns as f64 / self.wall_ns.max(1) as f64)
            .figure("count", self.count as f64);
        self.found.iter().fold(repetition, |repetition, found| found.add_to(repetition))
    }
}

/// Runs a member whose waits block, and which sleeps before it is late.
pub(super) fn run<E: StopCount, F>(
    laps: Laps,
    rank: u32,
    end: &E,
    mut wait: impl FnMut() -> Result<(), F>,
) -> Result<MemberCosts, F> {
    let run = pin!(run_async(laps, rank, end, async || wait()));
    match run.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(costs) => costs,
        Poll::Pending => unreachable!("nothing in it is awaited"),
    }
}

/// Runs the loop in the only task of the calling thread, which may sleep.
pub(super) async fn run_async<E: StopCount, F>(
    laps: Laps,
    rank: u32,
    end: &E,
    mut wait: impl AsyncFnMut() -> Result<(), F>,
) -> Result<MemberCosts, F> {
    let mut member = MemberTimer::new(laps, rank, end);
    loop {
        let lateness = member.lateness();
        if !lateness.is_zero() {
            sleep(lateness);
        }
        member.enter();
        wait().await?;
        if !member.leave() {
            return Ok(member.finish());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_put_together() {
        // Goal: minimum, mean and maximum are means over the members, and samples are rank 0's. Method: known
        // figures of two members.
        let member = |times: &[u64], samples_ns: &[u64]| MemberCosts {
            extremes: Extremes {
                min_ns: *times.iter().min().unwrap(),
                sum_ns: times.iter().sum(),
                max_ns: *times.iter().max().unwrap(),
                count: times.len() as u64,
            },
            samples_ns: samples_ns.to_vec(),
        };
        let costs = GroupCosts::of(vec![member(&[1, 2, 6], &[1, 2, 6]), member(&[3, 3, 9], &[])]);
        assert_eq!((costs.min_ns, costs.mean_ns, costs.max_ns), (2.0, 4.0, 7.5));
        assert_eq!((costs.count, &costs.samples_ns[..]), (3, &[1, 2, 6][..]));
    }

    #[test]
    fn a_run_ends_for_all_after_the_same_barrier() {
        // Goal: no member enters a barrier that another one leaves out. Method: threads with std's barrier, and a
        // budget that is over at once.
        let dummy = Duration::from_nanos(1);
        let laps = Laps { budget: Duration::ZERO, dummy, ..Laps::new(3) };
        let (end, barrier) = (AtomicU64::new(0), std::sync::Barrier::new(3));
        std::thread::scope(|scope| {
            let (end, barrier) = (&end, &barrier);
            let runs: Vec<_> = (0..3)
                .map(|rank| {
                    scope.spawn(move || {
                        let wait = || {
                            barrier.wait();
                            Ok::<_, ()>(())
                        };
                        run(laps, rank, end, wait).unwrap().extremes.count
                    })
                })
                .collect();
            let counts: Vec<_> = runs.into_iter().map(|run| run.join().unwrap()).collect();
            assert!(counts.iter().all(|&count| count == counts[0] && count > 0), "{counts:?}");
        });
    }
}
