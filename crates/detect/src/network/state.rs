//! The state of the simulated network: nodes, sockets, and the packets under way.

mod progress;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::RawFd,
};

use rustix::io::Errno;

use super::{
    event::{EventQueue, Happening, NetworkEvent},
    link::Link,
    names::is_name,
    node_id::NodeId,
    sockets::{ListenerState, Protocol, SocketKind, SocketState, SocketTable},
    tcp::{Connection, Ends, Output, Segment, SegmentKind},
    trace::{DropReason, TraceDetail, TraceEventKind, TraceLog},
    udp::UdpPacket,
};
use crate::{
    clock::Instant,
    detector::{HandleAddress, PollerEvent, Ready, Watch},
    sync::{Arc, AtomicU64, Ordering},
};

pub(super) use self::progress::NetworkStep;

pub(super) struct NodeState {
    pub(super) name: String,
    pub(super) ips: Vec<IpAddr>,
    pub(super) is_up: bool,
    /// Sockets whose readiness no poll pass has taken yet.
    pub(super) announced: Vec<u64>,
    /// Never used twice in a row, not even after a restart.
    next_port: u16,
}

pub(super) struct NetworkState {
    random: fastrand::Rng,
    pub(super) trace: u64,
    pub(super) nodes: Vec<NodeState>,
    /// Nodes that have announced readiness of which their host does not know.
    pub(super) announcing: Vec<NodeId>,
    /// See `SimulatedNetwork`.
    attention: Arc<AtomicU64>,
    pub(super) default_link: Link,
    pub(super) links: BTreeMap<(NodeId, NodeId), Link>,
    /// The time at which all that waits for a link with a bandwidth has left.
    free: BTreeMap<(NodeId, NodeId), Instant>,
    pub(super) cuts: BTreeSet<(NodeId, NodeId)>,
    pub(super) sockets: SocketTable,
    pub(super) descriptors: BTreeMap<RawFd, u64>,
    /// The kernel's cookies of some of these descriptors, by which their duplicates are known.
    pub(super) cookies: BTreeMap<u64, RawFd>,
    pub(super) connections: BTreeMap<(NodeId, SocketAddr, SocketAddr), u64>,
    pub(super) bound: BTreeMap<(NodeId, Protocol, u16), Vec<u64>>,
    /// The addresses that stand for names of Unix sockets; a name keeps its own.
    pub(super) names: BTreeMap<(NodeId, Vec<u8>), SocketAddr>,
    events: EventQueue,
    /// The connections whose ACK waits, in order: all wait for the same time.
    acks: VecDeque<(Instant, u64)>,
    /// Kept for its memory.
    #[expect(clippy::vec_box, reason = "a segment is moved often")]
    segments: Vec<Box<Segment>>,
    /// The number of the next connection or event.
    next_number: u64,
    pub(super) now: Instant,
    log: TraceLog,
}

/// The fate of a packet that leaves its node.
enum PacketFate {
    /// It is under way, with this number.
    Sent(u64),
    Dropped(DropReason),
}

/// The first of the ports that are given to sockets without one [RFC 6335, §6].
const FIRST_PORT: u16 = 49_152;

/// The headers of a datagram [RFC 768; RFC 791, §3.1].
const UDP_HEADERS: u64 = 28;

impl NetworkState {
    pub(super) fn new(random: fastrand::Rng, log: TraceLog, attention: Arc<AtomicU64>) -> Self {
        Self {
            random,
            trace: 0,
            nodes: Vec::new(),
            announcing: Vec::new(),
            attention,
            default_link: Link::new(),
            links: BTreeMap::new(),
            free: BTreeMap::new(),
            cuts: BTreeSet::new(),
            sockets: SocketTable::default(),
            descriptors: BTreeMap::new(),
            cookies: BTreeMap::new(),
            connections: BTreeMap::new(),
            bound: BTreeMap::new(),
            names: BTreeMap::new(),
            events: EventQueue::default(),
            acks: VecDeque::new(),
            segments: Vec::new(),
            next_number: 0,
            now: Instant::from_nanos(0),
            log,
        }
    }

    pub(super) fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    pub(super) fn add_node(&mut self, name: &str, ips: &[IpAddr]) -> NodeId {
        let taken = |ip: &IpAddr| self.nodes.iter().any(|node| node.ips.contains(ip));
        let mut ips = ips.to_vec();
        if ips.is_empty() {
            let first = u32::from(Ipv4Addr::new(10, 0, 0, 1));
            let mut free = (first..).map(|ip| IpAddr::from(Ipv4Addr::from_bits(ip)));
            ips.extend(free.find(|ip| !taken(ip)));
        }
        let is_named = self.nodes.iter().any(|node| node.name == name);
        assert!(!is_named, "there are two nodes named {name}");
        assert!(
            !ips.iter().any(taken),
            "an address of node {name} is that of another one: {ips:?}"
        );
        let id = NodeId::of_index(self.nodes.len()).expect("invariant: there are fewer nodes");
        self.nodes.push(NodeState {
            name: name.to_owned(),
            ips,
            is_up: true,
            announced: Vec::new(),
            next_port: FIRST_PORT,
        });
        id
    }

    pub(super) fn stop(&mut self, node: NodeId) {
        self.nodes[node.index()].is_up = false;
        self.nodes[node.index()].announced.clear();
        let is_there = |socket: &SocketState| socket.node == node;
        let gone = self.sockets.iter().filter(|(_, socket)| is_there(socket)).map(|(id, _)| id);
        for id in gone.collect::<Vec<_>>() {
            self.remove(id);
        }
    }

    /// Returns the node that has `ip`, seen from `from`.
    pub(super) fn route(&self, from: NodeId, ip: IpAddr) -> Option<NodeId> {
        if ip.is_loopback() || ip.is_unspecified() || is_name(ip) {
            return Some(from);
        }
        let index = self.nodes.iter().position(|node| node.ips.contains(&ip))?;
        NodeId::of_index(index)
    }

    /// Returns the address from which `node` sends to `to`.
    pub(super) fn source(&self, node: NodeId, to: IpAddr) -> Option<IpAddr> {
        if to.is_loopback() || is_name(to) || self.nodes[node.index()].ips.contains(&to) {
            return Some(to);
        }
        let ips = &self.nodes[node.index()].ips;
        ips.iter().copied().find(|ip| ip.is_ipv4() == to.is_ipv4())
    }

    pub(super) fn open(
        &mut self,
        node: NodeId,
        protocol: Protocol,
        kind: SocketKind,
        descriptor: RawFd,
    ) -> u64 {
        let id = self.sockets.insert(SocketState::new(node, protocol, kind));
        self.name(id, descriptor);
        id
    }

    /// Opens a socket without a descriptor, whose readiness is announced to the watcher of another one.
    pub(super) fn open_beside(
        &mut self,
        (node, protocol): (NodeId, Protocol),
        kind: SocketKind,
        leader: u64,
    ) -> u64 {
        let socket = SocketState { leader: Some(leader), ..SocketState::new(node, protocol, kind) };
        self.sockets.insert(socket)
    }

    /// Makes `descriptor` the name of a socket.
    pub(super) fn name(&mut self, id: u64, descriptor: RawFd) {
        self.descriptors.insert(descriptor, id);
        if let Some(socket) = self.sockets.get_mut(id) {
            socket.descriptor = Some(descriptor);
        }
    }

    pub(super) fn watch(&mut self, watch: Watch) -> bool {
        let Some(&id) = self.descriptors.get(&watch.descriptor) else { return false };
        let Some(socket) = self.sockets.get_mut(id) else { return false };
        socket.watch = Some((watch.address, watch.key));
        let ready = match &socket.kind {
            SocketKind::Fresh(_) => Ready::NONE,
            SocketKind::Listener(listener) if listener.queue.is_empty() => Ready::NONE,
            SocketKind::Listener(_) => Ready::READABLE,
            SocketKind::Stream(connection) => connection.ready(),
            SocketKind::Datagram(datagrams) if datagrams.is_empty() => Ready::WRITABLE,
            SocketKind::Datagram(_) => Ready::READABLE | Ready::WRITABLE,
        };
        self.announce(id, ready);
        true
    }

    /// Queues the readiness of a socket for its node's poller.
    pub(super) fn announce(&mut self, id: u64, ready: Ready) {
        let Some(socket) = self.sockets.get_mut(id) else { return };
        if let Some(leader) = socket.leader {
            return self.announce(leader, ready);
        }
        if ready.is_empty() || socket.watch.is_none() {
            return;
        }
        if socket.announced.is_empty() {
            self.nodes[socket.node.index()].announced.push(id);
            self.announcing.push(socket.node);
            self.attention.store(0, Ordering::Relaxed);
        }
        socket.announced = socket.announced | ready;
    }

    /// Hands the announced readiness to `route`.
    pub(super) fn take_announced(
        &mut self,
        mut route: impl FnMut(NodeId, HandleAddress, PollerEvent),
    ) {
        while let Some(node) = self.announcing.pop() {
            self.take_announced_of(node, &mut route);
        }
    }

    /// Hands the announced readiness of a node's sockets to `route`.
    #[inline]
    pub(super) fn take_announced_of(
        &mut self,
        node: NodeId,
        route: &mut impl FnMut(NodeId, HandleAddress, PollerEvent),
    ) {
        for id in self.nodes[node.index()].announced.drain(..) {
            let Some(socket) = self.sockets.get_mut(id) else { continue };
            let ready = mem::take(&mut socket.announced);
            if let Some((address, key)) = socket.watch {
                route(node, address, PollerEvent { key, ready });
            }
        }
    }

    /// Reserves an address; port 0 stands for one that is free.
    pub(super) fn bind(&mut self, id: u64, address: SocketAddr) -> Result<SocketAddr, Errno> {
        let socket = self.sockets.get(id).ok_or(Errno::BADF)?;
        let (node, protocol) = (socket.node, socket.protocol);
        if socket.bound.is_some() {
            return Err(Errno::INVAL);
        }
        let ip = address.ip();
        let is_own = self.nodes[node.index()].ips.contains(&ip);
        if !is_own && !ip.is_loopback() && !ip.is_unspecified() {
            return Err(Errno::ADDRNOTAVAIL);
        }
        let mut address = address;
        if address.port() == 0 {
            let is_free = |state: &Self, port| !state.bound.contains_key(&(node, protocol, port));
            address.set_port(self.free_port(node, is_free).ok_or(Errno::ADDRINUSE)?);
        }
        let sharers = self.bound.get(&(node, protocol, address.port()));
        let sharers = sharers.into_iter().flatten().filter_map(|&other| self.sockets.get(other));
        let mut addresses = sharers.filter_map(|other| other.bound);
        let collides = |other: SocketAddr| {
            let (other, is_wide) = (other.ip(), other.ip().is_unspecified() || ip.is_unspecified());
            other == ip || is_wide && other.is_ipv4() == ip.is_ipv4()
        };
        if addresses.any(collides) {
            return Err(Errno::ADDRINUSE);
        }
        self.bound.entry((node, protocol, address.port())).or_default().push(id);
        if let Some(socket) = self.sockets.get_mut(id) {
            socket.bound = Some(address);
        }
        Ok(address)
    }

    fn free_port(&mut self, node: NodeId, is_free: impl Fn(&Self, u16) -> bool) -> Option<u16> {
        for _ in FIRST_PORT..=u16::MAX {
            let next = &mut self.nodes[node.index()].next_port;
            let port = *next;
            *next = port.checked_add(1).unwrap_or(FIRST_PORT);
            if is_free(self, port) {
                return Some(port);
            }
        }
        None
    }

    pub(super) fn find_bound(
        &self,
        node: NodeId,
        protocol: Protocol,
        to: SocketAddr,
        is_wanted: impl Fn(&SocketState) -> bool,
    ) -> Option<u64> {
        let ids = self.bound.get(&(node, protocol, to.port()))?;
        let matching = |exact: bool| {
            ids.iter().copied().find(|&id| {
                self.sockets.get(id).is_some_and(|socket| {
                    let bound = socket.bound.map(|bound| bound.ip());
                    let fits = bound.is_some_and(|ip| {
                        // A socket at `::` also receives what is for IPv4.
                        ip == to.ip()
                            || !exact
                                && ip.is_unspecified()
                                && (ip == IpAddr::V6(Ipv6Addr::UNSPECIFIED)
                                    || ip.is_ipv4() == to.is_ipv4())
                    });
                    fits && is_wanted(socket)
                })
            })
        };
        matching(true).or_else(|| matching(false))
    }

    pub(super) fn connect(&mut self, id: u64, to: SocketAddr) -> Result<(), Errno> {
        let socket = self.sockets.get(id).ok_or(Errno::BADF)?;
        let SocketKind::Fresh(buffers) = socket.kind else { return Err(Errno::ISCONN) };
        let (node, bound) = (socket.node, socket.bound);
        let mut to = to;
        if to.ip().is_unspecified() {
            let is_v4 = to.is_ipv4();
            to.set_ip(if is_v4 { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
        }
        let peer = self.route(node, to.ip()).ok_or(Errno::HOSTUNREACH)?;
        let given = bound.map(|bound| bound.ip()).filter(|ip| !ip.is_unspecified());
        let ip = given.or_else(|| self.source(node, to.ip())).ok_or(Errno::NETUNREACH)?;
        let port = match bound {
            Some(bound) => bound.port(),
            None => {
                let is_free = |state: &Self, port| {
                    let local = SocketAddr::new(ip, port);
                    !state.bound.contains_key(&(node, Protocol::Tcp, port))
                        && !state.connections.contains_key(&(node, local, to))
                };
                self.free_port(node, is_free).ok_or(Errno::ADDRNOTAVAIL)?
            }
        };
        let local = SocketAddr::new(ip, port);
        if self.connections.contains_key(&(node, local, to)) {
            return Err(Errno::ADDRINUSE);
        }
        self.connections.insert((node, local, to), id);
        let ends = Ends { local, remote: to, number: self.number(), id, peer };
        let mut output = Output::new(self.now, &mut self.random, Vec::new());
        let connection = Connection::connect(ends, buffers, &mut output);
        let Output { segments, ready, .. } = output;
        if let Some(socket) = self.sockets.get_mut(id) {
            socket.kind = SocketKind::Stream(Box::new(connection));
        }
        self.carry_out(id, segments, ready);
        Ok(())
    }

    pub(super) fn listen(&mut self, id: u64, backlog: usize) -> Result<(), Errno> {
        let socket = self.sockets.get_mut(id).ok_or(Errno::BADF)?;
        let SocketKind::Fresh(buffers) = socket.kind else { return Err(Errno::INVAL) };
        let backlog = backlog.max(1);
        let listener = ListenerState { backlog, buffers, queue: VecDeque::new(), half_open: 0 };
        socket.kind = SocketKind::Listener(listener);
        if socket.bound.is_none() {
            self.bind(id, (Ipv4Addr::UNSPECIFIED, 0).into())?;
        }
        Ok(())
    }

    /// Calls a connection's method, and carries out what that causes.
    pub(super) fn with_connection<T>(
        &mut self,
        id: u64,
        call: impl FnOnce(&mut Connection, &mut Output<'_>) -> T,
    ) -> Option<T> {
        let socket = self.sockets.get_mut(id)?;
        let SocketKind::Stream(connection) = &mut socket.kind else { return None };
        let segments = mem::take(&mut self.segments);
        let mut output = Output::new(self.now, &mut self.random, segments);
        let value = call(connection, &mut output);
        let Output { segments, ready, .. } = output;
        if segments.is_empty() && ready.is_empty() && socket.is_settled() {
            self.segments = segments;
        } else {
            self.carry_out(id, segments, ready);
        }
        Some(value)
    }

    /// Carries out what a call of a connection has caused: sends, announces, sets its timers, forgets it if it is over.
    #[expect(clippy::vec_box, reason = "as in `Output`")]
    fn carry_out(&mut self, id: u64, mut segments: Vec<Box<Segment>>, ready: Ready) {
        let Some(socket) = self.sockets.get_mut(id) else { return };
        let SocketKind::Stream(connection) = &socket.kind else { return };
        let (node, peer, is_over) = (socket.node, connection.peer, connection.is_over());
        let (ack_at, deadline) = (socket.new_ack_at(), socket.new_deadline());
        socket.ack_at = ack_at.or(socket.ack_at);
        socket.timer_at = deadline.or(socket.timer_at);
        if !ready.is_empty() {
            self.announce(id, ready);
        }
        for segment in segments.drain(..) {
            self.send_segment(node, peer, segment);
        }
        self.segments = segments;
        if is_over {
            self.remove(id);
            return;
        }
        if let Some(at) = ack_at {
            self.need_attention(at);
            self.acks.push_back((at, id));
        }
        if let Some(deadline) = deadline {
            self.plan(deadline, node, Happening::Timer(id));
        }
    }

    /// Calls methods of connections whose segments are not sent.
    pub(super) fn without_network<T>(&mut self, call: impl FnOnce(&mut Output<'_>) -> T) -> T {
        call(&mut Output::new(self.now, &mut self.random, Vec::new()))
    }

    /// After a change of a connection: sets its timers, forgets it if it is over.
    pub(super) fn settle(&mut self, id: u64) {
        self.carry_out(id, Vec::new(), Ready::NONE);
    }

    fn plan(&mut self, at: Instant, node: NodeId, happening: Happening) {
        let number = self.number();
        self.need_attention(at);
        self.events.push(NetworkEvent { at, number, node, happening });
    }

    /// Records the fate of a packet, as far as it is known when it leaves.
    fn log_fate(&self, (from, to): (NodeId, NodeId), packet: &Happening, fate: PacketFate) {
        let Some(what) = packet.info() else { return };
        self.log.note(self.now, from, || match fate {
            PacketFate::Sent(packet) => TraceEventKind::Sent { packet, to, what },
            PacketFate::Dropped(reason) => {
                TraceEventKind::Dropped { packet: None, to, what, reason }
            }
        });
    }

    fn send_segment(&mut self, from: NodeId, to: NodeId, segment: Box<Segment>) {
        let wire_bytes = segment.wire_bytes();
        self.send((from, to), wire_bytes, Happening::Segment(segment));
    }

    /// Refuses a segment for which there is no connection.
    fn refuse(&mut self, node: NodeId, segment: Box<Segment>) {
        if let Some(answer) = segment.refusal()
            && let Some(to) = self.route(node, answer.to.ip())
        {
            self.send_segment(node, to, answer);
        }
    }

    /// Puts a packet on its way.
    fn send(&mut self, (from, to): (NodeId, NodeId), wire_bytes: u64, packet: Happening) {
        let drop_it = |state: &mut Self, reason| {
            if state.log.is_recording(TraceDetail::Events) {
                state.log_fate((from, to), &packet, PacketFate::Dropped(reason));
            }
        };
        if self.cuts.contains(&(from, to)) {
            drop_it(self, DropReason::Cut);
            return;
        }
        let link = match self.links.get(&(from, to)) {
            Some(link) => *link,
            None if from == to => Link::loopback(),
            None => self.default_link,
        };
        let free = self.free.get(&(from, to)).copied().unwrap_or(self.now);
        let Some(departure) = link.departure(self.now, free, wire_bytes) else {
            drop_it(self, DropReason::Full);
            return;
        };
        if departure > self.now {
            self.free.insert((from, to), departure);
        }
        let [first, second] = link.draw(&mut self.random);
        let Some(first) = first else {
            drop_it(self, DropReason::Loss);
            return;
        };
        let double = second.and_then(|time| Some((time, packet.duplicate()?)));
        self.deliver_after((from, to), (departure, first), packet);
        if let Some((time, packet)) = double {
            self.deliver_after((from, to), (departure, time), packet);
        }
    }

    fn deliver_after(
        &mut self,
        (from, to): (NodeId, NodeId),
        (departure, time_ns): (Instant, u64),
        packet: Happening,
    ) {
        let at = Instant::from_nanos(departure.as_nanos().saturating_add(time_ns));
        if self.log.is_recording(TraceDetail::Events) {
            let number = self.next_number + 1;
            self.log_fate((from, to), &packet, PacketFate::Sent(number));
        }
        self.plan(at, to, packet);
    }

    pub(super) fn send_datagram(
        &mut self,
        id: u64,
        bytes: &[u8],
        to: SocketAddr,
    ) -> Result<(), Errno> {
        let socket = self.sockets.get(id).ok_or(Errno::BADF)?;
        let (node, bound) = (socket.node, socket.bound.ok_or(Errno::DESTADDRREQ)?);
        let receiver = self.route(node, to.ip()).ok_or(Errno::HOSTUNREACH)?;
        let given = Some(bound.ip()).filter(|ip| !ip.is_unspecified());
        let ip = given.or_else(|| self.source(node, to.ip())).ok_or(Errno::NETUNREACH)?;
        let from = SocketAddr::new(ip, bound.port());
        let packet = Box::new(UdpPacket { from, to, bytes: bytes.to_vec() });
        let wire_bytes = UDP_HEADERS + bytes.len() as u64;
        self.send((node, receiver), wire_bytes, Happening::Datagram(packet));
        Ok(())
    }

    fn deliver(&mut self, node: NodeId, segment: Box<Segment>) {
        let is_current = |state: &Self, id| {
            let socket = state.sockets.get(id).filter(|socket| socket.node == node);
            socket.is_some_and(|socket| matches!(&socket.kind, SocketKind::Stream(it) if it.number == segment.number))
        };
        if is_current(self, segment.to_id) {
            return self.receive(segment.to_id, segment);
        }
        let known = self.connections.get(&(node, segment.to, segment.from)).copied();
        match known {
            Some(id) if is_current(self, id) => self.receive(id, segment),
            _ if segment.kind == SegmentKind::Syn => {
                if let Some(id) = known {
                    // The peer has restarted.
                    self.with_connection(id, |it, output| it.fail(Errno::CONNRESET, output));
                    self.connections.remove(&(node, segment.to, segment.from));
                }
                self.call_in(node, segment);
            }
            _ => self.refuse(node, segment),
        }
    }

    /// A segment has come for a connection.
    fn receive(&mut self, id: u64, segment: Box<Segment>) {
        let listener = self.with_connection(id, |connection, output| {
            let listener = connection.listener.filter(|_| connection.is_accepting());
            connection.receive(segment, output);
            listener.filter(|_| !connection.is_accepting())
        });
        if let Some(listener) = listener.flatten() {
            self.established(listener, id);
        }
    }

    /// A peer wants to connect.
    fn call_in(&mut self, node: NodeId, syn: Box<Segment>) {
        let is_listener = |socket: &SocketState| matches!(socket.kind, SocketKind::Listener(_));
        let found = self.find_bound(node, Protocol::Tcp, syn.to, is_listener);
        let Some(listener_id) = found else { return self.refuse(node, syn) };
        let Some(peer) = self.route(node, syn.from.ip()) else { return };
        let socket = self.sockets.get_mut(listener_id);
        let Some(SocketKind::Listener(listener)) = socket.map(|socket| &mut socket.kind) else {
            return;
        };
        if listener.queue.len() + listener.half_open >= listener.backlog {
            // As Linux does: the peer tries again.
            return;
        }
        listener.half_open += 1;
        let buffers = listener.buffers;
        let mut output = Output::new(self.now, &mut self.random, Vec::new());
        let ends = (self.sockets.next_id(), peer, listener_id);
        let connection = Connection::accept(&syn, ends, buffers, &mut output);
        let Output { segments, ready, .. } = output;
        let kind = SocketKind::Stream(Box::new(connection));
        let id = self.sockets.insert(SocketState::new(node, Protocol::Tcp, kind));
        self.connections.insert((node, syn.to, syn.from), id);
        self.carry_out(id, segments, ready);
    }

    /// A connection can be accepted, or has failed before.
    fn established(&mut self, listener_id: u64, id: u64) {
        let is_open = self.connection(id).is_some_and(|it| !it.is_dead());
        let socket = self.sockets.get_mut(listener_id);
        let Some(SocketKind::Listener(listener)) = socket.map(|socket| &mut socket.kind) else {
            return;
        };
        if is_open {
            listener.half_open -= 1;
            listener.queue.push_back(id);
            self.announce(listener_id, Ready::READABLE);
        }
    }

    fn deliver_datagram(&mut self, node: NodeId, packet: UdpPacket) {
        let accepts = |socket: &SocketState| match &socket.kind {
            SocketKind::Datagram(it) => it.peer.is_none_or(|peer| peer == packet.from),
            _ => false,
        };
        let found = self.find_bound(node, Protocol::Udp, packet.to, accepts);
        if let Some(id) = found {
            let socket = self.sockets.get_mut(id);
            if let Some(SocketKind::Datagram(datagrams)) = socket.map(|socket| &mut socket.kind)
                && datagrams.arrive(packet)
            {
                self.announce(id, Ready::READABLE);
            }
            return;
        }
        // ICMP tells the sender, if it is connected.
        let Some(sender) = self.route(node, packet.from.ip()) else { return };
        let is_connected = |socket: &SocketState| match &socket.kind {
            SocketKind::Datagram(it) => it.peer == Some(packet.to),
            _ => false,
        };
        if let Some(id) = self.find_bound(sender, Protocol::Udp, packet.from, is_connected) {
            // With the headers of what it answers [RFC 792].
            self.send((node, sender), 2 * UDP_HEADERS, Happening::Unreachable(id));
        }
    }

    /// Takes a connection that was established, and names it.
    pub(super) fn accept(
        &mut self,
        id: u64,
        descriptor: RawFd,
    ) -> Result<(u64, SocketAddr), Errno> {
        let Some(SocketKind::Listener(listener)) =
            self.sockets.get_mut(id).map(|socket| &mut socket.kind)
        else {
            return Err(Errno::INVAL);
        };
        let accepted = listener.queue.pop_front().ok_or(Errno::AGAIN)?;
        self.name(accepted, descriptor);
        let socket = self.sockets.get_mut(accepted);
        let Some(SocketKind::Stream(connection)) = socket.map(|socket| &mut socket.kind) else {
            return Err(Errno::CONNABORTED);
        };
        connection.listener = None;
        Ok((accepted, connection.remote))
    }

    /// The application closes a socket.
    pub(super) fn close(&mut self, id: u64) {
        let Some(socket) = self.sockets.get_mut(id) else { return };
        let resets = socket.resets;
        let descriptor = socket.descriptor.take();
        socket.watch = None;
        if let Some(descriptor) = descriptor {
            self.forget_name(descriptor);
        }
        let Some(socket) = self.sockets.get(id) else { return };
        match &socket.kind {
            SocketKind::Stream(_) => {
                self.with_connection(id, |connection, output| connection.close(resets, output));
            }
            SocketKind::Listener(_) => {
                let waits = |socket: &SocketState| matches!(&socket.kind, SocketKind::Stream(it) if it.listener == Some(id));
                let waiting = self.sockets.iter().filter(|(_, socket)| waits(socket));
                for child in waiting.map(|(child, _)| child).collect::<Vec<_>>() {
                    self.with_connection(child, |it, output| it.close(true, output));
                }
                self.remove(id);
            }
            SocketKind::Fresh(_) | SocketKind::Datagram(_) => self.remove(id),
        }
    }

    fn forget_name(&mut self, descriptor: RawFd) {
        self.descriptors.remove(&descriptor);
        self.cookies.retain(|_, it| *it != descriptor);
    }

    fn remove(&mut self, id: u64) {
        let Some(socket) = self.sockets.remove(id) else { return };
        if let Some(descriptor) = socket.descriptor {
            self.forget_name(descriptor);
        }
        if let Some(bound) = socket.bound {
            let key = (socket.node, socket.protocol, bound.port());
            if let Some(ids) = self.bound.get_mut(&key) {
                ids.retain(|it| *it != id);
                if ids.is_empty() {
                    self.bound.remove(&key);
                }
            }
        }
        if let SocketKind::Stream(connection) = &socket.kind {
            let name = (socket.node, connection.local, connection.remote);
            if self.connections.get(&name) == Some(&id) {
                self.connections.remove(&name);
            }
            if let Some(listener_id) = connection.listener
                && let Some(SocketKind::Listener(listener)) =
                    self.sockets.get_mut(listener_id).map(|socket| &mut socket.kind)
            {
                let count = listener.queue.len();
                listener.queue.retain(|it| *it != id);
                if listener.queue.len() == count {
                    listener.half_open -= 1;
                }
            }
        }
    }

    fn note(&mut self, value: u64) {
        // FNV-1a over words, as for the tasks.
        self.trace = (self.trace ^ value).wrapping_mul(0x0000_0100_0000_01B3);
    }
}
