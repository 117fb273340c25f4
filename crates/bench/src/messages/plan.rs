//! Systems, measures and their length; and the figures made from the samples.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

pub(crate) use super::keys::{
    BESIDE, BYTES, CPU_CORES, CPU_CORES_FOLLOWER, CPU_PER_MESSAGE_US, MESSAGE_MEAN_US,
    MESSAGE_P99_US, MESSAGE_US, PAPER_SIZES, RANKS, WINDOW,
};
use super::{Carrier, Measure, MeasureResult, Prepared, Run};
use super::{plot, tables};
use crate::background::BackgroundLoad;
use crate::error::BenchError;
use crate::report::chart;
use crate::report::{Outcome, Plan, Progress, Row, Subject};
use crate::statistics::{Samples, median};

/// Sizes beyond them.
const LARGE_SIZES: [u32; 5] = [65_536, 131_072, 262_144, 1_048_576, 4_194_304];

/// Messages per answer where their rate is measured.
const WINDOW_SMALL: u32 = 64;

/// The same, where bandwidth is.
const WINDOW_LARGE: u32 = 16;

/// Messages that have arrived before the first is received.
const UNEXPECTED: u32 = 256;
/// Messages that wait for a receiver that comes late.
const BACKLOG: u32 = 100_000;

/// Sizes of messages to ranks that compute, and from them.
const BUSY_SIZES: [u32; 4] = [SMALL, 32_768, 262_144, 1_048_576];

/// Bytes of small messages.
const SMALL: u32 = 8;

/// Bytes of a loaned buffer.
pub(crate) const LOANED: u32 = 32_768;

/// The systems and their measurements.
#[derive(Clone, Debug)]
pub(crate) struct PingPongPlan {
    /// The systems, in the order of the tables.
    pub(crate) carriers: Vec<&'static Carrier>,
    /// The measures of two ranks, in the order of the rows; a system takes those that it has.
    pub(crate) measures: Vec<Measure>,
    /// The measures of more ranks than cores.
    pub(crate) crowds: Vec<Measure>,
    /// Numbers of their ranks, on two cores.
    pub(crate) ranks: Vec<u32>,
    /// Time per system and measure.
    pub(crate) budget: Duration,
    /// Turns in which the budget is spent, each with new processes.
    pub(crate) rounds: u32,
    /// Processes that compute beside the ranks.
    pub(crate) beside: u32,
    /// Shows the rows.
    pub(super) tables: fn(&[Row]) -> String,
    /// Where the latencies are drawn to, and the rings beside.
    pub(crate) plot: Option<PathBuf>,
}

/// The rows of one run of one system.
struct CarrierRun {
    carrier: usize,
    run: Run,
    rows: Vec<usize>,
}

impl PingPongPlan {
    /// Plans every measure, 300 ms each in 3 turns.
    pub(crate) fn new(carriers: Vec<&'static Carrier>) -> Self {
        Self {
            carriers,
            measures: Self::measures(&Self::sizes()),
            crowds: Measure::CROWDS.to_vec(),
            ranks: vec![4, 8, 16, 32],
            budget: Duration::from_millis(300),
            rounds: 3,
            beside: 0,
            tables: tables::all,
            plot: None,
        }
    }

    /// Returns the sizes of messages whose latency is measured by default, in bytes.
    pub(crate) fn sizes() -> Vec<u32> {
        PAPER_SIZES.into_iter().chain(LARGE_SIZES).collect()
    }

    /// Returns all measures of two ranks, with the latencies of `sizes`.
    pub(crate) fn measures(sizes: &[u32]) -> Vec<Measure> {
        let latencies = sizes.iter().map(|&bytes| Measure::Latency { bytes });
        let others = [
            Measure::Window { bytes: SMALL, window: WINDOW_SMALL },
            Measure::Window { bytes: 4_096, window: WINDOW_SMALL },
            Measure::Window { bytes: 262_144, window: WINDOW_LARGE },
            Measure::Window { bytes: 1_048_576, window: WINDOW_LARGE },
            Measure::Requests { bytes: SMALL, window: WINDOW_SMALL },
            Measure::Requests { bytes: 65_536, window: WINDOW_SMALL },
            Measure::Requests { bytes: 1_048_576, window: WINDOW_SMALL },
            Measure::Unexpected { bytes: SMALL, window: UNEXPECTED },
            Measure::Backlog { bytes: SMALL, window: BACKLOG },
            Measure::Backlog { bytes: 1_024, window: BACKLOG / 10 },
            Measure::Any { bytes: SMALL },
            Measure::Synchronous { bytes: SMALL },
            Measure::Loaned { bytes: LOANED },
            Measure::Waiting { bytes: SMALL },
            Measure::Quiet,
        ];
        let busy = BUSY_SIZES
            .into_iter()
            .flat_map(|bytes| [Measure::BusyReceiver { bytes }, Measure::BusySender { bytes }]);
        latencies.chain(others).chain(busy).collect()
    }

    /// The jobs of one system in one turn: the measures of two ranks together, each crowd
    /// separately.
    fn jobs_of(&self, carrier: &Carrier) -> impl Iterator<Item = (u32, Vec<Measure>)> {
        let has = |measure: &Measure| (carrier.has)(*measure);
        let pair = self.measures.iter().copied().filter(has);
        let crowds = self.crowds.iter().copied().filter(has);
        let crowds = crowds.flat_map(|crowd| self.ranks.iter().map(move |&n| (n, vec![crowd])));
        let jobs: Vec<_> = [(2, pair.collect())].into_iter().chain(crowds).collect();
        jobs.into_iter().filter(|(_, measures)| !measures.is_empty())
    }

    /// Empty rows, and what fills them.
    fn rows(&self) -> (Vec<Row>, Vec<CarrierRun>) {
        let (mut rows, mut jobs) = (Vec::new(), Vec::new());
        let cores = super::rank_context::cores();
        for (index, carrier) in self.carriers.iter().enumerate() {
            for (ranks, measures) in self.jobs_of(carrier) {
                let first = rows.len();
                let subject = Subject::Carrier { name: carrier.name, label: carrier.label };
                rows.extend(
                    measures.iter().map(|&measure| row(subject, measure, ranks, self.beside)),
                );
                let budget = self.budget / self.rounds.max(1);
                let run = Run { measures, budget, ranks, cores: cores.clone() };
                jobs.push(CarrierRun { carrier: index, run, rows: (first..rows.len()).collect() });
            }
        }
        (rows, jobs)
    }

    /// Rows stand by measure first, by system second.
    fn position(&self, row: &Row) -> (usize, u64, usize) {
        let is_it = |measure: &&Measure| {
            let same =
                measure.case() == row.case && row.number(BYTES) == Some(measure.bytes().into());
            same && row.number(WINDOW) == Some(measure.window().into())
        };
        let index = self.measures.iter().chain(&self.crowds).position(|measure| is_it(&measure));
        let carrier = self.carriers.iter().position(|one| one.name == row.system.name());
        (
            index.unwrap_or_default(),
            row.number(RANKS).unwrap_or_default(),
            carrier.unwrap_or_default(),
        )
    }
}

impl Plan for PingPongPlan {
    fn cases(&self) -> usize {
        let jobs: usize = self.carriers.iter().map(|carrier| self.jobs_of(carrier).count()).sum();
        jobs * self.rounds as usize
    }

    fn run(&self, _seed: u64, progress: &mut Progress) -> Result<Outcome, BenchError> {
        let prepare = |carrier: &&'static Carrier| {
            progress.case(format!("{}: preparing", carrier.name));
            carrier.prepare()
        };
        let prepared: Vec<_> = self.carriers.iter().map(prepare).collect();
        let (mut rows, jobs) = self.rows();
        for job in &jobs {
            if let Err(missing) = &prepared[job.carrier] {
                job.rows.iter().for_each(|&row| rows[row].failure = Some(missing.to_string()));
            }
        }
        let mut found = vec![Vec::new(); rows.len()];
        let _load = BackgroundLoad::start(self.beside)?;
        for _ in 0..self.rounds {
            for job in &jobs {
                let name = self.carriers[job.carrier].name;
                progress.case(format!("{name}, {} ranks", job.run.ranks));
                if let Ok(prepared) = &prepared[job.carrier]
                    && rows[job.rows[0]].failure.is_none()
                {
                    measure(&**prepared, job, &mut rows, &mut found);
                }
                progress.case_done();
            }
        }
        for (row, found) in rows.iter_mut().zip(found) {
            if row.failure.is_none() {
                sum_up(row, &found);
            }
        }
        rows.sort_by_key(|row| self.position(row));
        Ok(Outcome { rows, priority: None })
    }

    fn tables(&self, rows: &[Row]) -> String {
        (self.tables)(rows)
    }

    fn draw(&self, rows: &[Row]) -> Result<(), BenchError> {
        let Some(path) = &self.plot else { return Ok(()) };
        chart::write(path, plot::latencies(rows))?;
        chart::write(&path.with_extension("rings.svg"), plot::rings(rows))
    }
}

fn row(subject: Subject, measure: Measure, ranks: u32, beside: u32) -> Row {
    let row = Row::new(subject, measure.case()).parameter(BYTES, measure.bytes());
    let row = row.parameter(WINDOW, measure.window()).parameter(RANKS, ranks);
    if beside == 0 { row } else { row.parameter(BESIDE, beside) }
}

/// Takes one turn of a job.
fn measure(
    prepared: &dyn Prepared,
    job: &CarrierRun,
    rows: &mut [Row],
    found: &mut [Vec<(MeasureResult, u32)>],
) {
    match prepared.measure(&job.run) {
        Ok(all) => {
            for ((&row, measure_result), measure) in job.rows.iter().zip(all).zip(&job.run.measures)
            {
                found[row].push((measure_result, measure.messages(job.run.ranks)));
            }
        }
        Err(error) => {
            job.rows.iter().for_each(|&row| rows[row].failure = Some(error.to_string()));
        }
    }
}

/// Fills in a row's figures from its turns and the number of messages in an operation.
fn sum_up(row: &mut Row, found: &[(MeasureResult, u32)]) {
    // Picoseconds, since some messages take few nanoseconds.
    let per_message = found.iter().flat_map(|(measure_result, messages)| {
        let count = u64::from(measure_result.operations.max(1)) * u64::from(*messages);
        measure_result.samples_ns.iter().map(move |&ns| ns.saturating_mul(1_000) / count)
    });
    let samples: Samples = per_message.collect();
    let batches = found.iter().map(|(measure_result, _)| {
        json!([measure_result.operations, measure_result.samples_ns.len()])
    });
    let batches: Vec<_> = batches.collect();
    let raw =
        found.iter().flat_map(|(measure_result, _)| measure_result.samples_ns.iter().copied());
    row.samples_ns.insert("batches", raw.collect());
    let mut put = |key: &str, value: serde_json::Value| row.figures.insert(key.to_owned(), value);
    put("batches", json!(batches));
    if let Some(summary) = samples.summary() {
        let behind: u64 =
            found.iter().filter_map(|(measure_result, _)| measure_result.operations_behind).sum();
        put("samples", json!(if behind > 0 { behind } else { summary.count as u64 }));
        put(MESSAGE_US, json!(summary.p50 as f64 / 1e6));
        put(MESSAGE_MEAN_US, json!(summary.mean / 1e6));
        if let Some(p99) = summary.p99 {
            put(MESSAGE_P99_US, json!(p99 as f64 / 1e6));
        }
    } else {
        put("samples", json!(found.len()));
    }
    let over_turns = |figure: &dyn Fn(&MeasureResult, f64) -> f64| {
        // A program that does not report its time has no such figure.
        let timed = found.iter().filter(|(measure_result, _)| measure_result.wall_ns > 0);
        let values: Vec<_> = timed
            .map(|(measure_result, messages)| figure(measure_result, f64::from(*messages)))
            .collect();
        median(&values).filter(|value| value.is_finite())
    };
    let figures = [
        (
            CPU_CORES,
            over_turns(&|measure_result, _| {
                measure_result.cpu_ns as f64 / measure_result.wall_ns as f64
            }),
        ),
        (
            CPU_CORES_FOLLOWER,
            over_turns(&|measure_result, _| {
                measure_result.cpu_follower_ns as f64 / measure_result.wall_ns as f64
            }),
        ),
        (
            CPU_PER_MESSAGE_US,
            over_turns(&|measure_result, messages| {
                measure_result.cpu_ns as f64
                    / 1e3
                    / (measure_result.operations_all as f64 * messages)
            }),
        ),
    ];
    for (key, value) in figures {
        if let Some(value) = value {
            put(key, json!(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::carriers;

    #[test]
    fn turns_are_summed_up_per_message() {
        // Goal: samples of different numbers of operations count per message; processor time per message
        // counts the warm-up too. Method: two turns with known figures.
        let measure_result = |operations, ns| MeasureResult {
            operations,
            samples_ns: vec![ns; 3],
            operations_behind: None,
            operations_all: 100,
            wall_ns: 1_000,
            cpu_ns: 1_500,
            cpu_follower_ns: 500,
        };
        let subject = Subject::Carrier { name: "ring", label: "ring" };
        let mut row = row(subject, Measure::Latency { bytes: 8 }, 2, 0);
        sum_up(&mut row, &[(measure_result(10, 1_000), 2), (measure_result(20, 2_000), 2)]);
        assert_eq!(row.figure(MESSAGE_US), Some(0.05));
        assert_eq!(row.figure(CPU_CORES), Some(1.5));
        assert_eq!(row.figure(CPU_CORES_FOLLOWER), Some(0.5));
        assert_eq!(row.figure(CPU_PER_MESSAGE_US), Some(0.0075));
        assert_eq!((row.samples(), row.samples_ns["batches"].len()), (6, 6));
    }

    #[test]
    fn every_system_has_a_measure_and_no_row_is_lost() {
        // Goal: the jobs of a plan fill every row once. Method: all systems, counted.
        let plan = PingPongPlan::new(carriers());
        let (rows, jobs) = plan.rows();
        let filled: usize = jobs.iter().map(|job| job.rows.len()).sum();
        assert_eq!(filled, rows.len());
        for carrier in carriers() {
            assert!(plan.jobs_of(carrier).next().is_some(), "{}", carrier.name);
        }
    }
}
