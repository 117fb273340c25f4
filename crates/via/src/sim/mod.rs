//! The provider in virtual time: NICs on a simulated network whose faults derive from one seed.
//!
//! A [`SimNetwork`] has the time, the event queue and the seed of a [`SimulatedNetwork`]. A descriptor posted
//! on one of its [`SimNic`]s waits for the NIC's link, travels, and arrives when virtual time gets there. The
//! same seed and the same calls lead to the same run, as [`SimNetwork::trace_hash`] proves.
//!
//! A network is [over that of a `Simulation`](SimNetwork::over), whose host drives it, or [alone](SimNetwork::new),
//! and driven by [`SimNetwork::step`] and [`SimNetwork::advance_to`], or by [`Provider::progress`] of any of its
//! NICs: these also work with hosts by the real clock. A host of a NIC sleeps until the next event of the
//! network, and is woken if an earlier event is scheduled or something arrives at its NIC: every arrival is
//! found at its exact time.
//!
//! Data of unreliable VIs may be lost, duplicated, held back and corrupted, as the [`FaultPlan`] says;
//! [`SimNetwork::counts`] reports what really happened. Data of reliable VIs arrives once and in order,
//! or the connection breaks: by a [crash](SimNetwork::crash_at_transmission), or a
//! [cut](SimNetwork::cut).
//!
//! # Examples
//! ```
//! use vigie_via::{sim::{FaultPlan, SimNetwork}, vi::{NicEvent, Provider}};
//!
//! let network = SimNetwork::new(42, FaultPlan::reliable());
//! let (mut server, mut client) = (network.nic(), network.nic());
//! server.listen(b"greeter")?;
//! # use vigie_via::vi::{Connect, Reliability, ViAttributes};
//! # let tag = client.create_tag();
//! # let vi = client.create_vi(ViAttributes {
//! #     reliability: Reliability::ReliableDelivery, tag, send_cq: None, receive_cq: None,
//! #     allows_write: false, allows_read: false,
//! # })?;
//! let address = server.address();
//! let to = Connect::new(vi, &address, b"greeter", vigie_detect::Instant::MAX);
//! client.connect(to.greeting(b"hello"))?;
//! while network.step() {}
//! assert!(matches!(server.next_event(), Some(NicEvent::Requested { greeting, .. }) if greeting == b"hello"));
//! # Ok::<(), vigie_via::vi::ViError>(())
//! ```

mod calls;
mod network;
mod nic;
mod objects;
mod packet;
mod plan;
#[cfg(test)]
mod tests;
mod transfer;

use std::sync::{Arc, Mutex};

use vigie_detect::{Clock, Instant, SimulatedNetwork};

use self::{
    network::{Locked, NetworkState, lock},
    packet::{NicIndex, SimEvent},
};
use crate::vi::{NicAttributes, Provider};

pub use nic::SimNic;
pub use plan::{FaultCounts, FaultPlan};

/// A NIC of a [`SimNetwork`], for crashes and freezes. Passed to another network, it is ignored if that
/// has no NIC of this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NicId(NicIndex);

impl NicId {
    /// Returns its number: a network's NICs are counted from 0 in order of creation.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0
    }
}

/// A network in virtual time. Clones are the same network.
///
/// It may be used from any thread, but runs are reproducible only if one thread makes all calls.
#[derive(Clone, Debug)]
pub struct SimNetwork {
    world: Arc<Mutex<NetworkState>>,
    network: SimulatedNetwork,
}

impl SimNetwork {
    /// Makes a network without a host, which is driven by hand or by its NICs. Its clock starts at zero, and its random numbers
    /// derive from `seed`.
    #[must_use]
    pub fn new(seed: u64, plan: FaultPlan) -> Self {
        Self::over(&SimulatedNetwork::new(seed), plan)
    }

    /// Makes a network in a simulation: its time, events and random numbers are those of the simulation's
    /// [network](vigie_detect::Simulation::network), whose host drives it.
    #[must_use]
    pub fn over(network: &SimulatedNetwork, plan: FaultPlan) -> Self {
        Self { world: NetworkState::new(network, plan), network: network.clone() }
    }

    /// Makes a NIC with the attributes of [`NicAttributes::named`].
    #[must_use]
    pub fn nic(&self) -> SimNic {
        self.nic_with(NicAttributes::named("sim"))
    }

    /// Makes a NIC with custom limits, to reach them sooner.
    #[must_use]
    pub fn nic_with(&self, attributes: NicAttributes) -> SimNic {
        let index = self.lock().add_nic(attributes);
        SimNic::new(self.clone(), NicId(index), attributes)
    }

    /// Changes the faults from now on.
    pub fn set_plan(&self, plan: FaultPlan) {
        self.lock().plan = plan;
    }

    // -------------------------------------------------------------- time

    /// Returns the present virtual time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.network.now()
    }

    /// Returns the time of the next event, or `None` if there is none.
    #[must_use]
    pub fn next_event(&self) -> Option<Instant> {
        self.network.next_event()
    }

    /// Advances time to the next event and executes it. Returns `false` if there is none. Not for networks
    /// in a simulation.
    #[expect(clippy::must_use_candidate, reason = "it is called for what it does")]
    pub fn step(&self) -> bool {
        self.network.step()
    }

    /// Advances time to `instant`, unless that has passed, and executes all events that are due. Returns
    /// whether there were any. Not for networks in a simulation.
    #[expect(clippy::must_use_candidate, reason = "it is called for what it does")]
    pub fn advance_to(&self, instant: Instant) -> bool {
        self.network.advance_to(instant)
    }

    // -------------------------------------------------------------- crashes and stops

    /// Crashes a NIC, as if its process were killed: it no longer sends or receives, and calls on it
    /// fail. Peers notice after [`FaultPlan::detection`].
    pub fn crash(&self, nic: NicId) {
        self.at(nic, |world| world.crash(nic.0));
    }

    /// Crashes a NIC at `instant`.
    pub fn crash_at(&self, nic: NicId, instant: Instant) {
        self.at(nic, |world| {
            world.schedule(instant, SimEvent::Crash { nic: nic.0 });
        });
    }

    /// Crashes a NIC when it is about to make its transmission number `index`, counted from 0 over its
    /// life, so `index` of them are made. An index that it has already passed is never reached.
    pub fn crash_at_transmission(&self, nic: NicId, index: u64) {
        self.at(nic, |world| world.nics[nic.0].crashes_at = Some(index));
    }

    /// Returns how many transmissions a NIC has made: packets of any kind.
    #[must_use]
    pub fn transmissions(&self, nic: NicId) -> u64 {
        self.at(nic, |world| world.nics[nic.0].transmissions).unwrap_or(0)
    }

    /// Returns whether a NIC has crashed.
    #[must_use]
    pub fn has_crashed(&self, nic: NicId) -> bool {
        self.at(nic, |world| world.nics[nic.0].has_crashed).unwrap_or(false)
    }

    /// Freezes a NIC, as if its process were stopped: packets that arrive and packets to send wait.
    pub fn freeze(&self, nic: NicId) {
        self.at(nic, |world| world.freeze(nic.0));
    }

    /// Resumes a frozen NIC.
    pub fn unfreeze(&self, nic: NicId) {
        self.at(nic, |world| world.unfreeze(nic.0));
    }

    /// Breaks every connection between two NICs, on both sides at once.
    pub fn cut(&self, one: NicId, other: NicId) {
        self.at(one.max(other), |world| world.cut(one.0, other.0));
    }

    // -------------------------------------------------------------- what happened

    /// Returns counts of what really happened.
    #[must_use]
    pub fn counts(&self) -> FaultCounts {
        self.lock().counts
    }

    /// Returns a hash of everything that happened, and when: equal for equal runs.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.network.trace_hash()
    }

    fn lock(&self) -> Locked<'_> {
        lock(&self.world)
    }

    /// Applies `act` to a NIC, unless this network has no such NIC.
    fn at<T>(&self, nic: NicId, act: impl FnOnce(&mut NetworkState) -> T) -> Option<T> {
        let mut world = self.lock();
        (nic.0 < world.nics.len()).then(|| act(&mut world))
    }
}

/// The time of a network, for what is given a clock.
impl Clock for SimNetwork {
    fn now(&self) -> Instant {
        Self::now(self)
    }
}

const _: fn() = || {
    fn is_provider<P: Provider>() {}
    is_provider::<SimNic>();
};
