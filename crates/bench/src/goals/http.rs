//! Goals of a service on hyper, compared with the same service on tokio.

use super::experiment::Experiment;
use super::verdict::{Area, Bound, Goal};
use crate::http::{CPU_US, HELLO, OVERLOAD, PER_S};
use crate::report::Row;
use crate::report::figure::Figure;
use crate::schedulers::System;

const HTTP: Goal = Goal {
    area: Area::Http,
    case: "hello under wrk, 50 connections",
    command: "vigie-bench http",
    figure: "requests/s / tokio's requests/s",
    bound: Bound::AtLeast(1.0),
    samples_min: 1,
    experiment: Experiment::Http,
    measure: |rows| ratio(rows, HELLO, PER_S),
};

/// The goals of a service on hyper.
pub(super) static GOALS: &[Goal] = &[
    HTTP,
    Goal {
        figure: "processor time per request / tokio's",
        bound: Bound::AtMost(1.0),
        measure: |rows| ratio(rows, HELLO, CPU_US),
        ..HTTP
    },
    Goal {
        case: "500 pings/s beside 6 computations of 200 ms a second for each core",
        figure: "p99.9 of pings / tokio's with spawn_blocking",
        bound: Bound::AtMost(1.2),
        samples_min: 5_000,
        measure: |rows| ratio(rows, OVERLOAD, "p99.9_us"),
        ..HTTP
    },
];

/// vigie's figure, by tokio's.
fn ratio(rows: &[Row], case: &str, key: &str) -> Option<Figure> {
    let of = |system| rows.iter().find(|row| row.case == case && row.system == system);
    let (vigie, tokio) = (of(System::Vigie)?, of(System::Tokio)?);
    let samples = if case == HELLO { 1 } else { vigie.samples().min(tokio.samples()) };
    Some(Figure::new(vigie.figure(key)? / tokio.figure(key)?, samples))
}
