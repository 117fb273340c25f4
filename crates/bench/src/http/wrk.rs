//! Runs `wrk` as it is, and reads what it prints.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::process::{Command, Output};
use std::time::Duration;

use crate::error::{BenchError, Failure};

/// What `wrk` has found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct WrkResult {
    pub(super) requests: u64,
    pub(super) per_s: f64,
    pub(super) p99_us: f64,
}

/// Has one thread of `wrk` ask on `connections` connections for `span`, rounded up to whole seconds.
pub(super) fn run(
    address: SocketAddr,
    connections: u32,
    span: Duration,
) -> Result<WrkResult, BenchError> {
    let failed = |reason: String| {
        let failure = Failure::unsupported("wrk", reason);
        BenchError::Failed { role: "wrk", failure }
    };
    let mut command = Command::new("wrk");
    command
        .args(["--threads", "1", "--latency", "--timeout", "20s", "--connections"])
        .arg(connections.to_string());
    command.arg("--duration").arg(format!("{}s", whole_seconds(span)));
    let output = command.arg(format!("http://{address}/ping")).output();
    let output = output.map_err(|error| match error.kind() {
        ErrorKind::NotFound => failed("`wrk` is not installed (apt-get install wrk)".to_owned()),
        _ => failed(format!("`wrk` cannot be run: {error}")),
    })?;
    let text = String::from_utf8_lossy(&output.stdout);
    let found = if output.status.success() { read(&text) } else { None };
    found.ok_or_else(|| failed(complaint(&output)))
}

/// Rounds up to whole seconds, of which there is at least one: `wrk` takes nothing else.
fn whole_seconds(span: Duration) -> u64 {
    (span.as_secs() + u64::from(span.subsec_nanos() > 0)).max(1)
}

/// Says how `wrk` ended and what it wrote to its standard error or, if that is empty, to its standard output.
fn complaint(output: &Output) -> String {
    let [stderr, stdout] =
        [&output.stderr, &output.stdout].map(|text| String::from_utf8_lossy(text));
    let said = if stderr.trim().is_empty() { stdout.trim() } else { stderr.trim() };
    format!("`wrk` gave no figures ({}): {said}", output.status)
}

/// Reads the figures, unless a request failed.
fn read(text: &str) -> Option<WrkResult> {
    if text.contains("Socket errors:") || text.contains("Non-2xx") {
        return None;
    }
    let after = |key: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(key));
        line?.split_whitespace().next()
    };
    let counted = text.lines().find(|line| line.contains(" requests in "))?;
    Some(WrkResult {
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
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

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
        // Goal: what wrk prints is understood, and failed requests are not a result. Method: its words, with and
        // without.
        let found = WrkResult { requests: 129_727, per_s: 117_983.22, p99_us: 1_250.0 };
        assert_eq!(read(TEXT), Some(found));
        let failed = format!("{TEXT}  Socket errors: connect 0, read 3, write 0, timeout 0\n");
        assert_eq!(read(&failed), None);
        assert_eq!(read("wrk: unable to connect"), None);
        assert_eq!(
            ["637.00us", "2.00s", "1.50m", "x"].map(microseconds),
            [Some(637.0), Some(2e6), Some(90e6), None]
        );
    }

    #[test]
    fn spans_are_rounded_up() {
        // Goal: `wrk` gets whole seconds, at least one, and never less than was asked for. Method: spans around them.
        let spans = [0, 1, 999, 1_000, 1_001, 2_500, 10_000].map(Duration::from_millis);
        assert_eq!(spans.map(whole_seconds), [1, 1, 1, 1, 2, 3, 10]);
    }

    #[test]
    fn a_failure_is_explained() {
        // Goal: the error has the exit status and what `wrk` complained of, wherever it wrote that. Method: statuses and
        // words as wrk 4.1 gives them.
        let complaint = |status, stdout: &str, stderr: &str| {
            let (stdout, stderr) = (stdout.into(), stderr.into());
            complaint(&Output { status: ExitStatus::from_raw(status), stdout, stderr })
        };
        assert_eq!(
            complaint(1 << 8, "", "unable to connect to 127.0.0.1:1 Connection refused\n"),
            "`wrk` gave no figures (exit status: 1): unable to connect to 127.0.0.1:1 Connection refused"
        );
        assert_eq!(
            complaint(1 << 8, "Usage: wrk <options> <url>\n", "\n"),
            "`wrk` gave no figures (exit status: 1): Usage: wrk <options> <url>"
        );
        assert!(complaint(9, "", "").contains("(signal: 9"));
    }
}
