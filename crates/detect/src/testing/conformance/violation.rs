//! The suite's report when a detector breaks its contract.

use std::{error::Error, fmt};

use super::SetupError;
use crate::{clock::Instant, error::WaitError};

/// A rule of the [contract](crate::Detector#contract), by its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// An event from before the request is reported.
    Before = 2,
    /// An event between arming and sleep announces itself.
    Announced = 3,
    /// Each event once, to one request.
    Once = 4,
    /// A cancelled request is forgotten, and disturbs no other.
    Cancelled = 5,
    /// Memory in flight is not freed.
    InFlight = 6,
    /// A poll with nothing pending is harmless.
    Idle = 7,
    /// A deadline is announced in time and kept.
    Deadline = 8,
    /// The events of a stream come in order, and none is skipped when the waiter's queue is full.
    Stream = 9,
    /// The end of the server ends all requests.
    Shutdown = 10,
}

impl Rule {
    /// Returns the rule's number in the contract.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {} of `Detector`", self.number())
    }
}

/// The place where a violation was seen, and the seed that shows it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct At {
    /// The case of the suite.
    pub case: &'static str,
    /// The host: `virtual`, `real` or `thread`.
    pub host: &'static str,
    /// The seed of all randomness.
    pub seed: u64,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { case, host, seed } = self;
        write!(f, "in case `{case}` on the {host} host with seed {seed}; replay: SIM_SEED={seed}")
    }
}

/// A violation of the contract by a detector.
#[derive(Debug)]
#[non_exhaustive]
pub enum Violation {
    /// An event happened, and its request did not receive it.
    EventLost {
        /// The rule.
        rule: Rule,
        /// The number of the request.
        request: usize,
        /// A description of what was seen instead.
        saw: String,
        /// The place.
        at: At,
    },
    /// A request received an event before any that it could receive had happened.
    Spurious {
        /// The number of the request.
        request: usize,
        /// A description of what was seen.
        saw: String,
        /// The place.
        at: At,
    },
    /// An event was delivered twice.
    Twice {
        /// The number of the event.
        event: usize,
        /// The number of the request that received it again.
        request: usize,
        /// The place.
        at: At,
    },
    /// A request received another request's event.
    Misdelivered {
        /// The rule.
        rule: Rule,
        /// The number of the request.
        request: usize,
        /// The number of the event.
        event: usize,
        /// The place.
        at: At,
    },
    /// The events of a stream came in a different order than they happened.
    OutOfOrder {
        /// The number of the event that was due.
        expected: usize,
        /// The number of the event that came.
        found: usize,
        /// The place.
        at: At,
    },
    /// Memory was freed while the kernel or a device could still write to it.
    FreedInFlight {
        /// The number of requests.
        count: usize,
        /// The place.
        at: At,
    },
    /// Ended requests were never freed.
    Lingering {
        /// The number of requests.
        live: usize,
        /// The place.
        at: At,
    },
    /// A timed event came at the wrong time.
    DeadlineMissed {
        /// The number of the request.
        request: usize,
        /// The time at which it was due.
        due: Instant,
        /// A description of what was seen.
        saw: String,
        /// The place.
        at: At,
    },
    /// Without an event, the detector was [ready](crate::ArmOutcome::Ready) at every arming: it keeps a core busy.
    NeverSleeps {
        /// The place.
        at: At,
    },
    /// A request outlived the server.
    NotEnded {
        /// The number of the request.
        request: usize,
        /// A description of what was seen.
        saw: String,
        /// The place.
        at: At,
    },
    /// A callback panicked.
    Panicked {
        /// The name of the callback.
        callback: &'static str,
        /// The panic's message.
        message: String,
        /// The place.
        at: At,
    },
    /// A request ended with an error although nothing was wrong.
    Failed {
        /// The number of the request.
        request: usize,
        /// The error.
        error: WaitError,
        /// The place.
        at: At,
    },
    /// The same seed led to two different runs.
    Nondeterministic {
        /// The hash of the first trace.
        first: u64,
        /// The hash of the second trace.
        second: u64,
        /// The place.
        at: At,
    },
    /// The harness could not be created; this says nothing about the detector.
    Setup {
        /// The factory's error.
        error: SetupError,
        /// The place.
        at: At,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EventLost { rule, request, saw, at } => {
                write!(f, "{rule}: request {request} did not get its event: {saw} ({at})")
            }
            Self::Spurious { request, saw, at } => write!(
                f,
                "{}: request {request} got an event that has not happened: {saw} ({at})",
                Rule::Once
            ),
            Self::Twice { event, request, at } => write!(
                f,
                "{}: event {event} was delivered a second time, to request {request} ({at})",
                Rule::Once
            ),
            Self::Misdelivered { rule, request, event, at } => write!(
                f,
                "{rule}: request {request} got event {event}, which is for another ({at})"
            ),
            Self::OutOfOrder { expected, found, at } => write!(
                f,
                "{}: event {found} came where event {expected} was due ({at})",
                Rule::Stream
            ),
            Self::FreedInFlight { count, at } => write!(
                f,
                "{}: the memory of {count} requests was freed while in flight ({at})",
                Rule::InFlight
            ),
            Self::Lingering { live, at } => write!(
                f,
                "{}: {live} requests still hold memory although all are over ({at})",
                Rule::Cancelled
            ),
            Self::DeadlineMissed { request, due, saw, at } => {
                write!(f, "{}: request {request} was due at {due:?}: {saw} ({at})", Rule::Deadline)
            }
            Self::NeverSleeps { at } => write!(
                f,
                "{}: `arm` always returns `Ready`, although no event has happened: the host never sleeps ({at})",
                Rule::Announced
            ),
            Self::NotEnded { request, saw, at } => write!(
                f,
                "{}: request {request} did not end with the server: {saw} ({at})",
                Rule::Shutdown
            ),
            Self::Panicked { callback, message, at } => {
                write!(f, "`{callback}` panicked: {message} ({at})")
            }
            Self::Failed { request, at, .. } => write!(f, "request {request} failed ({at})"),
            Self::Nondeterministic { first, second, at } => {
                write!(f, "two runs of one seed left the traces {first:#x} and {second:#x} ({at})")
            }
            Self::Setup { error, at } => {
                write!(f, "the harness could not be created: {error} ({at})")
            }
        }
    }
}

impl Error for Violation {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Failed { error, .. } => Some(error),
            Self::Setup { error, .. } => error.source(),
            _ => None,
        }
    }
}

impl Violation {
    /// Returns the rule that was broken, if the contract numbers it.
    #[must_use]
    pub const fn rule(&self) -> Option<Rule> {
        Some(match self {
            Self::EventLost { rule, .. } | Self::Misdelivered { rule, .. } => *rule,
            Self::Spurious { .. } | Self::Twice { .. } => Rule::Once,
            Self::OutOfOrder { .. } => Rule::Stream,
            Self::FreedInFlight { .. } => Rule::InFlight,
            Self::Lingering { .. } => Rule::Cancelled,
            Self::DeadlineMissed { .. } => Rule::Deadline,
            Self::NeverSleeps { .. } => Rule::Announced,
            Self::NotEnded { .. } => Rule::Shutdown,
            Self::Panicked { .. }
            | Self::Failed { .. }
            | Self::Nondeterministic { .. }
            | Self::Setup { .. } => return None,
        })
    }

    /// Returns where it was seen.
    #[must_use]
    pub const fn at(&self) -> At {
        match self {
            Self::EventLost { at, .. }
            | Self::Spurious { at, .. }
            | Self::Twice { at, .. }
            | Self::Misdelivered { at, .. }
            | Self::OutOfOrder { at, .. }
            | Self::FreedInFlight { at, .. }
            | Self::Lingering { at, .. }
            | Self::DeadlineMissed { at, .. }
            | Self::NeverSleeps { at }
            | Self::NotEnded { at, .. }
            | Self::Panicked { at, .. }
            | Self::Failed { at, .. }
            | Self::Nondeterministic { at, .. }
            | Self::Setup { at, .. } => *at,
        }
    }
}
