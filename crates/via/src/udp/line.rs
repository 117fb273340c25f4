//! The sockets of a NIC: the one that everybody reaches, and connected ones.
//!
//! The kernel finds the way of a connected socket's datagrams once, and not for each of them anew, neither there nor back.
//! So the peer that a NIC talks most with gets one: bound to the NIC's own address, so that the peer sees
//! no difference, and connected to the peer's. What that sends arrives there as soon as it is connected, and what
//! anybody else sends where it always did.
//!
//! It is one peer only, since each socket has to be looked at. Nothing depends on it: if it cannot be made, if a peer
//! changes its address, or if another talks more, its datagrams take the first socket as before.

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

use super::{BUFFER_BYTES, sys};
use crate::software_nic::Gather;

/// A peer has talked much when it was sent so many more datagrams than all others without a socket of their own.
const TALK: u32 = 64;

/// One look of so many is at another socket than the one where something arrived last: often if that found something
/// the last time, seldom if not.
const LOOKS_MIN: u32 = 2;
const LOOKS_MAX: u32 = 32;

/// Which of the sockets has something is found out by looking.
const NO_DATA: epoll::EventData = epoll::EventData::new_u64(0);

/// A socket, and to whom it is connected.
#[derive(Debug)]
struct Line {
    socket: UdpSocket,
    peer: Option<SocketAddr>,
    /// Into packets of which length the kernel cuts what it is given; 0: not at all.
    segment_bytes: usize,
    /// How much was sent since another peer wanted its place.
    sends: u32,
    /// Another peer has its place: nothing is sent, and what has arrived is still taken.
    is_leaving: bool,
}

impl Line {
    fn new(socket: UdpSocket, peer: Option<SocketAddr>) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        sockopt::set_socket_recv_buffer_size(&socket, BUFFER_BYTES)?;
        sockopt::set_socket_send_buffer_size(&socket, BUFFER_BYTES)?;
        Ok(Self { socket, peer, segment_bytes: 0, sends: 0, is_leaving: false })
    }

    /// Has the kernel cut what follows; not every time anew.
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
                // Somebody says that an earlier one found nobody; this one was not tried.
                Err(Errno::CONNREFUSED) if !was_refused => was_refused = true,
                Err(error) => return Err(error.into()),
                Ok(_) => return Ok(()),
            }
        }
    }

    fn send(&mut self, to: SocketAddr, packets: &[u8], packet_bytes: usize) -> io::Result<()> {
        if packets.len() <= packet_bytes {
            if self.segment_bytes != 0 && packets.len() > self.segment_bytes {
                self.cut(0)?;
            }
            return self.send_one(to, packets);
        }
        self.cut(packet_bytes)?;
        match self.send_one(to, packets) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                // The path has become shorter, or its interface does not do that: one by one IP can help.
                self.cut(0)?;
                for packet in packets.chunks(packet_bytes) {
                    match self.send_one(to, packet) {
                        // What does not fit into the buffer is lost, and sent again in time.
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                        sent => sent?,
                    }
                }
                Ok(())
            }
            sent => sent,
        }
    }

    fn send_gathered(
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
        // As one, then one by one.
        let mut bytes = Vec::with_capacity(packets.len());
        packets.copy_onto(&mut bytes)?;
        self.send(to, &bytes, packet_bytes)
    }

    #[inline]
    fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<(usize, SocketAddr)>> {
        loop {
            match recvfrom(&self.socket, &mut *buffer, RecvFlags::empty()) {
                // Who it is from is asked of connected ones too: until they are connected, anybody reaches them.
                Ok((count, _, Some(from))) => {
                    let from = SocketAddr::try_from(from)?;
                    return Ok(Some((count, from)));
                }
                Ok((_, _, None)) => return Err(io::ErrorKind::InvalidData.into()),
                // What the network says of a peer is no proof, and who is dead is found out otherwise.
                Err(Errno::AGAIN | Errno::CONNREFUSED) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The sockets of a NIC.
#[derive(Debug)]
pub(super) struct Lines {
    /// The first is not connected. Of the others one is in use, and one may be leaving.
    lines: Vec<Line>,
    address: SocketAddr,
    is_glued: bool,
    /// Readable when one of them is, once they are watched.
    epoll: OwnedFd,
    is_watched: bool,
    /// Where something arrived last.
    hot: usize,
    /// Where somebody looks next beside it, after so many looks, of so many.
    other: usize,
    looks_left: u32,
    looks: u32,
    /// So many sockets are looked at until they have nothing before it is said that nothing is there.
    owed: usize,
    /// Who was sent most of those that have no socket of their own, and how many more than all others.
    favourite: Option<SocketAddr>,
    lead: u32,
    /// Connected sockets cannot be had here.
    gives_up: bool,
}

impl Lines {
    /// Begins with a socket that is bound to one address.
    pub(super) fn new(socket: UdpSocket) -> io::Result<Self> {
        let address = socket.local_addr()?;
        let first = Line::new(socket, None)?;
        let is_glued = sys::set_gluing(first.socket.as_fd()).is_ok();
        Ok(Self {
            lines: vec![first],
            address,
            is_glued,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            is_watched: false,
            hot: 0,
            other: 0,
            looks_left: LOOKS_MIN,
            looks: LOOKS_MIN,
            owed: 0,
            favourite: None,
            lead: 0,
            gives_up: false,
        })
    }

    /// Where all of them are bound.
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) const fn is_glued(&self) -> bool {
        self.is_glued
    }

    /// Readable when something has arrived, once they are [watched](Self::watch).
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Has the descriptor tell of arrivals from now on: who never sleeps should not pay for that with every datagram.
    /// Returns whether something may be there already.
    pub(super) fn watch(&mut self) -> io::Result<bool> {
        if !self.is_watched {
            for line in &self.lines {
                self.add(line)?;
            }
            self.is_watched = true;
        }
        if self.lines.len() == 1 {
            // It had nothing a moment ago, and what has come since then has been told.
            return Ok(false);
        }
        // What was there at another socket than the last one has been told long ago.
        self.sweep();
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: NO_DATA }];
        let is_there = epoll::wait(&self.epoll, &mut events[..], Some(&Timespec::default()));
        match is_there {
            Ok(count) => Ok(count > 0),
            Err(Errno::INTR) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    fn add(&self, line: &Line) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, &line.socket, NO_DATA, epoll::EventFlags::IN)?)
    }

    /// Has all sockets be looked at, the first one first.
    const fn sweep(&mut self) {
        self.owed = self.lines.len();
        self.other = 0;
    }

    // -------------------------------------------------------------- sending

    pub(super) fn send(
        &mut self,
        to: SocketAddr,
        packets: &[u8],
        packet_bytes: usize,
    ) -> io::Result<()> {
        self.line_to(to).send(to, packets, packet_bytes)
    }

    pub(super) fn send_gathered(
        &mut self,
        to: SocketAddr,
        packets: &Gather,
        packet_bytes: usize,
    ) -> io::Result<()> {
        self.line_to(to).send_gathered(to, packets, packet_bytes)
    }

    fn line_to(&mut self, to: SocketAddr) -> &mut Line {
        let is_its = |line: &Line| line.peer == Some(to) && !line.is_leaving;
        let index = match self.lines.iter().position(is_its) {
            Some(index) => index,
            None if self.is_busy(to) && self.connect(to) => self.lines.len() - 1,
            None => 0,
        };
        let line = &mut self.lines[index];
        line.sends = line.sends.saturating_add(1);
        line
    }

    /// Counts what a peer without a socket of its own is sent. Returns whether it has earned one.
    fn is_busy(&mut self, to: SocketAddr) -> bool {
        if self.gives_up {
            return false;
        }
        if self.favourite == Some(to) {
            self.lead += 1;
        } else if self.lead == 0 {
            (self.favourite, self.lead) = (Some(to), 1);
        } else {
            self.lead -= 1;
        }
        let is_busy = self.lead >= TALK;
        if is_busy {
            self.lead = 0;
        }
        is_busy
    }

    /// Gives a peer a socket of its own, unless another needs it more. Returns whether it has one.
    #[cold]
    fn connect(&mut self, peer: SocketAddr) -> bool {
        let mut has_leaving = false;
        for line in self.lines.iter_mut().skip(1) {
            let sends = mem::take(&mut line.sends);
            if line.is_leaving || sends >= TALK / 2 {
                return false;
            }
            has_leaving = true;
        }
        let opened = self.open(peer).and_then(|line| {
            if self.is_watched {
                self.add(&line)?;
            }
            Ok(line)
        });
        match opened {
            Ok(line) => {
                self.lines.iter_mut().skip(1).for_each(|line| line.is_leaving = has_leaving);
                self.lines.push(line);
                // What has arrived at the first socket until now came before what arrives at the new one.
                self.sweep();
                true
            }
            Err(_) => {
                self.gives_up = true;
                false
            }
        }
    }

    /// Makes a socket that is connected to a peer.
    ///
    /// Sockets may only be bound to one address while all of them allow it, and only by the same user. They do until the
    /// new one is bound, so that afterwards the address is as taken as before.
    fn open(&self, peer: SocketAddr) -> io::Result<Line> {
        let family = if peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_reuseport(&socket, true)?;
        for line in &self.lines {
            sockopt::set_socket_reuseport(&line.socket, true)?;
        }
        let is_bound = bind(&socket, &self.address);
        for line in &self.lines {
            sockopt::set_socket_reuseport(&line.socket, false)?;
        }
        is_bound?;
        // Until now a share of what strangers send may have come here.
        connect(&socket, &peer)?;
        sockopt::set_socket_reuseport(&socket, false)?;
        if self.is_glued {
            sys::set_gluing(socket.as_fd())?;
        }
        Line::new(socket.into(), Some(peer))
    }

    // -------------------------------------------------------------- receiving

    /// Takes what has arrived. `None`: nothing is there, unless at a socket whose turn it was not.
    #[inline]
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<(usize, SocketAddr)>> {
        if self.lines.len() > 1 {
            if self.owed > 0 || self.looks_left == 0 {
                return self.receive_elsewhere(buffer);
            }
            self.looks_left -= 1;
        }
        self.lines[self.hot].receive(buffer)
    }

    fn receive_elsewhere(&mut self, buffer: &mut [u8]) -> io::Result<Option<(usize, SocketAddr)>> {
        if self.owed == 0 && self.other == self.hot {
            self.other = (self.other + 1) % self.lines.len();
        }
        loop {
            let found = self.lines[self.other].receive(buffer)?;
            if found.is_some() {
                // It may be this one's turn: the others are asked again soon.
                self.looks = LOOKS_MIN;
                self.looks_left = self.looks;
                self.hot = self.other;
                return Ok(found);
            }
            if self.lines[self.other].is_leaving {
                self.lines.remove(self.other);
                (self.hot, self.other) = (0, 0);
                return Ok(None);
            }
            self.other = (self.other + 1) % self.lines.len();
            self.owed = self.owed.saturating_sub(1);
            if self.owed == 0 {
                self.looks = (self.looks * 2).min(LOOKS_MAX);
                self.looks_left = self.looks;
                return self.lines[self.hot].receive(buffer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> Lines {
        Lines::new(UdpSocket::bind("127.0.0.1:0").expect("a port")).expect("a socket")
    }

    /// Takes all that is there.
    fn take_all(lines: &mut Lines) -> Vec<(Vec<u8>, SocketAddr)> {
        let mut found = Vec::new();
        let mut buffer = [0; 2048];
        // It is looked at all sockets within as many looks, seldom as that may be for some of them.
        for _ in 0..4 * LOOKS_MAX {
            while let Some((count, from)) = lines.receive(&mut buffer).expect("readable") {
                found.push((buffer[..count].to_vec(), from));
            }
        }
        found
    }

    fn send_many(lines: &mut Lines, to: SocketAddr, count: u32) {
        for number in 0..count {
            lines.send(to, &number.to_le_bytes(), 100).expect("sent");
        }
    }

    fn peers(lines: &Lines) -> Vec<SocketAddr> {
        let stay = lines.lines.iter().filter(|line| !line.is_leaving);
        stay.filter_map(|line| line.peer).collect()
    }

    fn numbers(count: u32) -> Vec<Vec<u8>> {
        (0..count).map(|number| number.to_le_bytes().to_vec()).collect()
    }

    /// Goal: a peer that is talked with much gets a socket, and nothing else changes: all arrives, in order, from the
    /// same address, strangers are heard, and the address is taken. Method: two NICs' sockets and a stranger's.
    #[test]
    fn a_busy_peer_gets_a_socket() {
        let (mut one, mut two, stranger) = (lines(), lines(), lines());
        send_many(&mut one, two.address(), TALK - 1);
        assert!(peers(&one).is_empty());
        send_many(&mut two, one.address(), 3 * TALK);
        assert_eq!(peers(&two), [one.address()]);
        let found = take_all(&mut one);
        assert!(found.iter().all(|(_, from)| *from == two.address()));
        let bytes: Vec<_> = found.into_iter().map(|(bytes, _)| bytes).collect();
        assert_eq!(bytes, numbers(3 * TALK));
        assert_eq!(take_all(&mut two).len(), usize::try_from(TALK - 1).expect("small"));
        // Through the connected socket, and past it.
        send_many(&mut one, two.address(), 1);
        stranger.lines[0].send_one(two.address(), b"stranger").expect("sent");
        let mut found = take_all(&mut two);
        found.sort();
        let mut expected =
            [(numbers(1).remove(0), one.address()), (b"stranger".to_vec(), stranger.address())];
        expected.sort();
        assert_eq!(found, expected);
        for lines in [&one, &two] {
            let error = UdpSocket::bind(lines.address()).expect_err("taken");
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        }
    }

    /// Goal: what has arrived before there is a connected socket is taken, and before what comes after. Method:
    /// datagrams before and after it is connected, all taken together.
    #[test]
    fn what_raced_comes_first() {
        let (mut one, mut two) = (lines(), lines());
        for number in 0..20_u32 {
            two.lines[0].send_one(one.address(), &number.to_le_bytes()).expect("sent");
        }
        send_many(&mut one, two.address(), TALK);
        assert_eq!(peers(&one), [two.address()]);
        for number in 20..40_u32 {
            two.lines[0].send_one(one.address(), &number.to_le_bytes()).expect("sent");
        }
        let found: Vec<_> = take_all(&mut one).into_iter().map(|(bytes, _)| bytes).collect();
        assert_eq!(found, numbers(40));
        assert_eq!(take_all(&mut two).len(), usize::try_from(TALK).expect("small"));
    }

    /// Goal: neither socket starves the other, however much comes. Method: both are full, and after few looks
    /// something of either has been found.
    #[test]
    fn no_socket_starves() {
        let (mut one, two, stranger) = (lines(), lines(), lines());
        send_many(&mut one, two.address(), TALK);
        for busy in [&two, &stranger] {
            for from in [busy, busy, busy, busy, &two, &stranger] {
                for _ in 0..40 {
                    from.lines[0].send_one(one.address(), b"much").expect("sent");
                }
            }
            let mut seen = Vec::new();
            for _ in 0..5 * LOOKS_MAX {
                let found = one.receive(&mut [0; 100]).expect("readable");
                seen.extend(found.map(|(_, from)| from));
            }
            for wanted in [&two, &stranger] {
                assert!(seen.contains(&wanted.address()), "{} is not heard", wanted.address());
            }
            take_all(&mut one);
        }
    }

    /// Goal: who talks more than the one that has the socket gets it, what is still on the way to the old one is
    /// taken, and there are never more than three. Method: many peers, one after the other; each has sent something
    /// that nobody has taken when its socket goes.
    #[test]
    fn the_busiest_has_it() {
        let mut one = lines();
        for _ in 0..6 {
            let peer = lines();
            send_many(&mut one, peer.address(), 4 * TALK);
            assert_eq!(peers(&one), [peer.address()]);
            assert!(take_all(&mut one).is_empty());
            peer.lines[0].send_one(one.address(), b"late").expect("sent");
            let next = lines();
            send_many(&mut one, next.address(), 4 * TALK);
            assert_eq!(peers(&one), [next.address()]);
            assert!(one.lines.len() <= 3);
            assert_eq!(take_all(&mut one), [(b"late".to_vec(), peer.address())]);
            assert_eq!(one.lines.len(), 2, "the old one is closed");
        }
        // Peers that are talked with alike leave it where it is.
        let (left, right) = (lines(), lines());
        let before = peers(&one);
        for _ in 0..4 * TALK {
            send_many(&mut one, left.address(), 1);
            send_many(&mut one, right.address(), 1);
        }
        assert_eq!(peers(&one), before);
    }

    /// Goal: a peer that vanishes makes no failures, and one at its address is reached as before. Method: close the
    /// peer's socket, send, look, and open another there.
    #[test]
    fn a_peer_vanishes() {
        let (mut one, two) = (lines(), lines());
        let address = two.address();
        send_many(&mut one, address, 2 * TALK);
        assert_eq!(peers(&one), [address]);
        drop(two);
        // The host says that nobody is there.
        send_many(&mut one, address, 10);
        assert!(take_all(&mut one).is_empty());
        send_many(&mut one, address, 10);
        let mut again =
            Lines::new(UdpSocket::bind(address).expect("it is free")).expect("a socket");
        send_many(&mut one, address, 10);
        assert_eq!(take_all(&mut again).len(), 10);
        again.send(one.address(), b"back", 100).expect("sent");
        assert_eq!(take_all(&mut one), [(b"back".to_vec(), address)]);
    }

    /// Goal: where no socket can be connected all goes by the first. Method: a peer of another kind of address, which
    /// nothing reaches, and then one that can be reached.
    #[test]
    fn without_a_connected_socket_it_goes_on() {
        let (mut one, mut two) = (lines(), lines());
        for _ in 0..2 * TALK {
            one.send("[::1]:9".parse().expect("an address"), b"nobody", 100).expect_err("no way");
        }
        assert!(one.gives_up);
        send_many(&mut one, two.address(), 2 * TALK);
        assert_eq!(one.lines.len(), 1);
        assert_eq!(take_all(&mut two).len(), usize::try_from(2 * TALK).expect("small"));
    }

    /// Goal: who sleeps hears of what arrives at either socket. Method: watch, let one datagram come, and ask the
    /// descriptor; also for what was there before.
    #[test]
    fn sleepers_hear_both() {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let is_readable = |lines: &Lines| {
            let descriptor = lines.descriptor();
            let mut watched = [PollFd::new(&descriptor, PollFlags::IN)];
            let none = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut watched, Some(&none)).expect("it can be asked") > 0
        };
        let (mut one, two, stranger) = (lines(), lines(), lines());
        send_many(&mut one, two.address(), TALK);
        for from in [&two, &stranger, &two] {
            assert!(!one.watch().expect("it can be watched"));
            assert!(!is_readable(&one));
            // Another thread looks meanwhile, and does not wake the one that sleeps.
            assert!(take_all(&mut one).is_empty());
            from.lines[0].send_one(one.address(), b"wake up").expect("sent");
            assert!(is_readable(&one));
            assert_eq!(take_all(&mut one), [(b"wake up".to_vec(), from.address())]);
            from.lines[0].send_one(one.address(), b"before").expect("sent");
            assert!(one.watch().expect("it can be watched"));
            assert!(is_readable(&one));
            assert_eq!(take_all(&mut one), [(b"before".to_vec(), from.address())]);
        }
    }
}
