//! The NIC: what the consumer holds.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt, io,
    net::{SocketAddr, TcpListener},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use rustix::event::epoll;
use vigie_detect::{ArmOutcome, Instant, refuse_in_simulation};

use super::{
    NAME,
    config::{OpenError, VerbsConfig},
    connecting::{ControlSession, EventSource, FAILURE_REPORT_TIMEOUT},
    device::Device,
    secret::VerbsSecret,
    sys::{BATCH, Channel, CompletionQueue, Domain, SendData, SendWorkRequest, WorkCompletion},
    table::{RegionTable, SgeList, place},
    vi::{Cq, InFlightReceive, InFlightSend, NicState, UNSIGNALED_MAX, VerbsVi, parts},
    wire::{ControlFrame, VerbsAddress},
};
use crate::{
    auth::random,
    vi::{
        Address, Completion, Connect, CqId, Data, Memory, MemoryAttributes, MemoryHandle,
        NicAttributes, NicEvent, Operation, ProtectionTag, Provider, Queue, ReceiveDescriptor,
        Region, RequestId, SendDescriptor, Status, ViAttributes, ViError, ViEvent, ViId, ViState,
    },
};

/// The interval between polls of the sockets while awake.
const SOCKET_POLL_INTERVAL: Duration = Duration::from_micros(100);
/// The most batches of completions taken from one queue before others get their turn.
const BATCHES_MAX: usize = 32;
/// The most inline bytes requested of any device.
const INLINE_MAX: usize = 256;

/// A completion queue of the device, and its free capacity.
pub(super) struct SharedCq {
    queue: Arc<CompletionQueue>,
    free: u32,
    /// The completion queue whose VIs share it; `None` if it belongs to one VI.
    cq: Option<CqId>,
}

/// A NIC over libibverbs. See the [module](super).
///
/// Dropping it disconnects its VIs in order.
pub struct Verbs {
    // In drop order: what the device may still touch is last.
    pub(super) vis: BTreeMap<u32, VerbsVi>,
    pub(super) queues: BTreeMap<u32, SharedCq>,
    pub(super) table: RegionTable,
    pub(super) domains: BTreeMap<u32, Arc<Domain>>,
    channel: Arc<Channel>,
    pub(super) device: Device,
    pub(super) nic_state: NicState,
    /// The VI of each link, by the link's name.
    pub(super) links: BTreeMap<u32, u32>,
    /// VIs that have met an error.
    pub(super) failed: VecDeque<u32>,
    pub(super) sessions: BTreeMap<u32, ControlSession>,
    /// Requests that wait for the consumer's answer, with their control connections.
    pub(super) requests: BTreeMap<u64, u32>,
    pub(super) listening: BTreeSet<Vec<u8>>,
    pub(super) listener: TcpListener,
    pub(super) epoll: OwnedFd,
    pub(super) place: VerbsAddress,
    pub(super) secret: VerbsSecret,
    pub(super) names: u32,
    request_count: u64,
    pub(super) now: Instant,
    next_socket_poll: Instant,
    must_poll: bool,
    pub(super) due: Option<Instant>,
    is_armed: bool,
}

impl Verbs {
    /// Opens a NIC. Others can reach it at once.
    ///
    /// # Errors
    /// [`OpenError`] if there is no device, none has that address, or resources are missing.
    pub fn open(config: &VerbsConfig) -> Result<Self, OpenError> {
        refuse_in_simulation("RDMA devices", "use `via::udp` there")
            .map_err(OpenError::resource("opening a device"))?;
        if config.ip.is_unspecified() {
            return Err(OpenError::Unspecified(config.ip));
        }
        let device = Device::open(config)?;
        let channel = Channel::new(&device.context);
        let channel = channel.map_err(OpenError::resource("a completion channel"))?;
        let address = SocketAddr::new(config.ip, config.tcp_port);
        let listen = || {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            let socket = listener.local_addr()?;
            Ok((listener, socket))
        };
        let listening = listen().map_err(|source| OpenError::Listen { address, source });
        let (listener, socket) = listening?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from);
        let epoll = epoll.map_err(OpenError::resource("an epoll descriptor"))?;
        let chance = random().map_err(OpenError::resource("random bytes"))?;
        let first = random::<4>().map_err(OpenError::resource("random bytes"))?;
        let nic = Self {
            vis: BTreeMap::new(),
            queues: BTreeMap::new(),
            table: RegionTable::new(u64::from(u32::from_le_bytes(first))),
            domains: BTreeMap::new(),
            channel,
            device,
            nic_state: NicState::default(),
            links: BTreeMap::new(),
            failed: VecDeque::new(),
            sessions: BTreeMap::new(),
            requests: BTreeMap::new(),
            listening: BTreeSet::new(),
            listener,
            epoll,
            place: VerbsAddress { id: chance, socket },
            secret: config.secret.clone(),
            names: 0,
            request_count: 0,
            now: Instant::from_nanos(0),
            next_socket_poll: Instant::from_nanos(0),
            must_poll: false,
            due: None,
            is_armed: false,
        };

        let watch = || {
            nic.watch(&nic.listener, EventSource::Listener, false)?;
            nic.watch(&*nic.channel, EventSource::Channel, false)
        };
        watch().map_err(OpenError::resource("an epoll descriptor"))?;
        Ok(nic)
    }

    /// Returns an unused name.
    pub(super) fn name(&mut self, what: &'static str) -> Result<u32, ViError> {
        let name = self.names;
        let limit = u64::from(u32::MAX);
        self.names = name.checked_add(1).ok_or(ViError::TooMuch { what, provider: NAME, limit })?;
        Ok(name)
    }

    pub(super) const fn next_request(&mut self) -> RequestId {
        self.request_count += 1;
        RequestId(self.request_count)
    }

    pub(super) fn vi(&self, vi: ViId) -> Result<&VerbsVi, ViError> {
        self.vis.get(&vi.0).ok_or(ViError::UnknownVi(vi))
    }

    pub(super) fn vi_mut(&mut self, vi: ViId) -> Result<&mut VerbsVi, ViError> {
        self.vis.get_mut(&vi.0).ok_or(ViError::UnknownVi(vi))
    }

    pub(super) fn watch(
        &self,
        socket: impl AsFd,
        source: EventSource,
        wants_room: bool,
    ) -> io::Result<()> {
        let data = epoll::EventData::new_u64(source.to_data());
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, wants_room);
        Ok(epoll::add(&self.epoll, socket, data, flags)?)
    }

    pub(super) fn quiet_channel(&self) -> bool {
        self.channel.quiet()
    }

    fn domain(&mut self, tag: ProtectionTag) -> Result<Arc<Domain>, ViError> {
        if let Some(domain) = self.domains.get(&tag.0) {
            return Ok(Arc::clone(domain));
        }
        let domain = Domain::new(&self.device.context)?;
        self.domains.insert(tag.0, Arc::clone(&domain));
        Ok(domain)
    }

    // -------------------------------------------------------------- completions

    /// Reserves capacity for `count` completions in a queue of the device, or creates one.
    fn reserve_queue(&mut self, cq: Option<CqId>, count: u32) -> Result<u32, ViError> {
        if let Some(cq) = cq {
            let own = self.nic_state.cqs.get(&cq.0).map_or(&[][..], |cq| &cq.queues);
            for name in own {
                if let Some(seats) = self.queues.get_mut(name).filter(|seats| seats.free >= count) {
                    seats.free -= count;
                    return Ok(*name);
                }
            }
        }
        let capacity = if cq.is_some() { self.device.completions.max(count) } else { count };
        let queue = CompletionQueue::new(&self.channel, capacity)?;
        if self.is_armed {
            queue.arm()?;
        }
        let name = self.name("the number of queues")?;
        self.queues.insert(name, SharedCq { queue, free: capacity - count, cq });
        if let Some(cq) = cq.and_then(|cq| self.nic_state.cqs.get_mut(&cq.0)) {
            cq.queues.push(name);
        }
        Ok(name)
    }

    fn release_queue(&mut self, name: u32, count: u32) {
        let Some(seats) = self.queues.get_mut(&name) else { return };
        seats.free += count;
        if seats.cq.is_none() {
            self.queues.remove(&name);
        }
    }

    pub(super) fn device_queue(&self, name: u32) -> Option<Arc<CompletionQueue>> {
        self.queues.get(&name).map(|seats| Arc::clone(&seats.queue))
    }

    /// Takes all completions of a queue of the device. Returns whether there were any.
    pub(super) fn drain(&mut self, name: u32) -> bool {
        let mut is_news = false;
        for _ in 0..BATCHES_MAX {
            let Some(seats) = self.queues.get(&name) else { return is_news };
            let mut found = [None; BATCH];
            let count = seats.queue.poll(&mut found);
            is_news |= count > 0;
            for completion in found.iter().flatten() {
                self.take(completion);
            }
            if count < BATCH {
                break;
            }
        }
        is_news
    }

    fn drain_all(&mut self) -> bool {
        let mut is_news = false;
        let mut next = 0;
        while let Some((&name, _)) = self.queues.range(next..).next() {
            is_news |= self.drain(name);
            next = name.saturating_add(1);
        }
        is_news
    }

    fn take(&mut self, completion: &WorkCompletion) {
        let (link, queue, count) = parts(completion.number);
        // A link that has ended reports nothing more.
        let Some(&name) = self.links.get(&link) else { return };
        if completion.status == 0 {
            // Since the peer uses the connection it is established, whether or not its Ready has arrived.
            self.ready(name);
        }

        let Some(vi) = self.vis.get_mut(&name) else { return };
        let had_fault = vi.fault.is_some();
        match queue {
            Queue::Send => {
                let deadline = self.now + FAILURE_REPORT_TIMEOUT;
                vi.take_sent(&mut self.nic_state, count, completion.status, deadline);
            }
            Queue::Receive => {
                let tag = vi.attributes.tag;
                let is_reachable = completion.status == 0
                    || vi
                        .receives
                        .front()
                        .is_some_and(|posted| self.table.reaches(tag, &posted.segments));
                vi.take_received(&mut self.nic_state, count, completion, is_reachable);
            }
        }

        let unclear = vi.unclear;
        if !had_fault && vi.fault.is_some() {
            self.failed.push_back(name);
        }
        if let Some(deadline) = unclear {
            self.expect(deadline);
        }
    }

    /// Returns whether an event or completion waits for the consumer.
    fn has_news(&self) -> bool {
        !self.nic_state.events.is_empty()
            || self.nic_state.cqs.values().any(|cq| !cq.completions.is_empty())
            || self.vis.values().any(|vi| vi.done.iter().any(|done| !done.is_empty()))
    }

    // -------------------------------------------------------------- descriptors

    /// Returns what is wrong with a send descriptor itself, or its data in the device's terms.
    fn checked(&self, vi: &VerbsVi, wanted: &SendDescriptor<'_>) -> Result<(SgeList, u64), Status> {
        let is_read = wanted.operation == Operation::RdmaRead;
        let makes_sense = match wanted.operation {
            Operation::Send => wanted.remote.is_none(),
            Operation::RdmaWrite => wanted.remote.is_some(),
            Operation::RdmaRead => {
                wanted.remote.is_some() && wanted.immediate.is_none() && vi.is_reliable()
            }
        };
        match wanted.data {
            _ if !makes_sense => Err(Status::FormatError),
            Data::Inline(_) if is_read => Err(Status::FormatError),
            Data::Inline(pieces) => Ok((SgeList::new(), inline_length(pieces))),
            Data::Segments(segments) => {
                let most = self.device.attributes.transfer_bytes_max;
                self.table.gather(vi.attributes.tag, segments, most)
            }
        }
    }

    fn send(&mut self, name: u32, wanted: &SendDescriptor<'_>) -> Result<(), ViError> {
        let Some(vi) = self.vis.get(&name) else { return Err(ViError::UnknownVi(ViId(name))) };
        let (forced, pieces, length) = match self.checked(vi, wanted) {
            _ if vi.is_spoiled => (Some(Status::Flushed), SgeList::new(), 0),
            Ok((pieces, length)) => (None, pieces, length),
            Err(status) => (Some(status), SgeList::new(), 0),
        };

        let Some(vi) = self.vis.get_mut(&name) else { return Err(ViError::UnknownVi(ViId(name))) };
        let wrong = ViError::WrongState { state: vi.state, what: "send" };
        let Some(link) = &mut vi.link else { return Err(wrong) };
        let sent = InFlightSend {
            cookie: wanted.cookie,
            operation: wanted.operation,
            length,
            is_signaled: wanted.is_signaled,
            forced,
        };

        let is_told =
            wanted.is_signaled || forced.is_some() || vi.unsignaled_count >= UNSIGNALED_MAX;
        let mut inline = [0; INLINE_MAX];
        let mut request = SendWorkRequest {
            number: link.send_number(),
            operation: wanted.operation,
            immediate: wanted.immediate,
            is_signaled: is_told,
            remote: wanted.remote.as_ref().map_or((0, 0), place),
            data: match wanted.data {
                Data::Inline(pieces) => SendData::Inline(gathered(pieces, &mut inline)),
                Data::Segments(_) => SendData::Pieces(pieces.as_slice()),
            },
        };

        if forced.is_some() {
            // The device must not carry it out, but it has to complete in order: post an empty write.
            (request.operation, request.immediate) = (Operation::RdmaWrite, None);
            (request.remote, request.data) = ((0, 0), SendData::Pieces(&[]));
        }

        link.pair.post_send(&request)?;
        link.sent();
        vi.unsignaled_count = if is_told { 0 } else { vi.unsignaled_count + 1 };
        vi.is_spoiled |= forced.is_some() && vi.is_reliable();
        vi.sends.push_back(sent);
        Ok(())
    }
}

fn inline_length(pieces: &[io::IoSlice<'_>]) -> u64 {
    let length = pieces.iter().fold(0_usize, |sum, sge| sum.saturating_add(sge.len()));
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// Copies the pieces together; they fit the room.
fn gathered<'a>(pieces: &[io::IoSlice<'_>], room: &'a mut [u8; INLINE_MAX]) -> &'a [u8] {
    let mut length = 0;
    for sge in pieces {
        if let Some(place) = room.get_mut(length..length + sge.len()) {
            place.copy_from_slice(sge);
            length += sge.len();
        }
    }
    room.get(..length).unwrap_or(&[])
}

pub(super) fn limit(what: &'static str, count: usize, limit: usize) -> Result<(), ViError> {
    if count <= limit {
        return Ok(());
    }
    let limit = u64::try_from(limit).unwrap_or(u64::MAX);
    Err(ViError::TooMuch { what, provider: NAME, limit })
}

impl Provider for Verbs {
    fn attributes(&self) -> NicAttributes {
        self.device.attributes
    }

    fn address(&self) -> Address {
        Address(self.place.encode())
    }

    fn create_tag(&mut self) -> ProtectionTag {
        // Its domain is created on first use, which may fail.
        let tag = ProtectionTag(self.names);
        self.names = self.names.saturating_add(1);
        tag
    }

    fn register(
        &mut self,
        memory: Memory,
        attributes: MemoryAttributes,
    ) -> Result<Region, ViError> {
        let domain = self.domain(attributes.tag)?;
        self.table.register(&domain, memory, attributes)
    }

    fn deregister(&mut self, memory: MemoryHandle) -> Result<(), ViError> {
        self.table.deregister(memory)
    }

    fn create_cq(&mut self) -> Result<CqId, ViError> {
        let name = self.name("the number of queues")?;
        self.nic_state.cqs.insert(name, Cq::default());
        Ok(CqId(name))
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), ViError> {
        let found = self.nic_state.cqs.get(&cq.0).ok_or(ViError::UnknownCq(cq))?;
        if found.vis > 0 {
            return Err(ViError::InUse { what: "a completion queue with VIs" });
        }
        if let Some(found) = self.nic_state.cqs.remove(&cq.0) {
            for name in found.queues {
                self.queues.remove(&name);
            }
        }
        Ok(())
    }

    fn create_vi(&mut self, attributes: ViAttributes) -> Result<ViId, ViError> {
        let (send_cq, receive_cq) = (attributes.send_cq, attributes.receive_cq);
        for cq in [send_cq, receive_cq].into_iter().flatten() {
            if !self.nic_state.cqs.contains_key(&cq.0) {
                return Err(ViError::UnknownCq(cq));
            }
        }
        let domain = self.domain(attributes.tag)?;
        let id = ViId(self.name("the number of VIs")?);
        let most = self.device.descriptors;
        let sends = self.reserve_queue(send_cq, most)?;
        let receives = match self.reserve_queue(receive_cq, most) {
            Ok(name) => name,
            Err(error) => {
                self.release_queue(sends, most);
                return Err(error);
            }
        };
        for cq in [send_cq, receive_cq].into_iter().flatten() {
            if let Some(cq) = self.nic_state.cqs.get_mut(&cq.0) {
                cq.vis += 1;
            }
        }
        self.vis.insert(id.0, VerbsVi::new(id, attributes, domain, [sends, receives]));
        Ok(id)
    }

    fn destroy_vi(&mut self, vi: ViId) -> Result<(), ViError> {
        if matches!(self.vi(vi)?.state, ViState::Connected | ViState::PendingConnect) {
            return Err(ViError::InUse { what: "a VI that is connected or connecting" });
        }
        let Some(gone) = self.vis.remove(&vi.0) else { return Err(ViError::UnknownVi(vi)) };
        for name in gone.queues {
            self.release_queue(name, self.device.descriptors);
        }
        for cq in [gone.attributes.send_cq, gone.attributes.receive_cq].into_iter().flatten() {
            if let Some(cq) = self.nic_state.cqs.get_mut(&cq.0) {
                cq.vis -= 1;
                cq.completions.retain(|completion| completion.vi != vi);
            }
        }
        Ok(())
    }

    fn state(&self, vi: ViId) -> Result<ViState, ViError> {
        Ok(self.vi(vi)?.state)
    }

    fn listen(&mut self, discriminator: &[u8]) -> Result<(), ViError> {
        self.start_listening(discriminator)
    }

    fn unlisten(&mut self, discriminator: &[u8]) {
        self.listening.remove(discriminator);
    }

    fn connect(&mut self, to: Connect<'_>) -> Result<(), ViError> {
        self.call(self.wished(to)?, to, false)
    }

    fn connect_peer(&mut self, to: Connect<'_>) -> Result<(), ViError> {
        self.meet(self.wished(to)?, to)
    }

    fn accept(&mut self, request: RequestId, vi: ViId, greeting: &[u8]) -> Result<(), ViError> {
        self.accept_request(request, vi, greeting)
    }

    fn reject(&mut self, request: RequestId) -> Result<(), ViError> {
        self.reject_request(request)
    }

    fn disconnect(&mut self, vi: ViId) -> Result<(), ViError> {
        self.vi(vi)?;
        self.part(vi.0, Some(&ControlFrame::Bye));
        let Some(found) = self.vis.get_mut(&vi.0) else { return Ok(()) };
        found.flush_sends(&mut self.nic_state);
        found.flush_receives(&mut self.nic_state);
        found.forget();
        found.state = ViState::Idle;
        self.settle();
        Ok(())
    }

    fn next_event(&mut self) -> Option<NicEvent> {
        self.nic_state.events.pop_front()
    }

    fn post_send(&mut self, vi: ViId, descriptor: &SendDescriptor<'_>) -> Result<(), ViError> {
        let found = self.vi(vi)?;
        if !found.state.is_connected() {
            return Err(ViError::WrongState { state: found.state, what: "send" });
        }
        let attributes = &self.device.attributes;
        match descriptor.data {
            Data::Segments(segments) => {
                limit("the number of segments", segments.len(), attributes.segments_max)?;
            }
            Data::Inline(pieces) => {
                let most = attributes.inline_bytes_max;
                if inline_length(pieces) > most {
                    let what = "the inline data";
                    return Err(ViError::TooMuch { what, provider: NAME, limit: most });
                }
            }
        }
        if found.sends.len() >= attributes.descriptors_max {
            return Err(ViError::QueueFull { queue: Queue::Send });
        }
        self.send(vi.0, descriptor)
    }

    fn post_receive(
        &mut self,
        vi: ViId,
        descriptor: &ReceiveDescriptor<'_>,
    ) -> Result<(), ViError> {
        let most = self.device.attributes.transfer_bytes_max;
        let attributes = self.device.attributes;
        let found = self.vis.get_mut(&vi.0).ok_or(ViError::UnknownVi(vi))?;
        limit("the number of segments", descriptor.segments.len(), attributes.segments_max)?;
        if found.receives.len() >= attributes.descriptors_max {
            return Err(ViError::QueueFull { queue: Queue::Receive });
        }
        if let Some(link) = found.link.as_mut().filter(|link| link.is_active()) {
            let tag = found.attributes.tag;
            let mut pieces = self.table.scatter(tag, descriptor.segments, most);
            link.pair.post_receive(link.receive_number(), pieces.as_mut_slice())?;
            link.posted();
        }
        let segments = descriptor.segments.to_vec();
        found.receives.push_back(InFlightReceive { cookie: descriptor.cookie, segments });
        Ok(())
    }

    fn poll_cq(&mut self, cq: CqId) -> Option<Completion> {
        let found = self.nic_state.cqs.get_mut(&cq.0)?;
        if let Some(completion) = found.completions.pop_front() {
            return Some(completion);
        }
        let mut index = 0;
        while let Some(&name) = self.nic_state.cqs.get(&cq.0)?.queues.get(index) {
            self.drain(name);
            index += 1;
        }
        self.settle();
        self.nic_state.cqs.get_mut(&cq.0)?.completions.pop_front()
    }

    fn poll_queue(&mut self, vi: ViId, queue: Queue) -> Option<Completion> {
        let found = self.vis.get_mut(&vi.0)?;
        if found.cq(queue).is_some() {
            return None;
        }
        if let Some(completion) = found.done_mut(queue).pop_front() {
            return Some(completion);
        }
        for name in found.queues {
            self.drain(name);
        }
        self.settle();
        self.vis.get_mut(&vi.0)?.done_mut(queue).pop_front()
    }

    fn progress(&mut self, now: Instant) -> bool {
        self.now = now;
        self.is_armed = false;
        let mut is_news = self.drain_all();
        if self.must_poll || now >= self.next_socket_poll || self.due.is_some_and(|due| due <= now)
        {
            self.must_poll = false;
            self.next_socket_poll = now + SOCKET_POLL_INTERVAL;
            is_news |= self.poll_sockets();
            is_news |= self.keep_time();
        }
        is_news | self.settle()
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.due
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn arm(&mut self) -> io::Result<ArmOutcome> {
        if self.has_news() {
            return Ok(ArmOutcome::Ready);
        }
        self.channel.quiet();
        for seats in self.queues.values() {
            seats.queue.arm()?;
        }
        // Anything that came earlier is found now; the channel announces what comes later.
        let mut is_news = self.drain_all();
        is_news |= self.poll_sockets();
        is_news |= self.settle();
        self.is_armed = !is_news && !self.has_news();
        Ok(ArmOutcome::ready_if(!self.is_armed))
    }

    fn quiet(&mut self) {
        self.channel.quiet();
        self.must_poll = true;
    }
}

impl Drop for Verbs {
    fn drop(&mut self) {
        let names: Vec<u32> = self.vis.keys().copied().collect();
        for name in names {
            self.part(name, Some(&ControlFrame::Bye));
        }
    }
}

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verbs")
            .field("address", &self.place.socket)
            .field("vis", &self.vis.len())
            .field("sessions", &self.sessions.len())
            .finish_non_exhaustive()
    }
}

impl Verbs {
    /// Returns whether a VI may begin a connection.
    pub(super) fn may_connect(&self, vi: ViId) -> Result<(), ViError> {
        let state = self.vi(vi)?.state;
        match state.after(ViEvent::Connect) {
            Some(_) => Ok(()),
            None => Err(ViError::WrongState { state, what: "connect" }),
        }
    }
}
