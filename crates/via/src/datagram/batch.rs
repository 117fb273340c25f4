//! The datagrams that one system call receives.

#![expect(unsafe_code, reason = "recvmmsg, which rustix does not offer")]

use std::{
    io, mem,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
};

use super::HEADER_BYTES;

/// The most datagrams of one call.
pub(super) const BATCH: usize = 8;
/// The datagrams of one call where more than one is rare: headers for more cost as much as the call itself.
pub(super) const FEW: usize = 2;
/// The size of `struct sockaddr_in6`, the longest address.
const ADDRESS_BYTES: usize = 28;

/// The header in front of a datagram, and what the kernel reports about it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceivedHeader {
    pub(super) bytes: [u8; HEADER_BYTES],
    pub(super) from: Option<SocketAddr>,
    /// Its length with the header, even if it was cut.
    pub(super) length: usize,
    pub(super) is_cut: bool,
}

impl ReceivedHeader {
    pub(super) const EMPTY: Self =
        Self { bytes: [0; HEADER_BYTES], from: None, length: 0, is_cut: false };
}

/// Receives the datagrams that are there, at most one for each of the buffers and fronts. Returns their number.
pub(super) fn receive(
    socket: BorrowedFd<'_>,
    buffers: &mut [Vec<u8>],
    received_headers: &mut [ReceivedHeader; BATCH],
) -> io::Result<usize> {
    if buffers.len() <= FEW {
        receive_up_to::<FEW>(socket, buffers, received_headers)
    } else {
        receive_up_to::<BATCH>(socket, buffers, received_headers)
    }
}

#[inline]
fn receive_up_to<const MOST: usize>(
    socket: BorrowedFd<'_>,
    buffers: &mut [Vec<u8>],
    received_headers: &mut [ReceivedHeader; BATCH],
) -> io::Result<usize> {
    let mut addresses = [[0_u8; ADDRESS_BYTES]; MOST];
    let mut places = [[libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; 2]; MOST];
    // SAFETY: a header of zeros is a valid one: no address, no places, no control data.
    let mut headers: [libc::mmsghdr; MOST] = unsafe { mem::zeroed() };

    let mut count: libc::c_uint = 0;
    let rows =
        buffers.iter_mut().zip(received_headers.iter_mut()).zip(&mut addresses).zip(&mut places);
    for ((((buffer, received_header), address), place), header) in rows.zip(&mut headers) {
        place[0].iov_base = received_header.bytes.as_mut_ptr().cast();
        place[0].iov_len = HEADER_BYTES;
        place[1].iov_base = buffer.as_mut_ptr().cast();
        place[1].iov_len = buffer.len();
        header.msg_hdr.msg_iov = place.as_mut_ptr();
        header.msg_hdr.msg_iovlen = place.len();
        header.msg_hdr.msg_name = address.as_mut_ptr().cast();
        header.msg_hdr.msg_namelen = libc::socklen_t::try_from(ADDRESS_BYTES).unwrap_or(0);
        count += 1;
    }

    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    let no_timeout = ptr::null_mut::<libc::timespec>();
    // Bypasses the library's call, which is a cancellation point and pays for that each time.
    // SAFETY: each of the first `count` headers points to a front, a buffer and an address, with their lengths, all of
    // which live and are exclusively borrowed until the call returns.
    let received = unsafe {
        libc::syscall(
            libc::SYS_recvmmsg,
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            count,
            flags,
            no_timeout,
        )
    };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;

    for ((header, received_header), address) in
        headers.iter().zip(received_headers).zip(&addresses).take(received)
    {
        received_header.length = usize::try_from(header.msg_len).unwrap_or(usize::MAX);
        received_header.is_cut = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
        received_header.from = parse(address);
    }
    Ok(received)
}

/// Reads a `struct sockaddr_in` or `struct sockaddr_in6`.
fn parse(bytes: &[u8; ADDRESS_BYTES]) -> Option<SocketAddr> {
    let family = i32::from(u16::from_ne_bytes(*bytes.first_chunk()?));
    let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
    if family == libc::AF_INET {
        let octets: [u8; 4] = *bytes.get(4..)?.first_chunk()?;
        return Some(SocketAddr::new(Ipv4Addr::from(octets).into(), port));
    }
    let octets: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
    (family == libc::AF_INET6).then(|| SocketAddr::new(Ipv6Addr::from(octets).into(), port))
}
