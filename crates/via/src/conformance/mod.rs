//! The conformance suite: tries the [contract](crate::vi::Provider#contract) of
//! [`Provider`] on any implementation.
//!
//! An implementer writes a [`Fixture`]: it makes NICs that reach each other, and lets time pass. Then
//! [`check`] does with them, at every level of reliability that they offer, what consumers may do, and
//! answers with a [`Report`] or with the first [`Violation`]:
//!
//! - *connections*: client-server and peer-to-peer, every refusal, withdrawals, disconnects, the end of a
//!   NIC, the states of a VI;
//! - *transfers*: order, gathering and scattering, empty and largest transfers, inline data, data before
//!   completion, words, RDMA reads;
//! - *errors*: a missing receive descriptor, lengths, formats, and every way to reach for memory that is
//!   not there or not allowed, locally and at the peer, each with what it does to the connection;
//! - *queues*: shared completion queues, full queues, flushed descriptors, objects that are gone, sleep;
//! - *walks*: random sequences of transfers on several connections, drawn from seeds, against an oracle.
//!
//! # Limits
//! NICs live in one process, so that faults of separate processes are not looked for. Of an unreliable VI
//! the suite expects that a quiet network loses nothing, unless the [`Profile`] says otherwise.
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
mod stage;
mod transfers;
mod violation;
mod walk;

use std::{error::Error, fmt, ops::Range, time::Duration};

use vigie_detect::Instant;

use self::stage::Stage;
use crate::vi::{Provider, Reliability};

pub use violation::{At, Clause, Violation};

/// What a fixture may fail with.
pub type SetupError = Box<dyn Error + Send + Sync>;

/// What the suite needs of an implementation: NICs in one process, and time.
///
/// Each case starts with a fixture of its own.
pub trait Fixture {
    /// The implementation.
    type Nic: Provider;

    /// Makes a NIC that reaches those made before.
    ///
    /// # Errors
    /// Whatever keeps it from that; the suite ends then.
    fn nic(&mut self) -> Result<Self::Nic, SetupError>;

    /// Returns the time on the clock that deadlines are read on.
    fn now(&self) -> Instant;

    /// Lets a little time pass: a step of a simulation, a moment of a real clock. Returns `false` when
    /// nothing can come before `until` any more, or that is reached. The suite calls
    /// [`Provider::progress`] of all NICs in between.
    fn pass(&mut self, until: Instant) -> bool;

    /// Tells what the suite may expect. Default [`Profile::new`].
    fn profile(&self) -> Profile {
        Profile::new()
    }
}

/// What the suite may expect of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a profile says something only to the suite"]
pub struct Profile {
    patience: Duration,
    calm: Duration,
    notice: Duration,
    transfer_max: u64,
    loses: bool,
    seeds: Range<u64>,
}

impl Profile {
    /// Ten seconds of patience, 20 ms of calm, 5 ms of notice, transfers up to 16 MiB, nothing lost, four walks.
    #[expect(clippy::new_without_default, reason = "a profile is stated on purpose")]
    pub const fn new() -> Self {
        Self {
            patience: Duration::from_secs(10),
            calm: Duration::from_millis(20),
            notice: Duration::from_millis(5),
            transfer_max: 16 << 20,
            loses: false,
            seeds: 0..4,
        }
    }

    /// Sets after which time something counts as lost. Conforming providers never use it up. Default 10 s.
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets for how long the suite looks for what must not happen. Default 20 ms.
    pub const fn calm(mut self, calm: Duration) -> Self {
        self.calm = calm;
        self
    }

    /// Sets how long before its deadline a connection is asked for that is to time out: what it asks for reaches
    /// the peer in that time. Default 5 ms.
    pub const fn notice(mut self, notice: Duration) -> Self {
        self.notice = notice;
        self
    }

    /// Sets the longest transfer that is tried where the provider's own limit is above it, in bytes: the
    /// suite allocates a few times as much. Default 16 MiB.
    pub const fn transfer_max(mut self, bytes: u64) -> Self {
        self.transfer_max = bytes;
        self
    }

    /// Says that unreliable VIs lose data here, so that they are not tried.
    pub const fn loses(mut self) -> Self {
        self.loses = true;
        self
    }

    /// Sets the seeds of the walks. Default 0 to 3.
    pub const fn seeds(mut self, seeds: Range<u64>) -> Self {
        self.seeds = seeds;
        self
    }
}

/// What was tried, and held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The cases, each with its level.
    pub cases: Vec<(&'static str, Reliability)>,
    /// Cases, or parts of them, that this provider gives no ground for, and why.
    pub skipped: Vec<(&'static str, &'static str)>,
    /// Completions that were taken.
    pub completions: u64,
    /// Events that were taken.
    pub events: u64,
}

impl fmt::Display for Report {
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

type Case<F> = fn(&mut Stage<'_, F>) -> Result<(), Violation>;

/// Tries the contract on the NICs of the fixtures that `factory` makes.
///
/// # Errors
/// The first [`Violation`] that is seen.
pub fn check<F: Fixture>(
    factory: &mut impl FnMut() -> Result<F, SetupError>,
) -> Result<Report, Violation> {
    let mut report = Report::default();
    for (case, run) in all_cases::<F>() {
        for level in
            [Reliability::Unreliable, Reliability::ReliableDelivery, Reliability::ReliableReception]
        {
            let at = At { case, level };
            let mut fixture = factory().map_err(|error| Violation::Setup { error, at })?;
            if level == Reliability::Unreliable && fixture.profile().loses {
                report.skipped.push((case, "unreliable VIs lose data here"));
                continue;
            }
            let mut stage = Stage::new(&mut fixture, at, &mut report)?;
            if level > stage.attributes().reliability {
                report.skipped.push((case, "the provider does not offer that level"));
                continue;
            }
            run(&mut stage)?;
            report.cases.push((case, level));
        }
    }
    Ok(report)
}

fn all_cases<F: Fixture>() -> Vec<(&'static str, Case<F>)> {
    let mut cases: Vec<(&'static str, Case<F>)> = Vec::new();
    cases.extend(connections::cases());
    cases.extend(transfers::cases());
    cases.extend(errors::cases());
    cases.extend(protection::cases());
    cases.extend(queues::cases());
    cases.extend(sleep::cases());
    cases.extend(walk::cases());
    cases
}
