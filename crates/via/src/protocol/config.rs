//! What an engine can be told, and why it may not come about.

use std::time::Duration;

use thiserror::Error;

use super::{
    area::{AREA_BYTES_MAX, longest_frame},
    credits::DESCRIPTORS_MAX,
};
use crate::vi::{Reason, Reliability, ViError};

/// The shortest frames that a configuration may ask for, in bytes.
pub(super) const FRAME_BYTES_MIN: u32 = 128;

/// How an engine is set up. Both ends of a connection may differ in all but the reliability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The RDMA area for each peer, in bytes: a multiple of 64, from 4 KiB to 64 MiB. Default 512 KiB.
    pub area_bytes: u32,
    /// Receive descriptors that are preposted for each peer: more than `control_entries` and 8. Default 512,
    /// or what the provider holds.
    pub descriptors: u32,
    /// Entries of the ring for control messages of each peer, 4 to 1024. Default 64.
    pub control_entries: u32,
    /// The longest frame, in bytes with its envelope, at most 48 less than half the area: longer messages are sent in
    /// several, so that both sides copy at the same time. Default 32 KiB and 64 bytes. Over unreliable VIs frames are no
    /// longer than what the provider carries in [one packet](crate::vi::Attributes::unreliable_bytes).
    pub frame_bytes_max: u32,
    /// So much of a message is sent before a receive matched it, and so much is on its way to a receive
    /// that nobody polls, in bytes. Default 128 KiB.
    pub window_bytes: u32,
    /// Messages of one peer that no receive matched may take so much heap, in bytes, before the peer is told
    /// to pause; what is on its way then is taken too. Default 1 MiB.
    pub unexpected_bytes_max: u64,
    /// The buffer for sends in buffered mode, in bytes. Default 1 MiB.
    pub buffered_bytes_max: u64,
    /// Registered buffers for frames that are too long to be inline. Default 16.
    pub staging_frames: u32,
    /// Buffers of the pool and registrations of users' memory are kept for the next use up to so many bytes,
    /// beside what is in use. Default 64 MiB: the longest messages that were measured.
    pub cache_bytes_max: u64,
    /// As `cache_bytes_max`, in registrations. Default 64, each of which may take a descriptor.
    pub cache_entries_max: u32,
    /// What is asked of the VIs. Over [`Reliability::Unreliable`] the engine does the error control itself.
    pub reliability: Reliability,
    /// The first time-out after which a frame is sent again over an unreliable VI; it doubles up to 64 times.
    /// Default 2 ms.
    pub retransmit_after: Duration,
    /// A peer that has answered nothing for so long over an unreliable VI has failed. Default 30 s.
    pub give_up_after: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            area_bytes: 512 << 10,
            descriptors: 512,
            control_entries: 64,
            frame_bytes_max: (32 << 10) + 64,
            window_bytes: 128 << 10,
            unexpected_bytes_max: 1 << 20,
            buffered_bytes_max: 1 << 20,
            staging_frames: 16,
            cache_bytes_max: 64 << 20,
            cache_entries_max: 64,
            reliability: Reliability::ReliableDelivery,
            retransmit_after: Duration::from_millis(2),
            give_up_after: Duration::from_secs(30),
        }
    }
}

impl Config {
    pub(super) const fn is_unreliable(&self) -> bool {
        matches!(self.reliability, Reliability::Unreliable)
    }

    pub(super) fn check(&self) -> Result<(), EngineError> {
        let bad = |what| Err(EngineError::Config { what });
        if !(4096..=AREA_BYTES_MAX).contains(&self.area_bytes)
            || !self.area_bytes.is_multiple_of(64)
        {
            return bad("area_bytes: a multiple of 64 from 4 KiB to 64 MiB");
        }
        if !(FRAME_BYTES_MIN..=longest_frame(self.area_bytes)).contains(&self.frame_bytes_max) {
            return bad("frame_bytes_max: from 128 bytes to 48 less than half the area");
        }
        if !(4..=1024).contains(&self.control_entries) {
            return bad("control_entries: from 4 to 1024");
        }
        if self.descriptors < self.control_entries + 8 || self.descriptors > DESCRIPTORS_MAX {
            return bad("descriptors: at least 8 more than control_entries");
        }
        if self.staging_frames == 0 || self.window_bytes < 128 {
            return bad("staging_frames and window_bytes: at least 1 frame and 128 bytes");
        }
        Ok(())
    }
}

/// Why an engine or a connection of it could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A value of [`Config`] is out of its range.
    #[error("the configuration does not do: {what}")]
    Config {
        /// What it must be.
        what: &'static str,
    },
    /// The provider cannot carry the protocol.
    #[error("the provider {provider} does not do for messages: {what}")]
    Provider {
        /// Which.
        provider: &'static str,
        /// What it lacks.
        what: &'static str,
    },
    /// No such rank.
    #[error("there is no rank {rank} among {size}, or it is this one")]
    NoSuchRank {
        /// Which was asked for.
        rank: u32,
        /// How many there are.
        size: u32,
    },
    /// The peer's greeting is not one of this protocol and version, or of another rank.
    #[error("the greeting of rank {rank} does not do: {what}")]
    Greeting {
        /// Who it should be.
        rank: u32,
        /// What is wrong.
        what: &'static str,
    },
    /// The provider's error.
    #[error(transparent)]
    Vi(#[from] ViError),
}

/// Why a send could not begin. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SendError {
    /// No such rank.
    #[error("there is no rank {rank} among {size}")]
    NoSuchRank {
        /// Which was asked for.
        rank: u32,
        /// How many there are.
        size: u32,
    },
    /// There is no connection to that rank yet.
    #[error("rank {rank} is not connected yet")]
    NotConnected {
        /// Which.
        rank: u32,
    },
    /// That rank has failed, or has ended in order.
    #[error("rank {rank} is gone: {reason}")]
    PeerFailed {
        /// Which.
        rank: u32,
        /// Why.
        reason: Reason,
    },
    /// The buffer for sends in buffered mode is too full.
    #[error(
        "{needed} bytes do not fit into the {free} that the buffer for buffered sends has left"
    )]
    BufferFull {
        /// The message's length, in bytes.
        needed: u64,
        /// What is free, in bytes.
        free: u64,
    },
    /// The piece is not inside the region.
    #[error("{length} bytes at {offset} are not inside the registered memory")]
    OutOfBounds {
        /// Where it begins.
        offset: u64,
        /// Its length in bytes.
        length: u64,
    },
    /// No memory for a loan or a buffer.
    #[error("there is no memory for the loan or the buffer")]
    OutOfMemory,
}

/// Why a request that had begun did not end well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The rank that it waited for has failed, or has ended in order.
    #[error("rank {rank} is gone: {reason}")]
    PeerFailed {
        /// Which.
        rank: u32,
        /// Why.
        reason: Reason,
    },
    /// The sender gave the message up before all of it was sent.
    #[error("rank {rank} gave the message up while it was sent")]
    Aborted {
        /// The sender.
        rank: u32,
    },
    /// There is no such request: it has ended, and was told so.
    #[error("there is no such request: it has ended before")]
    Unknown,
    /// It was cancelled.
    #[error("the request was cancelled")]
    Cancelled,
    /// No such rank.
    #[error("there is no rank {rank}")]
    NoSuchRank {
        /// Which was asked for.
        rank: u32,
    },
}
