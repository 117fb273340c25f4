//! The state that an engine's callers, its waiters and the detector share behind one lock.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    task::{Wake, Waker},
};

use super::{
    contract::Engine,
    lock::{BiasedLock, BiasedLockGuard},
    waiters::EngineWaiters,
};
use crate::{
    clock::Instant,
    detector::Notifier,
    error::{caught, is_in_callback},
    fork::ForkGeneration,
    sync::{Arc, OnceLock},
};

/// The state behind the lock.
pub(super) struct Guarded<E> {
    pub(super) engine: E,
    pub(super) waiters: EngineWaiters,
    /// There is a waiter for a want. Set before the waiter's own poll.
    pub(super) has_waiters: bool,
    /// The engine works even without waiters.
    pub(super) is_kept_running: bool,
    /// The server has armed the engine and may sleep: it does not see later changes.
    pub(super) is_asleep: bool,
    /// The latest end of that sleep: the server does not know of anything due earlier.
    pub(super) asleep_until: Option<Instant>,
    /// The panic of the engine on a caller's thread, which the server resumes.
    pub(super) panicked: Option<Box<dyn Any + Send>>,
    /// The server makes no more calls: a waiter here gets the server's error.
    pub(super) is_over: bool,
}

/// The state that waiters and the detector share.
pub(crate) struct EngineShared<E> {
    guarded: BiasedLock<Guarded<E>>,
    /// Set at the registration.
    notifier: OnceLock<Notifier>,
    made: ForkGeneration,
}

impl<E> EngineShared<E> {
    pub(crate) fn new(name: &'static str, engine: E) -> Self {
        let guarded = Guarded {
            engine,
            waiters: EngineWaiters::default(),
            has_waiters: false,
            is_kept_running: false,
            is_asleep: false,
            asleep_until: None,
            panicked: None,
            is_over: false,
        };
        Self {
            guarded: BiasedLock::new(name, guarded),
            notifier: OnceLock::new(),
            made: ForkGeneration::current(),
        }
    }

    #[inline]
    pub(super) fn lock(&self) -> BiasedLockGuard<'_, Guarded<E>> {
        self.guarded.lock()
    }

    pub(super) fn attach(&self, notifier: Notifier) {
        // A detector is attached once.
        let _ = self.notifier.set(notifier);
    }

    /// Returns whether this is a forked child, in which the lock may be held for ever.
    #[inline]
    pub(super) fn is_inherited(&self) -> bool {
        self.made.is_inherited()
    }
}

impl<E: Engine> EngineShared<E> {
    /// Calls `f`, and makes the server poll if there are waiters for a want.
    #[inline]
    pub(super) fn with<T>(&self, f: impl FnOnce(&mut E) -> T) -> T {
        let mut guarded = self.lock();
        let result = f(&mut guarded.engine);
        let is_wanted = guarded.has_waiters;
        if is_wanted || guarded.must_notify_server() {
            self.notify_server(guarded, is_wanted);
        }
        result
    }

    /// Calls `f`, and makes the server poll if it must.
    #[inline]
    pub(crate) fn post<T>(&self, f: impl FnOnce(&mut E) -> T) -> T {
        let mut guarded = self.lock();
        let result = f(&mut guarded.engine);
        if guarded.must_notify_server() {
            self.notify_server(guarded, false);
        }
        result
    }

    /// Takes what `request` asks for if it is there.
    #[inline]
    pub(super) fn try_take(&self, request: &E::Request) -> Option<E::Output> {
        let mut guarded = self.lock();
        let output = guarded.engine.take(request);
        // The descriptor no longer announces what this poll has taken in: others may wait for it.
        if guarded.must_notify_server() {
            self.notify_server(guarded, false);
        }
        output
    }

    /// Makes the server wake the waiters that the engine has served, if any, and makes it poll if it sleeps and the call `may_serve`
    /// other wants: for calls on behalf of the server, which must not call wakers.
    pub(super) fn leave_to_server(
        &self,
        mut guarded: BiasedLockGuard<'_, Guarded<E>>,
        may_serve: bool,
    ) {
        let must_poll = may_serve && guarded.is_asleep && guarded.engine.has_new_events();
        guarded.is_asleep &= !must_poll;
        let must_tell = must_poll || guarded.engine.has_served();
        drop(guarded);
        if must_tell && let Some(notifier) = self.notifier.get() {
            notifier.notify();
        }
    }

    /// Calls `take`, and registers `waker` under `name` if that finds nothing: in the same hold of the lock. `None`:
    /// nothing was found, and no waker was registered.
    pub(crate) fn poll_or_register<T>(
        &self,
        (name, number): (u64, &mut Option<u64>),
        waker: &Waker,
        take: impl FnOnce(&mut E) -> Option<T>,
    ) -> Option<Polled<T>> {
        let mut guarded = self.lock();
        let output = take(&mut guarded.engine);
        let (polled, unwanted) = match output {
            Some(output) => (Some(Polled::Ready(output)), guarded.waiters.leave(name, number)),
            None if guarded.is_over => (None, guarded.waiters.leave(name, number)),
            None => (Some(Polled::Waits), guarded.waiters.register(name, number, waker)),
        };
        if guarded.must_notify_server() {
            self.notify_server(guarded, false);
        } else {
            drop(guarded);
        }
        drop(unwanted);
        polled
    }

    /// Registers `waker` for a waiter that was not woken. Returns whether it was not woken.
    pub(crate) fn renew(&self, name: u64, number: Option<u64>, waker: &Waker) -> bool {
        let renewed = self.lock().waiters.renew(name, number, waker);
        renewed.is_some()
    }

    /// Removes a waiter.
    pub(crate) fn leave(&self, name: u64, number: &mut Option<u64>) {
        let unwanted = self.lock().waiters.leave(name, number);
        drop(unwanted);
    }

    /// Wakes the waiters that the engine has served, and makes the server poll if it must: if there is work now that was not
    /// there when it armed the engine, or if a poll `is_wanted` in any case.
    #[cold]
    fn notify_server(&self, mut guarded: BiasedLockGuard<'_, Guarded<E>>, is_wanted: bool) {
        let asked = catch_unwind(AssertUnwindSafe(|| guarded.ask()));
        let mut must_poll = match asked {
            Ok(must_poll) => must_poll || is_wanted,
            // The caller has what it wanted, and others wait.
            Err(payload) => {
                guarded.panicked = Some(payload);
                true
            }
        };
        let mut woken = (None, Vec::new());
        if is_in_callback() {
            // Inside a callback of another detector, whose lock is held: the server wakes them.
            must_poll |= guarded.waiters.has_served();
        } else {
            woken.0 = guarded.waiters.next_served();
            woken.1.extend(std::iter::from_fn(|| guarded.waiters.next_served()));
        }
        drop(guarded);
        wake_all(woken.0.into_iter().chain(woken.1));
        if must_poll && let Some(notifier) = self.notifier.get() {
            notifier.notify();
        }
    }
}

impl<E: Engine> Guarded<E> {
    /// Returns whether a call may have to be reported.
    #[inline]
    fn must_notify_server(&self) -> bool {
        self.engine.has_served() || self.is_asleep
    }

    /// Asks the engine which names calls have served. Returns whether the server must poll.
    fn ask(&mut self) -> bool {
        if self.is_over {
            return false;
        }
        self.note_served();
        if !self.is_asleep {
            return false;
        }
        let engine = &self.engine;
        // Without waiters, the next one makes the server poll.
        let works = self.has_waiters || self.is_kept_running;
        let must_poll = works
            && (engine.has_unannounced_work()
                || is_earlier(engine.next_deadline(), self.asleep_until)
                || (self.has_waiters && engine.has_new_events()));
        // One notification is enough.
        self.is_asleep = works && !must_poll;
        must_poll
    }

    pub(super) fn note_served(&mut self) {
        let Self { engine, waiters, .. } = self;
        if engine.has_served() {
            waiters.note_served(|names| engine.served(names));
        }
    }
}

/// Woken by the server's end, through the request that keeps the engine working.
impl<E: Engine> Wake for EngineShared<E> {
    fn wake(self: Arc<Self>) {
        let mut guarded = self.lock();
        guarded.is_over = true;
        let wakers = guarded.waiters.take_all();
        drop(guarded);
        wake_all(wakers);
    }
}

/// The result of a waiter's poll.
#[derive(Debug)]
pub(crate) enum Polled<T> {
    Ready(T),
    /// Nothing: the waker will be woken when that changes.
    Waits,
}

fn is_earlier(deadline: Option<Instant>, than: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| than.is_none_or(|than| deadline < than))
}

/// Wakes all, with no lock held.
fn wake_all(wakers: impl Iterator<Item = Waker>) {
    for waker in wakers {
        // One waker's panic must not cost the others their wake-up.
        let _ = caught("wake", || waker.wake());
    }
}
