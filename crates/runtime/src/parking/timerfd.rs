//! The kernel timer on which one thread sleeps. Other threads may set it without waking the sleeper.

use std::{io, os::fd::OwnedFd, time::Duration};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

pub(crate) struct TimerFd {
    descriptor: OwnedFd,
}

impl TimerFd {
    pub(crate) fn new() -> io::Result<Self> {
        let descriptor = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
        Ok(Self { descriptor })
    }

    /// Makes the sleeper wake up after `delay`, replacing any earlier setting.
    pub(crate) fn wake_in(&self, delay: Duration) {
        self.set(Timespec {
            tv_sec: i64::try_from(delay.as_secs()).unwrap_or(i64::MAX),
            // Zero would stop the timer.
            tv_nsec: i64::from(delay.subsec_nanos()).max(1),
        });
    }

    /// Disarms the timer.
    pub(crate) fn stop(&self) {
        self.set(Timespec { tv_sec: 0, tv_nsec: 0 });
    }

    fn set(&self, it_value: Timespec) {
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Itimerspec { it_interval, it_value };
        if let Err(error) = timerfd_settime(&self.descriptor, TimerfdTimerFlags::empty(), &value) {
            // Our own timer with a valid time cannot fail; log it if it does all the same.
            tracing::error!(%error, "the supervisor's timer could not be set");
        }
    }

    /// Sleeps until the timer expires or a signal arrives. Returns at once only if the kernel fails.
    pub(crate) fn sleep(&self) -> io::Result<()> {
        let mut count = [0; 8];
        match rustix::io::read(&self.descriptor, &mut count) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
impl TimerFd {
    /// Returns the remaining time; zero if the timer has expired or was stopped.
    pub(crate) fn left(&self) -> Duration {
        let left = rustix::time::timerfd_gettime(&self.descriptor).expect("a timer").it_value;
        Duration::try_from(left).expect("no timer is left less than nothing")
    }

    /// Returns whether a sleep would end at once.
    pub(crate) fn is_over(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, poll};
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.descriptor, PollFlags::IN)], Some(&now)) == Ok(1)
    }
}
