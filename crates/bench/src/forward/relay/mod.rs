//! Relays compared with peers: the throughput of a stream, and the delay added to a message.
//!
//! One process holds source and sink, another the relay, over loopback, all on one core: so the whole cost of a byte
//! counts, in every process. Streams: each connection writes blocks of 128 KiB without end, and the bytes that the
//! sink reads within the budget are counted. Latency: one message of 64 bytes in flight, echoed by the sink, over
//! one connection or sixteen in turn. Framed relays: messages of 1 MiB, as a stream over loopback, and one at a time
//! over two links of 1 Gb/s between network namespaces (a token bucket, `tc tbf`, on veth pairs), with both cores.

mod keys;
mod kind;
mod links;
mod load;
mod peers;
mod serve;
mod tables;
mod topology;

use std::time::Duration;

use clap::Args;

use self::keys::{CONNECTIONS, FRAMED_LATENCY, FRAMED_STREAM, GB_PER_S, LATENCY, STREAM, of};
use self::kind::{FramedKind, RelayKind, RelayMeasure};
pub(crate) use self::load::{LoadRole, load};
pub(crate) use self::peers::RelayPeer;
pub(crate) use self::serve::{RelayRole, serve};
use self::topology::{RelayTopology, Unmeasured};
use crate::compute::parse_duration;
use crate::error::BenchError;
use crate::process::{Child, Message};
use crate::report::{Figure, Outcome, Plan, Progress, Row};
use crate::statistics::{Samples, median};

/// The time limit of a run in a child, beside its budget.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Messages of a latency, per round.
const SAMPLES: u32 = 3_000;

/// The measurements, and the peers.
#[derive(Clone, Debug, Args)]
#[group(requires = "relay")]
#[command(next_help_heading = "Relays (--relay)")]
pub(crate) struct RelayMeasurement {
    /// Relays of others to measure in the same run.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "RELAY,…",
        default_value = "socat,haproxy,nginx,tokio"
    )]
    peers: Vec<RelayPeer>,
    /// Measure vigie's engines, copy and splice, one by one too.
    #[arg(long)]
    engines: bool,
    /// Numbers of connections.
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_value = "1,16", value_parser = clap::value_parser!(u32).range(1..))]
    connections: Vec<u32>,
    /// Time of one stream.
    #[arg(long, value_name = "TIME", default_value = "700ms", value_parser = parse_duration)]
    budget: Duration,
    /// Whether streams and latency of raw relays are measured.
    #[arg(skip)]
    pub(crate) raw: bool,
    /// Whether framed relays are measured.
    #[arg(skip)]
    pub(crate) framed: bool,
    /// How often everything is measured, in turns.
    #[arg(skip)]
    pub(crate) rounds: u32,
}

impl RelayMeasurement {
    fn kinds(&self) -> Vec<RelayKind> {
        let mut kinds = vec![RelayKind::Direct, RelayKind::Vigie];
        if self.engines {
            kinds.extend([RelayKind::VigieCopy, RelayKind::VigieSplice]);
        }
        kinds.extend(self.peers.iter().copied().map(RelayKind::Peer));
        kinds
    }
}

impl Plan for RelayMeasurement {
    /// The run is one case, of which each measurement is a part.
    fn cases(&self) -> usize {
        1
    }

    fn run(&self, _seed: u64, progress: &mut Progress) -> Result<Outcome, BenchError> {
        let mut cases = Vec::new();
        if self.raw {
            for &connections in &self.connections {
                for kind in self.kinds() {
                    cases.push(RelayCase::new(kind, RelayMeasure::Stream { connections }));
                    cases.push(RelayCase::new(kind, RelayMeasure::Latency { connections }));
                }
            }
        }
        if self.framed {
            let modes = [FramedKind::Planned, FramedKind::Stored, FramedKind::Cut];
            cases.extend(
                modes.map(|mode| {
                    RelayCase::new(RelayKind::Framed(mode), RelayMeasure::FramedStream)
                }),
            );
            let kinds = [RelayKind::Direct].into_iter().chain(modes.map(RelayKind::Framed));
            cases.extend(kinds.map(|kind| RelayCase::new(kind, RelayMeasure::FramedLatency)));
        }
        let turns = cases.len() * usize::try_from(self.rounds).unwrap_or(usize::MAX);
        let mut done = 0;
        for _ in 0..self.rounds {
            for case in &mut cases {
                progress.case(case.name());
                case.measure(self)?;
                done += 1;
                progress.part(done, turns);
            }
        }
        let rows = cases.into_iter().map(RelayCase::row).collect();
        Ok(Outcome { rows, priority: None })
    }

    fn tables(&self, rows: &[Row]) -> String {
        tables::tables(rows)
    }
}

#[derive(Debug)]
struct RelayCase {
    kind: RelayKind,
    measure: RelayMeasure,
    /// Gigabytes per second, one of each round.
    speeds: Vec<f64>,
    times: Samples,
    failure: Option<String>,
}

impl RelayCase {
    const fn new(kind: RelayKind, measure: RelayMeasure) -> Self {
        Self { kind, measure, speeds: Vec::new(), times: Samples::new(), failure: None }
    }

    fn name(&self) -> String {
        format!("{} {:?}", self.kind.subject(), self.measure)
    }

    fn measure(&mut self, plan: &RelayMeasurement) -> Result<(), BenchError> {
        if self.failure.is_some() {
            return Ok(());
        }
        match self.once(plan) {
            Ok(Message::Carried { bytes, nanoseconds }) => {
                self.speeds.push(bytes as f64 / nanoseconds.max(1) as f64);
            }
            Ok(Message::RoundTrips { nanoseconds }) => {
                for time in nanoseconds {
                    self.times.push(Duration::from_nanos(time));
                }
            }
            Ok(other) => {
                return Err(BenchError::Protocol { role: "load", line: format!("{other:?}") });
            }
            Err(Unmeasured::Missing(why)) => self.failure = Some(why),
            Err(Unmeasured::Failed(error)) if matches!(self.kind, RelayKind::Peer(_)) => {
                self.failure = Some(error.to_string());
            }
            Err(Unmeasured::Failed(error)) => return Err(error),
        }
        Ok(())
    }

    fn once(&self, plan: &RelayMeasurement) -> Result<Message, Unmeasured> {
        let links = match self.measure {
            RelayMeasure::FramedLatency => Some(
                links::RelayLinks::make()
                    .map_err(|missing| Unmeasured::Missing(missing.to_string()))?,
            ),
            _ => None,
        };
        let topology =
            RelayTopology::choose(links.as_ref()).map_err(Unmeasured::io("a free port"))?;
        let target = if self.kind == RelayKind::Direct { topology.sink } else { topology.relay };
        let _relay = peers::start(self.kind, &topology)?;
        let role = LoadRole {
            measure: self.measure,
            sink: topology.sink,
            target,
            core: topology.core,
            namespaces: topology.ends.clone(),
            budget: plan.budget,
            samples: SAMPLES,
        };
        let mut load = Child::start(&role)?;
        Ok(load.next(TIMEOUT + plan.budget)?)
    }

    fn row(self) -> Row {
        let (case, connections) = match self.measure {
            RelayMeasure::Stream { connections } => (STREAM, connections),
            RelayMeasure::Latency { connections } => (LATENCY, connections),
            RelayMeasure::FramedStream => (FRAMED_STREAM, 1),
            RelayMeasure::FramedLatency => (FRAMED_LATENCY, 1),
        };
        let mut row = Row::new(self.kind.subject(), case).parameter(CONNECTIONS, connections);
        row.failure = self.failure;
        if let Some(speed) = median(&self.speeds) {
            row = row.with_figure(GB_PER_S, speed).with_figure("samples", self.speeds.len());
        }
        if let Some(summary) = self.times.summary() {
            row.figures = summary.figures();
            row.samples_ns.insert("time", self.times.as_nanoseconds().to_vec());
        }
        row
    }
}

fn compared(row: &Row, value: f64) -> Figure {
    Figure::new(value, row.samples())
}

/// The time that vigie adds to the median round trip, divided by socat's.
pub(crate) fn added_by_socat(rows: &[Row]) -> Option<Figure> {
    let p50 = |name| of(rows, name, LATENCY, 1)?.figure("p50_us");
    let direct = p50("direct")?;
    let vigie = of(rows, "vigie", LATENCY, 1)?;
    Some(compared(vigie, (p50("vigie")? - direct) / (p50("socat")? - direct)))
}
