//! Unix sockets: the names of a node's sockets, and datagrams that are delivered at once.
//!
//! A name stands for an address that is never on the wire. So a stream is a connection of the node to itself, with the time of its
//! loopback. A datagram needs no time and is never lost: a full queue refuses it.

use std::{net::SocketAddr, os::fd::RawFd};

use rustix::io::Errno;

use super::{
    names::{address, is_name},
    node_id::NodeId,
    sockets::{Protocol, SocketKind, SocketState},
    state::NetworkState,
    tcp::{Connection, Ends, SocketBuffers},
    udp::UdpPacket,
};
use crate::detector::Ready;

/// The longest name [unix(7)]: the kernel's field, without the end of the string.
const NAME_MAX: usize = 107;

impl NetworkState {
    /// Gives a socket a name, which may be in use by one that is gone.
    pub(super) fn bind_name(&mut self, id: u64, name: &[u8]) -> Result<(), Errno> {
        // A path ends at a NUL byte; an abstract name begins with one.
        if name.is_empty() || name[0] != 0 && name.contains(&0) {
            return Err(Errno::INVAL);
        }
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let node = self.sockets.get(id).ok_or(Errno::BADF)?.node;
        let key = (node, name.to_vec());
        let at = match self.names.get(&key) {
            Some(&at) => at,
            None => address(self.number()),
        };
        let is_taken = |protocol| self.find_bound(node, protocol, at, |_| true).is_some();
        if is_taken(Protocol::Tcp) || is_taken(Protocol::Unix) {
            return Err(Errno::ADDRINUSE);
        }
        self.names.insert(key, at);
        self.bind_exactly(id, at)?;
        if let Some(socket) = self.sockets.get_mut(id) {
            socket.path = Some(String::from_utf8_lossy(name).replace('\0', "@").into());
        }
        Ok(())
    }

    fn bind_exactly(&mut self, id: u64, at: SocketAddr) -> Result<(), Errno> {
        let socket = self.sockets.get_mut(id).ok_or(Errno::BADF)?;
        if socket.bound.is_some() {
            return Err(Errno::INVAL);
        }
        socket.bound = Some(at);
        let key = (socket.node, socket.protocol, at.port());
        self.bound.entry(key).or_default().push(id);
        Ok(())
    }

    /// Returns the address of a name, as a socket sees it.
    pub(super) fn find_name(&self, id: u64, name: &[u8]) -> Result<SocketAddr, Errno> {
        let node = self.sockets.get(id).ok_or(Errno::BADF)?.node;
        let missing = if name.starts_with(&[0]) { Errno::CONNREFUSED } else { Errno::NOENT };
        self.names.get(&(node, name.to_vec())).copied().ok_or(missing)
    }

    /// Returns the name of an address.
    pub(super) fn name_of(&self, at: SocketAddr) -> Option<Vec<u8>> {
        self.names.iter().find(|(_, it)| **it == at).map(|((_, name), _)| name.clone())
    }

    /// Returns whether the other end of a Unix stream is closed, which shows at once.
    pub(super) fn is_peer_gone(&self, id: u64) -> bool {
        let Some(socket) = self.sockets.get(id) else { return false };
        let SocketKind::Stream(near) = &socket.kind else { return false };
        if !is_name(near.local.ip()) || near.is_connecting() {
            return false;
        }
        let far = self.connections.get(&(socket.node, near.remote, near.local));
        far.and_then(|id| self.connection(*id)).is_none_or(Connection::is_orphan)
    }

    /// Opens two streams that are connected.
    pub(super) fn stream_pair(&mut self, node: NodeId, descriptors: [RawFd; 2]) -> [u64; 2] {
        let fresh = || SocketKind::Fresh(SocketBuffers::default());
        let ids = descriptors.map(|fd| self.open(node, Protocol::Tcp, fresh(), fd));
        let [near, far] = [address(self.number()), address(self.number())];
        let number = self.number();
        let buffers = SocketBuffers::default();
        let connections = self.without_network(|output| {
            let to_far = Ends { local: near, remote: far, number, id: ids[0], peer: node };
            let mut one = Connection::connect(to_far, buffers, output);
            let syn = output.segments.remove(0);
            let mut other = Connection::accept(&syn, (ids[1], node, 0), buffers, output);
            other.listener = None;
            one.receive(output.segments.remove(0), output);
            other.receive(output.segments.remove(0), output);
            [one, other]
        });
        for (id, connection) in ids.into_iter().zip(connections) {
            self.connections.insert((node, connection.local, connection.remote), id);
            if let Some(socket) = self.sockets.get_mut(id) {
                socket.kind = SocketKind::Stream(Box::new(connection));
            }
            self.settle(id);
        }
        ids
    }

    /// Connects two datagram sockets to each other.
    pub(super) fn pair_datagrams(&mut self, ids: [u64; 2]) -> Result<(), Errno> {
        let ends = ids.map(|_| address(self.number()));
        for (index, id) in ids.into_iter().enumerate() {
            self.bind_exactly(id, ends[index])?;
            if let Some(SocketKind::Datagram(datagrams)) =
                self.sockets.get_mut(id).map(|socket| &mut socket.kind)
            {
                datagrams.peer = Some(ends[1 - index]);
            }
        }
        Ok(())
    }

    /// Hands a datagram to the socket of a name.
    pub(super) fn hand_over(&mut self, id: u64, bytes: &[u8], to: SocketAddr) -> Result<(), Errno> {
        let socket = self.sockets.get(id).ok_or(Errno::BADF)?;
        // One without a name has an address that none can be bound to.
        let (node, from) = (socket.node, socket.bound.unwrap_or_else(|| address(0)));
        let receiver = self.receiver(node, to, from).ok_or(Errno::CONNREFUSED)?;
        let socket = self.sockets.get_mut(receiver);
        let Some(SocketKind::Datagram(datagrams)) = socket.map(|socket| &mut socket.kind) else {
            return Err(Errno::CONNREFUSED);
        };
        if !datagrams.arrive(UdpPacket { from, to, bytes: bytes.to_vec() }) {
            return Err(Errno::AGAIN);
        }
        self.announce(receiver, Ready::READABLE);
        Ok(())
    }

    /// Returns the socket of a name that receives from `from`.
    pub(super) fn receiver(&self, node: NodeId, to: SocketAddr, from: SocketAddr) -> Option<u64> {
        let accepts = |socket: &SocketState| match &socket.kind {
            SocketKind::Datagram(it) => it.peer.is_none_or(|peer| peer == from),
            _ => false,
        };
        self.find_bound(node, Protocol::Unix, to, accepts)
    }

    /// Tells those that are connected to a datagram socket with a name that it has room.
    pub(super) fn announce_room(&mut self, id: u64) {
        let Some(at) = self.sockets.get(id).and_then(|socket| socket.bound) else { return };
        if !is_name(at.ip()) {
            return;
        }
        let sends_there = |socket: &SocketState| matches!(&socket.kind, SocketKind::Datagram(it) if it.peer == Some(at));
        let senders = self.sockets.iter().filter(|(_, socket)| sends_there(socket));
        for sender in senders.map(|(id, _)| id).collect::<Vec<_>>() {
            self.announce(sender, Ready::WRITABLE);
        }
    }
}
