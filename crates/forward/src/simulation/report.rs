//! The results of a simulation.

use std::time::Duration;

use super::resource::Resource;
use crate::cost::Bandwidth;

/// The result of a whole run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SimulationReport {
    /// The time until the last message has left.
    pub elapsed: Duration,
    /// The result of each flow, in order.
    pub flows: Vec<FlowReport>,
    /// The busy time of each resource of the node that was used, in the order of [`Resource`].
    pub resources: Vec<ResourceReport>,
}

/// The result of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowReport {
    /// Messages forwarded.
    pub messages: u32,
    /// Bytes of one message.
    pub message_bytes: u64,
    /// The time at which its first message had left.
    pub first_left: Duration,
    /// The time at which its last message had left.
    pub last_left: Duration,
    /// The shortest time from when a message's first packet was ready to be received until its last one was sent.
    pub latency_min: Duration,
    /// The longest such time.
    pub latency_max: Duration,
}

impl FlowReport {
    /// Returns all bytes divided by the total time.
    #[must_use]
    pub fn bandwidth(&self) -> Bandwidth {
        let bytes = self.message_bytes.saturating_mul(u64::from(self.messages));
        Bandwidth::measured(bytes, self.last_left).unwrap_or(Bandwidth::SLOWEST)
    }

    /// Returns the bandwidth between the departures of the first message and the last: without the time to fill the
    /// pipeline. For one message, the same as [`bandwidth`](Self::bandwidth).
    #[must_use]
    pub fn steady_bandwidth(&self) -> Bandwidth {
        let bytes = self.message_bytes.saturating_mul(u64::from(self.messages.saturating_sub(1)));
        let steady = Bandwidth::measured(bytes, self.last_left.saturating_sub(self.first_left));
        steady.unwrap_or_else(|_| self.bandwidth())
    }
}

/// The use of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResourceReport {
    /// The resource.
    pub resource: Resource,
    /// The time for which it was busy.
    pub busy: Duration,
}
