//! Rows as tables.

use super::row::Row;
use super::table::{Table, or_dash, three_digits, time};

/// How a column of a table shows a row.
pub(crate) enum Show {
    /// A parameter, as it is.
    Parameter(&'static str),
    /// A time that the row has in microseconds.
    Time(&'static str),
    /// A number.
    Number(&'static str),
    /// A whole number.
    Count(&'static str),
    /// A number, in millions.
    Millions(&'static str),
    /// A number with so many digits behind the point.
    Fixed(&'static str, usize),
}

/// A column of a table: its heading, and what it shows.
pub(crate) type Column = (&'static str, Show);

/// The columns that show a row's own samples.
pub(crate) const ECHO_COLUMNS: [Column; 5] = [
    ("samples", Show::Count("samples")),
    ("p50", Show::Time("p50_us")),
    ("p99", Show::Time("p99_us")),
    ("p99.9", Show::Time("p99.9_us")),
    ("max", Show::Time("max_us")),
];

/// Makes a table with a line per row: its system, and what `columns` say. A row without figures has its
/// failure below the table.
pub(crate) fn table(title: &str, rows: &[Row], columns: &[(&str, Show)]) -> String {
    format!("{}\n{}", lines(title, "system", rows, columns), failures(rows))
}

/// Makes a table with a line per row: its system, under the heading `first`, and what `columns` say.
pub(crate) fn lines<'a>(
    title: &str,
    first: &str,
    rows: impl IntoIterator<Item = &'a Row>,
    columns: &[(&str, Show)],
) -> Table {
    let headings = columns.iter().map(|(heading, _)| (*heading).to_owned());
    let mut table = Table::new(title, [first.to_owned()].into_iter().chain(headings));
    for row in rows {
        let cells = columns.iter().map(|(_, show)| show.cell(row));
        table.row([row.system.label().to_owned()].into_iter().chain(cells));
    }
    table
}

impl Show {
    fn cell(&self, row: &Row) -> String {
        let shown = match self {
            Self::Parameter(key) => row.parameters.get(*key).map(|value| match value.as_str() {
                Some(text) => text.to_owned(),
                None => value.to_string(),
            }),
            _ if row.failure.is_some() => {
                row.failure.as_deref().map(failure_word).map(str::to_owned)
            }
            Self::Time(key) => row.figure(key).map(|us| time(us * 1e3)),
            Self::Number(key) => row.figure(key).map(three_digits),
            Self::Count(key) => row.figure(key).map(|value| format!("{value:.0}")),
            Self::Fixed(key, digits) => row.figure(key).map(|value| format!("{value:.digits$}")),
            Self::Millions(key) => row.figure(key).map(|value| three_digits(value / 1e6)),
        };
        or_dash(shown)
    }
}

/// Says why systems have no figures, a line for each reason.
pub(crate) fn failures(rows: &[Row]) -> String {
    let reason = |row: &Row| Some(format!("{}: {}\n", row.system.label(), row.failure.as_ref()?));
    let mut lines: Vec<_> = rows.iter().filter_map(reason).collect();
    lines.dedup();
    lines.concat()
}

/// Says in two words why a cell has no figure.
pub(crate) fn failure_word(failure: &str) -> &'static str {
    if failure.contains("no echo") { "no echo" } else { "failed" }
}
