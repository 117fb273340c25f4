//! Routes.

use std::fmt;

use vigie_detect::Instant;

use super::UNREADABLE;
use crate::{
    model::{Sees, StageModel, Writes},
    packet::{Fragment, Packet},
    pipeline::{Offload, Reason, Stage, StockStage, Verdict},
    tables::{Fib, FibReader, NextHopError},
};

/// Routes IP packets by a [`Fib`]: the longest prefix of the destination gives the port and the next hop. The frame
/// gets the next hop's Ethernet address as its destination, and the port's as its source.
///
/// Packets without a route or a neighbour, or longer than the outgoing MTU, are dropped and counted; the pipeline tells
/// the sender, if [configured](crate::pipeline::PipelineBuilder::icmp_errors). Nothing is fragmented. Use
/// [`Ttl`](super::Ttl) to decrement the hop limit.
pub struct RouteStage {
    fib: Fib,
    reader: FibReader,
}

impl RouteStage {
    /// Creates a stage that uses a table.
    #[must_use]
    pub fn new(fib: Fib) -> Self {
        let reader = fib.reader();
        Self { fib, reader }
    }

    /// Returns the table.
    #[must_use]
    pub const fn fib(&self) -> &Fib {
        &self.fib
    }
}

impl fmt::Debug for RouteStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteStage").field("fib", &self.fib).finish_non_exhaustive()
    }
}

impl Stage for RouteStage {
    fn model(&self) -> StageModel {
        StageModel::new("route").sees(Sees::Header).writes(Writes::Yes)
    }

    #[inline]
    fn process(&mut self, packet: &mut Packet, _: Instant) -> Verdict {
        let Ok(headers) = packet.headers() else { return UNREADABLE };
        debug_assert!(headers.fragment != Fragment::Later || headers.is_ip());
        let Some((_, destination)) = headers.addresses(packet.bytes()) else {
            return Verdict::Drop(Reason::NotIp);
        };
        match self.reader.get().next_hop(destination) {
            Ok(hop) if headers.end_at - headers.network_at > hop.mtu => {
                Verdict::Drop(Reason::TooLong)
            }
            Ok(hop) => {
                packet.set_destination_mac(hop.to);
                packet.set_source_mac(hop.from);
                Verdict::Send(hop.port)
            }
            Err(NextHopError::Route) => Verdict::Drop(Reason::NoRoute),
            Err(NextHopError::Neighbour { .. }) => Verdict::Drop(Reason::NoNeighbour),
        }
    }

    fn offload(&self) -> Offload<'_> {
        Offload::Stock(StockStage::Route(self))
    }
}
