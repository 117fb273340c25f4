//! What goals take from several rows at once.

use super::Measure;
use super::keys::{BYTES, MESSAGE_US};
use crate::report::{Figure, Row};

/// The measures of which four must be well below the best peer.
const MEASURES: [Measure; 8] = [
    Measure::Latency { bytes: 8 },
    Measure::Latency { bytes: 1_024 },
    Measure::Latency { bytes: 4_096 },
    Measure::Latency { bytes: 32_768 },
    Measure::Latency { bytes: 262_144 },
    Measure::Latency { bytes: 4_194_304 },
    Measure::Synchronous { bytes: 8 },
    Measure::Any { bytes: 8 },
];

const PEERS: [&str; 4] = ["openmpi", "openmpi-copy", "mpich", "ucx"];

/// The fourth lowest of vigie's times, each divided by the best peer's; `None` if one was not measured.
pub(crate) fn fourth(rows: &[Row]) -> Option<Figure> {
    let time = |name: &str, measure: Measure| {
        let is_it = |row: &&Row| {
            row.system.name() == name
                && row.case == measure.case()
                && row.number(BYTES) == Some(measure.bytes().into())
        };
        let row = rows.iter().find(is_it)?;
        Some(Figure::new(row.figure(MESSAGE_US)?, row.samples()))
    };
    let ratio = |measure| {
        let peers = PEERS.iter().filter_map(|peer| time(peer, measure));
        let best = peers.min_by(|one, other| one.value.total_cmp(&other.value))?;
        Some(time(super::VIGIE, measure)?.to(best))
    };
    let mut ratios = MEASURES.into_iter().map(ratio).collect::<Option<Vec<_>>>()?;
    ratios.sort_by(|one, other| one.value.total_cmp(&other.value));
    ratios.get(3).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Subject;

    /// Goal: the fourth lowest ratio counts, to the best peer of each measure, and none while one is missing. Method: known times.
    #[test]
    fn the_fourth_lowest_counts() {
        let row = |name, measure: Measure, us: f64| {
            let row = Row::new(Subject::Carrier { name, label: name }, measure.case());
            row.parameter(BYTES, measure.bytes()).with_figure(MESSAGE_US, us)
        };
        let mut rows = Vec::new();
        for (at, measure) in (1_u32..).zip(MEASURES) {
            rows.push(row("vigie", measure, f64::from(at)));
            rows.push(row("mpich", measure, 10.0));
            rows.push(row("ucx", measure, 20.0));
        }
        assert_eq!(fourth(&rows).map(|figure| figure.value), Some(0.4));
        rows.remove(0);
        assert!(fourth(&rows).is_none(), "8 B were not measured");
    }
}
