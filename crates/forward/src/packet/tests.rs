use fastrand::Rng;
use proptest::prelude::*;

use super::*;
use crate::pipeline::conformance::frame;

/// A parsable frame from the suite's generator, with computed checksums.
fn whole_frame(rng: &mut Rng) -> Packet {
    loop {
        let mut packet = Packet::new(Port(0), &frame(rng));
        if packet.fill_checksums().is_ok() {
            return packet;
        }
    }
}

#[test]
fn checksums_are_updated_as_the_rfc_says() {
    // Goal: equation 3 of RFC 1624, in its corner too. Method: its example, §4.
    assert_eq!(updated(0xdd2f, 0x5555, 0x3285), 0x0000);
    assert_eq!(Sum::ZERO.bytes(&[0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7]).folded(), 0xddf2);
    assert_eq!(Sum::ZERO.bytes(&[1]).folded(), 0x0100);
}

#[test]
fn sums_of_any_bytes_are_those_of_their_words() {
    // Goal: wide words and carries change nothing. Method: the sum word by word, for every length, of the
    // largest bytes among others.
    let mut rng = Rng::with_seed(3);
    for length in 0..300 {
        let bytes: Vec<u8> =
            (0..length).map(|_| if rng.bool() { 0xff } else { rng.u8(..) }).collect();
        let mut sum = 0_u32;
        for word in bytes.chunks(2) {
            sum += u32::from(word[0]) << 8 | word.get(1).copied().map_or(0, u32::from);
            sum = (sum & 0xffff) + (sum >> 16);
        }
        assert_eq!(u32::from(Sum::ZERO.bytes(&bytes).folded()), sum, "{length}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Goal: after any changes the checksums are those that computing them anew gives. Method: frames of the
    /// suite's generator with right checksums, and every editor.
    #[test]
    fn incremental_checksums_equal_computed_ones(
        seed in any::<u64>(),
        v4 in any::<[u8; 4]>(),
        v6 in any::<[u8; 16]>(),
        port in any::<u16>(),
        edits in any::<u8>(),
    ) {
        let mut packet = whole_frame(&mut Rng::with_seed(seed));
        let headers = packet.headers().unwrap();
        let is_whole = headers.fragment == Fragment::Whole;
        if edits & 1 != 0 {
            let is_v4 = packet.set_source(v4.into()).is_ok();
            prop_assert_eq!(is_v4, headers.network == Network::Ipv4);
            let is_v6 = packet.set_destination(v6.into()).is_ok();
            prop_assert_eq!(is_v6, headers.network == Network::Ipv6);
        }
        if edits & 2 != 0 {
            let has_ports = headers.ports(packet.bytes()).is_some();
            prop_assert_eq!(packet.set_source_port(port).is_ok(), has_ports);
        }
        if edits & 4 != 0 {
            let _ = packet.set_destination_port(port.rotate_left(3));
        }
        if edits & 8 != 0 {
            let _ = packet.set_identifier(port);
        }
        if edits & 16 != 0 {
            let _ = packet.decrement_ttl();
        }
        prop_assert_eq!(packet.headers().unwrap(), headers, "nothing has moved");
        let mut anew = packet.clone();
        anew.fill_checksums().unwrap();
        if is_whole {
            prop_assert_eq!(&packet, &anew);
            prop_assert_ne!(packet.verify().unwrap(), Verified::Wrong);
        }
    }

    /// Goal: a wrong bit anywhere that a checksum covers is found. Method: one flip.
    #[test]
    fn a_flipped_bit_is_found(
        payload in prop::collection::vec(any::<u8>(), 0..100),
        is_v6 in any::<bool>(),
        place in any::<prop::sample::Index>(),
        bit in 0..8_u32,
    ) {
        let mut packet = tcp(&payload, is_v6, 16, 5);
        packet.fill_checksums().unwrap();
        prop_assert_eq!(packet.verify().unwrap(), Verified::Right);
        let headers = packet.headers().unwrap();
        let at = headers.transport_at + place.index(headers.end_at - headers.transport_at);
        packet.bytes_mut()[at] ^= 1_u8 << bit;
        // A data offset may make it unreadable, which is found too.
        prop_assert!(packet.verify().map_or(true, |verified| verified == Verified::Wrong));
    }

    /// Goal: for any bytes, positions are ordered and inside the frame. Method: frames of the generator, cut and
    /// corrupted, and random bytes.
    #[test]
    fn places_are_in_the_frame(seed in any::<u64>(), noise in prop::collection::vec(any::<u8>(), 0..80)) {
        let made = frame(&mut Rng::with_seed(seed));
        for bytes in [&made, &noise] {
            for end in 0..=bytes.len().min(120) {
                let cut = bytes.get(..end).unwrap();
                if let Ok(headers) = Headers::parse(cut) {
                    prop_assert!(headers.network_at <= headers.transport_at || !headers.is_ip());
                    prop_assert!(headers.transport_at <= headers.end_at && headers.end_at <= end);
                    prop_assert!(headers.checksum_at().is_none_or(|at| at + 2 <= headers.end_at));
                    prop_assert_eq!(headers.addresses(cut).is_some(), headers.is_ip());
                }
            }
        }
    }

    /// Goal: pushing and popping tags changes nothing else. Method: there and back, as many as fit.
    #[test]
    fn tags_go_in_and_out(seed in any::<u64>(), control in any::<u16>(), rounds in 1..20_u32) {
        let mut packet = Packet::new(Port(3), &frame(&mut Rng::with_seed(seed)));
        let before = packet.clone();
        for _ in 0..rounds {
            let Ok(ethernet) = Ethernet::parse(packet.bytes()) else {
                prop_assert!(packet.push_tag(Tag::of_vlan(1)).is_err());
                return Ok(());
            };
            let count = ethernet.tags.iter().flatten().count();
            let tag = Tag { ether_type: Tag::OUTER, control };
            if count == TAGS_MAX {
                prop_assert_eq!(packet.push_tag(tag), Err(ParseError::TooManyTags { max: TAGS_MAX }));
                break;
            }
            packet.push_tag(tag).unwrap();
            prop_assert_eq!(packet.len(), before.len() + TAG_BYTES);
            let tagged = Ethernet::parse(packet.bytes()).unwrap();
            prop_assert_eq!(tagged.tags[0], Some(tag));
            prop_assert_eq!((tagged.source, tagged.ether_type), (ethernet.source, ethernet.ether_type));
            prop_assert_eq!(packet.pop_tag(), Ok(Some(tag)));
        }
        prop_assert_eq!(packet, before);
    }

}

proptest! {
    // Slow without optimisation: thousands of bytes in each.
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Goal: segments, cut, are the same stream, each right and short enough. Method: put together again.
    #[test]
    fn cut_segments_are_the_same_stream(
        payload in prop::collection::vec(any::<u8>(), 0..9000),
        mtu in 41..2000_usize,
        is_v6 in any::<bool>(),
        flags in 0..32_u8,
        sequence in any::<u32>(),
    ) {
        let mut packet = tcp(&payload, is_v6, flags, sequence);
        let header = if is_v6 { 60 } else { 40 };
        let pieces = packet.cut_segments(mtu).unwrap();
        if payload.len() + header <= mtu || mtu <= header {
            prop_assert_eq!(pieces, None);
            return Ok(());
        }
        let mut joined = Vec::new();
        let pieces = pieces.unwrap();
        let last = pieces.len() - 1;
        for (number, mut piece) in pieces.into_iter().enumerate() {
            prop_assert_eq!(piece.verify().unwrap(), Verified::Right);
            prop_assert!(piece.len() <= mtu + ETHERNET_BYTES);
            let headers = piece.headers().unwrap();
            let tcp = Tcp::parse(&piece.bytes()[headers.transport_at..headers.end_at]).unwrap();
            let offset = u32::try_from(joined.len()).unwrap();
            prop_assert_eq!(tcp.sequence(), sequence.wrapping_add(offset));
            let is_last = flags & 9 != 0 && number == last;
            prop_assert_eq!(tcp.flags().0 & 9 != 0, is_last);
            joined.extend_from_slice(tcp.payload());
        }
        prop_assert_eq!(joined, payload);
    }
}

/// A segment of TCP in one frame.
fn tcp(payload: &[u8], is_v6: bool, flags: u8, sequence: u32) -> Packet {
    let mut frame = vec![2; 12];
    let length = u16::try_from(20 + payload.len()).unwrap();
    if is_v6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(length.to_be_bytes());
        frame.extend([6, 64]);
        frame.extend([0xfd; 32]);
    } else {
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((length + 20).to_be_bytes());
        frame.extend([0, 9, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    }
    frame.extend([0, 80, 0, 81]);
    frame.extend(sequence.to_be_bytes());
    frame.extend([0, 0, 0, 0, 0x50, flags, 9, 9, 0, 0, 0, 0]);
    frame.extend(payload);
    Packet::new(Port(0), &frame)
}

#[test]
fn a_checksum_that_was_left_out_is_completed_and_no_other() {
    // Goal: checksums that the kernel leaves out between the ends of a veth pair become right, and wrong ones stay
    // wrong. Method: the sum over the pseudo header in its place, and any other.
    for is_v6 in [false, true] {
        let mut packet = tcp(b"some bytes", is_v6, 16, 7);
        packet.fill_checksums().unwrap();
        let whole = packet.clone();
        assert!(!packet.complete_checksum().unwrap());
        let headers = packet.headers().unwrap();
        let at = headers.checksum_at().unwrap();
        let sum = checksum::pseudo_header(packet.bytes(), &headers).unwrap().folded();
        packet.bytes_mut()[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(packet.verify().unwrap(), Verified::Wrong);
        assert!(packet.complete_checksum().unwrap());
        assert_eq!(packet, whole);
        packet.bytes_mut()[at] ^= 1;
        let wrong = packet.clone();
        assert!(!packet.complete_checksum().unwrap());
        assert_eq!(packet, wrong);
    }
}

#[test]
fn faults_have_names() {
    // Goal: each fault of a header is told from the others. Method: one of each kind.
    let short = |header, needs, has| Err(ParseError::Short { header, needs, has });
    assert_eq!(Headers::parse(&[2; 13]), short(Protocol::Ethernet, 14, 13));
    let parse = |network: [u8; 2], rest: &[u8]| {
        Headers::parse(&[&[2; 12], network.as_slice(), rest].concat())
    };
    assert_eq!(parse([0x81, 0], &[0, 1, 8]), short(Protocol::Vlan, 4, 3));
    let tags = [0, 1, 0x81, 0, 0, 1, 0x81, 0, 0, 1, 8, 0];
    assert_eq!(parse([0x88, 0xa8], &tags), Err(ParseError::TooManyTags { max: 2 }));
    let mut v4 = [0_u8; 40];
    v4[..4].copy_from_slice(&[0x45, 0, 0, 40]);
    v4[9] = 6;
    v4[32] = 0x50;
    assert_eq!(parse([8, 0], &v4).map(|headers| headers.transport), Ok(Transport::Tcp));
    let with = |at: usize, value: u8| {
        let mut bytes = v4;
        bytes[at] = value;
        parse([8, 0], &bytes)
    };
    let ipv4 = Protocol::Ipv4;
    assert_eq!(with(0, 0x65), Err(ParseError::Version { header: ipv4, version: 6 }));
    assert_eq!(with(0, 0x44), Err(ParseError::HeaderLength { header: ipv4, says: 16 }));
    assert_eq!(with(3, 41), Err(ParseError::Length { header: ipv4, says: 41, has: 40 }));
    assert_eq!(with(3, 19), Err(ParseError::Length { header: ipv4, says: 19, has: 40 }));
    assert_eq!(with(3, 39), short(Protocol::Tcp, 20, 19));
    assert_eq!(with(32, 0x40), Err(ParseError::HeaderLength { header: Protocol::Tcp, says: 16 }));
    let too_long = ParseError::Length { header: Protocol::Tcp, says: 24, has: 20 };
    assert_eq!(with(32, 0x60), Err(too_long));
    assert_eq!(with(6, 0x3f).map(|headers| headers.fragment), Ok(Fragment::Later));
    let mut last = v4;
    last[6..8].copy_from_slice(&[0x1f, 0xff]);
    let beyond = ParseError::Fragment { offset: 65_528, length: 20 };
    assert_eq!(parse([8, 0], &last), Err(beyond));
    let mut v6 = [0_u8; 40 + 72];
    v6[..7].copy_from_slice(&[0x60, 0, 0, 0, 0, 72, 60]);
    for extension in v6[40..].chunks_mut(8) {
        extension[0] = 60;
    }
    assert_eq!(parse([0x86, 0xdd], &v6), Err(ParseError::Extensions { max: 8 }));
    v6[41] = 9;
    let beyond = ParseError::Length { header: Protocol::Extension, says: 80, has: 72 };
    assert_eq!(parse([0x86, 0xdd], &v6), Err(beyond));
    let mut arp = [0_u8; 28];
    arp[..6].copy_from_slice(&[0, 1, 8, 0, 6, 4]);
    assert_eq!(parse([8, 6], &arp).map(|headers| headers.network), Ok(Network::Arp));
    arp[1] = 7;
    assert_eq!(parse([8, 6], &arp), Err(ParseError::Arp { hardware: 7, protocol: 0x0800 }));
    assert_eq!(parse([0x88, 0xb5], &[]).map(|headers| headers.network), Ok(Network::Other));
}

proptest! {
    /// Goal: fragments have at most the MTU, right checksums, and put together give the packet, whatever options it has and
    /// whichever fragment it is itself; later ones have only the options that are to be copied. Method: random packets and
    /// MTUs, put together by their offsets.
    #[test]
    fn fragments_make_the_packet(
        payload in proptest::collection::vec(any::<u8>(), 1..4000), mtu in 28..1600_usize,
        words in 0..=10_usize, offset in 0..4000_u16, more in any::<bool>(), must_not in 0..8_u8,
    ) {
        let header = 20 + words * 4;
        // A source route is copied, a timestamp is not.
        let options: Vec<u8> = [131, 3, 4, 1, 68, 4, 5, 0].into_iter().chain([1; 32]).take(words * 4).collect();
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        frame.extend([0x40 | u8::try_from(header / 4).unwrap(), 0]);
        frame.extend(u16::try_from(header + payload.len()).unwrap().to_be_bytes());
        let flags = offset | if more { 0x2000 } else { 0 } | if must_not == 0 { 0x4000 } else { 0 };
        frame.extend([0, 9, flags.to_be_bytes()[0], flags.to_be_bytes()[1], 9, 99, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend(&options);
        frame.extend(&payload);
        // Padding is no part of it.
        frame.extend([0xaa; 7]);
        let mut packet = Packet::new(Port(1), &frame);
        packet.fill_checksums().unwrap();
        let whole = packet.bytes().to_vec();
        let fragments = packet.fragment(mtu).unwrap();
        let room = mtu.saturating_sub(header) & !7;
        prop_assert_eq!(fragments.is_some(), must_not != 0 && room > 0);
        let mut found = Vec::new();
        let fragments = fragments.unwrap_or_default();
        let count = fragments.len();
        for (number, mut fragment) in fragments.into_iter().enumerate() {
            prop_assert_eq!(fragment.verify_header().unwrap(), Verified::Right);
            let headers = fragment.headers().unwrap();
            prop_assert_eq!(headers.end_at, fragment.len());
            prop_assert!(fragment.len() - 14 <= mtu);
            let frame = fragment.bytes();
            let word = u16::from_be_bytes([frame[20], frame[21]]);
            prop_assert_eq!(usize::from(word & 0x1fff), usize::from(offset) + found.len() / 8);
            prop_assert_eq!(word & 0x2000 != 0, more || number + 1 < count);
            prop_assert_eq!(&frame[..16], &whole[..16]);
            prop_assert_eq!(&frame[26..34], &whole[26..34]);
            if number == 0 {
                prop_assert_eq!(&frame[34..14 + header], &options[..]);
            } else if words >= 2 {
                prop_assert_eq!(&frame[34..42], &[131, 3, 4, 1, 1, 1, 1, 1]);
            }
            found.extend_from_slice(&frame[14 + header..]);
        }
        prop_assert!(count == 0 || found == payload);
    }
}

/// Goal: a SYN's longest segment is lowered, wherever the option stands, with the right checksum, and nothing else is changed. Method: SYNs
/// with the option after so many others, limits on both sides of it; segments without SYN, without the option, and with options that are cut.
#[test]
fn longest_segments_are_lowered() {
    let syn = |flags: u8, options: &[u8]| {
        assert!(options.len().is_multiple_of(4));
        let words = u8::try_from(5 + options.len() / 4).unwrap();
        let length = u8::try_from(40 + options.len()).unwrap();
        let ip = [0x45, 0, 0, length, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let tcp = [0, 80, 0, 81, 0, 0, 0, 1, 0, 0, 0, 0, words << 4, flags, 4, 0, 0, 0, 0, 0];
        let ethernet = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        let bytes = [&ethernet[..], &ip, &tcp, options].concat();
        let mut packet = Packet::new(Port(0), &bytes);
        packet.fill_checksums().unwrap();
        packet
    };
    let announced =
        |packet: &Packet| Tcp::parse(&packet.bytes()[34..]).unwrap().segment_bytes_max();
    for before in
        [&[][..], &[1], &[1, 1], &[4, 2, 1], &[3, 3, 7, 1], &[8, 10, 0, 0, 0, 0, 0, 0, 0, 0, 1]]
    {
        let mut options = [before, &[2, 4, 0x05, 0xb4]].concat();
        options.resize(options.len().next_multiple_of(4), 0);
        for (flags, limit, is_lowered) in [
            (2, 1460, false),
            (2, 1461, false),
            (2, 1459, true),
            (0x12, 500, true),
            (0x10, 500, false),
        ] {
            let mut packet = syn(flags, &options);
            let whole = packet.bytes().to_vec();
            assert_eq!(packet.clamp_segment_bytes(limit), Ok(is_lowered), "{options:?}");
            if is_lowered {
                assert_eq!(announced(&packet), Some(limit));
                assert_eq!(packet.verify(), Ok(Verified::Right), "{options:?}");
            } else {
                assert_eq!((announced(&packet), packet.bytes()), (Some(1460), &whole[..]));
            }
        }
    }
    for options in
        [&[][..], &[1, 1, 1, 1], &[0, 2, 4, 9], &[2, 3, 9, 9], &[1, 1, 2, 4], &[1, 9, 2, 4]]
    {
        let mut packet = syn(2, options);
        assert_eq!(
            (announced(&packet), packet.clamp_segment_bytes(1)),
            (None, Ok(false)),
            "{options:?}"
        );
    }
}
