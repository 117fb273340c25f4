//! Timers as a detector: a request is a deadline, and its event means that the deadline has passed.
//!
//! Each timer has a *soft expiry*, its deadline, before which it never fires, and a *hard expiry*, its
//! deadline plus its slack, up to which the host may delay it. A poll goes through the timers in the
//! order of hard expiry and fires each one up to the first that has not reached its soft expiry, so
//! timers close to one another share a wake-up. [`Detector::wake_at`] chooses its time: the last soft
//! expiry before the first hard one, which means no delay for a timer on its own. Linux's own timers have
//! both expiries too (`hrtimer_set_expires_range`); there, the wake-up is at the hard one.
//!
//! Deadlines are exact to the nanosecond and kept in a four-ary heap that knows the place of each
//! timer, so that a cancelled one is removed at once. *Deviation* from the hashed wheel of [wheels87]:
//! a wheel rounds deadlines to its tick; and inserting at the far end of a heap, as time-outs do,
//! takes constant time too.

use std::time::Duration;

use crate::{
    clock::Instant,
    detector::{
        Arming, CancelOutcome, Detector, DriverHandle, Key, Methods, Mode, PollContext,
        SubmitOutcome,
    },
};

mod heap;

use heap::{DeadlineHeap, HeapNode};

/// The timers of a server: see [`Server::timers`](crate::Server::timers).
///
/// A deadline that has passed already is ready at once, without a wait. The number of pending
/// timers is limited only by memory and 2^31.
#[derive(Debug)]
pub struct Timers {
    driver: Option<DriverHandle>,
    heap: DeadlineHeap,
    /// The slack of requests that set none.
    default_slack: Duration,
    /// The slack of the request that is submitted next, under the same lock.
    next_slack: Option<Duration>,
}

impl Timers {
    pub(crate) fn new(default_slack: Duration) -> Self {
        Self { driver: None, heap: DeadlineHeap::default(), default_slack, next_slack: None }
    }

    /// Sets the slack of the request that is submitted next, under the same lock.
    pub(crate) fn set_next_slack(&mut self, slack: Duration) {
        self.next_slack = Some(slack);
    }

    fn now(&self) -> Instant {
        self.driver.as_ref().expect("invariant: attached before the first request").now()
    }
}

impl Detector for Timers {
    type Request = Instant;
    type Event = ();

    fn methods(&self) -> Methods {
        Methods::CHECK | Methods::GROUP | Methods::NOTIFY
    }

    fn arming(&self) -> Arming {
        Arming::Permanent
    }

    fn attach(&mut self, driver: &DriverHandle) -> std::io::Result<()> {
        self.driver = Some(driver.clone());
        Ok(())
    }

    fn submit(&mut self, key: Key, deadline: &mut Instant, mode: Mode) -> SubmitOutcome<()> {
        let slack = self.next_slack.take().unwrap_or(self.default_slack);
        // A stream gets its event from a poll, which ends it.
        if mode == Mode::Once && *deadline <= self.now() {
            return SubmitOutcome::Ready(());
        }
        self.heap.insert(HeapNode { hard: *deadline + slack, soft: *deadline, key });
        SubmitOutcome::Pending
    }

    fn check(&mut self, key: Key, deadline: &mut Instant) -> Option<()> {
        let is_over = *deadline <= self.now();
        if is_over {
            self.heap.remove(key);
        }
        is_over.then_some(())
    }

    fn describe(&self, deadline: &Instant) -> String {
        format!("{:.3?} from now", *deadline - self.now())
    }

    fn poll(&mut self, context: &mut PollContext<'_, Self>) {
        while let Some(first) = self.heap.first() {
            if first.soft > context.now() {
                break;
            }
            if context.is_full() {
                context.more();
                break;
            }
            self.heap.remove(first.key);
            context.complete(first.key, ());
        }
    }

    fn cancel(&mut self, key: Key, _: &mut Instant) -> CancelOutcome {
        self.heap.remove(key);
        CancelOutcome::Released
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.heap.first().map(|first| first.soft)
    }

    fn hard_deadline(&self) -> Option<Instant> {
        self.heap.first().map(|first| first.hard)
    }

    fn wake_at(&self) -> Option<Instant> {
        self.heap.wake_at()
    }
}
