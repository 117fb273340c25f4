//! The figures of rows that goals compare.

use super::super::keys::{BYTES, DELTA_US, HOST, MODEL_MB_S};
use super::keys::{MB_S, PLANNED};
use crate::report::{Figure, Row};

/// Within this ratio of each other two bandwidths are taken for equal.
const BAND: f64 = 1.1;

/// A cell of the figures: the same messages and δ, by each way.
pub(super) struct Cell<'a> {
    rows: Vec<&'a Row>,
}

/// The planner's choice in a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// Host and interface are too close to each other to tell.
    Band,
    /// The faster one.
    Right,
    /// The slower one, or a mode of the interface that is slower by more than the band.
    Wrong,
}

/// Returns the cells in their order.
pub(super) fn cells(rows: &[Row]) -> Vec<Cell<'_>> {
    let mut cells: Vec<Cell<'_>> = Vec::new();
    let key = |row: &Row| (row.case, row.number(BYTES), row.number(DELTA_US));
    for row in rows.iter().filter(|row| row.figures.contains_key(PLANNED)) {
        match cells.iter_mut().find(|cell| key(cell.rows[0]) == key(row)) {
            Some(cell) => cell.rows.push(row),
            None => cells.push(Cell { rows: vec![row] }),
        }
    }
    cells
}

impl Cell<'_> {
    fn planned(&self) -> Option<&Row> {
        let is_planned = |row: &&&Row| row.figures.get(PLANNED) == Some(&true.into());
        self.rows.iter().find(is_planned).copied()
    }

    fn best(&self, is_host: bool) -> Option<f64> {
        let rows = self.rows.iter().filter(|row| (row.system == HOST) == is_host);
        rows.filter_map(|row| row.figure(MB_S)).reduce(f64::max)
    }

    /// Judges the planner's choice.
    pub(super) fn choice(&self) -> Option<Choice> {
        let (host, nic) = (self.best(true)?, self.best(false)?);
        if host.max(nic) / host.min(nic) <= BAND {
            return Some(Choice::Band);
        }
        // Of one packet, cut-through and store-and-forward are the same: the planner names one of two equals.
        let planned = self.planned()?;
        let is_equal = |row: &&&Row| {
            row.figure(MODEL_MB_S) == planned.figure(MODEL_MB_S)
                && (row.system == HOST) == (planned.system == HOST)
        };
        let equals = self.rows.iter().filter(is_equal).filter_map(|row| row.figure(MB_S));
        let planned = equals.reduce(f64::max)?;
        let is_right = planned * BAND >= host.max(nic);
        Some(if is_right { Choice::Right } else { Choice::Wrong })
    }

    /// Returns by how much the chosen way's bandwidth was predicted wrongly.
    pub(super) fn error(&self) -> Option<f64> {
        let planned = self.planned()?;
        Some((planned.figure(MODEL_MB_S)? / planned.figure(MB_S)? - 1.0).abs())
    }

    /// Returns the rows.
    pub(super) fn rows(&self) -> &[&Row] {
        &self.rows
    }
}

/// Of the cells in which host and interface differ by more than the band: the share in which the planner is right.
pub(crate) fn choice(rows: &[Row]) -> Option<Figure> {
    let choices: Vec<_> = cells(rows).iter().filter_map(Cell::choice).collect();
    let outside = choices.iter().filter(|choice| **choice != Choice::Band).count();
    let right = choices.iter().filter(|choice| **choice == Choice::Right).count();
    (outside > 0).then(|| Figure::new(right as f64 / outside as f64, outside as u64))
}

/// The largest relative error of a predicted bandwidth of a chosen way, over all cells.
pub(crate) fn prediction_error(rows: &[Row]) -> Option<Figure> {
    let errors: Vec<f64> = cells(rows).iter().filter_map(Cell::error).collect();
    let largest = errors.iter().copied().reduce(f64::max)?;
    Some(Figure::new(largest, errors.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::super::NIC;
    use super::*;

    fn row(system: crate::report::Subject, bytes: u64, measured: f64, is_planned: bool) -> Row {
        Row::new(system, "size")
            .parameter(BYTES, bytes)
            .parameter(DELTA_US, 0)
            .with_figure(MB_S, measured)
            .with_figure(MODEL_MB_S, 10.0)
            .with_figure(PLANNED, is_planned)
    }

    #[test]
    fn choices_are_judged_by_what_was_measured() {
        // Goal: cells within the band do not count, the others by whether the chosen way was faster; errors are those
        // of the chosen way. Method: one cell of each kind.
        let rows = [
            row(HOST, 1, 10.0, false),
            row(NIC, 1, 10.5, true),
            row(HOST, 2, 10.0, false),
            row(NIC, 2, 12.5, true),
            row(HOST, 3, 20.0, false),
            row(NIC, 3, 10.0, true),
        ];
        let found: Vec<_> = cells(&rows).iter().filter_map(Cell::choice).collect();
        assert_eq!(found, [Choice::Band, Choice::Right, Choice::Wrong]);
        let share = choice(&rows).unwrap();
        assert!((share.value - 0.5).abs() < 1e-9 && share.samples == 2);
        let error = prediction_error(&rows).unwrap();
        assert!((error.value - 0.2).abs() < 1e-9 && error.samples == 3);
    }
}
