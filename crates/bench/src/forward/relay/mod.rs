//! Relays beside peers: what a stream gets through, and what a message takes longer.
//!
//! One process holds source and sink, another the relay, over loopback, all on one core: so the whole cost of a byte
//! counts, whoever pays it. Streams: each connection writes blocks of 128 KiB without end, and what the sink has
//! read in the budget is counted. Latency: one message of 64 bytes in flight, echoed by the sink, over one
//! connection or sixteen in turn. Framed relays: messages of 1 MiB, as a stream over loopback, and one at a time over
//! two links of 1 Gb/s between network namespaces (a token bucket, `tc tbf`, on veth pairs), with both cores.

mod keys;
mod kind;
mod links;
mod load;
mod peers;
mod place;
mod serve;
mod tables;

use std::time::Duration;

use self::keys::{CONNECTIONS, FRAMED_LATENCY, FRAMED_STREAM, GB_PER_S, LATENCY, STREAM, of};
use self::kind::{FramedKind, Kind, Measure};
pub(crate) use self::load::{LoadRole, load};
pub use self::peers::{RelayPeer, UnknownRelayPeer};
use self::place::{Place, Unmeasured};
pub(crate) use self::serve::{RelayRole, serve};
pub use self::tables::tables;
use crate::error::BenchError;
use crate::process::{Child, Message};
use crate::report::figure::Figure;
use crate::report::progress::Progress;
use crate::report::{Outcome, Row};
use crate::statistics::{Samples, median};

/// What a run may take beside its budget, in a child.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is measured, and beside whom.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[must_use = "a plan measures nothing before `run`"]
pub struct RelayMeasurement {
    /// Other relays. Those that are not installed are skipped, and say so.
    pub peers: Vec<RelayPeer>,
    /// Whether vigie's engines are measured one by one too.
    pub engines: bool,
    /// Whether streams and latency of raw relays are measured.
    pub raw: bool,
    /// Whether framed relays are measured.
    pub framed: bool,
    /// Numbers of connections.
    pub connections: Vec<u32>,
    /// Time of one stream.
    pub budget: Duration,
    /// How often everything is measured, in turns.
    pub rounds: u32,
    /// Messages of a latency, per round.
    pub samples: u32,
}

impl RelayMeasurement {
    /// Everything, beside `peers`, with 1 and 16 connections.
    pub fn new(peers: Vec<RelayPeer>) -> Self {
        Self {
            peers,
            engines: false,
            raw: true,
            framed: true,
            connections: vec![1, 16],
            budget: Duration::from_millis(700),
            rounds: 3,
            samples: 3_000,
        }
    }

    fn kinds(&self) -> Vec<Kind> {
        let mut kinds = vec![Kind::Direct, Kind::Vigie];
        if self.engines {
            kinds.extend([Kind::VigieCopy, Kind::VigieSplice]);
        }
        kinds.extend(self.peers.iter().copied().map(Kind::Peer));
        kinds
    }

    /// Measures.
    ///
    /// # Errors
    /// [`BenchError`] if a process of ours fails. Peers that cannot be measured are rows that say why.
    pub fn run(&self, progress: &mut Progress) -> Result<Outcome, BenchError> {
        let mut cases = Vec::new();
        if self.raw {
            for &connections in &self.connections {
                for kind in self.kinds() {
                    cases.push(Case::new(kind, Measure::Stream { connections }));
                    cases.push(Case::new(kind, Measure::Latency { connections }));
                }
            }
        }
        if self.framed {
            let modes = [FramedKind::Planned, FramedKind::Stored, FramedKind::Cut];
            cases.extend(modes.map(|mode| Case::new(Kind::Framed(mode), Measure::FramedStream)));
            let kinds = [Kind::Direct].into_iter().chain(modes.map(Kind::Framed));
            cases.extend(kinds.map(|kind| Case::new(kind, Measure::FramedLatency)));
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
        let rows = cases.into_iter().map(Case::row).collect();
        Ok(Outcome { rows, priority: None })
    }
}

#[derive(Debug)]
struct Case {
    kind: Kind,
    measure: Measure,
    /// Gigabytes per second, one of each round.
    speeds: Vec<f64>,
    times: Samples,
    failure: Option<String>,
}

impl Case {
    const fn new(kind: Kind, measure: Measure) -> Self {
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
            Err(Unmeasured::Failed(error)) if matches!(self.kind, Kind::Peer(_)) => {
                self.failure = Some(error.to_string());
            }
            Err(Unmeasured::Failed(error)) => return Err(error),
        }
        Ok(())
    }

    fn once(&self, plan: &RelayMeasurement) -> Result<Message, Unmeasured> {
        let links = match self.measure {
            Measure::FramedLatency => Some(
                links::Links::make().map_err(|missing| Unmeasured::Missing(missing.to_string()))?,
            ),
            _ => None,
        };
        let place = Place::choose(links.as_ref()).map_err(Unmeasured::io("a free port"))?;
        let target = if self.kind == Kind::Direct { place.sink } else { place.relay };
        let _relay = peers::start(self.kind, &place)?;
        let role = LoadRole {
            measure: self.measure,
            sink: place.sink,
            target,
            core: place.core,
            namespaces: place.ends.clone(),
            budget: plan.budget,
            samples: plan.samples,
        };
        let mut load = Child::start(&role)?;
        Ok(load.next(PATIENCE + plan.budget)?)
    }

    fn row(self) -> Row {
        let (case, connections) = match self.measure {
            Measure::Stream { connections } => (STREAM, connections),
            Measure::Latency { connections } => (LATENCY, connections),
            Measure::FramedStream => (FRAMED_STREAM, 1),
            Measure::FramedLatency => (FRAMED_LATENCY, 1),
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

/// vigie's bandwidth by that of the best peer.
pub(crate) fn by_best_peer(rows: &[Row], connections: u64) -> Option<Figure> {
    let vigie = of(rows, "vigie", STREAM, connections)?;
    let best = RelayPeer::ALL
        .iter()
        .filter_map(|peer| of(rows, peer.name(), STREAM, connections)?.figure(GB_PER_S))
        .max_by(f64::total_cmp)?;
    Some(compared(vigie, vigie.figure(GB_PER_S)? / best))
}

/// What vigie adds to the median round trip, by what socat adds.
pub(crate) fn added_by_socat(rows: &[Row]) -> Option<Figure> {
    let p50 = |name| of(rows, name, LATENCY, 1)?.figure("p50_us");
    let direct = p50("direct")?;
    let vigie = of(rows, "vigie", LATENCY, 1)?;
    Some(compared(vigie, (p50("vigie")? - direct) / (p50("socat")? - direct)))
}

/// The median time of a message through the framed relay, by that of a direct one over the same links.
pub(crate) fn framed_by_direct(rows: &[Row]) -> Option<Figure> {
    let p50 = |name| of(rows, name, FRAMED_LATENCY, 1)?.figure("p50_us");
    let framed = of(rows, "framed", FRAMED_LATENCY, 1)?;
    Some(compared(framed, p50("framed")? / p50("direct")?))
}

/// The bandwidth of stored messages, by that of planned ones.
pub(crate) fn stored_by_planned(rows: &[Row]) -> Option<Figure> {
    let speed = |name| of(rows, name, FRAMED_STREAM, 1)?.figure(GB_PER_S);
    let framed = of(rows, "framed", FRAMED_STREAM, 1)?;
    Some(compared(framed, speed("framed-stored")? / speed("framed")?))
}
