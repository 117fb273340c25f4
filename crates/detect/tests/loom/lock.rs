//! The lock that is biased to one thread: lock-1 to lock-3.

use std::sync::Arc;

use loom::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering, fence},
    },
    thread,
};
use vigie_detect::loom_exports::BiasedLock;

use crate::fails;

/// The operations of a lock: the real one, and its mutants.
trait Biased: Send + Sync + 'static {
    /// Creates a lock that is biased to the calling thread, which has added [`HEAD_START`] for
    /// that.
    fn new() -> Self;
    /// Adds one to the guarded value, in two steps.
    fn add(&self, is_owner: bool);
    fn sum(&self) -> u64;
}

/// The number of additions until a lock is biased, in a model.
const HEAD_START: u64 = 2;

impl Biased for BiasedLock {
    fn new() -> Self {
        let lock = Self::new();
        for _ in 0..HEAD_START {
            assert!(!lock.add(), "it is not biased yet");
        }
        lock
    }
    fn add(&self, _: bool) {
        self.add();
    }
    fn sum(&self) -> u64 {
        self.sum()
    }
}

/// The step that a mutant omits.
const NOTHING: u8 = 0;
const BARRIER: u8 = 1;
const LIGHT_FENCE: u8 = 2;
const WAIT: u8 = 3;
const ACQUIRE: u8 = 4;
const RELEASE: u8 = 5;
const MARK_FIRST: u8 = 6;
const WAY_BACK: u8 = 7;

/// A shorter copy of the lock, without one step.
struct Mutant<const FAULT: u8> {
    is_inside: AtomicBool,
    is_revoked: AtomicBool,
    mutex: Mutex<()>,
    value: AtomicU64,
}

impl<const FAULT: u8> Mutant<FAULT> {
    fn add_one(&self) {
        self.value.store(self.value.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// The owner's way. Returns whether it got in.
    fn add_inside(&self) -> bool {
        let spins_first = FAULT == MARK_FIRST;
        if spins_first && self.is_revoked.load(Ordering::Relaxed) {
            return false;
        }
        self.is_inside.store(true, Ordering::Relaxed);
        if FAULT != LIGHT_FENCE {
            fence(Ordering::SeqCst);
        }
        if !spins_first && self.is_revoked.load(Ordering::Relaxed) {
            if FAULT != WAY_BACK {
                self.is_inside.store(false, Ordering::Release);
            }
            return false;
        }
        self.add_one();
        let order = if FAULT == RELEASE { Ordering::Relaxed } else { Ordering::Release };
        self.is_inside.store(false, order);
        true
    }
}

impl<const FAULT: u8> Biased for Mutant<FAULT> {
    fn new() -> Self {
        Self {
            is_inside: AtomicBool::new(false),
            is_revoked: AtomicBool::new(false),
            mutex: Mutex::new(()),
            value: AtomicU64::new(HEAD_START),
        }
    }

    fn add(&self, is_owner: bool) {
        if is_owner && self.add_inside() {
            return;
        }
        let _guard = self.mutex.lock().expect("not poisoned");
        if !self.is_revoked.load(Ordering::Relaxed) {
            self.is_revoked.store(true, Ordering::SeqCst);
            if FAULT != BARRIER {
                fence(Ordering::SeqCst);
            }
            let order = if FAULT == ACQUIRE { Ordering::Relaxed } else { Ordering::Acquire };
            while FAULT != WAIT && self.is_inside.load(order) {
                thread::yield_now();
            }
        }
        self.add_one();
    }

    fn sum(&self) -> u64 {
        let _guard = self.mutex.lock().expect("not poisoned");
        self.value.load(Ordering::Relaxed)
    }
}

/// The owner adds `own` times, while `others` threads add once each.
fn adds<L: Biased>(own: u64, others: u64) {
    let lock = Arc::new(L::new());
    let threads: Vec<_> = (0..others)
        .map(|_| {
            let lock = lock.clone();
            thread::spawn(move || lock.add(false))
        })
        .collect();
    for _ in 0..own {
        lock.add(true);
    }
    for thread in threads {
        thread.join().expect("no panic");
    }
    assert_eq!(
        lock.sum(),
        HEAD_START + own + others,
        "two were inside, or one did not see the other"
    );
}

/// Goal: the real lock is biased in the models below, or they would prove nothing about it. Method: add from two threads.
#[test]
fn the_lock_leans_in_a_model() {
    loom::model(|| {
        let lock = <BiasedLock as Biased>::new();
        assert!(lock.add(), "by its bias");
        let lock = Arc::new(lock);
        let other = {
            let lock = lock.clone();
            thread::spawn(move || assert!(!lock.add(), "it leans to another"))
        };
        other.join().expect("no panic");
        assert!(!lock.add(), "not any more");
        assert_eq!(lock.sum(), HEAD_START + 3);
    });
}

#[test]
fn nothing_is_lost_when_the_bias_ends() {
    loom::model(|| adds::<BiasedLock>(2, 1));
}

#[test]
fn nothing_is_lost_among_three() {
    loom::model(|| adds::<BiasedLock>(1, 2));
}

#[test]
fn the_mutants_whole_self_passes() {
    loom::model(|| adds::<Mutant<NOTHING>>(2, 1));
}

#[test]
fn mutant_without_the_barrier_is_found() {
    fails(|| adds::<Mutant<BARRIER>>(2, 1));
}

#[test]
fn mutant_without_the_light_fence_is_found() {
    fails(|| adds::<Mutant<LIGHT_FENCE>>(2, 1));
}

#[test]
fn mutant_that_does_not_wait_is_found() {
    fails(|| adds::<Mutant<WAIT>>(2, 1));
}

#[test]
fn mutant_that_waits_without_acquire_is_found() {
    fails(|| adds::<Mutant<ACQUIRE>>(2, 1));
}

#[test]
fn mutant_that_leaves_without_release_is_found() {
    fails(|| adds::<Mutant<RELEASE>>(2, 1));
}

#[test]
fn mutant_that_checks_before_it_enters_is_found() {
    fails(|| adds::<Mutant<MARK_FIRST>>(2, 1));
}

/// The mark stays, and the revoking thread waits for ever: loom abandons such a model.
#[test]
fn mutant_that_leaves_its_mark_is_found() {
    fails(|| adds::<Mutant<WAY_BACK>>(2, 1));
}
