//! The wait point over mio's epoll: edge-triggered, with a timerfd for deadlines finer than epoll's
//! millisecond, and mio's eventfd as the doorbell of other threads.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    time::Duration,
};

use mio::{Events, Poll, Registry, Token, Waker, unix::SourceFd};
use rustix::event::{PollFd, PollFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::{Address, Interest, Routed, Timeout};
use crate::{
    clock::{Instant, monotonic_now},
    detector::{Notice, Ready},
};

const WAKE: Token = Token(usize::MAX);
const TIMER: Token = Token(usize::MAX - 1);

/// The most announcements of one look. More wait for the next one, in the kernel's order, so that a
/// flood of events cannot starve the tasks that the first of them woke.
const EVENTS_MAX: usize = 256;

/// A timer that fires earlier than is needed, but not within this, is not set again: where time-outs are
/// given up one after another, each sleep would have to. Setting it costs a microsecond, waking up for
/// nothing some 35 µs of processor time, a hundred times a second at most.
const FAR: Duration = Duration::from_millis(10);

/// The sleeping side.
pub(crate) struct Epoll {
    poll: Poll,
    events: Events,
    timer: OwnedFd,
    /// What the timer is set to, so that it is set again only when that must change. A deadline that has
    /// passed stays here: the timer has fired and is set anew by the next, different one.
    armed: Option<Instant>,
}

/// The shared side.
pub(crate) struct EpollGate {
    registry: Registry,
    waker: Waker,
}

impl Epoll {
    pub(crate) fn new() -> io::Result<(Self, EpollGate)> {
        let poll = Poll::new()?;
        let registry = poll.registry().try_clone()?;
        let waker = Waker::new(&registry, WAKE)?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
        )?;
        registry.register(&mut SourceFd(&timer.as_raw_fd()), TIMER, mio::Interest::READABLE)?;
        let events = Events::with_capacity(EVENTS_MAX);
        Ok((Self { poll, events, timer, armed: None }, EpollGate { registry, waker }))
    }

    pub(crate) fn wait(&mut self, timeout: Timeout, notices: &mut Vec<Routed>) -> io::Result<()> {
        let timeout = match timeout {
            Timeout::Zero => Some(Duration::ZERO),
            Timeout::Until(deadline) => {
                self.arm(deadline)?;
                None
            }
            Timeout::Never => None,
        };
        match self.poll.poll(&mut self.events, timeout) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error),
        }
        notices.extend(self.events.iter().filter_map(route));
        Ok(())
    }

    /// Sees to it that the timer fires at `deadline`, or earlier. One that has passed fires at once.
    fn arm(&mut self, deadline: Instant) -> io::Result<()> {
        if let Some(armed) = self.armed
            && (armed == deadline || (armed < deadline && armed > monotonic_now() + FAR))
        {
            return Ok(());
        }
        // Zero would disarm the timer.
        let nanos = deadline.as_nanos().max(1);
        let it_value = Timespec {
            tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(nanos % 1_000_000_000).unwrap_or(0),
        };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        timerfd_settime(
            self.timer.as_fd(),
            TimerfdTimerFlags::ABSTIME,
            &Itimerspec { it_interval, it_value },
        )?;
        self.armed = Some(deadline);
        Ok(())
    }
}

impl EpollGate {
    pub(crate) fn has_events(&self) -> bool {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut descriptors = [PollFd::new(&self.registry, PollFlags::IN)];
        matches!(rustix::event::poll(&mut descriptors, Some(&none)), Ok(count) if count > 0)
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.registry.as_raw_fd()
    }

    pub(crate) fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            // An eventfd of our own cannot be full or closed; say so if it is all the same.
            tracing::error!(%error, "the host could not be woken");
        }
    }

    /// Like [`wake`](Self::wake), in a signal handler: one `write`, and no word about a failure.
    pub(crate) fn wake_from_handler(&self) {
        let _ = self.waker.wake();
    }

    pub(crate) fn watch(
        &self,
        descriptor: RawFd,
        address: Address,
        key: u32,
        interest: Interest,
    ) -> io::Result<()> {
        let interest = match interest {
            Interest::Readable => mio::Interest::READABLE,
            Interest::Writable => mio::Interest::WRITABLE,
            // Urgent data ends a read that is shorter than asked for, with bytes behind it: whoever takes
            // a short read for the end of the queue must be told of it.
            Interest::Both => {
                mio::Interest::READABLE | mio::Interest::WRITABLE | mio::Interest::PRIORITY
            }
        };
        self.registry.register(&mut SourceFd(&descriptor), token(address, key), interest)
    }

    pub(crate) fn unwatch(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let descriptor = descriptor.as_raw_fd();
        self.registry.deregister(&mut SourceFd(&descriptor))
    }
}

fn token(address: Address, key: u32) -> Token {
    Token(usize::from(address.generation) << 56 | (address.index as usize) << 32 | key as usize)
}

#[expect(clippy::cast_possible_truncation, reason = "the parts of the token are wanted")]
fn route(event: &mio::event::Event) -> Option<Routed> {
    let Token(token) = event.token();
    if event.token() == WAKE || event.token() == TIMER {
        return None;
    }
    let mut ready = Ready::NONE;
    for (is_set, bit) in [
        (event.is_readable(), Ready::READABLE),
        (event.is_writable(), Ready::WRITABLE),
        (event.is_read_closed(), Ready::READ_CLOSED),
        (event.is_write_closed(), Ready::WRITE_CLOSED),
        (event.is_priority(), Ready::PRIORITY),
        (event.is_error(), Ready::ERROR),
    ] {
        if is_set {
            ready = ready | bit;
        }
    }
    let address =
        Address { generation: (token >> 56) as u8, index: (token >> 32) as u32 & 0x00FF_FFFF };
    Some(Routed { address, notice: Notice { key: token as u32, ready } })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the kernel's timer is never later than the deadline, and is not set again for one that is later
    /// while it is far. Method: deadlines in turn, and what the timer is set to after each.
    #[test]
    fn the_timer_is_set_when_it_must_be() {
        let (mut epoll, _gate) = Epoll::new().expect("an epoll");
        let now = monotonic_now();
        let hours = |count: u64| now + Duration::from_secs(count * 3600);
        let near = |millis: u64| now + Duration::from_millis(millis);
        for (deadline, expected) in [
            (hours(2), hours(2)),
            (hours(3), hours(2)),
            (hours(1), hours(1)),
            (hours(9), hours(1)),
            (near(5), near(5)),
            // It may have fired already, or will soon.
            (near(6), near(6)),
            (hours(4), hours(4)),
        ] {
            epoll.arm(deadline).expect("a timer that can be set");
            assert_eq!(epoll.armed, Some(expected));
        }
    }
}
