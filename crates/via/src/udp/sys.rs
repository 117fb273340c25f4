//! The socket options that have no safe wrapper, sending from registered memory, and random bytes.

#![expect(
    unsafe_code,
    reason = "socket options and a call for memory that others write, which rustix does not offer"
)]

use std::{
    io, mem,
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
};

use rustix::net::SocketAddrAny;

use crate::software_nic::{Gather, GatherPart};

/// Lets the kernel cut datagrams into packets of `bytes` bytes; 0: not at all.
pub(super) fn set_segment(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    set(socket, libc::UDP_SEGMENT, bytes)
}

/// Lets the kernel glue packets of one sender together on arrival.
pub(super) fn set_gluing(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::UDP_GRO, 1)
}

fn set(socket: BorrowedFd<'_>, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or(0);
    let place = ptr::from_ref(&value).cast();
    // SAFETY: the descriptor is open while it is borrowed; the kernel reads `length` bytes at `place`, which are
    // those of `value`.
    let set = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, option, place, length) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The most parts per call: no datagram has more pieces of memory.
const PARTS_MAX: usize = 160;

/// Sends one datagram made of parts. `None` if there are too many.
pub(super) fn send_parts(
    socket: BorrowedFd<'_>,
    to: Option<&SocketAddrAny>,
    packets: &Gather,
) -> Option<io::Result<()>> {
    if packets.parts_max() > PARTS_MAX {
        return None;
    }
    let mut parts = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; PARTS_MAX];
    let mut count = 0;
    for (place, part) in parts.iter_mut().zip(packets.parts()) {
        let (base, length) = match part {
            GatherPart::Bytes(bytes) => (bytes.as_ptr(), bytes.len()),
            GatherPart::Memory { memory, offset, length } => {
                (memory.place(offset, length).ok()?, length)
            }
        };
        *place = libc::iovec { iov_base: base.cast_mut().cast(), iov_len: length };
        count += 1;
    }

    // SAFETY: a structure of numbers and pointers, for which all zeros is valid.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    if let Some(to) = to {
        message.msg_name = to.as_ptr().cast_mut().cast();
        message.msg_namelen = to.addr_len();
    }

    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = count;
    loop {
        // SAFETY: the descriptor is open while it is borrowed. The kernel reads the address, and `count`
        // parts whose bytes are borrowed with `packets`: vectors, and memory that lives as long and was
        // in bounds. The kernel tolerates concurrent writes by others, and no reference into that memory
        // exists.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, 0) };
        if sent >= 0 {
            return Some(Ok(()));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Some(Err(error));
        }
    }
}
