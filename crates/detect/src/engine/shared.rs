//! What the callers of an engine, its waiters and the detector have in common, behind one lock.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    task::{Wake, Waker},
};

use super::{
    contract::Engine,
    lock::{Guard, Lock},
    waiters::Waiters,
};
use crate::{
    clock::Instant,
    detector::Bell,
    error::{caught, is_in_callback},
    fork::ForkGeneration,
    sync::{Arc, OnceLock},
};

/// What the lock guards.
pub(super) struct Guarded<E> {
    pub(super) engine: E,
    pub(super) waiters: Waiters,
    /// Somebody waits for a want. Set before the waiter's own look.
    pub(super) has_waiters: bool,
    /// The engine works also while nobody waits.
    pub(super) is_kept_at_work: bool,
    /// The server has armed the engine, and may sleep: what changes now, it does not see.
    pub(super) is_asleep: bool,
    /// Until when it sleeps at most: what is due earlier it does not know of.
    pub(super) asleep_until: Option<Instant>,
    /// The engine has panicked on a caller's thread: the server goes on with that.
    pub(super) panicked: Option<Box<dyn Any + Send>>,
    /// The server calls no more: whoever waits here gets its error.
    pub(super) is_over: bool,
}

/// What waiters and the detector have in common.
pub(crate) struct Shared<E> {
    guarded: Lock<Guarded<E>>,
    /// From the registration on.
    bell: OnceLock<Bell>,
    made: ForkGeneration,
}

impl<E> Shared<E> {
    pub(crate) fn new(engine: E) -> Self {
        let guarded = Guarded {
            engine,
            waiters: Waiters::default(),
            has_waiters: false,
            is_kept_at_work: false,
            is_asleep: false,
            asleep_until: None,
            panicked: None,
            is_over: false,
        };
        Self { guarded: Lock::new(guarded), bell: OnceLock::new(), made: ForkGeneration::current() }
    }

    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, Guarded<E>> {
        self.guarded.lock()
    }

    pub(super) fn attach(&self, bell: Bell) {
        // A detector is attached once.
        let _ = self.bell.set(bell);
    }

    /// Returns whether this is a forked child, in which the lock may be held for ever.
    #[inline]
    pub(super) fn is_inherited(&self) -> bool {
        self.made.is_inherited()
    }
}

impl<E: Engine> Shared<E> {
    /// Calls `f`, and makes the server look if anybody waits for a want.
    #[inline]
    pub(super) fn with<T>(&self, f: impl FnOnce(&mut E) -> T) -> T {
        let mut guarded = self.lock();
        let result = f(&mut guarded.engine);
        let is_wanted = guarded.has_waiters;
        if is_wanted || guarded.has_to_tell() {
            self.tell(guarded, is_wanted);
        }
        result
    }

    /// Calls `f`, and makes the server look if it must.
    #[inline]
    pub(crate) fn post<T>(&self, f: impl FnOnce(&mut E) -> T) -> T {
        let mut guarded = self.lock();
        let result = f(&mut guarded.engine);
        if guarded.has_to_tell() {
            self.tell(guarded, false);
        }
        result
    }

    /// Takes what `want` names if it is there.
    #[inline]
    pub(super) fn look(&self, want: &E::Want) -> Option<E::Found> {
        let mut guarded = self.lock();
        let found = guarded.engine.take(want);
        if guarded.engine.has_served() {
            self.tell(guarded, false);
        }
        found
    }

    /// Makes the server wake whom the engine has served, if it has: for calls on behalf of the server, which must not wake
    /// anybody.
    pub(super) fn leave_to_server(&self, guarded: Guard<'_, Guarded<E>>) {
        let has_served = guarded.engine.has_served();
        drop(guarded);
        if has_served && let Some(bell) = self.bell.get() {
            bell.ring();
        }
    }

    /// Calls `look`, and leaves `waker` under `name` if that finds nothing: in the same hold of the lock. `None`: nothing,
    /// and nobody will be woken for it.
    pub(crate) fn look_or_wait<T>(
        &self,
        (name, number): (u64, &mut Option<u64>),
        waker: &Waker,
        look: impl FnOnce(&mut E) -> Option<T>,
    ) -> Option<Looked<T>> {
        let mut guarded = self.lock();
        let found = look(&mut guarded.engine);
        let (looked, unwanted) = match found {
            Some(found) => (Some(Looked::Found(found)), guarded.waiters.leave(name, number)),
            None if guarded.is_over => (None, guarded.waiters.leave(name, number)),
            None => (Some(Looked::Waits), guarded.waiters.register(name, number, waker)),
        };
        if guarded.has_to_tell() {
            self.tell(guarded, false);
        } else {
            drop(guarded);
        }
        drop(unwanted);
        looked
    }

    /// Leaves `waker` for a waiter that was not woken. Returns whether that is so.
    pub(crate) fn renew(&self, name: u64, number: Option<u64>, waker: &Waker) -> bool {
        let renewed = self.lock().waiters.renew(name, number, waker);
        renewed.is_some()
    }

    /// A waiter goes.
    pub(crate) fn leave(&self, name: u64, number: &mut Option<u64>) {
        let unwanted = self.lock().waiters.leave(name, number);
        drop(unwanted);
    }

    /// Wakes whom the engine has served, and makes the server look if it must: if what there is to do now was not there when
    /// it armed the engine, or if a look `is_wanted` in any case.
    #[cold]
    fn tell(&self, mut guarded: Guard<'_, Guarded<E>>, is_wanted: bool) {
        let asked = catch_unwind(AssertUnwindSafe(|| guarded.ask()));
        let mut must_look = match asked {
            Ok(must_look) => must_look || is_wanted,
            // The caller has what it wanted, and others wait.
            Err(payload) => {
                guarded.panicked = Some(payload);
                true
            }
        };
        let mut woken = (None, Vec::new());
        if is_in_callback() {
            // Of another detector, whose lock is held: the server wakes them.
            must_look |= guarded.waiters.has_served();
        } else {
            woken.0 = guarded.waiters.next_served();
            woken.1.extend(std::iter::from_fn(|| guarded.waiters.next_served()));
        }
        drop(guarded);
        wake_all(woken.0.into_iter().chain(woken.1));
        if must_look && let Some(bell) = self.bell.get() {
            bell.ring();
        }
    }
}

impl<E: Engine> Guarded<E> {
    /// Returns whether anybody may have to be told of a call.
    #[inline]
    fn has_to_tell(&self) -> bool {
        self.engine.has_served() || self.is_asleep
    }

    /// Asks the engine whom calls have served. Returns whether the server must look.
    fn ask(&mut self) -> bool {
        if self.is_over {
            return false;
        }
        self.note_served();
        if !self.is_asleep {
            return false;
        }
        let engine = &self.engine;
        // Where nobody waits, whoever comes next makes the server look.
        let works = self.has_waiters || self.is_kept_at_work;
        let must_look = works
            && (engine.has_silent_work()
                || is_earlier(engine.next_deadline(), self.asleep_until)
                || (self.has_waiters && engine.has_news()));
        // One ring is enough.
        self.is_asleep = works && !must_look;
        must_look
    }

    pub(super) fn note_served(&mut self) {
        let Self { engine, waiters, .. } = self;
        if engine.has_served() {
            waiters.note_served(|names| engine.served(names));
        }
    }
}

/// The end, which the server tells by the request that keeps the engine at work.
impl<E: Engine> Wake for Shared<E> {
    fn wake(self: Arc<Self>) {
        let mut guarded = self.lock();
        guarded.is_over = true;
        let wakers = guarded.waiters.take_all();
        drop(guarded);
        wake_all(wakers);
    }
}

/// What came of a look.
#[derive(Debug)]
pub(crate) enum Looked<T> {
    Found(T),
    /// Nothing: the waker is woken when that changes.
    Waits,
}

fn is_earlier(deadline: Option<Instant>, than: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| than.is_none_or(|than| deadline < than))
}

/// Wakes everyone, with nothing locked.
fn wake_all(wakers: impl Iterator<Item = Waker>) {
    for waker in wakers {
        // One waker's panic must not cost the others their wake-up.
        let _ = caught("wake", || waker.wake());
    }
}
