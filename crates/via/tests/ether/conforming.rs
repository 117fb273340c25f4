//! The Ethernet provider fulfills the contract of all providers.

use std::time::Duration;

use vigie_detect::Instant;
use vigie_via::{
    conformance::{Fixture, Profile, SetupError, check},
    ether::Ether,
    link::BackEnd,
    vi::Reliability,
};

use crate::{
    nics::{Settings, far_nic, near_nic},
    veth::{Far, with_veth},
};

/// Makes NICs at both ends in turns, so that some share an interface.
struct Ends<'a> {
    far: &'a Far,
    settings: Settings,
    level: Reliability,
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
        Profile::new().calm(Duration::from_millis(5)).level(self.level)
    }
}

fn conforms(test: &str, settings: Settings, level: Reliability) {
    with_veth(test, |far| match check(&mut || Ok(Ends { far, settings, level, count: 0 })) {
        Ok(report) => {
            assert!(report.cases.len() > 20, "{report}");
            // Transfers above 2 GiB, and writes with a head (seven cases); of unreliable VIs also reads (two cases), and the errors that do not
            // break those.
            let skipped = if level == Reliability::Unreliable { 11 } else { 8 };
            assert_eq!(report.skipped.len(), skipped, "{:?}", report.skipped);
        }
        Err(violation) => panic!("{violation}"),
    });
}

/// A test for each level of reliability: they are the longest of this program, and run beside each other.
macro_rules! contract {
    ($module:ident, $settings:expr) => {
        mod $module {
            use super::*;

            #[test]
            fn unreliable() {
                conforms(
                    concat!("conforming::", stringify!($module), "::unreliable"),
                    $settings,
                    Reliability::Unreliable,
                );
            }

            #[test]
            fn reliable_delivery() {
                conforms(
                    concat!("conforming::", stringify!($module), "::reliable_delivery"),
                    $settings,
                    Reliability::ReliableDelivery,
                );
            }

            #[test]
            fn reliable_reception() {
                conforms(
                    concat!("conforming::", stringify!($module), "::reliable_reception"),
                    $settings,
                    Reliability::ReliableReception,
                );
            }
        }
    };
}

// Goal: consumers can rely on the contract with every provider. Method: the conformance suite at each level of reliability,
// between NICs at both ends of a veth pair, of which two share an interface.
contract!(with_rings, Settings::default());

// Goal: the same without rings, and with a tag on each packet. Method: the same.
contract!(without_rings, {
    let settings = Settings { back_end: BackEnd::PacketCalls, ..Settings::default() };
    Settings { config: settings.config.is_tagged(true), ..settings }
});
