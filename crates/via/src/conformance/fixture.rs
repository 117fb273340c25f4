//! The implementation under test, and what the suite may expect of it.

use std::{error::Error, ops::Range, time::Duration};

use vigie_detect::Instant;

use crate::vi::{Provider, Reliability};

/// The error of a fixture.
pub type SetupError = Box<dyn Error + Send + Sync>;

/// The implementation under test: NICs in one process, and time.
///
/// Each case starts with a fixture of its own.
pub trait Fixture {
    /// The provider under test.
    type Nic: Provider;

    /// Makes a NIC that reaches those made before.
    ///
    /// # Errors
    /// Any error; the suite then ends.
    fn nic(&mut self) -> Result<Self::Nic, SetupError>;

    /// Returns the time on the clock used for deadlines.
    fn now(&self) -> Instant;

    /// Lets a little time pass: a step of a simulation, a moment of a real clock. Returns `false` once
    /// nothing more can happen before `until`, or `until` is reached. Between calls, the suite calls
    /// [`Provider::progress`] of all NICs.
    fn pass(&mut self, until: Instant) -> bool;

    /// Returns what the suite may expect. Default [`Profile::new`].
    fn profile(&self) -> Profile {
        Profile::new()
    }
}

/// The properties that the suite may expect of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a profile says something only to the suite"]
pub struct Profile {
    pub(super) timeout: Duration,
    pub(super) calm: Duration,
    pub(super) notice: Duration,
    pub(super) transfer_max: u64,
    pub(super) loses: bool,
    pub(super) seeds: Range<u64>,
    pub(super) level: Option<Reliability>,
}

impl Profile {
    /// Returns the default profile: 10 s of timeout, 20 ms of calm, 5 ms of notice, transfers up to 16
    /// MiB, no losses, four walks.
    #[expect(clippy::new_without_default, reason = "a profile is stated on purpose")]
    pub const fn new() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            calm: Duration::from_millis(20),
            notice: Duration::from_millis(5),
            transfer_max: 16 << 20,
            loses: false,
            seeds: 0..4,
            level: None,
        }
    }

    /// Sets how long the suite waits for something that must happen; conforming providers never take
    /// that long. Default 10 s.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets how long the suite watches for something that must not happen. Default 20 ms.
    pub const fn calm(mut self, calm: Duration) -> Self {
        self.calm = calm;
        self
    }

    /// Sets the timeout of connect requests that are meant to time out: long enough for the request to
    /// reach the peer. Default 5 ms.
    pub const fn notice(mut self, notice: Duration) -> Self {
        self.notice = notice;
        self
    }

    /// Sets the longest transfer to try if the provider's own limit is higher, in bytes. The suite
    /// allocates a few times as much. Default 16 MiB.
    pub const fn transfer_max(mut self, bytes: u64) -> Self {
        self.transfer_max = bytes;
        self
    }

    /// Declares that unreliable VIs lose data here, so that they are not tried.
    pub const fn loses(mut self) -> Self {
        self.loses = true;
        self
    }

    /// Sets the seeds of the walks. Default 0 to 3.
    pub const fn seeds(mut self, seeds: Range<u64>) -> Self {
        self.seeds = seeds;
        self
    }

    /// Restricts the suite to one level of reliability, so that the levels can be checked by tests that run beside each other.
    /// Default all.
    pub const fn level(mut self, level: Reliability) -> Self {
        self.level = Some(level);
        self
    }
}
