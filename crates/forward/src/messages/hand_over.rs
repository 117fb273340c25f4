//! The hand-over between the engine's thread and the program's: what the paper's I/O bus and interrupt are here.
//!
//! ```text
//!   engine ---- messages, in a bounded queue; its bell is a futex ----> program: runs the algorithm
//!          <--- messages; the bell is an eventfd, which the engine's sleep hears ---
//! ```
//! Bytes are copied packet by packet from the interface's buffers into a message of the program's memory before, and
//! into the interface's send slots afterwards.

use std::sync::mpsc::{
    Receiver, Sender, SyncSender, TryRecvError, TrySendError, channel, sync_channel,
};
use std::time::Duration;

use vigie_detect::Instant;
use vigie_detect::clock::{monotonic_now, thread_cpu_time};

use super::error::MessagesError;
use super::idle::Bell;
use super::packet::{Header, Kind};
use super::work::{Envelope, Fate, Work, run_on};

/// A message, or what takes its turn among messages, on its way through the program.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) header: Header,
    pub(super) bytes: Vec<u8>,
    /// When the engine gave it, the algorithm began and ended.
    given: Instant,
    begun: Instant,
    ended: Instant,
}

impl Item {
    pub(super) const fn new(header: Header, bytes: Vec<u8>) -> Self {
        let none = Instant::from_nanos(0);
        Self { header, bytes, given: none, begun: none, ended: none }
    }
}

/// What hand-overs took, measured on messages as they passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandOverTimes {
    /// Messages.
    pub messages: u64,
    /// From the engine's queueing a message until the program has it: the bell, and the thread's wake-up; the sum over
    /// all messages.
    pub to_program: Duration,
    /// From the end of the algorithm until the engine has the message.
    pub to_engine: Duration,
    /// The algorithm.
    pub algorithm: Duration,
    /// Packets copied into the program's memory, or out of it.
    pub packets: u64,
    /// What copying them took.
    pub copying: Duration,
}

impl HandOverTimes {
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

/// Returns a mean; of nothing, nothing.
pub(super) fn mean(sum: Duration, count: u64) -> Duration {
    let nanos = u64::try_from(sum.as_nanos()).unwrap_or(u64::MAX);
    nanos.checked_div(count).map_or(Duration::ZERO, Duration::from_nanos)
}

/// The engine's end.
#[derive(Debug)]
pub(super) struct HandOver {
    to_program: SyncSender<Item>,
    from_program: Receiver<Item>,
    pub(super) times: HandOverTimes,
    /// Messages that were given and have not left the node yet.
    pub(super) inside: usize,
    capacity: usize,
}

/// The program's end.
pub(super) struct Program {
    items: Receiver<Item>,
    answers: Sender<Item>,
    bell: Bell,
    work: Box<dyn Work>,
}

/// Makes both ends. At most `capacity` messages are in the program's hands, or behind it and not sent yet.
pub(super) fn hand_over(work: Box<dyn Work>, bell: Bell, capacity: usize) -> (HandOver, Program) {
    let (to_program, items) = sync_channel(capacity);
    let (answers, from_program) = channel();
    let times = HandOverTimes::default();
    let engine = HandOver { to_program, from_program, times, inside: 0, capacity };
    (engine, Program { items, answers, bell, work })
}

impl HandOver {
    /// Gives a message to the program, or gives it back if there are too many already.
    pub(super) fn give(&mut self, mut item: Item) -> Result<Option<Item>, MessagesError> {
        if self.inside >= self.capacity {
            return Ok(Some(item));
        }
        item.given = monotonic_now();
        match self.to_program.try_send(item) {
            Ok(()) => {
                self.inside += 1;
                Ok(None)
            }
            Err(TrySendError::Full(item)) => Ok(Some(item)),
            Err(TrySendError::Disconnected(_)) => Err(MessagesError::ThreadEnded("program")),
        }
    }

    /// Takes a message that the program is done with.
    pub(super) fn take(&mut self) -> Result<Option<Item>, MessagesError> {
        match self.from_program.try_recv() {
            Ok(item) => {
                if matches!(item.header.kind, Kind::Data | Kind::Dropped) {
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

impl Program {
    /// Works on messages until the engine ends. Returns the processor time that this thread has spent.
    pub(super) fn serve(mut self) -> Duration {
        let before = thread_cpu_time();
        while let Ok(item) = self.items.recv() {
            if !self.answer(item) {
                break;
            }
        }
        thread_cpu_time().saturating_sub(before)
    }

    /// Works on one message, if there is one: for simulations, which have one thread.
    #[cfg(test)]
    pub(super) fn turn(&mut self) -> bool {
        self.items.try_recv().is_ok_and(|item| self.answer(item))
    }

    fn answer(&mut self, mut item: Item) -> bool {
        item.begun = monotonic_now();
        if item.header.kind == Kind::Data {
            let Header { source, destination, tag, length, .. } = item.header;
            let mut envelope = Envelope { source, destination, tag, length };
            match run_on(&mut *self.work, &mut envelope, &mut item.bytes) {
                Fate::Forward => item.header.tag = envelope.tag,
                Fate::Drop => {
                    item.header.kind = Kind::Dropped;
                    item.bytes.clear();
                }
            }
        }
        item.ended = monotonic_now();
        let is_heard = self.answers.send(item).is_ok();
        self.bell.ring();
        is_heard
    }
}
