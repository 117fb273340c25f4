//! System calls that rustix does not offer: options, addresses and batches of AF_PACKET.

#![expect(unsafe_code, reason = "setsockopt, getsockopt, bind and recvmmsg of AF_PACKET")]

use std::{
    io, mem,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    ptr,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::frame_status::FrameStatus;

/// The most frames of one batch.
pub(super) const BATCH: usize = 16;
/// Has room for the one requested control message, and more.
const CONTROL_BYTES: usize = 64;

/// Sets an option to a value, given as the bytes that the kernel expects.
pub(crate) fn set_option(socket: impl AsFd, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    let length = libc::socklen_t::try_from(value.len()).map_err(io::Error::other)?;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open, and the kernel reads `length` bytes, which are there.
    let code = unsafe { libc::setsockopt(socket, level, name, value.as_ptr().cast(), length) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads an option into `value`. Returns its length in bytes.
pub(super) fn option(
    socket: impl AsFd,
    level: i32,
    name: i32,
    value: &mut [u8],
) -> io::Result<usize> {
    let mut length = libc::socklen_t::try_from(value.len()).map_err(io::Error::other)?;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes, which are ours.
    let code = unsafe {
        libc::getsockopt(socket, level, name, value.as_mut_ptr().cast(), &raw mut length)
    };
    if code == 0 {
        usize::try_from(length).map_err(io::Error::other)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Binds an AF_PACKET socket to one protocol of one interface.
pub(super) fn bind_packet(socket: impl AsFd, index: u32, protocol: u16) -> io::Result<()> {
    // struct sockaddr_ll: family, protocol in network order, interface; the rest does not matter here.
    let mut address = [0_u8; 20];
    let family = u16::try_from(libc::AF_PACKET).map_err(io::Error::other)?;
    address[..2].copy_from_slice(&family.to_ne_bytes());
    address[2..4].copy_from_slice(&protocol.to_be_bytes());
    address[4..8].copy_from_slice(&index.to_ne_bytes());
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open, and the kernel copies 20 bytes, which are there.
    let code = unsafe { libc::bind(socket, address.as_ptr().cast(), 20) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The request for an interface's driver (`SIOCETHTOOL`), which asks for its flags (`ETHTOOL_GFLAGS`), and the flag for large
/// receive offload.
const DRIVER_REQUEST: libc::c_ulong = 0x8946;
const READ_FLAGS: u32 = 0x25;
const FLAG_RECEIVE_OFFLOAD: u32 = 1 << 15;

/// `struct ifreq`: the interface's name, and the address of the command.
#[repr(C)]
struct DriverRequest {
    name: [u8; 16],
    command: *mut u32,
    rest: [u64; 2],
}

/// Returns whether an interface merges the packets that it receives into longer ones from which they cannot be made again (large
/// receive offload, LRO): a router would send packets that no host has sent. The interface is one of the calling thread's network
/// namespace.
///
/// # Errors
/// The kernel's, also if the name is not one of an interface, or if its driver has no such flags.
pub fn merges_packets(name: &str) -> io::Result<bool> {
    let mut command = [READ_FLAGS, 0];
    let mut request = DriverRequest { name: [0; 16], command: command.as_mut_ptr(), rest: [0; 2] };
    // The last byte stays 0.
    if name.len() >= request.name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    // SAFETY: the descriptor is open; the kernel reads the request and the two words of the command, and writes the second one;
    // both live until the call returns.
    let code = unsafe { libc::ioctl(socket.as_raw_fd(), DRIVER_REQUEST as _, &raw mut request) };
    if code == 0 {
        Ok(command[1] & FLAG_RECEIVE_OFFLOAD != 0)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// `SKF_AD_OFF` plus `SKF_AD_PKTTYPE`: the kind of receiver, as the kernel sees it.
const PACKET_TYPE: u32 = 0xffff_f004;
/// `SKF_AD_OFF` plus `SKF_AD_IFINDEX`: the interface that the kernel now takes for that of arrival.
const INTERFACE: u32 = 0xffff_f008;

const fn step(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// Lets the kernel drop frames of other interfaces than this one: a socket of a single protocol also gets those of its interface's VLANs.
pub(super) fn drop_other_interfaces(socket: impl AsFd, index: u32) -> io::Result<()> {
    filter(
        socket,
        &mut [
            step(0x20, 0, 0, INTERFACE),
            step(0x15, 0, 1, index),
            step(0x06, 0, 0, u32::MAX),
            step(0x06, 0, 0, 0),
        ],
    )
}

/// As [`drop_other_interfaces`], and drops frames to another interface's address.
pub(super) fn drop_foreign(socket: impl AsFd, index: u32) -> io::Result<()> {
    filter(
        socket,
        &mut [
            step(0x20, 0, 0, INTERFACE),
            step(0x15, 0, 3, index),
            step(0x30, 0, 0, PACKET_TYPE),
            step(0x15, 1, 0, u32::from(libc::PACKET_OTHERHOST)),
            step(0x06, 0, 0, u32::MAX),
            step(0x06, 0, 0, 0),
        ],
    )
}

/// As [`drop_foreign`], and drops frames whose two bytes at `offset` are not `value`.
pub(super) fn drop_all_but(
    socket: impl AsFd,
    index: u32,
    (offset, value): (u32, u16),
) -> io::Result<()> {
    filter(
        socket,
        &mut [
            step(0x20, 0, 0, INTERFACE),
            step(0x15, 0, 5, index),
            step(0x30, 0, 0, PACKET_TYPE),
            step(0x15, 3, 0, u32::from(libc::PACKET_OTHERHOST)),
            // Beyond the end of a short frame, this load drops the frame.
            step(0x28, 0, 0, offset),
            step(0x15, 0, 1, u32::from(value)),
            step(0x06, 0, 0, u32::MAX),
            step(0x06, 0, 0, 0),
        ],
    )
}

/// Attaches a program of classic BPF in place of the previous one.
fn filter(socket: impl AsFd, program: &mut [libc::sock_filter]) -> io::Result<()> {
    let len = libc::c_ushort::try_from(program.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog { len, filter: program.as_mut_ptr() };
    let length = libc::socklen_t::try_from(size_of_val(&program)).map_err(io::Error::other)?;
    let socket = socket.as_fd().as_raw_fd();
    let value = (&raw const program).cast();
    // SAFETY: the descriptor is open, and the kernel copies the `len` steps to which the value points, which
    // live until the call returns.
    let code = unsafe {
        libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, value, length)
    };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The buffers of a batch of received frames.
#[derive(Debug)]
pub(super) struct FrameBatch {
    /// `BATCH` slots of `frame_bytes`.
    bytes: Vec<u8>,
    frame_bytes: usize,
}

/// A frame of a batch.
#[derive(Debug)]
pub(super) struct ReceivedFrame<'a> {
    pub(super) bytes: &'a [u8],
    /// Its length on the wire; larger than `bytes` if it was cut off.
    pub(super) wire_length: usize,
    pub(super) status: FrameStatus,
    /// The tag and its protocol.
    pub(super) tag: (u16, u16),
}

impl FrameBatch {
    pub(super) fn new(frame_bytes: usize) -> Self {
        Self { bytes: vec![0; BATCH * frame_bytes], frame_bytes }
    }

    /// Receives at most `count` available frames, and passes each to `take`. Returns their number.
    pub(super) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        count: usize,
        mut take: impl FnMut(ReceivedFrame<'_>),
    ) -> io::Result<usize> {
        let mut controls = [[0_u64; CONTROL_BYTES / 8]; BATCH];
        let mut places = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; BATCH];
        // SAFETY: a header of zeros is a valid one: no address, no places, no control data.
        let mut headers: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };

        let parts = self.bytes.chunks_exact_mut(self.frame_bytes);
        for (((part, place), header), control) in
            parts.zip(&mut places).zip(&mut headers).zip(&mut controls)
        {
            place.iov_base = part.as_mut_ptr().cast();
            place.iov_len = part.len();
            header.msg_hdr.msg_iov = place;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = CONTROL_BYTES;
        }

        let count = u32::try_from(count.min(BATCH)).map_err(io::Error::other)?;
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: every header points to one place and one control buffer, which live until the call
        // returns, and `count` is at most their number.
        let received = unsafe {
            libc::recvmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), count, flags, ptr::null_mut())
        };
        let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;

        let parts = self.bytes.chunks_exact(self.frame_bytes);
        for ((part, header), control) in parts.zip(&headers).zip(&controls).take(received) {
            let wire_length = usize::try_from(header.msg_len).map_err(io::Error::other)?;
            let (status, tag) = auxiliary(control, header.msg_hdr.msg_controllen);
            let bytes = &part[..wire_length.min(part.len())];
            take(ReceivedFrame { bytes, wire_length, status, tag });
        }
        Ok(received)
    }
}

/// Finds the status and the VLAN tag in a control message (`struct cmsghdr`, `struct tpacket_auxdata`).
fn auxiliary(control: &[u64], length: usize) -> (FrameStatus, (u16, u16)) {
    // On 64 bits, 16 bytes of header: length, level, type. Then status, length, snap length, two offsets,
    // tag, and its protocol.
    let mut bytes = [0; CONTROL_BYTES];
    for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(control) {
        *to = word.to_ne_bytes();
    }
    let int_at = |at: usize| {
        bytes[at..].first_chunk().map_or(0, |bytes: &[u8; 4]| i32::from_ne_bytes(*bytes))
    };
    let is_auxiliary =
        length >= 36 && int_at(8) == libc::SOL_PACKET && int_at(12) == libc::PACKET_AUXDATA;
    if !is_auxiliary {
        return (FrameStatus::default(), (0, 0));
    }
    let tag = u16::from_ne_bytes([bytes[32], bytes[33]]);
    let protocol = u16::from_ne_bytes([bytes[34], bytes[35]]);
    (FrameStatus(int_at(16).cast_unsigned()), (tag, protocol))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an interface's driver is asked, and what is no interface is an error. Method: the loopback interface, which merges
    /// nothing, and names that are none.
    #[test]
    fn loopback_merges_nothing() {
        assert!(!merges_packets("lo").expect("every namespace has it"));
        for name in ["no-such", "longer-than-a-name", ""] {
            assert!(merges_packets(name).is_err(), "{name}");
        }
    }
}
