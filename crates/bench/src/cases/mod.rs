//! Loads beyond the paper's tables, in which a runtime shows whether one task delays another's event.
//!
//! | case | load | figure |
//! | --- | --- | --- |
//! | [`periodic`] | one task sleeps and computes in turn, a worker is idle | time until an echo |
//! | [`service`] | some requests compute, each on a new connection | the same, on old and on new connections |
//! | [`crowd`] | 1000 connections send by the clock, beside compute tasks | time since a message was due |
//! | [`fairness`] | processes of others compute beside ours | share of the work that ours keep |
//! | [`container`] | a quota of one core | time until an echo, and what the kernel withheld |
//! | [`echo`] | nothing | time until an echo, and processor time per message |
//!
//! Each is a plan whose `run` measures all systems in turns.

pub mod container;
pub mod crowd;
pub mod echo;
pub mod fairness;
pub mod periodic;
pub mod service;

use std::collections::BTreeMap;

use serde_json::json;

use crate::error::BenchError;
use crate::progress::Progress;
use crate::realtime::Priority;
use crate::report::{Outcome, Row};
use crate::statistics::{Samples, median};
use crate::table::{Table, three_digits, time};

/// Name of the samples that are a row's own: their figures have no prefix.
pub(crate) const REACTION: &str = "reaction";

/// Key of the work of compute tasks, in units per second.
pub(crate) const WORK_PER_S: &str = "work_per_s";

/// Key of the largest number of threads that were seen.
pub(crate) const THREADS_MAX: &str = "threads_max";

/// What one turn of a row has found.
#[derive(Debug)]
pub(crate) struct Turn {
    priority: Priority,
    samples: Vec<(&'static str, Samples)>,
    figures: Vec<(&'static str, f64)>,
}

impl Turn {
    pub(crate) const fn new(priority: Priority) -> Self {
        Self { priority, samples: Vec::new(), figures: Vec::new() }
    }

    /// Adds samples; those of all turns are summed up together.
    pub(crate) fn samples(mut self, name: &'static str, samples: Samples) -> Self {
        self.samples.push((name, samples));
        self
    }

    /// Adds a figure; the row gets the median over the turns, or the largest if the key ends in `_max`.
    pub(crate) fn figure(mut self, key: &'static str, value: f64) -> Self {
        self.figures.push((key, value));
        self
    }
}

/// Measures rows in turns (A B A B), so that a drift of the machine meets them all. A row whose system
/// fails gets the failure and is left out from then on.
pub(crate) fn in_turns(
    rows: Vec<Row>,
    rounds: u32,
    seed: u64,
    progress: &mut Progress,
    mut measure: impl FnMut(usize, &Row, u64, &Progress) -> Result<Turn, BenchError>,
) -> Result<Outcome, BenchError> {
    let mut outcome = Outcome { rows, priority: None };
    let mut seeds = fastrand::Rng::with_seed(seed);
    let mut figures = vec![BTreeMap::<&'static str, Vec<f64>>::new(); outcome.rows.len()];
    for _ in 0..rounds {
        for (index, row) in outcome.rows.iter_mut().enumerate() {
            let seed = seeds.u64(..);
            if row.failure.is_some() {
                progress.case_done();
                continue;
            }
            match measure(index, row, seed, progress) {
                Ok(turn) => {
                    for (name, samples) in turn.samples {
                        let all = row.samples_ns.entry(name).or_default();
                        all.extend_from_slice(samples.as_nanoseconds());
                    }
                    for (key, value) in turn.figures {
                        figures[index].entry(key).or_default().push(value);
                    }
                    outcome.priority = Some(turn.priority);
                }
                Err(error) if error.is_of_the_system() => row.failure = Some(error.to_string()),
                Err(error) => return Err(error),
            }
            progress.case_done();
        }
    }
    for (row, figures) in outcome.rows.iter_mut().zip(figures) {
        if row.failure.is_none() {
            sum_up(row, &figures);
        }
    }
    Ok(outcome)
}

/// Fills in a row's figures from its samples and from the figures of its turns.
fn sum_up(row: &mut Row, figures: &BTreeMap<&'static str, Vec<f64>>) {
    for (name, samples) in &row.samples_ns {
        let samples: Samples = samples.iter().copied().collect();
        let Some(summary) = samples.summary() else { continue };
        for (key, value) in summary.figures() {
            let key = if *name == REACTION { key } else { format!("{name}_{key}") };
            row.figures.insert(key, value);
        }
    }
    for (key, values) in figures {
        let value = if key.ends_with("_max") {
            values.iter().copied().reduce(f64::max)
        } else {
            median(values)
        };
        row.figures.insert((*key).to_owned(), json!(value));
    }
}

/// How a column of a table shows a row.
pub(crate) enum Show {
    /// A parameter, as it is.
    Parameter(&'static str),
    /// A time that the row has in microseconds.
    Time(&'static str),
    /// A number.
    Number(&'static str),
    /// A whole number.
    Count(&'static str),
    /// A number, in millions.
    Millions(&'static str),
}

/// The columns that show a row's own samples.
pub(crate) const ECHO_COLUMNS: [(&str, Show); 5] = [
    ("samples", Show::Count("samples")),
    ("p50", Show::Time("p50_us")),
    ("p99", Show::Time("p99_us")),
    ("p99.9", Show::Time("p99.9_us")),
    ("max", Show::Time("max_us")),
];

/// Makes a table with a line per row: its system, and what `columns` say. A row without figures has its
/// failure below the table.
pub(crate) fn table(title: &str, rows: &[Row], columns: &[(&str, Show)]) -> String {
    let headings = columns.iter().map(|(heading, _)| (*heading).to_owned());
    let mut table = Table::new(title, ["system".to_owned()].into_iter().chain(headings));
    for row in rows {
        let cells = columns.iter().map(|(_, show)| show.cell(row));
        table.row([row.system.label().to_owned()].into_iter().chain(cells));
    }
    format!("{table}\n{}", failures(rows))
}

impl Show {
    fn cell(&self, row: &Row) -> String {
        let shown = match self {
            Self::Parameter(key) => row.parameters.get(*key).map(|value| match value.as_str() {
                Some(text) => text.to_owned(),
                None => value.to_string(),
            }),
            _ if row.failure.is_some() => {
                row.failure.as_deref().map(failure_word).map(str::to_owned)
            }
            Self::Time(key) => row.figure(key).map(|us| time(us * 1e3)),
            Self::Number(key) => row.figure(key).map(three_digits),
            Self::Count(key) => row.figure(key).map(|value| format!("{value:.0}")),
            Self::Millions(key) => row.figure(key).map(|value| three_digits(value / 1e6)),
        };
        shown.unwrap_or_else(|| "–".to_owned())
    }
}

/// Says why systems have no figures, a line for each reason.
pub(crate) fn failures(rows: &[Row]) -> String {
    let reason = |row: &Row| Some(format!("{}: {}\n", row.system.label(), row.failure.as_ref()?));
    let mut lines: Vec<_> = rows.iter().filter_map(reason).collect();
    lines.dedup();
    lines.concat()
}

/// Says in two words why a cell has no figure.
pub(crate) fn failure_word(failure: &str) -> &'static str {
    if failure.contains("no echo") { "no echo" } else { "failed" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Failure;
    use crate::system::System;

    fn turn(value: f64) -> Turn {
        let samples = [10_000, 30_000].into_iter().collect();
        let turn = Turn::new(Priority::Spinning).samples("new", samples);
        turn.figure("share", value).figure(THREADS_MAX, value)
    }

    #[test]
    fn turns_are_summed_up() {
        // Goal: samples of all turns count together, a figure is the median and a maximum the largest.
        // Method: three turns with known figures.
        let mut values = [3.0, 9.0, 5.0].into_iter();
        let rows = vec![Row::new(System::Tokio, "case")];
        let outcome = in_turns(rows, 3, 0, &mut Progress::hidden(), |_, _, _, _| {
            Ok(turn(values.next().unwrap()))
        });
        let outcome = outcome.unwrap();
        let figure = |key| outcome.rows[0].figure(key);
        assert_eq!((figure("share"), figure(THREADS_MAX)), (Some(5.0), Some(9.0)));
        assert_eq!((figure("new_samples"), figure("new_max_us")), (Some(6.0), Some(30.0)));
        assert_eq!(outcome.rows[0].samples(), 0, "these are not the row's own");
    }

    #[test]
    fn a_system_that_cannot_be_built_leaves_the_others() {
        // Goal: a failure of one system is its row's, is shown, and is not tried again; another error
        // ends the run. Method: two systems, of which one fails.
        let rows = || vec![Row::new(System::Vigie, "case"), Row::new(System::Tokio, "case")];
        let failed = |failure| BenchError::Failed { role: "server", failure };
        let mut tried = 0;
        let outcome = in_turns(rows(), 2, 0, &mut Progress::hidden(), |index, _, _, _| {
            if index == 1 {
                return Ok(turn(1.0));
            }
            tried += 1;
            Err(failed(Failure::Runtime { reason: "no such flavor".to_owned() }))
        });
        let rows_now = outcome.unwrap().rows;
        assert_eq!(tried, 1);
        assert_eq!(rows_now[1].figure("new_samples"), Some(4.0));
        let shown = table("Title", &rows_now, &[("share", Show::Number("share"))]);
        assert!(shown.contains("failed") && shown.contains("no such flavor"), "{shown}");
        let ended = in_turns(rows(), 1, 0, &mut Progress::hidden(), |_, _, _, _| {
            Err(failed(Failure::Io { doing: "accepting".to_owned(), reason: "gone".to_owned() }))
        });
        assert!(ended.is_err());
    }
}
