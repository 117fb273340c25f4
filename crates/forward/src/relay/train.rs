//! Trains of datagrams: what is there is received in one call (`recvmmsg`), and of what one sender has sent in a row as many datagrams of one
//! length as possible are sent in one (UDP_SEGMENT). Some have come as a train, merged by the kernel (UDP_GRO). Boundaries stay as they were, and so
//! does the order of each sender's.

use std::{
    fmt,
    io::{self, IoSlice},
    net::SocketAddr,
};

use socket2::{MsgHdr, SockAddr, SockRef};
use vigie_detect::{detectors::readiness::Direction, net::UdpSocket};

use super::sys::{ARRIVALS_MAX, ReceivedMessage, merge_datagrams, receive_many, segment_control};

/// The maximum length of a message, a UDP datagram or some that were merged, rounded up.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// The length of a message's place: the beginnings of all messages would otherwise compete for one set of each cache.
const PLACE_BYTES: usize = MESSAGE_BYTES_MAX + (4 << 10) + 64;

/// The most datagrams and bytes that the kernel sends as one train.
const TRAIN_COUNT_MAX: usize = 64;
const TRAIN_BYTES_MAX: usize = 65_000;

/// A socket whose datagrams may come in trains.
#[derive(Debug)]
pub(super) struct TrainSocket {
    socket: UdpSocket,
    is_simulated: bool,
}

/// Datagrams of one sender, each of `segment` bytes but the last one, which may be shorter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Train<'a> {
    /// All but the last one hold whole datagrams.
    parts: &'a [IoSlice<'a>],
    bytes: usize,
    segment: usize,
}

impl Train<'_> {
    /// The number of its datagrams, at least one.
    pub(super) const fn count(&self) -> usize {
        let count = self.bytes.div_ceil(self.segment);
        if count == 0 { 1 } else { count }
    }

    /// Returns the datagrams, one by one.
    fn each(&self) -> impl Iterator<Item = &[u8]> {
        let empty: Option<&[u8]> = (self.bytes == 0).then_some(&[]);
        empty.into_iter().chain(self.parts.iter().flat_map(|part| part.chunks(self.segment)))
    }
}

/// The datagrams that one call received, and the room for them: 2 MiB, of which the kernel provides what was used once.
pub(super) struct Arrivals {
    room: Box<[u8]>,
    arrivals: Vec<ReceivedMessage>,
    /// One bit for each message that was used.
    used: u32,
}

const _: () = assert!(ARRIVALS_MAX <= u32::BITS as usize, "a bit for each message");

impl fmt::Debug for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arrivals").field("arrivals", &self.arrivals).finish_non_exhaustive()
    }
}

impl Arrivals {
    pub(super) fn new() -> Self {
        let room = vec![0; PLACE_BYTES * ARRIVALS_MAX].into();
        Self { room, arrivals: Vec::with_capacity(ARRIVALS_MAX), used: 0 }
    }

    /// Returns how many messages the last call has received.
    pub(super) const fn len(&self) -> usize {
        self.arrivals.len()
    }

    /// Returns the messages that were not used, and their places.
    fn left(&self) -> impl Iterator<Item = (usize, &ReceivedMessage)> {
        let used = self.used;
        self.arrivals.iter().enumerate().filter(move |(at, _)| used & (1 << at) == 0)
    }

    /// Returns whether all of them were used.
    pub(super) fn is_used_up(&self) -> bool {
        self.left().next().is_none()
    }

    /// Returns the number of datagrams that were not used.
    pub(super) fn left_count(&self) -> usize {
        let count = |arrival: &ReceivedMessage| match arrival.segment {
            Some(segment) => arrival.bytes.div_ceil(segment.max(1)),
            None => 1,
        };
        self.left().map(|(_, arrival)| count(arrival)).sum()
    }

    /// Puts the datagrams of each sender together, and calls `use_train` with the trains and their senders, until it returns false; the next
    /// call goes on with those that are left. Returns whether it went on to the last.
    pub(super) fn each_train(
        &mut self,
        mut use_train: impl FnMut(Train<'_>, Option<SocketAddr>) -> bool,
    ) -> bool {
        let bytes = |at: usize, arrival: &ReceivedMessage| {
            let begin = at * PLACE_BYTES;
            IoSlice::new(&self.room[begin..begin + arrival.bytes])
        };
        for (first, arrival) in self.arrivals.iter().enumerate() {
            let is_used = |used: u32, at: usize| used & (1 << at) != 0;
            if is_used(self.used, first) {
                continue;
            }
            self.used |= 1 << first;
            let mut parts = [IoSlice::new(&[]); ARRIVALS_MAX];
            parts[0] = bytes(first, arrival);
            let mut count = 1;
            let segment = arrival.segment.unwrap_or(arrival.bytes).max(1);
            let mut train = Train { parts: &[], bytes: arrival.bytes, segment };
            for (at, next) in self.arrivals.iter().enumerate().skip(first + 1) {
                if next.from != arrival.from || is_used(self.used, at) {
                    continue;
                }
                if !train.takes(next) {
                    // Nothing that the sender has sent later may go before it.
                    break;
                }
                self.used |= 1 << at;
                parts[count] = bytes(at, next);
                count += 1;
                train.bytes += next.bytes;
            }
            if !use_train(Train { parts: &parts[..count], ..train }, arrival.from) {
                return false;
            }
        }
        true
    }
}

impl Train<'_> {
    /// Returns whether a message may follow: it has as long datagrams, or is a shorter one, which is the last.
    const fn takes(&self, next: &ReceivedMessage) -> bool {
        let fits = match next.segment {
            Some(segment) => segment == self.segment,
            None => next.bytes <= self.segment,
        };
        let is_whole = self.bytes > 0 && self.bytes.is_multiple_of(self.segment);
        let bytes = self.bytes + next.bytes;
        is_whole
            && next.bytes > 0
            && fits
            && bytes <= TRAIN_BYTES_MAX
            && bytes.div_ceil(self.segment) <= TRAIN_COUNT_MAX
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

    /// Receives what is there, at most `max` messages, without waiting: one where the network is simulated. If it is fewer than could be, the socket
    /// counts as not readable until something arrives. Discards what `arrivals` held.
    pub(super) fn try_receive(&self, arrivals: &mut Arrivals, max: usize) -> io::Result<()> {
        arrivals.arrivals.clear();
        arrivals.used = 0;
        if self.is_simulated {
            // One that is connected does not tell the sender.
            let room = &mut arrivals.room;
            let (bytes, from) = match self.socket.peer_addr() {
                Ok(_) => (self.socket.try_recv(room)?, None),
                Err(_) => {
                    self.socket.try_recv_from(room).map(|(bytes, from)| (bytes, Some(from)))?
                }
            };
            arrivals.arrivals.push(ReceivedMessage { bytes, segment: None, from });
            return Ok(());
        }
        let Arrivals { room, arrivals, .. } = arrivals;
        let received = self.socket.as_async_fd().try_io(Direction::Read, |socket| {
            let max = max.min(ARRIVALS_MAX);
            receive_many(socket, &mut room[..max * PLACE_BYTES], PLACE_BYTES, arrivals)?;
            // An error since the first of them has an edge of its own.
            if arrivals.len() < max {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(())
        });
        match received {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !arrivals.is_empty() => {
                Ok(())
            }
            received => received,
        }
    }

    /// Sends a train, to `to` unless the socket is connected, without waiting. Returns how many datagrams and bytes the kernel has taken, and the first
    /// error if it has not taken all.
    pub(super) fn try_send(
        &self,
        train: Train<'_>,
        to: Option<SocketAddr>,
    ) -> (usize, usize, Option<io::Error>) {
        if train.count() > 1 && !self.is_simulated {
            match self.try_send_whole(train, to) {
                Ok(()) => return (train.count(), train.bytes, None),
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
        let message = MsgHdr::new().with_buffers(train.parts).with_control(&control);
        let message = match &to {
            Some(to) => message.with_addr(to),
            None => message,
        };
        self.socket.as_async_fd().try_io(Direction::Write, |socket| {
            SockRef::from(socket).sendmsg(&message, libc::MSG_DONTWAIT).map(drop)
        })
    }
}

/// Returns whether an error is about an earlier datagram, so that this one was not tried.
fn is_about_another(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionRefused
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Goal: the trains hold what has arrived, in the order of each sender, in as few as the kernel allows: all datagrams but the last of a train have
        /// one length. None is lost if only some are used at a time. Method: drawn messages, single and merged, of a few senders and lengths, against those of each
        /// sender in a row.
        #[test]
        fn trains_hold_what_each_sender_has_sent(
            drawn in prop::collection::vec((0u16..3, 0usize..4, prop::option::of(2usize..5)), 0..=ARRIVALS_MAX),
            pieces in 1usize..8,
        ) {
            let mut arrivals = Arrivals::new();
            let mut sent = BTreeMap::<_, Vec<Vec<u8>>>::new();
            for (at, (sender, length, merged)) in drawn.into_iter().enumerate() {
                let from = Some(SocketAddr::from(([127, 0, 0, 1], sender)));
                // The last of those that were merged is as long, or shorter.
                let bytes = merged.map_or(length, |count| (count * length.max(1)) - at % length.max(1));
                let segment = merged.map(|_| length.max(1));
                arrivals.arrivals.push(ReceivedMessage { bytes, segment, from });
                let place = &mut arrivals.room[at * PLACE_BYTES..][..bytes];
                place.fill(u8::try_from(at).unwrap_or(0));
                let datagrams = sent.entry(from).or_default();
                match segment {
                    Some(segment) => datagrams.extend(place.chunks(segment).map(<[u8]>::to_vec)),
                    None => datagrams.push(place.to_vec()),
                }
            }
            let mut came = BTreeMap::<_, Vec<Vec<u8>>>::new();
            let mut before = BTreeMap::new();
            let all = sent.values().map(Vec::len).sum::<usize>();
            let mut used = 0;
            let mut use_train = |train: Train<'_>, from| {
                let datagrams: Vec<_> = train.each().map(<[u8]>::to_vec).collect();
                assert_eq!(train.count(), datagrams.len());
                let (last, others) = datagrams.split_last().expect("at least one");
                assert!(others.iter().all(|datagram| datagram.len() == train.segment));
                assert!(others.is_empty() || (1..=train.segment).contains(&last.len()));
                // It did not fit behind the one before.
                let ended = before.insert(from, (train.segment, last.len()));
                let fits = |(segment, last): (usize, usize)| {
                    last == segment && (1..=segment).contains(&datagrams[0].len()) && datagrams.len() == 1
                };
                assert!(!ended.is_some_and(fits));
                used += datagrams.len();
                came.entry(from).or_default().extend(datagrams);
                used
            };
            while !arrivals.is_used_up() {
                let (mut left, mut now_used) = (pieces, 0);
                arrivals.each_train(|train, from| {
                    now_used = use_train(train, from);
                    left -= 1;
                    left > 0
                });
                prop_assert_eq!(arrivals.left_count(), all - now_used);
            }
            prop_assert_eq!(came, sent);
        }
    }
}
