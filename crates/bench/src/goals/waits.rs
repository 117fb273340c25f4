//! How late an event may be while other tasks wait for peers.

use serde_json::Value;

use super::experiment::Experiment;
use super::verdict::{Area, Bound, Goal};
use crate::report::Row;
use crate::report::figure::Figure;
use crate::schedulers::System;
use crate::waits::{CASE, EVERY_US, KIND, WaitKind};

const WAITS: Goal = Goal {
    area: Area::Waits,
    case: "",
    command: "vigie-bench waits",
    figure: "p99 of an event / beside waits for sockets",
    bound: Bound::AtMost(1.2),
    samples_min: 1_000,
    experiment: Experiment::Waits,
    measure: |_| None,
};

/// The goals of waits.
pub(super) static GOALS: &[Goal] = &[
    Goal {
        case: "user-level, four tasks wait in barriers, for messages, for datagrams: the worst",
        measure: |rows| worst(rows, System::VigieUserLevel),
        ..WAITS
    },
    Goal {
        case: "hybrid, four tasks wait in barriers, for messages, for datagrams: the worst",
        measure: |rows| worst(rows, System::Vigie),
        ..WAITS
    },
];

/// The largest ratio to the row of sockets whose peer comes as often.
fn worst(rows: &[Row], system: System) -> Option<Figure> {
    let of = |row: &Row, key: &str| row.parameters.get(key).cloned();
    let own: Vec<_> = rows.iter().filter(|row| row.case == CASE && row.system == system).collect();
    let is_of_sockets = |row: &Row| of(row, KIND) == Some(Value::from(WaitKind::Sockets.name()));
    let ratio = |row: &&Row| {
        let base = own
            .iter()
            .find(|base| is_of_sockets(base) && of(base, EVERY_US) == of(row, EVERY_US))?;
        let ratio = row.figure("p99_us")? / base.figure("p99_us")?;
        Some(Figure::new(ratio, row.samples().min(base.samples())))
    };
    let others = own.iter().filter(|row| !is_of_sockets(row));
    let ratios = others.map(ratio).collect::<Option<Vec<_>>>()?;
    ratios.into_iter().max_by(|a, b| a.value.total_cmp(&b.value))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each wait is compared with sockets at the same pace, the worst counts, and one that failed is not a success. Method:
    /// made-up rows.
    #[test]
    fn the_worst_wait_counts() {
        let row = |kind: WaitKind, every: f64, p99: f64| {
            let row = Row::new(System::Vigie, CASE).parameter(KIND, kind.name());
            let row = row.parameter(EVERY_US, every).with_figure("p99_us", p99);
            row.with_figure("samples", 5_000)
        };
        let mut rows = vec![
            row(WaitKind::Sockets, 100.0, 50.0),
            row(WaitKind::Sockets, 300.0, 100.0),
            row(WaitKind::TaskBarrier, 100.0, 55.0),
            row(WaitKind::Messages, 300.0, 130.0),
        ];
        let found = worst(&rows, System::Vigie).expect("a figure");
        assert!((found.value - 1.3).abs() < 1e-9 && found.samples == 5_000);
        assert_eq!(worst(&rows, System::VigieUserLevel), None);
        rows.push(Row::new(System::Vigie, CASE).parameter(KIND, "x").parameter(EVERY_US, 100.0));
        assert_eq!(worst(&rows, System::Vigie), None);
    }
}
