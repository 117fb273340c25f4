//! Simulated barriers as tables: the paper's figures, and its numbers beside ours.

use std::fmt::Write as _;

use vigie_barrier::cluster::paper::{Case, QUOTED};

use super::figure::{mean_error, quoted};
use super::simulation::{
    ALGORITHM, CASE, FIGURE, MEAN_US, MEMBERS, NETWORK, PAPER_US, SET, medium_name,
};
use crate::report::{Row, Table, or_dash, three_digits};

/// The titles of figures 5 to 10.
const TITLES: [(u64, &str); 6] = [
    (5, "Figure 5: shuffle exchange"),
    (6, "Figure 6: binary tree with multicast"),
    (7, "Figure 7: ternary tree with multicast"),
    (8, "Figure 8: concurrent with multicast"),
    (9, "Figure 9: ternary tree, one switch and two"),
    (10, "Figure 10: concurrent, one switch and two"),
];

/// All tables that have rows, and why other rows have no figures.
pub(super) fn all(rows: &[Row]) -> String {
    let mut shown = String::new();
    // Writing to a string cannot fail.
    let mut put = |table: Option<Table>| {
        table.into_iter().for_each(|table| _ = write!(shown, "{table}\n\n"));
    };
    for (figure, title) in TITLES {
        let of_figure = rows.iter().filter(|row| row.number(FIGURE) == Some(figure));
        put(lines(&format!("{title}, µs"), of_figure.filter(|row| row.text(SET) == "calibrated")));
    }
    put(lines("Barriers, µs", rows.iter().filter(|row| row.number(FIGURE) == Some(0))));
    put(beside_the_paper(rows));
    for set in ["calibrated", "bare"] {
        let Some(error) = mean_error(rows, set) else { continue };
        _ = writeln!(shown, "mean error, {set}: {:.1} %", error.value * 100.0);
    }
    for row in rows.iter().filter(|row| row.case == CASE) {
        let Some(failure) = &row.failure else { continue };
        let what = [row.text(ALGORITHM), row.text(NETWORK)];
        let members = row.number(MEMBERS).unwrap_or(0);
        _ = writeln!(shown, "{}, {members} members, {}: {failure}", what[0], what[1]);
    }
    shown
}

/// A line per barrier: the least, the mean and the greatest time of a member, averaged over members.
fn lines<'a>(title: &str, rows: impl Iterator<Item = &'a Row>) -> Option<Table> {
    let headings = [
        "algorithm",
        "network",
        "parameters",
        "members",
        "min",
        "mean",
        "± of runs",
        "max",
        "paper",
        "collisions",
    ];
    let mut table = Table::with_text_columns(3, title, headings.map(str::to_owned));
    let mut is_empty = true;
    for row in rows.filter(|row| row.failure.is_none()) {
        is_empty = false;
        let figure = |key: &str| or_dash(row.figure(key).map(shown));
        table.row([
            row.text(ALGORITHM).to_owned(),
            row.text(NETWORK).to_owned(),
            row.text(SET).to_owned(),
            row.number(MEMBERS).unwrap_or(0).to_string(),
            figure("min_us"),
            figure(MEAN_US),
            figure("deviation_us"),
            figure("max_us"),
            figure(PAPER_US),
            figure("collisions_per_barrier"),
        ]);
    }
    (!is_empty).then_some(table)
}

/// What the paper quotes, beside the calibrated cluster and beside its own LogP parameters.
fn beside_the_paper(rows: &[Row]) -> Option<Table> {
    let headings =
        ["algorithm", "network", "members", "paper", "calibrated", "error", "bare LogP", "error"];
    let title = "What the paper quotes, µs: four constants fitted, and nothing fitted";
    let mut table = Table::with_text_columns(2, title, headings.map(str::to_owned));
    for case in &QUOTED {
        let cells = ["calibrated", "bare"].map(|set| cells(quoted(rows, set, case), case));
        let [Some(calibrated), bare] = cells else { return None };
        let bare = bare.unwrap_or_else(|| ["–".to_owned(), "–".to_owned()]);
        let what = [
            case.algorithm.to_string(),
            medium_name(case.medium).to_owned(),
            case.members.to_string(),
            case.paper_us.map_or_else(String::new, three_digits),
        ];
        table.row(what.into_iter().chain(calibrated).chain(bare));
    }
    Some(table)
}

/// To a tenth of a microsecond, as far as a run is to be trusted.
fn shown(us: f64) -> String {
    if us < 999.5 { format!("{us:.1}") } else { three_digits(us) }
}

/// A mean with its deviation, and how far it is from the paper's.
fn cells(row: Option<&Row>, case: &Case) -> Option<[String; 2]> {
    let row = row?;
    let (mean, deviation) = (row.figure(MEAN_US)?, row.figure("deviation_us")?);
    let with_deviation = if deviation > 0.0 {
        format!("{} ± {}", three_digits(mean), three_digits(deviation))
    } else {
        shown(mean)
    };
    Some([with_deviation, format!("{:+.1} %", (mean / case.paper_us? - 1.0) * 100.0)])
}

#[cfg(test)]
mod tests {
    use super::super::simulation::{ParameterSet, SimulationPlan};
    use crate::report::{Plan as _, Progress};

    #[test]
    fn figures_have_the_papers_numbers_beside() {
        // Goal: a figure shows our times and the paper's, and what failed is named. Method: figure 9, and a case with loss.
        let mut plan = SimulationPlan::figures();
        plan.cases.retain(|(case, set)| case.figure == 9 && *set == ParameterSet::Calibrated);
        let mut rows = plan.run(0, &mut Progress::hidden()).unwrap().rows;
        (plan.loss, plan.seeds) = (1.0, 1);
        plan.cases.truncate(1);
        rows.extend(plan.run(0, &mut Progress::hidden()).unwrap().rows);
        let shown = plan.tables(&rows);
        for part in ["Figure 9", "ternary-two-networks", "169", "wait for ever"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(!shown.contains("Figure 5"), "{shown}");
    }
}
