//! Relays in tables.

use super::keys::{
    CONNECTIONS, DATAGRAMS, ECHO, FRAMED_LATENCY, FRAMED_STREAM, GB_PER_S, HANDSHAKE_US,
    HANDSHAKES_PER_S, LATENCY, PER_S, RELAY_S_PER_GB, RELAY_US, STREAM, THROUGHPUT, TLS, TLS_ECHO,
    of,
};
use crate::report::{Row, Table, or_dash, three_digits};

/// Shows what [`RelayMeasurement`](super::RelayMeasurement) gives.
pub(crate) fn tables(rows: &[Row]) -> String {
    let mut parts = Vec::new();
    if rows.iter().any(|row| row.case == STREAM) {
        parts.push(raw(rows));
    }
    if rows.iter().any(|row| row.case == THROUGHPUT) {
        parts.push(throughput(rows));
    }
    let echoes = "Echoes of 64 bytes through relays on a core of their own, one in flight on each connection";
    let datagrams =
        "Datagrams of 64 bytes through relays on a core of their own, one way, 32 under way";
    let encrypted = "Echoes of 64 bytes through relays that end TLS 1.3, on a core of their own, one in flight on each connection";
    for (case, title) in [(ECHO, echoes), (TLS_ECHO, encrypted), (DATAGRAMS, datagrams)] {
        if rows.iter().any(|row| row.case == case) {
            parts.push(messages(rows, case, title));
        }
    }
    if rows.iter().any(|row| row.case == TLS) {
        parts.push(tls(rows));
    }
    if rows.iter().any(|row| row.case == FRAMED_STREAM) {
        parts.push(framed(rows));
    }
    parts.join("\n\n")
}

fn shown(value: Option<f64>) -> String {
    or_dash(value.map(three_digits))
}

fn raw(rows: &[Row]) -> String {
    let counts = rows.iter().filter(|row| row.case == STREAM);
    let mut counts: Vec<u64> = counts.filter_map(|row| row.number(CONNECTIONS)).collect();
    counts.sort_unstable();
    counts.dedup();
    let mut headings = vec!["relay".to_owned()];
    headings.extend(counts.iter().map(|count| format!("GB/s, {count}")));
    for count in &counts {
        headings.push(format!("p50 added, {count}"));
        headings.push(format!("p99 added, {count}"));
    }
    let title = "TCP relays on one core with source and sink: GB/s, and µs added to a round trip of 64 bytes, by connections";
    let mut table = Table::new(title, headings);
    let mut skipped = Vec::new();
    for row in rows.iter().filter(|row| row.case == STREAM && of_first(row, &counts)) {
        let name = row.system.name();
        if let Some(failure) = &row.failure {
            skipped.push(format!("{}: {failure}", row.system.label()));
            continue;
        }
        let mut cells = vec![row.system.label().to_owned()];
        let speed = |count: &u64| of(rows, name, STREAM, *count)?.figure(GB_PER_S);
        cells.extend(counts.iter().map(|count| shown(speed(count))));
        for count in &counts {
            for key in ["p50_us", "p99_us"] {
                let at = |name| of(rows, name, LATENCY, *count)?.figure(key);
                let added = at(name).zip(at("direct")).map(|(with, without)| with - without);
                cells.push(if name == "direct" {
                    format!("({})", shown(at(name)))
                } else {
                    shown(added)
                });
            }
        }
        table.row(cells);
    }
    [vec![table.to_string()], skipped].concat().join("\n")
}

fn messages(rows: &[Row], case: &str, title: &str) -> String {
    let columns = [
        ("p50, µs", "p50_us", 1.0),
        ("p90, µs", "p90_us", 1.0),
        ("p99, µs", "p99_us", 1.0),
        ("1000/s", PER_S, 1000.0),
        ("relay's time, µs", RELAY_US, 1.0),
    ];
    by_connections(rows, case, title, &columns)
}

fn throughput(rows: &[Row]) -> String {
    let title = "Streams through relays on a core of their own";
    let columns = [("GB/s", GB_PER_S, 1.0), ("relay's time, s/GB", RELAY_S_PER_GB, 1.0)];
    by_connections(rows, THROUGHPUT, title, &columns)
}

fn tls(rows: &[Row]) -> String {
    let title = "Relays that end TLS 1.3, on a core of their own";
    let columns = [
        ("GB/s", GB_PER_S, 1.0),
        ("relay's time, s/GB", RELAY_S_PER_GB, 1.0),
        ("handshakes/s", HANDSHAKES_PER_S, 1.0),
        ("relay's time for one, µs", HANDSHAKE_US, 1.0),
    ];
    by_connections(rows, TLS, title, &columns)
}

/// A row for each number of connections and relay; a column has its heading, its key, and what it is divided by.
fn by_connections(rows: &[Row], case: &str, title: &str, columns: &[(&str, &str, f64)]) -> String {
    let headings = columns.iter().map(|(heading, ..)| (*heading).to_owned());
    let headings = ["connections", "relay"].map(str::to_owned).into_iter().chain(headings);
    let mut table = Table::new(title, headings.collect::<Vec<_>>());
    let mut skipped = Vec::new();
    for row in rows.iter().filter(|row| row.case == case) {
        if let Some(failure) = &row.failure {
            skipped.push(format!("{}: {failure}", row.system.label()));
            continue;
        }
        let connections = row.number(CONNECTIONS).unwrap_or_default();
        let cell =
            |(_, key, unit): &(&str, &str, f64)| shown(row.figure(key).map(|one| one / unit));
        let mut cells = vec![connections.to_string(), row.system.label().to_owned()];
        cells.extend(columns.iter().map(cell));
        table.row(cells);
    }
    [vec![table.to_string()], skipped].concat().join("\n")
}

fn of_first(row: &Row, counts: &[u64]) -> bool {
    row.number(CONNECTIONS) == counts.first().copied()
}

fn framed(rows: &[Row]) -> String {
    let title = "Messages of 1 MiB: as a stream over loopback on one core, and one at a time over two links of 1 Gb/s";
    let headings = ["relay", "GB/s", "p50, ms", "p99, ms"].map(str::to_owned);
    let mut table = Table::new(title, headings);
    let mut skipped = Vec::new();
    for row in rows.iter().filter(|row| row.case == FRAMED_LATENCY) {
        if let Some(failure) = &row.failure {
            skipped.push(format!("{}: {failure}", row.system.label()));
        }
        let speed = of(rows, row.system.name(), FRAMED_STREAM, 1);
        let speed = speed.and_then(|row| row.figure(GB_PER_S));
        let time = |key| shown(row.figure(key).map(|us| us / 1000.0));
        table.row([row.system.label().to_owned(), shown(speed), time("p50_us"), time("p99_us")]);
    }
    skipped.dedup();
    [vec![table.to_string()], skipped].concat().join("\n")
}
