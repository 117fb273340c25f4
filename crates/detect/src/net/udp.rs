//! UDP specifics: binding, connecting, addresses, multicast.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    task::{Context, Poll, ready},
};

use tokio::io::ReadBuf;

use super::{
    datagram::Datagram,
    lookup::{self, ToSocketAddrs},
    refused, simulated,
    socket::{DatagramSocket, Socket, sealed::Sealed},
};
use crate::{builtin::Direction, detectors::AsyncFd, server::Server};

/// A UDP socket. Methods shared with Unix sockets are at [`Datagram`].
pub type UdpSocket = Datagram<std::net::UdpSocket>;

impl UdpSocket {
    /// Binds a socket to `address`, or to the first of its addresses for which that is possible; port 0 lets the kernel
    /// choose one.
    ///
    /// # Cancel safety
    /// Cancel safe. It waits only for the lookup of a name.
    ///
    /// # Errors
    /// The kernel's error: [`io::ErrorKind::AddrInUse`], [`io::ErrorKind::AddrNotAvailable`],
    /// [`io::ErrorKind::PermissionDenied`] for a port below 1024; the message of these names the address and the remedy. Also the errors of [`lookup_host`](super::lookup_host)
    /// and [`AsyncFd::new`](crate::AsyncFd::new).
    pub async fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        let server = Server::current()?;
        let addresses = lookup::resolve(Some(&server), &address).await?;
        lookup::first_of(addresses, |address| Self::bind_on(&server, address))
    }

    /// Like [`bind`](Self::bind), watched at `server`, and for an address that is known.
    ///
    /// # Errors
    /// Same as [`bind`](Self::bind), apart from the lookup.
    pub fn bind_on(server: &Server, address: SocketAddr) -> io::Result<Self> {
        let refused = |error| refused::bind(address, error);
        let Some((name, simulated)) = simulated::udp(server)? else {
            let socket = std::net::UdpSocket::bind(address).map_err(refused)?;
            return Self::from_std_on(server, socket);
        };
        simulated.bind(address).map_err(refused)?;
        Ok(Self { simulated: Some(simulated), fd: AsyncFd::new_on(server, name.into())? })
    }

    /// Sets the destination of [`send`](Datagram::send), and the only sender to receive from: the first of the addresses to
    /// which there is a route.
    ///
    /// # Cancel safety
    /// Cancel safe. It waits only for the lookup of a name.
    ///
    /// # Errors
    /// The kernel's error, for example if there is no route; those of [`lookup_host`](super::lookup_host).
    pub async fn connect(&self, address: impl ToSocketAddrs) -> io::Result<()> {
        let addresses = lookup::resolve(None, &address).await?;
        lookup::first_of(addresses, |address| self.connect_to(address))
    }

    /// Like [`connect`](Self::connect), to an address that is known.
    ///
    /// # Errors
    /// The kernel's error, for example if there is no route.
    pub fn connect_to(&self, address: SocketAddr) -> io::Result<()> {
        match &self.simulated {
            None => self.fd.as_inner().connect(address),
            Some(simulated) => simulated.set_peer(address),
        }
    }

    /// Returns the address to which the socket is connected.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] if the socket is not connected.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        match &self.simulated {
            None => self.fd.as_inner().peer_addr(),
            Some(simulated) => simulated.peer_addr(),
        }
    }

    /// Sends a datagram to `address`, the first one of a name. Returns the number of bytes, which is all of them.
    ///
    /// # Cancel safety
    /// Cancel safe: the datagram is not sent unless this returns.
    ///
    /// # Errors
    /// The kernel's error, for this datagram or an earlier one; those of [`lookup_host`](super::lookup_host); otherwise as
    /// [`send`](Datagram::send).
    pub async fn send_to(&self, datagram: &[u8], address: impl ToSocketAddrs) -> io::Result<usize> {
        let address =
            lookup::resolve(None, &address).await?.next().ok_or_else(lookup::no_address)?;
        self.fd
            .async_io(Direction::Write, |socket| self.transmit_to(socket, datagram, address))
            .await
    }

    /// The poll-style [`send_to`](Self::send_to); one waiting task in common with all polls that
    /// send.
    ///
    /// # Errors
    /// Same as [`send_to`](Self::send_to).
    pub fn poll_send_to(
        &self,
        cx: &Context<'_>,
        datagram: &[u8],
        address: SocketAddr,
    ) -> Poll<io::Result<usize>> {
        self.fd.poll_io(Direction::Write, cx, |socket| self.transmit_to(socket, datagram, address))
    }

    /// Sends a datagram like [`send_to`](Self::send_to), if that can be done without waiting.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is no room; otherwise as [`send_to`](Self::send_to).
    pub fn try_send_to(&self, datagram: &[u8], address: SocketAddr) -> io::Result<usize> {
        self.fd.try_io(Direction::Write, |socket| self.transmit_to(socket, datagram, address))
    }

    /// Waits for a datagram and copies it to `buffer` without taking it; returns the number of bytes
    /// that fitted, and the sender.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is taken.
    ///
    /// # Errors
    /// Same as [`recv`](Datagram::recv).
    pub async fn peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.fd.async_io(Direction::Read, |socket| self.peek_through(socket, buffer)).await
    }

    /// The poll-style [`peek_from`](Self::peek_from), into the unfilled part of `buffer`; one waiting
    /// task in common with all polls that receive.
    ///
    /// # Errors
    /// Same as [`recv`](Datagram::recv).
    pub fn poll_peek_from(
        &self,
        cx: &Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<SocketAddr>> {
        let room = buffer.initialize_unfilled();
        let (count, address) =
            ready!(self.fd.poll_io(Direction::Read, cx, |socket| self.peek_through(socket, room)))?;
        buffer.advance(count);
        Poll::Ready(Ok(address))
    }

    /// Copies a datagram like [`peek_from`](Self::peek_from), if one is there.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is no datagram; otherwise as [`recv`](Datagram::recv).
    pub fn try_peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.fd.try_io(Direction::Read, |socket| self.peek_through(socket, buffer))
    }

    /// Waits for a datagram and returns its sender, without taking it.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is taken.
    ///
    /// # Errors
    /// Same as [`recv`](Datagram::recv).
    pub async fn peek_sender(&self) -> io::Result<SocketAddr> {
        self.fd.async_io(Direction::Read, |socket| self.sender(socket)).await
    }

    /// The poll-style [`peek_sender`](Self::peek_sender); one waiting task in common with all polls that receive.
    ///
    /// # Errors
    /// Same as [`recv`](Datagram::recv).
    pub fn poll_peek_sender(&self, cx: &Context<'_>) -> Poll<io::Result<SocketAddr>> {
        self.fd.poll_io(Direction::Read, cx, |socket| self.sender(socket))
    }

    /// Returns the sender of the next datagram, if one is there.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is no datagram; otherwise as [`recv`](Datagram::recv).
    pub fn try_peek_sender(&self) -> io::Result<SocketAddr> {
        self.fd.try_io(Direction::Read, |socket| self.sender(socket))
    }

    /// Returns whether datagrams may be sent to broadcast addresses.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn broadcast(&self) -> io::Result<bool> {
        self.fd.as_inner().broadcast()
    }

    /// Sets whether datagrams may be sent to broadcast addresses. Default off.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_broadcast(&self, is_on: bool) -> io::Result<()> {
        self.fd.as_inner().set_broadcast(is_on)
    }

    /// Returns how many hops an IPv4 datagram may take.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn ttl(&self) -> io::Result<u32> {
        self.fd.as_inner().ttl()
    }

    /// Sets how many hops an IPv4 datagram may take, 1 to 255.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_ttl(&self, hops: u32) -> io::Result<()> {
        self.fd.as_inner().set_ttl(hops)
    }

    /// Returns whether multicast datagrams are looped back to members on this host.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn multicast_loop_v4(&self) -> io::Result<bool> {
        self.fd.as_inner().multicast_loop_v4()
    }

    /// Returns how many hops an IPv4 multicast datagram may take.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn multicast_ttl_v4(&self) -> io::Result<u32> {
        self.fd.as_inner().multicast_ttl_v4()
    }

    /// Returns whether IPv6 multicast datagrams are looped back to members on this host.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn multicast_loop_v6(&self) -> io::Result<bool> {
        self.fd.as_inner().multicast_loop_v6()
    }

    /// Sets whether IPv6 multicast datagrams are looped back to members on this host. Default on.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_multicast_loop_v6(&self, is_on: bool) -> io::Result<()> {
        self.fd.as_inner().set_multicast_loop_v6(is_on)
    }

    /// Joins the multicast group `group` on the interface with the address `interface`; if that is
    /// unspecified, the kernel chooses one.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn join_multicast_v4(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        self.fd.as_inner().join_multicast_v4(&group, &interface)
    }

    /// Leaves the multicast group `group` on `interface`.
    ///
    /// # Errors
    /// The kernel's error: [`io::ErrorKind::AddrNotAvailable`] if it was not joined.
    pub fn leave_multicast_v4(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        self.fd.as_inner().leave_multicast_v4(&group, &interface)
    }

    /// Joins the multicast group `group` on the interface with the index `interface`; with 0 the
    /// kernel chooses one.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn join_multicast_v6(&self, group: Ipv6Addr, interface: u32) -> io::Result<()> {
        self.fd.as_inner().join_multicast_v6(&group, interface)
    }

    /// Leaves the multicast group `group` on `interface`.
    ///
    /// # Errors
    /// The kernel's error: [`io::ErrorKind::AddrNotAvailable`] if it was not joined.
    pub fn leave_multicast_v6(&self, group: Ipv6Addr, interface: u32) -> io::Result<()> {
        self.fd.as_inner().leave_multicast_v6(&group, interface)
    }

    /// Sets whether multicast datagrams are looped back to members on this host. Default on.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_multicast_loop_v4(&self, is_on: bool) -> io::Result<()> {
        self.fd.as_inner().set_multicast_loop_v4(is_on)
    }

    /// Sets how many hops an IPv4 multicast datagram may take. Default 1: the local network.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_multicast_ttl_v4(&self, hops: u32) -> io::Result<()> {
        self.fd.as_inner().set_multicast_ttl_v4(hops)
    }
}

/// The operations, each on the kernel's socket or on the simulated one.
impl UdpSocket {
    fn transmit_to(
        &self,
        socket: &std::net::UdpSocket,
        datagram: &[u8],
        address: SocketAddr,
    ) -> io::Result<usize> {
        match &self.simulated {
            None => socket.send_to(datagram, address),
            Some(simulated) => simulated.send(datagram, Some(address)),
        }
    }

    fn peek_through(
        &self,
        socket: &std::net::UdpSocket,
        room: &mut [u8],
    ) -> io::Result<(usize, SocketAddr)> {
        match &self.simulated {
            None => socket.peek_from(room),
            Some(simulated) => simulated.receive(&mut ReadBuf::new(room), true),
        }
    }

    fn sender(&self, socket: &std::net::UdpSocket) -> io::Result<SocketAddr> {
        Ok(self.peek_through(socket, &mut [])?.1)
    }
}

impl TryFrom<std::net::UdpSocket> for UdpSocket {
    type Error = io::Error;

    /// The same as `from_std`.
    fn try_from(socket: std::net::UdpSocket) -> io::Result<Self> {
        Self::from_std(socket)
    }
}

impl Sealed for std::net::UdpSocket {}

impl Socket for std::net::UdpSocket {
    type Address = SocketAddr;

    fn local_address(&self) -> io::Result<SocketAddr> {
        self.local_addr()
    }

    fn simulated_address(address: SocketAddr, _: Option<Vec<u8>>) -> SocketAddr {
        address
    }
}

impl DatagramSocket for std::net::UdpSocket {
    fn receive_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.recv_from(buffer)
    }
}
