//! The sending engine: carries out the descriptors of a send queue, in order.
//!
//! A transfer goes one of three ways:
//! - *inline*: at most 40 bytes travel in the ring's entry, and the peer puts them in place, or hands them to its consumer;
//! - *directly*: into the peer's memory mapped here, followed by an entry if the consumer wants to
//!   notify the peer;
//! - *staged*: in chunks through the ring's staging area, from which the peer copies.
//!
//! A direct access never overtakes an entry whose data still has to be written to the same place.

use super::{
    connection::ShmConnection,
    entry::{DataLocation, Draft, EntryKind, INLINE_MAX, OFFSET_MAX, RingEntry},
    layout::{TRANSFER_MAX_BYTES, wide},
    posted::{OwnedData, PostedSend, Segments, TransferMethod, UnackedSend},
    table::{RegionTable, copy_bytes, read_bytes},
    vi::{BreakCause, NicState, ShmVi},
};
use crate::vi::{
    Completion, Data, HEAD_BYTES, HeadedBody, Memory, Operation, OutOfBounds, ProtectionTag, Queue,
    Reliability, RemoteKey, RemoteSegment, SendDescriptor, ShortBody, Status, ViError,
    objects::Access,
};

/// The most bytes copied per call of the NIC for one VI.
const BURST_MAX_BYTES: u64 = 1024 * 1024;
/// The most bytes of one direct copy, after which the ring is polled again.
const STEP_MAX_BYTES: u64 = 256 * 1024;

/// The progress of a descriptor.
enum SendProgress {
    /// This side's part is done; the peer's consumption of this many entries acknowledges it.
    Done(u64),
    /// Part of it is done.
    More,
    /// The peer must progress first.
    Blocked,
    /// It failed.
    Failed(Status),
}

impl ShmVi {
    /// Posts a descriptor. A small one with nothing queued before it is carried out at once.
    #[inline]
    pub(super) fn post(
        &mut self,
        nic_state: &mut NicState,
        descriptor: &SendDescriptor<'_>,
    ) -> Result<(), ViError> {
        self.core.sends_held += 1;
        if let Some(connection) = &mut self.connection
            && connection.consumer.unpublished() > 0
        {
            // Credit for a place must not reach the peer before it knows that what it wrote there was consumed.
            connection.publish_consumed();
        }
        if self.sends.is_empty()
            && (self.post_small(nic_state, descriptor) || self.post_direct(nic_state, descriptor))
        {
            return Ok(());
        }
        self.post_any(nic_state, descriptor);
        Ok(())
    }

    /// Carries out a headed write. Returns `false`, without having notified the peer, if it must wait.
    #[inline]
    pub(super) fn post_headed_write(
        &mut self,
        to: RemoteSegment,
        immediate: i32,
        head: u128,
        body: &[u8],
    ) -> bool {
        // The peer's consumption would have to be waited for, or its descriptors.
        let is_delivered = self.core.attributes.reliability == Reliability::ReliableDelivery;
        let Some(connection) = &mut self.connection else { return false };
        if !is_delivered
            || !self.sends.is_empty()
            || !matches!(connection.producer.has_room(), Ok(true))
        {
            return false;
        }
        if let Some(short) = ShortBody::new(body) {
            connection.push_headed_write(to, immediate, head, HeadedBody::Here(short));
            return true;
        }
        let total = wide(HEAD_BYTES + body.len());
        if total > STEP_MAX_BYTES
            || !matches!(connection.is_in_flight(to.key, to.offset, total), Ok(false))
        {
            return false;
        }
        let Some(memory) = connection.mapped_memory(to.key, to.offset, total, Access::Write) else {
            return false;
        };
        if memory.write(to.offset + wide(HEAD_BYTES), body).is_err() {
            return false;
        }
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        connection.push_headed_write(to, immediate, head, HeadedBody::InPlace(length));
        true
    }

    /// Carries out a send or write that fits into an entry. Returns `false`, without having done
    /// anything, if it does not fit or anything is unusual about it.
    #[inline]
    fn post_small(&mut self, nic_state: &mut NicState, descriptor: &SendDescriptor<'_>) -> bool {
        let draft = Draft::new();
        let (kind, place) = match (descriptor.operation, descriptor.remote) {
            (Operation::RdmaWrite, Some(place)) => (EntryKind::Write, place),
            (Operation::Send, None) => {
                (EntryKind::Send, RemoteSegment { key: RemoteKey(0), offset: 0 })
            }
            _ => return false,
        };

        let mut total = 0;
        match descriptor.data {
            Data::Inline(slices) => {
                for slice in slices {
                    let Some(end) = draft.put_inline(total, slice) else { return false };
                    total = end;
                }
            }
            Data::Segments(segments) => {
                let mut bytes = [0; INLINE_MAX];
                for segment in segments {
                    let Ok(length) = usize::try_from(segment.length) else { return false };
                    let Some(room) =
                        total.checked_add(length).and_then(|end| bytes.get_mut(total..end))
                    else {
                        return false;
                    };
                    let Ok(memory) = nic_state.table.local(self.core.attributes.tag, segment)
                    else {
                        return false;
                    };
                    if read_bytes(memory, segment.offset, room).is_err() {
                        return false;
                    }
                    total += length;
                }
                let _ = draft.put_inline(0, &bytes[..total]);
            }
        }

        let Ok(length) = u8::try_from(total) else { return false };
        let Some(connection) = &mut self.connection else { return false };
        let reliability = self.core.attributes.reliability;
        if kind == EntryKind::Write
            && descriptor.immediate.is_none()
            && write_silently(connection, place, &draft.inline()[..total], reliability)
        {
            self.finish(nic_state, 0, descriptor.cookie, descriptor.is_signaled, wide(total));
            return true;
        }

        if !matches!(connection.producer.has_room(), Ok(true)) {
            return false;
        }
        let entry = RingEntry {
            kind,
            place: DataLocation::Inline { length },
            immediate: descriptor.immediate,
            is_last: true,
            key: place.key,
            offset: place.offset.min(OFFSET_MAX),
            total: wide(total),
        };

        connection.push(&entry, &draft);
        let until = connection.producer.tail();
        self.finish(nic_state, until, descriptor.cookie, descriptor.is_signaled, wide(total));
        true
    }

    /// Carries out a write into the peer's memory mapped here. Returns `false`, with neither side
    /// notified, if that is not possible at once.
    fn post_direct(&mut self, nic_state: &mut NicState, descriptor: &SendDescriptor<'_>) -> bool {
        let (Operation::RdmaWrite, Some(place)) = (descriptor.operation, descriptor.remote) else {
            return false;
        };
        let is_told = descriptor.immediate.is_some();
        let Some(connection) = &mut self.connection else { return false };
        if is_told
            && (self.core.attributes.reliability == Reliability::Unreliable
                || !matches!(connection.producer.has_room(), Ok(true)))
        {
            return false;
        }
        let tag = self.core.attributes.tag;
        let total = match descriptor.data {
            Data::Segments(segments) => nic_state.table.check(tag, segments).unwrap_or(0),
            Data::Inline(slices) => slices.iter().fold(0, |sum, slice| sum + wide(slice.len())),
        };
        if total == 0
            || total > STEP_MAX_BYTES
            || !matches!(connection.is_in_flight(place.key, place.offset, total), Ok(false))
        {
            return false;
        }
        let Some(memory) = connection.mapped_memory(place.key, place.offset, total, Access::Write)
        else {
            return false;
        };
        let copied = match descriptor.data {
            Data::Segments(segments) => {
                nic_state.table.pieces(tag, segments, 0, total, |own, offset, before, length| {
                    copy_bytes(memory, place.offset + before, own, offset, length)
                })
            }
            Data::Inline(slices) => {
                let mut at = place.offset;
                slices.iter().try_for_each(|slice| {
                    let written = memory.write(at, slice);
                    at += wide(slice.len());
                    written.map_err(|_| Status::RdmaProtectionError)
                })
            }
        };
        if copied.is_err() {
            return false;
        }
        let mut until = 0;
        if is_told {
            let entry = RingEntry {
                kind: EntryKind::Write,
                place: DataLocation::Placed,
                immediate: descriptor.immediate,
                is_last: true,
                key: place.key,
                offset: place.offset,
                total,
            };
            connection.push(&entry, &Draft::new());
            until = connection.producer.tail();
        } else {
            wake_for_silent_write(connection, self.core.attributes.reliability);
        }

        self.finish(nic_state, until, descriptor.cookie, descriptor.is_signaled, total);
        true
    }

    /// Queues a descriptor and does what can be done now.
    fn post_any(&mut self, nic_state: &mut NicState, descriptor: &SendDescriptor<'_>) {
        let (data, total) = match descriptor.data {
            Data::Segments(segments) => {
                let total = segments.iter().fold(0, |sum: u64, s| sum.saturating_add(s.length));
                (OwnedData::Segments(Segments::of(segments)), total)
            }
            Data::Inline(slices) => {
                let length = slices.iter().map(|slice| slice.len()).sum();
                let mut bytes = Vec::with_capacity(length);
                for slice in slices {
                    bytes.extend_from_slice(slice);
                }
                let total = wide(bytes.len());
                (OwnedData::Inline(bytes.into()), total)
            }
        };

        let is_inline = matches!(descriptor.data, Data::Inline(_));
        let fits = match descriptor.operation {
            Operation::Send => descriptor.remote.is_none(),
            Operation::RdmaWrite => descriptor.remote.is_some(),
            Operation::RdmaRead => {
                descriptor.remote.is_some() && descriptor.immediate.is_none() && !is_inline
            }
        };

        let mut posted = PostedSend {
            operation: descriptor.operation,
            cookie: descriptor.cookie,
            immediate: descriptor.immediate,
            is_signaled: descriptor.is_signaled,
            remote: descriptor.remote,
            data,
            total,
            done: 0,
            method: TransferMethod::Undecided,
            failure: None,
        };

        if !fits {
            posted.failure = Some(Status::FormatError);
        } else if total > TRANSFER_MAX_BYTES {
            posted.failure = Some(Status::LengthError);
        }

        self.sends.push_back(posted);
        if self.sends.len() == 1
            && let Err(end) = self.pump(nic_state)
        {
            self.end(nic_state, end);
        }
    }

    /// Carries out what is possible now, up to a bound.
    pub(super) fn pump(&mut self, nic_state: &mut NicState) -> Result<(), BreakCause> {
        let mut burst = BURST_MAX_BYTES;
        while burst > 0 {
            let Some(mut posted) = self.sends.pop_front() else { return Ok(()) };
            let before = posted.done;
            let step = self.step(nic_state, &mut posted)?;
            // Descriptors without data also cost time.
            burst = burst.saturating_sub(posted.done - before).saturating_sub(256);
            match step {
                SendProgress::Done(until) => {
                    let PostedSend { cookie, is_signaled, total, .. } = posted;
                    self.finish(nic_state, until, cookie, is_signaled, total);
                }
                SendProgress::More => self.sends.push_front(posted),
                SendProgress::Blocked => {
                    self.sends.push_front(posted);
                    return Ok(());
                }
                SendProgress::Failed(status) if self.unacked.is_empty() => {
                    self.fail(nic_state, posted.cookie, status);
                    if self.core.attributes.is_reliable() {
                        return Err(BreakCause::Failed);
                    }
                }
                SendProgress::Failed(status) => {
                    posted.failure = Some(status);
                    self.sends.push_front(posted);
                    return Ok(());
                }
            }
        }

        Ok(())
    }

    fn step(
        &mut self,
        nic_state: &NicState,
        posted: &mut PostedSend,
    ) -> Result<SendProgress, BreakCause> {
        if posted.method == TransferMethod::Undecided {
            if let Some(status) = posted.failure {
                return Ok(SendProgress::Failed(status));
            }
            if let Err(status) = self.choose_method(nic_state, posted) {
                return Ok(SendProgress::Failed(status));
            }
        }
        match posted.method {
            TransferMethod::Undecided | TransferMethod::Requested => Ok(SendProgress::Blocked),
            TransferMethod::Inline => self.step_inline(nic_state, posted),
            TransferMethod::Direct => self.step_direct(nic_state, posted),
            TransferMethod::Staged if posted.operation == Operation::RdmaRead => {
                self.step_request(posted)
            }
            TransferMethod::Staged => self.step_staged(nic_state, posted),
        }
    }

    fn choose_method(
        &mut self,
        nic_state: &NicState,
        posted: &mut PostedSend,
    ) -> Result<(), Status> {
        if let OwnedData::Segments(segments) = &posted.data {
            nic_state.table.check(self.core.attributes.tag, segments.as_slice())?;
        }
        let access = match posted.operation {
            Operation::RdmaRead => Access::Read,
            Operation::RdmaWrite | Operation::Send => Access::Write,
        };

        let fits_inline = posted.total <= wide(INLINE_MAX) && access == Access::Write;
        // A small write with a notification goes into its entry; one without needs no entry.
        let is_told = posted.operation == Operation::Send || posted.immediate.is_some();
        let is_reachable = match (&mut self.connection, posted.remote) {
            // An unreliable write that finds no receive descriptor must leave nothing behind.
            (Some(connection), Some(remote))
                if !is_told
                    || (!fits_inline
                        && self.core.attributes.reliability != Reliability::Unreliable) =>
            {
                connection.mapped_memory(remote.key, remote.offset, posted.total, access).is_some()
            }
            _ => false,
        };

        posted.method = if is_reachable {
            TransferMethod::Direct
        } else if fits_inline {
            TransferMethod::Inline
        } else {
            TransferMethod::Staged
        };

        Ok(())
    }

    fn step_inline(
        &mut self,
        nic_state: &NicState,
        posted: &PostedSend,
    ) -> Result<SendProgress, BreakCause> {
        let Some(connection) = &mut self.connection else { return Ok(SendProgress::Blocked) };
        if !connection.producer.has_room()? {
            return Ok(SendProgress::Blocked);
        }
        let mut bytes = [0; INLINE_MAX];
        let gathered =
            gather_small(&posted.data, &nic_state.table, self.core.attributes.tag, &mut bytes);
        if let Err(status) = gathered {
            return Ok(SendProgress::Failed(status));
        }
        let draft = Draft::new();
        let _ = draft.put_inline(0, &bytes);
        let length = u8::try_from(posted.total).unwrap_or(u8::MAX);
        let entry = entry_of(posted, DataLocation::Inline { length }, posted.total, true);
        connection.push(&entry, &draft);
        Ok(SendProgress::Done(connection.producer.tail()))
    }

    /// Reads or writes the peer's memory, and then notifies the peer if requested.
    fn step_direct(
        &mut self,
        nic_state: &NicState,
        posted: &mut PostedSend,
    ) -> Result<SendProgress, BreakCause> {
        let tag = self.core.attributes.tag;
        let (Some(connection), Some(remote)) = (&mut self.connection, posted.remote) else {
            return Ok(SendProgress::Blocked);
        };
        let is_read = posted.operation == Operation::RdmaRead;
        let access = if is_read { Access::Read } else { Access::Write };
        if posted.done == 0 && connection.is_in_flight(remote.key, remote.offset, posted.total)? {
            return Ok(SendProgress::Blocked);
        }
        let is_told = posted.immediate.is_some();
        if posted.done < posted.total {
            let length = (posted.total - posted.done).min(STEP_MAX_BYTES);
            let place = remote.offset + posted.done;
            let Some(memory) = connection.mapped_memory(remote.key, place, length, access) else {
                // Revoked meanwhile. The owner decides, and tells both ends.
                posted.method = TransferMethod::Staged;
                posted.done = 0;
                return Ok(SendProgress::More);
            };
            let range = (posted.done, length);
            let copied = posted.data.gather(
                &nic_state.table,
                tag,
                range,
                |own, offset, before, length| {
                    if is_read {
                        copy_bytes(own, offset, memory, place + before, length)
                    } else {
                        copy_bytes(memory, place + before, own, offset, length)
                    }
                },
                |bytes| memory.put(place, bytes),
            );
            if let Err(status) = copied {
                return Ok(SendProgress::Failed(status));
            }
            posted.done += length;
        }

        if posted.done < posted.total {
            return Ok(SendProgress::More);
        }
        if !is_told {
            if !is_read {
                wake_for_silent_write(connection, self.core.attributes.reliability);
            }
            return Ok(SendProgress::Done(0));
        }

        if !connection.producer.has_room()? {
            return Ok(SendProgress::Blocked);
        }
        let entry = entry_of(posted, DataLocation::Placed, posted.total, true);
        connection.push(&entry, &Draft::new());
        Ok(SendProgress::Done(connection.producer.tail()))
    }

    fn step_request(&mut self, posted: &mut PostedSend) -> Result<SendProgress, BreakCause> {
        let Some(connection) = &mut self.connection else { return Ok(SendProgress::Blocked) };
        if !connection.producer.has_room()? {
            return Ok(SendProgress::Blocked);
        }
        let entry = entry_of(posted, DataLocation::Placed, posted.total, true);
        connection.push(&entry, &Draft::new());
        posted.method = TransferMethod::Requested;
        Ok(SendProgress::Blocked)
    }

    fn step_staged(
        &mut self,
        nic_state: &NicState,
        posted: &mut PostedSend,
    ) -> Result<SendProgress, BreakCause> {
        let tag = self.core.attributes.tag;
        let Some(connection) = &mut self.connection else { return Ok(SendProgress::Blocked) };
        if !connection.producer.has_room()? {
            return Ok(SendProgress::Blocked);
        }
        let left = posted.total - posted.done;
        let Some((at, length)) = connection.producer.stage(left)? else {
            return Ok(SendProgress::Blocked);
        };
        let copied = posted.data.gather(
            &nic_state.table,
            tag,
            (posted.done, length),
            |own, offset, before, length| {
                connection.producer.copy_staged(at + before, own, offset, length)
            },
            |bytes| connection.producer.write_staged(at, bytes),
        );
        if let Err(status) = copied {
            if posted.done == 0 || self.core.attributes.reliability != Reliability::Unreliable {
                return Ok(SendProgress::Failed(status));
            }
            // The peer waits for the rest, and the data is allowed to be corrupted.
            posted.failure = Some(status);
        }

        connection.producer.use_staged(at, length);
        let is_last = length == left;
        let place = DataLocation::Staged {
            at: u32::try_from(at).unwrap_or(0),
            length: u32::try_from(length).unwrap_or(0),
        };

        let mut entry = entry_of(posted, place, posted.total, is_last);
        entry.offset = (entry.offset + posted.done).min(OFFSET_MAX);
        connection.push(&entry, &Draft::new());
        posted.done += length;
        Ok(match posted.failure {
            _ if !is_last => SendProgress::More,
            Some(status) => SendProgress::Failed(status),
            None => SendProgress::Done(connection.producer.tail()),
        })
    }

    /// This side's part of a descriptor is done.
    #[inline]
    pub(super) fn finish(
        &mut self,
        nic_state: &mut NicState,
        until: u64,
        cookie: u64,
        is_signaled: bool,
        length: u64,
    ) {
        if self.core.attributes.reliability == Reliability::ReliableReception
            && (until > 0 || !self.unacked.is_empty())
        {
            let waiting = UnackedSend { until, cookie, is_signaled, length };
            self.unacked.push_back(waiting);
        } else {
            self.succeed(nic_state, cookie, is_signaled, length);
        }
    }

    #[inline]
    fn succeed(&mut self, nic_state: &mut NicState, cookie: u64, is_signaled: bool, length: u64) {
        if is_signaled {
            let mut completion = Completion::new(self.core.id, Queue::Send, cookie, Status::Done);
            completion.length = length;
            self.complete(nic_state, completion);
        } else {
            self.core.release(Queue::Send);
        }
    }

    /// Completes what the peer has carried out.
    pub(super) fn acknowledge(&mut self, nic_state: &mut NicState) -> Result<(), BreakCause> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        if self.unacked.is_empty() {
            return Ok(());
        }
        let consumed = connection.producer.refresh()?;
        while let Some(waiting) = self.unacked.front()
            && waiting.until <= consumed
        {
            let UnackedSend { cookie, is_signaled, length, .. } = *waiting;
            self.unacked.pop_front();
            self.succeed(nic_state, cookie, is_signaled, length);
        }
        Ok(())
    }

    // ------------------------------------------------------------------ answers to reads

    /// Writes the data of an answer to its destination. `copy` is called for each piece, as in
    /// [`RegionTable::pieces`].
    pub(super) fn take_answer(
        &mut self,
        nic_state: &mut NicState,
        (length, total, is_last): (u64, u64, bool),
        copy: impl FnMut(&Memory, u64, u64, usize) -> Result<(), OutOfBounds>,
    ) -> Result<(), BreakCause> {
        let asked =
            self.sends.front_mut().filter(|posted| posted.method == TransferMethod::Requested);
        let Some(asked) = asked else {
            return Err(BreakCause::Fault("data that was not asked for"));
        };
        let left = asked.total - asked.done;
        if total != asked.total || length > left || is_last != (length == left) {
            return Err(BreakCause::Fault("an answer of another length than asked for"));
        }
        if let OwnedData::Segments(segments) = &asked.data
            && asked.failure.is_none()
        {
            let segments = segments.as_slice();
            let tag = self.core.attributes.tag;
            asked.failure = nic_state.table.pieces(tag, segments, asked.done, length, copy).err();
        }
        asked.done += length;
        if is_last { self.end_read(nic_state, None) } else { Ok(()) }
    }

    /// The peer's answer is complete, or was refused.
    pub(super) fn end_read(
        &mut self,
        nic_state: &mut NicState,
        refusal: Option<Status>,
    ) -> Result<(), BreakCause> {
        if self.sends.front().is_none_or(|posted| posted.method != TransferMethod::Requested) {
            return Err(BreakCause::Fault("an answer that was not asked for"));
        }
        let Some(asked) = self.sends.pop_front() else { return Ok(()) };
        match asked.failure.or(refusal) {
            None => self.finish(nic_state, 0, asked.cookie, asked.is_signaled, asked.total),
            Some(status) => {
                // Everything before it is acknowledged: the peer consumed the request after it.
                self.fail(nic_state, asked.cookie, status);
                if self.core.attributes.is_reliable() {
                    return Err(BreakCause::Failed);
                }
            }
        }
        Ok(())
    }

    /// Returns whether a descriptor waits for the peer to consume.
    pub(super) fn waits_for_peer(&self) -> bool {
        !self.unacked.is_empty()
            || self.answer.is_some()
            || self.sends.front().is_some_and(|posted| posted.method != TransferMethod::Requested)
    }

    pub(super) fn state_allows_send(&self) -> Result<(), ViError> {
        if self.core.state.is_connected() {
            return Ok(());
        }
        let state = self.core.state;
        Err(ViError::WrongState { state, what: "post to the send queue" })
    }
}

/// Writes a few bytes into the peer's memory mapped here, without notifying the peer. Returns `false`,
/// without having done anything, if that is not possible at once.
fn write_silently(
    connection: &mut ShmConnection,
    place: RemoteSegment,
    bytes: &[u8],
    reliability: Reliability,
) -> bool {
    let length = wide(bytes.len());
    if !matches!(connection.is_in_flight(place.key, place.offset, length), Ok(false)) {
        return false;
    }
    let memory = connection.mapped_memory(place.key, place.offset, length, Access::Write);
    let is_written = memory.is_some_and(|m| m.put(place.offset, bytes).is_ok());
    if is_written {
        wake_for_silent_write(connection, reliability);
    }
    is_written
}

/// A silent write wakes no peer: otherwise credits would wake each sender once for nothing. Only a
/// protocol that repairs losses waits for such words, its acknowledgements.
fn wake_for_silent_write(connection: &mut ShmConnection, reliability: Reliability) {
    if reliability == Reliability::Unreliable {
        connection.wake_if_asleep();
    }
}

fn gather_small(
    data: &OwnedData,
    table: &RegionTable,
    tag: ProtectionTag,
    bytes: &mut [u8; INLINE_MAX],
) -> Result<(), Status> {
    match data {
        OwnedData::Inline(inline) => {
            bytes.get_mut(..inline.len()).ok_or(Status::LengthError)?.copy_from_slice(inline);
            Ok(())
        }
        OwnedData::Segments(segments) => {
            let mut at = 0_usize;
            for segment in segments.as_slice() {
                let memory = table.local(tag, segment)?;
                let end = usize::try_from(segment.length).ok().and_then(|l| at.checked_add(l));
                let room = end.and_then(|end| bytes.get_mut(at..end)).ok_or(Status::LengthError)?;
                read_bytes(memory, segment.offset, room).map_err(|_| Status::ProtectionError)?;
                at += room.len();
            }
            Ok(())
        }
    }
}

fn entry_of(posted: &PostedSend, place: DataLocation, total: u64, is_last: bool) -> RingEntry {
    let kind = match posted.operation {
        Operation::Send => EntryKind::Send,
        Operation::RdmaWrite => EntryKind::Write,
        Operation::RdmaRead => EntryKind::ReadRequest,
    };
    let remote = posted.remote.unwrap_or(RemoteSegment { key: RemoteKey(0), offset: 0 });
    let immediate = posted.immediate;
    let offset = remote.offset.min(OFFSET_MAX);
    RingEntry { kind, place, immediate, is_last, key: remote.key, offset, total }
}
