//! Errors of parsing.

use thiserror::Error;

named! {
    /// A header in a frame.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum Protocol {
        /// The Ethernet header.
        Ethernet => "Ethernet",
        /// A VLAN tag.
        Vlan => "VLAN",
        /// ARP.
        Arp => "ARP",
        /// IP version 4.
        Ipv4 => "IPv4",
        /// IP version 6.
        Ipv6 => "IPv6",
        /// An IPv6 extension header.
        Extension => "IPv6 extension",
        /// TCP.
        Tcp => "TCP",
        /// UDP.
        Udp => "UDP",
        /// ICMP of either version.
        Icmp => "ICMP",
    }
}

/// The reason why bytes could not be parsed. Any sender on the network can cause these errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ParseError {
    /// The frame ends within a header.
    #[error("the {header} header needs {needs} bytes, but there are {has}")]
    Short {
        /// The protocol of the header.
        header: Protocol,
        /// Bytes required.
        needs: usize,
        /// Bytes available.
        has: usize,
    },
    /// More VLAN tags than supported.
    #[error("more than {max} nested VLAN tags")]
    TooManyTags {
        /// The limit.
        max: usize,
    },
    /// The version in the header is not the one that the frame announced.
    #[error("the {header} header says version {version}")]
    Version {
        /// The protocol of the header.
        header: Protocol,
        /// The version in it.
        version: u8,
    },
    /// An invalid header length.
    #[error("the {header} header says that it is {says} bytes long")]
    HeaderLength {
        /// The protocol of the header.
        header: Protocol,
        /// The length in it.
        says: usize,
    },
    /// A length that contradicts the frame or the packet's own header.
    #[error("the {header} header announces {says} bytes, but there are {has}")]
    Length {
        /// The protocol of the header.
        header: Protocol,
        /// The length in it.
        says: usize,
        /// Bytes available.
        has: usize,
    },
    /// A fragment that would end beyond the maximum packet length.
    #[error("a fragment at {offset} of {length} bytes ends beyond the longest packet")]
    Fragment {
        /// Its start in its packet, in bytes.
        offset: usize,
        /// Its length in bytes.
        length: usize,
    },
    /// More extension headers than supported.
    #[error("more than {max} IPv6 extension headers")]
    Extensions {
        /// The limit.
        max: usize,
    },
    /// ARP for other addresses than IPv4 over Ethernet.
    #[error("ARP for unsupported hardware {hardware} and protocol {protocol:#06x}")]
    Arp {
        /// The hardware type.
        hardware: u16,
        /// The protocol type.
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
