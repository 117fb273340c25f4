//! Tables in the terminal.

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{Cell, CellAlignment, TableComponent};

/// A table whose first columns are text and whose other columns are figures, aligned to the right.
#[derive(Debug)]
#[must_use = "a table shows itself through `to_string`"]
pub(crate) struct Table {
    title: String,
    text_columns: usize,
    inner: comfy_table::Table,
}

impl Table {
    /// Creates a table with a title above it and a heading per column; the first column is text.
    pub(crate) fn new(
        title: impl Into<String>,
        headings: impl IntoIterator<Item = String>,
    ) -> Self {
        Self::with_text_columns(1, title, headings)
    }

    /// Creates a table with a title above it and a heading per column; the first `count` are text.
    pub(crate) fn with_text_columns(
        count: usize,
        title: impl Into<String>,
        headings: impl IntoIterator<Item = String>,
    ) -> Self {
        let mut inner = comfy_table::Table::new();
        inner.load_preset(UTF8_HORIZONTAL_ONLY).set_header(aligned(count, headings));
        // One line under the headings is enough; lines between rows would be half of the table.
        for line in [
            TableComponent::HorizontalLines,
            TableComponent::MiddleIntersections,
            TableComponent::LeftBorderIntersections,
            TableComponent::RightBorderIntersections,
        ] {
            inner.remove_style(line);
        }
        Self { title: title.into(), text_columns: count, inner }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.inner.add_row(aligned(self.text_columns, cells));
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}", self.title)?;
        write!(f, "{}", self.inner.trim_fmt())
    }
}

fn aligned(text_columns: usize, cells: impl IntoIterator<Item = String>) -> Vec<Cell> {
    let alignment =
        |index| if index < text_columns { CellAlignment::Left } else { CellAlignment::Right };
    let cells = cells.into_iter().enumerate();
    cells.map(|(index, text)| Cell::new(text).set_alignment(alignment(index))).collect()
}

/// Shows a time with three digits and the unit that suits it: `850 ns`, `17.3 µs`, `5.01 ms`, `1.07 s`.
pub(crate) fn time(nanoseconds: f64) -> String {
    let (value, unit) = match nanoseconds.abs() {
        n if n < 1e3 => (nanoseconds, "ns"),
        n if n < 1e6 => (nanoseconds / 1e3, "µs"),
        n if n < 1e9 => (nanoseconds / 1e6, "ms"),
        _ => (nanoseconds / 1e9, "s"),
    };
    format!("{} {unit}", three_digits(value))
}

/// Shows a figure with about three significant digits; only very small ones have an exponent.
pub(crate) fn three_digits(value: f64) -> String {
    match value.abs() {
        // A nonzero value must not look like zero.
        v if v > 0.0 && v < 0.0005 => format!("{value:.1e}"),
        v if v == 0.0 || v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        v if v >= 0.9995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Returns what a cell shows, or a dash if there is nothing.
pub(crate) fn or_dash(shown: Option<String>) -> String {
    shown.unwrap_or_else(|| "–".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits_and_a_unit() {
        // Goal: units change where they should. Method: a table.
        for (nanoseconds, shown) in [
            (0.0, "0 ns"),
            (850.0, "850 ns"),
            (17_340.0, "17.3 µs"),
            (999_400.0, "999 µs"),
            (5_011_000.0, "5.01 ms"),
            (1_070_000_000.0, "1.07 s"),
        ] {
            assert_eq!(time(nanoseconds), shown);
        }
    }

    #[test]
    fn a_table_has_its_title_and_all_cells() {
        // Goal: nothing is lost or wrapped. Method: a small table, looked at as text.
        let mut table = Table::new("Times", ["system", "N = 0"].map(str::to_owned));
        table.row(["tokio", "17.3 µs"].map(str::to_owned));
        let shown = table.to_string();
        assert!(shown.starts_with("Times\n"), "{shown}");
        assert!(shown.contains("tokio") && shown.contains("17.3 µs"), "{shown}");
        assert!(shown.lines().all(|line| line.trim_end() == line), "{shown}");
    }
}
