//! Routes.

use std::fmt;

use vigie_detect::Instant;

use super::unreadable;
use crate::{
    model::{Sees, StageModel, Writes},
    packet::{Fragment, Packet},
    pipeline::{Offload, Reason, Stage, Stock, Verdict},
    tables::{Fib, FibReader, NoHop},
};

/// Sends each packet of IP where a [`Fib`] says: the longest prefix of its destination names the port and the
/// next hop, whose address of Ethernet, and that of the port, are put into the frame.
///
/// What has no route, no neighbour, or is longer than the outgoing interface takes, is dropped and counted;
/// the pipeline tells its sender, if it [is to](crate::pipeline::PipelineBuilder::answers). Nothing is fragmented. How many routers a packet may still cross is
/// [`Ttl`](super::Ttl)'s matter.
pub struct RouteStage {
    fib: Fib,
    reader: FibReader,
}

impl RouteStage {
    /// Creates a stage that follows a table.
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
        let headers = match packet.headers() {
            Ok(headers) => headers,
            Err(error) => return unreadable(&error),
        };
        debug_assert!(headers.fragment != Fragment::Later || headers.is_ip());
        let Some((_, destination)) = headers.addresses(packet.bytes()) else {
            return Verdict::Drop(Reason::NotIp);
        };
        match self.reader.get().hop(destination) {
            Ok(hop) if headers.end_at - headers.network_at > hop.mtu => {
                Verdict::Drop(Reason::TooLong)
            }
            Ok(hop) => {
                packet.set_destination_mac(hop.to);
                packet.set_source_mac(hop.from);
                Verdict::Send(hop.port)
            }
            Err(NoHop::Route) => Verdict::Drop(Reason::NoRoute),
            Err(NoHop::Neighbour { .. }) => Verdict::Drop(Reason::NoNeighbour),
        }
    }

    fn offload(&self) -> Offload<'_> {
        Offload::Stock(Stock::Route(self))
    }
}
