//! Live host paths: frames through a forwarder between two veth pairs.
//!
//! *Question*: how many frames of 64 bytes a second does each path forward, and what does it add to the time of one?
//! *Prediction*: a veth runs everything on the sender's core, so the forwarder pays for sending alone: AF_XDP by one call
//! for a batch of 16 or 32, each frame made a packet of the kernel's, about 2 µs; AF_PACKET somewhat more.
//! *Method*: one network namespace; the generator on one core, over AF_PACKET's ring past the queue; the forwarder, a
//! process of its own, on another one. Rate: for some seconds, by the counters of the last interface. Latency: one frame
//! at a time from the same thread that waits for it, beside the same without forwarder and without the second pair. All
//! in turns, medians over them. *Unit*: kilopackets per second; µs.

mod forwarder;
mod keys;
mod load;
mod peer;
mod placement;
mod tables;

use std::cell::Cell;
use std::time::Duration;

pub(crate) use self::forwarder::{ForwarderPlan, play as forward};
use self::forwarder::{FrameTransport, HostWait};
use self::keys::{
    ADDED_P50_US, ADDED_P99_US, DELIVERED_KPPS, LATENCY, LOST, OFFERED_KPPS, ONE_WAY_P50_US, RATE,
};
use self::load::LiveMeasure;
pub(crate) use self::load::{LoadPlan, LoadResult, play as load};
use self::peer::Peer;
use self::placement::veth_namespace;
use crate::error::{BenchError, Failure};
use crate::messages::rank_context::cores;
use crate::process::Child;
use crate::report::{Case, REACTION, Repetition, Row, Subject, Turn};
use crate::statistics::{Samples, microseconds};

/// How long a child may be silent.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum System {
    Direct,
    Host(FrameTransport, HostWait),
    Peer(Peer),
}

const SYSTEMS: [System; 9] = [
    System::Direct,
    System::Host(FrameTransport::Xdp, HostWait::Spin),
    System::Peer(Peer::TestpmdXdp),
    System::Host(FrameTransport::Packet, HostWait::Spin),
    System::Peer(Peer::TestpmdPacket),
    System::Host(FrameTransport::Xdp, HostWait::BusyPoll),
    System::Host(FrameTransport::Packet, HostWait::BusyPoll),
    System::Host(FrameTransport::Xdp, HostWait::Sleep),
    System::Host(FrameTransport::Packet, HostWait::Sleep),
];

impl System {
    const fn subject(self) -> Subject {
        let (name, label) = match self {
            Self::Direct => ("direct", "no forwarder"),
            Self::Host(FrameTransport::Xdp, HostWait::Spin) => ("host-xdp", "host, AF_XDP, spin"),
            Self::Host(FrameTransport::Xdp, HostWait::BusyPoll) => {
                ("host-xdp-busy", "host, AF_XDP, busy-poll")
            }
            Self::Host(FrameTransport::Xdp, HostWait::Sleep) => {
                ("host-xdp-sleep", "host, AF_XDP, sleep")
            }
            Self::Host(FrameTransport::Packet, HostWait::Spin) => {
                ("host-packet", "host, AF_PACKET, spin")
            }
            Self::Host(FrameTransport::Packet, HostWait::BusyPoll) => {
                ("host-packet-busy", "host, AF_PACKET, busy-poll")
            }
            Self::Host(FrameTransport::Packet, HostWait::Sleep) => {
                ("host-packet-sleep", "host, AF_PACKET, sleep")
            }
            Self::Peer(Peer::TestpmdXdp) => ("testpmd-xdp", "DPDK testpmd, af_xdp"),
            Self::Peer(Peer::TestpmdPacket) => ("testpmd-packet", "DPDK testpmd, af_packet"),
        };
        Subject::Carrier { name, label }
    }
}

/// Time of a rate.
const RATE_TIME: Duration = Duration::from_secs(1);

/// Frames of a latency, each sent when the one before has arrived.
const FRAMES: u32 = 20_000;

/// The measurements. The direct way is always measured, since what others add is compared with it.
#[derive(Clone, Debug)]
pub(crate) struct LivePlan {
    /// These paths only, by their names in results; all if it is empty.
    only: Vec<String>,
    /// How often each path is measured, in turns.
    rounds: u32,
    /// p50 and p99 of the direct way in this turn, in µs.
    direct: Cell<Option<[f64; 2]>>,
}

impl LivePlan {
    pub(super) const fn new(only: Vec<String>, rounds: u32) -> Self {
        Self { only, rounds, direct: Cell::new(None) }
    }

    fn systems(&self) -> Vec<System> {
        let is_wanted = |system: &System| {
            *system == System::Direct
                || self.only.is_empty()
                || self.only.iter().any(|name| name == system.subject().name())
        };
        SYSTEMS.into_iter().filter(is_wanted).collect()
    }
}

impl Case for LivePlan {
    type Setting = (System, LiveMeasure);

    fn rounds(&self) -> u32 {
        self.rounds
    }

    fn rows(&self) -> Vec<(Self::Setting, Row)> {
        let latency = (LATENCY, LiveMeasure::Latency { frames: FRAMES });
        let rate = (RATE, LiveMeasure::Rate { time: RATE_TIME });
        let rows = |system: System| {
            [rate, latency].map(|(case, measure)| {
                let row = Row::new(system.subject(), case).parameter("bytes", load::FRAME_BYTES);
                ((system, measure), row)
            })
        };
        self.systems().into_iter().flat_map(rows).collect()
    }

    fn measure(
        &self,
        &(system, measure): &Self::Setting,
        turn: &Turn<'_>,
    ) -> Result<Repetition, BenchError> {
        turn.shows(system.subject().label());
        let wires = veth_namespace()?;
        let cores = cores();
        let (first, second) = (cores.first().copied().unwrap_or(0), cores.last().copied());
        let second = second.unwrap_or(first);
        let _running = match system {
            System::Direct => None,
            System::Host(carries, waits) => {
                let plan = ForwarderPlan { namespace: wires.path(), core: second, carries, waits };
                Some(RunningForwarder::Ours(Child::start_computing(&plan)?))
            }
            System::Peer(peer) => {
                Some(RunningForwarder::Theirs(peer.start(&wires, [first, second])?))
            }
        };
        let is_direct = system == System::Direct;
        let plan = LoadPlan { namespace: wires.path(), core: first, measure, is_direct };
        let found: LoadResult = Child::start(&plan)?.result(TIMEOUT)?;
        match measure {
            LiveMeasure::Rate { .. } => {
                let kpps = |count: u64| count as f64 * 1e6 / found.nanoseconds.max(1) as f64;
                let repetition = Repetition::default().figure(DELIVERED_KPPS, kpps(found.arrived));
                Ok(repetition.figure(OFFERED_KPPS, kpps(found.sent)))
            }
            LiveMeasure::Latency { .. } => self.latency(is_direct, found),
        }
    }

    /// What fails for one system says nothing about the others.
    fn is_of_the_row(&self, _setting: &Self::Setting, _error: &BenchError) -> bool {
        true
    }

    fn tables(&self, rows: &[Row]) -> String {
        tables::live(rows)
    }
}

impl LivePlan {
    /// Compares the times of a turn with those of the direct way, which comes first in it.
    fn latency(&self, is_direct: bool, found: LoadResult) -> Result<Repetition, BenchError> {
        let samples: Samples = found.times_ns.into_iter().collect();
        let silent = || Failure::runtime("no frame came through: is it forwarding?");
        let summary = samples.summary().ok_or_else(silent);
        let summary =
            summary.map_err(|failure| BenchError::Failed { role: "forwarder", failure })?;
        let times = [summary.p50, summary.p99.unwrap_or(summary.max)].map(microseconds);
        let lost = (found.sent - found.arrived) as f64;
        let repetition = Repetition::default()
            .samples(REACTION, samples)
            .figure(ONE_WAY_P50_US, times[0])
            .figure(LOST, lost);
        if is_direct {
            self.direct.set(Some(times));
            return Ok(repetition);
        }
        let Some(direct) = self.direct.get() else { return Ok(repetition) };
        Ok(repetition
            .figure(ADDED_P50_US, times[0] - direct[0])
            .figure(ADDED_P99_US, times[1] - direct[1]))
    }
}

/// The running forwarder, which ends when it is dropped.
enum RunningForwarder {
    Ours(#[expect(dead_code, reason = "it is ended by its drop")] Child),
    Theirs(#[expect(dead_code, reason = "it is ended by its drop")] peer::Process),
}
