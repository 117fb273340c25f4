//! How a rank waits for its launcher, whatever it speaks and whatever carries that.

use std::{
    fmt,
    future::{Future, poll_fn},
    io, mem,
    pin::pin,
    task::{Poll, Waker},
};

use vigie_detect::{Handle, Instant, Timers};

use super::WorldError;

/// What a rank knows and says, without I/O.
pub(super) trait Machine: Send {
    /// Says why nothing more can be said or heard.
    fn check(&self) -> Result<(), WorldError>;

    /// Returns who waits for it to hear something.
    fn waiters(&mut self) -> &mut Waiters;
}

/// What carries what a machine says and hears.
pub(super) trait Link: Send + Sync + fmt::Debug {
    /// What it carries that for.
    type Machine: Machine;

    /// Changes or asks the machine, under its lock, and returns what `act` does.
    fn act<T>(
        &self,
        act: impl FnOnce(&mut Self::Machine) -> Result<T, WorldError>,
    ) -> Result<T, WorldError>;

    /// Sends what is to be said and hears what has come, without waiting; wakes those who wait for it.
    /// Returns whether everything is sent.
    fn pump(&self) -> bool;

    /// Waits until there may be something to hear.
    fn readable(&self) -> impl Future<Output = io::Result<()>> + Send;

    /// Waits until something may be said.
    fn writable(&self) -> impl Future<Output = io::Result<()>> + Send;
}

/// Who waits for a machine to hear something.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// Grows with everything that was heard, so that no waiter misses anything.
    pub(super) generation: u64,
    waiting: Vec<(u64, Waker)>,
    next: u64,
}

impl Waiters {
    /// Takes note that something was heard.
    pub(super) const fn moved(&mut self) {
        self.generation += 1;
    }

    /// Leaves a waker for whatever is heard next, in place of the one of the same waiter.
    fn wait(&mut self, waiter: &mut Option<u64>, waker: &Waker) {
        let next = &mut self.next;
        let id = *waiter.get_or_insert_with(|| {
            *next += 1;
            *next
        });
        match self.waiting.iter_mut().find(|(other, _)| *other == id) {
            Some((_, old)) => old.clone_from(waker),
            None => self.waiting.push((id, waker.clone())),
        }
    }

    /// Forgets a waiter that does not wait any more.
    fn forget(&mut self, waiter: u64) {
        self.waiting.retain(|(id, _)| *id != waiter);
    }

    /// Returns whom to wake, outside of any lock.
    pub(super) fn take(&mut self) -> Vec<(u64, Waker)> {
        mem::take(&mut self.waiting)
    }
}

/// How to wait.
pub(super) struct Waiting<'a, L> {
    pub(super) link: &'a L,
    pub(super) timers: &'a Handle<Timers>,
    pub(super) deadline: Instant,
}

impl<L: Link> Waiting<'_, L> {
    /// Waits until `check` returns something. Several tasks may wait at once: whoever hears something
    /// wakes all others, and each looks for what is its own.
    pub(super) async fn until<T>(
        &self,
        what: impl Fn() -> String,
        mut check: impl FnMut(&mut L::Machine, bool) -> Option<T>,
    ) -> Result<T, WorldError> {
        let mut place = Place { link: self.link, waiter: None };
        let mut timer = pin!(self.timers.wait(self.deadline));
        loop {
            let is_sent = self.link.pump();
            let (found, seen) = self.link.act(|machine| {
                let found = check(machine, is_sent);
                if found.is_none() {
                    machine.check()?;
                }
                Ok((found, machine.waiters().generation))
            })?;
            if let Some(found) = found {
                return Ok(found);
            }
            let mut readable = pin!(self.link.readable());
            let mut writable = pin!(self.link.writable());
            let is_late = poll_fn(|cx| {
                if place.has_moved(seen, cx.waker()) {
                    return Poll::Ready(Ok(false));
                }
                if let Poll::Ready(ready) = readable.as_mut().poll(cx) {
                    return Poll::Ready(ready.map(|()| false));
                }
                if !is_sent && let Poll::Ready(ready) = writable.as_mut().poll(cx) {
                    return Poll::Ready(ready.map(|()| false));
                }
                if self.deadline == Instant::MAX {
                    return Poll::Pending;
                }
                timer.as_mut().poll(cx).map(|ended| ended.map(|()| true).map_err(io::Error::from))
            });
            if is_late.await? {
                return Err(WorldError::TimedOut { what: what() });
            }
        }
    }
}

/// A waiter's place at its link, given up when it is dropped.
struct Place<'a, L: Link> {
    link: &'a L,
    waiter: Option<u64>,
}

impl<L: Link> Place<'_, L> {
    /// Returns whether something was heard since generation `seen`; if not, it wakes `waker`.
    fn has_moved(&mut self, seen: u64, waker: &Waker) -> bool {
        let waiter = &mut self.waiter;
        let has_moved = self.link.act(|machine| {
            let waiters = machine.waiters();
            let has_moved = waiters.generation != seen;
            if !has_moved {
                waiters.wait(waiter, waker);
            }
            Ok(has_moved)
        });
        // Nothing above fails; and looking once more is right whatever happens.
        has_moved.unwrap_or(true)
    }
}

impl<L: Link> Drop for Place<'_, L> {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter {
            // Nothing in there fails.
            drop(self.link.act(|machine| {
                machine.waiters().forget(waiter);
                Ok(())
            }));
        }
    }
}
