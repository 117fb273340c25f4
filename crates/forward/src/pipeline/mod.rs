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
mod reason;
mod simulation;
mod stage;

#[cfg(test)]
mod tests;

use std::{collections::VecDeque, fmt, num::NonZeroU32, sync::Arc};

use thiserror::Error;
use vigie_detect::{Clock, Instant};

use self::{costs::Costs, messages::OpenMessages, output::OutputQueues};
pub use self::{
    reason::DropReason,
    simulation::{PipelineSimulation, PipelineSimulationReport},
    stage::{BuiltinStage, Offload, Stage, Verdict},
};
use crate::{
    icmp::IcmpErrorSender,
    model::{StageModel, SwitchingMode},
    packet::{Packet, Port},
    tables::TrafficCounters,
};

/// The treatment of a packet for which a buffer has no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "it waits, or it does not")]
pub enum OnFull {
    /// It waits, and all behind it: back-pressure that reaches the caller of `offer`.
    #[default]
    Wait,
    /// It is dropped ([`DropReason::BufferFull`]); others pass.
    Drop,
}

/// The reason why a pipeline cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// No packet fits into the bucket of a meter.
    #[error("a burst of {bytes} bytes passes no packet: give at least the MTU plus 14")]
    Burst {
        /// The burst given, in bytes.
        bytes: u64,
    },
    /// A stage needs whole messages.
    #[error(
        "stage {stage:?} must see a whole message before its start may leave: use store-and-forward, or \
         leave the stage out"
    )]
    NeedsWhole {
        /// The stage.
        stage: String,
    },
    /// A setting out of range.
    #[error("{name} is {value}, and must be at least 1")]
    InvalidSetting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: usize,
    },
}

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

/// The stages in order, and the port of packets for which none names one.
struct Stages {
    stages: Vec<Box<dyn Stage>>,
    default_port: Option<Port>,
    costs: Option<Costs>,
    /// The sender of ICMP errors, and the counters for suppressed ones.
    icmp_errors: Option<(IcmpErrorSender, TrafficCounters)>,
}

/// The destination of a packet as far as the stages have decided: its port, and the longest fragment if it is to be cut.
type Destination = Option<(Port, Option<usize>)>;

impl Stages {
    /// Passes a packet through all stages. `copy` gets copies, fragments but the last, and the ICMP error if the packet
    /// is dropped. `None` if a stage holds it.
    #[inline]
    fn decide(
        &mut self,
        packet: &mut Packet,
        now: Instant,
        copy: &mut dyn FnMut(Port, &Packet),
    ) -> Result<Option<Port>, DropReason> {
        let start = (0, self.default_port.map(|port| (port, None)));
        if self.icmp_errors.is_none() || packet.part().is_some() {
            return self.walk(start, packet, now, copy);
        }
        if let Some((icmp_errors, _)) = &mut self.icmp_errors {
            icmp_errors.keep(packet);
        }
        let decided = self.walk(start, packet, now, copy);
        // Without waiting, it is not known yet whether the neighbour answers.
        if decided != Err(DropReason::NoNeighbour) {
            self.tell(packet, decided, now, copy);
        }
        decided
    }

    /// Sends the ICMP error about a packet that was kept or recalled, if it is dropped; remembers it, if it is held.
    #[inline]
    fn tell(
        &mut self,
        packet: &mut Packet,
        decided: Result<Option<Port>, DropReason>,
        now: Instant,
        copy: &mut dyn FnMut(Port, &Packet),
    ) {
        let Some((icmp_errors, counters)) = &mut self.icmp_errors else { return };
        match decided {
            Ok(Some(_)) => {}
            Ok(None) => icmp_errors.hold(),
            Err(reason) => {
                if let Some(answer) = icmp_errors.error_reply(packet, reason, now, counters) {
                    copy(answer.ingress(), &answer);
                }
            }
        }
    }

    /// Passes the next packet that a stage has held through the stages behind.
    #[inline]
    fn release(
        &mut self,
        now: Instant,
        copy: &mut dyn FnMut(Port, &Packet),
    ) -> Option<(Packet, Result<Option<Port>, DropReason>)> {
        let mut stages = self.stages.iter_mut().enumerate();
        let (at, (mut packet, verdict)) =
            stages.find_map(|(at, stage)| Some((at, stage.release(now)?)))?;
        let mut destination = self.default_port.map(|port| (port, None));
        if let Some((icmp_errors, _)) = &mut self.icmp_errors {
            icmp_errors.recall(&packet);
        }
        let decided = match apply(verdict, &packet, &mut destination, copy) {
            Some(decided) => decided,
            None => self.walk((at + 1, destination), &mut packet, now, copy),
        };
        self.tell(&mut packet, decided, now, copy);
        Some((packet, decided))
    }

    /// Passes a packet through the stages from one on.
    #[inline]
    fn walk(
        &mut self,
        (from, mut destination): (usize, Destination),
        packet: &mut Packet,
        now: Instant,
        copy: &mut dyn FnMut(Port, &Packet),
    ) -> Result<Option<Port>, DropReason> {
        let is_measured = self.costs.as_mut().is_some_and(Costs::is_due);
        for (number, stage) in self.stages.iter_mut().enumerate().skip(from) {
            let begin = self.costs.as_ref().filter(|_| is_measured).map(Costs::now);
            let verdict = stage.process(packet, now);
            if let (Some(costs), Some(begin)) = (&mut self.costs, begin) {
                costs.took(number, packet.len(), begin);
            }
            if let Some(decided) = apply(verdict, packet, &mut destination, copy) {
                return decided;
            }
        }
        match destination {
            Some((port, None)) => Ok(Some(port)),
            Some((port, Some(mtu))) => fragment(packet, (port, mtu), copy),
            None => Err(DropReason::NoPort),
        }
    }
}

/// Applies a verdict. Returns the decision, if it is the last one.
#[inline]
fn apply(
    verdict: Verdict,
    packet: &Packet,
    destination: &mut Destination,
    copy: &mut dyn FnMut(Port, &Packet),
) -> Option<Result<Option<Port>, DropReason>> {
    match verdict {
        Verdict::Pass => {}
        Verdict::SetEgress(to) => *destination = Some((to, None)),
        Verdict::Fragment(to, mtu) => *destination = Some((to, Some(mtu))),
        Verdict::Copy(to) => copy(to, packet),
        Verdict::Hold => return Some(Ok(None)),
        Verdict::Drop(reason) => return Some(Err(reason)),
    }
    None
}

/// Sends all fragments of a packet but the last one, which it becomes.
#[cold]
fn fragment(
    packet: &mut Packet,
    (port, mtu): (Port, usize),
    copy: &mut dyn FnMut(Port, &Packet),
) -> Result<Option<Port>, DropReason> {
    let fragments = packet.fragment(mtu).map_err(|_| DropReason::Malformed)?;
    let mut fragments = fragments.ok_or(DropReason::TooLong)?;
    *packet = fragments.pop().ok_or(DropReason::TooLong)?;
    fragments.iter().for_each(|fragment| copy(port, fragment));
    Ok(Some(port))
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
