//! Plots of messages: lines over two logarithmic axes.

use super::keys::{BYTES, MESSAGE_US, RANKS};
use crate::report::Row;
use crate::report::chart::{Scale, Series, draw};

/// Draws time one way by size, a line per system.
pub(crate) fn latencies(rows: &[Row]) -> String {
    let lines = lines(rows, "latency", BYTES);
    let log = Scale::Logarithmic;
    let title = "Message between two processes of one host";
    draw(title, ("bytes", log), ("µs one way, median", log), &lines)
}

/// Draws time of a hop by the number of ranks, a line per system.
pub(crate) fn rings(rows: &[Row]) -> String {
    let lines = lines(rows, "ring", RANKS);
    let log = Scale::Logarithmic;
    draw("Token around a ring on two cores", ("ranks", log), ("µs per hop, median", log), &lines)
}

fn lines(rows: &[Row], case: &str, key: &str) -> Vec<Series> {
    let mut lines: Vec<Series> = Vec::new();
    for row in rows.iter().filter(|row| row.case == case) {
        let x = row.parameters.get(key).and_then(serde_json::Value::as_f64);
        let (Some(x), Some(y)) = (x, row.figure(MESSAGE_US)) else { continue };
        if !(x > 0.0 && y > 0.0) {
            continue;
        }
        Series::named(&mut lines, row.system.name()).points.push((x, y));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Subject;

    #[test]
    fn a_plot_has_a_line_per_system_within_its_frame() {
        // Goal: lines are named, points are where their logarithms put them, and rows without figures
        // break nothing. Method: two points of one system, one row that failed.
        let subject = |name| Subject::Carrier { name, label: name };
        let row = |bytes: u32, us: f64| {
            let row = Row::new(subject("ring"), "latency").parameter(BYTES, bytes);
            row.with_figure(MESSAGE_US, us)
        };
        let failed = Row::new(subject("ucx"), "latency").parameter(BYTES, 1);
        let svg = latencies(&[row(1, 0.1), row(10_000, 10.0), failed]);
        assert!(svg.contains(">ring<") && !svg.contains(">ucx<"), "{svg}");
        assert!(svg.contains("points=\"70.0,510.0 700.0,50.0\""), "{svg}");
        assert!(rings(&[]).ends_with("</svg>\n"));
    }
}
