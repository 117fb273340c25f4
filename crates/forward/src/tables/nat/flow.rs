//! The identification of flows.

use std::{
    fmt,
    hash::{Hash, Hasher},
    net::IpAddr,
};

use crate::packet::{Headers, ICMP, ICMPV6, Icmp, Transport};

/// One end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "an address and a port")]
pub struct NatEndpoint {
    /// Its address.
    pub address: IpAddr,
    /// Its port; for an echo, the identifier on the requesting side, and 0 on the other.
    pub port: u16,
}

impl NatEndpoint {
    /// Creates an end.
    #[must_use]
    pub const fn new(address: IpAddr, port: u16) -> Self {
        Self { address, port }
    }
}

impl fmt::Display for NatEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::net::SocketAddr::new(self.address, self.port).fmt(f)
    }
}

/// The fields of a packet that identify its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(clippy::exhaustive_structs, reason = "what identifies a flow, and no more")]
pub struct NatTuple {
    /// The protocol number.
    pub protocol: u8,
    /// The source.
    pub source: NatEndpoint,
    /// The destination.
    pub destination: NatEndpoint,
    /// True for an echo reply; only echoes need the direction. With the identifier 0, request and reply have the
    /// same ends.
    pub is_echo_reply: bool,
}

/// The ICMP types of echo requests and replies, in versions 4 and 6.
const ECHO: [(u8, u8); 2] = [(8, 0), (128, 129)];

impl NatTuple {
    /// Reads the fields from a frame. `None` if it has no ports and is not an echo.
    #[must_use]
    #[inline]
    pub fn of(headers: &Headers, frame: &[u8]) -> Option<Self> {
        let (source, destination) = headers.addresses(frame)?;
        let (ports, is_echo_reply) = match headers.transport {
            Transport::Tcp | Transport::Udp => (headers.ports(frame)?, false),
            Transport::Icmp | Transport::Icmpv6 => {
                let icmp = Icmp::parse(frame.get(headers.transport_at..headers.end_at)?).ok()?;
                let (asks, answers) = ECHO[usize::from(headers.transport == Transport::Icmpv6)];
                match icmp.kind() {
                    kind if kind == asks => ((icmp.identifier(), 0), false),
                    kind if kind == answers => ((0, icmp.identifier()), true),
                    _ => return None,
                }
            }
            Transport::Other => return None,
        };
        Some(Self {
            protocol: headers.protocol,
            source: NatEndpoint::new(source, ports.0),
            destination: NatEndpoint::new(destination, ports.1),
            is_echo_reply,
        })
    }

    /// Returns the tuple of packets in the other direction.
    #[must_use]
    pub const fn reversed(self) -> Self {
        Self {
            protocol: self.protocol,
            source: self.destination,
            destination: self.source,
            is_echo_reply: self.is_echo() && !self.is_echo_reply,
        }
    }

    /// Returns whether it is of an echo, which has one identifier for both sides.
    pub(crate) const fn is_echo(&self) -> bool {
        matches!(self.protocol, ICMP | ICMPV6)
    }
}

/// Hashed in one piece, since hashing many small pieces takes longer than the look-up.
impl Hash for NatTuple {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let mut bytes = [0; 38];
        let mut length = 0;
        let mut put = |part: &[u8]| {
            if let Some(place) = bytes.get_mut(length..length + part.len()) {
                place.copy_from_slice(part);
            }
            length += part.len();
        };
        for end in [self.source, self.destination] {
            match end.address {
                IpAddr::V4(address) => put(&address.octets()),
                IpAddr::V6(address) => put(&address.octets()),
            }
            put(&end.port.to_ne_bytes());
        }
        put(&[self.protocol, u8::from(self.is_echo_reply)]);
        hasher.write(bytes.get(..length).unwrap_or_default());
    }
}

/// A translated flow: packets of `original` become `translated`, and answers to `translated` become answers to
/// `original`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct NatFlow {
    /// The tuple of packets before translation.
    pub original: NatTuple,
    /// The tuple after translation.
    pub translated: NatTuple,
}

impl NatFlow {
    /// Creates the flow of packets of which `original` becomes `translated`; either direction will do.
    #[must_use]
    pub const fn new(original: NatTuple, translated: NatTuple) -> Self {
        Self { original, translated }
    }

    /// Returns the translations of both directions: the tuples before and after.
    #[must_use]
    pub const fn translations(&self) -> [(NatTuple, NatTuple); 2] {
        [(self.original, self.translated), (self.translated.reversed(), self.original.reversed())]
    }
}
