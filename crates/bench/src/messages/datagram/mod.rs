//! Datagrams between processes: figures 2 and 3 of the barrier paper, latency and bandwidth of its library
//! MCD beside those of a VI layer [eth-barrier, §4.2].
//!
//! | system | over | beside it |
//! | --- | --- | --- |
//! | vigie's VI layer | shared memory | |
//! | vigie's datagrams | UDP, loopback | plain UDP sockets |
//! | vigie's datagrams | a link (AF_PACKET), veth pair | plain UDP sockets on that pair |
//! | the same | a link (AF_XDP), veth pair | |
//! | the same | UDP, veth pair | |
//!
//! Both ends of a veth pair are in network namespaces of their own, as two hosts would be, so that nothing
//! takes a shorter way. All ranks look again and again, and none sleeps.

mod polling;
mod port;
mod tables;
pub(super) mod udp;

pub(crate) use self::polling::BYTES_MAX;
use self::polling::WINDOW;
use super::plan::PingPongPlan;
use super::virtual_interface;
use super::{Carrier, Measure, UnknownCarrier};

/// Sizes of datagrams, in bytes: the range of the paper's figures.
const SIZES: [u32; 9] = [1, 8, 32, 64, 128, 256, 512, 1_024, BYTES_MAX];

/// The systems of the figures, in the order of the tables.
pub(crate) static SYSTEMS: [&Carrier; 7] = [
    &virtual_interface::VIRTUAL_INTERFACE_MTU,
    &port::UDP,
    &udp::SOCKET,
    &port::LINK,
    &port::XDP,
    &port::UDP_VETH,
    &udp::SOCKET_VETH,
];

/// Returns the system of this very name.
///
/// # Errors
/// If the name is unknown; the error quotes it.
pub(crate) fn datagram_carrier(name: &str) -> Result<&'static Carrier, UnknownCarrier> {
    let found = SYSTEMS.into_iter().find(|carrier| carrier.name == name);
    found.ok_or_else(|| UnknownCarrier::among(&SYSTEMS, name))
}

/// Plans both figures of `carriers` with datagrams of `sizes` bytes, by default from 1 byte to as many as fit.
pub(crate) fn datagram_plan(carriers: Vec<&'static Carrier>, sizes: &[u32]) -> PingPongPlan {
    let sizes = if sizes.is_empty() { &SIZES[..] } else { sizes };
    let mut plan = PingPongPlan::new(carriers);
    let latencies = sizes.iter().map(|&bytes| Measure::Latency { bytes });
    let windows = sizes.iter().map(|&bytes| Measure::Window { bytes, window: WINDOW });
    plan.measures = latencies.chain(windows).collect();
    plan.crowds = Vec::new();
    plan.tables = tables::both;
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::own;

    #[test]
    fn every_system_is_found_and_has_both_figures() {
        // Goal: a rank's process finds its system by name, and no measure of the plan is left out by one.
        // Method: all systems, all measures.
        let plan = datagram_plan(SYSTEMS.to_vec(), &[]);
        for carrier in SYSTEMS {
            assert_eq!(own(carrier.name).unwrap().label, carrier.label);
            assert_eq!(datagram_carrier(carrier.name).unwrap().label, carrier.label);
            assert!(plan.measures.iter().all(|&measure| (carrier.has)(measure)));
        }
        let error = datagram_carrier("tcp").unwrap_err().to_string();
        assert!(error.contains("\"tcp\"") && error.contains("datagram-link"), "{error}");
    }
}
