//! The packets on a connection's socket, and addresses. Everything here is pure: a hostile peer may send
//! any bytes.

use super::layout::VERSION;
use crate::vi::{Address, Reason, Reliability, RemoteKey};

/// The longest packet in bytes.
pub(super) const PACKET_MAX: usize = 2048;
/// The most bytes of a greeting.
pub(super) const GREETING_MAX: usize = 1024;
/// The most bytes of a discriminator.
pub(super) const DISCRIMINATOR_MAX: usize = 64;

const MAGIC: &[u8; 5] = b"VSHM1";

/// Where a NIC listens, and the secret that those who may connect know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) name: [u8; 16],
    pub(super) token: [u8; 16],
}

impl Place {
    pub(super) fn to_address(self) -> Address {
        Address([MAGIC.as_slice(), &self.name, &self.token].concat())
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes.strip_prefix(MAGIC)?);
        let place = Self { name: reader.array()?, token: reader.array()? };
        reader.0.is_empty().then_some(place)
    }

    /// Returns the name of the socket, which is no secret.
    pub(super) fn socket_name(&self) -> String {
        use std::fmt::Write;
        let mut name = String::from("vigie-shm-");
        for byte in self.name {
            // Writing to a string cannot fail.
            let _ = write!(name, "{byte:02x}");
        }
        name
    }
}

/// What both ends of a connection must know of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) reliability: Reliability,
    /// Whether its sleep is announced by a barrier in every process, so that senders need no fence.
    pub(super) has_barrier: bool,
}

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Packet {
    /// The first packet of whoever connects; with its ring file and its page.
    Hello(Hello),
    /// Agreed; with the ring file and the page.
    Welcome { terms: Terms, greeting: Vec<u8> },
    /// Not agreed.
    Refusal { reason: Reason },
    /// The answer to a welcome: both ends are connected.
    Confirm,
    /// Memory that the peer may map; with its file.
    Grant { key: RemoteKey, length: u64, allows_write: bool, allows_read: bool },
    /// That memory is deregistered.
    Revoke { key: RemoteKey },
    /// There is something in the ring, for a peer that sleeps.
    Bell,
}

/// The request for a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// The listener's secret.
    pub(super) token: [u8; 16],
    pub(super) terms: Terms,
    /// Who asks, if it is a connection of peers; proves that the asking NIC is meant.
    pub(super) from: Option<Place>,
    pub(super) discriminator: Vec<u8>,
    pub(super) greeting: Vec<u8>,
}

impl Packet {
    /// Returns how many files come with the packet.
    pub(super) const fn file_count(&self) -> usize {
        match self {
            Self::Hello(_) | Self::Welcome { .. } => 2,
            Self::Grant { .. } => 1,
            Self::Refusal { .. } | Self::Confirm | Self::Revoke { .. } | Self::Bell => 0,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        match self {
            Self::Hello(hello) => {
                bytes.push(1);
                bytes.extend(VERSION.to_le_bytes());
                bytes.extend(hello.token);
                encode_terms(&mut bytes, hello.terms);
                bytes.push(u8::from(hello.from.is_some()));
                if let Some(from) = &hello.from {
                    bytes.extend(from.name);
                    bytes.extend(from.token);
                }
                encode_bytes(&mut bytes, &hello.discriminator);
                encode_bytes(&mut bytes, &hello.greeting);
            }
            Self::Welcome { terms, greeting } => {
                bytes.push(2);
                encode_terms(&mut bytes, *terms);
                encode_bytes(&mut bytes, greeting);
            }
            Self::Refusal { reason } => bytes.extend([3, refusal_code(*reason)]),
            Self::Confirm => bytes.push(4),
            Self::Grant { key, length, allows_write, allows_read } => {
                bytes.push(5);
                bytes.extend(key.0.to_le_bytes());
                bytes.extend(length.to_le_bytes());
                bytes.push(u8::from(*allows_write) | u8::from(*allows_read) << 1);
            }
            Self::Revoke { key } => {
                bytes.push(6);
                bytes.extend(key.0.to_le_bytes());
            }
            Self::Bell => bytes.push(7),
        }
        bytes
    }

    /// Reads what a peer sent.
    ///
    /// # Errors
    /// [`Reason::Mismatch`] for another version, [`Reason::PeerFault`] for what no version sends.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Reason> {
        let mut reader = Reader(bytes);
        if bytes.first() == Some(&1) && bytes.get(1..3) != Some(&VERSION.to_le_bytes()) {
            return Err(Reason::Mismatch("another version of the provider"));
        }
        match reader.packet() {
            Some(packet) if reader.0.is_empty() => Ok(packet),
            _ => Err(Reason::PeerFault("a malformed packet")),
        }
    }
}

fn encode_terms(bytes: &mut Vec<u8>, terms: Terms) {
    bytes.push(match terms.reliability {
        Reliability::Unreliable => 0,
        Reliability::ReliableDelivery => 1,
        Reliability::ReliableReception => 2,
    });
    bytes.push(u8::from(terms.has_barrier));
}

/// The bytes were checked when the consumer gave them.
fn encode_bytes(bytes: &mut Vec<u8>, what: &[u8]) {
    bytes.extend(u16::try_from(what.len()).unwrap_or(u16::MAX).to_le_bytes());
    bytes.extend_from_slice(what);
}

const fn refusal_code(reason: Reason) -> u8 {
    match reason {
        Reason::NotListening => 1,
        Reason::Mismatch(_) => 3,
        _ => 2,
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn word(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn bytes(&mut self, length_max: usize) -> Option<Vec<u8>> {
        let length = usize::from(u16::from_le_bytes(self.array()?));
        if length > length_max {
            return None;
        }
        let (first, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(first.to_vec())
    }

    fn terms(&mut self) -> Option<Terms> {
        let reliability = match self.byte()? {
            0 => Reliability::Unreliable,
            1 => Reliability::ReliableDelivery,
            2 => Reliability::ReliableReception,
            _ => return None,
        };
        Some(Terms { reliability, has_barrier: self.flag()? })
    }

    fn packet(&mut self) -> Option<Packet> {
        Some(match self.byte()? {
            1 => {
                let _version: [u8; 2] = self.array()?;
                let token = self.array()?;
                let terms = self.terms()?;
                let from = if self.flag()? {
                    Some(Place { name: self.array()?, token: self.array()? })
                } else {
                    None
                };
                let discriminator = self.bytes(DISCRIMINATOR_MAX)?;
                let greeting = self.bytes(GREETING_MAX)?;
                Packet::Hello(Hello { token, terms, from, discriminator, greeting })
            }
            2 => Packet::Welcome { terms: self.terms()?, greeting: self.bytes(GREETING_MAX)? },
            3 => {
                let reason = match self.byte()? {
                    1 => Reason::NotListening,
                    2 => Reason::Rejected,
                    3 => Reason::Mismatch("another level of reliability, or another version"),
                    _ => return None,
                };
                Packet::Refusal { reason }
            }
            4 => Packet::Confirm,
            5 => {
                let (key, length) = (RemoteKey(self.word()?), self.word()?);
                let rights = self.byte()?;
                if rights > 3 {
                    return None;
                }
                let (allows_write, allows_read) = (rights & 1 != 0, rights & 2 != 0);
                Packet::Grant { key, length, allows_write, allows_read }
            }
            6 => Packet::Revoke { key: RemoteKey(self.word()?) },
            7 => Packet::Bell,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packets() -> Vec<Packet> {
        let terms = Terms { reliability: Reliability::ReliableReception, has_barrier: true };
        let place = Place { name: [1; 16], token: [2; 16] };
        let hello = |from| {
            let (discriminator, greeting) = (vec![7; DISCRIMINATOR_MAX], vec![8; GREETING_MAX]);
            Packet::Hello(Hello { token: [9; 16], terms, from, discriminator, greeting })
        };
        let key = RemoteKey(0x0123_4567_89ab_cdef);
        vec![
            hello(None),
            hello(Some(place)),
            Packet::Welcome { terms, greeting: b"hello".to_vec() },
            Packet::Refusal { reason: Reason::Rejected },
            Packet::Refusal { reason: Reason::NotListening },
            Packet::Confirm,
            Packet::Grant { key, length: 1 << 40, allows_write: true, allows_read: false },
            Packet::Revoke { key },
            Packet::Bell,
        ]
    }

    /// Goal: packets arrive as they were sent; nothing shorter or longer passes for one. Method: every
    /// kind, whole, with each of its beginnings, and with a byte too many.
    #[test]
    fn packets_are_whole_or_nothing() {
        for packet in packets() {
            let mut bytes = packet.encode();
            assert!(bytes.len() <= PACKET_MAX);
            assert_eq!(Packet::decode(&bytes), Ok(packet.clone()));
            for length in 0..bytes.len() {
                assert!(Packet::decode(&bytes[..length]).is_err(), "{packet:?} up to {length}");
            }
            bytes.push(0);
            assert!(Packet::decode(&bytes).is_err(), "{packet:?} and a byte");
        }
    }

    /// Goal: an address survives being passed on, and no other bytes are one. Method: there and back, and
    /// with one byte less, more or wrong.
    #[test]
    fn addresses_are_recognised() {
        let place = Place { name: [3; 16], token: [4; 16] };
        let bytes = place.to_address().0;
        assert_eq!(Place::parse(&bytes), Some(place));
        assert_eq!(Place::parse(&bytes[1..]), None);
        assert_eq!(Place::parse(&bytes[..bytes.len() - 1]), None);
        assert_eq!(Place::parse(&[bytes.as_slice(), &[0]].concat()), None);
    }

    /// Goal: a NIC of another version is told apart from a broken one. Method: change the version.
    #[test]
    fn another_version_does_not_fit() {
        let mut bytes = packets()[0].encode();
        bytes[1] += 1;
        assert!(matches!(Packet::decode(&bytes), Err(Reason::Mismatch(_))));
    }
}
