//! The live figures in tables.

use super::super::keys::{BYTES, DELTA_US, HOST, MODEL_MB_S, NIC, NIC_CUT, NONE};
use super::figures::{Choice, cells, choice, prediction_error};
use super::keys::{ENGINE_CPU_US, HOST_CPU_US, HOST_SHARE, MB_S, PLANNED, US};
use crate::report::{Row, Table, or_dash};
use crate::statistics::median;

/// Shows everything that a [`ViaPlan`](super::ViaPlan) has measured.
pub(crate) fn all(rows: &[Row]) -> String {
    let parts = [
        parameters(rows),
        curve(rows, "Figure 4: by size, basic algorithm: MB/s measured / predicted", "size", None),
        curve(rows, "Figure 5: 1024 bytes, by δ: MB/s measured / predicted", "delta", Some(1024)),
        curve(rows, "Figure 6: 8192 bytes, by δ: MB/s measured / predicted", "delta", Some(8192)),
        processors(rows),
        verdict(rows),
    ];
    parts.join("\n\n")
}

fn shown(value: Option<f64>) -> String {
    or_dash(value.map(|value| format!("{value:.2}")))
}

fn parameters(rows: &[Row]) -> String {
    let headings = ["parameter", "value"].map(str::to_owned);
    let mut table = Table::with_text_columns(1, "What the model was given, measured", headings);
    for row in rows.iter().filter(|row| row.case == "parameters") {
        for (key, value) in &row.figures {
            if key != "samples" {
                table.row([key.clone(), shown(value.as_f64())]);
            }
        }
    }
    table.to_string()
}

/// A line per cell, a column per way; the planner's choice has a star.
fn curve(rows: &[Row], title: &str, case: &str, bytes: Option<u64>) -> String {
    let ways = [NONE, HOST, NIC, NIC_CUT];
    let ways = if bytes.is_some() { &ways[1..] } else { &ways[..] };
    let key = if bytes.is_some() { DELTA_US } else { BYTES };
    let labels = ways.iter().map(|way| way.label().to_owned());
    let headings = [key.to_owned()].into_iter().chain(labels).chain(["planner".to_owned()]);
    let mut table = Table::with_text_columns(0, title, headings);
    let is_meant =
        |row: &&Row| row.case == case && bytes.is_none_or(|bytes| row.number(BYTES) == Some(bytes));
    let meant: Vec<Row> = rows.iter().filter(is_meant).cloned().collect();
    for cell in cells(&meant) {
        let Some(first) = cell.rows().first() else { continue };
        let of = |way| {
            let same = |row: &&Row| row.number(key) == first.number(key) && row.system == way;
            or_dash(meant.iter().find(same).map(one))
        };
        let word = match cell.choice() {
            Some(Choice::Right) => "right",
            Some(Choice::Wrong) => "WRONG",
            Some(Choice::Band) => "within 10 %",
            None => "–",
        };
        let value = first.number(key).map_or_else(String::new, |value| value.to_string());
        let cells = ways.iter().map(|way| of(*way));
        table.row([value].into_iter().chain(cells).chain([word.to_owned()]));
    }
    table.to_string()
}

fn one(row: &Row) -> String {
    let measured = shown(row.figure(MB_S));
    let Some(predicted) = row.figure(MODEL_MB_S) else { return measured };
    let star = if row.figures.get(PLANNED) == Some(&true.into()) { " *" } else { "" };
    format!("{measured} / {predicted:.2}{star}")
}

/// What forwarding leaves to the host.
fn processors(rows: &[Row]) -> String {
    let headings = ["way", "bytes", "µs/message", "host CPU, µs", "engine CPU, µs", "left to host"];
    let title = "Processor time in the node, per message: the program's thread (the host), the engine's (the \
                 network processor); the share of a processor that forwarding leaves to the host";
    let mut table = Table::with_text_columns(1, title, headings.map(str::to_owned));
    for row in rows.iter().filter(|row| row.case == "size" && row.system != NONE) {
        let left = row.figure(HOST_SHARE).map(|share| 100.0 * (1.0 - share));
        let bytes = row.number(BYTES).map_or_else(String::new, |bytes| bytes.to_string());
        let figures = [US, HOST_CPU_US, ENGINE_CPU_US].map(|key| shown(row.figure(key)));
        let left = or_dash(left.map(|left| format!("{left:.1} %")));
        table.row([row.system.label().to_owned(), bytes].into_iter().chain(figures).chain([left]));
    }
    table.to_string()
}

fn verdict(rows: &[Row]) -> String {
    let all = cells(rows);
    let within = all.iter().filter(|cell| cell.choice() == Some(Choice::Band)).count();
    let (right, outside) = choice(rows).map_or((0.0, 0), |found| (found.value, found.samples));
    let error = prediction_error(rows).map_or(f64::NAN, |found| found.value);
    let errors: Vec<f64> = all.iter().filter_map(super::figures::Cell::error).collect();
    let median = median(&errors).unwrap_or(f64::NAN);
    format!(
        "{} cells, {within} within 10 %; of the {outside} others the planner is right in {:.1} %. \
         Bandwidth of the chosen way: off by {:.1} % in the median, {:.1} % at most.",
        all.len(),
        100.0 * right,
        100.0 * median,
        100.0 * error
    )
}
