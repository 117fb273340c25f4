//! A software NIC, as its consumer sees it.

use std::{io, os::fd::BorrowedFd};

use vigie_detect::{ArmOutcome, Instant};

use super::{
    NAME_BYTES, Path, SoftwareNic, Wire,
    calls::ConnectRequest,
    vi::{PostedSend, SendStage, SoftwareVi},
};
use crate::vi::{
    Address, Completion, Connect, CqId, Memory, MemoryAttributes, MemoryHandle, NicAttributes,
    NicEvent, ProtectionTag, Provider, Queue, ReceiveDescriptor, Region, RemoteKey, RequestId,
    SendDescriptor, ViAttributes, ViError, ViEvent, ViId, ViState,
    objects::{GREETING_MAX, PostedReceive},
};

impl<W: Wire> SoftwareNic<W> {
    fn vi(&mut self, id: ViId) -> Result<&mut SoftwareVi<W::Path>, ViError> {
        self.engine.vis.get_mut(&id).ok_or(ViError::UnknownVi(id))
    }

    /// Checks what both kinds of calls have in common, and parses the address.
    fn check_call<'a>(&mut self, to: Connect<'a>) -> Result<ConnectRequest<'a, W::Path>, ViError> {
        let Connect { vi, address, discriminator, greeting, deadline } = to;
        self.engine.attributes.check_call(discriminator, greeting)?;
        self.vi(vi)?.core.check_idle("connect it")?;
        let read = || {
            let bytes = address.0.strip_prefix(W::NAME.as_bytes())?.strip_prefix(b":")?;
            let (nic, path) = bytes.split_first_chunk::<NAME_BYTES>()?;
            Some((W::Path::from_bytes(path)?, u64::from_le_bytes(*nic)))
        };
        let (path, nic) = read().ok_or(ViError::BadAddress { provider: W::NAME })?;
        let expires_at = deadline.as_nanos();
        Ok(ConnectRequest { path, nic, discriminator, greeting, expires_at })
    }

    /// Sends what a call of the consumer has produced.
    fn go_on(&mut self) {
        let now = self.now();
        self.flush(now);
    }
}

impl<W: Wire> Provider for SoftwareNic<W> {
    fn attributes(&self) -> NicAttributes {
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
        ProtectionTag(self.engine.objects.fresh())
    }

    fn register(
        &mut self,
        memory: Memory,
        attributes: MemoryAttributes,
    ) -> Result<Region, ViError> {
        let key = RemoteKey(self.engine.names.fresh());
        Ok(self.engine.objects.register(memory, attributes, key))
    }

    fn deregister(&mut self, memory: MemoryHandle) -> Result<(), ViError> {
        self.engine.objects.deregister(memory)
    }

    // ------------------------------------------------------------------ VIs and queues

    fn create_cq(&mut self) -> Result<CqId, ViError> {
        Ok(self.engine.objects.create_cq())
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), ViError> {
        self.engine.objects.destroy_cq(cq, self.engine.vis.values().map(|vi| &vi.core))
    }

    fn create_vi(&mut self, attributes: ViAttributes) -> Result<ViId, ViError> {
        let core = self.engine.objects.create_vi(attributes)?;
        let id = core.id;
        self.engine.vis.insert(id, SoftwareVi::new(core));
        Ok(id)
    }

    fn destroy_vi(&mut self, vi: ViId) -> Result<(), ViError> {
        let found = self.engine.vis.get(&vi).ok_or(ViError::UnknownVi(vi))?;
        self.engine.objects.forget_vi(&found.core)?;
        self.engine.vis.remove(&vi);
        Ok(())
    }

    fn state(&self, vi: ViId) -> Result<ViState, ViError> {
        self.engine.vis.get(&vi).map(|vi| vi.core.state).ok_or(ViError::UnknownVi(vi))
    }

    // ------------------------------------------------------------------ connections

    fn listen(&mut self, discriminator: &[u8]) -> Result<(), ViError> {
        self.engine.objects.listen(&self.engine.attributes, discriminator)
    }

    fn unlisten(&mut self, discriminator: &[u8]) {
        self.engine.objects.unlisten(discriminator);
    }

    fn connect(&mut self, to: Connect<'_>) -> Result<(), ViError> {
        let wanted = self.check_call(to)?;
        let now = self.now();
        self.engine.call(now, to.vi, wanted, false);
        self.flush(now);
        Ok(())
    }

    fn connect_peer(&mut self, to: Connect<'_>) -> Result<(), ViError> {
        let wanted = self.check_call(to)?;
        let now = self.now();
        self.engine.call_peer(now, to.vi, wanted);
        self.flush(now);
        Ok(())
    }

    fn accept(&mut self, request: RequestId, vi: ViId, greeting: &[u8]) -> Result<(), ViError> {
        self.engine.attributes.limit("the greeting", greeting.len(), GREETING_MAX)?;
        self.vi(vi)?.core.check_idle("accept a request with it")?;
        let caller = self.engine.requests.remove(&request);
        let caller = caller.ok_or(ViError::UnknownRequest(request))?;
        self.vi(vi)?.core.change(ViEvent::Connect);
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

    fn next_event(&mut self) -> Option<NicEvent> {
        if self.engine.events.is_empty() {
            self.pump();
        }
        self.engine.events.pop_front()
    }

    // ------------------------------------------------------------------ descriptors

    fn post_send(&mut self, vi: ViId, descriptor: &SendDescriptor<'_>) -> Result<(), ViError> {
        let attributes = self.engine.attributes;
        attributes.check_data(&descriptor.data)?;
        let found = self.vi(vi)?;
        found.core.hold_send(attributes.descriptors_max)?;
        found.sends.push_back(PostedSend::new(descriptor, SendStage::Waiting));
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
        attributes.limit("segments", descriptor.segments.len(), attributes.segments_max)?;
        let found = self.engine.vis.get_mut(&vi).ok_or(ViError::UnknownVi(vi))?;
        found.core.hold_receive(attributes.descriptors_max)?;
        let ReceiveDescriptor { cookie, segments } = *descriptor;
        if found.core.state == ViState::Error {
            found.core.flush_receive(&mut self.engine.objects, cookie);
        } else {
            found.receives.push_back(PostedReceive { cookie, segments: segments.to_vec() });
        }
        Ok(())
    }

    fn poll_cq(&mut self, cq: CqId) -> Option<Completion> {
        if let Some(found) = self.engine.poll_cq(cq) {
            return Some(found);
        }
        self.pump_for(|engine| engine.poll_cq(cq))
    }

    fn poll_queue(&mut self, vi: ViId, queue: Queue) -> Option<Completion> {
        if let Some(found) = self.engine.poll_queue(vi, queue) {
            return Some(found);
        }
        self.pump_for(|engine| engine.poll_queue(vi, queue))
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

    fn arm(&mut self) -> io::Result<ArmOutcome> {
        let has_arrivals = self.pump();
        let is_ready = has_arrivals || self.engine.has_news() || self.wire.arm()?.is_ready();
        Ok(ArmOutcome::ready_if(is_ready))
    }

    fn has_unsent(&self, vi: ViId) -> bool {
        let found = self.engine.vis.get(&vi);
        found.is_some_and(|vi| vi.connection.is_some() && !vi.sends.is_empty())
    }
}
