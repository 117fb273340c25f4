//! Address translation.

mod fragments;
mod quoted;

use std::net::IpAddr;

use vigie_detect::Instant;

use self::fragments::Fragments;
use super::{UNREADABLE, refused};
use crate::{
    model::{Sees, StageModel, Writes},
    packet::{EditError, Fragment, Headers, Packet, Port, Tcp, TcpFlags, Transport},
    pipeline::{Offload, Reason, Stage, StockStage, Verdict},
    tables::{NatEndpoint, NatError, NatTable, NatTuple, Prefix},
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
/// the first one that does; the rest pass unchanged, with two exceptions: packets to an external address that belong to
/// no flow are dropped ([`Reason::NatUnknown`]), and so are packets that match a rule but have no ports or identifier
/// ([`Reason::NatProtocol`]).
///
/// - Later fragments follow their first one, for a minute; one that comes before it is dropped
///   ([`Reason::NatFragment`]).
/// - ICMP errors are translated together with the packet that they quote.
/// - A flow is not returned to the network it came from ("hairpinning"): inside, use inside addresses.
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

    /// Starts a flow, if a rule matches. An answer starts none.
    fn open(
        &self,
        packet: &Packet,
        tuple: NatTuple,
        flags: Option<TcpFlags>,
        now: Instant,
    ) -> Result<Option<NatTuple>, NatError> {
        if tuple.is_echo_reply {
            return Ok(None);
        }
        for rule in &self.rules {
            match *rule {
                NatRule::Source { ingress, from, external }
                    if packet.ingress() == ingress
                        && from.contains(tuple.source.address)
                        && !from.contains(tuple.destination.address)
                        && tuple.source.address.is_ipv4() == external.is_ipv4() =>
                {
                    return self.table.open_source(tuple, external, flags, now).map(Some);
                }
                NatRule::Destination { protocol, external, internal }
                    if tuple.protocol == protocol && tuple.destination == external =>
                {
                    return self.table.open_destination(tuple, internal, flags, now).map(Some);
                }
                _ => {}
            }
        }
        Ok(None)
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
        otherwise: Reason,
    ) -> Verdict {
        let (source, destination) = addresses;
        if self.is_external(destination) {
            let is_fragment = otherwise == Reason::NatFragment;
            return Verdict::Drop(if is_fragment { otherwise } else { Reason::NatUnknown });
        }
        if self.is_meant(ingress, source, destination) {
            Verdict::Drop(otherwise)
        } else {
            Verdict::Pass
        }
    }

    /// Translates a later fragment like its first.
    fn follow(&self, packet: &mut Packet, headers: &Headers, now: Instant) -> Verdict {
        let Some(key) = fragments::key(headers, packet.bytes()) else { return Verdict::Pass };
        let Some((source, destination)) = self.fragments.find(&key, now) else {
            let addresses = (key.0, key.1);
            return self.without_flow(packet.ingress(), addresses, Reason::NatFragment);
        };
        let done = packet.set_source(source).and_then(|()| packet.set_destination(destination));
        done.map_or_else(|error| refused(&error), |()| Verdict::Pass)
    }
}

/// The flags of a TCP segment.
fn flags(headers: &Headers, frame: &[u8]) -> Option<TcpFlags> {
    if headers.transport != Transport::Tcp {
        return None;
    }
    let segment = frame.get(headers.transport_at..headers.end_at)?;
    Tcp::parse(segment).ok().map(|tcp| tcp.flags())
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

impl Stage for Nat {
    fn model(&self) -> StageModel {
        StageModel::new("nat").sees(Sees::Header).writes(Writes::Yes)
    }

    fn process(&mut self, packet: &mut Packet, now: Instant) -> Verdict {
        let Ok(headers) = packet.headers() else { return UNREADABLE };

        let Some(addresses) = headers.addresses(packet.bytes()) else { return Verdict::Pass };
        if headers.fragment == Fragment::Later {
            return self.follow(packet, &headers, now);
        }

        let ingress = packet.ingress();
        let Some(tuple) = NatTuple::of(&headers, packet.bytes()) else {
            return match quoted::translate(&self.table, packet, &headers) {
                Some(Ok(())) => Verdict::Pass,
                Some(Err(error)) => refused(&error),
                None => self.without_flow(ingress, addresses, Reason::NatProtocol),
            };
        };

        let flags = flags(&headers, packet.bytes());
        let becomes = match self.table.translate(&tuple, flags, now) {
            Some(becomes) => becomes,
            None => match self.open(packet, tuple, flags, now) {
                Ok(Some(becomes)) => becomes,
                Ok(None) => return self.without_flow(ingress, addresses, Reason::NatUnknown),
                Err(NatError::Ports { .. }) => return Verdict::Drop(Reason::NatPorts),
                Err(NatError::Full { .. } | NatError::Conflict) => {
                    return Verdict::Drop(Reason::NatFull);
                }
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

    fn offload(&self) -> Offload<'_> {
        Offload::Stock(StockStage::Nat(self))
    }
}
