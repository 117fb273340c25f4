//! The world's secret, which authenticates connecting NICs and never travels itself.
//!
//! Each side of a control connection sends a nonce. The control key is SipHash-2-4, with 128 bits of
//! output, of both nonces under the secret. Every later frame carries a tag under that key over its
//! direction, its number and its bytes: frames can be neither forged, nor replayed, nor reflected.

use std::fmt;

use crate::auth::{Secret, TAG_BYTES};

/// A number that is used once.
pub(super) type Nonce = [u8; 16];

/// The secret shared by all NICs of a world: 256 random bits. NICs answer only peers that know it.
#[derive(Clone, PartialEq, Eq)]
pub struct VerbsSecret([u8; 32]);

impl VerbsSecret {
    /// Makes a secret of random bytes, such as those of a world's identity.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Derives the key of a control connection.
    pub(super) fn control_key(&self, caller: &Nonce, answerer: &Nonce) -> ControlKey {
        let (mut key, mut rest) = ([0; 16], [0; 16]);
        for (index, byte) in self.0.iter().enumerate() {
            if let Some(place) = key.get_mut(index) {
                *place = *byte;
            } else if let Some(place) = rest.get_mut(index - 16) {
                *place = *byte;
            }
        }
        let key = Secret::new(key);
        ControlKey(Secret::new(key.tag(&[b"vigie-verbs line", &rest, caller, answerer])))
    }
}

impl fmt::Debug for VerbsSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VerbsSecret(_)")
    }
}

/// The key that the two ends of a control connection share.
pub(super) struct ControlKey(Secret);

/// The sender of a frame.
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

impl ControlKey {
    /// Returns the tag of the `number`th frame sent by `side`.
    pub(super) fn tag(&self, side: Side, number: u64, frame: &[u8]) -> [u8; TAG_BYTES] {
        let side = match side {
            Side::Caller => b"c",
            Side::Answerer => b"a",
        };
        self.0.tag(&[side, &number.to_le_bytes(), frame])
    }
}

impl fmt::Debug for ControlKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ControlKey(_)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::is_same;

    /// Goal: the tag covers every part of its input. Method: one change at a time.
    #[test]
    fn a_tag_is_of_secret_numbers_side_place_and_bytes() {
        let key = |secret: u8, last: u8, caller: u8, answerer: u8| {
            let mut bytes = [secret; 32];
            bytes[31] = last;
            VerbsSecret::new(bytes).control_key(&[caller; 16], &[answerer; 16])
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
