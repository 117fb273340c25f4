//! The stock stages as [`Stage`]s: what each sees and writes, and how it is described for another processor.
//!
//! They are not in the stages' files, since every [`Stage`] can return a [`BuiltinStage`], which names all of them.

use vigie_detect::Instant;

use super::{
    checksum::{Checksum, ChecksumMode},
    filter::Filter,
    meter::Meter,
    mirror::Mirror,
    nat::Nat,
    rewrite::Rewrite,
    route::RouteStage,
    stage::{BuiltinStage, Offload, Stage},
    ttl::Ttl,
    verdict::Verdict,
};
use crate::{
    cost::{Bandwidth, Cost},
    model::{Sees, StageModel, Writes},
    packet::Packet,
};

impl Stage for Checksum {
    fn model(&self) -> StageModel {
        if self.mode() == ChecksumMode::VerifyHeader {
            return StageModel::new("header checksum").sees(Sees::Header).writes(Writes::Yes);
        }
        // Unmeasured, assume about 10 GB/s on one core.
        let cost = Bandwidth::new(10_000_000_000).map_or(Cost::ZERO, Cost::per_byte);
        let model = StageModel::new("checksum").sees(Sees::Everything).writes(Writes::Yes);
        model.on_host(cost).on_nic(cost)
    }

    fn process(&mut self, packet: &mut Packet, _: Instant) -> Verdict {
        self.decide(packet)
    }

    fn offload(&self) -> Offload<'_> {
        Offload::Builtin(BuiltinStage::Checksum(self))
    }
}

impl Stage for Filter {
    fn model(&self) -> StageModel {
        StageModel::new("filter").sees(Sees::Header).writes(Writes::Yes)
    }

    #[inline]
    fn process(&mut self, packet: &mut Packet, _: Instant) -> Verdict {
        self.decide(packet)
    }

    fn offload(&self) -> Offload<'_> {
        Offload::Builtin(BuiltinStage::Filter(self))
    }
}

impl Stage for Meter {
    fn model(&self) -> StageModel {
        // It needs the lengths of all packets before it can pass the first one.
        StageModel::new("meter").sees(Sees::Everything).writes(Writes::Yes)
    }

    #[inline]
    fn process(&mut self, packet: &mut Packet, now: Instant) -> Verdict {
        self.decide(packet.len(), now)
    }

    /// A message that does not fit is not passed in part.
    fn process_message(&mut self, packets: &mut [Packet], now: Instant) -> Verdict {
        self.decide(packets.iter().map(Packet::len).sum(), now)
    }

    fn offload(&self) -> Offload<'_> {
        Offload::Builtin(BuiltinStage::Meter(self))
    }
}

impl Stage for Mirror {
    fn model(&self) -> StageModel {
        // It needs no bytes, but every packet.
        StageModel::new("mirror").sees(Sees::Everything).writes(Writes::No)
    }

    #[inline]
    fn process(&mut self, packet: &mut Packet, _: Instant) -> Verdict {
        self.decide(packet)
    }

    fn offload(&self) -> Offload<'_> {
        Offload::Builtin(BuiltinStage::Mirror(self))
    }
}

impl Stage for Nat {
    fn model(&self) -> StageModel {
        StageModel::new("nat").sees(Sees::Header).writes(Writes::Yes)
    }

    fn process(&mut self, packet: &mut Packet, now: Instant) -> Verdict {
        self.decide(packet, now)
    }

    fn release(&mut self, now: Instant) -> Option<(Packet, Verdict)> {
        self.give_out(now)
    }

    fn next_release(&self, now: Instant) -> Option<Instant> {
        self.next_end(now)
    }

    fn held_packets(&self) -> usize {
        self.waiting_packets()
    }

    fn offload(&self) -> Offload<'_> {
        Offload::Builtin(BuiltinStage::Nat(self))
    }
}

impl Stage for Rewrite {
    fn model(&self) -> StageModel {
        StageModel::new("rewrite").sees(Sees::Header).writes(Writes::Yes)
    }

    #[inline]
    fn process(&mut self, packet: &mut Packet, _: Instant) -> Verdict {
        self.decide(packet)
    }

    fn offload(&self) -> Offload<'_> {
        Offload::Builtin(BuiltinStage::Rewrite(self))
    }
}

impl Stage for RouteStage {
    fn model(&self) -> StageModel {
        StageModel::new("route").sees(Sees::Header).writes(Writes::Yes)
    }

    #[inline]
    fn process(&mut self, packet: &mut Packet, now: Instant) -> Verdict {
        self.decide(packet, now)
    }

    fn release(&mut self, now: Instant) -> Option<(Packet, Verdict)> {
        self.give_out(now)
    }

    fn next_release(&self, now: Instant) -> Option<Instant> {
        self.next_check(now)
    }

    fn held_packets(&self) -> usize {
        self.waiting_packets()
    }

    fn offload(&self) -> Offload<'_> {
        Offload::Builtin(BuiltinStage::Route(self))
    }
}

impl Stage for Ttl {
    fn model(&self) -> StageModel {
        StageModel::new("ttl").sees(Sees::Header).writes(Writes::Yes)
    }

    #[inline]
    fn process(&mut self, packet: &mut Packet, _: Instant) -> Verdict {
        Self::decide(packet)
    }

    fn offload(&self) -> Offload<'_> {
        Offload::Builtin(BuiltinStage::Ttl(self))
    }
}
