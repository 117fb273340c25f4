//! The conformance suite: checks any implementation of [`Provider`] against its
//! [contract](crate::vi::Provider#contract).
//!
//! An implementer writes a [`Fixture`]: it makes NICs that reach each other, and lets time pass.
//! [`check`] then does with them what consumers may do, at every level of reliability that they offer,
//! and returns a [`ConformanceReport`] or the first [`Violation`]:
//!
//! - *connections*: client-server and peer-to-peer, every refusal, withdrawals, disconnects, the end of a
//!   NIC, the states of a VI;
//! - *transfers*: order, gathering and scattering, empty and largest transfers, inline data, data before
//!   completion, words, RDMA reads;
//! - *errors*: a missing receive descriptor, lengths, formats, and every kind of access to memory that does
//!   not exist or is not allowed, locally and at the peer, each with its effect on the connection;
//! - *queues*: shared completion queues, full queues, flushed descriptors, destroyed objects, sleep;
//! - *walks*: random sequences of transfers on several connections, drawn from seeds, against an oracle.
//!
//! # Limits
//! All NICs live in one process, so the suite does not find faults between processes. It expects that an
//! unreliable VI loses nothing on a quiet network, unless the [`Profile`] says otherwise.
//!
//! # Examples
//! ```
//! use vigie_detect::Instant;
//! use vigie_via::{
//!     conformance::{Fixture, SetupError, check},
//!     sim::{FaultPlan, SimNetwork, SimNic},
//! };
//!
//! struct Simulated(SimNetwork);
//!
//! impl Fixture for Simulated {
//!     type Nic = SimNic;
//!
//!     fn nic(&mut self) -> Result<SimNic, SetupError> {
//!         Ok(self.0.nic())
//!     }
//!
//!     fn now(&self) -> Instant {
//!         self.0.now()
//!     }
//!
//!     fn pass(&mut self, until: Instant) -> bool {
//!         self.0.next_event().is_some_and(|next| next <= until) && self.0.step()
//!     }
//! }
//!
//! let report = check(&mut || Ok(Simulated(SimNetwork::new(1, FaultPlan::reliable()))))?;
//! assert!(report.cases.len() > 20, "{report}");
//! # Ok::<(), vigie_via::conformance::Violation>(())
//! ```

mod connections;
mod errors;
mod protection;
mod queues;
mod sleep;
mod testbed;
mod transfers;
mod violation;
mod walk;

use std::{error::Error, fmt, ops::Range, time::Duration};

use vigie_detect::Instant;

use self::testbed::Testbed;
use crate::vi::{Provider, Reliability};

pub use violation::{Clause, Location, Violation};

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
    timeout: Duration,
    calm: Duration,
    notice: Duration,
    transfer_max: u64,
    loses: bool,
    seeds: Range<u64>,
    level: Option<Reliability>,
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

/// The cases that passed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConformanceReport {
    /// The cases, each with its level.
    pub cases: Vec<(&'static str, Reliability)>,
    /// Cases, or parts of them, that do not apply to this provider, and why.
    pub skipped: Vec<(&'static str, &'static str)>,
    /// Completions that were taken.
    pub completions: u64,
    /// Events that were taken.
    pub events: u64,
}

impl fmt::Display for ConformanceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} cases held: {} completions, {} events; {} skipped",
            self.cases.len(),
            self.completions,
            self.events,
            self.skipped.len()
        )
    }
}

type ConformanceCase<F> = fn(&mut Testbed<'_, F>) -> Result<(), Violation>;

/// Checks the NICs of the fixtures that `factory` makes against the contract.
///
/// # Errors
/// The first [`Violation`] found.
pub fn check<F: Fixture>(
    factory: &mut impl FnMut() -> Result<F, SetupError>,
) -> Result<ConformanceReport, Violation> {
    let mut report = ConformanceReport::default();
    for (case, run) in all_cases::<F>() {
        for level in
            [Reliability::Unreliable, Reliability::ReliableDelivery, Reliability::ReliableReception]
        {
            let at = Location { case, level };
            let mut fixture = factory().map_err(|error| Violation::Setup { error, at })?;
            let profile = fixture.profile();
            if profile.level.is_some_and(|only| only != level) {
                continue;
            }
            if level == Reliability::Unreliable && profile.loses {
                report.skipped.push((case, "unreliable VIs lose data here"));
                continue;
            }
            let mut testbed = Testbed::new(&mut fixture, at, &mut report)?;
            if level > testbed.attributes().max_reliability {
                report.skipped.push((case, "the provider does not offer that level"));
                continue;
            }
            run(&mut testbed)?;
            report.cases.push((case, level));
        }
    }
    Ok(report)
}

fn all_cases<F: Fixture>() -> Vec<(&'static str, ConformanceCase<F>)> {
    let mut cases: Vec<(&'static str, ConformanceCase<F>)> = Vec::new();
    cases.extend(connections::cases());
    cases.extend(transfers::cases());
    cases.extend(errors::cases());
    cases.extend(protection::cases());
    cases.extend(queues::cases());
    cases.extend(sleep::cases());
    cases.extend(walk::cases());
    cases
}
