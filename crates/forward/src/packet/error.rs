//! What is wrong with a frame that cannot be read.

use std::fmt;

use thiserror::Error;

/// A header that a frame may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protocol {
    /// The addresses of Ethernet, and the protocol.
    Ethernet,
    /// A tag of a VLAN.
    Vlan,
    /// Address resolution.
    Arp,
    /// IP version 4.
    Ipv4,
    /// IP version 6.
    Ipv6,
    /// An extension header of IP version 6.
    Extension,
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP of version 4 or 6.
    Icmp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ethernet => "Ethernet",
            Self::Vlan => "VLAN",
            Self::Arp => "ARP",
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
            Self::Extension => "IPv6 extension",
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Icmp => "ICMP",
        })
    }
}

/// Why bytes are not the headers that they begin like. Anybody on the network can send such bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ParseError {
    /// It ends within a header.
    #[error("the {header} header needs {needs} bytes, and {has} are there")]
    Short {
        /// Which header.
        header: Protocol,
        /// Bytes that it needs.
        needs: usize,
        /// Bytes that are there.
        has: usize,
    },
    /// More VLAN tags than are looked into.
    #[error("more than {max} VLAN tags, one in the other")]
    Tags {
        /// As many are read.
        max: usize,
    },
    /// The version in the header is not the one that the frame announced.
    #[error("the {header} header says version {version}")]
    Version {
        /// Which header.
        header: Protocol,
        /// What it says.
        version: u8,
    },
    /// A header says a length that it cannot have.
    #[error("the {header} header says that it is {says} bytes long")]
    HeaderLength {
        /// Which header.
        header: Protocol,
        /// What it says.
        says: usize,
    },
    /// A packet says a length that its frame, or its own header, contradicts.
    #[error("the {header} header announces {says} bytes, and {has} are there")]
    Length {
        /// Which header.
        header: Protocol,
        /// What it says.
        says: usize,
        /// Bytes that are there.
        has: usize,
    },
    /// A fragment that would end beyond the longest packet.
    #[error("a fragment at {offset} of {length} bytes ends beyond the longest packet")]
    Fragment {
        /// Where it begins in its packet, in bytes.
        offset: usize,
        /// Its length in bytes.
        length: usize,
    },
    /// More extension headers than are looked into.
    #[error("more than {max} IPv6 extension headers")]
    Extensions {
        /// As many are read.
        max: usize,
    },
    /// Addresses of resolution that are not those of IPv4 over Ethernet.
    #[error("ARP for hardware {hardware} and protocol {protocol:#06x}, which this does not know")]
    Arp {
        /// The kind of hardware.
        hardware: u16,
        /// The protocol's number.
        protocol: u16,
    },
}

/// Returns the first `N` bytes from `at` on.
#[inline]
pub(crate) fn bytes_at<const N: usize>(
    bytes: &[u8],
    at: usize,
    header: Protocol,
) -> Result<[u8; N], ParseError> {
    let rest = bytes.get(at..).unwrap_or_default();
    let short = ParseError::Short { header, needs: N, has: rest.len() };
    rest.first_chunk().copied().ok_or(short)
}
