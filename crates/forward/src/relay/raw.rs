//! Bytes in one direction, as they come: copied through a buffer, or moved by the kernel through a pipe.
//!
//! ```text
//!            1 nothing yet: end, finish the other side          take(): buffer of the present size, or pipe
//!          ┌────────────────────────────────────────┐
//!   Empty ─┴─ 2 read or fill ──▶ Buffer / Pipe ─────┴─ 3 write or empty ──▶ Empty, if all of it went
//! ```
//!
//! While the receiver is slow, nothing is read: the kernel's own queues fill, and then the sender waits. While
//! nothing comes, nothing is held.

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
    chooser::{Engine, picos_per_byte},
    courtesy::POLL_BYTES_MAX,
    error::{Fault, Side},
    means::Means,
    pipes::{PIPE_BYTES, Pipe},
    transport::Transport,
};

/// The sizes of buffers that a direction grows through, when it fills them.
const SIZES: [usize; 4] = [FLOOR_BYTES, 16 << 10, 64 << 10, 256 << 10];

/// From this size on, an index of [`SIZES`], a direction carries a stream and no longer small messages.
const BULK: usize = 2;

/// Fewer bytes than this through a pipe are a small message.
const SPLICED_BYTES_MIN: usize = 16 << 10;

/// After how many reads that would have fitted into the size below the buffer shrinks.
const SMALL_READS_MAX: u8 = 16;

/// A poll that moved fewer bytes says little of what a byte costs.
const SAMPLE_BYTES_MIN: usize = 64 << 10;

/// After so many bytes a direction asks again which engine it should use; after so much time, if it has moved a few by then.
const CHOICE_BYTES: usize = 16 << 20;
const CHOICE_BYTES_MIN: usize = 1 << 20;
const CHOICE_TIME: Duration = Duration::from_millis(50);

/// One direction of a raw relay.
#[derive(Debug)]
pub(super) struct RawPump {
    store: Store,
    /// An index of [`SIZES`].
    size: usize,
    small_reads: u8,
    engine: Engine,
    /// Bytes since the last choice of an engine; only a direction that fills its buffers comes to choose.
    since_choice: usize,
    /// When the window of bytes since the last choice began, of a stream that goes on.
    window_began: Option<Instant>,
    /// How the window before did, in picoseconds per byte.
    window_before: Option<(Engine, u64)>,
    is_bulk: bool,
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
            // Small messages need no part of the budget.
            size: 0,
            small_reads: 0,
            engine: Engine::Copy,
            since_choice: CHOICE_BYTES,
            window_began: None,
            window_before: None,
            is_bulk: false,
            has_ended: false,
        }
    }

    /// Returns whether bytes were taken that have not been given on.
    pub(super) const fn holds_bytes(&self) -> bool {
        match self.store {
            Store::Empty => false,
            Store::Buffer { start, end, .. } => start < end,
            Store::Pipe { held, .. } => held > 0,
        }
    }

    /// Moves what can be moved, adds it to `moved`, and is ready once the end has been passed on.
    pub(super) fn poll<A: Transport, B: Transport>(
        &mut self,
        cx: &Context<'_>,
        (from, to): (&A, &B),
        means: &Means,
        moved: &mut u64,
    ) -> Poll<Result<(), Fault>> {
        let began = self.is_bulk.then(thread_cpu_time);
        let before = *moved;
        let engine = self.engine;
        let ended = self.turn(cx, (from, to), means, moved);
        let bytes = usize::try_from(*moved - before).unwrap_or(usize::MAX);
        means.tally(engine, *moved - before);
        if let Some(began) = began
            && bytes >= SAMPLE_BYTES_MIN
            && engine == self.engine
        {
            means.chooser.note(engine, bytes, thread_cpu_time().saturating_sub(began));
        }
        self.since_choice = self.since_choice.saturating_add(bytes);
        ended
    }

    fn turn<A: Transport, B: Transport>(
        &mut self,
        cx: &Context<'_>,
        (from, to): (&A, &B),
        means: &Means,
        moved: &mut u64,
    ) -> Poll<Result<(), Fault>> {
        let stop = *moved + POLL_BYTES_MAX;
        loop {
            *moved += ready!(self.give(cx, to)).map_err(|source| Fault::io(Side::To, source))?;
            if self.holds_bytes() {
                continue;
            }
            if self.has_ended {
                self.store = Store::Empty;
                return Poll::Ready(
                    to.finish_writing().map_err(|error| Fault::io(Side::To, error)),
                );
            }
            if *moved >= stop {
                means.courtesy.yield_now();
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.prepare(means, from.can_splice() && to.can_splice());
            match self.take(cx, from) {
                Poll::Ready(Ok(0)) => self.has_ended = true,
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(Fault::io(Side::From, error))),
                Poll::Pending => {
                    // Memory and pipes are for those that move something.
                    self.store = Store::Empty;
                    return Poll::Pending;
                }
            }
        }
    }

    /// Gives on what is held; `Ready` with 0 if nothing is.
    fn give<B: Transport>(&mut self, cx: &Context<'_>, to: &B) -> Poll<std::io::Result<u64>> {
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

    /// Sees to a place for the next bytes.
    fn prepare(&mut self, means: &Means, can_splice: bool) {
        if self.is_bulk && self.is_window_over() {
            self.end_window(means);
            let before = self.window_before.map(|(engine, _)| engine);
            self.engine = if can_splice { means.chooser.choose(before) } else { Engine::Copy };
            self.since_choice = 0;
        }
        match (&self.store, self.engine) {
            (Store::Pipe { .. }, Engine::Splice) => return,
            (Store::Buffer { buffer, .. }, Engine::Copy) if buffer.len() == SIZES[self.size] => {
                return;
            }
            _ => {}
        }
        if self.engine == Engine::Splice {
            if let Some(pipe) = means.pipes.take() {
                self.store = Store::Pipe { pipe, held: 0 };
                return;
            }
            means.note_no_pipe();
            self.engine = Engine::Copy;
            // Of both engines, it says nothing of either.
            (self.window_began, self.window_before) = (None, None);
        }
        // The old buffer first: its bytes may be what the new one needs.
        self.store = Store::Empty;
        let buffer = loop {
            match means.buffers.take(SIZES[self.size]) {
                Some(buffer) => break buffer,
                None => self.size -= 1,
            }
        };
        self.store = Store::Buffer { buffer, start: 0, end: 0 };
    }

    /// Many streams at once are slow each, and would know nothing for long by bytes alone.
    fn is_window_over(&self) -> bool {
        let is_late = || {
            let began = self.window_began.unwrap_or(Instant::MAX);
            monotonic_now().saturating_duration_since(began) >= CHOICE_TIME
        };
        self.since_choice >= CHOICE_BYTES || (self.since_choice >= CHOICE_BYTES_MIN && is_late())
    }

    /// Compares the window that has ended with the one before it.
    fn end_window(&mut self, means: &Means) {
        let now = monotonic_now();
        let window = self
            .window_began
            .replace(now)
            .map(|began| (self.engine, picos_per_byte(self.since_choice, now - began)));
        if let Some((before, after)) = self.window_before.zip(window) {
            means.chooser.compare(before, after);
        }
        self.window_before = window;
    }

    fn take<A: Transport>(&mut self, cx: &Context<'_>, from: &A) -> Poll<std::io::Result<usize>> {
        match &mut self.store {
            Store::Pipe { pipe, held } => {
                let taken = ready!(from.poll_fill(cx, pipe, PIPE_BYTES))?;
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
                    self.note_full_read();
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

    fn note_full_read(&mut self) {
        self.small_reads = 0;
        if self.size + 1 < SIZES.len() {
            self.size += 1;
        }
        self.is_bulk = self.size >= BULK;
    }

    fn note_small_read(&mut self) {
        self.small_reads += 1;
        if self.small_reads >= SMALL_READS_MAX {
            self.small_reads = 0;
            self.size = self.size.saturating_sub(1);
            if self.size < BULK {
                self.is_bulk = false;
                self.engine = Engine::Copy;
                self.since_choice = CHOICE_BYTES;
                (self.window_began, self.window_before) = (None, None);
            }
        }
    }
}
