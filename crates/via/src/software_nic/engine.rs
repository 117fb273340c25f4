//! The engine: packets and time in, packets and deadlines out.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
};

use super::{
    attempt::{Caller, ConnectAttempt, PendingClose},
    config::SoftwareNicConfig,
    congestion::{MILLISECOND, Nanos},
    connection::{PROBES_MIN, SoftwareConnection},
    counters::SoftwareNicCounters,
    gather::Gather,
    inbound::FragmentArrival,
    mtu_discovery::MtuPacket,
    outbound::{Ack, Departure, FRAGMENTS_MAX},
    packet::{
        self, ACK_WORDS, CloseNotice, ControlPacket, DataHeader, PACKET_BYTES_MAX,
        PACKET_BYTES_MIN, low_u32,
    },
    transfer::{self, ConnectionFailure},
    vi::SoftwareVi,
    wire::Path,
};
use crate::auth::{Names, Secret};
use crate::vi::{
    Completion, CqId, DisconnectReason, NicAttributes, NicEvent, Queue, RequestId, Status, ViEvent,
    ViId, ViState, objects::Objects,
};

/// The kind of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TimerEvent {
    Vi(ViId),
    Close(u64, u64),
    /// Expired requests and names.
    Sweep,
}

/// The interval at which expired requests are removed.
const SWEEP_EVERY: Nanos = 1000 * MILLISECOND;

/// After this many timeouts in a row, packets may be too long.
const FALLS_AFTER: u32 = 3;

/// The most bytes handed over per call: the limit of a UDP datagram.
const BATCH_BYTES_MAX: usize = 65_000;

/// Packets of equal length, except that the last may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacketBatch<P> {
    pub(super) to: P,
    /// The length of each packet but the last, in bytes.
    pub(super) packet_bytes: usize,
}

/// The choice whether the peer is told that a connection breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotifyPeer {
    No,
    Yes,
}

#[derive(Debug)]
pub(super) struct SoftwareEngine<P> {
    pub(super) attributes: NicAttributes,
    pub(super) config: SoftwareNicConfig,
    pub(super) secret: Secret,
    pub(super) names: Names,
    /// This NIC's name, which is part of its address.
    pub(super) nic: u64,
    pub(super) objects: Objects,
    pub(super) vis: BTreeMap<ViId, SoftwareVi<P>>,
    /// The VI whose attempt or connection has that name on this side.
    pub(super) names_of: BTreeMap<u64, ViId>,
    /// Client-server requests that wait for the consumer's answer.
    pub(super) requests: BTreeMap<RequestId, Caller<P>>,
    /// Peer-to-peer requests that wait for a VI of this NIC.
    pub(super) peer_requests: Vec<(Vec<u8>, Caller<P>)>,
    /// Callers that were heard, kept until their cookies expire, so that a call counts once.
    pub(super) seen_calls: BTreeMap<u64, Nanos>,
    pub(super) pending_closes: BTreeMap<(u64, u64), PendingClose<P>>,
    pub(super) events: VecDeque<NicEvent>,
    outbox: VecDeque<(P, Vec<u8>)>,
    /// True if data, not only ACKs, has become ready to send since packets arrived.
    is_urgent: bool,
    ready: VecDeque<ViId>,
    /// The VI whose packets were made last; its descriptors are settled once they have departed.
    departing: Option<ViId>,
    timers: BTreeSet<(Nanos, TimerEvent)>,
    is_sweeping: bool,
    /// Paths whose packet length is still to be measured.
    unmeasured: Vec<P>,
    pub(super) counters: SoftwareNicCounters,
}

impl<P: Path> SoftwareEngine<P> {
    pub(super) fn new(
        name: &'static str,
        config: SoftwareNicConfig,
        secret: Secret,
        seed: [u8; 16],
    ) -> Self {
        // A longer packet would not fit into a datagram, a shorter one not hold a header.
        let packet_bytes_max = config.packet_bytes_max.clamp(PACKET_BYTES_MIN, PACKET_BYTES_MAX);
        let config = config.packet_bytes_max(packet_bytes_max);
        let mut attributes = NicAttributes::named(name);
        attributes.transfer_bytes_max = transfer::TRANSFER_MAX;
        attributes.inline_bytes_max = attributes.inline_bytes_max.min(transfer::TRANSFER_MAX);
        let mut names = Names::new(seed);
        let nic = names.fresh();
        Self {
            attributes,
            config,
            secret,
            names,
            nic,
            objects: Objects::default(),
            vis: BTreeMap::new(),
            names_of: BTreeMap::new(),
            requests: BTreeMap::new(),
            peer_requests: Vec::new(),
            seen_calls: BTreeMap::new(),
            pending_closes: BTreeMap::new(),
            events: VecDeque::new(),
            outbox: VecDeque::new(),
            is_urgent: false,
            ready: VecDeque::new(),
            departing: None,
            timers: BTreeSet::new(),
            is_sweeping: false,
            unmeasured: Vec::new(),
            counters: SoftwareNicCounters::default(),
        }
    }

    /// Returns the receive window of a new connection in fragments, none longer than the longest packet.
    pub(super) fn own_window(&self) -> u16 {
        window(self.config.window_bytes, self.config.packet_bytes_max)
    }

    // -------------------------------------------------------------- packets

    /// Takes what arrived on a path: a packet, or several glued together.
    pub(super) fn receive(&mut self, now: Nanos, from: P, bytes: &[u8]) {
        let mut rest = bytes;
        let mut of = None;
        while let Some((packet, others)) = packet::split(rest) {
            rest = others;
            self.counters.packets_received += 1;
            if packet::is_data(packet) {
                // Follow-up work is done once for all packets that arrived together.
                let id = self.receive_data(now, from, packet);
                if of != id {
                    self.after_arrivals(now, of);
                    of = id;
                }
                continue;
            }
            self.after_arrivals(now, of.take());
            if let Some(control) = ControlPacket::decode(packet, &self.secret) {
                self.receive_control(now, from, control);
            } else {
                self.counters.packets_refused += 1;
            }
        }

        self.after_arrivals(now, of);
        if rest.iter().any(|byte| *byte != 0) {
            self.counters.packets_refused += 1;
        }
    }

    /// Takes a data packet. Returns its VI, unless the packet was refused or broke the connection.
    fn receive_data(&mut self, now: Nanos, from: P, packet: &[u8]) -> Option<ViId> {
        let id = DataHeader::id(packet).and_then(|id| self.names_of.get(&id).copied());
        let Some(vi) = id.and_then(|id| self.vis.get_mut(&id)) else {
            self.counters.packets_without_connection += 1;
            return None;
        };

        let id = vi.core.id;
        let is_of_path = vi.connection.as_ref().is_some_and(|connection| connection.path == from);
        let Some(mut connection) = vi.connection.take_if(|_| is_of_path) else {
            self.counters.packets_without_connection += 1;
            return None;
        };

        let Some((header, fragment)) = DataHeader::decode(packet, connection.key.as_ref()) else {
            vi.connection = Some(connection);
            self.counters.packets_refused += 1;
            return None;
        };

        let ack = Ack {
            next: header.next,
            acked: header.acked,
            echo: header.echo,
            delay: Nanos::from(header.delay) * 16_000,
            window: header.window,
        };
        if connection.out.on_ack(&ack, now).is_none() {
            vi.connection = Some(connection);
            self.counters.packets_refused += 1;
            return None;
        }

        connection.last_received_at = now;
        if !connection.out.is_waiting() {
            connection.waiting_since = None;
        }
        if header.is_ack_eliciting {
            connection.inbound.note(header.packet_number, now);
        }
        if header.is_probe {
            connection.mtu_discovery.asked(u16::try_from(packet.len()).unwrap_or(u16::MAX));
        } else if let (true, Ok(bytes)) = (header.has_probed, fragment.try_into()) {
            connection.mtu_discovery.on_answer(u16::from_le_bytes(bytes), now);
            let window_bytes = self.config.window_bytes;
            connection.follow_path(|bytes| window(window_bytes, bytes));
        }

        let is_pending = vi.core.state == ViState::PendingConnect;
        vi.connection = Some(connection);
        if is_pending {
            // A caller that sends data has heard the answer.
            self.agreed(now, id);
        }

        match self.take(now, id, &header, fragment) {
            Ok(()) => Some(id),
            Err(ConnectionFailure { reason, failed }) => {
                self.break_vi(now, id, reason, failed, NotifyPeer::Yes);
                None
            }
        }
    }

    /// Takes the packet's fragment, if it has one that is next in order.
    fn take(
        &mut self,
        now: Nanos,
        id: ViId,
        header: &DataHeader,
        fragment: &[u8],
    ) -> Result<(), ConnectionFailure> {
        let Some(vi) = self.vis.get_mut(&id) else { return Ok(()) };
        if !header.has_fragment || vi.core.state != ViState::Connected {
            return Ok(());
        }
        let Some(mut connection) = vi.connection.take() else { return Ok(()) };
        let before = connection.inbound.repeated;
        let arrival = connection.inbound.arrive(header.sequence, header.oldest, fragment);
        self.counters.fragments_repeated += connection.inbound.repeated - before;
        let mut taken = Ok(());
        match arrival {
            FragmentArrival::Now { is_after_gap } => {
                if is_after_gap {
                    connection.incoming = None;
                    connection.inbound.hurry(now);
                }
                let objects = &mut self.objects;
                taken = transfer::take_fragment(objects, vi, &mut connection, fragment);
                while taken.is_ok()
                    && let Some(held) = connection.inbound.taken()
                {
                    taken = transfer::take_fragment(objects, vi, &mut connection, &held);
                }
                if connection.inbound.has_gap() {
                    connection.inbound.hurry(now);
                }
            }
            // [rfc5681, §4.2]: out-of-order arrival is acknowledged at once.
            FragmentArrival::Kept | FragmentArrival::Old => connection.inbound.hurry(now),
            FragmentArrival::TooFar => self.counters.packets_refused += 1,
        }

        vi.connection = Some(connection);
        taken
    }

    fn after_arrivals(&mut self, now: Nanos, id: Option<ViId>) {
        let Some(id) = id else { return };
        self.settle(now, id);
        self.is_urgent |= self.wake_if_needed(now, id);
        self.set_timer(id);
    }

    /// Completes the descriptors that are done.
    fn settle(&mut self, now: Nanos, id: ViId) {
        let Some(vi) = self.vis.get_mut(&id) else { return };
        let Some(connection) = vi.connection.as_ref() else { return };
        let heard = connection.out.oldest();
        if transfer::settle(&mut self.objects, vi, heard) {
            self.break_vi(now, id, DisconnectReason::DescriptorFailed, None, NotifyPeer::Yes);
        }
    }

    /// Queues a packet without data.
    pub(super) fn send(&mut self, to: P, control: &ControlPacket) {
        let packet = control.encode(&self.secret);
        self.outbox.push_back((to, packet));
    }

    /// Marks a VI as ready if it has something to send. Returns whether that is more than ACKs.
    fn wake_if_needed(&mut self, now: Nanos, id: ViId) -> bool {
        let Some(vi) = self.vis.get(&id) else { return false };
        let Some(connection) = vi.connection.as_ref() else { return false };
        let out = &connection.out;
        let has_data = out.has_repeat() || (out.takes_more() && transfer::has_more(vi, connection));
        let has_more = has_data || connection.mtu_discovery.has_packet();
        if has_more || connection.inbound.due().is_some_and(|due| due <= now) {
            self.wake(id);
        }
        has_data
    }

    /// Marks a VI that may have something to send as ready.
    pub(super) fn wake(&mut self, id: ViId) {
        if let Some(vi) = self.vis.get_mut(&id)
            && !vi.is_ready
            && vi.core.state == ViState::Connected
        {
            vi.is_ready = true;
            self.ready.push_back(id);
        }
    }

    /// Writes the next packets, at most `count`, to `out`, which is empty.
    pub(super) fn transmit(
        &mut self,
        now: Nanos,
        count: usize,
        out: &mut Gather,
    ) -> Option<PacketBatch<P>> {
        self.is_urgent = false;
        self.departed(now);
        if let Some((to, packet)) = self.outbox.pop_front() {
            self.counters.packets_sent += 1;
            out.push(&packet);
            return Some(PacketBatch { to, packet_bytes: packet.len() });
        }

        while let Some(id) = self.ready.pop_front() {
            let Some(vi) = self.vis.get_mut(&id) else { continue };
            vi.is_ready = false;
            let Some(mut connection) = vi.connection.take() else { continue };
            let to = connection.path;
            let made = make_packets(now, &self.objects, vi, &mut connection, count, out);
            if made.sent > 0 {
                // There may be more; other VIs come first.
                vi.is_ready = true;
                self.ready.push_back(id);
            }
            vi.connection = Some(connection);
            self.counters.packets_sent += made.sent;
            self.counters.fragments_sent_again += made.repeats;
            if let Some(ConnectionFailure { reason, failed }) = made.failure {
                self.break_vi(now, id, reason, failed, NotifyPeer::Yes);
            } else {
                self.departing = Some(id);
            }
            if made.sent > 0 {
                return Some(PacketBatch { to, packet_bytes: made.packet_bytes });
            }
            self.departed(now);
        }

        None
    }

    /// The packets from `transmit` have departed, or wait outside.
    pub(super) fn departed(&mut self, now: Nanos) {
        if let Some(id) = self.departing.take() {
            self.settle(now, id);
            self.set_timer(id);
        }
    }

    // -------------------------------------------------------------- paths

    /// Returns a path whose packet length the engine wants to know.
    pub(super) fn unmeasured(&mut self) -> Option<P> {
        self.unmeasured.pop()
    }

    pub(super) fn wants_measure(&mut self, path: P) {
        if !self.unmeasured.contains(&path) {
            self.unmeasured.push(path);
        }
    }

    /// Sets the longest packet that a path takes; each connection probes whether such packets arrive.
    pub(super) fn set_packet_bytes(&mut self, path: P, bytes: usize) {
        let bytes = bytes.clamp(PACKET_BYTES_MIN, self.config.packet_bytes_max);
        let mut asking = Vec::new();
        for (id, vi) in &mut self.vis {
            if let Some(connection) = vi.connection.as_mut().filter(|found| found.path == path) {
                connection.mtu_discovery.set_most(bytes);
                connection.follow_path(|bytes| window(self.config.window_bytes, bytes));
                if connection.mtu_discovery.has_packet() {
                    asking.push(*id);
                }
            }
        }
        for id in asking {
            self.wake(id);
        }
    }

    // -------------------------------------------------------------- time

    /// Returns when [`expire`](Self::expire) has something to do.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.timers.first().map(|(at, _)| *at)
    }

    pub(super) fn set(&mut self, at: Nanos, timer: TimerEvent) {
        self.timers.insert((at, timer));
    }

    /// Schedules the removal of expired requests.
    pub(super) fn sweep_later(&mut self, now: Nanos) {
        if !mem::replace(&mut self.is_sweeping, true) {
            self.set(now + SWEEP_EVERY, TimerEvent::Sweep);
        }
    }

    /// Ensures that a timer is set for when the VI needs one, or earlier. A timer that fires early finds
    /// nothing to do and sets the next one: that is cheaper than moving it with every packet.
    pub(super) fn set_timer(&mut self, id: ViId) {
        let SoftwareNicConfig { keep_alive, dead_after, .. } = self.config;
        let Some(vi) = self.vis.get_mut(&id) else { return };
        let at = match (&vi.attempt, &vi.connection) {
            (Some(attempt), _) => attempt.deadline(),
            (None, Some(connection)) => connection.deadline(nanos(keep_alive), nanos(dead_after)),
            (None, None) => return,
        };
        if vi.timer.is_none_or(|set| at < set) {
            if let Some(set) = vi.timer.replace(at) {
                self.timers.remove(&(set, TimerEvent::Vi(id)));
            }
            self.timers.insert((at, TimerEvent::Vi(id)));
        }
    }

    /// Does what is due. Returns whether anything was due.
    pub(super) fn expire(&mut self, now: Nanos) -> bool {
        let mut is_due = false;
        while let Some((at, timer)) = self.timers.first().copied()
            && at <= now
        {
            is_due = true;
            self.timers.remove(&(at, timer));
            match timer {
                TimerEvent::Vi(id) => self.expire_vi(now, id),
                TimerEvent::Close(from, to) => self.expire_close(now, (from, to)),
                TimerEvent::Sweep => {
                    self.is_sweeping = false;
                    self.sweep(now);
                }
            }
        }
        is_due
    }

    fn expire_vi(&mut self, now: Nanos, id: ViId) {
        let SoftwareNicConfig { keep_alive, dead_after, .. } = self.config;
        let Some(vi) = self.vis.get_mut(&id) else { return };
        vi.timer = None;
        if vi.attempt.is_some() {
            self.expire_attempt(now, id);
            self.set_timer(id);
            return;
        }

        let Some(connection) = vi.connection.as_mut() else { return };
        if connection.waiting_since.is_none_or(|_| !connection.out.is_waiting()) {
            connection.waiting_since = None;
            if connection.last_received_at.saturating_add(nanos(keep_alive)) <= now {
                connection.wants_ping = true;
            }
        } else if connection.deadline(nanos(keep_alive), nanos(dead_after)) <= now
            && connection.out.probes() >= PROBES_MIN
            && connection.waiting_since.is_some_and(|since| {
                since.max(connection.last_received_at) + nanos(dead_after) <= now
            })
        {
            self.counters.peers_silent += 1;
            self.break_vi(now, id, DisconnectReason::TransportFailed, None, NotifyPeer::Yes);
            return;
        }

        if connection.out.deadline().is_some_and(|at| at <= now) {
            connection.wants_ping |= connection.out.expire(now);
            if connection.out.probes() == FALLS_AFTER {
                connection.mtu_discovery.fall();
                connection.follow_path(|bytes| window(self.config.window_bytes, bytes));
            }
        }

        if connection.mtu_discovery.expire(now) || connection.out.probes() >= 2 {
            let window_bytes = self.config.window_bytes;
            connection.follow_path(|bytes| window(window_bytes, bytes));
            // Routers may have reported a new length meanwhile.
            let path = connection.path;
            self.wants_measure(path);
        }

        self.settle(now, id);
        self.wake(id);
        // Due ACKs depart with `transmit`, which comes next.
        self.set_timer_after(now, id);
    }

    /// Like [`set_timer`](Self::set_timer), but ignores what departs now.
    fn set_timer_after(&mut self, now: Nanos, id: ViId) {
        self.set_timer(id);
        if let Some(vi) = self.vis.get_mut(&id)
            && let Some(at) = vi.timer
            && at <= now
        {
            self.timers.remove(&(at, TimerEvent::Vi(id)));
            vi.timer = None;
        }
    }

    fn sweep(&mut self, now: Nanos) {
        self.seen_calls.retain(|_, until| *until > now);
        self.requests.retain(|_, caller| caller.expires_at > now);
        self.peer_requests.retain(|(_, caller)| caller.expires_at > now);
        let is_empty =
            self.seen_calls.is_empty() && self.requests.is_empty() && self.peer_requests.is_empty();
        if !is_empty {
            self.sweep_later(now);
        }
    }

    // -------------------------------------------------------------- ends

    /// Breaks a connection: flushes posted descriptors, tells the consumer and perhaps the peer.
    pub(super) fn break_vi(
        &mut self,
        now: Nanos,
        id: ViId,
        reason: DisconnectReason,
        failed: Option<(u64, Status)>,
        notify: NotifyPeer,
    ) {
        let Some(vi) = self.vis.get_mut(&id) else { return };
        let Some(connection) = vi.connection.take() else { return };
        // If the peer reported the break, `failed` is this side's descriptor; otherwise it is the peer's.
        let own = if notify == NotifyPeer::No { failed } else { None };
        vi.flush(&mut self.objects, own);
        vi.core.change(ViEvent::Break);
        self.events.push_back(NicEvent::Broken { vi: id, reason });
        self.forget(&connection);
        if notify == NotifyPeer::Yes {
            self.part(
                now,
                connection.path,
                CloseNotice { to: connection.peer, from: connection.own, reason, failed },
            );
        }
    }

    pub(super) fn forget(&mut self, connection: &SoftwareConnection<P>) {
        self.names_of.remove(&connection.own);
    }

    pub(super) fn disconnect(&mut self, now: Nanos, id: ViId) {
        self.leave(now, id, DisconnectReason::Disconnected);
        let Some(vi) = self.vis.get_mut(&id) else { return };
        let connection = vi.connection.take();
        vi.flush(&mut self.objects, None);
        vi.core.change(ViEvent::Disconnect);
        if let Some(connection) = connection {
            self.forget(&connection);
            let reason = DisconnectReason::Disconnected;
            self.part(
                now,
                connection.path,
                CloseNotice { to: connection.peer, from: connection.own, reason, failed: None },
            );
        }
    }

    /// Makes the ACKs due that peers wait for.
    pub(super) fn acknowledge_all(&mut self, now: Nanos) {
        let ids: Vec<ViId> = self.vis.keys().copied().collect();
        for id in ids {
            if let Some(vi) = self.vis.get_mut(&id)
                && let Some(connection) = &mut vi.connection
                && connection.inbound.due().is_some()
            {
                connection.inbound.hurry(now);
                self.wake(id);
            }
        }
    }

    /// Tells all peers, once, that this NIC ends.
    pub(super) fn end(&mut self) {
        let reason = DisconnectReason::PeerDied;
        self.outbox.clear();
        let mut overs = Vec::new();
        for vi in self.vis.values() {
            if let Some(connection) = vi.connection.as_ref() {
                let (to, from) = (connection.peer, connection.own);
                overs.push((connection.path, CloseNotice { to, from, reason, failed: None }));
            } else if let Some((path, from)) = vi.attempt.as_ref().and_then(ConnectAttempt::called)
            {
                overs.push((path, CloseNotice { to: 0, from, reason, failed: None }));
            }
        }
        let callers = self.requests.values().chain(self.peer_requests.iter().map(|(_, it)| it));
        for caller in callers {
            overs.push((
                caller.path,
                CloseNotice { to: caller.name, from: 0, reason, failed: None },
            ));
        }
        overs.extend(self.pending_closes.values().map(|parting| (parting.path, parting.over)));
        for (path, over) in overs {
            self.send(path, &ControlPacket::Over(over));
        }
        self.ready.clear();
    }

    // -------------------------------------------------------------- completions

    pub(super) fn poll_cq(&mut self, cq: CqId) -> Option<Completion> {
        let completion = self.objects.poll_cq(cq)?;
        if let Some(vi) = self.vis.get_mut(&completion.vi) {
            vi.core.release(completion.queue);
        }
        Some(completion)
    }

    pub(super) fn poll_queue(&mut self, vi: ViId, queue: Queue) -> Option<Completion> {
        self.vis.get_mut(&vi)?.core.take(queue)
    }

    /// Returns whether an event or completion waits for the consumer.
    pub(super) fn has_news(&self) -> bool {
        !self.events.is_empty()
            || self.objects.has_completions()
            || self.vis.values().any(|vi| vi.core.has_completions())
    }

    /// Returns whether arrivals produced data that should not wait for further arrivals.
    pub(super) fn is_urgent(&self) -> bool {
        self.is_urgent || !self.outbox.is_empty()
    }

    /// Returns whether packets are ready to be made.
    pub(super) fn has_packets(&self) -> bool {
        !self.outbox.is_empty() || !self.ready.is_empty()
    }
}

/// Returns how many packets of `packet_bytes` make up `window_bytes`.
fn window(window_bytes: usize, packet_bytes: usize) -> u16 {
    let count = window_bytes / packet_bytes.max(PACKET_BYTES_MIN);
    u16::try_from(count.clamp(4, FRAGMENTS_MAX)).unwrap_or(4)
}

/// The packets made for one connection.
#[derive(Debug, Default)]
struct PacketBuild {
    sent: u64,
    repeats: u64,
    packet_bytes: usize,
    failure: Option<ConnectionFailure>,
}

/// Makes packets of a connection: retransmissions, new fragments, ACKs, pings.
fn make_packets<P: Path>(
    now: Nanos,
    objects: &Objects,
    vi: &mut SoftwareVi<P>,
    connection: &mut SoftwareConnection<P>,
    count: usize,
    out: &mut Gather,
) -> PacketBuild {
    let mut made = PacketBuild::default();
    if connection.mtu_discovery.has_packet() {
        send_probe(now, connection, out);
        (made.sent, made.packet_bytes) = (1, out.len());
        return made;
    }

    let count = u64::try_from(count).unwrap_or(1).max(1);
    let batch = BATCH_BYTES_MAX / connection.packet_bytes.max(1);
    let is_silly = connection.out.is_silly(batch.min(usize::try_from(count).unwrap_or(1)));
    while made.sent < count {
        let start = out.len();
        let repeat = connection.out.has_repeat().then(|| connection.out.repeat_bytes()).flatten();
        let most = match repeat {
            Some(bytes) => connection.size(bytes),
            None => connection.packet_bytes,
        };
        let is_first = made.sent == 0;
        if !is_first && (most > made.packet_bytes || start + most > BATCH_BYTES_MAX) {
            break;
        }
        if repeat.is_some() {
            send_again(now, connection, out);
            made.repeats += 1;
        } else if !is_silly && connection.out.takes_more() && transfer::has_more(vi, connection) {
            let mut fragment = connection.out.buffer();
            let filled = transfer::fill(objects, vi, connection, &mut fragment);
            if let Err(failure) = filled {
                made.failure = Some(failure);
            }
            if fragment.is_empty() || made.failure.is_some() {
                connection.out.recycle(fragment);
                break;
            }
            let departure = connection.out.send(fragment, now);
            put_packet(now, connection, departure, out);
        } else if is_first {
            send_ack(now, connection, out);
        } else {
            break;
        }
        let length = out.len() - start;
        if length == 0 {
            break;
        }
        made.sent += 1;
        if is_first {
            made.packet_bytes = length;
        }
        if length < made.packet_bytes || length < connection.packet_bytes {
            break;
        }
    }

    made
}

fn send_again<P: Path>(now: Nanos, connection: &mut SoftwareConnection<P>, out: &mut Gather) {
    if let Some(departure) = connection.out.repeat(now) {
        put_packet(now, connection, departure, out);
    }
}

fn put_packet<P: Path>(
    now: Nanos,
    connection: &mut SoftwareConnection<P>,
    departure: Departure,
    out: &mut Gather,
) {
    let length = connection.out.fragment(departure.sequence).map_or(0, Gather::len);
    let mut header = connection.header(departure.packet_number, length, now);
    header.sequence = low_u32(departure.sequence);
    header.has_fragment = true;
    let start = out.position();
    if let Some(fragment) = connection.out.fragment(departure.sequence)
        && header.gather(fragment, connection.key.as_ref(), out).is_err()
    {
        // It is as good as lost.
        out.truncate(start);
    }
    connection.note_departure(now);
}

/// Sends a path-MTU probe, or the answer to one.
fn send_probe<P: Path>(now: Nanos, connection: &mut SoftwareConnection<P>, out: &mut Gather) {
    let until = now + connection.out.round_trip.probe_timeout(0);
    let Some(departing) = connection.mtu_discovery.next(until) else { return };
    let was_due = connection.inbound.due().is_some();
    let mut header = connection.header(0, connection.fragment_bytes(), now);
    match departing {
        MtuPacket::Probe(bytes) => {
            header.is_probe = true;
            let padding = vec![0; bytes.saturating_sub(connection.size(0))];
            out.append(|out| header.encode(&padding, connection.key.as_ref(), out));
            if was_due {
                // The probe may be too long to arrive.
                connection.inbound.hurry(now);
            }
        }
        MtuPacket::Answer(bytes) => {
            header.has_probed = true;
            let bytes = bytes.to_le_bytes();
            out.append(|out| header.encode(&bytes, connection.key.as_ref(), out));
        }
    }
}

/// Sends a packet without a fragment, if there is something to acknowledge or ask.
fn send_ack<P: Path>(now: Nanos, connection: &mut SoftwareConnection<P>, out: &mut Gather) {
    let is_due = connection.inbound.due().is_some_and(|due| due <= now);
    let wants_ping = mem::take(&mut connection.wants_ping);
    if !is_due && !wants_ping {
        return;
    }
    let packet_number = if wants_ping { connection.out.send_ping(now) } else { 0 };
    if wants_ping {
        connection.note_departure(now);
    }
    let room = connection.fragment_bytes().saturating_sub(ACK_WORDS * 8);
    let header = connection.header(packet_number, room, now);
    out.append(|out| header.encode(&[], connection.key.as_ref(), out));
}

pub(super) fn nanos(duration: std::time::Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{congestion::RoundTrip, connection::ConnectionParameters},
        *,
    };

    /// Goal: the receive window follows the path, so that as many bytes are in flight whatever the
    /// packet length. Method: the window that a connection announces when its path becomes known and
    /// when it becomes shorter.
    #[test]
    fn the_window_follows_the_path() {
        let config = SoftwareNicConfig::default();
        let own_window = window(config.window_bytes, config.packet_bytes_max);
        let mut connection = SoftwareConnection::new(
            ConnectionParameters {
                own: 1,
                peer: 2,
                path: 0_u8,
                key: None,
                is_reliable: true,
                own_window,
                peer_window: own_window,
                packet_bytes: PACKET_BYTES_MIN,
                round_trip: RoundTrip::new(),
            },
            0,
        );
        for bytes in [65_000, 8972, 1472] {
            connection.mtu_discovery.set_most(bytes);
            connection.follow_path(|bytes| window(config.window_bytes, bytes));
            let told = usize::from(connection.header(0, 0, 0).window);
            assert!(told == 4 || told * bytes <= config.window_bytes, "{told} of {bytes}");
            assert!((told + 1) * bytes > config.window_bytes, "{told} of {bytes}");
        }
    }
}
