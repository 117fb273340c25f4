//! The sleep word of a NIC, and the wake-up that ends the sleep: wakeup-1, wakeup-2.

use std::sync::Arc;

use loom::{
    sync::atomic::{AtomicU64, Ordering, fence},
    thread,
};
use vigie_via::loom_exports::{Notifier, SleepWord, Sleeper};

use crate::{fails, socket::Socket};

/// The planted fault: the step that is left out.
const NOTHING: u8 = 0;
const BARRIER: u8 = 1;
const LIGHT_FENCE: u8 = 2;
const SECOND_POLL: u8 = 3;
const ANOTHER_NUMBER: u8 = 4;
const MEMORY_OF_RINGS: u8 = 5;
const ANNOUNCEMENT: u8 = 6;

/// The word in the sleeper's page. With `membarrier` (wakeup-1) the fences stand for it and for the
/// sender's compiler fence; the full fence that the sleeper executes besides `membarrier` orders nothing
/// for such a sender, and is omitted. Without `membarrier` (wakeup-2) they are that fence and the
/// sender's own: the same model.
struct Word<const FAULT: u8>(AtomicU64);

impl<const FAULT: u8> SleepWord for Word<FAULT> {
    fn store(&self, sleeps: u64) {
        let sleeps = match FAULT {
            // Tells only whether it sleeps, not which sleep it is.
            ANOTHER_NUMBER => sleeps % 2,
            _ => sleeps,
        };
        if FAULT != ANNOUNCEMENT {
            self.0.store(sleeps, Ordering::Release);
        }
    }
    fn heavy_fence(&self) {
        if FAULT != BARRIER {
            fence(Ordering::SeqCst);
        }
    }
    fn light_fence(&self) {
        if FAULT != LIGHT_FENCE {
            fence(Ordering::SeqCst);
        }
    }
    fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// A sender publishes `count` entries one by one, and notifies if necessary; a NIC sleeps until it has
/// found all.
fn delivers<const FAULT: u8>(count: u64) {
    let word = Arc::new(Word::<FAULT>(AtomicU64::new(0)));
    let socket = Arc::new(Socket::default());
    let published = Arc::new(AtomicU64::new(0));
    let sender = {
        let (word, socket, published) = (word.clone(), socket.clone(), published.clone());
        thread::spawn(move || {
            let mut notifier = Notifier::default();
            for entry in 1..=count {
                published.store(entry, Ordering::Release);
                if FAULT == MEMORY_OF_RINGS {
                    notifier = Notifier::default();
                }
                if notifier.must_notify(&*word) {
                    socket.ring(1);
                }
            }
        })
    };
    let mut sleeper = Sleeper::default();
    let mut wakeups = 0;
    loop {
        let seen = published.load(Ordering::Acquire);
        if seen == count {
            break;
        }
        sleeper.fall_asleep(&*word).expect("no kernel is asked");
        // The second poll: nothing has arrived since.
        if FAULT == SECOND_POLL || published.load(Ordering::Acquire) == seen {
            wakeups += socket.sleep();
        }
        // `connection.wakeup_count` is compared with this: a peer that notifies more often is cut off.
        assert!(wakeups <= sleeper.sleep_count(), "more wake-ups than sleeps");
        sleeper.wake_up(&*word);
    }
    sender.join().expect("no panic");
    let left = socket.wakeups();
    assert!(wakeups + left <= sleeper.sleep_count(), "more wake-ups than sleeps");
}

#[test]
fn no_entry_is_slept_through() {
    loom::model(|| delivers::<NOTHING>(1));
}

#[test]
fn no_entry_of_several_is_slept_through() {
    loom::model(|| delivers::<NOTHING>(2));
}

#[test]
fn mutant_without_the_barrier_is_found() {
    fails(|| delivers::<BARRIER>(1));
}

#[test]
fn mutant_without_the_light_fence_is_found() {
    fails(|| delivers::<LIGHT_FENCE>(1));
}

#[test]
fn mutant_without_a_second_poll_is_found() {
    fails(|| delivers::<SECOND_POLL>(1));
}

#[test]
fn mutant_that_does_not_announce_its_sleep_is_found() {
    fails(|| delivers::<ANNOUNCEMENT>(1));
}

/// The second sleep looks like the first, which was already notified.
#[test]
fn mutant_with_one_number_for_all_sleeps_is_found() {
    fails(|| delivers::<ANOTHER_NUMBER>(2));
}

#[test]
fn mutant_that_forgets_that_it_rang_is_found() {
    fails(|| delivers::<MEMORY_OF_RINGS>(2));
}
