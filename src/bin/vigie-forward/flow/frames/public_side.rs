//! The public side of translations: what was configured, and what this host says for the rest.

use std::{fs, net::Ipv4Addr};

use vigie::forward::tables::Prefix;

use crate::{
    config::{Nat, PORTS_DEFAULT, Ports, published_elsewhere, published_outside},
    flow::FlowError,
    kernel::{NetlinkCache, Target},
};

/// Fewer ports are no default: the host shares them among all.
const PORTS_MIN: u16 = 1000;

/// The address and the ports behind which inside hosts hide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PublicSide {
    pub(super) address: Ipv4Addr,
    pub(super) ports: Ports,
    /// The address is one of this host.
    pub(super) is_own: bool,
    /// The address was not configured: it is the outside interface's, and changes with it.
    pub(super) is_followed: bool,
    pub(super) reach: AddressReach,
}

/// The network that has the public address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressReach {
    /// The outside interface's, or it is this host's, wherever.
    Outside,
    /// An inside interface's alone.
    Inside,
    /// None on a link of the flow.
    Elsewhere,
}

impl PublicSide {
    pub(super) fn of(nat: &Nat, cache: &NetlinkCache) -> Result<Self, FlowError> {
        let outside = &nat.outside;
        let is_local = |address: &Ipv4Addr| {
            cache.target(Prefix::host((*address).into())) == Some(Target::Local)
        };
        let of_interface = || of_interface(outside, cache).filter(is_local);
        let address = nat.address.or_else(of_interface).ok_or_else(|| {
            FlowError::of_key("outside", format!(
                "interface `{outside}` has no address of IPv4 behind which to hide: give it one (`ip addr add`, or by DHCP before this \
                 starts), or name a free one of its network (`address`)"
            ))
        })?;
        let is_own = is_local(&address);
        check_address(nat, (address, is_own), cache)
            .map_err(|problem| FlowError::of_key("address", problem))?;
        let ports = nat.ports.unwrap_or_else(|| if is_own { own_ports() } else { PORTS_DEFAULT });
        for (at, one) in nat.publish.iter().enumerate() {
            let right =
                published_elsewhere(one, address).and_then(|()| published_outside(one, ports));
            right.map_err(|problem| FlowError::of_key(format!("publish.{at}"), problem))?;
        }
        let reach = reach(nat, (address, is_own), cache);
        Ok(Self { address, ports, is_own, is_followed: nat.address.is_none(), reach })
    }
}

/// Returns the address that an interface has, of the widest scope and the first of those. One of 169.254.0.0/16 reaches no other network.
pub(super) fn of_interface(name: &str, cache: &NetlinkCache) -> Option<Ipv4Addr> {
    let own = cache.own(cache.interface(name)?.index).ipv4;
    own.filter(|address| !address.is_link_local())
}

/// Checks that an address is one host's, and one of the outside network if this host has not got it.
fn check_address(
    nat: &Nat,
    (address, is_own): (Ipv4Addr, bool),
    cache: &NetlinkCache,
) -> Result<(), String> {
    let networks = |name: &String| {
        cache.interface(name).map_or(Vec::new(), |found| cache.networks(found.index))
    };
    // The length of the most specific network by which an interface reaches the address.
    let reaches = |name: &String| {
        let networks = networks(name).into_iter();
        let found = networks.filter(|network| bounds(network).contains(&address));
        found.map(|network| network.length_bits()).max()
    };
    let by_outside = reaches(&nat.outside);
    for inside in &nat.inside {
        if !is_own && reaches(inside) > by_outside {
            return Err(format!(
                "{address} is in a network behind `{inside}`: the public address is one of `{}`, or a free one of its network",
                nat.outside
            ));
        }
    }
    let all = nat.inside.iter().chain([&nat.outside]).flat_map(networks);
    for network in all
        .filter(|network| is_on_link(network, cache))
        .filter(|network| network.length_bits() < 31)
    {
        let bounds = bounds(&network);
        if [bounds.start(), bounds.end()].contains(&&address) {
            return Err(format!("{address} is the address of all hosts of {network}, not of one"));
        }
    }
    Ok(())
}

/// Finds the network on a link that has an address, of the outside interface first.
fn reach(nat: &Nat, (address, is_own): (Ipv4Addr, bool), cache: &NetlinkCache) -> AddressReach {
    let has = |name: &String| {
        let index = cache.interface(name).map(|found| found.index);
        let networks = index.map_or(Vec::new(), |index| cache.networks(index));
        networks
            .into_iter()
            .any(|network| bounds(&network).contains(&address) && is_on_link(&network, cache))
    };
    if has(&nat.outside) {
        AddressReach::Outside
    } else if nat.inside.iter().any(has) {
        AddressReach::Inside
    } else if is_own {
        AddressReach::Outside
    } else {
        AddressReach::Elsewhere
    }
}

fn is_on_link(network: &Prefix, cache: &NetlinkCache) -> bool {
    matches!(cache.target(*network), Some(Target::Via { gateway: None, .. }))
}

/// Returns the first and the last address of a network of IPv4.
fn bounds(network: &Prefix) -> std::ops::RangeInclusive<Ipv4Addr> {
    let std::net::IpAddr::V4(address) = network.address() else {
        return Ipv4Addr::BROADCAST..=Ipv4Addr::UNSPECIFIED;
    };
    let hosts = u32::MAX.checked_shr(network.length_bits().into()).unwrap_or(0);
    let first = address.to_bits() & !hosts;
    first.into()..=(first | hosts).into()
}

/// Returns the ports above those that the kernel gives to connections of the host's own.
fn own_ports() -> Ports {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    above(&range).unwrap_or(PORTS_DEFAULT)
}

fn above(range: &str) -> Option<Ports> {
    let last: u16 = range.split_whitespace().nth(1)?.parse().ok()?;
    (last <= u16::MAX - PORTS_MIN).then(|| Ports { first: last + 1, last: u16::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the ports above the kernel's own, if there are any. Method: settings as the kernel writes them.
    #[test]
    fn ports_are_above_the_kernels() {
        assert_eq!(above("32768\t60999\n"), Some(Ports { first: 61000, last: 65535 }));
        assert_eq!(above("1024\t64535\n"), Some(Ports { first: 64536, last: 65535 }));
        assert_eq!([above("1024\t64536\n"), above("1024\t65535\n"), above("")], [None; 3]);
    }

    /// Goal: the first and last address of networks of all lengths. Method: by hand.
    #[test]
    fn networks_have_bounds() {
        let found = |text: &str| {
            let bounds = bounds(&text.parse().expect("a network"));
            (bounds.start().to_string(), bounds.end().to_string())
        };
        let pair = |first: &str, last: &str| (first.to_owned(), last.to_owned());
        assert_eq!(found("10.2.0.0/24"), pair("10.2.0.0", "10.2.0.255"));
        assert_eq!(found("10.2.0.4/31"), pair("10.2.0.4", "10.2.0.5"));
        assert_eq!(found("10.2.0.4/32"), pair("10.2.0.4", "10.2.0.4"));
        assert_eq!(found("0.0.0.0/0"), pair("0.0.0.0", "255.255.255.255"));
        assert!(bounds(&"fd00::/8".parse().expect("a network")).is_empty());
    }
}
