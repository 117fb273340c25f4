//! Why a message was not sent or received.

use std::fmt;

use thiserror::Error;
use vigie_detect::WaitError;

use crate::{
    protocol::{RequestError, SendError},
    vi::Reason,
};

/// Why a message was not sent or received: see [`kind`](Self::kind).
///
/// One word, so that the result of a send travels in registers. Through memory it would be read back
/// by wider loads than it was written with, which wait until all stores before them are done; and the
/// last one before is that of the message, whose cache line the receiver's processor has.
#[derive(Error)]
#[error(transparent)]
pub struct MessageError {
    kind: Box<MessageErrorKind>,
}

/// Why a message was not sent or received.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MessageErrorKind {
    /// The send could not begin; nothing was sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The request had begun, and failed.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The detection server ended.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// All contexts are in use: 65 535 communicators of one endpoint were made.
    #[error("no context is left for another communicator: 65535 were made of this endpoint")]
    NoContext,
}

impl MessageError {
    /// Returns what happened.
    #[must_use]
    pub const fn kind(&self) -> &MessageErrorKind {
        &self.kind
    }

    /// Returns the rank that failed, if that is why.
    #[must_use]
    pub const fn failed_rank(&self) -> Option<(u32, Reason)> {
        match self.kind() {
            MessageErrorKind::Send(SendError::PeerFailed { rank, reason })
            | MessageErrorKind::Request(RequestError::PeerFailed { rank, reason }) => {
                Some((*rank, *reason))
            }
            _ => None,
        }
    }
}

impl<E: Into<MessageErrorKind>> From<E> for MessageError {
    #[cold]
    fn from(error: E) -> Self {
        Self { kind: Box::new(error.into()) }
    }
}

impl fmt::Debug for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)
    }
}
