//! One end of a connection: the socket, the two rings, and the peer's memory mapped here.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, OwnedFd},
};

use super::{
    entry::{DataLocation, Draft, EntryKind, OFFSET_MAX, RingEntry, headed_write_words},
    layout::{size, wide},
    ring::{Consumer, Producer},
    sys,
    table::RegionTable,
    wakeup::PeerPage,
    wire::ControlPacket,
};
use crate::vi::{
    DisconnectReason, HEAD_BYTES, HeadedBody, Memory, MemoryHandle, RemoteKey, RemoteSegment,
    Status, objects::Access,
};

/// The most bytes of a peer's memory that are mapped, so that no peer exhausts this process's address
/// space. Memory granted beyond that is reached through its owner.
const MAPPED_MAX_BYTES: u64 = 1 << 36;
/// The most regions that one end maps of the other.
pub(super) const GRANTS_MAX: usize = 1024;

#[derive(Debug)]
pub(super) struct ShmConnection {
    pub(super) socket: OwnedFd,
    pub(super) producer: Producer,
    pub(super) consumer: Consumer,
    pub(super) page: PeerPage,
    /// The region that entries in flight may still write, once the peer consumes them.
    in_flight_range: Option<InFlightRange>,
    /// The same for heads whose other bytes are in place. Apart, since these follow each other in one region, and the others rarely.
    /// After the last place that lay before the one noted earlier, and before it: an area is written from its beginning again and again.
    heads_ranges: [Option<InFlightRange>; 2],
    /// The peer's memory mapped here.
    mapped: Vec<MappedRegion>,
    mapped_bytes: u64,
    /// The number of granted regions that could not be mapped.
    unmapped_count: u64,
    /// The place in `mapped` at which the last search ended.
    last_mapped: usize,
    /// This side's memory that the peer maps.
    granted: Vec<RemoteKey>,
    /// Memory updates still to be sent.
    memory_updates: VecDeque<MemoryUpdate>,
    /// The number of wake-ups that the peer has sent.
    pub(super) wakeup_count: u64,
    /// True if the peer was asked for a wake-up when it consumes.
    wants_wakeup: bool,
}

#[derive(Debug)]
struct MappedRegion {
    key: RemoteKey,
    memory: Memory,
    allows_write: bool,
    allows_read: bool,
}

#[derive(Debug)]
enum MemoryUpdate {
    Grant(MemoryHandle),
    Revoke(RemoteKey),
}

/// Memory of the peer where data that the peer has not yet copied may land: neither a write nor a read
/// of the same place may overtake it.
#[derive(Clone, Copy, Debug)]
struct InFlightRange {
    key: RemoteKey,
    from: u64,
    to: u64,
    /// All of it is in place once this many entries are consumed.
    until: u64,
    /// True if it spans several regions.
    is_mixed: bool,
}

impl InFlightRange {
    const fn overlaps(&self, key: RemoteKey, from: u64, to: u64) -> bool {
        self.is_mixed || (self.key.0 == key.0 && self.from < to && from < self.to)
    }

    /// Returns whether a place is in the same region, and behind all of it.
    #[inline]
    fn is_behind(&self, key: RemoteKey, offset: u64) -> bool {
        !self.is_mixed && self.key.0 == key.0 && self.to <= offset
    }

    /// Returns this range, if there is one, and `length` bytes more.
    #[inline]
    fn with(known: Option<Self>, key: RemoteKey, offset: u64, length: u64, until: u64) -> Self {
        let (from, to) = (offset, offset.saturating_add(length));
        match known {
            None => Self { key, from, to, until, is_mixed: false },
            Some(known) => Self {
                key,
                from: from.min(known.from),
                to: to.max(known.to),
                until,
                is_mixed: known.is_mixed || known.key != key,
            },
        }
    }
}

impl ShmConnection {
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
            in_flight_range: None,
            heads_ranges: [None; 2],
            mapped: Vec::new(),
            mapped_bytes: 0,
            unmapped_count: 0,
            last_mapped: 0,
            granted: Vec::new(),
            memory_updates: VecDeque::new(),
            wakeup_count: 0,
            wants_wakeup: false,
        }
    }

    // ------------------------------------------------------------------ entries

    /// Publishes an entry, for which there must be room, and wakes the peer if it sleeps.
    #[inline]
    pub(super) fn push(&mut self, entry: &RingEntry, draft: &Draft) {
        entry.encode(draft);
        self.producer.push(draft.words());
        self.producer.claim_ahead();
        if entry.kind == EntryKind::Write {
            let until = self.producer.tail();
            match entry.place {
                DataLocation::Inline { length } => {
                    self.note(entry.key, entry.offset, length.into(), until);
                }
                DataLocation::Staged { length, .. } => {
                    self.note(entry.key, entry.offset, length.into(), until);
                }
                DataLocation::PlacedBody => self.note_head(entry.key, entry.offset, until),
                DataLocation::Placed => {}
            }
        }
        self.wake_if_asleep();
    }

    /// As [`push`](Self::push), of a headed write.
    #[inline(always)]
    pub(super) fn push_headed_write(
        &mut self,
        to: RemoteSegment,
        immediate: i32,
        head: u128,
        body: HeadedBody,
    ) {
        let offset = to.offset.min(OFFSET_MAX);
        self.producer.push(headed_write_words(to.key, offset, immediate, head, body));
        self.producer.claim_ahead();
        let until = self.producer.tail();
        match body {
            HeadedBody::Here(short) => {
                self.note(to.key, offset, wide(HEAD_BYTES + short.len()), until);
            }
            HeadedBody::InPlace(_) => self.note_head(to.key, offset, until),
        }
        self.wake_if_asleep();
    }

    /// Notes where the peer has yet to write the bytes of the entry before `until`.
    #[inline]
    fn note(&mut self, key: RemoteKey, offset: u64, length: u64, until: u64) {
        let known = self.in_flight_range;
        self.in_flight_range = Some(InFlightRange::with(known, key, offset, length, until));
    }

    /// As [`note`](Self::note), of a head whose other bytes are in place.
    #[inline]
    fn note_head(&mut self, key: RemoteKey, offset: u64, until: u64) {
        let [current, earlier] = &mut self.heads_ranges;
        if let Some(range) = current.as_mut().filter(|range| range.is_behind(key, offset)) {
            (range.to, range.until) = (offset.saturating_add(wide(HEAD_BYTES)), until);
            return;
        }
        if let Some(ended) = current.take_if(|range| range.key == key && offset < range.from) {
            let length = ended.to - ended.from;
            *earlier = Some(InFlightRange::with(*earlier, key, ended.from, length, ended.until));
        }
        *current = Some(InFlightRange::with(*current, key, offset, wide(HEAD_BYTES), until));
    }

    /// Returns whether data in flight may still land in this place of the peer's memory.
    #[inline]
    pub(super) fn is_in_flight(
        &mut self,
        key: RemoteKey,
        offset: u64,
        length: u64,
    ) -> Result<bool, &'static str> {
        // The usual case of those who fill a region from its beginning to its end.
        if let [Some(heads), None] = &self.heads_ranges
            && heads.is_behind(key, offset)
            && !self.in_flight_range.is_some_and(|range| range.is_mixed || range.key == key)
        {
            return Ok(false);
        }
        self.finds_in_flight(key, offset, length)
    }

    fn finds_in_flight(
        &mut self,
        key: RemoteKey,
        offset: u64,
        length: u64,
    ) -> Result<bool, &'static str> {
        let (from, to) = (offset, offset.saturating_add(length));
        let [current, earlier] = self.heads_ranges;
        let ranges = [self.in_flight_range, current, earlier];
        if !ranges.iter().flatten().any(|range| range.overlaps(key, from, to)) {
            return Ok(false);
        }
        let consumed = self.producer.refresh()?;
        let until = ranges.iter().flatten().map(|range| range.until).max().unwrap_or(0);
        (self.in_flight_range, self.heads_ranges) = (None, [None; 2]);
        // The peer may have changed the entries since; that would only deceive itself.
        let mut is_overlapping = false;
        for position in consumed..self.producer.tail().min(until) {
            let entry =
                self.producer.written(position).and_then(|line| RingEntry::decode(&line).ok());
            let Some(entry) = entry.filter(|entry| entry.kind == EntryKind::Write) else {
                continue;
            };
            let length = match entry.place {
                DataLocation::Inline { length } => u64::from(length),
                DataLocation::Staged { length, .. } => u64::from(length),
                DataLocation::PlacedBody => wide(HEAD_BYTES),
                DataLocation::Placed => continue,
            };
            let end = entry.offset.saturating_add(length);
            is_overlapping |= entry.key == key && entry.offset < to && from < end;
            if entry.place == DataLocation::PlacedBody {
                self.note_head(entry.key, entry.offset, position + 1);
            } else {
                self.note(entry.key, entry.offset, length, position + 1);
            }
        }

        Ok(is_overlapping)
    }

    // ------------------------------------------------------------------ wake-ups

    #[inline]
    pub(super) fn wake_if_asleep(&mut self) {
        if self.page.must_notify(|| true) {
            self.send_wakeup();
        }
    }

    /// Publishes the count of consumed entries, and wakes the peer if it sleeps and waits for that.
    #[inline]
    pub(super) fn publish_consumed(&mut self) {
        if self.consumer.publish_consumed()
            && self.page.must_notify(|| self.consumer.peer_wants_wakeup())
        {
            self.send_wakeup();
        }
    }

    #[cold]
    fn send_wakeup(&self) {
        // A full socket holds something that wakes the peer anyway; a closed one is noticed where it is read.
        let _ = sys::send(self.socket.as_fd(), &ControlPacket::Wakeup.encode(), &[]);
    }

    /// Sets whether the peer should notify when it consumes while this side sleeps.
    pub(super) fn set_wakeup_wanted(&mut self, is_wanted: bool) {
        if self.wants_wakeup != is_wanted {
            self.wants_wakeup = is_wanted;
            self.producer.set_wakeup_wanted(is_wanted);
        }
    }

    // ------------------------------------------------------------------ memory of the peer

    /// Returns the peer's memory if it is mapped here, still valid, and the access is allowed and in bounds.
    pub(super) fn mapped_memory(
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

    /// Returns the peer's memory if it is mapped here and still valid.
    pub(super) fn window(&self, key: RemoteKey) -> Option<Memory> {
        let mapped = self.mapped.iter().find(|mapped| mapped.key == key)?;
        self.page.is_live(key).then(|| mapped.memory.clone())
    }

    /// Maps memory that the peer granted.
    ///
    /// # Errors
    /// If the peer is at fault.
    pub(super) fn map(
        &mut self,
        grant: &ControlPacket,
        file: &OwnedFd,
    ) -> Result<(), &'static str> {
        let ControlPacket::Grant { key, length, allows_write, allows_read } = grant else {
            return Ok(());
        };
        self.check_grant_limit()?;
        if self.mapped.iter().any(|mapped| mapped.key == *key) {
            return Err("memory granted twice");
        }
        let Some(mapped_bytes) =
            self.mapped_bytes.checked_add(*length).filter(|bytes| *bytes <= MAPPED_MAX_BYTES)
        else {
            return self.note_unmapped();
        };
        let memory = sys::map_file(file.as_fd(), size(*length), *allows_write)?;
        self.mapped_bytes = mapped_bytes;
        let (key, allows_write, allows_read) = (*key, *allows_write, *allows_read);
        self.mapped.push(MappedRegion { key, memory, allows_write, allows_read });
        Ok(())
    }

    /// Records memory that was granted but cannot be mapped: it is reached through its owner.
    ///
    /// # Errors
    /// If the peer is at fault.
    pub(super) fn note_unmapped(&mut self) -> Result<(), &'static str> {
        self.check_grant_limit()?;
        self.unmapped_count += 1;
        Ok(())
    }

    fn check_grant_limit(&self) -> Result<(), &'static str> {
        let granted = size(self.unmapped_count).saturating_add(self.mapped.len());
        if granted < GRANTS_MAX { Ok(()) } else { Err("more memory granted than is allowed") }
    }

    /// Unmaps memory that the peer takes back.
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
        self.mapped_bytes -= wide(mapped.memory.len());
        Ok(())
    }

    // ------------------------------------------------------------------ memory for the peer

    pub(super) fn queue_grant(&mut self, memory: MemoryHandle) {
        if self.granted.len() + self.memory_updates.len() < GRANTS_MAX {
            self.memory_updates.push_back(MemoryUpdate::Grant(memory));
        }
    }

    pub(super) fn queue_revoke(&mut self, memory: MemoryHandle, key: RemoteKey) {
        self.memory_updates
            .retain(|update| !matches!(update, MemoryUpdate::Grant(granted) if *granted == memory));
        if self.granted.contains(&key) {
            self.memory_updates.push_back(MemoryUpdate::Revoke(key));
        }
    }

    /// Tells the peer about memory, as far as the socket has room.
    pub(super) fn send_memory_updates(
        &mut self,
        table: &RegionTable,
        vi: &crate::vi::ViAttributes,
    ) {
        while let Some(memory_updates) = self.memory_updates.front() {
            let sent = match memory_updates {
                MemoryUpdate::Revoke(key) => {
                    let key = *key;
                    self.granted.retain(|granted| *granted != key);
                    sys::send(self.socket.as_fd(), &ControlPacket::Revoke { key }.encode(), &[])
                }
                MemoryUpdate::Grant(memory) => {
                    let Some(region) = table.regions.get(memory.0) else {
                        self.memory_updates.pop_front();
                        continue;
                    };
                    let (Some((allows_write, allows_read)), Some(file)) =
                        (region.grant(vi), region.file.as_ref())
                    else {
                        self.memory_updates.pop_front();
                        continue;
                    };
                    let (key, length) = (region.entry.key, wide(region.entry.memory.len()));
                    let packet = ControlPacket::Grant { key, length, allows_write, allows_read };
                    let sent = sys::send(self.socket.as_fd(), &packet.encode(), &[file.as_fd()]);
                    if sent.is_ok() {
                        self.granted.push(key);
                    }
                    sent
                }
            };
            match sent {
                // Also if too many files are in flight: try later. Only speed depends on it.
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => break,
                _ => self.memory_updates.pop_front(),
            };
        }
    }
}

// ---------------------------------------------------------------------- words in shared memory

/// Encodes why this side closes, for the peer.
pub(super) const fn close_reason_code(reason: DisconnectReason) -> u64 {
    match reason {
        DisconnectReason::Disconnected => 1,
        DisconnectReason::DescriptorFailed => 2,
        _ => 3,
    }
}

/// Decodes why the peer closed.
pub(super) const fn reason_of(close_reason: u64) -> DisconnectReason {
    match close_reason {
        0 => DisconnectReason::PeerDied,
        1 => DisconnectReason::Disconnected,
        2 => DisconnectReason::DescriptorFailed,
        _ => DisconnectReason::TransportFailed,
    }
}

/// Encodes the status of a refused descriptor, for its owner.
pub(super) const fn refusal_of(status: Status) -> u64 {
    match status {
        Status::LengthError => 1,
        Status::RdmaProtectionError => 2,
        _ => 3,
    }
}

/// Decodes how the peer refused this side's descriptor, if it did.
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
    use crate::{shm::layout::CONSUMED_AT, vi::ShortBody};

    fn connection() -> ShmConnection {
        let (socket, _) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .expect("sockets");
        let memory = || Memory::allocate(4096).expect("memory");
        let page = PeerPage::new(memory(), false);
        ShmConnection::new(socket, Producer::new(memory()), Consumer::new(memory()), page)
    }

    fn sparse(length: u64) -> OwnedFd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("sparse", flags).expect("a file");
        rustix::fs::ftruncate(&file, length).expect("holes take nothing");
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).expect("seals");
        file
    }

    fn grant(key: u64, length: u64) -> ControlPacket {
        ControlPacket::Grant { key: RemoteKey(key), length, allows_write: true, allows_read: true }
    }

    /// Goal: a peer can neither exhaust this process's address space with sparse files, nor lose its
    /// connection merely because its memory is large. Method: one region that is too large, many that
    /// are together, and all taken back.
    #[test]
    fn huge_grants_are_not_mapped() {
        let mut connection = connection();
        let huge = 1 << 46;
        assert_eq!(connection.map(&grant(1, huge), &sparse(huge)), Ok(()));
        assert_eq!(connection.map(&grant(2, u64::MAX), &sparse(huge)), Ok(()), "no overflow");
        assert!(connection.mapped.is_empty());
        let large = MAPPED_MAX_BYTES / 4;
        for key in 3..9 {
            assert_eq!(connection.map(&grant(key, large), &sparse(large)), Ok(()));
        }
        assert_eq!((connection.mapped.len(), connection.mapped_bytes), (4, MAPPED_MAX_BYTES));
        for key in 1..9 {
            assert_eq!(connection.unmap(RemoteKey(key)), Ok(()), "{key}");
        }
        assert_eq!(
            (connection.mapped.len(), connection.mapped_bytes, connection.unmapped_count),
            (0, 0, 0)
        );
        assert!(connection.unmap(RemoteKey(1)).is_err(), "nothing is left to take back");
    }

    /// Goal: grants are bounded, including those that are not mapped. Method: more than are allowed.
    #[test]
    fn grants_are_bounded() {
        let (mut connection, file) = (connection(), sparse(4096));
        let huge = MAPPED_MAX_BYTES + 1;
        let found = (1..=2 * u64::try_from(GRANTS_MAX).expect("small")).position(|key| {
            connection.map(&grant(key, if key % 2 == 0 { 4096 } else { huge }), &file).is_err()
        });
        assert_eq!(found, Some(GRANTS_MAX));
        assert_eq!(connection.mapped.len(), GRANTS_MAX / 2);
    }

    /// Goal: a place is said to be in flight exactly if an entry that the peer has not consumed may still be written there. Method: random headed
    /// writes, in order and not, short and in place, to two regions; a peer that consumes some; against all entries.
    #[test]
    fn places_in_flight_are_known() {
        const SHORT: [u8; 8] = [7; 8];
        for seed in 0..300 {
            let mut random = fastrand::Rng::with_seed(seed);
            let ring = Memory::allocate(1 << 20).expect("memory");
            let mut connection = connection();
            connection.producer = Producer::new(ring.clone());
            let (mut entries, mut consumed, mut next) = (Vec::new(), 0, 0);
            for _ in 0..200 {
                if random.u32(0..3) == 0 {
                    consumed = random.usize(consumed..=entries.len());
                    ring.store(CONSUMED_AT, wide(consumed)).expect("inside");
                }
                next = if random.u32(0..9) == 0 { random.u64(0..1024) } else { next + 64 };
                let key = RemoteKey(1 + u64::from(random.u32(0..20) == 0));
                let overlaps = |(other, from, to): &(RemoteKey, u64, u64)| {
                    *other == key && *from < next + 48 && next < *to
                };
                let expected = entries[consumed..].iter().any(overlaps);
                assert_eq!(connection.is_in_flight(key, next, 48), Ok(expected), "{seed}");

                let is_short = random.bool();
                let body = if is_short {
                    HeadedBody::Here(ShortBody::new(&SHORT).expect("short"))
                } else {
                    HeadedBody::InPlace(32)
                };
                connection.push_headed_write(RemoteSegment { key, offset: next }, 1, 0, body);
                entries.push((key, next, next + if is_short { 24 } else { 16 }));
            }
        }
    }
}
