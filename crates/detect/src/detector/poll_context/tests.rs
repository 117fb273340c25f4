//! The requests of one handle without a server: each guarantee of [`PendingSet`] and [`PollContext`]
//! separately.

use std::task::{Context, Poll, Wake, Waker};

use super::*;
use crate::{
    detector::methods::Methods,
    request::{CancelOutcome, EventSlot, SlotEnd, SlotItem},
    sync::{Arc, AtomicUsize, Ordering},
};

/// Counts how often it is dropped.
struct Owned(Arc<AtomicUsize>);

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Asked {
    /// The result of a check.
    finds: Option<u32>,
    panics: bool,
    _owned: Owned,
}

/// Checks its requests and records which.
#[derive(Default)]
struct Toy {
    checked: Vec<Key>,
}

impl Detector for Toy {
    type Request = Asked;
    type Event = u32;

    fn methods(&self) -> Methods {
        Methods::CHECK
    }

    fn check(&mut self, key: Key, asked: &mut Asked) -> Option<u32> {
        self.checked.push(key);
        assert!(!asked.panics, "as it was told to");
        asked.finds
    }
}

#[derive(Default)]
struct Woken {
    count: AtomicUsize,
    panics: bool,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.count.fetch_add(1, Ordering::Relaxed);
        assert!(!self.panics, "as it was told to");
    }
}

struct Bench {
    set: PendingSet<Asked, u32>,
    batch: WakeList,
    drops: Arc<AtomicUsize>,
    woken: Arc<Woken>,
}

impl Bench {
    fn new() -> Self {
        Self {
            set: PendingSet::new(),
            batch: WakeList::default(),
            drops: Arc::default(),
            woken: Arc::default(),
        }
    }

    fn ask_for(&mut self, mode: Mode, finds: Option<u32>, panics: bool) -> Key {
        let owned = Owned(Arc::clone(&self.drops));
        self.set.insert(Asked { finds, panics, _owned: owned }, mode)
    }

    fn ask(&mut self, mode: Mode) -> Key {
        self.ask_for(mode, None, false)
    }

    /// Like [`ask`](Self::ask), for a waiter that has polled its slot.
    fn wait(&mut self, mode: Mode) -> (Key, Arc<EventSlot<u32>>) {
        let key = self.ask(mode);
        let slot = self.set.slot(key);
        assert!(self.take(&slot).is_pending());
        (key, slot)
    }

    /// Returns a request that its waiter has left, but the device has not.
    fn cancelling(&mut self) -> Key {
        let key = self.ask(Mode::Once);
        assert!(self.set.release(key, |_| Some(CancelOutcome::InFlight)).is_none());
        key
    }

    fn take(&self, slot: &EventSlot<u32>) -> Poll<SlotItem<u32>> {
        let waker = Waker::from(Arc::clone(&self.woken));
        slot.poll(&Context::from_waker(&waker))
    }

    /// Calls `act` with a poll of that budget, for streams of that capacity.
    fn round<T>(
        &mut self,
        budget: usize,
        capacity: usize,
        act: impl FnOnce(&mut PollContext<'_, Toy>) -> T,
    ) -> T {
        let now = Instant::from_nanos(70);
        act(&mut PollContext::new(&mut self.set, &mut self.batch, now, budget, capacity))
    }

    /// Fails a request as [`PendingSet::fail`] does. Returns whether it has a waiter.
    fn fail(&mut self, key: Key, in_flight: bool) -> bool {
        let before = self.batch.wakers.len();
        self.set.fail(key, failed(), in_flight, &mut self.batch.wakers);
        self.batch.wakers.len() > before
    }

    /// Dooms a request as [`PendingSet::cancel_at_shutdown`] does. Returns whether it has a waiter.
    fn cancel_at_shutdown(&mut self, key: Key) -> bool {
        let before = self.batch.wakers.len();
        self.set.cancel_at_shutdown(key, failed(), &mut self.batch.wakers);
        self.batch.wakers.len() > before
    }

    /// Wakes the waiters that the polls have found. Returns the number of wake-ups so far.
    fn wake(&mut self) -> usize {
        self.batch.wake_all();
        self.woken.count.load(Ordering::Relaxed)
    }

    fn drops(&self) -> usize {
        self.drops.load(Ordering::Relaxed)
    }

    /// Returns the values that wait to be dropped: whether there is a request, and the event.
    fn trash(&self) -> Vec<(bool, Option<u32>)> {
        self.set.trash.iter().map(|(asked, event)| (asked.is_some(), *event)).collect()
    }

    /// Returns the pending requests in order, and checks that all ways to list them agree.
    fn pending(&mut self) -> Vec<Key> {
        let pending = Pending::<Toy>::new(&self.set);
        let keys: Vec<Key> = pending.iter().map(|(key, _)| key).collect();
        assert_eq!((pending.len(), pending.is_empty()), (keys.len(), keys.is_empty()));
        let (count, walked) = self.round(1, 1, |context| {
            let mut walked = Vec::new();
            let mut cursor = context.oldest();
            while let Some(key) = cursor {
                walked.push(key);
                assert!(walked.len() <= 10, "the list has no end");
                cursor = context.next_after(key);
            }
            (context.pending_count(), walked)
        });
        assert_eq!((count, &walked), (keys.len(), &keys));
        keys
    }
}

fn failed() -> WaitError {
    WaitError::ServerClosed
}

/// Goal: a key is a number, whose halves are those of the key. Method: halves that differ in every bit.
#[test]
fn keys_are_numbers() {
    for (index, generation) in [(5, 7), (0, 0), (u32::MAX - 1, 3), (2, u32::MAX), (0, 1)] {
        let key = Key { index, generation };
        let bits = key.to_bits();
        assert_eq!((bits % (1 << 32), bits / (1 << 32)), (index.into(), generation.into()));
        assert_eq!((Key::from_bits(bits), key.index()), (key, index as usize));
    }
}

/// Goal: requests are listed by age, in whatever order they leave. Method: four, which leave in all 24
/// orders, against a list; the places are then reused by other keys.
#[test]
fn requests_are_listed_by_age() {
    for order in 0..24 {
        let mut bench = Bench::new();
        assert!(bench.pending().is_empty());
        let mut model: Vec<Key> = (0..4).map(|_| bench.ask(Mode::Once)).collect();
        let all = model.clone();
        assert_eq!(bench.pending(), model);
        for pick in [order % 4, order / 4 % 3, order / 12, 0] {
            bench.set.changed = false;
            let key = model.remove(pick);
            let released = bench.set.release(key, |_| Some(CancelOutcome::Released));
            assert!(released.is_some() && bench.set.changed, "{order}");
            assert!(bench.set.request_mut(key).is_none(), "{order}");
            assert_eq!(bench.pending(), model, "{order}");
            assert_eq!(bench.set.known(), model, "{order}");
        }
        assert_eq!(bench.drops(), 4);
        let again: Vec<Key> = (0..4).map(|_| bench.ask(Mode::Once)).collect();
        assert_eq!(bench.pending(), again);
        assert!(again.iter().all(|key| key.index() < 4 && !all.contains(key)), "{again:?}");
    }
}

/// Goal: an event ends a single request and wakes its waiter, which finds the event, then the end; what
/// the request owned is kept for the waiter to drop. Method: the last event, by each way to report it.
#[test]
fn an_event_ends_a_request() {
    for way in 0..3 {
        let mut bench = Bench::new();
        let (key, slot) = bench.wait(Mode::Once);
        let told = bench.round(9, 9, |context| {
            let is_told = match way {
                0 => context.complete(key, 5),
                1 => context.complete_with(key, |asked| asked.finds.map_or(5, |_| 6)),
                _ => matches!(context.emit(key, 5), EmitOutcome::Ended),
            };
            (is_told, context.reported(), context.request_mut(key).is_some())
        });
        assert_eq!(told, (true, 1, false), "{way}");
        assert_eq!((bench.pending(), bench.set.known()), (vec![], vec![]));
        assert_eq!((bench.batch.wakers.len(), bench.wake(), bench.batch.wakers.len()), (1, 1, 0));
        assert!(matches!(bench.take(&slot), Poll::Ready(SlotItem::Event(5))));
        assert!(matches!(bench.take(&slot), Poll::Ready(SlotItem::End(SlotEnd::Finished))));
        // It is over, and later reports have no effect.
        bench.round(9, 9, |context| {
            assert!(!context.complete(key, 6) && !context.finish(key));
            assert!(matches!(context.emit(key, 6), EmitOutcome::Gone(6)));
            assert_eq!(context.reported(), 0);
        });
        assert!(!bench.fail(key, false));
        assert!(!bench.cancel_at_shutdown(key) && !bench.set.is_cancelling(key));
        assert!(matches!(bench.take(&slot), Poll::Ready(SlotItem::End(SlotEnd::Finished))));
        assert_eq!(bench.drops(), 0);
        assert!(bench.set.release(key, |_| panic!("it has ended")).is_some());
        assert_eq!(bench.drops(), 1);
        assert!(bench.set.trash.is_empty());
    }
}

/// Goal: an event that was there at once waits in the slot for a waiter that yields; a waiting one is
/// woken. Method: end both.
#[test]
fn a_request_is_ended_for_its_waiter() {
    let mut bench = Bench::new();
    let key = bench.ask(Mode::Once);
    let slot = bench.set.slot(key);
    bench.set.end(key, 8, &mut bench.batch.wakers);
    assert_eq!(bench.batch.wakers.len(), 0, "no waiter is registered");
    assert!(matches!(bench.take(&slot), Poll::Ready(SlotItem::Event(8))));
    let (key, slot) = bench.wait(Mode::Once);
    bench.set.end(key, 9, &mut bench.batch.wakers);
    assert_eq!(bench.wake(), 1);
    assert!(matches!(bench.take(&slot), Poll::Ready(SlotItem::Event(9))));
    assert!(bench.pending().is_empty());
}

/// Goal: a request in flight stays known and in memory until the detector is done with it, and its remains
/// are dropped outside. Method: each way to end it, without a waiter to wake.
#[test]
fn a_request_in_flight_outlives_its_waiter() {
    for way in 0..4 {
        let mut bench = Bench::new();
        let older = bench.ask(Mode::Once);
        let key = bench.cancelling();
        let other = bench.ask(Mode::Once);
        assert_eq!((bench.set.cancelling_count(), bench.pending()), (1, vec![older, other]));
        let stale = Key { generation: key.generation.wrapping_add(1), ..key };
        let cancelling = [key, older, stale].map(|key| bench.set.is_cancelling(key));
        assert_eq!(cancelling, [true, false, false]);
        assert_eq!(bench.set.known(), [older, other, key]);
        assert!(bench.set.request_mut(key).is_some());
        assert!(!bench.cancel_at_shutdown(key));
        let is_known = bench.round(9, 9, |context| {
            assert!(matches!(context.emit(key, 1), EmitOutcome::Gone(1)), "the request is gone");
            assert!(!context.complete(stale, 1) && !context.finish(stale));
            let is_known = match way {
                0 => context.complete(key, 4),
                1 => context.finish(key),
                _ => {
                    let mut woken = Vec::new();
                    context.set.fail(key, failed(), way == 3, &mut woken);
                    woken.is_empty()
                }
            };
            assert_eq!(context.reported(), 0, "no waiter is registered");
            is_known
        });
        assert!(is_known, "{way}");
        assert_eq!((bench.set.cancelling_count(), bench.wake()), (0, 0), "{way}");
        assert!(bench.set.request_mut(key).is_none() && !bench.set.is_cancelling(key));
        assert_eq!((bench.set.known(), bench.drops()), (vec![older, other], 0));
        let expected = match way {
            0 => vec![(true, Some(4))],
            1 | 2 => vec![(true, None)],
            // Memory that a device may still write to is not dropped at all.
            _ => vec![],
        };
        assert_eq!(bench.trash(), expected, "{way}");
        bench.set.trash.clear();
        let next = bench.ask(Mode::Once);
        assert!(next.index() == key.index() && next != key);
        assert_eq!(bench.drops(), usize::from(way < 3), "{way}");
    }
}

/// Goal: requests in flight are counted one by one. Method: three, which end one after the other.
#[test]
fn requests_in_flight_are_counted() {
    let mut bench = Bench::new();
    let keys = [(); 3].map(|()| bench.cancelling());
    assert_eq!((bench.set.cancelling_count(), bench.set.len()), (3, 0));
    for (left, key) in [2, 1, 0].into_iter().zip(keys) {
        assert!(bench.round(9, 9, |context| context.finish(key)));
        assert_eq!((bench.set.cancelling_count(), bench.set.trash.len()), (left, 3 - left));
    }
}

/// Goal: if a request's cancellation panicked, its memory may still be in use: it is leaked, and its place
/// reused. Method: count the drops.
#[test]
fn a_request_that_nobody_knows_about_is_leaked() {
    let mut bench = Bench::new();
    let (key, slot) = bench.wait(Mode::Stream);
    bench.round(9, 9, |context| assert!(matches!(context.emit(key, 3), EmitOutcome::Kept)));
    assert!(bench.set.release(key, |_| None).is_none());
    assert!(bench.set.request_mut(key).is_none());
    assert_eq!((bench.pending(), bench.set.known()), (vec![], vec![]));
    assert_eq!((bench.set.cancelling_count(), bench.set.trash.len()), (0, 0));
    let next = bench.ask(Mode::Once);
    assert!(next.index() == key.index() && next != key);
    assert!(!Arc::ptr_eq(&bench.set.slot(next), &slot), "its events are not the next one's");
    drop(bench.set.release(next, |_| Some(CancelOutcome::Released)));
    assert_eq!(bench.drops(), 1, "the second one alone");
}

/// Goal: an error ends a request and reaches its waiter; a request in flight is then leaked, but not the
/// waiter's slot. Method: a request of each kind, by the poll and by the server.
#[test]
fn an_error_ends_a_request() {
    for way in 0..3 {
        let mut bench = Bench::new();
        let (key, slot) = bench.wait(Mode::Stream);
        if way == 0 {
            let reported = bench.round(9, 9, |context| {
                context.fail(key, std::io::ErrorKind::TimedOut.into());
                context.reported()
            });
            assert_eq!((reported, bench.wake()), (1, 1));
            let taken = bench.take(&slot);
            assert!(matches!(
                taken,
                Poll::Ready(SlotItem::End(SlotEnd::Failed(WaitError::Failed(_))))
            ));
        } else {
            assert!(bench.fail(key, way == 2), "it waits");
            let taken = bench.take(&slot);
            let told = matches!(
                taken,
                Poll::Ready(SlotItem::End(SlotEnd::Failed(WaitError::ServerClosed)))
            );
            assert!(told, "{way}");
        }
        assert_eq!((bench.pending(), bench.set.known()), (vec![], vec![]));
        assert!(Arc::ptr_eq(&bench.set.slot(key), &slot));
        let left = bench.set.release(key, |_| panic!("it has ended"));
        assert_eq!(left.is_some(), way < 2, "{way}");
        drop(left);
        let next = bench.ask(Mode::Once);
        assert!(next.index() == key.index() && next != key);
        assert_eq!(bench.drops(), usize::from(way < 2), "{way}");
    }
}

/// Goal: a doomed request ends with its error, but not before earlier reports. Method: doom it, report an
/// event, and end it.
#[test]
fn a_doomed_request_hears_of_earlier_events() {
    let mut bench = Bench::new();
    let (key, slot) = bench.wait(Mode::Stream);
    let stale = Key { generation: key.generation.wrapping_add(1), ..key };
    assert!(!bench.cancel_at_shutdown(stale));
    assert!(bench.cancel_at_shutdown(key), "it waits");
    assert_eq!(bench.pending(), [key]);
    bench.round(9, 9, |context| {
        assert!(matches!(context.emit(key, 2), EmitOutcome::Kept));
        assert!(context.finish(key));
    });
    assert!(matches!(bench.take(&slot), Poll::Ready(SlotItem::Event(2))));
    let taken = bench.take(&slot);
    assert!(matches!(taken, Poll::Ready(SlotItem::End(SlotEnd::Failed(WaitError::ServerClosed)))));
}

/// Goal: a stream keeps as many events as it may, gives the others back, and ends without one; a poll counts
/// what it reports. Method: fill it, take one, emit again, finish.
#[test]
fn a_stream_is_bounded() {
    let mut bench = Bench::new();
    let (key, slot) = bench.wait(Mode::Stream);
    bench.round(3, 2, |context| {
        assert_eq!(context.now(), Instant::from_nanos(70));
        for (event, reported) in [(1, 1), (2, 2)] {
            assert!(matches!(context.emit(key, event), EmitOutcome::Kept));
            assert_eq!((context.reported(), context.is_full()), (reported, false));
        }
        assert!(!context.is_held_back());
        assert!(matches!(context.emit(key, 3), EmitOutcome::Full(3)));
        assert_eq!(
            (context.reported(), context.is_held_back(), context.is_full()),
            (2, true, false)
        );
    });
    assert_eq!((bench.wake(), bench.pending()), (1, vec![key]));
    assert!(matches!(bench.take(&slot), Poll::Ready(SlotItem::Relief(1))));
    bench.round(2, 2, |context| {
        assert!(!context.is_held_back() && !context.wants_more());
        assert!(matches!(context.emit(key, 3), EmitOutcome::Kept));
        assert!(!context.is_full() && context.finish(key) && context.is_full());
        assert_eq!(context.reported(), 2, "its end counts");
        context.more();
        assert!(context.wants_more());
        assert!(!context.finish(key), "it is over");
        assert_eq!(context.reported(), 2);
    });
    for event in [2, 3] {
        assert!(matches!(bench.take(&slot), Poll::Ready(SlotItem::Event(one)) if one == event));
    }
    assert!(matches!(bench.take(&slot), Poll::Ready(SlotItem::End(SlotEnd::Finished))));
    assert!(bench.set.release(key, |_| panic!("it has ended")).is_some());
}

/// Goal: a stream's end wakes its waiter. Method: one that waits for its first event.
#[test]
fn the_end_of_a_stream_wakes_its_waiter() {
    let mut bench = Bench::new();
    let (key, slot) = bench.wait(Mode::Stream);
    assert!(bench.round(9, 9, |context| context.finish(key)));
    assert_eq!((bench.wake(), bench.pending()), (1, vec![]));
    assert!(matches!(bench.take(&slot), Poll::Ready(SlotItem::End(SlotEnd::Finished))));
}

/// Goal: checks go from the oldest to the newest, end single requests, leave streams pending, and survive a
/// check that panics. Method: one of each kind, and one that finds nothing.
#[test]
fn checks_go_by_age() {
    let mut bench = Bench::new();
    let single = bench.ask_for(Mode::Once, Some(1), false);
    let nothing = bench.ask(Mode::Once);
    let bad = bench.ask_for(Mode::Once, Some(2), true);
    let stream = bench.ask_for(Mode::Stream, Some(3), false);
    let slots = [single, nothing, bad, stream].map(|key| bench.set.slot(key));
    assert!(bench.take(&slots[2]).is_pending());
    let mut toy = Toy::default();
    for context in 0..2 {
        let (reported, wants_more) = bench.round(9, 1, |context| {
            context.check_each(&mut toy);
            (context.reported(), context.wants_more())
        });
        assert_eq!((reported, wants_more), ([3, 0][context], false));
        assert_eq!(bench.pending(), [nothing, stream]);
    }
    assert_eq!(toy.checked, [single, nothing, bad, stream, nothing, stream]);
    assert_eq!(bench.wake(), 1, "the one that waits");
    assert!(matches!(bench.take(&slots[0]), Poll::Ready(SlotItem::Event(1))));
    assert!(bench.take(&slots[1]).is_pending());
    let taken = bench.take(&slots[2]);
    let is_told = matches!(
        &taken,
        Poll::Ready(SlotItem::End(SlotEnd::Failed(WaitError::Panicked { callback: "check", .. })))
    );
    assert!(is_told, "{taken:?}");
    assert!(matches!(bench.take(&slots[3]), Poll::Ready(SlotItem::Relief(3))));
    // Events for which the stream had no room are dropped outside; a request whose check panicked
    // is not dropped.
    assert_eq!(bench.trash(), [(false, Some(3))]);
    assert!(bench.set.release(bad, |_| panic!("it has ended")).is_none());
    assert_eq!(bench.drops(), 0);
}

/// Goal: events cannot starve the tasks that they wake: a poll stops at its budget, and reports that there
/// is more. Method: three requests that find something, two events per poll.
#[test]
fn checks_stop_at_the_budget() {
    let mut bench = Bench::new();
    let keys = [(); 3].map(|()| bench.ask_for(Mode::Once, Some(1), false));
    let mut toy = Toy::default();
    for expected in [(2, true), (1, false)] {
        let found = bench.round(2, 9, |context| {
            context.check_each(&mut toy);
            (context.reported(), context.wants_more())
        });
        assert_eq!(found, expected);
    }
    assert_eq!(toy.checked, keys);
    assert!(bench.pending().is_empty());
}

/// Goal: every waker in a batch is called, even after one that panics. Method: three wakers.
#[test]
fn a_panic_costs_the_others_no_wake_up() {
    let good = Arc::new(Woken::default());
    let bad = Arc::new(Woken { panics: true, ..Woken::default() });
    let wakers = [&good, &bad, &good].map(|one| Waker::from(Arc::clone(one))).into();
    let mut batch = WakeList { wakers, ..WakeList::default() };
    batch.wake_all();
    let counts = [&good, &bad].map(|one| one.count.load(Ordering::Relaxed));
    assert_eq!((counts, batch.wakers.len()), ([2, 1], 0));
}

/// Goal: the debug output shows the counts. Method: two requests, one of which has ended.
#[test]
fn texts_tell_the_counts() {
    let mut bench = Bench::new();
    let keys = [(); 2].map(|()| bench.ask(Mode::Once));
    assert_eq!(format!("{:?}", Pending::<Toy>::new(&bench.set)), "Pending { len: 2, .. }");
    let text = bench.round(1, 1, |context| {
        assert!(context.complete(keys[0], 1));
        format!("{context:?}")
    });
    assert_eq!(text, "PollContext { now: Instant(70), pending_count: 1, reported: 1, .. }");
}
