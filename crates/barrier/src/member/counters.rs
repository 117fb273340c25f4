//! What a member has sent, taken and dropped.

use thiserror::Error;

use crate::packet::ParseError;

/// What a member has counted since it was made; shrinking goes on counting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Messages of the schedule that it has sent: the only ones while nothing is lost or late.
    pub signals: u64,
    /// Messages that it has sent again because somebody asked.
    pub repeated: u64,
    /// Questions for messages that it missed.
    pub asked: u64,
    /// Answers that it is alive.
    pub answered: u64,
    /// What it has said about who is dead.
    pub views: u64,
    /// Packets that were of use.
    pub accepted: u64,
    /// Packets that were none, or of another version.
    pub malformed: u64,
    /// Packets with a wrong tag.
    pub forged: u64,
    /// Packets of other groups.
    pub foreign: u64,
    /// Packets of nobody in the group.
    pub senders: u64,
    /// Packets that nobody sends to this member.
    pub unexpected: u64,
    /// Values of a wrong length.
    pub values: u64,
    /// Messages that it had.
    pub duplicates: u64,
    /// Packets of barriers that are over.
    pub stale: u64,
    /// Packets of barriers that cannot have begun.
    pub future: u64,
    /// Words of members that are too few to go on, against this one.
    pub minority: u64,
}

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Dropped {
    /// It is no packet.
    #[error(transparent)]
    Malformed(#[from] ParseError),
    /// It is of another group.
    #[error("a packet of another group")]
    Foreign,
    /// Its sender is no other member.
    #[error("a packet of nobody in the group")]
    Sender,
    /// Nobody sends, or asks for, such a message.
    #[error("a packet that the schedule does not have")]
    Unexpected,
    /// The value has another length than all have.
    #[error("a value of a length that it cannot have")]
    Value,
    /// It was there before.
    #[error("a message that has arrived before")]
    Duplicate,
    /// Of a barrier that is over.
    #[error("a packet of the past")]
    Stale,
    /// Members that are too few to go on take this one for dead.
    #[error("the word of a minority")]
    Minority,
    /// Of a barrier that cannot have begun.
    #[error("a packet of a barrier that cannot have begun")]
    Future,
}

impl Counters {
    pub(super) const fn count(&mut self, why: Dropped) {
        let counter = match why {
            Dropped::Malformed(ParseError::Tag) => &mut self.forged,
            Dropped::Malformed(_) => &mut self.malformed,
            Dropped::Foreign => &mut self.foreign,
            Dropped::Sender => &mut self.senders,
            Dropped::Unexpected => &mut self.unexpected,
            Dropped::Value => &mut self.values,
            Dropped::Duplicate => &mut self.duplicates,
            Dropped::Stale => &mut self.stale,
            Dropped::Future => &mut self.future,
            Dropped::Minority => &mut self.minority,
        };
        *counter += 1;
    }

    /// Returns how many packets were dropped.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.malformed
            + self.forged
            + self.foreign
            + self.senders
            + self.unexpected
            + self.values
            + self.duplicates
            + self.stale
            + self.future
            + self.minority
    }
}
