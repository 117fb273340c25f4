//! Blocks of ports, one for each inside host (deterministic NAT, RFC 7422).

use std::{net::IpAddr, num::NonZeroU16};

use super::super::prefix::{Prefix, key};

/// A block of ports for each host of some networks: the first host has the first block, and so on, in the order of the networks and of
/// the addresses in each. So the host behind a port is known without a log. All addresses of a network count.
///
/// # Source
/// RFC 7422, §2.1, with sequential assignment. *Deviation:* no ports are kept for hosts that need more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortBlocks {
    networks: Vec<Prefix>,
    size: NonZeroU16,
}

/// The block of a host, whose ports are inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a host and its ports")]
pub struct PortBlock {
    /// The host.
    pub host: IpAddr,
    /// Its first port.
    pub first: u16,
    /// Its last port.
    pub last: u16,
}

impl PortBlocks {
    /// Creates blocks of `size` ports for the hosts of `networks`.
    #[must_use]
    pub const fn new(networks: Vec<Prefix>, size: NonZeroU16) -> Self {
        Self { networks, size }
    }

    /// Returns the number of hosts; more than `u128` holds count as its maximum.
    #[must_use]
    pub fn hosts(&self) -> u128 {
        self.networks.iter().map(addresses).fold(0, u128::saturating_add)
    }

    /// Returns the number of whole blocks in a range of ports, inclusive.
    #[must_use]
    pub fn count(&self, (first, last): (u16, u16)) -> usize {
        let ports = (usize::from(last) + 1).saturating_sub(first.into());
        ports / usize::from(self.size.get())
    }

    /// Returns the block of a host in a range of ports, inclusive; `None` if it has none.
    #[must_use]
    pub fn of_host(&self, host: IpAddr, ports: (u16, u16)) -> Option<PortBlock> {
        let index = self.index_of(host).filter(|index| *index < self.count(ports))?;
        let size = self.size.get();
        let first = ports.0 + u16::try_from(index).ok()? * size;
        Some(PortBlock { host, first, last: first + (size - 1) })
    }

    pub(super) fn index_of(&self, host: IpAddr) -> Option<usize> {
        let mut before = 0_u128;
        for network in &self.networks {
            if network.contains(host) {
                let unused = if host.is_ipv4() { 96 } else { 0 };
                let at = (key(host) - key(network.address())) >> unused;
                return before.checked_add(at)?.try_into().ok();
            }
            before = before.saturating_add(addresses(network));
        }
        None
    }

    pub(super) const fn size(&self) -> u16 {
        self.size.get()
    }
}

fn addresses(network: &Prefix) -> u128 {
    let bits = if network.address().is_ipv4() { 32 } else { 128 };
    1_u128.checked_shl(bits - u32::from(network.length_bits())).unwrap_or(u128::MAX)
}
