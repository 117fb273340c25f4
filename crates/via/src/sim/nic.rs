//! A simulated NIC, as its consumer sees it.

use std::{io, os::fd::BorrowedFd};

use vigie_detect::{ArmOutcome, Instant, Notifier};

use super::{
    NicId, SimNetwork,
    network::Locked,
    objects::{PostedSend, SendStage, SimVi},
    packet::{PacketBody, ViEndpoint},
};
use crate::vi::{
    Address, Completion, Connect, CqId, DisconnectReason, Memory, MemoryAttributes, MemoryHandle,
    NicAttributes, NicEvent, ProtectionTag, Provider, Queue, ReceiveDescriptor, Region, RemoteKey,
    RequestId, SendDescriptor, ViAttributes, ViError, ViEvent, ViId, ViState,
    objects::{GREETING_MAX, PostedReceive},
};

/// The prefix of the addresses of simulated NICs.
const ADDRESS_PREFIX: &[u8] = b"sim:";

/// A NIC of a [`SimNetwork`](super::SimNetwork). Once it has crashed, calls on it fail with
/// [`ViError::Io`], and it produces nothing more. To its peers, dropping it looks like a crash.
#[derive(Debug)]
pub struct SimNic {
    network: SimNetwork,
    id: NicId,
    attributes: NicAttributes,
}

impl SimNic {
    pub(super) const fn new(network: SimNetwork, id: NicId, attributes: NicAttributes) -> Self {
        Self { network, id, attributes }
    }

    /// Returns which NIC of its network it is.
    #[must_use]
    pub const fn id(&self) -> NicId {
        self.id
    }

    fn lock(&self) -> Locked<'_> {
        self.network.lock()
    }

    /// Locks the world of a NIC that has not crashed.
    fn alive(&self) -> Result<Locked<'_>, ViError> {
        let world = self.lock();
        if world.nics[self.id.0].has_crashed {
            let error = io::Error::new(io::ErrorKind::ConnectionAborted, "the NIC has crashed");
            return Err(error.into());
        }
        Ok(world)
    }

    const fn end(&self, vi: ViId) -> ViEndpoint {
        ViEndpoint { nic: self.id.0, vi }
    }

    /// Checks what both kinds of calls have in common, and finds the NIC of the address.
    fn check_call(&self, to: Connect<'_>) -> Result<(Locked<'_>, usize), ViError> {
        let Connect { vi, address, .. } = to;
        self.attributes.check_call(to.discriminator, to.greeting)?;
        let mut world = self.alive()?;
        let found = world.vi(self.end(vi)).ok_or(ViError::UnknownVi(vi))?;
        found.core.check_idle("connect it")?;
        let index = address
            .0
            .strip_prefix(ADDRESS_PREFIX)
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| digits.parse().ok())
            .filter(|index| *index < world.nics.len())
            .ok_or(ViError::BadAddress { provider: self.attributes.name })?;
        Ok((world, index))
    }
}

impl Drop for SimNic {
    fn drop(&mut self) {
        self.lock().end(self.id.0);
    }
}

impl Provider for SimNic {
    fn attributes(&self) -> NicAttributes {
        self.attributes
    }

    fn address(&self) -> Address {
        let mut bytes = ADDRESS_PREFIX.to_vec();
        bytes.extend(self.id.0.to_string().bytes());
        Address(bytes)
    }

    fn create_tag(&mut self) -> ProtectionTag {
        ProtectionTag(self.lock().nics[self.id.0].objects.fresh())
    }

    fn register(
        &mut self,
        memory: Memory,
        attributes: MemoryAttributes,
    ) -> Result<Region, ViError> {
        let mut world = self.alive()?;
        let key = RemoteKey(world.random.u64(..));
        Ok(world.nics[self.id.0].objects.register(memory, attributes, key))
    }

    fn window(&self, vi: ViId, key: RemoteKey) -> Option<Memory> {
        let world = self.lock();
        let peer = world.nics[self.id.0].vis.get(&vi)?.connection.as_ref()?.peer;
        let nic = world.nics.get(peer.nic).filter(|_| self.attributes.has_window)?;
        Some(nic.objects.under(key)?.memory.clone())
    }

    fn deregister(&mut self, memory: MemoryHandle) -> Result<(), ViError> {
        self.alive()?.nics[self.id.0].objects.deregister(memory)
    }

    fn create_cq(&mut self) -> Result<CqId, ViError> {
        Ok(self.alive()?.nics[self.id.0].objects.create_cq())
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), ViError> {
        let mut world = self.alive()?;
        let nic = &mut world.nics[self.id.0];
        nic.objects.destroy_cq(cq, nic.vis.values().map(|vi| &vi.core))
    }

    fn create_vi(&mut self, attributes: ViAttributes) -> Result<ViId, ViError> {
        let mut world = self.alive()?;
        let nic = &mut world.nics[self.id.0];
        if attributes.reliability > nic.attributes.max_reliability {
            let provider = self.attributes.name;
            return Err(ViError::Unsupported { what: "that level of reliability", provider });
        }
        let core = nic.objects.create_vi(attributes)?;
        let vi = core.id;
        nic.vis.insert(vi, SimVi::new(core));
        Ok(vi)
    }

    fn destroy_vi(&mut self, vi: ViId) -> Result<(), ViError> {
        let mut world = self.alive()?;
        let nic = &mut world.nics[self.id.0];
        let found = nic.vis.get(&vi).ok_or(ViError::UnknownVi(vi))?;
        nic.objects.forget_vi(&found.core)?;
        nic.vis.remove(&vi);
        Ok(())
    }

    fn state(&self, vi: ViId) -> Result<ViState, ViError> {
        let mut world = self.alive()?;
        world.vi(self.end(vi)).map(|vi| vi.core.state).ok_or(ViError::UnknownVi(vi))
    }

    fn listen(&mut self, discriminator: &[u8]) -> Result<(), ViError> {
        self.alive()?.nics[self.id.0].objects.listen(&self.attributes, discriminator)
    }

    fn unlisten(&mut self, discriminator: &[u8]) {
        self.lock().nics[self.id.0].objects.unlisten(discriminator);
    }

    fn connect(&mut self, to: Connect<'_>) -> Result<(), ViError> {
        let (mut world, nic) = self.check_call(to)?;
        world.call(self.end(to.vi), nic, to);
        Ok(())
    }

    fn connect_peer(&mut self, to: Connect<'_>) -> Result<(), ViError> {
        let (mut world, nic) = self.check_call(to)?;
        world.call_peer(self.end(to.vi), nic, to);
        Ok(())
    }

    fn accept(&mut self, request: RequestId, vi: ViId, greeting: &[u8]) -> Result<(), ViError> {
        self.attributes.limit("the greeting", greeting.len(), GREETING_MAX)?;
        let mut world = self.alive()?;
        let found = world.vi(self.end(vi)).ok_or(ViError::UnknownVi(vi))?;
        found.core.check_idle("accept a request with it")?;
        let requests = &mut world.nics[self.id.0].requests;
        let caller = requests.remove(&request).ok_or(ViError::UnknownRequest(request))?;
        if let Some(vi) = world.vi(self.end(vi)) {
            vi.core.change(ViEvent::Connect);
        }
        world.agree(self.end(vi), caller, greeting);
        Ok(())
    }

    fn reject(&mut self, request: RequestId) -> Result<(), ViError> {
        let mut world = self.alive()?;
        let requests = &mut world.nics[self.id.0].requests;
        let caller = requests.remove(&request).ok_or(ViError::UnknownRequest(request))?;
        world.answer(self.end(ViId(0)), &caller, PacketBody::Over(DisconnectReason::Rejected));
        Ok(())
    }

    fn disconnect(&mut self, vi: ViId) -> Result<(), ViError> {
        let mut world = self.alive()?;
        world.vi(self.end(vi)).ok_or(ViError::UnknownVi(vi))?;
        world.disconnect(self.end(vi));
        Ok(())
    }

    fn next_event(&mut self) -> Option<NicEvent> {
        self.alive().ok()?.nics[self.id.0].events.pop_front()
    }

    fn post_send(&mut self, id: ViId, descriptor: &SendDescriptor<'_>) -> Result<(), ViError> {
        self.attributes.check_data(&descriptor.data)?;
        let mut world = self.alive()?;
        let vi = world.vi(self.end(id)).ok_or(ViError::UnknownVi(id))?;
        vi.core.hold_send(self.attributes.descriptors_max)?;
        vi.posted_count += 1;
        vi.sends.push_back(PostedSend::new(descriptor, SendStage::Waiting));
        world.wake_sender(self.end(id));
        Ok(())
    }

    fn post_receive(
        &mut self,
        id: ViId,
        descriptor: &ReceiveDescriptor<'_>,
    ) -> Result<(), ViError> {
        let NicAttributes { segments_max, descriptors_max, .. } = self.attributes;
        self.attributes.limit("segments", descriptor.segments.len(), segments_max)?;
        let mut world = self.alive()?;
        let vi = world.vi(self.end(id)).ok_or(ViError::UnknownVi(id))?;
        vi.core.hold_receive(descriptors_max)?;
        let segments = descriptor.segments.to_vec();
        world.post_receive(self.end(id), PostedReceive { cookie: descriptor.cookie, segments });
        Ok(())
    }

    fn poll_cq(&mut self, cq: CqId) -> Option<Completion> {
        let mut world = self.alive().ok()?;
        let nic = &mut world.nics[self.id.0];
        let completion = nic.objects.poll_cq(cq)?;
        if let Some(vi) = nic.vis.get_mut(&completion.vi) {
            vi.core.release(completion.queue);
        }
        Some(completion)
    }

    fn poll_queue(&mut self, vi: ViId, queue: Queue) -> Option<Completion> {
        self.alive().ok()?.vi(self.end(vi))?.core.take(queue)
    }

    fn progress(&mut self, now: Instant) -> bool {
        // First: it is awake, and need not be woken for what happens now.
        self.lock().nics[self.id.0].armed_until = None;
        self.network.advance_to(now)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.network.next_event()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn arm(&mut self) -> io::Result<ArmOutcome> {
        let Ok(mut world) = self.alive() else { return Ok(ArmOutcome::Armed) };
        let due = self.network.next_event();
        let is_due = due.is_some_and(|due| due <= world.now());
        let nic = &mut world.nics[self.id.0];
        if is_due || nic.has_news() {
            return Ok(ArmOutcome::Ready);
        }
        nic.armed_until = nic.notifier.is_some().then_some(due.unwrap_or(Instant::MAX));
        Ok(ArmOutcome::Armed)
    }

    fn attach_notifier(&mut self, notifier: Notifier) {
        self.lock().nics[self.id.0].notifier = Some(notifier);
    }

    fn can_announce(&self) -> bool {
        true
    }
}
