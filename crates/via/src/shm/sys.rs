//! The system calls: sealed files, sockets, the barrier across processes.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    cmsg_space,
    fs::SealFlags,
    thread::{MembarrierCommand, MembarrierQuery},
};

use super::{layout::wide, wire::PACKET_MAX};
pub(super) use crate::local_socket::accept;
use crate::{
    local_socket::{self, ReceivedPacket},
    vi::Memory,
};

/// The file system of memfds. Huge pages have another one, and may turn out missing when touched.
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// The number of callers that the kernel queues until they are accepted.
const BACKLOG: u32 = 128;

/// Creates an in-memory file that can neither shrink nor grow, and maps it. If `is_read_only`, only this
/// mapping can ever write it.
pub(super) fn make_file(length: usize, is_read_only: bool) -> io::Result<(OwnedFd, Memory)> {
    let file = local_socket::make_file("vigie-shm", length)?;
    let memory = Memory::map(file.as_fd(), length, true)?;
    #[cfg(loom)]
    memory.make_words();
    local_socket::seal_file(file.as_fd(), is_read_only)?;
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

/// Listens under an abstract name.
pub(super) fn listen(name: &str) -> io::Result<OwnedFd> {
    local_socket::listen(name, BACKLOG)
}

/// Connects to a name without blocking: [`io::ErrorKind::WouldBlock`] if the listener's queue is full.
pub(super) fn connect(name: &str) -> io::Result<OwnedFd> {
    local_socket::connect(name)?.ok_or_else(|| io::ErrorKind::ConnectionRefused.into())
}

/// Sends a packet with at most two files, without blocking.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    files: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(FILES_MAX))];
    local_socket::send(socket, bytes, files, &mut space)
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
    use io::ErrorKind::{ConnectionReset, Interrupted, WouldBlock};

    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(FILES_MAX))];
    let mut result = local_socket::receive(socket, bytes, &mut space);
    if matches!(&result, Err(error) if matches!(error.kind(), ConnectionReset | Interrupted)) {
        // The peer closed with data unread. What it sent before is still there.
        result = local_socket::receive(socket, bytes, &mut space);
    }

    match result {
        Ok(ReceivedPacket { length, is_cut, files, has_lost_files }) => {
            if is_cut || (has_lost_files && files.len() >= FILES_MAX) {
                SocketRead::Fault("a packet that is too long")
            } else if has_lost_files {
                SocketRead::FilesLost(length)
            } else if length == 0 {
                SocketRead::End
            } else {
                SocketRead::Packet(length, files)
            }
        }
        Err(error) if matches!(error.kind(), WouldBlock | Interrupted) => SocketRead::Nothing,
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
