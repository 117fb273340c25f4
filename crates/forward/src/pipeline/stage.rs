//! [`Stage`]: what happens to a packet between its arrival and its departure.

use std::borrow::Cow;

use vigie_detect::Instant;

use super::reason::Reason;
use crate::{
    model::{Sees, StageModel},
    packet::{Packet, Port},
    stages::{Checksum, Filter, Meter, Mirror, Nat, Rewrite, RouteStage, Ttl},
};

/// What a stage says of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a verdict that is not followed forwards what was to be dropped"]
#[non_exhaustive]
pub enum Verdict {
    /// It goes on to the next stage.
    Pass,
    /// It goes on to the next stage, and leaves by this port unless a later stage names another one.
    Send(Port),
    /// It goes on to the next stage, and a copy of it, as it is now, leaves by this port.
    Copy(Port),
    /// It is dropped, and counted.
    Drop(Reason),
}

/// Where else a stage can run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Offload<'a> {
    /// On the host alone, for this reason.
    HostOnly(Cow<'static, str>),
    /// On the network processor too, which compiles this description.
    Stock(Stock<'a>),
}

impl Offload<'_> {
    /// Says that a stage runs on the host alone, and why.
    pub fn host_only(because: impl Into<Cow<'static, str>>) -> Self {
        Self::HostOnly(because.into())
    }
}

/// A stock stage: its settings and tables are all that it does, so that a compiler for another processor can
/// read them.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Stock<'a> {
    /// Addresses that are replaced.
    Rewrite(&'a Rewrite),
    /// One router less.
    Ttl(&'a Ttl),
    /// Address translation.
    Nat(&'a Nat),
    /// Rules.
    Filter(&'a Filter),
    /// Copies.
    Mirror(&'a Mirror),
    /// Checksums of whole packets.
    Checksum(&'a Checksum),
    /// A rate.
    Meter(&'a Meter),
    /// Routes.
    Route(&'a RouteStage),
}

/// A step of a pipeline: it looks at packets, changes them, drops them, or says where they go.
///
/// # Source
/// [fast-forward, §2]: the algorithm between receiving and sending; here it is a row of stages.
///
/// # Implementing
/// [`process`](Self::process) does the work, and [`model`](Self::model) tells the planner what it must see
/// and what it costs. A stage that decides by a whole message, and changes its beginning, implements
/// [`process_message`](Self::process_message) too. A closure is a stage with [`Closure`](crate::stages::Closure).
///
/// # Contract
/// 1. Neither call blocks, and neither reads a clock: `now` is the time, and never goes back.
/// 2. What the stage does depends on what it was given, on its tables and on the time alone; of any bytes it
///    makes a verdict, and never panics.
/// 3. It sees no more than [`Sees`] says: of a message of several packets, a stage that sees the header is
///    given the first packet alone, and its verdict is the message's. One that sees everything is given every
///    packet, in order.
/// 4. If it only reads ([`Writes::No`](crate::model::Writes::No)), it changes no byte and drops nothing.
/// 5. [`model`](Self::model) and [`offload`](Self::offload) stay the same for life, except for costs.
/// 6. Its memory is bounded.
///
/// # Conformance
/// [`conformance::check`](super::conformance::check) tries the contract on any stage.
pub trait Stage: Send {
    /// Returns what the planner must know.
    fn model(&self) -> StageModel;

    /// Works on one packet.
    fn process(&mut self, packet: &mut Packet, now: Instant) -> Verdict;

    /// Works on a whole message of several packets, in store-and-forward. By default
    /// [`process`](Self::process)es what the stage sees of it: the first packet, or each; the first drop
    /// drops all, and the last port named is where all go.
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

    /// Returns where else it can run. Default: on the host alone.
    fn offload(&self) -> Offload<'_> {
        Offload::host_only("it runs user code")
    }
}
