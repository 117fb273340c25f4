//! TCP segments that a sender on this host left for a network card to cut.

use vigie_via::link::FrameSegments;

use super::{
    Packet, ParseError,
    checksum::put,
    error::{Protocol, bytes_at},
    headers::{Fragment, Headers, Network, Transport},
    transport::{TCP_BYTES, Tcp, UDP_BYTES},
};

/// Flags of TCP that only the last segment has: FIN and PSH.
const LAST_ONLY: u8 = 0b1001;
/// A flag that only the first segment has: CWR.
const FIRST_ONLY: u8 = 0x80;

/// The length of an IP packet with one of the segments, with headers, in bytes.
pub(super) fn length(frame: &[u8], headers: &Headers, segments: FrameSegments) -> usize {
    let transport = frame.get(headers.transport_at..headers.end_at).unwrap_or_default();
    let header_bytes = match headers.transport {
        Transport::Tcp => Tcp::parse(transport).map_or(TCP_BYTES, |tcp| tcp.header_bytes()),
        _ => UDP_BYTES,
    };
    headers.transport_at - headers.network_at + header_bytes + usize::from(segments.size_bytes)
}

/// Cuts a TCP packet into IP packets of at most `mtu` bytes, with their checksums. Returns `None` if it cannot be cut:
/// another protocol, a fragment, an urgent pointer, headers that leave no room, or nothing to cut.
pub(crate) fn cut(packet: &mut Packet, mtu: usize) -> Result<Option<Vec<Packet>>, ParseError> {
    let headers = packet.headers()?;
    if headers.transport != Transport::Tcp || headers.fragment != Fragment::Whole {
        return Ok(None);
    }

    let frame = packet.bytes();
    let segment = frame.get(headers.transport_at..headers.end_at).unwrap_or_default();
    let tcp = Tcp::parse(segment)?;
    let payload_at = headers.transport_at + tcp.header_bytes();
    let payload = tcp.payload();
    let room = mtu.saturating_sub(payload_at - headers.network_at);
    let is_urgent = tcp.flags().0 & 0x20 != 0;
    if room == 0 || payload.len() <= room || is_urgent {
        return Ok(None);
    }

    let begin = frame.get(..payload_at).unwrap_or_default();
    let count = payload.len().div_ceil(room);
    let ingress = packet.ingress();
    let pieces = payload.chunks(room).enumerate().map(|(number, piece)| {
        let mut one = Packet::empty(begin.len() + piece.len());
        one.fill(ingress, begin.len() + piece.len(), |bytes| {
            let (front, rest) = bytes.split_at_mut(begin.len());
            front.copy_from_slice(begin);
            rest.copy_from_slice(piece);
        });
        adapt(one.bytes_mut(), &headers, (number, count), room);
        one.fill_checksums()?;
        Ok(one)
    });

    pieces.collect::<Result<Vec<_>, _>>().map(Some)
}

/// Turns the headers of the first segment into those of the `number`-th.
fn adapt(frame: &mut [u8], headers: &Headers, (number, count): (usize, usize), room: usize) {
    let length = frame.len() - headers.network_at;
    let low = |value: usize| {
        let [a, b, ..] = value.to_le_bytes();
        [b, a]
    };

    if headers.network == Network::Ipv4 {
        put(frame, headers.network_at + 2, low(length));
        let at = headers.network_at + 4;
        if let Ok(first) = bytes_at::<2>(frame, at, Protocol::Ipv4) {
            let next = usize::from(u16::from_be_bytes(first)) + number;
            put(frame, at, low(next));
        }
    } else {
        put(frame, headers.network_at + 4, low(length - super::IPV6_BYTES));
    }

    let at = headers.transport_at + 4;
    if let Ok(first) = bytes_at::<4>(frame, at, Protocol::Tcp) {
        let offset = u32::try_from(number * room).unwrap_or(0);
        put(frame, at, u32::from_be_bytes(first).wrapping_add(offset).to_be_bytes());
    }

    let at = headers.transport_at + 13;
    if let Ok([mut flags]) = bytes_at::<1>(frame, at, Protocol::Tcp) {
        if number > 0 {
            flags &= !FIRST_ONLY;
        }
        if number + 1 < count {
            flags &= !LAST_ONLY;
        }
        put(frame, at, [flags]);
    }
}
