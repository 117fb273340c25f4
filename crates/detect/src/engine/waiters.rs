//! Waiters with their own buffers, under the lock of the engine that they wait for.
//!
//! A waiter is registered from the hold of the lock in which it last polled until it is woken, finds something or leaves,
//! so it misses nothing in between. Nothing is taken on its behalf: a woken waiter polls again, and one that leaves has
//! nothing to give back. For the same reason all waiters of a name are woken.

use std::{collections::BTreeMap, mem, task::Waker};

/// The waiters of an engine, by the names under which it serves them.
#[derive(Debug, Default)]
pub(super) struct EngineWaiters {
    /// By name and number: a waiter that leaves must not take another one's place.
    wakers: BTreeMap<(u64, u64), Waker>,
    next_number: u64,
    /// Names that were served and whose waiters may still have to be woken.
    served: Vec<u64>,
}

impl EngineWaiters {
    pub(super) fn len(&self) -> usize {
        self.wakers.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.wakers.is_empty()
    }

    /// Registers a waker under `name`, in the place of this waiter if it has one. Returns what to drop once the engine is
    /// unlocked.
    #[must_use = "dropping a waker runs foreign code, which may want the lock"]
    pub(super) fn register(
        &mut self,
        name: u64,
        number: &mut Option<u64>,
        waker: &Waker,
    ) -> Option<Waker> {
        match self.renew(name, *number, waker) {
            Some(unwanted) => unwanted,
            None => {
                let new = self.next_number;
                self.next_number += 1;
                *number = Some(new);
                self.wakers.insert((name, new), waker.clone())
            }
        }
    }

    /// Replaces the waker in this waiter's place, if it was not woken. Returns what to drop once the engine is unlocked.
    #[must_use = "dropping a waker runs foreign code, which may want the lock"]
    pub(super) fn renew(
        &mut self,
        name: u64,
        number: Option<u64>,
        waker: &Waker,
    ) -> Option<Option<Waker>> {
        let known = self.wakers.get_mut(&(name, number?))?;
        Some((!known.will_wake(waker)).then(|| mem::replace(known, waker.clone())))
    }

    /// Removes a waiter. Returns what to drop once the engine is unlocked.
    #[must_use = "dropping a waker runs foreign code, which may want the lock"]
    pub(super) fn leave(&mut self, name: u64, number: &mut Option<u64>) -> Option<Waker> {
        self.wakers.remove(&(name, number.take()?))
    }

    /// Passes `tell` the list of served names, to add to it.
    pub(super) fn note_served(&mut self, tell: impl FnOnce(&mut Vec<u64>)) {
        tell(&mut self.served);
        if self.wakers.is_empty() {
            // A waiter that comes now polls before it waits.
            self.served.clear();
        }
    }

    /// Returns whether a name was served whose waiters may have to be woken.
    pub(super) const fn has_served(&self) -> bool {
        !self.served.is_empty()
    }

    /// Takes the waker of one served waiter.
    pub(super) fn next_served(&mut self) -> Option<Waker> {
        while let Some(&name) = self.served.last() {
            let first = self.wakers.range((name, 0)..=(name, u64::MAX)).next();
            if let Some((&place, _)) = first {
                return self.wakers.remove(&place);
            }
            self.served.pop();
        }
        None
    }

    /// Takes all wakers.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Waker> + use<> {
        self.served.clear();
        mem::take(&mut self.wakers).into_values()
    }
}
