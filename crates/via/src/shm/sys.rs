//! The system calls: sealed files, sockets, the barrier across processes.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    cmsg_space,
    fs::{MemfdFlags, SealFlags},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
        SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
        SocketType,
    },
    thread::{MembarrierCommand, MembarrierQuery},
};

use super::{layout::wide, wire::PACKET_MAX};
use crate::vi::Memory;

/// The file system of memfds. Huge pages have another one, and may turn out missing when touched.
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// How many callers the kernel queues until they are accepted.
const BACKLOG: i32 = 128;

/// Creates an in-memory file that can neither shrink nor grow, and maps it. If `is_read_only`, only this
/// mapping can ever write it.
pub(super) fn make_file(length: usize, is_read_only: bool) -> io::Result<(OwnedFd, Memory)> {
    let file =
        rustix::fs::memfd_create("vigie-shm", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, wide(length))?;
    let memory = Memory::map(file.as_fd(), length, true)?;
    let mut seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    if is_read_only {
        seals |= SealFlags::FUTURE_WRITE;
    }
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok((file, memory))
}

/// Checks that a file from a peer can be mapped and touched safely: an ordinary memfd, long enough, and
/// sealed against shrinking.
pub(super) fn check_file(file: BorrowedFd<'_>, length: usize) -> Result<(), &'static str> {
    let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| "a file that cannot be sealed")?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err("a file that is not sealed against shrinking");
    }
    let system = rustix::fs::fstatfs(file).map_err(|_| "a file that is not a memfd")?;
    if u64::try_from(system.f_type).ok() != Some(TMPFS_MAGIC) {
        return Err("a file that is not a memfd");
    }
    let found = rustix::fs::fstat(file).map_err(|_| "a file that is not a memfd")?;
    if u64::try_from(found.st_size).map_or(true, |found| found < wide(length)) {
        return Err("a file that is too short");
    }
    Ok(())
}

/// Maps a file from a peer after that check.
pub(super) fn map_file(
    file: BorrowedFd<'_>,
    length: usize,
    is_writable: bool,
) -> Result<Memory, &'static str> {
    check_file(file, length)?;
    Memory::map(file, length, is_writable).map_err(|_| "a file that cannot be mapped")
}

fn socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?)
}

/// Listens under an abstract name, which vanishes with the socket.
pub(super) fn listen(name: &str) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Accepts the next caller, if it belongs to the same user. [`io::ErrorKind::WouldBlock`] if there is no
/// caller.
pub(super) fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::accept_with(listener, flags)?;
    Ok(is_same_user(socket.as_fd())?.then_some(socket))
}

/// Connects to a name without blocking: [`io::ErrorKind::WouldBlock`] if the listener's queue is full.
pub(super) fn connect(name: &str) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    if !is_same_user(socket.as_fd())? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(socket)
}

fn is_same_user(socket: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(rustix::net::sockopt::socket_peercred(socket)?.uid == rustix::process::geteuid())
}

/// Sends a packet with at most two files, without blocking.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    files: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags)?;
    Ok(())
}

/// The result of reading a socket.
#[derive(Debug)]
pub(super) enum SocketRead {
    /// This many bytes, and files.
    Packet(usize, Vec<OwnedFd>),
    /// Nothing yet.
    Nothing,
    /// The other end is closed.
    End,
    /// This many bytes, but some of their files are lost: this process has no descriptors left.
    FilesLost(usize),
    /// A packet that no correct peer sends.
    Fault(&'static str),
}

/// The most files of a packet.
const FILES_MAX: usize = 2;

/// Receives a packet, without blocking.
pub(super) fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8; PACKET_MAX]) -> SocketRead {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(FILES_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut buffers = [IoSliceMut::new(bytes)];
    let mut result = rustix::net::recvmsg(socket, &mut buffers, &mut ancillary, flags);
    if matches!(result, Err(rustix::io::Errno::CONNRESET | rustix::io::Errno::INTR)) {
        // The peer closed with data unread. What it sent before is still there.
        result = rustix::net::recvmsg(socket, &mut buffers, &mut ancillary, flags);
    }

    match result {
        Ok(message) => {
            let mut files = Vec::new();
            for close_connection in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = close_connection {
                    files.extend(descriptors);
                }
            }
            let is_cut = message.flags.contains(ReturnFlags::CTRUNC);
            if message.flags.contains(ReturnFlags::TRUNC) || (is_cut && files.len() >= FILES_MAX) {
                SocketRead::Fault("a packet that is too long")
            } else if is_cut {
                SocketRead::FilesLost(message.bytes)
            } else if message.bytes == 0 {
                SocketRead::End
            } else {
                SocketRead::Packet(message.bytes, files)
            }
        }
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => SocketRead::Nothing,
        Err(_) => SocketRead::End,
    }
}

/// Registers this process for [`barrier`]. Returns whether the kernel supports it.
pub(super) fn register_barrier() -> bool {
    let query = rustix::thread::membarrier_query();
    query.contains(MembarrierQuery::GLOBAL_EXPEDITED | MembarrierQuery::REGISTER_GLOBAL_EXPEDITED)
        && rustix::thread::membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
}

/// Executes a full memory barrier on every processor that runs a registered process.
///
/// # Errors
/// The kernel's error, with an explanation: it had allowed the call when this process registered.
pub(super) fn barrier() -> io::Result<()> {
    rustix::thread::membarrier(MembarrierCommand::GlobalExpedited).map_err(|errno| {
        let error = io::Error::from(errno);
        let what = format!(
            "membarrier(2) is refused after it was allowed ({error}), so a NIC cannot announce its sleep: a \
             seccomp filter must allow it, or be installed before the NIC is made"
        );
        io::Error::new(error.kind(), what)
    })
}
