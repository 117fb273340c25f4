//! The lock-free parts, in every interleaving that loom finds with a bounded number of preemptions:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=2 cargo test --release -p vigie-detect --test loom
//! ```
//!
//! Each model has a mutant beside it that lacks the step which makes the original correct; loom must
//! find the interleaving in which the mutant fails, or the model would prove nothing.

#![cfg(loom)]

use std::{
    panic::{self, AssertUnwindSafe},
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use loom::{
    sync::{
        Condvar, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
};
use vigie_detect::{
    Instant,
    loom_exports::{ParkState, Readiness, Slot},
};

#[path = "loom/helper_thread.rs"]
mod helper_thread;
#[path = "loom/lock.rs"]
mod lock;
#[path = "loom/names.rs"]
mod names;
#[path = "loom/thread_sleep.rs"]
mod thread_sleep;
#[path = "loom/waiters.rs"]
mod waiters;

/// Expects loom to find an interleaving in which `model` fails.
fn fails(model: impl Fn() + Sync + Send + 'static) {
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| loom::model(model)));
    assert!(outcome.is_err(), "loom did not find the mutant's fault");
}

/// The sleep of a host, and its wake-up: like an eventfd in an epoll, an early wake-up prevents the
/// host's next sleep. A host that is never woken is a deadlock, which loom reports.
struct PollerHandle {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl PollerHandle {
    fn new() -> Self {
        Self { is_open: Mutex::new(false), opened: Condvar::new() }
    }

    fn wake(&self) {
        *self.is_open.lock().expect("not poisoned") = true;
        self.opened.notify_one();
    }

    fn sleep(&self) {
        let mut is_open = self.is_open.lock().expect("not poisoned");
        while !*is_open {
            is_open = self.opened.wait(is_open).expect("not poisoned");
        }
        *is_open = false;
    }
}

/// A task on a loom thread.
struct Task(PollerHandle);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }
}

mod park {
    use super::*;

    /// The operations of a park state: the real one, and its mutants.
    trait Word: Send + Sync + 'static {
        fn new() -> Self;
        fn begin_park(&self) -> bool;
        fn end_park(&self);
        fn take_notification(&self) -> bool;
        fn notify(&self) -> bool;
        fn publish_deadline(&self) -> bool;
        fn has_deadline(&self) -> bool;
        fn publish_request(&self) -> bool;
        fn has_request(&self) -> bool;
    }

    impl Word for ParkState {
        fn new() -> Self {
            Self::new()
        }
        fn begin_park(&self) -> bool {
            self.begin_park()
        }
        fn end_park(&self) {
            self.end_park();
        }
        fn take_notification(&self) -> bool {
            self.take_notification()
        }
        fn notify(&self) -> bool {
            self.notify()
        }
        fn publish_deadline(&self) -> bool {
            self.publish_deadline(Instant::from_nanos(7))
        }
        fn has_deadline(&self) -> bool {
            self.deadline().is_some()
        }
        fn publish_request(&self) -> bool {
            self.publish_request()
        }
        fn has_request(&self) -> bool {
            self.has_request()
        }
    }

    const PARKED: u64 = 1;
    const NOTIFIED: u64 = 2;

    /// Without the fence between publishing and the check of the other side.
    struct Unordered {
        bits: AtomicU64,
        beside: AtomicU64,
    }

    impl Word for Unordered {
        fn new() -> Self {
            Self { bits: AtomicU64::new(0), beside: AtomicU64::new(0) }
        }
        fn begin_park(&self) -> bool {
            self.bits.fetch_or(PARKED, Ordering::AcqRel) & NOTIFIED == 0
        }
        fn end_park(&self) {
            self.bits.fetch_and(!PARKED, Ordering::AcqRel);
        }
        fn take_notification(&self) -> bool {
            self.bits.fetch_and(!NOTIFIED, Ordering::AcqRel) & NOTIFIED != 0
        }
        fn notify(&self) -> bool {
            self.bits.fetch_or(NOTIFIED, Ordering::AcqRel) == PARKED
        }
        fn publish_deadline(&self) -> bool {
            self.beside.fetch_max(1, Ordering::AcqRel);
            self.bits.load(Ordering::Acquire) & PARKED != 0
        }
        fn has_deadline(&self) -> bool {
            self.beside.load(Ordering::Acquire) != 0
        }
        fn publish_request(&self) -> bool {
            self.beside.store(1, Ordering::Release);
            self.bits.load(Ordering::Acquire) & PARKED != 0
        }
        fn has_request(&self) -> bool {
            self.has_deadline()
        }
    }

    /// Checks for a notification, and parks in a second step.
    struct Split(Unordered);

    impl Word for Split {
        fn new() -> Self {
            Self(Unordered::new())
        }
        fn begin_park(&self) -> bool {
            let before = self.0.bits.load(Ordering::SeqCst);
            self.0.bits.store(before | PARKED, Ordering::SeqCst);
            before & NOTIFIED == 0
        }
        fn end_park(&self) {
            self.0.end_park();
        }
        fn take_notification(&self) -> bool {
            self.0.take_notification()
        }
        fn notify(&self) -> bool {
            self.0.notify()
        }
        fn publish_deadline(&self) -> bool {
            self.0.publish_deadline()
        }
        fn has_deadline(&self) -> bool {
            self.0.has_deadline()
        }
        fn publish_request(&self) -> bool {
            self.0.publish_request()
        }
        fn has_request(&self) -> bool {
            self.0.has_request()
        }
    }

    /// Notifies without release: the host wakes up and does not see why.
    struct Weak(Unordered);

    impl Word for Weak {
        fn new() -> Self {
            Self(Unordered::new())
        }
        fn begin_park(&self) -> bool {
            self.0.begin_park()
        }
        fn end_park(&self) {
            self.0.end_park();
        }
        fn take_notification(&self) -> bool {
            self.0.take_notification()
        }
        fn notify(&self) -> bool {
            self.0.bits.fetch_or(NOTIFIED, Ordering::Relaxed) == PARKED
        }
        fn publish_deadline(&self) -> bool {
            self.0.publish_deadline()
        }
        fn has_deadline(&self) -> bool {
            self.0.has_deadline()
        }
        fn publish_request(&self) -> bool {
            self.0.publish_request()
        }
        fn has_request(&self) -> bool {
            self.0.has_request()
        }
    }

    /// A host that sleeps until it has seen the work of `ringers` threads, each of which does its work,
    /// then notifies.
    fn rings<W: Word>(ringers: usize) {
        let word = Arc::new(W::new());
        let poller_handle = Arc::new(PollerHandle::new());
        let work = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..ringers)
            .map(|_| {
                let (word, poller_handle, work) =
                    (word.clone(), poller_handle.clone(), work.clone());
                thread::spawn(move || {
                    work.fetch_add(1, Ordering::Relaxed);
                    if word.notify() {
                        poller_handle.wake();
                    }
                })
            })
            .collect();
        let mut seen = 0;
        while seen < ringers {
            if word.begin_park() {
                poller_handle.sleep();
            }
            word.end_park();
            if word.take_notification() {
                let now = work.load(Ordering::Relaxed);
                assert!(now > seen, "the host was notified and does not see why");
                seen = now;
            }
        }
        for thread in threads {
            thread.join().expect("no panic");
        }
    }

    /// A host that sleeps unless it sees what is published beside the word; the publisher notifies if it
    /// sees the host parked.
    fn publishes<W: Word>(publish: fn(&W) -> bool, is_published: fn(&W) -> bool) {
        let word = Arc::new(W::new());
        let poller_handle = Arc::new(PollerHandle::new());
        let publisher = {
            let (word, poller_handle) = (word.clone(), poller_handle.clone());
            thread::spawn(move || {
                if publish(&word) && word.notify() {
                    poller_handle.wake();
                }
            })
        };
        loop {
            let sleeps = word.begin_park();
            let is_seen = is_published(&word);
            if sleeps && !is_seen {
                poller_handle.sleep();
            }
            word.end_park();
            word.take_notification();
            if is_seen {
                break;
            }
        }
        publisher.join().expect("no panic");
    }

    #[test]
    fn a_ring_is_never_lost() {
        loom::model(|| rings::<ParkState>(1));
    }

    #[test]
    fn two_rings_are_never_lost() {
        loom::model(|| rings::<ParkState>(2));
    }

    #[test]
    fn a_deadline_is_seen_or_rung_for() {
        loom::model(|| publishes(<ParkState as Word>::publish_deadline, ParkState::has_deadline));
    }

    #[test]
    fn a_request_is_seen_or_rung_for() {
        loom::model(|| publishes(<ParkState as Word>::publish_request, ParkState::has_request));
    }

    #[test]
    fn mutant_parking_in_two_steps_is_found() {
        fails(|| rings::<Split>(1));
    }

    #[test]
    fn mutant_ringing_without_release_is_found() {
        fails(|| rings::<Weak>(1));
    }

    #[test]
    fn mutant_deadline_without_order_is_found() {
        fails(|| publishes(Unordered::publish_deadline, Unordered::has_deadline));
    }

    #[test]
    fn mutant_request_without_order_is_found() {
        fails(|| publishes(Unordered::publish_request, Unordered::has_request));
    }
}

mod slot {
    use super::*;

    /// The operations of a slot: the real one, and its mutants.
    trait Place: Send + Sync + 'static {
        fn new() -> Self;
        fn push(&self, event: u32, capacity: usize) -> Result<Vec<Waker>, u32>;
        fn finish(&self) -> Vec<Waker>;
        fn poll(&self, cx: &Context<'_>) -> Poll<Option<(u32, bool)>>;
    }

    impl Place for Slot {
        fn new() -> Self {
            Self::new()
        }
        fn push(&self, event: u32, capacity: usize) -> Result<Vec<Waker>, u32> {
            self.push(event, capacity)
        }
        fn finish(&self) -> Vec<Waker> {
            self.finish()
        }
        fn poll(&self, cx: &Context<'_>) -> Poll<Option<(u32, bool)>> {
            self.poll(cx)
        }
    }

    /// Checks for an event, releases the lock, and registers its waker without checking again.
    struct Forgetful {
        events: Mutex<(Vec<u32>, bool)>,
        waker: Mutex<Option<Waker>>,
    }

    impl Place for Forgetful {
        fn new() -> Self {
            Self { events: Mutex::new((Vec::new(), false)), waker: Mutex::new(None) }
        }
        fn push(&self, event: u32, _: usize) -> Result<Vec<Waker>, u32> {
            self.events.lock().expect("not poisoned").0.push(event);
            Ok(self.waker.lock().expect("not poisoned").take().into_iter().collect())
        }
        fn finish(&self) -> Vec<Waker> {
            self.events.lock().expect("not poisoned").1 = true;
            self.waker.lock().expect("not poisoned").take().into_iter().collect()
        }
        fn poll(&self, cx: &Context<'_>) -> Poll<Option<(u32, bool)>> {
            {
                let mut events = self.events.lock().expect("not poisoned");
                if !events.0.is_empty() {
                    return Poll::Ready(Some((events.0.remove(0), false)));
                }
                if events.1 {
                    return Poll::Ready(None);
                }
            }
            *self.waker.lock().expect("not poisoned") = Some(cx.waker().clone());
            Poll::Pending
        }
    }

    /// Does not report the room that it makes.
    struct Silent(Slot);

    impl Place for Silent {
        fn new() -> Self {
            Self(Slot::new())
        }
        fn push(&self, event: u32, capacity: usize) -> Result<Vec<Waker>, u32> {
            self.0.push(event, capacity)
        }
        fn finish(&self) -> Vec<Waker> {
            self.0.finish()
        }
        fn poll(&self, cx: &Context<'_>) -> Poll<Option<(u32, bool)>> {
            self.0.poll(cx).map(|taken| taken.map(|(event, _)| (event, false)))
        }
    }

    /// A round that reports `count` events and the end; a task that takes them all, in order.
    fn delivers<P: Place>(count: u32) {
        let place = Arc::new(P::new());
        let round = {
            let place = place.clone();
            thread::spawn(move || {
                for event in 0..count {
                    let waker = place.push(event, usize::MAX).expect("there is no bound");
                    waker.into_iter().for_each(Waker::wake);
                }
                place.finish().into_iter().for_each(Waker::wake);
            })
        };
        let task = Arc::new(Task(PollerHandle::new()));
        let waker = Waker::from(task.clone());
        let cx = Context::from_waker(&waker);
        let mut expected = 0;
        loop {
            match place.poll(&cx) {
                Poll::Ready(Some((event, _))) => {
                    assert_eq!(event, expected);
                    expected += 1;
                }
                Poll::Ready(None) => break,
                Poll::Pending => task.0.sleep(),
            }
        }
        assert_eq!(expected, count);
        round.join().expect("no panic");
    }

    /// A round that holds back events that do not fit, and waits to be told of room; a task that takes
    /// all.
    fn relieves<P: Place>() {
        const COUNT: u32 = 3;
        let place = Arc::new(P::new());
        let room = Arc::new(PollerHandle::new());
        let round = {
            let (place, room) = (place.clone(), room.clone());
            thread::spawn(move || {
                let mut event = 0;
                while event < COUNT {
                    match place.push(event, 1) {
                        Ok(waker) => {
                            waker.into_iter().for_each(Waker::wake);
                            event += 1;
                        }
                        Err(refused) => {
                            assert_eq!(refused, event);
                            room.sleep();
                        }
                    }
                }
            })
        };
        let task = Arc::new(Task(PollerHandle::new()));
        let waker = Waker::from(task.clone());
        let cx = Context::from_waker(&waker);
        let mut expected = 0;
        while expected < COUNT {
            match place.poll(&cx) {
                Poll::Ready(Some((event, has_relief))) => {
                    assert_eq!(event, expected);
                    expected += 1;
                    if has_relief {
                        room.wake();
                    }
                }
                Poll::Ready(None) => panic!("the slot was not finished"),
                Poll::Pending => task.0.sleep(),
            }
        }
        round.join().expect("no panic");
    }

    /// A task that moves: two threads poll in turn, the last waker is woken.
    fn moves<P: Place>() {
        let place = Arc::new(P::new());
        let round = {
            let place = place.clone();
            thread::spawn(move || {
                let waker = place.push(0, usize::MAX).expect("there is no bound");
                waker.into_iter().for_each(Waker::wake);
            })
        };
        let first = Arc::new(Task(PollerHandle::new()));
        let waker = Waker::from(first);
        if place.poll(&Context::from_waker(&waker)).is_pending() {
            let task = Arc::new(Task(PollerHandle::new()));
            let waker = Waker::from(task.clone());
            while place.poll(&Context::from_waker(&waker)).is_pending() {
                task.0.sleep();
            }
        }
        round.join().expect("no panic");
    }

    #[test]
    fn no_wake_up_is_lost() {
        loom::model(|| delivers::<Slot>(1));
    }

    #[test]
    fn no_wake_up_of_a_stream_is_lost() {
        loom::model(|| delivers::<Slot>(2));
    }

    #[test]
    fn no_relief_is_lost() {
        loom::model(relieves::<Slot>);
    }

    #[test]
    fn the_last_waker_is_woken() {
        loom::model(moves::<Slot>);
    }

    #[test]
    fn mutant_without_a_second_check_is_found() {
        fails(|| delivers::<Forgetful>(1));
    }

    #[test]
    fn mutant_without_relief_is_found() {
        fails(relieves::<Silent>);
    }
}

mod readiness {
    use super::*;

    trait Announced: Send + Sync + 'static {
        type Seen;
        fn new() -> Self;
        fn announce(&self);
        /// What is seen, if it is ready.
        fn seen(&self) -> Option<Self::Seen>;
        fn clear(&self, seen: Self::Seen);
    }

    impl Announced for Readiness {
        type Seen = vigie_detect::detectors::readiness::ReadyEvent;
        fn new() -> Self {
            Self::new()
        }
        fn announce(&self) {
            self.announce();
        }
        fn seen(&self) -> Option<Self::Seen> {
            let seen = self.seen();
            (!seen.ready.is_empty()).then_some(seen)
        }
        fn clear(&self, seen: Self::Seen) {
            self.clear(seen);
        }
    }

    /// Clears everything, without the tick.
    struct Tickless(AtomicBool);

    impl Announced for Tickless {
        type Seen = ();
        fn new() -> Self {
            Self(AtomicBool::new(true))
        }
        fn announce(&self) {
            self.0.store(true, Ordering::Release);
        }
        fn seen(&self) -> Option<()> {
            self.0.load(Ordering::Acquire).then_some(())
        }
        fn clear(&self, (): ()) {
            self.0.store(false, Ordering::Release);
        }
    }

    /// The kernel queues `count` bytes and announces each; the owner reads while it is ready, and clears
    /// what it saw when there is nothing. In the end, everything queued must be announced.
    fn reads<A: Announced>(count: usize) {
        let queue = Arc::new(AtomicUsize::new(0));
        let readiness = Arc::new(A::new());
        let kernel = {
            let (queue, readiness) = (queue.clone(), readiness.clone());
            thread::spawn(move || {
                for _ in 0..count {
                    queue.fetch_add(1, Ordering::Relaxed);
                    readiness.announce();
                }
            })
        };
        let mut read = 0;
        let mut try_to_read = || {
            while let Some(seen) = readiness.seen() {
                match queue.swap(0, Ordering::Relaxed) {
                    0 => readiness.clear(seen),
                    bytes => read += bytes,
                }
            }
        };
        try_to_read();
        kernel.join().expect("no panic");
        try_to_read();
        assert_eq!(read, count, "bytes are queued and not announced");
    }

    #[test]
    fn no_announcement_is_cleared_unseen() {
        loom::model(|| reads::<Readiness>(1));
    }

    #[test]
    fn no_second_announcement_is_cleared_unseen() {
        loom::model(|| reads::<Readiness>(2));
    }

    #[test]
    fn mutant_without_a_tick_is_found() {
        fails(|| reads::<Tickless>(1));
    }
}
