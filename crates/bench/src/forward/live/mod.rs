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
use crate::error::BenchError;
use crate::messages::rank_context::cores;
use crate::process::Child;
use crate::report::{Outcome, Plan, Progress, Row, Subject};
use crate::statistics::{Samples, median};

/// How long a child may be silent.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
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
}

/// Everything of one system, over the turns.
#[derive(Default)]
struct Sums {
    delivered: Vec<f64>,
    offered: Vec<f64>,
    added_p50: Vec<f64>,
    added_p99: Vec<f64>,
    one_way_p50: Vec<f64>,
    frames: u64,
    lost: u64,
    failure: Option<String>,
}

impl LivePlan {
    pub(super) const fn new(only: Vec<String>, rounds: u32) -> Self {
        Self { only, rounds }
    }

    fn systems(&self) -> Vec<System> {
        let is_wanted = |system: &System| {
            *system == System::Direct
                || self.only.is_empty()
                || self.only.iter().any(|name| name == system.subject().name())
        };
        SYSTEMS.into_iter().filter(is_wanted).collect()
    }

    /// Measures one system once. Returns p50 and p99 of its one-way times, in µs.
    fn measure(
        &self,
        system: System,
        sums: &mut Sums,
        base: Option<(f64, f64)>,
    ) -> Result<(f64, f64), String> {
        let wires = veth_namespace().map_err(|missing| missing.to_string())?;
        let cores = cores();
        let (first, second) = (cores.first().copied().unwrap_or(0), cores.last().copied());
        let second = second.unwrap_or(first);
        let text = |error: BenchError| error.to_string();
        let _running = match system {
            System::Direct => None,
            System::Host(carries, waits) => {
                let plan = ForwarderPlan { namespace: wires.path(), core: second, carries, waits };
                Some(RunningForwarder::Ours(Child::start_computing(&plan).map_err(text)?))
            }
            System::Peer(peer) => {
                Some(RunningForwarder::Theirs(peer.start(&wires, [first, second])?))
            }
        };
        let found = |measure| {
            let is_direct = system == System::Direct;
            let plan = LoadPlan { namespace: wires.path(), core: first, measure, is_direct };
            let mut child = Child::start(&plan).map_err(text)?;
            child.result(TIMEOUT).map_err(text)
        };
        let latency = found(LiveMeasure::Latency { frames: FRAMES })?;
        let rate = found(LiveMeasure::Rate { time: RATE_TIME })?;
        sums.take(&latency, &rate, base)
    }
}

impl Plan for LivePlan {
    fn cases(&self) -> usize {
        self.systems().len() * self.rounds as usize
    }

    fn run(&self, _seed: u64, progress: &mut Progress) -> Result<Outcome, BenchError> {
        let systems = self.systems();
        let mut sums: Vec<Sums> = systems.iter().map(|_| Sums::default()).collect();
        for _ in 0..self.rounds {
            let mut base = None;
            for (system, sums) in systems.iter().zip(&mut sums) {
                progress.case(system.subject().label());
                if sums.failure.is_none() {
                    match self.measure(*system, sums, base) {
                        Ok(times) if *system == System::Direct => base = Some(times),
                        Ok(_) => {}
                        Err(reason) => sums.failure = Some(reason),
                    }
                }
                progress.case_done();
            }
        }
        let rows = systems.iter().zip(sums).flat_map(|(system, sums)| rows(*system, sums));
        Ok(Outcome { rows: rows.collect(), priority: None })
    }

    fn tables(&self, rows: &[Row]) -> String {
        tables::live(rows)
    }
}

/// The running forwarder, which ends when it is dropped.
enum RunningForwarder {
    Ours(#[expect(dead_code, reason = "it is ended by its drop")] Child),
    Theirs(#[expect(dead_code, reason = "it is ended by its drop")] peer::Process),
}

impl Sums {
    fn take(
        &mut self,
        latency: &LoadResult,
        rate: &LoadResult,
        base: Option<(f64, f64)>,
    ) -> Result<(f64, f64), String> {
        let mut samples = Samples::new();
        latency.times_ns.iter().for_each(|time| samples.push(Duration::from_nanos(*time)));
        let summary = samples.summary().ok_or("no frame came through: is it forwarding?")?;
        let us = |nanos: u64| nanos as f64 / 1e3;
        let (p50, p99) = (us(summary.p50), us(summary.p99.unwrap_or(summary.max)));
        let kpps = |count: u64| count as f64 * 1e6 / rate.nanoseconds.max(1) as f64;
        self.delivered.push(kpps(rate.arrived));
        self.offered.push(kpps(rate.sent));
        self.one_way_p50.push(p50);
        if let Some((base_p50, base_p99)) = base {
            self.added_p50.push(p50 - base_p50);
            self.added_p99.push(p99 - base_p99);
        }
        self.frames += latency.arrived;
        self.lost += latency.sent - latency.arrived;
        Ok((p50, p99))
    }
}

fn rows(system: System, sums: Sums) -> Vec<Row> {
    let [rate, latency] = [RATE, LATENCY].map(|case| {
        let mut row = Row::new(system.subject(), case).parameter("bytes", load::FRAME_BYTES);
        row.failure.clone_from(&sums.failure);
        row
    });
    if sums.failure.is_some() {
        return vec![rate, latency];
    }
    let put = |row: Row, key: &str, figures: &[f64]| match median(figures) {
        Some(figure) => row.with_figure(key, figure),
        None => row,
    };
    let rate = put(rate, DELIVERED_KPPS, &sums.delivered);
    let rate = put(rate, OFFERED_KPPS, &sums.offered).with_figure("samples", sums.delivered.len());
    let latency = put(latency, ONE_WAY_P50_US, &sums.one_way_p50);
    let latency = put(latency, ADDED_P50_US, &sums.added_p50);
    let latency = put(latency, ADDED_P99_US, &sums.added_p99);
    let latency = latency.with_figure(LOST, sums.lost).with_figure("samples", sums.frames);
    vec![rate, latency]
}
