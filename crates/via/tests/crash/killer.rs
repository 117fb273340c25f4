//! A NIC that kills its process at its k-th transmission, or at its k-th step towards a connection.

use std::{io, os::fd::BorrowedFd};

use rustix::process::{Signal, getpid, kill_process};
use vigie_detect::{ArmOutcome, Instant};
use vigie_via::{
    shm::Shm,
    vi::{
        Address, Completion, Connect, CqId, HeadedPoll, Memory, MemoryAttributes, MemoryHandle,
        NicAttributes, NicEvent, ProtectionTag, Provider, Queue, ReceiveDescriptor, Region,
        RemoteSegment, RequestId, SendDescriptor, ViAttributes, ViError, ViId, ViState,
    },
};

/// When the process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Death {
    /// Instead of this transmission, counted from 1.
    Before(u64),
    /// Right after it.
    After(u64),
}

/// A shared-memory NIC with a plan to die.
pub(crate) struct Killer {
    inner: Shm,
    death: Option<Death>,
    /// Calls about connections and progress count too.
    counts_steps: bool,
    count: u64,
}

impl Killer {
    pub(crate) const fn new(inner: Shm) -> Self {
        Self { inner, death: None, counts_steps: false, count: 0 }
    }

    /// Starts counting transmissions.
    pub(crate) const fn plan(&mut self, death: Option<Death>) {
        self.death = death;
        self.count = 0;
    }

    /// Starts counting, from the first step of the first connection on.
    pub(crate) const fn plan_early(&mut self, death: Option<Death>) {
        self.plan(death);
        self.counts_steps = true;
    }

    fn step<T>(&mut self, call: impl FnOnce(&mut Shm) -> T) -> T {
        if !self.counts_steps {
            return call(&mut self.inner);
        }
        self.count += 1;
        self.die_if(Death::Before(self.count));
        let result = call(&mut self.inner);
        self.die_if(Death::After(self.count));
        result
    }

    fn die_if(&self, moment: Death) {
        if self.death == Some(moment) {
            kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
        }
    }
}

impl Provider for Killer {
    fn attributes(&self) -> NicAttributes {
        self.inner.attributes()
    }

    fn address(&self) -> Address {
        self.inner.address()
    }

    fn create_tag(&mut self) -> ProtectionTag {
        self.inner.create_tag()
    }

    fn allocate(&mut self, length: usize, attributes: MemoryAttributes) -> Result<Region, ViError> {
        self.inner.allocate(length, attributes)
    }

    fn register(
        &mut self,
        memory: Memory,
        attributes: MemoryAttributes,
    ) -> Result<Region, ViError> {
        self.inner.register(memory, attributes)
    }

    fn deregister(&mut self, memory: MemoryHandle) -> Result<(), ViError> {
        self.inner.deregister(memory)
    }

    fn create_cq(&mut self) -> Result<CqId, ViError> {
        self.inner.create_cq()
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), ViError> {
        self.inner.destroy_cq(cq)
    }

    fn create_vi(&mut self, attributes: ViAttributes) -> Result<ViId, ViError> {
        self.inner.create_vi(attributes)
    }

    fn destroy_vi(&mut self, vi: ViId) -> Result<(), ViError> {
        self.inner.destroy_vi(vi)
    }

    fn state(&self, vi: ViId) -> Result<ViState, ViError> {
        self.inner.state(vi)
    }

    fn listen(&mut self, discriminator: &[u8]) -> Result<(), ViError> {
        self.inner.listen(discriminator)
    }

    fn unlisten(&mut self, discriminator: &[u8]) {
        self.inner.unlisten(discriminator);
    }

    fn connect(&mut self, to: Connect<'_>) -> Result<(), ViError> {
        self.step(|nic| nic.connect(to))
    }

    fn connect_peer(&mut self, to: Connect<'_>) -> Result<(), ViError> {
        self.inner.connect_peer(to)
    }

    fn accept(&mut self, request: RequestId, vi: ViId, greeting: &[u8]) -> Result<(), ViError> {
        self.step(|nic| nic.accept(request, vi, greeting))
    }

    fn reject(&mut self, request: RequestId) -> Result<(), ViError> {
        self.step(|nic| nic.reject(request))
    }

    fn disconnect(&mut self, vi: ViId) -> Result<(), ViError> {
        self.inner.disconnect(vi)
    }

    fn next_event(&mut self) -> Option<NicEvent> {
        self.inner.next_event()
    }

    fn post_send(&mut self, vi: ViId, descriptor: &SendDescriptor<'_>) -> Result<(), ViError> {
        self.count += 1;
        self.die_if(Death::Before(self.count));
        let posted = self.inner.post_send(vi, descriptor);
        self.die_if(Death::After(self.count));
        posted
    }

    fn post_receive(
        &mut self,
        vi: ViId,
        descriptor: &ReceiveDescriptor<'_>,
    ) -> Result<(), ViError> {
        self.inner.post_receive(vi, descriptor)
    }

    fn poll_cq(&mut self, cq: CqId) -> Option<Completion> {
        self.inner.poll_cq(cq)
    }

    fn post_headed_write(
        &mut self,
        vi: ViId,
        to: RemoteSegment,
        immediate: i32,
        head: u128,
        body: &[u8],
    ) -> bool {
        self.count += 1;
        self.die_if(Death::Before(self.count));
        let is_posted = self.inner.post_headed_write(vi, to, immediate, head, body);
        self.die_if(Death::After(self.count));
        is_posted
    }

    fn take_headed_writes(&mut self, vi: ViId, memory: MemoryHandle) {
        self.inner.take_headed_writes(vi, memory);
    }

    fn poll_headed_write(&mut self, cq: CqId, vi: Option<ViId>) -> HeadedPoll {
        self.inner.poll_headed_write(cq, vi)
    }

    fn poll_queue(&mut self, vi: ViId, queue: Queue) -> Option<Completion> {
        self.inner.poll_queue(vi, queue)
    }

    fn progress(&mut self, now: Instant) -> bool {
        let has_worked = self.inner.progress(now);
        if has_worked {
            // How often it finds something is not the same in each run.
            self.step(|_| ());
        }
        has_worked
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.inner.next_deadline()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }

    fn arm(&mut self) -> io::Result<ArmOutcome> {
        self.inner.arm()
    }

    fn quiet(&mut self) {
        self.inner.quiet();
    }
}
