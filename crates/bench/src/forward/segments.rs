//! Segments through a router and a translator, beside the kernel's own.
//!
//! *Question*: is TCP between network namespaces as fast through `vigie-forward` as through the kernel that it replaces,
//! with offloads as the kernel sets them, and does it reorder nothing? *Prediction*: a program at tcx passes packets of
//! several segments whole, as the kernel does, and does less for each. *Method*: iperf3 with one stream and with eight;
//! kernel and program in turns, each between namespaces of its own; the ratio is within a turn. Reorderings are those that
//! the sender's kernel has noticed in further runs, with both ends on one core: else the scheduler moves senders between
//! cores, and the kernel's forwarding reorders, too. *Unit*: Gbit/s.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::Value;

use super::beginnings::late;
use super::line::{Line, LineForwarder, Running};
use crate::host::allowed;
use crate::report::{Outcome, Plan, Progress, Row, Show, Subject, lines};
use crate::statistics::median;

/// The row's case.
pub(crate) const SEGMENTS: &str = "segments";
const GBIT_S: &str = "gbit_s";
const BY_KERNEL: &str = "times_kernel";
const RETRANSMITTED: &str = "retransmitted";
const REORDERED: &str = "reordered";
const LATE: &str = "late";

const STREAMS: [u32; 2] = [1, 8];
/// Seconds of a run whose rate counts, and of one on one core.
const SECONDS: u32 = 3;
const SECONDS_ORDERED: u32 = 1;
const SERVER: &str = "10.2.0.2";

/// Each of the kernel's comes before the one that is compared with it.
const FORWARDERS: [(LineForwarder, &str, &str); 5] = [
    (LineForwarder::IpForward, "segments-kernel", "ip_forward"),
    (LineForwarder::Route, "segments-l3", "vigie-forward l3"),
    (LineForwarder::RouteHost, "segments-l3-host", "vigie-forward l3, packet sockets"),
    (LineForwarder::Masquerade, "segments-masquerade", "nft masquerade"),
    (LineForwarder::Nat, "segments-nat", "vigie-forward nat"),
];

/// Segments through all forwarders.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentsPlan {
    rounds: u32,
}

/// What was measured of a forwarder with so many streams.
#[derive(Debug, Default)]
struct Sums {
    gbit_s: Vec<f64>,
    by_kernel: Vec<f64>,
    retransmitted: u64,
    reordered: u64,
    late: u64,
}

impl SegmentsPlan {
    pub(super) const fn new(rounds: u32) -> Self {
        Self { rounds }
    }

    /// Returns whether a name means this plan.
    pub(super) fn has(name: &str) -> bool {
        name == SEGMENTS
    }

    fn measure(self, seed: u64, progress: &mut Progress) -> Result<Vec<Sums>, String> {
        let count = FORWARDERS.len() * STREAMS.len();
        let mut sums: Vec<Sums> = (0..count).map(|_| Sums::default()).collect();
        for round in 0..self.rounds {
            progress.case(format!("turn {} of {}", round + 1, self.rounds));
            let mut of_kernel = [0.0; STREAMS.len()];
            let forwarders = FORWARDERS.into_iter();
            for ((forwarder, ..), sums) in forwarders.zip(sums.chunks_mut(STREAMS.len())) {
                let line = Line::make(forwarder)?;
                for ((streams, base), sums) in STREAMS.into_iter().zip(&mut of_kernel).zip(sums) {
                    let run = iperf(&line, streams, SECONDS, None)?;
                    if forwarder.is_kernel() {
                        *base = run.gbit_s;
                    }
                    sums.gbit_s.push(run.gbit_s);
                    sums.by_kernel.push(run.gbit_s / *base);
                    sums.retransmitted += run.retransmitted;
                    let before = reorderings(&line)?;
                    iperf(&line, streams, SECONDS_ORDERED, allowed().first().copied())?;
                    sums.reordered += reorderings(&line)?.saturating_sub(before);
                    let ends = (&line.client, &line.server);
                    let late = late(ends, SERVER, seed.wrapping_add(round.into()));
                    sums.late += late.map_err(|failure| failure.to_string())?;
                }
            }
            progress.case_done();
        }
        Ok(sums)
    }
}

impl Plan for SegmentsPlan {
    fn cases(&self) -> usize {
        self.rounds as usize
    }

    fn run(&self, seed: u64, progress: &mut Progress) -> Result<Outcome, crate::error::BenchError> {
        let measured = self.measure(seed, progress);
        let each = FORWARDERS.into_iter();
        let each = each.flat_map(|(_, name, label)| {
            STREAMS.into_iter().map(move |streams| (Subject::Carrier { name, label }, streams))
        });
        let row = |(subject, streams)| Row::new(subject, SEGMENTS).parameter("streams", streams);
        let rows = match measured {
            Ok(sums) => each.zip(sums).map(|(one, sums)| sums.put(row(one))).collect(),
            Err(failure) => each
                .map(|one| {
                    let mut row = row(one);
                    row.failure = Some(failure.clone());
                    row
                })
                .collect(),
        };
        Ok(Outcome { rows, priority: None })
    }

    fn tables(&self, rows: &[Row]) -> String {
        let title = "TCP between three namespaces, offloads as the kernel sets them";
        let columns = [
            ("streams", Show::Parameter("streams")),
            ("Gbit/s", Show::Fixed(GBIT_S, 2)),
            ("× the kernel", Show::Fixed(BY_KERNEL, 3)),
            ("retransmitted", Show::Fixed(RETRANSMITTED, 0)),
            ("reordered on one core", Show::Fixed(REORDERED, 0)),
            ("late datagrams of flows that begin", Show::Fixed(LATE, 0)),
        ];
        let own = rows.iter().filter(|row| row.case == SEGMENTS);
        let table = lines(title, "forwarder", own, &columns);
        let failure = rows.iter().find_map(|row| row.failure.as_ref());
        failure.map_or_else(|| table.to_string(), |failure| format!("{table}\n{failure}"))
    }
}

impl Sums {
    fn put(&self, row: Row) -> Row {
        let put = |row: Row, key: &str, figures: &[f64]| match median(figures) {
            Some(figure) => row.with_figure(key, figure),
            None => row,
        };
        let row = put(row, GBIT_S, &self.gbit_s);
        let row = put(row, BY_KERNEL, &self.by_kernel);
        let row = row.with_figure(RETRANSMITTED, self.retransmitted);
        let row = row.with_figure(LATE, self.late);
        row.with_figure(REORDERED, self.reordered).with_figure("samples", self.gbit_s.len())
    }
}

/// What iperf3 says.
#[derive(Clone, Copy, Debug)]
struct IperfRun {
    gbit_s: f64,
    retransmitted: u64,
}

/// Sends for some seconds, with both ends on a core if one is given.
fn iperf(line: &Line, streams: u32, seconds: u32, core: Option<usize>) -> Result<IperfRun, String> {
    let mut server = line.server.command("iperf3");
    server.args(["-s", "-1", "--forceflush"]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = Running(server.spawn().map_err(|error| format!("`nsenter`: {error}"))?);
    let mut output = BufReader::new(server.0.stdout.take().ok_or("iperf3 has no output")?);
    let mut said = String::new();
    while !said.contains("listening") {
        let before = said.len();
        let _ = output.read_line(&mut said);
        if said.len() == before {
            return Err(format!(
                "iperf3, which is needed (`apt install iperf3`), has ended: {said}"
            ));
        }
    }
    let mut client = line.client.command("iperf3");
    client.args(["-J", "-c", SERVER, "-t", &seconds.to_string(), "-P", &streams.to_string()]);
    if let Some(core) = core {
        client.args(["-A", &format!("{core},{core}")]);
    }
    let output = client.output().map_err(|error| format!("`nsenter`: {error}"))?;
    let result: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let end = &result["end"];
    let rate = end["sum_received"]["bits_per_second"].as_f64();
    let retransmitted = end["sum_sent"]["retransmits"].as_u64();
    let (Some(rate), Some(retransmitted)) = (rate, retransmitted) else {
        return Err(format!("iperf3: {}", result["error"].as_str().unwrap_or("no result")));
    };
    Ok(IperfRun { gbit_s: rate / 1e9, retransmitted })
}

/// How many reorderings the client's kernel has noticed so far.
fn reorderings(line: &Line) -> Result<u64, String> {
    let output = line.client.command("cat").arg("/proc/net/netstat").output();
    let output = output.map_err(|error| format!("`nsenter`: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut of_tcp = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (Some(names), Some(values)) = (of_tcp.next(), of_tcp.next()) else {
        return Err("the kernel counts no reorderings".to_owned());
    };
    let named = names.split_whitespace().zip(values.split_whitespace());
    let counts = named.filter(|(name, _)| name.ends_with("Reorder"));
    Ok(counts.filter_map(|(_, value)| value.parse::<u64>().ok()).sum())
}
