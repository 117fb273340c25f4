//! Members that sleep on the futex word, as threads and processes do.

use std::sync::Arc;

use loom::{
    sync::{
        Condvar, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};
use vigie_barrier::{
    Group, Rank,
    loom_exports::{Absences, Central},
};

use crate::fails;

/// Stands for the kernel's: a sleeping member has found the value unchanged after all that was woken before.
struct Futex {
    lock: Mutex<()>,
    sleepers: Condvar,
}

impl Futex {
    fn wait(&self, central: &Central, value: u32) {
        let guard = self.lock.lock().expect("no panic");
        if central.futex_word().load(Ordering::Relaxed) == value {
            drop(self.sleepers.wait(guard).expect("no panic"));
        }
    }

    fn wake_all(&self) {
        let guard = self.lock.lock().expect("no panic");
        self.sleepers.notify_all();
        drop(guard);
    }
}

/// A way of waiting, right or wrong.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Right,
    /// Sleeps without a check after the announcement.
    NoSecondCheck,
    /// Asks for the futex word's value after the check, not before.
    GateAfterCheck,
    /// Checks for sleepers before it arrives.
    WakesTooEarly,
    /// Arrives last and wakes no member.
    WakesNobody,
}

struct Barrier {
    size: u32,
    way: Way,
    central: Central,
    absences: Absences,
    futex: Futex,
    /// The members' work before they enter, without any ordering of its own.
    cells: Vec<AtomicU32>,
}

impl Barrier {
    fn new(size: u32, way: Way) -> Arc<Self> {
        let futex = Futex { lock: Mutex::new(()), sleepers: Condvar::new() };
        let cells = (0..size).map(|_| AtomicU32::new(0)).collect();
        let absences = Absences::new(Group::new(size).expect("small"));
        Arc::new(Self { size, way, central: Central::new(), absences, futex, cells })
    }

    fn is_over(&self, epoch: u32) -> bool {
        self.central.is_passed((epoch + 1) * self.size) || self.absences.fails(epoch)
    }

    /// Returns whether the barrier was passed.
    fn wait(&self, epoch: u32) -> bool {
        let target = (epoch + 1) * self.size;
        let mut must_wake = self.way == Way::WakesTooEarly && self.central.must_wake();
        if self.central.arrive(target) {
            must_wake |= !matches!(self.way, Way::WakesTooEarly | Way::WakesNobody)
                && self.central.must_wake();
            if must_wake {
                self.futex.wake_all();
            }
            return true;
        }
        while !self.is_over(epoch) {
            let mut expected = self.central.begin_sleep();
            if self.way == Way::NoSecondCheck || !self.is_over(epoch) {
                if self.way == Way::GateAfterCheck {
                    expected = self.central.futex_word().load(Ordering::Acquire);
                }
                self.futex.wait(&self.central, expected);
            }
        }
        self.central.is_passed(target)
    }

    fn leave(&self, rank: u32, epoch: u32) {
        self.absences.leave(Rank(rank), epoch);
        if self.central.must_wake() {
            self.futex.wake_all();
        }
    }

    /// Passes barriers, and checks each time what the others have done before.
    fn play(&self, rank: u32, epochs: u32) {
        for epoch in 0..epochs {
            let place = usize::try_from(rank).expect("small");
            self.cells[place].store(epoch + 1, Ordering::Relaxed);
            assert!(self.wait(epoch));
            for cell in &self.cells {
                assert!(cell.load(Ordering::Relaxed) > epoch);
            }
        }
    }
}

fn model(size: u32, epochs: u32, way: Way) -> impl Fn() + Sync + Send + 'static {
    move || {
        let barrier = Barrier::new(size, way);
        let others: Vec<_> = (1..size)
            .map(|rank| {
                let barrier = Arc::clone(&barrier);
                thread::spawn(move || barrier.play(rank, epochs))
            })
            .collect();
        barrier.play(0, epochs);
        others.into_iter().for_each(|other| other.join().expect("no panic"));
    }
}

/// Goal: no member sleeps through the last arrival, over several barriers, and what was done before a barrier is visible
/// after it. Method: two members and three barriers; three members and one.
#[test]
fn sleepers_are_woken() {
    loom::model(model(2, 3, Way::Right));
    loom::model(model(3, 1, Way::Right));
}

/// Goal: the model sees each step that is left out. Method: the mutants.
#[test]
fn mutants_of_sleeping_fail() {
    for way in [Way::NoSecondCheck, Way::GateAfterCheck, Way::WakesTooEarly, Way::WakesNobody] {
        fails(model(2, 3, way));
    }
}

fn leaving(wakes: bool) -> impl Fn() + Sync + Send + 'static {
    move || {
        let barrier = Barrier::new(3, Way::Right);
        let leaver = {
            let barrier = Arc::clone(&barrier);
            thread::spawn(move || {
                if wakes {
                    barrier.leave(2, 0);
                } else {
                    barrier.absences.leave(Rank(2), 0);
                }
            })
        };
        let waiter = {
            let barrier = Arc::clone(&barrier);
            thread::spawn(move || {
                assert!(!barrier.wait(0));
                assert_eq!(barrier.absences.missing(0), [Rank(2)]);
            })
        };
        assert!(!barrier.wait(0));
        assert_eq!(barrier.absences.missing(0), [Rank(2)]);
        leaver.join().expect("no panic");
        waiter.join().expect("no panic");
    }
}

/// Goal: no member sleeps through the leaving of one that had not entered, and all learn its rank. Method: two that
/// wait, one that leaves; the mutant wakes no member.
#[test]
fn a_member_that_leaves_is_told_of() {
    loom::model(leaving(true));
    fails(leaving(false));
}
