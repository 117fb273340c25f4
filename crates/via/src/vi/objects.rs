//! The state that every provider keeps for its consumer: registered memory and its rights, completion queues, and what all VIs
//! have in common.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{
    Completion, CqId, Data, LocalSegment, Memory, MemoryAttributes, MemoryHandle, NicAttributes,
    Operation, ProtectionTag, Queue, Region, Reliability, RemoteKey, RemoteSegment, SendDescriptor,
    Status, ViAttributes, ViError, ViEvent, ViId, ViState,
};

/// The most bytes of a discriminator.
pub(crate) const DISCRIMINATOR_MAX: usize = 64;

/// The most bytes of a greeting.
pub(crate) const GREETING_MAX: usize = 1024;

impl NicAttributes {
    /// Returns an error if there is more of something than the provider supports.
    pub(crate) fn limit(
        &self,
        what: &'static str,
        count: usize,
        limit: usize,
    ) -> Result<(), ViError> {
        if count <= limit {
            return Ok(());
        }
        let limit = u64::try_from(limit).unwrap_or(u64::MAX);
        Err(ViError::TooMuch { what, provider: self.name, limit })
    }

    /// Checks the bytes with which a connection is requested.
    pub(crate) fn check_call(&self, discriminator: &[u8], greeting: &[u8]) -> Result<(), ViError> {
        self.limit("the discriminator", discriminator.len(), DISCRIMINATOR_MAX)?;
        self.limit("the greeting", greeting.len(), GREETING_MAX)
    }

    /// Checks the length of what is posted.
    pub(crate) fn check_data(&self, data: &Data<'_>) -> Result<(), ViError> {
        match data {
            Data::Segments(segments) => self.limit("segments", segments.len(), self.segments_max),
            Data::Inline(pieces) => {
                let length = pieces.iter().fold(0, |sum: usize, it| sum.saturating_add(it.len()));
                let limit = usize::try_from(self.inline_bytes_max).unwrap_or(usize::MAX);
                self.limit("inline data", length, limit)
            }
        }
    }
}

impl ViAttributes {
    #[inline]
    pub(crate) fn is_reliable(&self) -> bool {
        self.reliability != Reliability::Unreliable
    }

    /// Returns the completion queue to which a queue is attached.
    #[inline]
    pub(crate) const fn cq(&self, queue: Queue) -> Option<CqId> {
        match queue {
            Queue::Send => self.send_cq,
            Queue::Receive => self.receive_cq,
        }
    }

    /// Returns the completion queues of both queues.
    pub(crate) fn cqs(&self) -> impl Iterator<Item = CqId> + use<> {
        [self.send_cq, self.receive_cq].into_iter().flatten()
    }
}

/// The kind of a peer's access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Write,
    Read,
}

/// Registered memory and its access rights.
#[derive(Debug)]
pub(crate) struct RegionEntry {
    pub(crate) memory: Memory,
    pub(crate) attributes: MemoryAttributes,
    pub(crate) key: RemoteKey,
}

impl RegionEntry {
    /// Returns the memory, if a VI with this tag may use the segment of it.
    #[inline]
    pub(crate) fn local(
        &self,
        tag: ProtectionTag,
        segment: &LocalSegment,
    ) -> Result<&Memory, Status> {
        if self.attributes.tag == tag && self.has(segment.offset, segment.length) {
            Ok(&self.memory)
        } else {
            Err(Status::ProtectionError)
        }
    }

    /// Returns the memory, if a peer may reach that piece of it through a VI with these attributes.
    #[inline]
    pub(crate) fn remote(
        &self,
        vi: &ViAttributes,
        (offset, length): (u64, u64),
        access: Access,
    ) -> Result<&Memory, Status> {
        let is_allowed = match access {
            Access::Write => self.attributes.allows_write && vi.allows_write,
            Access::Read => self.attributes.allows_read && vi.allows_read,
        };
        if is_allowed && self.attributes.tag == vi.tag && self.has(offset, length) {
            Ok(&self.memory)
        } else {
            Err(Status::RdmaProtectionError)
        }
    }

    #[inline]
    fn has(&self, offset: u64, length: u64) -> bool {
        let size = u64::try_from(self.memory.len()).unwrap_or(u64::MAX);
        offset.checked_add(length).is_some_and(|end| end <= size)
    }
}

/// Registered memory and completion queues of a NIC that names its objects by a sequence of numbers.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    named: u32,
    regions: BTreeMap<MemoryHandle, RegionEntry>,
    keys: BTreeMap<RemoteKey, MemoryHandle>,
    queues: BTreeMap<CqId, VecDeque<Completion>>,
    listening: BTreeSet<Vec<u8>>,
}

impl Objects {
    /// Returns a new number. One sequence serves all names, so that no wrong name is valid by accident.
    pub(crate) const fn fresh(&mut self) -> u32 {
        self.named += 1;
        self.named
    }

    // ------------------------------------------------------------------ memory

    /// Registers memory under a key that cannot be guessed, so that a wrong one is not another region's by accident.
    pub(crate) fn register(
        &mut self,
        memory: Memory,
        attributes: MemoryAttributes,
        key: RemoteKey,
    ) -> Region {
        let handle = MemoryHandle(self.fresh());
        self.keys.insert(key, handle);
        self.regions.insert(handle, RegionEntry { memory: memory.clone(), attributes, key });
        Region::new(memory, handle, key)
    }

    pub(crate) fn deregister(&mut self, memory: MemoryHandle) -> Result<(), ViError> {
        let registered = self.regions.remove(&memory).ok_or(ViError::UnknownMemory(memory))?;
        self.keys.remove(&registered.key);
        Ok(())
    }

    /// Returns the memory under a key, without a check of rights.
    pub(crate) fn under(&self, key: RemoteKey) -> Option<&RegionEntry> {
        self.regions.get(self.keys.get(&key)?)
    }

    /// Returns the memory that a segment refers to, for a VI with this tag.
    pub(crate) fn local(
        &self,
        tag: ProtectionTag,
        segment: &LocalSegment,
    ) -> Result<&Memory, Status> {
        self.regions.get(&segment.memory).ok_or(Status::ProtectionError)?.local(tag, segment)
    }

    /// Returns the memory that a peer reaches through a VI with these attributes.
    pub(crate) fn remote(
        &self,
        vi: &ViAttributes,
        place: RemoteSegment,
        length: u64,
        access: Access,
    ) -> Result<&Memory, Status> {
        let registered = self.under(place.key).ok_or(Status::RdmaProtectionError)?;
        registered.remote(vi, (place.offset, length), access)
    }

    /// Calls `each` with the pieces of local memory from `position` on, `length` bytes of them at most: the memory, the
    /// offset in it, and the length of the piece. Returns how many bytes of `length` the pieces have not.
    pub(crate) fn pieces(
        &self,
        tag: ProtectionTag,
        segments: &[LocalSegment],
        (position, length): (u64, usize),
        mut each: impl FnMut(&Memory, u64, usize) -> Result<(), Status>,
    ) -> Result<usize, Status> {
        let (mut skip, mut left) = (position, length);
        for segment in segments {
            let memory = self.local(tag, segment)?;
            if skip >= segment.length {
                skip -= segment.length;
                continue;
            }
            let room = usize::try_from(segment.length - skip).unwrap_or(usize::MAX);
            let count = room.min(left);
            each(memory, segment.offset + skip, count)?;
            (skip, left) = (0, left - count);
        }
        Ok(left)
    }

    /// Copies bytes to `position` of the pieces of local memory.
    pub(crate) fn scatter(
        &self,
        tag: ProtectionTag,
        segments: &[LocalSegment],
        position: u64,
        bytes: &[u8],
    ) -> Result<(), Status> {
        let mut rest = bytes;
        let left = self.pieces(tag, segments, (position, bytes.len()), |memory, at, count| {
            let (piece, others) = rest.split_at(count);
            rest = others;
            memory.put(at, piece).map_err(|_| Status::ProtectionError)
        })?;
        if left == 0 { Ok(()) } else { Err(Status::LengthError) }
    }

    // ------------------------------------------------------------------ VIs and queues

    pub(crate) fn create_cq(&mut self) -> CqId {
        let cq = CqId(self.fresh());
        self.queues.insert(cq, VecDeque::new());
        cq
    }

    /// Destroys a completion queue, unless one of `vis` is attached.
    pub(crate) fn destroy_cq<'a>(
        &mut self,
        cq: CqId,
        mut vis: impl Iterator<Item = &'a ViCore>,
    ) -> Result<(), ViError> {
        if vis.any(|vi| vi.attributes.cqs().any(|of| of == cq)) {
            return Err(ViError::InUse { what: "the completion queue" });
        }
        self.queues.remove(&cq).map(drop).ok_or(ViError::UnknownCq(cq))
    }

    /// Returns a new VI, if its completion queues exist.
    pub(crate) fn create_vi(&mut self, attributes: ViAttributes) -> Result<ViCore, ViError> {
        match attributes.cqs().find(|cq| !self.queues.contains_key(cq)) {
            Some(cq) => Err(ViError::UnknownCq(cq)),
            None => Ok(ViCore::new(ViId(self.fresh()), attributes)),
        }
    }

    /// Drops the completions of a VI that is destroyed next, unless it is connected.
    pub(crate) fn forget_vi(&mut self, vi: &ViCore) -> Result<(), ViError> {
        vi.check_unused()?;
        for queue in self.queues.values_mut() {
            queue.retain(|completion| completion.vi != vi.id);
        }
        Ok(())
    }

    /// Takes a completion; its VI has to be [told](ViCore::release).
    pub(crate) fn poll_cq(&mut self, cq: CqId) -> Option<Completion> {
        self.queues.get_mut(&cq)?.pop_front()
    }

    pub(crate) fn has_completions(&self) -> bool {
        self.queues.values().any(|queue| !queue.is_empty())
    }

    // ------------------------------------------------------------------ connections

    pub(crate) fn listen(
        &mut self,
        attributes: &NicAttributes,
        discriminator: &[u8],
    ) -> Result<(), ViError> {
        attributes.limit("the discriminator", discriminator.len(), DISCRIMINATOR_MAX)?;
        let is_new = self.listening.insert(discriminator.to_vec());
        if is_new { Ok(()) } else { Err(ViError::AlreadyListening) }
    }

    pub(crate) fn unlisten(&mut self, discriminator: &[u8]) {
        self.listening.remove(discriminator);
    }

    pub(crate) fn listens(&self, discriminator: &[u8]) -> bool {
        self.listening.contains(discriminator)
    }
}

/// The state that VIs of all providers have: attributes and state, and the descriptors and completions of their two queues.
#[derive(Debug)]
pub(crate) struct ViCore {
    pub(crate) id: ViId,
    pub(crate) attributes: ViAttributes,
    pub(crate) state: ViState,
    /// Posted send descriptors whose completion was not taken; an unsignaled one counts until it is done.
    pub(crate) sends_held: usize,
    /// The same of receive descriptors.
    pub(crate) receives_held: usize,
    /// Completions of queues that are attached to no completion queue.
    sent: VecDeque<Completion>,
    received: VecDeque<Completion>,
}

/// Stands in the place of a completion until that is written.
const NOTHING: Completion = Completion::new(ViId(0), Queue::Send, 0, Status::Done);

impl ViCore {
    pub(crate) const fn new(id: ViId, attributes: ViAttributes) -> Self {
        Self {
            id,
            attributes,
            state: ViState::Idle,
            sends_held: 0,
            receives_held: 0,
            sent: VecDeque::new(),
            received: VecDeque::new(),
        }
    }

    /// Moves to the next state. A transition that the diagram does not have is a bug of the provider.
    pub(crate) fn change(&mut self, event: ViEvent) {
        let next = self.state.after(event);
        debug_assert!(next.is_some(), "{event:?} in state {:?}", self.state);
        self.state = next.unwrap_or(ViState::Error);
    }

    /// Returns an error unless the VI is idle, as it must be to do `what`.
    pub(crate) fn check_idle(&self, what: &'static str) -> Result<(), ViError> {
        match self.state {
            ViState::Idle => Ok(()),
            state => Err(ViError::WrongState { state, what }),
        }
    }

    /// Returns an error if the VI cannot be destroyed.
    pub(crate) const fn check_unused(&self) -> Result<(), ViError> {
        match self.state {
            ViState::Connected | ViState::PendingConnect => Err(ViError::InUse { what: "the VI" }),
            _ => Ok(()),
        }
    }

    /// Takes a place for a send descriptor, of which the queue has `max`.
    pub(crate) const fn hold_send(&mut self, max: usize) -> Result<(), ViError> {
        if !self.state.is_connected() {
            return Err(ViError::WrongState { state: self.state, what: "send" });
        }
        if self.sends_held >= max {
            return Err(ViError::QueueFull { queue: Queue::Send });
        }
        self.sends_held += 1;
        Ok(())
    }

    /// Takes a place for a receive descriptor, of which the queue has `max`.
    pub(crate) const fn hold_receive(&mut self, max: usize) -> Result<(), ViError> {
        if self.receives_held >= max {
            return Err(ViError::QueueFull { queue: Queue::Receive });
        }
        self.receives_held += 1;
        Ok(())
    }

    /// A completion was taken: its place in the queue is free.
    #[inline]
    pub(crate) const fn release(&mut self, queue: Queue) {
        let held = match queue {
            Queue::Send => &mut self.sends_held,
            Queue::Receive => &mut self.receives_held,
        };
        *held = held.saturating_sub(1);
    }

    /// Delivers a completion to `cq`, to which its queue is attached, if there is one.
    #[inline]
    pub(crate) fn deliver(&mut self, cq: Option<&mut VecDeque<Completion>>, done: Completion) {
        let queue = match (cq, done.queue) {
            (Some(cq), _) => cq,
            (None, Queue::Send) => &mut self.sent,
            (None, Queue::Receive) => &mut self.received,
        };
        // Written in its place: a copy, by words that are wider than the fields, would wait for the stores of the fields.
        let last = queue.push_back_mut(NOTHING);
        *last = done;
    }

    /// Delivers a completion.
    pub(crate) fn complete(&mut self, objects: &mut Objects, completion: Completion) {
        let cq = self.attributes.cq(completion.queue);
        self.deliver(cq.and_then(|cq| objects.queues.get_mut(&cq)), completion);
    }

    /// Completes a send descriptor: reported if signaled or failed. Returns whether it is reported.
    pub(crate) fn complete_send<S>(
        &mut self,
        objects: &mut Objects,
        posted: &PendingSend<S>,
        status: Status,
    ) -> bool {
        let is_reported = posted.is_signaled || !status.is_done();
        if is_reported {
            let mut completion = Completion::new(self.id, Queue::Send, posted.cookie, status);
            completion.length = if status.is_done() { posted.length } else { 0 };
            self.complete(objects, completion);
        } else {
            self.release(Queue::Send);
        }
        is_reported
    }

    /// Flushes a receive descriptor.
    pub(crate) fn flush_receive(&mut self, objects: &mut Objects, cookie: u64) {
        let flushed = Completion::new(self.id, Queue::Receive, cookie, Status::Flushed);
        self.complete(objects, flushed);
    }

    /// Takes a completion of a queue that is attached to no completion queue.
    pub(crate) fn take(&mut self, queue: Queue) -> Option<Completion> {
        let completion = match queue {
            Queue::Send => self.sent.pop_front(),
            Queue::Receive => self.received.pop_front(),
        }?;
        self.release(queue);
        Some(completion)
    }

    pub(crate) fn has_completions(&self) -> bool {
        !self.sent.is_empty() || !self.received.is_empty()
    }
}

/// A send descriptor as its provider keeps it, with the stage it is in.
#[derive(Debug)]
pub(crate) struct PendingSend<S> {
    pub(crate) operation: Operation,
    pub(crate) cookie: u64,
    pub(crate) immediate: Option<i32>,
    pub(crate) is_signaled: bool,
    pub(crate) remote: Option<RemoteSegment>,
    pub(crate) data: PostedData,
    /// Known once it departs.
    pub(crate) length: u64,
    pub(crate) stage: S,
}

impl<S> PendingSend<S> {
    pub(crate) fn new(descriptor: &SendDescriptor<'_>, stage: S) -> Self {
        let SendDescriptor { operation, cookie, immediate, is_signaled, remote, data } =
            *descriptor;
        let data = match data {
            Data::Segments(segments) => PostedData::Segments(segments.to_vec()),
            Data::Inline([piece]) => PostedData::Inline(piece.to_vec()),
            Data::Inline(pieces) => {
                PostedData::Inline(pieces.iter().flat_map(|piece| piece.iter().copied()).collect())
            }
        };
        Self { operation, cookie, immediate, is_signaled, remote, data, length: 0, stage }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum PostedData {
    Segments(Vec<LocalSegment>),
    Inline(Vec<u8>),
}

/// A receive descriptor as its provider keeps it.
#[derive(Debug)]
pub(crate) struct PostedReceive {
    pub(crate) cookie: u64,
    pub(crate) segments: Vec<LocalSegment>,
}
