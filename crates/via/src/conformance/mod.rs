//! The conformance suite: checks any implementation of [`Provider`](crate::vi::Provider) against its
//! [contract](crate::vi::Provider#contract).
//!
//! An implementer writes a [`Fixture`]: it makes NICs that reach each other, and lets time pass.
//! [`check`] then does with them what consumers may do, at every level of reliability that they offer,
//! and returns a [`ConformanceReport`] or the first [`Violation`]:
//!
//! - *connections*: client-server and peer-to-peer, every refusal, withdrawals, disconnects, the end of a
//!   NIC, the states of a VI;
//! - *transfers*: order, gathering and scattering, empty and largest transfers, inline data, data before
//!   completion, words, RDMA reads, writes with a head;
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
mod fixture;
mod headed;
mod protection;
mod queues;
mod report;
mod sleep;
mod testbed;
mod transfers;
mod violation;
mod walk;

use self::testbed::{ConformanceCase, Testbed};
use crate::vi::Reliability;

pub use self::{
    fixture::{Fixture, Profile, SetupError},
    report::ConformanceReport,
    violation::{Clause, Location, Violation},
};

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
    cases.extend(headed::cases());
    cases.extend(errors::cases());
    cases.extend(protection::cases());
    cases.extend(queues::cases());
    cases.extend(sleep::cases());
    cases.extend(walk::cases());
    cases
}
