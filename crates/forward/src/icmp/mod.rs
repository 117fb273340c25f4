//! ICMP errors: a router tells senders why it drops their packets. `traceroute` and path MTU discovery depend on them.
//!
//! ```
//! use vigie_forward::icmp::{ErrorCause, error_reply};
//! use vigie_forward::packet::{Icmp, Ipv4, Packet, Port};
//! use vigie_forward::tables::Interface;
//! use vigie_via::link::MacAddress;
//!
//! // An empty datagram from 10.0.0.2 to 10.9.0.1 that may cross one router more, which is this one.
//! let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 1, 17, 0, 0];
//! frame.extend([10, 0, 0, 2, 10, 9, 0, 1, 4, 0, 4, 0, 0, 8, 0, 0]);
//! let mut packet = Packet::new(Port(0), &frame);
//! packet.fill_checksums()?;
//! let own = Interface::new(MacAddress([2, 0, 0, 0, 0, 1]), 1500).ip([10, 0, 0, 1].into());
//! let answer = error_reply(&packet, ErrorCause::TimeExceeded, &own).expect("a host is told");
//! let header = Ipv4::parse(&answer.bytes()[14..])?;
//! assert_eq!(header.destination().octets(), [10, 0, 0, 2]);
//! assert_eq!(Icmp::parse(header.payload())?.kind(), 11);
//! # Ok::<(), vigie_forward::packet::ParseError>(())
//! ```
//!
//! # What is answered, and what is not
//! [`error_reply`] is a pure function of a packet as it arrived. An ICMP error, a later fragment, a multicast or
//! broadcast packet, and a packet whose source is not a single host are not answered: else errors would cause errors,
//! or one packet many of them. A [`Pipeline`](crate::pipeline::Pipeline) with [`IcmpErrorSender`] answers the packets
//! that its stages drop, at a limited rate for each interface.
//!
//! # Source
//! RFC 792; RFC 1812, §4.3; RFC 1191, §4; RFC 4443, §2.4 and §3.
//!
//! *Deviations:* a source route is not answered by its reverse (RFC 1812, §4.3.2.6), since such packets are routed like
//! others; no error is sent for a multicast packet that was too big (RFC 4443, §2.4, e), since those are not routed.

mod error_sender;

#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use self::error_sender::IcmpErrorSender;
use crate::{
    packet::{
        Fragment, Headers, ICMP, ICMP_BYTES, ICMPV6, IPV4_BYTES, IPV6_BYTES, Network, Packet,
    },
    tables::Interface,
};

/// The reason why a packet is not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorCause {
    /// Its hop limit ran out.
    TimeExceeded,
    /// No route leads to its destination.
    NoRoute,
    /// Its next hop, or its destination on the link, does not answer.
    HostUnreachable,
    /// A rule or a bound forbids it (RFC 5508, REQ-8).
    Prohibited,
    /// It is longer than the next hop's MTU, and must not be fragmented.
    TooLong {
        /// The next hop's MTU, in bytes of IP.
        mtu: usize,
    },
}

/// The longest IPv4 answer, in bytes of IP (RFC 1812, §4.3.2.3).
const ERROR_BYTES_V4: usize = 576;
/// The longest IPv6 answer: the minimum MTU of every link (RFC 4443, §2.4, c).
const ERROR_BYTES_V6: usize = 1280;
/// The maximum number of bytes that an answer quotes.
const QUOTED_BYTES_MAX: usize = ERROR_BYTES_V6 - IPV6_BYTES - ICMP_BYTES;
/// The hop limit of an answer.
const HOPS: u8 = 64;
/// The precedence of internetwork control (RFC 1812, §4.3.2.5).
const INTERNETWORK_CONTROL: u8 = 0xc0;

/// Builds the ICMP error about a packet: a frame that leaves by the ingress port of `packet`, whose interface is
/// `from`. `None` if the packet must not be answered, or `from` has no address of that version of IP.
///
/// The error quotes as much of the packet as is allowed: 548 bytes with IPv4, 1232 with IPv6.
///
/// # Cost
/// One pass over the quoted bytes, and an allocation for the answer.
#[must_use]
pub fn error_reply(packet: &Packet, cause: ErrorCause, from: &Interface) -> Option<Packet> {
    Some(ErrorContext::of(packet, cause, from)?.error_reply())
}

/// A packet to be answered.
struct ErrorContext<'a> {
    packet: &'a Packet,
    network_at: usize,
    quoted: &'a [u8],
    /// Type, code, and the word after the checksum.
    message: (u8, u8, [u8; 4]),
    from: &'a Interface,
    addresses: Addresses,
}

/// Source and destination of the answer.
enum Addresses {
    V4 { own: Ipv4Addr, sender: Ipv4Addr },
    V6 { own: Ipv6Addr, sender: Ipv6Addr },
}

impl<'a> ErrorContext<'a> {
    /// Decides whether the packet is answered, and collects what that needs.
    fn of(packet: &'a Packet, cause: ErrorCause, from: &'a Interface) -> Option<Self> {
        let frame = packet.bytes();
        let headers = Headers::parse(frame).ok()?;
        let (to, by) = frame.split_first_chunk::<6>()?;
        if is_group(to) || is_group(by.first_chunk()?) || is_error(&headers, frame) {
            return None;
        }
        // The protocol of a later fragment is unknown; with IPv6 the first one is too long as well.
        if headers.fragment == Fragment::Later {
            return None;
        }
        let quoted = frame.get(headers.network_at..headers.end_at)?;
        let (addresses, longest) = match headers.addresses(frame)? {
            (IpAddr::V4(sender), IpAddr::V4(to)) => {
                let own = from.ipv4?;
                if !is_host_v4(sender) || !is_host_v4(to) || sender == own {
                    return None;
                }
                (Addresses::V4 { own, sender }, ERROR_BYTES_V4 - IPV4_BYTES - ICMP_BYTES)
            }
            (IpAddr::V6(sender), IpAddr::V6(to)) => {
                let own = from.ipv6?;
                if !is_host_v6(sender) || !is_host_v6(to) || sender == own {
                    return None;
                }
                (Addresses::V6 { own, sender }, QUOTED_BYTES_MAX)
            }
            _ => return None,
        };
        let message = match headers.network {
            Network::Ipv4 => message_v4(cause, quoted)?,
            _ => message_v6(cause),
        };
        let quoted = quoted.get(..longest).unwrap_or(quoted);
        let network_at = headers.network_at;
        Some(Self { packet, network_at, quoted, message, from, addresses })
    }

    /// Returns the sender of the packet, to which the answer goes.
    fn sender(&self) -> IpAddr {
        match self.addresses {
            Addresses::V4 { sender, .. } => sender.into(),
            Addresses::V6 { sender, .. } => sender.into(),
        }
    }

    /// Writes the answer.
    fn error_reply(&self) -> Packet {
        let header = self.header();
        let (kind, code, word) = self.message;
        let frame = self.packet.bytes();
        // The answer has the tags of the frame, and its network protocol.
        let (sender, rest) = (frame.get(6..12), frame.get(12..self.network_at));
        let mut bytes =
            Vec::with_capacity(self.network_at + header.len() + ICMP_BYTES + self.quoted.len());
        bytes.extend_from_slice(sender.unwrap_or_default());
        bytes.extend_from_slice(&self.from.address.0);
        bytes.extend_from_slice(rest.unwrap_or_default());
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(&[kind, code, 0, 0]);
        bytes.extend_from_slice(&word);
        bytes.extend_from_slice(self.quoted);
        let mut answer = Packet::new(self.packet.ingress(), &bytes);
        let filled = answer.fill_checksums();
        debug_assert_eq!(filled, Ok(true), "an answer is whole");
        answer
    }

    /// Writes the IP header.
    fn header(&self) -> Vec<u8> {
        let low = |count: usize| u16::try_from(count).unwrap_or(u16::MAX).to_be_bytes();
        let length = ICMP_BYTES + self.quoted.len();
        match &self.addresses {
            Addresses::V4 { own, sender } => {
                let [high, low] = low(IPV4_BYTES + length);
                // As distinct from other answers' identifiers as those of the packets are from each other.
                let [a, b] = self.quoted.get(4..6).map_or([0, 0], |number| [number[0], number[1]]);
                let mut header = vec![0x45, INTERNETWORK_CONTROL, high, low, a, b, 0, 0];
                header.extend([HOPS, ICMP, 0, 0]);
                header.extend(own.octets());
                header.extend(sender.octets());
                header
            }
            Addresses::V6 { own, sender } => {
                let [high, low] = low(length);
                let mut header = vec![0x60, 0, 0, 0, high, low, ICMPV6, HOPS];
                header.extend(own.octets());
                header.extend(sender.octets());
                header
            }
        }
    }
}

/// The IPv4 message. `None` for a packet that is too long but may be fragmented: its sender did not forbid that, and
/// would learn nothing from an error.
fn message_v4(cause: ErrorCause, packet: &[u8]) -> Option<(u8, u8, [u8; 4])> {
    Some(match cause {
        ErrorCause::TimeExceeded => (11, 0, [0; 4]),
        ErrorCause::NoRoute => (3, 0, [0; 4]),
        ErrorCause::HostUnreachable => (3, 1, [0; 4]),
        ErrorCause::Prohibited => (3, 13, [0; 4]),
        ErrorCause::TooLong { mtu } => {
            if packet.get(6)? & 0x40 == 0 {
                return None;
            }
            // [RFC 1191, §4]: the lower half of the formerly unused word.
            let [high, low] = u16::try_from(mtu).unwrap_or(u16::MAX).to_be_bytes();
            (3, 4, [0, 0, high, low])
        }
    })
}

/// The IPv6 message.
fn message_v6(cause: ErrorCause) -> (u8, u8, [u8; 4]) {
    match cause {
        ErrorCause::TimeExceeded => (3, 0, [0; 4]),
        ErrorCause::NoRoute => (1, 0, [0; 4]),
        ErrorCause::HostUnreachable => (1, 3, [0; 4]),
        ErrorCause::Prohibited => (1, 1, [0; 4]),
        ErrorCause::TooLong { mtu } => (2, 0, u32::try_from(mtu).unwrap_or(u32::MAX).to_be_bytes()),
    }
}

/// Returns whether an Ethernet address is a group's.
const fn is_group(address: &[u8; 6]) -> bool {
    address[0] & 1 != 0
}

/// Returns whether it may be an ICMP error: everything but known requests, replies and announcements.
fn is_error(headers: &Headers, frame: &[u8]) -> bool {
    let kind = || frame.get(headers.transport_at).copied().unwrap_or(0);
    match (headers.protocol, headers.network) {
        (ICMP, Network::Ipv4) => !matches!(kind(), 0 | 8..=10 | 13..=18 | 42 | 43),
        // A redirect is treated like an error (RFC 4443, §2.4, e).
        (ICMPV6, Network::Ipv6) => kind() < 128 || kind() == 137,
        _ => false,
    }
}

/// Returns whether an address may be that of a single host.
const fn is_host_v4(address: Ipv4Addr) -> bool {
    // Network zero, this host itself, groups, reserved addresses, and broadcast.
    let first = address.octets()[0];
    !matches!(first, 0 | 127 | 224..)
}

/// Returns whether an address may be that of a single host.
const fn is_host_v6(address: Ipv6Addr) -> bool {
    !address.is_unspecified() && !address.is_loopback() && !address.is_multicast()
}
