//! Runs `wrk` as it is, and reads what it prints.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use crate::error::{BenchError, Failure};
use crate::system::System;

/// What `wrk` has found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Found {
    pub(super) requests: u64,
    pub(super) per_s: f64,
    pub(super) p99_us: f64,
}

/// Has one thread of `wrk` ask on `connections` connections for `span`.
pub(super) fn run(
    system: System,
    address: SocketAddr,
    connections: u32,
    span: Duration,
) -> Result<Found, BenchError> {
    let failed = |reason: String| {
        let failure = Failure::Unsupported { system: system.to_string(), reason };
        BenchError::Failed { role: "wrk", failure }
    };
    let mut command = Command::new("wrk");
    command.args(["--threads", "1", "--latency", "--connections"]).arg(connections.to_string());
    command.arg("--duration").arg(format!("{}s", span.as_secs().max(1)));
    let output = command.arg(format!("http://{address}/")).output();
    let output = output.map_err(|error| match error.kind() {
        ErrorKind::NotFound => failed("`wrk` is not installed (apt-get install wrk)".to_owned()),
        _ => failed(format!("`wrk` cannot be run: {error}")),
    })?;
    let text = String::from_utf8_lossy(&output.stdout);
    read(&text).ok_or_else(|| failed(format!("`wrk` says: {text}")))
}

/// Reads the figures, unless a request failed.
fn read(text: &str) -> Option<Found> {
    if text.contains("Socket errors:") || text.contains("Non-2xx") {
        return None;
    }
    let after = |key: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(key));
        line?.split_whitespace().next()
    };
    let counted = text.lines().find(|line| line.contains(" requests in "))?;
    Some(Found {
        requests: counted.split_whitespace().next()?.parse().ok()?,
        per_s: after("Requests/sec:")?.parse().ok()?,
        p99_us: microseconds(after("99%")?)?,
    })
}

/// Reads a time such as `637.00us`, `1.25ms` or `2.00s`.
fn microseconds(text: &str) -> Option<f64> {
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6), ("m", 60e6)];
    let (number, unit) =
        units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    Some(number.parse::<f64>().ok()? * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Running 1s test @ http://127.0.0.1:8080/
  1 threads and 50 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   412.50us   55.01us   2.31ms   87.32%
    Req/Sec   118.59k     4.12k  124.60k    72.73%
  Latency Distribution
     50%  401.00us
     99%    1.25ms
  129727 requests in 1.10s, 16.58MB read
Requests/sec: 117983.22
Transfer/sec:     15.08MB
";

    #[test]
    fn figures_are_read() {
        // Goal: what wrk prints is understood, and failed requests are no result. Method: its words, with and without.
        let found = Found { requests: 129_727, per_s: 117_983.22, p99_us: 1_250.0 };
        assert_eq!(read(TEXT), Some(found));
        let failed = format!("{TEXT}  Socket errors: connect 0, read 3, write 0, timeout 0\n");
        assert_eq!(read(&failed), None);
        assert_eq!(read("wrk: unable to connect"), None);
        assert_eq!(
            ["637.00us", "2.00s", "1.50m", "x"].map(microseconds),
            [Some(637.0), Some(2e6), Some(90e6), None]
        );
    }
}
