//! Secrets that authenticate NICs, and unguessable names.
//!
//! SipHash-2-4 is a pseudo-random function under a secret key of 128 bits [siphash, §6]. It serves both
//! authentication and names, and short inputs cost some ten nanoseconds.

use std::{fmt, hash::Hasher};

use siphasher::{
    sip::SipHasher24,
    sip128::{Hasher128, SipHasher24 as WideHasher},
};

/// The length of a handshake tag, in bytes.
pub(crate) const TAG_BYTES: usize = 16;

/// The length of a data packet's tag, in bytes.
pub(crate) const PACKET_TAG_BYTES: usize = 8;

/// The secret shared by all NICs of a world: 128 random bits. NICs answer only senders that know it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 16]);

impl Secret {
    /// Makes a secret of random bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the tag of some bytes.
    pub(crate) fn tag(&self, bytes: &[u8]) -> [u8; TAG_BYTES] {
        let mut hasher = WideHasher::new_with_key(&self.0);
        hasher.write(bytes);
        hasher.finish128().as_bytes()
    }

    /// Derives the key of one connection from both sides' names.
    pub(crate) fn of_connection(&self, caller: u64, answerer: u64) -> Self {
        let mut bytes = b"connection".to_vec();
        bytes.extend(caller.to_le_bytes());
        bytes.extend(answerer.to_le_bytes());
        Self(self.tag(&bytes))
    }

    /// Returns the short tag of a packet.
    pub(crate) fn short_tag(&self, bytes: &[u8]) -> [u8; PACKET_TAG_BYTES] {
        SipHasher24::new_with_key(&self.0).hash(bytes).to_le_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(_)")
    }
}

/// Returns whether two tags are equal, in a time that does not reveal where they differ.
pub(crate) fn is_same(one: &[u8], other: &[u8]) -> bool {
    let differing = one.iter().zip(other).fold(0, |sum, (one, other)| sum | (one ^ other));
    one.len() == other.len() && differing == 0
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
            let mut bytes = b"name".to_vec();
            bytes.extend(self.given.to_le_bytes());
            let name = u64::from_le_bytes(self.seed.short_tag(&bytes));
            if name != 0 {
                return name;
            }
        }
    }

    /// Returns the cookie by which this NIC recognizes that it has challenged a caller.
    pub(crate) fn cookie(&self, path: &[u8], caller: u64, epoch: u64) -> [u8; TAG_BYTES] {
        let mut bytes = b"cookie".to_vec();
        bytes.extend(caller.to_le_bytes());
        bytes.extend(epoch.to_le_bytes());
        bytes.extend(path);
        self.seed.tag(&bytes)
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
        let tag = Secret::new(key).tag(&message);
        for bit in 0..16 * 8 {
            let mut other = key;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_same(&Secret::new(other).tag(&message), &tag));
        }
        for bit in 0..40 * 8 {
            let mut other = message;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_same(&Secret::new(key).tag(&other), &tag));
        }
        assert!(is_same(&Secret::new(key).tag(&message), &tag));
        assert!(!is_same(&tag, &tag[..15]));
    }
}
