//! Chooses store-and-forward or cut-through for each message of a flow, from measurements of the flow.
//!
//! The relay is the paper's interface with a processor: it receives, works, sends [fast-forward, §2.2]. The paper's
//! T_rcv and T_snd are measured at the sockets; the algorithm is the relay's own work on a message (reads, writes,
//! wake-ups), which differs between the modes: a message that is cut through wakes the relay once per piece.
//!
//! Cut-through is chosen if it is predicted to save at least a twentieth of a message's time *and* to keep the
//! bandwidth of a stream of messages. On a slow link it does both. Where the processor is the bottleneck, as on
//! loopback, its wake-ups cost bandwidth, and the message is stored.

use std::time::Duration;

use crate::model::{Message, Parameters, Path, SwitchingMode};

/// A flow is modelled in pieces of this many bytes. A message of at most one piece usually arrives in one read, and is
/// stored.
pub(super) const PIECE_BYTES: u64 = 64 << 10;

/// The cost of a wake-up besides the measured work, until cut-through has been measured: the value on the machine of
/// `docs/design/forward-relay.md` with a busy processor.
const WAKE_UP: Duration = Duration::from_micros(3);

/// The number of messages in flight that the prediction assumes for a stream.
const WINDOW: u32 = 8;

/// The measured cost of cut-through is forgotten after this many stored messages.
const FORGET_AFTER: u32 = 64;

/// The number of messages over which costs are smoothed.
const SMOOTHING: u64 = 4;

/// The mode in which messages of a framed relay are forwarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FrameMode {
    /// Each message in the mode that the model predicts to be best for the measured links.
    #[default]
    Planned,
    /// No byte leaves before the whole message has arrived.
    StoreAndForward,
    /// Bytes leave as they come.
    CutThrough,
}

/// The measurements of one message.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageSample {
    pub(super) bytes: u64,
    pub(super) mode: SwitchingMode,
    /// The time from the first piece to the last.
    pub(super) arriving: Duration,
    /// Bytes that arrived in that time: all but the first piece.
    pub(super) arrived: u64,
    /// The time in which the receiver accepted nothing.
    pub(super) blocked: Duration,
    /// Processor time of the relay, if it was measured.
    pub(super) work: Option<Duration>,
}

/// The measurements of a flow: picoseconds per byte, smoothed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FlowPlanner {
    receive: Option<u64>,
    send: Option<u64>,
    stored: Option<u64>,
    cut: Option<u64>,
    stored_in_turn: u32,
    messages: u32,
}

impl FlowPlanner {
    /// Chooses the mode for a message of `bytes`.
    pub(super) fn choose(&self, bytes: u64) -> SwitchingMode {
        self.predict(bytes).map_or(SwitchingMode::StoreAndForward, |[stored, cut]| {
            let keeps_bandwidth = cut.span.as_nanos() * 20 <= stored.span.as_nanos() * 21;
            let saves_time = cut.time.as_nanos() * 20 <= stored.time.as_nanos() * 19;
            if keeps_bandwidth && saves_time {
                SwitchingMode::CutThrough
            } else {
                SwitchingMode::StoreAndForward
            }
        })
    }

    /// Predicts both modes; `None` before the first measurement, or for a message of one piece.
    fn predict(&self, bytes: u64) -> Option<[Predicted; 2]> {
        if bytes <= PIECE_BYTES {
            return None;
        }

        let message = Message::cut(bytes, PIECE_BYTES).ok()?;
        let piece = message.sz();
        let least = Duration::from_nanos(1);
        let receive = self.receive?;

        // The speed of the outgoing link is hidden by the kernel's queue until that is full. Until then assume that it
        // equals the other one's, as in the paper.
        let send = self.send.unwrap_or(0).max(receive);
        let parameters = Parameters::builder(message)
            .t_rcv(at(receive, piece).max(least))
            .t_snd(at(send, piece).max(least))
            .t_pci(Duration::ZERO)
            .build()
            .ok()?;
        let streamed = parameters.with_window(WINDOW).ok()?;
        let stored = at(self.stored?, bytes);
        let guess = stored.saturating_add(WAKE_UP.saturating_mul(message.nb() - 1));
        let cut = self.cut.map_or(guess, |cost| at(cost, bytes));
        let predicted = |path, work| {
            let time = parameters.predict(path, work)?.time;
            Some(Predicted { time, span: streamed.predict(path, work)?.span })
        };

        Some([predicted(Path::NIC, stored)?, predicted(Path::NIC_CUT_THROUGH, cut)?])
    }

    /// Returns whether to measure the work on the next message, which costs two system calls per poll.
    pub(super) const fn wants_work(&self) -> bool {
        self.messages < 8 || self.messages.is_multiple_of(8)
    }

    /// Records the measurements of a message.
    pub(super) fn note(&mut self, seen: MessageSample) {
        self.messages = self.messages.wrapping_add(1);
        if seen.bytes <= PIECE_BYTES {
            return;
        }
        smooth(&mut self.receive, per_byte(seen.arriving, seen.arrived));
        smooth(&mut self.send, per_byte(seen.blocked, seen.bytes));
        let cost = match seen.mode {
            SwitchingMode::StoreAndForward => {
                self.stored_in_turn = self.stored_in_turn.saturating_add(1);
                if self.stored_in_turn == FORGET_AFTER {
                    self.cut = None;
                    self.stored_in_turn = 0;
                }
                &mut self.stored
            }
            SwitchingMode::CutThrough => {
                self.stored_in_turn = 0;
                &mut self.cut
            }
        };
        if let Some(work) = seen.work {
            smooth(cost, per_byte(work, seen.bytes));
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Predicted {
    /// Of one message.
    time: Duration,
    /// Of a window of messages.
    span: Duration,
}

fn per_byte(time: Duration, bytes: u64) -> u64 {
    let picos = time.as_nanos() * 1000 / u128::from(bytes.max(1));
    u64::try_from(picos).unwrap_or(u64::MAX)
}

fn at(picos_per_byte: u64, bytes: u64) -> Duration {
    let nanos = u128::from(picos_per_byte) * u128::from(bytes) / 1000;
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

fn smooth(cost: &mut Option<u64>, sample: u64) {
    *cost = Some(cost.map_or(sample, |before| before - before / SMOOTHING + sample / SMOOTHING));
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn seen(mode: SwitchingMode, receive_ns_per_kib: u64, work: Duration) -> MessageSample {
        let arriving = Duration::from_nanos(receive_ns_per_kib * (MIB / 1024));
        let blocked = Duration::ZERO;
        MessageSample { bytes: MIB, mode, arriving, arrived: MIB, blocked, work: Some(work) }
    }

    fn after(receive_ns_per_kib: u64, stored: Duration) -> FlowPlanner {
        let mut planner = FlowPlanner::default();
        for _ in 0..4 {
            planner.note(seen(SwitchingMode::StoreAndForward, receive_ns_per_kib, stored));
        }
        planner
    }

    /// Goal: a slow link is cut through, a fast one is not, and short messages are stored on both. Method:
    /// 1 and 10 Gb/s, and loopback at 4 GB/s, with the work of a relay that moves 3 GB/s.
    #[test]
    fn slow_links_are_cut_through() {
        let work = Duration::from_micros(350);
        assert_eq!(
            FlowPlanner::default().choose(MIB),
            SwitchingMode::StoreAndForward,
            "nothing is measured"
        );
        assert_eq!(after(8192, work).choose(MIB), SwitchingMode::CutThrough);
        assert_eq!(after(819, work).choose(MIB), SwitchingMode::CutThrough);
        assert_eq!(after(256, work).choose(MIB), SwitchingMode::StoreAndForward);
        assert_eq!(after(8192, work).choose(8192), SwitchingMode::StoreAndForward);
    }

    /// Goal: measurements overrule guesses. Method: cut-through that costs twice as much as storing, on a link that is
    /// no slower than that; then storing until it is forgotten.
    #[test]
    fn a_costly_cut_through_is_given_up() {
        let work = Duration::from_micros(350);
        let mut planner = after(400, work);
        assert_eq!(planner.choose(MIB), SwitchingMode::CutThrough);
        for _ in 0..8 {
            planner.note(seen(SwitchingMode::CutThrough, 400, work * 2));
        }
        assert_eq!(planner.choose(MIB), SwitchingMode::StoreAndForward);
        for _ in 0..FORGET_AFTER {
            assert_eq!(planner.choose(MIB), SwitchingMode::StoreAndForward);
            planner.note(seen(SwitchingMode::StoreAndForward, 400, work));
        }
        assert_eq!(planner.choose(MIB), SwitchingMode::CutThrough, "tried again");
    }

    /// Goal: nothing overflows. Method: the longest times and messages.
    #[test]
    fn extremes_are_planned() {
        let mut planner = FlowPlanner::default();
        let (longest, bytes) = (Duration::MAX, u64::MAX);
        let blocked = longest;
        let mode = SwitchingMode::StoreAndForward;
        let seen = MessageSample {
            bytes,
            mode,
            arriving: longest,
            arrived: 0,
            blocked,
            work: Some(longest),
        };
        planner.note(seen);
        assert_eq!(planner.choose(bytes), SwitchingMode::StoreAndForward);
        assert_eq!(planner.choose(MIB), SwitchingMode::StoreAndForward);
    }
}
