//! What vigie must reach: one entry per goal, in one place.
//!
//! A goal compares a figure with a bound. Wherever there is one, the figure is a ratio to a peer or
//! to a limit that was measured in the same run, so that it means the same on every machine.
//! [`check`] measures and evaluates; `vigie-bench goals` shows the result.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Value, json};
use thiserror::Error;

use crate::compute::YieldEvery;
use crate::error::BenchError;
use crate::idle::{self, IdlePlan};
use crate::pending::{self, PendingPlan};
use crate::progress::Progress;
use crate::reaction::{self, ReactionPlan};
use crate::report::{Outcome, Row, find};
use crate::switches::{self, SwitchesPlan};
use crate::system::System;
use crate::table::three_digits;

/// Every goal.
pub static GOALS: &[Goal] = &[
    Goal {
        area: Area::Reaction,
        case: "enhanced polling, yield every 10 ms, N = 1, 2, 5, 10",
        command: "vigie-bench reaction --only vigie-enhanced --compute 1,2,5,10",
        figure: "largest mean / smallest mean",
        bound: Bound::AtMost(1.3),
        samples_min: 50,
        experiment: Experiment::Quantum,
        measure: |rows| mean_spread(rows, System::VigieEnhanced),
    },
    Goal {
        area: Area::Reaction,
        case: "user-level by default, yield every 10 ms, N = 1, 2, 5, 10",
        command: "vigie-bench reaction --only vigie-user-level --compute 1,2,5,10",
        figure: "largest mean / smallest mean",
        bound: Bound::AtMost(1.3),
        samples_min: 50,
        experiment: Experiment::Quantum,
        measure: |rows| mean_spread(rows, System::VigieUserLevel),
    },
    Goal {
        area: Area::Reaction,
        case: "naive polling, yield every 10 ms: grows with N",
        command: "vigie-bench reaction --only vigie-naive --compute 1,10",
        figure: "mean at N = 10 / mean at N = 1",
        bound: Bound::AtLeast(5.0),
        samples_min: 50,
        experiment: Experiment::Quantum,
        measure: naive_growth,
    },
    Goal {
        area: Area::Reaction,
        case: "hybrid, yield every 100 µs, N = 2",
        command: "vigie-bench reaction --only vigie,tokio --compute 2 --yield-every 100us",
        figure: "p50 / tokio's p50",
        bound: Bound::Below(1.0),
        samples_min: 500,
        experiment: Experiment::FineYields,
        measure: |rows| p50_to_tokio(rows, 2),
    },
    Goal {
        area: Area::Reaction,
        case: "hybrid, yield every 100 µs, N = 5",
        command: "vigie-bench reaction --only vigie,tokio --compute 5 --yield-every 100us",
        figure: "p50 / tokio's p50",
        bound: Bound::Below(1.0),
        samples_min: 500,
        experiment: Experiment::FineYields,
        measure: |rows| p50_to_tokio(rows, 5),
    },
    Goal {
        area: Area::Reaction,
        case: "hybrid, yield every 100 µs, N = 10",
        command: "vigie-bench reaction --only vigie,tokio --compute 10 --yield-every 100us",
        figure: "p50 / tokio's p50",
        bound: Bound::Below(1.0),
        samples_min: 500,
        experiment: Experiment::FineYields,
        measure: |rows| p50_to_tokio(rows, 10),
    },
    Goal {
        area: Area::Pending,
        case: "enhanced polling, K = 8",
        command: "vigie-bench pending --only vigie-enhanced --waiting 1,8",
        figure: "completion / completion at K = 1",
        bound: Bound::AtMost(1.05),
        samples_min: 5,
        experiment: Experiment::Pending,
        measure: |rows| completion_ratio(rows, System::VigieEnhanced, 8),
    },
    Goal {
        area: Area::Pending,
        case: "enhanced polling, K = 10000",
        command: "vigie-bench pending --only vigie-enhanced --waiting 1,10000",
        figure: "completion / completion at K = 1",
        bound: Bound::AtMost(1.2),
        samples_min: 5,
        experiment: Experiment::Pending,
        measure: |rows| completion_ratio(rows, System::VigieEnhanced, 10_000),
    },
    Goal {
        area: Area::Pending,
        case: "user-level by default, K = 8",
        command: "vigie-bench pending --only vigie-user-level --waiting 1,8",
        figure: "completion / completion at K = 1",
        bound: Bound::AtMost(1.05),
        samples_min: 5,
        experiment: Experiment::Pending,
        measure: |rows| completion_ratio(rows, System::VigieUserLevel, 8),
    },
    Goal {
        area: Area::Pending,
        case: "user-level by default, K = 10000",
        command: "vigie-bench pending --only vigie-user-level --waiting 1,10000",
        figure: "completion / completion at K = 1",
        bound: Bound::AtMost(1.2),
        samples_min: 5,
        experiment: Experiment::Pending,
        measure: |rows| completion_ratio(rows, System::VigieUserLevel, 10_000),
    },
    Goal {
        area: Area::Pending,
        case: "hybrid, K = 8",
        command: "vigie-bench pending --only vigie --waiting 1,8",
        figure: "completion / completion at K = 1",
        bound: Bound::AtMost(1.05),
        samples_min: 5,
        experiment: Experiment::Pending,
        measure: |rows| completion_ratio(rows, System::Vigie, 8),
    },
    Goal {
        area: Area::Pending,
        case: "hybrid, K = 10000",
        command: "vigie-bench pending --only vigie --waiting 1,10000",
        figure: "completion / completion at K = 1",
        bound: Bound::AtMost(1.2),
        samples_min: 5,
        experiment: Experiment::Pending,
        measure: |rows| completion_ratio(rows, System::Vigie, 10_000),
    },
    Goal {
        area: Area::Idle,
        case: "user-level, 100 tasks waiting, 5 s",
        command: "vigie-bench goals idle",
        figure: "context switches",
        bound: Bound::AtMost(0.0),
        samples_min: 1,
        experiment: Experiment::Idle,
        measure: |rows| first(rows, System::VigieUserLevel, idle::CASE, "context_switches"),
    },
    Goal {
        area: Area::Idle,
        case: "user-level, 100 tasks waiting, 5 s",
        command: "vigie-bench goals idle",
        figure: "system calls",
        bound: Bound::AtMost(0.0),
        samples_min: 1,
        experiment: Experiment::Idle,
        measure: |rows| first(rows, System::VigieUserLevel, idle::CASE, "system_calls"),
    },
    Goal {
        area: Area::Idle,
        case: "hybrid, 100 tasks waiting, 5 s",
        command: "vigie-bench goals idle",
        figure: "context switches",
        bound: Bound::AtMost(0.0),
        samples_min: 1,
        experiment: Experiment::Idle,
        measure: |rows| first(rows, System::Vigie, idle::CASE, "context_switches"),
    },
    Goal {
        area: Area::Idle,
        case: "hybrid, 100 tasks waiting, 5 s",
        command: "vigie-bench goals idle",
        figure: "system calls",
        bound: Bound::AtMost(0.0),
        samples_min: 1,
        experiment: Experiment::Idle,
        measure: |rows| first(rows, System::Vigie, idle::CASE, "system_calls"),
    },
    Goal {
        area: Area::Costs,
        case: "user-level, two tasks that yield",
        command: "vigie-bench goals costs",
        figure: "allocations / switch",
        bound: Bound::AtMost(0.0),
        samples_min: 100_000,
        experiment: Experiment::Switches,
        measure: |rows| per_switch(rows, System::VigieUserLevel, "yield", "allocations"),
    },
    Goal {
        area: Area::Costs,
        case: "user-level, a task that waits for a socket",
        command: "vigie-bench goals costs",
        figure: "allocations / wait",
        bound: Bound::AtMost(0.0),
        samples_min: 20_000,
        experiment: Experiment::Switches,
        measure: |rows| per_switch(rows, System::VigieUserLevel, "wait", "allocations"),
    },
    Goal {
        area: Area::Costs,
        case: "user-level, two tasks that yield",
        command: "vigie-bench goals costs",
        figure: "system calls / switch",
        bound: Bound::AtMost(CALLS_PER_SWITCH),
        samples_min: 100_000,
        experiment: Experiment::Switches,
        measure: |rows| per_switch(rows, System::VigieUserLevel, "yield", "system_calls"),
    },
    Goal {
        area: Area::Costs,
        case: "hybrid, two tasks that yield",
        command: "vigie-bench goals costs",
        figure: "allocations / switch",
        bound: Bound::AtMost(0.0),
        samples_min: 100_000,
        experiment: Experiment::Switches,
        measure: |rows| per_switch(rows, System::Vigie, "yield", "allocations"),
    },
    Goal {
        area: Area::Costs,
        case: "hybrid, a task that waits for a socket",
        command: "vigie-bench goals costs",
        figure: "allocations / wait",
        bound: Bound::AtMost(0.0),
        samples_min: 20_000,
        experiment: Experiment::Switches,
        measure: |rows| per_switch(rows, System::Vigie, "wait", "allocations"),
    },
    Goal {
        area: Area::Costs,
        case: "hybrid, two tasks that yield",
        command: "vigie-bench goals costs",
        figure: "system calls / switch",
        bound: Bound::AtMost(CALLS_PER_SWITCH),
        samples_min: 100_000,
        experiment: Experiment::Switches,
        measure: |rows| per_switch(rows, System::Vigie, "yield", "system_calls"),
    },
];

/// "No system call per task switch": a scheduler may poll now and then in time, which strace makes
/// dearer than it is, so up to one call in a hundred switches passes.
const CALLS_PER_SWITCH: f64 = 0.01;

/// A figure that vigie must reach.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Goal {
    /// What the goal is about.
    pub area: Area,
    /// System and load.
    pub case: &'static str,
    /// The command that measures this case alone.
    pub command: &'static str,
    /// What is compared with the bound.
    pub figure: &'static str,
    /// The bound.
    pub bound: Bound,
    /// Samples below which the figure says nothing.
    pub samples_min: u64,
    /// What has to be measured.
    experiment: Experiment,
    /// Finds the figure in the rows of the experiment.
    measure: fn(&[Row]) -> Option<Figure>,
}

impl Goal {
    /// Compares what was measured with the bound.
    #[must_use]
    pub fn evaluate(&self, rows: &[Row]) -> Verdict {
        match (self.measure)(rows) {
            None => Verdict::Unmeasured(unmeasured_because(rows)),
            Some(figure) if figure.samples < self.samples_min => Verdict::Unmeasured(format!(
                "{} samples, {} are needed",
                figure.samples, self.samples_min
            )),
            Some(figure) if self.bound.holds(figure.value) => Verdict::Met(figure.value),
            Some(figure) => Verdict::Missed(figure.value),
        }
    }
}

fn unmeasured_because(rows: &[Row]) -> String {
    let failure = rows.iter().find_map(|row| row.failure.clone());
    failure
        .unwrap_or_else(|| "no such figure; system calls need strace (`apt install strace`)".into())
}

/// What goals are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Area {
    /// Time until a message is echoed, beside compute tasks.
    Reaction,
    /// Time of a task, beside waiting tasks.
    Pending,
    /// What a server does while nothing happens.
    Idle,
    /// What a switch between tasks costs beside time.
    Costs,
}

impl Area {
    /// All areas.
    pub const ALL: [Self; 4] = [Self::Reaction, Self::Pending, Self::Idle, Self::Costs];

    /// Returns the name on the command line and in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reaction => "reaction",
            Self::Pending => "pending",
            Self::Idle => "idle",
            Self::Costs => "costs",
        }
    }
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Area {
    type Err = UnknownArea;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|area| area.name() == name);
        known.ok_or_else(|| UnknownArea { name: name.to_owned() })
    }
}

/// A name that stands for no area.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no goals are about {name:?}; there are {}", Area::ALL.map(Area::name).join(", "))]
#[non_exhaustive]
pub struct UnknownArea {
    /// What was given.
    pub name: String,
}

/// What a figure must not pass.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(clippy::exhaustive_enums, reason = "there is no other comparison")]
pub enum Bound {
    /// The figure must be this or less.
    AtMost(f64),
    /// The figure must be less than this.
    Below(f64),
    /// The figure must be this or more.
    AtLeast(f64),
}

impl Bound {
    /// Tells whether `figure` is within this bound; what is not a number never is.
    #[must_use]
    pub fn holds(self, figure: f64) -> bool {
        match self {
            Self::AtMost(bound) => figure <= bound,
            Self::Below(bound) => figure < bound,
            Self::AtLeast(bound) => figure >= bound,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(bound) => write!(f, "≤ {bound}"),
            Self::Below(bound) => write!(f, "< {bound}"),
            Self::AtLeast(bound) => write!(f, "≥ {bound}"),
        }
    }
}

/// How a goal and its figure stand to each other.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::exhaustive_enums, reason = "a goal is met, missed, or nobody knows")]
pub enum Verdict {
    /// The figure is within the bound.
    Met(f64),
    /// The figure is beyond the bound.
    Missed(f64),
    /// There is no figure, or too few samples carry it. This is not a success.
    Unmeasured(String),
}

impl Verdict {
    /// Tells whether the goal is met.
    #[must_use]
    pub const fn is_met(&self) -> bool {
        matches!(self, Self::Met(_))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Met(_) => f.write_str("met"),
            Self::Missed(_) => f.write_str("MISSED"),
            Self::Unmeasured(reason) => write!(f, "NOT MEASURED: {reason}"),
        }
    }
}

/// A goal and what became of it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Checked {
    /// The goal.
    pub goal: &'static Goal,
    /// What became of it.
    pub verdict: Verdict,
}

impl Checked {
    /// Returns goal and figure for a result file.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let Goal { area, case, command, figure, bound, .. } = self.goal;
        let value = match self.verdict {
            Verdict::Met(value) | Verdict::Missed(value) => Some(value),
            Verdict::Unmeasured(_) => None,
        };
        json!({
            "area": area.name(), "case": case, "command": command, "figure": figure,
            "bound": bound.to_string(), "value": value, "verdict": self.verdict.to_string(),
        })
    }

    /// Returns the cells of this goal's row: area, case, figure, bound, value, verdict.
    #[must_use]
    pub fn cells(&self) -> [String; 6] {
        let Goal { area, case, figure, bound, .. } = self.goal;
        let value = match self.verdict {
            Verdict::Met(value) | Verdict::Missed(value) => three_digits(value),
            Verdict::Unmeasured(_) => "–".to_owned(),
        };
        let (case, figure) = ((*case).to_owned(), (*figure).to_owned());
        [area.to_string(), case, figure, bound.to_string(), value, self.verdict.to_string()]
    }
}

/// A run that serves one or more goals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Experiment {
    /// Table 1 with the paper's quantum.
    Quantum,
    /// Table 1 with compute tasks that yield often, beside tokio.
    FineYields,
    /// Table 2, its corners.
    Pending,
    /// Servers left alone.
    Idle,
    /// Switches counted.
    Switches,
}

impl Experiment {
    const ALL: [Self; 5] =
        [Self::Quantum, Self::FineYields, Self::Pending, Self::Idle, Self::Switches];

    fn run(self, seed: u64) -> Result<Outcome, BenchError> {
        use System::{Tokio, Vigie, VigieEnhanced, VigieNaive, VigieUserLevel};
        match self {
            Self::Quantum => {
                let mut plan = ReactionPlan::new(vec![VigieNaive, VigieEnhanced, VigieUserLevel]);
                plan.compute = vec![1, 2, 5, 10];
                plan.samples = 100;
                plan.budget = Duration::from_secs(8);
                plan.seed = seed;
                with_progress(plan.cases(), |progress| plan.run(progress))
            }
            Self::FineYields => {
                let mut plan = ReactionPlan::new(vec![Vigie, Tokio]);
                plan.compute = vec![2, 5, 10];
                plan.yield_every = YieldEvery::Step(Duration::from_micros(100));
                plan.samples = 1_000;
                plan.budget = Duration::from_secs(6);
                plan.rounds = 4;
                plan.seed = seed;
                with_progress(plan.cases(), |progress| plan.run(progress))
            }
            Self::Pending => {
                let mut plan = PendingPlan::new(vec![VigieEnhanced, VigieUserLevel, Vigie]);
                plan.waiting = vec![1, 8, 10_000];
                plan.rounds = 5;
                plan.seed = seed;
                with_progress(plan.cases(), |progress| plan.run(progress))
            }
            Self::Idle => {
                let plan = IdlePlan::new(vec![VigieUserLevel, Vigie]);
                with_progress(plan.systems.len(), |progress| plan.run(progress))
            }
            Self::Switches => {
                let plan = SwitchesPlan::new(vec![VigieUserLevel, Vigie]);
                with_progress(plan.systems.len(), |progress| plan.run(progress))
            }
        }
    }
}

fn with_progress(
    cases: usize,
    run: impl FnOnce(&mut Progress) -> Result<Outcome, BenchError>,
) -> Result<Outcome, BenchError> {
    let mut progress = Progress::new(cases);
    let outcome = run(&mut progress);
    progress.finish();
    outcome
}

/// Measures what the goals of `area` (of all areas, if there is none) need, each experiment once,
/// and evaluates them. The outcome holds the rows.
///
/// # Errors
/// Those of the measurements. A goal that is missed is no error.
pub fn check(area: Option<Area>, seed: u64) -> Result<(Vec<Checked>, Outcome), BenchError> {
    let asked = |goal: &&Goal| area.is_none_or(|area| area == goal.area);
    let mut checked = Vec::new();
    let mut all = Outcome::default();
    for experiment in Experiment::ALL {
        let mut goals =
            GOALS.iter().filter(asked).filter(|goal| goal.experiment == experiment).peekable();
        if goals.peek().is_none() {
            continue;
        }
        let outcome = experiment.run(seed)?;
        checked.extend(goals.map(|goal| Checked { goal, verdict: goal.evaluate(&outcome.rows) }));
        all.rows.extend(outcome.rows);
        all.priority = outcome.priority.or(all.priority);
    }
    Ok((checked, all))
}

/// What a goal found in the rows.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Figure {
    value: f64,
    /// The smallest number of samples behind any part of it.
    samples: u64,
}

fn samples_of(row: &Row) -> u64 {
    row.figures.get("samples").and_then(Value::as_u64).unwrap_or(0)
}

fn mean_spread(rows: &[Row], system: System) -> Option<Figure> {
    let rows = [1, 2, 5, 10]
        .into_iter()
        .map(|compute| find(rows, system, reaction::CASE, (reaction::COMPUTE, compute)))
        .collect::<Option<Vec<_>>>()?;
    let means = rows.iter().map(|row| row.figure("mean_us")).collect::<Option<Vec<_>>>()?;
    let largest = means.iter().copied().fold(f64::MIN, f64::max);
    let smallest = means.iter().copied().fold(f64::MAX, f64::min);
    let samples = rows.iter().map(|row| samples_of(row)).min()?;
    Some(Figure { value: largest / smallest, samples })
}

fn naive_growth(rows: &[Row]) -> Option<Figure> {
    let row =
        |compute| find(rows, System::VigieNaive, reaction::CASE, (reaction::COMPUTE, compute));
    quotient(row(10)?, row(1)?, "mean_us")
}

fn p50_to_tokio(rows: &[Row], compute: u32) -> Option<Figure> {
    let row = |system| find(rows, system, reaction::CASE, (reaction::COMPUTE, compute));
    quotient(row(System::Vigie)?, row(System::Tokio)?, "p50_us")
}

fn quotient(own: &Row, base: &Row, key: &str) -> Option<Figure> {
    let value = own.figure(key)? / base.figure(key)?;
    Some(Figure { value, samples: samples_of(own).min(samples_of(base)) })
}

fn completion_ratio(rows: &[Row], system: System, waiting: u32) -> Option<Figure> {
    let row = find(rows, system, pending::CASE, (pending::WAITING, waiting))?;
    let samples = row.figures.get("rounds").and_then(Value::as_u64)?;
    Some(Figure { value: row.figure("completion_ratio")?, samples })
}

fn first(rows: &[Row], system: System, case: &str, key: &str) -> Option<Figure> {
    let row = rows.iter().find(|row| row.system == system && row.case == case)?;
    Some(Figure { value: row.figure(key)?, samples: 1 })
}

fn per_switch(rows: &[Row], system: System, kind: &str, key: &str) -> Option<Figure> {
    let is_kind = |row: &&Row| row.parameters.get("kind").and_then(Value::as_str) == Some(kind);
    let mut rows = rows.iter().filter(|row| row.system == system && row.case == switches::CASE);
    let row = rows.find(is_kind)?;
    let switches = row.figures.get("switches").and_then(Value::as_u64)?;
    Some(Figure { value: row.figure(key)? / switches as f64, samples: switches })
}
