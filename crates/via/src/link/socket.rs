//! The back ends behind one type.

use std::{io, os::fd::BorrowedFd};

use super::{
    BackEnd, Frame, Statistics,
    address::MacAddress,
    packet::PacketSocket,
    segments::SegmentParts,
    sys,
    xdp::{Xdp, XdpMode},
};

/// The back end of a link.
#[derive(Debug)]
pub(super) enum LinkSocket {
    Packet(PacketSocket),
    Xdp(Box<Xdp>),
}

impl LinkSocket {
    pub(super) const fn back_end(&self) -> BackEnd {
        match self {
            Self::Packet(packet) if packet.has_rings() => BackEnd::PacketRings,
            Self::Packet(_) => BackEnd::PacketCalls,
            Self::Xdp(_) => BackEnd::Xdp,
        }
    }

    pub(super) const fn xdp_mode(&self) -> Option<XdpMode> {
        match self {
            Self::Packet(_) => None,
            Self::Xdp(xdp) => Some(xdp.mode()),
        }
    }

    pub(super) fn payload_max(&self) -> usize {
        match self {
            Self::Packet(_) => usize::MAX,
            Self::Xdp(_) => Xdp::payload_max(),
        }
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Self::Packet(packet) => packet.descriptor(),
            Self::Xdp(xdp) => xdp.descriptor(),
        }
    }

    #[inline]
    pub(super) fn receive(
        &mut self,
        count: usize,
        take: impl FnMut(&Frame<'_>),
    ) -> io::Result<usize> {
        match self {
            Self::Packet(packet) => packet.receive(count, take),
            Self::Xdp(xdp) => Ok(xdp.receive(count, take)),
        }
    }

    /// Returns whether a frame is there, as far as that is known without a system call.
    pub(super) fn has_frame(&self) -> bool {
        match self {
            Self::Packet(packet) => packet.has_frame(),
            Self::Xdp(xdp) => xdp.has_frame(),
        }
    }

    /// Queues a frame for sending: `false` if there is no room.
    #[inline]
    pub(super) fn send(&mut self, header: &[u8], parts: &[&[u8]]) -> io::Result<bool> {
        match self {
            Self::Packet(packet) => packet.send(header, parts),
            Self::Xdp(xdp) => Ok(xdp.send(header, parts)),
        }
    }

    /// Sends a frame of several segments: `false` if there is no room, `None` if it cannot.
    pub(super) fn send_segments(&self, parts: &SegmentParts<'_>) -> Option<io::Result<bool>> {
        match self {
            Self::Packet(packet) => packet.send_segments(parts),
            Self::Xdp(_) => None,
        }
    }

    pub(super) const fn sends_segments(&self) -> bool {
        match self {
            Self::Packet(packet) => packet.sends_segments(),
            Self::Xdp(_) => false,
        }
    }

    #[inline]
    pub(super) fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Packet(packet) => packet.flush(),
            Self::Xdp(xdp) => xdp.flush(),
        }
    }

    /// Returns whether the kernel has not taken all frames yet.
    pub(super) fn is_kick_due(&self) -> bool {
        match self {
            Self::Packet(packet) => packet.is_kick_due(),
            Self::Xdp(xdp) => xdp.is_kick_due(),
        }
    }

    /// Returns whether frames wait to be sent.
    pub(super) fn is_sending(&mut self) -> bool {
        match self {
            Self::Packet(packet) => packet.is_sending(),
            Self::Xdp(xdp) => xdp.is_sending(),
        }
    }

    /// Returns whether a frame can be queued.
    pub(super) fn has_room(&self) -> bool {
        match self {
            Self::Packet(packet) => packet.has_room(),
            Self::Xdp(xdp) => xdp.has_room(),
        }
    }

    /// Lets the kernel drop frames whose two bytes at `offset` are not `value`. AF_XDP's program does not
    /// change.
    pub(super) fn keep_only(&self, index: u32, (offset, value): (u32, u16)) -> io::Result<()> {
        match self {
            Self::Packet(packet) => sys::drop_all_but(packet.descriptor(), index, (offset, value)),
            Self::Xdp(_) => Ok(()),
        }
    }

    pub(super) fn join(&mut self, index: u32, group: MacAddress) -> io::Result<()> {
        match self {
            Self::Packet(packet) => packet.join(index, group),
            Self::Xdp(xdp) => xdp.join(index, group),
        }
    }

    pub(super) fn statistics(&mut self) -> io::Result<Statistics> {
        match self {
            Self::Packet(packet) => packet.statistics(),
            Self::Xdp(xdp) => xdp.statistics(),
        }
    }
}
