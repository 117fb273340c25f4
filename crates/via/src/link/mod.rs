//! Raw Ethernet frames of an interface, past the network stack.
//!
//! ```no_run
//! use vigie_via::link::{EtherType, HostedLink, Link, MacAddress};
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let link = Link::builder("eth0").ether_type(EtherType::EXPERIMENTAL_2).open()?;
//! let host = vigie_detect::Server::spawn_thread()?;
//! let link = HostedLink::new(host.server(), link)?;
//! link.send(MacAddress::BROADCAST, b"anybody there?").await?;
//! let answer = link.receive().await?;
//! println!("{} says {:?}", answer.header()?.source, answer.payload()?);
//! # Ok(())
//! # }
//! ```
//!
//! - [`Link`] never waits: it is what a loop that spins, or another protocol machine, uses.
//! - [`HostedLink`] is a detector: its host polls it, or sleeps until a frame is there. With
//!   [`busy_poll`](LinkBuilder::busy_poll) the kernel polls the network card's queue in each look.
//!
//! # Back ends
//! | back end | frames travel | needs |
//! | --- | --- | --- |
//! | [`PacketRings`](BackEnd::PacketRings) | one copy each way, no call to receive | `CAP_NET_RAW` in the owner of the network namespace |
//! | [`PacketCalls`](BackEnd::PacketCalls) | a call for a batch received, and for a frame sent | the same |
//! | [`Xdp`](BackEnd::Xdp) | past the stack of the kernel; without a copy where the network card can ([`XdpMode`]) | `CAP_NET_RAW`, `CAP_NET_ADMIN`, `CAP_BPF` in the first user namespace |
//!
//! [`BackEnd::Automatic`] takes the first that the kernel grants of the first two, and [`BackEnd::XdpOrPacket`] of
//! all three, AF_XDP first. Many links of AF_PACKET may share an interface and a protocol; each gets every frame.
//!
//! **A queue of AF_XDP has one owner**: no other link of AF_XDP can be opened on it ([`OpenError::QueueTaken`]),
//! and nobody else sees its protocol's frames to the interface's address (as it was at opening) and to groups.
//! All other frames go on to the kernel. An interface takes one XDP program, and each link brings its own, so that
//! two links on one interface are refused also for different queues ([`OpenError::ProgramAttached`]). It goes with
//! the link, also if the process is killed; the kernel gives the queue free a few milliseconds later.
//!
//! # Checksums and tags
//! A sender on the same host leaves checksums of TCP and UDP to a network card that a veth pair does not have,
//! and may leave segments of up to 64 KiB whole. [`Frame::checksum`] tells of the first
//! ([`complete_checksum`] fills it in), [`Frame::is_cut`] of the second. AF_XDP sees no more than the bytes, and
//! says [`Checksum::Unknown`] always: there, complete the checksum of what comes from the same host. Protocols of
//! one's own are not touched.
//!
//! Frames with the tag of a VLAN are not for a link on the interface itself: open one on the VLAN's interface
//! (`ip link add link eth0 name eth0.7 type vlan id 7`). A link of [`EtherType::ALL`] sees them; the kernel
//! takes the tag out of the frame, and [`Frame::tag`] has it.
//!
//! # Security
//! Anybody on the network can write any frame: nothing in it is to be believed. Frames of other protocols than
//! the link's are never seen.

mod address;
mod builder;
mod carrier;
mod error;
mod frame;
mod frame_status;
mod hosted_link;
mod monitor;
mod packet;
mod sys;
mod xdp;

use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{event::epoll, io::Errno};

pub(crate) use self::sys::set_option;
pub use self::{
    address::{EtherType, MacAddress, ParseMacError},
    builder::{BackEnd, LinkBuilder},
    error::{Capability, LinkError, OpenError},
    frame::{FrameError, HEADER_BYTES, Header, complete_checksum},
    frame_status::{Checksum, VlanTag},
    hosted_link::{HostedLink, OwnedFrame},
    monitor::LinkEvent,
    xdp::XdpMode,
};
use self::{carrier::Carrier, monitor::Monitor};
use crate::vi::Memory;

/// A frame that was received, for as long as it is looked at.
pub struct Frame<'a> {
    source: Source<'a>,
    length: usize,
    wire_length: usize,
    checksum: Checksum,
    tag: Option<VlanTag>,
}

enum Source<'a> {
    Memory(&'a Memory, u64),
    Slice(&'a [u8]),
}

impl Frame<'_> {
    /// Returns the length in bytes, with the header.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Returns whether there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns whether the frame was longer than a slot: several segments that no network card has cut yet.
    #[must_use]
    pub const fn is_cut(&self) -> bool {
        self.wire_length > self.length
    }

    /// Returns what is known of the checksum of the packet inside.
    #[must_use]
    pub const fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// Returns the VLAN tag that the kernel has taken out of the frame, for [`EtherType::ALL`].
    #[must_use]
    pub const fn tag(&self) -> Option<u16> {
        match self.tag {
            Some(tag) => Some(tag.control),
            None => None,
        }
    }

    /// Returns that tag with the protocol that announced it, as it must be put back to pass the frame on.
    #[must_use]
    pub const fn vlan_tag(&self) -> Option<VlanTag> {
        self.tag
    }

    /// Returns the length that the frame had before it was cut to a slot, in bytes.
    #[must_use]
    pub const fn wire_length(&self) -> usize {
        self.wire_length
    }

    /// Copies bytes from `at` on; fewer if the frame ends before. Returns how many.
    #[inline]
    pub fn read(&self, at: usize, bytes: &mut [u8]) -> usize {
        let count = self.length.saturating_sub(at).min(bytes.len());
        let (Some(bytes), Ok(offset)) = (bytes.get_mut(..count), u64::try_from(at)) else {
            return 0;
        };
        match self.source {
            Source::Memory(memory, begin) => match memory.read(begin + offset, bytes) {
                Ok(()) => count,
                Err(_) => 0,
            },
            Source::Slice(source) => source.get(at..at + count).map_or(0, |source| {
                bytes.copy_from_slice(source);
                count
            }),
        }
    }

    /// Copies the frame.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        let count = self.read(0, &mut bytes);
        bytes.truncate(count);
        bytes
    }
}

impl fmt::Debug for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame")
            .field("length", &self.length)
            .field("checksum", &self.checksum)
            .field("tag", &self.tag)
            .finish_non_exhaustive()
    }
}

/// What went through a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Frames that were received.
    pub received: u64,
    /// Frames that were dropped because nobody took those before them.
    pub dropped: u64,
    /// Frames longer than a slot.
    pub cut: u64,
    /// Frames that were given to the kernel.
    pub sent: u64,
    /// Frames that found no room.
    pub refused: u64,
}

/// Raw frames of one protocol of one interface. It never waits.
#[derive(Debug)]
pub struct Link {
    name: String,
    monitor: Monitor,
    carrier: Carrier,
    ether_type: EtherType,
    /// The largest payload for which the slots were made.
    payload_max: usize,
    point: OwnedFd,
    awaits_room: bool,
    counted: Statistics,
}

/// The key of the socket in the link's own wait point.
const KEY_SOCKET: u64 = 0;
const KEY_MONITOR: u64 = 1;

impl Link {
    /// Begins with the settings of a link on the interface `name`.
    pub fn builder(name: impl Into<String>) -> LinkBuilder {
        LinkBuilder::new(name.into())
    }

    fn new(
        name: String,
        monitor: Monitor,
        carrier: Carrier,
        ether_type: EtherType,
    ) -> io::Result<Self> {
        let point = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let readable = epoll::EventFlags::IN;
        epoll::add(&point, carrier.descriptor(), epoll::EventData::new_u64(KEY_SOCKET), readable)?;
        epoll::add(&point, monitor.descriptor(), epoll::EventData::new_u64(KEY_MONITOR), readable)?;
        let mtu = usize::try_from(monitor.interface().mtu).map_err(io::Error::other)?;
        let payload_max = mtu.min(carrier.payload_max());
        let counted = Statistics::default();
        let awaits_room = false;
        Ok(Self { name, monitor, carrier, ether_type, payload_max, point, awaits_room, counted })
    }

    /// Returns the name of the interface when it was opened.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of the interface in its network namespace.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.monitor.interface().index
    }

    /// Returns the protocol of its frames.
    #[must_use]
    pub const fn ether_type(&self) -> EtherType {
        self.ether_type
    }

    /// Returns the interface's own address.
    #[must_use]
    pub fn address(&self) -> MacAddress {
        self.monitor.interface().address.unwrap_or(MacAddress([0; 6]))
    }

    /// Returns the largest payload of a frame now, in bytes: the interface's MTU. One that grows above what
    /// it was at opening counts only for a link that is opened anew.
    #[must_use]
    pub fn payload_max(&self) -> usize {
        usize::try_from(self.monitor.interface().mtu).unwrap_or(0).min(self.payload_max)
    }

    /// Returns whether the interface is up and has a carrier, as of the last look at its events.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        self.monitor.interface().is_up
    }

    /// Returns which back end carries the frames.
    #[must_use]
    pub const fn back_end(&self) -> BackEnd {
        self.carrier.back_end()
    }

    /// Returns how AF_XDP carries them, if it does.
    #[must_use]
    pub const fn xdp_mode(&self) -> Option<XdpMode> {
        self.carrier.xdp_mode()
    }

    /// Hands at most `count` frames that are there to `take`, in the order in which they came. Returns how
    /// many there were.
    ///
    /// # Errors
    /// [`LinkError::Down`] once when the interface goes down, [`LinkError::Removed`] for good.
    #[inline]
    pub fn receive(
        &mut self,
        count: usize,
        mut take: impl FnMut(&Frame<'_>),
    ) -> Result<usize, LinkError> {
        let cut = &mut self.counted.cut;
        let received = self.carrier.receive(count, |frame| {
            *cut += u64::from(frame.is_cut());
            take(frame);
        });
        match received {
            Ok(received) => Ok(received),
            Err(source) => Err(self.failure("receiving frames", source)),
        }
    }

    /// Takes a frame to be sent: the header is made, and `parts` are its payload, one after another. It goes
    /// out with the next [`flush`](Self::flush) at the latest.
    ///
    /// # Errors
    /// [`LinkError::TooLong`], [`LinkError::Full`], [`LinkError::Down`] once that is known, and
    /// [`LinkError::Removed`].
    #[inline]
    pub fn send(&mut self, destination: MacAddress, parts: &[&[u8]]) -> Result<(), LinkError> {
        let length = parts.iter().map(|part| part.len()).sum();
        let max = self.payload_max();
        if length > max {
            return Err(LinkError::TooLong { length, max });
        }
        if !self.is_up() || self.is_removed() {
            self.check_up()?;
        }
        let header = Header::bytes(destination, self.address(), self.ether_type);
        self.give(&header, parts)
    }

    /// Takes a whole frame to be sent, with the header of Ethernet that it has: of any protocol, and from any
    /// address. VLAN tags in it do not count to its length. It goes out with the next [`flush`](Self::flush)
    /// at the latest.
    ///
    /// # Errors
    /// As [`send`](Self::send); [`LinkError::TooLong`] also for what is no frame.
    #[inline]
    pub fn send_frame(&mut self, frame: &[u8]) -> Result<(), LinkError> {
        let max = self.payload_max();
        // Tags are looked for in long frames alone.
        if frame.len() > max + HEADER_BYTES || frame.len() < HEADER_BYTES {
            let length = Header::parse(frame)
                .map_or(usize::MAX, |header| frame.len().saturating_sub(header.payload_offset));
            if length > max {
                return Err(LinkError::TooLong { length, max });
            }
        }
        if !self.is_up() || self.is_removed() {
            self.check_up()?;
        }
        self.give(frame, &[])
    }

    #[inline]
    fn give(&mut self, header: &[u8], parts: &[&[u8]]) -> Result<(), LinkError> {
        match self.carrier.send(header, parts) {
            Ok(true) => {
                self.counted.sent += 1;
                Ok(())
            }
            Ok(false) => {
                self.counted.refused += 1;
                Err(LinkError::Full)
            }
            Err(source) => Err(self.failure("sending a frame", source)),
        }
    }

    /// Makes the kernel send the frames that it was given.
    ///
    /// # Errors
    /// [`LinkError::Down`]: the frames stay, and go out with a flush after it is up again. More are not taken
    /// then.
    /// [`LinkError::Removed`].
    #[inline]
    pub fn flush(&mut self) -> Result<(), LinkError> {
        match self.carrier.flush() {
            Ok(()) => Ok(()),
            Err(source) => Err(self.failure("sending frames", source)),
        }
    }

    /// Returns whether frames still wait to be sent: their slots are not free again.
    pub fn is_sending(&mut self) -> bool {
        self.carrier.is_sending()
    }

    /// Lets the kernel drop frames whose two bytes at `offset` are not `value`, where the back end has filters. Frames
    /// that are here already stay.
    pub(crate) fn keep_only(&mut self, offset: u32, value: u16) -> io::Result<()> {
        self.carrier.keep_only(offset, value)
    }

    /// Receives the frames to a group from now on.
    ///
    /// # Errors
    /// The kernel's; for an address that is no group's, [`io::ErrorKind::InvalidInput`].
    pub fn join(&mut self, group: MacAddress) -> Result<(), LinkError> {
        let what = "joining a group";
        if !group.is_multicast() {
            return Err(LinkError::Kernel { what, source: io::ErrorKind::InvalidInput.into() });
        }
        let joined = self.carrier.join(self.index(), group);
        joined.map_err(|source| self.failure(what, source))
    }

    /// Returns what became of the interface, if that was not told yet. After
    /// [`Removed`](LinkEvent::Removed) nothing follows.
    ///
    /// # Errors
    /// The kernel's, of its routing socket.
    pub fn event(&mut self) -> Result<Option<LinkEvent>, LinkError> {
        self.look()?;
        Ok(self.monitor.event())
    }

    fn put_back(&mut self, event: LinkEvent) {
        self.monitor.put_back(event);
    }

    pub(crate) fn look(&mut self) -> Result<(), LinkError> {
        let what = "watching the interface";
        self.monitor.look().map_err(|source| LinkError::Kernel { what, source })?;
        // What the socket has to say the routing socket has said; it would be said again and again.
        let _ = rustix::net::sockopt::socket_error(self.carrier.descriptor());
        Ok(())
    }

    /// Returns what went through, the kernel's counters among it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn statistics(&mut self) -> Result<Statistics, LinkError> {
        let what = "reading the counters";
        let kernel =
            self.carrier.statistics().map_err(|source| LinkError::Kernel { what, source })?;
        let Statistics { received, dropped, .. } = kernel;
        Ok(Statistics { received, dropped, ..self.counted })
    }

    /// Returns a descriptor that becomes readable when there may be a frame, an event, or, if
    /// [`await_room`](Self::await_room) asks for it, room.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.point.as_fd()
    }

    /// Lets the descriptor tell of room, or not any more.
    ///
    /// # Errors
    /// The kernel's.
    pub fn await_room(&mut self, awaits: bool) -> Result<(), LinkError> {
        if awaits == self.awaits_room {
            return Ok(());
        }
        let mut flags = epoll::EventFlags::IN;
        if awaits {
            flags |= epoll::EventFlags::OUT;
        }
        let data = epoll::EventData::new_u64(KEY_SOCKET);
        let what = "watching the socket";
        epoll::modify(&self.point, self.carrier.descriptor(), data, flags)
            .map_err(|source| LinkError::Kernel { what, source: source.into() })?;
        self.awaits_room = awaits;
        Ok(())
    }

    /// Returns whether something may be there, without a call where that is possible. Asked before a sleep on
    /// the descriptor, nothing is slept over.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        if self.carrier.has_frame() || self.monitor.has_event() {
            return true;
        }
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 2];
        epoll::wait(&self.point, &mut events, Some(&rustix::time::Timespec::default()))
            .is_ok_and(|(ready, _)| !ready.is_empty())
    }

    /// Asks whether it is up again.
    #[cold]
    fn check_up(&mut self) -> Result<(), LinkError> {
        self.look()?;
        if self.is_removed() {
            return Err(LinkError::Removed);
        }
        if self.is_up() { Ok(()) } else { Err(LinkError::Down) }
    }

    /// Returns whether the kernel has not taken all frames yet, and a flush is to be tried again.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        self.carrier.is_kick_due()
    }

    /// Returns whether a frame can be given.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.carrier.has_room()
    }

    /// Makes an error of the kernel's number, asking what became of the interface.
    #[cold]
    fn failure(&mut self, what: &'static str, source: io::Error) -> LinkError {
        let _ = self.look();
        let errno = Errno::from_io_error(&source);
        if self.monitor.interface().is_gone || errno == Some(Errno::NXIO) {
            return LinkError::Removed;
        }
        match errno {
            Some(Errno::NETDOWN | Errno::NODEV) => LinkError::Down,
            Some(Errno::MSGSIZE) => {
                let max = self.payload_max();
                LinkError::TooLong { length: max.saturating_add(1), max }
            }
            _ => LinkError::Kernel { what, source },
        }
    }

    /// Returns whether the interface is gone, as of the last look at its events.
    #[must_use]
    pub const fn is_removed(&self) -> bool {
        self.monitor.interface().is_gone
    }
}
