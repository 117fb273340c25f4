//! The engine: packets and time in, packets and deadlines out.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
};

use super::{
    Config, Counters, Path,
    calls::{Attempt, Caller, Parting},
    congestion::{MILLISECOND, Nanos},
    connection::Connection,
    gather::Gather,
    inbound::Arrival,
    objects::{Objects, Vi},
    outbound::{Departure, FRAGMENTS_MAX, Receipt},
    packet::{self, Control, Header, Over, PACKET_BYTES_MIN, RECEIPT_WORDS, narrow},
    path_search::Departing,
    secret::{Names, Secret},
    transfer::{self, Failure},
};
use crate::vi::{
    Attributes, Completion, CqId, NicEvent, Queue, Reason, RequestId, Status, ViEvent, ViId,
    ViState,
};

/// What is to be done at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Alarm {
    Vi(ViId),
    Parting(u64, u64),
    /// Requests and names that are too old.
    Sweep,
}

/// How often old requests are looked for.
const SWEEP_EVERY: Nanos = 1000 * MILLISECOND;

/// After so many timeouts in a row packets may be too long.
const FALLS_AFTER: u32 = 3;

/// The most bytes that are handed over at once: what a UDP datagram may have.
const BATCH_BYTES_MAX: usize = 65_000;

/// Packets of equal length, but for the last, which may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batch<P> {
    pub(super) to: P,
    /// The length of each packet but the last, in bytes.
    pub(super) packet_bytes: usize,
}

/// Whether a peer is told that a connection breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tells {
    Nobody,
    Peer,
}

#[derive(Debug)]
pub(super) struct Engine<P> {
    pub(super) attributes: Attributes,
    pub(super) config: Config,
    pub(super) secret: Secret,
    pub(super) names: Names,
    /// This NIC's name, which is part of its address.
    pub(super) nic: u64,
    next_id: u32,
    pub(super) objects: Objects,
    pub(super) vis: BTreeMap<ViId, Vi<P>>,
    /// Whose attempt or connection this side has given that name.
    pub(super) names_of: BTreeMap<u64, ViId>,
    pub(super) listening: BTreeSet<Vec<u8>>,
    /// Client-server requests that wait for the consumer's answer.
    pub(super) requests: BTreeMap<RequestId, Caller<P>>,
    /// Peer-to-peer requests that wait for a VI of this NIC.
    pub(super) peer_requests: Vec<(Vec<u8>, Caller<P>)>,
    /// Callers that were heard, until their cookies are stale: a call counts once.
    pub(super) heard_calls: BTreeMap<u64, Nanos>,
    pub(super) partings: BTreeMap<(u64, u64), Parting<P>>,
    pub(super) events: VecDeque<NicEvent>,
    outbox: VecDeque<(P, Vec<u8>)>,
    /// Whether data, and not only receipts, waits to be sent since packets arrived.
    is_urgent: bool,
    ready: VecDeque<ViId>,
    /// Whose packets were made last: what that changes is looked at when they have departed.
    departing: Option<ViId>,
    alarms: BTreeSet<(Nanos, Alarm)>,
    is_sweeping: bool,
    /// Paths of which somebody should find out what they take.
    unmeasured: Vec<P>,
    pub(super) counters: Counters,
}

impl<P: Path> Engine<P> {
    pub(super) fn new(name: &'static str, config: Config, secret: Secret, seed: [u8; 16]) -> Self {
        let mut attributes = Attributes::named(name);
        attributes.max_transfer = transfer::TRANSFER_MAX;
        let mut names = Names::new(seed);
        let nic = names.fresh();
        Self {
            attributes,
            config,
            secret,
            names,
            nic,
            next_id: 1,
            objects: Objects::default(),
            vis: BTreeMap::new(),
            names_of: BTreeMap::new(),
            listening: BTreeSet::new(),
            requests: BTreeMap::new(),
            peer_requests: Vec::new(),
            heard_calls: BTreeMap::new(),
            partings: BTreeMap::new(),
            events: VecDeque::new(),
            outbox: VecDeque::new(),
            is_urgent: false,
            ready: VecDeque::new(),
            departing: None,
            alarms: BTreeSet::new(),
            is_sweeping: false,
            unmeasured: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// One sequence of numbers for everything, so that no name is right by accident.
    pub(super) const fn fresh(&mut self) -> u32 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    /// How many fragments of a new connection are taken at a time, of which none is longer than the longest packet.
    pub(super) fn own_window(&self) -> u16 {
        window(self.config.window_bytes, self.config.packet_bytes_max)
    }

    // -------------------------------------------------------------- packets

    /// Takes what a path has brought: a packet, or several of them glued together.
    pub(super) fn receive(&mut self, now: Nanos, from: P, bytes: &[u8]) {
        let mut rest = bytes;
        let mut of = None;
        while let Some((packet, others)) = packet::split(rest) {
            rest = others;
            self.counters.packets_received += 1;
            if packet::is_data(packet) {
                // What arrivals lead to is done once for all that have arrived together.
                let id = self.receive_data(now, from, packet);
                if of != id {
                    self.after_arrivals(now, of);
                    of = id;
                }
                continue;
            }
            self.after_arrivals(now, of.take());
            if let Some(control) = Control::decode(packet, &self.secret) {
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

    /// Takes a packet with data. Returns whose it is, unless it was refused or broke the connection.
    fn receive_data(&mut self, now: Nanos, from: P, packet: &[u8]) -> Option<ViId> {
        let id = Header::id(packet).and_then(|id| self.names_of.get(&id).copied());
        let Some(vi) = id.and_then(|id| self.vis.get_mut(&id)) else {
            self.counters.packets_of_strangers += 1;
            return None;
        };
        let id = vi.id;
        let is_of_path = vi.connection.as_ref().is_some_and(|connection| connection.path == from);
        let Some(mut connection) = vi.connection.take_if(|_| is_of_path) else {
            self.counters.packets_of_strangers += 1;
            return None;
        };
        let Some((header, fragment)) = Header::decode(packet, connection.key.as_ref()) else {
            vi.connection = Some(connection);
            self.counters.packets_refused += 1;
            return None;
        };
        let receipt = Receipt {
            next: header.next,
            receipts: header.receipts,
            echo: header.echo,
            delay: Nanos::from(header.delay) * 16_000,
            window: header.window,
        };
        if connection.out.hear(&receipt, now).is_none() {
            vi.connection = Some(connection);
            self.counters.packets_refused += 1;
            return None;
        }
        connection.heard_at = now;
        if !connection.out.is_waiting() {
            connection.waiting_since = None;
        }
        if header.wants_receipt {
            connection.inbound.note(header.transmission, now);
        }
        if header.is_probe {
            connection.search.asked(u16::try_from(packet.len()).unwrap_or(u16::MAX));
        } else if let (true, Ok(bytes)) = (header.has_probed, fragment.try_into()) {
            connection.search.heard(u16::from_le_bytes(bytes), now);
            let window_bytes = self.config.window_bytes;
            connection.follow_path(|bytes| window(window_bytes, bytes));
        }
        let is_pending = vi.state == ViState::PendingConnect;
        vi.connection = Some(connection);
        if is_pending {
            // Whoever sends data has heard the answer.
            self.agreed(now, id);
        }
        match self.take(now, id, &header, fragment) {
            Ok(()) => Some(id),
            Err(Failure { reason, failed }) => {
                self.break_vi(now, id, reason, failed, Tells::Peer);
                None
            }
        }
    }

    /// Takes a fragment, if the packet has one and it is its turn.
    fn take(
        &mut self,
        now: Nanos,
        id: ViId,
        header: &Header,
        fragment: &[u8],
    ) -> Result<(), Failure> {
        let Some(vi) = self.vis.get_mut(&id) else { return Ok(()) };
        if !header.has_fragment || vi.state != ViState::Connected {
            return Ok(());
        }
        let Some(mut connection) = vi.connection.take() else { return Ok(()) };
        let before = connection.inbound.repeated;
        let arrival = connection.inbound.arrive(header.sequence, header.oldest, fragment);
        self.counters.fragments_repeated += connection.inbound.repeated - before;
        let mut taken = Ok(());
        match arrival {
            Arrival::Now { is_after_gap } => {
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
            // [rfc5681, §4.2]: what is out of order is told of at once.
            Arrival::Kept | Arrival::Old => connection.inbound.hurry(now),
            Arrival::TooFar => self.counters.packets_refused += 1,
        }
        vi.connection = Some(connection);
        taken
    }

    fn after_arrivals(&mut self, now: Nanos, id: Option<ViId>) {
        let Some(id) = id else { return };
        self.settle(now, id);
        self.is_urgent |= self.wake_if_needed(now, id);
        self.set_alarm(id);
    }

    /// Ends the descriptors that are done.
    fn settle(&mut self, now: Nanos, id: ViId) {
        let Some(vi) = self.vis.get_mut(&id) else { return };
        let Some(connection) = vi.connection.as_ref() else { return };
        let heard = connection.out.oldest();
        if transfer::settle(&mut self.objects, vi, heard) {
            self.break_vi(now, id, Reason::DescriptorFailed, None, Tells::Peer);
        }
    }

    /// Puts a packet without data on its way.
    pub(super) fn send(&mut self, to: P, control: &Control) {
        let packet = control.encode(&self.secret);
        self.outbox.push_back((to, packet));
    }

    /// Notes that a VI has something to send, if it has. Returns whether that is more than receipts.
    fn wake_if_needed(&mut self, now: Nanos, id: ViId) -> bool {
        let Some(vi) = self.vis.get(&id) else { return false };
        let Some(connection) = vi.connection.as_ref() else { return false };
        let out = &connection.out;
        let has_data = out.has_repeat() || (out.takes_more() && transfer::has_more(vi, connection));
        let has_more = has_data || connection.search.has_packet();
        if has_more || connection.inbound.due().is_some_and(|due| due <= now) {
            self.wake(id);
        }
        has_data
    }

    /// Notes that a VI may have something to send.
    pub(super) fn wake(&mut self, id: ViId) {
        if let Some(vi) = self.vis.get_mut(&id)
            && !vi.is_ready
            && vi.state == ViState::Connected
        {
            vi.is_ready = true;
            self.ready.push_back(id);
        }
    }

    /// Makes the next packets, at the end of `out`, which is empty. At most `count` of them.
    pub(super) fn transmit(
        &mut self,
        now: Nanos,
        count: usize,
        out: &mut Gather,
    ) -> Option<Batch<P>> {
        self.is_urgent = false;
        self.departed(now);
        if let Some((to, packet)) = self.outbox.pop_front() {
            self.counters.packets_sent += 1;
            out.push(&packet);
            return Some(Batch { to, packet_bytes: packet.len() });
        }
        while let Some(id) = self.ready.pop_front() {
            let Some(vi) = self.vis.get_mut(&id) else { continue };
            vi.is_ready = false;
            let Some(mut connection) = vi.connection.take() else { continue };
            let to = connection.path;
            let made = make_packets(now, &self.objects, vi, &mut connection, count, out);
            if made.sent > 0 {
                // There may be more; others come first.
                vi.is_ready = true;
                self.ready.push_back(id);
            }
            vi.connection = Some(connection);
            self.counters.packets_sent += made.sent;
            self.counters.fragments_sent_again += made.repeats;
            if let Some(Failure { reason, failed }) = made.failure {
                self.break_vi(now, id, reason, failed, Tells::Peer);
            } else {
                self.departing = Some(id);
            }
            if made.sent > 0 {
                return Some(Batch { to, packet_bytes: made.packet_bytes });
            }
            self.departed(now);
        }
        None
    }

    /// The packets that were made have departed, or wait outside.
    pub(super) fn departed(&mut self, now: Nanos) {
        if let Some(id) = self.departing.take() {
            self.settle(now, id);
            self.set_alarm(id);
        }
    }

    // -------------------------------------------------------------- paths

    /// Returns a path of which the engine wants to know what it takes.
    pub(super) fn unmeasured(&mut self) -> Option<P> {
        self.unmeasured.pop()
    }

    pub(super) fn wants_measure(&mut self, path: P) {
        if !self.unmeasured.contains(&path) {
            self.unmeasured.push(path);
        }
    }

    /// Says how long the packets may be that a path takes; whether they arrive is found out by each connection.
    pub(super) fn set_packet_bytes(&mut self, path: P, bytes: usize) {
        let bytes = bytes.clamp(PACKET_BYTES_MIN, self.config.packet_bytes_max);
        let mut asking = Vec::new();
        for (id, vi) in &mut self.vis {
            if let Some(connection) = vi.connection.as_mut().filter(|found| found.path == path) {
                connection.search.set_most(bytes);
                connection.follow_path(|bytes| window(self.config.window_bytes, bytes));
                if connection.search.has_packet() {
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
        self.alarms.first().map(|(at, _)| *at)
    }

    pub(super) fn set(&mut self, at: Nanos, alarm: Alarm) {
        self.alarms.insert((at, alarm));
    }

    /// Begins to look for old requests.
    pub(super) fn sweep_later(&mut self, now: Nanos) {
        if !mem::replace(&mut self.is_sweeping, true) {
            self.set(now + SWEEP_EVERY, Alarm::Sweep);
        }
    }

    /// Sees to it that there is an alarm when the VI needs one, or before. One that comes too early finds nothing to
    /// do and sets the next: that is cheaper than moving it with every packet.
    pub(super) fn set_alarm(&mut self, id: ViId) {
        let Config { keep_alive, dead_after, .. } = self.config;
        let Some(vi) = self.vis.get_mut(&id) else { return };
        let at = match (&vi.attempt, &vi.connection) {
            (Some(attempt), _) => attempt.deadline(),
            (None, Some(connection)) => connection.deadline(nanos(keep_alive), nanos(dead_after)),
            (None, None) => return,
        };
        if vi.alarm.is_none_or(|set| at < set) {
            if let Some(set) = vi.alarm.replace(at) {
                self.alarms.remove(&(set, Alarm::Vi(id)));
            }
            self.alarms.insert((at, Alarm::Vi(id)));
        }
    }

    /// Does what is due. Returns whether anything was.
    pub(super) fn expire(&mut self, now: Nanos) -> bool {
        let mut is_due = false;
        while let Some((at, alarm)) = self.alarms.first().copied()
            && at <= now
        {
            is_due = true;
            self.alarms.remove(&(at, alarm));
            match alarm {
                Alarm::Vi(id) => self.expire_vi(now, id),
                Alarm::Parting(from, to) => self.expire_parting(now, (from, to)),
                Alarm::Sweep => {
                    self.is_sweeping = false;
                    self.sweep(now);
                }
            }
        }
        is_due
    }

    fn expire_vi(&mut self, now: Nanos, id: ViId) {
        let Config { keep_alive, dead_after, .. } = self.config;
        let Some(vi) = self.vis.get_mut(&id) else { return };
        vi.alarm = None;
        if vi.attempt.is_some() {
            self.expire_attempt(now, id);
            self.set_alarm(id);
            return;
        }
        let Some(connection) = vi.connection.as_mut() else { return };
        if connection.waiting_since.is_none_or(|_| !connection.out.is_waiting()) {
            connection.waiting_since = None;
            if connection.heard_at.saturating_add(nanos(keep_alive)) <= now {
                connection.wants_ping = true;
            }
        } else if connection.deadline(nanos(keep_alive), nanos(dead_after)) <= now
            && connection
                .waiting_since
                .is_some_and(|since| since.max(connection.heard_at) + nanos(dead_after) <= now)
        {
            self.counters.peers_silent += 1;
            self.break_vi(now, id, Reason::TransportFailed, None, Tells::Peer);
            return;
        }
        if connection.out.deadline().is_some_and(|at| at <= now) {
            connection.wants_ping |= connection.out.expire(now);
            if connection.out.probes() == FALLS_AFTER {
                connection.search.fall();
                connection.follow_path(|bytes| window(self.config.window_bytes, bytes));
            }
        }
        if connection.search.expire(now) || connection.out.probes() >= 2 {
            let window_bytes = self.config.window_bytes;
            connection.follow_path(|bytes| window(window_bytes, bytes));
            // Routers may have said something meanwhile.
            let path = connection.path;
            self.wants_measure(path);
        }
        self.settle(now, id);
        self.wake(id);
        // Receipts that are due depart with `transmit`, which comes next.
        self.set_alarm_after(now, id);
    }

    /// As [`set_alarm`](Self::set_alarm), but not for what departs now.
    fn set_alarm_after(&mut self, now: Nanos, id: ViId) {
        self.set_alarm(id);
        if let Some(vi) = self.vis.get_mut(&id)
            && let Some(at) = vi.alarm
            && at <= now
        {
            self.alarms.remove(&(at, Alarm::Vi(id)));
            vi.alarm = None;
        }
    }

    fn sweep(&mut self, now: Nanos) {
        self.heard_calls.retain(|_, until| *until > now);
        self.requests.retain(|_, caller| caller.expires_at > now);
        self.peer_requests.retain(|(_, caller)| caller.expires_at > now);
        let is_empty = self.heard_calls.is_empty()
            && self.requests.is_empty()
            && self.peer_requests.is_empty();
        if !is_empty {
            self.sweep_later(now);
        }
    }

    // -------------------------------------------------------------- ends

    /// Breaks a connection: what is posted ends, the consumer and perhaps the peer are told.
    pub(super) fn break_vi(
        &mut self,
        now: Nanos,
        id: ViId,
        reason: Reason,
        failed: Option<(u64, Status)>,
        tells: Tells,
    ) {
        let Some(vi) = self.vis.get_mut(&id) else { return };
        let Some(connection) = vi.connection.take() else { return };
        // Of what the peer told, this side's descriptors are meant; of what it is told, its own.
        let own = if tells == Tells::Nobody { failed } else { None };
        vi.flush(&mut self.objects, own);
        vi.change(ViEvent::Break);
        self.events.push_back(NicEvent::Broken { vi: id, reason });
        self.forget(&connection);
        if tells == Tells::Peer {
            self.part(
                now,
                connection.path,
                Over { to: connection.peer, from: connection.own, reason, failed },
            );
        }
    }

    pub(super) fn forget(&mut self, connection: &Connection<P>) {
        self.names_of.remove(&connection.own);
    }

    pub(super) fn disconnect(&mut self, now: Nanos, id: ViId) {
        self.leave(now, id, Reason::Disconnected);
        let Some(vi) = self.vis.get_mut(&id) else { return };
        let connection = vi.connection.take();
        vi.flush(&mut self.objects, None);
        vi.change(ViEvent::Disconnect);
        if let Some(connection) = connection {
            self.forget(&connection);
            let reason = Reason::Disconnected;
            self.part(
                now,
                connection.path,
                Over { to: connection.peer, from: connection.own, reason, failed: None },
            );
        }
    }

    /// Tells all peers, once, that this NIC ends.
    pub(super) fn end(&mut self) {
        let reason = Reason::PeerDied;
        self.outbox.clear();
        let mut overs = Vec::new();
        for vi in self.vis.values() {
            if let Some(connection) = vi.connection.as_ref() {
                let (to, from) = (connection.peer, connection.own);
                overs.push((connection.path, Over { to, from, reason, failed: None }));
            } else if let Some((path, from)) = vi.attempt.as_ref().and_then(Attempt::called) {
                overs.push((path, Over { to: 0, from, reason, failed: None }));
            }
        }
        let callers = self.requests.values().chain(self.peer_requests.iter().map(|(_, it)| it));
        for caller in callers {
            overs.push((caller.path, Over { to: caller.name, from: 0, reason, failed: None }));
        }
        overs.extend(self.partings.values().map(|parting| (parting.path, parting.over)));
        for (path, over) in overs {
            self.send(path, &Control::Over(over));
        }
        self.ready.clear();
    }

    // -------------------------------------------------------------- completions

    pub(super) fn poll(&mut self, cq: CqId) -> Option<Completion> {
        let completion = self.objects.queues.get_mut(&cq)?.pop_front()?;
        if let Some(vi) = self.vis.get_mut(&completion.vi) {
            vi.release(completion.queue);
        }
        Some(completion)
    }

    pub(super) fn completed(&mut self, vi: ViId, queue: Queue) -> Option<Completion> {
        let vi = self.vis.get_mut(&vi)?;
        let completion = vi.side(queue).pop_front()?;
        vi.release(queue);
        Some(completion)
    }

    /// Whether the consumer would find something.
    pub(super) fn has_news(&self) -> bool {
        !self.events.is_empty()
            || self.objects.queues.values().any(|queue| !queue.is_empty())
            || self.vis.values().any(|vi| !vi.sent.is_empty() || !vi.received.is_empty())
    }

    /// Whether something was made by arrivals that should not wait until there are no more of them.
    pub(super) fn is_urgent(&self) -> bool {
        self.is_urgent || !self.outbox.is_empty()
    }

    /// Whether packets wait to be made.
    pub(super) fn has_packets(&self) -> bool {
        !self.outbox.is_empty() || !self.ready.is_empty()
    }
}

/// How many packets of some length have so many bytes.
fn window(window_bytes: usize, packet_bytes: usize) -> u16 {
    let count = window_bytes / packet_bytes.max(PACKET_BYTES_MIN);
    u16::try_from(count.clamp(4, FRAGMENTS_MAX)).unwrap_or(4)
}

/// What was made for one connection.
#[derive(Debug, Default)]
struct Made {
    sent: u64,
    repeats: u64,
    packet_bytes: usize,
    failure: Option<Failure>,
}

/// Makes packets of a connection: what is sent again, what is new, receipts, pings.
fn make_packets<P: Path>(
    now: Nanos,
    objects: &Objects,
    vi: &mut Vi<P>,
    connection: &mut Connection<P>,
    count: usize,
    out: &mut Gather,
) -> Made {
    let mut made = Made::default();
    if connection.search.has_packet() {
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
            send_receipt(now, connection, out);
            if out.len() == start {
                break;
            }
        } else {
            break;
        }
        made.sent += 1;
        let length = out.len() - start;
        if is_first {
            made.packet_bytes = length;
        }
        if length < made.packet_bytes || length < connection.packet_bytes {
            break;
        }
    }
    made
}

fn send_again<P: Path>(now: Nanos, connection: &mut Connection<P>, out: &mut Gather) {
    if let Some(departure) = connection.out.repeat(now) {
        put_packet(now, connection, departure, out);
    }
}

fn put_packet<P: Path>(
    now: Nanos,
    connection: &mut Connection<P>,
    departure: Departure,
    out: &mut Gather,
) {
    let length = connection.out.fragment(departure.sequence).map_or(0, Gather::len);
    let mut header = connection.header(departure.transmission, length, now);
    header.sequence = narrow(departure.sequence);
    header.has_fragment = true;
    if let Some(fragment) = connection.out.fragment(departure.sequence) {
        header.gather(fragment, connection.key.as_ref(), out);
    }
    connection.note_departure(now);
}

/// A packet that shows how long packets may be, or says that one has arrived.
fn send_probe<P: Path>(now: Nanos, connection: &mut Connection<P>, out: &mut Gather) {
    let until = now + connection.out.round_trip.probe_timeout(0);
    let Some(departing) = connection.search.next(until) else { return };
    let was_due = connection.inbound.due().is_some();
    let mut header = connection.header(0, connection.fragment_bytes(), now);
    match departing {
        Departing::Probe(bytes) => {
            header.is_probe = true;
            let padding = vec![0; bytes.saturating_sub(connection.size(0))];
            out.append(|out| header.encode(&padding, connection.key.as_ref(), out));
            if was_due {
                // It may be too long to arrive.
                connection.inbound.hurry(now);
            }
        }
        Departing::Answer(bytes) => {
            header.has_probed = true;
            let bytes = bytes.to_le_bytes();
            out.append(|out| header.encode(&bytes, connection.key.as_ref(), out));
        }
    }
}

/// A packet without a fragment, if it has something to say.
fn send_receipt<P: Path>(now: Nanos, connection: &mut Connection<P>, out: &mut Gather) {
    let is_due = connection.inbound.due().is_some_and(|due| due <= now);
    let wants_ping = mem::take(&mut connection.wants_ping);
    if !is_due && !wants_ping {
        return;
    }
    let transmission = if wants_ping { connection.out.send_ping(now) } else { 0 };
    if wants_ping {
        connection.note_departure(now);
    }
    let room = connection.fragment_bytes().saturating_sub(RECEIPT_WORDS * 8);
    let header = connection.header(transmission, room, now);
    out.append(|out| header.encode(&[], connection.key.as_ref(), out));
}

pub(super) fn nanos(duration: std::time::Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{congestion::RoundTrip, connection::Terms},
        *,
    };

    /// Goal: how many fragments a peer may send follows the path, so that as many bytes are under way whatever its
    /// packets. Method: what a connection tells, when its path becomes known and when it becomes shorter.
    #[test]
    fn the_window_follows_the_path() {
        let config = Config::default();
        let own_window = window(config.window_bytes, config.packet_bytes_max);
        let mut connection = Connection::new(
            Terms {
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
            connection.search.set_most(bytes);
            connection.follow_path(|bytes| window(config.window_bytes, bytes));
            let told = usize::from(connection.header(0, 0, 0).window);
            assert!(told == 4 || told * bytes <= config.window_bytes, "{told} of {bytes}");
            assert!((told + 1) * bytes > config.window_bytes, "{told} of {bytes}");
        }
    }
}
