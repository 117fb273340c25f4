//! Turns: rows that are measured one after the other, again and again.

use std::collections::BTreeMap;

use serde_json::json;

use super::progress::Progress;
use super::row::{Outcome, Row};
use crate::error::BenchError;
use crate::host::Priority;
use crate::statistics::{Samples, median};

/// Name of the samples that are a row's own: their figures have no prefix.
pub(crate) const REACTION: &str = "reaction";

/// Key of the work of compute tasks, in units per second.
pub(crate) const WORK_PER_S: &str = "work_per_s";

/// Key of the largest number of threads that were seen.
pub(crate) const THREADS_MAX: &str = "threads_max";

/// The results of one turn of a row.
#[derive(Debug)]
pub(crate) struct Repetition {
    priority: Priority,
    samples: Vec<(&'static str, Samples)>,
    figures: Vec<(&'static str, f64)>,
}

impl Repetition {
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

    /// Adds this turn to a row's samples and to the figures of its turns.
    fn add_to(self, row: &mut Row, figures: &mut BTreeMap<&'static str, Vec<f64>>) -> Priority {
        for (name, samples) in self.samples {
            row.samples_ns.entry(name).or_default().extend_from_slice(samples.as_nanoseconds());
        }
        for (key, value) in self.figures {
            figures.entry(key).or_default().push(value);
        }
        self.priority
    }
}

/// Measures rows, each with its setting, in turns (A B A B), so that a drift of the machine meets them all. A row whose
/// system fails gets the failure and is left out from then on.
pub(crate) fn in_repetitions<S>(
    cases: Vec<(S, Row)>,
    rounds: u32,
    seed: u64,
    progress: &mut Progress,
    mut measure: impl FnMut(&S, u64, &Progress) -> Result<Repetition, BenchError>,
) -> Result<Outcome, BenchError> {
    let (settings, rows): (Vec<S>, Vec<Row>) = cases.into_iter().unzip();
    let mut outcome = Outcome { rows, priority: None };
    let mut seeds = fastrand::Rng::with_seed(seed);
    let mut figures = vec![BTreeMap::<&'static str, Vec<f64>>::new(); outcome.rows.len()];
    for _ in 0..rounds {
        for ((setting, row), figures) in settings.iter().zip(&mut outcome.rows).zip(&mut figures) {
            let seed = seeds.u64(..);
            if row.failure.is_none() {
                match measure(setting, seed, progress) {
                    Ok(repetition) => {
                        outcome.priority = Some(repetition.add_to(row, figures));
                    }
                    Err(error) if error.is_of_the_system() => {
                        row.failure = Some(error.to_string());
                    }
                    Err(error) => return Err(error),
                }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Failure;
    use crate::report::{Show, table};
    use crate::schedulers::System;

    fn repetition(value: f64) -> Repetition {
        let samples = [10_000, 30_000].into_iter().collect();
        let repetition = Repetition::new(Priority::Spinning).samples("new", samples);
        repetition.figure("share", value).figure(THREADS_MAX, value)
    }

    #[test]
    fn repetitions_are_summed_up() {
        // Goal: samples of all turns count together, a figure is the median and a maximum the largest.
        // Method: three turns with known figures.
        let mut values = [3.0, 9.0, 5.0].into_iter();
        let rows = vec![((), Row::new(System::Tokio, "case"))];
        let outcome = in_repetitions(rows, 3, 0, &mut Progress::hidden(), |(), _, _| {
            Ok(repetition(values.next().unwrap()))
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
        let rows = || {
            [System::Vigie, System::Tokio].map(|system| (system, Row::new(system, "case"))).to_vec()
        };
        let failed = |failure| BenchError::Failed { role: "server", failure };
        let mut tried = 0;
        let outcome = in_repetitions(rows(), 2, 0, &mut Progress::hidden(), |system, _, _| {
            if *system == System::Tokio {
                return Ok(repetition(1.0));
            }
            tried += 1;
            Err(failed(Failure::Runtime { reason: "no such flavor".to_owned() }))
        });
        let rows_now = outcome.unwrap().rows;
        assert_eq!(tried, 1);
        assert_eq!(rows_now[1].figure("new_samples"), Some(4.0));
        let shown = table("Title", &rows_now, &[("share", Show::Number("share"))]);
        assert!(shown.contains("failed") && shown.contains("no such flavor"), "{shown}");
        let ended = in_repetitions(rows(), 1, 0, &mut Progress::hidden(), |_, _, _| {
            Err(failed(Failure::Io { doing: "accepting".to_owned(), reason: "gone".to_owned() }))
        });
        assert!(ended.is_err());
    }
}
