//! The channel between the engine's thread and the program's: it stands for the paper's I/O bus and interrupt.
//!
//! ```text
//!   engine ---- messages, in a bounded queue; its waker is a futex ----> program: runs the algorithm
//!          <--- messages; the waker is that of the engine's detection server ---
//! ```
//! Bytes are copied packet by packet: from the interface's buffers into the program's memory, and afterwards into the
//! interface's send slots.

use std::sync::mpsc::{
    Receiver, Sender, SyncSender, TryRecvError, TrySendError, channel, sync_channel,
};
use std::time::Duration;

use vigie_detect::clock::{monotonic_now, thread_cpu_time};
use vigie_detect::{Instant, Notifier};

use super::algorithm::{Algorithm, Envelope, MessageVerdict, run_algorithm};
use super::error::MessagesError;
use super::packet::{PacketHeader, PacketKind};

/// A message, or a mark queued among messages, on its way through the program.
#[derive(Debug)]
pub(super) struct ProgramMessage {
    pub(super) header: PacketHeader,
    pub(super) bytes: Vec<u8>,
    /// The time at which the engine handed it over, and those at which the algorithm began and ended.
    given: Instant,
    begun: Instant,
    ended: Instant,
}

impl ProgramMessage {
    pub(super) const fn new(header: PacketHeader, bytes: Vec<u8>) -> Self {
        let none = Instant::from_nanos(0);
        Self { header, bytes, given: none, begun: none, ended: none }
    }
}

/// The cost of hand-overs, measured on messages as they passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelTimes {
    /// Messages.
    pub messages: u64,
    /// From the engine's queueing of a message until the program has it, including the thread's wake-up; the sum over
    /// all messages.
    pub to_program: Duration,
    /// From the end of the algorithm until the engine has the message.
    pub to_engine: Duration,
    /// The time of the algorithm.
    pub algorithm: Duration,
    /// Packets copied into the program's memory, or out of it.
    pub packets: u64,
    /// The time of copying them.
    pub copying: Duration,
}

impl ChannelTimes {
    /// Returns the mean of the two hand-overs of a message, one way.
    #[must_use]
    pub fn one_way(&self) -> Duration {
        self.messages.checked_mul(2).map_or(Duration::ZERO, |ways| {
            mean(self.to_program.saturating_add(self.to_engine), ways)
        })
    }

    /// Returns the mean time of copying a packet, one way.
    #[must_use]
    pub fn copy(&self) -> Duration {
        mean(self.copying, self.packets)
    }

    /// Returns T_algoH, the mean time of the algorithm.
    #[must_use]
    pub fn t_algo(&self) -> Duration {
        mean(self.algorithm, self.messages)
    }
}

/// Returns a mean; zero if `count` is zero.
pub(super) fn mean(sum: Duration, count: u64) -> Duration {
    let nanos = u64::try_from(sum.as_nanos()).unwrap_or(u64::MAX);
    nanos.checked_div(count).map_or(Duration::ZERO, Duration::from_nanos)
}

/// The engine's end of the channel.
#[derive(Debug)]
pub(super) struct ProgramChannel {
    to_program: SyncSender<ProgramMessage>,
    from_program: Receiver<ProgramMessage>,
    pub(super) times: ChannelTimes,
    /// Messages handed over that have not left the node yet.
    pub(super) in_flight: usize,
    capacity: usize,
}

/// The program's end of the channel.
pub(super) struct HostProgram {
    items: Receiver<ProgramMessage>,
    answers: Sender<ProgramMessage>,
    algorithm: Box<dyn Algorithm>,
}

/// Creates both ends. At most `capacity` messages are in the program, or returned by it and not yet sent.
pub(super) fn program_channel(
    algorithm: Box<dyn Algorithm>,
    capacity: usize,
) -> (ProgramChannel, HostProgram) {
    let (to_program, items) = sync_channel(capacity);
    let (answers, from_program) = channel();
    let times = ChannelTimes::default();
    let engine = ProgramChannel { to_program, from_program, times, in_flight: 0, capacity };
    (engine, HostProgram { items, answers, algorithm })
}

impl ProgramChannel {
    /// Hands a message to the program, or returns it if there are too many already.
    pub(super) fn give(
        &mut self,
        mut item: ProgramMessage,
    ) -> Result<Option<ProgramMessage>, MessagesError> {
        if self.in_flight >= self.capacity {
            return Ok(Some(item));
        }
        item.given = monotonic_now();
        match self.to_program.try_send(item) {
            Ok(()) => {
                self.in_flight += 1;
                Ok(None)
            }
            Err(TrySendError::Full(item)) => Ok(Some(item)),
            Err(TrySendError::Disconnected(_)) => Err(MessagesError::ThreadEnded("program")),
        }
    }

    /// Takes a message that the program has finished.
    pub(super) fn take(&mut self) -> Result<Option<ProgramMessage>, MessagesError> {
        match self.from_program.try_recv() {
            Ok(item) => {
                if matches!(item.header.kind, PacketKind::Data | PacketKind::Dropped) {
                    let now = monotonic_now();
                    self.times.messages += 1;
                    self.times.to_program += item.begun - item.given;
                    self.times.algorithm += item.ended - item.begun;
                    self.times.to_engine += now - item.ended;
                }
                Ok(Some(item))
            }
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(MessagesError::ThreadEnded("program")),
        }
    }
}

impl HostProgram {
    /// Processes messages until the engine ends, and notifies it by `waker`. Returns the processor time spent by this
    /// thread.
    pub(super) fn serve(mut self, waker: &Notifier) -> Duration {
        let before = thread_cpu_time();
        while let Ok(item) = self.items.recv() {
            let is_heard = self.answer(item);
            waker.notify();
            if !is_heard {
                break;
            }
        }
        thread_cpu_time().saturating_sub(before)
    }

    /// Processes one message, if there is one: for single-threaded simulations.
    #[cfg(test)]
    pub(super) fn tick(&mut self) -> bool {
        self.items.try_recv().is_ok_and(|item| self.answer(item))
    }

    fn answer(&mut self, mut item: ProgramMessage) -> bool {
        item.begun = monotonic_now();
        if item.header.kind == PacketKind::Data {
            let PacketHeader { source, destination, tag, length, .. } = item.header;
            let mut envelope = Envelope { source, destination, tag, length };
            match run_algorithm(&mut *self.algorithm, &mut envelope, &mut item.bytes) {
                MessageVerdict::Forward => item.header.tag = envelope.tag,
                MessageVerdict::Drop => {
                    item.header.kind = PacketKind::Dropped;
                    item.bytes.clear();
                }
            }
        }
        item.ended = monotonic_now();
        self.answers.send(item).is_ok()
    }
}
