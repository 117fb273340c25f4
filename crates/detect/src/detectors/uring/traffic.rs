//! Traffic with the kernel: requests in, completions out.

use std::{io, mem, time::Duration};

use super::{
    Uring,
    flow::{Ending, Flow, Landing},
    kernel::{Completed, Reaped},
    operation::Completion,
};
use crate::{
    clock::Instant,
    detector::{EmitOutcome, Key, PollContext},
};

/// A job for the kernel concerning a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    Start(Key),
    Cancel(Key),
}

/// The time to wait after the kernel had no resources.
const RETRY_AFTER: Duration = Duration::from_millis(1);

/// The number of times that one poll goes through submission and completion before it leaves the rest to the
/// next.
const PASSES_MAX: usize = 4;

impl Uring {
    /// Does everything that can be done now without waiting.
    pub(super) fn run(&mut self, context: &mut PollContext<'_, Self>) {
        self.deliver_held(context);
        for _ in 0..PASSES_MAX {
            self.feed_starved();
            if let Err(error) = self.flush(Some(context.now())) {
                self.fail_all(error.raw_os_error().unwrap_or(libc::EIO), context);
                return;
            }
            let mut has_reaped = false;
            while !context.is_full()
                && let Some(reaped) = self.ring.reap()
            {
                has_reaped = true;
                self.take(reaped, context);
            }
            if !has_reaped {
                break;
            }
        }
        let is_blocked = self.retry_at.is_some();
        let has_work = !self.backlog.is_empty() && !is_blocked
            || self.ring.has_completions()
            || !self.starved.is_empty() && self.ring.pool().has_offers();
        if has_work {
            context.more();
        }
    }

    /// Submits as much of the backlog as the kernel takes now.
    pub(super) fn flush(&mut self, now: Option<Instant>) -> io::Result<()> {
        self.retry_at = None;
        loop {
            while self.ring.has_room()
                && let Some(job) = self.backlog.pop_front()
            {
                self.push(job);
            }

            let has_overflow = self.ring.has_overflow();
            let unsubmitted = self.ring.unsubmitted();
            if unsubmitted == 0 && !has_overflow {
                return Ok(());
            }
            self.counts.overflows += u64::from(has_overflow);

            match self.ring.enter() {
                Ok(taken) if taken == unsubmitted && self.backlog.is_empty() => return Ok(()),
                Ok(1..) => {}
                Err(error)
                    if !matches!(
                        error.raw_os_error(),
                        Some(libc::EAGAIN | libc::EBUSY | libc::EINTR)
                    ) =>
                {
                    self.failed = error.raw_os_error();
                    return Err(error);
                }
                // No memory for it now, or completions must be reaped first.
                Ok(0) | Err(_) => {
                    self.retry_at = now.map(|now| now + RETRY_AFTER);
                    return Ok(());
                }
            }
        }
    }

    /// Queues an entry; the caller has checked for room.
    fn push(&mut self, job: Job) {
        match job {
            Job::Start(key) => {
                let Some(action) = self.flow(key).and_then(Flow::take_off) else { return };
                let refused = self.ring.start(key, action);
                assert!(refused.is_ok(), "invariant: a queued request is not in flight");
            }
            Job::Cancel(key) => {
                // Its completion may have arrived since.
                if self.flow(key).is_some_and(|flow| flow.wants_cancellation()) {
                    self.ring.cancel(key);
                }
            }
        }
    }

    fn take(&mut self, reaped: Reaped, context: &mut PollContext<'_, Self>) {
        match reaped {
            Reaped::Completed(completed) => self.take_completion(completed, context),
            Reaped::Cancelled(key, Err(error)) if error.raw_os_error() == Some(libc::ENOENT) => {
                // The kernel was just moving the request from one queue to another, or its completion
                // is already there and is reaped before we try again.
                if self.flow(key).is_some_and(|flow| flow.wants_cancellation()) {
                    self.backlog.push_back(Job::Cancel(key));
                }
            }
            // The request's own completion reports the rest.
            Reaped::Cancelled(..) => {}
        }
    }

    fn take_completion(&mut self, completed: Completed, context: &mut PollContext<'_, Self>) {
        let Completed { key, result, provided, action } = completed;
        let Some(flow) = self.flow(key) else { return };
        if let Some(buffer) = provided.filter(|buffer| !buffer.is_empty()) {
            if !flow.is_wanted() {
                // Dropped: offered again.
            } else if !flow.held.is_empty() {
                flow.held.push_back(buffer);
            } else if let EmitOutcome::Full(event) = context.emit(key, Completion::Received(buffer))
            {
                flow.held.extend(event.into_received());
                self.lag(key);
            }
        }
        let Some(action) = action else { return };
        let Some(flow) = self.flow(key) else { return };
        match flow.land(action, result) {
            Landing::Again => self.restart(key),
            Landing::Starved => {
                self.counts.starvations += 1;
                self.starved.push(key);
            }
            Landing::Held => {}
            Landing::Over(ending) => self.end(key, ending, context),
        }
    }

    /// The waiter's queue is full: stops the stream, so that it does not fill all provided buffers.
    fn lag(&mut self, key: Key) {
        self.lagging.push(key);
        if self.flow(key).is_some_and(Flow::pause) {
            self.backlog.push_back(Job::Cancel(key));
        }
    }

    fn restart(&mut self, key: Key) {
        self.counts.restarts += 1;
        self.backlog.push_back(Job::Start(key));
    }

    fn end(&mut self, key: Key, ending: Ending, context: &mut PollContext<'_, Self>) {
        self.forget(key);
        match ending {
            Ending::Silent => {
                context.finish(key);
            }
            Ending::Event(event) => {
                context.complete(key, event);
            }
            Ending::Failed(error) => context.fail(key, error),
        }
    }

    /// Delivers held events to lagging waiters, as far as they have room again.
    fn deliver_held(&mut self, context: &mut PollContext<'_, Self>) {
        for key in mem::take(&mut self.lagging) {
            let Some(flow) = self.flow(key) else { continue };
            while let Some(buffer) = flow.held.pop_front() {
                if let EmitOutcome::Full(event) = context.emit(key, Completion::Received(buffer)) {
                    if let Some(buffer) = event.into_received() {
                        flow.held.push_front(buffer);
                    }
                    break;
                }
            }
            if !flow.held.is_empty() {
                self.lagging.push(key);
                continue;
            }
            match flow.caught_up() {
                Some(Landing::Over(ending)) => self.end(key, ending, context),
                Some(_) => self.restart(key),
                None => {}
            }
        }
    }

    /// Queues all receives that found no buffer, once there is one: even a receive for which nothing
    /// arrives needs an offered buffer, so all of them must try.
    fn feed_starved(&mut self) {
        if self.starved.is_empty() || !self.ring.pool().has_offers() {
            return;
        }
        for key in mem::take(&mut self.starved) {
            if self.flow(key).is_some_and(Flow::fed) {
                self.restart(key);
            }
        }
    }

    /// Ends all requests, since the ring cannot be entered any more.
    fn fail_all(&mut self, errno: i32, context: &mut PollContext<'_, Self>) {
        self.backlog.clear();
        self.starved.clear();
        self.lagging.clear();
        for flow in mem::take(&mut self.flows).into_iter().flatten() {
            context.fail(flow.key, io::Error::from_raw_os_error(errno));
        }
        self.flow_count = 0;
    }

    pub(super) fn flow(&mut self, key: Key) -> Option<&mut Flow> {
        self.flows.get_mut(key.index())?.as_mut().filter(|flow| flow.key == key)
    }

    pub(super) fn forget(&mut self, key: Key) {
        if self.flow(key).is_some() {
            self.flows[key.index()] = None;
            self.flow_count -= 1;
        }
    }
}
