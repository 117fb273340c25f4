//! The contract of all providers, over an imperfect network.

use std::time::Duration;

use vigie_detect::Instant;
use vigie_via::{
    conformance::{Fixture, Profile, SetupError, check},
    software_nic::SoftwareNicConfig,
};

use crate::{
    kit::seeds::for_each_seed,
    network::{Faults, MILLISECOND, Network, SimNic},
};

struct Simulated(Network);

impl Fixture for Simulated {
    type Nic = SimNic;

    fn nic(&mut self) -> Result<SimNic, SetupError> {
        Ok(self.0.nic(3, SoftwareNicConfig::default()))
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.0.now())
    }

    fn pass(&mut self, until: Instant) -> bool {
        self.0.step(MILLISECOND);
        self.now() < until
    }

    fn profile(&self) -> Profile {
        Profile::new().calm(Duration::from_millis(12)).transfer_max(1 << 20).seeds(0..2).loses()
    }
}

/// Goal: duplicates and reordering are invisible to consumers of reliable VIs. Method: the conformance suite over
/// a network that repeats one packet in ten and lets one in ten arrive late, with several seeds.
#[test]
fn the_contract_is_kept_out_of_order() {
    for_each_seed(3, |seed| {
        let mut number = 0;
        let mut networks = Vec::new();
        let faults = Faults { doubled: 100, late: 100, ..Faults::default() };
        let report = check(&mut || {
            number += 1;
            let network = Network::new(seed * 1000 + number, faults);
            networks.push(network.clone());
            Ok(Simulated(network))
        });
        match report {
            Ok(report) => assert!(report.cases.len() > 60, "{report}"),
            Err(violation) => panic!("{violation}"),
        }
        let seen: Vec<_> = networks.iter().map(|network| network.lock().seen).collect();
        assert!(seen.iter().map(|seen| seen.doubled).sum::<u64>() > 1000);
        assert!(seen.iter().map(|seen| seen.late).sum::<u64>() > 1000);
    });
}
