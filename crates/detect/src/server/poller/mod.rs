//! The one place where a host sleeps: epoll with a timerfd, or nothing at all in virtual time, where the simulated network
//! announces events.
//!
//! The poller has two sides. The [`PollerHandle`] is shared: any thread may use it to sleep, watch a descriptor or
//! wake a
//! sleeper through it. The [`Poller`] itself, with the timer, belongs to the thread that holds the driver's lock.

mod epoll;

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, RawFd},
};

pub(crate) use self::epoll::RoutedEvent;
use crate::{clock::Instant, detector::Watch, network::NetworkNode};

pub(crate) enum Poller {
    Epoll(epoll::Epoll),
    /// The simulator moves the clock instead of sleeping.
    Virtual,
}

pub(crate) enum PollerHandle {
    Epoll(epoll::EpollHandle),
    /// The descriptors are the names of sockets of a simulated network.
    Virtual(NetworkNode),
}

/// Creates the two sides of an epoll poller.
pub(crate) fn epoll() -> io::Result<(Poller, PollerHandle)> {
    let (epoll, poller_handle) = epoll::Epoll::new()?;
    Ok((Poller::Epoll(epoll), PollerHandle::Epoll(poller_handle)))
}

impl Poller {
    /// Makes sleeps end at `deadline` or earlier.
    pub(crate) fn arm(&mut self, deadline: Instant) -> io::Result<()> {
        match self {
            Self::Epoll(epoll) => epoll.arm(deadline),
            Self::Virtual => Ok(()),
        }
    }

    /// Returns when sleeps end without a readiness event, if after `now`.
    pub(crate) fn armed_after(&self, now: Instant) -> Option<Instant> {
        match self {
            Self::Epoll(epoll) => epoll.armed_after(now),
            Self::Virtual => None,
        }
    }
}

impl PollerHandle {
    /// Sleeps until there is an announcement, the host is woken or an armed deadline comes, or only polls. Appends the
    /// announcements to `routed`. May return early.
    pub(crate) fn wait(&self, may_sleep: bool, routed: &mut Vec<RoutedEvent>) -> io::Result<()> {
        match self {
            Self::Epoll(poller_handle) => poller_handle.wait(may_sleep, routed),
            Self::Virtual(node) => {
                node.take_events(|address, ready_event| {
                    routed.push(RoutedEvent { address, ready_event });
                });
                Ok(())
            }
        }
    }

    /// Wakes the host from its sleep, or prevents its next one.
    pub(crate) fn wake(&self) {
        match self {
            Self::Epoll(poller_handle) => poller_handle.wake(),
            Self::Virtual(_) => {}
        }
    }

    /// Returns whether there is an announcement that no poll pass has taken yet.
    pub(crate) fn has_events(&self) -> bool {
        match self {
            Self::Epoll(poller_handle) => poller_handle.has_events(),
            Self::Virtual(node) => node.has_events(),
        }
    }

    /// Returns the descriptor that becomes readable with an event, if there is one.
    pub(crate) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Epoll(poller_handle) => Some(poller_handle.as_fd()),
            Self::Virtual(_) => None,
        }
    }

    /// Like [`wake`](Self::wake), and async-signal-safe.
    pub(crate) fn wake_from_handler(&self) {
        match self {
            Self::Epoll(poller_handle) => poller_handle.wake_from_handler(),
            Self::Virtual(_) => {}
        }
    }

    /// Returns the descriptor by which it knows what a descriptor stands for.
    pub(crate) fn name_of(&self, descriptor: BorrowedFd<'_>) -> RawFd {
        match self {
            Self::Epoll(_) => descriptor.as_raw_fd(),
            Self::Virtual(node) => node.name_of(descriptor),
        }
    }

    pub(crate) fn watch(&self, watch: Watch) -> io::Result<()> {
        match self {
            Self::Epoll(poller_handle) => poller_handle.watch(watch),
            Self::Virtual(node) if node.watch(watch) => Ok(()),
            Self::Virtual(_) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "a simulation has no descriptors of the kernel, which would leave it: open a socket of \
                 `vigie::net` there, or use a channel",
            )),
        }
    }

    pub(crate) fn unwatch(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        match self {
            Self::Epoll(poller_handle) => poller_handle.unwatch(descriptor),
            Self::Virtual(node) => {
                node.unwatch(node.name_of(descriptor));
                Ok(())
            }
        }
    }

    /// Returns what a descriptor stands for, if that is known.
    pub(crate) fn describe(&self, descriptor: RawFd) -> Option<String> {
        match self {
            Self::Epoll(_) => None,
            Self::Virtual(node) => node.describe(descriptor),
        }
    }
}
