//! The messages between members while the group forms: packets with files, over Unix sockets.
//!
//! ```text
//!  member k                                     rank 0
//!    │ hello: secret, rank, size ── its socket ───▶│ from each member, in any order
//!    │◀──────── files: number of the first ────────│ the memory, then the liveness sockets of all, by rank
//!    │ received ──────────────────────────────────▶│ then the next member's turn
//! ```
//!
//! One member after the other, since the kernel limits the number of files in flight.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{BorrowedFd, OwnedFd},
};

use rustix::cmsg_space;
use vigie_via::local_socket;
pub(super) use vigie_via::local_socket::{accept, listen};

/// Begins every packet; the last two digits are the version.
const MAGIC: [u8; 8] = *b"vigbar01";

/// The length of the group's shared secret, in bytes.
pub(super) const SECRET_BYTES: usize = 16;

/// The longest packet in bytes: a hello.
const PACKET_MAX: usize = MAGIC.len() + 1 + SECRET_BYTES + 8;

/// The maximum number of files in a packet; the kernel allows 253.
pub(super) const FILES_MAX: usize = 128;

/// A packet, without its files.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Handshake {
    Hello { secret: [u8; SECRET_BYTES], rank: u32, size: u32 },
    Files { first: u32 },
    Received,
}

impl Handshake {
    fn encode(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        match self {
            Self::Hello { secret, rank, size } => {
                bytes.push(b'H');
                bytes.extend(secret);
                bytes.extend(rank.to_le_bytes());
                bytes.extend(size.to_le_bytes());
            }
            Self::Files { first } => {
                bytes.push(b'F');
                bytes.extend(first.to_le_bytes());
            }
            Self::Received => bytes.push(b'R'),
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.strip_prefix(&MAGIC[..])?.split_first()?;
        match kind {
            b'H' => {
                let (secret, rest) = rest.split_first_chunk()?;
                let (rank, rest) = rest.split_first_chunk()?;
                let size = rest.try_into().ok()?;
                let (rank, size) = (u32::from_le_bytes(*rank), u32::from_le_bytes(size));
                Some(Self::Hello { secret: *secret, rank, size })
            }
            b'F' => Some(Self::Files { first: u32::from_le_bytes(rest.try_into().ok()?) }),
            b'R' => rest.is_empty().then_some(Self::Received),
            _ => None,
        }
    }
}

/// Connects to a name without waiting: [`io::ErrorKind::ConnectionRefused`] if no process listens there yet,
/// [`io::ErrorKind::WouldBlock`] if too many are connecting.
pub(super) fn connect(name: &str) -> io::Result<OwnedFd> {
    local_socket::connect(name)?.ok_or_else(|| {
        let what = "another user listens under the name of the meeting";
        io::Error::new(io::ErrorKind::PermissionDenied, what)
    })
}

/// Sends a packet with at most [`FILES_MAX`] files, without waiting.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    message: Handshake,
    files: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(FILES_MAX))];
    local_socket::send(socket, &message.encode(), files, &mut space)
}

/// Receives a packet and its files without waiting. [`io::ErrorKind::UnexpectedEof`] if the other end is closed,
/// [`io::ErrorKind::InvalidData`] for data that no member sends.
pub(super) fn receive(socket: BorrowedFd<'_>) -> io::Result<(Handshake, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(FILES_MAX))];
    let mut bytes = [0; PACKET_MAX];
    let packet = local_socket::receive(socket, &mut bytes, &mut space)?;
    if packet.has_lost_files {
        let what = "files were lost: this process may open no more (see `ulimit -n`)";
        return Err(io::Error::new(io::ErrorKind::QuotaExceeded, what));
    }
    if packet.length == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let message = bytes.get(..packet.length).filter(|_| !packet.is_cut).and_then(Handshake::decode);
    Ok((message.ok_or(io::ErrorKind::InvalidData)?, packet.files))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every written packet can be read, and nothing else is a packet. Method: each kind, then every shorter form,
    /// a longer one, and every byte of the beginning changed.
    #[test]
    fn packets_are_read_as_written() {
        let packets = [
            Handshake::Hello { secret: [7; SECRET_BYTES], rank: 3, size: 1 << 16 },
            Handshake::Files { first: 129 },
            Handshake::Received,
        ];
        for message in packets {
            let bytes = message.encode();
            assert!(bytes.len() <= PACKET_MAX);
            assert!(Handshake::decode(&bytes) == Some(message));
            assert!((0..bytes.len()).all(|length| Handshake::decode(&bytes[..length]).is_none()));
            assert!(Handshake::decode(&[&bytes[..], &[0]].concat()).is_none());
            for at in 0..MAGIC.len() {
                let mut other = bytes.clone();
                other[at] ^= 1;
                assert!(Handshake::decode(&other).is_none());
            }
        }
    }
}
