//! The state of a socket in the network.

use std::{collections::VecDeque, fmt, net::SocketAddr, os::fd::RawFd};

use slab::Slab;

use super::{
    names::is_name,
    node_id::NodeId,
    tcp::{Connection, SocketBuffers},
    udp::Datagrams,
};
use crate::{
    clock::Instant,
    detector::{HandleAddress, Ready},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Protocol {
    Tcp,
    Udp,
    /// Datagrams within a node. Streams are TCP's.
    Unix,
}

pub(super) struct SocketState {
    pub(super) node: NodeId,
    pub(super) protocol: Protocol,
    pub(super) descriptor: Option<RawFd>,
    pub(super) bound: Option<SocketAddr>,
    /// Of a Unix socket that was bound.
    pub(super) path: Option<Box<str>>,
    pub(super) kind: SocketKind,
    pub(super) watch: Option<(HandleAddress, u32)>,
    /// Its readiness is announced to the watcher of this socket instead.
    pub(super) leader: Option<u64>,
    pub(super) announced: Ready,
    /// Closing it resets the connection (`SO_LINGER` of zero seconds).
    pub(super) resets: bool,
    /// The time of its latest timer event: earlier ones are void.
    pub(super) timer_at: Option<Instant>,
    /// The time of the latest ACK that waits in the queue of ACKs.
    pub(super) ack_at: Option<Instant>,
}

pub(super) enum SocketKind {
    /// Neither connected nor listening.
    Fresh(SocketBuffers),
    Listener(ListenerState),
    Stream(Box<Connection>),
    Datagram(Datagrams),
}

pub(super) struct ListenerState {
    pub(super) backlog: usize,
    pub(super) buffers: SocketBuffers,
    /// Connections to accept.
    pub(super) queue: VecDeque<u64>,
    /// Connections whose ACK has not come.
    pub(super) half_open: usize,
}

/// The sockets of all nodes. A number is a place, and how many sockets there were before, so that it never comes again; none is zero.
#[derive(Default)]
pub(super) struct SocketTable {
    rows: Slab<(u64, Box<SocketState>)>,
    count: u64,
}

/// The bits of a number that are its place.
const PLACE_BITS: u32 = 24;

const fn place(id: u64) -> usize {
    (id & ((1 << PLACE_BITS) - 1)) as usize
}

impl SocketTable {
    /// Returns the number of the next socket to insert.
    pub(super) fn next_id(&self) -> u64 {
        let place = self.rows.vacant_key() as u64;
        assert!(place < 1 << PLACE_BITS, "a network has at most 16 million sockets at once");
        (self.count + 1) << PLACE_BITS | place
    }

    pub(super) fn insert(&mut self, socket: SocketState) -> u64 {
        let id = self.next_id();
        self.count += 1;
        self.rows.insert((id, Box::new(socket)));
        id
    }

    #[inline]
    pub(super) fn get(&self, id: u64) -> Option<&SocketState> {
        self.rows.get(place(id)).filter(|row| row.0 == id).map(|row| &*row.1)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut SocketState> {
        self.rows.get_mut(place(id)).filter(|row| row.0 == id).map(|row| &mut *row.1)
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Box<SocketState>> {
        self.get(id)?;
        Some(self.rows.remove(place(id)).1)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &SocketState)> {
        self.rows.iter().map(|(_, (id, socket))| (*id, &**socket))
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }
}

impl SocketState {
    pub(super) fn new(node: NodeId, protocol: Protocol, kind: SocketKind) -> Self {
        Self {
            node,
            protocol,
            descriptor: None,
            bound: None,
            path: None,
            kind,
            watch: None,
            leader: None,
            announced: Ready::NONE,
            resets: false,
            timer_at: None,
            ack_at: None,
        }
    }

    /// Returns whether there is nothing to do after a change of a connection: its timers are set, and it is not over.
    pub(super) fn is_settled(&self) -> bool {
        let is_over = matches!(&self.kind, SocketKind::Stream(connection) if connection.is_over());
        !is_over && self.new_ack_at().is_none() && self.new_deadline().is_none()
    }

    /// Returns when an ACK is to be sent of which no queue knows yet.
    pub(super) fn new_ack_at(&self) -> Option<Instant> {
        let SocketKind::Stream(connection) = &self.kind else { return None };
        connection.ack_at().filter(|&ack_at| self.ack_at != Some(ack_at))
    }

    /// Returns the time for which a timer event is missing.
    pub(super) fn new_deadline(&self) -> Option<Instant> {
        let SocketKind::Stream(connection) = &self.kind else { return None };
        connection.deadline().filter(|&deadline| self.timer_at.is_none_or(|at| at > deadline))
    }
}

impl fmt::Display for SocketState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.protocol {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Unix => "Unix",
        };
        if let Some(path) = &self.path {
            return write!(f, "Unix {path}");
        }
        match (&self.kind, self.bound) {
            (SocketKind::Stream(it), _) if is_name(it.local.ip()) => f.write_str("Unix stream"),
            (_, Some(bound)) if is_name(bound.ip()) => f.write_str("Unix socket"),
            (SocketKind::Stream(it), _) => write!(f, "{name} {} to {}", it.local, it.remote),
            (SocketKind::Listener(_), Some(bound)) => write!(f, "{name} listener {bound}"),
            (SocketKind::Datagram(Datagrams { peer: Some(peer), .. }), Some(bound)) => {
                write!(f, "{name} {bound} to {peer}")
            }
            (_, Some(bound)) => write!(f, "{name} {bound}"),
            (_, None) => write!(f, "{name} socket"),
        }
    }
}
