//! Who may connect: those who know the world's secret, which itself never travels.
//!
//! Both sides of a line name a random number; the key of the line is SipHash-2-4 with 128 bits of output over
//! both, under the secret. Every later frame carries a tag under that key over its direction, its number and
//! its bytes: frames can be neither forged, nor replayed, nor sent back.

use std::{fmt, hash::Hasher, io};

use rustix::rand::{GetRandomFlags, getrandom};
use siphasher::sip128::{Hasher128, SipHasher24};

/// The length of a tag, in bytes.
pub(super) const TAG_BYTES: usize = 16;

/// A number that is used once.
pub(super) type Nonce = [u8; 16];

/// What all NICs of a world know, and nobody else: 256 random bits. NICs answer only those that know it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl Secret {
    /// Takes random bytes, such as those of a world's identity, for a secret.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the key of a line.
    pub(super) fn line_key(&self, caller: &Nonce, answerer: &Nonce) -> LineKey {
        let (mut key, mut rest) = ([0; 16], [0; 16]);
        for (index, byte) in self.0.iter().enumerate() {
            if let Some(place) = key.get_mut(index) {
                *place = *byte;
            } else if let Some(place) = rest.get_mut(index - 16) {
                *place = *byte;
            }
        }
        LineKey(tag(&key, &[b"vigie-verbs line", &rest, caller, answerer]))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(_)")
    }
}

/// What the two ends of a line know.
pub(super) struct LineKey([u8; 16]);

/// Who has written a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Caller,
    Answerer,
}

impl Side {
    pub(super) const fn other(self) -> Self {
        match self {
            Self::Caller => Self::Answerer,
            Self::Answerer => Self::Caller,
        }
    }
}

impl LineKey {
    /// Returns the tag of the frame that `side` has sent as its `number`th.
    pub(super) fn tag(&self, side: Side, number: u64, frame: &[u8]) -> [u8; TAG_BYTES] {
        let side = match side {
            Side::Caller => b"c",
            Side::Answerer => b"a",
        };
        tag(&self.0, &[side, &number.to_le_bytes(), frame])
    }
}

impl fmt::Debug for LineKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LineKey(_)")
    }
}

fn tag(key: &[u8; 16], parts: &[&[u8]]) -> [u8; TAG_BYTES] {
    let mut hasher = SipHasher24::new_with_key(key);
    for part in parts {
        hasher.write(part);
    }
    hasher.finish128().as_bytes()
}

/// Whether two tags are the same; how long that takes does not tell where they differ.
pub(super) fn is_same(one: &[u8; TAG_BYTES], other: &[u8]) -> bool {
    let differing = one.iter().zip(other).fold(0, |sum, (one, other)| sum | (one ^ other));
    one.len() == other.len() && differing == 0
}

/// Returns random bytes.
pub(super) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every part of what is tagged counts. Method: one change at a time.
    #[test]
    fn a_tag_is_of_secret_numbers_side_place_and_bytes() {
        let key = |secret: u8, last: u8, caller: u8, answerer: u8| {
            let mut bytes = [secret; 32];
            bytes[31] = last;
            Secret::new(bytes).line_key(&[caller; 16], &[answerer; 16])
        };
        let plain = key(1, 1, 2, 3).tag(Side::Caller, 4, b"frame");
        assert!(is_same(&plain, &key(1, 1, 2, 3).tag(Side::Caller, 4, b"frame")));
        for other in [
            key(9, 1, 2, 3).tag(Side::Caller, 4, b"frame"),
            key(1, 9, 2, 3).tag(Side::Caller, 4, b"frame"),
            key(1, 1, 3, 2).tag(Side::Caller, 4, b"frame"),
            key(1, 1, 2, 3).tag(Side::Answerer, 4, b"frame"),
            key(1, 1, 2, 3).tag(Side::Caller, 5, b"frame"),
            key(1, 1, 2, 3).tag(Side::Caller, 4, b"frames"),
        ] {
            assert!(!is_same(&plain, &other));
        }
        assert!(!is_same(&plain, &plain[..15]));
    }
}
