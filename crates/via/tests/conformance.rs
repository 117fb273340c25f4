//! The providers of this crate keep the contract.

use std::time::Duration;

use vigie_detect::Instant;
use vigie_via::{
    conformance::{Fixture, Profile, SetupError, check},
    sim::{FaultPlan, SimNetwork, SimNic},
    vi::{NicAttributes, Reliability},
};

struct Simulated {
    network: SimNetwork,
    attributes: NicAttributes,
    loses: bool,
}

impl Simulated {
    fn new(seed: u64, plan: FaultPlan, attributes: NicAttributes) -> Self {
        Self { network: SimNetwork::new(seed, plan), attributes, loses: false }
    }
}

impl Fixture for Simulated {
    type Nic = SimNic;

    fn nic(&mut self) -> Result<SimNic, SetupError> {
        Ok(self.network.nic_with(self.attributes))
    }

    fn now(&self) -> Instant {
        self.network.now()
    }

    fn pass(&mut self, until: Instant) -> bool {
        self.network.next_event().is_some_and(|next| next <= until) && self.network.step()
    }

    fn profile(&self) -> Profile {
        let profile = Profile::new().transfer_max(1 << 20);
        if self.loses { profile.loses() } else { profile }
    }
}

/// Goal: the simulated provider conforms at every level. Method: the suite, on a quiet network, with delays
/// from four seeds.
#[test]
fn sim_conforms() {
    for seed in 0..4 {
        let plan = FaultPlan::reliable().jitter(Duration::from_micros(seed));
        let mut make = || Ok(Simulated::new(seed, plan, NicAttributes::named("sim")));
        let report =
            check(&mut make).unwrap_or_else(|violation| panic!("{violation}, seed {seed}"));
        assert!(report.cases.len() > 100, "{report}");
    }
}

/// Goal: it also conforms with other limits, which the suite can reach, and without optional features.
/// Method: the suite, with small limits.
#[test]
fn sim_conforms_with_small_limits() {
    let mut attributes = NicAttributes::named("sim-small");
    attributes.transfer_bytes_max = 8192;
    attributes.inline_bytes_max = 64;
    attributes.segments_max = 4;
    attributes.descriptors_max = 64;
    attributes.max_reliability = Reliability::ReliableDelivery;
    attributes.has_rdma_read = false;
    let plan = FaultPlan::reliable();
    let report = check(&mut || Ok(Simulated::new(0, plan, attributes)))
        .unwrap_or_else(|violation| panic!("{violation}"));
    assert!(report.cases.iter().all(|(_, level)| *level != Reliability::ReliableReception));
    assert!(report.skipped.len() > 20, "{report}");
}

/// Goal: faults of unreliable VIs do not affect reliable ones. Method: the suite, on a network that
/// loses, duplicates, reorders and corrupts a third of everything it may.
#[test]
fn sim_conforms_reliably_on_a_lossy_network() {
    for seed in 0..4 {
        let plan = FaultPlan::lossy(0.3);
        let report = check(&mut || {
            let simulated = Simulated::new(seed, plan, NicAttributes::named("sim"));
            Ok(Simulated { loses: true, ..simulated })
        })
        .unwrap_or_else(|violation| panic!("{violation}, seed {seed}"));
        assert!(report.cases.iter().all(|(_, level)| *level != Reliability::Unreliable));
        assert!(report.cases.len() > 60, "{report}");
    }
}
