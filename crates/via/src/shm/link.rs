//! One end of a connection: the socket, the two rings, and the peer's memory that is mapped here.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, OwnedFd},
};

use super::{
    bell::PeerPage,
    entry::{Draft, Entry, Kind, Place},
    layout::size,
    ring::{Consumer, Producer},
    sys,
    table::{Access, Table},
    wire::Packet,
};
use crate::vi::{Memory, MemoryHandle, Reason, RemoteKey, Status};

/// The most bytes of a peer's memory that are mapped, so that no peer can use up the addresses of this
/// process: what it grants beyond is reached through its owner.
const MAPPED_MAX_BYTES: u64 = 1 << 36;
/// The most regions that one end maps of the other.
pub(super) const GRANTS_MAX: usize = 1024;

#[derive(Debug)]
pub(super) struct Link {
    pub(super) socket: OwnedFd,
    pub(super) producer: Producer,
    pub(super) consumer: Consumer,
    pub(super) page: PeerPage,
    /// Entries in flight that the peer has to put in place.
    hull: Option<Hull>,
    /// The peer's memory that is mapped here.
    mapped: Vec<Mapped>,
    mapped_bytes: u64,
    /// How many regions were granted, and could not be mapped.
    unmapped_count: u64,
    /// Where in `mapped` the last search ended.
    last_mapped: usize,
    /// This side's memory that the peer maps.
    granted: Vec<RemoteKey>,
    /// What is still to be told about memory.
    news: VecDeque<News>,
    /// Bells that the peer rang.
    pub(super) bell_count: u64,
    /// Whether the peer was told to ring when it consumes.
    is_wanting: bool,
}

#[derive(Debug)]
struct Mapped {
    key: RemoteKey,
    memory: Memory,
    allows_write: bool,
    allows_read: bool,
}

#[derive(Debug)]
enum News {
    Grant(MemoryHandle),
    Revoke(RemoteKey),
}

/// Where data may land that the peer has not put in place yet: a write to the same place must not
/// overtake it, nor a read.
#[derive(Clone, Copy, Debug)]
struct Hull {
    key: RemoteKey,
    from: u64,
    to: u64,
    /// All of it is in place when so many entries are consumed.
    until: u64,
    /// Whether it was put together from several regions.
    is_mixed: bool,
}

impl Hull {
    const fn overlaps(&self, key: RemoteKey, from: u64, to: u64) -> bool {
        self.is_mixed || (self.key.0 == key.0 && self.from < to && from < self.to)
    }
}

impl Link {
    pub(super) fn new(
        socket: OwnedFd,
        producer: Producer,
        consumer: Consumer,
        page: PeerPage,
    ) -> Self {
        Self {
            socket,
            producer,
            consumer,
            page,
            hull: None,
            mapped: Vec::new(),
            mapped_bytes: 0,
            unmapped_count: 0,
            last_mapped: 0,
            granted: Vec::new(),
            news: VecDeque::new(),
            bell_count: 0,
            is_wanting: false,
        }
    }

    // ------------------------------------------------------------------ entries

    /// Publishes an entry, for which there must be room, and wakes the peer if it sleeps.
    #[inline]
    pub(super) fn push(&mut self, entry: &Entry, draft: &Draft) {
        entry.encode(draft);
        self.producer.push(draft);
        if entry.kind == Kind::Write && entry.place != Place::Placed {
            let length = match entry.place {
                Place::Inline { length } => u64::from(length),
                Place::Staged { length, .. } => u64::from(length),
                Place::Placed => 0,
            };
            self.note(entry.key, entry.offset, length, self.producer.tail());
        }
        self.ring_if_asleep();
    }

    #[inline]
    fn note(&mut self, key: RemoteKey, offset: u64, length: u64, until: u64) {
        let (from, to) = (offset, offset.saturating_add(length));
        self.hull = Some(match self.hull {
            None => Hull { key, from, to, until, is_mixed: false },
            Some(hull) => Hull {
                key,
                from: from.min(hull.from),
                to: to.max(hull.to),
                until,
                is_mixed: hull.is_mixed || hull.key != key,
            },
        });
    }

    /// Returns whether data in flight may still land in this place of the peer's memory.
    pub(super) fn is_in_flight(
        &mut self,
        key: RemoteKey,
        offset: u64,
        length: u64,
    ) -> Result<bool, &'static str> {
        let (from, to) = (offset, offset.saturating_add(length));
        let Some(hull) = self.hull else { return Ok(false) };
        if !hull.overlaps(key, from, to) {
            return Ok(false);
        }
        let consumed = self.producer.refresh()?;
        self.hull = None;
        // What the entries say now is the peer's to change; it would deceive itself.
        let mut is_overlapping = false;
        for position in consumed..self.producer.tail().min(hull.until) {
            let entry = self.producer.written(position).and_then(|line| Entry::decode(&line).ok());
            let Some(entry) = entry else { continue };
            let length = match entry.place {
                Place::Inline { length } => u64::from(length),
                Place::Staged { length, .. } => u64::from(length),
                Place::Placed => continue,
            };
            if entry.kind == Kind::Write {
                let end = entry.offset.saturating_add(length);
                is_overlapping |= entry.key == key && entry.offset < to && from < end;
                self.note(entry.key, entry.offset, length, position + 1);
            }
        }
        Ok(is_overlapping)
    }

    // ------------------------------------------------------------------ bells

    #[inline]
    pub(super) fn ring_if_asleep(&mut self) {
        if self.page.must_ring(|| true) {
            self.ring();
        }
    }

    /// Tells the peer what was consumed, and wakes it if it sleeps and waits for that.
    #[inline]
    pub(super) fn tell_consumed(&mut self) {
        if self.consumer.tell() && self.page.must_ring(|| self.consumer.peer_wants()) {
            self.ring();
        }
    }

    #[cold]
    fn ring(&self) {
        // A socket that is full has something for the peer to wake up for; one that is closed is noticed
        // where it is read.
        let _ = sys::send(self.socket.as_fd(), &Packet::Bell.encode(), &[]);
    }

    /// Says whether the peer should ring when it consumes while this side sleeps.
    pub(super) fn want(&mut self, is_wanted: bool) {
        if self.is_wanting != is_wanted {
            self.is_wanting = is_wanted;
            self.producer.want(is_wanted);
        }
    }

    // ------------------------------------------------------------------ memory of the peer

    /// Returns the peer's memory if it is mapped here, good still, and this access is allowed and inside.
    pub(super) fn reach(
        &mut self,
        key: RemoteKey,
        offset: u64,
        length: u64,
        access: Access,
    ) -> Option<&Memory> {
        if self.mapped.get(self.last_mapped).is_none_or(|mapped| mapped.key != key) {
            self.last_mapped = self.mapped.iter().position(|mapped| mapped.key == key)?;
        }
        let mapped = self.mapped.get(self.last_mapped)?;
        let is_allowed = match access {
            Access::Write => mapped.allows_write,
            Access::Read => mapped.allows_read,
        };
        let end = offset.checked_add(length)?;
        let is_inside = usize::try_from(end).is_ok_and(|end| end <= mapped.memory.len());
        (is_allowed && is_inside && self.page.is_live(key)).then_some(&mapped.memory)
    }

    /// Returns the peer's memory, if it is mapped here and good still.
    pub(super) fn window(&self, key: RemoteKey) -> Option<Memory> {
        let mapped = self.mapped.iter().find(|mapped| mapped.key == key)?;
        self.page.is_live(key).then(|| mapped.memory.clone())
    }

    /// Maps memory that the peer granted.
    ///
    /// # Errors
    /// If the peer is at fault.
    pub(super) fn map(&mut self, grant: &Packet, file: &OwnedFd) -> Result<(), &'static str> {
        let Packet::Grant { key, length, allows_write, allows_read } = grant else { return Ok(()) };
        self.may_grant()?;
        if self.mapped.iter().any(|mapped| mapped.key == *key) {
            return Err("memory granted twice");
        }
        let Some(mapped_bytes) =
            self.mapped_bytes.checked_add(*length).filter(|bytes| *bytes <= MAPPED_MAX_BYTES)
        else {
            return self.miss();
        };
        let memory = sys::map_file(file.as_fd(), size(*length), *allows_write)?;
        self.mapped_bytes = mapped_bytes;
        let (key, allows_write, allows_read) = (*key, *allows_write, *allows_read);
        self.mapped.push(Mapped { key, memory, allows_write, allows_read });
        Ok(())
    }

    /// Takes note of memory that was granted and cannot be mapped: it is reached through its owner.
    ///
    /// # Errors
    /// If the peer is at fault.
    pub(super) fn miss(&mut self) -> Result<(), &'static str> {
        self.may_grant()?;
        self.unmapped_count += 1;
        Ok(())
    }

    fn may_grant(&self) -> Result<(), &'static str> {
        let granted = size(self.unmapped_count).saturating_add(self.mapped.len());
        if granted < GRANTS_MAX { Ok(()) } else { Err("more memory granted than is allowed") }
    }

    /// Gives memory back that the peer takes back.
    ///
    /// # Errors
    /// If the peer is at fault.
    pub(super) fn unmap(&mut self, key: RemoteKey) -> Result<(), &'static str> {
        let Some(index) = self.mapped.iter().position(|mapped| mapped.key == key) else {
            let left = self.unmapped_count.checked_sub(1);
            self.unmapped_count = left.ok_or("memory taken back that was not granted")?;
            return Ok(());
        };
        let mapped = self.mapped.swap_remove(index);
        self.mapped_bytes -= super::layout::wide(mapped.memory.len());
        Ok(())
    }

    // ------------------------------------------------------------------ memory for the peer

    pub(super) fn announce(&mut self, memory: MemoryHandle) {
        if self.granted.len() + self.news.len() < GRANTS_MAX {
            self.news.push_back(News::Grant(memory));
        }
    }

    pub(super) fn announce_end(&mut self, memory: MemoryHandle, key: RemoteKey) {
        self.news.retain(|news| !matches!(news, News::Grant(granted) if *granted == memory));
        if self.granted.contains(&key) {
            self.news.push_back(News::Revoke(key));
        }
    }

    /// Tells the peer about memory, as far as the socket has room.
    pub(super) fn send_news(&mut self, table: &Table, vi: &crate::vi::ViAttributes) {
        while let Some(news) = self.news.front() {
            let sent = match news {
                News::Revoke(key) => {
                    let key = *key;
                    self.granted.retain(|granted| *granted != key);
                    sys::send(self.socket.as_fd(), &Packet::Revoke { key }.encode(), &[])
                }
                News::Grant(memory) => {
                    let Some(region) = table.regions.get(memory.0) else {
                        self.news.pop_front();
                        continue;
                    };
                    let (Some((allows_write, allows_read)), Some(file)) =
                        (region.grant(vi), region.file.as_ref())
                    else {
                        self.news.pop_front();
                        continue;
                    };
                    let (key, length) = (region.key, super::layout::wide(region.memory.len()));
                    let packet = Packet::Grant { key, length, allows_write, allows_read };
                    let sent = sys::send(self.socket.as_fd(), &packet.encode(), &[file.as_fd()]);
                    if sent.is_ok() {
                        self.granted.push(key);
                    }
                    sent
                }
            };
            match sent {
                // Also too many files under way: later then. Nothing depends on it but speed.
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => break,
                _ => self.news.pop_front(),
            };
        }
    }
}

// ---------------------------------------------------------------------- words in shared memory

/// Why this side closes, for the peer.
pub(super) const fn goodbye_of(reason: Reason) -> u64 {
    match reason {
        Reason::Disconnected => 1,
        Reason::DescriptorFailed => 2,
        _ => 3,
    }
}

/// Why the peer closed.
pub(super) const fn reason_of(goodbye: u64) -> Reason {
    match goodbye {
        0 => Reason::PeerDied,
        1 => Reason::Disconnected,
        2 => Reason::DescriptorFailed,
        _ => Reason::TransportFailed,
    }
}

/// The status of the refused descriptor, for its owner.
pub(super) const fn refusal_of(status: Status) -> u64 {
    match status {
        Status::LengthError => 1,
        Status::RdmaProtectionError => 2,
        _ => 3,
    }
}

/// How the peer refused this side's descriptor, if it did.
pub(super) const fn status_of(refusal: u64) -> Option<Status> {
    match refusal {
        0 => None,
        1 => Some(Status::LengthError),
        2 => Some(Status::RdmaProtectionError),
        _ => Some(Status::RemoteDescriptorError),
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, SealFlags};

    use super::*;

    fn link() -> Link {
        let (socket, _) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .expect("sockets");
        let memory = || Memory::allocate(4096).expect("memory");
        let page = PeerPage::new(memory(), false);
        Link::new(socket, Producer::new(memory()), Consumer::new(memory()), page)
    }

    fn sparse(length: u64) -> OwnedFd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("sparse", flags).expect("a file");
        rustix::fs::ftruncate(&file, length).expect("holes take nothing");
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).expect("seals");
        file
    }

    fn grant(key: u64, length: u64) -> Packet {
        Packet::Grant { key: RemoteKey(key), length, allows_write: true, allows_read: true }
    }

    /// Goal: no peer uses up the addresses of this process by files that are all holes, nor loses its
    /// connection for memory that is only large. Method: one too large, many that are so together, and all
    /// taken back.
    #[test]
    fn huge_grants_are_not_mapped() {
        let mut link = link();
        let huge = 1 << 46;
        assert_eq!(link.map(&grant(1, huge), &sparse(huge)), Ok(()));
        assert_eq!(link.map(&grant(2, u64::MAX), &sparse(huge)), Ok(()), "no overflow");
        assert!(link.mapped.is_empty());
        let large = MAPPED_MAX_BYTES / 4;
        for key in 3..9 {
            assert_eq!(link.map(&grant(key, large), &sparse(large)), Ok(()));
        }
        assert_eq!((link.mapped.len(), link.mapped_bytes), (4, MAPPED_MAX_BYTES));
        for key in 1..9 {
            assert_eq!(link.unmap(RemoteKey(key)), Ok(()), "{key}");
        }
        assert_eq!((link.mapped.len(), link.mapped_bytes, link.unmapped_count), (0, 0, 0));
        assert!(link.unmap(RemoteKey(1)).is_err(), "nothing is left to take back");
    }

    /// Goal: grants are bounded, also those that are not mapped. Method: more than are allowed.
    #[test]
    fn grants_are_bounded() {
        let (mut link, file) = (link(), sparse(4096));
        let huge = MAPPED_MAX_BYTES + 1;
        let found = (1..=2 * u64::try_from(GRANTS_MAX).expect("small")).position(|key| {
            link.map(&grant(key, if key % 2 == 0 { 4096 } else { huge }), &file).is_err()
        });
        assert_eq!(found, Some(GRANTS_MAX));
        assert_eq!(link.mapped.len(), GRANTS_MAX / 2);
    }
}
