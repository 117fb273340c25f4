//! Addresses that are replaced.

use std::net::IpAddr;

use vigie_detect::Instant;
use vigie_via::link::MacAddress;

use super::refused;
use crate::{
    model::{Sees, StageModel, Writes},
    packet::{EditError, Packet, Port},
    pipeline::{Offload, Stage, Stock, Verdict},
};

/// Replaces addresses of Ethernet and IP, with the checksums, and may say by which port packets leave.
///
/// A packet that has no address of that version of IP is dropped
/// ([`Reason::NotIp`](crate::pipeline::Reason::NotIp)) if one is to be replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "a pipeline takes it"]
pub struct Rewrite {
    source_mac: Option<MacAddress>,
    destination_mac: Option<MacAddress>,
    source: Option<IpAddr>,
    destination: Option<IpAddr>,
    port: Option<Port>,
    arrival: Option<Port>,
}

impl Rewrite {
    /// Creates a stage that replaces nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the sender's address of Ethernet.
    pub const fn source_mac(mut self, address: MacAddress) -> Self {
        self.source_mac = Some(address);
        self
    }

    /// Sets the receiver's address of Ethernet.
    pub const fn destination_mac(mut self, address: MacAddress) -> Self {
        self.destination_mac = Some(address);
        self
    }

    /// Sets the sender's address of IP.
    pub const fn source(mut self, address: IpAddr) -> Self {
        self.source = Some(address);
        self
    }

    /// Sets the receiver's address of IP.
    pub const fn destination(mut self, address: IpAddr) -> Self {
        self.destination = Some(address);
        self
    }

    /// Sets the port by which all leave.
    pub const fn send(mut self, port: Port) -> Self {
        self.port = Some(port);
        self
    }

    /// Means only what has arrived on a port. Default: everything.
    pub const fn arrival(mut self, port: Port) -> Self {
        self.arrival = Some(port);
        self
    }

    /// Returns both addresses of Ethernet, source first.
    #[must_use]
    pub const fn macs(&self) -> (Option<MacAddress>, Option<MacAddress>) {
        (self.source_mac, self.destination_mac)
    }

    /// Returns both addresses of IP, source first.
    #[must_use]
    pub const fn addresses(&self) -> (Option<IpAddr>, Option<IpAddr>) {
        (self.source, self.destination)
    }

    /// Returns on which port what is meant arrives; none: on any.
    #[must_use]
    pub const fn arrives(&self) -> Option<Port> {
        self.arrival
    }

    /// Returns the port by which all leave.
    #[must_use]
    pub const fn port(&self) -> Option<Port> {
        self.port
    }

    fn apply(&self, packet: &mut Packet) -> Result<(), EditError> {
        // What can fail goes first, so that nothing is changed then.
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

impl Stage for Rewrite {
    fn model(&self) -> StageModel {
        StageModel::new("rewrite").sees(Sees::Header).writes(Writes::Yes)
    }

    #[inline]
    fn process(&mut self, packet: &mut Packet, _: Instant) -> Verdict {
        if self.arrival.is_some_and(|port| port != packet.arrival()) {
            return Verdict::Pass;
        }
        match self.apply(packet) {
            Ok(()) => self.port.map_or(Verdict::Pass, Verdict::Send),
            Err(error) => refused(&error),
        }
    }

    fn offload(&self) -> Offload<'_> {
        Offload::Stock(Stock::Rewrite(self))
    }
}
