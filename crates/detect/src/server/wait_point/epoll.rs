//! The wait point over mio's epoll: edge-triggered, with a timerfd for deadlines finer than epoll's
//! millisecond, and mio's eventfd as the doorbell of other threads.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    time::Duration,
};

use mio::{Poll, Registry, Token, Waker, unix::SourceFd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use rustix::{
    event::{
        PollFd, PollFlags,
        epoll::{self, Event, EventFlags},
    },
    io::Errno,
};

use crate::{
    clock::{Instant, monotonic_now},
    detector::{Address, Interest, Notice, Ready},
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

/// A notice and the address of the handle that it is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Routed {
    pub(crate) address: Address,
    pub(crate) notice: Notice,
}

/// The side that belongs to the driver.
pub(crate) struct Epoll {
    /// Owns the descriptor.
    _poll: Poll,
    timer: OwnedFd,
    /// What the timer is set to, so that it is set again only when that must change. A deadline that has
    /// passed stays here: the timer has fired, and is set anew for the next one.
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
        Ok((Self { _poll: poll, timer, armed: None }, EpollGate { registry, waker }))
    }

    /// Sees to it that the timer fires at `deadline`, or earlier. One that has passed fires at once.
    pub(crate) fn arm(&mut self, deadline: Instant) -> io::Result<()> {
        if let Some(armed) = self.armed.filter(|&armed| armed <= deadline) {
            // One that has fired fires again for a deadline that has passed.
            let soonest = monotonic_now() + if armed == deadline { Duration::ZERO } else { FAR };
            if armed > soonest {
                return Ok(());
            }
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

    /// Returns when the timer fires, if that is after `now`.
    pub(crate) fn armed_after(&self, now: Instant) -> Option<Instant> {
        self.armed.filter(|&armed| armed > now)
    }
}

impl EpollGate {
    /// Waits until something is announced, which it appends to `routed`, or does not wait at all. Several threads may be
    /// here at once: the kernel wakes one of them for each announcement, the one that came last.
    pub(crate) fn wait(&self, may_sleep: bool, routed: &mut Vec<Routed>) -> io::Result<()> {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let timeout = if may_sleep { None } else { Some(&zero) };
        let mut events = [MaybeUninit::<Event>::uninit(); EVENTS_MAX];
        match epoll::wait(&self.registry, &mut events, timeout) {
            Ok((events, _)) => routed.extend(events.iter().filter_map(route)),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

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
fn route(event: &Event) -> Option<Routed> {
    let (flags, data) = (event.flags, event.data);
    let token = data.u64();
    if token == WAKE.0 as u64 || token == TIMER.0 as u64 {
        return None;
    }
    let has = |flag| flags.contains(flag);
    let (is_in, is_out, is_error) =
        (has(EventFlags::IN), has(EventFlags::OUT), has(EventFlags::ERR));
    let mut ready = Ready::NONE;
    for (is_set, bit) in [
        (is_in || has(EventFlags::PRI), Ready::READABLE),
        (is_out, Ready::WRITABLE),
        (has(EventFlags::HUP) || is_in && has(EventFlags::RDHUP), Ready::READ_CLOSED),
        // An error alone is that of the other end of a pipe.
        (
            has(EventFlags::HUP) || is_out && is_error || flags == EventFlags::ERR,
            Ready::WRITE_CLOSED,
        ),
        (has(EventFlags::PRI), Ready::PRIORITY),
        (is_error, Ready::ERROR),
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
