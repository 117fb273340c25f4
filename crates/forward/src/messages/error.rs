//! The errors of messages.

use std::io;
use std::time::Duration;

use thiserror::Error;
use vigie_via::vi::{DisconnectReason, OutOfBounds, ViError};

/// The reason why messages are not forwarded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MessagesError {
    /// A limit of the configuration out of range.
    #[error("{what} is {value}: it must be {least} to {most}")]
    Limit {
        /// The name of the limit.
        what: &'static str,
        /// The value given.
        value: u64,
        /// The minimum.
        least: u64,
        /// The maximum.
        most: u64,
    },
    /// The algorithm needs whole messages, and this path does not provide them.
    #[error(
        "the algorithm needs the last byte of a message, so cut-through is impossible: use store-and-forward"
    )]
    WholeMessage,
    /// The host only forwards whole messages.
    #[error(
        "the host takes whole messages from its interface [fast-forward, §3.2]: only the interface can cut through"
    )]
    HostCutThrough,
    /// A forwarder on a detection server has no program.
    #[error(
        "a forwarder on a detection server cannot run a program: choose a path by the interface"
    )]
    NoProgram,
    /// Too many peers for one node.
    #[error("{count} peers, but a node has at most {most}: raise `peers_max`")]
    TooManyPeers {
        /// The number of peers that were given.
        count: usize,
        /// The limit.
        most: usize,
    },
    /// The peer is another program, another version, or configured otherwise.
    #[error("the peer does not fit: {0}")]
    Mismatch(&'static str),
    /// The next node refused the connection.
    #[error("no connection to the next node: {0}")]
    Refused(DisconnectReason),
    /// The connection to the next or the previous node has ended.
    #[error("the connection to the {node} is over: {reason}")]
    Lost {
        /// The node: the next or the previous one.
        node: &'static str,
        /// The cause.
        reason: DisconnectReason,
    },
    /// The forwarder cannot reach the destination, or not any more.
    #[error(
        "destination {destination} cannot be reached by the forwarder; what was on its way there is lost"
    )]
    Gone {
        /// The destination's number.
        destination: u32,
    },
    /// A message longer than the next node accepts.
    #[error(
        "a message of {bytes} bytes: the next node takes {most}; send it in parts, or raise `message_bytes_max` there (by the interface, store-and-forward, half of its packets must hold it)"
    )]
    TooLong {
        /// Its length in bytes.
        bytes: usize,
        /// The limit.
        most: u32,
    },
    /// No progress for too long.
    #[error(
        "no progress for {waited:?}: the next node or the sink is stalled, or the time-out is too short"
    )]
    Stalled {
        /// The time that it waited.
        waited: Duration,
    },
    /// The engine's or the program's thread has ended.
    #[error("the thread of the {0} ended before it was asked to")]
    ThreadEnded(&'static str),
    /// An error of the provider.
    #[error(transparent)]
    Vi(#[from] ViError),
    /// An error of the operating system.
    #[error("the engine's thread: {0}")]
    Io(#[from] io::Error),
    /// Memory that is shorter than requested: a bug in the provider.
    #[error("registered memory: {0}")]
    Memory(#[from] OutOfBounds),
}
