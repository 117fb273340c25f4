//! Socket queries and options that no crate in use offers.

#![expect(
    unsafe_code,
    reason = "SIOCOUTQ, SO_MEMINFO, SO_RCVLOWAT, UDP_GRO and recvmmsg, which rustix does not offer"
)]

use std::{
    io, mem,
    net::{Ipv6Addr, SocketAddr, SocketAddrV6},
    os::fd::{AsFd, AsRawFd},
    ptr,
};

/// Returns how many bytes written to a stream have not reached the peer's kernel yet; `None` if the socket does not
/// say.
pub(super) fn unsent_bytes(socket: &impl AsFd) -> Option<usize> {
    let mut count: libc::c_int = 0;
    let place = ptr::from_mut(&mut count);
    // SAFETY: the descriptor is open while it is borrowed; the kernel writes one `int` at `place`, which is `count`.
    let asked = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, place) };
    if asked == 0 { usize::try_from(count).ok() } else { None }
}

/// Lets readers of a TCP stream sleep until `bytes` are available (`SO_RCVLOWAT`), the stream has ended, or the kernel
/// has no room for more. If the kernel refuses, it wakes for each byte.
pub(super) fn set_low_water(socket: &impl AsFd, bytes: usize) {
    let value = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX).max(1);
    let length = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or(0);
    let (socket, place) = (socket.as_fd().as_raw_fd(), ptr::from_ref(&value).cast());
    // SAFETY: the descriptor is open while it is borrowed; the kernel reads `length` bytes at `place`, which are `value`.
    let set =
        unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, place, length) };
    if set != 0 {
        tracing::debug!(error = %io::Error::last_os_error(), "no low water mark for a stream");
    }
}

/// The number of values of `SO_MEMINFO` at the time of writing, and the index of the one that counts drops
/// (`SK_MEMINFO_DROPS`).
const MEMINFO_COUNT: usize = MEMINFO_DROPS + 1;
const MEMINFO_DROPS: usize = 8;

/// Returns how many datagrams the kernel has dropped at a socket, mostly because its queue was full. Counts modulo
/// 2^32; 0 if the kernel does not say (before 4.12).
pub(super) fn dropped_datagrams(socket: &impl AsFd) -> u32 {
    let mut numbers = [0_u32; MEMINFO_COUNT];
    let mut length = libc::socklen_t::try_from(size_of_val(&numbers)).unwrap_or(0);
    let (place, room) = (ptr::from_mut(&mut numbers).cast(), ptr::from_mut(&mut length));
    let (socket, level) = (socket.as_fd().as_raw_fd(), libc::SOL_SOCKET);
    // SAFETY: the descriptor is open while it is borrowed; the kernel writes at most `length` bytes at `place`, which
    // are those of `numbers`, and how many there were at `room`, which is `length`.
    let asked = unsafe { libc::getsockopt(socket, level, libc::SO_MEMINFO, place, room) };
    if asked == 0 { numbers[MEMINFO_DROPS] } else { 0 }
}

/// Lets the kernel merge datagrams of one sender and of one length at a socket (`UDP_GRO`, since 5.0). Without it, each comes alone.
pub(super) fn merge_datagrams(socket: &impl AsFd) {
    let value: libc::c_int = 1;
    let length = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or(0);
    let (socket, place) = (socket.as_fd().as_raw_fd(), ptr::from_ref(&value).cast());
    // SAFETY: the descriptor is open while it is borrowed; the kernel reads `length` bytes at `place`, which are `value`.
    let set = unsafe { libc::setsockopt(socket, libc::SOL_UDP, libc::UDP_GRO, place, length) };
    if set != 0 {
        tracing::debug!(error = %io::Error::last_os_error(), "datagrams are not merged");
    }
}

/// The length of `struct cmsghdr`: a length, a level and a type.
const CONTROL_HEADER_BYTES: usize = size_of::<libc::cmsghdr>();
/// Room for one control message with a number.
const CONTROL_BYTES: usize = CONTROL_HEADER_BYTES + size_of::<usize>();

/// Returns the length of merged datagrams, from the control message that came with them, if there is one.
fn segment_of(control: &[u8; CONTROL_BYTES]) -> Option<usize> {
    let (header, number) = control.split_at(CONTROL_HEADER_BYTES);
    let kind = [libc::SOL_UDP.to_ne_bytes(), libc::UDP_GRO.to_ne_bytes()].concat();
    let number = libc::c_int::from_ne_bytes(*number.first_chunk()?);
    (header[size_of::<usize>()..] == kind).then(|| usize::try_from(number).ok())?
}

/// The most messages of one [`receive_many`].
pub(super) const ARRIVALS_MAX: usize = 32;

/// A message that has arrived: a datagram, or several that were merged.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceivedMessage {
    pub(super) bytes: usize,
    /// The length of merged datagrams.
    pub(super) segment: Option<usize>,
    pub(super) from: Option<SocketAddr>,
}

/// The length of `struct sockaddr_in6`, the longer one of an IP socket.
const NAME_BYTES: usize = size_of::<libc::sockaddr_in6>();

/// Returns the address in a `struct sockaddr_in` or `sockaddr_in6`.
fn address_of(name: &[u8; NAME_BYTES]) -> Option<SocketAddr> {
    let [family, port] = [0, 2].map(|at| [name[at], name[at + 1]]);
    let word = |at: usize| name[at..].first_chunk::<4>().copied();
    let port = u16::from_be_bytes(port);
    match u16::from_ne_bytes(family).into() {
        libc::AF_INET => Some((word(4)?, port).into()),
        libc::AF_INET6 => {
            let ip = Ipv6Addr::from(*name[8..].first_chunk::<16>()?);
            let [flow, scope] = [word(4)?, word(24)?].map(u32::from_ne_bytes);
            Some(SocketAddrV6::new(ip, port, flow, scope).into())
        }
        _ => None,
    }
}

/// Receives what is there, without waiting (`recvmmsg`), and adds it to `arrivals`: the message `n` goes into the part `n` of `room`, whose parts have `part_bytes` each.
/// If fewer than [`ARRIVALS_MAX`] have arrived, no more were there, or an error that the socket reports next.
pub(super) fn receive_many(
    socket: &impl AsFd,
    room: &mut [u8],
    part_bytes: usize,
    arrivals: &mut Vec<ReceivedMessage>,
) -> io::Result<()> {
    let mut names = [[0_u8; NAME_BYTES]; ARRIVALS_MAX];
    // Aligned like the headers in it.
    let mut controls = [[0_usize; CONTROL_BYTES / size_of::<usize>()]; ARRIVALS_MAX];
    // SAFETY: these structures of numbers and pointers may be zero.
    let mut parts: [libc::iovec; ARRIVALS_MAX] = unsafe { mem::zeroed() };
    // SAFETY: the same.
    let mut messages: [libc::mmsghdr; ARRIVALS_MAX] = unsafe { mem::zeroed() };
    let places = names.iter_mut().zip(&mut controls).zip(&mut parts).zip(&mut messages);
    let mut count = 0;
    for ((((name, control), part), message), bytes) in places.zip(room.chunks_exact_mut(part_bytes))
    {
        *part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: part_bytes };
        let header = &mut message.msg_hdr;
        header.msg_name = name.as_mut_ptr().cast();
        header.msg_namelen = libc::socklen_t::try_from(NAME_BYTES).unwrap_or(0);
        (header.msg_iov, header.msg_iovlen) = (ptr::from_mut(part), 1);
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = CONTROL_BYTES as _;
        count += 1;
    }
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open while it is borrowed; the kernel writes to `count` messages, and where these point with the lengths beside
    // the pointers: to `names`, `controls` and `room`, all of which are borrowed or owned here and are moved by nothing before the last use.
    let received = unsafe {
        libc::recvmmsg(
            socket,
            messages.as_mut_ptr(),
            count,
            libc::MSG_DONTWAIT as _,
            ptr::null_mut(),
        )
    };
    let Ok(received) = usize::try_from(received) else { return Err(io::Error::last_os_error()) };
    for ((message, name), control) in messages.iter().zip(&names).zip(&controls).take(received) {
        let mut bytes = [0; CONTROL_BYTES];
        let words = bytes.chunks_exact_mut(size_of::<usize>()).zip(control);
        words.for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_ne_bytes()));
        let arrival = ReceivedMessage {
            bytes: usize::try_from(message.msg_len).unwrap_or(0).min(part_bytes),
            segment: segment_of(&bytes),
            from: address_of(name),
        };
        arrivals.push(arrival);
    }
    Ok(())
}

/// Returns the control message by which a train is cut into datagrams of `segment` bytes.
pub(super) fn segment_control(segment: usize) -> io::Result<[u8; CONTROL_BYTES]> {
    let segment = u16::try_from(segment).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut bytes = [0; CONTROL_BYTES];
    let (header, number) = bytes.split_at_mut(CONTROL_HEADER_BYTES);
    let (length, kind) = header.split_at_mut(size_of::<usize>());
    length.copy_from_slice(&(CONTROL_HEADER_BYTES + size_of_val(&segment)).to_ne_bytes());
    kind.copy_from_slice(&[libc::SOL_UDP.to_ne_bytes(), libc::UDP_SEGMENT.to_ne_bytes()].concat());
    number[..2].copy_from_slice(&segment.to_ne_bytes());
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        net::{TcpListener, TcpStream},
    };

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    /// Goal: no reader is woken for less than it asked for, unless nothing more comes. Method: bytes over loopback,
    /// which are available as soon as they have been written, and a check at each count.
    #[test]
    fn readers_sleep_below_the_low_water_mark() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let mut sender = TcpStream::connect(address).expect("it listens");
        let (receiver, _) = listener.accept().expect("connected");
        let is_readable = |seconds| {
            let mut asked = [PollFd::new(&receiver, PollFlags::IN)];
            let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
            poll(&mut asked, Some(&time)).expect("it can be asked") > 0
        };
        set_low_water(&receiver, 1000);
        sender.write_all(&[1; 999]).expect("connected");
        assert!(!is_readable(0), "999 of 1000 bytes");
        sender.write_all(&[1; 1]).expect("connected");
        assert!(is_readable(60), "1000 bytes");
        set_low_water(&receiver, 5000);
        assert!(!is_readable(0), "1000 of 5000 bytes");
        set_low_water(&receiver, 0);
        assert!(is_readable(60), "any byte");
        set_low_water(&receiver, 5000);
        drop(sender);
        assert!(is_readable(60), "the end");
    }
}
