//! The counters of the packets that a member has sent, received and dropped.

use thiserror::Error;

use crate::packet::ParseError;

/// The counts of a member since it was created; shrinking does not reset them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberCounters {
    /// Messages of the schedule that it has sent: the only packets while nothing is lost or late.
    pub signals: u64,
    /// Messages that it has sent again on request.
    pub retransmitted: u64,
    /// Requests for messages that it missed.
    pub nacks: u64,
    /// Answers that it is alive.
    pub alive_replies: u64,
    /// Messages about which members are dead.
    pub views: u64,
    /// Packets that were useful.
    pub accepted: u64,
    /// Packets that were invalid, or of another version.
    pub malformed: u64,
    /// Packets with a wrong tag.
    pub forged: u64,
    /// Packets of other groups.
    pub foreign: u64,
    /// Packets from senders that are not in the group.
    pub unknown_senders: u64,
    /// Packets that no member sends to this one.
    pub unexpected: u64,
    /// Values of the wrong length.
    pub wrong_values: u64,
    /// Messages that it already had.
    pub duplicates: u64,
    /// Packets of barriers or questions that are over.
    pub stale: u64,
    /// Packets of barriers that cannot have begun.
    pub future: u64,
    /// Views of members that are too few to continue, against this one.
    pub minority: u64,
}

/// The reason why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DropReason {
    /// It is not a valid packet.
    #[error(transparent)]
    Malformed(#[from] ParseError),
    /// It is of another group.
    #[error("a packet of another group")]
    Foreign,
    /// Its sender is not another member.
    #[error("a packet from a sender that is not in the group")]
    Sender,
    /// No member sends, or asks for, such a message.
    #[error("a packet that is not in the schedule")]
    Unexpected,
    /// The value's length differs from the group's.
    #[error("a value of the wrong length")]
    Value,
    /// It has arrived before.
    #[error("a message that has arrived before")]
    Duplicate,
    /// It is outdated: its barrier or its question is over.
    #[error("an outdated packet")]
    Stale,
    /// Members that are too few to continue believe this one dead.
    #[error("a view of a minority of the group")]
    Minority,
    /// It is for a barrier that cannot have begun.
    #[error("a packet of a barrier that cannot have begun")]
    Future,
}

impl MemberCounters {
    pub(super) const fn count(&mut self, why: DropReason) {
        let counter = match why {
            DropReason::Malformed(ParseError::Tag) => &mut self.forged,
            DropReason::Malformed(_) => &mut self.malformed,
            DropReason::Foreign => &mut self.foreign,
            DropReason::Sender => &mut self.unknown_senders,
            DropReason::Unexpected => &mut self.unexpected,
            DropReason::Value => &mut self.wrong_values,
            DropReason::Duplicate => &mut self.duplicates,
            DropReason::Stale => &mut self.stale,
            DropReason::Future => &mut self.future,
            DropReason::Minority => &mut self.minority,
        };
        *counter += 1;
    }

    /// Returns how many packets were dropped.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.malformed
            + self.forged
            + self.foreign
            + self.unknown_senders
            + self.unexpected
            + self.wrong_values
            + self.duplicates
            + self.stale
            + self.future
            + self.minority
    }
}
