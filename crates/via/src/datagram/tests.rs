//! Whatever bytes arrive: fuzzed from seeds, longer with `VIGIE_FUZZ_SEEDS`.

use fastrand::Rng;

use super::{HEADER_BYTES, Header, HeaderError, over_link::parse};
use crate::link::{self, EtherType, MacAddress, complete_checksum};

fn seeds() -> u64 {
    std::env::var("VIGIE_FUZZ_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(64)
}

fn frame(rng: &mut Rng) -> Vec<u8> {
    let length = rng.u16(..100);
    let types = [EtherType::EXPERIMENTAL_1, EtherType(0x8100), EtherType::IPV4, EtherType::IPV6];
    let ether_type = types[rng.usize(..types.len())];
    let mut bytes =
        link::EthernetHeader::bytes(MacAddress([rng.u8(..); 6]), MacAddress([2; 6]), ether_type)
            .to_vec();
    bytes.extend(Header::new(rng.u8(..), rng.u8(..), length).bytes());
    bytes.extend((0..length).map(|_| rng.u8(..)));
    bytes
}

/// Goal: an accepted frame has a header that describes it, nothing else is accepted, and nothing panics.
/// Method: true frames with bytes changed, cut off and padded, from many seeds; every outcome must occur.
#[test]
fn any_frame_is_read_safely() {
    let (mut taken, mut refused) = (0, 0);
    for seed in 0..seeds() {
        let mut rng = Rng::with_seed(seed);
        for _ in 0..1000 {
            let mut bytes = frame(&mut rng);
            for _ in 0..rng.usize(..3) {
                let at = rng.usize(..bytes.len());
                match rng.u8(..4) {
                    0 => bytes[at] = rng.u8(..),
                    1 => bytes[at] ^= 1 << rng.u8(..8),
                    2 => bytes.truncate(at.max(1)),
                    _ => bytes.resize(bytes.len().max(60), 0),
                }
            }
            let received_header = &bytes[..bytes.len().min(22)];
            if let Some(incoming) = parse(received_header, bytes.len()) {
                assert!(22 + incoming.length <= bytes.len(), "seed {seed}");
                let header = Header::new(
                    incoming.from_port,
                    incoming.to_port,
                    u16::try_from(incoming.length).expect("16 bits"),
                );
                assert_eq!(header.bytes(), bytes[14..22], "seed {seed}");
                taken += 1;
            } else {
                refused += 1;
            }
            let before = bytes.clone();
            let is_done = complete_checksum(&mut bytes);
            let changed = before.iter().zip(&bytes).filter(|(old, new)| old != new).count();
            assert!(changed <= if is_done { 2 } else { 0 }, "seed {seed}: {changed} bytes");
        }
    }
    assert!(taken > 1000 && refused > 1000, "{taken} taken, {refused} refused");
}

/// Goal: each fault of a header is named. Method: one header with each byte wrong, and every prefix.
#[test]
fn faults_of_headers_are_named() {
    let header = Header::new(3, 4, 5);
    let good = header.bytes();
    assert_eq!(Header::parse(&good, HEADER_BYTES + 5), Ok(header));
    assert_eq!(Header::parse(&good, 60), Ok(header), "padded");
    for length in 0..HEADER_BYTES {
        assert_eq!(Header::parse(&good[..length], length), Err(HeaderError::Short { length }));
    }
    for (at, fault) in [
        (0, HeaderError::Magic),
        (1, HeaderError::Magic),
        (2, HeaderError::Version { version: 0xff, flags: 0 }),
        (5, HeaderError::Version { version: 1, flags: 0xff }),
        (6, HeaderError::Length { said: 0xff05, there: 52 }),
    ] {
        let mut bad = good;
        bad[at] = 0xff;
        assert_eq!(Header::parse(&bad, 60), Err(fault));
    }
}
