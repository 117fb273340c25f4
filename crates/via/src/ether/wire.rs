//! Packets in frames.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    event::{PollFd, PollFlags, epoll, poll},
    io::Errno,
};
use vigie_detect::Instant;

use super::{
    EtherError,
    front::{EtherPath, FRONT_BYTES, Front, PIECES_MAX},
    neighbours::Neighbours,
    pieces::Pieces,
};
use crate::{
    link::{self, BackEnd, Link, LinkError, MacAddress},
    software_nic::Wire,
};

/// Packets that are sent at once. Each is a frame of its own, so that more would gain nothing.
const PACKETS_MAX: usize = 8;

/// Frames that are looked at in one call: rubbish shall not keep the caller from its work.
const LOOKS: usize = 64;

/// In one of so many looks the neighbours are looked at, which takes a call; in each as long as there is one.
const NEIGHBOURS_EVERY: u32 = 32;

/// The longest packet to a neighbour, in bytes.
const NEIGHBOUR_BYTES: usize = 65_000;

/// What was seen that was no packet for this NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EtherCounters {
    /// Frames that were too short, of another version, to a group, or cut. What the kernel has dropped because
    /// it is for other ports is not counted.
    pub malformed: u64,
    /// Frames for other ports that came nevertheless, as they do with AF_XDP.
    pub foreign: u64,
    /// Packets that departed in pieces since the MTU had shrunk.
    pub in_pieces: u64,
}

/// A link, as a software NIC uses it.
#[derive(Debug)]
pub struct EtherWire {
    link: Link,
    neighbours: Neighbours,
    /// Watches both.
    point: OwnedFd,
    path: EtherPath,
    pieces: Pieces,
    /// The number of the next packet in pieces.
    packet: u8,
    /// How long frames were when the NIC was told.
    told: usize,
    /// Looks since the neighbours were looked at, and whether there was one.
    looks: u32,
    has_company: bool,
    counters: EtherCounters,
}

impl EtherWire {
    pub(super) fn new(link: Link, neighbours: Neighbours) -> Result<Self, EtherError> {
        let failed = EtherError::kernel::<Errno>("watching the interface");
        let point = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(&failed)?;
        for descriptor in [link.descriptor(), neighbours.descriptor()] {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&point, descriptor, data, epoll::EventFlags::IN).map_err(&failed)?;
        }
        let path = EtherPath::new(link.address(), neighbours.port());
        let told = link.payload_max();
        let (pieces, counters) = (Pieces::default(), EtherCounters::default());
        let (packet, looks, has_company) = (0, 0, false);
        Ok(Self {
            link,
            neighbours,
            point,
            path,
            pieces,
            packet,
            told,
            looks,
            has_company,
            counters,
        })
    }

    /// Returns which back end carries the frames.
    #[must_use]
    pub const fn back_end(&self) -> BackEnd {
        self.link.back_end()
    }

    /// Returns whether the interface is up and has a carrier, as of the last look at it.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        self.link.is_up()
    }

    /// Returns whether the interface is gone for good, as of the last look at it.
    #[must_use]
    pub const fn is_removed(&self) -> bool {
        self.link.is_removed()
    }

    /// Returns what was seen that was no packet for this NIC.
    #[must_use]
    pub const fn counters(&self) -> EtherCounters {
        self.counters
    }

    /// The longest packet that fits into a frame.
    fn whole_bytes(&self) -> usize {
        self.link.payload_max().saturating_sub(FRONT_BYTES)
    }

    /// Gives a frame to the link, which sends what it has if there is no room.
    #[inline]
    fn give(&mut self, to: MacAddress, front: Front, bytes: &[u8]) -> Result<(), LinkError> {
        let front = front.bytes();
        match self.link.send(to, &[&front, bytes]) {
            Err(LinkError::Full) => {
                self.link.flush()?;
                self.link.send(to, &[&front, bytes])
            }
            given => given,
        }
    }

    /// Gives a packet to the link that is too long for a frame.
    #[cold]
    fn give_pieces(&mut self, to: EtherPath, packet: &[u8]) -> Result<(), LinkError> {
        let most = self.whole_bytes();
        let too_long = || LinkError::TooLong { length: packet.len(), max: most };
        let count = packet.len().div_ceil(most.max(1));
        let pieces = u8::try_from(count).map_err(|_| too_long())?;
        if count > PIECES_MAX {
            return Err(too_long());
        }
        self.packet = self.packet.wrapping_add(1);
        self.counters.in_pieces += 1;
        let whole = Front::whole(to.port, self.path.port);
        for (piece, bytes) in (0..pieces).zip(packet.chunks(most)) {
            let front = Front { packet: self.packet, piece, pieces, ..whole };
            self.give(to.address, front, bytes)?;
        }
        Ok(())
    }

    fn send_frames(
        &mut self,
        to: EtherPath,
        packets: &[u8],
        packet_bytes: usize,
    ) -> io::Result<()> {
        if !self.link.has_room() && self.link.is_up() {
            self.link.flush().map_err(io_error)?;
            if !self.link.has_room() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
        let front = Front::whole(to.port, self.path.port);
        for packet in packets.chunks(packet_bytes.max(1)) {
            let given = if packet.len() <= self.whole_bytes() {
                self.give(to.address, front, packet)
            } else {
                self.give_pieces(to, packet)
            };
            match given {
                Ok(()) => {}
                // What does not fit is lost, and sent again in time.
                Err(LinkError::Full) => break,
                Err(error) => return Err(io_error(error)),
            }
        }
        self.tell(packet_bytes)
    }

    /// Says once that frames have become shorter than packets.
    fn tell(&mut self, packet_bytes: usize) -> io::Result<()> {
        let most = self.link.payload_max();
        if packet_bytes + FRONT_BYTES > most && most < self.told {
            self.told = most;
            return Err(io::Error::other(LinkError::TooLong { length: packet_bytes, max: most }));
        }
        Ok(())
    }

    fn receive_frame(&mut self, buffer: &mut [u8]) -> io::Result<Option<(usize, EtherPath)>> {
        const BEFORE: usize = link::HEADER_BYTES + FRONT_BYTES;
        let Self { link, pieces, counters, path, .. } = self;
        for _ in 0..LOOKS {
            let mut found = None;
            let received = link.receive(1, |frame| {
                let mut before = [0; BEFORE];
                let is_whole = frame.read(0, &mut before) == BEFORE && !frame.is_cut();
                let parsed = if is_whole { Front::parse(&before) } else { None };
                let Some((front, address)) = parsed else {
                    counters.malformed += 1;
                    return;
                };
                if front.to != path.port {
                    counters.foreign += 1;
                    return;
                }
                let from = EtherPath::new(address, front.from);
                let count = frame.read(BEFORE, buffer);
                if front.pieces == 1 {
                    found = Some((count, from));
                } else if let Some(packet) = pieces.add(from, front, &buffer[..count])
                    && let Some(place) = buffer.get_mut(..packet.len())
                {
                    place.copy_from_slice(&packet);
                    found = Some((packet.len(), from));
                }
            });
            match received {
                Ok(0) => return Ok(None),
                Ok(_) if found.is_some() => return Ok(found),
                Ok(_) => {}
                // It comes again when it is up; that it will not is told by those who are not heard of.
                Err(LinkError::Down | LinkError::Removed) => return Ok(None),
                Err(error) => return Err(io_error(error)),
            }
        }
        Ok(None)
    }

    #[cold]
    fn receive_neighbour(&mut self, buffer: &mut [u8]) -> io::Result<Option<(usize, EtherPath)>> {
        self.looks = 0;
        let found = self.neighbours.receive(buffer)?;
        // Where there was one there may be more.
        self.has_company = found.is_some();
        Ok(found.map(|(count, port)| (count, EtherPath::new(self.path.address, port))))
    }
}

fn io_error(error: LinkError) -> io::Error {
    match error {
        LinkError::Kernel { source, .. } => source,
        error => io::Error::other(error),
    }
}

impl Wire for EtherWire {
    type Path = EtherPath;

    const NAME: &'static str = "ether";

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn path(&self) -> EtherPath {
        self.path
    }

    fn send(&mut self, to: EtherPath, packets: &[u8], packet_bytes: usize) -> io::Result<()> {
        if to.address != self.path.address {
            return self.send_frames(to, packets, packet_bytes);
        }
        for (at, packet) in packets.chunks(packet_bytes.max(1)).enumerate() {
            match self.neighbours.send(to.port, packet) {
                // What does not fit is lost, and sent again in time.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && at > 0 => break,
                sent => sent?,
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.link.flush() {
            // They stay, and depart when it is up.
            Ok(()) | Err(LinkError::Down) => Ok(()),
            Err(error) => Err(io_error(error)),
        }
    }

    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<(usize, EtherPath)>> {
        self.looks += 1;
        if self.looks < NEIGHBOURS_EVERY {
            let found = self.receive_frame(buffer)?;
            if found.is_some() || !self.has_company {
                return Ok(found);
            }
        }
        match self.receive_neighbour(buffer)? {
            Some(found) => Ok(Some(found)),
            None => self.receive_frame(buffer),
        }
    }

    fn packets_max(&self) -> usize {
        PACKETS_MAX
    }

    fn packet_bytes(&mut self, to: EtherPath) -> usize {
        if to.address == self.path.address {
            return NEIGHBOUR_BYTES;
        }
        // A failure leaves what was known before.
        let _ = self.link.look();
        self.told = self.link.payload_max();
        self.whole_bytes()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.point.as_fd())
    }

    fn arm(&mut self) -> io::Result<bool> {
        while self.link.event().map_err(io_error)?.is_some() {}
        let _ = self.flush();
        // While it is down, nothing but the news that it is up again makes room.
        let awaits_room = self.link.has_unsent() && self.link.is_up();
        self.link.await_room(awaits_room).map_err(io_error)?;
        // The next look is for those too who wake the caller up.
        self.has_company = true;
        let mut neighbours =
            [PollFd::from_borrowed_fd(self.neighbours.descriptor(), PollFlags::IN)];
        let now = rustix::time::Timespec::default();
        let is_heard = poll(&mut neighbours, Some(&now)).is_ok_and(|count| count > 0);
        Ok(is_heard || self.link.is_ready())
    }
}
