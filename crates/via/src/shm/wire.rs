//! The packets on a connection's socket, and addresses. Everything here is pure: a hostile peer may send
//! any bytes.

use super::layout::VERSION;
use crate::vi::{
    Address, DisconnectReason, Reliability, RemoteKey,
    objects::{DISCRIMINATOR_MAX, GREETING_MAX},
};

/// The longest packet in bytes.
pub(super) const PACKET_MAX: usize = 2048;

const MAGIC: &[u8; 5] = b"VSHM2";

/// The place at which a NIC listens, and the secret required to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShmAddress {
    pub(super) name: [u8; 16],
    pub(super) token: [u8; 16],
}

impl ShmAddress {
    pub(super) fn to_address(self) -> Address {
        Address([MAGIC.as_slice(), &self.name, &self.token].concat())
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut reader = PacketReader(bytes.strip_prefix(MAGIC)?);
        let place = Self { name: reader.array()?, token: reader.array()? };
        reader.0.is_empty().then_some(place)
    }

    /// Returns the name of the socket, which is not secret.
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

/// The parameters that both ends of a connection must know of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionParameters {
    pub(super) reliability: Reliability,
    /// True if a barrier in every process announces its sleep, so that senders need no fence.
    pub(super) has_barrier: bool,
}

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ControlPacket {
    /// The caller's first packet; with its ring file and its page.
    Hello(Hello),
    /// The connection is accepted; with the ring file and the page.
    Welcome { parameters: ConnectionParameters, greeting: Vec<u8> },
    /// The connection is refused.
    Refusal { reason: DisconnectReason },
    /// The answer to a welcome: both ends are connected.
    Confirm,
    /// Memory that the peer may map; with its file.
    Grant { key: RemoteKey, length: u64, allows_write: bool, allows_read: bool },
    /// That memory is deregistered.
    Revoke { key: RemoteKey },
    /// An entry is in the ring, for a peer that sleeps.
    Wakeup,
}

/// The request for a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// The listener's secret.
    pub(super) token: [u8; 16],
    pub(super) parameters: ConnectionParameters,
    /// The asking NIC, for a peer-to-peer connection; proves that it is the NIC the peer awaits.
    pub(super) from: Option<ShmAddress>,
    pub(super) discriminator: Vec<u8>,
    pub(super) greeting: Vec<u8>,
}

impl ControlPacket {
    /// Returns how many files come with the packet.
    pub(super) const fn file_count(&self) -> usize {
        match self {
            Self::Hello(_) | Self::Welcome { .. } => 2,
            Self::Grant { .. } => 1,
            Self::Refusal { .. } | Self::Confirm | Self::Revoke { .. } | Self::Wakeup => 0,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        match self {
            Self::Hello(hello) => {
                bytes.push(1);
                bytes.extend(VERSION.to_le_bytes());
                bytes.extend(hello.token);
                encode_parameters(&mut bytes, hello.parameters);
                bytes.push(u8::from(hello.from.is_some()));
                if let Some(from) = &hello.from {
                    bytes.extend(from.name);
                    bytes.extend(from.token);
                }
                encode_bytes(&mut bytes, &hello.discriminator);
                encode_bytes(&mut bytes, &hello.greeting);
            }
            Self::Welcome { parameters, greeting } => {
                bytes.push(2);
                encode_parameters(&mut bytes, *parameters);
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
            Self::Wakeup => bytes.push(7),
        }

        bytes
    }

    /// Decodes a packet from a peer.
    ///
    /// # Errors
    /// [`DisconnectReason::Mismatch`] for another version, [`DisconnectReason::PeerFault`] for a packet that no version sends.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, DisconnectReason> {
        let mut reader = PacketReader(bytes);
        if bytes.first() == Some(&1) && bytes.get(1..3) != Some(&VERSION.to_le_bytes()) {
            return Err(DisconnectReason::Mismatch("another version of the provider"));
        }
        match reader.packet() {
            Some(packet) if reader.0.is_empty() => Ok(packet),
            _ => Err(DisconnectReason::PeerFault("a malformed packet")),
        }
    }
}

fn encode_parameters(bytes: &mut Vec<u8>, parameters: ConnectionParameters) {
    bytes.push(match parameters.reliability {
        Reliability::Unreliable => 0,
        Reliability::ReliableDelivery => 1,
        Reliability::ReliableReception => 2,
    });
    bytes.push(u8::from(parameters.has_barrier));
}

/// The bytes were checked when the consumer passed them.
fn encode_bytes(bytes: &mut Vec<u8>, what: &[u8]) {
    bytes.extend(u16::try_from(what.len()).unwrap_or(u16::MAX).to_le_bytes());
    bytes.extend_from_slice(what);
}

const fn refusal_code(reason: DisconnectReason) -> u8 {
    match reason {
        DisconnectReason::NotListening => 1,
        DisconnectReason::Mismatch(_) => 3,
        _ => 2,
    }
}

struct PacketReader<'a>(&'a [u8]);

impl PacketReader<'_> {
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

    fn parameters(&mut self) -> Option<ConnectionParameters> {
        let reliability = match self.byte()? {
            0 => Reliability::Unreliable,
            1 => Reliability::ReliableDelivery,
            2 => Reliability::ReliableReception,
            _ => return None,
        };
        Some(ConnectionParameters { reliability, has_barrier: self.flag()? })
    }

    fn packet(&mut self) -> Option<ControlPacket> {
        Some(match self.byte()? {
            1 => {
                let _version: [u8; 2] = self.array()?;
                let token = self.array()?;
                let parameters = self.parameters()?;
                let from = if self.flag()? {
                    Some(ShmAddress { name: self.array()?, token: self.array()? })
                } else {
                    None
                };
                let discriminator = self.bytes(DISCRIMINATOR_MAX)?;
                let greeting = self.bytes(GREETING_MAX)?;
                ControlPacket::Hello(Hello { token, parameters, from, discriminator, greeting })
            }

            2 => ControlPacket::Welcome {
                parameters: self.parameters()?,
                greeting: self.bytes(GREETING_MAX)?,
            },
            3 => {
                let reason = match self.byte()? {
                    1 => DisconnectReason::NotListening,
                    2 => DisconnectReason::Rejected,
                    3 => DisconnectReason::Mismatch(
                        "another level of reliability, or another version",
                    ),
                    _ => return None,
                };
                ControlPacket::Refusal { reason }
            }

            4 => ControlPacket::Confirm,
            5 => {
                let (key, length) = (RemoteKey(self.word()?), self.word()?);
                let rights = self.byte()?;
                if rights > 3 {
                    return None;
                }
                let (allows_write, allows_read) = (rights & 1 != 0, rights & 2 != 0);
                ControlPacket::Grant { key, length, allows_write, allows_read }
            }

            6 => ControlPacket::Revoke { key: RemoteKey(self.word()?) },
            7 => ControlPacket::Wakeup,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packets() -> Vec<ControlPacket> {
        let parameters =
            ConnectionParameters { reliability: Reliability::ReliableReception, has_barrier: true };
        let place = ShmAddress { name: [1; 16], token: [2; 16] };
        let hello = |from| {
            let (discriminator, greeting) = (vec![7; DISCRIMINATOR_MAX], vec![8; GREETING_MAX]);
            ControlPacket::Hello(Hello {
                token: [9; 16],
                parameters,
                from,
                discriminator,
                greeting,
            })
        };

        let key = RemoteKey(0x0123_4567_89ab_cdef);
        vec![
            hello(None),
            hello(Some(place)),
            ControlPacket::Welcome { parameters, greeting: b"hello".to_vec() },
            ControlPacket::Refusal { reason: DisconnectReason::Rejected },
            ControlPacket::Refusal { reason: DisconnectReason::NotListening },
            ControlPacket::Confirm,
            ControlPacket::Grant { key, length: 1 << 40, allows_write: true, allows_read: false },
            ControlPacket::Revoke { key },
            ControlPacket::Wakeup,
        ]
    }

    /// Goal: packets arrive as they were sent; nothing shorter or longer is accepted. Method: every
    /// kind, whole, with each of its prefixes, and with an extra byte.
    #[test]
    fn packets_are_whole_or_nothing() {
        for packet in packets() {
            let mut bytes = packet.encode();
            assert!(bytes.len() <= PACKET_MAX);
            assert_eq!(ControlPacket::decode(&bytes), Ok(packet.clone()));
            for length in 0..bytes.len() {
                assert!(
                    ControlPacket::decode(&bytes[..length]).is_err(),
                    "{packet:?} up to {length}"
                );
            }
            bytes.push(0);
            assert!(ControlPacket::decode(&bytes).is_err(), "{packet:?} and a byte");
        }
    }

    /// Goal: an address survives being passed on, and no other bytes are an address. Method: there and
    /// back, and with one byte less, more or wrong.
    #[test]
    fn addresses_are_recognised() {
        let place = ShmAddress { name: [3; 16], token: [4; 16] };
        let bytes = place.to_address().0;
        assert_eq!(ShmAddress::parse(&bytes), Some(place));
        assert_eq!(ShmAddress::parse(&bytes[1..]), None);
        assert_eq!(ShmAddress::parse(&bytes[..bytes.len() - 1]), None);
        assert_eq!(ShmAddress::parse(&[bytes.as_slice(), &[0]].concat()), None);
    }

    /// Goal: a NIC of another version is told apart from a broken one. Method: change the version.
    #[test]
    fn another_version_does_not_fit() {
        let mut bytes = packets()[0].encode();
        bytes[1] += 1;
        assert!(matches!(ControlPacket::decode(&bytes), Err(DisconnectReason::Mismatch(_))));
    }
}
