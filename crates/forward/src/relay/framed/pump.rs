//! One direction of a framed relay.
//!
//! ```text
//!   buffer:   start ........ sendable ........ scanned ........ end ........ room
//!             └─ to be sent ─┘└ of a message that is stored ─┘└ header, in part ┘
//! ```
//!
//! `sendable` is the end of the last complete message, or, while a message is cut through, the end of all received
//! bytes. Sendable bytes are sent before more are read, so that a slow receiver stops the sender.

use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use vigie_detect::{Instant, clock::thread_cpu_time};

use super::{
    Framing,
    format::FrameError,
    planner::{FlowPlanner, FrameMode, MessageSample, PIECE_BYTES},
};
use crate::{
    model::SwitchingMode,
    relay::{
        buffers::{Buffer, FLOOR_BYTES},
        chooser::TransferEngine,
        error::{PumpError, StreamSide},
        resources::RelayResources,
        stream::{PumpContext, RelayStream},
        yielder::POLL_BYTES_MAX,
    },
};

/// The sizes of buffers that a direction grows through, when it fills them.
const SIZES: [usize; 4] = [FLOOR_BYTES, 16 << 10, 64 << 10, 256 << 10];

/// Room for bytes read beyond the end of a stored message: the next header, and small messages.
const BEYOND_BYTES: usize = FLOOR_BYTES;

/// In the middle of a long message the kernel wakes the relay for this many bytes, not for each packet: on a slow link,
/// wake-ups are most of the work. This delays a message that is cut through by the time of these bytes on the link.
/// (Not if the user asks for cut-through: then a sender may pause within a message until the part so far has arrived.)
const WAKE_BYTES: u64 = 32 << 10;

/// One direction of a framed relay.
#[derive(Debug)]
pub(in crate::relay) struct FramedPump {
    framing: Framing,
    planner: FlowPlanner,
    buffer: Option<Buffer>,
    /// True if the buffer comes from the budget for messages.
    is_store: bool,
    /// An index of [`SIZES`].
    size: usize,
    waiting: Option<StoreWait>,
    start: usize,
    sendable: usize,
    scanned: usize,
    end: usize,
    current: Option<CurrentMessage>,
    /// The low-water mark at which the kernel wakes us.
    wakes_at: u64,
    /// The mode of the last message; the work of sending it counts towards the next one.
    last_mode: Option<SwitchingMode>,
    /// The time at which the receiver stopped accepting bytes, and for how long it had done so earlier, since the last message
    /// ended.
    blocked_since: Option<Instant>,
    blocked: Duration,
    /// Processor time since the last message ended, if measured: for reading this one and writing the previous one.
    work: Option<Duration>,
    /// The thread's processor time up to which `work` is counted, while a poll is measured.
    counted_to: Option<Duration>,
    /// The reason why reading has stopped. Messages received completely before are sent first.
    refused: Option<FrameError>,
    has_ended: bool,
}

/// A message that has not arrived completely.
#[derive(Clone, Copy, Debug)]
struct CurrentMessage {
    /// In bytes, including its header.
    total: u64,
    seen: u64,
    mode: SwitchingMode,
    began: Instant,
    first_bytes: u64,
}

struct StoreWait(Pin<Box<dyn Future<Output = Buffer> + Send>>);

impl fmt::Debug for StoreWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waiting")
    }
}

impl FramedPump {
    pub(in crate::relay) fn new(framing: Framing) -> Self {
        Self {
            framing,
            planner: FlowPlanner::default(),
            buffer: None,
            is_store: false,
            size: 1,
            waiting: None,
            start: 0,
            sendable: 0,
            scanned: 0,
            end: 0,
            current: None,
            wakes_at: 1,
            last_mode: None,
            blocked_since: None,
            blocked: Duration::ZERO,
            work: None,
            counted_to: None,
            refused: None,
            has_ended: false,
        }
    }

    /// Returns whether bytes were read that have not been written.
    pub(in crate::relay) const fn holds_bytes(&self) -> bool {
        self.start < self.end
    }

    /// Moves as many bytes as possible, counts them, and is ready once the end has been passed on.
    pub(in crate::relay) fn poll<A: RelayStream, B: RelayStream>(
        &mut self,
        cx: &mut Context<'_>,
        context: PumpContext<'_, A, B>,
    ) -> Poll<Result<(), PumpError>> {
        let (resources, before) = (context.resources, *context.moved);
        self.counted_to = self.work.map(|_| thread_cpu_time());
        let moved = &mut *context.moved;
        let ended = self.pump(cx, PumpContext { moved, ..context });
        resources.count_bytes(TransferEngine::Copy, *context.moved - before);
        self.count_work();
        self.counted_to = None;
        ended
    }

    fn count_work(&mut self) {
        if let (Some(work), Some(since)) = (&mut self.work, &mut self.counted_to) {
            let now = thread_cpu_time();
            *work += now.saturating_sub(*since);
            *since = now;
        }
    }

    fn pump<A: RelayStream, B: RelayStream>(
        &mut self,
        cx: &mut Context<'_>,
        context: PumpContext<'_, A, B>,
    ) -> Poll<Result<(), PumpError>> {
        let PumpContext { from, to, resources, moved } = context;
        let stop = *moved + POLL_BYTES_MAX as u64;
        loop {
            ready!(self.give(cx, to, resources, moved))?;
            if let Some(error) = self.refused {
                return Poll::Ready(Err(PumpError::Frame(error)));
            }
            if self.has_ended {
                return self.end(cx, to);
            }
            if *moved >= stop {
                resources.yielder.yield_now(&resources.server, resources.counters.active.value());
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            ready!(self.prepare(cx, resources));
            let taken = match self.take(cx, from) {
                Poll::Ready(Ok(taken)) => taken,
                Poll::Ready(Err(source)) => return Poll::Ready(Err(self.broken(source))),
                Poll::Pending => {
                    self.set_wakes(from);
                    if !self.holds_bytes() {
                        // Only directions that hold bytes keep memory.
                        self.drop_buffer();
                    }
                    return Poll::Pending;
                }
            };
            if taken == 0 {
                self.has_ended = true;
            } else {
                self.refused = self.scan(resources).err();
            }
        }
    }

    /// Sets the low-water mark to a worthwhile number of bytes. Called when nothing can be read.
    fn set_wakes<A: RelayStream>(&mut self, from: &A) {
        let rest = self.current.map_or(0, |current| match current.total {
            total if total > PIECE_BYTES && self.framing.mode != FrameMode::CutThrough => {
                total - current.seen
            }
            _ => 0,
        });
        let wakes_at = rest.clamp(1, WAKE_BYTES);
        if wakes_at != self.wakes_at {
            self.wakes_at = wakes_at;
            from.wake_at(usize::try_from(wakes_at).unwrap_or(1));
        }
    }

    /// Sends the sendable bytes.
    fn give<B: RelayStream>(
        &mut self,
        cx: &Context<'_>,
        to: &B,
        resources: &RelayResources,
        moved: &mut u64,
    ) -> Poll<Result<(), PumpError>> {
        while self.start < self.sendable {
            let Some(buffer) = &self.buffer else { break };
            let given = match to.poll_write(cx, &buffer[self.start..self.sendable]) {
                Poll::Ready(Ok(0)) => Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(given) => given,
                Poll::Pending => {
                    self.blocked_since.get_or_insert_with(|| resources.server.now());
                    return Poll::Pending;
                }
            };
            let given = given.map_err(|source| PumpError::io(StreamSide::To, source))?;
            if let Some(since) = self.blocked_since.take() {
                self.blocked += resources.server.now() - since;
            }
            self.start += given;
            *moved += given as u64;
        }
        Poll::Ready(Ok(()))
    }

    /// Handles the end of the sender's stream.
    fn end<B: RelayStream>(&mut self, cx: &Context<'_>, to: &B) -> Poll<Result<(), PumpError>> {
        if self.is_torn() {
            return Poll::Ready(Err(self.torn(None)));
        }
        self.drop_buffer();
        to.poll_finish(cx).map_err(|source| PumpError::io(StreamSide::To, source))
    }

    const fn is_torn(&self) -> bool {
        self.current.is_some() || self.holds_bytes()
    }

    fn broken(&self, source: io::Error) -> PumpError {
        if self.is_torn() {
            self.torn(Some(source))
        } else {
            PumpError::io(StreamSide::From, source)
        }
    }

    fn torn(&self, source: Option<io::Error>) -> PumpError {
        match self.current {
            Some(CurrentMessage { total, seen, mode, .. }) => {
                PumpError::Torn { received: seen, length: total, mode, source }
            }
            None => {
                let received = (self.end - self.start) as u64;
                PumpError::Torn {
                    received,
                    length: 0,
                    mode: SwitchingMode::StoreAndForward,
                    source,
                }
            }
        }
    }

    /// Returns the mode of the unfinished message, if there is one.
    pub(in crate::relay) fn torn_mode(&self) -> Option<SwitchingMode> {
        self.is_torn()
            .then(|| self.current.map_or(SwitchingMode::StoreAndForward, |current| current.mode))
    }

    /// Makes room for the next bytes. Called when all sendable bytes have been sent.
    fn prepare(&mut self, cx: &mut Context<'_>, resources: &RelayResources) -> Poll<()> {
        let stored = self.current.filter(|current| current.mode == SwitchingMode::StoreAndForward);
        if let Some(current) = stored {
            let needed = usize::try_from(current.total).unwrap_or(usize::MAX);
            if self.buffer.as_ref().is_none_or(|buffer| buffer.len() < needed) {
                return self.grow_to(cx, resources, needed);
            }
            let room = self.buffer.as_ref().map_or(0, |buffer| buffer.len() - self.start);
            if room < needed {
                self.compact();
            }
            return Poll::Ready(());
        }

        self.compact();
        let wanted = SIZES[self.size];

        // A store is only for the message stored in it: if kept, it would be filled by later bytes that could not leave
        // it for a larger one. Here it holds at most a part of a header.
        let kept = self.buffer.as_ref().filter(|_| !self.is_store).map_or(0, |buffer| buffer.len());
        if kept < wanted {
            let taken =
                SIZES[..=self.size].iter().rev().find_map(|size| resources.buffers.take(*size));
            let floor = kept;
            if let Some(taken) = taken.filter(|taken| taken.len() > floor) {
                self.move_to(taken, false);
            }
        }

        Poll::Ready(())
    }

    /// Gets memory for a message that is to be stored.
    fn grow_to(
        &mut self,
        cx: &mut Context<'_>,
        resources: &RelayResources,
        needed: usize,
    ) -> Poll<()> {
        let size_bytes = needed.saturating_add(BEYOND_BYTES);
        if let Some(waiting) = &mut self.waiting {
            let store = ready!(waiting.0.as_mut().poll(cx));
            self.waiting = None;
            self.move_to(store, true);
            return Poll::Ready(());
        }

        if self.is_store {
            // A store that is too small, with only the bytes that were read beyond its message. A task that waits for
            // memory holds none of the same budget, so that tasks that hold some can always finish.
            if let Some(floor) = resources.buffers.take(FLOOR_BYTES) {
                self.move_to(floor, false);
            }
        }

        if let Some(store) = resources.buffers.take_store(size_bytes) {
            self.move_to(store, true);
            return Poll::Ready(());
        }

        if self.framing.mode == FrameMode::Planned {
            resources.counters.messages_unstored.add(1);
            if let Some(current) = &mut self.current {
                current.mode = SwitchingMode::CutThrough;
            }
            resources.counters.messages_cut_through.add(1);
            self.sendable = self.scanned;
            // The bytes already held go first.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }

        let mut waiting = Box::pin(resources.buffers.wait_store(size_bytes));
        match waiting.as_mut().poll(cx) {
            Poll::Ready(store) => {
                self.move_to(store, true);
                Poll::Ready(())
            }
            Poll::Pending => {
                self.waiting = Some(StoreWait(waiting));
                Poll::Pending
            }
        }
    }

    /// Moves the held bytes into `buffer`, which has room for them.
    fn move_to(&mut self, mut buffer: Buffer, is_store: bool) {
        if let Some(old) = &self.buffer {
            let held = &old[self.start..self.end];
            buffer[..held.len()].copy_from_slice(held);
        }
        self.shift();
        self.buffer = Some(buffer);
        self.is_store = is_store;
    }

    /// Moves the held bytes to the front of their buffer.
    fn compact(&mut self) {
        if self.start > 0 {
            if let Some(buffer) = &mut self.buffer {
                buffer.copy_within(self.start..self.end, 0);
            }
            self.shift();
        }
    }

    const fn shift(&mut self) {
        self.sendable -= self.start;
        self.scanned -= self.start;
        self.end -= self.start;
        self.start = 0;
    }

    fn drop_buffer(&mut self) {
        self.buffer = None;
        self.is_store = false;
        (self.start, self.sendable, self.scanned, self.end) = (0, 0, 0, 0);
    }

    fn take<A: RelayStream>(&mut self, cx: &Context<'_>, from: &A) -> Poll<io::Result<usize>> {
        let Some(buffer) = &mut self.buffer else { unreachable!("invariant: prepared before") };
        let mut stop = buffer.len();
        if self.is_store
            && let Some(current) = self.current
        {
            let message_end = usize::try_from(current.total).unwrap_or(usize::MAX);
            stop = stop.min(self.start.saturating_add(message_end).saturating_add(BEYOND_BYTES));
        }
        let room = &mut buffer[self.end..stop];
        let asked = room.len();
        let taken = ready!(from.poll_read(cx, room))?;
        self.end += taken;
        if !self.is_store {
            if taken == asked {
                self.size = (self.size + 1).min(SIZES.len() - 1);
            } else if taken < SIZES[self.size] / 8 {
                self.size = self.size.saturating_sub(1).max(1);
            }
        }
        Poll::Ready(Ok(taken))
    }

    /// Finds headers and ends of messages in the received bytes.
    fn scan(&mut self, resources: &RelayResources) -> Result<(), FrameError> {
        let now = resources.server.now();
        loop {
            let rest = self.end - self.scanned;
            let Some(current) = &mut self.current else {
                let Some(buffer) = &self.buffer else { return Ok(()) };
                let Some(header) = self.framing.format.read(&buffer[self.scanned..self.end])?
                else {
                    return Ok(());
                };
                let (length, max) = (header.body_bytes, self.framing.message_bytes_max);
                if length > max {
                    return Err(FrameError::TooLong { length, max });
                }
                self.begin(header.total(), now, resources);
                continue;
            };
            let wanted = current.total - current.seen;
            let taken = usize::try_from(wanted).unwrap_or(usize::MAX).min(rest);
            current.seen += taken as u64;
            self.scanned += taken;
            let mode = current.mode;
            if current.first_bytes == 0 {
                current.first_bytes = current.seen;
            }
            if current.seen == current.total {
                let ended = *current;
                self.complete(ended, now, resources);
            } else {
                if mode == SwitchingMode::CutThrough {
                    self.sendable = self.scanned;
                }
                return Ok(());
            }
        }
    }

    fn begin(&mut self, total: u64, now: Instant, resources: &RelayResources) {
        let mode = match self.framing.mode {
            FrameMode::StoreAndForward => SwitchingMode::StoreAndForward,
            FrameMode::CutThrough => SwitchingMode::CutThrough,
            FrameMode::Planned => self.planner.choose(total),
        };
        // Cutting through gains nothing for a message that has already arrived completely.
        let is_whole = total <= (self.end - self.scanned) as u64;
        let mode = if is_whole { SwitchingMode::StoreAndForward } else { mode };
        if mode == SwitchingMode::CutThrough {
            resources.counters.messages_cut_through.add(1);
        }
        self.current = Some(CurrentMessage { total, seen: 0, mode, began: now, first_bytes: 0 });
    }

    fn complete(&mut self, message: CurrentMessage, now: Instant, resources: &RelayResources) {
        self.sendable = self.scanned;
        self.current = None;
        resources.counters.messages.add(1);
        if self.framing.mode != FrameMode::Planned {
            return;
        }

        self.count_work();
        let blocked = std::mem::take(&mut self.blocked);
        let while_arriving = match message.mode {
            SwitchingMode::StoreAndForward => Duration::ZERO,
            // While nothing could be sent, nothing was read either.
            SwitchingMode::CutThrough => blocked,
        };

        let is_like_last = self.last_mode.replace(message.mode) == Some(message.mode);
        self.planner.note(MessageSample {
            bytes: message.total,
            mode: message.mode,
            arriving: (now - message.began).saturating_sub(while_arriving),
            arrived: message.total - message.first_bytes,
            blocked,
            work: self.work.filter(|_| is_like_last),
        });

        let is_measured = self.planner.wants_work();
        self.work = is_measured.then_some(Duration::ZERO);
        self.counted_to = is_measured.then(|| self.counted_to.unwrap_or_else(thread_cpu_time));
    }
}
