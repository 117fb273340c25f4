//! ICMP errors for packets that a pipeline's stages drop.

use std::{collections::BTreeMap, fmt, net::IpAddr, num::NonZeroU32, time::Duration};

use vigie_detect::Instant;

use super::{ErrorCause, ErrorContext, QUOTED_BYTES_MAX};
use crate::{
    drop_reason::DropReason,
    packet::{Packet, Port},
    tables::{Fib, FibReader, FibSnapshot, FlowHash, Interface, TrafficCounters},
};

/// The default rate for each interface: answers per second, and the burst after a pause.
const PER_SECOND: u32 = 100;
/// The bytes after the IP header that stages change: ports, identifiers, checksums.
const TRANSPORT_BYTES: usize = 20;
/// The maximum number of held packets whose start is kept: more than stages hold.
const HELD_MAX: usize = 2048;

/// Tells senders by ICMP why their packets were dropped: because their hop limit ran out ([`DropReason::TtlExpired`]),
/// because there is no route ([`DropReason::NoRoute`]), because they are too long for the next hop ([`DropReason::TooLong`]),
/// because they waited in vain for their neighbour ([`DropReason::NoNeighbour`], of a [route stage that
/// holds](crate::stages::RouteStage::hold_unresolved) them), or because there is no room for their translation ([`DropReason::NatPorts`], [`DropReason::NatHost`], [`DropReason::NatFull`]).
///
/// An answer comes from the address that the [`Fib`] has for the interface on which the packet arrived; if that
/// interface has none, from the first address of another. It leaves by the ingress port, to the sender of the frame.
/// Each interface answers at most at the given [`rate`](Self::rate); answers beyond that are not sent but counted
/// ([`TrafficCounters`]).
///
/// Packets to or from addresses whose route leads to a port without an interface are not answered: those belong to the
/// host beside the pipeline, which answers on its own.
///
/// # Cost
/// For each packet a copy of its headers, since stages change what the answer quotes: some 10 ns.
pub struct IcmpErrorSender {
    reader: FibReader,
    /// The average interval between the answers of an interface.
    every: Duration,
    /// The time that the token bucket takes to fill up.
    depth: Duration,
    /// The time at which the bucket of each interface is full again.
    full_at: BTreeMap<Port, Instant>,
    /// The start of the current packet, as it arrived; empty if it must not be answered.
    begin: Vec<u8>,
    /// The length of its frame.
    length: usize,
    /// Its number, and the last number given.
    arrival: u64,
    last_arrival: u64,
    /// The starts and lengths of packets that stages hold, by their numbers.
    held: BTreeMap<u64, (Vec<u8>, usize)>,
}

impl IcmpErrorSender {
    /// Answers with the addresses of a table's interfaces, at 100 per second for each.
    #[must_use]
    pub fn new(fib: &Fib) -> Self {
        let this = Self {
            reader: fib.reader(),
            every: Duration::ZERO,
            depth: Duration::ZERO,
            full_at: BTreeMap::new(),
            begin: Vec::new(),
            length: 0,
            arrival: 0,
            last_arrival: 0,
            held: BTreeMap::new(),
        };
        this.rate(NonZeroU32::new(PER_SECOND).unwrap_or(NonZeroU32::MIN))
    }

    /// Sets how many answers per second each interface sends, which is also the burst after a pause. Default: 100.
    #[must_use]
    pub fn rate(mut self, per_second: NonZeroU32) -> Self {
        self.every = Duration::from_secs(1) / per_second.get();
        self.depth = self.every * per_second.get();
        self
    }

    /// Keeps the bytes of a packet that stages may change.
    #[inline]
    pub(crate) fn keep(&mut self, packet: &mut Packet) {
        self.begin.clear();
        self.last_arrival += 1;
        self.arrival = self.last_arrival;
        packet.arrival = self.arrival;
        let Ok(headers) = packet.headers() else { return };
        if !headers.is_ip() {
            return;
        }
        let longest = headers.network_at + QUOTED_BYTES_MAX;
        let end = (headers.transport_at + TRANSPORT_BYTES).min(longest).min(headers.end_at);
        self.begin.extend_from_slice(packet.bytes().get(..end).unwrap_or_default());
        self.length = packet.len();
    }

    /// Keeps the start of the current packet for when the stage that holds it releases it.
    #[cold]
    pub(crate) fn hold(&mut self) {
        if !self.begin.is_empty() && self.held.len() < HELD_MAX {
            self.held.insert(self.arrival, (std::mem::take(&mut self.begin), self.length));
        }
    }

    /// Returns to a packet that was held.
    #[cold]
    pub(crate) fn recall(&mut self, packet: &Packet) {
        self.arrival = packet.arrival;
        (self.begin, self.length) = self.held.remove(&packet.arrival).unwrap_or_default();
    }

    /// Answers the packet that was [kept](Self::keep), and was dropped as `packet` is now, if its sender is to be told.
    #[cold]
    pub(crate) fn error_reply(
        &mut self,
        packet: &mut Packet,
        reason: DropReason,
        now: Instant,
        counters: &TrafficCounters,
    ) -> Option<Packet> {
        if self.begin.is_empty() {
            return None;
        }

        let Self { reader, full_at, begin, length, .. } = self;
        let fib = reader.get();
        let headers = packet.headers().ok()?;
        let (_, destination) = headers.addresses(packet.bytes())?;
        let flow = || FlowHash::of(&headers, packet.bytes());
        let cause = match reason {
            DropReason::TtlExpired => ErrorCause::TimeExceeded,
            DropReason::NoRoute => ErrorCause::NoRoute,
            DropReason::NoNeighbour => ErrorCause::HostUnreachable,
            DropReason::NatPorts | DropReason::NatHost | DropReason::NatFull => {
                ErrorCause::Prohibited
            }
            DropReason::TooLong => {
                ErrorCause::TooLong { mtu: fib.next_hop(destination, flow).ok()?.mtu }
            }
            _ => return None,
        };

        let arrived = as_arrived(begin, *length, packet);
        let from = interface(fib, packet.ingress())?;
        let subject = ErrorContext::of(&arrived, cause, &from)?;
        if is_elsewhere(fib, destination) || is_elsewhere(fib, subject.sender()) {
            return None;
        }

        let full_at = full_at.entry(packet.ingress()).or_insert(now);
        let next = (*full_at).max(now) + self.every;
        if next.saturating_duration_since(now) > self.depth {
            counters.icmp_error_suppressed();
            return None;
        }

        *full_at = next;
        counters.icmp_error_sent();
        Some(subject.error_reply())
    }
}

/// Restores a packet as it arrived: bytes after its headers are unchanged.
fn as_arrived(begin: &[u8], length: usize, packet: &Packet) -> Packet {
    let mut arrived = Packet::empty(length);
    let behind = packet.len().saturating_sub(length.saturating_sub(begin.len()));
    let rest = packet.bytes().get(behind..).unwrap_or_default();
    arrived.fill(packet.ingress(), begin.len() + rest.len(), |bytes| {
        let (front, back) = bytes.split_at_mut(begin.len());
        front.copy_from_slice(begin);
        back.copy_from_slice(rest);
    });
    arrived
}

/// The interface of a port; if it has no address, with those of others (RFC 1812, §4.3.2.4).
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
    fib.route(address, FlowHash::default).is_some_and(|route| fib.interface(route.port).is_none())
}

impl fmt::Debug for IcmpErrorSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IcmpErrorSender").field("every", &self.every).finish_non_exhaustive()
    }
}
