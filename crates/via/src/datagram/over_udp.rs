//! Datagrams over UDP: port `n` is the UDP port `base + n` of one address, so that the kernel arbitrates and
//! sorts them. Each group has its own socket, bound to the group's address: no socket listens more widely.

use std::{
    collections::BTreeMap,
    io::IoSlice,
    mem,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    event::epoll,
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, bind,
        recv, sendmsg_addr, socket_with, sockopt,
    },
};

use super::{
    HEADER_BYTES, Header, UdpConfig,
    batch::{self, BATCH, FEW, ReceivedHeader},
    error::{DatagramError, NodeAddress},
    ports::{DatagramRoute, IncomingDatagram, POLL_BATCH, Ports},
};
use crate::link::set_option;

/// The most errors of earlier sends that are taken in at once.
const ERRORS_MAX: usize = 64;
/// After this many polls of a socket without a datagram, while another socket of its port had one, most polls skip it:
/// a program that waits for a multicast receives nothing else, and vice versa. Before a sleep, the descriptor covers
/// all sockets.
const EMPTY_POLLS_MAX: u8 = 4;
/// One poll in this many skips no socket.
const FULL_POLL_EVERY: u32 = 8;

#[derive(Debug)]
pub(super) struct OverUdp {
    config: UdpConfig,
    epoll_fd: OwnedFd,
    sockets: BTreeMap<u8, PortSockets>,
    groups: Vec<Ipv4Addr>,
    /// The port whose socket the descriptor watches for room.
    awaits_room: Option<u8>,
}

/// The sockets of a port.
#[derive(Debug)]
struct PortSockets {
    /// The port's own socket, and one for each group.
    all: Vec<PortSocket>,
    /// The number of polls so far.
    poll_count: u32,
}

impl PortSockets {
    fn own(&self) -> Option<&OwnedFd> {
        self.all.first().map(|socket| &socket.descriptor)
    }
}

#[derive(Debug)]
struct PortSocket {
    descriptor: OwnedFd,
    /// Polls since the socket last had a datagram, in which another socket of the port had one.
    empty_polls: u8,
    /// True if there were several datagrams when there last was one.
    is_crowded: bool,
}

impl From<OwnedFd> for PortSocket {
    fn from(descriptor: OwnedFd) -> Self {
        Self { descriptor, empty_polls: 0, is_crowded: false }
    }
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

impl OverUdp {
    pub(super) fn new(config: UdpConfig) -> Result<Self, DatagramError> {
        let epoll_fd = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| DatagramError::kernel("creating an epoll instance", error))?;
        let sockets = BTreeMap::new();
        Ok(Self { config, epoll_fd, sockets, groups: Vec::new(), awaits_room: None })
    }

    fn udp_port(&self, number: u8) -> u16 {
        self.config.base_port + u16::from(number)
    }

    fn make(&self) -> Result<OwnedFd, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(family(self.config.address), SocketType::DGRAM, flags, None)
    }

    /// Makes the socket of a port, which the kernel gives to only one process.
    fn own_socket(&self, number: u8) -> Result<OwnedFd, Errno> {
        let socket = self.make()?;
        // Datagrams are not fragmented: one that is too long for the path is an error, and so is a port
        // without an owner, which the peer's kernel reports.
        match self.config.address {
            IpAddr::V4(address) => {
                sockopt::set_ip_mtu_discover(&socket, sockopt::Ipv4PathMtuDiscovery::DO)?;
                sockopt::set_ip_multicast_if(&socket, &address)?;
                set_int(&socket, libc::IPPROTO_IP, libc::IP_RECVERR, 1)?;
            }
            IpAddr::V6(_) => {
                sockopt::set_ipv6_mtu_discover(&socket, sockopt::Ipv6PathMtuDiscovery::DO)?;
                set_int(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1)?;
            }
        }
        bind(&socket, &SocketAddr::new(self.config.address, self.udp_port(number)))?;
        self.watch(&socket, number)?;
        Ok(socket)
    }

    fn group_socket(&self, group: Ipv4Addr, number: u8) -> Result<OwnedFd, Errno> {
        let IpAddr::V4(own) = self.config.address else { return Err(Errno::AFNOSUPPORT) };
        let socket = self.make()?;
        // Other nodes on this host are members too.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        // Exclude groups that other processes on this host joined on other interfaces.
        set_int(&socket, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0)?;
        bind(&socket, &SocketAddr::new(group.into(), self.udp_port(number)))?;
        sockopt::set_ip_add_membership(&socket, &group, &own)?;
        self.watch(&socket, number)?;
        Ok(socket)
    }

    fn watch(&self, socket: &OwnedFd, number: u8) -> Result<(), Errno> {
        let data = epoll::EventData::new_u64(number.into());
        epoll::add(&self.epoll_fd, socket, data, epoll::EventFlags::IN)
    }

    pub(super) fn acquire(&mut self, number: u8) -> Result<(), DatagramError> {
        let taken = {
            let udp_port = Some(self.udp_port(number));
            DatagramError::PortTaken { number, owner: None, udp_port }
        };
        if self.sockets.contains_key(&number) {
            return Err(taken);
        }
        let failed = |error| {
            DatagramError::kernel("binding to the own address (has this host that address?)", error)
        };
        let own = match self.own_socket(number) {
            Err(Errno::ADDRINUSE) => return Err(taken),
            own => own.map_err(failed)?,
        };
        let mut all = vec![PortSocket::from(own)];
        for group in &self.groups {
            all.push(self.group_socket(*group, number).map_err(failed)?.into());
        }
        self.sockets.insert(number, PortSockets { all, poll_count: 0 });
        Ok(())
    }

    pub(super) fn release(&mut self, number: u8) {
        self.sockets.remove(&number);
        if self.awaits_room == Some(number) {
            self.awaits_room = None;
        }
    }

    pub(super) fn join(&mut self, group: NodeAddress) -> Result<(), DatagramError> {
        let NodeAddress::Ip(IpAddr::V4(address)) = group else {
            return Err(DatagramError::WrongNode {
                node: group,
                wanted: "a group of IP version 4",
            });
        };
        if self.groups.contains(&address) {
            return Ok(());
        }
        let mut made = Vec::new();
        for number in self.sockets.keys() {
            let socket = self.group_socket(address, *number);
            made.push(socket.map_err(|error| DatagramError::kernel("joining a group", error))?);
        }
        for (sockets, socket) in self.sockets.values_mut().zip(made) {
            sockets.all.push(socket.into());
        }
        self.groups.push(address);
        Ok(())
    }

    /// Stops what is sent to groups from coming back to this host.
    pub(super) fn disable_loopback(&self) -> Result<(), DatagramError> {
        for own in self.sockets.values().filter_map(PortSockets::own) {
            sockopt::set_ip_multicast_loop(own, false).map_err(|error| {
                DatagramError::kernel("keeping multicasts from this host", error)
            })?;
        }
        Ok(())
    }

    pub(super) const fn node(&self) -> NodeAddress {
        NodeAddress::Ip(self.config.address)
    }

    pub(super) fn payload_max(&self) -> usize {
        self.config.payload_max()
    }

    #[inline]
    pub(super) fn send(
        &mut self,
        route: DatagramRoute,
        payload: &[u8],
        ports: &mut Ports,
    ) -> Result<(), DatagramError> {
        let DatagramRoute { from_port, to, to_port } = route;
        let NodeAddress::Ip(address) = to else {
            return Err(DatagramError::WrongNode { node: to, wanted: "an address of IP" });
        };
        let too_long = || DatagramError::TooLong { length: payload.len(), max: self.payload_max() };
        let length = u16::try_from(payload.len()).map_err(|_| too_long())?;
        // A queued send may outlive its port.
        let Some(own) = self.sockets.get(&from_port).and_then(PortSockets::own) else {
            return Err(DatagramError::Removed);
        };
        let header = Header::new(from_port, to_port, length).bytes();
        let parts = [IoSlice::new(&header), IoSlice::new(payload)];
        let to = SocketAddr::new(address, self.udp_port(to_port));
        for _ in 0..ERRORS_MAX {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let mut control = SendAncillaryBuffer::default();
            match sendmsg_addr(own, &to, &parts, &mut control, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::AGAIN | Errno::NOBUFS) => return Err(DatagramError::Full),
                Err(Errno::MSGSIZE) => return Err(too_long()),
                Err(Errno::NETDOWN) => return Err(DatagramError::Down),
                // The error of an earlier send.
                Err(Errno::CONNREFUSED | Errno::HOSTUNREACH) => take_errors(own, ports),
                Err(Errno::INTR) => {}
                Err(error) => return Err(DatagramError::kernel("sending a datagram", error)),
            }
        }
        Err(DatagramError::Full)
    }

    /// Takes in the datagrams of one port.
    #[inline]
    pub(super) fn poll(&mut self, number: u8, ports: &mut Ports) -> Result<(), DatagramError> {
        let base = self.config.base_port;
        let place = PortAddress { node: self.node(), base, number };
        let Some(sockets) = self.sockets.get_mut(&number) else { return Ok(()) };
        sockets.poll_count = sockets.poll_count.wrapping_add(1);
        let is_thorough = sockets.poll_count.is_multiple_of(FULL_POLL_EVERY);
        let mut found = 0_u64;
        for (index, socket) in sockets.all.iter_mut().enumerate() {
            if (socket.empty_polls < EMPTY_POLLS_MAX || is_thorough)
                && place.poll_socket(socket, index > 0, ports)? > 0
            {
                socket.empty_polls = 0;
                found |= 1 << index.min(63);
            }
        }
        if found > 0 {
            for (index, socket) in sockets.all.iter_mut().enumerate() {
                let is_vain = found & (1 << index.min(63)) == 0;
                socket.empty_polls = socket.empty_polls.saturating_add(u8::from(is_vain));
            }
        }
        Ok(())
    }

    /// Prepares for sleep; if asked, the descriptor also becomes readable when the socket of one port has
    /// room. Returns whether something may be there.
    pub(super) fn arm(&mut self, awaits_room: Option<u8>) -> Result<bool, DatagramError> {
        if awaits_room != self.awaits_room {
            for (number, flags) in [
                (self.awaits_room, epoll::EventFlags::IN),
                (awaits_room, epoll::EventFlags::IN | epoll::EventFlags::OUT),
            ] {
                if let Some((number, own)) =
                    number.and_then(|number| Some((number, self.sockets.get(&number)?.own()?)))
                {
                    let data = epoll::EventData::new_u64(number.into());
                    epoll::modify(&self.epoll_fd, own, data, flags)
                        .map_err(|error| DatagramError::kernel("watching a port", error))?;
                }
            }
            self.awaits_room = awaits_room;
        }
        let mut events = [const { mem::MaybeUninit::uninit() }; 1];
        let now = rustix::time::Timespec::default();
        let ready = epoll::wait(&self.epoll_fd, &mut events, Some(&now));
        let is_ready = ready.is_ok_and(|(ready, _)| !ready.is_empty());
        if is_ready {
            // It may be at a socket that is seldom polled.
            for socket in self.sockets.values_mut().flat_map(|sockets| &mut sockets.all) {
                socket.empty_polls = 0;
            }
        }
        Ok(is_ready)
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll_fd.as_fd()
    }
}

/// A port whose sockets are polled.
#[derive(Clone, Copy, Debug)]
pub(super) struct PortAddress {
    pub(super) node: NodeAddress,
    pub(super) base: u16,
    pub(super) number: u8,
}

impl PortAddress {
    /// Takes in the datagrams of a socket. Returns their number.
    fn poll_socket(
        &self,
        socket: &mut PortSocket,
        is_multicast: bool,
        ports: &mut Ports,
    ) -> Result<usize, DatagramError> {
        let PortSocket { descriptor: socket, is_crowded, .. } = socket;
        let mut found = 0;
        let mut buffers: Vec<Vec<u8>> = mem::take(&mut ports.batch);

        while found < POLL_BATCH {
            let posted = ports.state(self.number).map(|port| &mut port.posted);
            if let Some(posted) = posted {
                // The buffers all have this length, so any of them will do for the next datagram.
                let length = posted.front().map_or(0, Vec::len);
                let most = if *is_crowded { BATCH } else { FEW };
                let alike = posted.iter().take(most).take_while(|buffer| buffer.len() == length);
                let count = alike.count();
                buffers.extend(posted.drain(..count));
            }

            let has_buffers = !buffers.is_empty();
            if !has_buffers {
                buffers.push(Vec::new());
            }

            let mut received_headers = [ReceivedHeader::EMPTY; BATCH];
            let (wanted, received) = (
                buffers.len(),
                batch::receive(socket.as_fd(), &mut buffers, &mut received_headers),
            );
            let count = *received.as_ref().unwrap_or(&0);
            found += count;

            for (received_header, buffer) in received_headers.iter().zip(buffers.drain(..count)) {
                let unused = self.take(received_header, buffer, is_multicast, has_buffers, ports);
                if let Some(buffer) = unused.filter(|_| has_buffers)
                    && let Some(port) = ports.state(self.number)
                {
                    port.posted.push_front(buffer);
                }
            }

            let mut port = ports.state(self.number).filter(|_| has_buffers);
            for buffer in buffers.drain(..).rev() {
                if let Some(port) = &mut port {
                    port.posted.push_front(buffer);
                }
            }

            match received.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL)) {
                Ok(count) if count < wanted => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(Errno::CONNREFUSED | Errno::HOSTUNREACH) => take_errors(socket, ports),
                Err(error) => {
                    return Err(DatagramError::kernel("receiving a datagram", error));
                }
            }
        }
        if found > 0 {
            *is_crowded = found >= FEW;
        }
        ports.batch = buffers;
        Ok(found)
    }

    /// Hands a datagram to its port. Returns the buffer if it must still be posted.
    fn take(
        &self,
        received_header: &ReceivedHeader,
        buffer: Vec<u8>,
        is_multicast: bool,
        has_buffer: bool,
        ports: &mut Ports,
    ) -> Option<Vec<u8>> {
        let Some(mut incoming) =
            received_header.from.and_then(|from| self.parse(received_header, from))
        else {
            ports.counters.malformed += 1;
            return Some(buffer);
        };
        incoming.is_multicast = is_multicast;
        // A datagram for a group comes back to its sender.
        if is_multicast && incoming.from == self.node && incoming.from_port == self.number {
            return Some(buffer);
        }
        let port = ports.state(self.number)?;
        if !has_buffer {
            port.count_no_buffer();
            return Some(buffer);
        }
        if received_header.is_cut {
            port.count_too_small();
            return Some(buffer);
        }
        port.arrive(&incoming, buffer);
        None
    }

    /// Checks the header of a datagram against where it came from and where it arrived. UDP does not pad: the
    /// length is exact.
    pub(super) fn parse(
        &self,
        received_header: &ReceivedHeader,
        from: SocketAddr,
    ) -> Option<IncomingDatagram> {
        let total = received_header.length;
        let header =
            Header::parse(received_header.bytes.get(..total.min(HEADER_BYTES))?, total).ok()?;
        let is_right = header.to == self.number
            && from.port() == self.base + u16::from(header.from)
            && usize::from(header.length) + HEADER_BYTES == total;
        is_right.then_some(IncomingDatagram {
            from: NodeAddress::Ip(from.ip()),
            from_port: header.from,
            to_port: header.to,
            is_multicast: false,
            length: usize::from(header.length),
        })
    }
}

/// Takes in the errors of earlier sends, as the peers' kernels have reported them.
fn take_errors(socket: &OwnedFd, ports: &mut Ports) {
    let mut bytes = [0_u8; 64];
    for _ in 0..ERRORS_MAX {
        match recv(socket, bytes.as_mut_slice(), RecvFlags::ERRQUEUE | RecvFlags::DONTWAIT) {
            Ok(_) => ports.counters.unreachable += 1,
            Err(_) => return,
        }
    }
}

fn set_int(socket: &OwnedFd, level: i32, name: i32, value: i32) -> Result<(), Errno> {
    set_option(socket, level, name, &value.to_ne_bytes())
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
}
