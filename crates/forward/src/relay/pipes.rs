//! Pipes through which the kernel moves bytes from socket to socket, kept for the next use.

use std::{
    io, mem,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

/// What a pipe is asked to hold: 64 places, each for a piece of a packet. Two directions of a hundred
/// connections stay below what a user may have without privilege (`pipe-user-pages-soft`).
pub(super) const PIPE_BYTES: usize = 256 << 10;

/// An empty pipe, or one whose bytes its user counts.
#[derive(Debug)]
pub(super) struct Pipe {
    /// Gone only in `drop`.
    ends: Option<(OwnedFd, OwnedFd)>,
    pool: Arc<Pool>,
    /// Whether bytes were left in it: then it is closed, not kept.
    pub(super) is_clean: bool,
}

impl Pipe {
    pub(super) fn inlet(&self) -> BorrowedFd<'_> {
        let (_, inlet) = self.ends.as_ref().expect("invariant: gone only in drop");
        inlet.as_fd()
    }

    pub(super) fn outlet(&self) -> BorrowedFd<'_> {
        let (outlet, _) = self.ends.as_ref().expect("invariant: gone only in drop");
        outlet.as_fd()
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.pool.out.fetch_sub(1, Ordering::Relaxed);
        let Some(ends) = self.ends.take() else { return };
        if self.is_clean {
            let mut free = self.pool.free.lock().unwrap_or_else(PoisonError::into_inner);
            if free.len() < self.pool.kept_max {
                free.push(ends);
            }
        }
    }
}

/// The pipes of a relay.
#[derive(Clone, Debug)]
pub(super) struct Pipes {
    pool: Arc<Pool>,
}

#[derive(Debug)]
struct Pool {
    free: Mutex<Vec<(OwnedFd, OwnedFd)>>,
    /// Pipes in use. A count alone: no memory is published by it.
    out: AtomicUsize,
    out_max: usize,
    kept_max: usize,
}

impl Pipes {
    /// At most `out_max` are in use at a time, each of which takes two descriptors.
    pub(super) fn new(out_max: usize) -> Self {
        let kept_max = out_max.min(64);
        let free = Mutex::new(Vec::new());
        Self { pool: Arc::new(Pool { free, out: AtomicUsize::new(0), out_max, kept_max }) }
    }

    /// Returns an empty pipe, unless too many are in use or the kernel gives none.
    pub(super) fn take(&self) -> Option<Pipe> {
        if self.pool.out.fetch_add(1, Ordering::Relaxed) >= self.pool.out_max {
            self.pool.out.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let mut pipe = Pipe { ends: None, pool: Arc::clone(&self.pool), is_clean: true };
        let kept = self.pool.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        pipe.ends = Some(match kept {
            Some(ends) => ends,
            // Dropping the pipe gives its place back.
            None => make().ok()?,
        });
        Some(pipe)
    }

    /// Closes the pipes that are not in use: somebody lacks descriptors.
    pub(super) fn close_free(&self) {
        let free = mem::take(&mut *self.pool.free.lock().unwrap_or_else(PoisonError::into_inner));
        drop(free);
    }

    #[cfg(test)]
    pub(super) fn in_use(&self) -> usize {
        self.pool.out.load(Ordering::Relaxed)
    }
}

fn make() -> io::Result<(OwnedFd, OwnedFd)> {
    let (outlet, inlet) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    // The default of 64 KiB serves too, if the user may have no more.
    let _ = fcntl_setpipe_size(&inlet, PIPE_BYTES);
    Ok((outlet, inlet))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the pool is bounded, and a pipe with bytes in it is not given to the next. Method: take more than
    /// there are; leave a byte in one, and look for it in its successors.
    #[test]
    fn the_pool_is_bounded_and_clean() {
        let pipes = Pipes::new(2);
        let (one, mut other) = (pipes.take().expect("a pipe"), pipes.take().expect("a pipe"));
        assert!(pipes.take().is_none());
        rustix::io::write(other.inlet(), b"x").expect("room");
        other.is_clean = false;
        drop((one, other));
        assert_eq!(pipes.in_use(), 0);
        let held = [pipes.take().expect("a pipe"), pipes.take().expect("a pipe")];
        for pipe in &held {
            assert_eq!(rustix::io::read(pipe.outlet(), &mut [0; 1]), Err(rustix::io::Errno::AGAIN));
        }
        drop(held);
        pipes.close_free();
        assert!(pipes.take().is_some());
    }
}
