//! Address translation.

mod fragments;
mod quoted;

#[cfg(test)]
mod tests;

use std::net::IpAddr;

use vigie_detect::Instant;

use self::fragments::Fragments;
use super::verdict::{UNREADABLE, Verdict, refused};
use crate::{
    drop_reason::DropReason,
    packet::{EditError, Fragment, Headers, Packet, Port, Tcp, Transport},
    tables::{NatEndpoint, NatError, NatTable, NatTuple, Prefix, TcpProgress},
};

/// The flows to translate, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NatRule {
    /// Flows that arrive on a port, from these addresses to other ones, get the source `external`, with a port from it.
    Source {
        /// Their ingress port.
        ingress: Port,
        /// Their source addresses.
        from: Prefix,
        /// Their new source address.
        external: IpAddr,
    },
    /// Flows to an endpoint are redirected to another one.
    Destination {
        /// The protocol's number: TCP or UDP.
        protocol: u8,
        /// The original destination.
        external: NatEndpoint,
        /// The new destination.
        internal: NatEndpoint,
    },
}

/// Translates the addresses and ports of TCP and UDP, and the addresses and identifiers of echoes.
///
/// Packets of flows in the table are translated, in both directions. Other packets start a flow if a rule matches them,
/// the first one that does, or if they come from a peer of a [mapping](NatTable); the rest pass unchanged, with two exceptions: packets to an external address that belong to
/// no flow are dropped ([`DropReason::NatUnknown`]), and so are packets that match a rule but have no ports or identifier
/// ([`DropReason::NatProtocol`]).
///
/// - Later fragments follow their first one, for a minute; one that comes before it waits for it up to 2 s, and is
///   dropped otherwise ([`DropReason::NatFragment`]).
/// - ICMP errors are translated together with the packet that they quote.
/// - A packet from inside to the external end of an inside host, published or mapped, is returned inside, with an
///   external source ("hairpinning"; RFC 4787, REQ-9).
#[derive(Debug)]
pub struct Nat {
    table: NatTable,
    rules: Vec<NatRule>,
    fragments: Fragments,
}

impl Nat {
    /// Creates a stage without rules, which translates the flows of a table.
    #[must_use]
    pub fn new(table: NatTable) -> Self {
        Self { table, rules: Vec::new(), fragments: Fragments::default() }
    }

    /// Appends a rule.
    #[must_use]
    pub fn rule(mut self, rule: NatRule) -> Self {
        if let NatRule::Destination { protocol, external, .. } = rule {
            self.table.reserve(protocol, external);
        }
        self.rules.push(rule);
        self
    }

    /// Returns the table of flows.
    #[must_use]
    pub const fn table(&self) -> &NatTable {
        &self.table
    }

    /// Returns the rules, in order.
    #[must_use]
    pub fn rules(&self) -> &[NatRule] {
        &self.rules
    }

    /// Translates a packet, or holds it until the first of its fragments comes.
    #[inline]
    pub(super) fn decide(&mut self, packet: &mut Packet, now: Instant) -> Verdict {
        let Ok(headers) = packet.headers() else { return UNREADABLE };

        let Some(addresses) = headers.addresses(packet.bytes()) else { return Verdict::Pass };
        if headers.fragment == Fragment::Later {
            return self.follow(packet, &headers, now);
        }

        let ingress = packet.ingress();
        let Some(tuple) = NatTuple::of(&headers, packet.bytes()) else {
            return match quoted::translate(&self.table, packet, &headers) {
                Some(verdict) => verdict,
                None => self.without_flow(ingress, addresses, DropReason::NatProtocol),
            };
        };

        let tcp = progress(&headers, packet.bytes());
        let becomes = match self.table.translate(&tuple, tcp.as_ref(), now) {
            Some(becomes) => becomes,
            None => match self.open(packet, tuple, tcp.as_ref(), now) {
                Ok(Some(becomes)) => becomes,
                Ok(None) => return self.without_flow(ingress, addresses, DropReason::NatUnknown),
                Err(NatError::Ports { .. }) => return Verdict::Drop(DropReason::NatPorts),
                Err(NatError::Host { .. } | NatError::NoBlock { .. }) => {
                    return Verdict::Drop(DropReason::NatHost);
                }
                Err(NatError::Full { .. }) => return Verdict::Drop(DropReason::NatFull),
                Err(NatError::Conflict) => return Verdict::Drop(DropReason::NatUnknown),
            },
        };

        if headers.fragment == Fragment::First
            && let Some(key) = fragments::key(&headers, packet.bytes())
        {
            let becomes = (becomes.source.address, becomes.destination.address);
            self.fragments.note(key, becomes, now);
        }

        match replace(packet, &tuple, &becomes) {
            Ok(()) => Verdict::Pass,
            Err(error) => refused(&error),
        }
    }

    /// Gives out the next packet that waits no longer, with its verdict.
    pub(super) fn give_out(&mut self, now: Instant) -> Option<(Packet, Verdict)> {
        if let Some(mut packet) = self.fragments.take_follower() {
            let verdict = self.decide(&mut packet, now);
            return Some((packet, verdict));
        }
        let packet = self.fragments.take_dropped(now)?;
        Some((packet, Verdict::Drop(DropReason::NatFragment)))
    }

    /// Returns when the next packet waits no longer.
    pub(super) fn next_end(&self, now: Instant) -> Option<Instant> {
        self.fragments.next_end(now)
    }

    /// Returns the number of packets that wait.
    pub(super) fn waiting_packets(&self) -> usize {
        self.fragments.held_packets()
    }

    /// Starts a flow, if a rule or a mapping matches. An answer starts none.
    fn open(
        &self,
        packet: &Packet,
        tuple: NatTuple,
        tcp: Option<&TcpProgress>,
        now: Instant,
    ) -> Result<Option<NatTuple>, NatError> {
        if tuple.is_echo_reply {
            return Ok(None);
        }

        let NatTuple { protocol, source, destination, .. } = tuple;

        // A flow between two inside addresses keeps its source.
        let hidden = self.rules.iter().find_map(|rule| match *rule {
            NatRule::Source { ingress, from, external }
                if packet.ingress() == ingress
                    && from.contains(source.address)
                    && !from.contains(destination.address)
                    && source.address.is_ipv4() == external.is_ipv4() =>
            {
                Some(external)
            }
            _ => None,
        });

        let published = self.rules.iter().find_map(|rule| match *rule {
            NatRule::Destination { protocol: of, external, internal }
                if protocol == of && destination == external =>
            {
                Some(internal)
            }
            _ => None,
        });

        let inside = published.or_else(|| {
            // From inside, any mapping may be used (RFC 4787, REQ-9); from outside, by its peers.
            let peer = hidden.is_none().then_some(source.address);
            let is_asked = !tuple.is_echo() && self.is_external(destination.address);
            is_asked.then(|| self.table.internal(protocol, destination, peer)).flatten()
        });

        // No host is behind this external address: the caller drops the packet.
        let goes_nowhere = inside.is_none() && self.is_external(destination.address);
        if goes_nowhere || hidden.is_none() && inside.is_none() {
            return Ok(None);
        }

        self.table.open(tuple, (hidden, inside), tcp, now).map(Some)
    }

    fn is_external(&self, address: IpAddr) -> bool {
        self.rules.iter().any(|rule| match rule {
            NatRule::Source { external, .. } => *external == address,
            NatRule::Destination { external, .. } => external.address == address,
        })
    }

    /// Returns whether a packet without ports or identifier would have to be translated.
    fn is_meant(&self, ingress: Port, source: IpAddr, destination: IpAddr) -> bool {
        self.rules.iter().any(|rule| match rule {
            NatRule::Source { ingress: port, from, .. } => {
                *port == ingress && from.contains(source) && !from.contains(destination)
            }
            NatRule::Destination { .. } => false,
        })
    }

    /// The verdict on a packet without a flow.
    fn without_flow(
        &self,
        ingress: Port,
        addresses: (IpAddr, IpAddr),
        otherwise: DropReason,
    ) -> Verdict {
        let (source, destination) = addresses;
        if self.is_external(destination) {
            let is_fragment = otherwise == DropReason::NatFragment;
            return Verdict::Drop(if is_fragment { otherwise } else { DropReason::NatUnknown });
        }
        if self.is_meant(ingress, source, destination) {
            Verdict::Drop(otherwise)
        } else {
            Verdict::Pass
        }
    }

    /// Translates a later fragment like its first; without one yet, holds it.
    fn follow(&mut self, packet: &mut Packet, headers: &Headers, now: Instant) -> Verdict {
        let Some(key) = fragments::key(headers, packet.bytes()) else { return Verdict::Pass };
        let Some((source, destination)) = self.fragments.find(&key, now) else {
            let addresses = (key.0, key.1);
            let verdict = self.without_flow(packet.ingress(), addresses, DropReason::NatFragment);
            if verdict == Verdict::Pass || packet.part().is_some() {
                return verdict;
            }
            self.fragments.hold(key, packet.take(), now);
            return Verdict::Hold;
        };
        let done = packet.set_source(source).and_then(|()| packet.set_destination(destination));
        done.map_or_else(|error| refused(&error), |()| Verdict::Pass)
    }
}

/// Returns the fields of a TCP segment that the table follows.
fn progress(headers: &Headers, frame: &[u8]) -> Option<TcpProgress> {
    if headers.transport != Transport::Tcp {
        return None;
    }
    let segment = frame.get(headers.transport_at..headers.end_at)?;
    Tcp::parse(segment).ok().map(|tcp| TcpProgress::of(&tcp))
}

/// Applies a translation to a packet.
fn replace(packet: &mut Packet, before: &NatTuple, after: &NatTuple) -> Result<(), EditError> {
    if before.source.address != after.source.address {
        packet.set_source(after.source.address)?;
    }
    if before.destination.address != after.destination.address {
        packet.set_destination(after.destination.address)?;
    }
    let ports = (after.source.port, after.destination.port);
    if before.is_echo() {
        return packet.set_identifier(if ports.0 == 0 { ports.1 } else { ports.0 });
    }
    if before.source.port != ports.0 {
        packet.set_source_port(ports.0)?;
    }
    if before.destination.port != ports.1 {
        packet.set_destination_port(ports.1)?;
    }
    Ok(())
}
