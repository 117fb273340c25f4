//! Planned faults, and counts of the faults that occurred.

use std::time::Duration;

/// The behavior of a simulated network. Loss, duplication, reordering and corruption affect only data of
/// unreliable VIs; delays affect everything.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use = "a plan does nothing before a network gets it"]
pub struct FaultPlan {
    pub(super) latency: Duration,
    pub(super) jitter: Duration,
    pub(super) picos_per_byte: u64,
    pub(super) loss: f64,
    pub(super) duplication: f64,
    pub(super) reordering: f64,
    pub(super) reordering_max: Duration,
    pub(super) corruption: f64,
    pub(super) detection: Duration,
}

impl FaultPlan {
    /// Returns a network without faults: 1 µs of latency, no jitter, 10 GB/s, crashes noticed after 1 ms.
    pub const fn reliable() -> Self {
        Self {
            latency: Duration::from_micros(1),
            jitter: Duration::ZERO,
            picos_per_byte: 100,
            loss: 0.0,
            duplication: 0.0,
            reordering: 0.0,
            reordering_max: Duration::from_micros(20),
            corruption: 0.0,
            detection: Duration::from_millis(1),
        }
    }

    /// Returns a network that applies each of the four faults to this share of the transmissions, with
    /// some jitter.
    pub const fn lossy(share: f64) -> Self {
        Self::reliable()
            .jitter(Duration::from_micros(1))
            .loss(share)
            .duplication(share)
            .reordering(share)
            .corruption(share)
    }

    /// Sets the time from one NIC to another. Default 1 µs.
    pub const fn latency(mut self, latency: Duration) -> Self {
        self.latency = latency;
        self
    }

    /// Sets the largest random addition to the latency. Default none.
    pub const fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// Sets how long a NIC's link is busy per byte, in picoseconds. Default 100 (10 GB/s).
    pub const fn picos_per_byte(mut self, picos: u64) -> Self {
        self.picos_per_byte = picos;
        self
    }

    /// Sets the share of transmissions that are lost, from 0 to 1. Default 0.
    pub const fn loss(mut self, share: f64) -> Self {
        self.loss = share;
        self
    }

    /// Sets the share of transmissions that arrive twice. Default 0.
    pub const fn duplication(mut self, share: f64) -> Self {
        self.duplication = share;
        self
    }

    /// Sets the share of transmissions that are held back, so that later ones overtake them. Default 0.
    pub const fn reordering(mut self, share: f64) -> Self {
        self.reordering = share;
        self
    }

    /// Sets for how long a transmission is held back at most. Default 20 µs.
    pub const fn reordering_max(mut self, delay: Duration) -> Self {
        self.reordering_max = delay;
        self
    }

    /// Sets the share of transmissions in which one to three bits are flipped, in the data or in the
    /// immediate data. Default 0.
    pub const fn corruption(mut self, share: f64) -> Self {
        self.corruption = share;
        self
    }

    /// Sets how long peers take to notice that a NIC has crashed. Default 1 ms.
    pub const fn detection(mut self, time: Duration) -> Self {
        self.detection = time;
        self
    }
}

impl Default for FaultPlan {
    fn default() -> Self {
        Self::reliable()
    }
}

/// Counts of what really happened on a simulated network, over its whole life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FaultCounts {
    /// Packets that left a NIC, including acknowledgements and those of connections.
    pub transmissions: u64,
    /// The longest packet of an unreliable VI, in bytes without its header.
    pub unreliable_bytes_max: u64,
    /// Packets of unreliable VIs that never arrived.
    pub lost: u64,
    /// Packets of unreliable VIs that arrived a second time.
    pub duplicated: u64,
    /// Packets of unreliable VIs that arrived after one that was sent later.
    pub reordered: u64,
    /// Packets of unreliable VIs whose data was changed on the way.
    pub corrupted_data: u64,
    /// Packets of unreliable VIs whose immediate data was changed on the way.
    pub corrupted_immediates: u64,
    /// Packets of unreliable VIs that found no receive descriptor.
    pub undescribed: u64,
    /// Packets that arrived after the end of their connection, or at a NIC that had crashed.
    pub stale: u64,
    /// NICs that crashed.
    pub crashes: u64,
    /// The number of times that a NIC froze.
    pub freezes: u64,
    /// Connections that were cut.
    pub cuts: u64,
}
