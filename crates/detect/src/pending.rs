//! The pending requests of one handle, and the [`Round`] in which a detector serves them.
//!
//! A request lives in an entry. Entries are boxed and reused, so that a request has a stable address
//! while it is pending and waiting again allocates nothing; those that a burst has left behind are given
//! back.
//!
//! ```text
//!                 insert (1)           complete, last emit (2)           release (4)
//!        free ───────────────▶ pending ───────────────────────▶ ended ───────────────▶ free
//!                                 │ cancel (3)
//!                                 ├── released ──────────────────────────────────────▶ free
//!                                 └── in flight ──▶ cancelling ── complete (2) ──────▶ free
//! ```
//!
//! (1) [`PendingSet::insert`], (2) [`Round::complete`] and [`Round::emit`], (3) [`PendingSet::cancel`],
//! (4) [`PendingSet::release`]. Nothing that a request or an event owns is dropped under the handle's
//! lock: an ended request waits for its waiter's release, and what is left of a cancelled one goes to
//! the trash, which the holder of the lock empties after releasing it.

mod entries;
#[cfg(test)]
mod tests;

use std::{fmt, mem, task::Waker};

use crate::{
    clock::Instant,
    detector::{Cancel, Detector},
    error::{WaitError, caught},
    slot::{End, Slot},
    sync::Arc,
};
use entries::Entries;

/// The name of one pending request: unique within its handle for as long as it is pending, and a
/// `u64` for devices that carry one along (`user_data`, `wr_id`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    /// Returns the key as a number.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        ((self.generation as u64) << 32) | self.index as u64
    }

    /// Returns a small number that no other request of the handle has while this one is pending: an
    /// index for tables beside the requests.
    #[must_use]
    pub const fn index(self) -> usize {
        self.index as usize
    }

    /// Returns the key that [`to_bits`](Self::to_bits) made a number of. Any number is accepted: one
    /// that names no pending request is answered like a request that is gone.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of the number are wanted")]
    pub const fn from_bits(bits: u64) -> Self {
        Self { index: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// Whether a request waits for one event or for a stream of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a request has one event or many")]
pub enum Mode {
    /// The first event ends the request.
    Once,
    /// The request stays pending from event to event (multishot).
    Stream,
}

/// What became of an event handed to [`Round::emit`].
#[derive(Debug)]
#[must_use = "an event that was not taken must be kept or dropped on purpose"]
#[expect(clippy::exhaustive_enums, reason = "implementers must be able to handle every case")]
pub enum Emitted<E> {
    /// The waiter has it, and the request stays pending.
    Kept,
    /// The waiter has it, and the request is over: it wanted one event.
    Ended,
    /// The waiter's queue is full: hold the event back and emit it in a later round. The server polls
    /// again when the waiter has taken half of its queue.
    Full(E),
    /// No such request is pending any more.
    Gone(E),
}

const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Free,
    Pending,
    Cancelling,
    Ended,
}

struct Entry<D: Detector> {
    request: Option<D::Request>,
    slot: Arc<Slot<D::Event>>,
    generation: u32,
    phase: Phase,
    mode: Mode,
    /// Neighbours in the list of pending entries, oldest first.
    previous: u32,
    next: u32,
}

/// What a finished or forgotten request leaves to be dropped outside the lock.
pub(crate) type Trash<D> = (Option<<D as Detector>::Request>, Option<<D as Detector>::Event>);

/// All requests of one handle.
pub(crate) struct PendingSet<D: Detector> {
    entries: Entries<D>,
    oldest: u32,
    newest: u32,
    pending_count: usize,
    cancelling_count: usize,
    /// The set has changed since [`Detector::group`] saw it.
    pub(crate) changed: bool,
    pub(crate) trash: Vec<Trash<D>>,
}

impl<D: Detector> PendingSet<D> {
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

    /// Returns how many requests are forgotten by their waiter, but not yet by the detector.
    pub(crate) fn cancelling_count(&self) -> usize {
        self.cancelling_count
    }

    pub(crate) fn insert(&mut self, request: D::Request, mode: Mode) -> Key {
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
    pub(crate) fn slot(&mut self, key: Key) -> Arc<Slot<D::Event>> {
        Arc::clone(&self.entry_mut(key.index).slot)
    }

    /// Returns the request of `key` if the detector still knows it.
    pub(crate) fn request_mut(&mut self, key: Key) -> Option<&mut D::Request> {
        match self.phase(key)? {
            Phase::Pending | Phase::Cancelling => self.entry_mut(key.index).request.as_mut(),
            Phase::Free | Phase::Ended => None,
        }
    }

    fn phase(&self, key: Key) -> Option<Phase> {
        let entry = self.entries.get(key.index)?;
        (entry.generation == key.generation).then_some(entry.phase)
    }

    /// The waiter of `key` goes: frees an ended entry, asks `cancel` about a pending one. Returns the
    /// request if it is free now, to be dropped outside the lock.
    pub(crate) fn release(
        &mut self,
        key: Key,
        cancel: impl FnOnce(&mut D::Request) -> Option<Cancel>,
    ) -> Option<D::Request> {
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
                    Some(Cancel::Released) => {
                        let request = self.entry_mut(key.index).request.take();
                        self.entries.free(key.index);
                        request
                    }
                    Some(Cancel::InFlight) => {
                        self.entry_mut(key.index).phase = Phase::Cancelling;
                        self.cancelling_count += 1;
                        None
                    }
                    // The callback panicked: nobody knows whether the memory is still in use.
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

    /// Ends a pending request with its event, which waits in the slot for the waiter. This and what follows moves to
    /// `woken` whom it concerns.
    pub(crate) fn end(&mut self, key: Key, event: D::Event, woken: &mut Vec<Waker>) {
        self.unlink(key.index);
        let entry = self.entry_mut(key.index);
        entry.phase = Phase::Ended;
        // The last event always fits: a request in `Mode::Once` has no other.
        let Ok(()) = entry.slot.push(event, usize::MAX, |_, newer| Some(newer), woken) else {
            unreachable!("invariant: the capacity has no bound")
        };
        entry.slot.finish(End::Finished, woken);
    }

    /// Ends the request of `key` with an error for its waiter. What it owned is leaked if `in_flight`.
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
                entry.slot.finish(End::Failed(error), woken);
                entry.phase = Phase::Ended;
                if in_flight {
                    self.leak_request(key.index);
                }
            }
            Some(Phase::Cancelling) if in_flight => {
                self.cancelling_count -= 1;
                self.leak(key.index);
            }
            Some(Phase::Cancelling) => self.finish_cancelled(key.index, None),
            Some(Phase::Free | Phase::Ended) | None => {}
        }
    }

    /// Settles how a pending request will end, whatever is still reported to it before.
    pub(crate) fn doom(&mut self, key: Key, error: WaitError, woken: &mut Vec<Waker>) {
        if self.phase(key) == Some(Phase::Pending) {
            self.entry_mut(key.index).slot.finish(End::Failed(error), woken);
        }
    }

    /// Returns whether the waiter of `key` has gone and the detector was told so.
    pub(crate) fn is_cancelling(&self, key: Key) -> bool {
        self.phase(key) == Some(Phase::Cancelling)
    }

    /// Returns the keys of all requests that the detector still knows, pending ones oldest first.
    pub(crate) fn known(&self) -> Vec<Key> {
        let cancelling = self.entries.iter().filter_map(|(index, entry)| {
            (entry.phase == Phase::Cancelling)
                .then_some(Key { index, generation: entry.generation })
        });
        Pending { set: self }.iter().map(|(key, _)| key).chain(cancelling).collect()
    }

    fn entry_mut(&mut self, index: u32) -> &mut Entry<D> {
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

    fn finish_cancelled(&mut self, index: u32, event: Option<D::Event>) {
        let request = self.entry_mut(index).request.take();
        self.trash.push((request, event));
        self.cancelling_count -= 1;
        self.entries.free(index);
    }

    /// Gives the entry's memory up for good, since a device may still write to it, and puts a fresh
    /// entry with the same waiter in its place.
    fn leak_request(&mut self, index: u32) {
        let fresh = {
            let entry = self.entry_mut(index);
            let mut fresh = Entry::new(entry.generation);
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
        self.entry_mut(index).slot = Arc::new(Slot::new());
        self.entries.free(index);
    }
}

impl<D: Detector> Entry<D> {
    fn new(generation: u32) -> Self {
        Self {
            request: None,
            slot: Arc::new(Slot::new()),
            generation,
            phase: Phase::Free,
            mode: Mode::Once,
            previous: NIL,
            next: NIL,
        }
    }
}

/// The pending requests of a handle, as [`Detector::group`] sees them.
///
/// # Source
/// [bouge02, §3.1]: `thread_IO_for_each_request`.
pub struct Pending<'a, D: Detector> {
    set: &'a PendingSet<D>,
}

impl<'a, D: Detector> Pending<'a, D> {
    pub(crate) fn new(set: &'a PendingSet<D>) -> Self {
        Self { set }
    }

    /// Returns the number of pending requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.set.len()
    }

    /// Returns whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over the pending requests, oldest first.
    ///
    /// # Panics
    /// Never: a pending entry has its request.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &'a D::Request)> + use<'a, D> {
        let set = self.set;
        let mut index = set.oldest;
        std::iter::from_fn(move || {
            let entry = set.entries.get(index)?;
            let key = Key { index, generation: entry.generation };
            index = entry.next;
            Some((key, entry.request.as_ref().expect("invariant: pending has a request")))
        })
    }
}

impl<D: Detector> fmt::Debug for Pending<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// The wakers of one round, woken by the host once it holds no lock.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) wakers: Vec<Waker>,
    /// The handle's policy is due to be asked, once the tasks are woken.
    pub(crate) is_stale: bool,
}

impl Batch {
    /// Wakes everyone. The caller holds no lock of the server.
    pub(crate) fn wake_all(&mut self) {
        for waker in self.wakers.drain(..) {
            // One waker's panic must not cost the others their wake-up.
            let _ = caught("wake", || waker.wake());
        }
    }
}

/// One round of detection over one handle: what is pending, what time it is, and where events go.
pub struct Round<'a, D: Detector> {
    set: &'a mut PendingSet<D>,
    batch: &'a mut Batch,
    now: Instant,
    budget: usize,
    stream_capacity: usize,
    reported: usize,
    more: bool,
    /// A waiter had no room for an event: it rings when it has.
    is_held_back: bool,
}

impl<'a, D: Detector> Round<'a, D> {
    pub(crate) fn new(
        set: &'a mut PendingSet<D>,
        batch: &'a mut Batch,
        now: Instant,
        budget: usize,
        stream_capacity: usize,
    ) -> Self {
        Self {
            set,
            batch,
            now,
            budget,
            stream_capacity,
            reported: 0,
            more: false,
            is_held_back: false,
        }
    }

    /// Returns the time of this round.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Returns the number of pending requests.
    #[must_use]
    pub fn pending_count(&self) -> usize {
        self.set.len()
    }

    /// Returns whether this round has reported as much as it may: leave the rest to the next one
    /// and say so with [`more`](Self::more), so that events cannot starve the tasks that they wake.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.reported >= self.budget
    }

    /// Says that further events are there already: the host polls again soon.
    pub const fn more(&mut self) {
        self.more = true;
    }

    /// Returns the key of the oldest pending request.
    #[must_use]
    pub fn oldest(&self) -> Option<Key> {
        let entry = self.set.entries.get(self.set.oldest)?;
        Some(Key { index: self.set.oldest, generation: entry.generation })
    }

    /// Returns the pending request after `key`, in order of age.
    #[must_use]
    pub fn next_after(&self, key: Key) -> Option<Key> {
        let index = self.set.entries.get(key.index)?.next;
        let entry = self.set.entries.get(index)?;
        Some(Key { index, generation: entry.generation })
    }

    /// Returns the request of `key`, pending or being cancelled.
    pub fn request_mut(&mut self, key: Key) -> Option<&mut D::Request> {
        self.set.request_mut(key)
    }

    /// Reports the last event of a request. Returns whether the request was still known.
    pub fn complete(&mut self, key: Key, event: D::Event) -> bool {
        self.complete_with(key, |_| event)
    }

    /// Reports the last event of a request, made out of what the request owned: the way to hand a
    /// buffer back. Returns whether the request was still known.
    pub fn complete_with(
        &mut self,
        key: Key,
        event: impl FnOnce(&mut D::Request) -> D::Event,
    ) -> bool {
        let Some(request) = self.set.request_mut(key) else { return false };
        let event = event(request);
        if self.set.phase(key) == Some(Phase::Pending) {
            self.end(key, event);
        } else {
            self.set.finish_cancelled(key.index, Some(event));
        }
        true
    }

    /// Ends a stream without a further event, or a request in flight that was cancelled. Returns
    /// whether the request was still known.
    pub fn finish(&mut self, key: Key) -> bool {
        match self.set.phase(key) {
            Some(Phase::Pending) => {
                self.set.unlink(key.index);
                let entry = self.set.entry_mut(key.index);
                entry.phase = Phase::Ended;
                entry.slot.finish(End::Finished, &mut self.batch.wakers);
                // Counted: a host that found nothing would sleep before it wakes the waiter.
                self.reported += 1;
                true
            }
            Some(Phase::Cancelling) => {
                self.set.finish_cancelled(key.index, None);
                true
            }
            Some(Phase::Free | Phase::Ended) | None => false,
        }
    }

    /// Reports one event of a request that may have more.
    pub fn emit(&mut self, key: Key, event: D::Event) -> Emitted<D::Event> {
        let capacity = self.stream_capacity;
        if self.set.phase(key) != Some(Phase::Pending) {
            return Emitted::Gone(event);
        }
        let entry = self.set.entry_mut(key.index);
        if entry.mode == Mode::Once {
            self.end(key, event);
            return Emitted::Ended;
        }
        match entry.slot.push(event, capacity, D::merge, &mut self.batch.wakers) {
            Ok(()) => {
                self.reported += 1;
                Emitted::Kept
            }
            Err(event) => {
                self.is_held_back = true;
                Emitted::Full(event)
            }
        }
    }

    /// Ends a request with an error of the detector.
    pub fn fail(&mut self, key: Key, error: std::io::Error) {
        self.set.fail(key, WaitError::Failed(error), false, &mut self.batch.wakers);
        self.reported += 1;
    }

    /// Calls [`Detector::check`] for each pending request, oldest first: what a poll is without a
    /// group, at a cost that grows with the number of requests [bouge02, §4.2].
    pub fn check_each(&mut self, detector: &mut D) {
        let mut cursor = self.oldest();
        while let Some(key) = cursor {
            if self.is_full() {
                self.more();
                return;
            }
            cursor = self.next_after(key);
            let Some(request) = self.set.request_mut(key) else { continue };
            let checked = match caught("check", || detector.check(key, request)) {
                Ok(checked) => checked,
                Err(panicked) => {
                    self.reported += 1;
                    self.set.fail(key, panicked, true, &mut self.batch.wakers);
                    continue;
                }
            };
            if let Some(event) = checked {
                // A stream stays pending; a single request is over.
                match self.emit(key, event) {
                    Emitted::Kept | Emitted::Ended => {}
                    Emitted::Full(event) | Emitted::Gone(event) => {
                        self.set.trash.push((None, Some(event)));
                    }
                }
            }
        }
    }

    pub(crate) fn reported(&self) -> usize {
        self.reported
    }

    pub(crate) fn is_held_back(&self) -> bool {
        self.is_held_back
    }

    pub(crate) fn wants_more(&self) -> bool {
        self.more
    }

    fn end(&mut self, key: Key, event: D::Event) {
        self.set.end(key, event, &mut self.batch.wakers);
        self.reported += 1;
    }
}

impl<D: Detector> fmt::Debug for Round<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Round")
            .field("now", &self.now)
            .field("pending_count", &self.set.len())
            .field("reported", &self.reported)
            .finish_non_exhaustive()
    }
}
