//! The provider over UDP keeps the contract of all providers.

use std::time::Duration;

use vigie_detect::Instant;
use vigie_via::{
    conformance::{Fixture, Profile, SetupError, check},
    software_nic::{Secret, SoftwareNicConfig},
    udp::Udp,
};

struct Loopback(bool);

impl Fixture for Loopback {
    type Nic = Udp;

    fn nic(&mut self) -> Result<Udp, SetupError> {
        let config = SoftwareNicConfig::default().is_tagged(self.0);
        Ok(Udp::bind("127.0.0.1:0".parse()?, Secret::new([5; 16]), config)?)
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn pass(&mut self, until: Instant) -> bool {
        std::thread::yield_now();
        Instant::now() < until
    }

    fn profile(&self) -> Profile {
        // On the loopback interface a few polls find every arrival, provided the machine gives us time.
        Profile::new().calm(Duration::from_millis(5)).timeout(Duration::from_secs(60))
    }
}

fn conforms(is_tagged: bool) {
    let report = match check(&mut || Ok(Loopback(is_tagged))) {
        Ok(report) => report,
        Err(violation) => panic!("{violation}"),
    };
    assert!(report.cases.len() > 60, "{report}");
    // Transfers above 2 GiB, reads of unreliable VIs (two cases), the errors that do not break those, and writes with a head (seven cases).
    assert_eq!(report.skipped.len(), 27, "{:?}", report.skipped);
}

/// Goal: consumers can rely on the contract with every provider. Method: the conformance suite at all
/// levels of reliability, between NICs of one process on the loopback interface.
#[test]
fn the_contract_is_kept() {
    conforms(false);
}

/// Goal: the same with a tag on each packet. Method: the same.
#[test]
fn the_contract_is_kept_with_tags() {
    conforms(true);
}
