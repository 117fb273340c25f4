//! Fuzz targets for a relay's untrusted input: headers of the PROXY protocol, lengths of messages, and first messages of TLS clients.
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

#[cfg(feature = "tls")]
mod tls {
    use std::sync::Arc;

    use fastrand::Rng;
    use rustls::{
        ClientConfig, ClientConnection, RootCertStore, crypto::ring, pki_types::ServerName,
        server::Acceptor,
    };
    use vigie_forward::relay::{ClientHello, HelloError, HelloParse};

    /// The first message of rustls' client, for a random name or an address.
    fn hello(rng: &mut Rng, config: &Arc<ClientConfig>) -> Vec<u8> {
        let label = |rng: &mut Rng| -> String {
            (0..rng.usize(1..20)).map(|_| *rng.choice(b"abAB09").expect("some") as char).collect()
        };
        let name = match rng.u8(..4) {
            0 => "192.0.2.1".to_owned(),
            1 => format!("{}.test", label(rng)),
            _ => format!("{}.{}.test", label(rng), label(rng)),
        };
        let name = ServerName::try_from(name).expect("a name");
        let mut client = ClientConnection::new(Arc::clone(config), name).expect("settings");
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).expect("a vector");
        bytes
    }

    /// Divides the message into other records.
    fn divided(rng: &mut Rng, hello: &[u8]) -> Vec<u8> {
        let size = rng.usize(1..hello.len());
        let mut records = Vec::new();
        for part in hello[5..].chunks(size) {
            let length = u16::try_from(part.len()).expect("short").to_be_bytes();
            records.extend([22, 3, 1].into_iter().chain(length).chain(part.iter().copied()));
        }
        records
    }

    /// Returns what rustls' server reads: nothing if it needs more or refuses it, else the name.
    fn oracle(input: &[u8]) -> Option<Option<String>> {
        let mut acceptor = Acceptor::default();
        let mut rest = input;
        while !rest.is_empty() {
            acceptor.read_tls(&mut rest).ok()?;
            if let Some(accepted) = acceptor.accept().ok()? {
                let name = accepted.client_hello().server_name().map(str::to_ascii_lowercase);
                return Some(name);
            }
        }
        None
    }

    /// Goal: a client whose message rustls and the relay both take asks both for the same name, so that no client gets another's route; and no input panics or is
    /// waited for beyond the bound. Method: messages of rustls' client in records of all sizes, damaged in a few places, compared with rustls' own server.
    #[test]
    fn first_messages_of_clients() {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().expect("versions");
        let builder = builder.with_root_certificates(RootCertStore::empty());
        let config = Arc::new(builder.with_no_client_auth());
        let (mut named, mut refused) = (0, 0);
        // Each needs keys: a twentieth of the others' number.
        super::fuzz_seeds(10_000, |seed| {
            let rng = &mut Rng::with_seed(seed);
            let whole = hello(rng, &config);
            let mut input = if rng.bool() { divided(rng, &whole) } else { whole };
            for _ in 0..rng.usize(..4) {
                let at = rng.usize(..input.len());
                // Where the name is, or anywhere.
                let near = input.windows(5).position(|five| five == b".test").unwrap_or(at);
                let at = if rng.bool() { at } else { near.saturating_sub(rng.usize(..40)) };
                match rng.u8(..3) {
                    0 => input[at] = rng.u8(..),
                    1 => input[at] ^= 1 << rng.u8(..8),
                    _ => input[at] = input[at].wrapping_add(1),
                }
            }
            if rng.u8(..4) == 0 {
                input.truncate(rng.usize(..input.len()));
            }
            let read = ClientHello::read(&input);
            match (&read, oracle(&input)) {
                (Ok(HelloParse::Complete(hello)), Some(name)) => {
                    let bare = name.map(|name| name.trim_end_matches('.').to_owned());
                    assert_eq!(hello.server_name, bare, "{input:?}");
                    named += u32::from(bare.is_some());
                }
                // rustls passes over bytes behind the first name, which another reader might take for a second one.
                (Err(HelloError::Malformed), Some(_)) => refused += 1,
                (read, Some(name)) => panic!("{read:?}, but rustls reads {name:?}: {input:?}"),
                (Ok(HelloParse::Incomplete), None) => assert!(input.len() < 16 << 10),
                (_, None) => refused += 1,
            }
        });
        assert!(named > 100 && refused > 100, "{named} {refused}");
    }
}
