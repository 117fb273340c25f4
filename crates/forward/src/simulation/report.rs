//! What a simulation gives.

use std::time::Duration;

use super::resource::Resource;
use crate::cost::Bandwidth;

/// A whole run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SimulationReport {
    /// Until the last message has left.
    pub elapsed: Duration,
    /// What became of each flow, in their order.
    pub flows: Vec<FlowReport>,
    /// How long each part of the node that was used was busy, in the order of [`Resource`].
    pub resources: Vec<ResourceReport>,
}

/// What became of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowReport {
    /// Messages that went through.
    pub messages: u32,
    /// Bytes of one message.
    pub message_bytes: u64,
    /// When its first message had left.
    pub first_left: Duration,
    /// When its last message had left.
    pub last_left: Duration,
    /// The shortest time from the moment when a message's first packet was to be received until its last
    /// one had been sent.
    pub latency_min: Duration,
    /// The longest.
    pub latency_max: Duration,
}

impl FlowReport {
    /// Returns all bytes over all of the time.
    #[must_use]
    pub fn bandwidth(&self) -> Bandwidth {
        let bytes = self.message_bytes.saturating_mul(u64::from(self.messages));
        Bandwidth::measured(bytes, self.last_left).unwrap_or(Bandwidth::SLOWEST)
    }

    /// Returns the bandwidth between the first message's departure and the last one's: without the time to
    /// fill the pipeline. Of one message, the same as [`bandwidth`](Self::bandwidth).
    #[must_use]
    pub fn steady_bandwidth(&self) -> Bandwidth {
        let bytes = self.message_bytes.saturating_mul(u64::from(self.messages.saturating_sub(1)));
        let steady = Bandwidth::measured(bytes, self.last_left.saturating_sub(self.first_left));
        steady.unwrap_or_else(|_| self.bandwidth())
    }
}

/// How much a part of the node did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResourceReport {
    /// Which part.
    pub resource: Resource,
    /// How long it was busy.
    pub busy: Duration,
}
