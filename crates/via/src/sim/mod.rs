//! The provider in virtual time: NICs on a network whose faults come from one seed.
//!
//! A [`SimNetwork`] is a discrete-event simulation. What is posted on one of its [`SimNic`]s takes its
//! turn on the NIC's link, travels, and arrives when virtual time gets there: by
//! [`SimNetwork::step`] and [`SimNetwork::advance_to`], or by [`Provider::progress`] of any of its NICs,
//! so that a [`vigie_detect::Simulation`] drives it without knowing of it. One seed and the same calls
//! lead to the same run, of which [`SimNetwork::trace_hash`] is the proof.
//!
//! What unreliable VIs send may be lost, doubled, held back and corrupted, as the [`FaultPlan`] says, and
//! [`SimNetwork::counts`] tells what really happened. What reliable VIs send arrives once and in order, or
//! the connection breaks: by a [crash](SimNetwork::crash_at_transmission), or a
//! [cut](SimNetwork::cut).
//!
//! # Examples
//! ```
//! use vigie_via::{sim::{FaultPlan, SimNetwork}, vi::{NicEvent, Provider}};
//!
//! let network = SimNetwork::new(42, FaultPlan::reliable());
//! let (mut server, mut client) = (network.nic(), network.nic());
//! server.listen(b"greeter")?;
//! # use vigie_via::vi::{Reliability, ViAttributes};
//! # let tag = client.create_tag();
//! # let vi = client.create_vi(ViAttributes {
//! #     reliability: Reliability::ReliableDelivery, tag, send_cq: None, receive_cq: None,
//! #     allows_write: false, allows_read: false,
//! # })?;
//! client.connect(vi, &server.address(), b"greeter", b"hello", vigie_detect::Instant::MAX)?;
//! while network.step() {}
//! assert!(matches!(server.event(), Some(NicEvent::Requested { greeting, .. }) if greeting == b"hello"));
//! # Ok::<(), vigie_via::vi::ViError>(())
//! ```

mod calls;
mod nic;
mod objects;
mod plan;
#[cfg(test)]
mod tests;
mod transfer;
mod world;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vigie_detect::Instant;

use self::{
    objects::NicIndex,
    world::{Happening, World},
};
use crate::vi::{Attributes, Provider};

pub use nic::SimNic;
pub use plan::{FaultCounts, FaultPlan};

/// A NIC of a [`SimNetwork`], for crashes and stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NicId(NicIndex);

impl NicId {
    /// Returns its number: NICs are counted from 0 in the order in which they were made.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0
    }
}

/// A network in virtual time. Clones are the same network.
///
/// It may be used from any thread, but only one that does everything itself gets the same run twice.
#[derive(Clone, Debug)]
pub struct SimNetwork {
    world: Arc<Mutex<World>>,
}

impl SimNetwork {
    /// Makes a network whose clock stands at zero and whose chance comes from `seed`.
    #[must_use]
    pub fn new(seed: u64, plan: FaultPlan) -> Self {
        Self { world: Arc::new(Mutex::new(World::new(seed, plan))) }
    }

    /// Makes a NIC with the attributes of [`Attributes::named`].
    #[must_use]
    pub fn nic(&self) -> SimNic {
        self.nic_with(Attributes::named("sim"))
    }

    /// Makes a NIC with limits of one's own, to meet them sooner.
    #[must_use]
    pub fn nic_with(&self, attributes: Attributes) -> SimNic {
        let index = self.lock().add_nic(attributes);
        SimNic::new(Arc::clone(&self.world), NicId(index), attributes)
    }

    /// Changes what goes wrong from now on.
    pub fn set_plan(&self, plan: FaultPlan) {
        self.lock().plan = plan;
    }

    // -------------------------------------------------------------- time

    /// Returns the present virtual time.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.lock().now)
    }

    /// Returns when the next thing happens, or `None` if nothing will.
    #[must_use]
    pub fn next_event(&self) -> Option<Instant> {
        self.lock().next_time().map(Instant::from_nanos)
    }

    /// Moves time to the next thing and lets it happen. Returns `false` if there is none.
    #[expect(clippy::must_use_candidate, reason = "it is called for what it does")]
    pub fn step(&self) -> bool {
        self.lock().step()
    }

    /// Moves time to `instant`, or not at all if that has passed, and lets everything happen that is due.
    /// Returns whether anything was.
    #[expect(clippy::must_use_candidate, reason = "it is called for what it does")]
    pub fn advance_to(&self, instant: Instant) -> bool {
        self.lock().advance_to(instant.as_nanos())
    }

    // -------------------------------------------------------------- crashes and stops

    /// Crashes a NIC, as if its process were killed: it sends and receives no more, and calls on it fail.
    /// Peers notice after [`FaultPlan::detection`].
    pub fn crash(&self, nic: NicId) {
        self.lock().crash(nic.0);
    }

    /// Crashes a NIC at `instant`.
    pub fn crash_at(&self, nic: NicId, instant: Instant) {
        self.lock().schedule(instant.as_nanos(), Happening::Crash { nic: nic.0 });
    }

    /// Crashes a NIC when it is about to make its transmission number `index`, counted from 0 over its
    /// life: that many are made. Zero of a NIC that has made one already is never reached.
    pub fn crash_at_transmission(&self, nic: NicId, index: u64) {
        self.lock().nics[nic.0].crashes_at = Some(index);
    }

    /// Returns how many transmissions a NIC has made: packets of any kind.
    #[must_use]
    pub fn transmissions(&self, nic: NicId) -> u64 {
        self.lock().nics[nic.0].transmissions
    }

    /// Returns whether a NIC has crashed.
    #[must_use]
    pub fn has_crashed(&self, nic: NicId) -> bool {
        self.lock().nics[nic.0].has_crashed
    }

    /// Stops a NIC, as if its process were stopped: what arrives and what it wants to send waits.
    pub fn freeze(&self, nic: NicId) {
        self.lock().freeze(nic.0);
    }

    /// Lets a NIC go on.
    pub fn unfreeze(&self, nic: NicId) {
        self.lock().unfreeze(nic.0);
    }

    /// Breaks every connection between two NICs, on both sides at once.
    pub fn cut(&self, one: NicId, other: NicId) {
        self.lock().cut(one.0, other.0);
    }

    // -------------------------------------------------------------- what happened

    /// Returns what really happened.
    #[must_use]
    pub fn counts(&self) -> FaultCounts {
        self.lock().counts
    }

    /// Returns a hash of everything that happened, and when: the same for runs that are the same.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.lock().trace
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }
}

/// Locks a world. A panic of another thread leaves it as it is.
fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

const _: fn() = || {
    fn is_provider<P: Provider>() {}
    is_provider::<SimNic>();
};
