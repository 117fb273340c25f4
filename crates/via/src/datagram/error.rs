//! Nodes, and what can go wrong.

use std::{fmt, io, net::IpAddr};

use thiserror::Error;

use crate::link::{LinkError, MacAddress};

/// Whom a datagram is for, or comes from: an interface, or a group of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Node {
    /// Over a link.
    Mac(MacAddress),
    /// Over UDP.
    Ip(IpAddr),
}

impl Node {
    /// Returns whether this is a group.
    #[must_use]
    pub const fn is_group(self) -> bool {
        match self {
            Self::Mac(address) => address.is_multicast(),
            Self::Ip(address) => address.is_multicast(),
        }
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mac(address) => address.fmt(f),
            Self::Ip(address) => address.fmt(f),
        }
    }
}

impl From<MacAddress> for Node {
    fn from(address: MacAddress) -> Self {
        Self::Mac(address)
    }
}

impl From<IpAddr> for Node {
    fn from(address: IpAddr) -> Self {
        Self::Ip(address)
    }
}

/// Why something with datagrams failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DatagramError {
    /// The port has an owner.
    #[error(
        "port {number} has an owner already, {}: end that, or take another port number, address or base port",
        owner.map_or_else(
            || "this process or another one of the host (`ss -uanp` names it)".to_owned(),
            |owner| format!("process {owner}")
        )
    )]
    PortTaken {
        /// The port.
        number: u8,
        /// The process that has it, where the kernel tells.
        owner: Option<i32>,
    },
    /// The payload does not fit the interface's MTU; datagrams are not cut.
    #[error("a datagram of {length} bytes, but the interface takes {max}")]
    TooLong {
        /// The length in bytes.
        length: usize,
        /// The largest possible, in bytes.
        max: usize,
    },
    /// As many datagrams as may wait to be sent do so.
    #[error("as many datagrams as fit wait to be sent: wait for one of them")]
    Full,
    /// The node is of another kind: an address of IP on a link, or the other way round, or no group where one
    /// is needed.
    #[error("{node} is not {wanted}")]
    WrongNode {
        /// The node.
        node: Node,
        /// What was needed.
        wanted: &'static str,
    },
    /// Settings that leave no room for 256 ports, or for a byte.
    #[error("{name} is {value}, and must be {range}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: u32,
        /// What it may be.
        range: &'static str,
    },
    /// The interface is down; it may come up again.
    #[error("the interface is down")]
    Down,
    /// The interface is gone for good.
    #[error("the interface was removed; open it again when it is back")]
    Removed,
    /// The port was dropped while the datagram waited for room.
    #[error("the port was dropped before its datagram could be sent")]
    PortDropped,
    /// The detection server ended.
    #[error(transparent)]
    Wait(#[from] vigie_detect::WaitError),
    /// The device could not be brought to the detection server.
    #[error(transparent)]
    Register(#[from] vigie_detect::RegisterError),
    /// The kernel said no.
    #[error("{what}: {source}")]
    Kernel {
        /// What was to be done.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl DatagramError {
    /// Returns whether trying again later may help.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Full | Self::Down)
    }

    pub(super) fn kernel(what: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Kernel { what, source: source.into() }
    }
}

impl From<LinkError> for DatagramError {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Removed => Self::Removed,
            LinkError::Down => Self::Down,
            LinkError::Full => Self::Full,
            LinkError::TooLong { length, max } => Self::TooLong {
                length: length.saturating_sub(super::HEADER_BYTES),
                max: max.saturating_sub(super::HEADER_BYTES),
            },
            LinkError::Wait(error) => Self::Wait(error),
            LinkError::Kernel { what, source } => Self::Kernel { what, source },
        }
    }
}

/// A datagram that was not sent, and why.
#[derive(Debug, Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct SendFailed {
    /// Why.
    #[source]
    pub error: DatagramError,
    /// What was to be sent.
    pub payload: Vec<u8>,
}

/// A buffer for which a port has no room: it has 1024 already.
#[derive(Debug, Error)]
#[error("the port has as many buffers as it takes")]
#[non_exhaustive]
pub struct PostError {
    /// The buffer.
    pub buffer: Vec<u8>,
}
