//! AF_PACKET: rings shared with the kernel (TPACKET_V2), or, where the kernel refuses the rings, one call for
//! a batch of frames.
//!
//! Version 3 is not used: it passes on blocks of frames, and waits up to a millisecond until a block is full.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socket_with},
};

use super::{
    Statistics,
    address::{EtherType, MacAddress},
    borrowed_frame::{Frame, FrameData},
    error::{Capability, OpenError},
    frame_status::FrameStatus,
    segments::{FrameSegments, OFFLOAD_BYTES, SegmentError, SegmentParts},
    sys::{self, BATCH, FrameBatch},
};
use crate::memory::Memory;

const OPTION_ADD_MEMBERSHIP: i32 = 1;
const OPTION_RX_RING: i32 = 5;
const OPTION_STATISTICS: i32 = 6;
const OPTION_AUXILIARY: i32 = 8;
const OPTION_VERSION: i32 = 10;
const OPTION_TX_RING: i32 = 13;
const OPTION_LOSS: i32 = 14;
const OPTION_OFFLOAD_HEADER: i32 = 15;
const OPTION_QDISC_BYPASS: i32 = 20;
const OPTION_IGNORE_OUTGOING: i32 = 23;
const LEVEL_PACKET: i32 = 263;
const LEVEL_SOCKET: i32 = 1;
const OPTION_SEND_BUFFER: i32 = 7;
const OPTION_SEND_BUFFER_FORCE: i32 = 32;
const OPTION_RECEIVE_BUFFER: i32 = 8;
const OPTION_BUSY_POLL: i32 = 46;
const OPTION_PREFER_BUSY_POLL: i32 = 69;

const VERSION_2: u32 = 1;
const MEMBER_MULTICAST: u16 = 0;
const MEMBER_PROMISCUOUS: u16 = 1;

/// The offset of a frame to be sent in its slot: behind the slot's header.
const SEND_OFFSET: u64 = 32;
/// The most that the kernel puts in front of a received frame, with room to align it.
const RECEIVE_OFFSET_MAX: usize = 96;
const SEND_REQUEST: u64 = 1;
/// The slot can be filled.
const SEND_AVAILABLE: u32 = 0;
const WRONG_FORMAT: u32 = 4;
/// The size of a ring's block, which the kernel allocates in one piece.
const BLOCK_BYTES: usize = 64 * 1024;

/// What becomes of frames that the kernel takes for another host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForeignFrames {
    Dropped,
    /// Those that come are received.
    Received,
    /// The interface is to receive all of them (promiscuous).
    Wanted,
}

/// The settings of the back end.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkSettings {
    pub(super) index: u32,
    pub(super) ether_type: EtherType,
    pub(super) mtu: u32,
    pub(super) receive_frames: u32,
    pub(super) send_frames: u32,
    pub(super) busy_poll_us: u32,
    pub(super) foreign: ForeignFrames,
    pub(super) bypasses_queue: bool,
    /// Slots have room for the longest packet, whatever the MTU.
    pub(super) takes_segments: bool,
    /// A second socket sends segments.
    pub(super) sends_segments: bool,
    /// Packets have no header of the link.
    pub(super) is_headerless: bool,
}

/// Frames in slots that the kernel fills and empties.
#[derive(Debug)]
struct Rings {
    memory: Memory,
    /// The size of a slot for a received frame, and of one for a frame to be sent.
    frame_bytes: usize,
    send_frame_bytes: usize,
    receive_count: u64,
    /// 0: frames are sent by calls.
    send_count: u64,
    /// The next slot to be read, and the next to be filled.
    receive_at: u64,
    send_at: u64,
    /// The oldest slot that may still wait to be sent.
    sent_at: u64,
    waiting: u64,
    /// True if the kernel's header about segments is in front of each frame, received or sent.
    has_offloads: bool,
    /// True if slots were filled since the last kick.
    is_kick_due: bool,
}

/// An AF_PACKET socket.
#[derive(Debug)]
pub(super) struct PacketSocket {
    socket: OwnedFd,
    rings: Option<Rings>,
    batch: Option<FrameBatch>,
    /// True if the kernel's header about segments is in front of each frame of a batch.
    has_offloads: bool,
    /// Sends segments, without a ring: its slots would have room for 64 KiB each.
    segment_socket: Option<OwnedFd>,
    /// The counters of all reads of the kernel's, added up.
    statistics: Statistics,
}

fn option(socket: &OwnedFd, name: i32, value: u32) -> io::Result<()> {
    sys::set_option(socket, LEVEL_PACKET, name, &value.to_ne_bytes())
}

impl PacketSocket {
    /// Opens a socket; with rings if the kernel grants them, which `needs_rings` requires.
    pub(super) fn open(
        settings: &LinkSettings,
        wants_rings: bool,
        needs_rings: bool,
    ) -> Result<Self, OpenError> {
        let what = "opening an AF_PACKET socket";
        let failed = |error| OpenError::from_call(what, &[Capability::NetRaw], error);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // No protocol yet, so that nothing arrives before the socket is bound to the interface.
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
            .map_err(|error| failed(error.into()))?;

        // Refused by kernels before 4.6, where segments can only be cut.
        let has_offloads =
            settings.takes_segments && option(&socket, OPTION_OFFLOAD_HEADER, 1).is_ok();
        let mut rings = None;
        if wants_rings {
            match Rings::make(&socket, settings, has_offloads) {
                Ok(made) => rings = Some(made),
                Err(source) if needs_rings => {
                    return Err(OpenError::Kernel { what: "making AF_PACKET rings", source });
                }
                Err(_) => {}
            }
        }

        let mut batch = None;
        if rings.is_none() {
            let bytes = frame_bytes(settings, settings.takes_segments);
            option(&socket, OPTION_AUXILIARY, 1).map_err(failed)?;
            set_buffers(&socket, settings, bytes);
            batch = Some(FrameBatch::new(bytes));
        }

        // Both are refinements that old kernels lack.
        let _ = option(&socket, OPTION_IGNORE_OUTGOING, 1);
        if settings.bypasses_queue {
            option(&socket, OPTION_QDISC_BYPASS, 1).map_err(failed)?;
        }
        let is_single = settings.ether_type != EtherType::ALL;
        match settings.foreign {
            ForeignFrames::Dropped if is_single => sys::drop_foreign(&socket, settings.index),
            ForeignFrames::Received if is_single => {
                sys::drop_other_interfaces(&socket, settings.index)
            }
            _ => Ok(()),
        }
        .map_err(failed)?;
        set_busy_poll(&socket, settings.busy_poll_us).map_err(failed)?;
        sys::bind_packet(&socket, settings.index, settings.ether_type.0).map_err(|source| {
            OpenError::Kernel { what: "binding an AF_PACKET socket to the interface", source }
        })?;
        if settings.foreign == ForeignFrames::Wanted {
            become_promiscuous(&socket, settings.index).map_err(failed)?;
        }
        let segment_socket =
            if settings.sends_segments { open_for_segments(settings).ok() } else { None };
        let statistics = Statistics::default();
        Ok(Self { socket, rings, batch, has_offloads, segment_socket, statistics })
    }

    pub(super) const fn sends_segments(&self) -> bool {
        self.segment_socket.is_some()
    }

    /// Sends a frame of several segments: `false` if there is no room, `None` if it cannot.
    pub(super) fn send_segments(&self, parts: &SegmentParts<'_>) -> Option<io::Result<bool>> {
        let socket = self.segment_socket.as_ref()?;
        let SegmentParts { header, front, checksum, rest } = parts;
        Some(send_now(socket, &[header, *front, checksum, *rest].map(io::IoSlice::new)))
    }

    pub(super) const fn has_rings(&self) -> bool {
        self.rings.is_some()
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Passes at most `count` frames to `take`. Returns their number.
    #[inline]
    pub(super) fn receive(
        &mut self,
        count: usize,
        take: impl FnMut(&Frame<'_>),
    ) -> io::Result<usize> {
        match (&mut self.rings, &mut self.batch) {
            (Some(rings), _) => Ok(rings.receive(count, take)),
            (None, Some(batch)) => {
                receive_batches((&self.socket, self.has_offloads), batch, count, take)
            }
            (None, None) => Ok(0),
        }
    }

    /// Returns whether a frame is there, as far as that is known without a system call.
    pub(super) fn has_frame(&self) -> bool {
        self.rings.as_ref().is_some_and(Rings::has_frame)
    }

    /// Queues a frame for sending: `false` if there is no room.
    #[inline]
    pub(super) fn send(&mut self, header: &[u8], parts: &[&[u8]]) -> io::Result<bool> {
        if let Some(rings) = self.rings.as_mut().filter(|rings| rings.send_count > 0) {
            return Ok(rings.send(header, parts));
        }
        let mut slices = [io::IoSlice::new(&[]); 5];
        let front: &[u8] = if self.has_offloads { &NO_OFFLOAD } else { &[] };
        let mut joined = Vec::new();
        let slices = if parts.len() + 1 < slices.len() {
            for (slice, part) in slices.iter_mut().zip([front, header].iter().chain(parts)) {
                *slice = io::IoSlice::new(part);
            }
            &slices[..parts.len() + 2]
        } else {
            joined.extend_from_slice(front);
            joined.extend_from_slice(header);
            parts.iter().for_each(|part| joined.extend_from_slice(part));
            slices[0] = io::IoSlice::new(&joined);
            &slices[..1]
        };
        send_now(&self.socket, slices)
    }

    /// Makes the kernel send the queued frames.
    #[inline]
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let Some(rings) = &mut self.rings else { return Ok(()) };
        if !rings.is_kick_due {
            return Ok(());
        }
        rings.is_kick_due = false;
        match send(&self.socket, &[], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(_) => Ok(()),
            // The frames stay in their slots, for the next flush.
            Err(Errno::AGAIN | Errno::NOBUFS) => {
                rings.is_kick_due = true;
                Ok(())
            }
            Err(error) => {
                rings.is_kick_due = true;
                Err(error.into())
            }
        }
    }

    pub(super) fn is_kick_due(&self) -> bool {
        self.rings.as_ref().is_some_and(|rings| rings.is_kick_due)
    }

    /// Returns whether frames wait to be sent.
    pub(super) fn is_sending(&mut self) -> bool {
        self.rings.as_mut().is_some_and(Rings::reap)
    }

    /// Returns whether a frame can be queued.
    pub(super) fn has_room(&self) -> bool {
        self.rings.as_ref().is_none_or(Rings::has_room)
    }

    pub(super) fn join(&self, index: u32, group: MacAddress) -> io::Result<()> {
        join_group(&self.socket, index, group)
    }

    /// Reads and resets the kernel's counters. Returns the sums of all reads.
    pub(super) fn statistics(&mut self) -> io::Result<Statistics> {
        let mut words = [0; 8];
        let length = sys::option(&self.socket, LEVEL_PACKET, OPTION_STATISTICS, &mut words)?;
        if length == words.len() {
            let [seen, dropped] = words.as_chunks::<4>().0 else { return Ok(self.statistics) };
            let dropped = u64::from(u32::from_ne_bytes(*dropped));
            let seen = u64::from(u32::from_ne_bytes(*seen));
            self.statistics.dropped += dropped;
            self.statistics.received += seen.saturating_sub(dropped);
        }
        Ok(self.statistics)
    }
}

/// The kernel's header of a frame with nothing left to do.
const NO_OFFLOAD: [u8; OFFLOAD_BYTES] = [0; OFFLOAD_BYTES];
/// The most bytes that may wait in the socket that sends segments.
const SEGMENTS_WAITING_BYTES: u32 = 4 << 20;

/// Opens a socket that sends segments and receives nothing.
fn open_for_segments(settings: &LinkSettings) -> io::Result<OwnedFd> {
    let socket = membership_socket()?;
    option(&socket, OPTION_OFFLOAD_HEADER, 1)?;
    if settings.bypasses_queue {
        option(&socket, OPTION_QDISC_BYPASS, 1)?;
    }
    let waiting = SEGMENTS_WAITING_BYTES.to_ne_bytes();
    // Beyond the host's limit only with a right.
    if sys::set_option(&socket, LEVEL_SOCKET, OPTION_SEND_BUFFER_FORCE, &waiting).is_err() {
        let _ = sys::set_option(&socket, LEVEL_SOCKET, OPTION_SEND_BUFFER, &waiting);
    }
    sys::bind_packet(&socket, settings.index, EtherType::NONE.0)?;
    Ok(socket)
}

fn send_now(socket: &OwnedFd, slices: &[io::IoSlice<'_>]) -> io::Result<bool> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::net::sendmsg(socket, slices, &mut Default::default(), flags) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::NOBUFS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn receive_batches(
    (socket, has_offloads): (&OwnedFd, bool),
    batch: &mut FrameBatch,
    count: usize,
    mut take: impl FnMut(&Frame<'_>),
) -> io::Result<usize> {
    let mut taken = 0;
    while taken < count {
        let received = batch.receive(socket.as_fd(), count - taken, |one| {
            let tag = one.status.tag(one.tag.0, one.tag.1);
            let in_front = if has_offloads { OFFLOAD_BYTES.min(one.bytes.len()) } else { 0 };
            let (header, bytes) = one.bytes.split_at(in_front);
            take(&Frame {
                front: &[],
                source: FrameData::Slice(bytes),
                length: bytes.len(),
                wire_length: one.wire_length.saturating_sub(in_front),
                checksum: one.status.checksum(),
                tag,
                segments: segments(has_offloads, header),
            });
        });
        match received {
            Ok(received) => {
                taken += received;
                if received < BATCH {
                    break;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(taken)
}

/// Reads the kernel's header about segments, if there is one.
#[inline]
fn segments(has_offloads: bool, header: &[u8]) -> Result<Option<FrameSegments>, SegmentError> {
    if has_offloads { FrameSegments::parse(header) } else { Ok(None) }
}

fn set_buffers(socket: &OwnedFd, settings: &LinkSettings, bytes: usize) {
    let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
    for (name, frames) in [
        (OPTION_RECEIVE_BUFFER, settings.receive_frames),
        (OPTION_SEND_BUFFER, settings.send_frames),
    ] {
        let wanted = u32::try_from(u64::from(frames) * bytes).unwrap_or(i32::MAX.cast_unsigned());
        // The kernel grants as much as its limit allows.
        let _ = sys::set_option(socket, LEVEL_SOCKET, name, &wanted.to_ne_bytes());
    }
}

/// Lets the kernel poll the network card's queue for this long in calls on this socket.
pub(super) fn set_busy_poll(socket: impl AsFd + Copy, microseconds: u32) -> io::Result<()> {
    if microseconds == 0 {
        return Ok(());
    }
    sys::set_option(socket, LEVEL_SOCKET, OPTION_BUSY_POLL, &microseconds.to_ne_bytes())?;
    // Known since Linux 5.11; without it, interrupts are not deferred.
    let _ = sys::set_option(socket, LEVEL_SOCKET, OPTION_PREFER_BUSY_POLL, &1_u32.to_ne_bytes());
    Ok(())
}

/// Opens a socket that receives nothing, to be a member of groups on behalf of another one.
pub(super) fn membership_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?)
}

/// Joins a group for as long as the socket is open.
pub(super) fn join_group(socket: &OwnedFd, index: u32, group: MacAddress) -> io::Result<()> {
    membership(socket, index, MEMBER_MULTICAST, Some(group))
}

/// Makes the interface accept frames to others for as long as the socket is open.
pub(super) fn become_promiscuous(socket: &OwnedFd, index: u32) -> io::Result<()> {
    membership(socket, index, MEMBER_PROMISCUOUS, None)
}

/// Adds a membership (`struct packet_mreq`) for as long as the socket is open.
fn membership(
    socket: &OwnedFd,
    index: u32,
    kind: u16,
    group: Option<MacAddress>,
) -> io::Result<()> {
    let mut request = [0; 16];
    request[..4].copy_from_slice(&index.to_ne_bytes());
    request[4..6].copy_from_slice(&kind.to_ne_bytes());
    if let Some(MacAddress(bytes)) = group {
        request[6..8].copy_from_slice(&6_u16.to_ne_bytes());
        request[8..14].copy_from_slice(&bytes);
    }
    sys::set_option(socket, LEVEL_PACKET, OPTION_ADD_MEMBERSHIP, &request)
}

fn to_u64(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// Returns the size of a slot for a whole frame of the interface, with a tag.
fn frame_bytes(settings: &LinkSettings, takes_segments: bool) -> usize {
    if takes_segments {
        return (RECEIVE_OFFSET_MAX + super::HEADER_BYTES + 8 + BLOCK_BYTES).next_power_of_two();
    }
    let mtu = usize::try_from(settings.mtu).unwrap_or(usize::MAX).clamp(1500, BLOCK_BYTES - 128);
    (RECEIVE_OFFSET_MAX + super::HEADER_BYTES + 8 + mtu).next_power_of_two()
}

impl Rings {
    fn make(socket: &OwnedFd, settings: &LinkSettings, has_offloads: bool) -> io::Result<Self> {
        let frame_bytes = frame_bytes(settings, settings.takes_segments);
        // Segments are sent by a socket without a ring.
        let send_frame_bytes = self::frame_bytes(settings, false);

        option(socket, OPTION_VERSION, VERSION_2)?;
        // A frame that no longer fits the interface is skipped, and does not stop the others.
        option(socket, OPTION_LOSS, 1)?;
        let ring = |name: i32, frames: u32, frame_bytes: usize| -> io::Result<(u64, usize)> {
            let block_bytes = BLOCK_BYTES.max(frame_bytes);
            let frames_of_block = block_bytes / frame_bytes;
            let frames = usize::try_from(frames).map_err(io::Error::other)?;
            let blocks = frames.div_ceil(frames_of_block).max(1);
            let count = blocks * frames_of_block;
            let mut request = [0; 16];
            for (word, value) in request.as_chunks_mut::<4>().0.iter_mut().zip([
                block_bytes,
                blocks,
                frame_bytes,
                count,
            ]) {
                *word = u32::try_from(value).map_err(io::Error::other)?.to_ne_bytes();
            }
            sys::set_option(socket, LEVEL_PACKET, name, &request)?;
            Ok((to_u64(count), blocks * block_bytes))
        };

        let (receive_count, received) = ring(OPTION_RX_RING, settings.receive_frames, frame_bytes)?;
        let (send_count, sent) = if settings.is_headerless {
            // From a ring, the kernel takes a header of the link alone into the memory in which it looks for the protocol; without one, it finds
            // none, and tunnels drop the packet.
            (0, 0)
        } else {
            ring(OPTION_TX_RING, settings.send_frames, send_frame_bytes)?
        };
        let memory = Memory::map(socket.as_fd(), received + sent, true)?;

        Ok(Self {
            memory,
            frame_bytes,
            send_frame_bytes,
            receive_count,
            send_count,
            receive_at: 0,
            send_at: 0,
            sent_at: 0,
            waiting: 0,
            has_offloads,
            is_kick_due: false,
        })
    }

    fn wide(&self) -> u64 {
        to_u64(self.frame_bytes)
    }

    fn receive_slot(&self) -> u64 {
        self.receive_at * self.wide()
    }

    fn send_slot(&self, at: u64) -> u64 {
        self.receive_count * self.wide() + at * to_u64(self.send_frame_bytes)
    }

    /// Reads the status of a slot, and the length beside it.
    #[inline]
    fn status(&self, slot: u64) -> (u32, u32) {
        let bytes = self.memory.load(slot).unwrap_or(0).to_ne_bytes();
        let [a, b, c, d, e, f, g, h] = bytes;
        (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]))
    }

    #[inline]
    fn set_status(&self, slot: u64, status: u64, length: u64) {
        let word = if cfg!(target_endian = "little") {
            status | length << 32
        } else {
            status << 32 | length
        };
        let stored = self.memory.store(slot, word);
        debug_assert!(stored.is_ok(), "a slot of the rings");
    }

    fn has_frame(&self) -> bool {
        self.status(self.receive_slot()).0 & FrameStatus::USER != 0
    }

    #[inline]
    fn receive(&mut self, count: usize, mut take: impl FnMut(&Frame<'_>)) -> usize {
        for taken in 0..count {
            let slot = self.receive_slot();
            let (status, wire_length) = self.status(slot);
            if status & FrameStatus::USER == 0 {
                return taken;
            }
            // struct tpacket2_hdr: status, length, snap length, two offsets, time, tag, its protocol.
            let mut header = [0; 32];
            if self.memory.read(slot, &mut header).is_ok() {
                let length = u32::from_ne_bytes([header[8], header[9], header[10], header[11]]);
                let begin = u16::from_ne_bytes([header[12], header[13]]);
                let tag = u16::from_ne_bytes([header[24], header[25]]);
                let protocol = u16::from_ne_bytes([header[26], header[27]]);
                let status = FrameStatus(status);
                let bound = self.frame_bytes.saturating_sub(usize::from(begin));
                let mut offload = NO_OFFLOAD;
                if self.has_offloads {
                    let front = u64::from(begin).saturating_sub(to_u64(OFFLOAD_BYTES));
                    let _ = self.memory.read(slot + front, &mut offload);
                }
                take(&Frame {
                    front: &[],
                    source: FrameData::Memory(&self.memory, slot + u64::from(begin)),
                    length: usize::try_from(length).unwrap_or(0).min(bound),
                    wire_length: usize::try_from(wire_length).unwrap_or(0),
                    checksum: status.checksum(),
                    tag: status.tag(tag, protocol),
                    segments: segments(self.has_offloads, &offload),
                });
            }
            self.set_status(slot, 0, 0);
            self.receive_at = (self.receive_at + 1) % self.receive_count;
        }
        count
    }

    fn has_room(&self) -> bool {
        if self.send_count == 0 {
            return true;
        }
        let (status, _) = self.status(self.send_slot(self.send_at));
        matches!(status, SEND_AVAILABLE | WRONG_FORMAT)
    }

    #[inline]
    fn send(&mut self, header: &[u8], parts: &[&[u8]]) -> bool {
        if !self.has_room() {
            return false;
        }
        let slot = self.send_slot(self.send_at);
        let end = slot + to_u64(self.send_frame_bytes);
        let mut at = slot + SEND_OFFSET;
        let front: &[u8] = if self.has_offloads { &NO_OFFLOAD } else { &[] };
        for part in [front, header].iter().chain(parts) {
            let length = to_u64(part.len());
            // The caller has checked the length against the MTU, for which the slots were made.
            if length > end - at || self.memory.write(at, part).is_err() {
                return false;
            }
            at += length;
        }
        self.set_status(slot, SEND_REQUEST, at - slot - SEND_OFFSET);
        self.send_at = (self.send_at + 1) % self.send_count;
        self.waiting = (self.waiting + 1).min(self.send_count);
        self.is_kick_due = true;
        true
    }

    /// Frees the slots that were sent. Returns whether some still wait.
    fn reap(&mut self) -> bool {
        while self.waiting > 0 {
            let (status, _) = self.status(self.send_slot(self.sent_at));
            if !matches!(status, SEND_AVAILABLE | WRONG_FORMAT) {
                break;
            }
            self.sent_at = (self.sent_at + 1) % self.send_count;
            self.waiting -= 1;
        }
        self.waiting > 0
    }
}
