//! Pooled pipes, through which the kernel moves bytes from socket to socket.

use std::{
    io, mem,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use rustix::{
    io::Errno,
    pipe::{PipeFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with},
};

/// The requested capacity of a pipe: 64 slots, each for a piece of a packet. Two directions of a hundred connections
/// stay below a user's limit without privileges (`pipe-user-pages-soft`).
pub(super) const PIPE_BYTES: usize = 256 << 10;

/// Beyond a user's limit the kernel makes pipes of 8 KiB, through which splicing costs more than copying.
const PIPE_BYTES_MIN: usize = 64 << 10;

/// A pipe that is empty, or whose bytes its user counts.
#[derive(Debug)]
pub(super) struct Pipe {
    /// `None` only in `drop`.
    ends: Option<(OwnedFd, OwnedFd)>,
    pool: Arc<PipePool>,
    /// True if it is empty; otherwise it is closed, not kept.
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
    pool: Arc<PipePool>,
}

#[derive(Debug)]
struct PipePool {
    free: Mutex<Vec<(OwnedFd, OwnedFd)>>,
    /// Pipes in use. Only a count: it synchronises no memory.
    out: AtomicUsize,
    out_max: usize,
    kept_max: usize,
}

impl Pipes {
    /// Creates a pool with at most `out_max` pipes in use, each of two descriptors.
    pub(super) fn new(out_max: usize) -> Self {
        let kept_max = out_max.min(64);
        let free = Mutex::new(Vec::new());
        Self { pool: Arc::new(PipePool { free, out: AtomicUsize::new(0), out_max, kept_max }) }
    }

    /// Returns an empty pipe; `None` if too many are in use or the kernel refuses.
    pub(super) fn take(&self) -> Option<Pipe> {
        if self.pool.out.fetch_add(1, Ordering::Relaxed) >= self.pool.out_max {
            self.pool.out.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let mut pipe = Pipe { ends: None, pool: Arc::clone(&self.pool), is_clean: true };
        let kept = self.pool.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        pipe.ends = Some(match kept {
            Some(ends) => ends,
            // Dropping the pipe frees its slot.
            None => make().ok()?,
        });
        Some(pipe)
    }

    /// Closes the unused pipes, when descriptors are scarce.
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
    // The default of 64 KiB will do, if the user may not have more.
    let size = fcntl_setpipe_size(&inlet, PIPE_BYTES).or_else(|_| fcntl_getpipe_size(&inlet))?;
    if size < PIPE_BYTES_MIN {
        return Err(Errno::NOBUFS.into());
    }
    Ok((outlet, inlet))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the pool is bounded, and a pipe that holds bytes is not reused. Method: take more than there are; leave a
    /// byte in one, and look for it in its successors.
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
            assert_eq!(rustix::io::read(pipe.outlet(), &mut [0; 1]), Err(Errno::AGAIN));
        }
        drop(held);
        pipes.close_free();
        assert!(pipes.take().is_some());
    }
}
