//! A pipeline in virtual time, with loss and stalls from one seed.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use fastrand::Rng;
use vigie_detect::Instant;

use super::Pipeline;
use crate::packet::{Packet, Port};

/// The environment of a pipeline in a simulated run: the sender, loss on the way, and ports that stall.
///
/// Everything follows from the seed: runs of equal pipelines are equal.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "`run` simulates it"]
pub struct PipelineSimulation {
    seed: u64,
    packets: u64,
    arrival_interval: Duration,
    loss_per_mille: u32,
    ports: Vec<Port>,
    service_time: Duration,
    stall_per_mille: u32,
    stall: Duration,
}

/// The result of a [`PipelineSimulation`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PipelineSimulationReport {
    /// Packets lost before they reached the pipeline.
    pub lost: u64,
    /// Packets accepted by the pipeline.
    pub taken: u64,
    /// The number of times that the sender had to wait because the pipeline was full.
    pub waits: u64,
    /// Packets that left by the ports, in the order in which the ports were given.
    pub delivered: Vec<u64>,
    /// The maximum number of packets in the pipeline.
    pub most_waiting: usize,
    /// Packets in the pipeline at the end: those of incomplete messages.
    pub left: usize,
    /// The time at which the last packet left.
    pub elapsed: Duration,
    /// A hash that differs if anything in the run does.
    pub trace: u64,
}

/// A run ends after this many departure slots in a row that stay empty.
const IDLE_MAX: u32 = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SimulationEvent {
    Arrival,
    Departure(usize),
}

impl PipelineSimulation {
    /// Creates a run of `packets`, one every microsecond, without loss and stalls, whose ports send a packet every
    /// microsecond.
    pub fn new(seed: u64, packets: u64, ports: &[Port]) -> Self {
        let microsecond = Duration::from_micros(1);
        Self {
            seed,
            packets,
            arrival_interval: microsecond,
            loss_per_mille: 0,
            ports: ports.to_vec(),
            service_time: microsecond,
            stall_per_mille: 0,
            stall: Duration::ZERO,
        }
    }

    vigie_detect::setters! {
        /// Sets the time between two packets.
        arrival_interval: Duration,

        /// Sets how many packets in a thousand are lost before they arrive.
        loss_per_mille: u32,

        /// Sets the time that a port needs for a packet.
        service_time: Duration,
    }

    /// Sets after how many packets in a thousand a port stalls, and the longest stall.
    pub const fn stalls(mut self, per_mille: u32, time: Duration) -> Self {
        self.stall_per_mille = per_mille;
        self.stall = time;
        self
    }

    /// Runs the pipeline on packets from `make`, which gets their number and randomness, until all have left. Packets
    /// to ports that are not in the run stay.
    pub fn run(
        &self,
        pipeline: &mut Pipeline,
        mut make: impl FnMut(u64, &mut Rng) -> Packet,
    ) -> PipelineSimulationReport {
        let mut rng = Rng::with_seed(self.seed);
        let mut report = PipelineSimulationReport {
            lost: 0,
            taken: 0,
            waits: 0,
            delivered: vec![0; self.ports.len()],
            most_waiting: 0,
            left: 0,
            elapsed: Duration::ZERO,
            trace: 0,
        };

        let mut events = BinaryHeap::from([Reverse((0, SimulationEvent::Arrival))]);
        for number in 0..self.ports.len() {
            events.push(Reverse((0, SimulationEvent::Departure(number))));
        }

        let mut sent = 0;
        let mut kept: Option<Packet> = None;

        // Successive departure slots with neither arrival nor departure: the remaining packets are for ports outside.
        let mut idle = 0_u32;
        while let Some(Reverse((time, event))) = events.pop() {
            let now = Instant::from_nanos(time);
            match event {
                SimulationEvent::Arrival => {
                    let packet = kept.take().or_else(|| {
                        let packet = (sent < self.packets).then(|| make(sent, &mut rng));
                        sent += u64::from(packet.is_some());
                        packet.filter(|_| {
                            let is_lost = rng.u32(0..1000) < self.loss_per_mille;
                            report.lost += u64::from(is_lost);
                            !is_lost
                        })
                    });
                    match packet.map(|packet| pipeline.offer(packet)) {
                        None => {}
                        Some(Ok(())) => {
                            report.taken += 1;
                            idle = 0;
                        }
                        Some(Err(packet)) => {
                            report.waits += 1;
                            kept = Some(packet);
                        }
                    }
                    if (sent < self.packets || kept.is_some()) && idle <= IDLE_MAX {
                        events.push(Reverse((
                            time + nanos(self.arrival_interval),
                            SimulationEvent::Arrival,
                        )));
                    }
                }
                SimulationEvent::Departure(number) => {
                    let before = report.elapsed;
                    let next = self.depart(pipeline, number, time, &mut rng, &mut report);
                    idle = if report.elapsed == before { idle + 1 } else { 0 };
                    let is_over = sent >= self.packets && kept.is_none();
                    let is_stuck = idle > IDLE_MAX;
                    if !is_stuck && (!is_over || is_busy(pipeline, now)) {
                        events.push(Reverse((next, event)));
                    }
                }
            }
            pipeline.run(now);
            report.most_waiting = report.most_waiting.max(pipeline.waiting());
        }

        report.left = pipeline.waiting();
        report
    }

    /// Takes a packet from a port. Returns when the port can take the next one.
    fn depart(
        &self,
        pipeline: &mut Pipeline,
        number: usize,
        time: u64,
        rng: &mut Rng,
        report: &mut PipelineSimulationReport,
    ) -> u64 {
        let mut next = time + nanos(self.service_time).max(1);
        let Some(packet) = self.ports.get(number).and_then(|port| pipeline.take(*port)) else {
            return next;
        };
        if let Some(count) = report.delivered.get_mut(number) {
            *count += 1;
        }
        report.elapsed = Duration::from_nanos(time);
        for byte in packet.bytes() {
            // Fowler–Noll–Vo hash: any change of a byte or a time changes it.
            report.trace = (report.trace ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        report.trace = report.trace.rotate_left(5) ^ time;
        if rng.u32(0..1000) < self.stall_per_mille {
            next += rng.u64(0..=nanos(self.stall));
        }
        next
    }
}

/// Returns whether a packet can still reach a port.
fn is_busy(pipeline: &mut Pipeline, now: Instant) -> bool {
    pipeline.run(now);
    pipeline.has_departures()
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
