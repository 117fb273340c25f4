//! What vigie must reach: one entry per goal, in this one place.
//!
//! A [`Goal`] compares a figure with a bound. Wherever there is one, the figure is a ratio to a peer or
//! to a limit that was measured in the same run, so that it means the same on every machine. Work that
//! brings something to measure adds its goals here.

use crate::error::BenchError;
use crate::experiment::{
    Experiment, allocations, completion_ratio, growth, idle_figure, mean_spread, p50_ratio,
    system_calls,
};
use crate::goal::{Area, Bound, Checked, Goal};
use crate::report::Outcome;
use crate::switches::SwitchKind;
use crate::system::System;

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
        measure: |rows| growth(rows, System::VigieNaive),
    },
    Goal {
        area: Area::Reaction,
        case: "hybrid, yield every 100 µs, N = 2",
        command: "vigie-bench reaction --only vigie,tokio --compute 2 --yield-every 100us",
        figure: "p50 / tokio's p50",
        bound: Bound::Below(1.0),
        samples_min: 500,
        experiment: Experiment::FineYields,
        measure: |rows| p50_ratio(rows, [System::Vigie, System::Tokio], 2),
    },
    Goal {
        area: Area::Reaction,
        case: "hybrid, yield every 100 µs, N = 5",
        command: "vigie-bench reaction --only vigie,tokio --compute 5 --yield-every 100us",
        figure: "p50 / tokio's p50",
        bound: Bound::Below(1.0),
        samples_min: 500,
        experiment: Experiment::FineYields,
        measure: |rows| p50_ratio(rows, [System::Vigie, System::Tokio], 5),
    },
    Goal {
        area: Area::Reaction,
        case: "hybrid, yield every 100 µs, N = 10",
        command: "vigie-bench reaction --only vigie,tokio --compute 10 --yield-every 100us",
        figure: "p50 / tokio's p50",
        bound: Bound::Below(1.0),
        samples_min: 500,
        experiment: Experiment::FineYields,
        measure: |rows| p50_ratio(rows, [System::Vigie, System::Tokio], 10),
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
        measure: |rows| idle_figure(rows, System::VigieUserLevel, "context_switches"),
    },
    Goal {
        area: Area::Idle,
        case: "user-level, 100 tasks waiting, 5 s",
        command: "vigie-bench goals idle",
        figure: "system calls",
        bound: Bound::AtMost(0.0),
        samples_min: 1,
        experiment: Experiment::Idle,
        measure: |rows| idle_figure(rows, System::VigieUserLevel, "system_calls"),
    },
    Goal {
        area: Area::Idle,
        case: "hybrid, 100 tasks waiting, 5 s",
        command: "vigie-bench goals idle",
        figure: "context switches",
        bound: Bound::AtMost(0.0),
        samples_min: 1,
        experiment: Experiment::Idle,
        measure: |rows| idle_figure(rows, System::Vigie, "context_switches"),
    },
    Goal {
        area: Area::Idle,
        case: "hybrid, 100 tasks waiting, 5 s",
        command: "vigie-bench goals idle",
        figure: "system calls",
        bound: Bound::AtMost(0.0),
        samples_min: 1,
        experiment: Experiment::Idle,
        measure: |rows| idle_figure(rows, System::Vigie, "system_calls"),
    },
    Goal {
        area: Area::Costs,
        case: "user-level, two tasks that yield",
        command: "vigie-bench goals costs",
        figure: "allocations / switch",
        bound: Bound::AtMost(0.0),
        samples_min: 100_000,
        experiment: Experiment::Switches,
        measure: |rows| allocations(rows, System::VigieUserLevel, SwitchKind::Yield),
    },
    Goal {
        area: Area::Costs,
        case: "user-level, a task that waits for a socket",
        command: "vigie-bench goals costs",
        figure: "allocations / wait",
        bound: Bound::AtMost(0.0),
        samples_min: 20_000,
        experiment: Experiment::Switches,
        measure: |rows| allocations(rows, System::VigieUserLevel, SwitchKind::Wait),
    },
    Goal {
        area: Area::Costs,
        case: "user-level, two tasks that yield",
        command: "vigie-bench goals costs",
        figure: "system calls / switch",
        bound: Bound::AtMost(CALLS_PER_SWITCH),
        samples_min: 100_000,
        experiment: Experiment::Switches,
        measure: |rows| system_calls(rows, System::VigieUserLevel, SwitchKind::Yield),
    },
    Goal {
        area: Area::Costs,
        case: "hybrid, two tasks that yield",
        command: "vigie-bench goals costs",
        figure: "allocations / switch",
        bound: Bound::AtMost(0.0),
        samples_min: 100_000,
        experiment: Experiment::Switches,
        measure: |rows| allocations(rows, System::Vigie, SwitchKind::Yield),
    },
    Goal {
        area: Area::Costs,
        case: "hybrid, a task that waits for a socket",
        command: "vigie-bench goals costs",
        figure: "allocations / wait",
        bound: Bound::AtMost(0.0),
        samples_min: 20_000,
        experiment: Experiment::Switches,
        measure: |rows| allocations(rows, System::Vigie, SwitchKind::Wait),
    },
    Goal {
        area: Area::Costs,
        case: "hybrid, two tasks that yield",
        command: "vigie-bench goals costs",
        figure: "system calls / switch",
        bound: Bound::AtMost(CALLS_PER_SWITCH),
        samples_min: 100_000,
        experiment: Experiment::Switches,
        measure: |rows| system_calls(rows, System::Vigie, SwitchKind::Yield),
    },
];

/// "No system call per task switch": a scheduler looks for events now and then, by the clock, so the
/// figure depends on how many switches fit in between; it must only be far below one. (tokio, which
/// looks at every yield, has 0.5.)
const CALLS_PER_SWITCH: f64 = 0.05;

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
