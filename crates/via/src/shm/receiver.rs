//! The receiving engine: takes the entries that a peer wrote, checks them, and executes them.
//!
//! Every entry is copied once, and only the copy is examined. Errors that an honest peer can make (a
//! revoked key, no receive descriptor) end as VIA prescribes; entries that no honest peer writes break
//! the connection.

use super::{
    entry::{
        CacheLine, DataLocation, Draft, EntryKind, HeadedEntry, INLINE_AT, INLINE_MAX, RingEntry,
        head_of,
    },
    layout::wide,
    posted::{PartialReceive, PostedReceive, ReadResponse},
    table::copy_bytes,
    vi::{BreakCause, NicState, ShmVi},
};
use crate::vi::{Completion, HEAD_BYTES, HeadedPoll, HeadedWrite, Queue, Status, objects::Access};

/// The most bytes of an answer copied per call, likewise.
const ANSWER_MAX_BYTES: u64 = 1024 * 1024;
/// Headed writes whose consumption the peer is not told yet, as long as each poll finds another one and nothing is posted.
const UNPUBLISHED_MAX: u64 = 16;
/// The most entries taken of one VI per call, so that no peer starves the others.
const ENTRIES_MAX: u32 = 64;

impl ShmVi {
    /// Takes the available entries, up to a bound. Returns whether there were any.
    #[inline]
    pub(super) fn receive(&mut self, nic_state: &mut NicState) -> bool {
        let mut count = 0;
        while count < ENTRIES_MAX {
            let Some(line) =
                self.connection.as_ref().and_then(|connection| connection.consumer.next())
            else {
                break;
            };
            count += 1;
            let taken = match RingEntry::decode(&line) {
                Ok(entry) => self.take_entry(nic_state, &entry, &line),
                Err(what) => Err(BreakCause::Fault(what)),
            };
            if let Err(end) = taken {
                self.end(nic_state, end);
                return true;
            }
            if let Some(connection) = &mut self.connection {
                connection.consumer.advance();
            }
        }

        if let Some(connection) = &mut self.connection
            && (count > 0 || connection.consumer.unpublished() > 0)
        {
            connection.producer.end_burst();
            connection.publish_consumed();
        }
        count > 0
    }

    /// Takes the next entry, if that is a headed write into the memory named for those. Its completion must be the next one.
    #[inline(always)]
    pub(super) fn take_headed_write(&mut self) -> HeadedPoll {
        let found = self.next_headed_write();
        let Some(connection) = &mut self.connection else { return HeadedPoll::Other };
        let (cookie, entry) = match found {
            None => {
                if connection.consumer.unpublished() > 0 {
                    connection.publish_consumed();
                }
                return HeadedPoll::Nothing;
            }
            Some(None) => return HeadedPoll::Other,
            Some(Some(found)) => found,
        };
        connection.consumer.advance();
        connection.producer.end_burst();
        if connection.consumer.unpublished() >= UNPUBLISHED_MAX {
            connection.publish_consumed();
        }
        let HeadedEntry { key, offset, immediate, head, body } = entry;
        HeadedPoll::Write(HeadedWrite {
            vi: self.core.id,
            key,
            cookie,
            immediate,
            offset,
            head,
            body,
        })
    }

    /// Returns whether there is an entry, and if so, whether [`take_headed_write`](Self::take_headed_write) would return it.
    #[inline]
    pub(super) fn peek_headed_write(&mut self) -> Option<bool> {
        let found = self.next_headed_write().map(|found| found.is_some());
        if found.is_none()
            && let Some(connection) = &mut self.connection
            && connection.consumer.unpublished() > 0
        {
            connection.publish_consumed();
        }
        found
    }

    /// Returns whether [`take_headed_write`](Self::take_headed_write) would return one.
    #[inline]
    pub(super) fn has_headed_write(&self) -> bool {
        matches!(self.next_headed_write(), Some(Some(_)))
    }

    /// Returns the next entry, if there is one, and if it is a headed write; with the cookie of its descriptor.
    #[inline(always)]
    #[expect(clippy::option_option, reason = "there may be an entry that is no such write")]
    fn next_headed_write(&self) -> Option<Option<(u64, HeadedEntry)>> {
        // What waits is continued by the usual poll.
        let is_usual = !self.is_idle() || self.headed_writes.is_empty();
        let (false, Some(connection)) = (is_usual, &self.connection) else { return Some(None) };
        let Some(entry) = connection.consumer.next_headed_write()? else { return Some(None) };
        let total = u64::from(entry.body.len()) + wide(HEAD_BYTES);
        let end = entry.offset.checked_add(total);
        let is_inside =
            self.headed_writes.length_of(entry.key).zip(end).is_some_and(|(all, end)| end <= all);
        if !is_inside || self.written > 0 || self.drops_write {
            return Some(None);
        }
        let Some(PostedReceive { cookie, .. }) = self.receives.front() else { return Some(None) };
        Some(Some((*cookie, entry)))
    }

    #[inline]
    fn take_entry(
        &mut self,
        nic_state: &mut NicState,
        entry: &RingEntry,
        line: &CacheLine,
    ) -> Result<(), BreakCause> {
        match entry.kind {
            EntryKind::Write => self.take_write(nic_state, entry, line),
            EntryKind::Send => self.take_send(nic_state, entry, line),
            EntryKind::ReadRequest => self.take_request(nic_state, entry),
            EntryKind::ReadData => {
                let length = length_of(entry);
                let connection = self.connection.take();
                let answered = (length, entry.total, entry.is_last);
                let taken = self.take_answer(nic_state, answered, |own, offset, before, length| {
                    match (entry.place, &connection) {
                        (DataLocation::Staged { at, .. }, Some(connection)) => connection
                            .consumer
                            .copy_staged_to(u64::from(at) + before, own, offset, length),
                        _ => write_inline(line, own, offset, before, length),
                    }
                });
                self.connection = connection;
                taken
            }
            EntryKind::ReadRefused => self.end_read(nic_state, Some(Status::RdmaProtectionError)),
        }
    }

    // ------------------------------------------------------------------ RDMA writes

    #[inline]
    fn take_write(
        &mut self,
        nic_state: &mut NicState,
        entry: &RingEntry,
        line: &CacheLine,
    ) -> Result<(), BreakCause> {
        if self.drops_write {
            self.drops_write = !entry.is_last;
            return Ok(());
        }

        let length = length_of(entry);
        if let DataLocation::Staged { .. } = entry.place {
            self.written += length;
            if self.written > entry.total || entry.is_last != (self.written == entry.total) {
                return Err(BreakCause::Fault("a write of another length than announced"));
            }
        } else if self.written > 0 {
            return Err(BreakCause::Fault("a write in the middle of another"));
        }

        // Before anything is written: a message without a receive descriptor leaves nothing behind.
        let placed = match entry.immediate {
            Some(_) if self.receives.is_empty() => Err(Status::RemoteDescriptorError),
            _ => self.place(nic_state, entry, line, length),
        };
        if let Err(status) = placed {
            self.written = 0;
            self.drops_write = !entry.is_last;
            return self.refuse(status);
        }

        if !entry.is_last {
            return Ok(());
        }
        self.written = 0;
        if let Some(immediate) = entry.immediate
            && let Some(posted) = self.receives.pop_front()
        {
            self.arrived(nic_state, posted.cookie, entry.total, Some(immediate));
        }
        Ok(())
    }

    /// Writes the data of an RDMA write to its destination.
    #[inline]
    fn place(
        &self,
        nic_state: &NicState,
        entry: &RingEntry,
        line: &CacheLine,
        length: u64,
    ) -> Result<(), Status> {
        let place = (entry.offset, length);
        let region =
            nic_state.table.remote(&self.core.attributes, entry.key, place, Access::Write)?;
        let placed = match (entry.place, &self.connection) {
            (DataLocation::Inline { length }, _) => {
                let end = INLINE_AT + usize::from(length).min(INLINE_MAX);
                region.entry.memory.put(entry.offset, &line[INLINE_AT..end])
            }
            (DataLocation::Staged { at, length }, Some(connection)) => {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                connection.consumer.copy_staged_to(
                    at.into(),
                    &region.entry.memory,
                    entry.offset,
                    length,
                )
            }
            (DataLocation::PlacedBody, _) if region.file.is_some() => {
                region.entry.memory.put(entry.offset, &head_of(line))
            }
            // The peer has already written it, if it could.
            _ => {
                return if region.file.is_some() {
                    Ok(())
                } else {
                    Err(Status::RdmaProtectionError)
                };
            }
        };

        placed.map_err(|_| Status::RdmaProtectionError)
    }

    // ------------------------------------------------------------------ sends

    fn take_send(
        &mut self,
        nic_state: &mut NicState,
        entry: &RingEntry,
        line: &CacheLine,
    ) -> Result<(), BreakCause> {
        if self.drops_send {
            self.drops_send = !entry.is_last;
            return Ok(());
        }

        let length = length_of(entry);
        let mut arriving = match self.arriving.take() {
            Some(arriving) => arriving,
            None => {
                let Some(posted) = self.receives.pop_front() else {
                    self.drops_send = !entry.is_last;
                    return self.refuse(Status::RemoteDescriptorError);
                };
                let PostedReceive { cookie, segments } = posted;
                let fits =
                    match nic_state.table.check(self.core.attributes.tag, segments.as_slice()) {
                        Ok(capacity) if capacity >= entry.total => Ok(()),
                        Ok(_) => Err((Status::LengthError, Status::LengthError)),
                        Err(own) => Err((own, Status::RemoteDescriptorError)),
                    };
                if let Err((own, peers)) = fits {
                    self.drops_send = !entry.is_last;
                    self.complete(
                        nic_state,
                        Completion::new(self.core.id, Queue::Receive, cookie, own),
                    );
                    return self.refuse(peers);
                }
                PartialReceive { cookie, segments, total: entry.total, filled: 0 }
            }
        };

        let left = arriving.total - arriving.filled;
        if entry.total != arriving.total || length > left || entry.is_last != (length == left) {
            self.arriving = Some(arriving);
            return Err(BreakCause::Fault("a message of another length than announced"));
        }

        let connection = &self.connection;
        let placed = nic_state.table.pieces(
            self.core.attributes.tag,
            arriving.segments.as_slice(),
            arriving.filled,
            length,
            |own, offset, before, length| match (entry.place, connection) {
                (DataLocation::Staged { at, .. }, Some(connection)) => {
                    connection.consumer.copy_staged_to(u64::from(at) + before, own, offset, length)
                }
                _ => write_inline(line, own, offset, before, length),
            },
        );
        if let Err(status) = placed {
            self.drops_send = !entry.is_last;
            let failed = Completion::new(self.core.id, Queue::Receive, arriving.cookie, status);
            self.complete(nic_state, failed);
            return self.refuse(Status::RemoteDescriptorError);
        }

        arriving.filled += length;
        if entry.is_last {
            self.arrived(nic_state, arriving.cookie, arriving.total, entry.immediate);
        } else {
            self.arriving = Some(arriving);
        }

        Ok(())
    }

    #[inline]
    fn arrived(
        &mut self,
        nic_state: &mut NicState,
        cookie: u64,
        length: u64,
        immediate: Option<i32>,
    ) {
        let mut completion = Completion::new(self.core.id, Queue::Receive, cookie, Status::Done);
        completion.length = length;
        completion.immediate = immediate;
        self.complete(nic_state, completion);
    }

    /// Fails the peer's descriptor. Under unreliable delivery the peer is not told.
    fn refuse(&self, status: Status) -> Result<(), BreakCause> {
        if self.core.attributes.is_reliable() { Err(BreakCause::Refuse(status)) } else { Ok(()) }
    }

    // ------------------------------------------------------------------ RDMA reads

    fn take_request(
        &mut self,
        nic_state: &mut NicState,
        entry: &RingEntry,
    ) -> Result<(), BreakCause> {
        if self.answer.is_some() {
            return Err(BreakCause::Fault("a second read before the first was answered"));
        }
        let RingEntry { key, offset, total, .. } = *entry;
        let place = (offset, total);
        if let Err(status) = nic_state.table.remote(&self.core.attributes, key, place, Access::Read)
        {
            self.refuse(status)?;
        }
        self.answer = Some(ReadResponse { key, offset, total, done: 0 });
        Ok(())
    }

    /// Answers the peer's read, as far as the ring has room.
    pub(super) fn answer(&mut self, nic_state: &NicState) -> Result<(), BreakCause> {
        let mut copied = 0;
        while let (Some(answer), Some(connection)) = (&mut self.answer, &mut self.connection) {
            if copied >= ANSWER_MAX_BYTES || !connection.producer.has_room()? {
                return Ok(());
            }
            let ReadResponse { key, offset, total, done } = *answer;
            let left = total - done;
            let draft = Draft::new();
            let mut entry = RingEntry {
                kind: EntryKind::ReadData,
                place: DataLocation::Inline { length: 0 },
                immediate: None,
                is_last: true,
                key,
                offset: 0,
                total,
            };
            let place = (offset, total);
            let Ok(region) =
                nic_state.table.remote(&self.core.attributes, key, place, Access::Read)
            else {
                if self.core.attributes.is_reliable() {
                    return Err(BreakCause::Refuse(Status::RdmaProtectionError));
                }
                entry.kind = EntryKind::ReadRefused;
                entry.total = 0;
                connection.push(&entry, &draft);
                self.answer = None;
                return Ok(());
            };
            let length = if total <= wide(INLINE_MAX) {
                let mut bytes = [0; INLINE_MAX];
                let end = usize::try_from(total).unwrap_or(0);
                let read =
                    super::table::read_bytes(&region.entry.memory, offset, &mut bytes[..end]);
                debug_assert!(read.is_ok(), "was just checked");
                let _ = draft.put_inline(0, &bytes);
                entry.place = DataLocation::Inline { length: u8::try_from(total).unwrap_or(0) };
                left
            } else {
                let Some((at, length)) = connection.producer.stage(left)? else { return Ok(()) };
                let count = usize::try_from(length).unwrap_or(0);
                let from = offset + done;
                let staged = connection.producer.copy_staged(at, &region.entry.memory, from, count);
                debug_assert!(staged.is_ok(), "was just checked");
                connection.producer.use_staged(at, length);
                entry.place = DataLocation::Staged {
                    at: u32::try_from(at).unwrap_or(0),
                    length: u32::try_from(length).unwrap_or(0),
                };
                length
            };
            entry.is_last = length == left;
            connection.push(&entry, &draft);
            answer.done += length;
            copied += length;
            if entry.is_last {
                self.answer = None;
            }
        }

        Ok(())
    }
}

/// Returns how many bytes an entry carries, or claims to be in place.
#[inline]
fn length_of(entry: &RingEntry) -> u64 {
    match entry.place {
        DataLocation::Inline { length } => length.into(),
        DataLocation::Staged { length, .. } => length.into(),
        DataLocation::Placed | DataLocation::PlacedBody => entry.total,
    }
}

fn write_inline(
    line: &CacheLine,
    own: &crate::vi::Memory,
    offset: u64,
    before: u64,
    length: usize,
) -> Result<(), crate::vi::OutOfBounds> {
    let start = INLINE_AT + usize::try_from(before).unwrap_or(INLINE_MAX);
    match line.get(start..start.saturating_add(length)) {
        Some(bytes) => own.put(offset, bytes),
        None => copy_bytes(own, u64::MAX, own, 0, length),
    }
}
