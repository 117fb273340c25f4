//! Why a message was not sent or received.

use thiserror::Error;
use vigie_detect::WaitError;

use crate::{
    protocol::{RequestError, SendError},
    vi::Reason,
};

/// Why a message was not sent or received.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MessageError {
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
    /// Returns the rank that failed, if that is why.
    #[must_use]
    pub const fn failed_rank(&self) -> Option<(u32, Reason)> {
        match self {
            Self::Send(SendError::PeerFailed { rank, reason })
            | Self::Request(RequestError::PeerFailed { rank, reason }) => Some((*rank, *reason)),
            _ => None,
        }
    }
}
