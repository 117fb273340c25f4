//! The socket options that have no safe wrapper, and random bytes.

#![expect(unsafe_code, reason = "two socket options that rustix does not offer")]

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

/// Has the kernel cut datagrams into packets of `bytes` bytes; 0: not.
pub(super) fn set_segment(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    set(socket, libc::UDP_SEGMENT, bytes)
}

/// Has the kernel hand over packets of one sender glued together.
pub(super) fn set_gluing(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::UDP_GRO, 1)
}

fn set(socket: BorrowedFd<'_>, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or(0);
    let place = std::ptr::from_ref(&value).cast();
    // SAFETY: the descriptor is open while it is borrowed; the kernel reads `length` bytes at `place`, which are
    // those of `value`.
    let set = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, option, place, length) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns random bytes.
pub(crate) fn random() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        filled +=
            rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}
