//! Transport costs as members measured them, compared with the times of their barriers.

use serde::{Deserialize, Serialize};
use vigie_barrier::logp::{MeasuredCosts, Report};

use crate::report::{Repetition, Row, Table, or_dash, three_digits};

/// The parameters of a transport, and the expected time of a barrier, in microseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TransportCosts {
    /// The algorithm.
    pub(crate) algorithm: String,
    /// In the order of the figures.
    pub(crate) micros: Vec<f64>,
}

/// Figure: the expected time of a barrier.
const EXPECTED: &str = "expected_us";
/// Figure: observed divided by expected time.
const RATIO: &str = "observed_by_expected";
/// Figure of a row: the algorithm.
const ALGORITHM: &str = "algorithm";

/// The figures, with their headings.
const FIGURES: [(&str, &str); 11] = [
    ("send_us", "o_s"),
    ("latency_us", "L"),
    ("receive_us", "o_r"),
    ("receive_asleep_us", "o_r asleep"),
    ("gap_us", "g"),
    ("multicast_base_us", "a"),
    ("multicast_port_us", "b"),
    ("logp_us", "LogP alone"),
    ("work_us", "work / cores"),
    (EXPECTED, "expected"),
    ("p50_us", "p50"),
];

impl TransportCosts {
    /// Takes the measured parameters and the time expected from them.
    pub(crate) fn new(measured: &MeasuredCosts, report: &Report) -> Self {
        let costs = measured.costs();
        let candidate = report.advice.candidates.first();
        let [predicted, work] = [candidate.map(|one| one.predicted), candidate.map(|one| one.work)]
            .map(Option::unwrap_or_default);
        let times = [
            costs.send,
            costs.latency,
            costs.receive,
            measured.costs_asleep().receive,
            measured.gap.median,
            costs.multicast.base,
            costs.multicast.per_port,
            predicted,
            work,
            report.advice.expected,
        ];
        let micros = times.map(|time| time.as_secs_f64() * 1e6).to_vec();
        Self { algorithm: report.advice.algorithm.to_string(), micros }
    }

    /// Adds the members' results to a turn.
    pub(super) fn add_to(&self, repetition: Repetition) -> Repetition {
        let noted = repetition.note(ALGORITHM, self.algorithm.clone());
        let figures = FIGURES.iter().zip(&self.micros);
        figures.fold(noted, |all, ((key, _), micros)| all.figure(key, *micros))
    }
}

/// Compares the time of a row with what was expected, if it was.
pub(super) fn compare(row: &mut Row) {
    if let (Some(expected), Some(p50)) = (row.figure(EXPECTED), row.figure("p50_us"))
        && expected > 0.0
    {
        row.figures.insert(RATIO.to_owned(), (p50 / expected).into());
    }
}

/// Shows expected against observed times for rows that have both; nothing without such rows.
pub(super) fn table<'a>(members: u32, rows: impl Iterator<Item = &'a Row>) -> String {
    let mut headings = vec!["system".to_owned(), "algorithm".to_owned()];
    headings.extend(FIGURES.iter().map(|(_, heading)| (*heading).to_owned()));
    headings.push("ratio".to_owned());
    let title = format!(
        "What the transport costs, found by {members} members themselves [logp-bench], and by that the barrier's time, \
         expected and observed (µs)"
    );
    let mut table = Table::with_text_columns(2, title, headings);
    let mut has_rows = false;
    for row in rows {
        let Some(algorithm) = row.figures.get(ALGORITHM).and_then(|name| name.as_str()) else {
            continue;
        };
        let keys = FIGURES.iter().map(|(key, _)| *key).chain([RATIO]);
        let figures = keys.map(|key| or_dash(row.figure(key).map(three_digits)));
        table.row([row.system.label().to_owned(), algorithm.to_owned()].into_iter().chain(figures));
        has_rows = true;
    }
    if has_rows { format!("{table}\n\n") } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Subject;

    #[test]
    fn expected_and_observed_are_compared() {
        // Goal: rows say expected, observed and ratio. Method: known figures.
        let subject = Subject::Carrier { name: "one", label: "one" };
        let row = Row::new(subject, "barrier").with_figure("p50_us", 30.0);
        let mut row = row.with_figure(EXPECTED, 20.0).with_figure(ALGORITHM, "central");
        compare(&mut row);
        assert_eq!(row.figure(RATIO), Some(1.5));
        let shown = table(4, [&row].into_iter());
        assert!(shown.contains("central") && shown.contains("1.5"), "{shown}");
        let other = Row::new(subject, "barrier");
        assert_eq!(table(4, [&other].into_iter()), "");
    }
}
