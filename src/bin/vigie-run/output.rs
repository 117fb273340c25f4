//! The ranks' output: whole lines, each prefixed with its rank.

use std::{
    cell::RefCell,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    rc::Rc,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::{Errno, ioctl_fionbio, read, write},
};
use tokio::sync::Mutex;
use vigie::{
    JoinHandle, detect::AsyncFd, detectors::readiness::Direction, spawn_blocking, spawn_local,
    time::timeout,
};

/// The longest line that is passed on whole.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// The number of bytes read at once.
const READ_BYTES: usize = 16 * 1024;

/// One of the launcher's own two output streams, written by one task at once. Writing may block for long (a pager, a
/// stopped terminal), so the blocking pool does it.
pub(crate) struct Sink {
    stream: Stream,
    /// Locked by the task that writes.
    order: Mutex<()>,
    /// The reader has gone, or the disk is full.
    error: RefCell<Option<io::Error>>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Stream {
    Output,
    Error,
}

impl Sink {
    pub(crate) fn new(stream: Stream) -> Rc<Self> {
        Rc::new(Self { stream, order: Mutex::new(()), error: RefCell::new(None) })
    }

    /// Writes whole lines, contiguously. Returns whether the stream still accepts any.
    pub(crate) async fn write(&self, bytes: Vec<u8>) -> bool {
        let _order = self.order.lock().await;
        if self.error.borrow().is_none() {
            let stream = self.stream;
            let written = spawn_blocking(move || match stream {
                Stream::Output => write_all(io::stdout().as_fd(), &bytes),
                Stream::Error => write_all(io::stderr().as_fd(), &bytes),
            });
            let written = written.await.unwrap_or_else(|error| Err(io::Error::other(error)));
            self.error.replace(written.err());
        }
        self.error.borrow().is_none()
    }

    /// Returns whether a task is writing, and may be waiting for the reader.
    pub(crate) fn is_busy(&self) -> bool {
        self.order.try_lock().is_err()
    }

    /// Returns the error that made the stream unusable; `None` if its reader has just gone, which is no error.
    pub(crate) fn failure(&self) -> Option<String> {
        let error = self.error.borrow();
        let error = error.as_ref().filter(|error| error.kind() != io::ErrorKind::BrokenPipe)?;
        Some(format!("standard {:?} could not be written: {error}", self.stream).to_lowercase())
    }
}

/// Writes all bytes, even to a descriptor that another process has made non-blocking.
fn write_all(to: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match write(to, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                match poll(&mut [PollFd::from_borrowed_fd(to, PollFlags::OUT)], None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// One of a rank's two pipes, and the task that passes its lines on.
pub(crate) struct Pipe {
    task: JoinHandle<()>,
    lines: Rc<RefCell<Lines>>,
    sink: Rc<Sink>,
}

impl Pipe {
    /// Passes on the lines of `from`, until its other end is closed. If the sink is gone, closes this end, so that the
    /// rank gets SIGPIPE as in any pipeline.
    pub(crate) fn pass_on(from: OwnedFd, sink: Rc<Sink>, prefix: String) -> io::Result<Self> {
        ioctl_fionbio(&from, true)?;
        let from = AsyncFd::new(from)?;
        let lines = Rc::new(RefCell::new(Lines::new(prefix)));
        let (to, cutter) = (Rc::clone(&sink), Rc::clone(&lines));
        let task = spawn_local(async move {
            let mut buffer = vec![0; READ_BYTES];
            loop {
                let count = from
                    .async_io(Direction::Read, |from| Ok(read(from, &mut buffer[..])?))
                    .await
                    .unwrap_or(0);
                let mut out = Vec::new();
                match count {
                    0 => cutter.borrow_mut().finish(&mut out),
                    _ => cutter.borrow_mut().feed(&buffer[..count], &mut out),
                }
                if (!out.is_empty() && !to.write(out).await) || count == 0 {
                    return;
                }
            }
        });
        Ok(Self { task, lines, sink })
    }

    /// After the rank has ended, waits until everything is passed on. Gives up a pipe that stays open and silent:
    /// processes that have left the rank's process group hold it.
    pub(crate) async fn finish(mut self) {
        while timeout(SILENCE, &mut self.task).await.is_err() {
            if !self.sink.is_busy() {
                self.task.abort();
                let mut out = Vec::new();
                self.lines.borrow_mut().finish(&mut out);
                self.sink.write(out).await;
                return;
            }
        }
    }
}

/// The time to wait for output from the silent pipe of a rank that has ended.
const SILENCE: Duration = Duration::from_secs(1);

/// Splits a stream of bytes into lines and puts a prefix before each.
struct Lines {
    prefix: String,
    /// The start of an incomplete line.
    partial: Vec<u8>,
}

impl Lines {
    const fn new(prefix: String) -> Self {
        Self { prefix, partial: Vec::new() }
    }

    /// Appends to `out` the lines that `bytes` complete.
    fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            let room = LINE_BYTES_MAX.saturating_sub(self.partial.len());
            let (now, rest) = piece.split_at(piece.len().min(room));
            self.partial.extend_from_slice(now);
            if self.partial.ends_with(b"\n") || self.partial.len() >= LINE_BYTES_MAX {
                self.finish(out);
            }
            // A read is shorter than the longest line, so this is cut at most once.
            self.partial.extend_from_slice(rest);
            if self.partial.ends_with(b"\n") {
                self.finish(out);
            }
        }
    }

    /// Appends the partial line, and ends it: the next bytes belong to another rank.
    fn finish(&mut self, out: &mut Vec<u8>) {
        if self.partial.is_empty() {
            return;
        }
        out.extend_from_slice(self.prefix.as_bytes());
        out.append(&mut self.partial);
        if !out.ends_with(b"\n") {
            out.push(b'\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pieces: &[&[u8]]) -> Vec<u8> {
        let (mut lines, mut out) = (Lines::new("[1] ".to_owned()), Vec::new());
        for piece in pieces {
            lines.feed(piece, &mut out);
        }
        lines.finish(&mut out);
        out
    }

    /// Goal: every line has its prefix once, wherever reads split it, and no byte is lost or changed. Method: one text
    /// split at each position, with bytes that are not UTF-8.
    #[test]
    fn lines_cut_anywhere() {
        let text = b"a\n\nb\xff\xfe c\r\nlast";
        let expected = b"[1] a\n[1] \n[1] b\xff\xfe c\r\n[1] last\n";
        for cut in 0..=text.len() {
            let (one, other) = text.split_at(cut);
            assert_eq!(all(&[one, other]), expected, "cut at {cut}");
        }
        assert_eq!(all(&[]), b"");
        assert_eq!(all(&[b"\n"]), b"[1] \n");
    }

    /// Goal: a line without end takes bounded memory. Method: one of several times the bound, in reads; without
    /// prefixes and added line ends the bytes are the same.
    #[test]
    fn endless_line() {
        let read = [b'x'; READ_BYTES];
        let out = all(&[&read[..]; 10]);
        let pieces = out.split_inclusive(|&byte| byte == b'\n').collect::<Vec<_>>();
        assert!(pieces.iter().all(|piece| piece.starts_with(b"[1] ")));
        assert!(pieces.iter().all(|piece| piece.len() <= LINE_BYTES_MAX + 5));
        assert_eq!(out.iter().filter(|&&byte| byte == b'x').count(), 10 * READ_BYTES);
    }
}
