//! The positions of all headers in a frame, found in one pass.

use std::net::IpAddr;

use vigie_via::link::EtherType;

use super::{
    error::{ParseError, Protocol},
    ethernet::Ethernet,
    ipv4::Ipv4,
    ipv6::Ipv6,
    transport::{Icmp, Tcp, check_udp},
};

/// The IP protocol number of TCP.
pub const TCP: u8 = 6;
/// The IP protocol number of UDP.
pub const UDP: u8 = 17;
/// The IP protocol number of ICMP, in IPv4.
pub const ICMP: u8 = 1;
/// The IP protocol number of ICMPv6.
pub const ICMPV6: u8 = 58;

/// The part of a packet that an IP fragment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Fragment {
    /// All of it.
    Whole,
    /// The first part, with the ports.
    First,
    /// A later part, without them.
    Later,
}

/// The network protocol of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Network {
    /// IP version 4.
    Ipv4,
    /// IP version 6.
    Ipv6,
    /// ARP.
    Arp,
    /// Something else.
    Other,
}

/// The transport protocol of an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP.
    Icmp,
    /// ICMPv6.
    Icmpv6,
    /// Something else, a later fragment, or not IP.
    Other,
}

/// The positions of all headers in a frame, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Headers {
    /// The number of VLAN tags.
    pub tags: usize,
    /// The protocol after the tags.
    pub ether_type: EtherType,
    /// The network protocol.
    pub network: Network,
    /// The start of the network header.
    pub network_at: usize,
    /// The part of a packet that it is.
    pub fragment: Fragment,
    /// The IP protocol number; 0 without IP.
    pub protocol: u8,
    /// The transport protocol.
    pub transport: Transport,
    /// The start of the transport header, in IP.
    pub transport_at: usize,
    /// The end of the packet. After it, Ethernet pads short frames.
    pub end_at: usize,
}

impl Headers {
    /// Parses all headers of a frame.
    ///
    /// A frame of an unknown protocol is checked up to its Ethernet header only. Known headers must be valid, except
    /// for checksums and options.
    ///
    /// # Cost
    /// One pass over the headers, without copies: some 10 ns.
    ///
    /// # Errors
    /// [`ParseError`].
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<Self, ParseError> {
        let ethernet = Ethernet::parse(frame)?;
        let network_at = ethernet.payload_at;
        let mut this = Self {
            tags: ethernet.tags.iter().flatten().count(),
            ether_type: ethernet.ether_type,
            network: Network::Other,
            network_at,
            fragment: Fragment::Whole,
            protocol: 0,
            transport: Transport::Other,
            transport_at: frame.len(),
            end_at: frame.len(),
        };

        let bytes = frame.get(network_at..).unwrap_or_default();
        let has_transport = match ethernet.ether_type {
            EtherType::IPV4 => {
                let packet = Ipv4::parse(bytes)?;
                this.network = Network::Ipv4;
                this.fragment = packet.fragment();
                this.protocol = packet.protocol();
                this.transport_at = network_at + packet.header_bytes();
                this.end_at = network_at + packet.total_bytes();
                true
            }
            EtherType::IPV6 => {
                let packet = Ipv6::parse(bytes)?;
                this.network = Network::Ipv6;
                this.fragment = packet.fragment();
                this.protocol = packet.protocol();
                this.transport_at = network_at + packet.transport_at();
                this.end_at = network_at + packet.total_bytes();
                true
            }
            EtherType(0x0806) => {
                super::arp::Arp::parse(bytes)?;
                this.network = Network::Arp;
                false
            }
            _ => false,
        };

        if has_transport && this.fragment != Fragment::Later {
            this.transport = this.parse_transport(frame)?;
        }

        Ok(this)
    }

    #[inline]
    fn parse_transport(&self, frame: &[u8]) -> Result<Transport, ParseError> {
        let bytes = frame.get(self.transport_at..self.end_at).unwrap_or_default();
        match (self.protocol, self.network) {
            (TCP, _) => Tcp::parse(bytes).map(|_| Transport::Tcp),
            (UDP, _) => check_udp(bytes, self.fragment == Fragment::Whole).map(|()| Transport::Udp),
            (ICMP, Network::Ipv4) => Icmp::parse(bytes).map(|_| Transport::Icmp),
            (ICMPV6, Network::Ipv6) => Icmp::parse(bytes).map(|_| Transport::Icmpv6),
            _ => Ok(Transport::Other),
        }
    }

    /// Returns whether this is an IP packet.
    #[must_use]
    pub const fn is_ip(&self) -> bool {
        matches!(self.network, Network::Ipv4 | Network::Ipv6)
    }

    /// Returns the addresses of an IP packet, source first.
    #[must_use]
    #[inline]
    pub fn addresses(&self, frame: &[u8]) -> Option<(IpAddr, IpAddr)> {
        match self.network {
            Network::Ipv4 => {
                let at = self.network_at + 12;
                let [a, b, c, d, e, f, g, h] = bytes_at(frame, at)?;
                Some((IpAddr::from([a, b, c, d]), IpAddr::from([e, f, g, h])))
            }
            Network::Ipv6 => {
                let source: [u8; 16] = bytes_at(frame, self.network_at + 8)?;
                let destination: [u8; 16] = bytes_at(frame, self.network_at + 24)?;
                Some((source.into(), destination.into()))
            }
            _ => None,
        }
    }

    /// Returns the ports of TCP or UDP, source first; `None` for later fragments.
    #[must_use]
    #[inline]
    pub fn ports(&self, frame: &[u8]) -> Option<(u16, u16)> {
        if !matches!(self.transport, Transport::Tcp | Transport::Udp) {
            return None;
        }
        let [a, b, c, d] = bytes_at(frame, self.transport_at)?;
        Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
    }

    /// Returns the position of the transport's checksum, in bytes from the start of the frame.
    #[must_use]
    pub const fn checksum_at(&self) -> Option<usize> {
        match self.transport {
            Transport::Tcp => Some(self.transport_at + 16),
            Transport::Udp => Some(self.transport_at + 6),
            Transport::Icmp | Transport::Icmpv6 => Some(self.transport_at + 2),
            Transport::Other => None,
        }
    }

    /// Returns whether the transport's checksum covers the addresses.
    pub(crate) const fn covers_addresses(&self) -> bool {
        matches!(self.transport, Transport::Tcp | Transport::Udp | Transport::Icmpv6)
    }
}

/// The bytes of a header that was parsed before.
#[inline]
fn bytes_at<const N: usize>(frame: &[u8], at: usize) -> Option<[u8; N]> {
    super::error::bytes_at(frame, at, Protocol::Ethernet).ok()
}
