//! Figures that goals find in the rows of messages.

use super::carrier::CarrierKind;
use super::keys::{BYTES, MESSAGE_US, RANKS};
use super::names::carrier;
use crate::report::Row;
use crate::report::figure::Figure;

/// Which row of a system: its case, and the parameter that tells it from others of that case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowSelector {
    case: &'static str,
    key: &'static str,
    value: u32,
}

impl RowSelector {
    /// The case `case` with messages of this many bytes.
    pub(crate) const fn of_bytes(case: &'static str, bytes: u32) -> Self {
        Self { case, key: BYTES, value: bytes }
    }

    /// The latency of messages of this many bytes.
    pub(crate) const fn latency(bytes: u32) -> Self {
        Self::of_bytes("latency", bytes)
    }

    /// A ring of this many ranks.
    pub(crate) const fn ring(ranks: u32) -> Self {
        Self { case: "ring", key: RANKS, value: ranks }
    }

    fn is(self, row: &Row) -> bool {
        let value = row.parameters.get(self.key).and_then(serde_json::Value::as_u64);
        row.case == self.case && value == Some(self.value.into())
    }

    fn find<'a>(self, rows: &'a [Row], name: &str) -> Option<&'a Row> {
        rows.iter().find(|row| row.system.name() == name && self.is(row))
    }
}

/// A figure of a system.
pub(crate) fn figure(rows: &[Row], name: &str, case: RowSelector, key: &str) -> Option<Figure> {
    let row = case.find(rows, name)?;
    Some(Figure::new(row.figure(key)?, row.samples()))
}

/// Time of a message of a system, in microseconds.
pub(crate) fn message(rows: &[Row], name: &str, case: RowSelector) -> Option<Figure> {
    figure(rows, name, case, MESSAGE_US)
}

/// Millions of messages per second of a system.
pub(crate) fn rate(rows: &[Row], name: &str, case: RowSelector) -> Option<Figure> {
    let time = message(rows, name, case)?;
    Some(Figure { value: 1.0 / time.value, ..time })
}

/// A figure of the first system to that of the second.
pub(crate) fn ratio(
    rows: &[Row],
    names: [&str; 2],
    case: RowSelector,
    key: &str,
) -> Option<Figure> {
    let [own, other] = names.map(|name| figure(rows, name, case, key));
    quotient(own?, other?)
}

/// The time of a system to that of the fastest peer that was measured in the same run.
pub(crate) fn ratio_to_best(rows: &[Row], name: &str, case: RowSelector) -> Option<Figure> {
    let is_peer = |row: &&Row| {
        let peer = carrier(row.system.name()).is_ok_and(|one| one.kind() == CarrierKind::Peer);
        peer && case.is(row)
    };
    let peers = rows.iter().filter(is_peer);
    let times = peers.filter_map(|row| Some(Figure::new(row.figure(MESSAGE_US)?, row.samples())));
    let best = times.min_by(|a, b| a.value.total_cmp(&b.value))?;
    quotient(message(rows, name, case)?, best)
}

/// The largest ratio of two systems' times over all sizes from `bytes` on.
pub(crate) fn largest_ratio_from(rows: &[Row], names: [&str; 2], bytes: u32) -> Option<Figure> {
    let sizes = rows.iter().filter(|row| row.system.name() == names[0] && row.case == "latency");
    let sizes = sizes.filter_map(|row| row.parameters.get(BYTES)?.as_u64());
    let sizes = sizes.filter_map(|size| u32::try_from(size).ok()).filter(|size| *size >= bytes);
    let ratios = sizes.map(|size| ratio(rows, names, RowSelector::latency(size), MESSAGE_US));
    let ratios = ratios.collect::<Option<Vec<_>>>()?;
    ratios.into_iter().max_by(|a, b| a.value.total_cmp(&b.value))
}

fn quotient(own: Figure, other: Figure) -> Option<Figure> {
    let value = own.value / other.value;
    value.is_finite().then(|| Figure::new(value, own.samples.min(other.samples)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::VIGIE;
    use crate::report::Subject;

    fn row(name: &'static str, bytes: u32, us: f64) -> Row {
        let row = Row::new(Subject::Carrier { name, label: name }, "latency");
        row.parameter(BYTES, bytes).with_figure(MESSAGE_US, us).with_figure("samples", 7_u64)
    }

    #[test]
    fn the_best_peer_is_no_limit() {
        // Goal: the fastest peer counts, not the limit that is faster still, nor another size. Method:
        // known rows.
        let rows = [
            row(VIGIE, 8, 0.09),
            row("ring", 8, 0.05),
            row("mpich", 8, 0.2),
            row("openmpi", 8, 0.1),
            row("openmpi", 64, 0.01),
        ];
        let found = ratio_to_best(&rows, VIGIE, RowSelector::latency(8)).unwrap();
        assert!((found.value - 0.9).abs() < 1e-9, "{found:?}");
        assert_eq!(found.samples, 7);
        assert!(ratio_to_best(&rows[..2], VIGIE, RowSelector::latency(8)).is_none());
        assert_eq!(rate(&rows, "mpich", RowSelector::latency(8)).unwrap().value, 5.0);
    }

    #[test]
    fn the_largest_ratio_needs_every_size() {
        // Goal: the worst size counts; a size that the other lacks leaves the goal open. Method: known rows.
        let mut rows = vec![row(VIGIE, 8, 9.0), row(VIGIE, 64, 1.0), row(VIGIE, 128, 3.0)];
        rows.extend([row("tcp", 8, 1.0), row("tcp", 64, 4.0)]);
        assert!(largest_ratio_from(&rows, [VIGIE, "tcp"], 64).is_none());
        rows.push(row("tcp", 128, 4.0));
        assert_eq!(largest_ratio_from(&rows, [VIGIE, "tcp"], 64).unwrap().value, 0.75);
    }
}
