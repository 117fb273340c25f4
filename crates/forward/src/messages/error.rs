//! What can go wrong with messages.

use std::io;
use std::time::Duration;

use thiserror::Error;
use vigie_via::vi::{OutOfBounds, Reason, ViError};

/// Why messages do not get on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MessagesError {
    /// A limit of the configuration that cannot be.
    #[error("{what} is {value}: it must be {least} to {most}")]
    Limit {
        /// Of what.
        what: &'static str,
        /// What was given.
        value: u64,
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },
    /// The algorithm needs what this way of forwarding does not give.
    #[error(
        "the algorithm changes a message by its last byte, so that cut-through cannot be: forward store-and-forward"
    )]
    WholeMessage,
    /// The host forwards whole messages.
    #[error(
        "the host takes whole messages from its interface [fast-forward, §3.2]: cut-through is for the interface"
    )]
    HostCutThrough,
    /// Too many nodes for one.
    #[error("{count} peers, and one node has at most {most}: raise `peers_max`")]
    TooManyPeers {
        /// How many there would be.
        count: usize,
        /// How many may be.
        most: usize,
    },
    /// The peer is another program, another version, or configured otherwise.
    #[error("the peer does not fit: {0}")]
    Mismatch(&'static str),
    /// The next node did not take the connection.
    #[error("no connection to the next node: {0}")]
    Refused(Reason),
    /// The next node, or the one before, is gone.
    #[error("the connection to the {node} is over: {reason}")]
    Lost {
        /// Which.
        node: &'static str,
        /// Why.
        reason: Reason,
    },
    /// The forwarder cannot reach the destination, or cannot any more.
    #[error(
        "destination {destination} cannot be reached by the forwarder; what was on its way there is lost"
    )]
    Gone {
        /// Its number.
        destination: u32,
    },
    /// A message that the next node does not take.
    #[error(
        "a message of {bytes} bytes: the next node takes {most}; send it in parts, or raise `message_bytes_max` there (by the interface, store-and-forward, half of its packets must hold it)"
    )]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The most.
        most: u32,
    },
    /// Nothing moved for too long.
    #[error(
        "nothing moved for {waited:?}: the next node or the sink is stalled, or the time-out is too short for it"
    )]
    Stalled {
        /// How long.
        waited: Duration,
    },
    /// The engine's or the program's thread is no more.
    #[error("the thread of the {0} ended before it was asked to")]
    ThreadEnded(&'static str),
    /// The provider.
    #[error(transparent)]
    Vi(#[from] ViError),
    /// The system.
    #[error("the engine's thread: {0}")]
    Io(#[from] io::Error),
    /// Memory that is shorter than asked for: a fault of the provider.
    #[error("registered memory: {0}")]
    Memory(#[from] OutOfBounds),
}
