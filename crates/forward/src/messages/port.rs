//! A node's interface: its provider, and one connection to each node beside it, with packets and credit.
//!
//! ```text
//!                 send slots, or packets that pass through        buffers, posted as receive descriptors
//!   send, pass -> waiting (paced, or queue full) -> VI ~~~~~~~~~> VI -> arrived -> release or pass
//!                    ^                                                                |
//!                    +------------- credit: how many packets the peer is done with ---+
//! ```
//! A packet with data needs credit: a buffer at the peer that is free. Credit is a cumulative count that comes with every
//! packet of the peer, or in one of its own when half of the buffers are free again. Packets without data (control) need
//! none: how many can be on their way is bounded by what they are about, and so many more buffers are posted.
//!
//! Nothing here sleeps: [`Port::turn`] does what there is to do.

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use vigie_detect::{Armed, Clock, Instant};
use vigie_via::vi::{
    Address, Completion, CqId, Data, LocalSegment, MemoryAttributes, NicEvent, Operation,
    ProtectionTag, Provider, Queue, Reason, ReceiveDescriptor, Region, Reliability, RequestId,
    SendDescriptor, ViAttributes, ViError, ViId,
};

use super::error::MessagesError;
use super::packet::{Greeting, HEADER_BYTES, HEADER_BYTES_U32, Header, Kind, Role};
use crate::cost::Bandwidth;

/// How many packets without data may be on their way for each peer of a peer: three of each kind that repeats, and one
/// of each that does not.
const CONTROL_PER_PEER: u32 = 5;

/// Cookies of send descriptors: a packet that passes through has its VI and buffer, one of ours its slot.
const IS_OURS: u64 = 1 << 63;

/// The cookie of packets without data, of whose sending only errors tell.
const IS_CONTROL: u64 = 1 << 62;

/// What a port is like.
#[derive(Clone, Debug)]
pub(super) struct PortConfig {
    /// What is told to every peer.
    pub(super) greeting: Greeting,
    /// Whom it takes connections from.
    pub(super) accepts: &'static [Role],
    /// The most connections at a time.
    pub(super) peers_max: usize,
    /// How many packets of ours may be on their way to one peer.
    pub(super) send_packets: u32,
    /// How fast the link to each peer is made to be; nothing: as it is.
    pub(super) pace: Option<Bandwidth>,
}

/// What happened to connections.
#[derive(Debug)]
pub(super) enum PortEvent {
    /// A connection has come about.
    Opened(ViId, Greeting),
    /// A connection has ended, or did not come about. What the peer had sent before [stays](Port::arrival) until it is taken,
    /// or [forgotten](Port::forget); the connection's memory with it.
    Closed(ViId, Reason),
    /// A packet without data.
    Told(ViId, Header),
}

/// A packet that has arrived, in its buffer: to be given to [`Port::release`] or [`Port::pass`].
#[derive(Debug)]
#[must_use = "its buffer must be released, or the peer gets no credit for it"]
pub(super) struct Arrival {
    hop: ViId,
    index: u32,
    pub(super) header: Header,
    /// Bytes of payload.
    pub(super) payload: u32,
}

enum Body {
    Slot(u32),
    Passing(Arrival),
}

struct Outgoing {
    header: Header,
    payload: u32,
    body: Body,
    departs: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Opening,
    Open,
    Closed,
}

/// A connection.
struct Hop {
    state: State,
    peer: Option<Greeting>,
    buffers: Region,
    /// Buffers that have arrived and were not released.
    lent: u32,
    /// Packets with credit: arrived; done with; done with as the peer knows it.
    arrived_count: u32,
    done: u32,
    told: u32,
    arrived: VecDeque<Arrival>,
    slots: Region,
    free: Vec<u32>,
    /// Packets with credit that were accepted for sending; of those, such that the peer is done with.
    sent: u32,
    heard: u32,
    waiting: VecDeque<Outgoing>,
    /// Descriptors whose completion is to come.
    posted: u32,
    /// When the paced link is free.
    free_at: Instant,
    control: VecDeque<Header>,
}

/// The interface of a node.
pub(super) struct Port<P: Provider> {
    nic: P,
    clock: Arc<dyn Clock>,
    config: PortConfig,
    tag: ProtectionTag,
    cq: CqId,
    /// Bytes from one buffer to the next.
    stride: u32,
    hops: BTreeMap<ViId, Hop>,
    events: VecDeque<PortEvent>,
    /// Callers that were refused.
    refused: u64,
}

impl<P: Provider> Port<P> {
    pub(super) fn new(
        mut nic: P,
        clock: Arc<dyn Clock>,
        config: PortConfig,
    ) -> Result<Self, ViError> {
        let tag = nic.create_tag();
        let cq = nic.create_cq()?;
        let stride = (config.greeting.payload_bytes + HEADER_BYTES_U32).next_multiple_of(64);
        let (hops, events) = (BTreeMap::new(), VecDeque::new());
        Ok(Self { nic, clock, config, tag, cq, stride, hops, events, refused: 0 })
    }

    pub(super) fn address(&self) -> Address {
        self.nic.address()
    }

    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(super) fn listen(&mut self, discriminator: &[u8]) -> Result<(), ViError> {
        self.nic.listen(discriminator)
    }

    /// Changes what those who connect from now on are told to be the longest message.
    pub(super) const fn limit_messages(&mut self, bytes: u32) {
        self.config.greeting.message_bytes_max = bytes;
    }

    /// Returns the bytes of payload of a full packet.
    pub(super) fn payload_bytes(&self) -> u32 {
        self.config.greeting.payload_bytes
    }

    // ------------------------------------------------------------------ connections

    /// Asks for a connection: ends in an event.
    pub(super) fn connect(
        &mut self,
        address: &Address,
        discriminator: &[u8],
        deadline: Instant,
    ) -> Result<ViId, MessagesError> {
        let vi = self.open()?;
        let greeting = self.config.greeting.encode();
        self.nic.connect(vi, address, discriminator, &greeting, deadline)?;
        Ok(vi)
    }

    /// Makes a VI with everything that a connection needs.
    fn open(&mut self) -> Result<ViId, MessagesError> {
        if self.hops.len() >= self.config.peers_max {
            let (count, most) = (self.hops.len() + 1, self.config.peers_max);
            return Err(MessagesError::TooManyPeers { count, most });
        }
        let vi = self.nic.create_vi(ViAttributes {
            reliability: Reliability::ReliableDelivery,
            tag: self.tag,
            send_cq: Some(self.cq),
            receive_cq: Some(self.cq),
            allows_write: false,
            allows_read: false,
        })?;
        let private = MemoryAttributes::private(self.tag);
        let buffer_count = self.config.greeting.packets + self.control_packets();
        let bytes = |count: u32| usize::try_from(u64::from(count) * u64::from(self.stride));
        let buffers_bytes = bytes(buffer_count).unwrap_or(usize::MAX);
        let slots_bytes = bytes(self.config.send_packets).unwrap_or(usize::MAX);
        let buffers = self.nic.allocate(buffers_bytes, private)?;
        let slots = self.nic.allocate(slots_bytes, private)?;
        let hop = Hop {
            state: State::Opening,
            peer: None,
            buffers,
            lent: 0,
            arrived_count: 0,
            done: 0,
            told: 0,
            arrived: VecDeque::new(),
            slots,
            free: (0..self.config.send_packets).collect(),
            sent: 0,
            heard: 0,
            waiting: VecDeque::new(),
            posted: 0,
            free_at: Instant::from_nanos(0),
            control: VecDeque::new(),
        };
        for index in 0..buffer_count {
            post_buffer(&mut self.nic, self.stride, vi, &hop, index)?;
        }
        self.hops.insert(vi, hop);
        Ok(vi)
    }

    fn control_packets(&self) -> u32 {
        let peers = u32::try_from(self.config.peers_max).unwrap_or(u32::MAX);
        CONTROL_PER_PEER * (peers + 1)
    }

    fn requested(&mut self, request: RequestId, greeting: &[u8]) -> Result<(), MessagesError> {
        let greeting = Greeting::decode(greeting).and_then(|greeting| self.fitting(greeting));
        let Ok(greeting) = greeting else { return self.refuse(request) };
        match self.open() {
            Ok(vi) => {
                let own = self.config.greeting.encode();
                let accepted = self.nic.accept(request, vi, &own);
                if let Some(hop) = self.hops.get_mut(&vi) {
                    hop.peer = Some(greeting);
                    if accepted.is_err() {
                        // The caller has gone meanwhile.
                        hop.state = State::Closed;
                    }
                }
                Ok(())
            }
            Err(MessagesError::TooManyPeers { .. }) => self.refuse(request),
            Err(error) => Err(error),
        }
    }

    fn refuse(&mut self, request: RequestId) -> Result<(), MessagesError> {
        self.refused += 1;
        // A caller that has gone needs no answer.
        let _ = self.nic.reject(request);
        Ok(())
    }

    fn fitting(&self, greeting: Greeting) -> Result<Greeting, &'static str> {
        if greeting.payload_bytes != self.config.greeting.payload_bytes {
            return Err("packets of another length");
        }
        if !self.config.accepts.contains(&greeting.role) {
            return Err("a node of another role");
        }
        Ok(greeting)
    }

    /// Cuts a connection off, and forgets what has arrived over it.
    pub(super) fn close(&mut self, vi: ViId, reason: Reason) {
        let Some(hop) = self.hops.get_mut(&vi) else { return };
        if hop.state != State::Closed {
            // Whatever is wrong with the connection, it is over.
            let _ = self.nic.disconnect(vi);
            self.closed(vi, reason);
        }
        self.forget(vi);
    }

    /// Forgets what has arrived over a connection that nobody listens to any more.
    pub(super) fn forget(&mut self, vi: ViId) {
        let arrived = self.hops.get_mut(&vi).map(|hop| std::mem::take(&mut hop.arrived));
        for arrival in arrived.into_iter().flatten() {
            self.release(arrival);
        }
    }

    fn closed(&mut self, vi: ViId, reason: Reason) {
        let Some(hop) = self.hops.get_mut(&vi) else { return };
        if hop.state == State::Closed {
            return;
        }
        hop.state = State::Closed;
        hop.control.clear();
        let waiting = std::mem::take(&mut hop.waiting);
        for outgoing in waiting {
            if let Body::Passing(arrival) = outgoing.body {
                self.release(arrival);
            }
        }
        self.events.push_back(PortEvent::Closed(vi, reason));
    }

    /// Gives back what belonged to connections that are over, once nobody needs it.
    fn reap(&mut self) -> Result<(), ViError> {
        let is_over = |hop: &Hop| hop.state == State::Closed && hop.lent == 0 && hop.posted == 0;
        while let Some(vi) = self.hops.iter().find(|(_, hop)| is_over(hop)).map(|(vi, _)| *vi) {
            if let Some(hop) = self.hops.remove(&vi) {
                match self.nic.destroy_vi(vi) {
                    Err(ViError::UnknownVi(_)) | Ok(()) => {}
                    Err(error) => return Err(error),
                }
                self.nic.deregister(hop.buffers.handle)?;
                self.nic.deregister(hop.slots.handle)?;
            }
        }
        Ok(())
    }

    // ------------------------------------------------------------------ the engine

    /// Does what there is to do. Returns whether anything was done.
    pub(super) fn turn(&mut self) -> Result<bool, MessagesError> {
        let now = self.now();
        let mut has_worked = self.nic.progress(now);
        // What a peer has said counts, also if it went right afterwards.
        while let Some(completion) = self.nic.poll(self.cq) {
            has_worked = true;
            self.completed(completion)?;
        }
        while let Some(event) = self.nic.event() {
            has_worked = true;
            self.happened(event)?;
        }
        let vis: Vec<ViId> = self.hops.keys().copied().collect();
        for vi in vis {
            has_worked |= self.depart(vi, now)?;
        }
        self.reap()?;
        Ok(has_worked)
    }

    pub(super) fn event(&mut self) -> Option<PortEvent> {
        self.events.pop_front()
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let fronts = self.hops.values().filter_map(|hop| hop.waiting.front());
        let paced = fronts.map(|outgoing| outgoing.departs).min();
        [paced, self.nic.next_deadline()].into_iter().flatten().min()
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.nic.descriptor()
    }

    pub(super) fn arm(&mut self) -> std::io::Result<Armed> {
        self.nic.arm()
    }

    pub(super) fn quiet(&mut self) {
        self.nic.quiet();
    }

    fn happened(&mut self, event: NicEvent) -> Result<(), MessagesError> {
        match event {
            NicEvent::Requested { request, greeting, .. } => self.requested(request, &greeting)?,
            NicEvent::Connected { vi, greeting } => {
                let Some(hop) = self.hops.get(&vi) else { return Ok(()) };
                let greeting = match hop.peer {
                    Some(greeting) => Ok(greeting),
                    None => Greeting::decode(&greeting).and_then(|found| self.fitting(found)),
                };
                match greeting {
                    Ok(greeting) => {
                        if let Some(hop) = self.hops.get_mut(&vi) {
                            (hop.state, hop.peer) = (State::Open, Some(greeting));
                        }
                        self.events.push_back(PortEvent::Opened(vi, greeting));
                    }
                    Err(what) => self.close(vi, Reason::Mismatch(what)),
                }
            }
            NicEvent::Refused { vi, reason } | NicEvent::Broken { vi, reason } => {
                self.closed(vi, reason);
            }
            _ => {}
        }
        Ok(())
    }

    fn completed(&mut self, completion: Completion) -> Result<(), MessagesError> {
        let vi = completion.vi;
        match completion.queue {
            Queue::Send => {
                let cookie = completion.cookie;
                if cookie == IS_CONTROL {
                    return Ok(());
                }
                if let Some(hop) = self.hops.get_mut(&vi) {
                    hop.posted = hop.posted.saturating_sub(1);
                    if cookie & IS_OURS != 0 {
                        hop.free.push(low_word(cookie));
                    }
                }
                if cookie & IS_OURS == 0 {
                    let from = ViId(low_word(cookie >> 32));
                    self.give_back(from, low_word(cookie));
                }
                Ok(())
            }
            Queue::Receive if completion.status.is_done() => {
                match self.received(vi, low_word(completion.cookie), completion.length)? {
                    Ok(()) => {}
                    Err(what) => self.close(vi, Reason::PeerFault(what)),
                }
                Ok(())
            }
            // Flushed: an event tells why.
            Queue::Receive => Ok(()),
        }
    }

    /// Takes a packet in. The inner result tells what is wrong with it.
    fn received(
        &mut self,
        vi: ViId,
        index: u32,
        length: u64,
    ) -> Result<Result<(), &'static str>, MessagesError> {
        let Some(hop) = self.hops.get_mut(&vi) else { return Ok(Ok(())) };
        if hop.state == State::Closed {
            return Ok(Ok(()));
        }
        let mut bytes = [0; HEADER_BYTES];
        hop.buffers.memory.read(u64::from(index) * u64::from(self.stride), &mut bytes)?;
        let payload_max = self.config.greeting.payload_bytes;
        let header = match Header::decode(&bytes, length, payload_max) {
            Ok(header) => header,
            Err(what) => return Ok(Err(what)),
        };
        if header.credit.wrapping_sub(hop.heard) > hop.sent.wrapping_sub(hop.heard) {
            return Ok(Err("credit for packets that were not sent"));
        }
        hop.heard = header.credit;
        if header.kind.is_in_order() {
            if hop.arrived_count.wrapping_sub(hop.told) >= self.config.greeting.packets {
                return Ok(Err("more packets than it had credit for"));
            }
            hop.arrived_count = hop.arrived_count.wrapping_add(1);
            hop.lent += 1;
            let payload = header.payload_bytes(payload_max).unwrap_or(0);
            hop.arrived.push_back(Arrival { hop: vi, index, header, payload });
        } else {
            if header.kind != Kind::Credit {
                self.events.push_back(PortEvent::Told(vi, header));
            }
            post_buffer(&mut self.nic, self.stride, vi, hop, index)?;
        }
        Ok(Ok(()))
    }

    // ------------------------------------------------------------------ packets that have arrived

    /// Takes the next packet of a connection, in the order in which they were sent.
    pub(super) fn arrival(&mut self, vi: ViId) -> Option<Arrival> {
        self.hops.get_mut(&vi)?.arrived.pop_front()
    }

    /// Shows the header of the next packet of a connection.
    pub(super) fn next_header(&self, vi: ViId) -> Option<&Header> {
        self.hops.get(&vi)?.arrived.front().map(|arrival| &arrival.header)
    }

    fn place(&self, arrival: &Arrival) -> u64 {
        u64::from(arrival.index) * u64::from(self.stride) + u64::from(HEADER_BYTES_U32)
    }

    /// Copies the payload, or its first `length_max` bytes, to the end of `bytes`.
    pub(super) fn read_onto(
        &self,
        arrival: &Arrival,
        length_max: usize,
        bytes: &mut Vec<u8>,
    ) -> Result<(), MessagesError> {
        if let Some(hop) = self.hops.get(&arrival.hop) {
            let length = usize::try_from(arrival.payload).unwrap_or(0).min(length_max);
            hop.buffers.memory.read_onto(self.place(arrival), length, bytes)?;
        }
        Ok(())
    }

    /// Copies bytes over the beginning of the payload.
    pub(super) fn write(&self, arrival: &Arrival, bytes: &[u8]) -> Result<(), MessagesError> {
        if let Some(hop) = self.hops.get(&arrival.hop) {
            let length = usize::try_from(arrival.payload).unwrap_or(0).min(bytes.len());
            hop.buffers.memory.write(self.place(arrival), &bytes[..length])?;
        }
        Ok(())
    }

    /// Is done with a packet.
    pub(super) fn release(&mut self, arrival: Arrival) {
        self.give_back(arrival.hop, arrival.index);
    }

    fn give_back(&mut self, vi: ViId, index: u32) {
        let Some(hop) = self.hops.get_mut(&vi) else { return };
        hop.lent = hop.lent.saturating_sub(1);
        hop.done = hop.done.wrapping_add(1);
        if hop.state != State::Closed
            && let Err(error) = post_buffer(&mut self.nic, self.stride, vi, hop, index)
        {
            let what = "no descriptor could be posted";
            debug_assert!(matches!(error, ViError::WrongState { .. }), "{error}");
            self.close(vi, Reason::Mismatch(what));
        }
    }

    // ------------------------------------------------------------------ packets to send

    /// Whether the peer has room for another packet.
    pub(super) fn has_credit(&self, vi: ViId) -> bool {
        self.hops.get(&vi).is_some_and(|hop| {
            let packets = hop.peer.map_or(0, |peer| peer.packets);
            hop.state == State::Open && hop.sent.wrapping_sub(hop.heard) < packets
        })
    }

    /// Whether a packet of this node's own can be sent.
    pub(super) fn can_send(&self, vi: ViId) -> bool {
        self.has_credit(vi) && self.hops.get(&vi).is_some_and(|hop| !hop.free.is_empty())
    }

    /// Sends a packet of this node's own. Returns whether there was room for it.
    pub(super) fn send(
        &mut self,
        vi: ViId,
        header: Header,
        payload: &[u8],
    ) -> Result<bool, MessagesError> {
        if !self.can_send(vi) {
            return Ok(false);
        }
        let Some(hop) = self.hops.get_mut(&vi) else { return Ok(false) };
        let Some(slot) = hop.free.pop() else { return Ok(false) };
        let place = u64::from(slot) * u64::from(self.stride) + u64::from(HEADER_BYTES_U32);
        hop.slots.memory.write(place, payload)?;
        let payload = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        self.enqueue(vi, header, payload, Body::Slot(slot))?;
        Ok(true)
    }

    /// Sends a packet on, out of the buffer in which it has arrived. There must be [credit](Self::has_credit).
    pub(super) fn pass(
        &mut self,
        vi: ViId,
        header: Header,
        arrival: Arrival,
    ) -> Result<(), MessagesError> {
        let payload = arrival.payload;
        self.enqueue(vi, header, payload, Body::Passing(arrival))
    }

    /// Sends a packet without data.
    pub(super) fn tell(&mut self, vi: ViId, header: Header) {
        if let Some(hop) = self.hops.get_mut(&vi)
            && hop.state == State::Open
        {
            hop.control.push_back(header);
        }
    }

    fn enqueue(
        &mut self,
        vi: ViId,
        header: Header,
        payload: u32,
        body: Body,
    ) -> Result<(), MessagesError> {
        let pace = self.config.pace;
        let now = pace.map_or(Instant::from_nanos(0), |_| self.clock.now());
        let Some(hop) = self.hops.get_mut(&vi) else {
            if let Body::Passing(arrival) = body {
                self.release(arrival);
            }
            return Ok(());
        };
        hop.sent = hop.sent.wrapping_add(1);
        let mut departs = now;
        if let Some(pace) = pace {
            // A packet is there when its last byte has left.
            departs = hop.free_at.max(now) + pace.time(u64::from(payload + HEADER_BYTES_U32));
            hop.free_at = departs;
        }
        hop.waiting.push_back(Outgoing { header, payload, body, departs });
        self.depart(vi, now).map(drop)
    }

    /// Posts what can be posted.
    fn depart(&mut self, vi: ViId, now: Instant) -> Result<bool, MessagesError> {
        let mut has_worked = false;
        loop {
            let Some(hop) = self.hops.get_mut(&vi) else { return Ok(has_worked) };
            if hop.state != State::Open {
                return Ok(has_worked);
            }
            if hop.waiting.front().is_none_or(|outgoing| outgoing.departs > now) {
                break;
            }
            let Some(mut outgoing) = hop.waiting.pop_front() else { break };
            outgoing.header.credit = hop.done;
            let posted = self.post(vi, &outgoing);
            let Some(hop) = self.hops.get_mut(&vi) else { return Ok(has_worked) };
            match posted {
                Ok(()) => {
                    hop.posted += 1;
                    hop.told = outgoing.header.credit;
                    has_worked = true;
                }
                Err(ViError::QueueFull { .. }) => {
                    hop.waiting.push_front(outgoing);
                    break;
                }
                // It broke; an event tells why.
                Err(ViError::WrongState { .. }) => {
                    hop.waiting.push_front(outgoing);
                    return Ok(has_worked);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.tell_all(vi)? || has_worked)
    }

    fn post(&mut self, vi: ViId, outgoing: &Outgoing) -> Result<(), ViError> {
        let (owner, index, cookie) = match &outgoing.body {
            Body::Slot(slot) => (vi, *slot, IS_OURS | u64::from(*slot)),
            Body::Passing(arrival) => {
                let cookie = u64::from(arrival.hop.0) << 32 | u64::from(arrival.index);
                (arrival.hop, arrival.index, cookie)
            }
        };
        let Some(hop) = self.hops.get(&owner) else { return Ok(()) };
        let region = if cookie & IS_OURS == 0 { &hop.buffers } else { &hop.slots };
        let offset = u64::from(index) * u64::from(self.stride);
        let written = region.memory.write(offset, &outgoing.header.encode());
        debug_assert!(written.is_ok(), "a buffer is inside its region");
        let length = u64::from(HEADER_BYTES_U32 + outgoing.payload);
        let segment = LocalSegment { memory: region.handle, offset, length };
        let descriptor = SendDescriptor {
            operation: Operation::Send,
            cookie,
            immediate: None,
            is_signaled: true,
            remote: None,
            data: Data::Segments(&[segment]),
        };
        self.nic.post_send(vi, &descriptor)
    }

    /// Sends packets without data: what is to be told, and credit when half of the buffers are free again.
    fn tell_all(&mut self, vi: ViId) -> Result<bool, MessagesError> {
        let Some(hop) = self.hops.get_mut(&vi) else { return Ok(false) };
        let half = (self.config.greeting.packets / 2).max(1);
        if hop.control.is_empty() && hop.done.wrapping_sub(hop.told) >= half {
            hop.control.push_back(Header::new(Kind::Credit, 0, 0));
        }
        let mut has_worked = false;
        while let Some(mut header) = hop.control.pop_front() {
            header.credit = hop.done;
            let bytes = header.encode();
            let descriptor = SendDescriptor {
                operation: Operation::Send,
                cookie: IS_CONTROL,
                immediate: None,
                is_signaled: false,
                remote: None,
                data: Data::Inline(&[IoSlice::new(&bytes)]),
            };
            match self.nic.post_send(vi, &descriptor) {
                Ok(()) => {
                    hop.told = hop.done;
                    has_worked = true;
                }
                Err(ViError::QueueFull { .. }) => {
                    hop.control.push_front(header);
                    break;
                }
                Err(ViError::WrongState { .. }) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(has_worked)
    }
}

fn post_buffer<P: Provider>(
    nic: &mut P,
    stride: u32,
    vi: ViId,
    hop: &Hop,
    index: u32,
) -> Result<(), ViError> {
    let (offset, length) = (u64::from(index) * u64::from(stride), u64::from(stride));
    let segment = LocalSegment { memory: hop.buffers.handle, offset, length };
    let descriptor = ReceiveDescriptor { cookie: u64::from(index), segments: &[segment] };
    nic.post_receive(vi, &descriptor)
}

/// The lower 32 bits.
fn low_word(value: u64) -> u32 {
    u32::try_from(value & u64::from(u32::MAX)).unwrap_or(0)
}
