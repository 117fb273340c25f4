//! The forwarding algorithm: the processing of each message in the node.

use std::fmt;
use std::time::Duration;

use vigie_detect::clock::monotonic_now;

use crate::model::Sees;

/// The length of a message's header in bytes: the input of an algorithm that [sees the header](Sees::Header), or the
/// whole message if it is shorter. The header is in the first packet.
pub const HEAD_BYTES: usize = 64;

/// The metadata of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    pub(super) source: u32,
    pub(super) destination: u32,
    pub(super) tag: u32,
    pub(super) length: u32,
}

impl Envelope {
    getters! {
        /// Returns the source's number, assigned by this forwarder.
        source: u32,

        /// Returns the destination's number, by which the forwarder finds the route.
        destination: u32,

        /// Returns the source's tag.
        tag: u32,
    }

    /// Changes the tag: the paper's identifier.
    pub const fn set_tag(&mut self, tag: u32) {
        self.tag = tag;
    }

    /// Returns the length of the message in bytes.
    #[must_use]
    pub const fn length(&self) -> u32 {
        self.length
    }
}

/// The algorithm's decision about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "it goes on, or it does not")]
pub enum MessageVerdict {
    /// It is forwarded.
    Forward,
    /// It is dropped; the drop is counted and reported in the source's final acknowledgement.
    Drop,
}

/// A forwarding algorithm.
///
/// # Implementing
/// It runs on the engine's thread (the paper's network processor) or on the program's (its host): the same code, so
/// that T_algoN and T_algoH differ only by the processors (on one machine not at all), and by artificial work on one of
/// them, as in [`Busy`].
///
/// # Contract
/// It does not block, and [`sees`](Self::sees) never changes. It may change bytes, but not their number.
pub trait Algorithm: Send + 'static {
    /// Returns what it must see of a message. Cut-through is possible unless that is everything.
    fn sees(&self) -> Sees;

    /// Processes one message. `bytes` is empty, the first [`HEAD_BYTES`], or everything, as [`sees`](Self::sees) says.
    fn run(&mut self, envelope: &mut Envelope, bytes: &mut [u8]) -> MessageVerdict;
}

/// The paper's Basic Forwarding Algorithm: only the route and the identifier change, which the engine does anyway.
///
/// # Source
/// [fast-forward, §3.4].
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Basic;

impl Algorithm for Basic {
    fn sees(&self) -> Sees {
        Sees::Nothing
    }

    fn run(&mut self, _: &mut Envelope, _: &mut [u8]) -> MessageVerdict {
        MessageVerdict::Forward
    }
}

/// The paper's Compute-Intensive Forwarding Algorithm: reads the header, computes for a while, and writes some bytes.
///
/// It really consumes processor time, measured by the clock.
///
/// # Source
/// [fast-forward, §3.4].
#[derive(Clone, Copy, Debug)]
pub struct Busy {
    time: Duration,
}

impl Busy {
    /// Creates an algorithm that computes for `time` on each message.
    #[must_use]
    pub const fn new(time: Duration) -> Self {
        Self { time }
    }
}

impl Algorithm for Busy {
    fn sees(&self) -> Sees {
        Sees::Header
    }

    fn run(&mut self, _: &mut Envelope, bytes: &mut [u8]) -> MessageVerdict {
        let end = monotonic_now() + self.time;
        let digest = |bytes: &[u8]| bytes.iter().fold(0_u8, |sum, byte| sum.rotate_left(1) ^ byte);
        let found = digest(bytes);
        while monotonic_now() < end {
            std::hint::black_box(digest(std::hint::black_box(bytes)));
        }
        if let Some(last) = bytes.last_mut() {
            *last = found;
        }
        MessageVerdict::Forward
    }
}

/// A closure as an algorithm: see [`algorithm_fn`].
pub struct AlgorithmFn<F> {
    sees: Sees,
    run: F,
}

/// Turns a closure into an algorithm.
///
/// ```
/// use vigie_forward::{Sees, messages::{MessageVerdict, algorithm_fn}};
///
/// let upper = algorithm_fn(Sees::Everything, |_, bytes: &mut [u8]| {
///     bytes.make_ascii_uppercase();
///     MessageVerdict::Forward
/// });
/// # let _ = upper;
/// ```
pub fn algorithm_fn<F>(sees: Sees, run: F) -> AlgorithmFn<F>
where
    F: FnMut(&mut Envelope, &mut [u8]) -> MessageVerdict + Send + 'static,
{
    AlgorithmFn { sees, run }
}

impl<F> Algorithm for AlgorithmFn<F>
where
    F: FnMut(&mut Envelope, &mut [u8]) -> MessageVerdict + Send + 'static,
{
    fn sees(&self) -> Sees {
        self.sees
    }

    fn run(&mut self, envelope: &mut Envelope, bytes: &mut [u8]) -> MessageVerdict {
        (self.run)(envelope, bytes)
    }
}

impl<F> fmt::Debug for AlgorithmFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlgorithmFn").field("sees", &self.sees).finish_non_exhaustive()
    }
}

/// Runs an algorithm on the part that it sees of a complete message.
pub(super) fn run_algorithm(
    algorithm: &mut dyn Algorithm,
    envelope: &mut Envelope,
    bytes: &mut [u8],
) -> MessageVerdict {
    let seen = match algorithm.sees() {
        Sees::Nothing => 0,
        Sees::Header => bytes.len().min(HEAD_BYTES),
        Sees::Everything => bytes.len(),
    };
    algorithm.run(envelope, &mut bytes[..seen])
}
