//! The sockets of a NIC: one that every peer reaches, and connected ones.
//!
//! For a connected socket, the kernel looks up the route once instead of for each datagram, in both
//! directions. So the peer that a NIC exchanges the most datagrams with gets one: bound to the NIC's own
//! address, so that the peer sees no difference, and connected to the peer's. The peer's datagrams
//! arrive there from then on; all others still arrive at the first socket.
//!
//! Only one peer gets a socket, since each socket has to be polled. Nothing depends on it: if it cannot
//! be made, the peer changes its address, or another peer is busier, datagrams use the first socket as
//! before.

use std::{
    io, mem,
    net::{SocketAddr, UdpSocket},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    event::{Timespec, epoll},
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, connect, recvfrom,
        send, sendto, socket_with, sockopt,
    },
};

use vigie_detect::ArmOutcome;

use super::{BUFFER_BYTES, sys};
use crate::software_nic::Gather;

/// A peer is busy once it was sent this many more datagrams than all others without a socket of their own.
const PROMOTE_AFTER: u32 = 64;

/// One poll in this many is at another socket than the one where a datagram arrived last: often if that
/// last found something, seldom if not.
const POLLS_MIN: u32 = 2;
const POLLS_MAX: u32 = 32;

/// Unused: polling finds out which of the sockets is readable.
const NO_DATA: epoll::EventData = epoll::EventData::new_u64(0);

/// A socket, and the peer that it is connected to.
#[derive(Debug)]
pub(super) struct PeerSocket {
    socket: UdpSocket,
    peer: Option<SocketAddr>,
    /// The length into which the kernel cuts what is sent; 0: not at all.
    segment_bytes: usize,
    /// Datagrams sent since another peer wanted its place.
    sends: u32,
    /// Another peer has its place: nothing is sent here, but arrivals are still taken.
    is_retiring: bool,
}

impl PeerSocket {
    fn new(socket: UdpSocket, peer: Option<SocketAddr>) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        sockopt::set_socket_recv_buffer_size(&socket, BUFFER_BYTES)?;
        sockopt::set_socket_send_buffer_size(&socket, BUFFER_BYTES)?;
        Ok(Self { socket, peer, segment_bytes: 0, sends: 0, is_retiring: false })
    }

    /// Lets the kernel cut what is sent next. Makes a system call only if the length changes.
    fn cut(&mut self, bytes: usize) -> io::Result<()> {
        if self.segment_bytes != bytes {
            sys::set_segment(self.socket.as_fd(), bytes)?;
            self.segment_bytes = bytes;
        }
        Ok(())
    }

    fn send_one(&self, to: SocketAddr, packet: &[u8]) -> io::Result<()> {
        let mut was_refused = false;
        loop {
            let sent = match self.peer {
                Some(_) => send(&self.socket, packet, SendFlags::empty()),
                None => sendto(&self.socket, packet, SendFlags::empty(), &to),
            };
            match sent {
                Err(Errno::INTR) => {}
                // An earlier datagram was refused by its destination; this one was not tried.
                Err(Errno::CONNREFUSED) if !was_refused => was_refused = true,
                Err(error) => return Err(error.into()),
                Ok(_) => return Ok(()),
            }
        }
    }

    pub(super) fn send(
        &mut self,
        to: SocketAddr,
        packets: &[u8],
        packet_bytes: usize,
    ) -> io::Result<()> {
        if packets.len() <= packet_bytes {
            if self.segment_bytes != 0 && packets.len() > self.segment_bytes {
                self.cut(0)?;
            }
            return self.send_one(to, packets);
        }
        self.cut(packet_bytes)?;
        match self.send_one(to, packets) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                // The path has become shorter, or its interface cannot cut: sent singly, IP can fragment them.
                self.cut(0)?;
                for packet in packets.chunks(packet_bytes) {
                    match self.send_one(to, packet) {
                        // Packets that do not fit into the buffer are lost, and sent again in time.
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                        sent => sent?,
                    }
                }
                Ok(())
            }
            sent => sent,
        }
    }

    pub(super) fn send_gathered(
        &mut self,
        to: SocketAddr,
        packets: &Gather,
        packet_bytes: usize,
    ) -> io::Result<()> {
        let is_one = packets.len() <= packet_bytes;
        if !is_one || (self.segment_bytes != 0 && packets.len() > self.segment_bytes) {
            self.cut(if is_one { 0 } else { packet_bytes })?;
        }
        let name = self.peer.is_none().then(|| to.into());
        match sys::send_parts(self.socket.as_fd(), name.as_ref(), packets) {
            Some(Ok(())) => return Ok(()),
            Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
            Some(Err(error)) if is_one && error.kind() != io::ErrorKind::ConnectionRefused => {
                return Err(error);
            }
            _ => {}
        }
        // Together, then singly.
        let mut bytes = Vec::with_capacity(packets.len());
        packets.copy_onto(&mut bytes)?;
        self.send(to, &bytes, packet_bytes)
    }

    #[inline]
    fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<(usize, SocketAddr)>> {
        loop {
            match recvfrom(&self.socket, &mut *buffer, RecvFlags::empty()) {
                // Ask connected sockets for the source too: until it was connected, any sender could
                // reach one.
                Ok((count, _, Some(from))) => {
                    let from = SocketAddr::try_from(from)?;
                    return Ok(Some((count, from)));
                }
                Ok((_, _, None)) => return Err(io::ErrorKind::InvalidData.into()),
                // The network's report about a peer proves nothing; dead peers are detected otherwise.
                Err(Errno::AGAIN | Errno::CONNREFUSED) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The sockets of a NIC.
#[derive(Debug)]
pub(super) struct SocketSet {
    /// The first is not connected. Of the others, one is in use, and one may be retiring.
    sockets: Vec<PeerSocket>,
    address: SocketAddr,
    is_glued: bool,
    /// Readable when one of them is, once they are watched.
    epoll: OwnedFd,
    is_watched: bool,
    /// The index of the socket where a datagram arrived last.
    last_active: usize,
    /// The index of the other socket polled next, the polls until then, and the polls in between.
    other: usize,
    polls_left: u32,
    polls: u32,
    /// The number of sockets that still have to be found empty before the set counts as empty.
    unswept: usize,
    /// The peer without a socket of its own that was sent the most, and its lead over all others.
    busiest_peer: Option<SocketAddr>,
    busiest_lead: u32,
    /// True if connecting a socket has failed, so that it is not tried again.
    has_connect_failed: bool,
}

impl SocketSet {
    /// Starts with a socket that is bound to one address.
    pub(super) fn new(socket: UdpSocket) -> io::Result<Self> {
        let address = socket.local_addr()?;
        let first = PeerSocket::new(socket, None)?;
        let is_glued = sys::set_gluing(first.socket.as_fd()).is_ok();
        Ok(Self {
            sockets: vec![first],
            address,
            is_glued,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            is_watched: false,
            last_active: 0,
            other: 0,
            polls_left: POLLS_MIN,
            polls: POLLS_MIN,
            unswept: 0,
            busiest_peer: None,
            busiest_lead: 0,
            has_connect_failed: false,
        })
    }

    /// Returns the address that all of them are bound to.
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a descriptor that is readable when a datagram has arrived, once the set is
    /// [armed](Self::arm).
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Makes the descriptor report arrivals from now on: a NIC that never sleeps does not pay for that
    /// with every datagram.
    pub(super) fn arm(&mut self) -> io::Result<ArmOutcome> {
        if !self.is_watched {
            for peer_socket in &self.sockets {
                self.add(peer_socket)?;
            }
            self.is_watched = true;
        }
        if self.sockets.len() == 1 {
            // It was empty a moment ago, and later arrivals were reported.
            return Ok(ArmOutcome::Armed);
        }
        // Arrivals at the other sockets may have been reported long ago.
        self.sweep();
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: NO_DATA }];
        let is_there = epoll::wait(&self.epoll, &mut events[..], Some(&Timespec::default()));
        match is_there {
            Ok(count) => Ok(ArmOutcome::ready_if(count > 0)),
            Err(Errno::INTR) => Ok(ArmOutcome::Ready),
            Err(error) => Err(error.into()),
        }
    }

    fn add(&self, peer_socket: &PeerSocket) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, &peer_socket.socket, NO_DATA, epoll::EventFlags::IN)?)
    }

    /// Makes `receive` poll all sockets, the first one first.
    const fn sweep(&mut self) {
        self.unswept = self.sockets.len();
        self.other = 0;
    }

    // -------------------------------------------------------------- sending

    /// Returns the socket for what is sent to an address.
    pub(super) fn socket_to(&mut self, to: SocketAddr) -> &mut PeerSocket {
        let is_its =
            |peer_socket: &PeerSocket| peer_socket.peer == Some(to) && !peer_socket.is_retiring;
        let index = match self.sockets.iter().position(is_its) {
            Some(index) => index,
            None if self.is_busy(to) && self.connect(to) => self.sockets.len() - 1,
            None => 0,
        };
        let peer_socket = &mut self.sockets[index];
        peer_socket.sends = peer_socket.sends.saturating_add(1);
        peer_socket
    }

    /// Counts a datagram to a peer without a socket of its own. Returns whether the peer has become busy.
    fn is_busy(&mut self, to: SocketAddr) -> bool {
        if self.has_connect_failed {
            return false;
        }
        if self.busiest_peer == Some(to) {
            self.busiest_lead += 1;
        } else if self.busiest_lead == 0 {
            (self.busiest_peer, self.busiest_lead) = (Some(to), 1);
        } else {
            self.busiest_lead -= 1;
        }
        let is_busy = self.busiest_lead >= PROMOTE_AFTER;
        if is_busy {
            self.busiest_lead = 0;
        }
        is_busy
    }

    /// Gives a peer a socket of its own, unless another peer needs it more. Returns whether it has one.
    #[cold]
    fn connect(&mut self, peer: SocketAddr) -> bool {
        let mut has_retiring = false;
        for peer_socket in self.sockets.iter_mut().skip(1) {
            let sends = mem::take(&mut peer_socket.sends);
            if peer_socket.is_retiring || sends >= PROMOTE_AFTER / 2 {
                return false;
            }
            has_retiring = true;
        }

        let opened = self.open(peer).and_then(|peer_socket| {
            if self.is_watched {
                self.add(&peer_socket)?;
            }
            Ok(peer_socket)
        });
        match opened {
            Ok(peer_socket) => {
                self.sockets
                    .iter_mut()
                    .skip(1)
                    .for_each(|peer_socket| peer_socket.is_retiring = has_retiring);
                self.sockets.push(peer_socket);
                // What has arrived at the first socket so far is older than arrivals at the new one.
                self.sweep();
                true
            }
            Err(_) => {
                self.has_connect_failed = true;
                false
            }
        }
    }

    /// Makes a socket that is connected to a peer.
    ///
    /// Several sockets can be bound to one address only while all of them allow it, and only by the same
    /// user. They allow it until the new one is bound; afterwards the address is as exclusive as before.
    fn open(&self, peer: SocketAddr) -> io::Result<PeerSocket> {
        let family = if peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_reuseport(&socket, true)?;
        for peer_socket in &self.sockets {
            sockopt::set_socket_reuseport(&peer_socket.socket, true)?;
        }
        let is_bound = bind(&socket, &self.address);
        for peer_socket in &self.sockets {
            sockopt::set_socket_reuseport(&peer_socket.socket, false)?;
        }
        is_bound?;
        // Until here, some datagrams of other senders may have arrived at this socket.
        connect(&socket, &peer)?;
        sockopt::set_socket_reuseport(&socket, false)?;
        if self.is_glued {
            sys::set_gluing(socket.as_fd())?;
        }
        PeerSocket::new(socket.into(), Some(peer))
    }

    // -------------------------------------------------------------- receiving

    /// Receives a datagram. `None` if none is there, unless at a socket whose turn it was not.
    #[inline]
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<(usize, SocketAddr)>> {
        if self.sockets.len() > 1 {
            if self.unswept > 0 || self.polls_left == 0 {
                return self.receive_elsewhere(buffer);
            }
            self.polls_left -= 1;
        }
        self.sockets[self.last_active].receive(buffer)
    }

    fn receive_elsewhere(&mut self, buffer: &mut [u8]) -> io::Result<Option<(usize, SocketAddr)>> {
        if self.unswept == 0 && self.other == self.last_active {
            self.other = (self.other + 1) % self.sockets.len();
        }
        loop {
            let found = self.sockets[self.other].receive(buffer)?;
            if found.is_some() {
                // A burst may be arriving here; poll the others again soon.
                self.polls = POLLS_MIN;
                self.polls_left = self.polls;
                self.last_active = self.other;
                return Ok(found);
            }
            if self.sockets[self.other].is_retiring {
                self.sockets.remove(self.other);
                (self.last_active, self.other) = (0, 0);
                return Ok(None);
            }
            self.other = (self.other + 1) % self.sockets.len();
            self.unswept = self.unswept.saturating_sub(1);
            if self.unswept == 0 {
                self.polls = (self.polls * 2).min(POLLS_MAX);
                self.polls_left = self.polls;
                return self.sockets[self.last_active].receive(buffer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sockets() -> SocketSet {
        SocketSet::new(UdpSocket::bind("127.0.0.1:0").expect("a port")).expect("a socket")
    }

    /// Takes all datagrams that are there.
    fn take_all(sockets: &mut SocketSet) -> Vec<(Vec<u8>, SocketAddr)> {
        let mut found = Vec::new();
        let mut buffer = [0; 2048];
        // This many calls poll every socket, however seldom some of them are polled.
        for _ in 0..4 * POLLS_MAX {
            while let Some((count, from)) = sockets.receive(&mut buffer).expect("readable") {
                found.push((buffer[..count].to_vec(), from));
            }
        }
        found
    }

    fn send_many(sockets: &mut SocketSet, to: SocketAddr, count: u32) {
        for number in 0..count {
            sockets.socket_to(to).send(to, &number.to_le_bytes(), 100).expect("sent");
        }
    }

    fn peers(sockets: &SocketSet) -> Vec<SocketAddr> {
        let stay = sockets.sockets.iter().filter(|peer_socket| !peer_socket.is_retiring);
        stay.filter_map(|peer_socket| peer_socket.peer).collect()
    }

    fn numbers(count: u32) -> Vec<Vec<u8>> {
        (0..count).map(|number| number.to_le_bytes().to_vec()).collect()
    }

    /// Goal: a busy peer gets a socket, and nothing else changes: all datagrams arrive, in order, from
    /// the same address, strangers are heard, and the address is taken. Method: two NICs' sockets and a
    /// stranger's.
    #[test]
    fn a_busy_peer_gets_a_socket() {
        let (mut one, mut two, stranger) = (sockets(), sockets(), sockets());
        send_many(&mut one, two.address(), PROMOTE_AFTER - 1);
        assert!(peers(&one).is_empty());
        send_many(&mut two, one.address(), 3 * PROMOTE_AFTER);
        assert_eq!(peers(&two), [one.address()]);
        let found = take_all(&mut one);
        assert!(found.iter().all(|(_, from)| *from == two.address()));
        let bytes: Vec<_> = found.into_iter().map(|(bytes, _)| bytes).collect();
        assert_eq!(bytes, numbers(3 * PROMOTE_AFTER));
        assert_eq!(take_all(&mut two).len(), usize::try_from(PROMOTE_AFTER - 1).expect("small"));
        // Through the connected socket, and past it.
        send_many(&mut one, two.address(), 1);
        stranger.sockets[0].send_one(two.address(), b"stranger").expect("sent");
        let mut found = take_all(&mut two);
        found.sort();
        let mut expected =
            [(numbers(1).remove(0), one.address()), (b"stranger".to_vec(), stranger.address())];
        expected.sort();
        assert_eq!(found, expected);
        for sockets in [&one, &two] {
            let error = UdpSocket::bind(sockets.address()).expect_err("taken");
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        }
    }

    /// Goal: datagrams that arrived before there was a connected socket are taken, and before later
    /// ones. Method: datagrams before and after it is connected, all taken together.
    #[test]
    fn what_raced_comes_first() {
        let (mut one, mut two) = (sockets(), sockets());
        for number in 0..20_u32 {
            two.sockets[0].send_one(one.address(), &number.to_le_bytes()).expect("sent");
        }
        send_many(&mut one, two.address(), PROMOTE_AFTER);
        assert_eq!(peers(&one), [two.address()]);
        for number in 20..40_u32 {
            two.sockets[0].send_one(one.address(), &number.to_le_bytes()).expect("sent");
        }
        let found: Vec<_> = take_all(&mut one).into_iter().map(|(bytes, _)| bytes).collect();
        assert_eq!(found, numbers(40));
        assert_eq!(take_all(&mut two).len(), usize::try_from(PROMOTE_AFTER).expect("small"));
    }

    /// Goal: neither socket starves the other, however much arrives. Method: both are full, and a few
    /// polls find something of either.
    #[test]
    fn no_socket_starves() {
        let (mut one, two, stranger) = (sockets(), sockets(), sockets());
        send_many(&mut one, two.address(), PROMOTE_AFTER);
        for busy in [&two, &stranger] {
            for from in [busy, busy, busy, busy, &two, &stranger] {
                for _ in 0..40 {
                    from.sockets[0].send_one(one.address(), b"much").expect("sent");
                }
            }
            let mut seen = Vec::new();
            for _ in 0..5 * POLLS_MAX {
                let found = one.receive(&mut [0; 100]).expect("readable");
                seen.extend(found.map(|(_, from)| from));
            }
            for wanted in [&two, &stranger] {
                assert!(seen.contains(&wanted.address()), "{} is not heard", wanted.address());
            }
            take_all(&mut one);
        }
    }

    /// Goal: a peer that becomes busier than the one with the socket gets it, arrivals at the old one
    /// are still taken, and there are never more than three sockets. Method: many peers, one after the
    /// other; each has sent a datagram that is not yet taken when its socket goes.
    #[test]
    fn the_busiest_has_it() {
        let mut one = sockets();
        for _ in 0..6 {
            let peer = sockets();
            send_many(&mut one, peer.address(), 4 * PROMOTE_AFTER);
            assert_eq!(peers(&one), [peer.address()]);
            assert!(take_all(&mut one).is_empty());
            peer.sockets[0].send_one(one.address(), b"late").expect("sent");
            let next = sockets();
            send_many(&mut one, next.address(), 4 * PROMOTE_AFTER);
            assert_eq!(peers(&one), [next.address()]);
            assert!(one.sockets.len() <= 3);
            assert_eq!(take_all(&mut one), [(b"late".to_vec(), peer.address())]);
            assert_eq!(one.sockets.len(), 2, "the old one is closed");
        }
        // Equally busy peers leave it where it is.
        let (left, right) = (sockets(), sockets());
        let before = peers(&one);
        for _ in 0..4 * PROMOTE_AFTER {
            send_many(&mut one, left.address(), 1);
            send_many(&mut one, right.address(), 1);
        }
        assert_eq!(peers(&one), before);
    }

    /// Goal: a peer that vanishes causes no failures, and a new one at its address is reached as before.
    /// Method: close the peer's socket, send, receive, and open another there.
    #[test]
    fn a_peer_vanishes() {
        let (mut one, two) = (sockets(), sockets());
        let address = two.address();
        send_many(&mut one, address, 2 * PROMOTE_AFTER);
        assert_eq!(peers(&one), [address]);
        drop(two);
        // The host reports that the port is closed.
        send_many(&mut one, address, 10);
        assert!(take_all(&mut one).is_empty());
        send_many(&mut one, address, 10);
        let mut again =
            SocketSet::new(UdpSocket::bind(address).expect("it is free")).expect("a socket");
        send_many(&mut one, address, 10);
        assert_eq!(take_all(&mut again).len(), 10);
        again.socket_to(one.address()).send(one.address(), b"back", 100).expect("sent");
        assert_eq!(take_all(&mut one), [(b"back".to_vec(), address)]);
    }

    /// Goal: if no socket can be connected, everything uses the first one. Method: a peer of another
    /// address family, which is unreachable, and then one that can be reached.
    #[test]
    fn without_a_connected_socket_it_goes_on() {
        let (mut one, mut two) = (sockets(), sockets());
        for _ in 0..2 * PROMOTE_AFTER {
            let to = "[::1]:9".parse().expect("an address");
            one.socket_to(to).send(to, b"remote", 100).expect_err("no way");
        }
        assert!(one.has_connect_failed);
        send_many(&mut one, two.address(), 2 * PROMOTE_AFTER);
        assert_eq!(one.sockets.len(), 1);
        assert_eq!(take_all(&mut two).len(), usize::try_from(2 * PROMOTE_AFTER).expect("small"));
    }

    /// Goal: a sleeper is woken by arrivals at either socket. Method: watch, let one datagram arrive,
    /// and poll the descriptor; also for one that had arrived before.
    #[test]
    fn sleepers_hear_both() {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let is_readable = |sockets: &SocketSet| {
            let descriptor = sockets.descriptor();
            let mut watched = [PollFd::new(&descriptor, PollFlags::IN)];
            let none = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut watched, Some(&none)).expect("it can be asked") > 0
        };
        let (mut one, two, stranger) = (sockets(), sockets(), sockets());
        send_many(&mut one, two.address(), PROMOTE_AFTER);
        for from in [&two, &stranger, &two] {
            assert_eq!(one.arm().expect("it can be watched"), ArmOutcome::Armed);
            assert!(!is_readable(&one));
            // Another thread polls meanwhile, without waking the sleeper.
            assert!(take_all(&mut one).is_empty());
            from.sockets[0].send_one(one.address(), b"wake up").expect("sent");
            assert!(is_readable(&one));
            assert_eq!(take_all(&mut one), [(b"wake up".to_vec(), from.address())]);
            from.sockets[0].send_one(one.address(), b"before").expect("sent");
            assert_eq!(one.arm().expect("it can be watched"), ArmOutcome::Ready);
            assert!(is_readable(&one));
            assert_eq!(take_all(&mut one), [(b"before".to_vec(), from.address())]);
        }
    }
}
