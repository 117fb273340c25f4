//! The conformance suite detects faults: each of these providers is the simulated one with one planted
//! fault, and is reported under the clause that it breaks; without the fault it conforms.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io::{self, IoSlice},
    os::fd::BorrowedFd,
};

use vigie_detect::{ArmOutcome, Instant};
use vigie_via::{
    conformance::{Clause, Fixture, Profile, SetupError, Violation, check},
    sim::{FaultPlan, SimNetwork, SimNic},
    vi::{
        Address, Completion, Connect, CqId, Data, DisconnectReason, LocalSegment, Memory,
        MemoryAttributes, MemoryHandle, NicAttributes, NicEvent, Operation, ProtectionTag,
        Provider, Queue, ReceiveDescriptor, Region, RemoteSegment, RequestId, SendDescriptor,
        Status, ViAttributes, ViError, ViId, ViState,
    },
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// If two completions wait, the later one is delivered first.
    SwapsCompletions,
    /// Silent writes are carried out after the descriptor posted next.
    DelaysSilentWrites,
    /// Pieces are gathered in another order.
    SwapsPieces,
    /// Eight bytes are written as two times four.
    TearsWords,
    /// Eight bytes are read as two times four.
    TearsReads,
    /// A receive descriptor is posted that the consumer did not post.
    InventsReceiveDescriptors,
    /// Silent writes consume a receive descriptor.
    TellsOfSilentWrites,
    /// A deregistered region stays registered.
    KeepsRegistrations,
    /// All memory may be written and read.
    AllowsEverything,
    /// There is one protection tag.
    HasOneTag,
    /// VIs always allow writes and reads.
    IgnoresRightsOfVis,
    /// Local offsets wrap around.
    WrapsOffsets,
    /// Flushed descriptors do not complete.
    DropsTheFlushed,
    /// Unsignaled descriptors report success.
    TellsAll,
    /// Unsignaled descriptors do not report errors.
    HidesErrors,
    /// Every third completion comes twice.
    CompletesTwice,
    /// Completions also appear outside their completion queue.
    CompletesBesideQueues,
    /// `arm` never finds existing completions, and nothing wakes the sleeper.
    SleepsOver,
    /// `arm` always finds something.
    NeverSleeps,
    /// A break breaks all VIs of the NIC.
    BreaksAll,
    /// A VI that waits for its connection reports that it is connected.
    ConnectsEarly,
    /// A peer's disconnect leaves the VI unchanged.
    IgnoresDisconnects,
    /// Greetings are cut to 64 bytes.
    CutsGreetings,
    /// Every refusal is a rejection.
    HasOneReason,
    /// A request can be answered twice.
    AcceptsRejected,
    /// Length errors are reported as protection errors.
    ConfusesErrors,
    /// Greetings that are too long are truncated.
    ForgivesLongGreetings,
    /// Excess segments are dropped.
    ForgivesManySegments,
    /// Full queues swallow descriptors.
    SwallowsDescriptors,
    /// Empty messages are not sent.
    SkipsEmptyMessages,
    /// Immediate data of zero is omitted.
    LosesZeroImmediates,
    /// Completions of a destroyed VI stay.
    KeepsCompletionsOfTheDead,
    /// Destroyed VIs remain known.
    RemembersVis,
    /// Memory is not zeroed.
    AllocatesDirtyMemory,
}

/// A place for completions: a completion queue, or a VI's queue, where `true` is the send queue.
type Place = (Option<CqId>, Option<(ViId, bool)>);

/// A simulated NIC with a fault.
struct Faulty {
    nic: SimNic,
    fault: Fault,
    tag: Option<ProtectionTag>,
    /// A delayed descriptor, and its VI.
    delayed: Option<(ViId, Posted)>,
    /// Completions that the fault delivers, by place.
    extra: BTreeMap<Place, VecDeque<Completion>>,
    unsignaled: BTreeSet<(ViId, u64)>,
    /// VIs that got an unrequested receive descriptor.
    gifted: BTreeSet<ViId>,
    attached: BTreeMap<ViId, CqId>,
    destroyed: BTreeMap<ViId, CqId>,
    taken: u64,
}

/// A descriptor that owns its parts.
struct Posted {
    operation: Operation,
    cookie: u64,
    is_signaled: bool,
    remote: Option<RemoteSegment>,
    segments: Vec<LocalSegment>,
    inline: Option<Vec<u8>>,
}

impl Faulty {
    fn new(nic: SimNic, fault: Fault) -> Self {
        Self {
            nic,
            fault,
            tag: None,
            delayed: None,
            extra: BTreeMap::new(),
            unsignaled: BTreeSet::new(),
            gifted: BTreeSet::new(),
            attached: BTreeMap::new(),
            destroyed: BTreeMap::new(),
            taken: 0,
        }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    fn greeting<'a>(&self, greeting: &'a [u8]) -> &'a [u8] {
        match self.fault {
            Fault::CutsGreetings => &greeting[..greeting.len().min(64)],
            Fault::ForgivesLongGreetings => &greeting[..greeting.len().min(1024)],
            _ => greeting,
        }
    }

    fn attributes_of(&self, attributes: MemoryAttributes) -> MemoryAttributes {
        match self.fault {
            Fault::AllowsEverything => {
                MemoryAttributes { allows_write: true, allows_read: true, ..attributes }
            }
            _ => attributes,
        }
    }

    fn post_delayed(&mut self) {
        let Some((vi, posted)) = self.delayed.take() else { return };
        let pieces: Vec<_> = posted.inline.iter().map(|bytes| IoSlice::new(bytes)).collect();
        let data = match posted.inline {
            Some(_) => Data::Inline(&pieces),
            None => Data::Segments(&posted.segments),
        };
        let Posted { operation, cookie, is_signaled, remote, .. } = posted;
        let descriptor =
            SendDescriptor { operation, cookie, immediate: None, is_signaled, remote, data };
        // A VI that is no longer connected has nothing left to lose.
        let _ = self.nic.post_send(vi, &descriptor);
    }

    /// Posts a descriptor of eight inline bytes as two of four; only the second is reported.
    fn post_torn(
        &mut self,
        vi: ViId,
        descriptor: &SendDescriptor<'_>,
    ) -> Option<Result<(), ViError>> {
        let Data::Inline([piece]) = descriptor.data else { return None };
        let remote = descriptor.remote?;
        if piece.len() != 8 || descriptor.immediate.is_some() {
            return None;
        }
        let (first, second) = piece.split_at(4);
        let halves = [(remote.offset, first, false), (remote.offset.wrapping_add(4), second, true)];
        for (offset, half, is_signaled) in halves {
            let half = [IoSlice::new(half)];
            let remote = Some(RemoteSegment { offset, ..remote });
            let data = Data::Inline(&half);
            let part = SendDescriptor { remote, is_signaled, data, ..*descriptor };
            if let Err(error) = self.nic.post_send(vi, &part) {
                return Some(Err(error));
            }
        }
        Some(Ok(()))
    }

    /// Posts a read of eight bytes as two of four; only the second is reported.
    fn post_torn_read(&mut self, vi: ViId, descriptor: &SendDescriptor<'_>) -> Result<(), ViError> {
        let (Data::Segments([LocalSegment { memory, offset, length: 8 }]), Some(remote)) =
            (descriptor.data, descriptor.remote)
        else {
            return self.nic.post_send(vi, descriptor);
        };
        for (from, is_signaled) in [(0, false), (4, true)] {
            let half =
                [LocalSegment { memory: *memory, offset: offset.wrapping_add(from), length: 4 }];
            let place = remote.offset.wrapping_add(from);
            let remote = Some(RemoteSegment { offset: place, ..remote });
            let data = Data::Segments(&half);
            let part = SendDescriptor { remote, is_signaled, data, ..*descriptor };
            self.nic.post_send(vi, &part)?;
        }
        Ok(())
    }

    fn changed(&mut self, mut found: Completion) -> Option<Completion> {
        self.taken += 1;
        let is_unsignaled = self.unsignaled.remove(&(found.vi, found.cookie));
        match self.fault {
            Fault::DropsTheFlushed if found.status == Status::Flushed => return None,
            Fault::HidesErrors if is_unsignaled && found.queue == Queue::Send => return None,
            Fault::ConfusesErrors if found.status == Status::LengthError => {
                found.status = Status::ProtectionError;
            }
            Fault::LosesZeroImmediates if found.immediate == Some(0) => found.immediate = None,
            _ => {}
        }
        Some(found)
    }

    fn take(&mut self, cq: Option<CqId>, vi: Option<(ViId, Queue)>) -> Option<Completion> {
        let key = (cq, vi.map(|(vi, queue)| (vi, queue == Queue::Send)));
        if let Some(found) = self.extra.get_mut(&key).and_then(VecDeque::pop_front) {
            return Some(found);
        }
        let next = |nic: &mut SimNic| match (cq, vi) {
            (Some(cq), _) => nic.poll_cq(cq),
            (None, Some((vi, queue))) => nic.poll_queue(vi, queue),
            (None, None) => None,
        };
        let found = next(&mut self.nic)?;
        match self.fault {
            Fault::SwapsCompletions => {
                if let Some(second) = next(&mut self.nic) {
                    self.extra.entry(key).or_default().push_back(found);
                    return Some(second);
                }
            }
            Fault::CompletesTwice if self.taken % 3 == 2 => {
                self.extra.entry(key).or_default().push_back(found);
            }
            Fault::CompletesBesideQueues if cq.is_some() => {
                let beside = (None, Some((found.vi, found.queue == Queue::Send)));
                self.extra.entry(beside).or_default().push_back(found);
            }
            _ => {}
        }
        self.changed(found)
    }

    fn changed_event(&mut self, event: NicEvent) -> Option<NicEvent> {
        match (&event, self.fault) {
            (NicEvent::Refused { vi, .. }, Fault::HasOneReason) => {
                return Some(NicEvent::Refused { vi: *vi, reason: DisconnectReason::Rejected });
            }
            (
                NicEvent::Broken { reason: DisconnectReason::Disconnected, .. },
                Fault::IgnoresDisconnects,
            ) => {
                return None;
            }
            (NicEvent::Broken { vi, .. }, Fault::BreaksAll) => {
                let broken = *vi;
                let others: Vec<ViId> =
                    self.all_vis().into_iter().filter(|vi| *vi != broken).collect();
                for vi in others {
                    let _ = self.nic.disconnect(vi);
                }
            }
            _ => {}
        }
        Some(event)
    }

    /// Returns all VIs that a NIC may have made: names are small numbers.
    fn all_vis(&self) -> Vec<ViId> {
        (0..64).map(ViId).filter(|vi| self.nic.state(*vi).is_ok()).collect()
    }
}

impl Provider for Faulty {
    fn attributes(&self) -> NicAttributes {
        self.nic.attributes()
    }

    fn address(&self) -> Address {
        self.nic.address()
    }

    fn create_tag(&mut self) -> ProtectionTag {
        if self.has(Fault::HasOneTag) {
            return *self.tag.get_or_insert(ProtectionTag(7));
        }
        self.nic.create_tag()
    }

    fn allocate(&mut self, length: usize, attributes: MemoryAttributes) -> Result<Region, ViError> {
        let region = self.nic.allocate(length, self.attributes_of(attributes))?;
        if self.has(Fault::AllocatesDirtyMemory) && length > 0 {
            region.memory.write(length as u64 - 1, &[9]).expect("inside");
        }
        Ok(region)
    }

    fn register(
        &mut self,
        memory: Memory,
        attributes: MemoryAttributes,
    ) -> Result<Region, ViError> {
        self.nic.register(memory, self.attributes_of(attributes))
    }

    fn deregister(&mut self, memory: MemoryHandle) -> Result<(), ViError> {
        if self.has(Fault::KeepsRegistrations) {
            return Ok(());
        }
        self.nic.deregister(memory)
    }

    fn create_cq(&mut self) -> Result<CqId, ViError> {
        self.nic.create_cq()
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), ViError> {
        self.nic.destroy_cq(cq)
    }

    fn create_vi(&mut self, mut attributes: ViAttributes) -> Result<ViId, ViError> {
        if self.has(Fault::IgnoresRightsOfVis) {
            attributes.allows_write = true;
            attributes.allows_read = true;
        }
        let vi = self.nic.create_vi(attributes)?;
        if let Some(cq) = attributes.receive_cq {
            self.attached.insert(vi, cq);
        }
        Ok(vi)
    }

    fn destroy_vi(&mut self, vi: ViId) -> Result<(), ViError> {
        if self.has(Fault::KeepsCompletionsOfTheDead)
            && let Some(cq) = self.attached.get(&vi)
        {
            // Existing completions are kept, in order.
            let kept: Vec<_> = std::iter::from_fn(|| self.nic.poll_cq(*cq)).collect();
            self.extra.entry((Some(*cq), None)).or_default().extend(kept);
        }
        self.nic.destroy_vi(vi)?;
        if let Some(cq) = self.attached.remove(&vi) {
            self.destroyed.insert(vi, cq);
        }
        Ok(())
    }

    fn state(&self, vi: ViId) -> Result<ViState, ViError> {
        if self.has(Fault::RemembersVis) && self.destroyed.contains_key(&vi) {
            return Ok(ViState::Idle);
        }
        match self.nic.state(vi)? {
            ViState::PendingConnect if self.has(Fault::ConnectsEarly) => Ok(ViState::Connected),
            state => Ok(state),
        }
    }

    fn listen(&mut self, discriminator: &[u8]) -> Result<(), ViError> {
        self.nic.listen(discriminator)
    }

    fn unlisten(&mut self, discriminator: &[u8]) {
        self.nic.unlisten(discriminator);
    }

    fn connect(&mut self, to: Connect<'_>) -> Result<(), ViError> {
        let greeting = self.greeting(to.greeting);
        self.nic.connect(to.greeting(greeting))
    }

    fn connect_peer(&mut self, to: Connect<'_>) -> Result<(), ViError> {
        let greeting = self.greeting(to.greeting);
        self.nic.connect_peer(to.greeting(greeting))
    }

    fn accept(&mut self, request: RequestId, vi: ViId, greeting: &[u8]) -> Result<(), ViError> {
        let greeting = self.greeting(greeting);
        self.nic.accept(request, vi, greeting)
    }

    fn reject(&mut self, request: RequestId) -> Result<(), ViError> {
        match self.nic.reject(request) {
            Err(ViError::UnknownRequest(_)) if self.has(Fault::AcceptsRejected) => Ok(()),
            result => result,
        }
    }

    fn disconnect(&mut self, vi: ViId) -> Result<(), ViError> {
        self.nic.disconnect(vi)
    }

    fn next_event(&mut self) -> Option<NicEvent> {
        let event = self.nic.next_event()?;
        self.changed_event(event)
    }

    fn post_send(&mut self, vi: ViId, descriptor: &SendDescriptor<'_>) -> Result<(), ViError> {
        let mut descriptor = *descriptor;
        let is_silent =
            descriptor.operation == Operation::RdmaWrite && descriptor.immediate.is_none();
        if !descriptor.is_signaled {
            self.unsignaled.insert((vi, descriptor.cookie));
        }
        let mut shortened = Vec::new();
        if let Data::Segments(segments) = descriptor.data {
            shortened = segments.to_vec();
        }
        match self.fault {
            Fault::DelaysSilentWrites if is_silent && !descriptor.is_signaled => {
                let (segments, inline) = match descriptor.data {
                    Data::Segments(segments) => (segments.to_vec(), None),
                    Data::Inline(pieces) => (Vec::new(), Some(pieces.concat_bytes())),
                };
                let SendDescriptor { operation, cookie, is_signaled, remote, .. } = descriptor;
                let posted = Posted { operation, cookie, is_signaled, remote, segments, inline };
                self.delayed = Some((vi, posted));
                return Ok(());
            }
            Fault::TearsWords if is_silent => {
                if let Some(result) = self.post_torn(vi, &descriptor) {
                    return result;
                }
            }
            Fault::TearsReads if descriptor.operation == Operation::RdmaRead => {
                return self.post_torn_read(vi, &descriptor);
            }
            Fault::TellsOfSilentWrites if is_silent => descriptor.immediate = Some(0),
            Fault::TellsAll => descriptor.is_signaled = true,
            Fault::SwapsPieces if shortened.len() > 2 => {
                shortened.swap(0, 1);
                descriptor.data = Data::Segments(&shortened);
            }
            Fault::WrapsOffsets => {
                for segment in &mut shortened {
                    segment.offset %= 8192;
                }
                if matches!(descriptor.data, Data::Segments(_)) {
                    descriptor.data = Data::Segments(&shortened);
                }
            }
            Fault::ForgivesManySegments => {
                shortened.truncate(self.nic.attributes().segments_max);
                if matches!(descriptor.data, Data::Segments(_)) {
                    descriptor.data = Data::Segments(&shortened);
                }
            }
            Fault::SkipsEmptyMessages
                if matches!(descriptor.data, Data::Segments([]))
                    && descriptor.operation == Operation::Send =>
            {
                return Ok(());
            }
            _ => {}
        }
        let result = match self.nic.post_send(vi, &descriptor) {
            Err(ViError::QueueFull { .. }) if self.has(Fault::SwallowsDescriptors) => Ok(()),
            result => result,
        };
        self.post_delayed();
        result
    }

    fn post_receive(
        &mut self,
        vi: ViId,
        descriptor: &ReceiveDescriptor<'_>,
    ) -> Result<(), ViError> {
        match self.nic.post_receive(vi, descriptor) {
            Err(ViError::QueueFull { .. }) if self.has(Fault::SwallowsDescriptors) => Ok(()),
            result => result,
        }
    }

    fn poll_cq(&mut self, cq: CqId) -> Option<Completion> {
        self.take(Some(cq), None)
    }

    fn poll_queue(&mut self, vi: ViId, queue: Queue) -> Option<Completion> {
        self.take(None, Some((vi, queue)))
    }

    fn progress(&mut self, now: Instant) -> bool {
        if self.has(Fault::InventsReceiveDescriptors) {
            for vi in self.all_vis() {
                if self.nic.state(vi).is_ok_and(|state| state.is_connected())
                    && self.gifted.insert(vi)
                {
                    let descriptor = ReceiveDescriptor { cookie: 1 << 60, segments: &[] };
                    self.nic.post_receive(vi, &descriptor).expect("room");
                }
            }
        }
        self.nic.progress(now)
    }

    fn next_deadline(&self) -> Option<Instant> {
        if self.has(Fault::SleepsOver) {
            return None;
        }
        self.nic.next_deadline()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.nic.descriptor()
    }

    fn arm(&mut self) -> io::Result<ArmOutcome> {
        match self.fault {
            Fault::SleepsOver => Ok(ArmOutcome::Armed),
            Fault::NeverSleeps => Ok(ArmOutcome::Ready),
            _ => self.nic.arm(),
        }
    }
}

/// The bytes of several pieces, as one.
trait ConcatBytes {
    fn concat_bytes(&self) -> Vec<u8>;
}

impl ConcatBytes for [IoSlice<'_>] {
    fn concat_bytes(&self) -> Vec<u8> {
        self.iter().flat_map(|piece| piece.iter().copied()).collect()
    }
}

struct Planted {
    network: SimNetwork,
    fault: Fault,
}

impl Fixture for Planted {
    type Nic = Faulty;

    fn nic(&mut self) -> Result<Faulty, SetupError> {
        let mut attributes = NicAttributes::named("faulty");
        attributes.transfer_bytes_max = 8192;
        attributes.descriptors_max = 64;
        Ok(Faulty::new(self.network.nic_with(attributes), self.fault))
    }

    fn now(&self) -> Instant {
        self.network.now()
    }

    fn pass(&mut self, until: Instant) -> bool {
        self.network.next_event().is_some_and(|next| next <= until) && self.network.step()
    }

    fn profile(&self) -> Profile {
        Profile::new().transfer_max(8192)
    }
}

fn run(fault: Fault) -> Result<(), Violation> {
    check(&mut || Ok(Planted { network: SimNetwork::new(1, FaultPlan::reliable()), fault }))
        .map(drop)
}

/// Goal: the wrapper itself is not a fault. Method: the suite, with no fault planted.
#[test]
fn without_a_fault_it_conforms() {
    run(Fault::None).unwrap_or_else(|violation| panic!("{violation}"));
}

/// Goal: each fault is reported under its clause. Method: plant them one by one.
#[test]
fn each_fault_is_seen_under_its_clause() {
    let planted = [
        (Fault::SwapsCompletions, Clause::Order),
        (Fault::DelaysSilentWrites, Clause::Placement),
        (Fault::SwapsPieces, Clause::Placement),
        (Fault::TearsWords, Clause::Atomicity),
        (Fault::TearsReads, Clause::Atomicity),
        (Fault::InventsReceiveDescriptors, Clause::ReceiveDescriptor),
        (Fault::TellsOfSilentWrites, Clause::ReceiveDescriptor),
        (Fault::KeepsRegistrations, Clause::Protection),
        (Fault::AllowsEverything, Clause::Protection),
        (Fault::HasOneTag, Clause::Protection),
        (Fault::IgnoresRightsOfVis, Clause::Protection),
        (Fault::WrapsOffsets, Clause::Protection),
        (Fault::DropsTheFlushed, Clause::End),
        (Fault::TellsAll, Clause::End),
        (Fault::HidesErrors, Clause::End),
        (Fault::CompletesTwice, Clause::Once),
        (Fault::CompletesBesideQueues, Clause::Once),
        (Fault::SleepsOver, Clause::Wakeup),
        (Fault::NeverSleeps, Clause::Wakeup),
        (Fault::BreaksAll, Clause::Isolation),
        (Fault::ConnectsEarly, Clause::State),
        (Fault::IgnoresDisconnects, Clause::Connection),
        (Fault::CutsGreetings, Clause::Connection),
        (Fault::HasOneReason, Clause::Connection),
        (Fault::AcceptsRejected, Clause::Connection),
        (Fault::ConfusesErrors, Clause::Status),
        (Fault::ForgivesLongGreetings, Clause::Limit),
        (Fault::ForgivesManySegments, Clause::Limit),
        (Fault::SwallowsDescriptors, Clause::Limit),
        (Fault::SkipsEmptyMessages, Clause::End),
        (Fault::LosesZeroImmediates, Clause::Placement),
        (Fault::KeepsCompletionsOfTheDead, Clause::Name),
        (Fault::RemembersVis, Clause::Name),
        (Fault::AllocatesDirtyMemory, Clause::Name),
    ];
    let mut wrong = Vec::new();
    for (fault, clause) in planted {
        match run(fault) {
            Ok(()) => wrong.push(format!("{fault:?} was not seen")),
            Err(violation) if violation.clause() != Some(clause) => {
                wrong.push(format!("{fault:?} was seen as: {violation}"));
            }
            Err(_) => {}
        }
    }
    assert!(wrong.is_empty(), "{} faults:\n{}", wrong.len(), wrong.join("\n"));
}
