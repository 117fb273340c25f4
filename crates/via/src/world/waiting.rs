//! The wait of a rank for its launcher, over any protocol and any link.

use std::{
    fmt,
    future::{Future, poll_fn},
    io, mem,
    pin::pin,
    task::{Poll, Waker},
};

use vigie_detect::{Handle, Instant, Timers};

use super::{Rank, WorldError};

/// A rank's side of a protocol, without I/O.
pub(super) trait StateMachine: Send {
    /// Returns an error if nothing more can be sent or received.
    fn check(&self) -> Result<(), WorldError>;

    /// Returns the tasks that wait for something to arrive.
    fn waiters(&mut self) -> &mut Waiters;
}

/// Carries the messages of a state machine.
pub(super) trait HubLink: Send + Sync + fmt::Debug {
    /// The state machine.
    type StateMachine: StateMachine;

    /// Calls `act` with the machine, under its lock, and returns its result.
    fn act<T>(
        &self,
        act: impl FnOnce(&mut Self::StateMachine) -> Result<T, WorldError>,
    ) -> Result<T, WorldError>;

    /// Returns the ranks for which this one waits in a barrier; `None` if only the launcher knows.
    fn awaited(&self) -> Option<Vec<Rank>> {
        None
    }

    /// Sends and receives what is possible without waiting, and wakes the waiters of what has arrived.
    /// Returns whether everything is sent.
    fn pump(&self) -> bool;

    /// Waits until something may have arrived.
    fn readable(&self) -> impl Future<Output = io::Result<()>> + Send;

    /// Waits until something may be sent.
    fn writable(&self) -> impl Future<Output = io::Result<()>> + Send;
}

/// The tasks that wait for something to arrive.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// Grows with everything that arrives, so that no waiter misses anything.
    pub(super) generation: u64,
    waiting: Vec<(u64, Waker)>,
    next: u64,
}

impl Waiters {
    /// Records that something arrived.
    pub(super) const fn moved(&mut self) {
        self.generation += 1;
    }

    /// Leaves a waker for the next arrival, in place of the same waiter's previous one.
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

    /// Forgets a waiter that no longer waits.
    fn forget(&mut self, waiter: u64) {
        self.waiting.retain(|(id, _)| *id != waiter);
    }

    /// Returns the wakers to call, outside of any lock.
    pub(super) fn take(&mut self) -> Vec<(u64, Waker)> {
        mem::take(&mut self.waiting)
    }
}

/// The means of a wait with a deadline.
pub(super) struct DeadlineWait<'a, L> {
    pub(super) link: &'a L,
    pub(super) timers: &'a Handle<Timers>,
    pub(super) deadline: Instant,
}

impl<L: HubLink> DeadlineWait<'_, L> {
    /// Waits until `check` returns something. Several tasks may wait at once: a task that receives something
    /// wakes all others, and each checks whether its own has come.
    pub(super) async fn until<T>(
        &self,
        what: impl Fn() -> String,
        mut check: impl FnMut(&mut L::StateMachine, bool) -> Option<T>,
    ) -> Result<T, WorldError> {
        let mut place = WaiterSlot { link: self.link, waiter: None };
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
struct WaiterSlot<'a, L: HubLink> {
    link: &'a L,
    waiter: Option<u64>,
}

impl<L: HubLink> WaiterSlot<'_, L> {
    /// Returns whether something has arrived since generation `seen`; if not, leaves `waker` to be woken.
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
        // Nothing above fails, and checking once more is always right.
        has_moved.unwrap_or(true)
    }
}

impl<L: HubLink> Drop for WaiterSlot<'_, L> {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter {
            // This closure does not fail.
            drop(self.link.act(|machine| {
                machine.waiters().forget(waiter);
                Ok(())
            }));
        }
    }
}
