//! Replaces addresses.

use std::net::IpAddr;

use vigie_via::link::MacAddress;

use super::verdict::{Verdict, refused};
use crate::packet::{EditError, Packet, Port};

/// Replaces Ethernet and IP addresses, updates the checksums, and may name the port of packets.
///
/// A packet without an IP address of the version to be replaced is dropped
/// ([`DropReason::NotIp`](crate::pipeline::DropReason::NotIp)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "a pipeline takes it"]
pub struct Rewrite {
    source_mac: Option<MacAddress>,
    destination_mac: Option<MacAddress>,
    source: Option<IpAddr>,
    destination: Option<IpAddr>,
    port: Option<Port>,
    ingress: Option<Port>,
}

impl Rewrite {
    /// Creates a stage that replaces nothing.
    pub fn new() -> Self {
        Self::default()
    }

    vigie_detect::setters! {
        /// Sets the Ethernet source address.
        source_mac: MacAddress => Some,

        /// Sets the Ethernet destination address.
        destination_mac: MacAddress => Some,

        /// Sets the IP source address.
        source: IpAddr => Some,

        /// Sets the IP destination address.
        destination: IpAddr => Some,
    }

    /// Sets the outgoing port.
    pub const fn send(mut self, port: Port) -> Self {
        self.port = Some(port);
        self
    }

    /// Applies only to packets that arrived on a port. Default: all packets.
    pub const fn ingress(mut self, port: Port) -> Self {
        self.ingress = Some(port);
        self
    }

    /// Returns both Ethernet addresses, source first.
    #[must_use]
    pub const fn macs(&self) -> (Option<MacAddress>, Option<MacAddress>) {
        (self.source_mac, self.destination_mac)
    }

    /// Returns both IP addresses, source first.
    #[must_use]
    pub const fn addresses(&self) -> (Option<IpAddr>, Option<IpAddr>) {
        (self.source, self.destination)
    }

    /// Returns the ingress port to which it applies; `None` for all.
    #[must_use]
    pub const fn arrives(&self) -> Option<Port> {
        self.ingress
    }

    /// Returns the outgoing port.
    #[must_use]
    pub const fn port(&self) -> Option<Port> {
        self.port
    }

    /// Edits a packet, if it arrived on the port.
    #[inline]
    pub(super) fn decide(&self, packet: &mut Packet) -> Verdict {
        if self.ingress.is_some_and(|port| port != packet.ingress()) {
            return Verdict::Pass;
        }
        match self.apply(packet) {
            Ok(()) => self.port.map_or(Verdict::Pass, Verdict::SetEgress),
            Err(error) => refused(&error),
        }
    }

    fn apply(&self, packet: &mut Packet) -> Result<(), EditError> {
        // Fallible edits come first, so that nothing is changed on failure.
        if self.source.is_some() || self.destination.is_some() {
            let headers = packet.headers()?;
            let families = [self.source, self.destination];
            let is_other = |address: IpAddr| {
                use crate::packet::Network::{Ipv4, Ipv6};
                headers.network != if address.is_ipv4() { Ipv4 } else { Ipv6 }
            };
            if families.into_iter().flatten().any(is_other) {
                return Err(EditError::NoField { field: "address of that version of IP" });
            }
        }

        if let Some(address) = self.source {
            packet.set_source(address)?;
        }
        if let Some(address) = self.destination {
            packet.set_destination(address)?;
        }
        if let Some(address) = self.source_mac {
            packet.set_source_mac(address);
        }
        if let Some(address) = self.destination_mac {
            packet.set_destination_mac(address);
        }

        Ok(())
    }
}
