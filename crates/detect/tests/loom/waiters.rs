//! Several waiters at one descriptor, some of which leave.

use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
};

use loom::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};
use vigie_detect::{
    detectors::readiness::ReadyEvent,
    loom_exports::{WaiterToken, WatchedSource},
};

use crate::{PollerHandle, Task, fails};

/// The operations of one direction of a descriptor: the real one, and its mutants.
trait Place: Send + Sync + 'static {
    /// A waiter's state between two polls.
    type WaiterToken: Default + Send;
    fn new() -> Self;
    fn announce(&self);
    fn finish(&self);
    /// What is seen, or `None` at the end.
    fn poll(&self, cx: &Context<'_>, token: &mut Self::WaiterToken) -> Poll<Option<ReadyEvent>>;
    fn clear(&self, seen: ReadyEvent);
    fn leave(&self, token: &mut Self::WaiterToken);
}

fn wake(wakers: Vec<Waker>) {
    wakers.into_iter().for_each(Waker::wake);
}

impl Place for WatchedSource {
    type WaiterToken = WaiterToken;
    fn new() -> Self {
        Self::new()
    }
    fn announce(&self) {
        wake(self.emit(self.raise()));
    }
    fn finish(&self) {
        wake(self.finish());
    }
    fn poll(&self, cx: &Context<'_>, token: &mut WaiterToken) -> Poll<Option<ReadyEvent>> {
        self.poll(cx, token)
    }
    fn clear(&self, seen: ReadyEvent) {
        self.clear(seen);
    }
    fn leave(&self, token: &mut WaiterToken) {
        self.leave(token);
    }
}

/// The step that a mutant omits.
const CHECKS_ONCE: u8 = 0;
const WAKES_FIRST: u8 = 1;
const CHECKS_BEFORE: u8 = 2;

/// The real parts in a wrong order.
struct Mutant<const FAULT: u8>(WatchedSource);

impl<const FAULT: u8> Place for Mutant<FAULT> {
    type WaiterToken = WaiterToken;
    fn new() -> Self {
        Self(WatchedSource::new())
    }
    fn announce(&self) {
        if FAULT == WAKES_FIRST {
            wake(self.0.emit(self.0.seen()));
            self.0.raise();
        } else {
            Place::announce(&self.0);
        }
    }
    fn finish(&self) {
        Place::finish(&self.0);
    }
    fn poll(&self, cx: &Context<'_>, token: &mut WaiterToken) -> Poll<Option<ReadyEvent>> {
        let seen = self.0.seen();
        match FAULT {
            CHECKS_ONCE if !seen.ready.is_empty() => Poll::Ready(Some(seen)),
            CHECKS_ONCE => match self.0.register(cx, token) {
                Ok(()) => Poll::Pending,
                Err(_) => Poll::Ready(None),
            },
            CHECKS_BEFORE if !seen.ready.is_empty() => Poll::Ready(Some(seen)),
            CHECKS_BEFORE => {
                let second = self.0.seen();
                match self.0.register(cx, token) {
                    Ok(()) if second.ready.is_empty() => Poll::Pending,
                    Ok(()) => Poll::Ready(Some(second)),
                    Err(_) => Poll::Ready(None),
                }
            }
            _ => self.0.poll(cx, token),
        }
    }
    fn clear(&self, seen: ReadyEvent) {
        self.0.clear(seen);
    }
    fn leave(&self, token: &mut WaiterToken) {
        self.0.leave(token);
    }
}

/// The fault of a list of waiters.
const WAKES_ONE: u8 = 0;
const KNOWS_NO_ROUNDS: u8 = 1;
const NOTHING: u8 = 2;

/// The real readiness over its own list of waiters.
struct Listed<const FAULT: u8> {
    readiness: WatchedSource,
    waiters: Mutex<Waiters>,
}

#[derive(Default)]
struct Waiters {
    wakers: [Option<Waker>; 2],
    round: usize,
    is_over: bool,
}

impl<const FAULT: u8> Listed<FAULT> {
    fn wake(&self, is_over: bool) {
        let woken: Vec<_> = {
            let mut waiters = self.waiters.lock().expect("not poisoned");
            waiters.round += 1;
            waiters.is_over |= is_over;
            let count = if FAULT == WAKES_ONE { 1 } else { 2 };
            waiters.wakers.iter_mut().filter_map(Option::take).take(count).collect()
        };
        wake(woken);
    }
}

impl<const FAULT: u8> Place for Listed<FAULT> {
    type WaiterToken = Option<(usize, usize)>;
    fn new() -> Self {
        Self { readiness: WatchedSource::new(), waiters: Mutex::new(Waiters::default()) }
    }
    fn announce(&self) {
        self.readiness.raise();
        self.wake(false);
    }
    fn finish(&self) {
        self.wake(true);
    }
    fn poll(&self, cx: &Context<'_>, token: &mut Self::WaiterToken) -> Poll<Option<ReadyEvent>> {
        let check = || Some(self.readiness.seen()).filter(|seen| !seen.ready.is_empty());
        if let Some(seen) = check() {
            return Poll::Ready(Some(seen));
        }
        {
            let mut waiters = self.waiters.lock().expect("not poisoned");
            if waiters.is_over {
                return Poll::Ready(None);
            }
            let known = token.filter(|&(round, index)| {
                round == waiters.round && waiters.wakers[index].is_some()
            });
            let index = known.map_or_else(
                || waiters.wakers.iter().position(Option::is_none).expect("two waiters"),
                |(_, index)| index,
            );
            waiters.wakers[index] = Some(cx.waker().clone());
            *token = Some((waiters.round, index));
        }
        check().map_or(Poll::Pending, |seen| Poll::Ready(Some(seen)))
    }
    fn clear(&self, seen: ReadyEvent) {
        self.readiness.clear(seen);
    }
    fn leave(&self, token: &mut Self::WaiterToken) {
        let Some((round, index)) = token.take() else { return };
        let mut waiters = self.waiters.lock().expect("not poisoned");
        if FAULT == KNOWS_NO_ROUNDS || round == waiters.round {
            waiters.wakers[index] = None;
        }
    }
}

/// A task that waits for `place`: takes what is queued until it has found `wanted` or nothing comes any more.
fn takes<P: Place>(place: &P, queue: &AtomicUsize, wanted: usize) -> usize {
    let task = Arc::new(Task(PollerHandle::new()));
    let waker = Waker::from(task.clone());
    let (mut token, mut taken) = (P::WaiterToken::default(), 0);
    while taken < wanted {
        match place.poll(&Context::from_waker(&waker), &mut token) {
            Poll::Ready(Some(seen)) => match queue.swap(0, Ordering::Relaxed) {
                0 => place.clear(seen),
                found => taken += found,
            },
            Poll::Ready(None) => break,
            Poll::Pending => task.0.sleep(),
        }
    }
    place.leave(&mut token);
    taken
}

/// The kernel queues one thing and announces it; two tasks wait until they see that, and take nothing.
fn wakes_all<P: Place>() {
    let place = Arc::new(P::new());
    let waits = |place: &P| {
        let task = Arc::new(Task(PollerHandle::new()));
        let waker = Waker::from(task.clone());
        let mut token = P::WaiterToken::default();
        while place.poll(&Context::from_waker(&waker), &mut token).is_pending() {
            task.0.sleep();
        }
        place.leave(&mut token);
    };
    let other = {
        let place = place.clone();
        thread::spawn(move || waits(&place))
    };
    let kernel = {
        let place = place.clone();
        thread::spawn(move || place.announce())
    };
    waits(&place);
    kernel.join().expect("no panic");
    other.join().expect("no panic");
}

/// The kernel queues `count` things and announces each. One task waits for all; another one, which waited before, leaves.
fn survives_a_drop<P: Place>(count: usize) {
    let (place, queue) = (Arc::new(P::new()), Arc::new(AtomicUsize::new(0)));
    // It waits first, so that it has the first place, and the wake-up if there is only one.
    let mut token = P::WaiterToken::default();
    assert!(place.poll(&Context::from_waker(Waker::noop()), &mut token).is_pending());
    let kernel = {
        let (place, queue) = (place.clone(), queue.clone());
        thread::spawn(move || {
            for _ in 0..count {
                queue.fetch_add(1, Ordering::Relaxed);
                place.announce();
            }
        })
    };
    let leaver = {
        let place = place.clone();
        thread::spawn(move || place.leave(&mut token))
    };
    assert_eq!(takes(&*place, &queue, count), count);
    kernel.join().expect("no panic");
    leaver.join().expect("no panic");
}

/// The server is shut down while two tasks wait; both end.
fn ends<P: Place>() {
    let (place, queue) = (Arc::new(P::new()), Arc::new(AtomicUsize::new(0)));
    let other = {
        let (place, queue) = (place.clone(), queue.clone());
        thread::spawn(move || takes(&*place, &queue, 1))
    };
    let server = {
        let place = place.clone();
        thread::spawn(move || place.finish())
    };
    assert_eq!(takes(&*place, &queue, 1), 0);
    server.join().expect("no panic");
    assert_eq!(other.join().expect("no panic"), 0);
}

#[test]
fn all_are_woken() {
    loom::model(wakes_all::<WatchedSource>);
}

#[test]
fn a_dropped_wait_costs_no_wake_up() {
    for count in 1..3 {
        loom::model(move || survives_a_drop::<WatchedSource>(count));
    }
}

#[test]
fn the_end_is_heard_by_all() {
    loom::model(ends::<WatchedSource>);
}

#[test]
fn a_list_without_a_fault_passes() {
    loom::model(wakes_all::<Listed<NOTHING>>);
    loom::model(|| survives_a_drop::<Listed<NOTHING>>(2));
    loom::model(ends::<Listed<NOTHING>>);
}

#[test]
fn mutant_without_a_second_check_is_found() {
    fails(wakes_all::<Mutant<CHECKS_ONCE>>);
}

#[test]
fn mutant_that_checks_twice_and_then_registers_is_found() {
    fails(wakes_all::<Mutant<CHECKS_BEFORE>>);
}

#[test]
fn mutant_that_wakes_before_it_raises_is_found() {
    fails(wakes_all::<Mutant<WAKES_FIRST>>);
}

#[test]
fn mutant_that_wakes_one_is_found() {
    fails(wakes_all::<Listed<WAKES_ONE>>);
    fails(|| survives_a_drop::<Listed<WAKES_ONE>>(1));
}

#[test]
fn mutant_that_gives_up_the_place_of_another_is_found() {
    fails(|| survives_a_drop::<Listed<KNOWS_NO_ROUNDS>>(2));
}
