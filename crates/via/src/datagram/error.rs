//! Nodes, and the errors of datagrams.

use std::{fmt, io, net::IpAddr};

use thiserror::Error;

use crate::link::{LinkError, MacAddress};

/// The sender or receiver of a datagram: an interface, or a group of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum NodeAddress {
    /// Over a link.
    Mac(MacAddress),
    /// Over UDP.
    Ip(IpAddr),
}

impl NodeAddress {
    /// Returns whether this is a group.
    #[must_use]
    pub const fn is_group(self) -> bool {
        match self {
            Self::Mac(address) => address.is_multicast(),
            Self::Ip(address) => address.is_multicast(),
        }
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mac(address) => address.fmt(f),
            Self::Ip(address) => address.fmt(f),
        }
    }
}

impl From<MacAddress> for NodeAddress {
    fn from(address: MacAddress) -> Self {
        Self::Mac(address)
    }
}

impl From<IpAddr> for NodeAddress {
    fn from(address: IpAddr) -> Self {
        Self::Ip(address)
    }
}

/// The reason why an operation on datagrams failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DatagramError {
    /// The port has an owner.
    #[error(
        "datagram port {number} has an owner already, {}: end that, or take another port (of a barrier: `NetBuilder::port`), address or base port",
        owner.map_or_else(
            || match udp_port {
                Some(port) => format!("UDP port {port} (`ss -uanp` names the process)"),
                None => "this process or another one of the host".to_owned(),
            },
            |owner| format!("process {owner}")
        )
    )]
    PortTaken {
        /// The port.
        number: u8,
        /// The process that owns it, if the kernel tells.
        owner: Option<i32>,
        /// The UDP port that is taken, on interfaces over UDP.
        udp_port: Option<u16>,
    },
    /// The payload exceeds the interface's MTU; datagrams are not fragmented.
    #[error("a datagram of {length} bytes, but the interface takes {max}")]
    TooLong {
        /// The length in bytes.
        length: usize,
        /// The longest possible, in bytes.
        max: usize,
    },
    /// The queue of datagrams that wait to be sent is full.
    #[error("the send queue is full: wait until a datagram has been sent")]
    Full,
    /// The node is of another kind: an IP address on a link, a MAC address over UDP, or not a group where one
    /// is needed.
    #[error("{node} is not {wanted}")]
    WrongNode {
        /// The node.
        node: NodeAddress,
        /// The kind of node that was needed.
        wanted: &'static str,
    },
    /// A setting leaves no room for 256 ports, or for a byte of payload.
    #[error("{name} is {value}, and must be {range}")]
    InvalidSetting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: u32,
        /// The allowed values.
        range: &'static str,
    },
    /// The interface is down; it may come up again.
    #[error("the interface is down")]
    Down,
    /// The interface is gone for good.
    #[error("the interface was removed; open it again when it is back")]
    Removed,
    /// The detection server ended.
    #[error(transparent)]
    Wait(#[from] vigie_detect::WaitError),
    /// The device could not be registered with the detection server.
    #[error(transparent)]
    Register(#[from] vigie_detect::RegisterError),
    /// The kernel refused an operation.
    #[error("{what}: {source}")]
    Kernel {
        /// The operation.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl DatagramError {
    /// Returns whether a later retry may succeed.
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
            // Datagrams are no segments.
            error @ (LinkError::NoSegments | LinkError::Segments(_)) => {
                Self::Kernel { what: "sending segments", source: io::Error::other(error) }
            }
            LinkError::Kernel { what, source } => Self::Kernel { what, source },
        }
    }
}

/// A datagram that was not sent, and the reason.
#[derive(Debug, Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct SendFailed {
    /// The reason.
    #[source]
    pub error: DatagramError,
    /// The payload of the datagram.
    pub payload: Vec<u8>,
}

/// A buffer that a port did not accept: it already has 1024.
#[derive(Debug, Error)]
#[error("the port already has 1024 buffers")]
#[non_exhaustive]
pub struct PostError {
    /// The buffer.
    pub buffer: Vec<u8>,
}
