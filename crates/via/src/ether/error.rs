//! The error of opening a NIC over Ethernet.

use std::io;

use thiserror::Error;

use super::encap::MTU_MIN;
use crate::link::OpenError;

/// The reason why a NIC over Ethernet was not opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EtherError {
    /// The link was not opened. A missing capability is named.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The port belongs to another NIC.
    #[error(
        "port {port} of the interface belongs to another NIC (`ss -xp` shows its process as the owner of \
         @{socket}): close that NIC, or use another port; 0 is any free port"
    )]
    PortTaken {
        /// The port.
        port: u16,
        /// The name of the abstract Unix socket that claims it.
        socket: String,
    },
    /// No free port was found.
    #[error("no free port was found on the interface: name one")]
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
    /// Frames of all protocols were requested.
    #[error("a NIC needs a protocol of its own, not all protocols: use an experimental one")]
    AllProtocols,
    /// The kernel refused.
    #[error("{what}: {source}")]
    Kernel {
        /// The operation.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl EtherError {
    pub(super) fn kernel<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> Self {
        move |error| Self::Kernel { what, source: error.into() }
    }
}
