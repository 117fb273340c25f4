//! A software NIC, as its consumer sees it.

use std::{collections::VecDeque, io, os::fd::BorrowedFd};

use vigie_detect::{Armed, Instant};

use super::{
    NAME_BYTES, Path, SoftwareNic, Wire,
    calls::ConnectRequest,
    objects::{PostedReceive, PostedSend, SoftwareRegion, SoftwareVi},
    to_u64,
    transfer::TRANSFER_MAX,
};
use crate::vi::{
    Address, Attributes, Completion, CqId, Data, Memory, MemoryAttributes, MemoryHandle, NicEvent,
    ProtectionTag, Provider, Queue, ReceiveDescriptor, Region, RemoteKey, RequestId,
    SendDescriptor, Status, ViAttributes, ViError, ViEvent, ViId, ViState,
};

/// The most bytes of a discriminator.
const DISCRIMINATOR_MAX: usize = 64;

/// The most bytes of a greeting.
const GREETING_MAX: usize = 1024;

impl<W: Wire> SoftwareNic<W> {
    fn limited(&self, what: &'static str, count: usize, limit: usize) -> Result<(), ViError> {
        if count > limit {
            return Err(ViError::TooMuch { what, provider: W::NAME, limit: to_u64(limit) });
        }
        Ok(())
    }

    fn vi(&mut self, id: ViId) -> Result<&mut SoftwareVi<W::Path>, ViError> {
        self.engine.vis.get_mut(&id).ok_or(ViError::UnknownVi(id))
    }

    /// Checks what both kinds of calls have in common, and parses the address.
    fn check_call(
        &mut self,
        id: ViId,
        address: &Address,
        discriminator: &[u8],
        greeting: &[u8],
    ) -> Result<(W::Path, u64), ViError> {
        self.limited("the discriminator", discriminator.len(), DISCRIMINATOR_MAX)?;
        self.limited("the greeting", greeting.len(), GREETING_MAX)?;
        let state = self.vi(id)?.state;
        if state != ViState::Idle {
            return Err(ViError::WrongState { state, what: "connect it" });
        }
        let read = || {
            let bytes = address.0.strip_prefix(W::NAME.as_bytes())?.strip_prefix(b":")?;
            let (nic, path) = bytes.split_first_chunk::<NAME_BYTES>()?;
            Some((W::Path::from_bytes(path)?, u64::from_le_bytes(*nic)))
        };
        read().ok_or(ViError::BadAddress { provider: W::NAME })
    }

    /// Sends what a call of the consumer has produced.
    fn go_on(&mut self) {
        let now = self.now();
        self.flush(now);
    }
}

impl<W: Wire> Provider for SoftwareNic<W> {
    fn attributes(&self) -> Attributes {
        self.engine.attributes
    }

    fn address(&self) -> Address {
        let mut bytes = W::NAME.as_bytes().to_vec();
        bytes.push(b':');
        bytes.extend(self.engine.nic.to_le_bytes());
        bytes.extend(self.wire.path().to_bytes());
        Address(bytes)
    }

    // ------------------------------------------------------------------ memory

    fn create_tag(&mut self) -> ProtectionTag {
        ProtectionTag(self.engine.fresh())
    }

    fn allocate(&mut self, length: usize, attributes: MemoryAttributes) -> Result<Region, ViError> {
        self.register(Memory::allocate(length)?, attributes)
    }

    fn register(
        &mut self,
        memory: Memory,
        attributes: MemoryAttributes,
    ) -> Result<Region, ViError> {
        // Unguessable keys, so that a wrong one is not another region's by accident.
        let key = RemoteKey(self.engine.names.fresh());
        let handle = MemoryHandle(self.engine.fresh());
        let objects = &mut self.engine.objects;
        objects.keys.insert(key, handle);
        objects.memory.insert(handle, SoftwareRegion { memory: memory.clone(), attributes, key });
        Ok(Region::new(memory, handle, key))
    }

    fn deregister(&mut self, memory: MemoryHandle) -> Result<(), ViError> {
        let objects = &mut self.engine.objects;
        let registered = objects.memory.remove(&memory).ok_or(ViError::UnknownMemory(memory))?;
        objects.keys.remove(&registered.key);
        Ok(())
    }

    // ------------------------------------------------------------------ VIs and queues

    fn create_cq(&mut self) -> Result<CqId, ViError> {
        let cq = CqId(self.engine.fresh());
        self.engine.objects.queues.insert(cq, VecDeque::new());
        Ok(cq)
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), ViError> {
        let is_attached = |vi: &SoftwareVi<W::Path>| {
            vi.attributes.send_cq == Some(cq) || vi.attributes.receive_cq == Some(cq)
        };
        if self.engine.vis.values().any(is_attached) {
            return Err(ViError::InUse { what: "the completion queue" });
        }
        self.engine.objects.queues.remove(&cq).map(drop).ok_or(ViError::UnknownCq(cq))
    }

    fn create_vi(&mut self, attributes: ViAttributes) -> Result<ViId, ViError> {
        for cq in [attributes.send_cq, attributes.receive_cq].into_iter().flatten() {
            if !self.engine.objects.queues.contains_key(&cq) {
                return Err(ViError::UnknownCq(cq));
            }
        }
        let id = ViId(self.engine.fresh());
        self.engine.vis.insert(id, SoftwareVi::new(id, attributes));
        Ok(id)
    }

    fn destroy_vi(&mut self, vi: ViId) -> Result<(), ViError> {
        let state = self.vi(vi)?.state;
        if matches!(state, ViState::Connected | ViState::PendingConnect) {
            return Err(ViError::InUse { what: "the VI" });
        }
        self.engine.vis.remove(&vi);
        for queue in self.engine.objects.queues.values_mut() {
            queue.retain(|completion| completion.vi != vi);
        }
        Ok(())
    }

    fn state(&self, vi: ViId) -> Result<ViState, ViError> {
        self.engine.vis.get(&vi).map(|vi| vi.state).ok_or(ViError::UnknownVi(vi))
    }

    // ------------------------------------------------------------------ connections

    fn listen(&mut self, discriminator: &[u8]) -> Result<(), ViError> {
        self.limited("the discriminator", discriminator.len(), DISCRIMINATOR_MAX)?;
        if !self.engine.listening.insert(discriminator.to_vec()) {
            return Err(ViError::AlreadyListening);
        }
        Ok(())
    }

    fn unlisten(&mut self, discriminator: &[u8]) {
        self.engine.listening.remove(discriminator);
    }

    fn connect(
        &mut self,
        vi: ViId,
        address: &Address,
        discriminator: &[u8],
        greeting: &[u8],
        deadline: Instant,
    ) -> Result<(), ViError> {
        let (path, nic) = self.check_call(vi, address, discriminator, greeting)?;
        let expires_at = deadline.as_nanos();
        let wanted = ConnectRequest { path, nic, discriminator, greeting, expires_at };
        let now = self.now();
        self.engine.call(now, vi, wanted, false);
        self.flush(now);
        Ok(())
    }

    fn connect_peer(
        &mut self,
        vi: ViId,
        address: &Address,
        discriminator: &[u8],
        greeting: &[u8],
        deadline: Instant,
    ) -> Result<(), ViError> {
        let (path, nic) = self.check_call(vi, address, discriminator, greeting)?;
        let expires_at = deadline.as_nanos();
        let wanted = ConnectRequest { path, nic, discriminator, greeting, expires_at };
        let now = self.now();
        self.engine.call_peer(now, vi, wanted);
        self.flush(now);
        Ok(())
    }

    fn accept(&mut self, request: RequestId, vi: ViId, greeting: &[u8]) -> Result<(), ViError> {
        self.limited("the greeting", greeting.len(), GREETING_MAX)?;
        let state = self.vi(vi)?.state;
        if state != ViState::Idle {
            return Err(ViError::WrongState { state, what: "accept a request with it" });
        }
        let caller = self.engine.requests.remove(&request);
        let caller = caller.ok_or(ViError::UnknownRequest(request))?;
        self.vi(vi)?.change(ViEvent::Connect);
        let now = self.now();
        self.engine.answer(now, vi, caller, greeting);
        self.flush(now);
        Ok(())
    }

    fn reject(&mut self, request: RequestId) -> Result<(), ViError> {
        let now = self.now();
        if !self.engine.reject(now, request) {
            return Err(ViError::UnknownRequest(request));
        }
        self.flush(now);
        Ok(())
    }

    fn disconnect(&mut self, vi: ViId) -> Result<(), ViError> {
        self.vi(vi)?;
        let now = self.now();
        self.engine.disconnect(now, vi);
        self.flush(now);
        Ok(())
    }

    fn event(&mut self) -> Option<NicEvent> {
        if self.engine.events.is_empty() {
            self.pump();
        }
        self.engine.events.pop_front()
    }

    // ------------------------------------------------------------------ descriptors

    fn post_send(&mut self, vi: ViId, descriptor: &SendDescriptor<'_>) -> Result<(), ViError> {
        let attributes = self.engine.attributes;
        match descriptor.data {
            Data::Segments(segments) => {
                self.limited("segments", segments.len(), attributes.max_segments)?;
            }
            Data::Inline(pieces) => {
                let length: usize = pieces.iter().map(|piece| piece.len()).sum();
                let limit = usize::try_from(attributes.max_inline.min(TRANSFER_MAX));
                self.limited("inline data", length, limit.unwrap_or(usize::MAX))?;
            }
        }
        let found = self.vi(vi)?;
        if !found.state.is_connected() {
            return Err(ViError::WrongState { state: found.state, what: "send" });
        }
        if found.sends_held >= attributes.max_descriptors {
            return Err(ViError::QueueFull { queue: Queue::Send });
        }
        found.sends_held += 1;
        found.sends.push_back(PostedSend::new(descriptor));
        self.engine.wake(vi);
        self.go_on();
        Ok(())
    }

    fn post_receive(
        &mut self,
        vi: ViId,
        descriptor: &ReceiveDescriptor<'_>,
    ) -> Result<(), ViError> {
        let attributes = self.engine.attributes;
        self.limited("segments", descriptor.segments.len(), attributes.max_segments)?;
        let found = self.engine.vis.get_mut(&vi).ok_or(ViError::UnknownVi(vi))?;
        if found.receives_held >= attributes.max_descriptors {
            return Err(ViError::QueueFull { queue: Queue::Receive });
        }
        found.receives_held += 1;
        let ReceiveDescriptor { cookie, segments } = *descriptor;
        if found.state == ViState::Error {
            let completion = Completion::new(vi, Queue::Receive, cookie, Status::Flushed);
            found.complete(&mut self.engine.objects, completion);
        } else {
            found.receives.push_back(PostedReceive { cookie, segments: segments.to_vec() });
        }
        Ok(())
    }

    fn poll(&mut self, cq: CqId) -> Option<Completion> {
        if let Some(found) = self.engine.poll(cq) {
            return Some(found);
        }
        self.pump_for(|engine| engine.poll(cq))
    }

    fn completed(&mut self, vi: ViId, queue: Queue) -> Option<Completion> {
        if let Some(found) = self.engine.completed(vi, queue) {
            return Some(found);
        }
        self.pump_for(|engine| engine.completed(vi, queue))
    }

    // ------------------------------------------------------------------ the engine, time and sleep

    fn progress(&mut self, now: Instant) -> bool {
        let has_arrivals = self.pump();
        let is_due = self.engine.expire(now.as_nanos());
        let is_blocked = self.blocked_until.is_some_and(|until| until > now);
        if !is_blocked && (is_due || self.batch.is_some() || self.engine.has_packets()) {
            self.flush(now.as_nanos());
        }
        has_arrivals || is_due
    }

    fn next_deadline(&self) -> Option<Instant> {
        let due = self.engine.deadline().map(Instant::from_nanos);
        [due, self.blocked_until].into_iter().flatten().min()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.wire.descriptor()
    }

    fn arm(&mut self) -> io::Result<Armed> {
        let has_arrivals = self.pump();
        let is_ready = has_arrivals || self.engine.has_news() || self.wire.arm()?;
        Ok(if is_ready { Armed::Ready } else { Armed::Armed })
    }
}
