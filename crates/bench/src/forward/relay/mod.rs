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
use self::load::LoadResult;
pub(crate) use self::load::{LoadRole, load};
pub(crate) use self::peers::RelayPeer;
pub(crate) use self::serve::{RelayRole, serve};
use self::topology::RelayTopology;
use crate::compute::parse_duration;
use crate::error::BenchError;
use crate::process::Child;
use crate::report::{Case, Figure, REACTION, Repetition, Row, Turn};

/// The time limit of a run in a child, beside its budget.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Messages of a latency, per round.
const SAMPLES: u32 = 3_000;

/// The measurements, and the peers.
#[derive(Clone, Debug, Args)]
#[group(requires = "relay")]
#[command(next_help_heading = "Relays (--relay)")]
pub(crate) struct RelayMeasurement {
    /// Other relays to measure in the same run.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "RELAY,…",
        default_value = "socat,haproxy,nginx,tokio"
    )]
    peers: Vec<RelayPeer>,
    /// Also measure vigie's two ways to move bytes, copy and splice, separately.
    #[arg(long)]
    engines: bool,
    /// Numbers of connections; each is a row.
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_value = "1,16", value_parser = clap::value_parser!(u32).range(1..))]
    connections: Vec<u32>,
    /// Time for each measurement.
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

impl Case for RelayMeasurement {
    type Setting = (RelayKind, RelayMeasure);

    fn rounds(&self) -> u32 {
        self.rounds
    }

    fn rows(&self) -> Vec<(Self::Setting, Row)> {
        let mut settings = Vec::new();
        if self.raw {
            for &connections in &self.connections {
                for kind in self.kinds() {
                    settings.push((kind, RelayMeasure::Stream { connections }));
                    settings.push((kind, RelayMeasure::Latency { connections }));
                }
            }
        }
        if self.framed {
            let modes = [FramedKind::Planned, FramedKind::Stored, FramedKind::Cut];
            let framed = modes.map(RelayKind::Framed);
            settings.extend(framed.map(|kind| (kind, RelayMeasure::FramedStream)));
            let kinds = [RelayKind::Direct].into_iter().chain(framed);
            settings.extend(kinds.map(|kind| (kind, RelayMeasure::FramedLatency)));
        }
        let row = |(kind, measure): (RelayKind, RelayMeasure)| {
            let (case, connections) = match measure {
                RelayMeasure::Stream { connections } => (STREAM, connections),
                RelayMeasure::Latency { connections } => (LATENCY, connections),
                RelayMeasure::FramedStream => (FRAMED_STREAM, 1),
                RelayMeasure::FramedLatency => (FRAMED_LATENCY, 1),
            };
            let row = Row::new(kind.subject(), case).parameter(CONNECTIONS, connections);
            ((kind, measure), row)
        };
        settings.into_iter().map(row).collect()
    }

    fn measure(
        &self,
        &(kind, measure): &Self::Setting,
        turn: &Turn<'_>,
    ) -> Result<Repetition, BenchError> {
        turn.shows(format!("{} {measure:?}", kind.subject()));
        let links = match measure {
            RelayMeasure::FramedLatency => Some(links::RelayLinks::make()?),
            _ => None,
        };
        let topology = RelayTopology::choose(links.as_ref())
            .map_err(BenchError::io("relay", "finding a free port"))?;
        let target = if kind == RelayKind::Direct { topology.sink } else { topology.relay };
        let _relay = peers::start(kind, &topology)?;
        let role = LoadRole {
            measure,
            sink: topology.sink,
            target,
            core: topology.core,
            namespaces: topology.ends.clone(),
            budget: self.budget,
            samples: SAMPLES,
        };
        Ok(match Child::start(&role)?.result(TIMEOUT + self.budget)? {
            LoadResult::Carried { gb_per_s } => Repetition::default().figure(GB_PER_S, gb_per_s),
            LoadResult::Times { nanoseconds } => {
                Repetition::default().samples(REACTION, nanoseconds.into_iter().collect())
            }
        })
    }

    /// A relay of others that fails leaves its rows empty; ours must not.
    fn is_of_the_row(&self, setting: &Self::Setting, error: &BenchError) -> bool {
        matches!(setting.0, RelayKind::Peer(_)) || matches!(error, BenchError::Missing(_))
    }

    fn tables(&self, rows: &[Row]) -> String {
        tables::tables(rows)
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
