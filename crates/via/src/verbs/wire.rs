//! Addresses, and the frames that two connecting NICs exchange over TCP.
//!
//! ```text
//! caller                                    answerer
//!   | Hello (a nonce)                          |
//!   |------------------------------------------|   tagged from here on
//!   |                      Welcome (a nonce)   |
//!   | Call (purpose, queue pair, greeting)     |
//!   |              Accept (queue pair, greeting) or Refuse (why)
//!   | Ready                                    |
//!   |        ...  the queue pairs are used ... |
//!   | Bye, or Failed (why), by either side     |
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{secret::Nonce, sys::QpEndpoint};
use crate::vi::{DisconnectReason, Reliability, Status};

pub(super) use crate::vi::objects::{DISCRIMINATOR_MAX, GREETING_MAX};

/// The most bytes of a frame without its tag.
pub(super) const FRAME_MAX: usize = 2048;

const MAGIC: &[u8; 6] = b"vgverb";
const VERSION: u8 = 1;

/// A frame; borrowed parts belong to the frame it was decoded from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ControlFrame {
    Hello { nonce: Nonce },
    Welcome { nonce: Nonce },
    Call(CallFrame),
    Accept(PeerParameters),
    Refuse(DisconnectReason),
    Ready,
    Bye,
    Failed { reason: DisconnectReason, report: Option<Status> },
}

/// A caller's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CallFrame {
    /// The NIC that is meant, and the one that calls.
    pub(super) to: [u8; 16],
    pub(super) from: [u8; 16],
    /// True if the call is for a peer that calls too, not for a listener.
    pub(super) is_peer: bool,
    pub(super) discriminator: Vec<u8>,
    pub(super) answer: PeerParameters,
}

/// The facts that each side reveals about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PeerParameters {
    pub(super) reliability: Reliability,
    pub(super) end: QpEndpoint,
    pub(super) greeting: Vec<u8>,
}

/// The address of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VerbsAddress {
    pub(super) id: [u8; 16],
    pub(super) socket: SocketAddr,
}

impl VerbsAddress {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.push(VERSION);
        bytes.extend(self.id);
        bytes.extend(self.socket.port().to_le_bytes());
        match self.socket.ip() {
            IpAddr::V4(ip) => bytes.extend(ip.octets()),
            IpAddr::V6(ip) => bytes.extend(ip.octets()),
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = FieldReader(bytes);
        if &fields.array::<6>()? != MAGIC || fields.byte()? != VERSION {
            return None;
        }
        let (id, port) = (fields.array()?, u16::from_le_bytes(fields.array()?));
        let ip = match fields.0.len() {
            4 => IpAddr::from(Ipv4Addr::from(fields.array::<4>()?)),
            16 => IpAddr::from(Ipv6Addr::from(fields.array::<16>()?)),
            _ => return None,
        };
        (port != 0 && !ip.is_unspecified()).then(|| Self { id, socket: SocketAddr::new(ip, port) })
    }
}

impl ControlFrame {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::Hello { nonce } => {
                bytes.push(1);
                bytes.extend(MAGIC);
                bytes.push(VERSION);
                bytes.extend(nonce);
            }
            Self::Welcome { nonce } => {
                bytes.push(2);
                bytes.extend(nonce);
            }
            Self::Call(call) => {
                bytes.push(3);
                bytes.extend(call.to);
                bytes.extend(call.from);
                bytes.push(u8::from(call.is_peer));
                bytes.push(u8::try_from(call.discriminator.len()).unwrap_or(u8::MAX));
                bytes.extend(&call.discriminator);
                call.answer.encode(&mut bytes);
            }
            Self::Accept(answer) => {
                bytes.push(4);
                answer.encode(&mut bytes);
            }
            Self::Refuse(reason) => bytes.extend([5, encode_reason(*reason)]),
            Self::Ready => bytes.push(6),
            Self::Bye => bytes.push(7),
            Self::Failed { reason, report } => {
                bytes.extend([8, encode_reason(*reason), encode_report(*report)]);
            }
        }

        bytes
    }

    /// Decodes a frame from an untrusted peer.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = FieldReader(bytes);
        let frame = match fields.byte()? {
            1 => {
                let is_ours = &fields.array::<6>()? == MAGIC && fields.byte()? == VERSION;
                Self::Hello { nonce: is_ours.then(|| fields.array()).flatten()? }
            }
            2 => Self::Welcome { nonce: fields.array()? },
            3 => {
                let (to, from) = (fields.array()?, fields.array()?);
                let is_peer = fields.flag()?;
                let length = usize::from(fields.byte()?);
                if length > DISCRIMINATOR_MAX {
                    return None;
                }
                let discriminator = fields.take(length)?.to_vec();
                let answer = PeerParameters::decode(&mut fields)?;
                Self::Call(CallFrame { to, from, is_peer, discriminator, answer })
            }
            4 => Self::Accept(PeerParameters::decode(&mut fields)?),
            5 => Self::Refuse(decode_reason(fields.byte()?)?),
            6 => Self::Ready,
            7 => Self::Bye,
            8 => Self::Failed {
                reason: decode_reason(fields.byte()?)?,
                report: decode_report(fields.byte()?)?,
            },
            _ => return None,
        };

        fields.0.is_empty().then_some(frame)
    }
}

impl PeerParameters {
    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.push(match self.reliability {
            Reliability::Unreliable => 0,
            Reliability::ReliableDelivery => 1,
            Reliability::ReliableReception => 2,
        });
        let QpEndpoint { number, first_packet, gid, lid, mtu, reads } = self.end;
        for word in [number, first_packet, mtu] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(gid);
        bytes.extend(lid.to_le_bytes());
        bytes.push(reads);
        bytes.extend(u16::try_from(self.greeting.len()).unwrap_or(u16::MAX).to_le_bytes());
        bytes.extend(&self.greeting);
    }

    fn decode(fields: &mut FieldReader<'_>) -> Option<Self> {
        let reliability = match fields.byte()? {
            0 => Reliability::Unreliable,
            1 => Reliability::ReliableDelivery,
            2 => Reliability::ReliableReception,
            _ => return None,
        };
        let (number, first_packet, mtu) = (fields.word()?, fields.word()?, fields.word()?);
        let (gid, lid) = (fields.array()?, u16::from_le_bytes(fields.array()?));
        let reads = fields.byte()?;
        let is_plausible = number <= PACKET_NUMBER_MAX
            && first_packet <= PACKET_NUMBER_MAX
            && (1..=5).contains(&mtu);
        let length = usize::from(u16::from_le_bytes(fields.array()?));
        if !is_plausible || length > GREETING_MAX {
            return None;
        }
        let greeting = fields.take(length)?.to_vec();
        let end = QpEndpoint { number, first_packet, gid, lid, mtu, reads };
        Some(Self { reliability, end, greeting })
    }
}

/// Numbers of queue pairs and of packets have 24 bits.
pub(super) const PACKET_NUMBER_MAX: u32 = (1 << 24) - 1;

/// The reasons that one NIC reports to another.
const REASONS: [DisconnectReason; 6] = [
    DisconnectReason::NotListening,
    DisconnectReason::Rejected,
    DisconnectReason::TimedOut,
    DisconnectReason::Mismatch("another level of reliability"),
    DisconnectReason::DescriptorFailed,
    DisconnectReason::TransportFailed,
];

fn encode_reason(reason: DisconnectReason) -> u8 {
    let index = REASONS.iter().position(|known| *known == reason);
    index.and_then(|index| u8::try_from(index).ok()).unwrap_or(1)
}

fn decode_reason(byte: u8) -> Option<DisconnectReason> {
    REASONS.get(usize::from(byte)).copied()
}

/// The statuses that the receiver of a message may report for the sender's descriptor.
const REPORTS: [Option<Status>; 4] = [
    None,
    Some(Status::LengthError),
    Some(Status::RemoteDescriptorError),
    Some(Status::RdmaProtectionError),
];

fn encode_report(report: Option<Status>) -> u8 {
    let index = REPORTS.iter().position(|known| *known == report);
    index.and_then(|index| u8::try_from(index).ok()).unwrap_or(0)
}

fn decode_report(byte: u8) -> Option<Option<Status>> {
    REPORTS.get(usize::from(byte)).copied()
}

/// The unread bytes of a frame.
struct FieldReader<'a>(&'a [u8]);

impl<'a> FieldReader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    fn word(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> PeerParameters {
        let end = QpEndpoint {
            number: 17,
            first_packet: 0x00ab_cdef,
            gid: [9; 16],
            lid: 3,
            mtu: 3,
            reads: 16,
        };
        PeerParameters {
            reliability: Reliability::ReliableReception,
            end,
            greeting: vec![7; GREETING_MAX],
        }
    }

    fn frames() -> Vec<ControlFrame> {
        let discriminator = vec![b'd'; DISCRIMINATOR_MAX];
        let (to, from) = ([1; 16], [2; 16]);
        let call = CallFrame { to, from, is_peer: true, discriminator, answer: answer() };
        let mut frames = vec![
            ControlFrame::Hello { nonce: [3; 16] },
            ControlFrame::Welcome { nonce: [4; 16] },
            ControlFrame::Call(call),
            ControlFrame::Accept(answer()),
            ControlFrame::Ready,
            ControlFrame::Bye,
        ];
        frames.extend(REASONS.map(ControlFrame::Refuse));
        for report in REPORTS {
            frames
                .push(ControlFrame::Failed { reason: DisconnectReason::DescriptorFailed, report });
        }
        frames
    }

    /// Goal: frames arrive as they were sent. Method: every frame, with variable-length parts at their
    /// longest.
    #[test]
    fn frames_are_read_as_written() {
        for frame in frames() {
            let bytes = frame.encode();
            assert!(bytes.len() <= FRAME_MAX, "{frame:?}");
            assert_eq!(ControlFrame::decode(&bytes), Some(frame));
        }
    }

    /// Goal: no bytes crash a NIC, and only a frame is accepted as one. Method: every frame cut off at
    /// every place, with an extra byte, and with each byte changed, which must be decoded as itself or
    /// not at all.
    #[test]
    fn strange_bytes_are_no_frames() {
        for frame in frames() {
            let bytes = frame.encode();
            for length in 0..bytes.len() {
                assert_eq!(
                    ControlFrame::decode(&bytes[..length]),
                    None,
                    "{frame:?} cut at {length}"
                );
            }
            let longer = [&bytes[..], &[0]].concat();
            assert_eq!(ControlFrame::decode(&longer), None, "{frame:?}");
            for place in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[place] ^= 0x80;
                if let Some(read) = ControlFrame::decode(&changed) {
                    assert_eq!(read.encode(), changed, "{frame:?} changed at {place}");
                }
            }
        }
    }

    /// Goal: addresses survive consumers, which may pass any bytes. Method: both families, and bytes
    /// that are not an address.
    #[test]
    fn addresses_are_read_as_written() {
        for socket in ["10.1.2.3:4567", "[fe80::1]:1"] {
            let place = VerbsAddress { id: [5; 16], socket: socket.parse().expect("an address") };
            let bytes = place.encode();
            assert!(bytes.len() <= 255);
            assert_eq!(VerbsAddress::decode(&bytes), Some(place));
            assert_eq!(VerbsAddress::decode(&bytes[..bytes.len() - 1]), None);
        }
        let nowhere =
            VerbsAddress { id: [5; 16], socket: "0.0.0.0:7".parse().expect("an address") };
        assert_eq!(VerbsAddress::decode(&nowhere.encode()), None);
        assert_eq!(VerbsAddress::decode(&[]), None);
        assert_eq!(VerbsAddress::decode(&[0xff; 255]), None);
    }
}
