//! A control connection: the TCP connection beside a queue pair, over which two NICs connect and disconnect.
//!
//! It never blocks: bytes are read and written as the kernel allows. A control connection whose peer
//! answers no keepalive ends, so the death of the peer or its host is noticed even while the queue pair
//! is idle.

use std::{io, net::SocketAddr, os::fd::OwnedFd, time::Duration};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, bind, connect,
        recv, send, shutdown, socket_with, sockopt,
    },
};

use super::{
    secret::{ControlKey, Nonce, Side, VerbsSecret},
    wire::{ControlFrame, FRAME_MAX},
};
use crate::auth::{TAG_BYTES, is_same};

/// TCP keepalive: the idle time, the probe interval and the number of probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_COUNT: u32 = 3;
/// The time that bytes may stay unacknowledged before the control connection ends, in milliseconds.
const USER_TIMEOUT_MS: u32 = 10_000;
/// The most bytes that wait to be sent: several of the longest frames.
const OUTBOX_MAX: usize = 4 * FRAME_MAX;

/// The reason why a control connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ControlError {
    /// No NIC listens at that address.
    Unanswered,
    /// The other side has closed it, or its host is silent.
    Closed,
    /// The other side violates the protocol, or does not know the secret.
    Fault(&'static str),
}

#[derive(Debug)]
pub(super) struct ControlConnection {
    pub(super) socket: OwnedFd,
    side: Side,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    key: Option<ControlKey>,
    /// The inputs of the key, until the answerer has sent its nonce.
    expected: Option<(VerbsSecret, Nonce)>,
    sent: u64,
    received: u64,
    /// The kernel has not reported yet that the connection is established.
    is_dialing: bool,
    /// True if epoll watches for room to write.
    pub(super) wants_room: bool,
}

impl ControlConnection {
    /// Dials a peer, from this NIC's address.
    pub(super) fn dial(from: SocketAddr, to: SocketAddr) -> Result<Self, ControlError> {
        let socket = Self::dialed(from, to).map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => ControlError::Unanswered,
            _ => ControlError::Closed,
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

    /// Accepts a peer's connection.
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
    pub(super) fn set_key(&mut self, key: ControlKey) {
        self.key = Some(key);
    }

    /// Sends the hello: the caller's part. A peer that knows the secret tags its answer.
    pub(super) fn hello(&mut self, secret: &VerbsSecret, nonce: Nonce) {
        self.send(&ControlFrame::Hello { nonce });
        self.expected = Some((secret.clone(), nonce));
    }

    /// Sends a frame as soon as the kernel takes it.
    pub(super) fn send(&mut self, frame: &ControlFrame) {
        let bytes = frame.encode();
        let Ok(length) = u16::try_from(bytes.len()) else { return };
        if self.outbox.len() > OUTBOX_MAX {
            // The other side reads nothing; the kernel will soon end the control connection.
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

    /// Returns whether the connection is not yet established.
    pub(super) const fn is_dialing(&self) -> bool {
        self.is_dialing
    }

    /// Returns whether bytes wait for the kernel, or the connection for the peer.
    pub(super) fn needs_room(&self) -> bool {
        self.is_dialing || !self.outbox.is_empty()
    }

    /// Writes pending bytes to the kernel. Errors surface on reading.
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

    /// Checks whether the dialed connection is established. Returns whether it has just become so.
    pub(super) fn has_connected(&mut self) -> Result<bool, ControlError> {
        if !self.is_dialing {
            return Ok(false);
        }
        match sockopt::socket_error(&self.socket) {
            Ok(Ok(())) if rustix::net::getpeername(&self.socket).is_ok() => {
                self.is_dialing = false;
                Ok(true)
            }
            Ok(Ok(())) => Ok(false),
            Ok(Err(Errno::CONNREFUSED)) => Err(ControlError::Unanswered),
            _ => Err(ControlError::Closed),
        }
    }

    /// Returns the next frame, if one has arrived.
    pub(super) fn receive(&mut self) -> Result<Option<ControlFrame>, ControlError> {
        if let Some(frame) = self.take()? {
            return Ok(Some(frame));
        }
        let mut bytes = [0; FRAME_MAX];
        loop {
            match recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(ControlError::Closed),
                Ok((count, _)) => {
                    self.inbox.extend(bytes.get(..count).unwrap_or(&[]));
                    return self.take();
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(_) => return Err(ControlError::Closed),
            }
        }
    }

    /// Returns a frame that has arrived completely.
    fn take(&mut self) -> Result<Option<ControlFrame>, ControlError> {
        let Some((&length, rest)) = self.inbox.split_first_chunk() else { return Ok(None) };
        let length = usize::from(u16::from_le_bytes(length));
        if length > FRAME_MAX {
            return Err(ControlError::Fault("a frame that is too long"));
        }
        let is_tagged = self.key.is_some() || self.expected.is_some();
        let tag_bytes = if is_tagged { TAG_BYTES } else { 0 };
        let Some((bytes, behind)) = rest.split_at_checked(length) else { return Ok(None) };
        let Some(tag) = behind.get(..tag_bytes) else { return Ok(None) };
        let frame = ControlFrame::decode(bytes)
            .ok_or(ControlError::Fault("a frame that makes no sense"))?;
        if let Some((secret, own)) = &self.expected {
            let ControlFrame::Welcome { nonce } = &frame else {
                return Err(ControlError::Fault("an answer that is not a welcome"));
            };
            self.key = Some(secret.control_key(own, nonce));
            self.expected = None;
        }

        if let Some(key) = &self.key {
            if !is_same(&key.tag(self.side.other(), self.received, bytes), tag) {
                return Err(ControlError::Fault(
                    "a frame with a wrong tag: another secret, or a forgery",
                ));
            }
            self.received += 1;
        }

        self.inbox.drain(..2 + length + tag_bytes);
        Ok(Some(frame))
    }

    /// Shuts down sending. Incoming bytes are still read until the other side does the same.
    pub(super) fn finish(&mut self) {
        self.flush();
        let _ = shutdown(&self.socket, Shutdown::Write);
    }

    /// Discards what still arrives after the end. Returns whether the other side has ended too.
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
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_COUNT)?;
    sockopt::set_tcp_user_timeout(socket, USER_TIMEOUT_MS)?;
    Ok(())
}
