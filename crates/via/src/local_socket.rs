//! Sockets between processes of one host and one user, over which packets and files travel, and files of memory for
//! them to share: for the shared-memory provider, and for barriers of processes.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{MemfdFlags, SealFlags},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
        SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
        SocketType,
    },
};

/// Creates a file of memory, all zero, which is to be [sealed](seal_file).
///
/// # Errors
/// The kernel's.
pub fn make_file(name: &str, length: usize) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, u64::try_from(length).unwrap_or(u64::MAX))?;
    Ok(file)
}

/// Fixes the length of a file of memory and, if `is_read_only`, keeps mappings made from now on from writing it.
///
/// # Errors
/// The kernel's.
pub fn seal_file(file: BorrowedFd<'_>, is_read_only: bool) -> io::Result<()> {
    let mut seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    seals.set(SealFlags::FUTURE_WRITE, is_read_only);
    Ok(rustix::fs::fcntl_add_seals(file, seals)?)
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Listens under an abstract name, which vanishes with the socket, for up to `backlog` pending connections.
///
/// # Errors
/// The kernel's.
pub fn listen(name: &str, backlog: u32) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    rustix::net::listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket)
}

/// Accepts the next connection; `None` if it is from another user.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if there is none; the kernel's.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    of_same_user(rustix::net::accept_with(listener, flags)?)
}

/// Connects to a name without waiting; `None` if another user listens there.
///
/// # Errors
/// [`io::ErrorKind::ConnectionRefused`] if no process listens there, [`io::ErrorKind::WouldBlock`] if too many are
/// connecting; the kernel's.
pub fn connect(name: &str) -> io::Result<Option<OwnedFd>> {
    let socket = socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    of_same_user(socket)
}

fn of_same_user(socket: OwnedFd) -> io::Result<Option<OwnedFd>> {
    let peer = rustix::net::sockopt::socket_peercred(socket.as_fd())?.uid;
    Ok((peer == rustix::process::geteuid()).then_some(socket))
}

/// Sends a packet with files, which must fit into `space`, without waiting.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] for too many files; the kernel's.
pub fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    files: &[BorrowedFd<'_>],
    space: &mut [MaybeUninit<u8>],
) -> io::Result<()> {
    let mut ancillary = SendAncillaryBuffer::new(space);
    if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags)?;
    Ok(())
}

/// A packet that was received.
#[derive(Debug)]
#[non_exhaustive]
pub struct ReceivedPacket {
    /// Its length in bytes; zero if the other end is closed.
    pub length: usize,
    /// True if it had more bytes than there was room for.
    pub is_cut: bool,
    /// Its files.
    pub files: Vec<OwnedFd>,
    /// True if some of its files are lost: there was no room for them, or this process may open no more.
    pub has_lost_files: bool,
}

/// Receives a packet and its files, for which `space` has room, without waiting.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if there is none; the kernel's.
pub fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    space: &mut [MaybeUninit<u8>],
) -> io::Result<ReceivedPacket> {
    let mut ancillary = RecvAncillaryBuffer::new(space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received =
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, flags)?;
    let mut files = Vec::new();
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = part {
            files.extend(descriptors);
        }
    }
    Ok(ReceivedPacket {
        length: received.bytes,
        is_cut: received.flags.contains(ReturnFlags::TRUNC),
        files,
        has_lost_files: received.flags.contains(ReturnFlags::CTRUNC),
    })
}
