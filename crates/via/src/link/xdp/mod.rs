//! AF_XDP: the frames of one queue of an interface, before the network stack sees them.

mod kernel;

use std::{
    hint, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{MemfdFlags, ftruncate, memfd_create},
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send,
        socket_with, sockopt,
        xdp::{
            SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
            XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpUmemReg, XdpUmemRegFlags,
        },
    },
};

use self::kernel::{Filter, XdpRing};
use super::{
    Checksum, HEADER_BYTES, MacAddress, Statistics,
    borrowed_frame::{Frame, FrameData},
    error::{Capability, OpenError},
    packet::{self, ForeignFrames, LinkSettings},
};
use crate::memory::Memory;

/// The size of a frame's place: a page, the most that the kernel accepts.
const FRAME_BYTES: u64 = 4096;
/// The offset at which the kernel puts a frame into its place.
const HEADROOM_BYTES: u64 = 256;
/// Places kept beyond the number of frames, for frames that were read. They go back to the kernel in batches: returned
/// one by one, each would take the line of the fill ring away from the core on which the kernel is about to read its
/// next entry.
const SPENT_MAX: usize = 64;
/// Places that go back together when there is nothing else to do.
const SPENT_IDLE: usize = 32;
/// The kernel keeps headroom in front of a frame.
const PAYLOAD_MAX: usize = 4096 - 256 - HEADER_BYTES - 8;
const NEEDED: [Capability; 3] = [Capability::NetRaw, Capability::NetAdmin, Capability::Bpf];
/// The most kicks in a row: the kernel sends one batch for each.
const KICKS_MAX: usize = 64;
const FLAG_GENERIC: u32 = 2;
const FLAG_NATIVE: u32 = 4;

/// The mode in which the frames of a queue are transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum XdpMode {
    /// The network card accesses memory of this process.
    ZeroCopy,
    /// The driver passes frames on before the kernel makes packets of them; they are copied once.
    Copy,
    /// The kernel makes packets first: this is no faster than AF_PACKET.
    Generic,
}

/// The rings of a socket.
#[derive(Debug)]
struct XdpRings {
    fill: XdpRing,
    completion: XdpRing,
    receive: XdpRing,
    send: XdpRing,
}

/// An AF_XDP socket.
#[derive(Debug)]
pub(super) struct Xdp {
    // Dropped in this order: the program first.
    _attached: OwnedFd,
    socket: OwnedFd,
    /// A socket that is a member of groups on behalf of this one.
    groups: Option<OwnedFd>,
    rings: XdpRings,
    memory: Memory,
    /// Places of frames that can be filled.
    free: Vec<u64>,
    send_count: usize,
    /// Places of frames that were read, and will soon be returned to the kernel.
    spent: Vec<u64>,
    /// The likely place of the next frame: places return in the order in which they were given.
    likely: u64,
    /// The end of the places for received frames.
    receive_end: u64,
    mode: XdpMode,
    /// True if the kernel polls the network card when it is called.
    polls: bool,
    is_kick_due: bool,
    received: u64,
}

/// A socket with its memory that is not bound yet.
struct Unbound {
    socket: OwnedFd,
    rings: XdpRings,
    memory: Memory,
    /// Places of frames to be sent; those before them were given to the kernel.
    free: Vec<u64>,
    receive_end: u64,
}

fn to_u64(value: usize) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

fn make(receive_count: u32, send_count: u32) -> io::Result<Unbound> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)?;
    let receive_places = receive_count + u32::try_from(SPENT_MAX).map_err(io::Error::other)?;
    let bytes = u64::from(receive_places + send_count) * FRAME_BYTES;
    // A file, because its mapping begins at a page.
    let file = memfd_create("vigie-xdp", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, bytes)?;
    let memory =
        Memory::map(file.as_fd(), usize::try_from(bytes).map_err(io::Error::other)?, true)?;

    let registration = XdpUmemReg {
        addr: to_u64(memory.address()),
        len: bytes,
        chunk_size: 4096,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    sockopt::set_xdp_umem_reg(&socket, registration)?;

    // Has room for all places, even while the kernel has not yet announced that it has taken one.
    let fill_count = (receive_places + 1).next_power_of_two();
    sockopt::set_xdp_umem_fill_ring_size(&socket, fill_count)?;
    sockopt::set_xdp_umem_completion_ring_size(&socket, send_count)?;
    sockopt::set_xdp_rx_ring_size(&socket, receive_count)?;
    sockopt::set_xdp_tx_ring_size(&socket, send_count)?;
    let offsets = sockopt::xdp_mmap_offsets(&socket)?;

    let ring =
        |page, offsets, count, bytes| XdpRing::map(socket.as_fd(), page, offsets, count, bytes);
    let mut fill = ring(XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, fill_count, 8)?;
    let completion = ring(XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr, send_count, 8)?;
    let receive = ring(XDP_PGOFF_RX_RING, &offsets.rx, receive_count, 16)?;
    let send = ring(XDP_PGOFF_TX_RING, &offsets.tx, send_count, 16)?;
    for number in 0..receive_places {
        fill.put(&[u64::from(number) * FRAME_BYTES]);
    }

    let places = receive_places..receive_places + send_count;
    let free = places.map(|number| u64::from(number) * FRAME_BYTES).collect();
    let receive_end = u64::from(receive_places) * FRAME_BYTES;
    let rings = XdpRings { fill, completion, receive, send };
    Ok(Unbound { socket, rings, memory, free, receive_end })
}

/// Tries to bind sockets to a queue of an interface in several ways.
struct Binder<'a> {
    name: &'a str,
    settings: &'a LinkSettings,
    queue: u32,
}

impl Binder<'_> {
    fn failed(error: impl Into<io::Error>) -> OpenError {
        OpenError::from_call("opening an AF_XDP queue", &NEEDED, error)
    }

    /// Binds a socket in one way; `None` if the driver does not support it.
    fn bind(&self, flags: SocketAddrXdpFlags) -> Result<Option<Unbound>, OpenError> {
        let Self { name, settings, queue } = *self;
        let receive_count = settings.receive_frames.next_power_of_two();
        let send_count = settings.send_frames.next_power_of_two();
        let unbound = make(receive_count, send_count).map_err(Self::failed)?;
        packet::set_busy_poll(&unbound.socket, settings.busy_poll_us).map_err(Self::failed)?;
        let is_zero_copy = flags.contains(SocketAddrXdpFlags::XDP_ZEROCOPY);
        match bind(&unbound.socket, &SocketAddrXdp::new(flags, settings.index, queue)) {
            Ok(()) => Ok(Some(unbound)),
            Err(Errno::BUSY) => Err(OpenError::QueueTaken { name: name.to_owned(), queue }),
            Err(Errno::OPNOTSUPP | Errno::INVAL) if is_zero_copy => Ok(None),
            Err(Errno::INVAL) => Err(OpenError::NoQueue { name: name.to_owned(), queue }),
            Err(error) => Err(Self::failed(error)),
        }
    }

    /// Binds a socket in the best way. Behind a program in the generic path, only one way exists.
    fn bind_best(&self, is_native: bool) -> Result<(XdpMode, Unbound), OpenError> {
        if is_native && let Some(unbound) = self.bind(SocketAddrXdpFlags::XDP_ZEROCOPY)? {
            return Ok((XdpMode::ZeroCopy, unbound));
        }
        let mode = if is_native { XdpMode::Copy } else { XdpMode::Generic };
        let unbound = self.bind(SocketAddrXdpFlags::XDP_COPY)?;
        let unbound = unbound.ok_or_else(|| Self::failed(io::ErrorKind::Unsupported))?;
        Ok((mode, unbound))
    }

    /// Attaches the program, to the driver if possible. Returns whether that was possible.
    fn attach(&self, program: BorrowedFd<'_>) -> Result<(bool, OwnedFd), OpenError> {
        let attach = |flags| kernel::attach(program, self.settings.index, flags);
        let attached = match attach(FLAG_NATIVE) {
            Ok(attached) => Ok((true, attached)),
            Err(error) if is_taken(&error) => Err(error),
            Err(_) => attach(FLAG_GENERIC).map(|attached| (false, attached)),
        };
        attached.map_err(|error| {
            if !is_taken(&error) {
                return Self::failed(error);
            }
            // The kernel does not say whose program it is, but it does say whether the queue has an owner.
            match self.bind(SocketAddrXdpFlags::XDP_COPY) {
                Err(error @ (OpenError::QueueTaken { .. } | OpenError::NoQueue { .. })) => error,
                _ => OpenError::ProgramAttached { name: self.name.to_owned() },
            }
        })
    }
}

fn is_taken(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST))
}

impl Xdp {
    /// Opens a queue in the best way that it supports.
    pub(super) fn open(
        name: &str,
        settings: &LinkSettings,
        queue: u32,
        own: MacAddress,
    ) -> Result<Self, OpenError> {
        let failed = Binder::failed;
        let binder = Binder { name, settings, queue };
        let map = kernel::make_map(queue).map_err(failed)?;
        let address = (settings.foreign != ForeignFrames::Wanted).then_some(own);
        let filter = Filter { ether_type: settings.ether_type, address };
        let program = kernel::load(filter, map.as_fd()).map_err(failed)?;

        // While the map is empty, all frames pass on to the kernel.
        let (is_native, attached) = binder.attach(program.as_fd())?;
        let (mode, unbound) = binder.bind_best(is_native)?;
        let mut groups = None;
        if settings.foreign == ForeignFrames::Wanted {
            let socket = packet::membership_socket().map_err(failed)?;
            packet::become_promiscuous(&socket, settings.index).map_err(failed)?;
            groups = Some(socket);
        }

        kernel::lead(map.as_fd(), queue, unbound.socket.as_fd()).map_err(failed)?;

        let Unbound { socket, rings, memory, free, receive_end } = unbound;
        Ok(Self {
            _attached: attached,
            socket,
            groups,
            rings,
            memory,
            send_count: free.len(),
            free,
            spent: Vec::with_capacity(SPENT_MAX),
            likely: 0,
            receive_end,
            mode,
            polls: settings.busy_poll_us > 0,
            is_kick_due: false,
            received: 0,
        })
    }

    pub(super) const fn mode(&self) -> XdpMode {
        self.mode
    }

    pub(super) const fn payload_max() -> usize {
        PAYLOAD_MAX
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Passes at most `count` frames to `take`. Returns their number.
    #[inline]
    pub(super) fn receive(&mut self, count: usize, mut take: impl FnMut(&Frame<'_>)) -> usize {
        if self.polls && !self.has_frame() {
            self.poll();
        }
        let mut taken = 0;
        while taken < count {
            let Some([place, length]) = self.next_frame() else { break };
            // struct xdp_desc: the length is the first half of the second word, the options are the other.
            let [a, b, c, d, ..] = length.to_ne_bytes();
            let length = u32::from_ne_bytes([a, b, c, d]);
            let bound = FRAME_BYTES - place % FRAME_BYTES;
            take(&Frame {
                front: &[],
                segments: Ok(None),
                source: FrameData::Memory(&self.memory, place),
                length: usize::try_from(u64::from(length).min(bound)).unwrap_or(0),
                wire_length: usize::try_from(length).unwrap_or(0),
                checksum: Checksum::Unknown,
                tag: None,
            });
            taken += 1;
            self.rings.receive.take();
            self.spend(place / FRAME_BYTES * FRAME_BYTES);
        }
        if taken == 0 && self.spent.len() >= SPENT_IDLE {
            self.refill();
        }
        self.received += to_u64(taken);
        taken
    }

    /// Returns the next entry. The entry and its frame would come from another core's cache one after the other, so the
    /// frame is prefetched from its likely place.
    #[inline]
    fn next_frame(&self) -> Option<[u64; 2]> {
        if !self.rings.receive.has_entry() {
            return None;
        }
        let mut word = [0; 8];
        let _ = self.memory.read(self.likely + HEADROOM_BYTES, &mut word);
        hint::black_box(word);
        self.rings.receive.peek()
    }

    #[inline]
    fn spend(&mut self, place: u64) {
        self.spent.push(place);
        self.likely = if place + FRAME_BYTES < self.receive_end { place + FRAME_BYTES } else { 0 };
        if self.spent.len() == SPENT_MAX {
            self.refill();
        }
    }

    #[cold]
    fn refill(&mut self) {
        for place in self.spent.drain(..) {
            let is_put = self.rings.fill.put(&[place]);
            debug_assert!(is_put, "a ring with more entries than places");
        }
    }

    /// Makes the kernel poll the network card's queue, for as long as it was configured to.
    #[cold]
    fn poll(&self) {
        let mut nothing = [0_u8; 0];
        // This call receives nothing; the monitor reports what is wrong with the interface.
        let _ = recv(&self.socket, &mut nothing[..], RecvFlags::DONTWAIT);
    }

    pub(super) fn has_frame(&self) -> bool {
        self.rings.receive.has_entry()
    }

    /// Frees the places of frames that were sent.
    fn reap(&mut self) {
        while let Some([place, _]) = self.rings.completion.peek() {
            self.rings.completion.take();
            self.free.push(place / FRAME_BYTES * FRAME_BYTES);
        }
    }

    /// Queues a frame for sending; `false` if there is no room.
    #[inline]
    pub(super) fn send(&mut self, header: &[u8], parts: &[&[u8]]) -> bool {
        if self.free.is_empty() {
            self.reap();
        }
        let Some(place) = self.free.pop() else { return false };
        let mut at = place;
        for part in [header].iter().chain(parts) {
            let length = to_u64(part.len());
            if length > place + FRAME_BYTES - at || self.memory.write(at, part).is_err() {
                self.free.push(place);
                return false;
            }
            at += length;
        }
        let length = u32::try_from(at - place).unwrap_or(0).to_ne_bytes();
        let [a, b, c, d] = length;
        if !self.rings.send.put(&[place, u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0])]) {
            self.free.push(place);
            return false;
        }
        self.is_kick_due = true;
        true
    }

    #[inline]
    pub(super) fn flush(&mut self) -> io::Result<()> {
        for _ in 0..KICKS_MAX {
            if !self.is_kick_due {
                break;
            }
            match send(&self.socket, &[], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) => {
                    self.is_kick_due = false;
                    // Do this now: before the next frame, it would wait for that frame.
                    self.reap();
                }
                // A batch was sent, and there is more.
                Err(Errno::AGAIN) => self.reap(),
                Err(Errno::BUSY | Errno::NOBUFS) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    pub(super) const fn is_kick_due(&self) -> bool {
        self.is_kick_due
    }

    pub(super) fn is_sending(&mut self) -> bool {
        self.reap();
        self.free.len() < self.send_count
    }

    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty() || self.rings.completion.peek().is_some()
    }

    pub(super) fn join(&mut self, index: u32, group: MacAddress) -> io::Result<()> {
        let socket = match self.groups.take() {
            Some(socket) => socket,
            None => packet::membership_socket()?,
        };
        let joined = packet::join_group(&socket, index, group);
        self.groups = Some(socket);
        joined
    }

    pub(super) fn statistics(&self) -> io::Result<Statistics> {
        let kernel = sockopt::xdp_statistics(&self.socket)?;
        // Frames for which there was no place are counted among the first.
        let dropped = kernel.rx_dropped + kernel.rx_ring_full.unwrap_or(0);
        Ok(Statistics { received: self.received, dropped, ..Statistics::default() })
    }
}
