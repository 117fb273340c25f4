//! The results as a table.

use super::{BY_HAND, CHANGES, DELIVERED_MPPS, FRAME_NS, LOST, NIC_RATE, PROGRAM_NS};
use crate::report::{Row, Show, lines};

/// Shows the path by the interface.
pub(crate) fn nic_tables(rows: &[Row]) -> String {
    let title = "XDP between three namespaces, 64-byte frames from XDP, all on one core";
    let columns = [
        ("Mpps", Show::Fixed(DELIVERED_MPPS, 2)),
        ("ns a frame", Show::Fixed(FRAME_NS, 1)),
        ("× by hand", Show::Fixed(BY_HAND, 3)),
        ("program alone, ns", Show::Fixed(PROGRAM_NS, 0)),
        ("lost", Show::Fixed(LOST, 0)),
        ("changes", Show::Fixed(CHANGES, 0)),
    ];
    let rows_of_programs = rows.iter().filter(|row| row.case == NIC_RATE);
    let table = lines(title, "program", rows_of_programs, &columns);
    let failure = rows.iter().find_map(|row| row.failure.as_ref());
    failure.map_or_else(|| table.to_string(), |failure| format!("{table}\n{failure}"))
}
