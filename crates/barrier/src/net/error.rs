//! The error of forming a group.

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

/// The reason why a group was not formed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FormationError {
    /// No network was given.
    #[error("no network was given: name one with `NetBuilder::network`")]
    NoNetwork,
    /// There must be one or two.
    #[error("{count} networks were given: a barrier uses one or two")]
    TooManyNetworks {
        /// The number given.
        count: usize,
    },
    /// The group has no members, or too many.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The group has no such rank.
    #[error("a group of {size} has no {rank}: ranks are counted from 0")]
    Rank {
        /// The requested rank.
        rank: Rank,
        /// The size of the group.
        size: u32,
    },
    /// The algorithm does not suit the group.
    #[error(transparent)]
    Algorithm(#[from] AlgorithmError),
    /// A setting is out of range.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// The datagram interface failed.
    #[error(transparent)]
    Datagram(#[from] DatagramError),
    /// The launcher's world failed.
    #[error(transparent)]
    World(#[from] WorldError),
    /// The longest message does not fit into a datagram.
    #[error(
        "the reduction makes packets of {needed} bytes, but a datagram takes {max}: raise the MTU, or reduce shorter values"
    )]
    TooLong {
        /// The size of a packet, in bytes.
        needed: usize,
        /// The size of a datagram, in bytes.
        max: usize,
    },
    /// A member was there, but is gone.
    #[error("{rank} was gone before the group was formed")]
    Gone {
        /// The member.
        rank: Rank,
    },
    /// A member has different settings.
    #[error(
        "{rank} has another algorithm, reduction, timeout or number of networks than this member: all must be the same"
    )]
    Different {
        /// The member.
        rank: Rank,
    },
    /// A member's address cannot be decoded.
    #[error("{rank} gave an address of another kind: all members need the same kind of network")]
    Address {
        /// The member.
        rank: Rank,
    },
    /// The members did not all arrive in time.
    #[error("the members did not meet in time{}", address.map_or(String::new(), |address| format!(
        " at {address}: is rank 0 running there, is the port open, and do all have the same size and secret?"
    )))]
    TimedOut {
        /// The meeting address.
        address: Option<SocketAddr>,
    },
    /// Members did not come in time; reported by rank 0.
    #[error(
        "{ranks} missing at {address}: were they all started, can they reach it, and do they have the same size and secret?{}",
        rejected(*rejected_count)
    )]
    Missing {
        /// The meeting address.
        address: SocketAddr,
        /// The members that did not come, or were turned away.
        ranks: LostRanks,
        /// The callers that were turned away, since their secret, size or rank was a different one. The log has the reasons of the
        /// first ten.
        rejected_count: u32,
    },
    /// Rank 0 closed the connection: it has another secret, another size, a member with this rank already, or has
    /// given up.
    #[error("rank 0 at {address} hung up: check secret, size and rank, and rank 0's own error")]
    Refused {
        /// The address of rank 0.
        address: SocketAddr,
    },
    /// The bootstrap failed.
    #[error("the bootstrap at {address} failed: {source}{}", remedy(source))]
    Bootstrap {
        /// The meeting address.
        address: SocketAddr,
        /// The error of the kernel or of the other side.
        #[source]
        source: io::Error,
    },
    /// There is no detection server here.
    #[error(transparent)]
    NoServer(#[from] NoServer),
    /// The host thread could not be created.
    #[error("no thread could be created to host the barrier: {0}")]
    Host(#[source] io::Error),
    /// The detection server has ended.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// The costs could not be measured.
    #[error("measuring the network's costs failed: {0}")]
    Measure(#[from] MeasureError),
    /// The barrier could not be registered at the server.
    #[error(transparent)]
    Barrier(#[from] BarrierError),
}

/// Says how many callers were turned away.
fn rejected(count: u32) -> String {
    match count {
        0 => String::new(),
        count => format!(
            " Callers turned away for another secret, size or rank: {count} (warnings in the log name the first ten)"
        ),
    }
}

/// Returns what to do about an error at the meeting address, if that is known.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrNotAvailable => {
            ": rank 0 listens there, so it must be an address of rank 0's own host"
        }
        io::ErrorKind::AddrInUse => {
            ": another program has this port, or another member is rank 0 as well; `ss -tlnp` lists who listens"
        }
        _ => "",
    }
}
