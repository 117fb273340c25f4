//! Packets in frames.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    event::{PollFd, PollFlags, epoll, poll},
    io::Errno,
};
use vigie_detect::{ArmOutcome, Instant};

use super::{
    EtherError,
    encap::{ENCAP_BYTES, EtherPath, FRAGMENTS_MAX, FragmentHeader},
    neighbours::Neighbours,
    reassembly::Reassembly,
};
use crate::{
    link::{self, BackEnd, Link, LinkError, MacAddress},
    software_nic::Wire,
};

/// The most packets sent per call. Each is a frame of its own, so more would gain nothing.
const PACKETS_MAX: usize = 8;

/// The most frames examined per call, so that garbage does not keep the caller from its work.
const FRAMES_MAX: usize = 64;

/// The neighbours' socket, which costs a call, is polled in one of this many receives, or in each as
/// long as packets arrive there.
const NEIGHBOURS_EVERY: u32 = 32;

/// The longest packet to a neighbour, in bytes.
const NEIGHBOUR_BYTES: usize = 65_000;

/// Counts of frames that were not packets for this NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EtherCounters {
    /// Frames that were too short, of another version, to a group, or truncated. Frames for other ports
    /// that the kernel has dropped are not counted.
    pub malformed: u64,
    /// Frames for other ports that arrived nevertheless, as they do with AF_XDP.
    pub wrong_port: u64,
    /// Packets sent in fragments because the MTU had shrunk.
    pub fragmented: u64,
}

/// A link as the wire of a software NIC.
#[derive(Debug)]
pub struct EtherWire {
    link: Link,
    neighbours: Neighbours,
    /// Watches both the link and the neighbours' socket.
    epoll_fd: OwnedFd,
    path: EtherPath,
    fragments: Reassembly,
    /// The number of the next fragmented packet.
    packet: u8,
    /// The frame length that the NIC was last told.
    told: usize,
    /// Receives since the neighbours' socket was last polled, and whether that found a packet.
    receives: u32,
    has_company: bool,
    counters: EtherCounters,
}

impl EtherWire {
    pub(super) fn new(link: Link, neighbours: Neighbours) -> Result<Self, EtherError> {
        let failed = EtherError::kernel::<Errno>("watching the interface");
        let epoll_fd = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(&failed)?;
        for descriptor in [link.descriptor(), neighbours.descriptor()] {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&epoll_fd, descriptor, data, epoll::EventFlags::IN).map_err(&failed)?;
        }
        let path = EtherPath::new(link.address(), neighbours.port());
        let told = link.payload_max();
        let (fragments, counters) = (Reassembly::default(), EtherCounters::default());
        let (packet, receives, has_company) = (0, 0, false);
        Ok(Self {
            link,
            neighbours,
            epoll_fd,
            path,
            fragments,
            packet,
            told,
            receives,
            has_company,
            counters,
        })
    }

    /// Returns which back end carries the frames.
    #[must_use]
    pub const fn back_end(&self) -> BackEnd {
        self.link.back_end()
    }

    /// Returns whether the interface is up and has a carrier, as of its last check.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        self.link.is_up()
    }

    /// Returns whether the interface is gone for good, as of its last check.
    #[must_use]
    pub const fn is_removed(&self) -> bool {
        self.link.is_removed()
    }

    /// Returns counts of frames that were not packets for this NIC.
    #[must_use]
    pub const fn counters(&self) -> EtherCounters {
        self.counters
    }

    /// Returns the longest packet that fits into one frame.
    fn whole_bytes(&self) -> usize {
        self.link.payload_max().saturating_sub(ENCAP_BYTES)
    }

    /// Gives a frame to the link, which sends its queue first if there is no room.
    #[inline]
    fn give(
        &mut self,
        to: MacAddress,
        encap: FragmentHeader,
        bytes: &[u8],
    ) -> Result<(), LinkError> {
        let encap = encap.bytes();
        match self.link.send(to, &[&encap, bytes]) {
            Err(LinkError::Full) => {
                self.link.flush()?;
                self.link.send(to, &[&encap, bytes])
            }
            given => given,
        }
    }

    /// Gives a packet that is too long for a frame to the link, in fragments.
    #[cold]
    fn give_fragments(&mut self, to: EtherPath, packet: &[u8]) -> Result<(), LinkError> {
        let most = self.whole_bytes();
        let too_long = || LinkError::TooLong { length: packet.len(), max: most };
        let count = packet.len().div_ceil(most.max(1));
        let fragments = u8::try_from(count).map_err(|_| too_long())?;
        if count > FRAGMENTS_MAX {
            return Err(too_long());
        }
        self.packet = self.packet.wrapping_add(1);
        self.counters.fragmented += 1;
        let whole = FragmentHeader::whole(to.port, self.path.port);
        for (fragment, bytes) in (0..fragments).zip(packet.chunks(most)) {
            let encap = FragmentHeader { packet: self.packet, fragment, fragments, ..whole };
            self.give(to.address, encap, bytes)?;
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

        let encap = FragmentHeader::whole(to.port, self.path.port);
        for packet in packets.chunks(packet_bytes.max(1)) {
            let given = if packet.len() <= self.whole_bytes() {
                self.give(to.address, encap, packet)
            } else {
                self.give_fragments(to, packet)
            };
            match given {
                Ok(()) => {}
                // Fragments that do not fit are lost, and sent again in time.
                Err(LinkError::Full) => break,
                Err(error) => return Err(io_error(error)),
            }
        }

        self.tell(packet_bytes)
    }

    /// Reports once that frames have become shorter than packets.
    fn tell(&mut self, packet_bytes: usize) -> io::Result<()> {
        let most = self.link.payload_max();
        if packet_bytes + ENCAP_BYTES > most && most < self.told {
            self.told = most;
            return Err(io::Error::other(LinkError::TooLong { length: packet_bytes, max: most }));
        }
        Ok(())
    }

    fn receive_frame(&mut self, buffer: &mut [u8]) -> io::Result<Option<(usize, EtherPath)>> {
        const BEFORE: usize = link::HEADER_BYTES + ENCAP_BYTES;
        let Self { link, fragments, counters, path, .. } = self;
        for _ in 0..FRAMES_MAX {
            let mut found = None;
            let received = link.recv_each(1, |frame| {
                let mut before = [0; BEFORE];
                let is_whole = frame.read(0, &mut before) == BEFORE && !frame.is_cut();
                let parsed = if is_whole { FragmentHeader::parse(&before) } else { None };
                let Some((encap, address)) = parsed else {
                    counters.malformed += 1;
                    return;
                };
                if encap.to != path.port {
                    counters.wrong_port += 1;
                    return;
                }
                let from = EtherPath::new(address, encap.from);
                let count = frame.read(BEFORE, buffer);
                if encap.fragments == 1 {
                    found = Some((count, from));
                } else if let Some(packet) = fragments.add(from, encap, &buffer[..count])
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
                // Reception resumes when the interface is up; if it never is, the peers' silence tells.
                Err(LinkError::Down | LinkError::Removed) => return Ok(None),
                Err(error) => return Err(io_error(error)),
            }
        }

        Ok(None)
    }

    #[cold]
    fn receive_neighbour(&mut self, buffer: &mut [u8]) -> io::Result<Option<(usize, EtherPath)>> {
        self.receives = 0;
        let found = self.neighbours.receive(buffer)?;
        // Where there was one packet there may be more.
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
                // Packets that do not fit are lost, and sent again in time.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && at > 0 => break,
                sent => sent?,
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.link.flush() {
            // They stay queued, and depart when the interface is up.
            Ok(()) | Err(LinkError::Down) => Ok(()),
            Err(error) => Err(io_error(error)),
        }
    }

    fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<(usize, EtherPath)>> {
        self.receives += 1;
        if self.receives < NEIGHBOURS_EVERY {
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
        // After a failure the last known length remains.
        let _ = self.link.poll_monitor();
        self.told = self.link.payload_max();
        self.whole_bytes()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll_fd.as_fd())
    }

    fn arm(&mut self) -> io::Result<ArmOutcome> {
        while self.link.next_event().map_err(io_error)?.is_some() {}
        let _ = self.flush();
        // While the interface is down, only the event that it is up again makes room.
        let awaits_room = self.link.has_unsent() && self.link.is_up();
        self.link.await_room(awaits_room).map_err(io_error)?;
        // A neighbour's packet may be what wakes the caller: poll that socket in the next receive.
        self.has_company = true;
        let mut neighbours =
            [PollFd::from_borrowed_fd(self.neighbours.descriptor(), PollFlags::IN)];
        let now = rustix::time::Timespec::default();
        let is_heard = poll(&mut neighbours, Some(&now)).is_ok_and(|count| count > 0);
        Ok(ArmOutcome::ready_if(is_heard || self.link.is_ready()))
    }
}
