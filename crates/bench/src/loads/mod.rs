//! Random loads: mixes of behaviour, drawn by seed, compared with how kernel threads handle
//! them.
//!
//! ```text
//!   parent (LoadsPlan) ── for each mix: threads, vigie, tokio, threads again, one after another
//!      │
//!      ├─▶ server process: the mix on one system          mix/tasks.rs, or mix/threads.rs
//!      ├─▶ paced client: probes, requests, connections    mix/schedule.rs, mix/paced.rs; real-time priority
//!      └─▶ closed clients, if the mix floods              mix/closed.rs; ordinary priority
//! ```
//!
//! A [`Mix`] is a pure function of its seed ([`Mix::draw`]) or has a name ([`Mix::named`]). The bounds
//! stand in `judge.rs`. Threads are measured twice and judged by themselves with the same bounds: how
//! often they fail is the noise of the judgement.

mod judge;
mod measure;
mod tables;

use std::time::Duration;

use serde_json::{Value, json};

use self::judge::judge;
pub use self::judge::{Judged, LoadMeasure};
pub(crate) use self::measure::{Figures, Run, quantile};
pub use self::tables::{Summary, SystemSummary};
use crate::compute::Pace;
use crate::error::BenchError;
use crate::host::realtime::Priority;
pub use crate::mix::{Behaviour, CASES, Call, Mix, NamedLoad, ServiceTime, Stage};
use crate::report::Row;
use crate::schedulers::System;

/// Name of the case in rows.
pub const CASE: &str = "loads";

/// Name in rows of the system that is threads, measured a second time.
pub const AGAIN: &str = "again";

/// Which mixes run on which systems.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LoadsPlan {
    /// The mixes.
    pub mixes: Vec<Mix>,
    /// The systems that are held against threads.
    pub systems: Vec<System>,
    /// Worker threads, where a system has a choice.
    pub workers: usize,
    /// How long each load runs before it is measured.
    pub warm_up: Duration,
    /// How long each is measured.
    pub span: Duration,
}

/// The results of one mix.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MixOutcome {
    /// The mix.
    pub mix: Mix,
    /// Threads, of which two runs are taken together; the systems; and a third run of threads.
    pub runs: Vec<LoadRun>,
}

/// One system's run of a mix.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LoadRun {
    /// The system.
    pub system: System,
    /// Whether this is the run of threads that is judged by the others.
    pub is_again: bool,
    /// The results, or the reason why there are none.
    pub(crate) figures: Result<Figures, String>,
    /// What was judged; empty for the reference.
    pub judged: Vec<Judged>,
}

impl LoadRun {
    /// Tells whether all bounds hold; not, if the run failed.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.figures.is_ok() && self.judged.iter().all(Judged::holds)
    }

    /// Returns the largest factor by which a bound is missed; infinite if the run failed.
    #[must_use]
    pub fn worst(&self) -> f64 {
        if self.figures.is_err() {
            return f64::INFINITY;
        }
        self.judged.iter().map(Judged::factor).fold(0.0, f64::max)
    }

    /// Returns the name in tables.
    #[must_use]
    pub fn label(&self) -> String {
        if self.is_again { format!("{} {AGAIN}", self.system) } else { self.system.to_string() }
    }

    /// Returns the run as a row.
    #[must_use]
    pub fn row(&self, mix: &Mix) -> Row {
        let mut row = Row::new(self.system, CASE)
            .parameter("mix", mix.name.clone())
            .parameter("seed", mix.seed)
            .parameter("words", mix.to_string())
            .parameter(AGAIN, self.is_again);
        match &self.figures {
            Ok(figures) => row.figures = figures.to_map(),
            Err(failure) => row.failure = Some(failure.clone()),
        }
        let missed = self.judged.iter().filter(|judged| !judged.holds());
        let missed: Vec<Value> = missed
            .map(|judged| {
                let measure = judged.measure.to_string();
                json!({
                    "measure": measure, "value": judged.value, "bound": judged.bound,
                    "factor": judged.factor(),
                })
            })
            .collect();
        let row = row.with_figure("missed", missed).with_figure("holds", self.holds());
        row.with_figure("worst", self.worst())
    }
}

impl LoadsPlan {
    /// Plans each mix on threads, threads again and `systems`, measured for 1.5 s.
    #[must_use]
    pub fn new(mixes: Vec<Mix>, systems: Vec<System>) -> Self {
        let (warm_up, span) = (Duration::from_millis(400), Duration::from_millis(1_500));
        Self { mixes, systems, workers: 2, warm_up, span }
    }

    /// Measures all mixes; `on_mix` gets each as it is done.
    ///
    /// # Errors
    /// Those of the measurement's own processes. A system that does not serve a mix is not an error: its
    /// run says so.
    pub fn run(&self, on_mix: &mut dyn FnMut(&MixOutcome)) -> Result<LoadsOutcome, BenchError> {
        let pace = Pace::measure();
        let mut outcome = LoadsOutcome { mixes: Vec::new(), priority: None };
        for mix in &self.mixes {
            let mix_outcome = self.run_mix(mix, pace, &mut outcome.priority)?;
            on_mix(&mix_outcome);
            outcome.mixes.push(mix_outcome);
        }
        Ok(outcome)
    }

    fn run_mix(
        &self,
        mix: &Mix,
        pace: Pace,
        priority: &mut Option<Priority>,
    ) -> Result<MixOutcome, BenchError> {
        let others = self.systems.iter().copied().filter(|system| *system != System::Threads);
        // The two runs to which all are compared come first and last, so that a drift of the machine is in both.
        let mut measured = Vec::new();
        for system in [System::Threads].into_iter().chain(others).chain([System::Threads; 2]) {
            let run = Run {
                system,
                workers: self.workers,
                pace,
                warm_up: self.warm_up,
                span: self.span,
                opened_per_s: OPENED_PER_S,
                counts_from_due: false,
            };
            let figures = match run.measure_undisturbed(mix) {
                Ok((figures, found)) => {
                    *priority = Some(found);
                    Ok(figures)
                }
                Err(error @ (BenchError::Start { .. } | BenchError::Protocol { .. })) => {
                    return Err(error);
                }
                Err(error) => Err(error.to_string()),
            };
            measured.push((system, figures));
        }
        Ok(MixOutcome { mix: mix.clone(), runs: self.judge_runs(mix, measured) })
    }

    /// Judges all runs but the first and the last, which are what they are compared to.
    fn judge_runs(
        &self,
        mix: &Mix,
        mut measured: Vec<(System, Result<Figures, String>)>,
    ) -> Vec<LoadRun> {
        let last = measured.pop().map(|(_, figures)| figures);
        if let ([(_, Ok(first)), ..], Some(Ok(last))) = (&mut measured[..], last) {
            first.join(last);
        }
        let reference = measured.first().and_then(|(_, figures)| figures.as_ref().ok()).cloned();
        let judge_one = |(index, (system, figures)): (usize, (System, Result<Figures, String>))| {
            let judged = match (&figures, &reference) {
                (Ok(own), Some(reference)) if index > 0 => {
                    judge(mix, self.workers, own, reference, system == System::Threads)
                }
                _ => Vec::new(),
            };
            LoadRun { system, is_again: index > 0 && system == System::Threads, figures, judged }
        };
        measured.into_iter().enumerate().map(judge_one).collect()
    }
}

/// New connections per second that are opened to be measured.
const OPENED_PER_S: u32 = 200;

/// What all mixes have shown.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LoadsOutcome {
    /// The mixes, in order.
    pub mixes: Vec<MixOutcome>,
    /// How the paced client was scheduled.
    pub priority: Option<Priority>,
}

impl LoadsOutcome {
    /// Returns all runs as rows.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let rows = self.mixes.iter().flat_map(|mix| mix.runs.iter().map(|run| run.row(&mix.mix)));
        rows.collect()
    }
}

/// Returns a seed that is drawn from the name of a commit, so that each commit meets mixes of its own.
#[must_use]
pub fn seed_of(commit: &str) -> u64 {
    // FNV-1a, of which 32 bits are easier to type than 64.
    let hash = commit.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    });
    hash >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the first and the last run are the reference together, all others are judged by it, and a system that
    /// failed holds nothing. Method: threads whose two runs differ, so that each alone gives another verdict.
    #[test]
    fn two_runs_of_threads_are_the_reference() {
        let figures = |probe_ns: u64, cores: f64| {
            let (probes, opened) = (vec![probe_ns; 1_000], vec![probe_ns; 100]);
            Ok(Figures { probes, opened, compute_cores: cores, ..Figures::default() })
        };
        let plan = LoadsPlan::new(Vec::new(), Vec::new());
        let mix = Mix::named("hogs-10").expect("it is known");
        let judge = |own: Result<Figures, String>| {
            let measured = vec![
                (System::Threads, figures(1_000_000, 0.6)),
                (System::Vigie, own),
                (System::Threads, figures(50_000_000, 1.0)),
                (System::Threads, figures(10_000_000, 1.0)),
            ];
            plan.judge_runs(&mix, measured)
        };
        // The percentile 99 of both is the slower one's; the computation of both is 0.8 cores.
        for (own, holds) in [
            (figures(12_000_000, 0.73), true),
            (figures(12_000_001, 0.73), false),
            (figures(12_000_000, 0.71), false),
            (Err("it ended".to_owned()), false),
        ] {
            let runs = judge(own);
            let [reference, vigie, again] = &runs[..] else { panic!("three are shown: {runs:?}") };
            assert!(reference.judged.is_empty() && !reference.is_again && !vigie.is_again);
            assert_eq!(vigie.holds(), holds, "{:?}", vigie.judged);
            assert!(again.is_again && !again.holds(), "slower than 1.2 times the reference");
        }
    }
}
