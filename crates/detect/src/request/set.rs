//! The pending requests of one handle.
//!
//! A request lives in an entry. Entries are boxed and reused, so a pending request has a stable address
//! and waiting again does not allocate; entries left over from a burst are freed.
//!
//! ```text
//!                 insert (1)           complete, last emit (2)           release (4)
//!        free ───────────────▶ pending ───────────────────────▶ ended ───────────────▶ free
//!                                 │ cancel (3)
//!                                 ├── released ──────────────────────────────────────▶ free
//!                                 └── in flight ──▶ cancelling ── complete (2) ──────▶ free
//! ```
//!
//! (1) [`PendingSet::insert`], (2) [`PendingSet::end`], [`PendingSet::finish`], [`PendingSet::fail`] and [`PendingSet::finish_cancelled`],
//! (3) and (4) [`PendingSet::release`]. Nothing that a request or an event owns is dropped under the handle's lock: an ended request waits
//! for its waiter's release, and the remains of a cancelled one go to the trash, which the holder of the lock empties after releasing it.

use std::{mem, task::Waker};

use super::{
    entries::{Entries, NIL, Phase, RequestEntry},
    key::{CancelOutcome, Key, Mode},
    slot::{EventSlot, SlotEnd},
};
use crate::{error::WaitError, sync::Arc};

/// The remains of a finished or cancelled request, to be dropped outside the lock.
pub(crate) type Trash<R, E> = (Option<R>, Option<E>);

/// All requests of one handle.
pub(crate) struct PendingSet<R, E> {
    entries: Entries<R, E>,
    oldest: u32,
    newest: u32,
    pending_count: usize,
    cancelling_count: usize,
    /// The set has changed since the detector was last told.
    pub(crate) changed: bool,
    pub(crate) trash: Vec<Trash<R, E>>,
}

impl<R, E> PendingSet<R, E> {
    pub(crate) fn new() -> Self {
        Self {
            entries: Entries::new(),
            oldest: NIL,
            newest: NIL,
            pending_count: 0,
            cancelling_count: 0,
            changed: false,
            trash: Vec::new(),
        }
    }

    /// Returns how many requests wait for an event.
    pub(crate) fn len(&self) -> usize {
        self.pending_count
    }

    /// Returns how many requests their waiter has dropped, but the detector has not released yet.
    pub(crate) fn cancelling_count(&self) -> usize {
        self.cancelling_count
    }

    pub(crate) fn insert(&mut self, request: R, mode: Mode) -> Key {
        let index = self.entries.insert();
        let newest = mem::replace(&mut self.newest, index);
        let entry = self.entry_mut(index);
        debug_assert_eq!(entry.phase, Phase::Free, "invariant: a free entry was handed out");

        entry.request = Some(request);
        entry.phase = Phase::Pending;
        entry.mode = mode;
        entry.previous = newest;
        entry.next = NIL;

        let key = Key { index, generation: entry.generation };

        match newest {
            NIL => self.oldest = index,
            newest => self.entry_mut(newest).next = index,
        }

        self.pending_count += 1;
        self.changed = true;
        key
    }

    /// Returns the slot in which the waiter of `key` finds its events.
    pub(crate) fn slot(&mut self, key: Key) -> Arc<EventSlot<E>> {
        Arc::clone(&self.entry_mut(key.index).slot)
    }

    /// Returns the request of `key` if the detector still knows it.
    pub(crate) fn request_mut(&mut self, key: Key) -> Option<&mut R> {
        match self.phase(key)? {
            Phase::Pending | Phase::Cancelling => self.entry_mut(key.index).request.as_mut(),
            Phase::Free | Phase::Ended => None,
        }
    }

    fn phase(&self, key: Key) -> Option<Phase> {
        let entry = self.entries.get(key.index)?;
        (entry.generation == key.generation).then_some(entry.phase)
    }

    /// Called when the waiter of `key` leaves: frees an ended entry, asks `cancel` about a pending
    /// one. Returns the request if it is free now, to be dropped outside the lock.
    pub(crate) fn release(
        &mut self,
        key: Key,
        cancel: impl FnOnce(&mut R) -> Option<CancelOutcome>,
    ) -> Option<R> {
        match self.phase(key) {
            Some(Phase::Ended) => {
                let request = self.entry_mut(key.index).request.take();
                self.entries.free(key.index);
                request
            }
            Some(Phase::Pending) => {
                let request = self.request_mut(key).expect("invariant: pending has a request");
                let answer = cancel(request);
                self.unlink(key.index);

                match answer {
                    Some(CancelOutcome::Released) => {
                        let request = self.entry_mut(key.index).request.take();
                        self.entries.free(key.index);
                        request
                    }
                    Some(CancelOutcome::InFlight) => {
                        // The request stays in the entry: a device may still write to its memory.
                        self.entry_mut(key.index).phase = Phase::Cancelling;
                        self.cancelling_count += 1;
                        None
                    }
                    // The callback panicked: the memory may still be in use.
                    None => {
                        self.leak(key.index);
                        None
                    }
                }
            }
            Some(Phase::Free | Phase::Cancelling) | None => {
                debug_assert!(false, "invariant: a waiter's entry is pending or ended");
                None
            }
        }
    }

    /// Ends a pending request with its event, which waits in the slot for the waiter. This and the following methods
    /// move the wakers to call to `woken`.
    pub(crate) fn end(&mut self, key: Key, event: E, woken: &mut Vec<Waker>) {
        self.unlink(key.index);
        let entry = self.entry_mut(key.index);
        entry.phase = Phase::Ended;
        // The last event always fits: a request in `Mode::Once` has no other.
        let Ok(()) = entry.slot.push(event, usize::MAX, |_, newer| Some(newer), woken) else {
            unreachable!("invariant: the capacity has no bound")
        };
        entry.slot.finish(SlotEnd::Finished, woken);
    }

    /// Ends the request of `key` with an error for its waiter. The memory that it owned is leaked if `in_flight`.
    pub(crate) fn fail(
        &mut self,
        key: Key,
        error: WaitError,
        in_flight: bool,
        woken: &mut Vec<Waker>,
    ) {
        match self.phase(key) {
            Some(Phase::Pending) => {
                self.unlink(key.index);
                let entry = self.entry_mut(key.index);
                entry.slot.finish(SlotEnd::Failed(error), woken);
                entry.phase = Phase::Ended;
                if in_flight {
                    self.leak_request(key.index);
                }
            }
            Some(Phase::Cancelling) if in_flight => {
                self.cancelling_count -= 1;
                self.leak(key.index);
            }
            Some(Phase::Cancelling) => self.finish_cancelled(key, None),
            Some(Phase::Free | Phase::Ended) | None => {}
        }
    }

    /// Decides how a pending request will end, whatever is still reported to it before.
    pub(crate) fn cancel_at_shutdown(
        &mut self,
        key: Key,
        error: WaitError,
        woken: &mut Vec<Waker>,
    ) {
        if self.phase(key) == Some(Phase::Pending) {
            self.entry_mut(key.index).slot.finish(SlotEnd::Failed(error), woken);
        }
    }

    /// Returns whether the waiter of `key` is gone and the detector was told so.
    pub(crate) fn is_cancelling(&self, key: Key) -> bool {
        self.phase(key) == Some(Phase::Cancelling)
    }

    /// Returns the keys of all requests that the detector still knows, pending ones oldest first.
    pub(crate) fn known(&self) -> Vec<Key> {
        let cancelling = self.entries.iter().filter_map(|(index, entry)| {
            (entry.phase == Phase::Cancelling)
                .then_some(Key { index, generation: entry.generation })
        });
        self.iter().map(|(key, _)| key).chain(cancelling).collect()
    }

    /// Iterates over the pending requests, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &R)> + use<'_, R, E> {
        let mut index = self.oldest;
        std::iter::from_fn(move || {
            let entry = self.entries.get(index)?;
            let key = Key { index, generation: entry.generation };
            index = entry.next;
            Some((key, entry.request.as_ref().expect("invariant: pending has a request")))
        })
    }

    /// Returns the pending requests, oldest first, each with what `identify` makes of its waiters' wakers.
    pub(crate) fn waiters<I>(&self, identify: impl Fn(&Waker) -> I) -> Vec<(&R, Vec<I>)> {
        let waiters = |(key, request): (Key, _)| {
            let mut waiters = Vec::new();
            let entry = self.entries.get(key.index).expect("invariant: it is pending");
            entry.slot.for_each_waiter(|waker| waiters.push(identify(waker)));
            (request, waiters)
        };
        self.iter().map(waiters).collect()
    }

    /// Returns the key of the oldest pending request.
    pub(crate) fn oldest(&self) -> Option<Key> {
        self.key_at(self.oldest)
    }

    /// Returns the pending request after `key`, in order of age.
    pub(crate) fn next_after(&self, key: Key) -> Option<Key> {
        self.key_at(self.entries.get(key.index)?.next)
    }

    fn key_at(&self, index: u32) -> Option<Key> {
        let entry = self.entries.get(index)?;
        Some(Key { index, generation: entry.generation })
    }

    /// Returns the entry of `key` while it is pending.
    pub(crate) fn pending_mut(&mut self, key: Key) -> Option<&mut RequestEntry<R, E>> {
        let is_pending = self.phase(key) == Some(Phase::Pending);
        is_pending.then(|| &mut **self.entries.used(key.index))
    }

    /// Ends a pending request without an event. Returns false if it is not pending.
    pub(crate) fn finish(&mut self, key: Key, woken: &mut Vec<Waker>) -> bool {
        if self.phase(key) != Some(Phase::Pending) {
            return false;
        }
        self.unlink(key.index);
        let entry = self.entry_mut(key.index);
        entry.phase = Phase::Ended;
        entry.slot.finish(SlotEnd::Finished, woken);
        true
    }

    fn entry_mut(&mut self, index: u32) -> &mut RequestEntry<R, E> {
        self.entries.used(index)
    }

    fn unlink(&mut self, index: u32) {
        let (previous, next) = {
            let entry = self.entry_mut(index);
            (mem::replace(&mut entry.previous, NIL), mem::replace(&mut entry.next, NIL))
        };
        match previous {
            NIL => self.oldest = next,
            previous => self.entry_mut(previous).next = next,
        }
        match next {
            NIL => self.newest = previous,
            next => self.entry_mut(next).previous = previous,
        }
        self.pending_count -= 1;
        self.changed = true;
    }

    /// The detector is done with a cancelled request, and may have an event for it.
    pub(crate) fn finish_cancelled(&mut self, key: Key, event: Option<E>) {
        let index = key.index;
        let request = self.entry_mut(index).request.take();
        self.trash.push((request, event));
        self.cancelling_count -= 1;
        self.entries.free(index);
    }

    /// Leaks the entry's memory, since a device may still write to it, and puts a fresh entry with
    /// the same waiter in its place.
    fn leak_request(&mut self, index: u32) {
        let fresh = {
            let entry = self.entry_mut(index);
            let mut fresh = RequestEntry::new(entry.generation);
            fresh.slot = Arc::clone(&entry.slot);
            fresh.phase = entry.phase;
            fresh.mode = entry.mode;
            fresh
        };
        let leaked = mem::replace(self.entries.used(index), Box::new(fresh));
        mem::forget(leaked);
    }

    fn leak(&mut self, index: u32) {
        self.leak_request(index);
        self.entry_mut(index).slot = Arc::new(EventSlot::new());
        self.entries.free(index);
    }
}
