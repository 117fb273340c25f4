//! [`Stage`]: the processing of a packet between arrival and departure.

use std::borrow::Cow;

use vigie_detect::Instant;

use super::{
    checksum::Checksum, filter::Filter, meter::Meter, mirror::Mirror, nat::Nat, rewrite::Rewrite,
    route::RouteStage, ttl::Ttl, verdict::Verdict,
};
use crate::{
    model::{Sees, StageModel},
    packet::Packet,
};

/// The places besides the host at which a stage can run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Offload<'a> {
    /// Only on the host, for this reason.
    HostOnly(Cow<'static, str>),
    /// On the network processor too, for which this description is compiled.
    Builtin(BuiltinStage<'a>),
}

impl Offload<'_> {
    /// Declares that a stage can only run on the host, and why.
    pub fn host_only(because: impl Into<Cow<'static, str>>) -> Self {
        Self::HostOnly(because.into())
    }
}

/// A stock stage: fully described by its settings and tables, so that it can be compiled for another processor.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum BuiltinStage<'a> {
    /// Replaces addresses.
    Rewrite(&'a Rewrite),
    /// Decrements the TTL.
    Ttl(&'a Ttl),
    /// Translates addresses.
    Nat(&'a Nat),
    /// Applies rules.
    Filter(&'a Filter),
    /// Sends copies.
    Mirror(&'a Mirror),
    /// Verifies or fills checksums.
    Checksum(&'a Checksum),
    /// Limits the rate.
    Meter(&'a Meter),
    /// Looks up routes.
    Route(&'a RouteStage),
}

/// A step of a pipeline: it inspects packets, changes them, drops them, or names their port.
///
/// # Source
/// [fast-forward, §2]: the algorithm between receiving and sending; here a sequence of stages.
///
/// # Implementing
/// [`process`](Self::process) does the work, and [`model`](Self::model) tells the planner what the stage must see and
/// what it costs. A stage that changes the start of a message depending on all of it implements
/// [`process_message`](Self::process_message) too. [`StageFn`](crate::stages::StageFn) makes a stage of a closure.
///
/// # Contract
/// 1. No call blocks or reads a clock: `now` is the time, and never goes back.
/// 2. The result depends only on the arguments, the stage's tables and the time; any bytes get a verdict and never
///    cause a panic.
/// 3. It sees no more than [`Sees`] says: of a message of several packets, a stage that sees the header gets only the
///    first packet, and its verdict holds for the message. One that sees everything gets every packet, in order.
/// 4. If it only reads ([`Writes::No`](crate::model::Writes::No)), it changes no bytes and drops nothing.
/// 5. [`model`](Self::model) and [`offload`](Self::offload) never change, except for costs.
/// 6. Its memory is bounded.
/// 7. It holds no packet that is part of a message, and gives out every one that it holds, in bounded time.
///
/// # Conformance
/// [`conformance::check`](crate::pipeline::conformance::check) tests the contract of any stage.
pub trait Stage: Send {
    /// Returns the planner's view of this stage.
    fn model(&self) -> StageModel;

    /// Processes one packet.
    fn process(&mut self, packet: &mut Packet, now: Instant) -> Verdict;

    /// Processes a complete message of several packets, in store-and-forward. By default calls
    /// [`process`](Self::process) for the packets that the stage sees, the first or all; the first drop drops the
    /// message, and the last port named is the message's.
    fn process_message(&mut self, packets: &mut [Packet], now: Instant) -> Verdict {
        let seen = if self.model().seen() == Sees::Everything { packets.len() } else { 1 };
        let mut all = Verdict::Pass;
        for packet in packets.iter_mut().take(seen) {
            match self.process(packet, now) {
                Verdict::Pass => {}
                Verdict::Drop(reason) => return Verdict::Drop(reason),
                verdict => all = verdict,
            }
        }
        all
    }

    /// Gives out a packet that was [held](Verdict::Hold), with its verdict; the stages behind follow. Default: `None`.
    fn release(&mut self, now: Instant) -> Option<(Packet, Verdict)> {
        let _ = now;
        None
    }

    /// Returns when to ask for [released](Self::release) packets at the latest, if no packet comes. Default: `None`,
    /// nothing is held.
    fn next_release(&self, now: Instant) -> Option<Instant> {
        let _ = now;
        None
    }

    /// Returns the number of packets that it holds. Default: 0.
    fn held_packets(&self) -> usize {
        0
    }

    /// Returns where else it can run. Default: only on the host.
    fn offload(&self) -> Offload<'_> {
        Offload::host_only("it runs user code")
    }
}
