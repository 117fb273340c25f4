//! Fuzz targets for a relay's untrusted input: headers of the PROXY protocol and lengths of messages.
//!
//! Each makes random bytes, from one seed, for as long as `VIGIE_FUZZ_SECONDS` says (by default for about a second),
//! and compares with a second parser that is written for clarity alone. A failure prints the seed, which
//! `VIGIE_FUZZ_SEED` takes.
//!
//! Ten minutes of each: `VIGIE_FUZZ_SECONDS=600 cargo test --release -p vigie-forward --test relay_fuzz`.

#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;

use std::net::SocketAddr;

use fastrand::Rng;
use vigie_forward::relay::{LengthFormat, ProxyHeader, ProxyParse};

use crate::kit::seeds::fuzz_seeds;

/// Runs `target` on random inputs; each has its own seed.
fn fuzz(target: impl Fn(&mut Rng)) {
    fuzz_seeds(200_000, |seed| target(&mut Rng::with_seed(seed)));
}

fn bytes(rng: &mut Rng) -> Vec<u8> {
    let length = rng.usize(..80);
    (0..length).map(|_| rng.u8(..)).collect()
}

/// A parser of the protocol, in the order of its text: returns the length and the addresses, or nothing.
fn proxy_oracle(bytes: &[u8]) -> Option<(usize, Option<[SocketAddr; 2]>)> {
    if bytes.get(..12)? != b"\r\n\r\n\0\r\nQUIT\n" || bytes.get(12)? >> 4 != 2 {
        return None;
    }
    let length = usize::from(u16::from_be_bytes([*bytes.get(14)?, *bytes.get(15)?]));
    let variable = bytes.get(16..16 + length)?;
    if length > 4096 {
        return None;
    }
    let known = [0x00, 0x11, 0x12, 0x21, 0x22, 0x31, 0x32];
    let sizes = [0, 12, 12, 36, 36, 216, 216];
    let family = known.iter().position(|family| *family == bytes[13])?;
    match bytes[12] & 0x0f {
        0 => return Some((16 + length, None)),
        1 if length >= sizes[family] => {}
        _ => return None,
    }
    let port = |at: usize| u16::from(variable[at]) << 8 | u16::from(variable[at + 1]);
    let addresses = match bytes[13] {
        0x11 => {
            let four = |at: usize| <[u8; 4]>::try_from(&variable[at..at + 4]).expect("four");
            Some([(four(0), port(8)).into(), (four(4), port(10)).into()])
        }
        0x21 => {
            let sixteen =
                |at: usize| <[u8; 16]>::try_from(&variable[at..at + 16]).expect("sixteen");
            Some([(sixteen(0), port(32)).into(), (sixteen(16), port(34)).into()])
        }
        _ => None,
    };
    Some((16 + length, addresses))
}

/// Goal: a header is parsed as the protocol says, and nothing else passes for one. Method: random bytes, and headers
/// damaged in a few places, compared with the oracle.
#[test]
fn proxy_headers() {
    fuzz(|rng| {
        let mut input = bytes(rng);
        if rng.u8(..8) > 0 {
            let address = |rng: &mut Rng| -> SocketAddr {
                if rng.bool() {
                    (rng.u32(..).to_be_bytes(), rng.u16(..)).into()
                } else {
                    (rng.u128(..).to_be_bytes(), rng.u16(..)).into()
                }
            };
            let mut room = [0; ProxyHeader::WRITTEN_BYTES_MAX];
            let header = ProxyHeader::of(Some((address(rng), address(rng))));
            let written = header.write(&mut room);
            input.splice(..0, room[..written].iter().copied());
        }
        for _ in 0..rng.usize(..3) {
            if let Some(byte) = rng.choice(&mut input) {
                *byte = 0;
            }
            // The positions of versions, families and lengths.
            if let Some(byte) = input.get_mut(rng.usize(12..16)) {
                *byte = *rng.choice(&[0, 1, 0x20, 0x21, 0x11, 0x31, 12, 36, 0xff]).unwrap_or(&0);
            }
        }
        input.truncate(rng.usize(..=input.len()));
        let expected = proxy_oracle(&input);
        match ProxyHeader::read(&input) {
            Ok(ProxyParse::Complete(header, length)) => {
                let (expected_length, addresses) = expected.expect("a header");
                assert_eq!(length, expected_length);
                let read = match header {
                    ProxyHeader::Tcp { source, destination } => Some([source, destination]),
                    _ => None,
                };
                assert_eq!(read, addresses);
            }
            Ok(ProxyParse::Needs(needed)) => {
                assert!(expected.is_none() && needed > input.len() && needed <= 16 + 4096);
            }
            _ => assert_eq!(expected, None),
        }
    });
}

/// Goal: lengths decode as encoded, in every format, and every random header is either refused or no longer than the
/// input. Method: random bytes; decoded lengths are encoded again; only a varint may have been longer than necessary.
#[test]
fn lengths_of_messages() {
    fuzz(|rng| {
        let input = bytes(rng);
        for format in LengthFormat::ALL {
            let Ok(Some(header)) = format.read(&input) else { continue };
            assert!(header.header_bytes <= input.len());
            let mut room = [0; 10];
            let written = format.write(header.body_bytes, &mut room).expect("it was read");
            match format {
                LengthFormat::Varint => assert!(written <= header.header_bytes),
                _ => assert_eq!(room[..written], input[..header.header_bytes]),
            }
            assert_eq!(
                format.read(&room[..written]).map(|read| read.map(|read| read.body_bytes)),
                Ok(Some(header.body_bytes))
            );
        }
    });
}
