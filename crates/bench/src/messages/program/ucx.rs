//! UCX over POSIX shared memory, by its own `ucx_perftest`.
//!
//! It times by itself and prints percentiles, not samples; each turn gives one.

use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;
use std::time::Duration;

use crate::clock::sleep;
use crate::error::{BenchError, Failure, Missing};
use crate::host::{Program, is_installed};
use crate::messages::{Carrier, Measure, MeasureResult, Prepared, Run};

const PROGRAM: &str = "ucx_perftest";

/// Shared memory, with and without reads of the other's memory; nothing that leaves the host.
const TRANSPORTS: &str = "posix,cma,self";

/// What the server gets before the client comes.
const HEAD_START: Duration = Duration::from_millis(300);

/// Operations of a latency as small as can be, per second of budget.
const OPERATIONS_PER_S: f64 = 1_000_000.0;

/// Bytes that cost about as much time as an operation.
const BYTES_PER_OPERATION: f64 = 4_096.0;

/// UCX over shared memory.
pub(crate) static UCX: Carrier = Carrier {
    name: "ucx",
    label: "UCX, posix",
    family: "ucx",
    has: |measure| measure.is_plain() || matches!(measure, Measure::Synchronous { .. }),
    program: Some(|| {
        if is_installed(PROGRAM) {
            return Ok(Box::new(Ucx));
        }
        Err(Missing::new(format!("there is no {PROGRAM}"), "on Debian: apt install ucx-utils"))
    }),
    ..Carrier::PROGRAM
};

/// The program that measures, which is installed.
#[derive(Debug)]
struct Ucx;

impl Prepared for Ucx {
    fn measure(&self, run: &Run) -> Result<Vec<MeasureResult>, BenchError> {
        run.measures.iter().map(|&measure| one(measure, run)).collect()
    }
}

fn failed(failure: Failure) -> BenchError {
    BenchError::Failed { role: "peer", failure }
}

fn one(measure: Measure, run: &Run) -> Result<MeasureResult, BenchError> {
    let messages = measure.messages(run.ranks);
    let cost = f64::from(messages) * (1.0 + f64::from(measure.bytes()) / BYTES_PER_OPERATION);
    let operations = run.budget.as_secs_f64() * OPERATIONS_PER_S / cost;
    let count = (operations * f64::from(measure.window())).clamp(50.0, 1e7).round();
    let port = free_port()?;
    let command = |rank: u32| {
        let mut command = Command::new(PROGRAM);
        if rank == 1 {
            command.arg("127.0.0.1");
        }
        let cores: Vec<_> = run.cores_of(rank).iter().map(usize::to_string).collect();
        command.env("UCX_TLS", TRANSPORTS).args(["-p", &port.to_string(), "-c", &cores.join(",")]);
        command
    };
    let server = Program::start(command(0))?;
    sleep(HEAD_START);
    let mut client = command(1);
    client.args(["-f", "-v", "-t", test(measure), "-s", &measure.bytes().to_string()]);
    client.args(["-n", &count.to_string(), "-w", &(count / 4.0).ceil().to_string()]);
    if measure.window() > 1 {
        client.args(["-O", &measure.window().to_string()]);
    }
    let output = Program::start(client)?.finish(run.timeout());
    // Without a client, the server is never told to end.
    let ended = server.finish(if output.is_ok() { run.timeout() } else { HEAD_START });
    let output = output?;
    ended?;
    parse(&output, measure).ok_or_else(|| {
        failed(Failure::runtime(format!("{PROGRAM} printed unexpected output: {output:?}")))
    })
}

const fn test(measure: Measure) -> &'static str {
    match measure {
        Measure::Window { .. } => "tag_bw",
        Measure::Synchronous { .. } => "tag_sync_lat",
        _ => "tag_lat",
    }
}

/// Reads `iterations,50.0_percentile_lat,avg_lat,overall_lat,…,avg_mr,overall_mr`: latencies one way in
/// microseconds, rates in messages per second. The bandwidth test has an overhead where the latency
/// test has its latency.
fn parse(output: &str, measure: Measure) -> Option<MeasureResult> {
    const OPERATIONS: u32 = 1_000;
    let fields = |line: &str| -> Option<Vec<f64>> {
        line.split(',').map(|field| field.trim().parse().ok()).collect()
    };
    let fields = output.lines().filter_map(fields).find(|fields| fields.len() >= 8)?;
    let message_us = if measure.window() > 1 { 1e6 / fields[7] } else { fields[1] };
    let ns = message_us * 1e3 * f64::from(measure.messages(2)) * f64::from(OPERATIONS);
    if !ns.is_finite() || fields[0] < 0.0 {
        return None;
    }
    let sample = Duration::from_secs_f64(ns.max(0.0) / 1e9);
    let behind = Duration::from_secs_f64(fields[0]).as_secs();
    Some(MeasureResult {
        operations: OPERATIONS,
        samples_ns: vec![crate::clock::nanoseconds(sample)],
        operations_behind: Some(behind),
        operations_all: behind,
        ..MeasureResult::default()
    })
}

/// A port without a listener at present.
fn free_port() -> Result<u16, BenchError> {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|free| free.local_addr());
    port.map(|address| address.port()).map_err(|error| failed(Failure::io("finding a port")(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_prints_is_understood() {
        // Goal: the percentile of latencies, the rate of windows, nothing of noise. Method: known text.
        let text = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
                    50000,0.323,52.916,116.886,0.14,0.07,18898,10000000\n";
        let played = parse(text, Measure::Latency { bytes: 8 }).unwrap();
        // A round trip is two of them.
        assert_eq!((played.samples_ns, played.operations_behind), (vec![646_000], Some(50_000)));
        let played = parse(text, Measure::Window { bytes: 8, window: 64 }).unwrap();
        assert_eq!(played.samples_ns, [6_400_000]);
        assert_eq!(parse("50000,0.3\n", Measure::Quiet), None);
    }
}
