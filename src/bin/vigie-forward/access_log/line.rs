//! Entries as lines of JSON.

use std::{
    net::SocketAddr,
    time::{Duration, SystemTime},
};

use serde_json::{Map, Value, json};
use vigie::forward::{
    packet::{ICMP, TCP, UDP},
    relay::{ConnectionEnd, ConnectionRecord},
    tables::{NatEndpoint, NatEvent, NatFlow},
};

use super::Entry;

/// What an entry is about.
pub(crate) enum EntryKind {
    Connection {
        client: Option<SocketAddr>,
        target: Option<String>,
        duration: Duration,
        bytes: (u64, u64),
        end: ConnectionEnd,
        error: Option<String>,
    },
    Translation {
        flow: NatFlow,
        has_remote: bool,
        /// If it has ended: for how long it lived, and why.
        end: Option<(Duration, String)>,
    },
}

/// Copies what is known of a connection.
pub(crate) fn connection(record: &ConnectionRecord<'_>) -> EntryKind {
    EntryKind::Connection {
        client: record.client,
        target: record.target.map(str::to_owned),
        duration: record.duration,
        bytes: (record.bytes_up, record.bytes_down),
        end: record.end,
        error: record.error.map(ToString::to_string),
    }
}

/// Copies an event of a translation. The remote end is left out of lines unless `has_remote`.
pub(crate) fn translation(event: &NatEvent, has_remote: bool) -> Option<EntryKind> {
    Some(match event {
        NatEvent::Began(flow) => EntryKind::Translation { flow: *flow, has_remote, end: None },
        NatEvent::Ended { flow, duration, end } => EntryKind::Translation {
            flow: *flow,
            has_remote,
            end: Some((*duration, end.to_string())),
        },
        _ => return None,
    })
}

/// Returns a line with its newline.
pub(super) fn text(entry: &Entry) -> String {
    let mut line = Map::new();
    let mut put = |name: &str, value: Value| {
        line.insert(name.to_owned(), value);
    };
    put("flow", json!(&*entry.flow));
    match &entry.kind {
        EntryKind::Connection { client, target, duration, bytes, end, error } => {
            put("event", json!("connection"));
            put("start", json!(utc(entry.at.checked_sub(*duration).unwrap_or(entry.at))));
            put("duration_ms", json!(millis(*duration)));
            put("client", json!(client.map(|one| one.to_string())));
            put("target", json!(target));
            put("bytes_up", json!(bytes.0));
            put("bytes_down", json!(bytes.1));
            put("end", json!(end.to_string()));
            if let Some(error) = error {
                put("error", json!(error));
            }
        }
        EntryKind::Translation { flow, has_remote, end } => {
            let event = if end.is_some() { "translation_end" } else { "translation_begin" };
            put("event", json!(event));
            put("time", json!(utc(entry.at)));
            put("protocol", protocol(flow.original.protocol));
            let [inside, public, remote] = ends(flow);
            put("inside", json!(inside.to_string()));
            put("public", json!(public.to_string()));
            if *has_remote {
                put("remote", json!(remote.to_string()));
            }
            if let Some((duration, end)) = end {
                put("duration_ms", json!(millis(*duration)));
                put("end", json!(end));
            }
        }
    }
    Value::Object(line).to_string() + "\n"
}

/// Returns the inside, the public and the remote end. Of a flow between two inside hosts, the inside end is that which began it, and
/// the remote one that which it asked for.
fn ends(flow: &NatFlow) -> [NatEndpoint; 3] {
    let (before, after) = (flow.original, flow.translated);
    if before.source == after.source {
        [after.destination, before.destination, before.source]
    } else {
        [before.source, after.source, before.destination]
    }
}

fn protocol(number: u8) -> Value {
    match number {
        TCP => json!("tcp"),
        UDP => json!("udp"),
        ICMP => json!("icmp"),
        other => json!(other),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns a time as RFC 3339 has it, with milliseconds. Times before 1970 count as its first.
pub(crate) fn utc(at: SystemTime) -> String {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let millis = since.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// Returns year, month and day of a number of days since 1970-01-01.
///
/// # Source
/// Howard Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`: years begin in March, so that the leap day comes last.
const fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year + era * 400 + if month <= 2 { 1 } else { 0 }, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: times are those of the calendar. Method: seconds that `date -u -d @N` shows, at leap days and ends of years.
    #[test]
    fn times_are_utc() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(utc(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}
