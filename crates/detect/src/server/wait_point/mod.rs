//! The one place where a host sleeps: epoll with a timerfd, or nothing at all in virtual time.
//!
//! The wait point has two sides. The [`Gate`] is shared: any thread may sleep there, watch a descriptor or wake a
//! sleeper through it. The [`WaitPoint`] itself, with the timer, belongs to the thread that holds the driver's lock.

mod epoll;

use std::{
    io,
    os::fd::{BorrowedFd, RawFd},
};

pub(crate) use self::epoll::Routed;
use crate::{
    clock::Instant,
    detector::{Address, Interest},
};

pub(crate) enum WaitPoint {
    Epoll(epoll::Epoll),
    /// The simulator moves the clock instead of sleeping.
    Virtual,
}

pub(crate) enum Gate {
    Epoll(epoll::EpollGate),
    Virtual,
}

/// Makes the two sides of an epoll wait point.
pub(crate) fn epoll() -> io::Result<(WaitPoint, Gate)> {
    let (epoll, gate) = epoll::Epoll::new()?;
    Ok((WaitPoint::Epoll(epoll), Gate::Epoll(gate)))
}

impl WaitPoint {
    /// Ends sleeps at `deadline`, or earlier.
    pub(crate) fn arm(&mut self, deadline: Instant) -> io::Result<()> {
        match self {
            Self::Epoll(epoll) => epoll.arm(deadline),
            Self::Virtual => Ok(()),
        }
    }

    /// Returns when sleeps end without an announcement, if that is after `now`.
    pub(crate) fn armed_after(&self, now: Instant) -> Option<Instant> {
        match self {
            Self::Epoll(epoll) => epoll.armed_after(now),
            Self::Virtual => None,
        }
    }
}

impl Gate {
    /// Sleeps until something is announced, the host is woken or a deadline comes that is armed, or looks without sleeping.
    /// Appends what was announced. Returns early without harm.
    pub(crate) fn wait(&self, may_sleep: bool, routed: &mut Vec<Routed>) -> io::Result<()> {
        match self {
            Self::Epoll(gate) => gate.wait(may_sleep, routed),
            Self::Virtual => Ok(()),
        }
    }

    /// Wakes the host from its sleep, or keeps it from the next one.
    pub(crate) fn wake(&self) {
        match self {
            Self::Epoll(gate) => gate.wake(),
            Self::Virtual => {}
        }
    }

    /// Returns whether something was announced that no look has taken yet.
    pub(crate) fn has_events(&self) -> bool {
        match self {
            Self::Epoll(gate) => gate.has_events(),
            Self::Virtual => false,
        }
    }

    /// Returns the descriptor that becomes readable with an event, if there is one.
    pub(crate) fn descriptor(&self) -> Option<RawFd> {
        match self {
            Self::Epoll(gate) => Some(gate.descriptor()),
            Self::Virtual => None,
        }
    }

    /// Like [`wake`](Self::wake), and async-signal-safe.
    pub(crate) fn wake_from_handler(&self) {
        match self {
            Self::Epoll(gate) => gate.wake_from_handler(),
            Self::Virtual => {}
        }
    }

    pub(crate) fn watch(
        &self,
        descriptor: RawFd,
        address: Address,
        key: u32,
        interest: Interest,
    ) -> io::Result<()> {
        match self {
            Self::Epoll(gate) => gate.watch(descriptor, address, key, interest),
            Self::Virtual => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "descriptors cannot be watched in virtual time: use simulated sources, or a host \
                 with a real wait point",
            )),
        }
    }

    pub(crate) fn unwatch(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        match self {
            Self::Epoll(gate) => gate.unwatch(descriptor),
            Self::Virtual => Ok(()),
        }
    }
}
