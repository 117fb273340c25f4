//! The buffers after the stages, one for each port.

use std::collections::VecDeque;

use crate::{
    drop_reason::DropReason,
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

#[derive(Debug)]
struct OutputQueue {
    port: Port,
    packets: VecDeque<Packet>,
}

/// Packets that have left the stages.
#[derive(Debug)]
pub(super) struct OutputQueues {
    /// Few, and searched linearly.
    ports: Vec<OutputQueue>,
    /// Packets, including copies, that have a verdict but are not at their port yet: at most those of one step of the
    /// stages.
    decided: VecDeque<(Port, Packet, bool)>,
    packets_max: usize,
    on_full: OnFull,
}

impl OutputQueues {
    pub(super) const fn new(packets_max: usize, on_full: OnFull) -> Self {
        Self { ports: Vec::new(), decided: VecDeque::new(), packets_max, on_full }
    }

    pub(super) const fn on_full(&self) -> OnFull {
        self.on_full
    }

    pub(super) fn len(&self) -> usize {
        self.decided.len() + self.ports.iter().map(|output| output.packets.len()).sum::<usize>()
    }

    /// Returns whether a port has room for `count` packets.
    pub(super) fn has_room(&self, port: Port, count: usize) -> bool {
        let used = self.ports.iter().find(|output| output.port == port);
        used.map_or(0, |output| output.packets.len()) + count <= self.packets_max
    }

    pub(super) fn push(&mut self, port: Port, packet: Packet) {
        self.decided.push_back((port, packet, false));
    }

    pub(super) fn copy(&mut self, port: Port, packet: &Packet) {
        self.decided.push_back((port, packet.clone(), true));
    }

    /// Moves packets to their ports. Returns whether all are there.
    pub(super) fn settle(&mut self, counters: &TrafficCounters) -> bool {
        while let Some((port, _, is_copy)) = self.decided.front() {
            let (port, is_copy) = (*port, *is_copy);
            let has_room = self.has_room(port, 1);
            // A copy never holds up its original.
            let may_drop = is_copy || self.on_full == OnFull::Drop;
            if !has_room && !may_drop {
                return false;
            }
            let Some((_, packet, _)) = self.decided.pop_front() else { break };
            if has_room {
                self.output(port).packets.push_back(packet);
            } else {
                counters.count_dropped(DropReason::BufferFull, 1);
            }
        }
        true
    }

    fn output(&mut self, port: Port) -> &mut OutputQueue {
        let at = self.ports.iter().position(|output| output.port == port).unwrap_or_else(|| {
            self.ports.push(OutputQueue { port, packets: VecDeque::new() });
            self.ports.len() - 1
        });
        &mut self.ports[at]
    }

    pub(super) fn take(&mut self, port: Port) -> Option<Packet> {
        self.ports.iter_mut().find(|output| output.port == port)?.packets.pop_front()
    }
}
