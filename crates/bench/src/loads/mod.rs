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

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use self::judge::Judged;
use self::judge::judge;
pub(crate) use self::measure::{Figures, Run, quantile};
use crate::compute::Pace;
use crate::error::BenchError;
use crate::host::{Machine, Priority};
use crate::mix::{CASES, Mix};
use crate::report::{Figure, Outcome, Plan, Progress, Row, Show, table};
use crate::schedulers::System;

/// Name of the case in rows.
pub(crate) const CASE: &str = "loads";

/// Name in rows of the system that is threads, measured a second time.
pub(crate) const AGAIN: &str = "again";

/// How long each load runs before it is measured.
const WARM_UP: Duration = Duration::from_millis(400);

/// Which mixes run on which systems.
#[derive(Clone, Debug, Args)]
#[command(after_help = names())]
pub(crate) struct LoadsPlan {
    /// Seed of the first mix; the next mixes take the next numbers, and each prints its seed. `--seed S --count 1` repeats
    /// one mix. Default: derived from the commit's hash.
    #[arg(long)]
    seed: Option<u64>,
    /// Number of mixes; 200 take about 40 minutes. Each runs for 2 s on kernel threads (three times) and on each of --peers;
    /// a run from which a virtual machine's host took processor time is repeated.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Run these named loads instead of drawn ones; `all` runs every one. The names are listed below.
    #[arg(long, value_delimiter = ',', value_name = "NAME,…", conflicts_with = "count")]
    case: Vec<String>,
    /// Seconds for which each run is measured, after 0.4 s of warm-up.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.5, value_parser = seconds)]
    seconds: f64,
    /// Systems whose figures are compared with those of kernel threads.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "SYSTEM,…",
        default_value = "vigie,threads,tokio"
    )]
    peers: Vec<System>,
    /// Worker threads of systems that let you choose their number.
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Show a table for each mix, not only figures beyond their bounds.
    #[arg(long)]
    tables: bool,
    /// Describe what would run, and run nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Also write machine, command and rows to this file, as one JSON object.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds, such as 1.5")?;
    if (0.05..=3_600.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("seconds must be between 0.05 and 3600".to_owned())
    }
}

fn names() -> String {
    let lines: String =
        CASES.iter().map(|(name, about, _)| format!("  {name:<20} {about}\n")).collect();
    format!("Names for --case:\n{lines}")
}

/// The results of one mix.
#[derive(Clone, Debug)]
pub(crate) struct MixOutcome {
    /// The mix.
    pub(crate) mix: Mix,
    /// Threads, of which two runs are taken together; the systems; and a third run of threads.
    pub(crate) runs: Vec<LoadRun>,
}

/// One system's run of a mix.
#[derive(Clone, Debug)]
pub(crate) struct LoadRun {
    /// The system.
    pub(crate) system: System,
    /// Whether this is the run of threads that is judged by the others.
    pub(crate) is_again: bool,
    /// The results, or the reason why there are none.
    pub(crate) figures: Result<Figures, String>,
    /// What was judged; empty for the reference.
    pub(crate) judged: Vec<Judged>,
}

impl LoadRun {
    /// Tells whether all bounds hold; not, if the run failed.
    pub(crate) fn holds(&self) -> bool {
        self.figures.is_ok() && self.judged.iter().all(Judged::holds)
    }

    /// Returns the largest factor by which a bound is missed; infinite if the run failed.
    pub(crate) fn worst(&self) -> f64 {
        if self.figures.is_err() {
            return f64::INFINITY;
        }
        self.judged.iter().map(Judged::factor).fold(0.0, f64::max)
    }

    /// Returns the name in tables.
    pub(crate) fn label(&self) -> String {
        if self.is_again { format!("{} {AGAIN}", self.system) } else { self.system.to_string() }
    }

    /// Returns the run as a row.
    pub(crate) fn row(&self, mix: &Mix) -> Row {
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
    /// Returns the mixes to run. The seed of the first that is drawn is by default that of the commit, and so many more.
    pub(crate) fn mixes(&self, more: u64) -> Result<Vec<Mix>, BenchError> {
        if self.case.is_empty() {
            let first = self.seed.unwrap_or_else(|| seed_of(&Machine::probe().commit) + more);
            return Ok((0..u64::from(self.count)).map(|index| Mix::draw(first + index)).collect());
        }
        let all = self.case.iter().any(|name| name == "all");
        let known = || CASES.iter().map(|case| case.0.to_owned()).collect();
        let names: Vec<String> = if all { known() } else { self.case.clone() };
        let named = |name: String| Mix::named(&name).ok_or(BenchError::NoCase { name });
        names.into_iter().map(named).collect()
    }

    /// Measures all mixes; `on_mix` gets each as it is done.
    ///
    /// # Errors
    /// Those of the measurement's own processes. A system that does not serve a mix is not an error: its
    /// run says so.
    pub(crate) fn run_all(
        &self,
        mixes: &[Mix],
        on_mix: &mut dyn FnMut(&MixOutcome),
    ) -> Result<LoadsOutcome, BenchError> {
        let mut outcome = LoadsOutcome { mixes: Vec::new(), priority: None };
        for mix in mixes {
            let mix_outcome = self.run_mix(mix, Pace::of_this_machine(), &mut outcome.priority)?;
            on_mix(&mix_outcome);
            outcome.mixes.push(mix_outcome);
        }
        Ok(outcome)
    }

    /// Measures all mixes, and shows each as it is done.
    pub(crate) fn run_and_show(&self, mixes: &[Mix]) -> Result<Outcome, BenchError> {
        let shows_tables = self.tables || !self.case.is_empty() || mixes.len() == 1;
        let outcome = self.run_all(mixes, &mut |mix| {
            println!("{}", if shows_tables { mix.table() } else { mix.line() });
        })?;
        println!("\n{}", outcome.summary());
        Ok(outcome.into())
    }

    fn run_mix(
        &self,
        mix: &Mix,
        pace: Pace,
        priority: &mut Option<Priority>,
    ) -> Result<MixOutcome, BenchError> {
        let others = self.peers.iter().copied().filter(|system| *system != System::Threads);
        // The two runs to which all are compared come first and last, so that a drift of the machine is in both.
        let mut measured = Vec::new();
        for system in [System::Threads].into_iter().chain(others).chain([System::Threads; 2]) {
            let run = Run {
                system,
                workers: self.workers,
                pace,
                warm_up: WARM_UP,
                span: Duration::from_secs_f64(self.seconds),
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
pub(crate) struct LoadsOutcome {
    /// The mixes, in order.
    pub(crate) mixes: Vec<MixOutcome>,
    /// How the paced client was scheduled.
    pub(crate) priority: Option<Priority>,
}

impl From<LoadsOutcome> for Outcome {
    fn from(outcome: LoadsOutcome) -> Self {
        let runs = |mix: &MixOutcome| mix.runs.iter().map(|run| run.row(&mix.mix)).collect();
        let rows: Vec<Vec<Row>> = outcome.mixes.iter().map(runs).collect();
        Self { rows: rows.concat(), priority: outcome.priority }
    }
}

impl Plan for LoadsPlan {
    fn cases(&self) -> usize {
        self.mixes(0).map_or(0, |mixes| mixes.len())
    }

    fn run(&self, seed: u64, progress: &mut Progress) -> Result<Outcome, BenchError> {
        let outcome = self.run_all(&self.mixes(seed)?, &mut |mix| {
            progress.case(mix.mix.name.clone());
            progress.case_done();
        })?;
        Ok(outcome.into())
    }

    fn tables(&self, rows: &[Row]) -> String {
        let columns = [("mix", Show::Parameter("mix")), ("worst factor", Show::Number("worst"))];
        table("Loads", rows, &columns)
    }
}

/// Returns a seed that is drawn from the name of a commit, so that each commit meets mixes of its own.
pub(crate) fn seed_of(commit: &str) -> u64 {
    // FNV-1a, of which 32 bits are easier to type than 64.
    let hash = commit.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    });
    hash >> 32
}

/// vigie's rows of random mixes, or of those with names.
fn own(rows: &[Row], is_random: bool) -> impl Iterator<Item = &Row> {
    rows.iter().filter(move |row| {
        let is_drawn = row.text("mix").starts_with("seed ");
        row.case == CASE && row.system == System::Vigie && is_drawn == is_random
    })
}

/// The share of vigie's mixes, random ones or those with names, that are within all bounds.
pub(crate) fn share(rows: &[Row], is_random: bool) -> Option<Figure> {
    let holds: Vec<_> = own(rows, is_random)
        .map(|row| row.figures.get("holds") == Some(&Value::Bool(true)))
        .collect();
    let hold = holds.iter().filter(|holds| **holds).count();
    (!holds.is_empty()).then(|| Figure::new(hold as f64 / holds.len() as f64, holds.len() as u64))
}

/// The largest factor of vigie's random mixes; without bound if a run failed.
pub(crate) fn worst_of_random(rows: &[Row]) -> Option<Figure> {
    let factors: Vec<_> =
        own(rows, true).map(|row| row.figure("worst").unwrap_or(f64::INFINITY)).collect();
    let worst = factors.iter().copied().reduce(f64::max)?;
    Some(Figure::new(worst, factors.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::planned;

    /// Goal: the first and the last run are the reference together, all others are judged by it, and a system that
    /// failed holds nothing. Method: threads whose two runs differ, so that each alone gives another verdict.
    #[test]
    fn two_runs_of_threads_are_the_reference() {
        let figures = |probe_ns: u64, cores: f64| {
            let (probes, opened) = (vec![probe_ns; 1_000], vec![probe_ns; 100]);
            Ok(Figures { probes, opened, compute_cores: cores, ..Figures::default() })
        };
        let plan: LoadsPlan = planned("");
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

    fn load(system: System, mix: &str, holds: bool, worst: Option<f64>) -> Row {
        let row = Row::new(system, CASE).parameter("mix", mix).with_figure("holds", holds);
        match worst {
            Some(worst) => row.with_figure("worst", worst),
            None => row,
        }
    }

    #[test]
    fn random_and_named_loads_are_told_apart() {
        // Goal: shares count vigie's mixes of their own kind, and a failed run is beyond every factor.
        // Method: made-up rows.
        let rows = [
            load(System::Vigie, "seed 1", true, Some(0.5)),
            load(System::Vigie, "seed 2", false, Some(7.0)),
            load(System::Tokio, "seed 1", false, Some(90.0)),
            load(System::Vigie, "flood-1", false, Some(80.0)),
        ];
        assert_eq!(share(&rows, true), Some(Figure::new(0.5, 2)));
        assert_eq!(share(&rows, false), Some(Figure::new(0.0, 1)));
        assert_eq!(worst_of_random(&rows), Some(Figure::new(7.0, 2)));
        let failed = [load(System::Vigie, "seed 3", false, None)];
        assert_eq!(worst_of_random(&failed), Some(Figure::new(f64::INFINITY, 1)));
        assert_eq!(share(&[], true), None);
    }
}
