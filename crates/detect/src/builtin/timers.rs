//! Timers as a detector: a request is a deadline, its event that the deadline has come.
//!
//! Each timer has a *soft expiry*, its deadline, before which it never fires, and a *hard expiry*, the
//! deadline and its slack, up to which the host may put it off. A poll fires all that have expired
//! softly, up to the first one, in the order of hard expiry, that has not; so timers close to one another
//! share a wake-up. [`Detector::wakeup`] says when that should be: at the last soft expiry before the
//! first hard one, and so without delay for a timer that is alone. Linux's own timers have both expiries
//! (`hrtimer_set_expires_range`); there, the wake-up is at the hard one.
//!
//! Deadlines are exact to the nanosecond and kept in a four-ary heap that knows where each timer
//! stands, so that a cancelled one leaves at once. *Deviation* from the hashed wheel of [wheels87]: a
//! wheel rounds deadlines to its tick; and appending at the far end of a heap, which is what time-outs
//! do, takes constant time as well.

use std::time::Duration;

use crate::{
    clock::Instant,
    detector::{Arming, Cancel, Detector, Key, Methods, Mode, Round, Site, Submitted},
};

mod heap;

use heap::{DeadlineHeap, Node};

/// The timers of a server: see [`Server::timers`](crate::Server::timers).
///
/// A deadline that has come already is ready at once, without a wait. There is no bound on how many
/// timers may be pending, but memory and 2^31.
#[derive(Debug)]
pub struct Timers {
    site: Option<Site>,
    heap: DeadlineHeap,
    /// Of requests that name none.
    default_slack: Duration,
    /// Of the request that is submitted next, under the same lock.
    next_slack: Option<Duration>,
}

impl Timers {
    pub(crate) fn new(default_slack: Duration) -> Self {
        Self { site: None, heap: DeadlineHeap::default(), default_slack, next_slack: None }
    }

    /// Sets the slack of the request that is submitted next, under the same lock.
    pub(crate) fn set_next_slack(&mut self, slack: Duration) {
        self.next_slack = Some(slack);
    }

    fn now(&self) -> Instant {
        self.site.as_ref().expect("invariant: attached before the first request").now()
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

    fn attach(&mut self, site: &Site) -> std::io::Result<()> {
        self.site = Some(site.clone());
        Ok(())
    }

    fn submit(&mut self, key: Key, deadline: &mut Instant, mode: Mode) -> Submitted<()> {
        let slack = self.next_slack.take().unwrap_or(self.default_slack);
        // A stream gets its event from a poll, which ends it.
        if mode == Mode::Once && *deadline <= self.now() {
            return Submitted::Ready(());
        }
        self.heap.insert(Node { hard: *deadline + slack, soft: *deadline, key });
        Submitted::Pending
    }

    fn check(&mut self, key: Key, deadline: &mut Instant) -> Option<()> {
        let is_over = *deadline <= self.now();
        if is_over {
            self.heap.remove(key);
        }
        is_over.then_some(())
    }

    fn poll(&mut self, round: &mut Round<'_, Self>) {
        while let Some(first) = self.heap.first() {
            if first.soft > round.now() {
                break;
            }
            if round.is_full() {
                round.more();
                break;
            }
            self.heap.remove(first.key);
            round.complete(first.key, ());
        }
    }

    fn cancel(&mut self, key: Key, _: &mut Instant) -> Cancel {
        self.heap.remove(key);
        Cancel::Released
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.heap.first().map(|first| first.soft)
    }

    fn hard_deadline(&self) -> Option<Instant> {
        self.heap.first().map(|first| first.hard)
    }

    fn wakeup(&self) -> Option<Instant> {
        self.heap.wakeup()
    }
}
