//! The Ethernet provider fulfills the contract of all providers.

use std::time::Duration;

use vigie_detect::Instant;
use vigie_via::{
    conformance::{Fixture, Profile, SetupError, check},
    ether::Ether,
    link::BackEnd,
};

use crate::{
    nics::{Settings, far_nic, near_nic},
    veth::{Far, with_veth},
};

/// Makes NICs at both ends in turns, so that some share an interface.
struct Ends<'a> {
    far: &'a Far,
    settings: Settings,
    count: usize,
}

impl Fixture for Ends<'_> {
    type Nic = Ether;

    fn nic(&mut self) -> Result<Ether, SetupError> {
        self.count += 1;
        let is_near = self.count % 2 == 1;
        Ok(if is_near { near_nic(self.settings) } else { far_nic(self.far, self.settings) })
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn pass(&mut self, until: Instant) -> bool {
        std::thread::yield_now();
        Instant::now() < until
    }

    fn profile(&self) -> Profile {
        Profile::new().calm(Duration::from_millis(5))
    }
}

fn conforms(far: &Far, settings: Settings) {
    let report = match check(&mut || Ok(Ends { far, settings, count: 0 })) {
        Ok(report) => report,
        Err(violation) => panic!("{violation}"),
    };
    assert!(report.cases.len() > 60, "{report}");
    // Transfers above 2 GiB, reads of unreliable VIs (two cases), and the errors that do not break those.
    assert_eq!(report.skipped.len(), 6, "{:?}", report.skipped);
}

/// Goal: consumers can rely on the contract with every provider. Method: the conformance suite at all
/// levels of reliability, between NICs at both ends of a veth pair, of which two share an interface.
#[test]
fn the_contract_is_kept() {
    with_veth("conforming::the_contract_is_kept", |far| conforms(far, Settings::default()));
}

/// Goal: the same without rings, and with a tag on each packet. Method: the same.
#[test]
fn the_contract_is_kept_without_rings() {
    with_veth("conforming::the_contract_is_kept_without_rings", |far| {
        let mut settings = Settings { back_end: BackEnd::PacketCalls, ..Settings::default() };
        settings.config = settings.config.is_tagged(true);
        conforms(far, settings);
    });
}
