//! Receives into memory that nobody has written to: a read of a hundred bytes into a buffer of some kilobytes would otherwise
//! spend more time on zeroing it than on receiving.
#![expect(unsafe_code, reason = "a `ReadBuf` gives its uninitialised part to unsafe code alone")]

use std::{io, os::fd::AsFd};

use rustix::net::{RecvFlags, recv};
use tokio::io::ReadBuf;

/// Receives into the unfilled part of `buffer`, and returns how many bytes are filled now that were not.
pub(super) fn receive(
    socket: &impl AsFd,
    buffer: &mut ReadBuf<'_>,
    flags: RecvFlags,
) -> io::Result<usize> {
    // SAFETY: nothing is written to this memory but by the kernel, which writes initialised bytes.
    let room = unsafe { buffer.unfilled_mut() };
    let ((received, _), _) = recv(socket, room, flags)?;
    let count = received.len();
    // SAFETY: these are the bytes that the kernel has written, from the beginning of the unfilled part on: `recv` gives out no
    // others as initialised.
    unsafe { buffer.assume_init(count) };
    buffer.advance(count);
    Ok(count)
}
