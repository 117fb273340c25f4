//! Simulated barriers as a plot.

use serde_json::Value;

use super::simulation::{ALGORITHM, CASE, FIGURE, MEAN_US, MEMBERS, NETWORK, PAPER_US, SET};
use crate::report::Row;
use crate::report::chart::{Scale, Series, Style, draw};

/// Draws the mean time by the number of members, a line per algorithm and network, and the paper's numbers as dots; of all rows of
/// a figure, or of those beyond the paper with 0.
pub(crate) fn means(rows: &[Row], figure: u32) -> String {
    let mut lines: Vec<Series> = Vec::new();
    let mut add = |name: &str, style, point: (f64, f64)| {
        let line = Series::named(&mut lines, name);
        line.style = style;
        line.points.push(point);
    };
    let is_drawn = |row: &&Row| {
        let is_asked = figure == 0 || row.text(SET) == "calibrated";
        row.case == CASE && row.number(FIGURE) == Some(u64::from(figure)) && is_asked
    };
    for row in rows.iter().filter(is_drawn) {
        let members = row.parameters.get(MEMBERS).and_then(Value::as_f64).unwrap_or(0.0);
        let name = format!("{}, {}", row.text(ALGORITHM), row.text(NETWORK));
        if let Some(paper) = row.figure(PAPER_US) {
            add(&format!("paper, {}", row.text(NETWORK)), Style::Dots, (members, paper));
        }
        if let Some(mean) = row.figure(MEAN_US) {
            add(&name, Style::Solid, (members, mean));
        }
    }
    let title = match figure {
        0 => "Barriers of the simulated cluster".to_owned(),
        figure => format!("Figure {figure}, simulated"),
    };
    let axes = [("members", Scale::Logarithmic), ("µs, mean over members", Scale::Logarithmic)];
    draw(&title, axes[0], axes[1], &lines)
}

/// Returns which figures have rows to draw.
pub(crate) fn figures(rows: &[Row]) -> Vec<u32> {
    let of = |row: &Row| row.number(FIGURE);
    let drawn = rows.iter().filter(|row| row.case == CASE && row.failure.is_none());
    let mut figures: Vec<u32> =
        drawn.filter_map(of).filter_map(|figure| u32::try_from(figure).ok()).collect();
    figures.sort_unstable();
    figures.dedup();
    figures
}

#[cfg(test)]
mod tests {
    use super::super::simulation::SimulationPlan;
    use super::*;
    use crate::report::{Plan as _, Progress};

    #[test]
    fn a_figure_has_its_lines_and_the_papers_dots() {
        // Goal: what the figure compares is drawn, and the paper's number as a dot. Method: figure 10.
        let mut plan = SimulationPlan::figures();
        plan.cases.retain(|(case, _)| case.figure == 10);
        let rows = plan.run(0, &mut Progress::hidden()).unwrap().rows;
        assert_eq!(figures(&rows), [10]);
        let svg = means(&rows, 10);
        for part in [">concurrent, switch<", ">concurrent-two-networks, switch<", ">paper, switch<"]
        {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        // One of them in the legend.
        assert_eq!(svg.matches("<circle").count(), 3, "{svg}");
    }
}
