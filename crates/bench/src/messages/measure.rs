//! The kinds of measurements.

use serde::{Deserialize, Serialize};

/// A measure: what an operation of it is, and how many messages that makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Measure {
    /// A message of this many bytes goes there and back.
    Latency {
        /// Bytes of a message.
        bytes: u32,
    },
    /// A window of messages is sent before one byte comes back.
    Window {
        /// Bytes of a message.
        bytes: u32,
        /// Messages per answer.
        window: u32,
    },
    /// As [`Window`](Self::Window), by requests: all sends begin before the first is waited for, and so do all receives.
    Requests {
        /// Bytes of a message.
        bytes: u32,
        /// Messages per answer.
        window: u32,
    },
    /// As [`Window`](Self::Window), but the messages have arrived before the first is received, and are received from the last to the
    /// first, by their tags.
    Unexpected {
        /// Bytes of a message.
        bytes: u32,
        /// Messages per answer.
        window: u32,
    },
    /// As [`Unexpected`](Self::Unexpected), received from the first to the last.
    Backlog {
        /// Bytes of a message.
        bytes: u32,
        /// Messages per answer.
        window: u32,
    },
    /// As [`Latency`](Self::Latency), by receives from any source.
    Any {
        /// Bytes of a message.
        bytes: u32,
    },
    /// As [`Latency`](Self::Latency), by sends that complete when they are matched.
    Synchronous {
        /// Bytes of a message.
        bytes: u32,
    },
    /// As [`Latency`](Self::Latency), in buffers that the system lends, without copies.
    Loaned {
        /// Bytes of a message.
        bytes: u32,
    },
    /// As [`Latency`](Self::Latency), after a pause that is long enough to fall asleep.
    Waiting {
        /// Bytes of a message.
        bytes: u32,
    },
    /// A message of this many bytes to a rank that has posted its receive and computes, without a call, until 2 ms have
    /// passed. What counts is the time from then on until an answer has come.
    BusyReceiver {
        /// Bytes of a message.
        bytes: u32,
    },
    /// The same, where the sender computes once it has begun its send, and the receiver waits.
    BusySender {
        /// Bytes of a message.
        bytes: u32,
    },
    /// No operation at all: the others wait until the budget is spent.
    Quiet,
    /// A token of 8 bytes goes once around all ranks.
    Ring,
    /// Each rank sends 8 bytes to each other one, and receives from each: a round.
    AllToAll,
    /// All other ranks send 8 bytes to rank 0, which then answers each: a round.
    ManyToOne,
    /// As [`AllToAll`](Self::AllToAll), where rank 0 comes late, so that all others wait for it.
    LateRound,
}

impl Measure {
    /// Bytes of a token.
    pub(crate) const TOKEN_BYTES: u32 = 8;

    /// The measures of more ranks than cores.
    pub(crate) const CROWDS: [Self; 4] =
        [Self::Ring, Self::AllToAll, Self::ManyToOne, Self::LateRound];

    /// The names of all cases.
    pub(crate) const CASES: [&'static str; 16] = [
        "latency",
        "window",
        "requests",
        "unexpected",
        "backlog",
        "any",
        "synchronous",
        "loaned",
        "waiting",
        "busyreceiver",
        "busysender",
        "quiet",
        "ring",
        "alltoall",
        "manytoone",
        "lateround",
    ];

    /// Returns the name of the case in rows.
    pub(crate) const fn case(self) -> &'static str {
        match self {
            Self::Latency { .. } => "latency",
            Self::Window { .. } => "window",
            Self::Requests { .. } => "requests",
            Self::Unexpected { .. } => "unexpected",
            Self::Backlog { .. } => "backlog",
            Self::Any { .. } => "any",
            Self::Synchronous { .. } => "synchronous",
            Self::Loaned { .. } => "loaned",
            Self::Waiting { .. } => "waiting",
            Self::BusyReceiver { .. } => "busyreceiver",
            Self::BusySender { .. } => "busysender",
            Self::Quiet => "quiet",
            Self::Ring => "ring",
            Self::AllToAll => "alltoall",
            Self::ManyToOne => "manytoone",
            Self::LateRound => "lateround",
        }
    }

    /// Returns the bytes of a message.
    pub(crate) const fn bytes(self) -> u32 {
        match self {
            Self::Latency { bytes }
            | Self::Window { bytes, .. }
            | Self::Requests { bytes, .. }
            | Self::Unexpected { bytes, .. }
            | Self::Backlog { bytes, .. }
            | Self::Any { bytes }
            | Self::Synchronous { bytes }
            | Self::Loaned { bytes }
            | Self::Waiting { bytes }
            | Self::BusyReceiver { bytes }
            | Self::BusySender { bytes } => bytes,
            _ => Self::TOKEN_BYTES,
        }
    }

    /// Tells whether this is a latency, or a window of messages.
    pub(crate) const fn is_plain(self) -> bool {
        matches!(self, Self::Latency { .. } | Self::Window { .. })
    }

    /// Tells whether all ranks take part in each operation.
    pub(crate) const fn is_round(self) -> bool {
        matches!(self, Self::AllToAll | Self::ManyToOne | Self::LateRound)
    }

    /// Tells whether rank 0 rests before each operation, in which the others may fall asleep.
    pub(crate) const fn has_rests(self) -> bool {
        matches!(self, Self::Waiting { .. } | Self::LateRound)
    }

    /// Tells whether a rank computes in each operation, for [`REST`](super::keys::REST), which does not count.
    pub(crate) const fn is_busy(self) -> bool {
        matches!(self, Self::BusyReceiver { .. } | Self::BusySender { .. })
    }

    /// Tells whether a system that can only send and receive in order has this.
    pub(crate) const fn is_blocking(self) -> bool {
        self.is_plain() || matches!(self, Self::Waiting { .. } | Self::Quiet | Self::Ring)
    }

    /// Returns how many messages follow each other before one comes back.
    pub(crate) const fn window(self) -> u32 {
        match self {
            Self::Window { window, .. }
            | Self::Requests { window, .. }
            | Self::Unexpected { window, .. }
            | Self::Backlog { window, .. } => window,
            _ => 1,
        }
    }

    /// Returns how many messages' times an operation holds among `ranks`: the time of one is the
    /// operation's by this.
    pub(crate) const fn messages(self, ranks: u32) -> u32 {
        match self {
            Self::Ring => ranks,
            // The time of a round is what counts.
            Self::Quiet => 1,
            _ if self.is_round() || self.is_busy() => 1,
            _ if self.window() > 1 => self.window(),
            _ => 2,
        }
    }

    /// Returns the word by which other programs are told: `case:bytes:window`.
    pub(crate) fn word(self) -> String {
        format!("{}:{}:{}", self.case(), self.bytes(), self.window())
    }
}
