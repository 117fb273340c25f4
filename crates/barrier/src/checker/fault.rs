//! What can be wrong with a schedule.

use thiserror::Error;

use crate::{
    group::Rank,
    schedule::{Network, Round},
};

/// Why a schedule is no barrier.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Fault {
    /// The group is too large to be checked.
    #[error("{size} members are more than the {} that are checked", super::SIZE_MAX)]
    TooLarge {
        /// Its members.
        size: u32,
    },
    /// A message is for, or from, somebody who is no other member.
    #[error("{rank} names {other}, which is no other member of the group")]
    Outsider {
        /// Whose steps.
        rank: Rank,
        /// Whom they name.
        other: Rank,
    },
    /// Two messages of a member have one number.
    #[error("{rank} sends two messages with the number {}", .round.0)]
    SameRound {
        /// The sender.
        rank: Rank,
        /// The number.
        round: Round,
    },
    /// A member waits for what nobody sends to it.
    #[error(
        "{receiver} waits for message {} of {sender} by the {network:?} network, which is never sent to it",
        .round.0
    )]
    NeverSent {
        /// Who waits.
        receiver: Rank,
        /// For whom.
        sender: Rank,
        /// For which of its messages.
        round: Round,
        /// By which network.
        network: Network,
    },
    /// A member waits twice for one message.
    #[error("{receiver} waits twice for message {} of {sender}", .round.0)]
    AwaitedTwice {
        /// Who waits.
        receiver: Rank,
        /// For whom.
        sender: Rank,
        /// For which of its messages.
        round: Round,
    },
    /// A message is sent to a member that does not wait for it: nobody would notice its loss.
    #[error("{receiver} never waits for message {} of {sender}", .round.0)]
    Unheard {
        /// To whom it is sent.
        receiver: Rank,
        /// Who sends it.
        sender: Rank,
        /// Which of its messages it is.
        round: Round,
    },
    /// Members wait for each other.
    #[error("{rank} and {others} others wait for ever")]
    Deadlock {
        /// One of them.
        rank: Rank,
        /// How many more there are.
        others: usize,
    },
    /// A member leaves too early.
    #[error("{rank} leaves before it has heard of {unheard}")]
    EarlyExit {
        /// Who leaves.
        rank: Rank,
        /// Who may not have entered by then.
        unheard: Rank,
    },
}
