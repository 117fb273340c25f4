//! The runs that goals need, and the figures that goals find in them.

use std::time::Duration;

use serde_json::Value;

use crate::compute::YieldEvery;
use crate::error::BenchError;
use crate::idle::{self, IdlePlan};
use crate::pending::{self, PendingPlan};
use crate::progress::Progress;
use crate::reaction::{self, ReactionPlan};
use crate::report::{Outcome, Row, find};
use crate::switches::{self, SwitchKind, SwitchesPlan};
use crate::system::System;

/// A run that serves one or more goals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Experiment {
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
    pub(crate) const ALL: [Self; 5] =
        [Self::Quantum, Self::FineYields, Self::Pending, Self::Idle, Self::Switches];

    /// Measures this experiment, under a progress bar.
    pub(crate) fn run(self, seed: u64) -> Result<Outcome, BenchError> {
        use System::{Tokio, Vigie, VigieEnhanced, VigieNaive, VigieUserLevel};
        match self {
            Self::Quantum => {
                let mut plan = ReactionPlan::new(vec![VigieNaive, VigieEnhanced, VigieUserLevel]);
                plan.compute = vec![1, 2, 5, 10];
                plan.samples = 60;
                plan.budget = Duration::from_secs(20);
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

/// What a goal found in the rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figure {
    pub(crate) value: f64,
    /// The smallest number of samples behind any part of it.
    pub(crate) samples: u64,
}

/// The largest mean over 1, 2, 5 and 10 compute tasks to the smallest.
pub(crate) fn mean_spread(rows: &[Row], system: System) -> Option<Figure> {
    let rows = [1, 2, 5, 10]
        .into_iter()
        .map(|compute| find(rows, system, reaction::CASE, (reaction::COMPUTE, compute)))
        .collect::<Option<Vec<_>>>()?;
    let means = rows.iter().map(|row| row.figure("mean_us")).collect::<Option<Vec<_>>>()?;
    let largest = means.iter().copied().fold(f64::MIN, f64::max);
    let smallest = means.iter().copied().fold(f64::MAX, f64::min);
    let samples = rows.iter().map(|row| row.samples()).min()?;
    Some(Figure { value: largest / smallest, samples })
}

/// The mean at ten compute tasks to that at one.
pub(crate) fn growth(rows: &[Row], system: System) -> Option<Figure> {
    let row = |compute| find(rows, system, reaction::CASE, (reaction::COMPUTE, compute));
    quotient(row(10)?, row(1)?, "mean_us")
}

/// The median of the first system to that of the second.
pub(crate) fn p50_ratio(rows: &[Row], systems: [System; 2], compute: u32) -> Option<Figure> {
    let row = |system| find(rows, system, reaction::CASE, (reaction::COMPUTE, compute));
    let [own, base] = systems.map(row);
    quotient(own?, base?, "p50_us")
}

fn quotient(own: &Row, base: &Row, key: &str) -> Option<Figure> {
    let value = own.figure(key)? / base.figure(key)?;
    Some(Figure { value, samples: own.samples().min(base.samples()) })
}

/// The completion time to that with the fewest waiting tasks.
pub(crate) fn completion_ratio(rows: &[Row], system: System, waiting: u32) -> Option<Figure> {
    let row = find(rows, system, pending::CASE, (pending::WAITING, waiting))?;
    let samples = row.figures.get("rounds").and_then(Value::as_u64)?;
    Some(Figure { value: row.figure("completion_ratio")?, samples })
}

/// A figure of a server that was left alone.
pub(crate) fn idle_figure(rows: &[Row], system: System, key: &str) -> Option<Figure> {
    let row = rows.iter().find(|row| row.system == system && row.case == idle::CASE)?;
    Some(Figure { value: row.figure(key)?, samples: 1 })
}

/// Allocations per switch of a kind.
pub(crate) fn allocations(rows: &[Row], system: System, kind: SwitchKind) -> Option<Figure> {
    per_switch(rows, system, kind, "allocations")
}

/// System calls per switch of a kind.
pub(crate) fn system_calls(rows: &[Row], system: System, kind: SwitchKind) -> Option<Figure> {
    per_switch(rows, system, kind, "system_calls")
}

fn per_switch(rows: &[Row], system: System, kind: SwitchKind, key: &str) -> Option<Figure> {
    let is_kind =
        |row: &&Row| row.parameters.get("kind").and_then(Value::as_str) == Some(kind.name());
    let mut rows = rows.iter().filter(|row| row.system == system && row.case == switches::CASE);
    let row = rows.find(is_kind)?;
    let switches = row.figures.get("switches").and_then(Value::as_u64)?;
    Some(Figure { value: row.figure(key)? / switches as f64, samples: switches })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reacted(system: System, compute: u32, mean_us: f64, samples: u64) -> Row {
        let row = Row::new(system, reaction::CASE).parameter(reaction::COMPUTE, compute);
        let row = row.with_figure("mean_us", mean_us).with_figure("p50_us", mean_us / 2.0);
        row.with_figure("samples", samples)
    }

    #[test]
    fn the_spread_needs_all_of_its_cases() {
        // Goal: largest to smallest, samples of the poorest case, nothing if a case is missing.
        // Method: rows with known figures.
        let system = System::VigieEnhanced;
        let mut rows = vec![
            reacted(system, 1, 5_000.0, 90),
            reacted(system, 2, 4_000.0, 100),
            reacted(system, 5, 4_800.0, 60),
            reacted(System::Tokio, 10, 99_000.0, 5),
        ];
        assert_eq!(mean_spread(&rows, system), None);
        rows.push(reacted(system, 10, 4_400.0, 70));
        assert_eq!(mean_spread(&rows, system), Some(Figure { value: 1.25, samples: 60 }));
    }

    #[test]
    fn ratios_compare_the_right_rows() {
        // Goal: own figure above, the peer's below. Method: rows with known figures.
        let rows = [reacted(System::Vigie, 2, 30.0, 9), reacted(System::Tokio, 2, 120.0, 7)];
        let ratio = p50_ratio(&rows, [System::Vigie, System::Tokio], 2);
        assert_eq!(ratio, Some(Figure { value: 0.25, samples: 7 }));
        assert_eq!(p50_ratio(&rows, [System::Vigie, System::Smol], 2), None);
    }

    #[test]
    fn figures_per_switch() {
        // Goal: each kind has its own row. Method: two rows of one system.
        let row = |kind: SwitchKind, allocations: u64| {
            let row = Row::new(System::Vigie, switches::CASE).parameter("kind", kind.name());
            row.with_figure("switches", 100).with_figure("allocations", allocations)
        };
        let rows = [row(SwitchKind::Yield, 0), row(SwitchKind::Wait, 50)];
        let value = |kind| allocations(&rows, System::Vigie, kind).map(|figure| figure.value);
        assert_eq!((value(SwitchKind::Yield), value(SwitchKind::Wait)), (Some(0.0), Some(0.5)));
        assert_eq!(system_calls(&rows, System::Vigie, SwitchKind::Yield), None);
    }
}
