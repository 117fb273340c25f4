//! The sleep of a thread with its own poller, and the notification that ends it.

use std::sync::Arc;

use loom::{
    sync::atomic::{AtomicU8, AtomicUsize, Ordering},
    thread,
};
use vigie_detect::loom_exports::SleepState;

use crate::{PollerHandle, fails};

/// The operations of a sleep state: the real one, and its mutants.
trait Word: Send + Sync + 'static {
    fn new() -> Self;
    fn begin_sleep(&self, polls: bool) -> bool;
    fn is_notified(&self) -> bool;
    fn end_sleep(&self);
    fn notify(&self) -> bool;
}

impl Word for SleepState {
    fn new() -> Self {
        Self::new()
    }
    fn begin_sleep(&self, polls: bool) -> bool {
        self.begin_sleep(polls)
    }
    fn is_notified(&self) -> bool {
        self.is_notified()
    }
    fn end_sleep(&self) {
        self.end_sleep();
    }
    fn notify(&self) -> bool {
        self.notify()
    }
}

const AWAKE: u8 = 0;
const NOTIFIED: u8 = 1;
const ASLEEP: u8 = 2;

/// The step that a mutant omits.
const IN_TWO_STEPS: u8 = 0;
const WITHOUT_ORDER: u8 = 1;
const ASKS_FIRST: u8 = 2;
const KEEPS_THE_RING: u8 = 3;
const NOTHING: u8 = 4;

struct Mutant<const FAULT: u8>(AtomicU8);

impl<const FAULT: u8> Word for Mutant<FAULT> {
    fn new() -> Self {
        Self(AtomicU8::new(AWAKE))
    }
    fn begin_sleep(&self, _: bool) -> bool {
        if FAULT == IN_TWO_STEPS {
            let may = self.0.load(Ordering::SeqCst) == AWAKE;
            // A notification in between is overwritten.
            self.0.store(ASLEEP, Ordering::SeqCst);
            return may;
        }
        self.0.compare_exchange(AWAKE, ASLEEP, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
    fn is_notified(&self) -> bool {
        self.0.load(Ordering::SeqCst) == NOTIFIED
    }
    fn end_sleep(&self) {
        self.0.swap(AWAKE, Ordering::SeqCst);
        if FAULT == KEEPS_THE_RING {
            // Reports a notification that came while the thread was going to sleep: too often, and
            // without end.
            self.0.store(NOTIFIED, Ordering::SeqCst);
        }
    }
    fn notify(&self) -> bool {
        match FAULT {
            WITHOUT_ORDER => self.0.swap(NOTIFIED, Ordering::Relaxed) == ASLEEP,
            ASKS_FIRST => {
                let is_asleep = self.0.load(Ordering::SeqCst) == ASLEEP;
                self.0.store(NOTIFIED, Ordering::SeqCst);
                is_asleep
            }
            _ => self.0.swap(NOTIFIED, Ordering::SeqCst) == ASLEEP,
        }
    }
}

/// A thread that sleeps until it has seen the work of `ringers` others, each of which does its work, then
/// notifies. If it `polls`, its first sleep ends early, as one in `poll(2)` does when a descriptor is ready.
fn rings<W: Word>(ringers: usize, polls: bool) {
    let word = Arc::new(W::new());
    let poller_handle = Arc::new(PollerHandle::new());
    let work = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..ringers)
        .map(|_| {
            let (word, poller_handle, work) = (word.clone(), poller_handle.clone(), work.clone());
            thread::spawn(move || {
                work.fetch_add(1, Ordering::Relaxed);
                if word.notify() {
                    poller_handle.wake();
                }
            })
        })
        .collect();
    let mut ends_early = polls;
    let mut rounds = 0;
    loop {
        if word.begin_sleep(polls) {
            if !polls {
                while !word.is_notified() {
                    poller_handle.sleep();
                }
            } else if !std::mem::take(&mut ends_early) {
                poller_handle.sleep();
            }
        }
        word.end_sleep();
        if work.load(Ordering::Relaxed) == ringers {
            break;
        }
        rounds += 1;
        // One for each notification and its late wake-up, and the early one.
        assert!(rounds <= 2 * ringers + 1, "the thread does not come to rest");
    }
    for thread in threads {
        thread.join().expect("no panic");
    }
}

#[test]
fn no_ring_is_lost() {
    loom::model(|| rings::<SleepState>(1, false));
    loom::model(|| rings::<SleepState>(1, true));
}

#[test]
fn no_second_ring_is_lost() {
    loom::model(|| rings::<SleepState>(2, false));
    loom::model(|| rings::<SleepState>(2, true));
}

#[test]
fn mutant_sleeping_in_two_steps_is_found() {
    fails(|| rings::<Mutant<IN_TWO_STEPS>>(1, false));
    fails(|| rings::<Mutant<IN_TWO_STEPS>>(1, true));
}

#[test]
fn mutant_ringing_without_order_is_found() {
    fails(|| rings::<Mutant<WITHOUT_ORDER>>(1, false));
}

#[test]
fn mutant_asking_before_it_rings_is_found() {
    fails(|| rings::<Mutant<ASKS_FIRST>>(1, false));
    fails(|| rings::<Mutant<ASKS_FIRST>>(1, true));
}

#[test]
fn mutant_keeping_the_ring_is_found() {
    fails(|| rings::<Mutant<KEEPS_THE_RING>>(1, true));
}

/// Goal: failures of the mutants come from their fault alone. Method: the same without one.
#[test]
fn mutant_without_a_fault_passes() {
    loom::model(|| rings::<Mutant<NOTHING>>(2, false));
    loom::model(|| rings::<Mutant<NOTHING>>(2, true));
}
