//! Table 1: the time until a message is echoed, while compute tasks run beside the echo.
//!
//! "A synthetic program launches a number of threads running some computation, whereas a single
//! server thread waits for incoming messages and echoes them back as soon as it receives them. An
//! external client application issues messages and records the time needed to receive back the
//! echo" [bouge02, §4.1].

use std::time::Duration;

use clap::Args;

use crate::compute::{YieldEvery, parse_duration};
use crate::error::BenchError;
use crate::report::{
    Amount, Case, Repetition, Row, Table, Turn, WORK_PER_S, by_default, failure_word, failures,
    find, three_digits, time,
};
use crate::schedulers::System;

/// Name of the case in rows.
pub(crate) const CASE: &str = "reaction";

/// Key of the number of compute tasks in rows.
pub(crate) const COMPUTE: &str = "compute";

/// Shortest range over which the pauses spread by default, for servers without compute tasks.
const SPREAD_LEAST: Duration = Duration::from_millis(3);

/// Longest range over which the pauses spread by default: with steps of a second a whole cycle would
/// leave no time for messages.
const SPREAD_MOST: Duration = Duration::from_secs(1);

/// What an idle machine may take for one echo before it counts as no reaction.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Numbers of compute tasks in the paper's table.
const PAPER_COMPUTE: [u32; 5] = [0, 1, 2, 5, 10];

/// The paper's quantum.
const PAPER_QUANTUM: YieldEvery = YieldEvery::Step(Duration::from_millis(10));

/// The paper's rows, means in milliseconds [bouge02, §4.1]: two nodes, each two
/// Pentium II at 450 MHz, 100 Mb/s Ethernet between them.
const PAPER: [(System, [f64; 5]); 3] = [
    (System::VigieNaive, [0.130, 5.011, 10.022, 25.010, 50.010]),
    (System::VigieEnhanced, [0.134, 4.846, 4.837, 5.471, 4.848]),
    (System::VigieBlocking, [0.451, 0.453, 0.452, 0.457, 0.453]),
];

/// What is measured by default, before the peers.
const OWN: [System; 4] =
    [System::VigieNaive, System::VigieEnhanced, System::VigieBlocking, System::Vigie];

/// Which systems react to how many messages, with how many compute tasks beside.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("budget", by_default("2s")), mut_arg("rounds", by_default("2")))]
pub(crate) struct ReactionPlan {
    /// Numbers of tasks that compute; each is a row.
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_value = "0,1,2,5,10")]
    compute: Vec<u32>,
    /// Computation of each of these tasks between two yields: a time, or `never`.
    #[arg(long, value_name = "TIME", default_value = "10ms")]
    yield_every: YieldEvery,
    /// Limit of messages for each row.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
    /// Minimum pause between an echo and the next message.
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = parse_duration)]
    pause: Duration,
    // A system whose echo waits for a task to yield must have the cycle, or its mean depends on where the last echo left
    // the schedule.
    /// Random addition to --pause, from 0 to this. Default: the time in which all compute tasks run once, at least 3 ms and at
    /// most 1 s.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    spread: Option<Duration>,
    #[command(flatten)]
    amount: Amount,
}

impl ReactionPlan {
    /// How long a turn of all compute tasks takes on one thread.
    fn cycle(&self, compute: u32) -> Duration {
        match self.yield_every {
            YieldEvery::Step(step) => step * compute,
            YieldEvery::Never => Duration::ZERO,
        }
    }

    /// The range over which pauses spread.
    fn spread_beside(&self, compute: u32) -> Duration {
        self.spread.unwrap_or_else(|| self.cycle(compute).clamp(SPREAD_LEAST, SPREAD_MOST))
    }

    /// The paper's row, where our table has its columns and its quantum.
    fn paper_cells(&self, system: System) -> Option<Vec<String>> {
        if self.yield_every != PAPER_QUANTUM {
            return None;
        }
        let (_, means) = PAPER.iter().find(|(row, _)| *row == system)?;
        let cell = |compute: &u32| {
            let column = PAPER_COMPUTE.iter().position(|paper| paper == compute);
            column.map_or_else(String::new, |column| format!("{:.3}", means[column]))
        };
        let label = "   the paper, 2002 (quantum 10 ms)".to_owned();
        Some([label].into_iter().chain(self.compute.iter().map(cell)).collect())
    }

    fn paper_note(&self) -> &'static str {
        if self.yield_every == PAPER_QUANTUM {
            "the paper's shape: naive grows as N·quantum/2, enhanced stays at quantum/2, blocking \
             does not depend on N"
        } else {
            "the paper's rows are for a quantum of 10 ms: compare them with `--yield-every 10ms`"
        }
    }
}

impl Case for ReactionPlan {
    /// A system, and the number of compute tasks.
    type Setting = (System, u32);

    fn rounds(&self) -> u32 {
        self.amount.rounds()
    }

    fn rows(&self) -> Vec<((System, u32), Row)> {
        self.amount.rows_by(&OWN, &self.compute, |system, compute| {
            Row::new(system, CASE)
                .parameter(COMPUTE, compute)
                .parameter("yield_every", self.yield_every.to_string())
                .parameter("pause_us", micros(self.pause))
                .parameter("spread_us", micros(self.spread_beside(compute)))
        })
    }

    fn measure(
        &self,
        &(system, compute): &(System, u32),
        turn: &Turn<'_>,
    ) -> Result<Repetition, BenchError> {
        turn.shows(format!("{system}, {compute} compute tasks"));
        let plan = self.amount.server(system).compute(compute, self.yield_every);
        let mut server = plan.start()?;
        let client = self
            .amount
            .client(server.address(), self.samples, turn)
            .spacing(self.pause, self.spread_beside(compute))
            .timeout(TIMEOUT + self.cycle(compute) * 4);
        let (echoes, spent) = server.spent(|| turn.run(&client))?;
        let repetition = Repetition::of(echoes);
        Ok(if compute > 0 { repetition.figure(WORK_PER_S, spent.work_per_s()) } else { repetition })
    }

    /// Shows means beside the paper's, and percentiles.
    fn tables(&self, rows: &[Row]) -> String {
        let headings = |first: &str| {
            let columns = self.compute.iter().map(|compute| format!("N = {compute}"));
            [first.to_owned()].into_iter().chain(columns).collect::<Vec<_>>()
        };
        let every = match self.yield_every {
            YieldEvery::Step(step) => format!("yield every {step:?}"),
            YieldEvery::Never => "never yield".to_owned(),
        };
        let mut means = Table::new(
            format!("Table 1: mean reaction time (ms) beside N compute tasks that {every}"),
            headings("mean ± 95 % (ms)"),
        );
        let all_have =
            |key| rows.iter().all(|row| row.failure.is_some() || row.figure(key).is_some());
        let (percentile_heading, percentile_cell): (_, fn(&Row) -> String) = if all_have("p99.9_us")
        {
            ("p50 / p99 / p99.9", |row| figures_cell(row, &["p50_us", "p99_us", "p99.9_us"]))
        } else if all_have("p99_us") {
            ("p50 / p90 / p99", |row| figures_cell(row, &["p50_us", "p90_us", "p99_us"]))
        } else {
            ("p50 / max", |row| figures_cell(row, &["p50_us", "max_us"]))
        };
        let mut work = Table::new("Work of the compute tasks", headings("million units / s"));
        let mut percentiles = Table::new("Percentiles", headings(percentile_heading));
        for system in self.amount.systems(&OWN) {
            let cells = |show: fn(&Row) -> String| {
                let cell = |&compute| {
                    find(rows, system, CASE, (COMPUTE, compute)).map(show).unwrap_or_default()
                };
                let cells: Vec<_> = self.compute.iter().map(cell).collect();
                [system.label().to_owned()].into_iter().chain(cells)
            };
            means.row(cells(mean_cell));
            percentiles.row(cells(percentile_cell));
            work.row(cells(work_cell));
            if let Some(paper) = self.paper_cells(system) {
                means.row(paper);
            }
        }
        format!(
            "{means}\n\n{percentiles}\n\
             p99 is shown if every cell has 1000 samples, p99.9 if it has 10000 (`--samples`, \
             `--budget`, `--spread`); {}.\n\n{work}\n{}",
            self.paper_note(),
            failures(rows)
        )
    }
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

fn mean_cell(row: &Row) -> String {
    let failed = || no_reaction(row);
    let cell = || {
        let (mean, error) = (row.figure("mean_us")?, row.figure("mean_error_us")?);
        Some(format!("{} ± {}", three_digits(mean / 1e3), three_digits(error / 1e3)))
    };
    cell().unwrap_or_else(failed)
}

fn figures_cell(row: &Row, keys: &[&str]) -> String {
    if row.figures.is_empty() {
        return no_reaction(row);
    }
    let figure = |key: &&str| row.figure(key).map_or_else(|| "–".to_owned(), |us| time(us * 1e3));
    keys.iter().map(figure).collect::<Vec<_>>().join(" / ")
}

fn work_cell(row: &Row) -> String {
    if row.failure.is_some() {
        return no_reaction(row);
    }
    row.figure(WORK_PER_S).map_or_else(|| "–".to_owned(), |units| three_digits(units / 1e6))
}

fn no_reaction(row: &Row) -> String {
    row.failure.as_ref().map_or_else(String::new, |failure| failure_word(failure).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::planned;

    #[test]
    fn the_paper_stands_beside_our_rows() {
        // Goal: the paper's figures are in the right columns, also when some are left out.
        // Method: a table without measurements.
        let plan: ReactionPlan = planned("--only vigie-naive,tokio --compute 10,0");
        let shown = plan.tables(&[]);
        let paper = shown.lines().find(|line| line.contains("the paper, 2002")).unwrap();
        let cells: Vec<_> = paper.split_whitespace().rev().take(2).collect();
        assert_eq!(cells, ["0.130", "50.010"]);
    }

    #[test]
    fn a_system_without_reaction_says_so() {
        // Goal: a failed case is seen in the table. Method: a row with a failure.
        let mut row = Row::new(System::Tokio, CASE).parameter(COMPUTE, 2);
        row.failure = Some("no echo within 3s".to_owned());
        assert_eq!(mean_cell(&row), "no echo");
        assert_eq!(figures_cell(&row, &["p50_us"]), "no echo");
    }
}
