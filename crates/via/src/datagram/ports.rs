//! The ports of a device, their buffers, and the datagrams on their way to and from them.

use std::collections::{BTreeMap, VecDeque};

use super::{DatagramCounters, NodeAddress, PortCounters, Received};

/// The most datagrams that one poll takes in.
pub(super) const POLL_BATCH: usize = 64;

/// A datagram that has arrived, before its port is looked up.
pub(super) struct IncomingDatagram {
    pub(super) from: NodeAddress,
    pub(super) from_port: u8,
    pub(super) to_port: u8,
    pub(super) is_multicast: bool,
    pub(super) length: usize,
}

/// One port's buffers and the datagrams in them.
#[derive(Debug, Default)]
pub(super) struct PortState {
    pub(super) posted: VecDeque<Vec<u8>>,
    pub(super) arrived: VecDeque<Received>,
    pub(super) counters: PortCounters,
}

/// The ports of a device, and what they share.
#[derive(Debug, Default)]
pub(super) struct Ports {
    pub(super) states: BTreeMap<u8, PortState>,
    /// Holds the buffers of a poll; empty in between.
    pub(super) batch: Vec<Vec<u8>>,
    pub(super) counters: DatagramCounters,
}

impl Ports {
    pub(super) fn state(&mut self, number: u8) -> Option<&mut PortState> {
        self.states.get_mut(&number)
    }

    /// Delivers a datagram, whose payload `read` copies, into the buffer that was posted first
    /// [eth-barrier, §2.3].
    #[inline]
    pub(super) fn deliver(
        &mut self,
        incoming: &IncomingDatagram,
        read: impl FnOnce(&mut [u8]) -> usize,
    ) {
        let Some(port) = self.states.get_mut(&incoming.to_port) else {
            self.counters.no_port += 1;
            return;
        };
        let Some(mut buffer) = port.posted.pop_front() else {
            port.counters.no_buffer += 1;
            return;
        };
        let Some(place) = buffer.get_mut(..incoming.length) else {
            port.counters.too_small += 1;
            port.posted.push_front(buffer);
            return;
        };
        if read(place) != incoming.length {
            self.counters.malformed += 1;
            port.posted.push_front(buffer);
            return;
        }
        port.arrive(incoming, buffer);
    }
}

impl PortState {
    pub(super) fn arrive(&mut self, incoming: &IncomingDatagram, buffer: Vec<u8>) {
        self.counters.received += 1;
        self.arrived.push_back(Received {
            buffer,
            length: incoming.length,
            from: incoming.from,
            from_port: incoming.from_port,
            is_multicast: incoming.is_multicast,
        });
    }

    pub(super) const fn count_too_small(&mut self) {
        self.counters.too_small += 1;
    }

    pub(super) const fn count_no_buffer(&mut self) {
        self.counters.no_buffer += 1;
    }
}

/// Between which ports a datagram goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct DatagramRoute {
    pub(super) from_port: u8,
    pub(super) to: NodeAddress,
    pub(super) to_port: u8,
}
