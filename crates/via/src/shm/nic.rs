//! The NIC: what the consumer holds.

use std::{
    collections::{BTreeSet, VecDeque},
    fmt, io,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use rustix::event::{Timespec, epoll};
use vigie_detect::{ArmOutcome, Instant, refuse_in_simulation};

use super::{
    attempt::{Caller, ConnectAttempt, ConnectRequest},
    layout::wide,
    posted::PostedReceive,
    sys::{self, SocketRead},
    table::RegionTable,
    vi::{Cq, NicState, ShmVi},
    wakeup::NicPage,
    wire::{ControlPacket, PACKET_MAX, ShmAddress},
};
use crate::{
    auth::random,
    slots::Slots,
    vi::{
        Address, Completion, Connect, CqId, Data, DisconnectReason, HeadedPoll, Memory,
        MemoryAttributes, MemoryHandle, NicAttributes, NicEvent, ProtectionTag, Provider, Queue,
        ReceiveDescriptor, Region, Reliability, RemoteKey, RemoteSegment, RequestId,
        SendDescriptor, ViAttributes, ViError, ViEvent, ViId, ViState,
        objects::{Access, DISCRIMINATOR_MAX, GREETING_MAX, ViCore},
    },
};

const NAME: &str = "shm";
const ATTRIBUTES: NicAttributes = {
    let mut attributes = NicAttributes::named(NAME);
    // Posting copies the bytes, from any memory: registering gains nothing here.
    attributes.inline_bytes_max = 1 << 20;
    attributes.has_window = true;
    attributes
};
/// The interval between polls of the sockets while awake. A poll costs about half a microsecond.
const SOCKET_POLL_INTERVAL: Duration = Duration::from_micros(100);
/// The most sockets served per poll, and the most packets of each.
const EVENTS_MAX: usize = 64;
const PACKETS_MAX: usize = 16;
/// One in this many polls for one VI polls all rings: peers wait for credit, and for answers.
const ALONE_MAX: u32 = 16;

/// A NIC over shared memory. See the [module](super).
///
/// Dropping it disconnects its VIs in order.
pub struct Shm {
    pub(super) place: ShmAddress,
    pub(super) listener: OwnedFd,
    pub(super) epoll: OwnedFd,
    pub(super) nic_state: NicState,
    pub(super) vis: Slots<ShmVi, u32>,
    /// The VIs that are connected or about to be.
    pub(super) connected: Vec<u32>,
    pub(super) pending: Vec<u32>,
    pub(super) callers: Slots<Caller, u32>,
    pub(super) listening: BTreeSet<Vec<u8>>,
    /// The time at which accepting resumes: it pauses while there are no descriptors for callers.
    pub(super) accept_paused_until: Option<Instant>,
    pub(super) refusals: Refusals,
    /// The time as of the last [`progress`](Provider::progress).
    pub(super) now: Instant,
    /// The time at which the sockets are polled next.
    next_socket_poll: Instant,
    /// True if the sockets were polled since the last [`progress`](Provider::progress).
    has_polled_sockets: bool,
    /// The index at which the next poll of the rings begins, so that no VI is always the last.
    first: usize,
    /// The number of times in a row that one ring was polled instead of all.
    alone: u32,
    tag_count: u32,
}

/// Callers that were turned away without an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusals {
    /// Callers of other users.
    pub other_users: u64,
    /// Callers whose first packet was not a greeting with the NIC's secret.
    pub without_secret: u64,
}

/// The result of the search for a headed write.
enum HeadedSearch {
    /// It is the next of this VI.
    At(u32),
    Nothing,
    /// Something else may be next.
    Other,
}

/// The socket that is readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventSource {
    Listener,
    Caller(u32),
    Vi(u32),
}

impl EventSource {
    pub(super) fn to_data(self) -> u64 {
        match self {
            Self::Listener => 0,
            Self::Caller(name) => 1 << 32 | u64::from(name),
            Self::Vi(name) => 2 << 32 | u64::from(name),
        }
    }

    fn from_data(data: u64) -> Self {
        let name = u32::try_from(data & u64::from(u32::MAX)).unwrap_or(0);
        match data >> 32 {
            1 => Self::Caller(name),
            2 => Self::Vi(name),
            _ => Self::Listener,
        }
    }
}

impl Shm {
    /// Opens a NIC. Others can reach it at once.
    ///
    /// # Errors
    /// [`ViError::Io`] if no descriptors or memory are left, or the kernel has no memfd; in a simulation, whose nodes share none.
    pub fn open() -> Result<Self, ViError> {
        refuse_in_simulation("shared memory", "join the ranks over `via::udp`")?;
        let place = ShmAddress { name: random()?, token: random()? };
        let listener = sys::listen(&place.socket_name())?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from)?;
        let nic_state = NicState {
            table: RegionTable::new(),
            cqs: Slots::new(),
            page: NicPage::new()?,
            events: VecDeque::new(),
        };

        let nic = Self {
            place,
            listener,
            epoll,
            nic_state,
            vis: Slots::new(),
            connected: Vec::new(),
            pending: Vec::new(),
            callers: Slots::new(),
            listening: BTreeSet::new(),
            accept_paused_until: None,
            refusals: Refusals::default(),
            now: Instant::from_nanos(0),
            next_socket_poll: Instant::from_nanos(0),
            has_polled_sockets: false,
            first: 0,
            alone: 0,
            tag_count: 0,
        };

        nic.watch(&nic.listener, EventSource::Listener)?;
        Ok(nic)
    }

    /// Returns the counts of callers that were turned away.
    #[must_use]
    pub const fn refusals(&self) -> Refusals {
        self.refusals
    }

    pub(super) fn watch(&self, socket: &OwnedFd, source: EventSource) -> io::Result<()> {
        let data = epoll::EventData::new_u64(source.to_data());
        Ok(epoll::add(&self.epoll, socket, data, epoll::EventFlags::IN)?)
    }

    fn vi(&self, vi: ViId) -> Result<&ShmVi, ViError> {
        self.vis.get(vi.0).ok_or(ViError::UnknownVi(vi))
    }

    fn vi_mut(&mut self, vi: ViId) -> Result<&mut ShmVi, ViError> {
        self.vis.get_mut(vi.0).ok_or(ViError::UnknownVi(vi))
    }

    /// Polls the ring of one VI, unless it is time to poll all. Returns whether anything was done.
    #[inline]
    fn poll_ring(&mut self, name: ViId) -> bool {
        self.alone += 1;
        if self.alone >= ALONE_MAX {
            self.alone = 0;
            return self.poll_rings();
        }
        self.vis.get_mut(name.0).is_some_and(|vi| vi.work(&mut self.nic_state))
    }

    /// Polls all rings. Returns whether anything was done.
    #[inline]
    fn poll_rings(&mut self) -> bool {
        let is_news = self.work_all(ShmVi::work);
        if is_news {
            self.end_turn(self.first);
        }
        is_news
    }

    /// As [`poll_rings`](Self::poll_rings), but leaves headed writes to [`poll_headed_write`](Provider::poll_headed_write), in whose turns it
    /// has no part: as completions they cost more.
    fn poll_rings_for_others(&mut self) -> bool {
        self.work_all(ShmVi::work_for_others)
    }

    #[inline]
    fn work_all(&mut self, work: impl Fn(&mut ShmVi, &mut NicState) -> bool) -> bool {
        let mut is_news = false;
        let mut has_ended = false;
        let count = self.connected.len();
        for step in 0..count {
            let turn = self.first + step;
            let turn = if turn < count { turn } else { turn - count };
            let Some(vi) = self.connected.get(turn).and_then(|name| self.vis.get_mut(*name)) else {
                continue;
            };
            is_news |= work(vi, &mut self.nic_state);
            has_ended |= vi.connection.is_none();
        }
        if has_ended {
            self.forget_ended();
        }
        is_news
    }

    /// The next turn is that of the VI behind this one.
    #[inline]
    const fn end_turn(&mut self, turn: usize) {
        self.first = if turn + 1 < self.connected.len() { turn + 1 } else { 0 };
    }

    /// Finds the VI whose next headed write is to be taken, each in its turn. It does not return the write: one that came by memory in some cases
    /// would be copied in all, by loads that wait for narrower stores.
    fn find_headed_write(&mut self, cq: CqId) -> HeadedSearch {
        let count = self.connected.len();
        for step in 0..count {
            let turn = self.first + step;
            let turn = if turn < count { turn } else { turn - count };
            let vi = self.connected.get(turn).and_then(|name| self.vis.get_mut(*name));
            let Some(vi) = vi.filter(|vi| vi.core.attributes.receive_cq == Some(cq)) else {
                return HeadedSearch::Other;
            };
            match vi.peek_headed_write() {
                None => {}
                // The usual poll takes it, of all VIs: `alone` is as it was.
                Some(false) => return HeadedSearch::Other,
                Some(true) => {
                    let name = vi.core.id.0;
                    self.end_turn(turn);
                    self.alone = 0;
                    return HeadedSearch::At(name);
                }
            }
        }
        self.alone = 0;
        HeadedSearch::Nothing
    }

    /// Returns the next completion, after `poll` if none waits.
    #[inline]
    fn poll_cq_after(
        &mut self,
        cq: CqId,
        poll: impl FnOnce(&mut Self) -> bool,
    ) -> Option<Completion> {
        let found = self.nic_state.cqs.get_mut(cq.0)?;
        let completion = match found.completions.pop_front() {
            Some(completion) => completion,
            None => {
                if !poll(self) {
                    return None;
                }
                self.nic_state.cqs.get_mut(cq.0)?.completions.pop_front()?
            }
        };
        if let Some(vi) = self.vis.get_mut(completion.vi.0) {
            vi.core.release(completion.queue);
        }
        Some(completion)
    }

    #[cold]
    fn forget_ended(&mut self) {
        let vis = &self.vis;
        self.connected.retain(|name| vis.get(*name).is_some_and(|vi| vi.connection.is_some()));
        self.first = 0;
    }

    /// Polls the sockets. Returns whether anything was there.
    fn poll_sockets(&mut self) -> bool {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut room = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        let events: &[epoll::Event] = match epoll::wait(&self.epoll, &mut room, Some(&none)) {
            Ok((events, _)) => events,
            Err(_) => &[],
        };
        for event in events {
            match EventSource::from_data(event.data.u64()) {
                EventSource::Listener => self.take_callers(),
                EventSource::Caller(name) => self.handle_caller(name),
                EventSource::Vi(name) => self.handle_vi(name),
            }
        }
        for name in &self.connected {
            if let Some(vi) = self.vis.get_mut(*name)
                && let Some(connection) = &mut vi.connection
            {
                connection.send_memory_updates(&self.nic_state.table, &vi.core.attributes);
            }
        }
        !events.is_empty()
    }

    fn handle_vi(&mut self, name: u32) {
        match self.vis.get(name).and_then(|vi| vi.attempt.as_ref()) {
            Some(ConnectAttempt::Asked { .. }) => self.handle_welcome(name),
            Some(ConnectAttempt::Agreed { .. }) => self.handle_confirm(name),
            _ => {}
        }
        // What follows the answer belongs to the connection.
        self.handle_peer(name);
    }

    /// Takes the packets of a connected peer, up to a bound.
    fn handle_peer(&mut self, name: u32) {
        let sleep_count = self.nic_state.page.sleep_count();
        for _ in 0..PACKETS_MAX {
            let Some(vi) = self.vis.get_mut(name) else { return };
            let Some(connection) = &mut vi.connection else { return };
            let mut bytes = [0; PACKET_MAX];
            let fault = match sys::receive(connection.socket.as_fd(), &mut bytes) {
                SocketRead::Nothing => return,
                SocketRead::End => return self.peer_has_gone(name),
                SocketRead::Fault(what) => what,
                SocketRead::FilesLost(length) => {
                    match ControlPacket::decode(bytes.get(..length).unwrap_or(&[])) {
                        Ok(ControlPacket::Grant { .. }) => match connection.note_unmapped() {
                            Ok(()) => continue,
                            Err(what) => what,
                        },
                        _ => "a packet that does not belong to a connection",
                    }
                }
                SocketRead::Packet(length, files) => {
                    let packet = ControlPacket::decode(bytes.get(..length).unwrap_or(&[]));
                    match (packet, files.as_slice()) {
                        (Ok(ControlPacket::Wakeup), []) => {
                            connection.wakeup_count += 1;
                            if connection.wakeup_count <= sleep_count {
                                continue;
                            }
                            "more wake-ups than sleeps"
                        }
                        (Ok(ControlPacket::Revoke { key }), []) => match connection.unmap(key) {
                            Ok(()) => continue,
                            Err(what) => what,
                        },
                        (Ok(grant @ ControlPacket::Grant { .. }), [file]) => {
                            match connection.map(&grant, file) {
                                Ok(()) => continue,
                                Err(what) => what,
                            }
                        }
                        _ => "a packet that does not belong to a connection",
                    }
                }
            };

            vi.break_connection(&mut self.nic_state, DisconnectReason::PeerFault(fault));
            return self.forget_ended();
        }
    }

    /// The socket's other end is closed: takes what is left in the ring, then breaks the connection.
    fn peer_has_gone(&mut self, name: u32) {
        let Some(vi) = self.vis.get_mut(name) else { return };
        let entries = super::layout::ENTRY_COUNT;
        for _ in 0..entries {
            if !vi.receive(&mut self.nic_state) {
                break;
            }
        }
        if let Some(connection) = &vi.connection {
            let reason = super::connection::reason_of(connection.consumer.close_reason());
            vi.break_connection(&mut self.nic_state, reason);
        }
        self.forget_ended();
    }

    /// Returns whether there is an event for the consumer, or work that needs neither time nor peers.
    fn has_news(&mut self) -> bool {
        if !self.nic_state.events.is_empty()
            || self.nic_state.cqs.iter().any(|(_, cq)| !cq.completions.is_empty())
            || self.vis.iter().any(|(_, vi)| vi.core.has_completions())
        {
            return true;
        }
        self.poll_rings_for_others()
    }

    /// Registers memory that peers may map, and grants it to those that are connected.
    fn register_file(
        &mut self,
        memory: Memory,
        attributes: MemoryAttributes,
        file: Arc<OwnedFd>,
    ) -> Result<Region, ViError> {
        let page = &self.nic_state.page;
        let region = self.nic_state.table.register(memory, attributes, Some(file), page)?;
        for name in &self.connected {
            let Some(vi) = self.vis.get_mut(*name) else { continue };
            let registered = self.nic_state.table.regions.get(region.handle.0);
            if registered.is_some_and(|registered| registered.grant(&vi.core.attributes).is_some())
                && let Some(connection) = &mut vi.connection
            {
                connection.queue_grant(region.handle);
                connection.send_memory_updates(&self.nic_state.table, &vi.core.attributes);
            }
        }
        Ok(region)
    }

    fn connect_request<'a>(&self, to: Connect<'a>) -> Result<ConnectRequest<'a>, ViError> {
        let Connect { vi, address, discriminator, greeting, deadline } = to;
        let to = ShmAddress::parse(&address.0).ok_or(ViError::BadAddress { provider: NAME })?;
        let state = self.vi(vi)?.core.state;
        if state.after(ViEvent::Connect).is_none() {
            return Err(ViError::WrongState { state, what: "connect" });
        }
        ATTRIBUTES.check_call(discriminator, greeting)?;
        Ok(ConnectRequest { to, discriminator, greeting, deadline })
    }
}

fn exhausted() -> ViError {
    ViError::Io(io::ErrorKind::OutOfMemory.into())
}

impl Provider for Shm {
    fn attributes(&self) -> NicAttributes {
        ATTRIBUTES
    }

    fn address(&self) -> Address {
        self.place.to_address()
    }

    // ------------------------------------------------------------------ memory

    fn create_tag(&mut self) -> ProtectionTag {
        self.tag_count = self.tag_count.saturating_add(1);
        ProtectionTag(self.tag_count)
    }

    fn allocate(&mut self, length: usize, attributes: MemoryAttributes) -> Result<Region, ViError> {
        let is_reachable = attributes.allows_write || attributes.allows_read;
        if length == 0 || !is_reachable {
            return self.register(Memory::allocate(length)?, attributes);
        }
        let (file, memory) = sys::make_file(length, !attributes.allows_write)?;
        self.register_file(memory, attributes, Arc::new(file))
    }

    fn register(
        &mut self,
        memory: Memory,
        attributes: MemoryAttributes,
    ) -> Result<Region, ViError> {
        let is_readable = attributes.allows_read && !attributes.allows_write;
        if let Some(file) = is_readable.then(|| self.nic_state.table.file_of(&memory)).flatten() {
            return self.register_file(memory, attributes, file);
        }
        Ok(self.nic_state.table.register(memory, attributes, None, &self.nic_state.page)?)
    }

    fn deregister(&mut self, memory: MemoryHandle) -> Result<(), ViError> {
        let taken = self.nic_state.table.deregister(memory, &self.nic_state.page);
        let registered = taken.ok_or(ViError::UnknownMemory(memory))?;
        for vi in self.vis.values_mut() {
            vi.headed_writes.remove(registered.entry.key);
        }
        if registered.file.is_some() {
            for name in &self.connected {
                let Some(vi) = self.vis.get_mut(*name) else { continue };
                if let Some(connection) = &mut vi.connection {
                    connection.queue_revoke(memory, registered.entry.key);
                    connection.send_memory_updates(&self.nic_state.table, &vi.core.attributes);
                }
            }
        }
        Ok(())
    }

    fn window(&self, vi: ViId, key: RemoteKey) -> Option<Memory> {
        self.vi(vi).ok()?.connection.as_ref()?.window(key)
    }

    // ------------------------------------------------------------------ VIs and queues

    fn create_cq(&mut self) -> Result<CqId, ViError> {
        self.nic_state.cqs.try_insert(Cq::default()).map(CqId).map_err(|_| exhausted())
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), ViError> {
        let found = self.nic_state.cqs.get(cq.0).ok_or(ViError::UnknownCq(cq))?;
        if found.vi_count > 0 {
            return Err(ViError::InUse { what: "the completion queue" });
        }
        self.nic_state.cqs.remove(cq.0);
        Ok(())
    }

    fn create_vi(&mut self, attributes: ViAttributes) -> Result<ViId, ViError> {
        for cq in attributes.cqs() {
            self.nic_state.cqs.get(cq.0).ok_or(ViError::UnknownCq(cq))?;
        }
        let name = self
            .vis
            .try_insert(ShmVi::new(ViCore::new(ViId(0), attributes)))
            .map_err(|_| exhausted())?;
        if let Some(vi) = self.vis.get_mut(name) {
            vi.core.id = ViId(name);
        }
        for cq in attributes.cqs() {
            if let Some(cq) = self.nic_state.cqs.get_mut(cq.0) {
                cq.vi_count += 1;
            }
        }
        Ok(ViId(name))
    }

    fn destroy_vi(&mut self, vi: ViId) -> Result<(), ViError> {
        self.vi(vi)?.core.check_unused()?;
        let Some(removed) = self.vis.remove(vi.0) else { return Ok(()) };
        for cq in removed.core.attributes.cqs() {
            if let Some(cq) = self.nic_state.cqs.get_mut(cq.0) {
                cq.vi_count -= 1;
                cq.completions.retain(|completion| completion.vi != vi);
            }
        }
        Ok(())
    }

    fn state(&self, vi: ViId) -> Result<ViState, ViError> {
        Ok(self.vi(vi)?.core.state)
    }

    // ------------------------------------------------------------------ connections

    fn listen(&mut self, discriminator: &[u8]) -> Result<(), ViError> {
        ATTRIBUTES.limit("the discriminator", discriminator.len(), DISCRIMINATOR_MAX)?;
        if self.listening.insert(discriminator.to_vec()) {
            Ok(())
        } else {
            Err(ViError::AlreadyListening)
        }
    }

    fn unlisten(&mut self, discriminator: &[u8]) {
        self.listening.remove(discriminator);
    }

    fn connect(&mut self, to: Connect<'_>) -> Result<(), ViError> {
        self.call(to.vi.0, &self.connect_request(to)?, false)
    }

    fn connect_peer(&mut self, to: Connect<'_>) -> Result<(), ViError> {
        self.call_peer(to.vi.0, &self.connect_request(to)?)
    }

    fn accept(&mut self, request: RequestId, vi: ViId, greeting: &[u8]) -> Result<(), ViError> {
        let unknown = ViError::UnknownRequest(request);
        let Ok(caller) = u32::try_from(request.0) else { return Err(unknown) };
        // Forget callers that have gone first.
        self.handle_caller(caller);
        if !self.is_request(caller) {
            return Err(unknown);
        }
        ATTRIBUTES.limit("the greeting", greeting.len(), GREETING_MAX)?;
        let found = self.vi_mut(vi)?;
        let state = found.core.state;
        if state.after(ViEvent::Connect).is_none() {
            return Err(ViError::WrongState { state, what: "accept" });
        }
        found.core.change(ViEvent::Connect);
        self.agree(vi.0, caller, greeting);
        Ok(())
    }

    fn reject(&mut self, request: RequestId) -> Result<(), ViError> {
        match u32::try_from(request.0) {
            Ok(caller) if self.is_request(caller) => {
                self.reject_caller(caller, DisconnectReason::Rejected);
                Ok(())
            }
            _ => Err(ViError::UnknownRequest(request)),
        }
    }

    fn disconnect(&mut self, vi: ViId) -> Result<(), ViError> {
        let found = self.vis.get_mut(vi.0).ok_or(ViError::UnknownVi(vi))?;
        found.close_connection(&mut self.nic_state, DisconnectReason::Disconnected);
        found.core.change(ViEvent::Disconnect);
        self.pending.retain(|name| *name != vi.0);
        self.forget_ended();
        Ok(())
    }

    fn next_event(&mut self) -> Option<NicEvent> {
        self.nic_state.events.pop_front()
    }

    // ------------------------------------------------------------------ descriptors

    #[inline]
    fn post_send(&mut self, vi: ViId, descriptor: &SendDescriptor<'_>) -> Result<(), ViError> {
        let found = self.vis.get_mut(vi.0).ok_or(ViError::UnknownVi(vi))?;
        found.state_allows_send()?;
        if found.core.sends_held >= ATTRIBUTES.descriptors_max {
            return Err(ViError::QueueFull { queue: Queue::Send });
        }
        match descriptor.data {
            Data::Segments(segments) => {
                ATTRIBUTES.limit(
                    "the number of segments",
                    segments.len(),
                    ATTRIBUTES.segments_max,
                )?;
            }
            Data::Inline(slices) => {
                let length = slices.iter().fold(0, |sum: u64, s| sum.saturating_add(wide(s.len())));
                if length > ATTRIBUTES.inline_bytes_max {
                    let (what, limit) = ("the inline data", ATTRIBUTES.inline_bytes_max);
                    return Err(ViError::TooMuch { what, provider: NAME, limit });
                }
            }
        }
        found.post(&mut self.nic_state, descriptor)
    }

    #[inline]
    fn post_receive(
        &mut self,
        vi: ViId,
        descriptor: &ReceiveDescriptor<'_>,
    ) -> Result<(), ViError> {
        let found = self.vis.get_mut(vi.0).ok_or(ViError::UnknownVi(vi))?;
        if found.core.receives_held >= ATTRIBUTES.descriptors_max {
            return Err(ViError::QueueFull { queue: Queue::Receive });
        }
        ATTRIBUTES.limit(
            "the number of segments",
            descriptor.segments.len(),
            ATTRIBUTES.segments_max,
        )?;
        found.core.receives_held += 1;
        if found.core.state == ViState::Error {
            found.flush(&mut self.nic_state, descriptor.cookie);
        } else {
            found.receives.push_back(PostedReceive::of(descriptor));
        }
        Ok(())
    }

    #[inline]
    fn poll_cq(&mut self, cq: CqId) -> Option<Completion> {
        self.poll_cq_after(cq, Self::poll_rings)
    }

    #[inline]
    fn poll_cq_for(&mut self, cq: CqId, vi: ViId) -> Option<Completion> {
        self.poll_cq_after(cq, |nic| nic.poll_ring(vi))
    }

    #[inline]
    fn post_headed_write(
        &mut self,
        vi: ViId,
        to: RemoteSegment,
        immediate: i32,
        head: u128,
        body: &[u8],
    ) -> bool {
        let Some(found) = self.vis.get_mut(vi.0) else { return false };
        found.core.state.is_connected()
            && found.core.sends_held < ATTRIBUTES.descriptors_max
            && found.post_headed_write(to, immediate, head, body)
    }

    fn take_headed_writes(&mut self, vi: ViId, memory: MemoryHandle) {
        let Some(found) = self.vis.get_mut(vi.0) else { return };
        let region = self.nic_state.table.regions.get(memory.0);
        // Bytes that are said to be in place must have been written there by the peer itself.
        let region = region.filter(|region| {
            let is_allowed = region.entry.remote(&found.core.attributes, (0, 0), Access::Write);
            region.file.is_some() && is_allowed.is_ok()
        });
        // The others are acknowledged, or lose what finds no descriptor.
        if found.core.attributes.reliability != Reliability::ReliableDelivery {
            return;
        }
        if let Some(region) = region {
            found.headed_writes.add(region.entry.key, wide(region.entry.memory.len()));
        }
    }

    #[inline(always)]
    fn poll_headed_write(&mut self, cq: CqId, vi: Option<ViId>) -> HeadedPoll {
        if self.nic_state.cqs.get(cq.0).is_none_or(|cq| !cq.completions.is_empty()) {
            return HeadedPoll::Other;
        }
        let name = match (self.connected.as_slice(), vi) {
            ([name], _) => *name,
            // Now and then all rings are polled, as of the usual polls for one VI.
            (_, Some(vi)) if self.alone + 1 < ALONE_MAX => {
                self.alone += 1;
                vi.0
            }
            _ => match self.find_headed_write(cq) {
                HeadedSearch::At(name) => name,
                HeadedSearch::Nothing => return HeadedPoll::Nothing,
                HeadedSearch::Other => return HeadedPoll::Other,
            },
        };
        match self.vis.get_mut(name) {
            Some(found) if found.core.attributes.receive_cq == Some(cq) => {
                found.take_headed_write()
            }
            _ => HeadedPoll::Other,
        }
    }

    fn poll_queue(&mut self, vi: ViId, queue: Queue) -> Option<Completion> {
        let found = self.vis.get_mut(vi.0)?;
        if let Some(completion) = found.core.take(queue) {
            return Some(completion);
        }
        if !self.poll_rings() {
            return None;
        }
        self.vis.get_mut(vi.0)?.core.take(queue)
    }

    // ------------------------------------------------------------------ the engine, time and sleep

    fn progress(&mut self, now: Instant) -> bool {
        self.now = now;
        let mut is_news = false;
        let has_polled_sockets = std::mem::take(&mut self.has_polled_sockets);
        if self.nic_state.page.is_asleep() {
            self.nic_state.page.wake_up();
            self.next_socket_poll =
                if has_polled_sockets { now + SOCKET_POLL_INTERVAL } else { now };
            for name in &self.connected {
                if let Some(connection) =
                    self.vis.get_mut(*name).and_then(|vi| vi.connection.as_mut())
                {
                    connection.set_wakeup_wanted(false);
                }
            }
        }
        if self.next_socket_poll <= now {
            self.next_socket_poll = now + SOCKET_POLL_INTERVAL;
            is_news |= self.poll_sockets();
            is_news |= self.expire_attempts(now);
        }
        self.poll_rings_for_others() || is_news
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.earliest()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn arm(&mut self) -> io::Result<ArmOutcome> {
        if self.has_news() {
            return Ok(ArmOutcome::Ready);
        }
        for name in &self.connected {
            let Some(vi) = self.vis.get_mut(*name) else { continue };
            let waits = vi.waits_for_peer();
            if let Some(connection) = &mut vi.connection {
                connection.set_wakeup_wanted(waits);
            }
        }
        self.nic_state.page.fall_asleep()?;
        // wakeup-1: an entry published before the barrier is found now; a sender that publishes later
        // notifies. What is left on a socket would not notify again.
        if self.has_news() || self.poll_sockets() {
            return Ok(ArmOutcome::Ready);
        }
        Ok(ArmOutcome::Armed)
    }

    fn quiet(&mut self) {
        self.poll_sockets();
        self.has_polled_sockets = true;
    }

    fn has_backlog(&self) -> bool {
        self.connected.iter().any(|name| self.vis.get(*name).is_some_and(ShmVi::waits_for_peer))
    }

    /// The entries of the ring outlive this side.
    fn has_unsent(&self, vi: ViId) -> bool {
        self.vi(vi).is_ok_and(|vi| vi.connection.is_some() && !vi.sends.is_empty())
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        for name in std::mem::take(&mut self.connected) {
            if let Some(vi) = self.vis.get_mut(name) {
                vi.close_connection(&mut self.nic_state, DisconnectReason::Disconnected);
            }
        }
    }
}

impl fmt::Debug for Shm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shm")
            .field("name", &self.place.socket_name())
            .field("connected", &self.connected.len())
            .field("pending", &self.pending.len())
            .field("refusals", &self.refusals)
            .finish_non_exhaustive()
    }
}
