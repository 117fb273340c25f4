//! The forwarding algorithm: what is done to each message in the node.

use std::fmt;
use std::time::Duration;

use vigie_detect::clock::monotonic_now;

use crate::model::Sees;

/// How many bytes of a message are its header: what an algorithm that [sees the header](Sees::Header) gets, or the
/// whole message if it is shorter. They are in the first packet.
pub const HEAD_BYTES: usize = 64;

/// What is known of a message besides its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    pub(super) source: u32,
    pub(super) destination: u32,
    pub(super) tag: u32,
    pub(super) length: u32,
}

impl Envelope {
    /// Returns the source's number, as this forwarder gives it out.
    #[must_use]
    pub const fn source(&self) -> u32 {
        self.source
    }

    /// Returns the destination's number, by which the forwarder finds the route.
    #[must_use]
    pub const fn destination(&self) -> u32 {
        self.destination
    }

    /// Returns the source's tag.
    #[must_use]
    pub const fn tag(&self) -> u32 {
        self.tag
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

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "it goes on, or it does not")]
pub enum Fate {
    /// It goes on.
    Forward,
    /// It is dropped; this is counted, and the source's final acknowledgement says so.
    Drop,
}

/// A forwarding algorithm.
///
/// # Implementing
/// It runs on the thread of the engine (the paper's network processor) or of the program (its host): the same code, so that
/// T_algoN and T_algoH differ by what the processors differ, which on one machine is nothing, and by what it charges
/// itself on one of them, as [`Busy`] does.
///
/// # Contract
/// It does not block, and [`sees`](Self::sees) never changes. It may change bytes, but not their number.
pub trait Work: Send + 'static {
    /// Returns what it must have seen of a message: cut-through is possible unless that is everything.
    fn sees(&self) -> Sees;

    /// Does its work on one message. `bytes`: nothing, the first [`HEAD_BYTES`], or everything, as
    /// [`sees`](Self::sees) says.
    fn run(&mut self, envelope: &mut Envelope, bytes: &mut [u8]) -> Fate;
}

/// The paper's Basic Forwarding Algorithm: only the route and the identifier change, which the engine does in any case.
///
/// # Source
/// [fast-forward, §3.4].
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Basic;

impl Work for Basic {
    fn sees(&self) -> Sees {
        Sees::Nothing
    }

    fn run(&mut self, _: &mut Envelope, _: &mut [u8]) -> Fate {
        Fate::Forward
    }
}

/// The paper's Compute-Intensive Forwarding Algorithm: reads the header, computes for a while, writes some bytes back.
///
/// The time is processor time that is really spent, by the clock.
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

impl Work for Busy {
    fn sees(&self) -> Sees {
        Sees::Header
    }

    fn run(&mut self, _: &mut Envelope, bytes: &mut [u8]) -> Fate {
        let end = monotonic_now() + self.time;
        let digest = |bytes: &[u8]| bytes.iter().fold(0_u8, |sum, byte| sum.rotate_left(1) ^ byte);
        let found = digest(bytes);
        while monotonic_now() < end {
            std::hint::black_box(digest(std::hint::black_box(bytes)));
        }
        if let Some(last) = bytes.last_mut() {
            *last = found;
        }
        Fate::Forward
    }
}

/// A closure as an algorithm: see [`closure`].
pub struct Closure<F> {
    sees: Sees,
    run: F,
}

/// Makes an algorithm of a closure.
///
/// ```
/// use vigie_forward::{Sees, messages::{Fate, closure}};
///
/// let upper = closure(Sees::Everything, |_, bytes: &mut [u8]| {
///     bytes.make_ascii_uppercase();
///     Fate::Forward
/// });
/// # let _ = upper;
/// ```
pub fn closure<F>(sees: Sees, run: F) -> Closure<F>
where
    F: FnMut(&mut Envelope, &mut [u8]) -> Fate + Send + 'static,
{
    Closure { sees, run }
}

impl<F> Work for Closure<F>
where
    F: FnMut(&mut Envelope, &mut [u8]) -> Fate + Send + 'static,
{
    fn sees(&self) -> Sees {
        self.sees
    }

    fn run(&mut self, envelope: &mut Envelope, bytes: &mut [u8]) -> Fate {
        (self.run)(envelope, bytes)
    }
}

impl<F> fmt::Debug for Closure<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Closure").field("sees", &self.sees).finish_non_exhaustive()
    }
}

/// Runs an algorithm on what it sees of a message whose bytes are all there.
pub(super) fn run_on(work: &mut dyn Work, envelope: &mut Envelope, bytes: &mut [u8]) -> Fate {
    let seen = match work.sees() {
        Sees::Nothing => 0,
        Sees::Header => bytes.len().min(HEAD_BYTES),
        Sees::Everything => bytes.len(),
    };
    work.run(envelope, &mut bytes[..seen])
}
