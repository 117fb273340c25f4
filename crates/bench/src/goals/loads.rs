//! Goals under random loads, and under those of the promise's own table.

use serde_json::Value;

use super::experiment::Experiment;
use super::verdict::{Area, Bound, Goal};
use crate::loads;
use crate::report::Row;
use crate::report::figure::Figure;
use crate::schedulers::System;
use crate::slowdown;

const LOADS: Goal = Goal {
    area: Area::Loads,
    case: "",
    command: "vigie-bench loads --case all",
    figure: "",
    bound: Bound::AtLeast(0.9),
    samples_min: 1,
    experiment: Experiment::Loads,
    measure: |_| None,
};

const RANDOM: Goal = Goal {
    case: "random mixes, seeds by the commit",
    command: "vigie-bench loads --count 40",
    samples_min: 40,
    ..LOADS
};

const HOGS_10: Goal = Goal {
    case: "ten tasks that never yield",
    command: "vigie-bench loads --case hogs-10",
    ..LOADS
};

const ECHO_64: Goal = Goal {
    case: "64 clients, one message in flight each",
    command: "vigie-bench loads --case echo-64,echo-64x16",
    figure: "messages/s / tokio's messages/s",
    ..LOADS
};

const SLOWDOWN: Goal = Goal {
    area: Area::Slowdown,
    case: "99.5 % of 10 µs and 0.5 % of 10 ms",
    command: "vigie-bench slowdown --service 99.5-0.5",
    samples_min: 9,
    experiment: Experiment::Slowdown,
    ..LOADS
};

/// The goals of loads and of slowdown.
pub(super) static GOALS: &[Goal] = &[
    Goal { figure: "share within all bounds", measure: share_of_random, ..RANDOM },
    Goal {
        figure: "largest factor beyond a bound",
        bound: Bound::AtMost(5.0),
        measure: worst_of_random,
        ..RANDOM
    },
    Goal {
        case: "the loads with names",
        figure: "share within all bounds",
        bound: Bound::AtLeast(1.0),
        samples_min: 20,
        measure: share_of_named,
        ..LOADS
    },
    Goal {
        case: "handlers that block, 4, 10, 60, 500 clients: the worst",
        figure: "requests/s / threads' requests/s",
        bound: Bound::AtLeast(0.95),
        measure: |rows| {
            let cases = ["blocking-4", "blocking-10", "blocking-60", "blocking-500"];
            let ratios = cases.map(|case| ratio(rows, case, "closed_per_s", System::Threads));
            let ratios = ratios.into_iter().collect::<Option<Vec<_>>>()?;
            ratios.into_iter().min_by(|a, b| a.value.total_cmp(&b.value))
        },
        ..LOADS
    },
    Goal {
        figure: "p99 of a new connection's first answer (µs)",
        bound: Bound::AtMost(1_000.0),
        measure: |rows| {
            let taken = of_named(rows, System::Vigie, "hogs-10", "new_p99_us")?;
            Some(Figure::new(taken, 1))
        },
        ..HOGS_10
    },
    Goal {
        figure: "computation / threads' computation",
        bound: Bound::AtLeast(0.95),
        measure: |rows| ratio(rows, "hogs-10", "compute_cores", System::Threads),
        ..HOGS_10
    },
    Goal {
        case: "100 tasks with timers of 1 ms",
        figure: "processor time per timer / tokio's",
        bound: Bound::AtMost(1.0),
        measure: |rows| cpu_ratio(rows, "timers-100x1ms", "operations_per_s"),
        ..LOADS
    },
    Goal {
        bound: Bound::AtLeast(1.0),
        measure: |rows| ratio(rows, "echo-64", "closed_per_s", System::Tokio),
        ..ECHO_64
    },
    Goal {
        figure: "processor time per message / tokio's",
        bound: Bound::AtMost(1.0),
        measure: |rows| cpu_ratio(rows, "echo-64", "closed_per_s"),
        ..ECHO_64
    },
    Goal {
        case: "64 clients, 16 messages in flight each",
        bound: Bound::AtLeast(1.0),
        measure: |rows| ratio(rows, "echo-64x16", "closed_per_s", System::Tokio),
        ..ECHO_64
    },
    Goal {
        case: "64 clients, 16 messages in flight each",
        figure: "processor time per message / tokio's",
        bound: Bound::AtMost(1.0),
        measure: |rows| cpu_ratio(rows, "echo-64x16", "closed_per_s"),
        ..ECHO_64
    },
    Goal {
        figure: "load at p99.9 slowdown 50 / tokio's",
        bound: Bound::AtLeast(5.0),
        measure: |rows| load_ratio(rows, System::Tokio),
        ..SLOWDOWN
    },
    Goal {
        figure: "load at p99.9 slowdown 50 / threads'",
        bound: Bound::AtLeast(1.2),
        measure: |rows| load_ratio(rows, System::Threads),
        ..SLOWDOWN
    },
];

/// vigie's rows of random mixes, or of those with names.
fn own(rows: &[Row], is_random: bool) -> impl Iterator<Item = &Row> {
    rows.iter().filter(move |row| {
        let is_drawn = name(row).starts_with("seed ");
        row.case == loads::CASE && row.system == System::Vigie && is_drawn == is_random
    })
}

fn name(row: &Row) -> &str {
    row.parameters.get("mix").and_then(Value::as_str).unwrap_or_default()
}

fn share<'a>(rows: impl Iterator<Item = &'a Row>) -> Option<Figure> {
    let holds: Vec<_> =
        rows.map(|row| row.figures.get("holds") == Some(&Value::Bool(true))).collect();
    let hold = holds.iter().filter(|holds| **holds).count();
    (!holds.is_empty()).then(|| Figure::new(hold as f64 / holds.len() as f64, holds.len() as u64))
}

fn share_of_random(rows: &[Row]) -> Option<Figure> {
    share(own(rows, true))
}

fn share_of_named(rows: &[Row]) -> Option<Figure> {
    share(own(rows, false))
}

/// The largest factor; without bound if a run failed.
fn worst_of_random(rows: &[Row]) -> Option<Figure> {
    let factors: Vec<_> =
        own(rows, true).map(|row| row.figure("worst").unwrap_or(f64::INFINITY)).collect();
    let worst = factors.iter().copied().reduce(f64::max)?;
    Some(Figure::new(worst, factors.len() as u64))
}

/// A system's figure of a named load.
fn of_named(rows: &[Row], system: System, case: &str, key: &str) -> Option<f64> {
    let mut named = rows.iter().filter(|row| row.case == loads::CASE && name(row) == case);
    named.find(|row| row.system == system)?.figure(key)
}

/// vigie's figure of a named load, by that of a peer.
fn ratio(rows: &[Row], case: &str, key: &str, peer: System) -> Option<Figure> {
    let of = |system| of_named(rows, system, case, key);
    Some(Figure::new(of(System::Vigie)? / of(peer)?, 1))
}

/// The processor time that vigie's process uses for each of what `key` counts, by tokio's.
fn cpu_ratio(rows: &[Row], case: &str, key: &str) -> Option<Figure> {
    let cpu = ratio(rows, case, "cpu_cores", System::Tokio)?;
    let done = ratio(rows, case, key, System::Tokio)?;
    Some(Figure::new(cpu.value / done.value, cpu.samples))
}

/// The load up to which vigie's slowdown holds, by that of a peer.
fn load_ratio(rows: &[Row], peer: System) -> Option<Figure> {
    let of = |system| {
        let service = Value::from(slowdown::SERVICES[0].name);
        let mut own = rows.iter().filter(|row| row.case == slowdown::HOLDS);
        own.find(|row| row.system == system && row.parameters.get("service") == Some(&service))
    };
    let (vigie, peer) = (of(System::Vigie)?, of(peer)?);
    // A peer that holds at no load counts as holding at 0.01.
    let base = peer.figure(slowdown::LOAD)?.max(0.01);
    Some(Figure::new(vigie.figure(slowdown::LOAD)? / base, vigie.samples().min(peer.samples())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(system: System, mix: &str, holds: bool, worst: Option<f64>) -> Row {
        let row = Row::new(system, loads::CASE).parameter("mix", mix).with_figure("holds", holds);
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
        assert_eq!(share_of_random(&rows), Some(Figure::new(0.5, 2)));
        assert_eq!(share_of_named(&rows), Some(Figure::new(0.0, 1)));
        assert_eq!(worst_of_random(&rows), Some(Figure::new(7.0, 2)));
        let failed = [load(System::Vigie, "seed 3", false, None)];
        assert_eq!(worst_of_random(&failed), Some(Figure::new(f64::INFINITY, 1)));
        assert_eq!(share_of_random(&[]), None);
    }

    #[test]
    fn loads_that_hold_are_compared() {
        // Goal: a peer that holds nowhere divides by no zero. Method: made-up rows.
        let held = |system, load| {
            Row::new(system, slowdown::HOLDS)
                .parameter("service", slowdown::SERVICES[0].name)
                .with_figure(slowdown::LOAD, load)
                .with_figure("samples", 9)
        };
        let rows = [held(System::Vigie, 0.6), held(System::Threads, 0.3), held(System::Tokio, 0.0)];
        let of = |peer| load_ratio(&rows, peer).unwrap();
        assert!((of(System::Threads).value - 2.0).abs() < 1e-9);
        assert!((of(System::Tokio).value - 60.0).abs() < 1e-9);
        assert_eq!(of(System::Tokio).samples, 9);
    }
}
