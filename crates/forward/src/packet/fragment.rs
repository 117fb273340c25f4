//! IPv4 fragments.

use super::{
    Packet, ParseError,
    checksum::{self, put},
    headers::{Headers, Network},
};

/// "Do not fragment", "more fragments", and the offset.
const DO_NOT: u16 = 0x4000;
const MORE: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;
/// The flag of options that every fragment has; the end of options, and no operation.
const COPIED: u8 = 0x80;
const END: u8 = 0;
const NO_OPERATION: u8 = 1;

/// The flags and the offset of an IPv4 packet, if it may be fragmented.
pub(crate) fn fragmentable(frame: &[u8], headers: &Headers) -> Option<u16> {
    let bytes = frame.get(headers.network_at + 6..)?.first_chunk()?;
    let word = u16::from_be_bytes(*bytes);
    (headers.network == Network::Ipv4 && word & DO_NOT == 0).then_some(word)
}

/// Cuts an IPv4 packet into fragments of at most `mtu` bytes, in order (RFC 791, §3.2). `None` if it must not be
/// fragmented, or cannot be.
pub(crate) fn fragment(packet: &mut Packet, mtu: usize) -> Result<Option<Vec<Packet>>, ParseError> {
    let headers = packet.headers()?;
    let frame = packet.bytes();
    let Some(word) = fragmentable(frame, &headers) else { return Ok(None) };
    // The last one may use all of the room; before others, all but a multiple of eight bytes stays free.
    let longest = mtu.saturating_sub(headers.transport_at - headers.network_at);
    let room = longest & !7;

    let mut rest = frame.get(headers.transport_at..headers.end_at).unwrap_or_default();
    if room == 0 {
        return Ok(None);
    }

    let mut payloads = Vec::new();
    while rest.len() > longest {
        let (piece, behind) = rest.split_at(room);
        payloads.push(piece);
        rest = behind;
    }
    payloads.push(rest);

    let count = payloads.len();
    let begin = frame.get(..headers.transport_at).unwrap_or_default();
    let ingress = packet.ingress();

    let pieces = payloads.into_iter().enumerate().map(|(number, piece)| {
        let mut one = Packet::empty(begin.len() + piece.len());
        one.fill(ingress, begin.len() + piece.len(), |bytes| {
            let (front, rest) = bytes.split_at_mut(begin.len());
            front.copy_from_slice(begin);
            rest.copy_from_slice(piece);
        });

        let frame = one.bytes_mut();
        // The packet may be a fragment itself: then it has an offset, and more may follow its last piece.
        let is_last = number + 1 == count;
        let offset = usize::from(word & OFFSET) + number * room / 8;
        let flags = if is_last { word & MORE } else { MORE };

        let low = |value: usize| u16::try_from(value).unwrap_or(0);
        let at = headers.network_at;
        put(frame, at + 2, low(frame.len() - at).to_be_bytes());
        put(frame, at + 6, (low(offset) | flags).to_be_bytes());
        if number > 0 {
            clear_options(frame.get_mut(at + 20..headers.transport_at).unwrap_or_default());
        }

        let mut its = headers;
        its.end_at = frame.len();
        checksum::fill_network(frame, &its);
        one
    });
    Ok(Some(pieces.collect()))
}

/// Replaces the options that only the first fragment has, so that headers keep their length, as Linux does.
fn clear_options(mut options: &mut [u8]) {
    while let Some(kind) = options.first().copied() {
        let length = match (kind, options.get(1)) {
            (END, _) => return,
            (NO_OPERATION, _) => 1,
            (_, Some(length)) if *length >= 2 => usize::from(*length),
            _ => return,
        };
        let Some((option, rest)) = options.split_at_mut_checked(length) else { return };
        if kind & COPIED == 0 {
            option.fill(NO_OPERATION);
        }
        options = rest;
    }
}
