//! What a flow is known by.

use std::{
    fmt,
    hash::{Hash, Hasher},
    net::IpAddr,
};

use crate::packet::{Headers, ICMP, ICMPV6, Icmp, Transport};

/// One end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(clippy::exhaustive_structs, reason = "an address and a port")]
pub struct Endpoint {
    /// Its address.
    pub address: IpAddr,
    /// Its port; of an echo, the identifier on the side that asks, and 0 on the other.
    pub port: u16,
}

impl Endpoint {
    /// Creates an end.
    #[must_use]
    pub const fn new(address: IpAddr, port: u16) -> Self {
        Self { address, port }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::net::SocketAddr::new(self.address, self.port).fmt(f)
    }
}

/// What a packet says of the flow to which it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(clippy::exhaustive_structs, reason = "what identifies a flow, and no more")]
pub struct NatTuple {
    /// The protocol's number.
    pub protocol: u8,
    /// Who sends.
    pub source: Endpoint,
    /// To whom.
    pub destination: Endpoint,
    /// Whether it answers an echo; nothing else has a direction. With the identifier 0, question and answer have the same
    /// ends.
    pub is_answer: bool,
}

/// Echoes: what asks, and what answers, in version 4 and 6.
const ECHO: [(u8, u8); 2] = [(8, 0), (128, 129)];

impl NatTuple {
    /// Reads what a frame says. `None` if it has no ports and is no echo.
    #[must_use]
    #[inline]
    pub fn of(headers: &Headers, frame: &[u8]) -> Option<Self> {
        let (source, destination) = headers.addresses(frame)?;
        let (ports, is_answer) = match headers.transport {
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
            source: Endpoint::new(source, ports.0),
            destination: Endpoint::new(destination, ports.1),
            is_answer,
        })
    }

    /// Returns what a packet in the other direction says.
    #[must_use]
    pub const fn reversed(self) -> Self {
        Self {
            protocol: self.protocol,
            source: self.destination,
            destination: self.source,
            is_answer: self.is_echo() && !self.is_answer,
        }
    }

    /// Whether it is one of echoes, which have one number for both sides.
    pub(crate) const fn is_echo(&self) -> bool {
        matches!(self.protocol, ICMP | ICMPV6)
    }
}

/// In one piece, since hashing many small ones takes longer than looking up.
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
        put(&[self.protocol, u8::from(self.is_answer)]);
        hasher.write(bytes.get(..length).unwrap_or_default());
    }
}

/// A flow that is translated: its packets, as they are sent at first, become `translated`, and answers to those become
/// answers to `original`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct NatFlow {
    /// What packets say before.
    pub original: NatTuple,
    /// What they say afterwards.
    pub translated: NatTuple,
}

impl NatFlow {
    /// Returns both lines of a map from what packets say to what they become.
    #[must_use]
    pub const fn lines(&self) -> [(NatTuple, NatTuple); 2] {
        [(self.original, self.translated), (self.translated.reversed(), self.original.reversed())]
    }
}
