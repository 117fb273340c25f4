//! Pipelines: packets are offered, pass through stages, and wait at their outgoing ports.
//!
//! ```
//! use vigie_detect::Instant;
//! use vigie_forward::packet::{Packet, Port};
//! use vigie_forward::pipeline::Pipeline;
//! use vigie_forward::stages::{Checksum, Rewrite};
//! use vigie_via::link::MacAddress;
//!
//! let mut pipeline = Pipeline::builder()
//!     .stage(Checksum::verify())
//!     .stage(Rewrite::new().destination_mac(MacAddress([2, 0, 0, 0, 0, 7])).send(Port(1)))
//!     .build()?;
//! let now = Instant::from_nanos(0);
//! let frame = [[0; 12].as_slice(), &[0x88, 0xb5], b"hello"].concat();
//! pipeline.offer(Packet::new(Port(0), &frame)).expect("room");
//! pipeline.run(now);
//! let sent = pipeline.take(Port(1)).expect("a packet");
//! assert_eq!(sent.bytes()[..6], [2, 0, 0, 0, 0, 7]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! ```text
//!  offer ──▶ input buffer ──▶ stage ──▶ stage ──▶ … ──▶ output buffer of each port ──▶ take
//!              bounded          │ Drop(reason)              bounded
//!                               ▼                             full: `run` waits, or the packet is dropped
//!                            counters
//! ```
//! Nothing here waits, reads a clock or does I/O: a [`host`](crate::host) or a [`PipelineSimulation`] provides packets
//! and time. Every accepted packet is in a buffer, is held by a stage, was taken out, or was counted as dropped with its [`DropReason`]. A
//! router [reports](PipelineBuilder::icmp_errors) drops to senders; these answers are packets of its own.
//!
//! # Messages of several packets
//! A packet with a [`Part`](crate::packet::Part) belongs to a message. In [`SwitchingMode::StoreAndForward`] its packets wait
//! for the last one, and leave together or not at all. In [`SwitchingMode::CutThrough`], which all stages must allow
//! [fast-forward, §5], the verdict about the first packet holds for the whole message, and each packet leaves as it
//! comes.

pub mod conformance;
mod costs;
mod messages;
mod output;
mod sequence;
mod simulation;

#[cfg(test)]
mod tests;

use std::{collections::VecDeque, fmt, num::NonZeroU32, sync::Arc};

use vigie_detect::{Clock, Instant};

use self::{costs::Costs, messages::OpenMessages, output::OutputQueues, sequence::Stages};
pub use self::{
    output::OnFull,
    simulation::{PipelineSimulation, PipelineSimulationReport},
};
pub use crate::{
    drop_reason::DropReason,
    error::PipelineError,
    stages::{
        stage::{BuiltinStage, Offload, Stage},
        verdict::Verdict,
    },
};
use crate::{
    icmp::IcmpErrorSender,
    model::{StageModel, SwitchingMode},
    packet::{Packet, Port},
    tables::TrafficCounters,
};

/// The settings of a [`Pipeline`].
#[must_use = "`build` makes the pipeline"]
pub struct PipelineBuilder {
    stages: Vec<Box<dyn Stage>>,
    default_port: Option<Port>,
    mode: SwitchingMode,
    input_packets: usize,
    output_packets: usize,
    messages: usize,
    message_packets: usize,
    batch: usize,
    on_full: OnFull,
    counters: TrafficCounters,
    clock: Option<(Arc<dyn Clock>, NonZeroU32)>,
    icmp_errors: Option<IcmpErrorSender>,
}

impl PipelineBuilder {
    /// Appends a stage.
    pub fn stage(mut self, stage: impl Stage + 'static) -> Self {
        self.stages.push(Box::new(stage));
        self
    }

    /// Appends a stage that was chosen at run time.
    pub fn boxed(mut self, stage: Box<dyn Stage>) -> Self {
        self.stages.push(stage);
        self
    }

    vigie_detect::setters! {
        /// Sets the port of packets for which no stage names one. Default: they are dropped ([`DropReason::NoPort`]).
        default_port: Port => Some,

        /// Sets how messages of several packets are forwarded. Default: [`SwitchingMode::StoreAndForward`].
        mode: SwitchingMode,

        /// Sets the maximum number of packets that wait before the stages. Default: 256.
        input_packets: usize,

        /// Sets the maximum number of packets that wait at each port. Default: 256.
        output_packets: usize,

        /// Sets the maximum number of unfinished messages of several packets; beyond that the oldest is dropped.
        /// Default: 64.
        messages: usize,

        /// Sets the maximum number of packets of a message. Default: 256.
        message_packets: usize,

        /// Sets the maximum number of packets that one [`run`](Pipeline::run) processes. Default: 64.
        batch: usize,

        /// Sets what happens when a buffer is full. Default: [`OnFull::Wait`].
        on_full: OnFull,
    }

    /// Sets the counters to use. Default: new ones.
    pub fn counters(mut self, counters: TrafficCounters) -> Self {
        self.counters = counters;
        self
    }

    /// Measures the costs of the stages, reading a clock around each stage for one in `every` packets. Default: not
    /// measured.
    ///
    /// # Cost
    /// Two readings of the clock per stage and measured packet.
    pub fn measure(mut self, clock: Arc<dyn Clock>, every: NonZeroU32) -> Self {
        self.clock = Some((clock, every));
        self
    }

    /// Tells senders by ICMP why their packets are dropped. Answers leave by the ingress port and are treated like
    /// copies: they never hold anything up, and are dropped if there is no room. Default: no answers.
    ///
    /// Packets of multi-packet messages are not answered.
    pub fn icmp_errors(mut self, icmp_errors: IcmpErrorSender) -> Self {
        self.icmp_errors = Some(icmp_errors);
        self
    }

    /// Builds the pipeline.
    ///
    /// # Errors
    /// [`PipelineError`].
    pub fn build(self) -> Result<Pipeline, PipelineError> {
        for (name, value) in [
            ("input_packets", self.input_packets),
            ("output_packets", self.output_packets),
            ("messages", self.messages),
            ("message_packets", self.message_packets),
            ("batch", self.batch),
        ] {
            if value == 0 {
                return Err(PipelineError::InvalidSetting { name, value });
            }
        }
        let models: Vec<StageModel> = self.stages.iter().map(|stage| stage.model()).collect();
        if self.mode == SwitchingMode::CutThrough
            && let Some(stage) = models.iter().find(|model| !model.allows_cut_through())
        {
            return Err(PipelineError::NeedsWhole { stage: stage.name().to_owned() });
        }
        let icmp_errors = self.icmp_errors.map(|icmp_errors| (icmp_errors, self.counters.clone()));
        let costs = self.clock.map(|(clock, every)| Costs::new(clock, every, models.len()));
        Ok(Pipeline {
            stages: Stages {
                stages: self.stages,
                default_port: self.default_port,
                costs,
                icmp_errors,
            },
            mode: self.mode,
            input: VecDeque::new(),
            input_packets: self.input_packets,
            outputs: OutputQueues::new(self.output_packets, self.on_full),
            messages: OpenMessages::new(self.messages, self.message_packets, &models),
            batch: self.batch,
            on_full: self.on_full,
            counters: self.counters,
        })
    }
}

impl fmt::Debug for PipelineBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipelineBuilder")
            .field("stages", &self.stages.len())
            .finish_non_exhaustive()
    }
}

/// A sequence of stages, with buffers before and after them.
pub struct Pipeline {
    stages: Stages,
    mode: SwitchingMode,
    input: VecDeque<Packet>,
    input_packets: usize,
    outputs: OutputQueues,
    messages: OpenMessages,
    batch: usize,
    on_full: OnFull,
    counters: TrafficCounters,
}

impl Pipeline {
    /// Starts the settings of a pipeline.
    pub fn builder() -> PipelineBuilder {
        PipelineBuilder {
            stages: Vec::new(),
            default_port: None,
            mode: SwitchingMode::StoreAndForward,
            input_packets: 256,
            output_packets: 256,
            messages: 64,
            message_packets: 256,
            batch: 64,
            on_full: OnFull::Wait,
            counters: TrafficCounters::default(),
            clock: None,
            icmp_errors: None,
        }
    }

    /// Returns the stages as the planner sees them, with their measured costs if there are any
    /// ([`PipelineBuilder::measure`]).
    #[must_use]
    pub fn model(&self) -> Vec<StageModel> {
        let costs = self.stages.costs.as_ref();
        let models = self.stages.stages.iter().enumerate().map(|(number, stage)| {
            let model = stage.model();
            match costs.and_then(|costs| costs.of(number)) {
                Some(cost) => model.on_host(cost),
                None => model,
            }
        });
        models.collect()
    }

    /// Returns the stages' descriptions for another processor, in order.
    #[must_use]
    pub fn offloads(&self) -> Vec<Offload<'_>> {
        self.stages.stages.iter().map(|stage| stage.offload()).collect()
    }

    /// Returns its counters.
    #[must_use]
    pub const fn counters(&self) -> &TrafficCounters {
        &self.counters
    }

    /// Returns what happens when a buffer is full.
    #[must_use]
    pub const fn on_full(&self) -> OnFull {
        self.on_full
    }

    /// Passes one packet through the stages at once, bypassing all buffers: for a host that has a packet and room to
    /// send it. `copy` gets copies, [answers](PipelineBuilder::icmp_errors), and all fragments but the last. `None` if a
    /// stage [holds](Verdict::Hold) the packet. Drops are not counted.
    ///
    /// # Errors
    /// The reason for the drop.
    #[inline]
    pub fn decide(
        &mut self,
        packet: &mut Packet,
        now: Instant,
        copy: &mut dyn FnMut(Port, &Packet),
    ) -> Result<Option<Port>, DropReason> {
        self.stages.decide(packet, now, copy)
    }

    /// Passes the next packet that a stage has held through the stages behind; `None` if none is to go on now. As
    /// [`decide`](Self::decide) otherwise.
    #[inline]
    pub fn release(
        &mut self,
        now: Instant,
        copy: &mut dyn FnMut(Port, &Packet),
    ) -> Option<(Packet, Result<Option<Port>, DropReason>)> {
        self.stages.release(now, copy)
    }

    /// Returns when to [`release`](Self::release) or [`run`](Self::run) at the latest, if no packet comes; `None` if
    /// none is held.
    #[must_use]
    pub fn next_release(&self, now: Instant) -> Option<Instant> {
        self.stages.stages.iter().filter_map(|stage| stage.next_release(now)).min()
    }

    /// Takes a packet into the buffer before the stages. If that is full and the pipeline drops, the packet is dropped
    /// and counted.
    ///
    /// # Errors
    /// Returns the packet if the buffer is full and the pipeline waits.
    pub fn offer(&mut self, packet: Packet) -> Result<(), Packet> {
        let bytes = u64::try_from(packet.len()).unwrap_or(u64::MAX);
        if self.input.len() >= self.input_packets {
            if self.on_full == OnFull::Wait {
                return Err(packet);
            }
            self.counters.count_received(1, bytes);
            self.counters.count_dropped(DropReason::BufferFull, 1);
            return Ok(());
        }
        self.counters.count_received(1, bytes);
        self.input.push_back(packet);
        Ok(())
    }

    /// Processes at most a batch of the waiting packets. If the pipeline waits, stops when the next packet has no room
    /// after the stages. Returns how many packets left the buffer before the stages.
    pub fn run(&mut self, now: Instant) -> usize {
        let mut worked = 0;
        while worked < self.batch {
            if !self.outputs.settle(&self.counters) {
                break;
            }
            let Some(packet) = self.input.pop_front() else { break };
            worked += 1;
            match packet.part() {
                None => self.run_one(packet, now),
                Some(_) if self.mode == SwitchingMode::CutThrough => self.messages.cut_through(
                    packet,
                    now,
                    &mut self.stages,
                    &mut self.outputs,
                    &self.counters,
                ),
                Some(_) => self.messages.store(
                    packet,
                    now,
                    &mut self.stages,
                    &mut self.outputs,
                    &self.counters,
                ),
            }
        }
        self.run_released(now);
        self.outputs.settle(&self.counters);
        worked
    }

    /// Passes on what stages have held, while there is room.
    fn run_released(&mut self, now: Instant) {
        while self.outputs.settle(&self.counters) {
            let Self { stages, outputs, counters, .. } = self;
            let copy = &mut |port, packet: &Packet| outputs.copy(port, packet);
            let Some((packet, decided)) = stages.release(now, copy) else { break };
            match decided {
                Ok(Some(port)) => outputs.push(port, packet),
                Ok(None) => {}
                Err(reason) => counters.count_dropped(reason, 1),
            }
        }
    }

    fn run_one(&mut self, mut packet: Packet, now: Instant) {
        let Self { stages, outputs, counters, .. } = self;
        match stages.decide(&mut packet, now, &mut |port, packet| outputs.copy(port, packet)) {
            Ok(Some(port)) => outputs.push(port, packet),
            Ok(None) => {}
            Err(reason) => counters.count_dropped(reason, 1),
        }
    }

    /// Takes the oldest packet waiting at a port.
    pub fn take(&mut self, port: Port) -> Option<Packet> {
        let packet = self.outputs.take(port)?;
        self.counters.count_sent(1, u64::try_from(packet.len()).unwrap_or(u64::MAX));
        Some(packet)
    }

    /// Returns how many packets wait in all buffers, in stages that hold them, and in incomplete messages.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let held: usize = self.stages.stages.iter().map(|stage| stage.held_packets()).sum();
        self.input.len() + held + self.outputs.len() + self.messages.len()
    }

    /// Returns whether there are packets that can leave without the arrival of others: all but those of incomplete
    /// messages.
    #[must_use]
    pub fn has_departures(&self) -> bool {
        !self.input.is_empty() || self.outputs.len() > 0
    }

    /// Returns whether the buffer before the stages is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.input.len() >= self.input_packets
    }
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline")
            .field("stages", &self.stages.stages.len())
            .field("waiting", &self.waiting())
            .finish_non_exhaustive()
    }
}
