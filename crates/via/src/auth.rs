//! Secrets by which peers authenticate each other, and unguessable names: for NICs, rendezvous and barriers.
//!
//! SipHash-2-4 is a pseudo-random function under a secret key of 128 bits [siphash, §6]. It serves both
//! authentication and names, and short inputs cost some ten nanoseconds.

use std::{fmt, hash::Hasher, io};

use siphasher::{
    sip::SipHasher24,
    sip128::{Hasher128, SipHasher24 as WideHasher},
};
use vigie_detect::Server;

/// The length of a handshake tag, in bytes.
pub const TAG_BYTES: usize = 16;

/// The length of a data packet's tag, in bytes.
pub const PACKET_TAG_BYTES: usize = 8;

/// A secret shared by all NICs of a world, or by all members of a group: 128 random bits. Messages carry a tag that
/// depends on it, and a peer that does not know it gets no answer.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 16]);

impl Secret {
    /// Makes a secret of random bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the tag of some bytes, given in parts. The boundaries between the parts do not count.
    #[doc(hidden)]
    #[must_use]
    pub fn tag(&self, parts: &[&[u8]]) -> [u8; TAG_BYTES] {
        let mut hasher = WideHasher::new_with_key(&self.0);
        for part in parts {
            hasher.write(part);
        }
        hasher.finish128().as_bytes()
    }

    /// Derives the key of one connection from both sides' names.
    pub(crate) fn of_connection(&self, caller: u64, answerer: u64) -> Self {
        Self(self.tag(&[b"connection", &caller.to_le_bytes(), &answerer.to_le_bytes()]))
    }

    /// Returns the short tag of a packet.
    #[doc(hidden)]
    #[must_use]
    pub fn short_tag(&self, bytes: &[u8]) -> [u8; PACKET_TAG_BYTES] {
        SipHasher24::new_with_key(&self.0).hash(bytes).to_le_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(_)")
    }
}

/// Returns whether two tags are equal, in a time that does not reveal where they differ.
#[must_use]
pub fn is_same(one: &[u8], other: &[u8]) -> bool {
    let differing = one.iter().zip(other).fold(0, |sum, (one, other)| sum | (one ^ other));
    one.len() == other.len() && differing == 0
}

/// Returns a number that differs between different bytes, and is the same everywhere: no secret is involved.
#[must_use]
pub fn digest(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(Secret::new([0; 16]).short_tag(bytes))
}

/// Returns random bytes; in a simulation, of its seed.
///
/// # Errors
/// The kernel's, if it has no random numbers.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    if Server::current().is_ok_and(|server| server.fill_random(&mut bytes)) {
        return Ok(bytes);
    }
    let mut filled = 0;
    while filled < N {
        filled +=
            rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

/// A generator of names that cannot be guessed without the seed. Each is given once.
#[derive(Debug)]
pub(crate) struct Names {
    seed: Secret,
    given: u64,
}

impl Names {
    pub(crate) const fn new(seed: [u8; 16]) -> Self {
        Self { seed: Secret::new(seed), given: 0 }
    }

    /// Returns another name, never zero.
    pub(crate) fn fresh(&mut self) -> u64 {
        loop {
            self.given += 1;
            let bytes = [&b"name"[..], &self.given.to_le_bytes()].concat();
            let name = u64::from_le_bytes(self.seed.short_tag(&bytes));
            if name != 0 {
                return name;
            }
        }
    }

    /// Returns the cookie by which this NIC recognizes that it has challenged a caller.
    pub(crate) fn cookie(&self, path: &[u8], caller: u64, epoch: u64) -> [u8; TAG_BYTES] {
        self.seed.tag(&[b"cookie", &caller.to_le_bytes(), &epoch.to_le_bytes(), path])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the hash is the published one. Method: the last of the test vectors' inputs of [siphash,
    /// §A]: key and message 00 01 02 …
    #[test]
    fn the_published_vector() {
        let key = std::array::from_fn(|at| u8::try_from(at).expect("small"));
        let message: [u8; 15] = std::array::from_fn(|at| u8::try_from(at).expect("small"));
        let tag = u64::from_le_bytes(Secret::new(key).short_tag(&message));
        assert_eq!(tag, 0xa129_ca61_49be_45e5);
    }

    /// Goal: tags depend on every bit of the key and of the message. Method: flip each.
    #[test]
    fn every_bit_counts() {
        let (key, message) = ([7; 16], [9; 40]);
        let tag = Secret::new(key).tag(&[&message]);
        for bit in 0..16 * 8 {
            let mut other = key;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_same(&Secret::new(other).tag(&[&message]), &tag));
        }
        for bit in 0..40 * 8 {
            let mut other = message;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_same(&Secret::new(key).tag(&[&other]), &tag));
        }
        assert!(is_same(&Secret::new(key).tag(&[&message]), &tag));
        assert!(is_same(&Secret::new(key).tag(&[&message[..13], &[], &message[13..]]), &tag));
        assert!(!is_same(&tag, &tag[..15]));
    }
}
