//! The error of a message that was not sent or received.

use std::fmt;

use thiserror::Error;
use vigie_detect::WaitError;

use crate::{
    protocol::{RequestError, SendError},
    vi::DisconnectReason,
};

/// The error of a message that was not sent or received: see [`kind`](Self::kind).
///
/// It is one word, so that the result of a send travels in registers. Through memory it would be read back by
/// wider loads than the stores that wrote it; such loads wait for all earlier stores, the last of which is
/// the message's own, to a cache line that the receiver's processor holds.
#[derive(Error)]
#[error(transparent)]
pub struct MessageError {
    kind: Box<MessageErrorKind>,
}

/// The reason why a message was not sent or received.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MessageErrorKind {
    /// The send could not begin; nothing was sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The request had begun and then failed.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The detection server ended.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// All contexts are in use: this endpoint has made 65 535 communicators.
    #[error("no context is left for another communicator: this endpoint has made 65535")]
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
    pub const fn failed_rank(&self) -> Option<(u32, DisconnectReason)> {
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
