//! Receives into memory that has not been initialised. A caller often offers a buffer of several kilobytes and receives a
//! hundred bytes; zeroing the whole buffer first would be wasted work.
#![expect(unsafe_code, reason = "only unsafe code reaches the uninitialised part of a `ReadBuf`")]

use std::{io, mem::MaybeUninit, os::fd::AsFd};

use rustix::net::{RecvFlags, recv};
use tokio::io::ReadBuf;

/// Receives bytes into the unfilled part of `buffer`, and returns how many were received.
pub(super) fn receive(
    socket: &impl AsFd,
    buffer: &mut ReadBuf<'_>,
    flags: RecvFlags,
) -> io::Result<usize> {
    fill(buffer, |room| Ok(recv(socket, room, flags)?.0.0.len()))
}

/// Reads bytes into the unfilled part of `buffer`, and returns how many were read.
pub(super) fn read(fd: &impl AsFd, buffer: &mut ReadBuf<'_>) -> io::Result<usize> {
    fill(buffer, |room| Ok(rustix::io::read(fd, room)?.0.len()))
}

/// Receives bytes into `buffer`, and returns how many with what else `receive` returns.
#[cfg(feature = "bytes")]
pub(super) fn into_buf<B: bytes::BufMut, T>(
    buffer: &mut B,
    receive: impl FnOnce(&mut ReadBuf<'_>) -> io::Result<T>,
) -> io::Result<(usize, T)> {
    // SAFETY: the slice is passed on as a `ReadBuf`, which writes nothing uninitialised to it.
    let room = unsafe { buffer.chunk_mut().as_uninit_slice_mut() };
    let mut room = ReadBuf::uninit(room);
    let received = receive(&mut room)?;
    let count = room.filled().len();
    // SAFETY: that many bytes are filled, from the start of the chunk.
    unsafe { buffer.advance_mut(count) };
    Ok((count, received))
}

/// Lets the kernel write to the unfilled part of `buffer`. `call` returns how many bytes it has initialised, from the
/// start.
fn fill(
    buffer: &mut ReadBuf<'_>,
    call: impl FnOnce(&mut [MaybeUninit<u8>]) -> io::Result<usize>,
) -> io::Result<usize> {
    // SAFETY: only the kernel writes to this memory, and every byte that it writes is initialised.
    let room = unsafe { buffer.unfilled_mut() };
    let count = call(room)?;
    // SAFETY: the kernel has written these bytes, from the start of the unfilled part. Both calls return the length of
    // the initialised part only.
    unsafe { buffer.assume_init(count) };
    buffer.advance(count);
    Ok(count)
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::unix::net::UnixStream};

    use super::*;

    #[test]
    fn only_filled_bytes_are_initialised() {
        // Goal: a read initialises the bytes that it fills and writes to no others. Method: two reads into a buffer whose
        // bytes hold a mark, which `ReadBuf` takes for uninitialised memory.
        const MARK: u8 = 0xa5;
        let (mut sender, receiver) = UnixStream::pair().expect("two sockets");
        let mut memory = [MaybeUninit::new(MARK); 4096];
        let mut buffer = ReadBuf::uninit(&mut memory);
        for message in ["sail", " ho"] {
            sender.write_all(message.as_bytes()).expect("there is room");
            let count = receive(&receiver, &mut buffer, RecvFlags::empty()).expect("a message");
            assert_eq!(count, message.len());
            assert_eq!(buffer.initialized().len(), buffer.filled().len());
        }
        assert_eq!(buffer.filled(), b"sail ho");
        let rest = &memory["sail ho".len()..];
        // SAFETY: every byte of `memory` was initialised with the mark.
        assert!(rest.iter().all(|byte| unsafe { byte.assume_init() } == MARK));
    }
}
