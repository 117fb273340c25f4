//! A simulated UDP socket.

use std::{collections::VecDeque, io, net::SocketAddr};

use rustix::io::Errno;

/// The longest datagram over IPv4 [RFC 768].
pub(super) const DATAGRAM_MAX: usize = 65_507;

/// The number of bytes that a socket queues: Linux's default of `net.core.rmem_default`, without its overhead. Data beyond it is
/// lost.
pub(super) const QUEUE_MAX: usize = 212_992;

#[derive(Clone, Debug)]
pub(super) struct UdpPacket {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) bytes: Vec<u8>,
}

/// The datagrams that a UDP socket has received.
#[derive(Debug, Default)]
pub(super) struct Datagrams {
    pub(super) peer: Option<SocketAddr>,
    queue: VecDeque<UdpPacket>,
    queued_bytes: usize,
    error: Option<Errno>,
}

impl Datagrams {
    /// Queues a datagram; returns whether there was room.
    pub(super) fn arrive(&mut self, packet: UdpPacket) -> bool {
        let is_kept = self.queued_bytes + packet.bytes.len() <= QUEUE_MAX;
        if is_kept {
            self.queued_bytes += packet.bytes.len();
            self.queue.push_back(packet);
        }
        is_kept
    }

    /// Nothing receives at the peer.
    pub(super) fn refuse(&mut self) {
        self.error = Some(Errno::CONNREFUSED);
    }

    pub(super) fn take_error(&mut self) -> Option<Errno> {
        self.error.take()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the first datagram, and takes it unless the caller only peeks.
    pub(super) fn receive(
        &mut self,
        peeks: bool,
        copy: impl FnOnce(&[u8]) -> usize,
    ) -> io::Result<(usize, SocketAddr)> {
        if let Some(error) = self.error.take() {
            return Err(error.into());
        }
        let packet = self.queue.front().ok_or(Errno::AGAIN)?;
        let received = (copy(&packet.bytes), packet.from);
        if !peeks {
            self.queued_bytes -= packet.bytes.len();
            self.queue.pop_front();
        }
        Ok(received)
    }
}
