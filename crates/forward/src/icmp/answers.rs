//! Answers of a pipeline to what its stages drop.

use std::{collections::BTreeMap, fmt, net::IpAddr, num::NonZeroU32, time::Duration};

use vigie_detect::Instant;

use super::{Cause, QUOTED_BYTES_MAX, Subject};
use crate::{
    packet::{Packet, Port},
    pipeline::Reason,
    tables::{Counters, Fib, FibReader, FibSnapshot, Interface},
};

/// How often senders are told by default, for each interface: in a second, and at once after a pause.
const PER_SECOND: u32 = 100;
/// What stages change behind the headers of IP: ports, identifiers, checksums.
const TRANSPORT_BYTES: usize = 20;

/// Tells senders by ICMP why their packets were dropped: those that may cross no more routers ([`Reason::TtlExpired`]), have no
/// route ([`Reason::NoRoute`]) or are longer than the next hop takes ([`Reason::TooLong`]).
///
/// An answer comes from the address that the [`Fib`] has for the interface of the packet's arrival; if that interface has none, from
/// the first address that another one has. It leaves by the port of the arrival, to whom the frame came from. Each interface tells at
/// most as often as [`rate`](Self::rate) says; what is not told for that reason is counted ([`Counters`]).
///
/// Nobody is told of packets to, or from, addresses whose route leads to a port without an interface: those are of the host beside
/// the pipeline, which answers by itself.
///
/// # Cost
/// For each packet a copy of its headers, since stages change what is quoted: some 10 ns.
pub struct Answers {
    reader: FibReader,
    /// How far the answers of an interface lie apart, on average.
    every: Duration,
    /// How long it takes until the bucket of a pause is full.
    depth: Duration,
    /// When the bucket of each interface is full again.
    full_at: BTreeMap<Port, Instant>,
    /// The beginning of the packet in work, as it arrived; nothing if it cannot be told about.
    begin: Vec<u8>,
    /// The length of its frame.
    length: usize,
}

impl Answers {
    /// Answers with the addresses of a table's interfaces, 100 times a second for each.
    #[must_use]
    pub fn new(fib: &Fib) -> Self {
        let this = Self {
            reader: fib.reader(),
            every: Duration::ZERO,
            depth: Duration::ZERO,
            full_at: BTreeMap::new(),
            begin: Vec::new(),
            length: 0,
        };
        this.rate(NonZeroU32::new(PER_SECOND).unwrap_or(NonZeroU32::MIN))
    }

    /// Sets how many answers each interface gives in a second, and as many at once after a pause. Default: 100.
    #[must_use]
    pub fn rate(mut self, per_second: NonZeroU32) -> Self {
        self.every = Duration::from_secs(1) / per_second.get();
        self.depth = self.every * per_second.get();
        self
    }

    /// Keeps what stages change of a packet.
    #[inline]
    pub(crate) fn keep(&mut self, packet: &mut Packet) {
        self.begin.clear();
        let Ok(headers) = packet.headers() else { return };
        if !headers.is_ip() {
            return;
        }
        let longest = headers.network_at + QUOTED_BYTES_MAX;
        let end = (headers.transport_at + TRANSPORT_BYTES).min(longest).min(headers.end_at);
        self.begin.extend_from_slice(packet.bytes().get(..end).unwrap_or_default());
        self.length = packet.len();
    }

    /// Answers to the packet that was [kept](Self::keep), and was dropped as `packet` is now, if somebody is to be told.
    #[cold]
    pub(crate) fn answer(
        &mut self,
        packet: &mut Packet,
        reason: Reason,
        now: Instant,
        counters: &Counters,
    ) -> Option<Packet> {
        if self.begin.is_empty() {
            return None;
        }
        let Self { reader, full_at, begin, length, .. } = self;
        let fib = reader.get();
        let (_, destination) = packet.headers().ok()?.addresses(packet.bytes())?;
        let cause = match reason {
            Reason::TtlExpired => Cause::TimeExceeded,
            Reason::NoRoute => Cause::NoRoute,
            Reason::TooLong => Cause::TooLong { mtu: fib.hop(destination).ok()?.mtu },
            _ => return None,
        };
        let arrived = as_arrived(begin, *length, packet);
        let from = interface(fib, packet.arrival())?;
        let subject = Subject::of(&arrived, cause, &from)?;
        if is_elsewhere(fib, destination) || is_elsewhere(fib, subject.sender()) {
            return None;
        }
        let full_at = full_at.entry(packet.arrival()).or_insert(now);
        let next = (*full_at).max(now) + self.every;
        if next.saturating_duration_since(now) > self.depth {
            counters.answer_suppressed();
            return None;
        }
        *full_at = next;
        counters.answered();
        Some(subject.answer())
    }
}

/// Puts a packet together as it arrived: behind its headers it is as it was.
fn as_arrived(begin: &[u8], length: usize, packet: &Packet) -> Packet {
    let mut arrived = Packet::empty(length);
    let behind = packet.len().saturating_sub(length.saturating_sub(begin.len()));
    let rest = packet.bytes().get(behind..).unwrap_or_default();
    arrived.fill(packet.arrival(), begin.len() + rest.len(), |bytes| {
        let (front, back) = bytes.split_at_mut(begin.len());
        front.copy_from_slice(begin);
        back.copy_from_slice(rest);
    });
    arrived
}

/// The interface of a port, with the addresses of others where it has none (RFC 1812, §4.3.2.4).
fn interface(fib: &FibSnapshot, port: Port) -> Option<Interface> {
    let mut interface = fib.interface(port)?;
    if interface.ipv4.is_none() || interface.ipv6.is_none() {
        fib.each_interface(|_, other| {
            interface.ipv4 = interface.ipv4.or(other.ipv4);
            interface.ipv6 = interface.ipv6.or(other.ipv6);
        });
    }
    Some(interface)
}

/// Returns whether a route leads to a port that has no interface.
fn is_elsewhere(fib: &FibSnapshot, address: IpAddr) -> bool {
    fib.route(address).is_some_and(|route| fib.interface(route.port).is_none())
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers").field("every", &self.every).finish_non_exhaustive()
    }
}
