//! Why a group was not formed.

use std::{io, net::SocketAddr};

use thiserror::Error;
use vigie_detect::{NoServer, WaitError};
use vigie_via::{datagram::DatagramError, world::WorldError};

use super::measure::MeasureError;
use crate::{
    algorithm::AlgorithmError,
    error::{BarrierError, LostRanks},
    group::{GroupError, Rank},
    member::MemberError,
};

/// Why a group was not formed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FormationError {
    /// No interface was given.
    #[error("no network was given: name one with `NetBuilder::network`")]
    NoNetwork,
    /// There are one or two.
    #[error("{count} networks were given: a barrier goes over one or two")]
    Networks {
        /// How many.
        count: usize,
    },
    /// The group has no such member, or too many.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// There is no such rank.
    #[error("a group of {size} has no {rank}: ranks are counted from 0")]
    Rank {
        /// Which was asked for.
        rank: Rank,
        /// How many there are.
        size: u32,
    },
    /// The algorithm does not suit the group.
    #[error(transparent)]
    Algorithm(#[from] AlgorithmError),
    /// A setting is out of range.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// The interface's part.
    #[error(transparent)]
    Datagram(#[from] DatagramError),
    /// The launcher's part.
    #[error(transparent)]
    World(#[from] WorldError),
    /// A message of the longest kind does not fit into a datagram.
    #[error(
        "the reduction makes packets of {needed} bytes, and a datagram takes {max}: raise the MTU, or reduce less"
    )]
    TooLong {
        /// What a packet needs, in bytes.
        needed: usize,
        /// What a datagram takes, in bytes.
        max: usize,
    },
    /// A member was there, and is gone.
    #[error("{rank} is gone before the group was formed")]
    Gone {
        /// Which.
        rank: Rank,
    },
    /// A member has other settings.
    #[error(
        "{rank} has another algorithm, reduction, timeout or number of networks than this member: all need the same"
    )]
    Different {
        /// Which.
        rank: Rank,
    },
    /// What a member said cannot be understood.
    #[error("{rank} gave an address of another kind: all members need the same kind of network")]
    Address {
        /// Which.
        rank: Rank,
    },
    /// Not all were there in time.
    #[error("the members did not meet in time{}", place.map_or(String::new(), |place| format!(
        " at {place}: is rank 0 running there, is the port open, and do all have the same size and secret?"
    )))]
    TimedOut {
        /// Where they were to meet.
        place: Option<SocketAddr>,
    },
    /// Members did not come in time: rank 0 says so.
    #[error(
        "{ranks} missing at {place}: were they all started, can they reach it, and have they the same size and secret?"
    )]
    Missing {
        /// Where they were to meet.
        place: SocketAddr,
        /// Who did not come, or was sent away.
        ranks: LostRanks,
    },
    /// Rank 0 hung up: it has another secret, another size, a member of this rank already, or has given up.
    #[error(
        "rank 0 at {place} hung up: see whether secret, size and rank are right, and what rank 0 says"
    )]
    Refused {
        /// Where rank 0 is.
        place: SocketAddr,
    },
    /// The meeting cannot be held.
    #[error("meeting at {place}")]
    Meeting {
        /// Where.
        place: SocketAddr,
        /// What the kernel, or the other side, says.
        #[source]
        source: io::Error,
    },
    /// There is no detection server here.
    #[error(transparent)]
    NoServer(#[from] NoServer),
    /// No host thread can be had.
    #[error("no thread to host the barrier")]
    Host(#[source] io::Error),
    /// The detection server has ended.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// The costs were not found.
    #[error("measuring what the network costs")]
    Measure(#[from] MeasureError),
    /// The barrier cannot be hosted.
    #[error(transparent)]
    Barrier(#[from] BarrierError),
}
