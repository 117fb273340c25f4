//! Model, simulation and paper in tables.

use serde_json::Value;

use super::keys::{
    BYTES, DELTA_US, FLOWS, HOST, MEASURED_US, MODEL_MB_S, MODEL_PERCENT, MODEL_US, NIC, NIC_CUT,
    NONE, SIMULATED_MB_S, SIMULATED_PERCENT, SIMULATED_US, T_ALGO_US, TABLE_US, WINDOW,
};
use crate::report::{Row, Show, Subject, Table, lines, or_dash};

/// Shows everything that [`model`](super::model) gives.
pub(crate) fn all(rows: &[Row]) -> String {
    let curves = [NONE, HOST, NIC, NIC_CUT];
    let parts = [
        thresholds(rows).to_string(),
        times(rows).to_string(),
        gains(rows).to_string(),
        curve("Figure 4: MB/s by size, model / simulation", &of(rows, "size"), BYTES, &curves)
            .to_string(),
        deltas(rows, 1024, "Figure 5: 1024 bytes, MB/s by δ in µs, model / simulation"),
        deltas(rows, 8192, "Figure 6: 8192 bytes, MB/s by δ in µs, model / simulation"),
        windows(rows),
        curve(
            "Flows on links of their own, 5 µs of algorithm, half-duplex bus: MB/s in all, \
             alone × count / simulation",
            &of(rows, "flows"),
            FLOWS,
            &curves[1..],
        )
        .to_string(),
    ];
    parts.join("\n\n")
}

fn of<'a>(rows: &'a [Row], case: &str) -> Vec<&'a Row> {
    rows.iter().filter(|row| row.case == case).collect()
}

fn shown(value: Option<f64>) -> String {
    or_dash(value.map(|value| format!("{value:.1}")))
}

fn thresholds(rows: &[Row]) -> Table {
    let columns = [
        ("bytes", Show::Parameter(BYTES)),
        ("model", Show::Fixed(MODEL_US, 1)),
        ("simulation", Show::Fixed(SIMULATED_US, 1)),
        ("Table 3", Show::Fixed(TABLE_US, 1)),
        ("measured there", Show::Fixed(MEASURED_US, 1)),
    ];
    let title = "Table 3: δ* in µs, up to which the interface is no slower than the host";
    lines(title, "interface", of(rows, "threshold"), &columns)
}

fn times(rows: &[Row]) -> Table {
    let columns = [
        ("model, µs", Show::Fixed(MODEL_US, 1)),
        ("simulation", Show::Fixed(SIMULATED_US, 1)),
        ("from Table 2", Show::Fixed(TABLE_US, 1)),
        ("MB/s", Show::Fixed(MODEL_MB_S, 1)),
        ("simulation", Show::Fixed(SIMULATED_MB_S, 1)),
    ];
    let title = "T(8192) at δ = 0, nothing computed, one message in the node";
    lines(title, "path", of(rows, "time"), &columns)
}

fn gains(rows: &[Row]) -> Table {
    let headings = ["reading", "model", "simulation", "paper"].map(str::to_owned);
    let title = "Cut-through by the interface instead of the host, 8192 bytes: improvement in %";
    let mut table = Table::new(title, headings);
    let readings =
        ["time saved, one message in the node", "bandwidth gained, window 2, half-duplex"];
    for (row, reading) in of(rows, "gain").into_iter().zip(readings) {
        let figures = [MODEL_PERCENT, SIMULATED_PERCENT].map(|key| shown(row.figure(key)));
        table.row([reading.to_owned()].into_iter().chain(figures).chain(["45".to_owned()]));
    }
    table
}

fn deltas(rows: &[Row], bytes: u64, title: &str) -> String {
    let is_meant = |row: &&Row| row.number(BYTES) == Some(bytes);
    let rows: Vec<_> = of(rows, "delta").into_iter().filter(is_meant).collect();
    curve(title, &rows, DELTA_US, &[HOST, NIC, NIC_CUT]).to_string()
}

/// A line per value of `key`, a column per subject.
fn curve(title: &str, rows: &[&Row], key: &str, subjects: &[Subject]) -> Table {
    let labels = subjects.iter().map(|subject| subject.label().to_owned());
    let mut table = Table::with_text_columns(0, title, [key.to_owned()].into_iter().chain(labels));
    let mut values: Vec<&Value> = Vec::new();
    for value in rows.iter().filter_map(|row| row.parameters.get(key)) {
        if !values.contains(&value) {
            values.push(value);
        }
    }
    for value in values {
        let cell = |subject: &Subject| {
            let is_meant =
                |row: &&&Row| row.system == *subject && row.parameters.get(key) == Some(value);
            or_dash(rows.iter().find(is_meant).map(|row| pair(row)))
        };
        let cells = subjects.iter().map(cell);
        table.row([value.to_string()].into_iter().chain(cells));
    }
    table
}

fn pair(row: &Row) -> String {
    let [model, simulated] = [MODEL_MB_S, SIMULATED_MB_S].map(|key| shown(row.figure(key)));
    format!("{model} / {simulated}")
}

fn windows(rows: &[Row]) -> String {
    let host_cut = Subject::Model { name: "host-cut-through", label: "host, cut-through" };
    let mut parts = Vec::new();
    for bus in ["half", "full"] {
        for t_algo in [0_u64, 40] {
            let is_meant =
                |row: &&Row| row.text("bus") == bus && row.number(T_ALGO_US) == Some(t_algo);
            let rows: Vec<_> = of(rows, "window").into_iter().filter(is_meant).collect();
            let title = format!(
                "Windows, {bus}-duplex bus, T_algo = {t_algo} µs: MB/s by messages in the node, \
                 model (a bound) / simulation"
            );
            let subjects = [HOST, NIC, NIC_CUT, host_cut];
            parts.push(curve(&title, &rows, WINDOW, &subjects).to_string());
        }
    }
    parts.join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::super::ModelPlan;
    use super::super::plot::{by_delta, by_size};
    use super::*;
    use crate::report::{Plan as _, Progress};

    #[test]
    fn tables_and_plots_hold_what_the_paper_says() {
        // Goal: the figures of Table 3 and T(8192) are shown, every curve has all of its lines, and each plot
        // has a line per path. Method: the whole calculation, looked at as text.
        let rows = ModelPlan { plot: None }.run(0, &mut Progress::hidden()).unwrap().rows;
        let shown = all(&rows);
        let has = |parts: &[&str]| {
            shown.lines().any(|line| {
                let cells: Vec<_> = line.split_whitespace().collect();
                parts.iter().all(|part| cells.contains(part))
            })
        };
        assert!(has(&["8192", "22.0", "19.0"]) && has(&["8192", "67.0", "65.0"]), "{shown}");
        assert!(has(&["60.0", "136.5"]) && has(&["142.0", "57.7"]), "{shown}");
        assert!(has(&["120.0", "68.3"]) && has(&["75.0", "109.2"]), "{shown}");
        assert!(has(&["47.2", "45"]) && has(&["46.7", "45"]), "{shown}");
        for part in ["Figure 4", "Figure 5", "Figure 6", "full-duplex", "alone × count"] {
            assert!(shown.contains(part), "{part}");
        }
        for (svg, lines) in
            [(by_size(&rows), 4), (by_delta(&rows, 1024), 3), (by_delta(&rows, 8192), 3)]
        {
            assert_eq!(svg.matches("<polyline").count(), 2 * lines, "curve and legend");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
