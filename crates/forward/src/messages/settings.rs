//! What the nodes can be told.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use vigie_detect::{Clock, Instant, clock::monotonic_now};

use super::error::MessagesError;
use super::idle::Idle;
use super::packet::PAYLOAD_BYTES_MAX;
use super::packet::{Greeting, Role};
use super::port::PortConfig;
use super::work::HEAD_BYTES;
use crate::cost::Bandwidth;

/// The real clock.
#[derive(Clone, Copy, Debug)]
struct Monotonic;

impl Clock for Monotonic {
    fn now(&self) -> Instant {
        monotonic_now()
    }
}

/// What a node is like: source, forwarder or sink. Nodes that speak to each other must have the same `packet_bytes`.
#[derive(Clone)]
#[must_use = "a node takes it"]
pub struct Settings {
    packet_bytes: u32,
    packets: u32,
    message_bytes_max: u32,
    window: u32,
    peers_max: usize,
    pace: Option<Bandwidth>,
    pub(super) ends_with_sources: bool,
    pub(super) patience: Duration,
    pub(super) idle: Idle,
    pub(super) clock: Arc<dyn Clock>,
}

impl Settings {
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
            patience: Duration::from_secs(10),
            idle: Idle::Sleep,
            clock: Arc::new(Monotonic),
        }
    }

    /// Sets sz, the bytes of a message in one packet. 64 to 60 000; default 2048, as in the paper.
    pub const fn packet_bytes(mut self, bytes: u32) -> Self {
        self.packet_bytes = bytes;
        self
    }

    /// Sets how many packets of each peer fit into the node's interface. 4 to 512; default 128. By the interface,
    /// store-and-forward, half of them must hold the longest message.
    pub const fn packets(mut self, count: u32) -> Self {
        self.packets = count;
        self
    }

    /// Sets the longest message that the node takes, in bytes, at most 1 GiB. Default 1 MiB.
    pub const fn message_bytes_max(mut self, bytes: u32) -> Self {
        self.message_bytes_max = bytes;
        self
    }

    /// Sets how many messages a source may have on their way to one destination. 1 to 65 536; default 1: with it the
    /// node has one message at a time, as in the paper's model.
    pub const fn window(mut self, messages: u32) -> Self {
        self.window = messages;
        self
    }

    /// Sets how many connections a node has at most. 1 to 64; default 16.
    pub const fn peers_max(mut self, count: usize) -> Self {
        self.peers_max = count;
        self
    }

    /// Makes the links that leave this node slower: a packet is handed to the provider when its last byte would have
    /// left a link of this bandwidth. Default: as fast as they are.
    pub const fn pace(mut self, bandwidth: Option<Bandwidth>) -> Self {
        self.pace = bandwidth;
        self
    }

    /// Makes a forwarder end when the last of its sources has gone. Default: it waits for others.
    pub const fn ends_with_sources(mut self, ends: bool) -> Self {
        self.ends_with_sources = ends;
        self
    }

    /// Sets after how long a call that gets nowhere gives up, in time in which the process ran: a stop counts for a second.
    /// Default 10 s.
    pub const fn patience(mut self, time: Duration) -> Self {
        self.patience = time;
        self
    }

    /// Sets what the node does when there is nothing to do. Default: sleep.
    pub const fn idle(mut self, idle: Idle) -> Self {
        self.idle = idle;
        self
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

    /// Checks everything, and makes what a port needs.
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

impl Default for Settings {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("packet_bytes", &self.packet_bytes)
            .field("packets", &self.packets)
            .field("message_bytes_max", &self.message_bytes_max)
            .field("window", &self.window)
            .field("pace", &self.pace)
            .field("idle", &self.idle)
            .finish_non_exhaustive()
    }
}
