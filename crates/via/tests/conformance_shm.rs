//! The shared-memory provider fulfills the contract of all providers.

use std::time::Duration;

use vigie_detect::Instant;
use vigie_via::{
    conformance::{Fixture, Profile, SetupError, check},
    shm::Shm,
};

struct OneHost;

impl Fixture for OneHost {
    type Nic = Shm;

    fn nic(&mut self) -> Result<Shm, SetupError> {
        Ok(Shm::open()?)
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn pass(&mut self, until: Instant) -> bool {
        std::thread::yield_now();
        Instant::now() < until
    }

    fn profile(&self) -> Profile {
        // Between NICs of one process a few polls find every arrival.
        Profile::new().calm(Duration::from_millis(5))
    }
}

/// Goal: consumers can rely on the contract with every provider. Method: the conformance suite at all
/// levels of reliability, between NICs of one process.
#[test]
fn the_contract_is_kept() {
    let report = match check(&mut || Ok(OneHost)) {
        Ok(report) => report,
        Err(violation) => panic!("{violation}"),
    };
    assert!(report.cases.len() > 60, "{report}");
    // Transfers above 2 GiB, reads of unreliable VIs (two cases), the errors that do not break those, and writes with a head (seven cases) but
    // for reliable delivery, where one has to wait.
    assert_eq!(report.skipped.len(), 21, "{:?}", report.skipped);
}
