//! The settings of a device over UDP.

use std::net::IpAddr;

use vigie_detect::setters;

use super::{DatagramError, HEADER_BYTES};

/// The addresses of datagrams over UDP.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
#[must_use = "a configuration does nothing until a device is opened with it"]
pub struct UdpConfig {
    pub(super) address: IpAddr,
    pub(super) base_port: u16,
    pub(super) mtu: u32,
}

impl UdpConfig {
    /// Makes a configuration with an address of this host, the only one on which the device listens. Peers send to it, so that
    /// an unspecified address (`0.0.0.0`, `::`) is refused when the device is opened.
    pub const fn new(address: IpAddr) -> Self {
        Self { address, base_port: 22_016, mtu: 1500 }
    }

    /// Checks the settings.
    pub(super) fn check(self) -> Result<Self, DatagramError> {
        // Peers learn it and send to it.
        if self.address.is_unspecified() || self.address.is_multicast() {
            let wanted = "an address of one interface of this host, which peers can send to";
            return Err(DatagramError::WrongNode { node: self.address.into(), wanted });
        }
        if self.base_port == 0 || self.base_port > u16::MAX - 255 {
            let range = "between 1 and 65280";
            let value = self.base_port.into();
            return Err(DatagramError::InvalidSetting { name: "base_port", value, range });
        }
        if !(576..=65_535).contains(&self.mtu) {
            let range = "between 576 and 65535";
            return Err(DatagramError::InvalidSetting { name: "mtu", value: self.mtu, range });
        }
        Ok(self)
    }

    /// Returns the longest datagram in bytes.
    pub(super) fn payload_max(&self) -> usize {
        let headers = if self.address.is_ipv4() { 20 + 8 } else { 40 + 8 };
        usize::try_from(self.mtu).unwrap_or(0).saturating_sub(headers + HEADER_BYTES)
    }

    setters! {
        /// Sets the UDP port of the device's port 0: 1 to 65 280, 22 016 by default. The device's port n uses the UDP port
        /// that is n higher. All nodes must use the same.
        base_port: u16,

        /// Sets the MTU of the network in bytes, including IP headers: 576 to 65 535, 1500 by default.
        mtu: u32,
    }
}
