//! A socket in the simulated network, as its owner sees it: the calls that the kernel has for a real one.

use std::{
    fmt,
    io::{self, IoSlice, IoSliceMut},
    net::SocketAddr,
    os::fd::RawFd,
};

use rustix::io::Errno;
use tokio::io::ReadBuf;

use super::{
    handle::{NetworkNode, SimulatedNetwork},
    names::is_name,
    sockets::{Protocol, SocketKind},
    state::NetworkState,
    tcp::{Connection, Output, SocketBuffers},
    udp::{DATAGRAM_MAX, Datagrams, QUEUE_MAX},
};
use crate::sync::RealGuard;

/// A socket in the network. Dropping it closes it.
pub(crate) struct NetworkSocket {
    network: SimulatedNetwork,
    id: u64,
}

impl NetworkSocket {
    /// Opens a TCP socket that is known by `descriptor`, which must stay open as long.
    pub(crate) fn tcp(at: &NetworkNode, descriptor: RawFd) -> Self {
        Self::open(at, Protocol::Tcp, SocketKind::Fresh(SocketBuffers::default()), descriptor)
    }

    /// Opens a UDP socket that is known by `descriptor`, which must stay open as long.
    pub(crate) fn udp(at: &NetworkNode, descriptor: RawFd) -> Self {
        Self::open(at, Protocol::Udp, SocketKind::Datagram(Datagrams::default()), descriptor)
    }

    /// Makes duplicates of its descriptor known, which has this cookie of the kernel's (`SO_COOKIE`).
    pub(crate) fn name_duplicates(&self, cookie: u64, descriptor: RawFd) {
        self.state().cookies.insert(cookie, descriptor);
    }

    /// Opens a UDP socket whose arrivals are announced to the watcher of `leader`.
    pub(crate) fn udp_beside(leader: &Self) -> io::Result<Self> {
        let mut state = leader.state();
        let node = state.sockets.get(leader.id).ok_or(Errno::BADF)?.node;
        let kind = SocketKind::Datagram(Datagrams::default());
        let id = state.open_beside((node, Protocol::Udp), kind, leader.id);
        drop(state);
        Ok(Self { network: leader.network.clone(), id })
    }

    /// Returns whether a datagram has arrived.
    pub(crate) fn has_datagram(&self) -> bool {
        let state = self.state();
        let kind = state.sockets.get(self.id).map(|socket| &socket.kind);
        matches!(kind, Some(SocketKind::Datagram(datagrams)) if !datagrams.is_empty())
    }

    /// Opens a Unix datagram socket that is known by `descriptor`, which must stay open as long.
    pub(crate) fn unix_datagram(at: &NetworkNode, descriptor: RawFd) -> Self {
        Self::open(at, Protocol::Unix, SocketKind::Datagram(Datagrams::default()), descriptor)
    }

    fn open(at: &NetworkNode, protocol: Protocol, kind: SocketKind, descriptor: RawFd) -> Self {
        let id = at.network.state().open(at.node, protocol, kind, descriptor);
        Self { network: at.network.clone(), id }
    }

    fn state(&self) -> RealGuard<'_, NetworkState> {
        self.network.state()
    }

    pub(crate) fn bind(&self, address: SocketAddr) -> io::Result<()> {
        self.state().bind(self.id, address)?;
        Ok(())
    }

    /// Binds a Unix socket.
    pub(crate) fn bind_name(&self, name: &[u8]) -> io::Result<()> {
        Ok(self.state().bind_name(self.id, name)?)
    }

    /// Returns the address that stands for a name.
    pub(crate) fn find_name(&self, name: &[u8]) -> io::Result<SocketAddr> {
        Ok(self.state().find_name(self.id, name)?)
    }

    /// Returns the name for which an address stands.
    pub(crate) fn name_of(&self, address: SocketAddr) -> Option<Vec<u8>> {
        if is_name(address.ip()) { self.state().name_of(address) } else { None }
    }

    /// Opens two Unix streams that are connected.
    pub(crate) fn stream_pair(at: &NetworkNode, descriptors: [RawFd; 2]) -> [Self; 2] {
        let ids = at.network.state().stream_pair(at.node, descriptors);
        ids.map(|id| Self { network: at.network.clone(), id })
    }

    /// Connects two Unix datagram sockets to each other.
    pub(crate) fn pair_with(&self, other: &Self) -> io::Result<()> {
        Ok(self.state().pair_datagrams([self.id, other.id])?)
    }

    pub(crate) fn connect(&self, address: SocketAddr) -> io::Result<()> {
        Ok(self.state().connect(self.id, address)?)
    }

    pub(crate) fn listen(&self, backlog: u32) -> io::Result<()> {
        Ok(self.state().listen(self.id, backlog as usize)?)
    }

    /// Reads or changes the sizes of the buffers of what the socket becomes.
    pub(crate) fn buffers<T>(
        &self,
        use_them: impl FnOnce(&mut SocketBuffers) -> T,
    ) -> io::Result<T> {
        match self.state().sockets.get_mut(self.id).map(|socket| &mut socket.kind) {
            Some(SocketKind::Fresh(buffers)) => Ok(use_them(buffers)),
            _ => Err(Errno::INVAL.into()),
        }
    }

    /// Accepts a connection, which is known by `descriptor`.
    pub(crate) fn accept(&self, descriptor: RawFd) -> io::Result<(Self, SocketAddr)> {
        let (id, address) = self.state().accept(self.id, descriptor)?;
        Ok((Self { network: self.network.clone(), id }, address))
    }

    /// Makes the drop reset the connection, or not.
    pub(crate) fn reset_on_drop(&self, resets: bool) {
        if let Some(socket) = self.state().sockets.get_mut(self.id) {
            socket.resets = resets;
        }
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        let state = self.state();
        let socket = state.sockets.get(self.id).ok_or(Errno::BADF)?;
        match (&socket.kind, socket.bound) {
            (SocketKind::Stream(connection), _) => Ok(connection.local),
            (_, Some(bound)) => Ok(bound),
            (_, None) => Ok(SocketAddr::from(([0, 0, 0, 0], 0))),
        }
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        let state = self.state();
        let peer = match &state.sockets.get(self.id).ok_or(Errno::BADF)?.kind {
            SocketKind::Stream(it) if !it.is_connecting() && !it.is_dead() => Some(it.remote),
            SocketKind::Datagram(datagrams) => datagrams.peer,
            _ => None,
        };
        Ok(peer.ok_or(Errno::NOTCONN)?)
    }

    pub(crate) fn take_error(&self) -> io::Result<Option<io::Error>> {
        let mut state = self.state();
        let error = match &mut state.sockets.get_mut(self.id).ok_or(Errno::BADF)?.kind {
            SocketKind::Stream(connection) => connection.take_error(),
            SocketKind::Datagram(datagrams) => datagrams.take_error(),
            SocketKind::Fresh(_) | SocketKind::Listener(_) => None,
        };
        Ok(error.map(Into::into))
    }

    /// Reads, or peeks, into the unfilled part of `buffer`.
    pub(crate) fn read(&self, buffer: &mut ReadBuf<'_>, peeks: bool) -> io::Result<usize> {
        self.on_connection(|connection, output| {
            connection.read(peeks, |bytes| put(buffer, bytes), output)
        })
    }

    /// Like [`read`](Self::read), and tells whether nothing more is there.
    pub(crate) fn read_and_see(&self, buffer: &mut ReadBuf<'_>) -> io::Result<(usize, bool)> {
        self.on_connection(|connection, output| {
            let count = connection.read(false, |bytes| put(buffer, bytes), output)?;
            Ok((count, connection.unread_bytes() == 0))
        })
    }

    pub(crate) fn unread_bytes(&self) -> io::Result<u64> {
        self.on_connection(|connection, _| Ok(connection.unread_bytes()))
    }

    pub(crate) fn unsent_bytes(&self) -> io::Result<u64> {
        self.on_connection(|connection, _| Ok(connection.unsent_bytes()))
    }

    pub(crate) fn read_vectored(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut filled = 0;
        for buffer in buffers.iter_mut().filter(|buffer| !buffer.is_empty()) {
            match self.read(&mut ReadBuf::new(buffer), false) {
                Ok(count) => {
                    filled += count;
                    if count < buffer.len() {
                        break;
                    }
                }
                Err(_) if filled > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    pub(crate) fn write(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut state = self.state();
        if state.is_peer_gone(self.id) {
            return Err(Errno::PIPE.into());
        }
        let write = |connection: &mut Connection, output: &mut Output<'_>| {
            connection.write(buffers, output)
        };
        state.with_connection(self.id, write).unwrap_or_else(|| Err(Errno::NOTCONN.into()))
    }

    pub(crate) fn finish_writing(&self) {
        let _ = self.state().with_connection(self.id, Connection::finish_writing);
    }

    fn on_connection<T>(
        &self,
        call: impl FnOnce(&mut Connection, &mut Output<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        let called = self.state().with_connection(self.id, call);
        called.unwrap_or_else(|| Err(Errno::NOTCONN.into()))
    }

    /// Sets the destination of datagrams, and their only sender.
    pub(crate) fn set_peer(&self, address: SocketAddr) -> io::Result<()> {
        let mut state = self.state();
        let node = state.sockets.get(self.id).ok_or(Errno::BADF)?.node;
        state.route(node, address.ip()).ok_or(Errno::HOSTUNREACH)?;
        if is_name(address.ip())
            && state.find_bound(node, Protocol::Unix, address, |_| true).is_none()
        {
            return Err(Errno::CONNREFUSED.into());
        }
        match state.sockets.get_mut(self.id).map(|socket| &mut socket.kind) {
            Some(SocketKind::Datagram(datagrams)) => datagrams.peer = Some(address),
            _ => return Err(Errno::INVAL.into()),
        }
        Ok(())
    }

    /// Sends a datagram, to the peer if no address is given.
    pub(crate) fn send(&self, bytes: &[u8], to: Option<SocketAddr>) -> io::Result<usize> {
        let mut state = self.state();
        let socket = state.sockets.get_mut(self.id).ok_or(Errno::BADF)?;
        let SocketKind::Datagram(datagrams) = &mut socket.kind else {
            return Err(Errno::INVAL.into());
        };
        if let Some(error) = datagrams.take_error() {
            return Err(error.into());
        }
        let missing = match socket.protocol {
            Protocol::Unix => Errno::NOTCONN,
            Protocol::Tcp | Protocol::Udp => Errno::DESTADDRREQ,
        };
        let to = to.or(datagrams.peer).ok_or(missing)?;
        let is_local = is_name(to.ip());
        if bytes.len() > if is_local { QUEUE_MAX } else { DATAGRAM_MAX } {
            return Err(Errno::MSGSIZE.into());
        }
        match is_local {
            true => state.hand_over(self.id, bytes, to)?,
            false => state.send_datagram(self.id, bytes, to)?,
        }
        Ok(bytes.len())
    }

    /// Receives, or peeks at, a datagram; bytes that do not fit are lost.
    pub(crate) fn receive(
        &self,
        buffer: &mut ReadBuf<'_>,
        peeks: bool,
    ) -> io::Result<(usize, SocketAddr)> {
        let mut state = self.state();
        match &mut state.sockets.get_mut(self.id).ok_or(Errno::BADF)?.kind {
            SocketKind::Datagram(datagrams) => {
                let received = datagrams.receive(peeks, |bytes| put(buffer, bytes))?;
                state.announce_room(self.id);
                Ok(received)
            }
            _ => Err(Errno::INVAL.into()),
        }
    }
}

/// Copies as much as there is room for.
fn put(buffer: &mut ReadBuf<'_>, bytes: &[u8]) -> usize {
    let count = bytes.len().min(buffer.remaining());
    buffer.put_slice(&bytes[..count]);
    count
}

impl Drop for NetworkSocket {
    fn drop(&mut self) {
        self.state().close(self.id);
    }
}

impl fmt::Debug for NetworkSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        match state.sockets.get(self.id) {
            Some(socket) => write!(f, "{socket}"),
            None => f.write_str("closed"),
        }
    }
}
