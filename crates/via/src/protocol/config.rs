//! The configuration of an engine, and its errors.

use std::time::Duration;

use thiserror::Error;
use vigie_detect::setters;

use super::{
    area::{AREA_BYTES_MAX, longest_frame},
    credits::DESCRIPTORS_MAX,
};
use crate::vi::{DisconnectReason, Reliability, ViError};

/// The shortest frame limit that a configuration may set, in bytes.
pub(super) const FRAME_BYTES_MIN: u32 = 128;

/// Returns what to do about a missing rank, if that is known.
const fn remedy(size: u32) -> &'static str {
    if size == 1 {
        ": this process runs alone; start all ranks with `vigie-run -n N PROGRAM`"
    } else {
        ""
    }
}

/// The most announced messages that a configuration may allow.
pub(super) const ANNOUNCED_MAX: u32 = 1 << 20;

/// The configuration of an engine. The two ends of a connection may differ in everything but the reliability. An engine refuses a value
/// outside its range with [`EngineError::Config`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "an engine takes it"]
pub struct EngineConfig {
    pub(super) area_bytes: u32,
    pub(super) descriptors: u32,
    pub(super) control_entries: u32,
    pub(super) frame_bytes_max: u32,
    pub(super) window_bytes: u32,
    pub(super) unexpected_bytes_max: u64,
    pub(super) unexpected_messages_max: u32,
    pub(super) announced_messages_max: u32,
    pub(super) held_bytes_max: u64,
    pub(super) buffered_bytes_max: u64,
    pub(super) staging_frames: u32,
    pub(super) cache_bytes_max: u64,
    pub(super) cache_entries_max: u32,
    pub(super) reliability: Reliability,
    pub(super) retransmit_after: Duration,
    pub(super) give_up_after: Duration,
    pub(crate) linger: Duration,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            area_bytes: 512 << 10,
            descriptors: 512,
            control_entries: 64,
            frame_bytes_max: (32 << 10) + 64,
            window_bytes: 128 << 10,
            unexpected_bytes_max: 4 << 20,
            unexpected_messages_max: 1 << 18,
            announced_messages_max: 1 << 18,
            held_bytes_max: 16 << 20,
            buffered_bytes_max: 1 << 20,
            staging_frames: 16,
            cache_bytes_max: 64 << 20,
            cache_entries_max: 64,
            reliability: Reliability::ReliableDelivery,
            retransmit_after: Duration::from_millis(2),
            give_up_after: Duration::from_secs(30),
            linger: Duration::from_secs(5),
        }
    }
}

impl EngineConfig {
    setters! {
        /// Sets the RDMA area for each peer, in bytes: a multiple of 64, from 4 KiB to 64 MiB. Default 512 KiB.
        area_bytes: u32,

        /// Sets how many receive descriptors are preposted for each peer: more than `control_entries` plus 8. Default 512, or as many as the
        /// provider holds.
        descriptors: u32,

        /// Sets the entries of the ring for control messages of each peer, 4 to 1024. Default 64.
        control_entries: u32,

        /// Sets the longest frame, in bytes with its envelope: from 128 to 48 less than half the area. Longer messages are sent in several,
        /// so that both sides copy at the same time. Default 32 KiB and 64 bytes. Over unreliable VIs, frames are no longer than what the
        /// provider carries in [one packet](crate::vi::NicAttributes::unreliable_bytes).
        frame_bytes_max: u32,

        /// Sets the bytes of a message that are sent before a receive matches it, and that are under way to a receive: at least 128. Default
        /// 128 KiB.
        window_bytes: u32,

        /// Sets the bytes of one peer's messages that are kept here before receives match them. Beyond, the peer is told to pause; messages
        /// under way then are accepted too. A peer that has paused still announces each message, and sends its bytes when a receive
        /// matches it, or when half of what is kept has been received. Default 4 MiB.
        unexpected_bytes_max: u64,

        /// Sets the number of such messages beyond which their peer is told to pause, zero or more. Each takes 64 bytes of heap beside its
        /// own, and some 300 if it has not wholly arrived. Default 262 144.
        unexpected_messages_max: u32,

        /// Sets the number of messages of one peer that may be announced and not matched, 1 to 1 048 576: some 300 bytes of heap each. Beyond,
        /// its sends fail with [`SendError::TooManyUnmatched`]. Default 262 144.
        announced_messages_max: u32,

        /// Sets the bytes of announced messages in standard mode that are copied, so that the send is done although its message waits here.
        /// Beyond, such sends wait for their receives. Only messages that fit into a frame are copied. Default 16 MiB.
        held_bytes_max: u64,

        /// Sets the buffer for sends in buffered mode, in bytes. Default 1 MiB.
        buffered_bytes_max: u64,

        /// Sets the number of registered buffers for frames that are too long to be sent inline, at least 1. Default 16.
        staging_frames: u32,

        /// Sets the bytes of pooled buffers and of registrations of users' memory that are kept for reuse, beside those in use. Default
        /// 64 MiB: the longest messages that were measured.
        cache_bytes_max: u64,

        /// Sets the same limit as `cache_bytes_max` as a number of registrations. Default 64, each of which may take a descriptor.
        cache_entries_max: u32,

        /// Sets the reliability asked of the VIs. Over [`Reliability::Unreliable`] the engine does the error control itself. Default
        /// [`Reliability::ReliableDelivery`].
        reliability: Reliability,

        /// Sets the first time-out after which a frame is retransmitted over an unreliable VI; it doubles, up to 64 times the first. Default
        /// 2 ms.
        retransmit_after: Duration,

        /// Sets the time without an answer after which a peer over an unreliable VI has failed. Default 30 s.
        give_up_after: Duration,

        /// Sets how long an endpoint that was dropped goes on handing over what was sent: see
        /// [`Endpoint`](crate::message::Endpoint). Default 5 s; zero drops what has not left.
        linger: Duration,
    }

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
        if !(1..=ANNOUNCED_MAX).contains(&self.announced_messages_max) {
            return bad("announced_messages_max: from 1 to 1048576");
        }
        Ok(())
    }
}

/// The reason why an engine or a connection of it could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A value of [`EngineConfig`] is out of its range.
    #[error("the configuration is invalid: {what}")]
    Config {
        /// The requirement.
        what: &'static str,
    },
    /// The provider cannot carry the protocol.
    #[error("the provider {provider} cannot carry messages: {what}")]
    UnsupportedProvider {
        /// The provider.
        provider: &'static str,
        /// The missing capability.
        what: &'static str,
    },
    /// There is no such rank, or it is this one.
    #[error("there is no rank {rank} among {size}, or it is this one{}", remedy(*size))]
    NoSuchRank {
        /// The rank that was asked for.
        rank: u32,
        /// The number of ranks.
        size: u32,
    },
    /// The peer's greeting is of another protocol or version, or of another rank.
    #[error("the greeting of rank {rank} is invalid: {what}")]
    Greeting {
        /// The rank it should be from.
        rank: u32,
        /// The defect of the greeting.
        what: &'static str,
    },
    /// The provider's error.
    #[error(transparent)]
    Vi(#[from] ViError),
}

/// The reason why a send could not begin. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SendError {
    /// No such rank.
    #[error("there is no rank {rank} among {size}{}", remedy(*size))]
    NoSuchRank {
        /// The rank that was asked for.
        rank: u32,
        /// The number of ranks.
        size: u32,
    },
    /// There is no connection to that rank yet.
    #[error("rank {rank} is not connected yet")]
    NotConnected {
        /// The rank.
        rank: u32,
    },
    /// That rank has failed, or has disconnected in order.
    #[error("rank {rank} is gone: {reason}")]
    PeerFailed {
        /// The rank.
        rank: u32,
        /// The reason.
        reason: DisconnectReason,
    },
    /// The buffer for buffered sends does not have enough room.
    #[error(
        "{needed} bytes do not fit into the {free} that the buffer for buffered sends has left: give the communicator a larger one \
         (`attach_buffer`), raise `EngineConfig::buffered_bytes_max`, or wait until receivers take messages"
    )]
    BufferFull {
        /// The message's length, in bytes.
        needed: u64,
        /// The free bytes.
        free: u64,
    },
    /// The rank has not received so many earlier messages that no more are announced to it.
    #[error(
        "rank {rank} has not received {max} earlier messages: receive some, or raise \
         `EngineConfig::announced_messages_max`"
    )]
    TooManyUnmatched {
        /// The rank.
        rank: u32,
        /// The most messages that may wait for its receives.
        max: u32,
    },
    /// The piece is not inside the region.
    #[error("{length} bytes at {offset} are not inside the registered memory")]
    OutOfBounds {
        /// The beginning of the piece, in bytes.
        offset: u64,
        /// Its length, in bytes.
        length: u64,
    },
    /// No memory is left for a loan or a buffer.
    #[error("no memory is left for the loan or the buffer")]
    OutOfMemory,
}

/// The reason why a request that had begun failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The rank that it waited for has failed, or has disconnected in order.
    #[error("rank {rank} is gone: {reason}")]
    PeerFailed {
        /// The rank.
        rank: u32,
        /// The reason.
        reason: DisconnectReason,
    },
    /// The sender abandoned the message before all of it was sent.
    #[error("rank {rank} abandoned the message before all of it was sent")]
    Aborted {
        /// The sender.
        rank: u32,
    },
    /// There is no such request: it has ended, and its result was returned.
    #[error("there is no such request: it has already ended")]
    Unknown,
    /// It was cancelled.
    #[error("the request was cancelled")]
    Cancelled,
    /// No such rank.
    #[error("there is no rank {rank} among {size}{}", remedy(*size))]
    NoSuchRank {
        /// The rank that was asked for.
        rank: u32,
        /// The number of ranks.
        size: u32,
    },
}
