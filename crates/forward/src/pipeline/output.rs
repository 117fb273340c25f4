//! The buffers behind the stages, one for each port.

use std::collections::VecDeque;

use super::{OnFull, reason::Reason};
use crate::{
    packet::{Packet, Port},
    tables::Counters,
};

#[derive(Debug)]
struct Output {
    port: Port,
    packets: VecDeque<Packet>,
}

/// What has left the stages.
#[derive(Debug)]
pub(super) struct Outputs {
    /// Few, and found by looking at each.
    ports: Vec<Output>,
    /// Packets, copies among them, that were decided about and are not at their port yet: at most those of
    /// one step of the stages.
    decided: VecDeque<(Port, Packet, bool)>,
    packets_max: usize,
    on_full: OnFull,
}

impl Outputs {
    pub(super) const fn new(packets_max: usize, on_full: OnFull) -> Self {
        Self { ports: Vec::new(), decided: VecDeque::new(), packets_max, on_full }
    }

    pub(super) const fn on_full(&self) -> OnFull {
        self.on_full
    }

    pub(super) fn len(&self) -> usize {
        self.decided.len() + self.ports.iter().map(|output| output.packets.len()).sum::<usize>()
    }

    /// Returns whether so many packets have room at a port.
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

    /// Brings packets to their ports. Returns whether all are there.
    pub(super) fn settle(&mut self, counters: &Counters) -> bool {
        while let Some((port, _, is_copy)) = self.decided.front() {
            let (port, is_copy) = (*port, *is_copy);
            let has_room = self.has_room(port, 1);
            // A copy never holds up what it was copied from.
            let may_drop = is_copy || self.on_full == OnFull::Drop;
            if !has_room && !may_drop {
                return false;
            }
            let Some((_, packet, _)) = self.decided.pop_front() else { break };
            if has_room {
                self.output(port).packets.push_back(packet);
            } else {
                counters.dropped(Reason::BufferFull, 1);
            }
        }
        true
    }

    fn output(&mut self, port: Port) -> &mut Output {
        let at = self.ports.iter().position(|output| output.port == port).unwrap_or_else(|| {
            self.ports.push(Output { port, packets: VecDeque::new() });
            self.ports.len() - 1
        });
        &mut self.ports[at]
    }

    pub(super) fn take(&mut self, port: Port) -> Option<Packet> {
        self.ports.iter_mut().find(|output| output.port == port)?.packets.pop_front()
    }
}
