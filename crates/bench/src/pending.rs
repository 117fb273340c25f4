//! Table 2: the time of a task with many switches, while K tasks wait for messages.
//!
//! "A single computing thread runs a computational task involving a lot of context switches, whereas
//! a number of auxiliary service threads are waiting for messages on a TCP interface. […] An external
//! client application generates a random series of messages" [bouge02, §4.2].
//!
//! *Deviation:* the paper tells neither the number of switches nor the rate of messages. Here the
//! task has 100 000 steps of 5 µs, and about 1000 messages a second go to sockets drawn at random;
//! each is echoed, so that the table also tells how long a message waits.

use std::time::Duration;

use clap::Args;

use crate::client::PingPong;
use crate::compute::parse_duration;
use crate::error::BenchError;
use crate::host::limits;
use crate::report::{
    Case, REACTION, Repetition, Row, Systems, Table, Turn, failure_word, find, or_dash,
    three_digits,
};
use crate::schedulers::System;
use crate::server::ServerPlan;
use crate::statistics::{Samples, median};

/// Name of the case in rows.
pub(crate) const CASE: &str = "pending";

/// Name of the completion times of the rounds.
const COMPLETION: &str = "completion";

/// Key of the number of waiting tasks in rows.
pub(crate) const WAITING: &str = "waiting";

/// Most tasks that poll for themselves: each of them makes a system call per step of the task.
const NAIVE_WAITING_MAX: u32 = 64;

/// Pauses between messages: 1 ms in the mean, unrelated to anything in the server.
const SPACING_LEAST: Duration = Duration::from_micros(200);
const SPACING_SPAN: Duration = Duration::from_micros(1600);

/// How long a message may wait for its echo.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Numbers of waiting tasks in the paper's table.
const PAPER_WAITING: [u32; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

/// The paper's rows in milliseconds [bouge02, §4.2].
const PAPER: [(System, [f64; 8]); 2] = [
    (System::VigieNaive, [80.3, 101.3, 119.0, 137.2, 156.6, 175.7, 195.2, 215.7]),
    (System::VigieEnhanced, [81.2, 84.0, 84.0, 84.7, 86.4, 87.9, 89.6, 91.6]),
];

/// What is measured by default, before the peers.
const OWN: [System; 3] = [System::VigieNaive, System::VigieEnhanced, System::Vigie];

/// Which systems run the task, beside how many waiting tasks.
#[derive(Clone, Debug, Args)]
pub(crate) struct PendingPlan {
    /// Numbers of waiting tasks; each is a row, which is compared with the first.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "K,…",
        default_value = "1,2,3,4,5,6,7,8,64,1000,10000",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    waiting: Vec<u32>,
    /// Number of steps of the measured task, which yields after each.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Computation of a step.
    #[arg(long, value_name = "TIME", default_value = "5us", value_parser = parse_duration)]
    step: Duration,
    /// Number of rounds; figures are medians over them.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[command(flatten)]
    systems: Systems,
}

impl PendingPlan {
    /// The paper's completion times and their ratios, where our table has its columns.
    fn paper_cells(&self, system: System) -> Option<(Vec<String>, Vec<String>)> {
        let (_, times) = PAPER.iter().find(|(row, _)| *row == system)?;
        let cells = |show: &dyn Fn(f64) -> String| {
            let cell = |waiting: &u32| {
                let column = PAPER_WAITING.iter().position(|paper| paper == waiting);
                column.map_or_else(String::new, |column| show(times[column]))
            };
            let label = "   the paper, 2002".to_owned();
            [label].into_iter().chain(self.waiting.iter().map(cell)).collect()
        };
        Some((
            cells(&|time| format!("{time:.1}")),
            cells(&|time| format!("{:.3}", time / times[0])),
        ))
    }
}

impl Case for PendingPlan {
    /// The number of waiting tasks, and a system.
    type Setting = (u32, System);

    fn rounds(&self) -> u32 {
        self.rounds
    }

    fn rows(&self) -> Vec<((u32, System), Row)> {
        let systems = self.systems.or(&OWN);
        let all = self.waiting.iter().flat_map(|&k| systems.iter().map(move |&s| (k, s)));
        let is_in = |&(waiting, system): &(u32, System)| {
            system != System::VigieNaive || waiting <= NAIVE_WAITING_MAX
        };
        let row = |(waiting, system)| {
            let row = Row::new(system, CASE)
                .parameter(WAITING, waiting)
                .parameter("steps", self.steps)
                .parameter("step_us", self.step.as_secs_f64() * 1e6)
                .parameter("workers", self.systems.workers);
            ((waiting, system), row)
        };
        all.filter(is_in).map(row).collect()
    }

    /// Nothing is measured if this process may not open enough sockets.
    fn prepare(&self) -> Result<(), BenchError> {
        let most = self.waiting.iter().copied().max().unwrap_or(0);
        limits::allow_connections(most)
            .map_err(|failure| BenchError::Failed { role: "server", failure })
    }

    fn measure(
        &self,
        &(waiting, system): &(u32, System),
        turn: &Turn<'_>,
    ) -> Result<Repetition, BenchError> {
        turn.shows(format!("{system}, {waiting} waiting tasks"));
        let plan =
            ServerPlan::new(system).workers(self.systems.workers).connections(waiting).control();
        let server = plan.start()?;
        let control = server.control().expect("invariant: the plan asks for a control connection");
        let echoes = PingPong::new(server.address())
            .connections(waiting)
            .spacing(SPACING_LEAST, SPACING_SPAN)
            .timeout(TIMEOUT)
            .seed(turn.seed)
            .until_completed(control, self.steps, self.step)
            .run(&mut |_done| ())?;
        let mut completion = Samples::new();
        echoes.completed.into_iter().for_each(|time| completion.push(time));
        let repetition = Repetition::new(echoes.priority).samples(REACTION, echoes.samples);
        Ok(repetition.samples(COMPLETION, completion))
    }

    /// Compares completion times with those beside the first number of waiting tasks.
    fn compare(&self, rows: &mut [Row]) {
        let first = self.waiting.first().copied().unwrap_or_default();
        let of = |row: &Row| row.samples_ns.get(COMPLETION).cloned().unwrap_or_default();
        let base = |row: &Row| {
            let is_base = |base: &&Row| {
                base.system == row.system && base.number(WAITING) == Some(first.into())
            };
            rows.iter().find(is_base).map(of).unwrap_or_default()
        };
        let bases: Vec<_> = rows.iter().map(base).collect();
        for (row, base) in rows.iter_mut().zip(bases).filter(|(row, _)| row.failure.is_none()) {
            let own = of(row);
            let milliseconds: Vec<_> = own.iter().map(|&ns| ns as f64 / 1e6).collect();
            let figures = [
                ("completion_ms", median(&milliseconds)),
                ("completion_ratio", ratio(&own, &base)),
                ("rounds", Some(f64::from(self.rounds))),
            ];
            for (key, figure) in figures {
                if let Some(figure) = figure {
                    row.figures.insert(key.to_owned(), figure.into());
                }
            }
        }
    }

    fn tables(&self, rows: &[Row]) -> String {
        let headings = |first: &str| {
            let columns = self.waiting.iter().map(|waiting| format!("K={waiting}"));
            [first.to_owned()].into_iter().chain(columns).collect::<Vec<_>>()
        };
        let title = format!(
            "Table 2: completion time (ms) of {} steps of {:?} beside K waiting tasks",
            self.steps, self.step
        );
        let mut completions = Table::new(title, headings("completion (ms)"));
        let mut ratios = Table::new("Ratio to the first column", headings("ratio"));
        let mut reactions =
            Table::new("Reaction time of the messages meanwhile", headings("p50 / p99 (µs)"));
        for system in self.systems.or(&OWN) {
            let cells = |show: fn(&Row) -> Option<String>| {
                let cell = |&waiting| {
                    let row = find(rows, system, CASE, (WAITING, waiting));
                    row.and_then(show).unwrap_or_default()
                };
                let cells: Vec<_> = self.waiting.iter().map(cell).collect();
                [system.label().to_owned()].into_iter().chain(cells)
            };
            completions.row(cells(|row| match &row.failure {
                Some(failure) => Some(failure_word(failure).to_owned()),
                None => row.figure("completion_ms").map(|ms| format!("{ms:.1}")),
            }));
            ratios.row(cells(|row| row.figure("completion_ratio").map(|r| format!("{r:.3}"))));
            reactions.row(cells(reaction_cell));
            if let Some((completion, ratio)) = self.paper_cells(system) {
                completions.row(completion);
                ratios.row(ratio);
            }
        }
        format!("{completions}\n\n{ratios}\n\n{reactions}\n")
    }
}

/// The median over rounds of the ratio within each round, so that a drift between rounds cancels.
fn ratio(own: &[u64], base: &[u64]) -> Option<f64> {
    let rounds = own.iter().zip(base);
    median(&rounds.map(|(own, base)| *own as f64 / *base as f64).collect::<Vec<_>>())
}

fn reaction_cell(row: &Row) -> Option<String> {
    let p99 = or_dash(row.figure("p99_us").map(three_digits));
    Some(format!("{} / {p99}", three_digits(row.figure("p50_us")?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::planned;

    #[test]
    fn ratios_are_made_within_rounds() {
        // Goal: a machine that slows down from round to round does not change the ratio.
        // Method: three rounds, each twice as slow as the one before.
        let rounds = |first: u64| [1, 2, 4].map(|slow| first * slow);
        assert!((ratio(&rounds(110), &rounds(100)).unwrap() - 1.1).abs() < 1e-9);
        assert_eq!(ratio(&[], &rounds(1)), None);
    }

    #[test]
    fn naive_polling_ends_at_its_bound() {
        // Goal: no naive case above 64 tasks, every other case is there. Method: count.
        let plan = planned::<PendingPlan>("--only vigie-naive,vigie");
        let rows = plan.rows();
        assert_eq!(rows.iter().filter(|((_, s), _)| *s == System::VigieNaive).count(), 9);
        assert_eq!(rows.iter().filter(|((_, s), _)| *s == System::Vigie).count(), 11);
    }

    #[test]
    fn the_paper_stands_beside_our_rows() {
        // Goal: the paper's figures are in the right columns. Method: a table without measurements.
        let plan: PendingPlan = planned("--only vigie-enhanced --waiting 1,8");
        let shown = plan.tables(&[]);
        assert!(
            shown.lines().any(|line| line.contains("81.2") && line.ends_with("91.6")),
            "{shown}"
        );
        assert!(shown.lines().any(|line| line.contains("1.000") && line.ends_with("1.128")));
    }
}
