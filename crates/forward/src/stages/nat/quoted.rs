//! ICMP errors, which quote the packet that they are about: the quote is translated back, so that the sender recognises
//! its packet (RFC 5508, §4.2).

use std::net::IpAddr;

use crate::{
    drop_reason::DropReason,
    packet::{
        Fragment, Headers, ICMP, ICMP_BYTES, ICMPV6, IPV4_BYTES, IPV6_BYTES, Packet, Sum, TCP,
        Transport, UDP, Verified, put, updated,
    },
    stages::verdict::{Verdict, refused},
    tables::{NatEndpoint, NatTable, NatTuple},
};

/// A quoted packet, usually truncated.
struct Quote {
    tuple: NatTuple,
    /// Offsets in the quote.
    source_at: usize,
    destination_at: usize,
    address_bytes: usize,
    transport_at: usize,
}

/// Returns whether an ICMP message is an error, which quotes a packet.
const fn is_error(transport: Transport, kind: u8) -> bool {
    match transport {
        Transport::Icmp => matches!(kind, 3 | 4 | 11 | 12),
        Transport::Icmpv6 => matches!(kind, 1..=4),
        _ => false,
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

/// Parses a quote, which may contain as little as eight bytes after the IP header.
fn read(bytes: &[u8]) -> Option<Quote> {
    let first = *bytes.first()?;
    let (source, destination, protocol, places) = match first >> 4 {
        4 => {
            let header: &[u8; IPV4_BYTES] = bytes.first_chunk()?;
            let [.., a, b, c, d, e, f, g, h] = *header;
            // A later fragment has no ports.
            if header[6] & 0x1f != 0 || header[7] != 0 {
                return None;
            }
            let transport_at = usize::from(first & 0xf) * 4;
            let places = (12, 16, 4, transport_at.max(IPV4_BYTES));
            (IpAddr::from([a, b, c, d]), IpAddr::from([e, f, g, h]), header[9], places)
        }
        6 => {
            let header: &[u8; IPV6_BYTES] = bytes.first_chunk()?;
            let source: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
            let destination: [u8; 16] = *bytes.get(24..)?.first_chunk()?;
            (source.into(), destination.into(), header[6], (8, 24, 16, IPV6_BYTES))
        }
        _ => return None,
    };

    let at = places.3;
    let (ports, is_echo_reply) = match protocol {
        TCP | UDP => ((word(bytes, at)?, word(bytes, at + 2)?), false),
        ICMP | ICMPV6 => match *bytes.get(at)? {
            8 | 128 => ((word(bytes, at + 4)?, 0), false),
            0 | 129 => ((0, word(bytes, at + 4)?), true),
            _ => return None,
        },
        _ => return None,
    };

    let tuple = NatTuple {
        protocol,
        source: NatEndpoint::new(source, ports.0),
        destination: NatEndpoint::new(destination, ports.1),
        is_echo_reply,
    };

    let (source_at, destination_at, address_bytes, transport_at) = places;
    Some(Quote { tuple, source_at, destination_at, address_bytes, transport_at })
}

/// Translates an error about a packet of a flow, unless its checksum or that of the quoted header is wrong (RFC 5508,
/// REQ-3). `None` if it is not an error, or not about a flow.
pub(super) fn translate(
    table: &NatTable,
    packet: &mut Packet,
    headers: &Headers,
) -> Option<Verdict> {
    let frame = packet.bytes();
    let kind = *frame.get(headers.transport_at)?;
    if !is_error(headers.transport, kind) {
        return None;
    }

    // The quoted packet was translated on its way. An answer to it finds the flow, and what that answer becomes,
    // reversed, is the packet that its sender knows.
    let begin = headers.transport_at + ICMP_BYTES;
    let quote = read(frame.get(begin..headers.end_at)?)?;
    let answer = table.peek(&quote.tuple.reversed())?;
    let becomes = answer.reversed();

    // A fragment has only some of the bytes that its checksum covers.
    let is_whole = headers.fragment == Fragment::Whole;

    let quoted = frame.get(begin..headers.end_at)?;
    let is_v4 = quote.address_bytes == 4;
    let header = quoted.get(..quote.transport_at).filter(|_| is_v4);
    let is_wrong = header.is_some_and(|header| Sum::ZERO.bytes(header).folded() != 0xffff);
    if is_wrong || is_whole && packet.verify() != Ok(Verified::Right) {
        return Some(Verdict::Drop(DropReason::ChecksumWrong));
    }

    // The checksum of the error covers the quote, including the checksums in it.
    let frame = packet.bytes_mut();
    let quoted = frame.get_mut(begin..headers.end_at)?;
    let before = Sum::ZERO.bytes(quoted).folded();
    rewrite(quoted, &quote, &becomes);
    let after = Sum::ZERO.bytes(quoted).folded();

    let at = headers.transport_at + 2;
    let checksum = word(frame, at)?;
    put(frame, at, updated(checksum, before, after).to_be_bytes());

    // The error's own header: the destination of an answer; and its source if it comes from inside, from whichever host
    // (RFC 5508, REQ-5 and REQ-7).
    let mut done = packet.set_destination(answer.destination.address);
    if done.is_ok() && becomes.destination.address != quote.tuple.destination.address {
        done = packet.set_source(answer.source.address);
    }
    Some(done.map_or_else(|error| refused(&error), |()| Verdict::Pass))
}

/// Rewrites a quote, and as many of its checksums as it contains.
fn rewrite(quoted: &mut [u8], quote: &Quote, becomes: &NatTuple) {
    let address_sum = |bytes: &[u8]| {
        let source = bytes.get(quote.source_at..quote.source_at + quote.address_bytes);
        let destination =
            bytes.get(quote.destination_at..quote.destination_at + quote.address_bytes);
        Sum::ZERO.bytes(source.unwrap_or_default()).bytes(destination.unwrap_or_default()).folded()
    };

    let before = address_sum(quoted);
    for (at, address) in [
        (quote.source_at, becomes.source.address),
        (quote.destination_at, becomes.destination.address),
    ] {
        match address {
            IpAddr::V4(address) => put(quoted, at, address.octets()),
            IpAddr::V6(address) => put(quoted, at, address.octets()),
        }
    }

    let after = address_sum(quoted);
    if quote.address_bytes == 4 {
        change(quoted, 10, before, after);
    }

    let at = quote.transport_at;
    let protocol = quote.tuple.protocol;
    let (old, new, covers) = if quote.tuple.is_echo() {
        let number = |tuple: &NatTuple| tuple.source.port | tuple.destination.port;
        put(quoted, at + 4, number(becomes).to_be_bytes());
        (number(&quote.tuple), number(becomes), protocol == ICMPV6)
    } else {
        put(quoted, at, becomes.source.port.to_be_bytes());
        put(quoted, at + 2, becomes.destination.port.to_be_bytes());
        let sum = |tuple: &NatTuple| {
            Sum::ZERO.word(tuple.source.port).word(tuple.destination.port).folded()
        };
        (sum(&quote.tuple), sum(becomes), true)
    };

    let checksum_at = at
        + match protocol {
            TCP => 16,
            UDP => 6,
            _ => 2,
        };

    if protocol == UDP && word(quoted, checksum_at) == Some(0) {
        return;
    }

    change(quoted, checksum_at, old, new);
    if covers {
        change(quoted, checksum_at, before, after);
    }
}

/// Updates a checksum, if the quote contains it.
fn change(quoted: &mut [u8], at: usize, before: u16, after: u16) {
    if let Some(checksum) = word(quoted, at) {
        put(quoted, at, updated(checksum, before, after).to_be_bytes());
    }
}
