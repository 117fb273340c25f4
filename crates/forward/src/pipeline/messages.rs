//! Messages of several packets: stored until complete, or cut through.
//!
//! ```text
//!                        1 first packet                2 last packet
//!   (unknown) ─────────────────────────▶ Open ──────────────────────▶ (unknown)
//!       ▲                                 │ 3 a gap, too long, or a drop
//!       └──────────── 4 last packet ──── Dead
//! ```
//! 1 `enter`, 2 `store` and `cut_through`, 3 `OpenMessage::kill`; 4: packets of a dead message are dropped up to its
//! last. Packets of unknown messages that are not first ones are dropped. If there are too many messages, the oldest is
//! dropped.

use indexmap::IndexMap;
use vigie_detect::Instant;

use super::{
    output::{OnFull, OutputQueues},
    sequence::Stages,
};
use crate::{
    drop_reason::DropReason,
    model::{Sees, StageModel},
    packet::{Packet, Part, Port},
    stages::verdict::Verdict,
    tables::TrafficCounters,
};

#[derive(Debug)]
struct OpenMessage {
    /// The number of the next packet.
    next: u32,
    /// The port of its packets, once known; or why they are dropped.
    verdict: Option<Result<Port, DropReason>>,
    /// Its stored packets.
    packets: Vec<Packet>,
}

/// The messages that are not finished.
#[derive(Debug)]
pub(super) struct OpenMessages {
    open: IndexMap<u64, OpenMessage>,
    messages_max: usize,
    packets_max: usize,
    /// For each stage, true if it must see every packet.
    sees_all: Vec<bool>,
}

impl OpenMessages {
    pub(super) fn new(messages_max: usize, packets_max: usize, models: &[StageModel]) -> Self {
        let sees_all = models.iter().map(|model| model.seen() == Sees::Everything).collect();
        Self { open: IndexMap::new(), messages_max, packets_max, sees_all }
    }

    pub(super) fn len(&self) -> usize {
        self.open.values().map(|open| open.packets.len()).sum()
    }

    /// Finds the message of a packet, or starts it.
    fn enter(
        &mut self,
        part: Part,
        counters: &TrafficCounters,
    ) -> Result<&mut OpenMessage, DropReason> {
        if part.index == 0 {
            let before = self.open.shift_remove(&part.message);
            let is_new = before.is_none();
            // The same number again: the earlier message never ended.
            let mut given_up = before;
            if is_new && self.open.len() >= self.messages_max {
                given_up = self.open.shift_remove_index(0).map(|(_, open)| open);
            }
            if let Some(open) = given_up {
                counters.count_dropped(DropReason::Incomplete, to_u64(open.packets.len()));
            }
            let open = OpenMessage { next: 0, verdict: None, packets: Vec::new() };
            self.open.insert(part.message, open);
        }

        let packets_max = self.packets_max;
        let open = self.open.get_mut(&part.message).ok_or(DropReason::Incomplete)?;
        if !matches!(open.verdict, Some(Err(_))) {
            if part.index != open.next {
                open.kill(DropReason::Incomplete, counters);
            } else if usize::try_from(part.index).is_ok_and(|index| index >= packets_max) {
                open.kill(DropReason::TooLong, counters);
            }
        }

        open.next = part.index.saturating_add(1);
        Ok(open)
    }

    /// Takes in a packet; with the last one, the message passes through the stages.
    pub(super) fn store(
        &mut self,
        packet: Packet,
        now: Instant,
        stages: &mut Stages,
        outputs: &mut OutputQueues,
        counters: &TrafficCounters,
    ) {
        let Some(part) = packet.part() else { return };
        match self.enter(part, counters) {
            Ok(OpenMessage { verdict: Some(Err(_)), .. }) => {
                counters.count_dropped(DropReason::Message, 1)
            }
            Ok(open) => open.packets.push(packet),
            Err(reason) => counters.count_dropped(reason, 1),
        }

        if !part.is_last {
            return;
        }

        let Some(mut open) = self.open.shift_remove(&part.message) else { return };
        if open.packets.is_empty() {
            return;
        }

        let count = open.packets.len();
        let verdict = decide(&mut open.packets, now, stages, outputs);
        let verdict = match verdict {
            // Only a part of it would be a damaged message.
            Ok(port) if outputs.drops() && !outputs.has_room(port, count) => {
                Err(DropReason::BufferFull)
            }
            verdict => verdict,
        };

        match verdict {
            Ok(port) => open.packets.into_iter().for_each(|packet| outputs.push(port, packet)),
            Err(reason) => counters.count_dropped(reason, to_u64(count)),
        }
    }

    /// Passes a packet on at once; the first one goes through all stages, later ones through those that see everything,
    /// which only read.
    pub(super) fn cut_through(
        &mut self,
        mut packet: Packet,
        now: Instant,
        stages: &mut Stages,
        outputs: &mut OutputQueues,
        counters: &TrafficCounters,
    ) {
        let Some(part) = packet.part() else { return };
        let sees_all = std::mem::take(&mut self.sees_all);
        match self.enter(part, counters) {
            Err(reason) => counters.count_dropped(reason, 1),
            Ok(open) => match open.verdict {
                Some(Err(_)) => counters.count_dropped(DropReason::Message, 1),
                Some(Ok(port)) => {
                    for (stage, _) in
                        stages.stages.iter_mut().zip(&sees_all).filter(|(_, sees_all)| **sees_all)
                    {
                        if let Verdict::Copy(to) = stage.process(&mut packet, now) {
                            outputs.copy(to, &packet);
                        }
                    }
                    outputs.push(port, packet);
                }
                None => {
                    let copy = &mut |port, packet: &Packet| outputs.copy(port, packet);
                    let verdict = stages.decide(&mut packet, now, copy);
                    // Parts of messages are not held.
                    let verdict = verdict.and_then(|port| port.ok_or(DropReason::Message));
                    open.verdict = Some(verdict);
                    match verdict {
                        Ok(port) => outputs.push(port, packet),
                        Err(reason) => counters.count_dropped(reason, 1),
                    }
                }
            },
        }

        self.sees_all = sees_all;
        if part.is_last {
            self.open.shift_remove(&part.message);
        }
    }
}

impl OpenMessage {
    /// Drops the message, and its stored packets.
    fn kill(&mut self, reason: DropReason, counters: &TrafficCounters) {
        counters.count_dropped(reason, to_u64(self.packets.len()));
        self.packets = Vec::new();
        self.verdict = Some(Err(reason));
    }
}

impl OutputQueues {
    const fn drops(&self) -> bool {
        matches!(self.on_full(), OnFull::Drop)
    }
}

/// Passes a complete message through the stages.
fn decide(
    packets: &mut [Packet],
    now: Instant,
    stages: &mut Stages,
    outputs: &mut OutputQueues,
) -> Result<Port, DropReason> {
    let mut port = stages.default_port;
    for stage in &mut stages.stages {
        match stage.process_message(packets, now) {
            Verdict::Pass => {}
            Verdict::SetEgress(to) => port = Some(to),
            Verdict::Copy(to) => packets.iter().for_each(|packet| outputs.copy(to, packet)),
            Verdict::Drop(reason) => return Err(reason),
            // Parts of messages are not held, and not cut.
            Verdict::Fragment(..) => return Err(DropReason::TooLong),
            Verdict::Hold => return Err(DropReason::Message),
        }
    }
    port.ok_or(DropReason::NoPort)
}

fn to_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
