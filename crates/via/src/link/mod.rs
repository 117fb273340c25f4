//! Raw Ethernet frames of an interface, bypassing the network stack.
//!
//! ```no_run
//! use vigie_via::link::{EtherType, AsyncLink, Link, MacAddress};
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let link = Link::builder("eth0").ether_type(EtherType::EXPERIMENTAL_2).open()?;
//! let host = vigie_detect::Server::spawn_thread()?;
//! let link = AsyncLink::new(host.server(), link)?;
//! link.send(MacAddress::BROADCAST, b"hello?").await?;
//! let answer = link.recv().await?;
//! println!("{} says {:?}", answer.header()?.source, answer.payload()?);
//! # Ok(())
//! # }
//! ```
//!
//! - [`Link`] never waits: use it in a loop that spins, or in another protocol engine.
//! - [`AsyncLink`] is a detector: its host polls it, or sleeps until a frame is there. With
//!   [`busy_poll`](LinkBuilder::busy_poll), each poll makes the kernel poll the network card's queue.
//!
//! # Back ends
//! | back end | frames travel | needs |
//! | --- | --- | --- |
//! | [`PacketRings`](BackEnd::PacketRings) | one copy each way, no call to receive | `CAP_NET_RAW` in the owner of the network namespace |
//! | [`PacketCalls`](BackEnd::PacketCalls) | one call for a batch received, one for each frame sent | the same |
//! | [`Xdp`](BackEnd::Xdp) | past the kernel's stack; without a copy where the network card supports that ([`XdpMode`]) | `CAP_NET_RAW`, `CAP_NET_ADMIN`, `CAP_BPF` in the first user namespace |
//!
//! [`BackEnd::Automatic`] takes the first of the first two that the kernel grants, [`BackEnd::XdpOrPacket`] the
//! first of all three, starting with AF_XDP. Many AF_PACKET links may share an interface and a protocol; each gets
//! every frame.
//!
//! **An AF_XDP queue has one owner**: no other AF_XDP link can be opened on it ([`OpenError::QueueTaken`]), and no
//! other socket sees its protocol's frames to the interface's address (as it was at opening) and to groups. All
//! other frames go on to the kernel. An interface takes one XDP program, and each link brings its own, so a second
//! link on an interface is refused even for a different queue ([`OpenError::ProgramAttached`]). The program is
//! removed with the link, even if the process is killed; the kernel frees the queue a few milliseconds later.
//!
//! # Checksums and tags
//! A sender on the same host leaves TCP and UDP checksums to a network card, which a veth pair does not have, and
//! may leave segments of up to 64 KiB whole. [`Frame::checksum`] reports the former ([`complete_checksum`] fills
//! the checksum in), [`Frame::is_cut`] the latter. AF_XDP sees only the bytes, and always reports
//! [`Checksum::Unknown`]: there, complete the checksum of frames from the same host. Protocols of your own are
//! not affected.
//!
//! A link on the interface itself does not receive frames with a VLAN tag: open one on the VLAN's interface
//! (`ip link add link eth0 name eth0.7 type vlan id 7`). A link of [`EtherType::ALL`] does; the kernel
//! removes the tag from the frame, and [`Frame::tag`] returns it.
//!
//! # Security
//! Anyone on the network can write any frame: trust nothing in it. Frames of protocols other than the link's
//! are never seen.

mod address;
mod async_link;
mod back_end;
mod borrowed_frame;
mod builder;
mod error;
mod frame;
mod frame_status;
mod monitor;
mod packet;
mod segments;
mod socket;
mod statistics;
mod sys;
mod xdp;

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{event::epoll, io::Errno};

pub(crate) use self::sys::set_option;
pub use self::{
    address::{EtherType, MacAddress, ParseMacError},
    async_link::{AsyncLink, OwnedFrame},
    back_end::BackEnd,
    borrowed_frame::Frame,
    builder::LinkBuilder,
    error::{Capability, LinkError, OpenError},
    frame::{EthernetHeader, FrameError, HEADER_BYTES, complete_checksum},
    frame_status::{Checksum, VlanTag},
    monitor::LinkEvent,
    segments::{FrameSegments, SegmentError, SegmentKind, SegmentedFrame},
    statistics::Statistics,
    sys::merges_packets,
    xdp::XdpMode,
};
use self::{monitor::Monitor, socket::LinkSocket};

/// Raw frames of one protocol on one interface. It never waits.
#[derive(Debug)]
pub struct Link {
    name: String,
    monitor: Monitor,
    socket: LinkSocket,
    ether_type: EtherType,
    /// The longest payload for which the slots were made.
    payload_max: usize,
    epoll_fd: OwnedFd,
    awaits_room: bool,
    counted: Statistics,
}

/// Returns an Ethernet header for a packet that has none. Its protocol is what the kernel says, which may be another one than the packet's version of IP:
/// that of the link; a link of all protocols has only the version to go by.
fn pseudo_header(packet: &Frame<'_>, of_link: EtherType) -> [u8; HEADER_BYTES] {
    let mut version = [0];
    packet.read(0, &mut version);
    let ether_type = match of_link {
        EtherType::ALL if version[0] >> 4 == 6 => EtherType::IPV6,
        EtherType::ALL => EtherType::IPV4,
        known => known,
    };
    let none = MacAddress([0; 6]);
    EthernetHeader::bytes(none, none, ether_type)
}

/// The key of the socket in the link's own poller.
const KEY_SOCKET: u64 = 0;
const KEY_MONITOR: u64 = 1;

impl Link {
    /// Returns a builder for a link on the interface `name`.
    pub fn builder(name: impl Into<String>) -> LinkBuilder {
        LinkBuilder::new(name.into())
    }

    fn new(
        name: String,
        monitor: Monitor,
        socket: LinkSocket,
        ether_type: EtherType,
    ) -> io::Result<Self> {
        let epoll_fd = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let readable = epoll::EventFlags::IN;
        epoll::add(
            &epoll_fd,
            socket.descriptor(),
            epoll::EventData::new_u64(KEY_SOCKET),
            readable,
        )?;
        epoll::add(
            &epoll_fd,
            monitor.descriptor(),
            epoll::EventData::new_u64(KEY_MONITOR),
            readable,
        )?;
        let mtu = usize::try_from(monitor.interface().mtu).map_err(io::Error::other)?;
        let payload_max = mtu.min(socket.payload_max());
        let counted = Statistics::default();
        let awaits_room = false;
        Ok(Self { name, monitor, socket, ether_type, payload_max, epoll_fd, awaits_room, counted })
    }

    /// Returns the name that the interface had when the link was opened.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of the interface in its network namespace.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.monitor.interface().index
    }

    /// Returns the protocol of the frames.
    #[must_use]
    pub const fn ether_type(&self) -> EtherType {
        self.ether_type
    }

    /// Returns the interface's own address.
    #[must_use]
    pub fn address(&self) -> MacAddress {
        self.monitor.interface().address.unwrap_or(MacAddress([0; 6]))
    }

    /// Returns the current longest payload of a frame, in bytes: the interface's MTU. If the MTU grows above
    /// what it was at opening, you must reopen the link to use it.
    #[must_use]
    pub fn payload_max(&self) -> usize {
        usize::try_from(self.monitor.interface().mtu).unwrap_or(0).min(self.payload_max)
    }

    /// Returns whether the interface is up and has a carrier, as of the last time its events were read.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        self.monitor.interface().is_up
    }

    /// Returns the back end that carries the frames.
    #[must_use]
    pub const fn back_end(&self) -> BackEnd {
        self.socket.back_end()
    }

    /// Returns how AF_XDP carries the frames, if it does.
    #[must_use]
    pub const fn xdp_mode(&self) -> Option<XdpMode> {
        self.socket.xdp_mode()
    }

    /// Passes at most `count` available frames to `take`, in the order in which they arrived. Returns their
    /// number.
    ///
    /// # Errors
    /// [`LinkError::Down`] once when the interface goes down, [`LinkError::Removed`] for good.
    #[inline]
    pub fn recv_each(
        &mut self,
        count: usize,
        mut take: impl FnMut(&Frame<'_>),
    ) -> Result<usize, LinkError> {
        let cut = &mut self.counted.cut;
        let (is_headerless, of_link) = (self.monitor.interface().is_headerless, self.ether_type);
        let received = self.socket.receive(count, |frame| {
            *cut += u64::from(frame.is_cut());
            if is_headerless {
                take(&Frame { front: &pseudo_header(frame, of_link), ..*frame });
            } else {
                take(frame);
            }
        });
        match received {
            Ok(received) => Ok(received),
            Err(source) => Err(self.failure("receiving frames", source)),
        }
    }

    /// Queues a frame for sending: the link makes the header, and `parts` are the payload, one after another.
    /// The frame is sent with the next [`flush`](Self::flush) at the latest.
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
        let header = EthernetHeader::bytes(destination, self.address(), self.ether_type);
        self.give(self.without_header(&header), parts)
    }

    /// Queues a whole frame for sending, with its own Ethernet header: of any protocol, and from any address.
    /// VLAN tags in it do not count towards its length. The frame is sent with the next
    /// [`flush`](Self::flush) at the latest.
    ///
    /// # Errors
    /// As [`send`](Self::send); [`LinkError::TooLong`] also if the bytes are not a frame.
    #[inline]
    pub fn send_frame(&mut self, frame: &[u8]) -> Result<(), LinkError> {
        let max = self.payload_max();
        // Only long frames are searched for tags.
        if frame.len() > max + HEADER_BYTES || frame.len() < HEADER_BYTES {
            let length = EthernetHeader::parse(frame)
                .map_or(usize::MAX, |header| frame.len().saturating_sub(header.payload_offset));
            if length > max {
                return Err(LinkError::TooLong { length, max });
            }
        }
        if !self.is_up() || self.is_removed() {
            self.check_up()?;
        }
        self.give(self.without_header(frame), &[])
    }

    /// Sends a frame of several segments, behind all frames that were queued: the outgoing interface cuts it.
    ///
    /// # Errors
    /// As [`send`](Self::send), and [`LinkError::Segments`]; [`LinkError::NoSegments`] if the link was not opened for them
    /// ([`LinkBuilder::sends_segments`]).
    pub fn send_segments(&mut self, frame: &SegmentedFrame<'_>) -> Result<(), LinkError> {
        if !self.is_up() || self.is_removed() {
            self.check_up()?;
        }
        let mut frame = *frame;
        let bytes = self.without_header(frame.bytes);
        frame.transport_at = frame.transport_at.saturating_sub(frame.bytes.len() - bytes.len());
        frame.bytes = bytes;
        let parts = frame.parts()?;
        self.flush()?;
        if self.has_unsent() {
            return Err(LinkError::Full);
        }
        match self.socket.send_segments(&parts) {
            None => Err(LinkError::NoSegments),
            Some(Ok(true)) => {
                self.counted.sent += 1;
                Ok(())
            }
            Some(Ok(false)) => {
                self.counted.refused += 1;
                Err(LinkError::Full)
            }
            Some(Err(source)) => Err(self.failure("sending segments", source)),
        }
    }

    /// Returns whether [`send_segments`](Self::send_segments) is possible.
    #[must_use]
    pub const fn sends_segments(&self) -> bool {
        self.socket.sends_segments()
    }

    /// Returns what goes over the interface of a frame.
    #[inline]
    fn without_header<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        let header = if self.monitor.interface().is_headerless { HEADER_BYTES } else { 0 };
        frame.get(header..).unwrap_or_default()
    }

    #[inline]
    fn give(&mut self, header: &[u8], parts: &[&[u8]]) -> Result<(), LinkError> {
        match self.socket.send(header, parts) {
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

    /// Makes the kernel send the queued frames.
    ///
    /// # Errors
    /// [`LinkError::Down`]: the frames stay, and are sent by a flush after the interface is up again; until
    /// then no more are accepted. [`LinkError::Removed`].
    #[inline]
    pub fn flush(&mut self) -> Result<(), LinkError> {
        match self.socket.flush() {
            Ok(()) => Ok(()),
            Err(source) => Err(self.failure("sending frames", source)),
        }
    }

    /// Returns whether frames still wait to be sent, so that their slots are not free.
    pub fn is_sending(&mut self) -> bool {
        self.socket.is_sending()
    }

    /// Lets the kernel drop frames whose two bytes at `offset` are not `value`, where the back end has filters. Frames
    /// that have already arrived stay.
    pub(crate) fn keep_only(&mut self, offset: u32, value: u16) -> io::Result<()> {
        self.socket.keep_only(self.index(), (offset, value))
    }

    /// Receives frames to a group from now on.
    ///
    /// # Errors
    /// The kernel's; [`io::ErrorKind::InvalidInput`] if `group` is not a group's address.
    pub fn join_group(&mut self, group: MacAddress) -> Result<(), LinkError> {
        let what = "joining a group";
        if !group.is_multicast() {
            return Err(LinkError::Kernel { what, source: io::ErrorKind::InvalidInput.into() });
        }
        let joined = self.socket.join(self.index(), group);
        joined.map_err(|source| self.failure(what, source))
    }

    /// Returns the oldest change of the interface that was not returned yet. After
    /// [`Removed`](LinkEvent::Removed) nothing follows.
    ///
    /// # Errors
    /// The kernel's, from its routing socket.
    pub fn next_event(&mut self) -> Result<Option<LinkEvent>, LinkError> {
        self.poll_monitor()?;
        Ok(self.monitor.next_event())
    }

    fn put_back(&mut self, event: LinkEvent) {
        self.monitor.put_back(event);
    }

    pub(crate) fn poll_monitor(&mut self) -> Result<(), LinkError> {
        let what = "watching the interface";
        self.monitor.poll().map_err(|source| LinkError::Kernel { what, source })?;
        // The routing socket has already reported this error, which would otherwise be reported again and
        // again.
        let _ = rustix::net::sockopt::socket_error(self.socket.descriptor());
        Ok(())
    }

    /// Returns the traffic counters, including the kernel's.
    ///
    /// # Errors
    /// The kernel's.
    pub fn statistics(&mut self) -> Result<Statistics, LinkError> {
        let what = "reading the counters";
        let kernel =
            self.socket.statistics().map_err(|source| LinkError::Kernel { what, source })?;
        let Statistics { received, dropped, .. } = kernel;
        Ok(Statistics { received, dropped, ..self.counted })
    }

    /// Returns a descriptor that becomes readable when there may be a frame, an event, or, if
    /// [`await_room`](Self::await_room) asks for it, room.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll_fd.as_fd()
    }

    /// Sets whether the descriptor also becomes readable when there is room.
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
        epoll::modify(&self.epoll_fd, self.socket.descriptor(), data, flags)
            .map_err(|source| LinkError::Kernel { what, source: source.into() })?;
        self.awaits_room = awaits;
        Ok(())
    }

    /// Returns whether something may be there, without a system call where that is possible. Call this before
    /// a sleep on the descriptor, so that you sleep over nothing.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        if self.socket.has_frame() || self.monitor.has_event() {
            return true;
        }
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 2];
        epoll::wait(&self.epoll_fd, &mut events, Some(&rustix::time::Timespec::default()))
            .is_ok_and(|(ready, _)| !ready.is_empty())
    }

    /// Checks whether the interface is up again.
    #[cold]
    fn check_up(&mut self) -> Result<(), LinkError> {
        self.poll_monitor()?;
        if self.is_removed() {
            return Err(LinkError::Removed);
        }
        if self.is_up() { Ok(()) } else { Err(LinkError::Down) }
    }

    /// Returns whether the kernel has not taken all frames yet, so that you must flush again.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        self.socket.is_kick_due()
    }

    /// Returns whether a frame can be queued.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.socket.has_room()
    }

    /// Makes an error of the kernel's number, after checking what happened to the interface.
    #[cold]
    fn failure(&mut self, what: &'static str, source: io::Error) -> LinkError {
        let _ = self.poll_monitor();
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

    /// Returns whether the interface is gone, as of the last time its events were read.
    #[must_use]
    pub const fn is_removed(&self) -> bool {
        self.monitor.interface().is_gone
    }
}
