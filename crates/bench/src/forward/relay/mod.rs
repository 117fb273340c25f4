//! Relays compared with peers: the throughput of a stream, and the delay added to a message.
//!
//! One process holds source and sink, another the relay, over loopback, all on one core: so the whole cost of a byte
//! counts, in every process. Streams: each connection writes blocks of 128 KiB without end, and the bytes that the
//! sink reads within the budget are counted. Latency: one message of 64 bytes in flight, echoed by the sink, over
//! one connection or sixteen in turn. Framed relays: messages of 1 MiB, as a stream over loopback, and one at a time
//! over two links of 1 Gb/s between network namespaces (a token bucket, `tc tbf`, on veth pairs), with both cores.
//!
//! Echo: `vigie-forward` as users run it, beside the others as they are packaged, each with one core of its own; source and sink have
//! the other one. Each connection has one message of 64 bytes in flight, all at the same time. *Question*: how long is a round trip, and
//! how many are there in a second? *Prediction*: a round trip is four system calls and two wake-ups of the relay, for every relay; with
//! many connections one look finds many that are ready, and the rate is what a read and a write cost.
//!
//! Throughput: the same programs and cores; each connection has a stream. *Question*: how many gigabytes are there in a second? *Prediction*:
//! a relay copies each byte twice, the source once and the sink, which discards, never; so the relay's core is the limit.
//!
//! Datagrams: the same programs and cores, one way, with 32 of 64 bytes under way from one client or several, over two veth pairs between network
//! namespaces. The source writes frames to its interface (a packet socket's ring), as a network card of the relay's would get them from many hosts, so that it is
//! faster than any relay; what the kernel does with a frame until it is in the relay's queue runs on the source's core, and until it is in the sink's queue on the
//! relay's. Without a relay the kernel of the namespace in the middle forwards. Root runs these relays as the user 65534, which has no
//! privileges: the goal of 400 000 a second is one for such relays.
//!
//! TLS: the same programs with one certificate (ECDSA P-256), TLS 1.3 and AES-128-GCM, whole handshakes. The sink sends what it can in
//! plain, and the source decrypts what the relay has encrypted; so the relay may not be the slowest of the two, and its processor
//! time stands beside the rates. Echoes through these relays are those above; the source is the one thread of source and sink, and encrypts.

mod datagrams;
mod echo;
mod keys;
mod kind;
mod links;
mod load;
mod peers;
mod poll;
mod programs;
mod role;
mod serve;
mod tables;
mod throughput;
mod tls;
mod topology;

use std::time::Duration;

use clap::Args;

pub(super) use self::echo::processor_time;
use self::keys::{
    CONNECTIONS, DATAGRAMS, ECHO, FRAMED_LATENCY, FRAMED_STREAM, GB_PER_S, HANDSHAKE_US,
    HANDSHAKES_PER_S, LATENCY, PER_S, RELAY_S_PER_GB, RELAY_US, STREAM, THROUGHPUT, TLS, TLS_ECHO,
    of,
};
use self::kind::{FramedKind, RelayKind, RelayMeasure};
pub(crate) use self::load::load;
pub(crate) use self::peers::RelayPeer;
use self::role::LoadResult;
pub(crate) use self::role::LoadRole;
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
    /// Numbers of connections; each is a row. Default: 1,16; of `echo` and `throughput` 1,16,256,4096, of `tls-echo` 1,256.
    #[arg(long, value_delimiter = ',', value_name = "N,…", value_parser = clap::value_parser!(u32).range(1..))]
    connections: Vec<u32>,
    /// Time for each measurement.
    #[arg(long, value_name = "TIME", default_value = "700ms", value_parser = parse_duration)]
    budget: Duration,
    /// Whether streams and latency of raw relays are measured.
    #[arg(skip)]
    pub(crate) raw: bool,
    /// Whether streams through relays with a core of their own are measured.
    #[arg(skip)]
    pub(crate) throughput: bool,
    /// Whether round trips on many connections are measured.
    #[arg(skip)]
    pub(crate) echo: bool,
    /// Whether round trips through relays that end TLS are measured.
    #[arg(skip)]
    pub(crate) tls_echo: bool,
    /// Whether relays of datagrams are measured.
    #[arg(skip)]
    pub(crate) datagrams: bool,
    /// Whether streams and handshakes of relays that end TLS are measured.
    #[arg(skip)]
    pub(crate) tls: bool,
    /// Whether framed relays are measured.
    #[arg(skip)]
    pub(crate) framed: bool,
    /// How often everything is measured, in turns.
    #[arg(skip)]
    pub(crate) rounds: u32,
}

impl RelayMeasurement {
    fn connections(&self, default: &[u32]) -> Vec<u32> {
        if self.connections.is_empty() { default.to_vec() } else { self.connections.clone() }
    }

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
        if self.throughput {
            for connections in self.connections(&[1, 16, 256, 4096]) {
                let measure = RelayMeasure::Throughput { connections };
                let kinds = self.kinds().into_iter().filter(|kind| kind.holds(connections));
                settings.extend(kinds.map(|kind| (kind, measure)));
            }
        }
        if self.echo {
            for connections in self.connections(&[1, 16, 256, 4096]) {
                let measure = RelayMeasure::Echo { connections };
                settings.extend(self.kinds().into_iter().map(|kind| (kind, measure)));
            }
        }
        if self.datagrams {
            for clients in self.connections(&[1, 16]) {
                let relays = |kind: &RelayKind| kind.relays_datagrams();
                let kinds = self.kinds().into_iter().filter(relays);
                settings.extend(kinds.map(|kind| (kind, RelayMeasure::Datagrams { clients })));
            }
        }
        let mut ends_tls = |measure| {
            let kinds = self.kinds().into_iter().filter(|kind| kind.speaks_tls());
            settings.extend(kinds.map(|kind| (kind, measure)));
        };
        if self.tls {
            for connections in self.connections(&[1, 16]) {
                ends_tls(RelayMeasure::Tls { connections });
            }
        }
        if self.tls_echo {
            for connections in self.connections(&[1, 256]) {
                ends_tls(RelayMeasure::TlsEcho { connections });
            }
        }
        if self.raw {
            for connections in self.connections(&[1, 16]) {
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
                RelayMeasure::Throughput { connections } => (THROUGHPUT, connections),
                RelayMeasure::Echo { connections } => (ECHO, connections),
                RelayMeasure::TlsEcho { connections } => (TLS_ECHO, connections),
                RelayMeasure::Datagrams { clients } => (DATAGRAMS, clients),
                RelayMeasure::Tls { connections } => (TLS, connections),
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
        let links = measure.links().map(links::RelayLinks::make).transpose()?;
        let topology = RelayTopology::choose(links.as_ref(), measure.is_apart())
            .map_err(BenchError::io("relay", "finding a free port"))?;
        let target = if kind == RelayKind::Direct { topology.sink } else { topology.relay };
        let relay = peers::start(kind, measure, &topology)?;
        let role = LoadRole {
            measure,
            sink: topology.sink,
            target,
            core: topology.core,
            relay_core: topology.relay_core,
            relay: relay.process(),
            certificate: relay.certificate(),
            namespaces: topology.ends.clone(),
            budget: self.budget,
            samples: SAMPLES,
        };
        Ok(match Child::start(&role)?.result(TIMEOUT + self.budget)? {
            LoadResult::Carried { gb_per_s, relay_s_per_gb } => {
                let turn = Repetition::default().figure(GB_PER_S, gb_per_s);
                match relay_s_per_gb {
                    Some(cost) => turn.figure(RELAY_S_PER_GB, cost),
                    None => turn,
                }
            }
            LoadResult::Times { nanoseconds } => {
                Repetition::default().samples(REACTION, nanoseconds.into_iter().collect())
            }
            LoadResult::Echoed { per_s, relay_us, nanoseconds } => {
                let samples = nanoseconds.into_iter().collect();
                let turn = Repetition::default().samples(REACTION, samples).figure(PER_S, per_s);
                match relay_us {
                    Some(cost) => turn.figure(RELAY_US, cost),
                    None => turn,
                }
            }
            LoadResult::Encrypted {
                gb_per_s,
                relay_s_per_gb,
                handshakes_per_s,
                relay_handshake_us,
            } => Repetition::default()
                .figure(GB_PER_S, gb_per_s)
                .figure(RELAY_S_PER_GB, relay_s_per_gb)
                .figure(HANDSHAKES_PER_S, handshakes_per_s)
                .figure(HANDSHAKE_US, relay_handshake_us),
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
