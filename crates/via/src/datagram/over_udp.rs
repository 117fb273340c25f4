//! Datagrams over UDP: port `n` is the UDP port `base + n` of one address, so that the kernel arbitrates and
//! sorts them. Groups have sockets of their own, bound to the group's address: nothing listens wider.

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
    HEADER_BYTES, Header, UdpSettings,
    batch::{self, BATCH, FEW, Front},
    engine::{Incoming, LOOK, Ports},
    error::{DatagramError, Node},
};
use crate::link::set_option;

/// Errors of earlier sends that are taken in with one look.
const ERRORS_MAX: usize = 64;
/// After so many looks at a socket in vain, while others of its port had something, most looks leave it out: who waits
/// for a multicast hears nothing else, and the other way round. Before sleep the wait point tells of all.
const VAIN_MAX: u8 = 4;
/// One look of so many leaves none out.
const SELDOM: u32 = 8;

#[derive(Debug)]
pub(super) struct OverUdp {
    settings: UdpSettings,
    point: OwnedFd,
    sockets: BTreeMap<u8, PortSockets>,
    groups: Vec<Ipv4Addr>,
    /// The port whose socket's descriptor tells of room.
    awaits_room: Option<u8>,
}

/// The sockets of a port.
#[derive(Debug)]
struct PortSockets {
    /// Its own, and one for each group.
    all: Vec<Socket>,
    /// Counts looks.
    turn: u32,
}

impl PortSockets {
    fn own(&self) -> Option<&OwnedFd> {
        self.all.first().map(|socket| &socket.descriptor)
    }
}

#[derive(Debug)]
struct Socket {
    descriptor: OwnedFd,
    /// Looks since it had anything, in which another one of the port had.
    vain: u8,
    /// There were several when there was something for the last time.
    is_crowded: bool,
}

impl From<OwnedFd> for Socket {
    fn from(descriptor: OwnedFd) -> Self {
        Self { descriptor, vain: 0, is_crowded: false }
    }
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

impl OverUdp {
    pub(super) fn new(settings: UdpSettings) -> Result<Self, DatagramError> {
        if settings.base_port == 0 || settings.base_port > u16::MAX - 255 {
            let range = "between 1 and 65280";
            let value = settings.base_port.into();
            return Err(DatagramError::Setting { name: "base_port", value, range });
        }
        if !(576..=65_535).contains(&settings.mtu) {
            let range = "between 576 and 65535";
            return Err(DatagramError::Setting { name: "mtu", value: settings.mtu, range });
        }
        let point = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| DatagramError::kernel("making a wait point", error))?;
        let sockets = BTreeMap::new();
        Ok(Self { settings, point, sockets, groups: Vec::new(), awaits_room: None })
    }

    fn udp_port(&self, number: u8) -> u16 {
        self.settings.base_port + u16::from(number)
    }

    fn make(&self) -> Result<OwnedFd, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(family(self.settings.address), SocketType::DGRAM, flags, None)
    }

    /// Makes the socket of a port, which the kernel gives to one process alone.
    fn own_socket(&self, number: u8) -> Result<OwnedFd, Errno> {
        let socket = self.make()?;
        // Datagrams are not cut: one that is too long for the way is an error; and so is a port that nobody
        // has, of which the peer's kernel tells.
        match self.settings.address {
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
        bind(&socket, &SocketAddr::new(self.settings.address, self.udp_port(number)))?;
        self.watch(&socket, number)?;
        Ok(socket)
    }

    fn group_socket(&self, group: Ipv4Addr, number: u8) -> Result<OwnedFd, Errno> {
        let IpAddr::V4(own) = self.settings.address else { return Err(Errno::AFNOSUPPORT) };
        let socket = self.make()?;
        // Other nodes on this host are members too.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        // Not what others on this host have joined on other interfaces.
        set_int(&socket, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0)?;
        bind(&socket, &SocketAddr::new(group.into(), self.udp_port(number)))?;
        sockopt::set_ip_add_membership(&socket, &group, &own)?;
        self.watch(&socket, number)?;
        Ok(socket)
    }

    fn watch(&self, socket: &OwnedFd, number: u8) -> Result<(), Errno> {
        let data = epoll::EventData::new_u64(number.into());
        epoll::add(&self.point, socket, data, epoll::EventFlags::IN)
    }

    pub(super) fn acquire(&mut self, number: u8) -> Result<(), DatagramError> {
        let taken = DatagramError::PortTaken { number, owner: None };
        if self.sockets.contains_key(&number) {
            return Err(taken);
        }
        let failed = |error| DatagramError::kernel("acquiring a port", error);
        let own = match self.own_socket(number) {
            Err(Errno::ADDRINUSE) => return Err(taken),
            own => own.map_err(failed)?,
        };
        let mut all = vec![Socket::from(own)];
        for group in &self.groups {
            all.push(self.group_socket(*group, number).map_err(failed)?.into());
        }
        self.sockets.insert(number, PortSockets { all, turn: 0 });
        Ok(())
    }

    pub(super) fn release(&mut self, number: u8) {
        self.sockets.remove(&number);
        if self.awaits_room == Some(number) {
            self.awaits_room = None;
        }
    }

    pub(super) fn join(&mut self, group: Node) -> Result<(), DatagramError> {
        let Node::Ip(IpAddr::V4(address)) = group else {
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

    /// What is sent to groups does not come back to this host.
    pub(super) fn quiet_loop(&self) -> Result<(), DatagramError> {
        for own in self.sockets.values().filter_map(PortSockets::own) {
            sockopt::set_ip_multicast_loop(own, false).map_err(|error| {
                DatagramError::kernel("keeping multicasts from this host", error)
            })?;
        }
        Ok(())
    }

    pub(super) const fn node(&self) -> Node {
        Node::Ip(self.settings.address)
    }

    pub(super) fn payload_max(&self) -> usize {
        let headers = if self.settings.address.is_ipv4() { 20 + 8 } else { 40 + 8 };
        usize::try_from(self.settings.mtu).unwrap_or(0).saturating_sub(headers + HEADER_BYTES)
    }

    #[inline]
    pub(super) fn send(
        &mut self,
        from_port: u8,
        to: Node,
        to_port: u8,
        payload: &[u8],
        ports: &mut Ports,
    ) -> Result<(), DatagramError> {
        let Node::Ip(address) = to else {
            return Err(DatagramError::WrongNode { node: to, wanted: "an address of IP" });
        };
        let too_long = || DatagramError::TooLong { length: payload.len(), max: self.payload_max() };
        let length = u16::try_from(payload.len()).map_err(|_| too_long())?;
        // A send that waited may outlive its port.
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
                // What became of an earlier one.
                Err(Errno::CONNREFUSED | Errno::HOSTUNREACH) => take_errors(own, ports),
                Err(Errno::INTR) => {}
                Err(error) => return Err(DatagramError::kernel("sending a datagram", error)),
            }
        }
        Err(DatagramError::Full)
    }

    /// Takes in the datagrams of one port.
    #[inline]
    pub(super) fn look(&mut self, number: u8, ports: &mut Ports) -> Result<(), DatagramError> {
        let base = self.settings.base_port;
        let place = Place { node: self.node(), base, number };
        let Some(sockets) = self.sockets.get_mut(&number) else { return Ok(()) };
        sockets.turn = sockets.turn.wrapping_add(1);
        let is_thorough = sockets.turn.is_multiple_of(SELDOM);
        let mut found = 0_u64;
        for (index, socket) in sockets.all.iter_mut().enumerate() {
            if (socket.vain < VAIN_MAX || is_thorough)
                && place.look_at(socket, index > 0, ports)? > 0
            {
                socket.vain = 0;
                found |= 1 << index.min(63);
            }
        }
        if found > 0 {
            for (index, socket) in sockets.all.iter_mut().enumerate() {
                let is_vain = found & (1 << index.min(63)) == 0;
                socket.vain = socket.vain.saturating_add(u8::from(is_vain));
            }
        }
        Ok(())
    }

    /// Prepares for sleep; the descriptor tells of room at the socket of one port, if asked. Returns whether
    /// something may be there.
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
                    epoll::modify(&self.point, own, data, flags)
                        .map_err(|error| DatagramError::kernel("watching a port", error))?;
                }
            }
            self.awaits_room = awaits_room;
        }
        let mut events = [const { mem::MaybeUninit::uninit() }; 1];
        let now = rustix::time::Timespec::default();
        let ready = epoll::wait(&self.point, &mut events, Some(&now));
        let is_ready = ready.is_ok_and(|(ready, _)| !ready.is_empty());
        if is_ready {
            // It may be where looks are rare.
            for socket in self.sockets.values_mut().flat_map(|sockets| &mut sockets.all) {
                socket.vain = 0;
            }
        }
        Ok(is_ready)
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.point.as_fd()
    }
}

/// A port, whose sockets are looked at.
#[derive(Clone, Copy, Debug)]
struct Place {
    node: Node,
    base: u16,
    number: u8,
}

impl Place {
    /// Takes in what is at a socket. Returns how many datagrams there were.
    fn look_at(
        &self,
        socket: &mut Socket,
        is_multicast: bool,
        ports: &mut Ports,
    ) -> Result<usize, DatagramError> {
        let Socket { descriptor: socket, is_crowded, .. } = socket;
        let mut found = 0;
        let mut buffers: Vec<Vec<u8>> = mem::take(&mut ports.batch);
        while found < LOOK {
            let posted = ports.state(self.number).map(|port| &mut port.posted);
            if let Some(posted) = posted {
                // All of one length: it does not matter then which of them the next datagram goes to.
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
            let mut fronts = [Front::EMPTY; BATCH];
            let (wanted, received) =
                (buffers.len(), batch::receive(socket.as_fd(), &mut buffers, &mut fronts));
            let count = *received.as_ref().unwrap_or(&0);
            found += count;
            for (front, buffer) in fronts.iter().zip(buffers.drain(..count)) {
                let unused = self.take(front, buffer, is_multicast, has_buffers, ports);
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

    /// Hands a datagram to its port. Returns the buffer if that is still to be posted.
    fn take(
        &self,
        front: &Front,
        buffer: Vec<u8>,
        is_multicast: bool,
        has_buffer: bool,
        ports: &mut Ports,
    ) -> Option<Vec<u8>> {
        let Some(mut incoming) = front.from.and_then(|from| self.parse(front, from)) else {
            ports.counters.malformed += 1;
            return Some(buffer);
        };
        incoming.is_multicast = is_multicast;
        // What goes to a group comes back to its sender.
        if is_multicast && incoming.from == self.node && incoming.from_port == self.number {
            return Some(buffer);
        }
        let port = ports.state(self.number)?;
        if !has_buffer {
            port.count_no_buffer();
            return Some(buffer);
        }
        if front.is_cut {
            port.count_too_small();
            return Some(buffer);
        }
        port.arrive(&incoming, buffer);
        None
    }

    /// Checks what stands in front of a datagram against where it came from and where it arrived. Over UDP
    /// nothing is padded: the length is exact.
    fn parse(&self, front: &Front, from: SocketAddr) -> Option<Incoming> {
        let total = front.length;
        let header = Header::parse(front.bytes.get(..total.min(HEADER_BYTES))?, total).ok()?;
        let is_right = header.to == self.number
            && from.port() == self.base + u16::from(header.from)
            && usize::from(header.length) + HEADER_BYTES == total;
        is_right.then_some(Incoming {
            from: Node::Ip(from.ip()),
            from_port: header.from,
            to_port: header.to,
            is_multicast: false,
            length: usize::from(header.length),
        })
    }
}

/// Takes in what became of earlier sends, as the peers' kernels have told.
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
