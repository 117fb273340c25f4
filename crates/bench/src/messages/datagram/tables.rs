//! The two figures as tables.

use super::super::keys::{BYTES, MESSAGE_P99_US, MESSAGE_US};
use super::super::tables::{across, microseconds};
use crate::report::{Row, Table, failures, three_digits};

/// Both figures, and why other rows have none.
pub(super) fn both(rows: &[Row]) -> String {
    let latency = |row: &Row| microseconds(row, MESSAGE_US);
    let tail = |row: &Row| microseconds(row, MESSAGE_P99_US);
    let parts = [
        by_size(rows, "Figure 2: time one way by size, median", "latency", latency),
        by_size(rows, "Time one way by size, p99 of samples of 50 µs", "latency", tail),
        by_size(rows, "Figure 3: bandwidth by size with a window, MB/s", "window", bandwidth),
    ];
    let tables: String = parts.into_iter().flatten().map(|table| format!("{table}\n\n")).collect();
    let failed: Vec<_> = rows.iter().filter(|row| row.failure.is_some()).cloned().collect();
    format!("{tables}{}", failures(&failed))
}

/// A byte per microsecond is a megabyte per second.
fn bandwidth(row: &Row) -> Option<String> {
    let bytes = row.parameters.get(BYTES)?.as_f64()?;
    Some(three_digits(bytes / row.figure(MESSAGE_US)?))
}

/// Systems downwards, sizes across.
fn by_size(
    rows: &[Row],
    title: &str,
    case: &str,
    show: impl Fn(&Row) -> Option<String>,
) -> Option<Table> {
    let has_any = rows.iter().any(|row| row.case == case && show(row).is_some());
    has_any.then(|| across(rows, title, case, |bytes| format!("{bytes} B"), show)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Subject;

    #[test]
    fn both_figures_are_shown() {
        // Goal: a latency and a bandwidth stand in their system's line. Method: one system with known figures.
        let subject = Subject::Carrier { name: "udp", label: "UDP socket" };
        let row = |case, bytes| Row::new(subject, case).parameter(BYTES, bytes);
        let shown = both(&[
            row("latency", 8).with_figure(MESSAGE_US, 4.0),
            row("window", 1_000).with_figure(MESSAGE_US, 2.0),
        ]);
        for part in ["Figure 2", "4.00 µs", "Figure 3", "500"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }
}
