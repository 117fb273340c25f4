//! Frames that a third party cannot change, leave out, repeat or add to: each is followed by its tag under the
//! key of its connection and direction, over the frame and its number. They are not encrypted.

use std::fmt;

use super::handshake::Session;
use crate::{
    auth::{Secret, TAG_BYTES, is_same},
    world::wire::{Decoder, WireError},
};

/// One end of a connection.
pub struct Seal {
    outgoing_key: Secret,
    said: u64,
    incoming_key: Secret,
    heard: u64,
}

impl Seal {
    /// Returns the end of the rendezvous.
    #[must_use]
    pub fn of_hub(session: &Session) -> Self {
        Self::new(session.from_hub.clone(), session.from_member.clone())
    }

    /// Returns the rank's end.
    #[must_use]
    pub fn of_member(session: &Session) -> Self {
        Self::new(session.from_member.clone(), session.from_hub.clone())
    }

    const fn new(outgoing_key: Secret, incoming_key: Secret) -> Self {
        Self { outgoing_key, said: 0, incoming_key, heard: 0 }
    }

    /// Returns the tag of the next frame to send, to be sent behind the frame.
    pub fn tag(&mut self, frame: &[u8]) -> [u8; TAG_BYTES] {
        let tag = numbered(&self.outgoing_key, self.said, frame);
        self.said += 1;
        tag
    }

    /// Returns the next whole frame received, without length and tag; `None`: more bytes are needed.
    ///
    /// # Errors
    /// [`WireError`], after which the rest of the stream is meaningless; [`WireError::Forged`] if the stream
    /// was changed on the way.
    pub fn open<'a>(&mut self, decoder: &'a mut Decoder) -> Result<Option<&'a [u8]>, WireError> {
        let Some((frame, tag, body)) = decoder.next_tagged(TAG_BYTES)? else { return Ok(None) };
        if !is_same(&numbered(&self.incoming_key, self.heard, frame), tag) {
            return Err(WireError::Forged);
        }
        self.heard += 1;
        Ok(Some(body))
    }
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seal")
            .field("said", &self.said)
            .field("heard", &self.heard)
            .finish_non_exhaustive()
    }
}

fn numbered(key: &Secret, number: u64, frame: &[u8]) -> [u8; TAG_BYTES] {
    key.tag(&[&number.to_le_bytes(), frame])
}
