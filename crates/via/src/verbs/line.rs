//! A line: the TCP connection beside a queue pair, over which the two NICs agree and part.
//!
//! It is never waited for: bytes are taken and given as the kernel has them. A line that is up for longer than
//! the kernel's keepalive allows without an answer ends, and so the peer's death or its host's is noticed while
//! the queue pair is idle.

use std::{io, net::SocketAddr, os::fd::OwnedFd, time::Duration};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, bind, connect,
        recv, send, shutdown, socket_with, sockopt,
    },
};

use super::{
    secret::{LineKey, Nonce, Secret, Side, TAG_BYTES, is_same},
    wire::{FRAME_MAX, Frame},
};

/// The kernel asks an idle peer after so long, so often, and so many times.
const ASK_AFTER: Duration = Duration::from_secs(5);
const ASK_EVERY: Duration = Duration::from_secs(2);
const ASK_COUNT: u32 = 3;
/// Bytes that nobody acknowledges for so long end the line, in milliseconds.
const SILENCE_MS: u32 = 10_000;
/// The most bytes that wait to be sent: some frames beside the longest.
const OUTBOX_MAX: usize = 4 * FRAME_MAX;

/// Why a line ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineEnd {
    /// Nobody is at that address.
    Unanswered,
    /// The other side has closed it, or its host is silent.
    Closed,
    /// The other side does not keep the protocol, or does not know the secret.
    Fault(&'static str),
}

#[derive(Debug)]
pub(super) struct Line {
    pub(super) socket: OwnedFd,
    side: Side,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    key: Option<LineKey>,
    /// What the key will be made of, once the answerer has named its number.
    expected: Option<(Secret, Nonce)>,
    sent: u64,
    received: u64,
    /// The kernel has not said yet that the connection stands.
    is_dialing: bool,
    /// What the epoll descriptor was told.
    pub(super) wants_room: bool,
}

impl Line {
    /// Calls a peer, from the address at which this NIC is.
    pub(super) fn dial(from: SocketAddr, to: SocketAddr) -> Result<Self, LineEnd> {
        let socket = Self::dialed(from, to).map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => LineEnd::Unanswered,
            _ => LineEnd::Closed,
        })?;
        Ok(Self::new(socket, Side::Caller, true))
    }

    fn dialed(from: SocketAddr, to: SocketAddr) -> io::Result<OwnedFd> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        bind(&socket, &SocketAddr::new(from.ip(), 0))?;
        prepare(&socket)?;
        match connect(&socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes a peer's call.
    pub(super) fn answer(socket: OwnedFd) -> io::Result<Self> {
        prepare(&socket)?;
        Ok(Self::new(socket, Side::Answerer, false))
    }

    const fn new(socket: OwnedFd, side: Side, is_dialing: bool) -> Self {
        Self {
            socket,
            side,
            inbox: Vec::new(),
            outbox: Vec::new(),
            key: None,
            expected: None,
            sent: 0,
            received: 0,
            is_dialing,
            wants_room: false,
        }
    }

    /// Tags all frames from here on: the answerer's part.
    pub(super) fn set_key(&mut self, key: LineKey) {
        self.key = Some(key);
    }

    /// Says who this is: the caller's part. The answer is tagged by whoever knows the secret.
    pub(super) fn hello(&mut self, secret: &Secret, nonce: Nonce) {
        self.send(&Frame::Hello { nonce });
        self.expected = Some((secret.clone(), nonce));
    }

    /// Sends a frame, as soon as the kernel takes it.
    pub(super) fn send(&mut self, frame: &Frame) {
        let bytes = frame.encode();
        let Ok(length) = u16::try_from(bytes.len()) else { return };
        if self.outbox.len() > OUTBOX_MAX {
            // The other side reads nothing; the kernel ends the line soon.
            return;
        }
        self.outbox.extend(length.to_le_bytes());
        self.outbox.extend(&bytes);
        if let Some(key) = &self.key {
            self.outbox.extend(key.tag(self.side, self.sent, &bytes));
            self.sent += 1;
        }
        self.flush();
    }

    /// Whether the connection does not stand yet.
    pub(super) const fn is_dialing(&self) -> bool {
        self.is_dialing
    }

    /// Whether bytes wait for the kernel, or the connection for the peer.
    pub(super) fn needs_room(&self) -> bool {
        self.is_dialing || !self.outbox.is_empty()
    }

    /// Gives the kernel what waits. Errors show when it is read.
    pub(super) fn flush(&mut self) {
        if self.is_dialing {
            return;
        }
        while !self.outbox.is_empty() {
            match send(&self.socket, &self.outbox, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => drop(self.outbox.drain(..count)),
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    /// Sees whether the connection that was dialed stands. Returns whether it does since now.
    pub(super) fn has_connected(&mut self) -> Result<bool, LineEnd> {
        if !self.is_dialing {
            return Ok(false);
        }
        match sockopt::socket_error(&self.socket) {
            Ok(Ok(())) if rustix::net::getpeername(&self.socket).is_ok() => {
                self.is_dialing = false;
                Ok(true)
            }
            Ok(Ok(())) => Ok(false),
            Ok(Err(Errno::CONNREFUSED)) => Err(LineEnd::Unanswered),
            _ => Err(LineEnd::Closed),
        }
    }

    /// Takes the next frame, if it is there.
    pub(super) fn receive(&mut self) -> Result<Option<Frame>, LineEnd> {
        if let Some(frame) = self.take()? {
            return Ok(Some(frame));
        }
        let mut bytes = [0; FRAME_MAX];
        loop {
            match recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(LineEnd::Closed),
                Ok((count, _)) => {
                    self.inbox.extend(bytes.get(..count).unwrap_or(&[]));
                    return self.take();
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(_) => return Err(LineEnd::Closed),
            }
        }
    }

    /// Takes a frame that has arrived as a whole.
    fn take(&mut self) -> Result<Option<Frame>, LineEnd> {
        let Some((&length, rest)) = self.inbox.split_first_chunk() else { return Ok(None) };
        let length = usize::from(u16::from_le_bytes(length));
        if length > FRAME_MAX {
            return Err(LineEnd::Fault("a frame that is too long"));
        }
        let is_tagged = self.key.is_some() || self.expected.is_some();
        let tag_bytes = if is_tagged { TAG_BYTES } else { 0 };
        let Some((bytes, behind)) = rest.split_at_checked(length) else { return Ok(None) };
        let Some(tag) = behind.get(..tag_bytes) else { return Ok(None) };
        let frame = Frame::decode(bytes).ok_or(LineEnd::Fault("a frame that makes no sense"))?;
        if let Some((secret, own)) = &self.expected {
            let Frame::Welcome { nonce } = &frame else {
                return Err(LineEnd::Fault("an answer that is no welcome"));
            };
            self.key = Some(secret.line_key(own, nonce));
            self.expected = None;
        }
        if let Some(key) = &self.key {
            if !is_same(&key.tag(self.side.other(), self.received, bytes), tag) {
                return Err(LineEnd::Fault(
                    "a frame with a wrong tag: another secret, or a forgery",
                ));
            }
            self.received += 1;
        }
        self.inbox.drain(..2 + length + tag_bytes);
        Ok(Some(frame))
    }

    /// Says that nothing more will be sent. Whatever still comes is read until the other side says so too.
    pub(super) fn finish(&mut self) {
        self.flush();
        let _ = shutdown(&self.socket, Shutdown::Write);
    }

    /// Reads what still comes after the end, and returns whether the other side has ended too.
    pub(super) fn has_finished(&self) -> bool {
        let mut bytes = [0; FRAME_MAX];
        for _ in 0..16 {
            match recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return true,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return false,
                Err(_) => return true,
            }
        }
        false
    }
}

fn prepare(socket: &OwnedFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, ASK_AFTER)?;
    sockopt::set_tcp_keepintvl(socket, ASK_EVERY)?;
    sockopt::set_tcp_keepcnt(socket, ASK_COUNT)?;
    sockopt::set_tcp_user_timeout(socket, SILENCE_MS)?;
    Ok(())
}
