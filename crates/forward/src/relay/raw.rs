//! One direction of a raw relay: bytes are copied through a buffer, or moved by the kernel through a pipe.
//!
//! ```text
//!            1 nothing yet: end, finish the other side          take(): buffer of the present size, or pipe
//!          ┌────────────────────────────────────────┐
//!   Empty ─┴─ 2 read or fill ──▶ Buffer / Pipe ─────┴─ 3 write or empty ──▶ Empty, if all of it went
//! ```
//!
//! While the receiver is slow, nothing is read: the kernel's own queues fill up, and then the sender waits. While
//! nothing arrives, no memory is held.

use std::{
    task::{Context, Poll, ready},
    time::Duration,
};

use vigie_detect::{
    Instant,
    clock::{monotonic_now, thread_cpu_time},
};

use super::{
    buffers::{Buffer, FLOOR_BYTES},
    chooser::{TransferEngine, picos_per_byte},
    error::{PumpError, StreamSide},
    pipes::Pipe,
    resources::{RelayResources, StreamCount},
    stream::{PumpContext, RelayStream},
    yielder::POLL_BYTES_MAX,
};

/// The sizes of buffers that a direction grows through, when it fills them.
const SIZES: [usize; 4] = [FLOOR_BYTES, 16 << 10, 64 << 10, 256 << 10];

/// From this index of [`SIZES`] on, a direction carries a stream rather than small messages.
const BULK: usize = 2;

/// Fewer bytes than this through a pipe count as a small message.
const SPLICED_BYTES_MIN: usize = 16 << 10;

/// The buffer shrinks after this many reads that would have fitted into the next smaller size.
const SMALL_READS_MAX: u8 = 16;

/// A poll that moved fewer bytes says little about the cost per byte.
const SAMPLE_BYTES_MIN: usize = 64 << 10;

/// A direction chooses its engine anew after this many bytes, or after this much time if it has moved a few by then.
const CHOICE_BYTES: usize = 16 << 20;
const CHOICE_BYTES_MIN: usize = 1 << 20;
const CHOICE_TIME: Duration = Duration::from_millis(50);

/// Returns how many bytes a poll moves. With thousands of streams a full poll of each would leave more in the queues than the kernel's memory for TCP holds.
fn poll_bytes(resources: &RelayResources) -> usize {
    let share = resources.buffers.share_bytes(resources.streams());
    share.clamp(SIZES[BULK], POLL_BYTES_MAX)
}

/// One direction of a raw relay.
#[derive(Debug)]
pub(super) struct RawPump {
    store: Store,
    /// An index of [`SIZES`].
    size: usize,
    small_reads: u8,
    engine: TransferEngine,
    /// Bytes since the last choice of an engine; only a direction that fills its buffers makes choices.
    since_choice: usize,
    /// The beginning of the current window of a continuous stream, at the last choice.
    window_began: Option<Instant>,
    /// The previous window's engine, and its time in picoseconds per byte.
    window_before: Option<(TransferEngine, u64)>,
    /// While it fills its buffers.
    stream: Option<StreamCount>,
    has_ended: bool,
}

#[derive(Debug)]
enum Store {
    Empty,
    Buffer { buffer: Buffer, start: usize, end: usize },
    Pipe { pipe: Pipe, held: usize },
}

impl RawPump {
    pub(super) const fn new() -> Self {
        Self {
            store: Store::Empty,
            // Small messages use none of the budget.
            size: 0,
            small_reads: 0,
            engine: TransferEngine::Copy,
            since_choice: CHOICE_BYTES,
            window_began: None,
            window_before: None,
            stream: None,
            has_ended: false,
        }
    }

    /// Returns whether bytes were read that have not been written.
    pub(super) const fn holds_bytes(&self) -> bool {
        match self.store {
            Store::Empty => false,
            Store::Buffer { start, end, .. } => start < end,
            Store::Pipe { held, .. } => held > 0,
        }
    }

    /// Moves as many bytes as possible, counts them, and is ready once the end has been passed on.
    pub(super) fn poll<A: RelayStream, B: RelayStream>(
        &mut self,
        cx: &Context<'_>,
        context: PumpContext<'_, A, B>,
    ) -> Poll<Result<(), PumpError>> {
        // What encryption costs says nothing about copies.
        let can_splice = context.from.can_splice() && context.to.can_splice();
        let began = (self.stream.is_some() && can_splice).then(thread_cpu_time);
        let (resources, before) = (context.resources, *context.moved);
        let engine = self.engine;
        let moved = &mut *context.moved;
        let ended = self.pump(cx, PumpContext { moved, ..context });
        let bytes = usize::try_from(*context.moved - before).unwrap_or(usize::MAX);
        resources.count_bytes(engine, *context.moved - before);
        if let Some(began) = began
            && bytes >= SAMPLE_BYTES_MIN
            && engine == self.engine
        {
            resources.chooser.note(engine, bytes, thread_cpu_time().saturating_sub(began));
        }
        self.since_choice = self.since_choice.saturating_add(bytes);
        ended
    }

    fn pump<A: RelayStream, B: RelayStream>(
        &mut self,
        cx: &Context<'_>,
        context: PumpContext<'_, A, B>,
    ) -> Poll<Result<(), PumpError>> {
        let PumpContext { from, to, resources, moved } = context;
        let stop = *moved + poll_bytes(resources) as u64;
        loop {
            *moved += ready!(self.give(cx, to))
                .map_err(|source| PumpError::io(StreamSide::To, source))?;
            if self.holds_bytes() {
                continue;
            }
            if self.has_ended {
                (self.store, self.stream) = (Store::Empty, None);
                return to.poll_finish(cx).map_err(|error| PumpError::io(StreamSide::To, error));
            }
            if *moved >= stop {
                // The next stream takes the same one, which is still in the caches.
                self.store = Store::Empty;
                resources.yielder.yield_now(&resources.server, resources.counters.active.value());
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            // First: most polls find one direction idle, which needs no buffer.
            let taken = match from.poll_readable(cx) {
                Poll::Ready(Ok(())) => {
                    self.prepare(resources, from.can_splice() && to.can_splice());
                    self.take(cx, from, resources)
                }
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Pending => Poll::Pending,
            };
            match taken {
                Poll::Ready(Ok(0)) => self.has_ended = true,
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(Err(PumpError::io(StreamSide::From, error)));
                }
                Poll::Pending => {
                    // Only directions that move bytes hold memory and pipes.
                    self.store = Store::Empty;
                    return Poll::Pending;
                }
            }
        }
    }

    /// Writes the held bytes; `Ready` with 0 if there are none.
    fn give<B: RelayStream>(&mut self, cx: &Context<'_>, to: &B) -> Poll<std::io::Result<u64>> {
        let given = match &mut self.store {
            Store::Buffer { buffer, start, end } if *start < *end => {
                let given = ready!(to.poll_write(cx, &buffer[*start..*end]))?;
                *start += given;
                given
            }
            Store::Pipe { pipe, held } if *held > 0 => {
                let given = ready!(to.poll_empty(cx, pipe, *held))?;
                *held -= given;
                pipe.is_clean = *held == 0;
                given
            }
            _ => return Poll::Ready(Ok(0)),
        };
        if given == 0 {
            return Poll::Ready(Err(std::io::ErrorKind::WriteZero.into()));
        }
        Poll::Ready(Ok(given as u64))
    }

    /// Gets a buffer or a pipe for the next bytes.
    fn prepare(&mut self, resources: &RelayResources, can_splice: bool) {
        if self.stream.is_some() && self.is_window_over() {
            self.end_window(resources);
            let before = self.window_before.map(|(engine, _)| engine);
            self.engine = if can_splice {
                resources.chooser.choose(before, resources.streams())
            } else {
                TransferEngine::Copy
            };
            self.since_choice = 0;
        }

        // Few hold a buffer at the same time.
        let share = resources.buffers.share_bytes(resources.streams());
        while self.size > 0 && SIZES[self.size] > share {
            self.size -= 1;
        }

        match (&self.store, self.engine) {
            (Store::Pipe { .. }, TransferEngine::Splice) => return,
            (Store::Buffer { buffer, .. }, TransferEngine::Copy)
                if buffer.len() == SIZES[self.size] =>
            {
                return;
            }
            _ => {}
        }

        if self.engine == TransferEngine::Splice {
            if let Some(pipe) = resources.pipes.take() {
                self.store = Store::Pipe { pipe, held: 0 };
                return;
            }
            resources.count_missing_pipe();
            self.engine = TransferEngine::Copy;
            // A window that used both engines says nothing about either.
            (self.window_began, self.window_before) = (None, None);
        }

        // Free the old buffer first: the new one may need its bytes.
        self.store = Store::Empty;
        let buffer = loop {
            match resources.buffers.take(SIZES[self.size]) {
                Some(buffer) => break buffer,
                None => self.size -= 1,
            }
        };

        self.store = Store::Buffer { buffer, start: 0, end: 0 };
    }

    /// With many concurrent streams each is slow; counting only bytes, their windows would last too long.
    fn is_window_over(&self) -> bool {
        let is_late = || {
            let began = self.window_began.unwrap_or(Instant::MAX);
            monotonic_now().saturating_duration_since(began) >= CHOICE_TIME
        };
        self.since_choice >= CHOICE_BYTES || (self.since_choice >= CHOICE_BYTES_MIN && is_late())
    }

    /// Compares the finished window with the previous one.
    fn end_window(&mut self, resources: &RelayResources) {
        let now = monotonic_now();
        let window = self
            .window_began
            .replace(now)
            .map(|began| (self.engine, picos_per_byte(self.since_choice, now - began)));
        if let Some((before, after)) = self.window_before.zip(window) {
            resources.chooser.compare(before, after);
        }
        self.window_before = window;
    }

    fn take<A: RelayStream>(
        &mut self,
        cx: &Context<'_>,
        from: &A,
        resources: &RelayResources,
    ) -> Poll<std::io::Result<usize>> {
        match &mut self.store {
            Store::Pipe { pipe, held } => {
                let taken = ready!(from.poll_fill(cx, pipe, poll_bytes(resources)))?;
                *held = taken;
                pipe.is_clean = taken == 0;
                if taken < SPLICED_BYTES_MIN {
                    self.note_small_read();
                } else {
                    self.small_reads = 0;
                }
                Poll::Ready(Ok(taken))
            }
            Store::Buffer { buffer, start, end } => {
                let taken = ready!(from.poll_read(cx, buffer))?;
                (*start, *end) = (0, taken);
                let room = buffer.len();
                if taken == room {
                    self.note_full_read(resources);
                } else if self.size > 0 && taken <= SIZES[self.size - 1] {
                    self.note_small_read();
                } else {
                    self.small_reads = 0;
                }
                Poll::Ready(Ok(taken))
            }
            Store::Empty => unreachable!("invariant: prepared before"),
        }
    }

    fn note_full_read(&mut self, resources: &RelayResources) {
        self.small_reads = 0;
        if self.size + 1 < SIZES.len() {
            self.size += 1;
        }
        if self.size >= BULK && self.stream.is_none() {
            self.stream = Some(resources.count_stream());
        }
    }

    fn note_small_read(&mut self) {
        self.small_reads += 1;
        if self.small_reads >= SMALL_READS_MAX {
            self.small_reads = 0;
            self.size = self.size.saturating_sub(1);
            if self.size < BULK {
                self.stream = None;
                self.engine = TransferEngine::Copy;
                self.since_choice = CHOICE_BYTES;
                (self.window_began, self.window_before) = (None, None);
            }
        }
    }
}
