//! The results as a table.

use super::{BY_HAND, CHANGES, DELIVERED_MPPS, FRAME_NS, LOST, NIC_RATE, PROGRAM_NS};
use crate::report::{Row, Table};

/// Shows the path by the interface.
pub(crate) fn nic_tables(rows: &[Row]) -> String {
    let title = "XDP between three namespaces, 64-byte frames from XDP, all on one core";
    let headings =
        ["program", "Mpps", "ns a frame", "× by hand", "program alone, ns", "lost", "changes"];
    let mut table = Table::new(title, headings.map(str::to_owned));
    for row in rows.iter().filter(|row| row.case == NIC_RATE) {
        let shown = |key: &str, digits: usize| match (&row.failure, row.figure(key)) {
            (None, Some(value)) => format!("{value:.digits$}"),
            _ => "–".to_owned(),
        };
        table.row([
            row.system.label().to_owned(),
            shown(DELIVERED_MPPS, 2),
            shown(FRAME_NS, 1),
            shown(BY_HAND, 3),
            shown(PROGRAM_NS, 0),
            shown(LOST, 0),
            shown(CHANGES, 0),
        ]);
    }
    let failure = rows.iter().find_map(|row| row.failure.as_ref());
    failure.map_or_else(|| table.to_string(), |failure| format!("{table}\n{failure}"))
}
