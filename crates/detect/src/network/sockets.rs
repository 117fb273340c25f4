//! The state of a socket in the network.

use std::{collections::VecDeque, fmt, net::SocketAddr, os::fd::RawFd};

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

/// The sockets of all nodes, in the order of their numbers, which never come again.
#[derive(Default)]
pub(super) struct SocketTable {
    ids: Vec<u64>,
    #[expect(clippy::vec_box, reason = "the removal of one moves pointers to all behind it")]
    sockets: Vec<Box<SocketState>>,
}

impl SocketTable {
    fn place(&self, id: u64) -> Option<usize> {
        self.ids.binary_search(&id).ok()
    }

    /// Adds a socket, whose number is greater than all before.
    pub(super) fn insert(&mut self, id: u64, socket: SocketState) {
        debug_assert!(self.ids.last().is_none_or(|&last| last < id), "numbers grow");
        self.ids.push(id);
        self.sockets.push(Box::new(socket));
    }

    pub(super) fn get(&self, id: u64) -> Option<&SocketState> {
        self.place(id).map(|place| &*self.sockets[place])
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut SocketState> {
        self.place(id).map(|place| &mut *self.sockets[place])
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Box<SocketState>> {
        let place = self.place(id)?;
        self.ids.remove(place);
        Some(self.sockets.remove(place))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &SocketState)> {
        self.ids.iter().copied().zip(self.sockets.iter().map(|socket| &**socket))
    }

    pub(super) const fn len(&self) -> usize {
        self.ids.len()
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
        }
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
