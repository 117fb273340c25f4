//! Goals for the cost and the lateness of timers.

use serde_json::Value;

use super::experiment::Experiment;
use super::verdict::{Area, Bound, Goal};
use crate::report::Row;
use crate::report::figure::Figure;
use crate::schedulers::System;
use crate::timers::{CASE, CPU_PER_TIMER, EQUAL_SLACK_US, TimerLoad};

const TIMERS: Goal = Goal {
    area: Area::Timers,
    case: "",
    command: "vigie-bench timers",
    figure: "processor time of a fired timer / tokio's",
    bound: Bound::AtMost(1.0),
    samples_min: 5,
    experiment: Experiment::Timers,
    measure: |_| None,
};

/// The goals of timers.
pub(super) static GOALS: &[Goal] = &[
    Goal {
        case: "hybrid, 100 timers of 1 ms, slack 1 ms",
        measure: |rows| {
            ratio(rows, System::Vigie, TimerLoad::Periodic, Slack::Equal, CPU_PER_TIMER)
        },
        ..TIMERS
    },
    Goal {
        case: "hybrid, 100 timers of 1 ms, slack 1 ms",
        figure: "p50 of lateness / tokio's",
        measure: |rows| {
            ratio(rows, System::Vigie, TimerLoad::Periodic, Slack::Equal, "late_p50_us")
        },
        ..TIMERS
    },
    Goal {
        case: "hybrid, 100 timers of 1 ms, slack 1 ms",
        figure: "p99 of lateness / tokio's",
        measure: |rows| {
            ratio(rows, System::Vigie, TimerLoad::Periodic, Slack::Equal, "late_p99_us")
        },
        ..TIMERS
    },
    Goal {
        case: "user-level, 100 timers of 1 ms, slack 1 ms",
        measure: |rows| {
            let system = System::VigieUserLevel;
            ratio(rows, system, TimerLoad::Periodic, Slack::Equal, CPU_PER_TIMER)
        },
        ..TIMERS
    },
    Goal {
        case: "hybrid, one timer at a time",
        measure: |rows| ratio(rows, System::Vigie, TimerLoad::One, Slack::Default, CPU_PER_TIMER),
        ..TIMERS
    },
    Goal {
        case: "user-level, one timer at a time",
        measure: |rows| {
            ratio(rows, System::VigieUserLevel, TimerLoad::One, Slack::Default, CPU_PER_TIMER)
        },
        ..TIMERS
    },
    Goal {
        case: "hybrid, 2000 timers of 100 µs beside an echo",
        figure: "p99 / tokio's p99",
        measure: |rows| ratio(rows, System::Vigie, TimerLoad::Beside, Slack::Default, "p99_us"),
        ..TIMERS
    },
    Goal {
        case: "hybrid, a deadline that has passed",
        figure: "p50 / tokio's p50",
        measure: |rows| ratio(rows, System::Vigie, TimerLoad::Past, Slack::Default, "p50_us"),
        ..TIMERS
    },
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slack {
    /// The default of a program that sets none.
    Default,
    /// At which timers may be as late as tokio's.
    Equal,
}

/// A figure of vigie's, by that of tokio in the same run.
fn ratio(rows: &[Row], system: System, load: TimerLoad, slack: Slack, key: &str) -> Option<Figure> {
    let equal = Value::from(format!("{EQUAL_SLACK_US} µs"));
    let of = |system: System, is_equal: bool| {
        rows.iter().find(|row| {
            row.system == system
                && row.case == CASE
                && row.parameters.get("load") == Some(&Value::from(load.name()))
                && (row.parameters.get("slack") == Some(&equal)) == is_equal
        })
    };
    let (own, peer) = (of(system, slack == Slack::Equal)?, of(System::Tokio, false)?);
    let samples = |row: &Row| {
        let late = row.figures.get("late_samples").and_then(Value::as_u64);
        late.unwrap_or_else(|| row.samples())
    };
    Some(Figure::new(own.figure(key)? / peer.figure(key)?, samples(own).min(samples(peer))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_one_system_are_told_apart_by_slack() {
        // Goal: each goal takes the row with its slack, beside tokio's, which has none. Method: made-up rows.
        let row = |system, slack: &str, cpu: f64| {
            Row::new(system, CASE)
                .parameter("load", "periodic")
                .parameter("slack", slack)
                .with_figure("late_samples", 7)
                .with_figure(CPU_PER_TIMER, cpu)
        };
        let rows = [
            row(System::Vigie, "default", 8.0),
            row(System::Vigie, "1000 µs", 1.0),
            row(System::Tokio, "–", 2.0),
        ];
        let of = |slack| ratio(&rows, System::Vigie, TimerLoad::Periodic, slack, CPU_PER_TIMER);
        assert_eq!(of(Slack::Default), Some(Figure::new(4.0, 7)));
        assert_eq!(of(Slack::Equal), Some(Figure::new(0.5, 7)));
        assert_eq!(ratio(&rows, System::Vigie, TimerLoad::One, Slack::Default, "p50_us"), None);
    }
}
