//! Attempts to connect, of this side and of callers.

use std::os::fd::OwnedFd;

use vigie_detect::Instant;

use super::{
    connection::ShmConnection,
    wire::{Hello, ShmAddress},
};
use crate::vi::Memory;

/// The stage of a connection attempt.
#[derive(Debug)]
pub(super) enum ConnectAttempt {
    /// The listener has no room yet.
    Dialing { to: ShmAddress, hello: Hello, ring: (OwnedFd, Memory), deadline: Instant },
    /// The hello is sent.
    Asked { to: ShmAddress, hello: Hello, socket: OwnedFd, ring: Memory, deadline: Instant },
    /// The other NIC will connect.
    Awaiting { from: ShmAddress, discriminator: Vec<u8>, greeting: Vec<u8>, deadline: Instant },
    /// The welcome is sent. If the caller has given up by then, a VI that awaits a peer continues with
    /// `again`.
    Agreed {
        connection: Box<ShmConnection>,
        greeting: Vec<u8>,
        deadline: Instant,
        again: Option<Box<Self>>,
    },
}

impl ConnectAttempt {
    pub(super) const fn deadline(&self) -> Instant {
        match self {
            Self::Dialing { deadline, .. }
            | Self::Asked { deadline, .. }
            | Self::Awaiting { deadline, .. }
            | Self::Agreed { deadline, .. } => *deadline,
        }
    }

    /// Returns whether this side is the one that connects in a peer-to-peer attempt with that NIC and
    /// discriminator.
    pub(super) fn calls_peer(&self, place: &ShmAddress, what: &[u8]) -> bool {
        match self {
            Self::Dialing { to, hello, .. } | Self::Asked { to, hello, .. } => {
                to == place && hello.from.is_some() && hello.discriminator == what
            }
            Self::Awaiting { .. } | Self::Agreed { .. } => false,
        }
    }
}

/// A process that has connected to the listener.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) socket: OwnedFd,
    /// The time at which it must have identified itself.
    pub(super) deadline: Instant,
    pub(super) known: Option<CallerHello>,
}

/// The greeting of a caller.
#[derive(Debug)]
pub(super) struct CallerHello {
    pub(super) hello: Hello,
    /// Its ring file and its page.
    pub(super) ring: Memory,
    pub(super) page: Memory,
}

/// The arguments of `connect` and `connect_peer`.
pub(super) struct ConnectRequest<'a> {
    pub(super) to: ShmAddress,
    pub(super) discriminator: &'a [u8],
    pub(super) greeting: &'a [u8],
    pub(super) deadline: Instant,
}
