//! Messages between processes of one host: what vigie's cost, beside limits and peers.
//!
//! | measure | two pinned processes, except for rings | figure |
//! | --- | --- | --- |
//! | [`Measure::Latency`] | a message goes there and back | time one way |
//! | [`Measure::Window`] | 64 messages, then one byte back | messages and bytes per second |
//! | [`Measure::Synchronous`] | as latency, but each send completes at its match | time one way |
//! | [`Measure::Loaned`] | as latency, in a buffer of the system's own, which nobody copies | time one way |
//! | [`Measure::Waiting`] | as latency, to a peer that has been idle for [`REST`](plan::REST) | time one way |
//! | [`Measure::Quiet`] | nothing comes | processor time of who waits |
//! | [`Measure::Ring`] | a token goes around 4 to 32 ranks on two cores | time and processor time per hop |
//!
//! A [`Carrier`] is a system that carries messages: a limit written here, vigie, or a peer.
//! [`carriers`] lists them. What has ranks in processes of this program implements [`PingPong`]:
//! the same few roles that the stopwatch, the command and `benches/pingpong.rs` use.
//!
//! # Adding a system
//! Implement [`PingPong`] (a rank that already has blocking `send` and `receive` gets it from
//! [`Blocking`]), give an [`Own`] its name and how it opens a rank, and name it in [`own_carriers`].

pub(crate) mod arena;
mod blocking;
pub mod datagram;
pub(crate) mod found;
mod limit;
mod measure;
pub(crate) mod message_layer;
mod missing;
mod names;
pub mod partner;
pub mod plan;
pub mod plot;
pub(crate) mod program;
pub(crate) mod ranks;
pub mod remote;
pub(crate) mod seat;
mod socket;
mod stopwatch;
mod tables;
pub(crate) mod virtual_interface;

pub use self::blocking::{Blocking, Channel};
pub use self::measure::Measure;
pub use self::missing::Missing;
pub use self::names::{UnknownCarrier, carrier, named, own};
pub use self::ranks::Own;
pub use self::seat::Seat;
pub use self::stopwatch::Played;

use std::fmt::Debug;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::{BenchError, Failure};

/// Name of vigie's message layer in results: `send` and `recv` of a communicator, awaited.
pub const VIGIE: &str = "vigie";

/// Name of vigie's Virtual Interface layer in results: RDMA write with immediate.
pub const VIGIE_VI: &str = "vigie-vi";

/// Returns every system that carries messages, in the order of the tables: vigie's own, the limits,
/// the peers.
#[must_use]
pub fn carriers() -> Vec<&'static dyn Carrier> {
    let own = own_carriers().iter().map(|&own| own as &dyn Carrier);
    let (own, sockets): (Vec<_>, Vec<_>) = own.partition(|own| own.kind() != Kind::Peer);
    let programs: [&dyn Carrier; 6] = [
        &program::mpi::OPEN_MPI,
        &program::mpi::OPEN_MPI_COPY,
        &program::mpi::MPICH,
        &program::ucx::UCX,
        &program::iceoryx2::COPY,
        &program::iceoryx2::ZERO_COPY,
    ];
    own.into_iter().chain(programs).chain(sockets).collect()
}

/// Returns the systems whose ranks are processes of this program: a new one is named here.
#[must_use]
pub const fn own_carriers() -> &'static [&'static Own] {
    OWN
}

static OWN: &[&Own] = &[
    &message_layer::MESSAGES,
    &virtual_interface::VIRTUAL_INTERFACE,
    &limit::MAILBOX,
    &limit::RING,
    &limit::COPY_RING,
    &limit::FUTEX_MAILBOX,
    &limit::YIELD_RING,
    &socket::TCP,
    &socket::TCP_BLOCKING,
    &socket::UDS,
    &socket::UDS_BLOCKING,
];

/// What sort of system carries the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there is nobody else")]
pub enum Kind {
    /// vigie itself.
    Vigie,
    /// What the machine allows: a few lines of our own, which do nothing that could be left out.
    Limit,
    /// Somebody else's system, or the kernel's.
    Peer,
}

/// A system that carries messages between processes of one host.
pub trait Carrier: Debug + Sync {
    /// Returns the name on the command line and in results.
    fn name(&self) -> &'static str;

    /// Returns the label of rows in tables.
    fn label(&self) -> &'static str;

    /// Returns the word of `--peers` that stands for this system and those of the same origin.
    fn family(&self) -> &'static str {
        self.name()
    }

    /// Tells what sort of system this is.
    fn kind(&self) -> Kind;

    /// Tells whether the system has this measure.
    fn has(&self, measure: Measure) -> bool;

    /// Makes sure that the system is on this machine, and builds what it needs.
    ///
    /// # Errors
    /// What is missing, and how to get it. The system is then skipped.
    fn prepare(&self) -> Result<Box<dyn Prepared + '_>, Missing>;
}

/// A system that can be measured now. Dropping it removes what was built for it.
pub trait Prepared {
    /// Takes all measures of `run`, in its order, in processes of their own that end with this call.
    ///
    /// # Errors
    /// Those of the processes.
    fn measure(&self, run: &Run) -> Result<Vec<Played>, BenchError>;
}

/// The roles of one rank.
///
/// Rank 0 leads: it alone looks at the clock, and calls [`perform`](Self::perform) until it has seen
/// enough, then [`stop`](Self::stop). The others [`follow`](Self::follow) it meanwhile. Ranks form a
/// ring: each sends to the next and receives from the one before; of two, these are the same.
///
/// A rank need not look whether its peers live: the parent ends all ranks of a run in which one fails
/// or says nothing for too long.
pub trait PingPong {
    /// Leads `count` operations of `measure` (round trips, windows, laps of the token) and returns when
    /// the last has come back.
    ///
    /// # Errors
    /// Those of the system.
    fn perform(&mut self, measure: Measure, count: u32) -> Result<(), Failure>;

    /// Tells all followers that `measure` is over, and returns when they know.
    ///
    /// # Errors
    /// Those of the system.
    fn stop(&mut self, measure: Measure) -> Result<(), Failure>;

    /// Plays a follower's part of `measure` until rank 0 stops it.
    ///
    /// # Errors
    /// Those of the system.
    fn follow(&mut self, measure: Measure) -> Result<(), Failure>;
}

/// Measures that the same ranks take one after the other.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Run {
    /// The measures, in order.
    pub measures: Vec<Measure>,
    /// Time per measure.
    pub budget: Duration,
    /// Number of ranks: 2, or those of a ring.
    pub ranks: u32,
    /// The cores: of two ranks each has its own, more share them.
    pub cores: Vec<usize>,
    /// The network namespaces that the ranks enter, by rank; a rank for which there is none stays.
    pub namespaces: Vec<PathBuf>,
}

impl Run {
    /// How long is waited for the next measure's result before the run is given up.
    pub(crate) fn patience(&self) -> Duration {
        // What has more ranks than cores may take many times its budget for a single lap.
        const SLACK: Duration = Duration::from_secs(30);
        self.budget * 4 + SLACK
    }

    /// The network namespace of a rank, if it is another than this process's.
    pub(crate) fn namespace_of(&self, rank: u32) -> Option<PathBuf> {
        usize::try_from(rank).ok().and_then(|rank| self.namespaces.get(rank)).cloned()
    }

    /// The core of a rank, or all of them if there are more ranks than cores.
    pub(crate) fn cores_of(&self, rank: u32) -> Vec<usize> {
        let own = usize::try_from(rank).ok().and_then(|rank| self.cores.get(rank));
        match own {
            Some(&core) if self.ranks == 2 => vec![core],
            _ => self.cores.clone(),
        }
    }
}
