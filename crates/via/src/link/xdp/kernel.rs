//! The parts of AF_XDP that are shared with the kernel: four rings, and the program that redirects frames to them.
//!
//! # Invariants
//! - xdp-1: the offsets of a ring were checked against its mapping when it was made, and an index is masked
//!   before it is used: every access is inside, and aligned as the kernel lays rings out.
//! - xdp-2: only this side writes its own index of a ring, only the kernel the other one.

#![expect(unsafe_code, reason = "bpf(2), and the rings of AF_XDP: xdp-1, xdp-2")]

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr::{self, NonNull},
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use rustix::{
    mm::{MapFlags, ProtFlags, mmap, munmap},
    net::xdp::XdpRingOffset,
};

use crate::link::{EtherType, MacAddress};

/// One ring.
#[derive(Debug)]
pub(super) struct XdpRing {
    base: NonNull<u8>,
    length: usize,
    producer: usize,
    consumer: usize,
    entries: usize,
    entry_bytes: usize,
    count: u32,
    /// This side's index.
    at: u32,
}

// SAFETY: the mapping belongs to this ring alone, and is accessed only through a borrow of the ring.
unsafe impl Send for XdpRing {}

impl Drop for XdpRing {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no borrow from it is left.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok(), "a mapping of ours");
    }
}

impl XdpRing {
    /// Maps a ring of `count` entries, a power of two.
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        page: u64,
        offsets: &XdpRingOffset,
        count: u32,
        entry_bytes: usize,
    ) -> io::Result<Self> {
        let narrow = |offset: u64| usize::try_from(offset).map_err(io::Error::other);
        let [producer, consumer, entries] =
            [narrow(offsets.producer)?, narrow(offsets.consumer)?, narrow(offsets.desc)?];
        let length = entries + usize::try_from(count).map_err(io::Error::other)? * entry_bytes;
        let is_inside = |offset: usize| offset.is_multiple_of(4) && offset + 4 <= length;
        if !is_inside(producer) || !is_inside(consumer) || !entries.is_multiple_of(8) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: the kernel chooses a free address, so that no mapping of others is replaced.
        let base = unsafe { mmap(ptr::null_mut(), length, protection, flags, socket, page) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, length, producer, consumer, entries, entry_bytes, count, at: 0 })
    }

    fn index(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: inside the mapping (xdp-1).
        let place = unsafe { self.base.as_ptr().add(offset) };
        // SAFETY: aligned to 4 (xdp-1), alive as long as `self`; the kernel writes it as a whole.
        unsafe { AtomicU32::from_ptr(place.cast()) }
    }

    fn entry(&self, at: u32, word: usize) -> &AtomicU64 {
        let index = usize::try_from(at & (self.count - 1)).unwrap_or(0);
        let offset = self.entries + index * self.entry_bytes + word * 8;
        // SAFETY: inside the mapping, since the index is masked (xdp-1).
        let place = unsafe { self.base.as_ptr().add(offset) };
        // SAFETY: aligned to 8 (xdp-1), alive as long as `self`.
        unsafe { AtomicU64::from_ptr(place.cast()) }
    }

    /// As the producer: adds an entry, unless the ring is full. The second word is for rings of frames.
    #[inline]
    pub(super) fn put(&mut self, words: &[u64]) -> bool {
        // Acquire: pairs with the kernel's release of the entry that it has taken.
        let taken = self.index(self.consumer).load(Ordering::Acquire);
        if self.at.wrapping_sub(taken) >= self.count {
            return false;
        }
        for (number, word) in words.iter().enumerate().take(self.entry_bytes / 8) {
            self.entry(self.at, number).store(*word, Ordering::Relaxed);
        }
        self.at = self.at.wrapping_add(1);
        // Release: pairs with the kernel's acquire of the entry (xdp-2).
        self.index(self.producer).store(self.at, Ordering::Release);
        true
    }

    /// As the consumer: returns whether there is an entry.
    #[inline]
    pub(super) fn has_entry(&self) -> bool {
        // Acquire: pairs with the kernel's release of the entry that it has added.
        self.index(self.producer).load(Ordering::Acquire) != self.at
    }

    /// As the consumer: returns the words of the oldest entry without taking it.
    #[inline]
    pub(super) fn peek(&self) -> Option<[u64; 2]> {
        if !self.has_entry() {
            return None;
        }
        let word = |number| self.entry(self.at, number).load(Ordering::Relaxed);
        Some([word(0), if self.entry_bytes > 8 { word(1) } else { 0 }])
    }

    /// As the consumer: removes the oldest entry, which was read.
    #[inline]
    pub(super) fn take(&mut self) {
        self.at = self.at.wrapping_add(1);
        // Release: the entry was read before this (xdp-2).
        self.index(self.consumer).store(self.at, Ordering::Release);
    }
}

const MAP_CREATE: i64 = 0;
const MAP_UPDATE: i64 = 2;
const PROGRAM_LOAD: i64 = 5;
const LINK_CREATE: i64 = 28;
const MAP_TYPE_XSK: u32 = 17;
const PROGRAM_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;

/// Calls bpf(2), whose argument is given as words of 32 bits.
fn bpf(command: i64, words: &[u32; 32]) -> io::Result<i64> {
    // SAFETY: the kernel reads 128 bytes, which are there; what they point to lives until the caller of this
    // function returns, and the kernel has copied it by then.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, words.as_ptr(), 128) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn bpf_descriptor(command: i64, words: &[u32; 32]) -> io::Result<OwnedFd> {
    let descriptor = i32::try_from(bpf(command, words)?).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made it for us, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn pointer<T>(to: *const T) -> [u32; 2] {
    let address = u64::try_from(to.expose_provenance()).unwrap_or(0);
    let low = u32::try_from(address & 0xffff_ffff).unwrap_or(0);
    let high = u32::try_from(address >> 32).unwrap_or(0);
    if cfg!(target_endian = "little") { [low, high] } else { [high, low] }
}

fn word_of(descriptor: BorrowedFd<'_>) -> u32 {
    descriptor.as_raw_fd().cast_unsigned()
}

/// Makes the map from queues to sockets.
pub(super) fn make_map(queue: u32) -> io::Result<OwnedFd> {
    let mut words = [0; 32];
    words[..4].copy_from_slice(&[MAP_TYPE_XSK, 4, 4, queue + 1]);
    bpf_descriptor(MAP_CREATE, &words)
}

/// Puts the socket of a queue into the map: from now on, frames go there.
pub(super) fn lead(map: BorrowedFd<'_>, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    let value = word_of(socket);
    let mut words = [0; 32];
    words[0] = word_of(map);
    words[2..4].copy_from_slice(&pointer(&raw const queue));
    words[4..6].copy_from_slice(&pointer(&raw const value));
    bpf(MAP_UPDATE, &words).map(|_| ())
}

/// One instruction: operation, registers, offset, constant.
const fn step(operation: u8, to: u8, from: u8, offset: u16, constant: u32) -> u64 {
    let [a, b] = offset.to_ne_bytes();
    let [c, d, e, f] = constant.to_ne_bytes();
    u64::from_ne_bytes([operation, from << 4 | to, a, b, c, d, e, f])
}

/// The frames that go to the sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Filter {
    pub(super) ether_type: EtherType,
    /// Frames to this address and to groups; `None` for all addresses.
    pub(super) address: Option<MacAddress>,
}

const STEPS: usize = 24;
/// The step that passes a frame on to the kernel.
const PASS: u16 = 22;
/// The step that redirects a frame to the socket.
const REDIRECT: u16 = 16;

/// Returns the program: frames that match the filter go to the socket of their queue, if it has one, all
/// others on to the kernel. The map is named by its descriptor. The program compares 16-bit halves, to which
/// headers are always aligned.
fn program(filter: Filter, map: u32) -> [u64; STEPS] {
    // As it is loaded from the frame.
    let half = |bytes: [u8; 2]| u32::from(u16::from_ne_bytes(bytes));
    let load = |offset| step(0x69, 4, 2, offset, 0);
    // A jump counts from the step behind it.
    let pass_unless = |at: u16, wanted| step(0x55, 4, 0, PASS - at - 1, wanted);
    let protocol = match filter.ether_type {
        // Matches any protocol: compares the register to itself.
        EtherType::ALL => step(0xbf, 4, 4, 0, 0),
        EtherType(number) => pass_unless(6, half(number.to_be_bytes())),
    };
    // A group's address is odd in its first byte. For all addresses the bit must be at least 0, which it
    // always is.
    let takes_address = if filter.address.is_some() { 0x55 } else { 0x35 };
    let [a, b, c, d, e, f] = filter.address.unwrap_or(MacAddress::BROADCAST).0;
    [
        // r2 = data, r3 = its end; shorter than a header: pass.
        step(0x61, 2, 1, 0, 0),
        step(0x61, 3, 1, 4, 0),
        step(0xbf, 4, 2, 0, 0),
        step(0x07, 4, 0, 0, 14),
        step(0x2d, 4, 3, PASS - 5, 0),
        // r4 = protocol; another one: pass.
        load(12),
        protocol,
        // r4 = the group bit.
        step(0x71, 4, 2, 0, 0),
        step(0x54, 4, 0, 0, 1),
        step(takes_address, 4, 0, REDIRECT - 10, 0),
        // The address in three parts; another one: pass.
        load(0),
        pass_unless(11, half([a, b])),
        load(2),
        pass_unless(13, half([c, d])),
        load(4),
        pass_unless(15, half([e, f])),
        // redirect_map(map, queue, pass)
        step(0x61, 2, 1, 16, 0),
        step(0x18, 1, 1, 0, map),
        step(0, 0, 0, 0, 0),
        step(0xb7, 3, 0, 0, 2),
        step(0x85, 0, 0, 0, 51),
        step(0x95, 0, 0, 0, 0),
        // pass
        step(0xb7, 0, 0, 0, 2),
        step(0x95, 0, 0, 0, 0),
    ]
}

/// Loads the program.
pub(super) fn load(filter: Filter, map: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let steps = program(filter, word_of(map));
    let license = c"Dual MIT/GPL";
    let mut words = [0; 32];
    words[0] = PROGRAM_TYPE_XDP;
    words[1] = u32::try_from(steps.len()).map_err(io::Error::other)?;
    words[2..4].copy_from_slice(&pointer(steps.as_ptr()));
    words[4..6].copy_from_slice(&pointer(license.as_ptr()));
    bpf_descriptor(PROGRAM_LOAD, &words)
}

/// Attaches a program to an interface, for as long as the returned descriptor is open.
pub(super) fn attach(program: BorrowedFd<'_>, index: u32, flags: u32) -> io::Result<OwnedFd> {
    let mut words = [0; 32];
    words[..4].copy_from_slice(&[word_of(program), index, ATTACH_XDP, flags]);
    bpf_descriptor(LINK_CREATE, &words)
}
