//! Pipelines: packets come in, stages work on them, and they wait at the ports by which they leave.
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
//! Nothing here waits, reads a clock or does I/O: a [`host`](crate::host) or a
//! [`Rehearsal`] brings packets and time. Every packet that was taken in is in a buffer, was taken out, or was counted
//! as dropped with its [`Reason`]. A router [tells](PipelineBuilder::answers) senders of what it drops; those answers are packets
//! of its own.
//!
//! # Messages of several packets
//! A packet with a [`Part`](crate::packet::Part) belongs to a message. In [`Mode::StoreAndForward`] its packets wait for the last
//! one, and go out together or not at all. In [`Mode::CutThrough`], which all stages must allow [fast-forward, §5], what
//! the stages say of the first packet holds for the message, and each packet leaves as it comes.

pub mod conformance;
mod costs;
mod messages;
mod output;
mod reason;
mod rehearsal;
mod stage;

#[cfg(test)]
mod tests;

use std::{collections::VecDeque, fmt, num::NonZeroU32, sync::Arc};

use thiserror::Error;
use vigie_detect::{Clock, Instant};

use self::{costs::Costs, messages::Messages, output::Outputs};
pub use self::{
    reason::Reason,
    rehearsal::{Rehearsal, RehearsalReport},
    stage::{Offload, Stage, Stock, Verdict},
};
use crate::{
    icmp::Answers,
    model::{Mode, StageModel},
    packet::{Packet, Port},
    tables::Counters,
};

/// What happens to a packet for which a buffer has no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "it waits, or it does not")]
pub enum OnFull {
    /// It waits, and all behind it: back-pressure up to whoever offers packets.
    #[default]
    Wait,
    /// It is dropped ([`Reason::BufferFull`]); others pass.
    Drop,
}

/// A pipeline that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// A stage needs whole messages.
    #[error(
        "stage {stage:?} must see a whole message before its beginning may leave: use store-and-forward, or \
         leave the stage out"
    )]
    NeedsWhole {
        /// The stage.
        stage: String,
    },
    /// A setting out of its range.
    #[error("{name} is {value}, and must be at least 1")]
    Setting {
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
    otherwise: Option<Port>,
    mode: Mode,
    input_packets: usize,
    output_packets: usize,
    messages: usize,
    message_packets: usize,
    batch: usize,
    on_full: OnFull,
    counters: Counters,
    clock: Option<(Arc<dyn Clock>, NonZeroU32)>,
    answers: Option<Answers>,
}

impl PipelineBuilder {
    /// Adds a stage behind the others.
    pub fn stage(mut self, stage: impl Stage + 'static) -> Self {
        self.stages.push(Box::new(stage));
        self
    }

    /// Adds a stage that was chosen at run time.
    pub fn boxed(mut self, stage: Box<dyn Stage>) -> Self {
        self.stages.push(stage);
        self
    }

    /// Sets by which port packets leave of which no stage says it. Default: they are dropped
    /// ([`Reason::NoPort`]).
    pub const fn otherwise(mut self, port: Port) -> Self {
        self.otherwise = Some(port);
        self
    }

    /// Sets what happens to messages of several packets. Default: [`Mode::StoreAndForward`].
    pub const fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets how many packets wait before the stages, at most. Default: 256.
    pub const fn input_packets(mut self, count: usize) -> Self {
        self.input_packets = count;
        self
    }

    /// Sets how many packets wait at each port, at most. Default: 256.
    pub const fn output_packets(mut self, count: usize) -> Self {
        self.output_packets = count;
        self
    }

    /// Sets how many messages of several packets are in work at the same time; the oldest is dropped for one more. Default: 64.
    pub const fn messages(mut self, count: usize) -> Self {
        self.messages = count;
        self
    }

    /// Sets how many packets a message has at most. Default: 256.
    pub const fn message_packets(mut self, count: usize) -> Self {
        self.message_packets = count;
        self
    }

    /// Sets how many packets [`run`](Pipeline::run) works on at most. Default: 64.
    pub const fn batch(mut self, count: usize) -> Self {
        self.batch = count;
        self
    }

    /// Sets what happens where a buffer is full. Default: [`OnFull::Wait`].
    pub const fn on_full(mut self, on_full: OnFull) -> Self {
        self.on_full = on_full;
        self
    }

    /// Sets where is counted. Default: counters of its own.
    pub fn counters(mut self, counters: Counters) -> Self {
        self.counters = counters;
        self
    }

    /// Measures what the stages cost, by a clock that is read around each stage for one packet of so many.
    /// Default: not at all.
    ///
    /// # Cost
    /// Two readings of the clock for each stage and measured packet.
    pub fn measure(mut self, clock: Arc<dyn Clock>, every: NonZeroU32) -> Self {
        self.clock = Some((clock, every));
        self
    }

    /// Tells senders by ICMP why their packets are dropped. Answers leave by the port of the arrival, like copies: they hold nothing
    /// up, and are dropped where there is no room. Default: nobody is told.
    ///
    /// Packets of messages of several packets are not answered.
    pub fn answers(mut self, answers: Answers) -> Self {
        self.answers = Some(answers);
        self
    }

    /// Creates the pipeline.
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
                return Err(PipelineError::Setting { name, value });
            }
        }
        let models: Vec<StageModel> = self.stages.iter().map(|stage| stage.model()).collect();
        if self.mode == Mode::CutThrough
            && let Some(stage) = models.iter().find(|model| !model.allows_cut_through())
        {
            return Err(PipelineError::NeedsWhole { stage: stage.name().to_owned() });
        }
        let answers = self.answers.map(|answers| (answers, self.counters.clone()));
        let costs = self.clock.map(|(clock, every)| Costs::new(clock, every, models.len()));
        Ok(Pipeline {
            stages: Stages { stages: self.stages, otherwise: self.otherwise, costs, answers },
            mode: self.mode,
            input: VecDeque::new(),
            input_packets: self.input_packets,
            outputs: Outputs::new(self.output_packets, self.on_full),
            messages: Messages::new(self.messages, self.message_packets, &models),
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

/// The stages in a row, and where packets go of which none says it.
struct Stages {
    stages: Vec<Box<dyn Stage>>,
    otherwise: Option<Port>,
    costs: Option<Costs>,
    /// What tells senders of drops, and where that is counted.
    answers: Option<(Answers, Counters)>,
}

impl Stages {
    /// Leads a packet through all stages. `copy` takes copies, and what tells its sender that it is dropped.
    #[inline]
    fn decide(
        &mut self,
        packet: &mut Packet,
        now: Instant,
        copy: &mut dyn FnMut(Port, &Packet),
    ) -> Result<Port, Reason> {
        if self.answers.is_none() || packet.part().is_some() {
            return self.walk(packet, now, copy);
        }
        if let Some((answers, _)) = &mut self.answers {
            answers.keep(packet);
        }
        let fate = self.walk(packet, now, copy);
        if let (Err(reason), Some((answers, counters))) = (fate, &mut self.answers)
            && let Some(answer) = answers.answer(packet, reason, now, counters)
        {
            copy(answer.arrival(), &answer);
        }
        fate
    }

    /// Leads a packet through all stages.
    #[inline]
    fn walk(
        &mut self,
        packet: &mut Packet,
        now: Instant,
        copy: &mut dyn FnMut(Port, &Packet),
    ) -> Result<Port, Reason> {
        if let Some(costs) = &mut self.costs
            && costs.is_due()
        {
            return self.walk_measured(packet, now, copy);
        }
        let mut port = self.otherwise;
        for stage in &mut self.stages {
            match stage.process(packet, now) {
                Verdict::Pass => {}
                Verdict::Send(to) => port = Some(to),
                Verdict::Copy(to) => copy(to, packet),
                Verdict::Drop(reason) => return Err(reason),
            }
        }
        port.ok_or(Reason::NoPort)
    }

    #[cold]
    fn walk_measured(
        &mut self,
        packet: &mut Packet,
        now: Instant,
        copy: &mut dyn FnMut(Port, &Packet),
    ) -> Result<Port, Reason> {
        let mut port = self.otherwise;
        for (number, stage) in self.stages.iter_mut().enumerate() {
            let begin = self.costs.as_ref().map(Costs::now);
            let verdict = stage.process(packet, now);
            if let (Some(costs), Some(begin)) = (&mut self.costs, begin) {
                costs.took(number, packet.len(), begin);
            }
            match verdict {
                Verdict::Pass => {}
                Verdict::Send(to) => port = Some(to),
                Verdict::Copy(to) => copy(to, packet),
                Verdict::Drop(reason) => return Err(reason),
            }
        }
        port.ok_or(Reason::NoPort)
    }
}

/// Stages in a row, with buffers before and behind them.
pub struct Pipeline {
    stages: Stages,
    mode: Mode,
    input: VecDeque<Packet>,
    input_packets: usize,
    outputs: Outputs,
    messages: Messages,
    batch: usize,
    on_full: OnFull,
    counters: Counters,
}

impl Pipeline {
    /// Begins with the settings of a pipeline.
    pub fn builder() -> PipelineBuilder {
        PipelineBuilder {
            stages: Vec::new(),
            otherwise: None,
            mode: Mode::StoreAndForward,
            input_packets: 256,
            output_packets: 256,
            messages: 64,
            message_packets: 256,
            batch: 64,
            on_full: OnFull::Wait,
            counters: Counters::default(),
            clock: None,
            answers: None,
        }
    }

    /// Returns what the planner must know of the stages, with their measured costs where there are any
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

    /// Returns by which port packets leave of which no stage says it.
    #[must_use]
    pub const fn otherwise(&self) -> Option<Port> {
        self.stages.otherwise
    }

    /// Returns its counters.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns what happens where a buffer is full.
    #[must_use]
    pub const fn on_full(&self) -> OnFull {
        self.on_full
    }

    /// Leads one packet through the stages at once, past all buffers: for a host that has packets in hand and
    /// room to send. `copy` takes copies and [answers](PipelineBuilder::answers). What is dropped is not counted.
    ///
    /// # Errors
    /// Why it is dropped.
    #[inline]
    pub fn decide(
        &mut self,
        packet: &mut Packet,
        now: Instant,
        copy: &mut dyn FnMut(Port, &Packet),
    ) -> Result<Port, Reason> {
        self.stages.decide(packet, now, copy)
    }

    /// Takes a packet into the buffer before the stages. If that is full, it is dropped and counted where
    /// the pipeline is to drop.
    ///
    /// # Errors
    /// Gives the packet back if the buffer is full and the pipeline is to wait.
    pub fn offer(&mut self, packet: Packet) -> Result<(), Packet> {
        let bytes = u64::try_from(packet.len()).unwrap_or(u64::MAX);
        if self.input.len() >= self.input_packets {
            if self.on_full == OnFull::Wait {
                return Err(packet);
            }
            self.counters.received(1, bytes);
            self.counters.dropped(Reason::BufferFull, 1);
            return Ok(());
        }
        self.counters.received(1, bytes);
        self.input.push_back(packet);
        Ok(())
    }

    /// Works on at most a batch of the packets that wait. Stops where the next packet has no room behind the
    /// stages, if the pipeline is to wait. Returns how many packets left the buffer before the stages.
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
                Some(_) if self.mode == Mode::CutThrough => self.messages.cut_through(
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
        self.outputs.settle(&self.counters);
        worked
    }

    fn run_one(&mut self, mut packet: Packet, now: Instant) {
        let Self { stages, outputs, counters, .. } = self;
        match stages.decide(&mut packet, now, &mut |port, packet| outputs.copy(port, packet)) {
            Ok(port) => outputs.push(port, packet),
            Err(reason) => counters.dropped(reason, 1),
        }
    }

    /// Takes the oldest packet that waits at a port.
    pub fn take(&mut self, port: Port) -> Option<Packet> {
        let packet = self.outputs.take(port)?;
        self.counters.sent(1, u64::try_from(packet.len()).unwrap_or(u64::MAX));
        Some(packet)
    }

    /// Returns how many packets wait in all buffers, and in messages that are not complete.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.input.len() + self.outputs.len() + self.messages.len()
    }

    /// Returns whether packets wait that leave without others that come: all but those of messages that are not
    /// complete.
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
