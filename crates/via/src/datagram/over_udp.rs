//! Datagrams over UDP: port `n` is the UDP port `base + n` of one address, so that the kernel arbitrates and
//! sorts them. Groups have sockets of their own, bound to the group's address: nothing listens wider.

use std::{
    collections::BTreeMap,
    io::{IoSlice, IoSliceMut},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    event::epoll,
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendFlags,
        SocketFlags, SocketType, bind, recv, recvmsg, sendmsg_addr, socket_with, sockopt,
    },
};

use super::{
    HEADER_BYTES, Header, UdpSettings,
    engine::{Incoming, LOOK, Ports},
    error::{DatagramError, Node},
};
use crate::link::set_option;

/// Errors of earlier sends that are taken in with one look.
const ERRORS_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct OverUdp {
    settings: UdpSettings,
    point: OwnedFd,
    sockets: BTreeMap<u8, PortSockets>,
    groups: Vec<Ipv4Addr>,
    /// The port whose socket's descriptor tells of room.
    awaits_room: Option<u8>,
}

#[derive(Debug)]
struct PortSockets {
    own: OwnedFd,
    groups: Vec<OwnedFd>,
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
        let groups: Result<_, _> =
            self.groups.iter().map(|group| self.group_socket(*group, number)).collect();
        self.sockets.insert(number, PortSockets { own, groups: groups.map_err(failed)? });
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
            sockets.groups.push(socket);
        }
        self.groups.push(address);
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
        let Some(sockets) = self.sockets.get(&from_port) else {
            return Err(DatagramError::Removed);
        };
        let header = Header::new(from_port, to_port, length).bytes();
        let parts = [IoSlice::new(&header), IoSlice::new(payload)];
        let to = SocketAddr::new(address, self.udp_port(to_port));
        for _ in 0..ERRORS_MAX {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let mut control = SendAncillaryBuffer::default();
            match sendmsg_addr(&sockets.own, &to, &parts, &mut control, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::AGAIN | Errno::NOBUFS) => return Err(DatagramError::Full),
                Err(Errno::MSGSIZE) => return Err(too_long()),
                Err(Errno::NETDOWN) => return Err(DatagramError::Down),
                // What became of an earlier one.
                Err(Errno::CONNREFUSED | Errno::HOSTUNREACH) => take_errors(&sockets.own, ports),
                Err(Errno::INTR) => {}
                Err(error) => return Err(DatagramError::kernel("sending a datagram", error)),
            }
        }
        Err(DatagramError::Full)
    }

    /// Takes in the datagrams of one port.
    #[inline]
    pub(super) fn look(&self, number: u8, ports: &mut Ports) -> Result<(), DatagramError> {
        let Some(sockets) = self.sockets.get(&number) else { return Ok(()) };
        self.look_at(&sockets.own, number, false, ports)?;
        for socket in &sockets.groups {
            self.look_at(socket, number, true, ports)?;
        }
        Ok(())
    }

    fn look_at(
        &self,
        socket: &OwnedFd,
        number: u8,
        is_multicast: bool,
        ports: &mut Ports,
    ) -> Result<(), DatagramError> {
        for _ in 0..LOOK {
            let mut front = [0; HEADER_BYTES];
            let posted = ports.state(number).and_then(|port| port.posted.pop_front());
            let has_buffer = posted.is_some();
            let mut buffer = posted.unwrap_or_default();
            let mut parts = [IoSliceMut::new(&mut front), IoSliceMut::new(&mut buffer)];
            let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
            let mut control = RecvAncillaryBuffer::default();
            let received = recvmsg(socket, &mut parts, &mut control, flags);
            let back = |ports: &mut Ports, buffer| {
                if let Some(port) = ports.state(number).filter(|_| has_buffer) {
                    port.posted.push_front(buffer);
                }
            };
            let message = match received {
                Ok(message) => message,
                Err(error) => {
                    back(ports, buffer);
                    match error {
                        Errno::AGAIN => return Ok(()),
                        Errno::INTR => {}
                        Errno::CONNREFUSED | Errno::HOSTUNREACH => take_errors(socket, ports),
                        error => return Err(DatagramError::kernel("receiving a datagram", error)),
                    }
                    continue;
                }
            };
            let from = message.address.and_then(|from| SocketAddr::try_from(from).ok());
            let incoming = from.and_then(|from| self.parse(&front, message.bytes, from, number));
            let Some(mut incoming) = incoming else {
                back(ports, buffer);
                ports.counters.malformed += 1;
                continue;
            };
            incoming.is_multicast = is_multicast;
            // What goes to a group comes back to its sender.
            if is_multicast && incoming.from == self.node() && incoming.from_port == number {
                back(ports, buffer);
                continue;
            }
            let Some(port) = ports.state(number) else { return Ok(()) };
            if !has_buffer {
                port.count_no_buffer();
            } else if message.flags.contains(ReturnFlags::TRUNC) {
                port.count_too_small();
                port.posted.push_front(buffer);
            } else {
                port.arrive(&incoming, buffer);
            }
        }
        Ok(())
    }

    /// Checks what stands in front of a datagram against where it came from and where it arrived. Over UDP
    /// nothing is padded: the length is exact.
    fn parse(&self, front: &[u8], total: usize, from: SocketAddr, number: u8) -> Option<Incoming> {
        let header = Header::parse(front.get(..total.min(front.len()))?, total).ok()?;
        let is_right = header.to == number
            && from.port() == self.udp_port(header.from)
            && usize::from(header.length) + HEADER_BYTES == total;
        is_right.then_some(Incoming {
            from: Node::Ip(from.ip()),
            from_port: header.from,
            to_port: header.to,
            is_multicast: false,
            length: usize::from(header.length),
        })
    }

    /// Prepares for sleep; the descriptor tells of room at the socket of one port, if asked. Returns whether
    /// something may be there.
    pub(super) fn arm(&mut self, awaits_room: Option<u8>) -> Result<bool, DatagramError> {
        if awaits_room != self.awaits_room {
            for (number, flags) in [
                (self.awaits_room, epoll::EventFlags::IN),
                (awaits_room, epoll::EventFlags::IN | epoll::EventFlags::OUT),
            ] {
                if let Some((number, sockets)) =
                    number.and_then(|number| Some((number, self.sockets.get(&number)?)))
                {
                    let data = epoll::EventData::new_u64(number.into());
                    epoll::modify(&self.point, &sockets.own, data, flags)
                        .map_err(|error| DatagramError::kernel("watching a port", error))?;
                }
            }
            self.awaits_room = awaits_room;
        }
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 1];
        let now = rustix::time::Timespec::default();
        let ready = epoll::wait(&self.point, &mut events, Some(&now));
        Ok(ready.is_ok_and(|(ready, _)| !ready.is_empty()))
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.point.as_fd()
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
