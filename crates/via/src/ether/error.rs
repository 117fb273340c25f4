//! Why a NIC over Ethernet was not opened.

use std::io;

use thiserror::Error;

use super::MTU_MIN;
use crate::link::OpenError;

/// Why a NIC over Ethernet was not opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EtherError {
    /// The link was not opened; a missing right names itself.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The port has an owner.
    #[error(
        "port {port} of the interface belongs to another NIC (`ss -xp` shows its process as the owner of \
         @{socket}): let it go there, or take another one; 0 is any that is free"
    )]
    PortTaken {
        /// The port.
        port: u16,
        /// The name of the abstract Unix socket that says so.
        socket: String,
    },
    /// All ports that were tried have owners.
    #[error("no port of the interface was found to be free: name one")]
    NoPort,
    /// The interface's frames are too short.
    #[error(
        "the MTU of interface {name:?} is {mtu}, and a NIC needs {MTU_MIN}: `ip link set {name} mtu 1500`"
    )]
    MtuTooSmall {
        /// The interface.
        name: String,
        /// Its MTU in bytes.
        mtu: usize,
    },
    /// Frames of all protocols were asked for.
    #[error(
        "a NIC needs a protocol of its own, not all of them: take one of the experimental ones"
    )]
    AllProtocols,
    /// The kernel said no.
    #[error("{what}: {source}")]
    Kernel {
        /// What was to be done.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl EtherError {
    pub(super) fn kernel<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> Self {
        move |error| Self::Kernel { what, source: error.into() }
    }
}
