//! The NIC: what the consumer holds.

use std::{
    collections::{BTreeSet, VecDeque},
    fmt, io,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::event::{Timespec, epoll};
use vigie_detect::{Armed, Instant};

use super::{
    bell::Page,
    connecting::{Attempt, Caller, Wish},
    layout::wide,
    receiver::PostedReceive,
    slots::Slots,
    sys::{self, Received},
    table::Table,
    vi::{Cq, Desk, Vi},
    wire::{DISCRIMINATOR_MAX, GREETING_MAX, PACKET_MAX, Packet, Place},
};
use crate::vi::{
    Address, Attributes, Completion, CqId, Data, Memory, MemoryAttributes, MemoryHandle, NicEvent,
    ProtectionTag, Provider, Queue, Reason, ReceiveDescriptor, Region, RemoteKey, RequestId,
    SendDescriptor, ViAttributes, ViError, ViEvent, ViId, ViState,
};

const NAME: &str = "shm";
const ATTRIBUTES: Attributes = {
    let mut attributes = Attributes::named(NAME);
    // Bytes are copied while they are posted, from wherever they are: registering buys nothing here.
    attributes.max_inline = 1 << 20;
    attributes.has_window = true;
    attributes
};
/// How often the sockets are looked at while nobody sleeps. A look costs about half a microsecond.
const LOOK_INTERVAL: Duration = Duration::from_micros(100);
/// The most sockets served in one look, and the most packets of each.
const EVENTS_MAX: usize = 64;
const PACKETS_MAX: usize = 16;

/// A NIC over shared memory. See the [module](super).
///
/// Dropping it disconnects its VIs in order.
pub struct Shm {
    pub(super) place: Place,
    pub(super) listener: OwnedFd,
    pub(super) epoll: OwnedFd,
    pub(super) desk: Desk,
    pub(super) vis: Slots<Vi>,
    /// The VIs that are connected, and those that are about to be.
    pub(super) connected: Vec<u32>,
    pub(super) pending: Vec<u32>,
    pub(super) callers: Slots<Caller>,
    pub(super) listening: BTreeSet<Vec<u8>>,
    /// When the listener is looked at again: it is left alone while there are no descriptors for callers.
    pub(super) deaf_until: Option<Instant>,
    pub(super) refusals: Refusals,
    /// The time as of the last [`progress`](Provider::progress).
    pub(super) now: Instant,
    /// When the sockets are looked at next.
    next_look: Instant,
    /// They were looked at since the last [`progress`](Provider::progress).
    has_looked: bool,
    /// Where the next look at the rings begins, so that no VI is always the last.
    first: usize,
    tag_count: u32,
}

/// Callers that were turned away, and heard nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusals {
    /// Those of other users.
    pub strangers: u64,
    /// Those that did not begin with a greeting that has the NIC's secret.
    pub without_secret: u64,
}

/// Which socket is readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Listener,
    Caller(u32),
    Vi(u32),
}

impl Source {
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
    /// Opens a NIC, which others can reach at once.
    ///
    /// # Errors
    /// [`ViError::Io`]: no descriptors or no memory left, or no memfd in this kernel.
    pub fn open() -> Result<Self, ViError> {
        let place = Place { name: sys::random()?, token: sys::random()? };
        let listener = sys::listen(&place.socket_name())?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from)?;
        let desk = Desk {
            table: Table::new(),
            cqs: Slots::new(),
            page: Page::new()?,
            events: VecDeque::new(),
        };
        let nic = Self {
            place,
            listener,
            epoll,
            desk,
            vis: Slots::new(),
            connected: Vec::new(),
            pending: Vec::new(),
            callers: Slots::new(),
            listening: BTreeSet::new(),
            deaf_until: None,
            refusals: Refusals::default(),
            now: Instant::from_nanos(0),
            next_look: Instant::from_nanos(0),
            has_looked: false,
            first: 0,
            tag_count: 0,
        };
        nic.watch(&nic.listener, Source::Listener)?;
        Ok(nic)
    }

    /// Returns who was turned away.
    #[must_use]
    pub const fn refusals(&self) -> Refusals {
        self.refusals
    }

    pub(super) fn watch(&self, socket: &OwnedFd, source: Source) -> io::Result<()> {
        let data = epoll::EventData::new_u64(source.to_data());
        Ok(epoll::add(&self.epoll, socket, data, epoll::EventFlags::IN)?)
    }

    fn vi(&self, vi: ViId) -> Result<&Vi, ViError> {
        self.vis.get(vi.0).ok_or(ViError::UnknownVi(vi))
    }

    fn vi_mut(&mut self, vi: ViId) -> Result<&mut Vi, ViError> {
        self.vis.get_mut(vi.0).ok_or(ViError::UnknownVi(vi))
    }

    /// Looks at all rings. Returns whether anything was done.
    #[inline]
    fn look_at_rings(&mut self) -> bool {
        let mut is_news = false;
        let mut has_ended = false;
        let count = self.connected.len();
        for step in 0..count {
            let turn = self.first + step;
            let turn = if turn < count { turn } else { turn - count };
            let Some(vi) = self.connected.get(turn).and_then(|name| self.vis.get_mut(*name)) else {
                continue;
            };
            is_news |= vi.work(&mut self.desk);
            has_ended |= vi.link.is_none();
        }
        if is_news {
            self.first = if self.first + 1 < count { self.first + 1 } else { 0 };
        }
        if has_ended {
            self.forget_ended();
        }
        is_news
    }

    #[cold]
    fn forget_ended(&mut self) {
        let vis = &self.vis;
        self.connected.retain(|name| vis.get(*name).is_some_and(|vi| vi.link.is_some()));
        self.first = 0;
    }

    /// Looks at the sockets. Returns whether anything was there.
    fn look_at_sockets(&mut self) -> bool {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut room = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        let events: &[epoll::Event] = match epoll::wait(&self.epoll, &mut room, Some(&none)) {
            Ok((events, _)) => events,
            Err(_) => &[],
        };
        for event in events {
            match Source::from_data(event.data.u64()) {
                Source::Listener => self.take_callers(),
                Source::Caller(name) => self.hear_caller(name),
                Source::Vi(name) => self.hear_vi(name),
            }
        }
        for name in &self.connected {
            if let Some(vi) = self.vis.get_mut(*name)
                && let Some(link) = &mut vi.link
            {
                link.send_news(&self.desk.table, &vi.attributes);
            }
        }
        !events.is_empty()
    }

    fn hear_vi(&mut self, name: u32) {
        match self.vis.get(name).and_then(|vi| vi.attempt.as_ref()) {
            Some(Attempt::Asked { .. }) => self.hear_welcome(name),
            Some(Attempt::Agreed { .. }) => self.hear_confirm(name),
            _ => {}
        }
        // What comes right behind the answer belongs to the connection.
        self.hear_peer(name);
    }

    /// Takes the packets of a connected peer, up to a bound.
    fn hear_peer(&mut self, name: u32) {
        let sleep_count = self.desk.page.sleep_count();
        for _ in 0..PACKETS_MAX {
            let Some(vi) = self.vis.get_mut(name) else { return };
            let Some(link) = &mut vi.link else { return };
            let mut bytes = [0; PACKET_MAX];
            let fault = match sys::receive(link.socket.as_fd(), &mut bytes) {
                Received::Nothing => return,
                Received::End => return self.peer_has_gone(name),
                Received::Fault(what) => what,
                Received::FilesLost(length) => {
                    match Packet::decode(bytes.get(..length).unwrap_or(&[])) {
                        Ok(Packet::Grant { .. }) => match link.miss() {
                            Ok(()) => continue,
                            Err(what) => what,
                        },
                        _ => "a packet that does not belong to a connection",
                    }
                }
                Received::Packet(length, files) => {
                    let packet = Packet::decode(bytes.get(..length).unwrap_or(&[]));
                    match (packet, files.as_slice()) {
                        (Ok(Packet::Bell), []) => {
                            link.bell_count += 1;
                            if link.bell_count <= sleep_count {
                                continue;
                            }
                            "more bells than sleeps"
                        }
                        (Ok(Packet::Revoke { key }), []) => match link.unmap(key) {
                            Ok(()) => continue,
                            Err(what) => what,
                        },
                        (Ok(grant @ Packet::Grant { .. }), [file]) => {
                            match link.map(&grant, file) {
                                Ok(()) => continue,
                                Err(what) => what,
                            }
                        }
                        _ => "a packet that does not belong to a connection",
                    }
                }
            };
            vi.break_off(&mut self.desk, Reason::PeerFault(fault));
            return self.forget_ended();
        }
    }

    /// The socket's other end is closed: takes what the ring still holds, and breaks.
    fn peer_has_gone(&mut self, name: u32) {
        let Some(vi) = self.vis.get_mut(name) else { return };
        let entries = super::layout::ENTRY_COUNT;
        for _ in 0..entries {
            if !vi.receive(&mut self.desk) {
                break;
            }
        }
        if let Some(link) = &vi.link {
            let reason = super::link::reason_of(link.consumer.goodbye());
            vi.break_off(&mut self.desk, reason);
        }
        self.forget_ended();
    }

    /// Returns whether there is something for the consumer, or for this NIC, without time or peers.
    fn has_news(&mut self) -> bool {
        if !self.desk.events.is_empty()
            || self.desk.cqs.iter().any(|(_, cq)| !cq.completions.is_empty())
            || self.vis.iter().any(|(_, vi)| vi.has_completions())
        {
            return true;
        }
        self.look_at_rings()
    }

    fn wish<'a>(
        &self,
        vi: ViId,
        address: &Address,
        discriminator: &'a [u8],
        greeting: &'a [u8],
        deadline: Instant,
    ) -> Result<Wish<'a>, ViError> {
        let to = Place::parse(&address.0).ok_or(ViError::BadAddress { provider: NAME })?;
        let state = self.vi(vi)?.state;
        if state.after(ViEvent::Connect).is_none() {
            return Err(ViError::WrongState { state, what: "connect" });
        }
        limit("the discriminator", discriminator.len(), DISCRIMINATOR_MAX)?;
        limit("the greeting", greeting.len(), GREETING_MAX)?;
        Ok(Wish { to, discriminator, greeting, deadline })
    }
}

fn limit(what: &'static str, count: usize, limit: usize) -> Result<(), ViError> {
    if count <= limit {
        return Ok(());
    }
    Err(ViError::TooMuch { what, provider: NAME, limit: wide(limit) })
}

fn exhausted() -> ViError {
    ViError::Io(io::ErrorKind::OutOfMemory.into())
}

impl Provider for Shm {
    fn attributes(&self) -> Attributes {
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
        let page = &self.desk.page;
        let region = self.desk.table.register(memory, attributes, Some(file), page)?;
        for name in &self.connected {
            let Some(vi) = self.vis.get_mut(*name) else { continue };
            let registered = self.desk.table.regions.get(region.handle.0);
            if registered.is_some_and(|registered| registered.grant(&vi.attributes).is_some())
                && let Some(link) = &mut vi.link
            {
                link.announce(region.handle);
                link.send_news(&self.desk.table, &vi.attributes);
            }
        }
        Ok(region)
    }

    fn register(
        &mut self,
        memory: Memory,
        attributes: MemoryAttributes,
    ) -> Result<Region, ViError> {
        Ok(self.desk.table.register(memory, attributes, None, &self.desk.page)?)
    }

    fn deregister(&mut self, memory: MemoryHandle) -> Result<(), ViError> {
        let taken = self.desk.table.deregister(memory, &self.desk.page);
        let registered = taken.ok_or(ViError::UnknownMemory(memory))?;
        if registered.file.is_some() {
            for name in &self.connected {
                let Some(vi) = self.vis.get_mut(*name) else { continue };
                if let Some(link) = &mut vi.link {
                    link.announce_end(memory, registered.key);
                    link.send_news(&self.desk.table, &vi.attributes);
                }
            }
        }
        Ok(())
    }

    fn window(&self, vi: ViId, key: RemoteKey) -> Option<Memory> {
        self.vi(vi).ok()?.link.as_ref()?.window(key)
    }

    // ------------------------------------------------------------------ VIs and queues

    fn create_cq(&mut self) -> Result<CqId, ViError> {
        self.desk.cqs.insert(Cq::default()).map(CqId).map_err(|_| exhausted())
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), ViError> {
        let found = self.desk.cqs.get(cq.0).ok_or(ViError::UnknownCq(cq))?;
        if found.vi_count > 0 {
            return Err(ViError::InUse { what: "the completion queue" });
        }
        self.desk.cqs.remove(cq.0);
        Ok(())
    }

    fn create_vi(&mut self, attributes: ViAttributes) -> Result<ViId, ViError> {
        for cq in [attributes.send_cq, attributes.receive_cq].into_iter().flatten() {
            self.desk.cqs.get(cq.0).ok_or(ViError::UnknownCq(cq))?;
        }
        let name = self.vis.insert(Vi::new(ViId(0), attributes)).map_err(|_| exhausted())?;
        if let Some(vi) = self.vis.get_mut(name) {
            vi.id = ViId(name);
        }
        for cq in [attributes.send_cq, attributes.receive_cq].into_iter().flatten() {
            if let Some(cq) = self.desk.cqs.get_mut(cq.0) {
                cq.vi_count += 1;
            }
        }
        Ok(ViId(name))
    }

    fn destroy_vi(&mut self, vi: ViId) -> Result<(), ViError> {
        if matches!(self.vi(vi)?.state, ViState::Connected | ViState::PendingConnect) {
            return Err(ViError::InUse { what: "the VI" });
        }
        let Some(removed) = self.vis.remove(vi.0) else { return Ok(()) };
        let ViAttributes { send_cq, receive_cq, .. } = removed.attributes;
        for cq in [send_cq, receive_cq].into_iter().flatten() {
            if let Some(cq) = self.desk.cqs.get_mut(cq.0) {
                cq.vi_count -= 1;
                cq.completions.retain(|completion| completion.vi != vi);
            }
        }
        Ok(())
    }

    fn state(&self, vi: ViId) -> Result<ViState, ViError> {
        Ok(self.vi(vi)?.state)
    }

    // ------------------------------------------------------------------ connections

    fn listen(&mut self, discriminator: &[u8]) -> Result<(), ViError> {
        limit("the discriminator", discriminator.len(), DISCRIMINATOR_MAX)?;
        if self.listening.insert(discriminator.to_vec()) {
            Ok(())
        } else {
            Err(ViError::AlreadyListening)
        }
    }

    fn unlisten(&mut self, discriminator: &[u8]) {
        self.listening.remove(discriminator);
    }

    fn connect(
        &mut self,
        vi: ViId,
        address: &Address,
        discriminator: &[u8],
        greeting: &[u8],
        deadline: Instant,
    ) -> Result<(), ViError> {
        let wish = self.wish(vi, address, discriminator, greeting, deadline)?;
        self.call(vi.0, &wish, false)
    }

    fn connect_peer(
        &mut self,
        vi: ViId,
        address: &Address,
        discriminator: &[u8],
        greeting: &[u8],
        deadline: Instant,
    ) -> Result<(), ViError> {
        let wish = self.wish(vi, address, discriminator, greeting, deadline)?;
        self.call_peer(vi.0, &wish)
    }

    fn accept(&mut self, request: RequestId, vi: ViId, greeting: &[u8]) -> Result<(), ViError> {
        let unknown = ViError::UnknownRequest(request);
        let Ok(caller) = u32::try_from(request.0) else { return Err(unknown) };
        // Somebody who has gone is forgotten first.
        self.hear_caller(caller);
        if !self.is_request(caller) {
            return Err(unknown);
        }
        limit("the greeting", greeting.len(), GREETING_MAX)?;
        let found = self.vi_mut(vi)?;
        let state = found.state;
        if state.after(ViEvent::Connect).is_none() {
            return Err(ViError::WrongState { state, what: "accept" });
        }
        found.change(ViEvent::Connect);
        self.agree(vi.0, caller, greeting);
        Ok(())
    }

    fn reject(&mut self, request: RequestId) -> Result<(), ViError> {
        match u32::try_from(request.0) {
            Ok(caller) if self.is_request(caller) => {
                self.turn_away(caller, Reason::Rejected);
                Ok(())
            }
            _ => Err(ViError::UnknownRequest(request)),
        }
    }

    fn disconnect(&mut self, vi: ViId) -> Result<(), ViError> {
        let found = self.vis.get_mut(vi.0).ok_or(ViError::UnknownVi(vi))?;
        found.part(&mut self.desk, Reason::Disconnected);
        found.change(ViEvent::Disconnect);
        self.pending.retain(|name| *name != vi.0);
        self.forget_ended();
        Ok(())
    }

    fn event(&mut self) -> Option<NicEvent> {
        self.desk.events.pop_front()
    }

    // ------------------------------------------------------------------ descriptors

    #[inline]
    fn post_send(&mut self, vi: ViId, descriptor: &SendDescriptor<'_>) -> Result<(), ViError> {
        let found = self.vis.get_mut(vi.0).ok_or(ViError::UnknownVi(vi))?;
        found.state_allows_send()?;
        if found.send_count >= ATTRIBUTES.max_descriptors {
            return Err(ViError::QueueFull { queue: Queue::Send });
        }
        match descriptor.data {
            Data::Segments(segments) => {
                limit("the number of segments", segments.len(), ATTRIBUTES.max_segments)?;
            }
            Data::Inline(slices) => {
                let length = slices.iter().fold(0, |sum: u64, s| sum.saturating_add(wide(s.len())));
                if length > ATTRIBUTES.max_inline {
                    let (what, limit) = ("the inline data", ATTRIBUTES.max_inline);
                    return Err(ViError::TooMuch { what, provider: NAME, limit });
                }
            }
        }
        found.post(&mut self.desk, descriptor)
    }

    #[inline]
    fn post_receive(
        &mut self,
        vi: ViId,
        descriptor: &ReceiveDescriptor<'_>,
    ) -> Result<(), ViError> {
        let found = self.vis.get_mut(vi.0).ok_or(ViError::UnknownVi(vi))?;
        if found.receive_count >= ATTRIBUTES.max_descriptors {
            return Err(ViError::QueueFull { queue: Queue::Receive });
        }
        limit("the number of segments", descriptor.segments.len(), ATTRIBUTES.max_segments)?;
        found.receive_count += 1;
        if found.state == ViState::Error {
            found.flush(&mut self.desk, descriptor.cookie);
        } else {
            found.receives.push_back(PostedReceive::of(descriptor));
        }
        Ok(())
    }

    #[inline]
    fn poll(&mut self, cq: CqId) -> Option<Completion> {
        let found = self.desk.cqs.get_mut(cq.0)?;
        let completion = match found.completions.pop_front() {
            Some(completion) => completion,
            None => {
                if !self.look_at_rings() {
                    return None;
                }
                self.desk.cqs.get_mut(cq.0)?.completions.pop_front()?
            }
        };
        if let Some(vi) = self.vis.get_mut(completion.vi.0) {
            vi.release(completion.queue);
        }
        Some(completion)
    }

    fn completed(&mut self, vi: ViId, queue: Queue) -> Option<Completion> {
        let found = self.vis.get_mut(vi.0)?;
        if let Some(completion) = found.take(queue) {
            return Some(completion);
        }
        if !self.look_at_rings() {
            return None;
        }
        self.vis.get_mut(vi.0)?.take(queue)
    }

    // ------------------------------------------------------------------ the engine, time and sleep

    fn progress(&mut self, now: Instant) -> bool {
        self.now = now;
        let mut is_news = false;
        let has_looked = std::mem::take(&mut self.has_looked);
        if self.desk.page.is_asleep() {
            self.desk.page.wake_up();
            self.next_look = if has_looked { now + LOOK_INTERVAL } else { now };
            for name in &self.connected {
                if let Some(link) = self.vis.get_mut(*name).and_then(|vi| vi.link.as_mut()) {
                    link.want(false);
                }
            }
        }
        if self.next_look <= now {
            self.next_look = now + LOOK_INTERVAL;
            is_news |= self.look_at_sockets();
            is_news |= self.keep_time(now);
        }
        self.look_at_rings() || is_news
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.earliest()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn arm(&mut self) -> io::Result<Armed> {
        if self.has_news() {
            return Ok(Armed::Ready);
        }
        for name in &self.connected {
            let Some(vi) = self.vis.get_mut(*name) else { continue };
            let waits = vi.waits_for_peer();
            if let Some(link) = &mut vi.link {
                link.want(waits);
            }
        }
        self.desk.page.fall_asleep()?;
        // bell-1: whoever published before the barrier is found now, whoever does it later rings. What is
        // left on a socket would not ring again.
        if self.has_news() || self.look_at_sockets() {
            return Ok(Armed::Ready);
        }
        Ok(Armed::Armed)
    }

    fn quiet(&mut self) {
        self.look_at_sockets();
        self.has_looked = true;
    }

    fn has_backlog(&self) -> bool {
        self.connected.iter().any(|name| self.vis.get(*name).is_some_and(Vi::waits_for_peer))
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        for name in std::mem::take(&mut self.connected) {
            if let Some(vi) = self.vis.get_mut(name) {
                vi.part(&mut self.desk, Reason::Disconnected);
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
