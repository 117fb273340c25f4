//! The results as tables.

use super::keys::{
    BYTES, CPU_CORES, CPU_CORES_FOLLOWER, CPU_PER_MESSAGE_US, MESSAGE_MEAN_US, MESSAGE_P99_US,
    MESSAGE_US, PAPER_SIZES, RANKS,
};
use crate::report::{Row, Subject, Table, failure_word, failures, or_dash, three_digits, time};

/// Table 1 of the paper: microseconds one way between two processes of one machine, of LAM/MPI over
/// VIA and over TCP, on a Pentium II of 450 MHz [via-lam, §5].
const PAPER_US: [[f64; 16]; 2] = [
    [10., 10., 10., 10., 10., 10., 11., 12., 18., 21., 27., 32., 49., 106., 210., 407.],
    [63., 63., 63., 63., 63., 63., 63., 64., 65., 67., 72., 81., 117., 175., 305., 529.],
];

/// All tables that have rows, and why other rows have no figures.
pub(super) fn all(rows: &[Row]) -> String {
    let parts = [
        by_size(rows, "Time one way by size, median", MESSAGE_US),
        by_size(rows, "Time one way by size, p99 of samples of 50 µs", MESSAGE_P99_US),
        rates(rows, "window", "Rate with a window"),
        rates(rows, "requests", "Rate with a window, by requests"),
        times(
            rows,
            "unexpected",
            "256 messages that have arrived, received from the last to the first, time of each",
        ),
        times(
            rows,
            "backlog",
            "100 000 messages of 8 B, or 10 000 of 1 KiB, to a receiver that comes late, time of each",
        ),
        times(rows, "any", "Received from any source, one way"),
        times(rows, "synchronous", "Synchronous send, one way"),
        times(rows, "loaned", "Loaned buffer, one way"),
        waiting(rows),
        times(
            rows,
            "busyreceiver",
            "To a rank that has posted its receive and computes for 2 ms, time from then on",
        ),
        times(
            rows,
            "busysender",
            "From a rank that computes for 2 ms once it has begun its send, time from then on",
        ),
        crowd(rows, "ring", "Token around a ring on two cores: time and processor time per hop"),
        crowd(rows, "alltoall", "All to all on two cores: time and processor time per round"),
        crowd(rows, "manytoone", "Many to one on two cores: time and processor time per round"),
        crowd(
            rows,
            "lateround",
            "All to all on two cores, a rank is late: time of the rest and processor time per round",
        ),
    ];
    let tables: String = parts.into_iter().flatten().map(|table| format!("{table}\n\n")).collect();
    let failed: Vec<_> = rows.iter().filter(|row| row.failure.is_some()).cloned().collect();
    format!("{tables}{}", failures(&failed))
}

/// The systems that have rows of a case, in their order, without those that failed throughout.
fn subjects(rows: &[Row], case: &str) -> Vec<Subject> {
    let mut subjects: Vec<Subject> = Vec::new();
    for row in rows.iter().filter(|row| row.case == case && row.failure.is_none()) {
        if !subjects.contains(&row.system) {
            subjects.push(row.system);
        }
    }
    subjects
}

/// The values of a parameter in the rows of a case, ascending.
fn values(rows: &[Row], case: &str, key: &str) -> Vec<u64> {
    let rows = rows.iter().filter(|row| row.case == case);
    let mut values: Vec<_> = rows.filter_map(|row| row.number(key)).collect();
    values.sort_unstable();
    values.dedup();
    values
}

fn find<'a>(
    rows: &'a [Row],
    subject: Subject,
    case: &str,
    (key, value): (&str, u64),
) -> Option<&'a Row> {
    rows.iter()
        .find(|row| row.system == subject && row.case == case && row.number(key) == Some(value))
}

fn cell(row: Option<&Row>, show: impl FnOnce(&Row) -> Option<String>) -> String {
    let shown = row.and_then(|row| match &row.failure {
        Some(failure) => Some(failure_word(failure).to_owned()),
        None => show(row),
    });
    or_dash(shown)
}

pub(super) fn microseconds(row: &Row, key: &str) -> Option<String> {
    row.figure(key).map(|us| time(us * 1e3))
}

/// Sizes downwards, systems across, and the paper at the right.
fn by_size(rows: &[Row], title: &str, key: &str) -> Option<Table> {
    const CASE: &str = "latency";
    let subjects = subjects(rows, CASE);
    // Short runs have too few samples for a p99.
    if !rows.iter().any(|row| row.case == CASE && row.figure(key).is_some()) {
        return None;
    }
    let is_median = key == MESSAGE_US;
    let systems = subjects.iter().map(|subject| subject.name().to_owned());
    let paper = ["paper: VIA", "paper: TCP"].map(str::to_owned).into_iter();
    let headings = ["bytes".to_owned()].into_iter().chain(systems);
    let mut table =
        Table::new(title, headings.chain(paper.filter(|_| is_median)).collect::<Vec<_>>());
    for bytes in values(rows, CASE, BYTES) {
        let cells = subjects.iter().map(|&subject| {
            cell(find(rows, subject, CASE, (BYTES, bytes)), |row| microseconds(row, key))
        });
        let place = PAPER_SIZES.iter().position(|&size| u64::from(size) == bytes);
        let paper = PAPER_US
            .iter()
            .map(|column| place.map_or_else(|| "–".to_owned(), |place| time(column[place] * 1e3)));
        let cells = [bytes.to_string()].into_iter().chain(cells);
        table.row(cells.chain(paper.filter(|_| is_median)).collect::<Vec<_>>());
    }
    Some(table)
}

/// Systems downwards, sizes of messages across.
pub(super) fn across(
    rows: &[Row],
    title: &str,
    case: &str,
    heading: impl Fn(u64) -> String,
    show: impl Fn(&Row) -> Option<String>,
) -> Option<Table> {
    let (subjects, sizes) = (subjects(rows, case), values(rows, case, BYTES));
    if subjects.is_empty() {
        return None;
    }
    let headings = sizes.iter().map(|bytes| heading(*bytes));
    let mut table = Table::new(title, ["system".to_owned()].into_iter().chain(headings));
    for subject in subjects {
        let cells =
            sizes.iter().map(|&bytes| cell(find(rows, subject, case, (BYTES, bytes)), &show));
        table.row([subject.label().to_owned()].into_iter().chain(cells));
    }
    Some(table)
}

/// Messages per second where they are small, bytes per second where they are large.
fn rates(rows: &[Row], case: &str, title: &str) -> Option<Table> {
    const LARGE: u64 = 4_096;
    let heading = |bytes| match bytes {
        LARGE.. => format!("{bytes} B, GB/s"),
        _ => format!("{bytes} B, 10⁶ messages/s"),
    };
    across(rows, title, case, heading, |row| {
        let bytes = row.number(BYTES)?;
        // A microsecond per message is a million messages per second.
        let rate = 1.0 / row.figure(MESSAGE_US)?;
        Some(three_digits(if bytes < LARGE { rate } else { rate * bytes as f64 / 1e3 }))
    })
}

/// Median and p99 of a case that has one size.
fn times(rows: &[Row], case: &str, title: &str) -> Option<Table> {
    let subjects = subjects(rows, case);
    if subjects.is_empty() {
        return None;
    }
    let mut table = Table::new(title, ["system", "bytes", "p50", "p99"].map(str::to_owned));
    for subject in subjects {
        for bytes in values(rows, case, BYTES) {
            let row = find(rows, subject, case, (BYTES, bytes));
            let shown =
                [MESSAGE_US, MESSAGE_P99_US].map(|key| cell(row, |row| microseconds(row, key)));
            let [p50, p99] = shown;
            table.row([subject.label().to_owned(), bytes.to_string(), p50, p99]);
        }
    }
    Some(table)
}

/// Messages to a peer that may sleep, and what it uses while nothing comes.
fn waiting(rows: &[Row]) -> Option<Table> {
    let subjects = subjects(rows, "waiting");
    if subjects.is_empty() {
        return None;
    }
    let headings = ["system", "p50", "mean", "p99", "CPU per message", "CPU while nothing comes"];
    let title = "A message every 2 ms to a peer that may sleep, one way";
    let mut table = Table::new(title, headings.map(str::to_owned));
    let bytes = values(rows, "waiting", BYTES).first().copied().unwrap_or_default();
    for subject in subjects {
        let row = find(rows, subject, "waiting", (BYTES, bytes));
        let quiet = find(rows, subject, "quiet", (BYTES, bytes));
        table.row([
            subject.label().to_owned(),
            cell(row, |row| microseconds(row, MESSAGE_US)),
            cell(row, |row| microseconds(row, MESSAGE_MEAN_US)),
            cell(row, |row| microseconds(row, MESSAGE_P99_US)),
            cell(row, |row| microseconds(row, CPU_PER_MESSAGE_US)),
            cell(quiet, |row| {
                Some(format!("{} %", three_digits(row.figure(CPU_CORES_FOLLOWER)? * 100.0)))
            }),
        ]);
    }
    Some(table)
}

/// Time and processor time of a hop or round, and cores in use, by the number of ranks.
fn crowd(rows: &[Row], case: &str, title: &str) -> Option<Table> {
    let (subjects, sizes) = (subjects(rows, case), values(rows, case, RANKS));
    if subjects.is_empty() {
        return None;
    }
    let heading = |ranks: &u64| [format!("{ranks} ranks"), "CPU".to_owned(), "cores".to_owned()];
    let headings = ["system".to_owned()].into_iter().chain(sizes.iter().flat_map(heading));
    let mut table = Table::new(title, headings.collect::<Vec<_>>());
    for subject in subjects {
        let cells = sizes.iter().flat_map(|&ranks| {
            let row = find(rows, subject, case, (RANKS, ranks));
            [
                cell(row, |row| microseconds(row, MESSAGE_US)),
                cell(row, |row| microseconds(row, CPU_PER_MESSAGE_US)),
                cell(row, |row| row.figure(CPU_CORES).map(three_digits)),
            ]
        });
        table.row([subject.label().to_owned()].into_iter().chain(cells).collect::<Vec<_>>());
    }
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_show_sizes_systems_and_the_paper() {
        // Goal: a figure stands in its size's line beside the paper's; what is missing is said once below.
        // Method: two systems, of which one was skipped.
        let subject = |name| Subject::Carrier { name, label: name };
        let row = Row::new(subject("ring"), "latency").parameter(BYTES, 8).parameter(RANKS, 2);
        let mut missing = Row::new(subject("ucx"), "latency").parameter(BYTES, 8);
        missing.failure = Some("skipped: not here".to_owned());
        let shown = all(&[row.with_figure(MESSAGE_US, 0.052), missing.clone(), missing]);
        let line = shown.lines().find(|line| line.trim_start().starts_with("8 ")).unwrap();
        for part in ["52.0 ns", "10.0 µs", "63.0 µs"] {
            assert!(line.contains(part), "{line}");
        }
        assert_eq!(shown.matches("ucx: skipped").count(), 1, "{shown}");
    }
}
