//! Routes.

use std::{fmt, net::IpAddr, time::Duration};

use vigie_detect::Instant;

use super::{
    unresolved::{Neighbour, Unresolved},
    verdict::{UNREADABLE, Verdict},
};
use crate::{
    drop_reason::DropReason,
    packet::{Fragment, Packet, Port, fragmentable},
    tables::{Fib, FibReader, FibSnapshot, FlowHash, NextHopError},
};

/// Routes IP packets by a [`Fib`]: the longest prefix of the destination gives the port and the next hop. The frame
/// gets the next hop's Ethernet address as its destination, and the port's as its source.
///
/// Packets without a route or a neighbour, or longer than the outgoing MTU, are dropped and counted; the pipeline tells
/// the sender, if [configured](crate::pipeline::PipelineBuilder::icmp_errors). IPv4 packets that are too long and may be
/// fragmented are. The flows of a prefix with [several hops](Fib::set_hops) are spread over them. Use [`Ttl`](super::Ttl) to decrement the hop limit.
pub struct RouteStage {
    fib: Fib,
    reader: FibReader,
    unresolved: Option<Unresolved>,
    /// A neighbour for which the first packet is held.
    wanted: Option<Neighbour>,
}

/// The interval at which the table is checked for neighbours that packets wait for, if no packet comes.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

impl RouteStage {
    /// Creates a stage that uses a table.
    #[must_use]
    pub fn new(fib: Fib) -> Self {
        let reader = fib.reader();
        Self { fib, reader, unresolved: None, wanted: None }
    }

    /// Lets packets wait for an unknown neighbour, up to 3 s, 100 for each neighbour and 1024 in all, instead of
    /// dropping them at once. Once it is known, those that come meanwhile wait behind them, so that none overtakes another. The caller finds out its address: see [`wanted`](Self::wanted).
    #[must_use]
    pub fn hold_unresolved(mut self) -> Self {
        self.unresolved = Some(Unresolved::new(self.fib.held_packets()));
        self
    }

    /// Takes the neighbour for which the first packet has just been held.
    pub const fn wanted(&mut self) -> Option<(Port, IpAddr)> {
        self.wanted.take()
    }

    /// Returns the table.
    #[must_use]
    pub const fn fib(&self) -> &Fib {
        &self.fib
    }

    /// Routes a packet, or holds it until its neighbour is known.
    #[inline]
    pub(super) fn decide(&mut self, packet: &mut Packet, now: Instant) -> Verdict {
        let Self { reader, unresolved, wanted, .. } = self;
        let fib = reader.get();
        let mut unresolved = unresolved.as_mut().filter(|_| packet.part().is_none());
        let ahead = unresolved.as_ref().and_then(|unresolved| queue_ahead(unresolved, fib, packet));
        let routed = ahead.map_or_else(|| route(fib, packet), Err);
        match (routed, &mut unresolved) {
            (Ok(verdict), _) => verdict,
            (Err(_), None) => Verdict::Drop(DropReason::NoNeighbour),
            (Err(neighbour), Some(unresolved)) => {
                if unresolved.add(neighbour, packet.take(), now) {
                    *wanted = Some(neighbour);
                }
                Verdict::Hold
            }
        }
    }

    /// Gives out the next packet that waits no longer, with its verdict.
    pub(super) fn give_out(&mut self, now: Instant) -> Option<(Packet, Verdict)> {
        let Self { reader, unresolved, wanted, .. } = self;
        let unresolved = unresolved.as_mut()?;
        if unresolved.len() == 0 {
            return None;
        }
        let fib = reader.get();
        let is_known = |(port, next)| fib.neighbour(port, next).is_some();
        if let Some(mut packet) = unresolved.take_known(is_known) {
            let verdict = route(fib, &mut packet).unwrap_or_else(|neighbour| {
                // By now, its route leads to another one.
                if unresolved.add(neighbour, packet.take(), now) {
                    *wanted = Some(neighbour);
                }
                Verdict::Hold
            });
            return Some((packet, verdict));
        }
        let (packet, reason) = unresolved.take_dropped(now)?;
        Some((packet, Verdict::Drop(reason)))
    }

    /// Returns when to ask for packets again.
    pub(super) fn next_check(&self, now: Instant) -> Option<Instant> {
        let unresolved = self.unresolved.as_ref()?;
        (unresolved.len() > 0).then(|| now + CHECK_INTERVAL)
    }

    /// Returns the number of packets that wait.
    pub(super) fn waiting_packets(&self) -> usize {
        self.unresolved.as_ref().map_or(0, Unresolved::len)
    }
}

impl fmt::Debug for RouteStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteStage").field("fib", &self.fib).finish_non_exhaustive()
    }
}

/// Routes a packet. Returns its next hop if the address of that is unknown.
#[inline]
fn route(fib: &FibSnapshot, packet: &mut Packet) -> Result<Verdict, Neighbour> {
    let Ok(headers) = packet.headers() else { return Ok(UNREADABLE) };
    debug_assert!(headers.fragment != Fragment::Later || headers.is_ip());
    let Some((_, destination)) = headers.addresses(packet.bytes()) else {
        return Ok(Verdict::Drop(DropReason::NotIp));
    };
    let (hop, cell) =
        match fib.counted_next_hop(destination, || FlowHash::of(&headers, packet.bytes())) {
            Ok(hop) => hop,
            Err(NextHopError::Route) => return Ok(Verdict::Drop(DropReason::NoRoute)),
            Err(NextHopError::Neighbour { port, next }) => return Err((port, next)),
        };
    let is_long = packet.longest_bytes(&headers) > hop.mtu;
    let is_fragmentable = is_long
        && packet.part().is_none()
        && packet.segments().is_none()
        && fragmentable(packet.bytes(), &headers).is_some();
    if is_long && !is_fragmentable {
        return Ok(Verdict::Drop(DropReason::TooLong));
    }
    packet.set_destination_mac(hop.to);
    packet.set_source_mac(hop.from);
    if let Some(cell) = cell {
        cell.count(packet.len());
    }
    Ok(if is_long { Verdict::Fragment(hop.port, hop.mtu) } else { Verdict::SetEgress(hop.port) })
}

/// Returns the next hop of a packet if others wait for it, which this one must not overtake.
#[inline]
fn queue_ahead(
    unresolved: &Unresolved,
    fib: &FibSnapshot,
    packet: &mut Packet,
) -> Option<Neighbour> {
    if !unresolved.has_waiting() {
        return None;
    }
    let headers = packet.headers().ok()?;
    let (_, destination) = headers.addresses(packet.bytes())?;
    let route = fib.route(destination, || FlowHash::of(&headers, packet.bytes()))?;
    let neighbour = (route.port, route.via.unwrap_or(destination));
    unresolved.waits_for(neighbour).then_some(neighbour)
}
