//! The share of the processor that a server's compute tasks keep while other processes compute beside
//! it and a client has its messages echoed.
//!
//! The kernel divides the processors among threads that can run. With `c` compute tasks on as many
//! workers and `k` threads of others, fair is `c / (c + k)` of the work that all of them do. Work is
//! counted, not processor time: a runtime that spends its tasks' time on looking for events has used
//! its share, but its tasks have not.

use std::time::Duration;

use crate::background::BackgroundLoad;
use crate::client::PingPong;
use crate::compute::YieldEvery;
use crate::error::BenchError;
use crate::host::usage::Usage;
use crate::report::progress::Progress;
use crate::report::repetition::{REACTION, Repetition, in_repetitions};
use crate::report::show::{Show, table};
use crate::report::{Outcome, Row};
use crate::schedulers::System;
use crate::server::ServerPlan;

/// Name of the case in rows.
pub const CASE: &str = "fairness";

/// Key of the number of processes of others in rows.
pub const OUTSIDE: &str = "outside";

/// Key of the share of the work, divided by the fair share.
pub(crate) const WORK_OF_FAIR: &str = "work_of_fair";

/// Key of the share of the processor time, divided by the fair share.
pub(crate) const CPU_OF_FAIR: &str = "cpu_of_fair";

/// Pauses between an echo and the next message: seldom enough that messages take little of the time.
const SPACING: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(10)];

/// The time limit of an echo.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Which systems compute beside how many processes of others.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FairnessPlan {
    /// The systems, in the order of the table.
    pub systems: Vec<System>,
    /// Numbers of processes of others.
    pub outside: Vec<u32>,
    /// Compute tasks of the server; the fair share takes each of them for a thread, so there should not
    /// be more of them than workers.
    pub compute: u32,
    /// How often each compute task yields.
    pub yield_every: YieldEvery,
    /// Time per system and number of processes.
    pub budget: Duration,
    /// Turns in which the budget is spent, each with new processes.
    pub rounds: u32,
    /// Worker threads, where a system has a choice.
    pub workers: usize,
    /// Seed of all chance.
    pub seed: u64,
}

impl FairnessPlan {
    /// Plans two compute tasks that yield every second, beside one and three processes, for 6 s each.
    #[must_use]
    pub fn new(systems: Vec<System>) -> Self {
        Self {
            systems,
            outside: vec![1, 3],
            compute: 2,
            yield_every: YieldEvery::Step(Duration::from_secs(1)),
            budget: Duration::from_secs(6),
            rounds: 3,
            workers: 2,
            seed: 0,
        }
    }

    /// Returns how many cases [`run`](Self::run) measures, for its progress bar.
    #[must_use]
    pub fn cases(&self) -> usize {
        self.systems.len() * self.outside.len() * self.rounds as usize
    }

    /// Measures all cases, systems in turns.
    ///
    /// # Errors
    /// Those of the processes. A system that does not react is not an error: its row says so.
    pub fn run(&self, progress: &mut Progress) -> Result<Outcome, BenchError> {
        let cases = self.outside.iter().flat_map(|&outside| {
            self.systems.iter().map(move |&system| {
                Row::new(system, CASE)
                    .parameter(OUTSIDE, outside)
                    .parameter("compute", self.compute)
                    .parameter("yield_every", self.yield_every.to_string())
                    .parameter("workers", self.workers)
            })
        });
        let rows: Vec<_> = cases.collect();
        in_repetitions(rows, self.rounds, self.seed, progress, |index, row, seed, progress| {
            let outside = self.outside[index / self.systems.len()];
            progress.case(format!("{}, beside {outside} processes of others", row.system));
            self.measure(row.runtime()?, outside, seed)
        })
    }

    fn measure(&self, system: System, outside: u32, seed: u64) -> Result<Repetition, BenchError> {
        let plan = ServerPlan::new(system).workers(self.workers);
        let mut server = plan.compute(self.compute, self.yield_every).start()?;
        let mut others = BackgroundLoad::start(outside)?;
        let (own_before, others_before) = (server.usage()?, others.usage()?);
        let echoes = PingPong::new(server.address())
            .samples(u32::MAX)
            .budget(self.budget / self.rounds)
            .spacing(SPACING[0], SPACING[1])
            .timeout(TIMEOUT)
            .seed(seed)
            .run(&mut |_| ())?;
        let own = server.usage()?.since(own_before);
        let others = others.usage()?;
        let others: Vec<_> =
            others.iter().zip(&others_before).map(|(after, before)| after.since(*before)).collect();
        let fair = fair_share(self.compute, outside);
        Ok(Repetition::new(echoes.priority)
            .samples(REACTION, echoes.samples)
            .figure(WORK_OF_FAIR, share(own, &others, |usage| usage.work) / fair)
            .figure(CPU_OF_FAIR, share(own, &others, |usage| usage.cpu_ns) / fair))
    }

    /// Shows the shares, and the reaction meanwhile.
    #[must_use]
    pub fn tables(&self, rows: &[Row]) -> String {
        let title = format!(
            "Share of {} compute tasks (yield every {}) beside processes of others; 1 is fair",
            self.compute, self.yield_every
        );
        let columns = [
            ("others", Show::Parameter(OUTSIDE)),
            ("work / fair", Show::Number(WORK_OF_FAIR)),
            ("processor time / fair", Show::Number(CPU_OF_FAIR)),
            ("echoes", Show::Count("samples")),
            ("p50", Show::Time("p50_us")),
            ("max", Show::Time("max_us")),
        ];
        table(&title, rows, &columns)
    }
}

/// Returns the share of all work that is fair for `own` threads beside `others`.
fn fair_share(own: u32, others: u32) -> f64 {
    f64::from(own) / f64::from(own + others)
}

/// Returns `own` part of the sum.
fn share(own: Usage, others: &[Usage], part: fn(&Usage) -> u64) -> f64 {
    let all: u64 = part(&own) + others.iter().map(part).sum::<u64>();
    part(&own) as f64 / all as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_tasks_beside_three_processes() {
        // Goal: fair is two fifths, and a server that got it has a share of one. Method: known figures.
        let usage = |work| Usage { at_ns: 0, cpu_ns: 0, work, operations: 0 };
        let others = [usage(100), usage(90), usage(110)];
        let kept = share(usage(200), &others, |usage| usage.work) / fair_share(2, 3);
        assert!((kept - 1.0).abs() < 1e-9, "{kept}");
    }
}
