//! PROXY protocol headers, decoded and encoded.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use thiserror::Error;

/// The first 12 bytes of version 2 [proxy-protocol, §2.2].
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// Signature, version and command, family and protocol, length.
const FIXED_BYTES: usize = 16;

/// The maximum length after the fixed part: addresses and additional fields. The protocol allows 65 535; known senders
/// stay far below, and a relay waits for all of it.
const VARIABLE_BYTES_MAX: usize = 4096;

/// A header of version 2, which describes the sender's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProxyHeader {
    /// The sender itself: a health check, for example.
    Local,
    /// A TCP connection, from the first address to the second.
    Tcp {
        /// The client's address.
        source: SocketAddr,
        /// The address that the client connected to.
        destination: SocketAddr,
    },
    /// A connection without addresses here: Unix, UDP or unknown.
    Unknown,
}

/// The result of decoding the first bytes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProxyParse {
    /// Incomplete: at least this many bytes are needed in total.
    Needs(usize),
    /// A complete header, and its length in bytes.
    Complete(ProxyHeader, usize),
}

/// Bytes that are not a header of version 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProxyError {
    /// A header of version 1, the textual one.
    #[error(
        "it is of the PROXY protocol's version 1: let the sender use version 2 (`send-proxy-v2`)"
    )]
    Version1,
    /// The signature of version 2, followed by another version.
    #[error("it is of version {0} of the PROXY protocol: only 2 is known")]
    Version(u8),
    /// Something else.
    #[error(
        "it is not a PROXY protocol header: let the sender send one, or remove it from the trusted networks"
    )]
    NoSignature,
    /// A command that is neither LOCAL nor PROXY.
    #[error("its command is {0}: only LOCAL (0) and PROXY (1) are known")]
    Command(u8),
    /// A family or a protocol that does not exist.
    #[error("its family and protocol are {0:#04x}, which do not exist")]
    Family(u8),
    /// Too few bytes for the addresses.
    #[error("it has {length} bytes for addresses that take {needed}")]
    Short {
        /// The length in the header.
        length: usize,
        /// The length of the addresses.
        needed: usize,
    },
    /// More bytes than are accepted.
    #[error("it has {length} bytes after the fixed part: at most {VARIABLE_BYTES_MAX} are taken")]
    Long {
        /// The length in the header.
        length: usize,
    },
    /// The stream ended first.
    #[error("it ended after {received} bytes")]
    Truncated {
        /// Bytes received.
        received: usize,
    },
    /// It did not arrive within the set-up time-out.
    #[error("it did not arrive in time")]
    Late,
}

impl ProxyHeader {
    /// The maximum length of an encoded header, in bytes.
    pub const WRITTEN_BYTES_MAX: usize = FIXED_BYTES + 36;

    /// Returns the header for a client's connection with these addresses: [`Unknown`](Self::Unknown) if there are none.
    #[must_use]
    pub fn of(addresses: Option<(SocketAddr, SocketAddr)>) -> Self {
        addresses.map_or(Self::Unknown, |(source, destination)| Self::Tcp { source, destination })
    }

    /// Writes the header into `room` and returns its length.
    ///
    /// Addresses of different families are both written as IPv6, with the IPv4 one mapped.
    pub fn write(&self, room: &mut [u8; Self::WRITTEN_BYTES_MAX]) -> usize {
        let (head, addresses) = room.split_at_mut(FIXED_BYTES);
        let (command, family, length) = match self {
            Self::Local => (0, 0, 0),
            Self::Unknown => (1, 0, 0),
            Self::Tcp { source, destination } => {
                let (family, length) = put_addresses(source, destination, addresses);
                (1, family, length)
            }
        };
        head[..12].copy_from_slice(&SIGNATURE);
        head[12] = 0x20 | command;
        head[13] = family;
        head[14..16].copy_from_slice(&u16::from(length).to_be_bytes());
        FIXED_BYTES + usize::from(length)
    }

    /// Decodes a header at the start of a stream. Additional fields (TLVs) are skipped.
    ///
    /// ```
    /// use vigie_forward::relay::{ProxyError, ProxyHeader, ProxyParse};
    ///
    /// let header = ProxyHeader::Tcp {
    ///     source: "192.0.2.1:50000".parse()?,
    ///     destination: "192.0.2.2:80".parse()?,
    /// };
    /// let mut room = [0; ProxyHeader::WRITTEN_BYTES_MAX];
    /// let bytes = header.write(&mut room);
    /// assert_eq!(ProxyHeader::read(&room[..bytes]), Ok(ProxyParse::Complete(header, bytes)));
    /// assert_eq!(ProxyHeader::read(&room[..10]), Ok(ProxyParse::Needs(16)));
    /// assert_eq!(ProxyHeader::read(b"PROXY TCP4 192.0"), Err(ProxyError::Version1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ProxyError`], as soon as the bytes received show it.
    pub fn read(bytes: &[u8]) -> Result<ProxyParse, ProxyError> {
        let known = bytes.len().min(SIGNATURE.len());
        if bytes[..known] != SIGNATURE[..known] {
            let words = b"PROXY";
            let is_words = bytes[..known.min(words.len())] == words[..known.min(words.len())];
            return match (is_words, bytes.len() >= words.len()) {
                (true, true) => Err(ProxyError::Version1),
                (true, false) => Ok(ProxyParse::Needs(words.len())),
                (false, _) => Err(ProxyError::NoSignature),
            };
        }

        let Some(fixed) = bytes.first_chunk::<FIXED_BYTES>() else {
            return Ok(ProxyParse::Needs(FIXED_BYTES));
        };

        let (version, command, family) = (fixed[12] >> 4, fixed[12] & 0x0f, fixed[13]);
        if version != 2 {
            return Err(ProxyError::Version(version));
        }
        if command > 1 {
            return Err(ProxyError::Command(command));
        }

        let length = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
        if length > VARIABLE_BYTES_MAX {
            return Err(ProxyError::Long { length });
        }

        let needed = address_bytes(family).ok_or(ProxyError::Family(family))?;
        if command == 1 && length < needed {
            return Err(ProxyError::Short { length, needed });
        }

        let total = FIXED_BYTES + length;
        let Some(variable) = bytes.get(FIXED_BYTES..total) else {
            return Ok(ProxyParse::Needs(total));
        };

        let header = match (command, family) {
            (0, _) => Self::Local,
            (_, TCP4) => Self::Tcp {
                source: (four(variable, 0), port(variable, 8)).into(),
                destination: (four(variable, 4), port(variable, 10)).into(),
            },
            (_, TCP6) => Self::Tcp {
                source: (sixteen(variable, 0), port(variable, 32)).into(),
                destination: (sixteen(variable, 16), port(variable, 34)).into(),
            },
            _ => Self::Unknown,
        };

        Ok(ProxyParse::Complete(header, total))
    }
}

/// Family in the upper four bits, protocol in the lower [proxy-protocol, §2.2].
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;

/// The length of both addresses; `None` for undefined values.
const fn address_bytes(family: u8) -> Option<usize> {
    match family {
        // Unspecified; the rest is skipped.
        0x00 => Some(0),
        TCP4 | 0x12 => Some(12),
        TCP6 | 0x22 => Some(36),
        0x31 | 0x32 => Some(216),
        _ => None,
    }
}

fn four(bytes: &[u8], offset_bytes: usize) -> Ipv4Addr {
    let mut address = [0; 4];
    address.copy_from_slice(&bytes[offset_bytes..offset_bytes + 4]);
    address.into()
}

fn sixteen(bytes: &[u8], offset_bytes: usize) -> Ipv6Addr {
    let mut address = [0; 16];
    address.copy_from_slice(&bytes[offset_bytes..offset_bytes + 16]);
    address.into()
}

const fn port(bytes: &[u8], offset_bytes: usize) -> u16 {
    u16::from_be_bytes([bytes[offset_bytes], bytes[offset_bytes + 1]])
}

fn put_addresses(source: &SocketAddr, destination: &SocketAddr, room: &mut [u8]) -> (u8, u8) {
    let ports = [source.port().to_be_bytes(), destination.port().to_be_bytes()].concat();
    let (family, addresses) = match (source.ip(), destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            (TCP4, [source.octets(), destination.octets()].concat())
        }
        (source, destination) => (TCP6, [mapped(source), mapped(destination)].concat()),
    };
    room[..addresses.len()].copy_from_slice(&addresses);
    room[addresses.len()..addresses.len() + ports.len()].copy_from_slice(&ports);
    (family, if family == TCP4 { 12 } else { 36 })
}

const fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address() -> impl Strategy<Value = SocketAddr> {
        let ip = prop_oneof![
            any::<[u8; 4]>().prop_map(IpAddr::from),
            any::<[u8; 16]>().prop_map(IpAddr::from)
        ];
        (ip, any::<u16>()).prop_map(SocketAddr::from)
    }

    proptest! {
        /// Goal: an encoded header decodes to itself, from any split. Method: random addresses; every prefix asks for
        /// more, and never for more than there is.
        #[test]
        fn headers_are_read_back(source in address(), destination in address()) {
            let header = ProxyHeader::Tcp { source, destination };
            let mut room = [0; ProxyHeader::WRITTEN_BYTES_MAX];
            let bytes = header.write(&mut room);
            let is_mixed = source.is_ipv4() != destination.is_ipv4();
            match ProxyHeader::read(&room) {
                Ok(ProxyParse::Complete(read, length)) => {
                    prop_assert_eq!(length, bytes);
                    prop_assert!(is_mixed || read == header);
                }
                other => prop_assert!(false, "{other:?}"),
            }
            for cut in 0..bytes {
                let read = ProxyHeader::read(&room[..cut]);
                prop_assert!(matches!(read, Ok(ProxyParse::Needs(needed)) if needed > cut && needed <= bytes), "{read:?}");
            }
        }

        /// Goal: nothing panics, and an incomplete header asks for a bounded number of bytes. Method: random bytes, and
        /// valid headers with random bytes in them.
        #[test]
        fn damaged_headers_are_read(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            damage in prop::collection::vec((12_usize..52, any::<u8>()), 0..4),
        ) {
            let mut room = [0; ProxyHeader::WRITTEN_BYTES_MAX];
            let source = SocketAddr::from(([1, 2, 3, 4], 5));
            ProxyHeader::Tcp { source, destination: source }.write(&mut room);
            for (place, byte) in damage {
                room[place] = byte;
            }
            for bytes in [&bytes[..], &room[..], &[&SIGNATURE[..], &bytes[..]].concat()] {
                match ProxyHeader::read(bytes) {
                    Ok(ProxyParse::Needs(needed)) => {
                        prop_assert!(needed > bytes.len() && needed <= FIXED_BYTES + VARIABLE_BYTES_MAX);
                    }
                    Ok(ProxyParse::Complete(_, length)) => prop_assert!(length <= bytes.len()),
                    Err(_) => {}
                }
            }
        }
    }

    /// Goal: each kind of damage has its own error. Method: one header of each.
    #[test]
    fn damage_is_named() {
        let with = |place: usize, byte: u8| {
            let mut room = [0; ProxyHeader::WRITTEN_BYTES_MAX];
            let source = SocketAddr::from(([1, 2, 3, 4], 5));
            ProxyHeader::Tcp { source, destination: source }.write(&mut room);
            room[place] = byte;
            ProxyHeader::read(&room)
        };
        assert_eq!(with(0, b'G'), Err(ProxyError::NoSignature));
        assert_eq!(with(12, 0x11), Err(ProxyError::Version(1)));
        assert_eq!(with(12, 0x22), Err(ProxyError::Command(2)));
        assert_eq!(with(13, 0x13), Err(ProxyError::Family(0x13)));
        assert_eq!(with(13, 0x21), Err(ProxyError::Short { length: 12, needed: 36 }));
        assert_eq!(with(14, 0xff), Err(ProxyError::Long { length: 0xff0c }));
        assert_eq!(with(12, 0x20), Ok(ProxyParse::Complete(ProxyHeader::Local, 28)));
        assert_eq!(with(13, 0x00), Ok(ProxyParse::Complete(ProxyHeader::Unknown, 28)));
        assert_eq!(
            ProxyHeader::read(b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n"),
            Err(ProxyError::Version1)
        );
        assert_eq!(ProxyHeader::read(b"GET / HTTP/1.1\r\n"), Err(ProxyError::NoSignature));
        assert_eq!(ProxyHeader::read(b"PRO"), Ok(ProxyParse::Needs(5)));
    }
}
