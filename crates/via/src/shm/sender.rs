//! The sending engine: carries out the descriptors of a send queue, in order.
//!
//! A transfer goes one of three ways:
//! - *inline*: at most 40 bytes travel in the ring's entry, and the peer puts them in place;
//! - *directly*: into memory of the peer that is mapped here, and then an entry tells of it, if the
//!   consumer wants to tell;
//! - *staged*: in chunks through the ring's staging area, out of which the peer copies.
//!
//! A direct access never overtakes an entry that still has to be put in the same place.

use super::{
    entry::{Draft, Entry, INLINE_MAX, Kind, OFFSET_MAX, Place},
    layout::{TRANSFER_MAX_BYTES, wide},
    link::Link,
    table::{Access, Table, copy_bytes, read_bytes, write_bytes},
    vi::{Desk, End, Vi},
};
use crate::vi::{
    Completion, Data, LocalSegment, Memory, Operation, OutOfBounds, ProtectionTag, Queue,
    Reliability, RemoteKey, RemoteSegment, SendDescriptor, Status, ViError, ViState,
};

/// The most bytes copied in one call of the NIC for one VI.
const BURST_MAX_BYTES: u64 = 1024 * 1024;
/// The most bytes of one direct copy, after which the ring is looked at again.
const STEP_MAX_BYTES: u64 = 256 * 1024;

/// A send descriptor that waits for its turn, or for the peer.
#[derive(Debug)]
pub(super) struct Posted {
    operation: Operation,
    pub(super) cookie: u64,
    immediate: Option<i32>,
    is_signaled: bool,
    remote: Option<RemoteSegment>,
    data: Owned,
    total: u64,
    /// How many bytes were copied.
    done: u64,
    way: Way,
    /// How it will end as soon as those before it are done.
    pub(super) failure: Option<Status>,
}

impl Posted {
    /// Returns how many of its bytes were copied.
    pub(super) const fn copied(&self) -> u64 {
        self.done
    }

    /// Returns whether the peer may have seen something of it.
    pub(super) const fn is_under_way(&self) -> bool {
        self.done > 0 || matches!(self.way, Way::Asked)
    }
}

/// A descriptor's data, for later.
#[derive(Debug)]
pub(super) enum Owned {
    Segments(Segments),
    Inline(Box<[u8]>),
}

/// Data segments. One, which is usual, takes no allocation.
#[derive(Debug)]
pub(super) enum Segments {
    One([LocalSegment; 1]),
    Other(Box<[LocalSegment]>),
}

impl Segments {
    #[inline]
    pub(super) fn of(segments: &[LocalSegment]) -> Self {
        match segments {
            [one] => Self::One([*one]),
            other => Self::Other(other.into()),
        }
    }

    #[inline]
    pub(super) fn as_slice(&self) -> &[LocalSegment] {
        match self {
            Self::One(one) => one,
            Self::Other(other) => other,
        }
    }
}

/// Which way a transfer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Not chosen yet.
    Open,
    Inline,
    Direct,
    Staged,
    /// The peer was asked for the data.
    Asked,
}

/// A send descriptor that is done when the peer has consumed so many entries.
#[derive(Debug)]
pub(super) struct Unacknowledged {
    until: u64,
    pub(super) cookie: u64,
    is_signaled: bool,
    length: u64,
}

/// How far a descriptor got.
enum Step {
    /// Carried out, as far as this side does; acknowledged with so many entries.
    Done(u64),
    /// Some of it.
    More,
    /// The peer must go on first.
    Blocked,
    /// It fails.
    Failed(Status),
}

impl Owned {
    /// Copies `length` bytes from `from` on to wherever `copy_memory` and `copy_bytes` put them.
    fn gather(
        &self,
        table: &Table,
        tag: ProtectionTag,
        (from, length): (u64, u64),
        copy_memory: impl FnMut(&Memory, u64, u64, usize) -> Result<(), OutOfBounds>,
        copy_bytes: impl FnOnce(&[u8]) -> Result<(), OutOfBounds>,
    ) -> Result<(), Status> {
        match self {
            Self::Segments(segments) => {
                table.pieces(tag, segments.as_slice(), from, length, copy_memory)
            }
            Self::Inline(bytes) => {
                let range = usize::try_from(from).ok().zip(usize::try_from(from + length).ok());
                let piece = range.and_then(|(from, to)| bytes.get(from..to));
                copy_bytes(piece.ok_or(Status::LengthError)?).map_err(|_| Status::ProtectionError)
            }
        }
    }
}

impl Vi {
    /// Posts a descriptor: carries it out at once if nothing is before it and it is small.
    #[inline]
    pub(super) fn post(
        &mut self,
        desk: &mut Desk,
        descriptor: &SendDescriptor<'_>,
    ) -> Result<(), ViError> {
        self.send_count += 1;
        if self.sends.is_empty()
            && (self.post_small(desk, descriptor) || self.post_direct(desk, descriptor))
        {
            return Ok(());
        }
        self.post_any(desk, descriptor);
        Ok(())
    }

    /// Carries out a send or write that fits into an entry. Returns `false`, and has done nothing, if it
    /// does not, or if anything is unusual about it.
    #[inline]
    fn post_small(&mut self, desk: &mut Desk, descriptor: &SendDescriptor<'_>) -> bool {
        let draft = Draft::new();
        let (kind, place) = match (descriptor.operation, descriptor.remote) {
            (Operation::RdmaWrite, Some(place)) => (Kind::Write, place),
            (Operation::Send, None) => (Kind::Send, RemoteSegment { key: RemoteKey(0), offset: 0 }),
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
                    let Ok(memory) = desk.table.local(self.attributes.tag, segment) else {
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
        let Some(link) = &mut self.link else { return false };
        let reliability = self.attributes.reliability;
        if kind == Kind::Write
            && descriptor.immediate.is_none()
            && write_silently(link, place, &draft.inline()[..total], reliability)
        {
            self.finish(desk, 0, descriptor.cookie, descriptor.is_signaled, wide(total));
            return true;
        }
        if !matches!(link.producer.has_room(), Ok(true)) {
            return false;
        }
        let entry = Entry {
            kind,
            place: Place::Inline { length },
            immediate: descriptor.immediate,
            is_last: true,
            key: place.key,
            offset: place.offset.min(OFFSET_MAX),
            total: wide(total),
        };
        link.push(&entry, &draft);
        let until = link.producer.tail();
        self.finish(desk, until, descriptor.cookie, descriptor.is_signaled, wide(total));
        true
    }

    /// Carries out a write into memory of the peer that is mapped here. Returns `false`, and has told
    /// nobody of anything, if that is not possible at once.
    fn post_direct(&mut self, desk: &mut Desk, descriptor: &SendDescriptor<'_>) -> bool {
        let (Operation::RdmaWrite, Some(place)) = (descriptor.operation, descriptor.remote) else {
            return false;
        };
        let is_told = descriptor.immediate.is_some();
        let Some(link) = &mut self.link else { return false };
        if is_told
            && (self.attributes.reliability == Reliability::Unreliable
                || !matches!(link.producer.has_room(), Ok(true)))
        {
            return false;
        }
        let tag = self.attributes.tag;
        let total = match descriptor.data {
            Data::Segments(segments) => desk.table.check(tag, segments).unwrap_or(0),
            Data::Inline(slices) => slices.iter().fold(0, |sum, slice| sum + wide(slice.len())),
        };
        if total == 0
            || total > STEP_MAX_BYTES
            || !matches!(link.is_in_flight(place.key, place.offset, total), Ok(false))
        {
            return false;
        }
        let Some(memory) = link.reach(place.key, place.offset, total, Access::Write) else {
            return false;
        };
        let copied = match descriptor.data {
            Data::Segments(segments) => {
                desk.table.pieces(tag, segments, 0, total, |own, offset, before, length| {
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
            let entry = Entry {
                kind: Kind::Write,
                place: Place::Placed,
                immediate: descriptor.immediate,
                is_last: true,
                key: place.key,
                offset: place.offset,
                total,
            };
            link.push(&entry, &Draft::new());
            until = link.producer.tail();
        } else {
            ring_for_silent_write(link, self.attributes.reliability);
        }
        self.finish(desk, until, descriptor.cookie, descriptor.is_signaled, total);
        true
    }

    /// Queues a descriptor and does what can be done now.
    fn post_any(&mut self, desk: &mut Desk, descriptor: &SendDescriptor<'_>) {
        let (data, total) = match descriptor.data {
            Data::Segments(segments) => {
                let total = segments.iter().fold(0, |sum: u64, s| sum.saturating_add(s.length));
                (Owned::Segments(Segments::of(segments)), total)
            }
            Data::Inline(slices) => {
                let length = slices.iter().map(|slice| slice.len()).sum();
                let mut bytes = Vec::with_capacity(length);
                for slice in slices {
                    bytes.extend_from_slice(slice);
                }
                let total = wide(bytes.len());
                (Owned::Inline(bytes.into()), total)
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
        let mut posted = Posted {
            operation: descriptor.operation,
            cookie: descriptor.cookie,
            immediate: descriptor.immediate,
            is_signaled: descriptor.is_signaled,
            remote: descriptor.remote,
            data,
            total,
            done: 0,
            way: Way::Open,
            failure: None,
        };
        if !fits {
            posted.failure = Some(Status::FormatError);
        } else if total > TRANSFER_MAX_BYTES {
            posted.failure = Some(Status::LengthError);
        }
        self.sends.push_back(posted);
        if self.sends.len() == 1
            && let Err(end) = self.pump(desk)
        {
            self.end(desk, end);
        }
    }

    /// Carries out what can be carried out now, up to a bound.
    pub(super) fn pump(&mut self, desk: &mut Desk) -> Result<(), End> {
        let mut burst = BURST_MAX_BYTES;
        while burst > 0 {
            let Some(mut posted) = self.sends.pop_front() else { return Ok(()) };
            let before = posted.done;
            let step = self.step(desk, &mut posted)?;
            // Also descriptors without data cost something.
            burst = burst.saturating_sub(posted.done - before).saturating_sub(256);
            match step {
                Step::Done(until) => {
                    let Posted { cookie, is_signaled, total, .. } = posted;
                    self.finish(desk, until, cookie, is_signaled, total);
                }
                Step::More => self.sends.push_front(posted),
                Step::Blocked => {
                    self.sends.push_front(posted);
                    return Ok(());
                }
                Step::Failed(status) if self.unacknowledged.is_empty() => {
                    self.fail(desk, posted.cookie, status);
                    if self.is_reliable() {
                        return Err(End::Failed);
                    }
                }
                Step::Failed(status) => {
                    posted.failure = Some(status);
                    self.sends.push_front(posted);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn step(&mut self, desk: &Desk, posted: &mut Posted) -> Result<Step, End> {
        if posted.way == Way::Open {
            if let Some(status) = posted.failure {
                return Ok(Step::Failed(status));
            }
            if let Err(status) = self.choose_way(desk, posted) {
                return Ok(Step::Failed(status));
            }
        }
        match posted.way {
            Way::Open | Way::Asked => Ok(Step::Blocked),
            Way::Inline => self.step_inline(desk, posted),
            Way::Direct => self.step_direct(desk, posted),
            Way::Staged if posted.operation == Operation::RdmaRead => self.step_request(posted),
            Way::Staged => self.step_staged(desk, posted),
        }
    }

    fn choose_way(&mut self, desk: &Desk, posted: &mut Posted) -> Result<(), Status> {
        if let Owned::Segments(segments) = &posted.data {
            desk.table.check(self.attributes.tag, segments.as_slice())?;
        }
        let access = match posted.operation {
            Operation::RdmaRead => Access::Read,
            Operation::RdmaWrite | Operation::Send => Access::Write,
        };
        let fits_inline = posted.total <= wide(INLINE_MAX) && access == Access::Write;
        // A small write that is told of travels with its word; one that is not needs no word.
        let is_told = posted.operation == Operation::Send || posted.immediate.is_some();
        let is_reachable = match (&mut self.link, posted.remote) {
            // An unreliable write that finds no receive descriptor must leave nothing behind.
            (Some(link), Some(remote))
                if !is_told
                    || (!fits_inline && self.attributes.reliability != Reliability::Unreliable) =>
            {
                link.reach(remote.key, remote.offset, posted.total, access).is_some()
            }
            _ => false,
        };
        posted.way = if is_reachable {
            Way::Direct
        } else if fits_inline {
            Way::Inline
        } else {
            Way::Staged
        };
        Ok(())
    }

    fn step_inline(&mut self, desk: &Desk, posted: &Posted) -> Result<Step, End> {
        let Some(link) = &mut self.link else { return Ok(Step::Blocked) };
        if !link.producer.has_room()? {
            return Ok(Step::Blocked);
        }
        let mut bytes = [0; INLINE_MAX];
        let gathered = gather_small(&posted.data, &desk.table, self.attributes.tag, &mut bytes);
        if let Err(status) = gathered {
            return Ok(Step::Failed(status));
        }
        let draft = Draft::new();
        let _ = draft.put_inline(0, &bytes);
        let length = u8::try_from(posted.total).unwrap_or(u8::MAX);
        let entry = entry_of(posted, Place::Inline { length }, posted.total, true);
        link.push(&entry, &draft);
        Ok(Step::Done(link.producer.tail()))
    }

    /// Reads or writes the peer's memory, and then tells of it if that is asked for.
    fn step_direct(&mut self, desk: &Desk, posted: &mut Posted) -> Result<Step, End> {
        let tag = self.attributes.tag;
        let (Some(link), Some(remote)) = (&mut self.link, posted.remote) else {
            return Ok(Step::Blocked);
        };
        let is_read = posted.operation == Operation::RdmaRead;
        let access = if is_read { Access::Read } else { Access::Write };
        if posted.done == 0 && link.is_in_flight(remote.key, remote.offset, posted.total)? {
            return Ok(Step::Blocked);
        }
        let is_told = posted.immediate.is_some();
        if posted.done < posted.total {
            let length = (posted.total - posted.done).min(STEP_MAX_BYTES);
            let place = remote.offset + posted.done;
            let Some(memory) = link.reach(remote.key, place, length, access) else {
                // Taken back meanwhile. The owner decides, and tells both ends.
                posted.way = Way::Staged;
                posted.done = 0;
                return Ok(Step::More);
            };
            let range = (posted.done, length);
            let copied = posted.data.gather(
                &desk.table,
                tag,
                range,
                |own, offset, before, length| {
                    if is_read {
                        copy_bytes(own, offset, memory, place + before, length)
                    } else {
                        copy_bytes(memory, place + before, own, offset, length)
                    }
                },
                |bytes| write_bytes(memory, place, bytes),
            );
            if let Err(status) = copied {
                return Ok(Step::Failed(status));
            }
            posted.done += length;
        }
        if posted.done < posted.total {
            return Ok(Step::More);
        }
        if !is_told {
            if !is_read {
                ring_for_silent_write(link, self.attributes.reliability);
            }
            return Ok(Step::Done(0));
        }
        if !link.producer.has_room()? {
            return Ok(Step::Blocked);
        }
        let entry = entry_of(posted, Place::Placed, posted.total, true);
        link.push(&entry, &Draft::new());
        Ok(Step::Done(link.producer.tail()))
    }

    fn step_request(&mut self, posted: &mut Posted) -> Result<Step, End> {
        let Some(link) = &mut self.link else { return Ok(Step::Blocked) };
        if !link.producer.has_room()? {
            return Ok(Step::Blocked);
        }
        let entry = entry_of(posted, Place::Placed, posted.total, true);
        link.push(&entry, &Draft::new());
        posted.way = Way::Asked;
        Ok(Step::Blocked)
    }

    fn step_staged(&mut self, desk: &Desk, posted: &mut Posted) -> Result<Step, End> {
        let tag = self.attributes.tag;
        let Some(link) = &mut self.link else { return Ok(Step::Blocked) };
        if !link.producer.has_room()? {
            return Ok(Step::Blocked);
        }
        let left = posted.total - posted.done;
        let Some((at, length)) = link.producer.stage(left)? else { return Ok(Step::Blocked) };
        let copied = posted.data.gather(
            &desk.table,
            tag,
            (posted.done, length),
            |own, offset, before, length| {
                link.producer.copy_staged(at + before, own, offset, length)
            },
            |bytes| link.producer.write_staged(at, bytes),
        );
        if let Err(status) = copied {
            if posted.done == 0 || self.attributes.reliability != Reliability::Unreliable {
                return Ok(Step::Failed(status));
            }
            // The peer waits for the rest, and whatever arrives is allowed to be corrupted.
            posted.failure = Some(status);
        }
        link.producer.use_staged(at, length);
        let is_last = length == left;
        let place = Place::Staged {
            at: u32::try_from(at).unwrap_or(0),
            length: u32::try_from(length).unwrap_or(0),
        };
        let mut entry = entry_of(posted, place, posted.total, is_last);
        entry.offset = (entry.offset + posted.done).min(OFFSET_MAX);
        link.push(&entry, &Draft::new());
        posted.done += length;
        Ok(match posted.failure {
            _ if !is_last => Step::More,
            Some(status) => Step::Failed(status),
            None => Step::Done(link.producer.tail()),
        })
    }

    /// A descriptor was carried out, as far as this side does.
    #[inline]
    pub(super) fn finish(
        &mut self,
        desk: &mut Desk,
        until: u64,
        cookie: u64,
        is_signaled: bool,
        length: u64,
    ) {
        if self.attributes.reliability == Reliability::ReliableReception
            && (until > 0 || !self.unacknowledged.is_empty())
        {
            let waiting = Unacknowledged { until, cookie, is_signaled, length };
            self.unacknowledged.push_back(waiting);
        } else {
            self.succeed(desk, cookie, is_signaled, length);
        }
    }

    #[inline]
    fn succeed(&mut self, desk: &mut Desk, cookie: u64, is_signaled: bool, length: u64) {
        if is_signaled {
            let mut completion = Completion::new(self.id, Queue::Send, cookie, Status::Done);
            completion.length = length;
            self.complete(desk, completion);
        } else {
            self.release(Queue::Send);
        }
    }

    /// Completes what the peer has carried out.
    pub(super) fn acknowledge(&mut self, desk: &mut Desk) -> Result<(), End> {
        let Some(link) = &mut self.link else { return Ok(()) };
        if self.unacknowledged.is_empty() {
            return Ok(());
        }
        let consumed = link.producer.refresh()?;
        while let Some(waiting) = self.unacknowledged.front()
            && waiting.until <= consumed
        {
            let Unacknowledged { cookie, is_signaled, length, .. } = *waiting;
            self.unacknowledged.pop_front();
            self.succeed(desk, cookie, is_signaled, length);
        }
        Ok(())
    }

    // ------------------------------------------------------------------ answers to reads

    /// Puts the data of an answer in place. `copy` does it for each piece, as
    /// [`Table::pieces`] says.
    pub(super) fn take_answer(
        &mut self,
        desk: &mut Desk,
        (length, total, is_last): (u64, u64, bool),
        copy: impl FnMut(&Memory, u64, u64, usize) -> Result<(), OutOfBounds>,
    ) -> Result<(), End> {
        let asked = self.sends.front_mut().filter(|posted| posted.way == Way::Asked);
        let Some(asked) = asked else { return Err(End::Fault("data that nobody asked for")) };
        let left = asked.total - asked.done;
        if total != asked.total || length > left || is_last != (length == left) {
            return Err(End::Fault("an answer of another length than asked for"));
        }
        if let Owned::Segments(segments) = &asked.data
            && asked.failure.is_none()
        {
            let segments = segments.as_slice();
            let tag = self.attributes.tag;
            asked.failure = desk.table.pieces(tag, segments, asked.done, length, copy).err();
        }
        asked.done += length;
        if is_last { self.end_read(desk, None) } else { Ok(()) }
    }

    /// The peer's answer is complete, or was refused.
    pub(super) fn end_read(&mut self, desk: &mut Desk, refusal: Option<Status>) -> Result<(), End> {
        if self.sends.front().is_none_or(|posted| posted.way != Way::Asked) {
            return Err(End::Fault("an answer that nobody asked for"));
        }
        let Some(asked) = self.sends.pop_front() else { return Ok(()) };
        match asked.failure.or(refusal) {
            None => self.finish(desk, 0, asked.cookie, asked.is_signaled, asked.total),
            Some(status) => {
                // Everything before it is acknowledged: the peer consumed the request after it.
                self.fail(desk, asked.cookie, status);
                if self.is_reliable() {
                    return Err(End::Failed);
                }
            }
        }
        Ok(())
    }

    /// Returns whether something waits for the peer to consume.
    pub(super) fn waits_for_peer(&self) -> bool {
        !self.unacknowledged.is_empty()
            || self.answer.is_some()
            || self.sends.front().is_some_and(|posted| posted.way != Way::Asked)
    }

    pub(super) fn state_allows_send(&self) -> Result<(), ViError> {
        if self.state.is_connected() {
            return Ok(());
        }
        let state: ViState = self.state;
        Err(ViError::WrongState { state, what: "post to the send queue" })
    }
}

/// Writes a few bytes into memory of the peer that is mapped here, of which the peer is not told. Returns
/// `false`, and has done nothing, if that is not possible at once.
fn write_silently(
    link: &mut Link,
    place: RemoteSegment,
    bytes: &[u8],
    reliability: Reliability,
) -> bool {
    let length = wide(bytes.len());
    if !matches!(link.is_in_flight(place.key, place.offset, length), Ok(false)) {
        return false;
    }
    let memory = link.reach(place.key, place.offset, length, Access::Write);
    let is_written = memory.is_some_and(|m| write_bytes(m, place.offset, bytes).is_ok());
    if is_written {
        ring_for_silent_write(link, reliability);
    }
    is_written
}

/// A write of which the peer is not told wakes nobody up: credits would wake each sender once for nothing.
/// Only who repairs losses waits for such words, its acknowledgements.
fn ring_for_silent_write(link: &mut Link, reliability: Reliability) {
    if reliability == Reliability::Unreliable {
        link.ring_if_asleep();
    }
}

fn gather_small(
    data: &Owned,
    table: &Table,
    tag: ProtectionTag,
    bytes: &mut [u8; INLINE_MAX],
) -> Result<(), Status> {
    match data {
        Owned::Inline(inline) => {
            bytes.get_mut(..inline.len()).ok_or(Status::LengthError)?.copy_from_slice(inline);
            Ok(())
        }
        Owned::Segments(segments) => {
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

fn entry_of(posted: &Posted, place: Place, total: u64, is_last: bool) -> Entry {
    let kind = match posted.operation {
        Operation::Send => Kind::Send,
        Operation::RdmaWrite => Kind::Write,
        Operation::RdmaRead => Kind::ReadRequest,
    };
    let remote = posted.remote.unwrap_or(RemoteSegment { key: RemoteKey(0), offset: 0 });
    let immediate = posted.immediate;
    let offset = remote.offset.min(OFFSET_MAX);
    Entry { kind, place, immediate, is_last, key: remote.key, offset, total }
}
