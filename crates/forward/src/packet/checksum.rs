//! The checksum of IP, TCP, UDP and ICMP, computed in full or updated.

use super::headers::{Fragment, Headers, Network, Transport};

/// A one's complement sum of 16-bit words, whose complement is a checksum (RFC 1071).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// The empty sum.
    pub const ZERO: Self = Self(0);

    /// Adds bytes that start at an even offset. An odd number of bytes is padded with a zero.
    #[must_use]
    #[inline]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        // One's complement addition may use wider words, whose carries are folded in later.
        let (wide, rest) = bytes.as_chunks::<4>();
        let sum: u64 = wide.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum();
        let (words, last) = rest.as_chunks::<2>();
        let words: u64 = words.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum();
        let last = last.first().map_or(0, |byte| u64::from(*byte) << 8);
        self.add(sum).add(words + last)
    }

    /// Adds a word.
    #[must_use]
    #[inline]
    pub const fn word(self, word: u16) -> Self {
        self.add(word as u64)
    }

    /// Subtracts a word, by adding its complement.
    #[must_use]
    #[inline]
    pub const fn less_word(self, word: u16) -> Self {
        self.add(!word as u64)
    }

    const fn add(self, other: u64) -> Self {
        let (sum, carry) = self.0.overflowing_add(other);
        Self(sum + carry as u64)
    }

    /// Returns the sum folded to 16 bits.
    #[must_use]
    #[inline]
    pub const fn folded(self) -> u16 {
        let sum = (self.0 >> 32) + (self.0 & 0xffff_ffff);
        let sum = (sum >> 32) + (sum & 0xffff_ffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        let [.., high, low] = ((sum >> 16) + (sum & 0xffff)).to_be_bytes();
        u16::from_be_bytes([high, low])
    }

    /// Returns the checksum.
    #[must_use]
    #[inline]
    pub const fn checksum(self) -> u16 {
        !self.folded()
    }
}

/// Returns `checksum` updated for the replacement of `taken` by `put` in the covered bytes or words.
///
/// # Source
/// RFC 1624, equation 3: HC' = ~(~HC + ~m + m').
#[must_use]
#[inline]
pub(crate) const fn updated(checksum: u16, taken: u16, put: u16) -> u16 {
    Sum::ZERO.word(!checksum).less_word(taken).word(put).checksum()
}

/// The sum of the pseudo header of TCP, UDP and ICMPv6 (RFC 793, RFC 8200 §8.1).
pub(crate) fn pseudo_header(frame: &[u8], headers: &Headers) -> Option<Sum> {
    let addresses = match headers.network {
        Network::Ipv4 => headers.network_at + 12..headers.network_at + 20,
        Network::Ipv6 => headers.network_at + 8..headers.network_at + 40,
        _ => return None,
    };
    let [a, b, c, d, ..] = (headers.end_at.checked_sub(headers.transport_at)?).to_le_bytes();
    let [low, high] = [u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])];
    let sum = Sum::ZERO.bytes(frame.get(addresses)?);
    Some(sum.word(low).word(high).word(u16::from(headers.protocol)))
}

/// The result of verifying a packet's checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verified {
    /// All checksums present are right.
    Right,
    /// There is none to verify: not IP, a fragment, or UDP without one.
    Absent,
    /// At least one is wrong.
    Wrong,
}

/// The bytes that a transport's checksum covers, as far as they are in the frame.
fn covered<'a>(frame: &'a [u8], headers: &Headers) -> Option<&'a [u8]> {
    let bytes = frame.get(headers.transport_at..headers.end_at)?;
    if headers.transport != Transport::Udp {
        return Some(bytes);
    }
    // UDP has its own length, which may be shorter than the packet.
    let says = usize::from(u16::from_be_bytes([*bytes.get(4)?, *bytes.get(5)?]));
    bytes.get(..says)
}

/// The sum over a whole transport packet with its pseudo header, including its checksum.
fn transport_sum(frame: &[u8], headers: &Headers) -> Option<Sum> {
    let bytes = covered(frame, headers)?;
    if !headers.covers_addresses() {
        return Some(Sum::ZERO.bytes(bytes));
    }
    let all = headers.end_at - headers.transport_at;
    let sum = pseudo_header(frame, headers)?;
    let [a, b, ..] = (all - bytes.len()).to_le_bytes();
    // The pseudo header was computed with the length of the packet.
    Some(sum.less_word(u16::from_le_bytes([a, b])).bytes(bytes))
}

/// Verifies the checksums of a packet.
///
/// # Cost
/// One pass over the packet.
pub(crate) fn verify(frame: &[u8], headers: &Headers) -> Verified {
    if verify_header(frame, headers) == Verified::Wrong {
        return Verified::Wrong;
    }
    let place = headers.checksum_at().filter(|_| headers.fragment == Fragment::Whole);
    let Some(place) = place else {
        return if headers.network == Network::Ipv4 { Verified::Right } else { Verified::Absent };
    };
    let stands = frame.get(place..).and_then(|rest| rest.first_chunk::<2>());
    if headers.transport == Transport::Udp && stands == Some(&[0, 0]) {
        // Only version 4 may omit it (RFC 8200, §8.1; tunnels of RFC 6935 apart).
        return if headers.network == Network::Ipv4 { Verified::Right } else { Verified::Wrong };
    }
    match transport_sum(frame, headers) {
        Some(sum) if sum.folded() == 0xffff => Verified::Right,
        _ => Verified::Wrong,
    }
}

/// Verifies the checksum of the IPv4 header.
#[inline]
pub(crate) fn verify_header(frame: &[u8], headers: &Headers) -> Verified {
    if headers.network != Network::Ipv4 {
        return Verified::Absent;
    }
    let header = frame.get(headers.network_at..ipv4_end(frame, headers));
    match header.map(|header| Sum::ZERO.bytes(header).folded()) {
        Some(0xffff) => Verified::Right,
        _ => Verified::Wrong,
    }
}

fn ipv4_end(frame: &[u8], headers: &Headers) -> usize {
    let first = frame.get(headers.network_at).copied().unwrap_or(0);
    headers.network_at + usize::from(first & 0xf) * 4
}

/// Computes and writes the header checksum of IPv4; does nothing for other protocols.
pub(crate) fn fill_network(frame: &mut [u8], headers: &Headers) {
    if headers.network != Network::Ipv4 {
        return;
    }
    let end = ipv4_end(frame, headers);
    let Some(header) = frame.get_mut(headers.network_at..end) else { return };
    let Some((_, rest)) = header.split_at_mut_checked(10) else { return };
    let Some(place) = rest.first_chunk_mut::<2>() else { return };
    *place = [0, 0];
    let checksum = Sum::ZERO.bytes(header).checksum();
    if let Some((_, rest)) = header.split_at_mut_checked(10)
        && let Some(place) = rest.first_chunk_mut::<2>()
    {
        *place = checksum.to_be_bytes();
    }
}

/// Computes and writes the checksum of the transport. Returns whether there was one to compute: fragments and unknown
/// protocols are left unchanged.
pub(crate) fn fill_transport(frame: &mut [u8], headers: &Headers) -> bool {
    let place = headers.checksum_at().filter(|_| headers.fragment == Fragment::Whole);
    let Some(place) = place.filter(|place| place + 2 <= headers.end_at) else { return false };
    put(frame, place, [0, 0]);
    let Some(sum) = transport_sum(frame, headers) else { return false };
    let checksum = match sum.checksum() {
        // For UDP, zero would mean no checksum.
        0 if headers.transport == Transport::Udp => 0xffff,
        checksum => checksum,
    };
    put(frame, place, checksum.to_be_bytes());
    true
}

/// Returns whether a sender on this host left the checksum of TCP or UDP to a network card: the field then holds the
/// sum over the pseudo header.
///
/// A right checksum equals that sum once in 65 536 times, and recomputing it does not change it.
pub(crate) fn is_left_out(frame: &[u8], headers: &Headers) -> bool {
    if headers.fragment != Fragment::Whole
        || !matches!(headers.transport, Transport::Tcp | Transport::Udp)
    {
        return false;
    }
    let stands = headers.checksum_at().and_then(|place| frame.get(place..)?.first_chunk::<2>());
    let sum = pseudo_header(frame, headers).map(Sum::folded);
    stands.map(|bytes| u16::from_be_bytes(*bytes)) == sum
}

/// Writes bytes at an offset, which must be in the frame.
#[inline]
pub(crate) fn put<const N: usize>(frame: &mut [u8], at: usize, bytes: [u8; N]) {
    if let Some(place) = frame.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<N>()) {
        *place = bytes;
    }
}
