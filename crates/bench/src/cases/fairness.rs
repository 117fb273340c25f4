//! The share of the processor that a server's compute tasks keep while other processes compute beside
//! it and a client has its messages echoed.
//!
//! The kernel divides the processors among threads that can run. With `c` compute tasks on as many
//! workers and `k` threads of others, fair is `c / (c + k)` of the work that all of them do. Work is
//! counted, not processor time: a runtime that spends its tasks' time on looking for events has used
//! its share, but its tasks have not.

use std::time::Duration;

use clap::Args;

use super::BESIDE_THREADS;
use crate::background::BackgroundLoad;
use crate::compute::YieldEvery;
use crate::error::BenchError;
use crate::host::Usage;
use crate::report::{Amount, Case, Column, Repetition, Row, Show, Turn, by_default, table};
use crate::schedulers::System;

/// Name of the case in rows.
pub(crate) const CASE: &str = "fairness";

/// Key of the number of processes of others in rows.
pub(crate) const OUTSIDE: &str = "outside";

/// Key of the share of the work, divided by the fair share.
pub(crate) const WORK_OF_FAIR: &str = "work_of_fair";

/// Key of the share of the processor time, divided by the fair share.
pub(crate) const CPU_OF_FAIR: &str = "cpu_of_fair";

/// Pauses between an echo and the next message: seldom enough that messages take little of the time.
const SPACING: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(10)];

/// The time limit of an echo.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Which systems compute beside how many processes of others.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("budget", by_default("6s")), mut_arg("rounds", by_default("3")))]
pub(crate) struct FairnessPlan {
    /// Numbers of other processes, each of which computes on one thread; each number is a row.
    #[arg(long, value_delimiter = ',', value_name = "K,…", default_value = "1,3")]
    outside: Vec<u32>,
    // The fair share takes each of them for a thread.
    /// Number of tasks that compute, at most --workers.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    compute: u32,
    /// Computation of each of these tasks between two yields: a time, or `never`.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    yield_every: YieldEvery,
    #[command(flatten)]
    amount: Amount,
}

impl Case for FairnessPlan {
    /// A system, and the number of processes of others.
    type Setting = (System, u32);

    fn rounds(&self) -> u32 {
        self.amount.rounds()
    }

    fn rows(&self) -> Vec<((System, u32), Row)> {
        self.amount.rows_by(&BESIDE_THREADS, &self.outside, |system, outside| {
            Row::new(system, CASE)
                .parameter(OUTSIDE, outside)
                .parameter("compute", self.compute)
                .parameter("yield_every", self.yield_every.to_string())
        })
    }

    fn measure(
        &self,
        &(system, outside): &(System, u32),
        turn: &Turn<'_>,
    ) -> Result<Repetition, BenchError> {
        turn.shows(format!("{system}, beside {outside} processes of others"));
        let plan = self.amount.server(system).compute(self.compute, self.yield_every);
        let mut server = plan.start()?;
        let mut others = BackgroundLoad::start(outside)?;
        let before = others.usage()?;
        let client = self.amount.client(server.address(), u32::MAX, turn).samples(u32::MAX);
        let client = client.spacing(SPACING[0], SPACING[1]).timeout(TIMEOUT);
        let (echoes, own) = server.spent(|| client.run(&mut |_| ()))?;
        let others = others.usage()?;
        let others: Vec<_> =
            others.iter().zip(&before).map(|(after, before)| after.since(*before)).collect();
        let fair = fair_share(self.compute, outside);
        Ok(Repetition::of(echoes)
            .figure(WORK_OF_FAIR, share(own, &others, |usage| usage.work) / fair)
            .figure(CPU_OF_FAIR, share(own, &others, |usage| usage.cpu_ns) / fair))
    }

    fn tables(&self, rows: &[Row]) -> String {
        const COLUMNS: [Column; 6] = [
            ("others", Show::Parameter(OUTSIDE)),
            ("work / fair", Show::Number(WORK_OF_FAIR)),
            ("processor time / fair", Show::Number(CPU_OF_FAIR)),
            ("echoes", Show::Count("samples")),
            ("p50", Show::Time("p50_us")),
            ("max", Show::Time("max_us")),
        ];
        let title = format!(
            "Share of {} compute tasks (yield every {}) beside processes of others; 1 is fair",
            self.compute, self.yield_every
        );
        table(&title, rows, &COLUMNS)
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
