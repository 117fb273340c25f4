//! The configuration of nodes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use vigie_detect::{Clock, Instant, Reactivity, clock::monotonic_now};

use super::algorithm::HEAD_BYTES;
use super::error::MessagesError;
use super::packet::PAYLOAD_BYTES_MAX;
use super::packet::{Greeting, Role};
use super::port::PortConfig;
use crate::cost::Bandwidth;

/// The real clock.
#[derive(Clone, Copy, Debug)]
struct Monotonic;

impl Clock for Monotonic {
    fn now(&self) -> Instant {
        monotonic_now()
    }
}

/// The configuration of a node: source, forwarder or sink. Connected nodes must have the same `packet_bytes`.
#[derive(Clone)]
#[non_exhaustive]
#[must_use = "a node takes it"]
pub struct NodeConfig {
    packet_bytes: u32,
    packets: u32,
    message_bytes_max: u32,
    window: u32,
    peers_max: usize,
    pace: Option<Bandwidth>,
    pub(super) ends_with_sources: bool,
    pub(super) timeout: Duration,
    pub(super) reactivity: Reactivity,
    pub(super) clock: Arc<dyn Clock>,
}

impl NodeConfig {
    /// Returns the defaults.
    pub fn new() -> Self {
        Self {
            packet_bytes: 2048,
            packets: 128,
            message_bytes_max: 1 << 20,
            window: 1,
            peers_max: 16,
            pace: None,
            ends_with_sources: false,
            timeout: Duration::from_secs(10),
            reactivity: Reactivity::LowCpu,
            clock: Arc::new(Monotonic),
        }
    }

    vigie_detect::setters! {
        /// Sets sz, the bytes of a message per packet. 64 to 60 000; default 2048, as in the paper.
        packet_bytes: u32,

        /// Sets how many packets of each peer fit into the node's interface. 4 to 512; default 128. For
        /// store-and-forward on the interface, half of them must hold the longest message.
        packets: u32,

        /// Sets the longest message that the node accepts, in bytes, at most 1 GiB. Default 1 MiB.
        message_bytes_max: u32,

        /// Sets how many messages a source may have in flight to one destination. 1 to 65 536; default 1: the node then
        /// has one message at a time, as in the paper's model.
        window: u32,

        /// Sets the maximum number of connections of a node. 1 to 64; default 16.
        peers_max: usize,

        /// Slows down the outgoing links of this node: a packet is handed to the provider when its last byte would have
        /// left a link of this bandwidth. Default: unpaced.
        pace: Option<Bandwidth>,

        /// Makes a forwarder end when its last source has gone. Default: it waits for others.
        ends_with_sources: bool,

        /// Sets how long a call waits without progress before it fails, counting only time in which the process ran: a
        /// stop counts as one second. Default 10 s.
        timeout: Duration,

        /// Sets how much processor time the node may spend to react earlier, by polling before it sleeps. Default
        /// [`LowCpu`](Reactivity::LowCpu): it sleeps at once. [`LowLatency`](Reactivity::LowLatency) is for nodes with
        /// a core of their own: the paper's network processor never sleeps.
        reactivity: Reactivity,
    }

    /// Sets the clock, for simulations. Default: the real one.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Returns the window.
    pub(super) const fn window_messages(&self) -> u32 {
        self.window
    }

    /// Returns the longest message that fits into half of the packets.
    pub(super) fn half_bytes(&self) -> u32 {
        self.message_bytes_max.min((self.packets / 2).saturating_mul(self.packet_bytes))
    }

    pub(super) const fn longest(&self) -> u32 {
        self.message_bytes_max
    }

    /// Checks all settings, and returns what a port needs.
    pub(super) fn port(
        &self,
        role: Role,
        accepts: &'static [Role],
        message_bytes_max: u32,
    ) -> Result<PortConfig, MessagesError> {
        let peers = u64::try_from(self.peers_max).unwrap_or(u64::MAX);
        let head = u64::try_from(HEAD_BYTES).unwrap_or(u64::MAX);
        let limits = [
            ("packet_bytes", u64::from(self.packet_bytes), head, u64::from(PAYLOAD_BYTES_MAX)),
            ("packets", u64::from(self.packets), 4, 512),
            ("message_bytes_max", u64::from(self.message_bytes_max), 0, 1 << 30),
            ("window", u64::from(self.window), 1, 1 << 16),
            ("peers_max", peers, 1, 64),
        ];
        for (what, value, least, most) in limits {
            if !(least..=most).contains(&value) {
                return Err(MessagesError::Limit { what, value, least, most });
            }
        }

        let greeting = Greeting {
            role,
            payload_bytes: self.packet_bytes,
            packets: self.packets,
            message_bytes_max,
        };

        Ok(PortConfig {
            greeting,
            accepts,
            peers_max: self.peers_max,
            send_packets: self.packets,
            pace: self.pace,
        })
    }
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for NodeConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeConfig")
            .field("packet_bytes", &self.packet_bytes)
            .field("packets", &self.packets)
            .field("message_bytes_max", &self.message_bytes_max)
            .field("window", &self.window)
            .field("pace", &self.pace)
            .field("reactivity", &self.reactivity)
            .finish_non_exhaustive()
    }
}
