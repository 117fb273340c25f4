//! Secrets: who may talk to a NIC, and names that nobody guesses.
//!
//! SipHash-2-4 is a pseudo-random function under a secret key of 128 bits [siphash, §6]: as good for
//! authentication as for names, and short inputs cost some ten nanoseconds.

use std::{fmt, hash::Hasher};

use siphasher::{
    sip::SipHasher24,
    sip128::{Hasher128, SipHasher24 as WideHasher},
};

/// The length of a tag of the handshake, in bytes.
pub(crate) const TAG_BYTES: usize = 16;

/// The length of the tag of a packet with data, in bytes.
pub(super) const PACKET_TAG_BYTES: usize = 8;

/// What all NICs of a world know, and nobody else: 128 random bits. Only those that know it are answered.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 16]);

impl Secret {
    /// Takes random bytes for a secret.
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

    /// Returns the key of one connection, which both sides' names are part of.
    pub(super) fn of_connection(&self, caller: u64, answerer: u64) -> Self {
        let mut bytes = b"connection".to_vec();
        bytes.extend(caller.to_le_bytes());
        bytes.extend(answerer.to_le_bytes());
        Self(self.tag(&bytes))
    }

    /// Returns the short tag of a packet.
    pub(super) fn short_tag(&self, bytes: &[u8]) -> [u8; PACKET_TAG_BYTES] {
        SipHasher24::new_with_key(&self.0).hash(bytes).to_le_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(_)")
    }
}

/// Whether two tags are the same; how long that takes does not tell where they differ.
pub(crate) fn is_same(one: &[u8], other: &[u8]) -> bool {
    let differing = one.iter().zip(other).fold(0, |sum, (one, other)| sum | (one ^ other));
    one.len() == other.len() && differing == 0
}

/// Names that nobody guesses who does not know the seed, each given once.
#[derive(Debug)]
pub(super) struct Names {
    seed: Secret,
    given: u64,
}

impl Names {
    pub(super) const fn new(seed: [u8; 16]) -> Self {
        Self { seed: Secret::new(seed), given: 0 }
    }

    /// Returns another name, which is not zero.
    pub(super) fn fresh(&mut self) -> u64 {
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

    /// Returns what proves to this NIC that it has challenged somebody.
    pub(super) fn cookie(&self, path: &[u8], caller: u64, epoch: u64) -> [u8; TAG_BYTES] {
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

    /// Goal: the hash is the one that its authors published, not merely some hash. Method: the last of the test
    /// vectors' inputs of [siphash, §A]: key and message 00 01 02 …
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
