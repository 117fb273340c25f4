//! Errors of ICMP: a router tells senders why their packets go no further, without which neither `traceroute` nor the
//! discovery of a path's MTU works.
//!
//! ```
//! use vigie_forward::icmp::{Cause, answer};
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
//! let answer = answer(&packet, Cause::TimeExceeded, &own).expect("a host is told");
//! let header = Ipv4::parse(&answer.bytes()[14..])?;
//! assert_eq!(header.destination().octets(), [10, 0, 0, 2]);
//! assert_eq!(Icmp::parse(header.payload())?.kind(), 11);
//! # Ok::<(), vigie_forward::packet::ParseError>(())
//! ```
//!
//! # What is told, and what is not
//! [`answer`] is a pure function of a packet as it arrived. Nobody is told about an error of ICMP, a later fragment, a packet to
//! a group or to everybody, or one whose sender is no single host: else errors would beget errors, or one packet many of
//! them. A [`Pipeline`](crate::pipeline::Pipeline) that has [`Answers`] tells about what its stages drop, at most so often a second for
//! each interface.
//!
//! # Source
//! RFC 792; RFC 1812, §4.3; RFC 1191, §4; RFC 4443, §2.4 and §3.
//!
//! *Deviations:* a source route is not answered by its reverse (RFC 1812, §4.3.2.6), since such packets are routed like others;
//! a group is not told that a packet was too big (RFC 4443, §2.4, e), since groups are not routed.

mod answers;

#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use self::answers::Answers;
use crate::{
    packet::{
        Fragment, Headers, ICMP, ICMP_BYTES, ICMPV6, IPV4_BYTES, IPV6_BYTES, Network, Packet,
    },
    tables::Interface,
};

/// Why a packet goes no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// It may cross no more routers.
    TimeExceeded,
    /// No route leads to its destination.
    NoRoute,
    /// It is longer than the next hop takes, and must not be cut.
    TooLong {
        /// What the next hop takes, in bytes of IP.
        mtu: usize,
    },
}

/// The longest answer of version 4, in bytes of IP (RFC 1812, §4.3.2.3).
const ANSWER_BYTES_V4: usize = 576;
/// The longest answer of version 6: what every link takes (RFC 4443, §2.4, c).
const ANSWER_BYTES_V6: usize = 1280;
/// How much of a packet an answer quotes at most.
const QUOTED_BYTES_MAX: usize = ANSWER_BYTES_V6 - IPV6_BYTES - ICMP_BYTES;
/// How many routers an answer may cross.
const HOPS: u8 = 64;
/// The precedence of what networks tell each other (RFC 1812, §4.3.2.5).
const INTERNETWORK_CONTROL: u8 = 0xc0;

/// Makes what tells the sender of a packet that it goes no further: a frame that leaves by the port of `packet`'s arrival, whose
/// interface is `from`. `None` if nobody is to be told, or `from` has no address of that version of IP.
///
/// It quotes as much of the packet as is allowed: 548 bytes in version 4, 1232 in version 6.
///
/// # Cost
/// One pass over what is quoted, and memory for the answer.
#[must_use]
pub fn answer(packet: &Packet, cause: Cause, from: &Interface) -> Option<Packet> {
    Some(Subject::of(packet, cause, from)?.answer())
}

/// A packet about which somebody is to be told.
struct Subject<'a> {
    packet: &'a Packet,
    network_at: usize,
    quoted: &'a [u8],
    /// Kind, code, and the word behind the checksum.
    message: (u8, u8, [u8; 4]),
    from: &'a Interface,
    addresses: Addresses,
}

/// From whom to whom.
enum Addresses {
    V4 { own: Ipv4Addr, sender: Ipv4Addr },
    V6 { own: Ipv6Addr, sender: Ipv6Addr },
}

impl<'a> Subject<'a> {
    /// Finds out whether somebody is to be told, and whom.
    fn of(packet: &'a Packet, cause: Cause, from: &'a Interface) -> Option<Self> {
        let frame = packet.bytes();
        let headers = Headers::parse(frame).ok()?;
        let (to, by) = frame.split_first_chunk::<6>()?;
        if is_group(to) || is_group(by.first_chunk()?) || is_error(&headers, frame) {
            return None;
        }
        // Of a later fragment nobody knows what it is a part of; in version 6 the first one is too long as well.
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
                (Addresses::V4 { own, sender }, ANSWER_BYTES_V4 - IPV4_BYTES - ICMP_BYTES)
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

    /// Returns who is to be told.
    fn sender(&self) -> IpAddr {
        match self.addresses {
            Addresses::V4 { sender, .. } => sender.into(),
            Addresses::V6 { sender, .. } => sender.into(),
        }
    }

    /// Writes the answer.
    fn answer(&self) -> Packet {
        let header = self.header();
        let (kind, code, word) = self.message;
        let frame = self.packet.bytes();
        // The tags of the frame, and the protocol behind them, are the answer's too.
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
        let mut answer = Packet::new(self.packet.arrival(), &bytes);
        let filled = answer.fill_checksums();
        debug_assert_eq!(filled, Ok(true), "an answer is whole");
        answer
    }

    /// Makes the header of IP.
    fn header(&self) -> Vec<u8> {
        let low = |count: usize| u16::try_from(count).unwrap_or(u16::MAX).to_be_bytes();
        let length = ICMP_BYTES + self.quoted.len();
        match &self.addresses {
            Addresses::V4 { own, sender } => {
                let [high, low] = low(IPV4_BYTES + length);
                // As unlike those of other answers as the numbers of what they are about.
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

/// What is told in version 4. Nothing of a packet that is too long and that routers may cut: its sender did not forbid it, and
/// would not learn from an error.
fn message_v4(cause: Cause, packet: &[u8]) -> Option<(u8, u8, [u8; 4])> {
    Some(match cause {
        Cause::TimeExceeded => (11, 0, [0; 4]),
        Cause::NoRoute => (3, 0, [0; 4]),
        Cause::TooLong { mtu } => {
            if packet.get(6)? & 0x40 == 0 {
                return None;
            }
            // [RFC 1191, §4]: the lower half of the word that was unused.
            let [high, low] = u16::try_from(mtu).unwrap_or(u16::MAX).to_be_bytes();
            (3, 4, [0, 0, high, low])
        }
    })
}

/// What is told in version 6.
fn message_v6(cause: Cause) -> (u8, u8, [u8; 4]) {
    match cause {
        Cause::TimeExceeded => (3, 0, [0; 4]),
        Cause::NoRoute => (1, 0, [0; 4]),
        Cause::TooLong { mtu } => (2, 0, u32::try_from(mtu).unwrap_or(u32::MAX).to_be_bytes()),
    }
}

/// Returns whether an address of Ethernet is a group's.
const fn is_group(address: &[u8; 6]) -> bool {
    address[0] & 1 != 0
}

/// Returns whether it may be an error of ICMP: what is no question, answer or announcement that is known.
fn is_error(headers: &Headers, frame: &[u8]) -> bool {
    let kind = || frame.get(headers.transport_at).copied().unwrap_or(0);
    match (headers.protocol, headers.network) {
        (ICMP, Network::Ipv4) => !matches!(kind(), 0 | 8..=10 | 13..=18 | 42 | 43),
        // A redirection is treated like an error (RFC 4443, §2.4, e).
        (ICMPV6, Network::Ipv6) => kind() < 128 || kind() == 137,
        _ => false,
    }
}

/// Returns whether an address may be that of a single host.
const fn is_host_v4(address: Ipv4Addr) -> bool {
    // The network zero, this host itself, groups, what is reserved, and everybody.
    let first = address.octets()[0];
    !matches!(first, 0 | 127 | 224..)
}

/// Returns whether an address may be that of a single host.
const fn is_host_v6(address: Ipv6Addr) -> bool {
    !address.is_unspecified() && !address.is_loopback() && !address.is_multicast()
}
