//! Names of cases, and keys of rows.

use crate::report::Row;

pub(super) const STREAM: &str = "relay-stream";
pub(super) const LATENCY: &str = "relay-latency";
pub(super) const FRAMED_STREAM: &str = "relay-framed-stream";
pub(super) const FRAMED_LATENCY: &str = "relay-framed-latency";
pub(super) const THROUGHPUT: &str = "relay-throughput";
pub(super) const ECHO: &str = "relay-echo";
pub(super) const DATAGRAMS: &str = "relay-datagrams";
pub(super) const TLS_ECHO: &str = "relay-tls-echo";
pub(super) const TLS: &str = "relay-tls";
pub(super) const CONNECTIONS: &str = "connections";
pub(super) const GB_PER_S: &str = "gb_per_s";
pub(super) const PER_S: &str = "per_s";
pub(super) const RELAY_US: &str = "relay_us";
pub(super) const RELAY_S_PER_GB: &str = "relay_s_per_gb";
pub(super) const HANDSHAKES_PER_S: &str = "handshakes_per_s";
pub(super) const HANDSHAKE_US: &str = "relay_handshake_us";

pub(super) fn of<'a>(rows: &'a [Row], name: &str, case: &str, connections: u64) -> Option<&'a Row> {
    rows.iter().find(|row| {
        row.system.name() == name
            && row.case == case
            && row.number(CONNECTIONS) == Some(connections)
    })
}
