//! Waiters by name for an engine, under its lock: no wake-up is lost, whatever other waiters do, leave or end.

use std::{
    collections::BTreeMap,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use loom::{sync::Mutex, thread};
use vigie_detect::loom_exports::Named;

use crate::{PollerHandle, Task, fails};

/// The operations of an engine's host: the real one, and its mutants.
trait Host: Send + Sync + 'static {
    fn new() -> Self;
    /// Adds `count` things to take.
    fn post(&self, count: u64);
    /// Takes one, or registers the waker. `None` is the end.
    fn poll(&self, cx: &Context<'_>, number: &mut Option<u64>) -> Poll<Option<()>>;
    /// Registers the waker, if there was nothing to take since the last poll.
    fn renew_waker(&self, cx: &Context<'_>, number: Option<u64>) -> bool;
    fn leave(&self, number: &mut Option<u64>);
    fn end(&self);
}

impl Host for Named {
    fn new() -> Self {
        Self::new()
    }
    fn post(&self, count: u64) {
        self.post(count, true);
    }
    fn poll(&self, cx: &Context<'_>, number: &mut Option<u64>) -> Poll<Option<()>> {
        self.poll(cx, number, true)
    }
    fn renew_waker(&self, cx: &Context<'_>, number: Option<u64>) -> bool {
        self.renew_waker(cx, number)
    }
    fn leave(&self, number: &mut Option<u64>) {
        self.leave(number);
    }
    fn end(&self) {
        self.end();
    }
}

/// The fault of a mutant of the real parts.
const POLLS_BEFORE: u8 = 0;
const SERVES_FIRST: u8 = 1;
const RENEWS_UNSEEN: u8 = 2;

/// The real parts in a wrong order.
struct Mutant<const FAULT: u8>(Named);

impl<const FAULT: u8> Host for Mutant<FAULT> {
    fn new() -> Self {
        Self(Named::new())
    }
    fn post(&self, count: u64) {
        if FAULT == SERVES_FIRST {
            self.0.post(0, true);
            self.0.post(count, false);
        } else {
            self.0.post(count, true);
        }
    }
    fn poll(&self, cx: &Context<'_>, number: &mut Option<u64>) -> Poll<Option<()>> {
        if FAULT == POLLS_BEFORE {
            // In a separate hold, with a waker that wakes no task.
            let mut nobody = None;
            let polled = self.0.poll(&Context::from_waker(Waker::noop()), &mut nobody, true);
            self.0.leave(&mut nobody);
            return if polled.is_ready() { polled } else { self.0.poll(cx, number, false) };
        }
        self.0.poll(cx, number, true)
    }
    fn renew_waker(&self, cx: &Context<'_>, number: Option<u64>) -> bool {
        if FAULT == RENEWS_UNSEEN {
            // Waits on, whether or not it was woken.
            let mut number = number;
            return self.0.poll(cx, &mut number, false).is_pending();
        }
        self.0.renew_waker(cx, number)
    }
    fn leave(&self, number: &mut Option<u64>) {
        self.0.leave(number);
    }
    fn end(&self) {
        self.0.end();
    }
}

/// The fault of a list of waiters.
const NOTHING: u8 = 0;
const WAKES_ONE: u8 = 1;
const KNOWS_NO_NUMBERS: u8 = 2;
const ENDS_LATE: u8 = 3;

/// A shorter copy of the host, without one step.
struct Listed<const FAULT: u8>(Mutex<List>);

#[derive(Default)]
struct List {
    count: u64,
    wakers: BTreeMap<u64, Waker>,
    next: u64,
    is_over: bool,
}

impl<const FAULT: u8> Listed<FAULT> {
    fn with<T>(&self, f: impl FnOnce(&mut List) -> T) -> T {
        f(&mut self.0.lock().expect("not poisoned"))
    }

    fn wake(&self, change: impl FnOnce(&mut List)) {
        let wakers = self.with(|list| {
            change(list);
            if FAULT == WAKES_ONE {
                list.wakers.pop_first().into_iter().collect()
            } else {
                std::mem::take(&mut list.wakers)
            }
        });
        wakers.into_values().for_each(Waker::wake);
    }
}

impl<const FAULT: u8> Host for Listed<FAULT> {
    fn new() -> Self {
        Self(Mutex::default())
    }
    fn post(&self, count: u64) {
        self.wake(|list| list.count += count);
    }
    fn poll(&self, cx: &Context<'_>, number: &mut Option<u64>) -> Poll<Option<()>> {
        self.with(|list| {
            if list.count > 0 {
                list.count -= 1;
                return Poll::Ready(Some(()));
            }
            if list.is_over {
                return Poll::Ready(None);
            }
            if FAULT == KNOWS_NO_NUMBERS {
                // The first place that is free.
                *number = (0..).find(|place| !list.wakers.contains_key(place));
            } else {
                *number = Some(list.next);
                list.next += 1;
            }
            list.wakers.insert(number.expect("just set"), cx.waker().clone());
            Poll::Pending
        })
    }
    fn renew_waker(&self, _: &Context<'_>, number: Option<u64>) -> bool {
        self.with(|list| number.is_some_and(|number| list.wakers.contains_key(&number)))
    }
    fn leave(&self, number: &mut Option<u64>) {
        self.with(|list| number.take().and_then(|number| list.wakers.remove(&number)));
    }
    fn end(&self) {
        if FAULT == ENDS_LATE {
            self.wake(|_| ());
            self.with(|list| list.is_over = true);
        } else {
            self.wake(|list| list.is_over = true);
        }
    }
}

/// A task that waits for one thing, or for the end. Returns whether it got one.
fn takes<H: Host>(host: &H) -> bool {
    let task = Arc::new(Task(PollerHandle::new()));
    let waker = Waker::from(task.clone());
    let cx = Context::from_waker(&waker);
    let mut number = None;
    loop {
        match host.poll(&cx, &mut number) {
            Poll::Ready(found) => return found.is_some(),
            Poll::Pending => task.0.sleep(),
        }
    }
}

/// Two tasks wait for one thing each, while they come.
fn delivers<H: Host>(at_once: bool) {
    let host = Arc::new(H::new());
    let other = {
        let host = host.clone();
        thread::spawn(move || takes(&*host))
    };
    let caller = {
        let host = host.clone();
        thread::spawn(move || {
            if at_once {
                host.post(2);
            } else {
                host.post(1);
                host.post(1);
            }
        })
    };
    assert!(takes(&*host) && other.join().expect("no panic"));
    caller.join().expect("no panic");
}

/// A task waits for the first thing, and for the second one; one that waited before leaves, woken or not.
fn survives_a_drop<H: Host>() {
    let host = Arc::new(H::new());
    let mut number = None;
    assert!(host.poll(&Context::from_waker(Waker::noop()), &mut number).is_pending());
    let caller = {
        let host = host.clone();
        thread::spawn(move || {
            host.post(1);
            host.post(1);
        })
    };
    let leaver = {
        let host = host.clone();
        thread::spawn(move || host.leave(&mut number))
    };
    assert!(takes(&*host) && takes(&*host));
    caller.join().expect("no panic");
    leaver.join().expect("no panic");
}

/// A waiter moves to another task while something comes.
fn moves<H: Host>() {
    let host = Arc::new(H::new());
    let mut number = None;
    assert!(host.poll(&Context::from_waker(Waker::noop()), &mut number).is_pending());
    let caller = {
        let host = host.clone();
        thread::spawn(move || host.post(1))
    };
    let task = Arc::new(Task(PollerHandle::new()));
    let waker = Waker::from(task.clone());
    let cx = Context::from_waker(&waker);
    loop {
        if !host.renew_waker(&cx, number) && host.poll(&cx, &mut number).is_ready() {
            break;
        }
        task.0.sleep();
    }
    caller.join().expect("no panic");
}

/// The server ends while two tasks wait.
fn ends<H: Host>() {
    let host = Arc::new(H::new());
    let other = {
        let host = host.clone();
        thread::spawn(move || takes(&*host))
    };
    let server = {
        let host = host.clone();
        thread::spawn(move || host.end())
    };
    assert!(!takes(&*host) && !other.join().expect("no panic"));
    server.join().expect("no panic");
}

#[test]
fn no_wake_up_is_lost() {
    loom::model(|| delivers::<Named>(false));
}

#[test]
fn all_of_a_name_are_woken() {
    loom::model(|| delivers::<Named>(true));
}

#[test]
fn a_dropped_waiter_costs_no_wake_up() {
    loom::model(survives_a_drop::<Named>);
}

#[test]
fn a_waiter_that_moves_is_woken() {
    loom::model(moves::<Named>);
}

#[test]
fn the_end_is_heard_by_all() {
    loom::model(ends::<Named>);
}

#[test]
fn a_list_without_a_fault_passes() {
    loom::model(|| delivers::<Listed<NOTHING>>(true));
    loom::model(survives_a_drop::<Listed<NOTHING>>);
    loom::model(ends::<Listed<NOTHING>>);
}

#[test]
fn mutant_that_polls_in_a_hold_of_its_own_is_found() {
    fails(|| delivers::<Mutant<POLLS_BEFORE>>(false));
}

#[test]
fn mutant_that_serves_before_it_is_there_is_found() {
    fails(|| delivers::<Mutant<SERVES_FIRST>>(false));
}

#[test]
fn mutant_that_waits_on_unseen_is_found() {
    fails(moves::<Mutant<RENEWS_UNSEEN>>);
}

#[test]
fn mutant_that_wakes_one_is_found() {
    fails(|| delivers::<Listed<WAKES_ONE>>(true));
}

#[test]
fn mutant_that_gives_up_the_place_of_another_is_found() {
    fails(survives_a_drop::<Listed<KNOWS_NO_NUMBERS>>);
}

#[test]
fn mutant_that_ends_after_it_has_woken_is_found() {
    fails(ends::<Listed<ENDS_LATE>>);
}
