//! Turns: rows that are measured one after the other, again and again.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::plan::Case;
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

/// One turn of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn<'a> {
    /// The seed of all that is random in it.
    pub(crate) seed: u64,
    /// What is shown of it meanwhile.
    pub(crate) progress: &'a Progress,
}

impl Turn<'_> {
    /// Says what is measured now.
    pub(crate) fn shows(&self, what: impl Into<String>) {
        self.progress.case(what);
    }
}

/// The results of one turn of a row.
#[derive(Debug, Default)]
pub(crate) struct Repetition {
    priority: Option<Priority>,
    samples: Vec<(&'static str, Samples)>,
    figures: Vec<(&'static str, f64)>,
    notes: Vec<(&'static str, Value)>,
}

impl Repetition {
    /// Takes note of how the client was scheduled.
    pub(crate) fn new(priority: Priority) -> Self {
        Self { priority: Some(priority), ..Self::default() }
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

    /// Adds a figure that is no number; the row keeps that of the last turn.
    pub(crate) fn note(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.notes.push((key, value.into()));
        self
    }

    /// Adds this turn to a row's samples and to the figures of its turns.
    fn add_to(self, row: &mut Row, figures: &mut Figures) -> Option<Priority> {
        for (name, samples) in self.samples {
            row.samples_ns.entry(name).or_default().extend_from_slice(samples.as_nanoseconds());
        }
        for (key, value) in self.figures {
            figures.entry(key).or_default().push(value);
        }
        for (key, value) in self.notes {
            row.figures.insert(key.to_owned(), value);
        }
        self.priority
    }
}

/// The figures of all turns of a row.
type Figures = BTreeMap<&'static str, Vec<f64>>;

/// Measures rows, each with its setting, in turns (A B A B), so that a drift of the machine meets them all. A row whose
/// system fails gets the failure and is left out from then on.
pub(super) fn in_repetitions<C: Case>(
    case: &C,
    rows: Vec<(C::Setting, Row)>,
    seed: u64,
    progress: &mut Progress,
) -> Result<Outcome, BenchError> {
    let (settings, rows): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
    let mut outcome = Outcome { rows, priority: None };
    let mut seeds = fastrand::Rng::with_seed(seed);
    let mut figures = vec![Figures::new(); outcome.rows.len()];
    for _ in 0..case.rounds() {
        for ((setting, row), figures) in settings.iter().zip(&mut outcome.rows).zip(&mut figures) {
            let seed = seeds.u64(..);
            if row.failure.is_none() {
                match case.measure(setting, &Turn { seed, progress }) {
                    Ok(repetition) => {
                        let priority = repetition.add_to(row, figures);
                        outcome.priority = priority.or(outcome.priority);
                    }
                    Err(error) if case.is_of_the_row(setting, &error) => {
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
fn sum_up(row: &mut Row, figures: &Figures) {
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
    // Without samples of its own, a row has as many as turns.
    if let Some(turns) = figures.values().map(Vec::len).max() {
        row.figures.entry("samples").or_insert_with(|| turns.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Failure;
    use crate::report::{Show, table};
    use crate::schedulers::System;

    /// A case that is measured by a closure.
    struct Measured<F>(u32, F);

    impl<F: Fn(System) -> Result<Repetition, BenchError>> Case for Measured<F> {
        type Setting = System;

        fn rounds(&self) -> u32 {
            self.0
        }

        fn rows(&self) -> Vec<(System, Row)> {
            [System::Vigie, System::Tokio].map(|system| (system, Row::new(system, "case"))).to_vec()
        }

        fn measure(&self, system: &System, _turn: &Turn<'_>) -> Result<Repetition, BenchError> {
            self.1(*system)
        }

        fn tables(&self, _rows: &[Row]) -> String {
            String::new()
        }
    }

    fn run(case: &impl Case) -> Result<Outcome, BenchError> {
        in_repetitions(case, case.rows(), 0, &mut Progress::hidden())
    }

    fn repetition(value: f64) -> Repetition {
        let samples = [10_000, 30_000].into_iter().collect();
        let repetition = Repetition::new(Priority::Spinning).samples("new", samples);
        repetition.figure("share", value).figure(THREADS_MAX, value)
    }

    #[test]
    fn repetitions_are_summed_up() {
        // Goal: samples of all turns count together, a figure is the median, a maximum the largest and a note the last.
        // Method: three turns with known figures.
        let values = [3.0, 9.0, 5.0].into_iter().cycle();
        let values = std::cell::RefCell::new(values);
        let outcome = run(&Measured(3, |system| {
            let value = if system == System::Vigie { values.borrow_mut().next() } else { None };
            Ok(repetition(value.unwrap_or_default()).note("note", value))
        }));
        let outcome = outcome.unwrap();
        let figure = |key| outcome.rows[0].figure(key);
        assert_eq!((figure("share"), figure(THREADS_MAX)), (Some(5.0), Some(9.0)));
        assert_eq!((figure("new_samples"), figure("new_max_us")), (Some(6.0), Some(30.0)));
        assert_eq!(figure("note"), Some(5.0));
        assert_eq!(outcome.rows[0].samples(), 3, "it has no samples of its own, only turns");
    }

    #[test]
    fn a_system_that_cannot_be_built_leaves_the_others() {
        // Goal: a failure of one system is its row's, is shown, and is not tried again; another error
        // ends the run. Method: two systems, of which one fails.
        let failed = |failure| Err(BenchError::Failed { role: "server", failure });
        let tried = std::cell::Cell::new(0);
        let outcome = run(&Measured(2, |system| {
            if system == System::Tokio {
                return Ok(repetition(1.0));
            }
            tried.set(tried.get() + 1);
            failed(Failure::Runtime { reason: "no such flavor".to_owned() })
        }));
        let rows = outcome.unwrap().rows;
        assert_eq!(tried.get(), 1);
        assert_eq!(rows[1].figure("new_samples"), Some(4.0));
        let shown = table("Title", &rows, &[("share", Show::Number("share"))]);
        assert!(shown.contains("failed") && shown.contains("no such flavor"), "{shown}");
        let gone = |_| failed(Failure::because("accepting", "gone"));
        assert!(run(&Measured(1, gone)).is_err());
    }
}
