//! One end of a simulated TCP connection [RFC 9293]: a state machine without I/O.
//!
//! ```text
//!            SYN                        SYN-ACK
//!  connect ──────▶ Connecting ──────────────────────────▶ Open ──── reset, time-out ────▶ Dead
//!  accept ───────▶ Accepting ── ACK or data of the peer ──▲  └ closed by both: removed by the network
//!           SYN-ACK                                           (lingers, if it closed first)
//! ```
//! Bytes are numbered from 0 in each direction; a FIN takes one number more. A segment without an ACK is sent again after a
//! time that doubles [RFC 6298], or at the third duplicate ACK [RFC 5681, §3.2]. `congestion.rs` limits what is in flight.
//! An ACK waits for the bytes of two packets, for data to travel with, or for 40 ms [RFC 5681, §4.2].
//! *Deviation:* there is no selective ACK, no ACK is hurried at the beginning, and a segment that is sent again keeps its bounds.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, IoSlice},
    mem,
    net::SocketAddr,
    time::Duration,
};

use rustix::io::Errno;

use super::{
    congestion::{CongestionWindow, PACKET_BYTES},
    draw_below,
    node_id::NodeId,
};
use crate::{
    clock::{Instant, nanos},
    detector::Ready,
};

/// The most bytes of one segment: what interfaces make of several packets.
const SEGMENT_MAX: usize = 16_384;

/// One segment in four ends early, so that a reader sees messages in pieces.
const CUT_ONE_IN: u8 = 4;

/// The time before the first segment is sent again while no answer was timed [RFC 6298, §2.1].
const FIRST_TIMEOUT: Duration = Duration::from_secs(1);

/// The bounds of that time later: Linux's `TCP_RTO_MIN` and `TCP_RTO_MAX`.
const TIMEOUT_MIN: Duration = Duration::from_millis(200);
const TIMEOUT_MAX: Duration = Duration::from_secs(120);

/// The number of times that it is sent again: Linux's `tcp_syn_retries`, `tcp_synack_retries`, `tcp_retries2`.
const SYN_RETRIES: u32 = 6;
const SYN_ACK_RETRIES: u32 = 5;
const RETRIES: u32 = 15;

/// The time for which the side that closed first lingers, to answer late segments: Linux's `TCP_TIMEWAIT_LEN` and
/// `tcp_fin_timeout`.
const LINGER: Duration = Duration::from_secs(60);

/// The longest time that an ACK may wait: Linux's `TCP_DELACK_MIN`.
const ACK_DELAY: Duration = Duration::from_millis(40);

/// The readiness of a connection that is closed in both directions, by shutdown or reset.
const CLOSED: Ready = Ready::READ_CLOSED.union(Ready::WRITE_CLOSED);

/// A TCP packet.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    /// The connection: like an initial sequence number, it tells apart connections between the same addresses.
    pub(super) number: u64,
    /// The sender's socket, and the receiver's as far as the sender knows it: so no search is needed.
    from_id: u64,
    pub(super) to_id: u64,
    pub(super) kind: SegmentKind,
    /// The number of the first byte.
    sequence: u64,
    /// All bytes before this one have arrived.
    ack: u64,
    /// The peer may send bytes up to this one.
    edge: u64,
    pub(super) bytes: Box<[u8]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentKind {
    Syn,
    SynAck,
    Ack,
    Data,
    Fin,
    /// Asks for an ACK, since the window is closed.
    Probe,
    Reset,
}

impl Segment {
    /// Returns what it has on the wire, as packets with headers of 40 bytes [RFC 9293, §3.1; RFC 791, §3.1].
    pub(super) fn wire_bytes(&self) -> u64 {
        let bytes = self.bytes.len() as u64;
        bytes + 40 * bytes.div_ceil(PACKET_BYTES).max(1)
    }

    /// Returns the answer of a node that does not know the connection.
    pub(super) fn refusal(mut self: Box<Self>) -> Option<Box<Self>> {
        if self.kind == SegmentKind::Reset {
            return None;
        }
        let it = &mut *self;
        it.kind = SegmentKind::Reset;
        it.bytes = Box::default();
        mem::swap(&mut it.from, &mut it.to);
        mem::swap(&mut it.from_id, &mut it.to_id);
        Some(self)
    }
}

/// The effects of a call of a connection.
#[derive(Debug)]
pub(super) struct Output<'a> {
    pub(super) now: Instant,
    pub(super) random: &'a mut fastrand::Rng,
    #[expect(clippy::vec_box, reason = "a segment is moved often")]
    pub(super) segments: Vec<Box<Segment>>,
    /// The readiness that the socket gained.
    pub(super) ready: Ready,
}

impl<'a> Output<'a> {
    #[expect(clippy::vec_box, reason = "as in the field")]
    pub(super) const fn new(
        now: Instant,
        random: &'a mut fastrand::Rng,
        segments: Vec<Box<Segment>>,
    ) -> Self {
        Self { now, random, segments, ready: Ready::NONE }
    }

    fn announce(&mut self, ready: Ready) {
        self.ready = self.ready.union(ready);
    }
}

/// The sizes of a connection's buffers, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SocketBuffers {
    pub(crate) send: usize,
    pub(crate) receive: usize,
}

impl Default for SocketBuffers {
    fn default() -> Self {
        Self { send: 65_536, receive: 65_536 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionState {
    Connecting,
    Accepting,
    Open,
    Dead,
}

/// A segment that was not acknowledged yet.
#[derive(Debug)]
struct InFlight {
    sequence: u64,
    kind: SegmentKind,
    size_bytes: usize,
    sent_at: Instant,
    is_repeated: bool,
}

impl InFlight {
    fn end(&self) -> u64 {
        self.sequence + self.size_bytes as u64 + u64::from(self.kind == SegmentKind::Fin)
    }
}

/// The sending direction.
#[derive(Debug, Default)]
struct Sending {
    /// The bytes that were not acknowledged: first those in flight.
    queue: VecDeque<u8>,
    in_flight: VecDeque<InFlight>,
    in_flight_bytes: usize,
    /// The number of the next byte to send for the first time.
    next: u64,
    /// The same, or after a time-out that of the next byte to send again.
    sent: u64,
    acked: u64,
    edge: u64,
    congestion: CongestionWindow,
    /// No more will be written.
    is_shut: bool,
    is_fin_sent: bool,
    /// Its FIN was sent before the peer's came.
    is_first: bool,
    /// A write found too little room: room is to be announced.
    is_full: bool,
}

/// The receiving direction.
#[derive(Debug, Default)]
struct Receiving {
    queue: VecDeque<u8>,
    /// The number of the next byte to arrive in order.
    next: u64,
    /// Segments that have overtaken others, by number; with a FIN or not.
    early: BTreeMap<u64, (Box<[u8]>, bool)>,
    /// The edge of which the peer was told, and the number of the next byte.
    edge: u64,
    acked: u64,
    has_fin: bool,
    /// Until when an ACK waits that the peer is owed.
    ack_at: Option<Instant>,
}

/// The state of retransmission.
#[derive(Debug)]
struct Retransmission {
    timeout: Duration,
    /// SRTT and RTTVAR of RFC 6298, in nanoseconds.
    measured: Option<(u64, u64)>,
    retries: u32,
    deadline: Option<Instant>,
    /// The time at which the handshake began.
    began: Instant,
}

/// The two ends of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) number: u64,
    /// The socket of this end.
    pub(super) id: u64,
    /// The node of the other end.
    pub(super) peer: NodeId,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) number: u64,
    /// The node of the other end.
    pub(super) peer: NodeId,
    /// The socket of this end, and that of the other one once it is known.
    id: u64,
    remote_id: u64,
    /// The listener that has not handed it out.
    pub(super) listener: Option<u64>,
    buffers: SocketBuffers,
    state: ConnectionState,
    sending: Sending,
    receiving: Receiving,
    timer: Retransmission,
    /// The next operation returns it.
    error: Option<Errno>,
    /// The application has closed it.
    is_orphan: bool,
    /// It is closed, and only answers what arrives late.
    lingers: bool,
}

impl Connection {
    fn new(
        Ends { local, remote, number, id, peer }: Ends,
        (state, began): (ConnectionState, Instant),
        buffers: SocketBuffers,
    ) -> Self {
        Self {
            local,
            remote,
            number,
            peer,
            id,
            remote_id: 0,
            listener: None,
            buffers,
            state,
            sending: Sending::default(),
            receiving: Receiving::default(),
            timer: Retransmission {
                timeout: FIRST_TIMEOUT,
                measured: None,
                retries: 0,
                deadline: None,
                began,
            },
            error: None,
            is_orphan: false,
            lingers: false,
        }
    }

    pub(super) fn connect(ends: Ends, buffers: SocketBuffers, output: &mut Output<'_>) -> Self {
        let mut connection = Self::new(ends, (ConnectionState::Connecting, output.now), buffers);
        connection.send(SegmentKind::Syn, output);
        connection.arm(output.now);
        connection
    }

    pub(super) fn accept(
        syn: &Segment,
        (id, peer, listener): (u64, NodeId, u64),
        buffers: SocketBuffers,
        output: &mut Output<'_>,
    ) -> Self {
        let ends = Ends { local: syn.to, remote: syn.from, number: syn.number, id, peer };
        let mut connection = Self::new(ends, (ConnectionState::Accepting, output.now), buffers);
        connection.remote_id = syn.from_id;
        connection.listener = Some(listener);
        connection.sending.edge = syn.edge;
        connection.send(SegmentKind::SynAck, output);
        connection.arm(output.now);
        connection
    }

    pub(super) fn is_connecting(&self) -> bool {
        self.state == ConnectionState::Connecting
    }

    pub(super) fn is_accepting(&self) -> bool {
        self.state == ConnectionState::Accepting
    }

    pub(super) fn is_dead(&self) -> bool {
        self.state == ConnectionState::Dead
    }

    /// Returns whether the application has closed it.
    pub(super) const fn is_orphan(&self) -> bool {
        self.is_orphan
    }

    /// Returns whether the network may forget it.
    pub(super) fn is_over(&self) -> bool {
        self.is_dead() && (self.is_orphan || self.listener.is_some())
    }

    /// Returns when [`expire`](Self::expire) is due, unless it is for an ACK.
    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.timer.deadline
    }

    /// Returns when it is due for an ACK.
    pub(super) fn ack_at(&self) -> Option<Instant> {
        self.receiving.ack_at.filter(|_| !self.is_dead())
    }

    pub(super) fn take_error(&mut self) -> Option<Errno> {
        self.error.take()
    }

    /// Returns everything that it is ready for.
    pub(super) fn ready(&self) -> Ready {
        let mut ready = Ready::NONE;
        let is_over = self.state == ConnectionState::Dead;
        if !self.receiving.queue.is_empty() || self.receiving.has_fin || is_over {
            ready = ready | Ready::READABLE;
        }
        if self.state == ConnectionState::Open && self.room() > 0 || is_over {
            ready = ready | Ready::WRITABLE;
        }
        if self.receiving.has_fin {
            ready = ready | Ready::READ_CLOSED;
        }
        if is_over {
            ready = ready | CLOSED;
        }
        if self.error.is_some() { ready | Ready::ERROR } else { ready }
    }

    /// Takes in a segment of the peer.
    pub(super) fn receive(&mut self, mut segment: Box<Segment>, output: &mut Output<'_>) {
        self.remote_id = segment.from_id;
        match (segment.kind, self.state) {
            (_, ConnectionState::Dead) => output.segments.extend(segment.refusal()),
            (SegmentKind::Reset, ConnectionState::Connecting) => {
                self.fail(Errno::CONNREFUSED, output)
            }
            (SegmentKind::Reset, _) => self.fail(Errno::CONNRESET, output),
            (SegmentKind::Syn, ConnectionState::Accepting) => {
                self.send(SegmentKind::SynAck, output)
            }
            (SegmentKind::SynAck, ConnectionState::Connecting) => {
                self.sending.edge = segment.edge;
                self.open(output.now);
                output.announce(Ready::WRITABLE);
                self.send(SegmentKind::Ack, output);
                self.transmit(output);
            }
            (SegmentKind::Syn, _) | (_, ConnectionState::Connecting) => {}
            (SegmentKind::SynAck | SegmentKind::Probe, _) => self.send(SegmentKind::Ack, output),
            (SegmentKind::Ack | SegmentKind::Data | SegmentKind::Fin, _) => {
                if self.is_accepting() {
                    self.open(output.now);
                }
                self.acknowledge(&segment, output);
                if segment.kind != SegmentKind::Ack {
                    self.take_in(&mut segment, output);
                }
            }
        }
    }

    fn open(&mut self, now: Instant) {
        self.state = ConnectionState::Open;
        if self.timer.retries == 0 {
            self.timer.measure(now - self.timer.began);
        } else {
            self.sending.congestion.begin_small();
        }
        self.timer.retries = 0;
        self.rearm(now);
    }

    /// The peer has received everything before a byte, and may have opened its window.
    fn acknowledge(&mut self, segment: &Segment, output: &mut Output<'_>) {
        let sending = &mut self.sending;
        let is_progress = segment.ack > sending.acked;
        let opens = segment.edge > sending.edge;
        sending.edge = sending.edge.max(segment.edge);
        if is_progress {
            let is_lost = sending.congestion.acknowledge(segment.ack, segment.ack - sending.acked);
            sending.acked = segment.ack;
            sending.sent = sending.sent.max(segment.ack);
            while let Some(first) = sending.in_flight.front()
                && first.end() <= segment.ack
            {
                if !first.is_repeated {
                    self.timer.measure(output.now - first.sent_at);
                }
                consume(&mut sending.queue, first.size_bytes);
                sending.in_flight_bytes -= first.size_bytes;
                sending.in_flight.pop_front();
            }
            self.timer.retries = 0;
            if is_lost {
                self.repeat(0, output);
            }
        } else if sending.in_flight.is_empty() {
            self.timer.retries = 0;
        } else if segment.kind == SegmentKind::Ack
            && segment.ack == sending.acked
            && !opens
            && sending.congestion.duplicate(segment.ack, sending.next)
        {
            self.repeat(0, output);
        }
        self.transmit(output);
        if is_progress || self.sending.in_flight.is_empty() {
            self.rearm(output.now);
        }
        self.announce_room(output);
    }

    fn announce_room(&mut self, output: &mut Output<'_>) {
        if self.sending.is_full && self.room() >= self.buffers.send.div_ceil(2) {
            self.sending.is_full = false;
            output.announce(Ready::WRITABLE);
        }
    }

    /// Queues what a segment carries, and whatever it was missing for.
    fn take_in(&mut self, segment: &mut Segment, output: &mut Output<'_>) {
        let has_fin = segment.kind == SegmentKind::Fin;
        if self.is_orphan && !segment.bytes.is_empty() && segment.sequence >= self.receiving.next {
            // Nothing reads it any more: the peer shall know [RFC 1122, §4.2.2.13].
            self.send(SegmentKind::Reset, output);
            self.state = ConnectionState::Dead;
            self.timer.deadline = None;
            return;
        }
        let receiving = &mut self.receiving;
        let is_expected = segment.sequence == receiving.next && receiving.early.is_empty();
        if is_expected && !has_fin && !receiving.has_fin {
            receiving.next += segment.bytes.len() as u64;
            receiving.queue.extend(&*segment.bytes);
            output.announce(Ready::READABLE);
        } else if segment.sequence >= receiving.next && !receiving.has_fin {
            receiving.early.insert(segment.sequence, (mem::take(&mut segment.bytes), has_fin));
        }
        while let Some(first) = receiving.early.first_entry()
            && *first.key() <= receiving.next
        {
            let (bytes, has_fin) = first.remove();
            receiving.next += bytes.len() as u64 + u64::from(has_fin);
            receiving.queue.extend(&*bytes);
            output.announce(Ready::READABLE);
            if has_fin {
                receiving.has_fin = true;
                let is_shut = self.sending.is_shut;
                output.announce(if is_shut { CLOSED } else { Ready::READ_CLOSED });
            }
        }
        // A peer that may have lost something hears at once.
        if is_expected && !has_fin && receiving.next - receiving.acked < 2 * PACKET_BYTES {
            receiving.ack_at.get_or_insert(output.now + ACK_DELAY);
        } else {
            self.send(SegmentKind::Ack, output);
        }
    }

    /// Sends what the windows permit, after a time-out first what was in flight.
    fn transmit(&mut self, output: &mut Output<'_>) {
        if self.state != ConnectionState::Open || self.sending.has_nothing_to_send() {
            return;
        }
        let was_idle = self.sending.in_flight.is_empty();
        loop {
            let sending = &mut self.sending;
            let room = sending.congestion.room(sending.sent - sending.acked);
            if sending.sent < sending.next {
                if room == 0 {
                    break;
                }
                let is_before = |it: &InFlight| it.sequence < sending.sent;
                let index = sending.in_flight.partition_point(is_before);
                sending.sent = sending.in_flight[index].end();
                self.repeat(index, output);
                continue;
            }
            let mut count = sending.next_count(room, self.timer.round_trip());
            if count > 1 && output.random.u8(..CUT_ONE_IN) == 0 {
                count = draw_below(output.random, count - 1) + 1;
            }
            let is_last = sending.unsent() == 0 && sending.is_shut && !sending.is_fin_sent;
            if count == 0 && !is_last {
                break;
            }
            let kind = if is_last { SegmentKind::Fin } else { SegmentKind::Data };
            sending.is_fin_sent = is_last;
            sending.is_first |= is_last && !self.receiving.has_fin;
            let bytes = copied(&sending.queue, sending.in_flight_bytes, count);
            sending.in_flight_bytes += count;
            let first = InFlight {
                sequence: sending.next,
                kind,
                size_bytes: count,
                sent_at: output.now,
                is_repeated: false,
            };
            let sequence = first.sequence;
            sending.next = first.end();
            sending.sent = sending.next;
            sending.in_flight.push_back(first);
            let segment = self.segment(kind, sequence, bytes);
            output.segments.push(segment);
        }
        if was_idle {
            self.rearm(output.now);
        }
    }

    /// Sends a segment again that was not acknowledged.
    fn repeat(&mut self, index: usize, output: &mut Output<'_>) {
        let Sending { queue, in_flight, .. } = &mut self.sending;
        let before = in_flight.iter().take(index).map(|it| it.size_bytes).sum();
        let Some(it) = in_flight.get_mut(index) else { return };
        it.is_repeated = true;
        let (sequence, kind) = (it.sequence, it.kind);
        let bytes = copied(queue, before, it.size_bytes);
        let segment = self.segment(kind, sequence, bytes);
        output.segments.push(segment);
    }

    /// An ACK has waited for long enough, or no answer came in time.
    pub(super) fn expire(&mut self, output: &mut Output<'_>) {
        if self.receiving.ack_at.is_some_and(|at| at <= output.now) {
            self.send(SegmentKind::Ack, output);
        }
        if self.timer.deadline.is_none_or(|deadline| deadline > output.now) {
            return;
        }
        if self.lingers {
            self.state = ConnectionState::Dead;
            self.timer.deadline = None;
            return;
        }
        self.timer.retries += 1;
        let retries_max = match self.state {
            ConnectionState::Connecting => SYN_RETRIES,
            ConnectionState::Accepting => SYN_ACK_RETRIES,
            ConnectionState::Open | ConnectionState::Dead => RETRIES,
        };
        if self.timer.retries > retries_max {
            self.fail(Errno::TIMEDOUT, output);
            return;
        }
        match self.state {
            ConnectionState::Connecting => self.send(SegmentKind::Syn, output),
            ConnectionState::Accepting => self.send(SegmentKind::SynAck, output),
            ConnectionState::Open if self.sending.in_flight.is_empty() => {
                self.send(SegmentKind::Probe, output);
            }
            ConnectionState::Open => {
                let Sending { congestion, sent, acked, next, .. } = &mut self.sending;
                congestion.time_out(*acked, *next, self.timer.retries == 1);
                *sent = *acked;
                self.transmit(output);
            }
            ConnectionState::Dead => {}
        }
        self.arm(output.now);
    }

    /// Sets the timer, if something is to be acknowledged, or to be sent once the window opens. With nothing left to do, a
    /// closed connection ends.
    fn rearm(&mut self, now: Instant) {
        if self.lingers {
            return;
        }
        let is_idle = self.sending.in_flight.is_empty() && self.sending.queue.is_empty();
        if !is_idle {
            self.arm(now);
        } else if !self.is_orphan || !self.sending.is_fin_sent {
            self.timer.deadline = None;
        } else if self.sending.is_first {
            self.lingers = true;
            self.timer.deadline = Some(now + LINGER);
        } else {
            self.state = ConnectionState::Dead;
            self.timer.deadline = None;
        }
    }

    fn arm(&mut self, now: Instant) {
        self.timer.deadline = Some(now + self.timer.pause());
    }

    pub(super) fn fail(&mut self, error: Errno, output: &mut Output<'_>) {
        self.state = ConnectionState::Dead;
        self.error = Some(error);
        self.timer.deadline = None;
        self.sending.queue.clear();
        self.sending.in_flight.clear();
        self.sending.in_flight_bytes = 0;
        output.announce(Ready::READABLE | Ready::WRITABLE | Ready::ERROR | CLOSED);
    }

    fn send(&mut self, kind: SegmentKind, output: &mut Output<'_>) {
        let segment = self.segment(kind, self.sending.next, Box::default());
        output.segments.push(segment);
    }

    fn segment(&mut self, kind: SegmentKind, sequence: u64, bytes: Box<[u8]>) -> Box<Segment> {
        let receiving = &mut self.receiving;
        receiving.edge = receiving.edge.max(receiving.reachable(self.buffers));
        (receiving.ack_at, receiving.acked) = (None, receiving.next);
        Box::new(Segment {
            from: self.local,
            to: self.remote,
            number: self.number,
            from_id: self.id,
            to_id: self.remote_id,
            kind,
            sequence,
            ack: receiving.next,
            edge: receiving.edge,
            bytes,
        })
    }

    fn room(&self) -> usize {
        self.buffers.send.saturating_sub(self.sending.queue.len())
    }

    /// Takes as many bytes as there is room for.
    pub(super) fn write(
        &mut self,
        buffers: &[IoSlice<'_>],
        output: &mut Output<'_>,
    ) -> io::Result<usize> {
        if let Some(error) = self.error.take() {
            return Err(error.into());
        }
        if self.sending.is_shut || self.state == ConnectionState::Dead {
            return Err(Errno::PIPE.into());
        }
        let mut room = if self.state == ConnectionState::Open { self.room() } else { 0 };
        let mut count = 0;
        for buffer in buffers {
            let taken = &buffer[..buffer.len().min(room)];
            self.sending.queue.extend(taken);
            room -= taken.len();
            count += taken.len();
            self.sending.is_full |= taken.len() < buffer.len();
        }
        if count == 0 {
            return Err(Errno::AGAIN.into());
        }
        self.transmit(output);
        self.rearm_if_idle(output.now);
        Ok(count)
    }

    fn rearm_if_idle(&mut self, now: Instant) {
        if self.timer.deadline.is_none() {
            self.rearm(now);
        }
    }

    /// Hands the bytes that have arrived to `copy`, in one or two pieces, until it takes less than a piece. Zero is the end of
    /// the stream.
    pub(super) fn read(
        &mut self,
        peeks: bool,
        mut copy: impl FnMut(&[u8]) -> usize,
        output: &mut Output<'_>,
    ) -> io::Result<usize> {
        let receiving = &mut self.receiving;
        if receiving.queue.is_empty() {
            if receiving.has_fin {
                return Ok(0);
            }
            return match self.error.take() {
                Some(error) => Err(error.into()),
                None if self.state == ConnectionState::Dead => Ok(0),
                None => Err(Errno::AGAIN.into()),
            };
        }
        let (first, second) = receiving.queue.as_slices();
        let mut count = copy(first);
        if count == first.len() && !second.is_empty() {
            count += copy(second);
        }
        if !peeks {
            consume(&mut receiving.queue, count);
            // Not for every few bytes [RFC 9293, §3.8.6.2.2].
            let opened = receiving.reachable(self.buffers).saturating_sub(receiving.edge);
            let worth = (self.buffers.receive / 2).clamp(1, SEGMENT_MAX) as u64;
            if opened >= worth && self.state == ConnectionState::Open {
                self.send(SegmentKind::Ack, output);
            }
        }
        Ok(count)
    }

    /// Returns how many written bytes the peer has not acknowledged.
    pub(super) fn unsent_bytes(&self) -> u64 {
        self.sending.unsent() as u64 + self.sending.next - self.sending.acked
    }

    pub(super) fn unread_bytes(&self) -> u64 {
        self.receiving.queue.len() as u64
    }

    /// Ends writing. Does nothing if the connection has already ended.
    pub(super) fn finish_writing(&mut self, output: &mut Output<'_>) {
        if self.state == ConnectionState::Open {
            self.sending.is_shut = true;
            output.announce(Ready::WRITABLE | Ready::WRITE_CLOSED);
            self.transmit(output);
        }
    }

    /// The application lets go of it. Unread bytes reset the connection [RFC 1122, §4.2.2.13]; otherwise it delivers what was
    /// written.
    pub(super) fn close(&mut self, resets: bool, output: &mut Output<'_>) {
        self.is_orphan = true;
        let receiving = &self.receiving;
        let is_unread = !receiving.queue.is_empty() || !receiving.early.is_empty();
        match self.state {
            ConnectionState::Open if !resets && !is_unread => {
                self.sending.is_shut = true;
                self.transmit(output);
            }
            ConnectionState::Open | ConnectionState::Accepting => {
                self.send(SegmentKind::Reset, output);
                self.state = ConnectionState::Dead;
            }
            ConnectionState::Connecting | ConnectionState::Dead => {
                self.state = ConnectionState::Dead
            }
        }
    }
}

/// Copies `count` bytes, those behind the first `begin` ones.
fn copied(queue: &VecDeque<u8>, begin: usize, count: usize) -> Box<[u8]> {
    let (front, back) = queue.as_slices();
    match front.get(begin..begin + count) {
        Some(bytes) => bytes.into(),
        None => {
            let (front, begin) =
                (front.get(begin..).unwrap_or_default(), begin.saturating_sub(front.len()));
            [front, &back[begin..begin + count - front.len()]].concat().into()
        }
    }
}

/// Forgets the first `count` bytes.
fn consume(queue: &mut VecDeque<u8>, count: usize) {
    if count == queue.len() {
        queue.clear();
    } else {
        queue.drain(..count);
    }
}

impl Sending {
    /// Returns whether there is neither anything new, nor anything to send again, nor an end.
    fn has_nothing_to_send(&self) -> bool {
        self.unsent() == 0 && self.sent == self.next && !self.is_shut
    }

    /// Returns how many bytes were not sent yet.
    fn unsent(&self) -> usize {
        self.queue.len() - self.in_flight_bytes
    }

    /// Returns how many new bytes the windows permit in the next segment; `room` is that of the congestion window.
    fn next_count(&self, room: u64, round_trip: Duration) -> usize {
        let unsent = self.unsent() as u64;
        if room < unsent.min(PACKET_BYTES) {
            // Less than a packet waits for more room [RFC 9293, §3.8.6.2.1].
            return 0;
        }
        let window = self.edge.saturating_sub(self.next);
        let count = unsent.min(window).min(room);
        if count > PACKET_BYTES {
            let count = count.min(self.congestion.segment_max(round_trip));
            return usize::try_from(count).unwrap_or(usize::MAX).min(SEGMENT_MAX);
        }
        usize::try_from(count).expect("invariant: a packet's bytes")
    }
}

impl Receiving {
    /// Returns up to which byte there is room.
    fn reachable(&self, buffers: SocketBuffers) -> u64 {
        self.next + buffers.receive.saturating_sub(self.queue.len()) as u64
    }
}

impl Retransmission {
    /// A segment was acknowledged after a round trip [RFC 6298, §2].
    fn measure(&mut self, round_trip: Duration) {
        let round_trip = nanos(round_trip);
        let (smoothed, rttvar) = match self.measured {
            None => (round_trip, round_trip / 2),
            Some((smoothed, rttvar)) => (
                smoothed - smoothed / 8 + round_trip / 8,
                rttvar - rttvar / 4 + smoothed.abs_diff(round_trip) / 4,
            ),
        };
        self.measured = Some((smoothed, rttvar));
        let timeout = Duration::from_nanos(smoothed.saturating_add(rttvar.saturating_mul(4)));
        self.timeout = timeout.clamp(TIMEOUT_MIN, TIMEOUT_MAX);
    }

    /// Returns the smoothed round trip, or the first time-out if it is not known.
    fn round_trip(&self) -> Duration {
        self.measured.map_or(FIRST_TIMEOUT, |(smoothed, _)| Duration::from_nanos(smoothed))
    }

    fn pause(&self) -> Duration {
        if self.retries == 0 {
            return self.timeout;
        }
        self.timeout.saturating_mul(1 << self.retries.min(16)).min(TIMEOUT_MAX)
    }
}
