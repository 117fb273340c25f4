//! The faults that a schedule can have.

use thiserror::Error;

use crate::{
    group::Rank,
    schedule::{Network, Round},
};

/// The largest group that is checked: for larger ones, the sets of members take too much memory.
pub const SIZE_MAX: u32 = 4096;

/// The reason why a schedule is not a barrier.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// The group is too large to be checked.
    #[error("{size} members are more than the {} that are checked", SIZE_MAX)]
    TooLarge {
        /// The size of the group.
        size: u32,
    },
    /// A message is for, or from, a rank that is not another member.
    #[error("{rank} names {other}, which is not another member of the group")]
    Outsider {
        /// The member with the step.
        rank: Rank,
        /// The rank that it names.
        other: Rank,
    },
    /// Two messages of a member have the same number.
    #[error("{rank} sends two messages with the number {}", .round.0)]
    SameRound {
        /// The sender.
        rank: Rank,
        /// The number.
        round: Round,
    },
    /// A member waits for a message that is not sent to it.
    #[error(
        "{receiver} waits for message {} of {sender} by the {network:?} network, which is never sent to it",
        .round.0
    )]
    NeverSent {
        /// The waiting member.
        receiver: Rank,
        /// The sender of the message.
        sender: Rank,
        /// The number of the message.
        round: Round,
        /// The network.
        network: Network,
    },
    /// A member waits twice for the same message.
    #[error("{receiver} waits twice for message {} of {sender}", .round.0)]
    AwaitedTwice {
        /// The waiting member.
        receiver: Rank,
        /// The sender of the message.
        sender: Rank,
        /// The number of the message.
        round: Round,
    },
    /// A message is sent to a member that does not wait for it: its loss would go unnoticed.
    #[error("{receiver} never waits for message {} of {sender}", .round.0)]
    NeverAwaited {
        /// The receiver.
        receiver: Rank,
        /// The sender.
        sender: Rank,
        /// The number of the message.
        round: Round,
    },
    /// Members wait for each other.
    #[error("{rank} and {others} others wait for ever")]
    Deadlock {
        /// One of them.
        rank: Rank,
        /// The number of the others.
        others: usize,
    },
    /// A member leaves too early.
    #[error("{rank} leaves before it has heard of {unheard}")]
    EarlyExit {
        /// The member that leaves.
        rank: Rank,
        /// A member that may not have entered by then.
        unheard: Rank,
    },
}
