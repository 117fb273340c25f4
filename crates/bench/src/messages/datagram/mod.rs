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

pub use self::polling::BYTES_MAX;
use self::polling::WINDOW;
use super::carrier::{Carrier, CarrierKind, Prepared, Run, UnknownCarrier};
use super::measure::Measure;
use super::measure_result::MeasureResult;
use super::plan::PingPongPlan;
use super::ranks::OwnCarrier;
use super::virtual_interface;
use crate::error::BenchError;
use crate::host::missing::Missing;
use crate::host::namespaces::Namespaces;
use crate::report::progress::Progress;
use crate::report::{Outcome, Row};

/// Sizes of datagrams, in bytes: the range of the paper's figures.
const SIZES: [u32; 9] = [1, 8, 32, 64, 128, 256, 512, 1_024, BYTES_MAX];

static OVER_VETH: &[OverVeth] = &[
    OverVeth { own: &port::LINK },
    OverVeth { own: &port::XDP },
    OverVeth { own: &port::UDP_VETH },
    OverVeth { own: &udp::SOCKET_VETH },
];

/// Returns the systems of the figures, in the order of the tables.
#[must_use]
pub fn datagram_carriers() -> Vec<&'static dyn Carrier> {
    let here: [&dyn Carrier; 3] =
        [&virtual_interface::VIRTUAL_INTERFACE_MTU, &port::UDP, &udp::SOCKET];
    here.into_iter().chain(OVER_VETH.iter().map(|one| one as &dyn Carrier)).collect()
}

/// The systems of the figures whose ranks are processes of this program, which all are.
pub(super) fn own_datagrams() -> impl Iterator<Item = &'static OwnCarrier> {
    let here = [&virtual_interface::VIRTUAL_INTERFACE_MTU, &port::UDP, &udp::SOCKET];
    here.into_iter().chain(OVER_VETH.iter().map(|one| one.own))
}

/// Returns the system of this very name.
///
/// # Errors
/// If the name is unknown; the error quotes it.
pub fn datagram_carrier(name: &str) -> Result<&'static dyn Carrier, UnknownCarrier> {
    let found = datagram_carriers().into_iter().find(|carrier| carrier.name() == name);
    found
        .ok_or_else(|| UnknownCarrier { name: name.to_owned(), known: known(&datagram_carriers()) })
}

fn known(carriers: &[&dyn Carrier]) -> String {
    carriers.iter().map(|carrier| carrier.name()).collect::<Vec<_>>().join(", ")
}

/// What is measured for the two figures.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DatagramPlan {
    /// Systems, measures and time.
    pub plan: PingPongPlan,
}

impl DatagramPlan {
    /// Plans both figures of `carriers` with datagrams of `sizes` bytes, by default from 1 byte to as many as
    /// fit.
    #[must_use]
    pub fn new(carriers: Vec<&'static dyn Carrier>, sizes: &[u32]) -> Self {
        let sizes = if sizes.is_empty() { &SIZES[..] } else { sizes };
        let mut plan = PingPongPlan::new(carriers);
        let latencies = sizes.iter().map(|&bytes| Measure::Latency { bytes });
        let windows = sizes.iter().map(|&bytes| Measure::Window { bytes, window: WINDOW });
        plan.measures = latencies.chain(windows).collect();
        plan.rings = Vec::new();
        Self { plan }
    }

    /// Returns how many cases [`run`](Self::run) measures, for its progress bar.
    #[must_use]
    pub fn cases(&self) -> usize {
        self.plan.cases()
    }

    /// Measures all systems in turns. A system that is missing or fails is not an error: its rows say so.
    ///
    /// # Errors
    /// As [`PingPongPlan::run`].
    pub fn run(&self, progress: &mut Progress) -> Result<Outcome, BenchError> {
        self.plan.run(progress)
    }

    /// Shows the two figures as tables.
    #[must_use]
    pub fn tables(&self, rows: &[Row]) -> String {
        tables::both(rows)
    }
}

/// A system between two network namespaces.
#[derive(Debug)]
pub(super) struct OverVeth {
    pub(super) own: &'static OwnCarrier,
}

impl Carrier for OverVeth {
    fn name(&self) -> &'static str {
        self.own.name
    }

    fn label(&self) -> &'static str {
        self.own.label
    }

    fn family(&self) -> &'static str {
        self.own.family
    }

    fn kind(&self) -> CarrierKind {
        self.own.kind
    }

    fn has(&self, measure: Measure) -> bool {
        (self.own.has)(measure)
    }

    fn prepare(&self) -> Result<Box<dyn Prepared + '_>, Missing> {
        let namespaces = Namespaces::make()?;
        Ok(Box::new(NamespacedRanks { ranks: self.own.prepare()?, namespaces }))
    }
}

/// Ranks in namespaces, which end with this.
struct NamespacedRanks<'a> {
    ranks: Box<dyn Prepared + 'a>,
    namespaces: Namespaces,
}

impl Prepared for NamespacedRanks<'_> {
    fn measure(&self, run: &Run) -> Result<Vec<MeasureResult>, BenchError> {
        self.ranks.measure(&Run { namespaces: self.namespaces.paths(), ..run.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::own;

    #[test]
    fn every_system_is_found_and_has_both_figures() {
        // Goal: a rank's process finds its system by name, and no measure of the plan is left out by one.
        // Method: all systems, all measures.
        let plan = DatagramPlan::new(datagram_carriers(), &[]);
        for carrier in datagram_carriers() {
            assert_eq!(own(carrier.name()).unwrap().label, carrier.label());
            assert_eq!(datagram_carrier(carrier.name()).unwrap().label(), carrier.label());
            assert!(plan.plan.measures.iter().all(|&measure| carrier.has(measure)));
        }
        assert_eq!(own_datagrams().count(), datagram_carriers().len());
        let error = datagram_carrier("tcp").unwrap_err().to_string();
        assert!(error.contains("\"tcp\"") && error.contains("datagram-link"), "{error}");
    }
}
