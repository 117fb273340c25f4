//! Messages between two network namespaces: the remote half of the paper's Table 1 [via-lam, §5].
//!
//! | system | over |
//! | --- | --- |
//! | vigie's message layer, and its VI layer | the provider `udp` |
//! | the same | the provider `ether`, AF_PACKET |
//! | TCP, polled or waited for | |
//! | a UDP socket, polled or waited for | |
//!
//! A veth pair with an MTU of 1500 bytes connects the namespaces, as a network would connect two hosts: every packet passes
//! through the kernel's stack, except those of `ether`. vigie's ranks look for about a millisecond before they sleep, so
//! that they poll in all measures but those of waiting.

mod sockets;
mod vigie;

use super::keys::PAPER_SIZES;
use super::plan::PingPongPlan;
use super::{Carrier, Measure};

/// Name of vigie's message layer over `udp` in results.
pub(crate) const VIGIE_UDP: &str = "vigie-udp";

/// Name of vigie's Virtual Interface layer over `udp` in results.
pub(crate) const VIGIE_VI_UDP: &str = "vigie-vi-udp";

/// Name of vigie's message layer over `ether` in results.
pub(crate) const VIGIE_ETHER: &str = "vigie-ether";

/// Name of vigie's Virtual Interface layer over `ether` in results.
pub(crate) const VIGIE_VI_ETHER: &str = "vigie-vi-ether";

/// Name of polled TCP between the namespaces in results.
pub(crate) const TCP: &str = "tcp-netns";

/// Name of polled UDP sockets between the namespaces in results.
pub(crate) const UDP: &str = "udp-netns";

/// Name of UDP sockets between the namespaces that are waited for, in results.
pub(crate) const UDP_BLOCKING: &str = "udp-netns-blocking";

/// Bytes of a message where bandwidth is measured.
pub(crate) const BULK: u32 = 262_144;

/// Messages per answer there.
const BULK_WINDOW: u32 = 16;

/// Bytes of small messages, and their number per answer.
const SMALL: u32 = 8;
const SMALL_WINDOW: u32 = 32;

pub(crate) static SYSTEMS: [&Carrier; 8] = [
    &vigie::ETHER,
    &vigie::ETHER_VI,
    &vigie::UDP,
    &vigie::UDP_VI,
    &sockets::TCP,
    &sockets::TCP_BLOCKING,
    &sockets::UDP,
    &sockets::UDP_BLOCKING,
];

/// Returns the plan of `carriers` with the latencies of `sizes`: 200 ms for each measure, in 4 turns. Default: the sizes
/// of the paper's Table 1.
pub(crate) fn remote_plan(carriers: Vec<&'static Carrier>, sizes: &[u32]) -> PingPongPlan {
    let sizes = if sizes.is_empty() { &PAPER_SIZES[..] } else { sizes };
    let mut plan = PingPongPlan::new(carriers);
    let latencies = sizes.iter().map(|&bytes| Measure::Latency { bytes });
    let others = [
        Measure::Window { bytes: SMALL, window: SMALL_WINDOW },
        Measure::Window { bytes: BULK, window: BULK_WINDOW },
        Measure::Waiting { bytes: SMALL },
        Measure::Quiet,
    ];
    plan.measures = latencies.chain(others).collect();
    plan.crowds = Vec::new();
    plan.budget = std::time::Duration::from_millis(200);
    plan.rounds = 4;
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{named, own};

    #[test]
    fn every_system_is_found_and_measured() {
        // Goal: a rank's process and the command line find each system by name, and each has latencies of all
        // sizes of the paper. Method: all of them.
        let plan = remote_plan(SYSTEMS.to_vec(), &[]);
        for carrier in SYSTEMS {
            assert_eq!(own(carrier.name).unwrap().label, carrier.label);
            assert!(named(carrier.name).unwrap().iter().any(|one| one.name == carrier.name));
            let has = |bytes| (carrier.has)(Measure::Latency { bytes });
            assert!(PAPER_SIZES.into_iter().all(has), "{}", carrier.name);
        }
        for name in [VIGIE_VI_UDP, VIGIE_UDP, VIGIE_ETHER, VIGIE_VI_ETHER, TCP] {
            let bulk = Measure::Window { bytes: BULK, window: BULK_WINDOW };
            assert!(plan.measures.contains(&bulk) && (own(name).unwrap().has)(bulk), "{name}");
        }
    }
}
