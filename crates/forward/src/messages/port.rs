//! A node's interface: its provider, and one connection to each neighbouring node, with packets and credit.
//!
//! ```text
//!                 send slots, or packets that pass through        buffers, posted as receive descriptors
//!   send, pass -> waiting (paced, or queue full) -> VI ~~~~~~~~~> VI -> arrived -> release or pass
//!                    ^                                                                |
//!                    +------------- credit: how many packets the peer is done with ---+
//! ```
//! A packet with data needs credit: a free buffer at the peer. Credit is a cumulative count that comes with every
//! packet of the peer, or in a packet of its own when half of the buffers are free again. Packets without data
//! (control) need none: their number in flight is bounded by what they report, and that many extra buffers are posted.
//!
//! Nothing here sleeps: [`NodePort::tick`] does the pending work.

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use vigie_detect::{ArmOutcome, Clock, Instant, Notifier};
use vigie_via::vi::{
    Address, Completion, Connect, CqId, Data, DisconnectReason, LocalSegment, MemoryAttributes,
    NicEvent, Operation, ProtectionTag, Provider, Queue, ReceiveDescriptor, Region, Reliability,
    RequestId, SendDescriptor, ViAttributes, ViError, ViId,
};

use super::error::MessagesError;
use super::packet::{Greeting, HEADER_BYTES, HEADER_BYTES_U32, PacketHeader, PacketKind, Role};
use crate::cost::Bandwidth;

/// The maximum number of control packets in flight for each peer of a peer: three of each kind that repeats, and one of
/// each that does not.
const CONTROL_PER_PEER: u32 = 5;

/// Cookies of send descriptors: a forwarded packet has its VI and buffer, one of ours its slot.
const IS_OURS: u64 = 1 << 63;

/// The cookie of control packets, whose sending reports only errors.
const IS_CONTROL: u64 = 1 << 62;

/// The configuration of a port.
#[derive(Clone, Debug)]
pub(super) struct PortConfig {
    /// Sent to every peer.
    pub(super) greeting: Greeting,
    /// The roles from which it accepts connections.
    pub(super) accepts: &'static [Role],
    /// The maximum number of connections.
    pub(super) peers_max: usize,
    /// The number of our packets that may be in flight to one peer.
    pub(super) send_packets: u32,
    /// The bandwidth to which the link to each peer is paced; `None`: unpaced.
    pub(super) pace: Option<Bandwidth>,
}

/// An event of a connection.
#[derive(Debug)]
pub(super) enum PortEvent {
    /// A connection was established.
    Opened(ViId, Greeting),
    /// A connection has ended, or was not established. The data that the peer had sent [stays](NodePort::arrival) until
    /// it is taken or [forgotten](NodePort::forget); so does the connection's memory.
    Closed(ViId, DisconnectReason),
    /// A control packet.
    Control(ViId, PacketHeader),
}

/// A packet in its receive buffer; must be given to [`NodePort::release`] or [`NodePort::pass`].
#[derive(Debug)]
#[must_use = "its buffer must be released, or the peer gets no credit for it"]
pub(super) struct Arrival {
    connection: ViId,
    index: u32,
    pub(super) header: PacketHeader,
    /// Bytes of payload.
    pub(super) payload: u32,
}

enum OutgoingBody {
    Slot(u32),
    Passing(Arrival),
}

struct Outgoing {
    header: PacketHeader,
    payload: u32,
    body: OutgoingBody,
    departs_at: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ConnectionState {
    Opening,
    Open,
    Closed,
}

/// A connection.
struct PeerConnection {
    state: ConnectionState,
    peer: Option<Greeting>,
    buffers: Region,
    /// Received buffers not yet released.
    held_count: u32,
    /// Credit-bearing packets: received; released; released as the peer knows it.
    arrived_count: u32,
    released_count: u32,
    credit_sent: u32,
    arrived: VecDeque<Arrival>,
    slots: Region,
    free_slots: Vec<u32>,
    /// Credit-bearing packets accepted for sending; of those, how many the peer has released.
    sent: u32,
    credit_received: u32,
    waiting: VecDeque<Outgoing>,
    /// Descriptors not yet completed.
    posted: u32,
    /// The time at which the paced link is free again.
    free_at: Instant,
    control: VecDeque<PacketHeader>,
}

/// The interface of a node.
pub(super) struct NodePort<P: Provider> {
    nic: P,
    clock: Arc<dyn Clock>,
    config: PortConfig,
    tag: ProtectionTag,
    cq: CqId,
    /// Bytes from one buffer to the next.
    stride: u32,
    connections: BTreeMap<ViId, PeerConnection>,
    events: VecDeque<PortEvent>,
    /// Refused connections.
    refused: u64,
}

impl<P: Provider> NodePort<P> {
    pub(super) fn new(
        mut nic: P,
        clock: Arc<dyn Clock>,
        config: PortConfig,
    ) -> Result<Self, ViError> {
        let tag = nic.create_tag();
        let cq = nic.create_cq()?;
        let stride = (config.greeting.payload_bytes + HEADER_BYTES_U32).next_multiple_of(64);
        let (connections, events) = (BTreeMap::new(), VecDeque::new());
        Ok(Self { nic, clock, config, tag, cq, stride, connections, events, refused: 0 })
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

    /// Changes the longest message announced to nodes that connect from now on.
    pub(super) const fn limit_messages(&mut self, bytes: u32) {
        self.config.greeting.message_bytes_max = bytes;
    }

    /// Returns the payload of a full packet in bytes.
    pub(super) fn payload_bytes(&self) -> u32 {
        self.config.greeting.payload_bytes
    }

    // ------------------------------------------------------------------ connections

    /// Requests a connection; the outcome is an event.
    pub(super) fn connect(
        &mut self,
        address: &Address,
        discriminator: &[u8],
        deadline: Instant,
    ) -> Result<ViId, MessagesError> {
        let vi = self.open()?;
        let greeting = self.config.greeting.encode();
        self.nic.connect(Connect::new(vi, address, discriminator, deadline).greeting(&greeting))?;
        Ok(vi)
    }

    /// Creates a VI with everything that a connection needs.
    fn open(&mut self) -> Result<ViId, MessagesError> {
        if self.connections.len() >= self.config.peers_max {
            let (count, most) = (self.connections.len() + 1, self.config.peers_max);
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
        let connection = PeerConnection {
            state: ConnectionState::Opening,
            peer: None,
            buffers,
            held_count: 0,
            arrived_count: 0,
            released_count: 0,
            credit_sent: 0,
            arrived: VecDeque::new(),
            slots,
            free_slots: (0..self.config.send_packets).collect(),
            sent: 0,
            credit_received: 0,
            waiting: VecDeque::new(),
            posted: 0,
            free_at: Instant::from_nanos(0),
            control: VecDeque::new(),
        };

        for index in 0..buffer_count {
            post_buffer(&mut self.nic, self.stride, vi, &connection, index)?;
        }

        self.connections.insert(vi, connection);
        Ok(vi)
    }

    fn control_packets(&self) -> u32 {
        let peers = u32::try_from(self.config.peers_max).unwrap_or(u32::MAX);
        CONTROL_PER_PEER * (peers + 1)
    }

    fn handle_request(&mut self, request: RequestId, greeting: &[u8]) -> Result<(), MessagesError> {
        let greeting =
            Greeting::decode(greeting).and_then(|greeting| self.check_greeting(greeting));
        let Ok(greeting) = greeting else { return self.refuse(request) };
        match self.open() {
            Ok(vi) => {
                let own = self.config.greeting.encode();
                let accepted = self.nic.accept(request, vi, &own);
                if let Some(connection) = self.connections.get_mut(&vi) {
                    connection.peer = Some(greeting);
                    if accepted.is_err() {
                        // The caller has gone meanwhile.
                        connection.state = ConnectionState::Closed;
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

    fn check_greeting(&self, greeting: Greeting) -> Result<Greeting, &'static str> {
        if greeting.payload_bytes != self.config.greeting.payload_bytes {
            return Err("packets of another length");
        }
        if !self.config.accepts.contains(&greeting.role) {
            return Err("a node of another role");
        }
        Ok(greeting)
    }

    /// Closes a connection, and discards what has arrived over it.
    pub(super) fn close(&mut self, vi: ViId, reason: DisconnectReason) {
        let Some(connection) = self.connections.get_mut(&vi) else { return };
        if connection.state != ConnectionState::Closed {
            // Whatever the error, the connection is over.
            let _ = self.nic.disconnect(vi);
            self.closed(vi, reason);
        }
        self.forget(vi);
    }

    /// Discards what has arrived over a connection that is no longer read.
    pub(super) fn forget(&mut self, vi: ViId) {
        let arrived =
            self.connections.get_mut(&vi).map(|connection| std::mem::take(&mut connection.arrived));
        for arrival in arrived.into_iter().flatten() {
            self.release(arrival);
        }
    }

    fn closed(&mut self, vi: ViId, reason: DisconnectReason) {
        let Some(connection) = self.connections.get_mut(&vi) else { return };
        if connection.state == ConnectionState::Closed {
            return;
        }
        connection.state = ConnectionState::Closed;
        connection.control.clear();
        let waiting = std::mem::take(&mut connection.waiting);
        for outgoing in waiting {
            if let OutgoingBody::Passing(arrival) = outgoing.body {
                self.release(arrival);
            }
        }
        self.events.push_back(PortEvent::Closed(vi, reason));
    }

    /// Frees the resources of ended connections, once they are unused.
    fn reap(&mut self) -> Result<(), ViError> {
        let is_over = |connection: &PeerConnection| {
            connection.state == ConnectionState::Closed
                && connection.held_count == 0
                && connection.posted == 0
        };
        while let Some(vi) =
            self.connections.iter().find(|(_, connection)| is_over(connection)).map(|(vi, _)| *vi)
        {
            if let Some(connection) = self.connections.remove(&vi) {
                match self.nic.destroy_vi(vi) {
                    Err(ViError::UnknownVi(_)) | Ok(()) => {}
                    Err(error) => return Err(error),
                }
                self.nic.deregister(connection.buffers.handle)?;
                self.nic.deregister(connection.slots.handle)?;
            }
        }
        Ok(())
    }

    // ------------------------------------------------------------------ the engine

    /// Does pending work. Returns whether anything was done.
    pub(super) fn tick(&mut self) -> Result<bool, MessagesError> {
        let now = self.now();
        let mut has_worked = self.nic.progress(now);
        // Process what a peer has sent even if it left right afterwards.
        while let Some(completion) = self.nic.poll_cq(self.cq) {
            has_worked = true;
            self.handle_completion(completion)?;
        }
        while let Some(event) = self.nic.next_event() {
            has_worked = true;
            self.handle_event(event)?;
        }
        let vis: Vec<ViId> = self.connections.keys().copied().collect();
        for vi in vis {
            has_worked |= self.transmit(vi, now)?;
        }
        self.reap()?;
        Ok(has_worked)
    }

    pub(super) fn next_event(&mut self) -> Option<PortEvent> {
        self.events.pop_front()
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let fronts = self.connections.values().filter_map(|connection| connection.waiting.front());
        let paced = fronts.map(|outgoing| outgoing.departs_at).min();
        [paced, self.nic.next_deadline()].into_iter().flatten().min()
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.nic.descriptor()
    }

    pub(super) fn can_announce(&self) -> bool {
        self.nic.can_announce()
    }

    pub(super) fn attach(&mut self, waker: Notifier) {
        self.nic.attach_notifier(waker);
    }

    pub(super) fn arm(&mut self) -> std::io::Result<ArmOutcome> {
        self.nic.arm()
    }

    pub(super) fn quiet(&mut self) {
        self.nic.quiet();
    }

    fn handle_event(&mut self, event: NicEvent) -> Result<(), MessagesError> {
        match event {
            NicEvent::Requested { request, greeting, .. } => {
                self.handle_request(request, &greeting)?
            }
            NicEvent::Connected { vi, greeting } => {
                let Some(connection) = self.connections.get(&vi) else { return Ok(()) };
                let greeting = match connection.peer {
                    Some(greeting) => Ok(greeting),
                    None => {
                        Greeting::decode(&greeting).and_then(|found| self.check_greeting(found))
                    }
                };
                match greeting {
                    Ok(greeting) => {
                        if let Some(connection) = self.connections.get_mut(&vi) {
                            (connection.state, connection.peer) =
                                (ConnectionState::Open, Some(greeting));
                        }
                        self.events.push_back(PortEvent::Opened(vi, greeting));
                    }
                    Err(what) => self.close(vi, DisconnectReason::Mismatch(what)),
                }
            }
            NicEvent::Refused { vi, reason } | NicEvent::Broken { vi, reason } => {
                self.closed(vi, reason);
            }
            _ => {}
        }
        Ok(())
    }

    fn handle_completion(&mut self, completion: Completion) -> Result<(), MessagesError> {
        let vi = completion.vi;
        match completion.queue {
            Queue::Send => {
                let cookie = completion.cookie;
                if cookie == IS_CONTROL {
                    return Ok(());
                }
                if let Some(connection) = self.connections.get_mut(&vi) {
                    connection.posted = connection.posted.saturating_sub(1);
                    if cookie & IS_OURS != 0 {
                        connection.free_slots.push(low_word(cookie));
                    }
                }
                if cookie & IS_OURS == 0 {
                    let from = ViId(low_word(cookie >> 32));
                    self.return_buffer(from, low_word(cookie));
                }
                Ok(())
            }
            Queue::Receive if completion.status.is_done() => {
                match self.received(vi, low_word(completion.cookie), completion.length)? {
                    Ok(()) => {}
                    Err(what) => self.close(vi, DisconnectReason::PeerFault(what)),
                }
                Ok(())
            }
            // Flushed: an event gives the reason.
            Queue::Receive => Ok(()),
        }
    }

    /// Handles a received packet. The inner error says what is wrong with it.
    fn received(
        &mut self,
        vi: ViId,
        index: u32,
        length: u64,
    ) -> Result<Result<(), &'static str>, MessagesError> {
        let Some(connection) = self.connections.get_mut(&vi) else { return Ok(Ok(())) };
        if connection.state == ConnectionState::Closed {
            return Ok(Ok(()));
        }

        let mut bytes = [0; HEADER_BYTES];
        connection.buffers.memory.read(u64::from(index) * u64::from(self.stride), &mut bytes)?;
        let payload_max = self.config.greeting.payload_bytes;
        let header = match PacketHeader::decode(&bytes, length, payload_max) {
            Ok(header) => header,
            Err(what) => return Ok(Err(what)),
        };

        if header.credit.wrapping_sub(connection.credit_received)
            > connection.sent.wrapping_sub(connection.credit_received)
        {
            return Ok(Err("credit for packets that were not sent"));
        }

        connection.credit_received = header.credit;
        if header.kind.is_in_order() {
            if connection.arrived_count.wrapping_sub(connection.credit_sent)
                >= self.config.greeting.packets
            {
                return Ok(Err("more packets than it had credit for"));
            }
            connection.arrived_count = connection.arrived_count.wrapping_add(1);
            connection.held_count += 1;
            let payload = header.payload_bytes(payload_max).unwrap_or(0);
            connection.arrived.push_back(Arrival { connection: vi, index, header, payload });
        } else {
            if header.kind != PacketKind::Credit {
                self.events.push_back(PortEvent::Control(vi, header));
            }
            post_buffer(&mut self.nic, self.stride, vi, connection, index)?;
        }

        Ok(Ok(()))
    }

    // ------------------------------------------------------------------ received packets

    /// Takes the next packet of a connection, in the order in which they were sent.
    pub(super) fn arrival(&mut self, vi: ViId) -> Option<Arrival> {
        self.connections.get_mut(&vi)?.arrived.pop_front()
    }

    /// Returns the header of the next packet of a connection.
    pub(super) fn next_header(&self, vi: ViId) -> Option<&PacketHeader> {
        self.connections.get(&vi)?.arrived.front().map(|arrival| &arrival.header)
    }

    fn payload_offset(&self, arrival: &Arrival) -> u64 {
        u64::from(arrival.index) * u64::from(self.stride) + u64::from(HEADER_BYTES_U32)
    }

    /// Copies the payload, or its first `length_max` bytes, to the end of `bytes`.
    pub(super) fn read_onto(
        &self,
        arrival: &Arrival,
        length_max: usize,
        bytes: &mut Vec<u8>,
    ) -> Result<(), MessagesError> {
        if let Some(connection) = self.connections.get(&arrival.connection) {
            let length = usize::try_from(arrival.payload).unwrap_or(0).min(length_max);
            connection.buffers.memory.read_onto(self.payload_offset(arrival), length, bytes)?;
        }
        Ok(())
    }

    /// Overwrites the start of the payload.
    pub(super) fn write(&self, arrival: &Arrival, bytes: &[u8]) -> Result<(), MessagesError> {
        if let Some(connection) = self.connections.get(&arrival.connection) {
            let length = usize::try_from(arrival.payload).unwrap_or(0).min(bytes.len());
            connection.buffers.memory.write(self.payload_offset(arrival), &bytes[..length])?;
        }
        Ok(())
    }

    /// Releases a packet.
    pub(super) fn release(&mut self, arrival: Arrival) {
        self.return_buffer(arrival.connection, arrival.index);
    }

    fn return_buffer(&mut self, vi: ViId, index: u32) {
        let Some(connection) = self.connections.get_mut(&vi) else { return };
        connection.held_count = connection.held_count.saturating_sub(1);
        connection.released_count = connection.released_count.wrapping_add(1);
        if connection.state != ConnectionState::Closed
            && let Err(error) = post_buffer(&mut self.nic, self.stride, vi, connection, index)
        {
            let what = "no descriptor could be posted";
            debug_assert!(matches!(error, ViError::WrongState { .. }), "{error}");
            self.close(vi, DisconnectReason::Mismatch(what));
        }
    }

    // ------------------------------------------------------------------ sending

    /// Returns whether the peer has room for another packet.
    pub(super) fn has_credit(&self, vi: ViId) -> bool {
        self.connections.get(&vi).is_some_and(|connection| {
            let packets = connection.peer.map_or(0, |peer| peer.packets);
            connection.state == ConnectionState::Open
                && connection.sent.wrapping_sub(connection.credit_received) < packets
        })
    }

    /// Returns whether a packet of this node can be sent.
    pub(super) fn can_send(&self, vi: ViId) -> bool {
        self.has_credit(vi)
            && self.connections.get(&vi).is_some_and(|connection| !connection.free_slots.is_empty())
    }

    /// Sends a packet of this node. Returns whether there was room for it.
    pub(super) fn send(
        &mut self,
        vi: ViId,
        header: PacketHeader,
        payload: &[u8],
    ) -> Result<bool, MessagesError> {
        if !self.can_send(vi) {
            return Ok(false);
        }
        let Some(connection) = self.connections.get_mut(&vi) else { return Ok(false) };
        let Some(slot) = connection.free_slots.pop() else { return Ok(false) };
        let payload_offset = u64::from(slot) * u64::from(self.stride) + u64::from(HEADER_BYTES_U32);
        connection.slots.memory.write(payload_offset, payload)?;
        let payload = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        self.enqueue(vi, header, payload, OutgoingBody::Slot(slot))?;
        Ok(true)
    }

    /// Forwards a packet from its receive buffer. There must be [credit](Self::has_credit).
    pub(super) fn pass(
        &mut self,
        vi: ViId,
        header: PacketHeader,
        arrival: Arrival,
    ) -> Result<(), MessagesError> {
        let payload = arrival.payload;
        self.enqueue(vi, header, payload, OutgoingBody::Passing(arrival))
    }

    /// Sends a control packet.
    pub(super) fn send_control(&mut self, vi: ViId, header: PacketHeader) {
        if let Some(connection) = self.connections.get_mut(&vi)
            && connection.state == ConnectionState::Open
        {
            connection.control.push_back(header);
        }
    }

    fn enqueue(
        &mut self,
        vi: ViId,
        header: PacketHeader,
        payload: u32,
        body: OutgoingBody,
    ) -> Result<(), MessagesError> {
        let pace = self.config.pace;
        let now = pace.map_or(Instant::from_nanos(0), |_| self.clock.now());
        let Some(connection) = self.connections.get_mut(&vi) else {
            if let OutgoingBody::Passing(arrival) = body {
                self.release(arrival);
            }
            return Ok(());
        };
        connection.sent = connection.sent.wrapping_add(1);
        let mut departs_at = now;
        if let Some(pace) = pace {
            // A packet has arrived when its last byte has left.
            departs_at =
                connection.free_at.max(now) + pace.time(u64::from(payload + HEADER_BYTES_U32));
            connection.free_at = departs_at;
        }
        connection.waiting.push_back(Outgoing { header, payload, body, departs_at });
        self.transmit(vi, now).map(drop)
    }

    /// Posts as many packets as possible.
    fn transmit(&mut self, vi: ViId, now: Instant) -> Result<bool, MessagesError> {
        let mut has_worked = false;
        loop {
            let Some(connection) = self.connections.get_mut(&vi) else { return Ok(has_worked) };
            if connection.state != ConnectionState::Open {
                return Ok(has_worked);
            }
            if connection.waiting.front().is_none_or(|outgoing| outgoing.departs_at > now) {
                break;
            }
            let Some(mut outgoing) = connection.waiting.pop_front() else { break };
            outgoing.header.credit = connection.released_count;
            let posted = self.post(vi, &outgoing);
            let Some(connection) = self.connections.get_mut(&vi) else { return Ok(has_worked) };
            match posted {
                Ok(()) => {
                    connection.posted += 1;
                    connection.credit_sent = outgoing.header.credit;
                    has_worked = true;
                }
                Err(ViError::QueueFull { .. }) => {
                    connection.waiting.push_front(outgoing);
                    break;
                }
                // The connection broke; an event gives the reason.
                Err(ViError::WrongState { .. }) => {
                    connection.waiting.push_front(outgoing);
                    return Ok(has_worked);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.flush_control(vi)? || has_worked)
    }

    fn post(&mut self, vi: ViId, outgoing: &Outgoing) -> Result<(), ViError> {
        let (owner, index, cookie) = match &outgoing.body {
            OutgoingBody::Slot(slot) => (vi, *slot, IS_OURS | u64::from(*slot)),
            OutgoingBody::Passing(arrival) => {
                let cookie = u64::from(arrival.connection.0) << 32 | u64::from(arrival.index);
                (arrival.connection, arrival.index, cookie)
            }
        };
        let Some(connection) = self.connections.get(&owner) else { return Ok(()) };
        let region = if cookie & IS_OURS == 0 { &connection.buffers } else { &connection.slots };
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

    /// Sends control packets: notices, and credit when half of the buffers are free again.
    fn flush_control(&mut self, vi: ViId) -> Result<bool, MessagesError> {
        let Some(connection) = self.connections.get_mut(&vi) else { return Ok(false) };
        let half = (self.config.greeting.packets / 2).max(1);
        if connection.control.is_empty()
            && connection.released_count.wrapping_sub(connection.credit_sent) >= half
        {
            connection.control.push_back(PacketHeader::new(PacketKind::Credit, 0, 0));
        }

        let mut has_worked = false;
        while let Some(mut header) = connection.control.pop_front() {
            header.credit = connection.released_count;
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
                    connection.credit_sent = connection.released_count;
                    has_worked = true;
                }
                Err(ViError::QueueFull { .. }) => {
                    connection.control.push_front(header);
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
    connection: &PeerConnection,
    index: u32,
) -> Result<(), ViError> {
    let (offset, length) = (u64::from(index) * u64::from(stride), u64::from(stride));
    let segment = LocalSegment { memory: connection.buffers.handle, offset, length };
    let descriptor = ReceiveDescriptor { cookie: u64::from(index), segments: &[segment] };
    nic.post_receive(vi, &descriptor)
}

/// The lower 32 bits.
fn low_word(value: u64) -> u32 {
    u32::try_from(value & u64::from(u32::MAX)).unwrap_or(0)
}
