//! The poller over mio's epoll: edge-triggered, with a timerfd for deadlines finer than epoll's
//! millisecond, and mio's eventfd as the doorbell of other threads.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
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
    detector::{HandleAddress, Interest, PollerEvent, Ready, Watch},
};

const WAKE: Token = Token(usize::MAX);
const TIMER: Token = Token(usize::MAX - 1);

/// The most readiness events of one call. The rest wait for the next call, in the kernel's order, so
/// that a flood of events cannot starve the tasks that the first of them woke.
const EVENTS_MAX: usize = 256;

/// A timer that fires too early, but not within this time, is not reset: otherwise each sleep would have
/// to reset it when time-outs are cancelled one after another. Setting it costs a microsecond; a
/// spurious wake-up costs some 35 µs of processor time, at most a hundred times a second.
const FAR: Duration = Duration::from_millis(10);

/// A readiness event and the address of its handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoutedEvent {
    pub(crate) address: HandleAddress,
    pub(crate) ready_event: PollerEvent,
}

/// The driver's side.
pub(crate) struct Epoll {
    /// Owns the descriptor.
    _poll: Poll,
    timer: OwnedFd,
    /// The time to which the timer is set, so that it is reset only if that must change. A deadline that
    /// has passed stays here: the timer has fired, and is set again for the next one.
    armed: Option<Instant>,
}

/// The shared side.
pub(crate) struct EpollHandle {
    registry: Registry,
    waker: Waker,
}

impl Epoll {
    pub(crate) fn new() -> io::Result<(Self, EpollHandle)> {
        let poll = Poll::new()?;
        let registry = poll.registry().try_clone()?;
        let waker = Waker::new(&registry, WAKE)?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
        )?;
        registry.register(&mut SourceFd(&timer.as_raw_fd()), TIMER, mio::Interest::READABLE)?;
        Ok((Self { _poll: poll, timer, armed: None }, EpollHandle { registry, waker }))
    }

    /// Makes sure that the timer fires at `deadline` or earlier. If `deadline` has passed, it fires
    /// at once.
    pub(crate) fn arm(&mut self, deadline: Instant) -> io::Result<()> {
        if let Some(armed) = self.armed.filter(|&armed| armed <= deadline) {
            // A timer that has fired fires again for a past deadline.
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

    /// Returns when the timer fires, if after `now`.
    pub(crate) fn armed_after(&self, now: Instant) -> Option<Instant> {
        self.armed.filter(|&armed| armed > now)
    }
}

impl EpollHandle {
    /// Waits for announcements and appends them to `routed`, or only polls. Several threads may be here at once: for
    /// each readiness event the kernel wakes one of them, the latest to arrive.
    pub(crate) fn wait(&self, may_sleep: bool, routed: &mut Vec<RoutedEvent>) -> io::Result<()> {
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

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.registry.as_fd()
    }

    pub(crate) fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            // Our own eventfd cannot be full or closed; report it if it is.
            tracing::error!(%error, "the host could not be woken");
        }
    }

    /// Like [`wake`](Self::wake), for a signal handler: one `write`; a failure is ignored.
    pub(crate) fn wake_from_handler(&self) {
        let _ = self.waker.wake();
    }

    pub(crate) fn watch(&self, watch: Watch) -> io::Result<()> {
        let Watch { descriptor, address, key, interest } = watch;
        let interest = match interest {
            Interest::Readable => mio::Interest::READABLE,
            Interest::Writable => mio::Interest::WRITABLE,
            // Urgent data ends a read early, with bytes behind it: a caller that takes a short read for
            // the end of the queue must be told of it.
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

fn token(address: HandleAddress, key: u32) -> Token {
    Token(usize::from(address.generation) << 56 | (address.index as usize) << 32 | key as usize)
}

#[expect(clippy::cast_possible_truncation, reason = "the parts of the token are wanted")]
fn route(event: &Event) -> Option<RoutedEvent> {
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
        // An error alone comes from the other end of a pipe.
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
    let address = HandleAddress {
        generation: (token >> 56) as u8,
        index: (token >> 32) as u32 & 0x00FF_FFFF,
    };
    Some(RoutedEvent { address, ready_event: PollerEvent { key: token as u32, ready } })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the kernel's timer is never later than the deadline, and is not reset for a later deadline
    /// while it is far off. Method: deadlines in turn, and the timer's setting after each.
    #[test]
    fn the_timer_is_set_when_it_must_be() {
        let (mut epoll, _poller_handle) = Epoll::new().expect("an epoll");
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
