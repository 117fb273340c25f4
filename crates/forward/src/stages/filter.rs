//! Rules for the packets that may pass.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
};

use vigie_via::link::EtherType;

use super::verdict::{UNREADABLE, Verdict};
use crate::{
    drop_reason::DropReason,
    packet::{Headers, Packet, Port},
    tables::Prefix,
};

/// The action of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "it passes, or it does not")]
pub enum Action {
    /// It passes.
    Accept,
    /// It is dropped, for the filter's [reason](Filter::reason).
    Drop,
}

/// An action, and conditions for the packets to which it applies. Without conditions a rule matches everything.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a filter takes it"]
pub struct FilterRule {
    action: Action,
    ingress: Option<Port>,
    ether_type: Option<EtherType>,
    source: Option<Prefix>,
    destination: Option<Prefix>,
    protocol: Option<u8>,
    source_ports: Option<RangeInclusive<u16>>,
    destination_ports: Option<RangeInclusive<u16>>,
}

impl FilterRule {
    /// Creates a rule for every packet.
    pub const fn new(action: Action) -> Self {
        Self {
            action,
            ingress: None,
            ether_type: None,
            source: None,
            destination: None,
            protocol: None,
            source_ports: None,
            destination_ports: None,
        }
    }

    vigie_detect::setters! {
        /// Matches packets that arrived on a port.
        ingress: Port => Some,

        /// Matches frames of a protocol, after VLAN tags.
        ether_type: EtherType => Some,

        /// Matches IP packets from these addresses.
        source: Prefix => Some,

        /// Matches IP packets to these addresses.
        destination: Prefix => Some,

        /// Matches IP packets with this protocol number, including later fragments.
        protocol: u8 => Some,

        /// Matches TCP and UDP from these ports. A later fragment has none, and does not match.
        source_ports: RangeInclusive<u16> => Some,

        /// Matches TCP and UDP to these ports. A later fragment has none, and does not match.
        destination_ports: RangeInclusive<u16> => Some,
    }

    /// Returns the action.
    #[must_use]
    pub const fn action(&self) -> Action {
        self.action
    }

    /// Returns the port and the Ethernet protocol to match.
    #[must_use]
    pub const fn frames(&self) -> (Option<Port>, Option<EtherType>) {
        (self.ingress, self.ether_type)
    }

    /// Returns the addresses and the IP protocol to match.
    #[must_use]
    pub const fn packets(&self) -> (Option<Prefix>, Option<Prefix>, Option<u8>) {
        (self.source, self.destination, self.protocol)
    }

    /// Returns the ports of TCP and UDP to match.
    #[must_use]
    pub const fn ports(&self) -> (Option<&RangeInclusive<u16>>, Option<&RangeInclusive<u16>>) {
        (self.source_ports.as_ref(), self.destination_ports.as_ref())
    }

    fn means(&self, ingress: Port, headers: &Headers, frame: &[u8]) -> bool {
        if self.ingress.is_some_and(|port| port != ingress)
            || self.ether_type.is_some_and(|ether_type| ether_type != headers.ether_type)
        {
            return false;
        }

        if let Some(protocol) = self.protocol
            && (!headers.is_ip() || protocol != headers.protocol)
        {
            return false;
        }

        if self.source.is_some() || self.destination.is_some() {
            let Some((source, destination)) = headers.addresses(frame) else { return false };
            if self.source.is_some_and(|prefix| !prefix.contains(source))
                || self.destination.is_some_and(|prefix| !prefix.contains(destination))
            {
                return false;
            }
        }

        if self.source_ports.is_some() || self.destination_ports.is_some() {
            let Some((source, destination)) = headers.ports(frame) else { return false };
            if self.source_ports.as_ref().is_some_and(|ports| !ports.contains(&source))
                || self
                    .destination_ports
                    .as_ref()
                    .is_some_and(|ports| !ports.contains(&destination))
            {
                return false;
            }
        }

        true
    }
}

/// Passes or drops packets by its rules. The first matching rule decides.
///
/// Later fragments have no ports: a filter that drops by ports lets them pass, but they are useless without their first
/// one; a filter that accepts by ports, and drops the rest, drops them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a pipeline takes it"]
pub struct Filter {
    rules: Vec<FilterRule>,
    default_action: Action,
    reason: DropReason,
}

/// Sources of packets that no router forwards.
const MARTIAN_SOURCES: [(IpAddr, u8); 8] = [
    (v4([0, 0, 0, 0]), 8),
    (v4([127, 0, 0, 0]), 8),
    (v4([224, 0, 0, 0]), 4),
    (v4([255, 255, 255, 255]), 32),
    (v6([0; 8]), 128),
    (v6([0, 0, 0, 0, 0, 0, 0, 1]), 128),
    (v6([0xfe80, 0, 0, 0, 0, 0, 0, 0]), 10),
    (v6([0xff00, 0, 0, 0, 0, 0, 0, 0]), 8),
];
/// And destinations.
const MARTIAN_DESTINATIONS: [(IpAddr, u8); 3] =
    [(v4([0, 0, 0, 0]), 8), (v4([127, 0, 0, 0]), 8), (v6([0, 0, 0, 0, 0, 0, 0, 1]), 128)];

const fn v4([a, b, c, d]: [u8; 4]) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

const fn v6([a, b, c, d, e, f, g, h]: [u16; 8]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h))
}

impl Filter {
    /// Creates a filter that applies `action` to packets that no rule matches.
    pub const fn with_default(action: Action) -> Self {
        Self { rules: Vec::new(), default_action: action, reason: DropReason::Filtered }
    }

    /// Creates a filter that drops packets with addresses that a router must not forward ([`DropReason::Martian`]): from
    /// this network or host, loopback, groups and broadcast, with IPv6 also from link-local addresses; and
    /// to this network and loopback.
    ///
    /// # Source
    /// RFC 1812, §5.3.7; RFC 4291, §2.5 and §2.7; and what Linux forwards: from 240.0.0.0/4 except broadcast, and from
    /// 169.254.0.0/16.
    pub fn martians() -> Self {
        let prefix = |(address, bits): &(IpAddr, u8)| Prefix::new(*address, *bits).ok();
        let drop = || FilterRule::new(Action::Drop);
        let by = |rule: &dyn Fn(Prefix) -> FilterRule, list: &[(IpAddr, u8)]| -> Vec<FilterRule> {
            list.iter().filter_map(prefix).map(rule).collect()
        };
        let mut rules = by(&|prefix| drop().source(prefix), &MARTIAN_SOURCES);
        rules.extend(by(&|prefix| drop().destination(prefix), &MARTIAN_DESTINATIONS));
        Self { rules, default_action: Action::Accept, reason: DropReason::Martian }
    }

    /// Sets the reason for its drops. Default: [`DropReason::Filtered`].
    pub const fn reason(mut self, reason: DropReason) -> Self {
        self.reason = reason;
        self
    }

    /// Returns the reason for its drops.
    #[must_use]
    pub const fn drop_reason(&self) -> DropReason {
        self.reason
    }

    /// Appends a rule.
    pub fn rule(mut self, rule: FilterRule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Returns the rules, in order.
    pub fn rules(&self) -> &[FilterRule] {
        &self.rules
    }

    /// Returns the action for packets that no rule matches.
    #[must_use]
    pub const fn default_action(&self) -> Action {
        self.default_action
    }

    /// Passes or drops a packet.
    #[inline]
    pub(super) fn decide(&self, packet: &mut Packet) -> Verdict {
        let Ok(headers) = packet.headers() else { return UNREADABLE };
        let rule =
            self.rules.iter().find(|rule| rule.means(packet.ingress(), &headers, packet.bytes()));
        match rule.map_or(self.default_action, FilterRule::action) {
            Action::Accept => Verdict::Pass,
            Action::Drop => Verdict::Drop(self.reason),
        }
    }
}
