//! The objects of a software NIC: memory, queues, VIs with their posted descriptors.

use std::collections::{BTreeMap, VecDeque};

use super::calls::ConnectAttempt;
use super::{connection::SoftwareConnection, gather::Gather, to_u64};
use crate::vi::{
    Completion, CqId, Data, LocalSegment, Memory, MemoryAttributes, MemoryHandle, Operation,
    OutOfBounds, ProtectionTag, Queue, Reliability, RemoteKey, RemoteSegment, SendDescriptor,
    Status, ViAttributes, ViEvent, ViId, ViState,
};

/// Registered memory and completion queues.
#[derive(Debug, Default)]
pub(super) struct Objects {
    pub(super) memory: BTreeMap<MemoryHandle, SoftwareRegion>,
    pub(super) keys: BTreeMap<RemoteKey, MemoryHandle>,
    pub(super) queues: BTreeMap<CqId, VecDeque<Completion>>,
}

#[derive(Debug)]
pub(super) struct SoftwareRegion {
    pub(super) memory: Memory,
    pub(super) attributes: MemoryAttributes,
    pub(super) key: RemoteKey,
}

/// The kind of a peer's access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Write,
    Read,
}

impl Objects {
    /// Returns the memory that a segment refers to, for a VI with this tag.
    pub(super) fn local(
        &self,
        tag: ProtectionTag,
        segment: &LocalSegment,
    ) -> Result<&Memory, Status> {
        let registered = self.memory.get(&segment.memory).ok_or(Status::ProtectionError)?;
        if registered.attributes.tag != tag
            || !is_inside(&registered.memory, segment.offset, segment.length)
        {
            return Err(Status::ProtectionError);
        }
        Ok(&registered.memory)
    }

    /// Returns the memory that a peer reaches through a VI with these attributes.
    pub(super) fn remote(
        &self,
        vi: &ViAttributes,
        place: RemoteSegment,
        length: u64,
        access: Access,
    ) -> Result<&Memory, Status> {
        let denied = Status::RdmaProtectionError;
        let handle = self.keys.get(&place.key).ok_or(denied)?;
        let registered = self.memory.get(handle).ok_or(denied)?;
        let is_allowed = match access {
            Access::Write => registered.attributes.allows_write && vi.allows_write,
            Access::Read => registered.attributes.allows_read && vi.allows_read,
        };
        let is_right = is_allowed
            && registered.attributes.tag == vi.tag
            && is_inside(&registered.memory, place.offset, length);
        is_right.then_some(&registered.memory).ok_or(denied)
    }

    /// Copies bytes to `position` of the pieces of local memory.
    pub(super) fn scatter(
        &self,
        tag: ProtectionTag,
        segments: &[LocalSegment],
        position: u64,
        bytes: &[u8],
    ) -> Result<(), Status> {
        let (mut skip, mut rest) = (position, bytes);
        for segment in segments {
            let memory = self.local(tag, segment)?;
            if skip >= segment.length {
                skip -= segment.length;
                continue;
            }
            let room = usize::try_from(segment.length - skip).unwrap_or(usize::MAX);
            let (piece, others) = rest.split_at(room.min(rest.len()));
            put(memory, segment.offset + skip, piece).map_err(|_| Status::ProtectionError)?;
            (skip, rest) = (0, others);
        }
        if rest.is_empty() { Ok(()) } else { Err(Status::LengthError) }
    }

    /// Appends `length` bytes from `position` of the pieces of local memory.
    pub(super) fn gather(
        &self,
        tag: ProtectionTag,
        segments: &[LocalSegment],
        position: u64,
        length: usize,
        out: &mut Gather,
    ) -> Result<(), Status> {
        let (mut skip, mut left) = (position, length);
        for segment in segments {
            let memory = self.local(tag, segment)?;
            if skip >= segment.length {
                skip -= segment.length;
                continue;
            }
            let room = usize::try_from(segment.length - skip).unwrap_or(usize::MAX);
            let count = room.min(left);
            out.push_memory(memory, segment.offset + skip, count)
                .map_err(|_| Status::ProtectionError)?;
            (skip, left) = (0, left - count);
        }
        Ok(())
    }
}

fn is_inside(memory: &Memory, offset: u64, length: u64) -> bool {
    offset.checked_add(length).is_some_and(|end| end <= to_u64(memory.len()))
}

/// Writes to memory; an aligned word in one access.
pub(super) fn put(memory: &Memory, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
    match <[u8; 8]>::try_from(bytes) {
        Ok(word) if offset.is_multiple_of(8) => memory.store(offset, u64::from_ne_bytes(word)),
        _ => memory.write(offset, bytes),
    }
}

/// Appends bytes of memory; an aligned word in one access.
pub(super) fn take(
    memory: &Memory,
    offset: u64,
    length: usize,
    out: &mut Vec<u8>,
) -> Result<(), OutOfBounds> {
    if length == 8 && offset.is_multiple_of(8) {
        out.extend_from_slice(&memory.load(offset)?.to_ne_bytes());
        return Ok(());
    }
    memory.read_onto(offset, length, out)
}

#[derive(Debug)]
pub(super) struct SoftwareVi<P> {
    pub(super) id: ViId,
    pub(super) attributes: ViAttributes,
    pub(super) state: ViState,
    pub(super) attempt: Option<ConnectAttempt<P>>,
    pub(super) connection: Option<Box<SoftwareConnection<P>>>,
    pub(super) sends: VecDeque<PostedSend>,
    /// How many at the front of `sends` have begun to depart.
    pub(super) begun: usize,
    /// How many send descriptors of this connection have ended: the ordinal of the first in `sends`.
    pub(super) ended: u64,
    pub(super) receives: VecDeque<PostedReceive>,
    /// Posted send descriptors whose completion was not taken; an unsignaled one counts until it is done.
    pub(super) sends_held: usize,
    pub(super) receives_held: usize,
    pub(super) sent: VecDeque<Completion>,
    pub(super) received: VecDeque<Completion>,
    /// A descriptor has failed, which breaks the connection once those before it are done.
    pub(super) is_halted: bool,
    /// Its earliest pending timer.
    pub(super) timer: Option<u64>,
    /// Whether it is in the queue of VIs with something to send.
    pub(super) is_ready: bool,
}

impl<P> SoftwareVi<P> {
    pub(super) const fn new(id: ViId, attributes: ViAttributes) -> Self {
        Self {
            id,
            attributes,
            state: ViState::Idle,
            attempt: None,
            connection: None,
            sends: VecDeque::new(),
            begun: 0,
            ended: 0,
            receives: VecDeque::new(),
            sends_held: 0,
            receives_held: 0,
            sent: VecDeque::new(),
            received: VecDeque::new(),
            is_halted: false,
            timer: None,
            is_ready: false,
        }
    }

    pub(super) const fn side(&mut self, queue: Queue) -> &mut VecDeque<Completion> {
        match queue {
            Queue::Send => &mut self.sent,
            Queue::Receive => &mut self.received,
        }
    }

    /// A completion was taken: its place in the queue is free.
    pub(super) const fn release(&mut self, queue: Queue) {
        let held = match queue {
            Queue::Send => &mut self.sends_held,
            Queue::Receive => &mut self.receives_held,
        };
        *held = held.saturating_sub(1);
    }

    /// Moves to the next state. A transition that the diagram does not have is a bug of this provider.
    pub(super) fn change(&mut self, event: ViEvent) {
        let next = self.state.after(event);
        debug_assert!(next.is_some(), "{:?} in state {:?}", event, self.state);
        self.state = next.unwrap_or(ViState::Error);
    }

    pub(super) fn is_reliable(&self) -> bool {
        self.attributes.reliability != Reliability::Unreliable
    }

    /// Delivers a completion to its queue.
    pub(super) fn complete(&mut self, objects: &mut Objects, completion: Completion) {
        let cq = match completion.queue {
            Queue::Send => self.attributes.send_cq,
            Queue::Receive => self.attributes.receive_cq,
        };
        match cq.and_then(|cq| objects.queues.get_mut(&cq)) {
            Some(queue) => queue.push_back(completion),
            None => self.side(completion.queue).push_back(completion),
        }
    }

    /// Completes a send descriptor: reported if signaled or failed.
    pub(super) fn complete_send(
        &mut self,
        objects: &mut Objects,
        posted: &PostedSend,
        status: Status,
    ) {
        if posted.is_signaled || !status.is_done() {
            let mut completion = Completion::new(self.id, Queue::Send, posted.cookie, status);
            completion.length = if status.is_done() { posted.length } else { 0 };
            self.complete(objects, completion);
        } else {
            self.release(Queue::Send);
        }
    }

    /// Flushes everything posted. `failed`: the peer reports that this one failed, so those before it
    /// did not. The outcome of others that have departed is unknown.
    pub(super) fn flush(&mut self, objects: &mut Objects, failed: Option<(u64, Status)>) {
        let (sends, receives) =
            (std::mem::take(&mut self.sends), std::mem::take(&mut self.receives));
        let level = self.attributes.reliability;
        for (ordinal, posted) in (self.ended..).zip(sends) {
            let is_read = posted.operation == Operation::RdmaRead;
            let status = match (posted.stage, failed) {
                (SendStage::Over(status), _) => status,
                (SendStage::Waiting, _) => Status::Flushed,
                (_, Some((first, _))) if ordinal < first && !is_read => Status::Done,
                (_, Some((first, status)))
                    if ordinal == first && (is_read || level == Reliability::ReliableReception) =>
                {
                    status
                }
                _ => Status::TransportError,
            };
            self.complete_send(objects, &posted, status);
        }
        for posted in receives {
            let completion =
                Completion::new(self.id, Queue::Receive, posted.cookie, Status::Flushed);
            self.complete(objects, completion);
        }
        (self.begun, self.ended, self.is_halted) = (0, 0, false);
    }
}

/// The stage of a send descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendStage {
    Waiting,
    /// Part of it has departed: this many bytes.
    Departing(u64),
    /// All of it has departed, the last part in this fragment.
    Departed(u64),
    /// It has ended; those before it may not have.
    Over(Status),
}

#[derive(Debug)]
pub(super) struct PostedSend {
    pub(super) operation: Operation,
    pub(super) cookie: u64,
    pub(super) immediate: Option<i32>,
    pub(super) is_signaled: bool,
    pub(super) remote: Option<RemoteSegment>,
    pub(super) data: PostedData,
    /// Known once it departs.
    pub(super) length: u64,
    pub(super) stage: SendStage,
}

impl PostedSend {
    pub(super) fn new(descriptor: &SendDescriptor<'_>) -> Self {
        let SendDescriptor { operation, cookie, immediate, is_signaled, remote, data } =
            *descriptor;
        let data = match data {
            Data::Segments(segments) => PostedData::Segments(segments.to_vec()),
            Data::Inline([piece]) => PostedData::Inline(piece.to_vec()),
            Data::Inline(pieces) => {
                PostedData::Inline(pieces.iter().flat_map(|piece| piece.iter().copied()).collect())
            }
        };
        let (length, stage) = (0, SendStage::Waiting);
        Self { operation, cookie, immediate, is_signaled, remote, data, length, stage }
    }
}

#[derive(Clone, Debug)]
pub(super) enum PostedData {
    Segments(Vec<LocalSegment>),
    Inline(Vec<u8>),
}

#[derive(Debug)]
pub(super) struct PostedReceive {
    pub(super) cookie: u64,
    pub(super) segments: Vec<LocalSegment>,
}
