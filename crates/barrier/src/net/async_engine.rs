//! The engine on its host: when the host polls, and when it leaves that to the member's user.
//!
//! A waiting user polls for a while. Arrivals are not announced meanwhile, since the host would only disturb. When
//! the user sleeps, or stays away from the barrier for long, the host watches the transport: a member answers for its
//! process, whatever that does.

use std::{convert::Infallible, io, sync::Arc, task::Waker, time::Duration};

use vigie_detect::{
    ArmOutcome, Engine as _, EngineContext, EngineHost, Instant, Notifier, PollerEvent, Progress,
    WatchedDescriptor,
};

use super::engine::BarrierEngine;

/// The number of times that the host is notified while the user polls, before it stops watching the transport.
const SPURIOUS_MAX: u32 = 2;

/// The number of times in a row that a transport that always has something is armed, before others have their turn.
const ARMS_MAX: u32 = 4;

/// A user that has not come to the barrier for this long is watched over: less than others wait before they ask
/// twice.
const AWAY: Duration = Duration::from_millis(20);

/// The key of the only waiter: a member waits for one thing at a time.
pub(super) const USER: u64 = 0;

/// The condition that ends the user's sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitCondition {
    Exit,
    Agreement,
    /// This member has left, and no member needs it any more.
    Released,
    /// An exit, or a request to poll for probes.
    ExitOrPoll,
}

impl WaitCondition {
    fn is_over(self, engine: &BarrierEngine) -> bool {
        match self {
            Self::Exit => engine.is_over(),
            Self::Agreement => engine.is_settled(),
            Self::Released => engine.is_released(),
            Self::ExitOrPoll => engine.is_over() || engine.probes.is_poll_wanted,
        }
    }
}

/// The engine, and the state of its two pollers.
pub(super) struct AsyncEngine {
    pub(super) engine: BarrierEngine,
    /// Notifies the host.
    waker: Waker,
    /// The condition for which the user sleeps; that of a dropped wait stays until the user is back.
    until: Option<WaitCondition>,
    /// The user is polling.
    is_user_polling: bool,
    /// The user has entered or polled since the host was last notified.
    has_user_polled: bool,
    /// True if the transport has descriptors, and if one of them has notified the host, which has not polled yet.
    has_descriptors: bool,
    is_notified: bool,
    /// The host must poll, whatever else it does.
    is_poll_requested: bool,
    /// The host has armed the transport, which has not been polled since.
    is_armed: bool,
    /// The host may sleep.
    is_asleep: bool,
    /// The host watches the transport when it sleeps.
    is_watched: bool,
    spurious: u32,
    /// The time at which to check whether the user has been away; set while the transport is not watched.
    check_at: Option<Instant>,
}

impl AsyncEngine {
    pub(super) fn new(engine: BarrierEngine) -> Self {
        let mut has_descriptors = false;
        engine.transport().descriptors(&mut |_| has_descriptors = true);
        Self {
            engine,
            waker: Waker::noop().clone(),
            until: None,
            is_user_polling: false,
            has_user_polled: false,
            has_descriptors,
            is_notified: false,
            is_poll_requested: false,
            is_armed: false,
            is_asleep: false,
            is_watched: true,
            spurious: 0,
            check_at: None,
        }
    }

    /// The user is at the barrier and takes care of its engine, whether or not it polls right now.
    pub(super) const fn begin_poll(&mut self, polls: bool) {
        self.has_user_polled = true;
        self.until = None;
        self.is_user_polling = polls;
    }

    /// The user stops polling.
    pub(super) const fn end_poll(&mut self) {
        self.is_user_polling = false;
    }

    /// Makes the host poll, and take care of the engine from now on.
    pub(super) const fn request_poll(&mut self) {
        self.is_poll_requested = true;
        self.watch();
    }

    const fn watch(&mut self) {
        self.has_user_polled = false;
        self.is_watched = true;
        self.spurious = 0;
        self.check_at = None;
    }

    /// Handles what has arrived and what is due.
    #[inline]
    pub(super) fn poll(&mut self, now: Instant) {
        // Whatever a poll finds may end the arming.
        self.is_armed = false;
        self.engine.poll(now, &self.waker);
    }

    /// Returns `Some` if the user's condition is met; otherwise leaves it to the host.
    pub(super) fn sleep(&mut self, until: WaitCondition, now: Instant) -> Option<()> {
        self.until = Some(until);
        if self.engine.is_due(now) {
            self.poll(now);
        }
        // A host that is awake arms the transport when it goes to sleep.
        if !self.has_served() && self.is_asleep && self.is_watched {
            self.drain_and_arm(now);
        }
        if until.is_over(&self.engine) {
            self.until = None;
            return Some(());
        }
        None
    }

    /// Arms the transport, and handles what came before. Returns false if there may be more, or the user's condition
    /// is met.
    fn drain_and_arm(&mut self, now: Instant) -> bool {
        for _ in 0..ARMS_MAX {
            if self.has_served() || self.arm_transport(now) {
                break;
            }
            self.poll(now);
        }
        self.is_armed
    }

    /// Returns whether the transport is armed now. If not, something may be there.
    fn arm_transport(&mut self, now: Instant) -> bool {
        self.is_armed = match self.engine.arm(&self.waker) {
            Ok(armed) => !armed.is_ready(),
            Err(error) => {
                tracing::debug!(%error, "a barrier's transport cannot be armed");
                // A poll meets the error too, and handles it better.
                self.poll(now);
                self.engine.fail(error);
                true
            }
        };
        self.is_armed
    }

    /// Decides whether the host watches the transport. `is_notified_now`: something has arrived.
    fn update_watch(&mut self, now: Instant, is_notified_now: bool) {
        if self.until.is_some() {
            return self.watch();
        }
        let is_due = self.check_at.map_or(is_notified_now, |at| at <= now);
        if !is_due {
            return;
        }
        if std::mem::take(&mut self.has_user_polled) || self.is_user_polling {
            self.spurious = self.spurious.saturating_add(1);
        } else if !self.is_watched {
            self.watch();
        }
        if self.spurious >= SPURIOUS_MAX {
            self.is_watched = false;
            self.check_at = Some(now.saturating_add(AWAY));
        }
    }
}

impl vigie_detect::Engine for AsyncEngine {
    /// There is one waiter, with a fixed key.
    type Request = Infallible;
    type Output = Infallible;

    fn take(&mut self, want: &Infallible) -> Option<Infallible> {
        match *want {}
    }

    fn attach(&mut self, notifier: Notifier) -> io::Result<()> {
        self.waker = Waker::from(Arc::new(notifier));
        Ok(())
    }

    fn notified(&mut self, _: &[PollerEvent]) {
        self.is_notified = true;
    }

    fn progress(&mut self, context: &EngineContext<'_>) -> Progress {
        let now = context.now();
        self.is_asleep = false;
        let is_due = self.next_deadline().is_some_and(|at| at <= now);
        // Messages notify, and a poll pass for that looks like any other.
        let is_notified_now = self.is_notified || !self.has_descriptors;
        let must_poll = if self.until.is_some() {
            is_notified_now || !self.is_watched
        } else {
            is_notified_now && self.is_watched && !self.is_user_polling
        };
        if self.is_notified {
            self.update_watch(now, true);
        }
        if std::mem::take(&mut self.is_poll_requested) || is_due || must_poll {
            self.is_notified = false;
            self.poll(now);
        }
        Progress::Done
    }

    fn arm(&mut self, context: &EngineContext<'_>) -> io::Result<ArmOutcome> {
        if self.is_poll_requested {
            return Ok(ArmOutcome::Ready);
        }
        let now = context.now();
        // Only arming tells what messages have brought.
        self.update_watch(now, !self.has_descriptors);
        self.is_asleep = !self.is_watched || self.drain_and_arm(now);
        Ok(ArmOutcome::ready_if(!self.is_asleep))
    }

    fn descriptors(&self, each: &mut dyn FnMut(WatchedDescriptor<'_>)) {
        let mut key = 0;
        self.engine.transport().descriptors(&mut |descriptor| {
            each(WatchedDescriptor::readable(descriptor).key(key).watched(self.is_watched));
            key += 1;
        });
    }

    fn next_deadline(&self) -> Option<Instant> {
        let engine = self.engine.next_deadline().filter(|_| !self.is_user_polling);
        [engine, self.check_at].into_iter().flatten().min()
    }

    fn served(&mut self, names: &mut Vec<u64>) {
        if self.has_served() {
            self.until = None;
            names.push(USER);
        }
    }

    #[inline]
    fn has_served(&self) -> bool {
        self.until.is_some_and(|until| until.is_over(&self.engine))
    }

    fn has_unannounced_work(&self) -> bool {
        self.is_poll_requested || self.until.is_some() && !self.is_armed
    }
}

/// Keeps the host from polling as long as the user does, and makes it poll at the end, unless there is no need.
pub(super) struct PollGuard {
    host: EngineHost<AsyncEngine>,
    pub(super) is_over: bool,
}

impl PollGuard {
    /// With `polls`, the user polls all the time; otherwise in bursts.
    pub(super) fn begin(host: &EngineHost<AsyncEngine>, polls: bool) -> Self {
        host.post(|async_engine| async_engine.begin_poll(polls));
        Self { host: host.clone(), is_over: false }
    }
}

impl Drop for PollGuard {
    fn drop(&mut self) {
        if !self.is_over && !self.host.is_inherited() {
            self.host.post(|async_engine| {
                async_engine.end_poll();
                async_engine.request_poll();
            });
        }
    }
}
