//! The conversion of descriptors into fragments, and of fragments into transfers.
//!
//! ```text
//! fragment   chunks, until it is full
//! chunk      kind u8, flags u8, length u16 (of its data), the fields of its kind, data
//!   send     [immediate i32], total u32
//!   write    [immediate i32], key u64, offset u64, total u32
//!   read     key u64, offset u64, total u32; no data
//!   answer   total u32; answers the oldest unanswered read
//!   more     the continuation of a chunk from an earlier fragment
//! ```
//! The chunks of one transfer follow each other; answers and descriptors take turns. Fragments are taken
//! in order, so data goes to its place in registered memory as soon as it arrives. Access rights are
//! checked anew for each chunk, so memory that is deregistered becomes unreachable even in the middle of
//! a transfer.

use super::{
    connection::{IncomingKind, IncomingTransfer, ReadResponse, SoftwareConnection},
    gather::Gather,
    packet::BodyReader,
    vi::{PostedSend, SendStage, SoftwareVi},
};
use crate::vi::{
    Completion, DisconnectReason, Operation, Queue, RemoteKey, RemoteSegment, Status, ViAttributes,
    objects::{Access, Objects, PostedData},
};

const SEND: u8 = 1;
const WRITE: u8 = 2;
const READ: u8 = 3;
const ANSWER: u8 = 4;
const MORE: u8 = 5;

const HAS_IMMEDIATE: u8 = 1;

/// The most that a chunk has besides its data, plus a word: with less room, no chunk is begun.
const ROOM_MIN: usize = 28 + 8;

/// The most reads of a peer that wait for their answers: more than any queue holds.
const ANSWERS_MAX: usize = 4096;

/// The longest transfer, in bytes.
pub(super) const TRANSFER_MAX: u64 = (1 << 31) - 1;

/// The reason why a connection breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionFailure {
    pub(super) reason: DisconnectReason,
    /// The peer's descriptor that failed here.
    pub(super) failed: Option<(u64, Status)>,
}

impl ConnectionFailure {
    const fn fault(what: &'static str) -> Self {
        Self { reason: DisconnectReason::PeerFault(what), failed: None }
    }

    const fn descriptor(ordinal: u64, status: Status) -> Self {
        Self { reason: DisconnectReason::DescriptorFailed, failed: Some((ordinal, status)) }
    }
}

// ---------------------------------------------------------------------- departure

/// Returns whether there is anything to make a fragment of.
pub(super) fn has_more<P>(vi: &SoftwareVi<P>, connection: &SoftwareConnection<P>) -> bool {
    let goes_on =
        || matches!(current(vi).map(|posted| posted.stage), Some(SendStage::Departing(_)));
    !connection.answers.is_empty() || (!vi.is_halted && vi.begun < vi.sends.len()) || goes_on()
}

fn current<P>(vi: &SoftwareVi<P>) -> Option<&PostedSend> {
    vi.begun.checked_sub(1).and_then(|at| vi.sends.get(at))
}

/// Fills a fragment, which gets number `sequence`.
pub(super) fn fill<P>(
    objects: &Objects,
    vi: &mut SoftwareVi<P>,
    connection: &mut SoftwareConnection<P>,
    fragment: &mut Gather,
) -> Result<(), ConnectionFailure> {
    let capacity = connection.fragment_bytes();
    // A tag needs bytes that do not change, and an unreliable transfer is done when it departs.
    fragment.copy_memory(connection.key.is_some() || !vi.is_reliable());
    let sequence = connection.out.next();
    while capacity.saturating_sub(fragment.len()) >= ROOM_MIN {
        let room = capacity - fragment.len();
        if matches!(current(vi).map(|posted| posted.stage), Some(SendStage::Departing(_))) {
            continue_send(objects, vi, fragment, room, sequence);
            continue;
        }
        let answer = connection.answers.front();
        let goes_on = answer.is_some_and(|answer| answer.has_begun);
        let has_send = !vi.is_halted && vi.begun < vi.sends.len();
        if goes_on || (answer.is_some() && (connection.answers_next || !has_send)) {
            send_answer(objects, &vi.core.attributes, connection, fragment, room)?;
        } else if has_send {
            connection.answers_next = true;
            begin_send(objects, vi, connection, fragment, room, sequence);
        } else {
            break;
        }
    }

    Ok(())
}

/// Begins a chunk; its length is filled in by [`end_chunk`].
fn begin_chunk(fragment: &mut Gather, kind: u8, flags: u8) -> usize {
    let start = fragment.position();
    fragment.push(&[kind, flags, 0, 0]);
    start
}

fn end_chunk(fragment: &mut Gather, start: usize, length: usize) {
    let length = u16::try_from(length).unwrap_or(u16::MAX);
    fragment.set(start + 2, &length.to_le_bytes());
}

fn total(length: u64) -> [u8; 4] {
    u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes()
}

/// Returns the length of a descriptor's transfer, or what is wrong with it on this side.
fn check<P>(objects: &Objects, vi: &SoftwareVi<P>, posted: &PostedSend) -> Result<u64, Status> {
    let is_read = posted.operation == Operation::RdmaRead;
    let needs_place = posted.operation != Operation::Send;
    let is_inline = matches!(posted.data, PostedData::Inline(_));
    let reads_badly = is_read && (is_inline || posted.immediate.is_some() || !vi.is_reliable());
    if posted.remote.is_some() != needs_place || reads_badly {
        return Err(Status::FormatError);
    }
    let length = match &posted.data {
        PostedData::Inline(bytes) => to_u64(bytes.len()),
        PostedData::Segments(segments) => {
            let mut sum = 0_u64;
            for segment in segments {
                sum = sum.checked_add(segment.length).ok_or(Status::LengthError)?;
            }
            if sum > TRANSFER_MAX {
                return Err(Status::LengthError);
            }
            for segment in segments {
                objects.local(vi.core.attributes.tag, segment)?;
            }
            sum
        }
    };
    Ok(length)
}

fn begin_send<P>(
    objects: &Objects,
    vi: &mut SoftwareVi<P>,
    connection: &mut SoftwareConnection<P>,
    fragment: &mut Gather,
    room: usize,
    sequence: u64,
) {
    let Some(posted) = vi.sends.get(vi.begun) else { return };
    let checked = check(objects, vi, posted);
    let is_reliable = vi.is_reliable();
    let ordinal = vi.ended + to_u64(vi.begun);
    let Some(posted) = vi.sends.get_mut(vi.begun) else { return };
    vi.begun += 1;
    match checked {
        Ok(length) => posted.length = length,
        Err(status) => {
            posted.stage = SendStage::Over(status);
            vi.is_halted = is_reliable;
            return;
        }
    }

    let kind = match posted.operation {
        Operation::Send => SEND,
        Operation::RdmaWrite => WRITE,
        Operation::RdmaRead => READ,
    };

    let start = begin_chunk(fragment, kind, u8::from(posted.immediate.is_some()) * HAS_IMMEDIATE);
    if let Some(immediate) = posted.immediate {
        fragment.push(&immediate.to_le_bytes());
    }
    if let Some(RemoteSegment { key, offset }) = posted.remote {
        fragment.push(&key.0.to_le_bytes());
        fragment.push(&offset.to_le_bytes());
    }

    fragment.push(&total(posted.length));
    if kind == READ {
        connection.reads.push_back(ordinal);
        posted.stage = SendStage::Departed(sequence);
        return;
    }

    posted.stage = SendStage::Departing(0);
    // Only the chunk's header is there.
    let room = room.saturating_sub(fragment.position() - start);
    append(objects, vi, fragment, start, room, sequence);
}

fn continue_send<P>(
    objects: &Objects,
    vi: &mut SoftwareVi<P>,
    fragment: &mut Gather,
    room: usize,
    sequence: u64,
) {
    let start = begin_chunk(fragment, MORE, 0);
    append(objects, vi, fragment, start, room.saturating_sub(4), sequence);
}

/// Appends as much of the current descriptor as fits to the chunk that begins at `start`.
fn append<P>(
    objects: &Objects,
    vi: &mut SoftwareVi<P>,
    fragment: &mut Gather,
    start: usize,
    room: usize,
    sequence: u64,
) {
    let tag = vi.core.attributes.tag;
    let is_reliable = vi.is_reliable();
    let Some(posted) = vi.begun.checked_sub(1).and_then(|at| vi.sends.get_mut(at)) else { return };
    let SendStage::Departing(done) = posted.stage else { return };
    let left = usize::try_from(posted.length - done).unwrap_or(usize::MAX);
    let count = left.min(room);
    let before = fragment.position();
    let appended = match &posted.data {
        PostedData::Inline(bytes) => {
            let from = usize::try_from(done).unwrap_or(usize::MAX);
            fragment.push(bytes.get(from..from + count).unwrap_or(&[]));
            Ok(())
        }
        PostedData::Segments(segments) => {
            let pieces = objects.pieces(tag, segments, (done, count), |memory, offset, length| {
                let pushed = fragment.push_memory(memory, offset, length);
                pushed.map_err(|_| Status::ProtectionError)
            });
            pieces.map(drop)
        }
    };
    if let Err(status) = appended {
        // Its memory was deregistered meanwhile.
        fragment.truncate(before);
        end_chunk(fragment, start, 0);
        posted.stage = SendStage::Over(status);
        vi.is_halted = is_reliable;
        return;
    }

    end_chunk(fragment, start, count);
    posted.stage = if count == left {
        SendStage::Departed(sequence)
    } else {
        SendStage::Departing(done + to_u64(count))
    };
}

fn send_answer<P>(
    objects: &Objects,
    attributes: &ViAttributes,
    connection: &mut SoftwareConnection<P>,
    fragment: &mut Gather,
    room: usize,
) -> Result<(), ConnectionFailure> {
    let Some(answer) = connection.answers.front_mut() else { return Ok(()) };
    let start = begin_chunk(fragment, if answer.has_begun { MORE } else { ANSWER }, 0);
    if !answer.has_begun {
        fragment.push(&total(answer.length));
        answer.has_begun = true;
    }

    let left = usize::try_from(answer.length - answer.done).unwrap_or(usize::MAX);
    let count = left.min(room.saturating_sub(fragment.position() - start));
    let read =
        objects.remote(attributes, answer.place, answer.length, Access::Read).and_then(|memory| {
            // Copied: the owner may deregister the memory and reuse it before this is sent again.
            fragment
                .append(|out| memory.take_onto(answer.place.offset + answer.done, count, out))
                .map_err(|_| Status::RdmaProtectionError)
        });
    if let Err(status) = read {
        return Err(ConnectionFailure::descriptor(answer.ordinal, status));
    }
    end_chunk(fragment, start, count);
    answer.done += to_u64(count);
    if count == left {
        connection.answers.pop_front();
        connection.answers_next = false;
    }

    Ok(())
}

/// Completes the finished descriptors at the head of the send queue. Returns whether one failed in a way
/// that breaks the connection.
#[must_use]
pub(super) fn settle<P>(objects: &mut Objects, vi: &mut SoftwareVi<P>, heard: u64) -> bool {
    let is_reliable = vi.is_reliable();
    while let Some(posted) = vi.sends.front() {
        let status = match posted.stage {
            SendStage::Over(status) => status,
            SendStage::Departed(_) if !is_reliable => Status::Done,
            SendStage::Departed(last)
                if last < heard && posted.operation != Operation::RdmaRead =>
            {
                Status::Done
            }
            _ => return false,
        };
        let Some(posted) = vi.sends.pop_front() else { return false };
        vi.begun = vi.begun.saturating_sub(1);
        vi.ended += 1;
        vi.core.complete_send(objects, &posted, status);
        if is_reliable && !status.is_done() {
            return true;
        }
    }
    false
}

// ---------------------------------------------------------------------- arrival

/// An arriving chunk.
struct Chunk<'a> {
    kind: u8,
    immediate: Option<i32>,
    place: Option<RemoteSegment>,
    total: u64,
    data: &'a [u8],
}

fn read_chunk<'a>(body: &mut BodyReader<'a>) -> Option<Chunk<'a>> {
    let [kind, flags, low, high] = body.take()?;
    let length = usize::from(u16::from_le_bytes([low, high]));
    let takes_immediate = matches!(kind, SEND | WRITE);
    if flags > HAS_IMMEDIATE || (flags == HAS_IMMEDIATE && !takes_immediate) {
        return None;
    }
    let immediate = (flags == HAS_IMMEDIATE).then(|| body.take().map(i32::from_le_bytes));
    let immediate = immediate.map_or(Some(None), |found| found.map(Some))?;
    let place = match kind {
        WRITE | READ => {
            Some(RemoteSegment { key: RemoteKey(body.read_u64()?), offset: body.read_u64()? })
        }
        SEND | ANSWER | MORE => None,
        _ => return None,
    };
    let total = if kind == MORE { 0 } else { u64::from(u32::from_le_bytes(body.take()?)) };
    if total > TRANSFER_MAX || (kind == READ && length > 0) {
        return None;
    }
    Some(Chunk { kind, immediate, place, total, data: body.bytes(length)? })
}

/// Takes a fragment. On an unreliable connection this never fails.
pub(super) fn take_fragment<P>(
    objects: &mut Objects,
    vi: &mut SoftwareVi<P>,
    connection: &mut SoftwareConnection<P>,
    fragment: &[u8],
) -> Result<(), ConnectionFailure> {
    let mut body = BodyReader(fragment);
    while !body.0.is_empty() {
        let taken = read_chunk(&mut body)
            .ok_or(ConnectionFailure::fault("a fragment that makes no sense"))
            .and_then(|chunk| take_chunk(objects, vi, connection, &chunk));
        match taken {
            Ok(()) => {}
            Err(failure) if vi.is_reliable() => return Err(failure),
            Err(ConnectionFailure { reason: DisconnectReason::PeerFault(_), .. }) => {
                // It may have been corrupted in transit.
                connection.incoming = None;
                return Ok(());
            }
            Err(_) => {
                if let Some(incoming) = connection.incoming.as_mut() {
                    incoming.kind = IncomingKind::Refused;
                }
            }
        }
    }

    Ok(())
}

fn take_chunk<P>(
    objects: &mut Objects,
    vi: &mut SoftwareVi<P>,
    connection: &mut SoftwareConnection<P>,
    chunk: &Chunk<'_>,
) -> Result<(), ConnectionFailure> {
    let is_reliable = vi.is_reliable();
    if chunk.kind == MORE {
        if connection.incoming.is_none() && is_reliable {
            return Err(ConnectionFailure::fault("the rest of nothing"));
        }
    } else {
        if connection.incoming.is_some() && is_reliable {
            return Err(ConnectionFailure::fault("one transfer within another"));
        }
        let kind = match (chunk.kind, chunk.place) {
            (READ, Some(place)) => return take_read(objects, vi, connection, place, chunk.total),
            (WRITE, Some(place)) => IncomingKind::Write(place),
            (ANSWER, _) => IncomingKind::Answer,
            _ => IncomingKind::Send,
        };
        let (length, immediate) = (chunk.total, chunk.immediate);
        connection.incoming = Some(IncomingTransfer { kind, length, done: 0, immediate });
        begin(objects, vi, connection, kind, length)?;
    }

    let Some(mut incoming) = connection.incoming else { return Ok(()) };
    let count = to_u64(chunk.data.len());
    if count > incoming.length - incoming.done {
        return Err(ConnectionFailure::fault("more of a transfer than it has"));
    }
    let is_last = incoming.done + count == incoming.length;
    place(objects, vi, connection, &incoming, chunk.data, is_last)?;
    incoming.done += count;
    connection.incoming = Some(incoming);
    if is_last {
        connection.incoming = None;
        finish(objects, vi, connection, &incoming);
    }

    Ok(())
}

fn take_read<P>(
    objects: &Objects,
    vi: &SoftwareVi<P>,
    connection: &mut SoftwareConnection<P>,
    place: RemoteSegment,
    length: u64,
) -> Result<(), ConnectionFailure> {
    if !vi.is_reliable() || connection.answers.len() >= ANSWERS_MAX {
        return Err(ConnectionFailure::fault(
            "more reads than a queue holds, or where none are allowed",
        ));
    }
    let ordinal = connection.carried_out;
    objects
        .remote(&vi.core.attributes, place, length, Access::Read)
        .map_err(|status| ConnectionFailure::descriptor(ordinal, status))?;
    connection.carried_out += 1;
    connection.answers.push_back(ReadResponse {
        ordinal,
        place,
        length,
        done: 0,
        has_begun: false,
    });
    Ok(())
}

/// Checks what can be checked before any data is written.
fn begin<P>(
    objects: &mut Objects,
    vi: &mut SoftwareVi<P>,
    connection: &SoftwareConnection<P>,
    kind: IncomingKind,
    length: u64,
) -> Result<(), ConnectionFailure> {
    let ordinal = connection.carried_out;
    let refuse = |status| Err(ConnectionFailure::descriptor(ordinal, status));
    match kind {
        IncomingKind::Send => {
            let Some(posted) = vi.receives.front() else {
                return refuse(Status::RemoteDescriptorError);
            };
            let segments = &posted.segments;
            let tag = vi.core.attributes.tag;
            let is_wrong = segments.iter().any(|segment| objects.local(tag, segment).is_err());
            let room = segments.iter().fold(0_u64, |sum, piece| sum.saturating_add(piece.length));
            if is_wrong {
                fail_receive(objects, vi, Status::ProtectionError);
                return refuse(Status::RemoteDescriptorError);
            }
            if length > room {
                fail_receive(objects, vi, Status::LengthError);
                return refuse(Status::LengthError);
            }
            Ok(())
        }

        IncomingKind::Write(place) => objects
            .remote(&vi.core.attributes, place, length, Access::Write)
            .map_or_else(refuse, |_| Ok(())),
        IncomingKind::Answer => {
            let at = connection.reads.front().and_then(|read| read.checked_sub(vi.ended));
            let at = at.and_then(|at| usize::try_from(at).ok());
            match at.and_then(|at| vi.sends.get(at)) {
                Some(posted) if posted.length == length => Ok(()),
                _ => Err(ConnectionFailure::fault("an answer to no read, or of another length")),
            }
        }

        IncomingKind::Refused => Ok(()),
    }
}

fn fail_receive<P>(objects: &mut Objects, vi: &mut SoftwareVi<P>, status: Status) {
    if let Some(posted) = vi.receives.pop_front() {
        vi.core
            .complete(objects, Completion::new(vi.core.id, Queue::Receive, posted.cookie, status));
    }
}

/// Writes data to its destination.
fn place<P>(
    objects: &mut Objects,
    vi: &mut SoftwareVi<P>,
    connection: &SoftwareConnection<P>,
    incoming: &IncomingTransfer,
    data: &[u8],
    is_last: bool,
) -> Result<(), ConnectionFailure> {
    let ordinal = connection.carried_out;
    let refuse = |status| ConnectionFailure::descriptor(ordinal, status);
    match incoming.kind {
        IncomingKind::Write(place) => {
            let memory = objects
                .remote(&vi.core.attributes, place, incoming.length, Access::Write)
                .map_err(refuse)?;
            if is_last && incoming.immediate.is_some() && vi.receives.is_empty() {
                return Err(refuse(Status::RemoteDescriptorError));
            }
            memory
                .put(place.offset + incoming.done, data)
                .map_err(|_| refuse(Status::RdmaProtectionError))
        }

        IncomingKind::Send => {
            let Some(posted) = vi.receives.front() else {
                return Err(refuse(Status::RemoteDescriptorError));
            };
            let tag = vi.core.attributes.tag;
            if objects.scatter(tag, &posted.segments, incoming.done, data).is_err() {
                // Its memory was deregistered meanwhile.
                fail_receive(objects, vi, Status::ProtectionError);
                return Err(refuse(Status::RemoteDescriptorError));
            }
            Ok(())
        }

        IncomingKind::Answer => {
            let at = connection.reads.front().and_then(|read| read.checked_sub(vi.ended));
            let at = at.and_then(|at| usize::try_from(at).ok());
            let tag = vi.core.attributes.tag;
            let Some(posted) = at.and_then(|at| vi.sends.get_mut(at)) else { return Ok(()) };
            if let PostedData::Segments(segments) = &posted.data
                && !matches!(posted.stage, SendStage::Over(_))
                && let Err(status) = objects.scatter(tag, segments, incoming.done, data)
            {
                posted.stage = SendStage::Over(status);
                vi.is_halted = true;
            }
            Ok(())
        }

        IncomingKind::Refused => Ok(()),
    }
}

/// Completes a transfer.
fn finish<P>(
    objects: &mut Objects,
    vi: &mut SoftwareVi<P>,
    connection: &mut SoftwareConnection<P>,
    incoming: &IncomingTransfer,
) {
    match incoming.kind {
        IncomingKind::Answer => {
            let at = connection.reads.pop_front().and_then(|read| read.checked_sub(vi.ended));
            let at = at.and_then(|at| usize::try_from(at).ok());
            if let Some(posted) = at.and_then(|at| vi.sends.get_mut(at))
                && !matches!(posted.stage, SendStage::Over(_))
            {
                posted.stage = SendStage::Over(Status::Done);
            }
            return;
        }
        IncomingKind::Refused => return,
        IncomingKind::Send | IncomingKind::Write(_) => connection.carried_out += 1,
    }

    let consumes = incoming.kind == IncomingKind::Send || incoming.immediate.is_some();
    if consumes && let Some(posted) = vi.receives.pop_front() {
        let mut completion =
            Completion::new(vi.core.id, Queue::Receive, posted.cookie, Status::Done);
        completion.length = incoming.length;
        completion.immediate = incoming.immediate;
        vi.core.complete(objects, completion);
    }
}

fn to_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
