//! Live paths in a table.

use super::keys::{
    ADDED_P50_US, ADDED_P99_US, DELIVERED_KPPS, LATENCY, LOST, OFFERED_KPPS, ONE_WAY_P50_US, RATE,
};
use crate::report::{Row, Table};

/// Shows what [`LivePlan::run`](super::LivePlan::run) gives.
pub(crate) fn live(rows: &[Row]) -> String {
    let headings =
        ["path", "delivered, kpps", "offered", "one way p50, µs", "added p50", "added p99", "lost"];
    let title = "Host paths between two veth pairs, frames of 64 bytes";
    let mut table = Table::new(title, headings.map(str::to_owned));
    let mut reasons = String::new();
    for rate in rows.iter().filter(|row| row.case == RATE) {
        if let Some(failure) = &rate.failure {
            reasons.push_str(&format!("\n{}: {failure}", rate.system.label()));
            continue;
        }
        let latency = rows.iter().find(|row| row.system == rate.system && row.case == LATENCY);
        let shown = |row: Option<&Row>, key: &str, digits: usize| {
            row.and_then(|row| row.figure(key))
                .map_or_else(|| "–".to_owned(), |figure| format!("{figure:.digits$}"))
        };
        table.row([
            rate.system.label().to_owned(),
            shown(Some(rate), DELIVERED_KPPS, 0),
            shown(Some(rate), OFFERED_KPPS, 0),
            shown(latency, ONE_WAY_P50_US, 2),
            shown(latency, ADDED_P50_US, 2),
            shown(latency, ADDED_P99_US, 2),
            shown(latency, LOST, 0),
        ]);
    }
    format!("{table}{reasons}")
}
