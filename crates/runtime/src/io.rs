//! The standard streams of the process.
//!
//! They may be terminals, pipes or files, which no poller watches alike, and which the process shares with others. So a
//! thread reads and writes them: for [`stdin()`] one of the process's own, which no shutdown waits for, since a read that
//! waits for a person cannot be ended; for the others, the blocking pool.
//!
//! In a simulation, what is written is printed, and a read fails with [`io::ErrorKind::Unsupported`]: no seed knows what a person types.

use std::{
    collections::VecDeque,
    future::Future,
    io::{self, Read, Write},
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    pin::Pin,
    task::{Context, Poll, Waker, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use vigie_detect::refuse_in_simulation;

use crate::{
    spawn_blocking,
    sync::{Condvar, OnceLock, PoisonError, RealGuard, RealMutex, thread},
    task_cell::JoinHandle,
};

/// The number of bytes that are read or written at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// The standard input of the process. All instances read from one buffer.
///
/// # Cancel safety
/// Cancel safe: input that arrives for a read that was dropped is there for the next one.
#[derive(Debug)]
pub struct Stdin {
    _private: (),
}

/// Returns the standard input. A thread of the process reads it from the first read on, one chunk ahead of the readers.
#[must_use]
pub const fn stdin() -> Stdin {
    Stdin { _private: () }
}

/// The input that the thread has read.
struct StdinBuffer {
    state: RealMutex<StdinState>,
    /// Signalled when a reader waits.
    is_wanted: Condvar,
}

#[derive(Default)]
struct StdinState {
    bytes: VecDeque<u8>,
    /// The end of the input, or an error; taken by a read.
    end: Option<io::Result<()>>,
    readers: Vec<Waker>,
    has_thread: bool,
}

fn stdin_buffer() -> &'static StdinBuffer {
    static BUFFER: OnceLock<StdinBuffer> = OnceLock::new();
    BUFFER.get_or_init(|| StdinBuffer {
        state: RealMutex::new(StdinState::default()),
        is_wanted: Condvar::new(),
    })
}

impl StdinBuffer {
    fn lock(&self) -> RealGuard<'_, StdinState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a chunk whenever a reader waits for one.
    fn run(&self) {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let mut state = self.lock();
            while state.readers.is_empty() {
                state = self.is_wanted.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            drop(state);
            let read = io::stdin().lock().read(&mut chunk);
            let mut state = self.lock();
            match read {
                Ok(0) => state.end = Some(Ok(())),
                Ok(count) => state.bytes.extend(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => state.end = Some(Err(error)),
            }
            let readers = std::mem::take(&mut state.readers);
            drop(state);
            readers.into_iter().for_each(Waker::wake);
        }
    }

    fn poll_read(&'static self, waker: &Waker, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = self.lock();
        if !state.bytes.is_empty() {
            let (first, _) = state.bytes.as_slices();
            let count = first.len().min(buffer.remaining());
            buffer.put_slice(&first[..count]);
            state.bytes.drain(..count);
            return Poll::Ready(Ok(()));
        }
        if let Some(end) = state.end.take() {
            return Poll::Ready(end);
        }
        if !state.has_thread {
            thread::Builder::new().name("vigie-stdin".to_owned()).spawn(|| self.run())?;
            state.has_thread = true;
        }
        if !state.readers.iter().any(|reader| reader.will_wake(waker)) {
            state.readers.push(waker.clone());
        }
        self.is_wanted.notify_one();
        Poll::Pending
    }
}

impl AsyncRead for Stdin {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        refuse_in_simulation("standard input", "give the service its input as an `AsyncRead`")?;
        stdin_buffer().poll_read(cx.waker(), buffer)
    }
}

impl AsFd for Stdin {
    fn as_fd(&self) -> BorrowedFd<'_> {
        rustix::stdio::stdin()
    }
}

impl AsRawFd for Stdin {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// A write that the blocking pool does for a task.
#[derive(Debug, Default)]
struct Writing {
    running: Option<JoinHandle<io::Result<()>>>,
}

impl Writing {
    /// Waits for the write that runs.
    fn poll_done(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(running) = &mut self.running else { return Poll::Ready(Ok(())) };
        let result = ready!(Pin::new(running).poll(cx));
        self.running = None;
        Poll::Ready(result.unwrap_or_else(|error| Err(error.into())))
    }

    /// Begins to write `bytes` to `output`, once the write before has ended.
    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
        write: fn(&[u8]) -> io::Result<()>,
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_done(cx))?;
        let bytes = &bytes[..bytes.len().min(CHUNK_BYTES)];
        if !bytes.is_empty() {
            let copy = bytes.to_vec();
            self.running = Some(spawn_blocking(move || write(&copy)));
        }
        Poll::Ready(Ok(bytes.len()))
    }
}

/// An output stream of the process.
macro_rules! output {
    ($type:ident, $new:ident, $what:literal) => {
        #[doc = concat!("The standard ", $what, " of the process: see [`", stringify!($new), "`].")]
        #[derive(Debug)]
        pub struct $type {
            writing: Writing,
        }

        #[doc = concat!("Returns the standard ", $what, ".")]
        ///
        /// A write returns once its bytes are copied, and the next waits until they are written. Flush before the program
        /// ends. Writes of several instances, and of `print!`, are not mixed within 64 KiB.
        #[must_use]
        pub fn $new() -> $type {
            $type { writing: Writing::default() }
        }

        impl AsyncWrite for $type {
            fn poll_write(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.writing.poll_write(cx, bytes, |bytes| {
                    let mut output = io::$new().lock();
                    output.write_all(bytes).and_then(|()| output.flush())
                })
            }

            fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.writing.poll_done(cx)
            }

            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.poll_flush(cx)
            }
        }

        impl AsFd for $type {
            fn as_fd(&self) -> BorrowedFd<'_> {
                rustix::stdio::$new()
            }
        }

        impl AsRawFd for $type {
            fn as_raw_fd(&self) -> RawFd {
                self.as_fd().as_raw_fd()
            }
        }
    };
}

output!(Stdout, stdout, "output");
output!(Stderr, stderr, "error output");
