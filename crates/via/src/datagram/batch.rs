//! Datagrams that one system call takes in.

#![expect(unsafe_code, reason = "recvmmsg, which rustix does not offer")]

use std::{
    io, mem,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
};

use super::HEADER_BYTES;

/// Datagrams of one call, at most.
pub(super) const BATCH: usize = 8;
/// Where a call seldom finds more than one: the headers of the others cost as much as the call.
pub(super) const FEW: usize = 2;
/// `struct sockaddr_in6`, the longer one.
const ADDRESS_BYTES: usize = 28;

/// What stands in front of a datagram, and what the kernel says of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Front {
    pub(super) bytes: [u8; HEADER_BYTES],
    pub(super) from: Option<SocketAddr>,
    /// Its length with the header, also if it was cut.
    pub(super) length: usize,
    pub(super) is_cut: bool,
}

impl Front {
    pub(super) const EMPTY: Self =
        Self { bytes: [0; HEADER_BYTES], from: None, length: 0, is_cut: false };
}

/// Receives the datagrams that are there, one for each of the buffers and fronts at most. Returns how many there were.
pub(super) fn receive(
    socket: BorrowedFd<'_>,
    buffers: &mut [Vec<u8>],
    fronts: &mut [Front; BATCH],
) -> io::Result<usize> {
    if buffers.len() <= FEW {
        receive_up_to::<FEW>(socket, buffers, fronts)
    } else {
        receive_up_to::<BATCH>(socket, buffers, fronts)
    }
}

#[inline]
fn receive_up_to<const MOST: usize>(
    socket: BorrowedFd<'_>,
    buffers: &mut [Vec<u8>],
    fronts: &mut [Front; BATCH],
) -> io::Result<usize> {
    let mut addresses = [[0_u8; ADDRESS_BYTES]; MOST];
    let mut places = [[libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; 2]; MOST];
    // SAFETY: a header of zeros is a valid one: no address, no places, no control data.
    let mut headers: [libc::mmsghdr; MOST] = unsafe { mem::zeroed() };
    let mut count: libc::c_uint = 0;
    let rows = buffers.iter_mut().zip(fronts.iter_mut()).zip(&mut addresses).zip(&mut places);
    for ((((buffer, front), address), place), header) in rows.zip(&mut headers) {
        place[0].iov_base = front.bytes.as_mut_ptr().cast();
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
    // Past the library's call, which would be one where a thread may be cancelled and pays for that each time.
    // SAFETY: each of the first `count` headers points to a front, a buffer and an address, with their lengths, all of
    // which live until the call returns and are borrowed by nobody else.
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
    for ((header, front), address) in headers.iter().zip(fronts).zip(&addresses).take(received) {
        front.length = usize::try_from(header.msg_len).unwrap_or(usize::MAX);
        front.is_cut = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
        front.from = parse(address);
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
