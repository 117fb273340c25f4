//! Trains of datagrams: what the kernel has merged of one sender's (UDP_GRO) is received in one call, and cut again when it is sent in one
//! (UDP_SEGMENT). Boundaries and order stay as they were.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    net::SocketAddr,
};

use rustix::net::{RecvAncillaryBuffer, RecvFlags, recvmsg};
use socket2::{MsgHdr, SockAddr, SockRef};
use vigie_detect::{detectors::readiness::Direction, net::UdpSocket};

use super::sys::{CONTROL_BYTES, merge_datagrams, segment_control, segment_of};

/// A socket whose datagrams may come in trains.
#[derive(Debug)]
pub(super) struct TrainSocket {
    socket: UdpSocket,
    is_simulated: bool,
}

/// Datagrams that have come together, each of `segment` bytes but the last one, which may be shorter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Train<'a> {
    bytes: &'a [u8],
    segment: usize,
}

impl<'a> Train<'a> {
    pub(super) const fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// How many datagrams it has, at least one.
    pub(super) const fn count(&self) -> usize {
        let count = self.bytes.len().div_ceil(self.segment);
        if count == 0 { 1 } else { count }
    }

    /// Returns the datagrams, one by one.
    fn each(&self) -> impl Iterator<Item = &'a [u8]> {
        let (bytes, segment) = (self.bytes, self.segment);
        (0..self.count()).map(move |at| {
            let begin = at * segment;
            &bytes[begin..(begin + segment).min(bytes.len())]
        })
    }
}

impl TrainSocket {
    /// Lets the kernel merge what arrives at `socket`, if it can.
    pub(super) fn new(socket: UdpSocket, is_simulated: bool) -> Self {
        if !is_simulated {
            merge_datagrams(&socket);
        }
        Self { socket, is_simulated }
    }

    pub(super) const fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Receives what is there of one sender, without waiting. `room` must be as long as the longest datagram.
    pub(super) fn try_receive<'a>(
        &self,
        room: &'a mut [u8],
    ) -> io::Result<(Train<'a>, Option<SocketAddr>)> {
        if self.is_simulated {
            // One that is connected does not tell the sender.
            let received = match self.socket.peer_addr() {
                Ok(_) => self.socket.try_recv(room).map(|bytes| (bytes, None)),
                Err(_) => self.socket.try_recv_from(room).map(|(bytes, from)| (bytes, Some(from))),
            };
            let (bytes, from) = received?;
            return Ok((Train { bytes: &room[..bytes], segment: bytes.max(1) }, from));
        }
        let received = self.socket.as_async_fd().try_io(Direction::Read, |socket| {
            let mut space = [MaybeUninit::new(0); CONTROL_BYTES];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(room)];
            let received = recvmsg(socket, &mut parts, &mut control, RecvFlags::DONTWAIT)?;
            drop(control);
            Ok((received.bytes, received.address, segment_of(&space)))
        });
        let (bytes, address, segment) = received?;
        let from = address.and_then(|address| SocketAddr::try_from(address).ok());
        let segment = segment.unwrap_or(bytes).max(1);
        Ok((Train { bytes: &room[..bytes], segment }, from))
    }

    /// Sends a train, to `to` unless the socket is connected, without waiting. Returns how many datagrams and bytes the kernel has taken, and the first
    /// error if it has not taken all.
    pub(super) fn try_send(
        &self,
        train: Train<'_>,
        to: Option<SocketAddr>,
    ) -> (usize, usize, Option<io::Error>) {
        if train.count() > 1 {
            match self.try_send_whole(train, to) {
                Ok(()) => return (train.count(), train.bytes(), None),
                Err(error) if is_about_another(&error) => return (0, 0, Some(error)),
                // Longer than the way takes, or an interface that computes no checksums: each alone may pass.
                Err(_) => {}
            }
        }
        let (mut count, mut bytes, mut failed) = (0, 0, None);
        for datagram in train.each() {
            let sent = match to {
                Some(to) => self.socket.try_send_to(datagram, to),
                None => self.socket.try_send(datagram),
            };
            match sent {
                Ok(_) => (count, bytes) = (count + 1, bytes + datagram.len()),
                Err(error) => {
                    // Nothing of it was sent, so all may be tried again.
                    if count == 0 && is_about_another(&error) {
                        return (0, 0, Some(error));
                    }
                    failed = failed.or(Some(error));
                }
            }
        }
        (count, bytes, failed)
    }

    fn try_send_whole(&self, train: Train<'_>, to: Option<SocketAddr>) -> io::Result<()> {
        let control = segment_control(train.segment)?;
        let to = to.map(SockAddr::from);
        let parts = [IoSlice::new(train.bytes)];
        let message = MsgHdr::new().with_buffers(&parts).with_control(&control);
        let message = match &to {
            Some(to) => message.with_addr(to),
            None => message,
        };
        self.socket.as_async_fd().try_io(Direction::Write, |socket| {
            SockRef::from(socket).sendmsg(&message, libc::MSG_DONTWAIT).map(drop)
        })
    }
}

/// Whether an error is about an earlier datagram, so that this one was not tried.
fn is_about_another(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionRefused
}
