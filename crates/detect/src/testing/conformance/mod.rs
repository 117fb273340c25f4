//! The conformance suite: tests the [contract](crate::Detector#contract) of
//! [`Detector`](crate::Detector) on any implementation.
//!
//! You write a [`Harness`], which makes the detector, its requests and its events. [`check`] then does
//! with them what a program, a kernel and bad luck may do, and returns a [`Report`] or the first
//! [`Violation`]:
//!
//! - *step by step*, as its own host: an event before the wait, after it, exactly between arming and
//!   sleep; many requests in random order; cancellation at every point; polls with nothing pending;
//!   streams, their back-pressure and their end; shutdown with requests pending and in flight;
//! - *walks*: random sequences of all that, drawn from a seed, against an oracle;
//! - *simulated*, for detectors that need no descriptor: tasks in virtual time, one seed after
//!   another; one run in eight is repeated to check that both leave the same trace;
//! - *stressed*, on a host thread with a second thread that makes the events happen.
//!
//! All randomness comes from one seed, which a violation reports: `SIM_SEED` replays it.
//!
//! # Limits
//! - The suite does not check that callbacks do not block (rule 1): a callback that waits for its own handle hangs
//!   the suite, as it would hang a server.
//! - It expects what [`Harness::profile`] says. By default an event is for one request and is dropped with it; if any request may
//!   receive the next event, return [`Profile::shared`], or lost events pass as dropped ones.
//!
//! # Examples
//! The tutorial [`docs::write_a_detector`](crate::docs::write_a_detector) ends with a harness.

mod cases;
mod engines;
mod harness;
mod ledger;
mod simulated;
mod stage;
mod streams;
mod stress;
mod suite;
mod violation;
mod walk;

pub use engines::{EngineHarness, Named, check_engine, check_engine_with};
pub use harness::{
    Addressing, EventIdentity, Harness, HostKinds, Memory, Profile, SetupError, Trigger, Unclaimed,
    World,
};
use suite::Suite;
pub use suite::{Report, SuiteConfig};
pub use violation::{At, Rule, Violation};

/// Tests the contract on the detector that `factory` makes, with [`SuiteConfig::from_env`].
///
/// # Errors
/// The first [`Violation`].
pub fn check<H: Harness>(
    factory: &mut impl FnMut(&World) -> Result<H, SetupError>,
) -> Result<Report, Violation> {
    check_with(&SuiteConfig::from_env(), factory)
}

/// Like [`check`], with options.
///
/// # Errors
/// The first [`Violation`].
pub fn check_with<H: Harness>(
    options: &SuiteConfig,
    factory: &mut impl FnMut(&World) -> Result<H, SetupError>,
) -> Result<Report, Violation> {
    let mut suite = Suite { options, factory, report: Report::default() };
    let (is_virtual, is_real) =
        (H::HOST_KINDS != HostKinds::Real, H::HOST_KINDS != HostKinds::Virtual);
    for (host, runs) in [(stage::Host::Virtual, is_virtual), (stage::Host::Real, is_real)] {
        if runs {
            suite.cases(host)?;
            suite.streams(host)?;
            suite.walks(host)?;
        }
    }
    if is_virtual {
        suite.simulations()?;
    } else {
        suite.report.skipped.push(("simulation", "the detector needs a real host"));
    }
    if is_real && options.stress_waits > 0 {
        suite.stress()?;
    } else {
        suite
            .report
            .skipped
            .push(("stress", "the detector needs virtual time, or no stress is wanted"));
    }
    suite.report.seeds = options.seeds.end - options.seeds.start;
    Ok(suite.report)
}
