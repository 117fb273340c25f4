//! The packets that two software NICs exchange.
//!
//! ```text
//! every packet     kind u8, flags u8, length u16 (of all of it)
//! data             id u64 (the receiver's), sequence u32, packet u32, next u32, oldest u32, echo u32,
//!                  window u16, delay u16, words u8, 0 u8; words × u64 of ACKs; a fragment, the padding of a probe, or
//!                  the length u16 of one that has arrived; a tag u64 if asked for, else the CRC-32C u32
//! all others       a body; tag of 128 bits under the secret
//! ```
//! Numbers are little-endian. Tags and CRCs are of all before them: networks, and the kernel's checksum of 16 bits where
//! there is one, let some damage pass. A packet states its length, so that packets glued together by the kernel
//! can be split without further information.

use crc_fast::crc32_iscsi as crc32c;

use super::gather::Gather;
use crate::auth::{PACKET_TAG_BYTES, Secret, TAG_BYTES, is_same};
use crate::vi::{DisconnectReason, OutOfBounds, Reliability, Status};

/// The protocol version. Packets of another version are dropped.
pub(super) const VERSION: u8 = 2;

/// The length of the prefix of every packet, in bytes.
const PREFIX_BYTES: usize = 4;

/// The length of a data packet's header, in bytes.
pub(super) const HEADER_BYTES: usize = 38;

/// The length of a CRC, in bytes.
const SUM_BYTES: usize = 4;

/// The most ACKs that a packet carries beyond the first gap, in words of 64.
pub(super) const ACK_WORDS: usize = 4;

/// The shortest packet limit that any path is assumed to have, in bytes [rfc9000, §14].
pub(super) const PACKET_BYTES_MIN: usize = 1200;

/// The most bytes that a configuration lets a packet have: it fits into a UDP datagram.
pub(super) const PACKET_BYTES_MAX: usize = 65_000;

const DATA: u8 = 1;
const HELLO: u8 = 2;
const CHALLENGE: u8 = 3;
const CALL: u8 = 4;
const HOLD: u8 = 5;
const AGREE: u8 = 6;
const AGREED: u8 = 7;
const OVER: u8 = 8;
const HEARD: u8 = 9;

/// Flags of data packets.
const HAS_FRAGMENT: u8 = 1;
const ACK_ELICITING: u8 = 2;
const IS_PROBE: u8 = 4;
const HAS_PROBED: u8 = 8;

/// Splits off the first packet. Returns `None` if the bytes do not begin with one.
pub(super) fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let [_, _, low, high, ..] = bytes else { return None };
    let length = usize::from(u16::from_le_bytes([*low, *high]));
    (length >= PREFIX_BYTES).then(|| bytes.split_at_checked(length)).flatten()
}

/// Returns whether a packet carries data of a connection.
pub(super) fn is_data(packet: &[u8]) -> bool {
    packet.first() == Some(&DATA)
}

/// The header of a data packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DataHeader {
    /// The receiver's name for the connection.
    pub(super) id: u64,
    /// The number of the fragment.
    pub(super) sequence: u32,
    /// The number of this packet, unique among packets that want an ACK.
    pub(super) packet_number: u32,
    /// The first fragment that has not arrived.
    pub(super) next: u32,
    /// The oldest fragment that may still be sent again.
    pub(super) oldest: u32,
    /// The latest packet that has arrived.
    pub(super) echo: u32,
    /// The number of fragments, from `next` on, that are accepted.
    pub(super) window: u16,
    /// The time since the echoed packet arrived, in units of 16 µs.
    pub(super) delay: u16,
    /// A fragment follows.
    pub(super) has_fragment: bool,
    /// The rest is padding of a probe.
    pub(super) is_probe: bool,
    /// The rest is the length of a probe that has arrived, as a u16.
    pub(super) has_probed: bool,
    /// The sender wants an ACK for this packet.
    pub(super) is_ack_eliciting: bool,
    /// The fragments behind `next` that have arrived, in words of 64; as many words as there are.
    pub(super) acked: [u64; ACK_WORDS],
    pub(super) words: u8,
}

/// Returns the length of what follows a data packet's body: a tag if there is a key, else a CRC.
pub(super) const fn trailer_bytes(key: Option<&Secret>) -> usize {
    if key.is_some() { PACKET_TAG_BYTES } else { SUM_BYTES }
}

impl DataHeader {
    /// Appends a packet to `out`, with a tag if there is a key.
    pub(super) fn encode(&self, fragment: &[u8], key: Option<&Secret>, out: &mut Vec<u8>) {
        let start = out.len();
        self.put(fragment.len(), key, out);
        out.extend_from_slice(fragment);
        match key {
            Some(key) => out.extend_from_slice(&key.short_tag(&out[start..])),
            None => out.extend_from_slice(&crc32c(&out[start..]).to_le_bytes()),
        }
    }

    /// Appends a packet to `out`. A tag covers only the bytes held here: on a connection with tags, no
    /// fragment has pieces in registered memory, which could change before departure. A CRC covers those
    /// pieces too: if they do change, the packet is lost.
    ///
    /// # Errors
    /// [`OutOfBounds`], for a piece that is not inside its memory.
    pub(super) fn gather(
        &self,
        fragment: &Gather,
        key: Option<&Secret>,
        out: &mut Gather,
    ) -> Result<(), OutOfBounds> {
        let start = out.position();
        out.append(|out| self.put(fragment.len(), key, out));
        out.push_all(fragment)?;
        if let Some(key) = key {
            out.append(|out| out.extend_from_slice(&key.short_tag(&out[start..])));
        } else {
            let sum = out.sum_from(start)?;
            out.push(&sum.to_le_bytes());
        }
        Ok(())
    }

    /// Appends the header of a packet with a fragment of this many bytes.
    fn put(&self, fragment: usize, key: Option<&Secret>, out: &mut Vec<u8>) {
        let words = usize::from(self.words).min(ACK_WORDS);
        let length = HEADER_BYTES + words * 8 + fragment + trailer_bytes(key);
        let flags = u8::from(self.has_fragment) * HAS_FRAGMENT
            + u8::from(self.is_ack_eliciting) * ACK_ELICITING
            + u8::from(self.is_probe) * IS_PROBE
            + u8::from(self.has_probed) * HAS_PROBED;
        let mut header = [0; HEADER_BYTES];
        header[0] = DATA;
        header[1] = flags;
        header[2..4].copy_from_slice(&u16::try_from(length).unwrap_or(0).to_le_bytes());
        header[4..12].copy_from_slice(&self.id.to_le_bytes());
        let numbers = [self.sequence, self.packet_number, self.next, self.oldest, self.echo];
        for (place, number) in header[12..32].chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        header[32..34].copy_from_slice(&self.window.to_le_bytes());
        header[34..36].copy_from_slice(&self.delay.to_le_bytes());
        header[36] = self.words;
        out.extend_from_slice(&header);
        for word in &self.acked[..words] {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }

    /// Returns the connection that a data packet is for.
    pub(super) fn id(packet: &[u8]) -> Option<u64> {
        packet.get(4..12)?.try_into().ok().map(u64::from_le_bytes)
    }

    /// Decodes a packet, which must have a valid tag if there is a key, else the right CRC.
    pub(super) fn decode<'a>(packet: &'a [u8], key: Option<&Secret>) -> Option<(Self, &'a [u8])> {
        let packet = match key {
            None => {
                let (packet, sum) = packet.split_last_chunk::<SUM_BYTES>()?;
                (crc32c(packet).to_le_bytes() == *sum).then_some(packet)?
            }
            Some(key) => {
                let (packet, tag) = packet.split_last_chunk::<PACKET_TAG_BYTES>()?;
                is_same(&key.short_tag(packet), tag).then_some(packet)?
            }
        };

        let (header, mut rest) = packet.split_first_chunk::<HEADER_BYTES>()?;
        let number = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let words = header[36];
        let mut acked = [0; ACK_WORDS];
        if usize::from(words) > ACK_WORDS || header[37] != 0 {
            return None;
        }
        for ack in acked.iter_mut().take(usize::from(words)) {
            let (word, others) = rest.split_first_chunk::<8>()?;
            *ack = u64::from_le_bytes(*word);
            rest = others;
        }

        let flags = header[1];
        let is_right = match flags & !ACK_ELICITING {
            HAS_FRAGMENT | IS_PROBE => true,
            HAS_PROBED => rest.len() == 2,
            other => other == 0 && rest.is_empty(),
        };
        if !is_right {
            return None;
        }
        let header = Self {
            id: Self::id(packet)?,
            sequence: number(12),
            packet_number: number(16),
            next: number(20),
            oldest: number(24),
            echo: number(28),
            window: u16::from_le_bytes([header[32], header[33]]),
            delay: u16::from_le_bytes([header[34], header[35]]),
            has_fragment: flags & HAS_FRAGMENT != 0,
            is_probe: flags & IS_PROBE != 0,
            has_probed: flags & HAS_PROBED != 0,
            is_ack_eliciting: flags & ACK_ELICITING != 0,
            acked,
            words,
        };

        Some((header, rest))
    }
}

/// A request for a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CallPacket {
    pub(super) to_nic: u64,
    pub(super) from_nic: u64,
    /// The caller's name for the connection.
    pub(super) caller: u64,
    pub(super) cookie: [u8; TAG_BYTES],
    pub(super) is_peer: bool,
    pub(super) is_tagged: bool,
    pub(super) level: Reliability,
    /// The time that the caller will still wait, in milliseconds.
    pub(super) timeout_ms: u32,
    /// Its initial window, in fragments.
    pub(super) window: u16,
    pub(super) discriminator: Vec<u8>,
    pub(super) greeting: Vec<u8>,
}

/// The end of an attempt or a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CloseNotice {
    /// The receiver's name for it, or 0 if the sender does not know that.
    pub(super) to: u64,
    /// The sender's name for it, or 0 if it has none.
    pub(super) from: u64,
    pub(super) reason: DisconnectReason,
    /// The receiver's descriptor that failed at the sender, counted from 0, and its status.
    pub(super) failed: Option<(u64, Status)>,
}

/// Packets without data. All carry a tag under the secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ControlPacket {
    /// A caller asks for a cookie.
    Hello { to_nic: u64, from_nic: u64, caller: u64 },
    /// The cookie.
    Challenge { caller: u64, cookie: [u8; TAG_BYTES] },
    /// A request.
    Call(CallPacket),
    /// The request has arrived; the answer may take any time.
    Hold { caller: u64 },
    /// The answer.
    Agree { caller: u64, answerer: u64, window: u16, greeting: Vec<u8> },
    /// The answer has arrived.
    Agreed { caller: u64, answerer: u64 },
    /// The end of an attempt or a connection.
    Over(CloseNotice),
    /// The end was received.
    Heard { to: u64, from: u64 },
}

impl ControlPacket {
    /// Encodes the packet.
    pub(super) fn encode(&self, secret: &Secret) -> Vec<u8> {
        let mut out = vec![0, VERSION, 0, 0];
        let kind = match self {
            Self::Hello { to_nic, from_nic, caller } => {
                [to_nic, from_nic, caller].iter().for_each(|id| out.extend(id.to_le_bytes()));
                HELLO
            }
            Self::Challenge { caller, cookie } => {
                out.extend(caller.to_le_bytes());
                out.extend(cookie);
                CHALLENGE
            }
            Self::Call(call) => {
                call.encode(&mut out);
                CALL
            }
            Self::Hold { caller } => {
                out.extend(caller.to_le_bytes());
                HOLD
            }
            Self::Agree { caller, answerer, window, greeting } => {
                out.extend(caller.to_le_bytes());
                out.extend(answerer.to_le_bytes());
                out.extend(window.to_le_bytes());
                out.extend(greeting);
                AGREE
            }
            Self::Agreed { caller, answerer } => {
                out.extend(caller.to_le_bytes());
                out.extend(answerer.to_le_bytes());
                AGREED
            }
            Self::Over(over) => {
                over.encode(&mut out);
                OVER
            }
            Self::Heard { to, from } => {
                out.extend(to.to_le_bytes());
                out.extend(from.to_le_bytes());
                HEARD
            }
        };

        let length = u16::try_from(out.len() + TAG_BYTES).unwrap_or(0).to_le_bytes();
        out[0] = kind;
        out[2..4].copy_from_slice(&length);
        let tag = secret.tag(&[&out]);
        out.extend(tag);
        out
    }

    /// Decodes a packet, if its tag is valid.
    pub(super) fn decode(packet: &[u8], secret: &Secret) -> Option<Self> {
        let (packet, tag) = packet.split_last_chunk::<TAG_BYTES>()?;
        is_same(&secret.tag(&[packet]), tag).then_some(())?;
        let (&[kind, version, ..], rest) = packet.split_first_chunk::<PREFIX_BYTES>()?;
        if version != VERSION {
            return None;
        }
        let mut body = BodyReader(rest);
        let control = match kind {
            HELLO => Self::Hello {
                to_nic: body.read_u64()?,
                from_nic: body.read_u64()?,
                caller: body.read_u64()?,
            },
            CHALLENGE => Self::Challenge { caller: body.read_u64()?, cookie: body.take()? },
            CALL => Self::Call(CallPacket::decode(&mut body)?),
            HOLD => Self::Hold { caller: body.read_u64()? },
            AGREE => {
                let (caller, answerer) = (body.read_u64()?, body.read_u64()?);
                let window = u16::from_le_bytes(body.take()?);
                Self::Agree { caller, answerer, window, greeting: body.rest() }
            }
            AGREED => Self::Agreed { caller: body.read_u64()?, answerer: body.read_u64()? },
            OVER => Self::Over(CloseNotice::decode(&mut body)?),
            HEARD => Self::Heard { to: body.read_u64()?, from: body.read_u64()? },
            _ => return None,
        };

        body.0.is_empty().then_some(control)
    }
}

impl CallPacket {
    fn encode(&self, out: &mut Vec<u8>) {
        for id in [self.to_nic, self.from_nic, self.caller] {
            out.extend(id.to_le_bytes());
        }
        out.extend(self.cookie);
        let level = match self.level {
            Reliability::Unreliable => 0,
            Reliability::ReliableDelivery => 1,
            Reliability::ReliableReception => 2,
        };
        out.extend([u8::from(self.is_peer), u8::from(self.is_tagged), level]);
        out.extend(self.timeout_ms.to_le_bytes());
        out.extend(self.window.to_le_bytes());
        out.push(u8::try_from(self.discriminator.len()).unwrap_or(0));
        out.extend(&self.discriminator);
        out.extend(&self.greeting);
    }

    fn decode(body: &mut BodyReader<'_>) -> Option<Self> {
        let (to_nic, from_nic, caller) = (body.read_u64()?, body.read_u64()?, body.read_u64()?);
        let cookie = body.take()?;
        let [is_peer, is_tagged, level] = body.take()?;
        let level = match level {
            0 => Reliability::Unreliable,
            1 => Reliability::ReliableDelivery,
            2 => Reliability::ReliableReception,
            _ => return None,
        };

        let timeout_ms = u32::from_le_bytes(body.take()?);
        let window = u16::from_le_bytes(body.take()?);
        let [length] = body.take()?;
        let discriminator = body.bytes(usize::from(length))?.to_vec();
        let greeting = body.rest();
        let (is_peer, is_tagged) = (is_peer == 1, is_tagged == 1);
        Some(Self {
            to_nic,
            from_nic,
            caller,
            cookie,
            is_peer,
            is_tagged,
            level,
            timeout_ms,
            window,
            discriminator,
            greeting,
        })
    }
}

const STATUSES: [Status; 8] = [
    Status::Done,
    Status::FormatError,
    Status::ProtectionError,
    Status::LengthError,
    Status::RdmaProtectionError,
    Status::RemoteDescriptorError,
    Status::TransportError,
    Status::Flushed,
];

/// The reasons for an end that can be sent. [`DisconnectReason`]s that carry text get another text at the receiver.
const REASONS: [DisconnectReason; 9] = [
    DisconnectReason::NotListening,
    DisconnectReason::Rejected,
    DisconnectReason::TimedOut,
    DisconnectReason::Mismatch("another level of reliability, or tags on one side only"),
    DisconnectReason::Disconnected,
    DisconnectReason::PeerDied,
    DisconnectReason::PeerFault("the peer says that this side broke the protocol"),
    DisconnectReason::DescriptorFailed,
    DisconnectReason::TransportFailed,
];

impl CloseNotice {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.to.to_le_bytes());
        out.extend(self.from.to_le_bytes());
        let is_it = |reason: &DisconnectReason| {
            std::mem::discriminant(reason) == std::mem::discriminant(&self.reason)
        };
        out.push(index(&REASONS, is_it));
        let (ordinal, status) = self.failed.unwrap_or((0, Status::Done));
        out.push(index(&STATUSES, |known| *known == status));
        out.extend(ordinal.to_le_bytes());
    }

    fn decode(body: &mut BodyReader<'_>) -> Option<Self> {
        let (to, from) = (body.read_u64()?, body.read_u64()?);
        let [reason, status] = body.take()?;
        let reason = *REASONS.get(usize::from(reason))?;
        let status = *STATUSES.get(usize::from(status))?;
        let ordinal = body.read_u64()?;
        let failed = (status != Status::Done).then_some((ordinal, status));
        Some(Self { to, from, reason, failed })
    }
}

fn index<T>(all: &[T], is_it: impl FnMut(&T) -> bool) -> u8 {
    all.iter().position(is_it).and_then(|at| u8::try_from(at).ok()).unwrap_or(u8::MAX)
}

/// The unread rest of a body.
pub(super) struct BodyReader<'a>(pub(super) &'a [u8]);

impl<'a> BodyReader<'a> {
    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(super) fn read_u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    pub(super) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0).to_vec()
    }
}

/// Returns the number that has these low bits and is nearest to `near` [rfc9000, §A.3].
pub(super) fn widen(low: u32, near: u64) -> u64 {
    let span = 1_u64 << 32;
    let candidate = (near & !(span - 1)) | u64::from(low);
    if candidate + span / 2 < near {
        candidate.saturating_add(span)
    } else if candidate > near + span / 2 && candidate >= span {
        candidate - span
    } else {
        candidate
    }
}

/// Returns the low bits of a number.
#[expect(clippy::cast_possible_truncation, reason = "the low bits are what is wanted")]
pub(super) const fn low_u32(number: u64) -> u32 {
    number as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn controls() -> Vec<ControlPacket> {
        let call = CallPacket {
            to_nic: 1,
            from_nic: 2,
            caller: 3,
            cookie: [4; TAG_BYTES],
            is_peer: true,
            is_tagged: false,
            level: Reliability::ReliableDelivery,
            timeout_ms: 5,
            window: 6,
            discriminator: vec![7; 64],
            greeting: vec![8; 1024],
        };

        let over =
            |reason, failed| ControlPacket::Over(CloseNotice { to: 1, from: 2, reason, failed });
        let mut all = vec![
            ControlPacket::Hello { to_nic: 1, from_nic: 2, caller: 3 },
            ControlPacket::Challenge { caller: 1, cookie: [9; TAG_BYTES] },
            ControlPacket::Call(call),
            ControlPacket::Hold { caller: 1 },
            ControlPacket::Agree { caller: 1, answerer: 2, window: 3, greeting: vec![4; 1024] },
            ControlPacket::Agreed { caller: 1, answerer: 2 },
            ControlPacket::Heard { to: 1, from: 2 },
            over(DisconnectReason::DescriptorFailed, Some((u64::MAX, Status::LengthError))),
        ];

        all.extend(REASONS.map(|reason| over(reason, None)));
        all
    }

    /// Goal: packets are decoded as encoded, fit the shortest path, and nothing else is accepted.
    /// Method: every kind, there and back; each cut short, extended, with one bit changed, and with
    /// another secret.
    #[test]
    fn control_packets_are_read_as_written() {
        let secret = Secret::new([3; 16]);
        for control in controls() {
            let packet = control.encode(&secret);
            assert!(packet.len() <= PACKET_BYTES_MIN, "{control:?}");
            assert_eq!(split(&packet), Some((&packet[..], &[][..])));
            assert_eq!(ControlPacket::decode(&packet, &secret).as_ref(), Some(&control));
            assert_eq!(ControlPacket::decode(&packet, &Secret::new([4; 16])), None);
            for length in 0..packet.len() {
                assert_eq!(ControlPacket::decode(&packet[..length], &secret), None);
            }
            for bit in 0..packet.len() * 8 {
                let mut other = packet.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(
                    ControlPacket::decode(&other, &secret),
                    None,
                    "bit {bit} of {control:?}"
                );
            }
        }
    }

    /// Goal: the same for data packets. Method: headers with all numbers of ACKs.
    #[test]
    fn data_packets_are_read_as_written() {
        let key = Secret::new([5; 16]);
        for words in 0..=u8::try_from(ACK_WORDS).expect("few") {
            let mut acked = [0; ACK_WORDS];
            acked[..usize::from(words)].fill(u64::MAX - 5);
            let header = DataHeader {
                id: 1 << 60,
                sequence: 2,
                packet_number: 3,
                next: 4,
                oldest: 5,
                echo: 6,
                window: 7,
                delay: 8,
                has_fragment: true,
                is_ack_eliciting: true,
                acked,
                words,
                ..DataHeader::default()
            };
            for key in [None, Some(&key)] {
                let mut packet = Vec::new();
                header.encode(b"fragment", key, &mut packet);
                assert_eq!(split(&packet), Some((&packet[..], &[][..])));
                assert_eq!(DataHeader::id(&packet), Some(1 << 60));
                assert_eq!(DataHeader::decode(&packet, key), Some((header, &b"fragment"[..])));
                for length in 0..packet.len() {
                    assert_eq!(DataHeader::decode(&packet[..length], key), None);
                }
                for bit in 0..packet.len() * 8 {
                    packet[bit / 8] ^= 1 << (bit % 8);
                    assert_eq!(DataHeader::decode(&packet, key), None, "bit {bit}");
                    packet[bit / 8] ^= 1 << (bit % 8);
                }
            }
        }
    }

    /// Goal: the body matches its header, or the packet is refused. Method: all kinds, with bodies of
    /// all lengths.
    #[test]
    fn bodies_fit_their_headers() {
        let (fragment, probe, probed) = (
            DataHeader { has_fragment: true, ..DataHeader::default() },
            DataHeader { is_probe: true, ..DataHeader::default() },
            DataHeader { has_probed: true, ..DataHeader::default() },
        );
        for length in 0..5 {
            let is_read = |header: &DataHeader| {
                let mut packet = Vec::new();
                header.encode(&vec![0; length], None, &mut packet);
                DataHeader::decode(&packet, None).is_some_and(|(found, _)| found == *header)
            };
            assert!(is_read(&fragment) && is_read(&probe));
            assert_eq!(is_read(&probed), length == 2);
            assert_eq!(is_read(&DataHeader::default()), length == 0);
            assert!(!is_read(&DataHeader { has_probed: true, ..probe }), "both");
            assert!(!is_read(&DataHeader { has_fragment: true, ..probe }), "both");
        }
    }

    /// Goal: glued packets are split, and garbage is not. Method: two packets and a tail.
    #[test]
    fn glued_packets_come_apart() {
        let mut bytes = Vec::new();
        for fragment in [&b"one"[..], b"three"] {
            let header = DataHeader { has_fragment: true, ..DataHeader::default() };
            header.encode(fragment, None, &mut bytes);
        }
        bytes.push(1);
        let (first, rest) = split(&bytes).expect("a packet");
        assert_eq!(first.len(), HEADER_BYTES + 3 + SUM_BYTES);
        let (second, rest) = split(rest).expect("another");
        assert_eq!(second.len(), HEADER_BYTES + 5 + SUM_BYTES);
        assert_eq!(split(rest), None);
        assert_eq!(split(&[1, 0, 3, 0]), None, "shorter than itself");
        assert_eq!(split(&[1, 0, 5, 0]), None, "longer than what is there");
    }

    /// Goal: the CRC of each of several packets is right, wherever their bytes lie. Method: packets in one batch, with copied pieces, pieces
    /// that stay in memory, and none.
    #[test]
    fn gathered_packets_have_their_own_sums() {
        let memory = crate::vi::Memory::allocate(20_000).expect("memory");
        memory.write(0, &[7; 20_000]).expect("inside");
        let header = DataHeader { has_fragment: true, ..DataHeader::default() };
        let lengths = [5000, 0, 1000, 9000, 8, 5000];
        let mut batch = Gather::default();
        for length in lengths {
            let mut fragment = Gather::from(b"beside".to_vec());
            fragment.push_memory(&memory, 3, length).expect("inside");
            header.gather(&fragment, None, &mut batch).expect("inside");
        }
        let bytes = batch.take_bytes();
        let mut rest = &bytes[..];
        for length in lengths {
            let (packet, others) = split(rest).expect("a packet");
            let (_, fragment) = DataHeader::decode(packet, None).expect("the right CRC");
            assert_eq!(fragment, [&b"beside"[..], &vec![7; length]].concat());
            rest = others;
        }
        assert_eq!(rest, b"");
    }

    /// Goal: numbers continue beyond 32 bits, both ways. Method: around several wrap-arounds.
    #[test]
    fn numbers_are_widened_to_the_nearest() {
        for near in [0, 5, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 40) + 17] {
            for ahead in [0_u64, 1, 1000, (1 << 31) - 1] {
                assert_eq!(widen(low_u32(near + ahead), near), near + ahead);
                if ahead <= near {
                    assert_eq!(widen(low_u32(near - ahead), near), near - ahead);
                }
            }
        }
    }
}
