//! Attempts to connect, callers that wait for an answer, and ends that are still announced.

use super::{
    congestion::{MILLISECOND, Nanos, RoundTrip},
    packet::CloseNotice,
};
use crate::{auth::TAG_BYTES, vi::Reliability};

/// The first retry interval for an unanswered packet. It doubles with each retry.
pub(super) const RETRY_MIN: Nanos = 20 * MILLISECOND;
pub(super) const RETRY_MAX: Nanos = 500 * MILLISECOND;

/// A caller that asks for a connection.
#[derive(Clone, Debug)]
pub(super) struct Caller<P> {
    pub(super) path: P,
    pub(super) nic: u64,
    /// Its name for the connection.
    pub(super) name: u64,
    pub(super) level: Reliability,
    pub(super) is_tagged: bool,
    pub(super) window: u16,
    pub(super) greeting: Vec<u8>,
    pub(super) expires_at: Nanos,
}

/// The retry schedule of a packet that is repeated until it is answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retry {
    pub(super) at: Nanos,
    pub(super) count: u32,
    since: Nanos,
}

impl Retry {
    pub(super) const fn new(now: Nanos) -> Self {
        Self { at: now + RETRY_MIN, count: 0, since: now }
    }

    pub(super) fn again(&mut self, now: Nanos) {
        self.count += 1;
        self.at = now + (RETRY_MIN << self.count.min(8)).min(RETRY_MAX);
    }

    /// Returns the round trip of an answer that arrives now, if it is unambiguous which packet it answers.
    pub(super) fn measured(&self, now: Nanos) -> Option<Nanos> {
        (self.count == 0).then(|| now.saturating_sub(self.since))
    }
}

/// The stage of a connection attempt.
#[derive(Clone, Debug)]
pub(super) enum ConnectAttempt<P> {
    /// This side calls.
    Calling(Box<OutgoingCall<P>>),
    /// This side waits for the same call from the other NIC.
    Meeting { nic: u64, discriminator: Vec<u8>, greeting: Vec<u8>, expires_at: Nanos },
    /// This side has answered, and waits for the caller to confirm. The connection exists.
    Answered { greeting: Vec<u8>, caller_greeting: Vec<u8>, expires_at: Nanos, retry: Retry },
}

#[derive(Clone, Debug)]
pub(super) struct OutgoingCall<P> {
    pub(super) path: P,
    pub(super) nic: u64,
    pub(super) name: u64,
    pub(super) cookie: Option<[u8; TAG_BYTES]>,
    pub(super) is_held: bool,
    pub(super) is_peer: bool,
    pub(super) discriminator: Vec<u8>,
    pub(super) greeting: Vec<u8>,
    pub(super) expires_at: Nanos,
    pub(super) retry: Retry,
    pub(super) round_trip: RoundTrip,
}

impl<P: Copy> ConnectAttempt<P> {
    /// Returns when to act if nothing arrives.
    pub(super) fn deadline(&self) -> Nanos {
        match self {
            Self::Calling(calling) => calling.retry.at.min(calling.expires_at),
            Self::Meeting { expires_at, .. } => *expires_at,
            Self::Answered { expires_at, retry, .. } => retry.at.min(*expires_at),
        }
    }

    pub(super) const fn expires_at(&self) -> Nanos {
        match self {
            Self::Calling(calling) => calling.expires_at,
            Self::Meeting { expires_at, .. } | Self::Answered { expires_at, .. } => *expires_at,
        }
    }

    /// Returns the path that this side calls, and the connection's name.
    pub(super) fn called(&self) -> Option<(P, u64)> {
        match self {
            Self::Calling(calling) => Some((calling.path, calling.name)),
            _ => None,
        }
    }
}

/// An end that the other side may not have heard of.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingClose<P> {
    pub(super) path: P,
    pub(super) over: CloseNotice,
    pub(super) tries: u32,
}
