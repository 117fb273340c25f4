//! What a node does while there is nothing to do, and the bell that ends that.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use vigie_detect::{Armed, Instant};
use vigie_via::vi::Provider;

use super::error::MessagesError;
use super::port::Port;

/// What a node does while there is nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Idle {
    /// It sleeps in the kernel, and is woken by a packet, the clock, or the program's bell.
    #[default]
    Sleep,
    /// It looks again and again for so long, and sleeps then. For nodes that have a processor of their own: the paper's
    /// network processor never sleeps.
    Spin(Duration),
}

/// How much time can pass at most between two looks of a node that waits and runs: it sleeps for half of that. What is
/// beyond it passed while the process was stopped, or the machine asleep.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// For how long a node may be stopped while it connects: providers count that time, [`Patience`] does not.
pub(super) const STOPPED_MAX: Duration = Duration::from_secs(3600);

/// How long a node still waits, in time in which it ran. When all nodes of a machine go on after a stop, the first one to look
/// finds nothing new and a late clock: that is no sign that the others are stalled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    left: Duration,
    /// When the clock was looked at.
    seen: Instant,
}

impl Patience {
    pub(super) const fn new(time: Duration, now: Instant) -> Self {
        Self { left: time, seen: now }
    }

    /// Looks at the clock. Returns whether it has waited for long enough.
    pub(super) fn is_over(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.seen).min(LOOK_MAX);
        self.left = self.left.saturating_sub(passed);
        self.seen = now;
        self.left.is_zero()
    }

    /// Returns until when it waits if nobody stops it.
    pub(super) fn until(&self) -> Instant {
        self.seen + self.left
    }
}

/// Wakes an engine that sleeps.
#[derive(Clone, Debug)]
pub(super) struct Bell(Arc<OwnedFd>);

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Rings. A bell that rings already need not be rung again: that error is none.
    pub(super) fn ring(&self) {
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    /// Makes it quiet.
    pub(super) fn quiet(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0; 8]);
    }
}

/// Waits for work, in turns of an engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rest {
    idle: Idle,
    /// When it began to spin.
    since: Option<Instant>,
}

impl Rest {
    pub(super) const fn new(idle: Idle) -> Self {
        Self { idle, since: None }
    }

    /// There was work.
    pub(super) const fn worked(&mut self) {
        self.since = None;
    }

    /// There was none: waits for it until `until`, or returns at once to look again.
    pub(super) fn rest<P: Provider>(
        &mut self,
        port: &mut Port<P>,
        bell: Option<&Bell>,
        until: Instant,
    ) -> Result<(), MessagesError> {
        let now = port.now();
        if let Idle::Spin(time) = self.idle {
            let since = *self.since.get_or_insert(now);
            if now.saturating_duration_since(since) < time {
                std::hint::spin_loop();
                return Ok(());
            }
        }
        let deadline = port.next_deadline().map_or(until, |next| next.min(until));
        if deadline <= now || port.arm()? != Armed::Armed {
            return Ok(());
        }
        let span = deadline.saturating_duration_since(now);
        wait(port.descriptor(), bell, span)?;
        port.quiet();
        Ok(())
    }
}

fn wait(nic: Option<BorrowedFd<'_>>, bell: Option<&Bell>, span: Duration) -> io::Result<()> {
    // Nothing is waited for without an end, so that a node that was told to stop by other means looks.
    let span = span.min(LOOK_MAX / 2);
    let nanos = i64::from(span.subsec_nanos());
    let timeout = Timespec { tv_sec: i64::try_from(span.as_secs()).unwrap_or(0), tv_nsec: nanos };
    let bell = bell.map(|bell| bell.0.as_fd());
    let mut fds =
        [nic, bell].into_iter().flatten().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let found = match (fds.next(), fds.next()) {
        (Some(one), Some(other)) => poll(&mut [one, other], Some(&timeout)),
        (Some(one), None) => poll(&mut [one], Some(&timeout)),
        _ => poll(&mut [], Some(&timeout)),
    };
    match found {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Lets the calling thread's sleeps end within a microsecond of their time, not within the 50 µs that the kernel adds by
/// default: paced links need that.
pub(super) fn sharpen() {
    // A kernel that refuses makes it only less sharp.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1_000));
}
