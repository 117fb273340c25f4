//! Lets a caller and the rendezvous prove to each other that they know the secret, without I/O.
//!
//! ```text
//!   rendezvous                                     caller
//!       │  challenge: magic, a random number          │
//!       ├─────────────────────────────────────────────▶
//!       │  answer: magic, rank, size, another random  │
//!       │  number, a tag of all that is known so far  │
//!       ◀─────────────────────────────────────────────┤
//!       │  verdict: a word, a tag of it all           │
//!       ├─────────────────────────────────────────────▶
//! ```
//! Tags are SipHash-2-4 of 128 bits under the secret [siphash, §6]. Both random numbers are in every tag, so
//! no message can be replayed; each tag begins with its sender's role, so none can be reflected. The key
//! under which every later frame is [tagged](super::seal) is derived from the same input.

use std::fmt;

use crate::{
    auth::{Secret, TAG_BYTES, is_same},
    world::{JoinRefusal, Rank},
};

/// A random number of a handshake.
pub type Nonce = [u8; 16];

/// Identifies the protocol and, in its last byte, the version.
const MAGIC: [u8; 8] = *b"vigieRV\x01";

/// The length of a challenge, in bytes.
pub const CHALLENGE_BYTES: usize = MAGIC.len() + 16;
/// The length of an answer, in bytes.
pub const ANSWER_BYTES: usize = MAGIC.len() + 4 + 4 + 16 + TAG_BYTES;
/// The length of a verdict, in bytes.
pub const VERDICT_BYTES: usize = 1 + TAG_BYTES;

/// The verdict that carries no tag, since its receiver does not know the secret.
const WRONG_SECRET: u8 = 1;

/// The keys of a connection, one for each direction.
#[derive(Clone, PartialEq, Eq)]
pub struct Session {
    /// The key of frames from the rendezvous.
    pub(super) from_hub: Secret,
    /// The key of frames from the rank.
    pub(super) from_member: Secret,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

/// The values of a call that both sides know.
#[derive(Clone, Copy, Debug)]
struct HandshakeTranscript {
    challenge: Nonce,
    answer: Nonce,
    rank: u32,
    size: u32,
}

impl HandshakeTranscript {
    fn tag(&self, secret: &Secret, what: &[u8]) -> [u8; TAG_BYTES] {
        let (rank, size) = (self.rank.to_le_bytes(), self.size.to_le_bytes());
        secret.tag(&[&self.challenge, &self.answer, &rank, &size, what])
    }

    fn session(&self, secret: &Secret) -> Session {
        let key = |what: &[u8]| Secret::new(self.tag(secret, what));
        Session { from_hub: key(b"frames of the hub"), from_member: key(b"frames of a member") }
    }

    fn verdict(&self, secret: &Secret, word: u8) -> [u8; VERDICT_BYTES] {
        let tag = self.tag(secret, &[b"verdict".as_slice(), &[word]].concat());
        let mut verdict = [word; VERDICT_BYTES];
        verdict[1..].copy_from_slice(&tag);
        verdict
    }
}

/// The rendezvous's side, for one caller.
#[derive(Debug)]
pub struct Challenger {
    nonce: Nonce,
}

/// The rendezvous's verdict on a caller.
#[derive(Debug)]
#[non_exhaustive]
pub enum HandshakeVerdict {
    /// It is this rank: send it the bytes, then frames under the keys.
    Admitted {
        /// The rank.
        rank: Rank,
        /// The verdict.
        bytes: [u8; VERDICT_BYTES],
        /// The keys.
        session: Session,
    },
    /// It knows the secret, but cannot be admitted: send it the bytes, and end the connection.
    Refused {
        /// The reason.
        why: JoinRefusal,
        /// The verdict.
        bytes: [u8; VERDICT_BYTES],
    },
    /// It does not know the secret, or speaks another protocol.
    Stranger {
        /// The verdict, in case the caller is a rank with a wrong secret.
        bytes: [u8; VERDICT_BYTES],
    },
}

impl Challenger {
    /// Makes a challenge from a random number that was never used before.
    #[must_use]
    pub const fn new(nonce: Nonce) -> Self {
        Self { nonce }
    }

    /// Returns the bytes of the challenge, which is sent first.
    #[must_use]
    pub fn challenge(&self) -> [u8; CHALLENGE_BYTES] {
        let mut bytes = [0; CHALLENGE_BYTES];
        let (magic, nonce) = bytes.split_at_mut(MAGIC.len());
        magic.copy_from_slice(&MAGIC);
        nonce.copy_from_slice(&self.nonce);
        bytes
    }

    /// Judges the answer, for a world of `size` ranks. `admit` refuses a rank that knows the secret but must
    /// not be admitted.
    #[must_use]
    pub fn judge(
        &self,
        answer: &[u8; ANSWER_BYTES],
        secret: &Secret,
        size: u32,
        admit: impl FnOnce(Rank) -> Result<(), JoinRefusal>,
    ) -> HandshakeVerdict {
        let stranger = HandshakeVerdict::Stranger { bytes: [WRONG_SECRET; VERDICT_BYTES] };
        let Some((call, tag)) = self.read(answer) else { return stranger };
        if !is_same(&call.tag(secret, b"answer"), tag) {
            return stranger;
        }
        let checked = if call.size != size {
            Err(JoinRefusal::WrongSize)
        } else if call.rank >= size {
            Err(JoinRefusal::NoSuchRank)
        } else {
            admit(Rank(call.rank))
        };
        match checked {
            Ok(()) => HandshakeVerdict::Admitted {
                rank: Rank(call.rank),
                bytes: call.verdict(secret, 0),
                session: call.session(secret),
            },
            Err(why) => HandshakeVerdict::Refused { why, bytes: call.verdict(secret, word(why)) },
        }
    }

    fn read<'a>(&self, answer: &'a [u8; ANSWER_BYTES]) -> Option<(HandshakeTranscript, &'a [u8])> {
        let rest = answer.strip_prefix(&MAGIC)?;
        let (rank, rest) = rest.split_first_chunk()?;
        let (size, rest) = rest.split_first_chunk()?;
        let (nonce, tag) = rest.split_first_chunk()?;
        let (rank, size) = (u32::from_le_bytes(*rank), u32::from_le_bytes(*size));
        Some((HandshakeTranscript { challenge: self.nonce, answer: *nonce, rank, size }, tag))
    }
}

/// A rank's side.
#[derive(Debug)]
pub(super) struct ClientHandshake {
    secret: Secret,
    rank: Rank,
    size: u32,
    nonce: Nonce,
}

impl ClientHandshake {
    pub(super) const fn new(secret: Secret, rank: Rank, size: u32, nonce: Nonce) -> Self {
        Self { secret, rank, size, nonce }
    }

    /// Returns the answer to a challenge, and the state that reads the verdict. `None`: this is not a challenge.
    pub(super) fn answer(
        self,
        challenge: &[u8; CHALLENGE_BYTES],
    ) -> Option<([u8; ANSWER_BYTES], AnsweredChallenge)> {
        let nonce = challenge.strip_prefix(&MAGIC)?.try_into().ok()?;
        let call = HandshakeTranscript {
            challenge: nonce,
            answer: self.nonce,
            rank: self.rank.0,
            size: self.size,
        };
        let (rank, size) = (call.rank.to_le_bytes(), call.size.to_le_bytes());
        let tag = call.tag(&self.secret, b"answer");
        let bytes = [&MAGIC[..], &rank, &size, &call.answer, &tag].concat();
        Some((bytes.try_into().ok()?, AnsweredChallenge { secret: self.secret, call }))
    }
}

/// A rank's side after its answer.
#[derive(Debug)]
pub(super) struct AnsweredChallenge {
    secret: Secret,
    call: HandshakeTranscript,
}

impl AnsweredChallenge {
    /// Returns the keys, or why the rank was refused.
    pub(super) fn read(&self, verdict: &[u8; VERDICT_BYTES]) -> Result<Session, JoinRefusal> {
        let word = verdict[0];
        if word == WRONG_SECRET {
            return Err(JoinRefusal::WrongSecret);
        }
        if !is_same(&self.call.verdict(&self.secret, word), verdict) {
            return Err(JoinRefusal::Impostor);
        }
        match word {
            0 => Ok(self.call.session(&self.secret)),
            word => Err(refusal(word)),
        }
    }
}

/// Returns the byte that stands for a refusal.
const fn word(why: JoinRefusal) -> u8 {
    match why {
        JoinRefusal::WrongSecret | JoinRefusal::Impostor => WRONG_SECRET,
        JoinRefusal::WrongSize => 2,
        JoinRefusal::NoSuchRank => 3,
        JoinRefusal::Taken => 4,
        JoinRefusal::TooLate => 5,
        JoinRefusal::Unknown => u8::MAX,
    }
}

const fn refusal(word: u8) -> JoinRefusal {
    match word {
        2 => JoinRefusal::WrongSize,
        3 => JoinRefusal::NoSuchRank,
        4 => JoinRefusal::Taken,
        5 => JoinRefusal::TooLate,
        _ => JoinRefusal::Unknown,
    }
}
