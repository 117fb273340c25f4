//! The curves behind figures 4 to 6 [fast-forward, §3.4] as plots: measured values if there are any, otherwise
//! calculated ones.

use std::path::Path;

use super::keys::{BYTES, DELTA_US, MODEL_MB_S};
use super::via::keys::MB_S;
use crate::error::BenchError;
use crate::report::Row;
use crate::report::chart::{self, Scale, Series, Style, draw};

/// Draws figure 4 to `path`, and figures 5 and 6 to two files beside it.
pub(super) fn figures(path: Option<&Path>, rows: &[Row]) -> Result<(), BenchError> {
    let Some(path) = path else { return Ok(()) };
    chart::write(path, by_size(rows))?;
    for (bytes, extension) in [(1024, "figure5.svg"), (8192, "figure6.svg")] {
        chart::write(&path.with_extension(extension), by_delta(rows, bytes))?;
    }
    Ok(())
}

/// Draws figure 4: bandwidth by size of message.
pub(super) fn by_size(rows: &[Row]) -> String {
    let lines = lines(rows.iter().filter(|row| row.case == "size"), BYTES);
    let axes = (("bytes", Scale::Logarithmic), ("MB/s", Scale::Linear));
    draw("Basic forwarding algorithm: bandwidth by size", axes.0, axes.1, &lines)
}

/// Draws figure 5 (1024 bytes) or figure 6 (8192): bandwidth by δ.
pub(super) fn by_delta(rows: &[Row], bytes: u64) -> String {
    let is_meant = |row: &&Row| row.case == "delta" && row.number(BYTES) == Some(bytes);
    let lines = lines(rows.iter().filter(is_meant), DELTA_US);
    let title = format!("Bandwidth by δ = T_algoN − T_algoH, {bytes} bytes");
    draw(&title, ("δ in µs", Scale::Linear), ("MB/s", Scale::Linear), &lines)
}

fn lines<'a>(rows: impl Iterator<Item = &'a Row>, key: &str) -> Vec<Series> {
    let mut lines = Vec::new();
    for row in rows {
        let x = row.parameters.get(key).and_then(serde_json::Value::as_f64);
        let y = row.figure(MB_S).or_else(|| row.figure(MODEL_MB_S));
        if let (Some(x), Some(y)) = (x, y) {
            Series::named(&mut lines, row.system.label()).points.push((x, y));
        }
    }
    // Lines that lie upon each other stay visible.
    for line in lines.iter_mut().skip(3) {
        line.style = Style::Dashed;
    }
    lines
}
