//! The first message of a TLS client, read far enough to know which server it wants.
//!
//! # Source
//! Records and the ClientHello: [rfc8446, §5.1 and §4.1.2], the same in all versions since TLS 1.0. The server's name: [rfc6066, §3].
//! *Deviation:* a name that ends in a dot is taken for the same name without it, which clients send although they must not.

use thiserror::Error;

/// A TLS client's first message, as far as a relay must know it.
///
/// ```
/// use vigie_forward::relay::{ClientHello, HelloError, HelloParse};
///
/// assert_eq!(ClientHello::read(&[22, 3, 1]), Ok(HelloParse::Incomplete));
/// assert_eq!(ClientHello::read(b"GET / HTTP/1.1\r\n"), Err(HelloError::NotTls));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientHello {
    /// The name of the server that the client asks for, in lower case, without a dot at its end; `None` if it asks for none, as clients
    /// do that connect to an address. It is not checked to be a possible name of a host.
    pub server_name: Option<String>,
}

/// The result of reading a beginning of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "either it is whole or it is not")]
pub enum HelloParse {
    /// More bytes are needed.
    Incomplete,
    /// The message.
    Complete(ClientHello),
}

/// Bytes that are not the first message of a TLS client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HelloError {
    /// No record of a handshake.
    #[error("it does not speak TLS: let it connect with TLS (https://), or to a port without")]
    NotTls,
    /// A message that contradicts itself.
    #[error("its first message is malformed")]
    Malformed,
    /// A message that is longer than is accepted.
    #[error("its first message is longer than {HELLO_BYTES_MAX} bytes")]
    Long,
}

/// The maximum size of a ClientHello with the headers of its records, in bytes. Those of browsers have up to 2 KiB, with keys that
/// withstand quantum computers.
pub(super) const HELLO_BYTES_MAX: usize = 16 << 10;

/// The header of a record, and of a message of the handshake, in bytes.
const RECORD_HEADER_BYTES: usize = 5;
const MESSAGE_HEADER_BYTES: usize = 4;
/// The maximum length of a record, in bytes.
const RECORD_BYTES_MAX: usize = 1 << 14;

const RECORD_HANDSHAKE: u8 = 22;
const MESSAGE_CLIENT_HELLO: u8 = 1;
const EXTENSION_SERVER_NAME: u16 = 0;
const NAME_OF_HOST: u8 = 0;
/// The longest name of a host, in bytes (RFC 1035).
const NAME_BYTES_MAX: usize = 253;

impl ClientHello {
    /// Reads the beginning of a stream: the message, which may span records. Later bytes are ignored.
    ///
    /// # Cost
    /// Linear in the bytes, which are copied once; at most 16 KiB are inspected.
    ///
    /// # Errors
    /// [`HelloError`], as soon as the bytes received show it.
    pub fn read(bytes: &[u8]) -> Result<HelloParse, HelloError> {
        let mut message = Vec::new();
        let mut rest = &bytes[..bytes.len().min(HELLO_BYTES_MAX)];
        loop {
            if let Some(length) = message_length(&message)? {
                if length > HELLO_BYTES_MAX {
                    return Err(HelloError::Long);
                }
                if let Some(body) = message.get(MESSAGE_HEADER_BYTES..length) {
                    return body_of(body).map(HelloParse::Complete);
                }
            }
            let Some((fragment, after)) = record(rest)? else {
                let is_over = bytes.len() >= HELLO_BYTES_MAX;
                return if is_over { Err(HelloError::Long) } else { Ok(HelloParse::Incomplete) };
            };
            message.extend_from_slice(fragment);
            rest = after;
        }
    }
}

/// The content of a record, and the bytes after it.
type Record<'a> = (&'a [u8], &'a [u8]);

/// Takes a record from the front: what it holds, and what follows; `None` if it has not arrived completely.
fn record(bytes: &[u8]) -> Result<Option<Record<'_>>, HelloError> {
    let is_handshake = bytes.first().is_none_or(|kind| *kind == RECORD_HANDSHAKE);
    if !is_handshake || bytes.get(1).is_some_and(|major| *major != 3) {
        return Err(HelloError::NotTls);
    }
    let Some((header, rest)) = bytes.split_first_chunk::<RECORD_HEADER_BYTES>() else {
        return Ok(None);
    };
    let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
    if length == 0 || length > RECORD_BYTES_MAX {
        return Err(HelloError::Malformed);
    }
    Ok(rest.split_at_checked(length))
}

/// Returns the length of the message with its header, once that is known.
fn message_length(message: &[u8]) -> Result<Option<usize>, HelloError> {
    if message.first().is_some_and(|kind| *kind != MESSAGE_CLIENT_HELLO) {
        return Err(HelloError::NotTls);
    }
    let Some([_, high, middle, low]) = message.first_chunk() else { return Ok(None) };
    let length = u32::from_be_bytes([0, *high, *middle, *low]);
    Ok(Some(MESSAGE_HEADER_BYTES + usize::try_from(length).unwrap_or(usize::MAX / 2)))
}

fn body_of(body: &[u8]) -> Result<ClientHello, HelloError> {
    server_name(Fields(body)).ok_or(HelloError::Malformed).map(|name| ClientHello {
        server_name: name.map(|name| {
            let name = name.to_ascii_lowercase();
            name.strip_suffix('.').map(ToOwned::to_owned).unwrap_or(name)
        }),
    })
}

/// Returns the server's name, if there is one; nothing if the message is malformed.
fn server_name(mut body: Fields<'_>) -> Option<Option<String>> {
    // The version and the random bytes, the session, the cipher suites, the compression methods.
    body.take(2 + 32)?;
    body.vector_u8()?;
    body.vector_u16()?;
    body.vector_u8()?;
    if body.0.is_empty() {
        return Some(None);
    }
    let mut extensions = Fields(body.vector_u16()?);
    if !body.0.is_empty() {
        return None;
    }
    let mut name = None;
    while !extensions.0.is_empty() {
        let kind = extensions.u16()?;
        let extension = extensions.vector_u16()?;
        if kind == EXTENSION_SERVER_NAME {
            // With two, a relay and its target might each take another.
            if name.is_some() {
                return None;
            }
            name = Some(host_of(Fields(extension))?);
        }
    }
    Some(name)
}

fn host_of(mut extension: Fields<'_>) -> Option<String> {
    let mut names = Fields(extension.vector_u16()?);
    let kind = *names.take(1)?.first()?;
    let name = names.vector_u16()?;
    let is_whole = extension.0.is_empty() && names.0.is_empty() && kind == NAME_OF_HOST;
    let is_name =
        (1..=NAME_BYTES_MAX + 1).contains(&name.len()) && name.iter().all(u8::is_ascii_graphic);
    (is_whole && is_name).then(|| String::from_utf8_lossy(name).into_owned())
}

/// The rest of a message.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
    }

    /// Bytes behind their length in one byte.
    fn vector_u8(&mut self) -> Option<&'a [u8]> {
        let length = *self.take(1)?.first()?;
        self.take(length.into())
    }

    /// Bytes behind their length in two bytes.
    fn vector_u16(&mut self) -> Option<&'a [u8]> {
        let length = self.u16()?;
        self.take(length.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message with these extensions.
    fn message(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut all = Vec::new();
        for (kind, bytes) in extensions {
            all.extend(kind.to_be_bytes());
            all.extend(u16::try_from(bytes.len()).expect("short").to_be_bytes());
            all.extend(bytes);
        }
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0, 0, 2, 0x13, 0x01, 1, 0]);
        body.extend(u16::try_from(all.len()).expect("short").to_be_bytes());
        body.extend(all);
        let length = u32::try_from(body.len()).expect("short").to_be_bytes();
        [&[1], &length[1..], &body].concat()
    }

    fn named(name: &[u8]) -> (u16, Vec<u8>) {
        let length = u16::try_from(name.len()).expect("short");
        let list = [&(length + 3).to_be_bytes()[..], &[0], &length.to_be_bytes(), name].concat();
        (0, list)
    }

    /// Divides a message into records of at most `bytes`.
    fn records(message: &[u8], bytes: usize) -> Vec<u8> {
        let mut all = Vec::new();
        for part in message.chunks(bytes) {
            all.extend([22, 3, 1]);
            all.extend(u16::try_from(part.len()).expect("short").to_be_bytes());
            all.extend(part);
        }
        all
    }

    fn complete(name: Option<&str>) -> Result<HelloParse, HelloError> {
        Ok(HelloParse::Complete(ClientHello { server_name: name.map(ToOwned::to_owned) }))
    }

    /// Goal: the name is found however the message is divided into records and arrives, in upper case, with a dot at its end, or not at
    /// all. Method: records of every length; every prefix is incomplete; bytes behind it do not matter.
    #[test]
    fn names_are_found() {
        let other = (43, vec![2, 3, 4]);
        for (extensions, name) in [
            (vec![named(b"a.example")], Some("a.example")),
            (vec![other.clone(), named(b"A.Example.")], Some("a.example")),
            (vec![other.clone(), other], None),
            (vec![], None),
        ] {
            let message = message(&extensions);
            for size in 1..=message.len() {
                let mut stream = records(&message, size);
                assert_eq!(ClientHello::read(&stream), complete(name), "records of {size}");
                for cut in 0..stream.len() {
                    assert_eq!(ClientHello::read(&stream[..cut]), Ok(HelloParse::Incomplete));
                }
                stream.extend(b"beyond");
                assert_eq!(ClientHello::read(&stream), complete(name));
            }
        }
    }

    /// Goal: a message whose name could be read in two ways, or that contradicts itself, is refused, and so is one without an end. Method:
    /// one of each; a length that is never reached; records of a message that goes on for ever.
    #[test]
    fn wrong_messages_are_refused() {
        let name = named(b"a");
        let malformed = Err(HelloError::Malformed);
        let read = |message: &[u8]| ClientHello::read(&records(message, 100));
        assert_eq!(read(&message(&[name.clone(), name.clone()])), malformed, "two of them");
        assert_eq!(read(&message(&[named(b"")])), malformed);
        assert_eq!(read(&message(&[named(b"a b")])), malformed);
        assert_eq!(read(&message(&[named(&[b'a'; 255])])), malformed);
        let mut two = name.1.clone();
        two.extend([0, 0, 1, b'b']);
        two[1] += 4;
        assert_eq!(read(&message(&[(0, two)])), malformed, "two names in one");
        let mut cut = message(&[name]);
        cut.truncate(cut.len() - 1);
        cut[3] -= 1;
        assert_eq!(read(&cut), malformed);
        assert_eq!(ClientHello::read(&[22, 3, 1, 0, 0]), malformed);
        assert_eq!(ClientHello::read(&[22, 3, 1, 0x40, 1]), malformed);
        for other in [&b"GET / HTTP/1.1"[..], &[22, 2], &[21, 3, 3, 0, 2], &[22, 3, 1, 0, 1, 2]] {
            assert_eq!(ClientHello::read(other), Err(HelloError::NotTls), "{other:?}");
        }
        let long = [1, 0, 0xff, 0xff].into_iter().chain([0; 20_000]).collect::<Vec<_>>();
        assert_eq!(read(&long), Err(HelloError::Long));
        let slow = [1, 0, 0x30, 0].into_iter().chain([0; 20_000]).collect::<Vec<_>>();
        assert_eq!(ClientHello::read(&records(&slow, 1)), Err(HelloError::Long));
    }
}
