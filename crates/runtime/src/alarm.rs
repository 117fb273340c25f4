//! A clock that wakes one thread: how the supervisor sleeps without costing those who may need it.
//!
//! Setting it is one system call that wakes nobody; and most of the time it is set already.

use std::{io, time::Duration};

use crate::{
    sync::{AtomicBool, Ordering},
    timerfd::Timer,
};

pub(crate) struct Alarm {
    /// Seen from outside by a model alone.
    pub(crate) timer: Timer,
    /// Whether the sleeper will look again by itself. Raised by anybody, who then sets the timer;
    /// lowered by the sleeper alone, who looks once more after that (see [`begin_rest`](Self::begin_rest)).
    is_set: AtomicBool,
    /// How long after `set` the sleeper wakes up.
    delay: Duration,
}

impl Alarm {
    pub(crate) fn new(delay: Duration) -> io::Result<Self> {
        Ok(Self { timer: Timer::new()?, is_set: AtomicBool::new(false), delay })
    }

    /// Returns whether the sleeper looks soon without further ado: one load.
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// Makes the sleeper look after its delay, unless it does anyway.
    #[inline]
    pub(crate) fn set(&self) {
        if !self.is_set() && !self.is_set.swap(true, Ordering::AcqRel) {
            self.wake_in(self.delay);
        }
    }

    /// Makes the sleeper wake up after `delay`. Only the sleeper itself, and the shutdown, call this.
    pub(crate) fn wake_in(&self, delay: Duration) {
        self.timer.wake_in(delay);
    }

    /// The sleeper goes on looking by itself.
    pub(crate) fn keep(&self) {
        self.is_set.store(true, Ordering::Relaxed);
    }

    /// The sleeper wants to rest: from now on whoever needs it must [`set`](Self::set) the alarm.
    ///
    /// Somebody may have read `is_set` a moment before, after which he did what the sleeper would
    /// have to see. So the sleeper must sleep for one more delay, which is longer than any store
    /// takes to arrive, look once more, and only then rest without a timer.
    pub(crate) fn begin_rest(&self) {
        self.is_set.store(false, Ordering::SeqCst);
        self.wake_in(self.delay);
    }

    /// Sleeps until the timer ends.
    pub(crate) fn sleep(&self) {
        // A signal that ends the sleep makes the sleeper look once too often.
        if let Err(error) = self.timer.sleep() {
            tracing::error!(%error, "the supervisor's timer could not be read");
            crate::sync::thread::park_timeout(self.delay);
        }
    }
}
