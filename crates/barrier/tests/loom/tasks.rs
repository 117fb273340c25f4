//! The barrier of tasks, whose members are woken by wakers.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use loom::{
    sync::{
        Condvar, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};
use vigie_barrier::{
    Group, Rank,
    local::{TaskBarrier, TaskMember},
    loom_exports::Central,
};

use crate::fails;

/// A thread that runs one future.
struct Executor {
    is_woken: Mutex<bool>,
    woken: Condvar,
}

impl Wake for Executor {
    fn wake(self: Arc<Self>) {
        *self.is_woken.lock().expect("no panic") = true;
        self.woken.notify_one();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let executor = Arc::new(Executor { is_woken: Mutex::new(false), woken: Condvar::new() });
    let waker = Waker::from(Arc::clone(&executor));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        let mut is_woken = executor.is_woken.lock().expect("no panic");
        while !*is_woken {
            is_woken = executor.woken.wait(is_woken).expect("no panic");
        }
        *is_woken = false;
    }
}

/// The members' work before they enter, without any ordering of its own: passing too early shows.
struct Marks(Vec<AtomicU32>);

impl Marks {
    fn new(size: u32) -> Arc<Self> {
        Arc::new(Self((0..size).map(|_| AtomicU32::new(0)).collect()))
    }

    fn enter(&self, rank: Rank, epoch: u32) {
        self.0[rank.index()].store(epoch + 1, Ordering::Relaxed);
    }

    fn passed(&self, epoch: u32) {
        assert!(self.0.iter().all(|mark| mark.load(Ordering::Relaxed) > epoch), "too early");
    }

    /// Waits in barrier `epoch`, which all are to enter.
    async fn wait(&self, member: &mut TaskMember, epoch: u32) {
        self.enter(member.rank(), epoch);
        assert_eq!(member.wait().await.expect("all live").epoch, epoch);
        self.passed(epoch);
    }
}

fn members(size: u32) -> Vec<TaskMember> {
    TaskBarrier::new(Group::new(size).expect("small")).into_members().collect()
}

/// Goal: no task misses its waking or passes before all have entered, also where a barrier follows on another at
/// once, or a member arrives first and waits later. Method: two members and two barriers, one of them in two phases; three members and one.
#[test]
fn tasks_are_woken() {
    loom::model(|| {
        let mut members = members(2).into_iter();
        let (mut one, mut other) = (members.next().expect("0"), members.next().expect("1"));
        let marks = Marks::new(2);
        let own = Arc::clone(&marks);
        let thread = thread::spawn(move || {
            block_on(async {
                own.wait(&mut one, 0).await;
                own.enter(one.rank(), 1);
                let token = one.arrive().expect("all live");
                assert_eq!(one.depart(token).await.expect("all live").epoch, 1);
                own.passed(1);
                one
            })
        });
        block_on(async {
            marks.wait(&mut other, 0).await;
            marks.wait(&mut other, 1).await;
        });
        drop(thread.join().expect("no panic"));
    });
    loom::model(|| {
        let marks = Marks::new(3);
        let threads: Vec<_> = members(3)
            .into_iter()
            .map(|mut member| {
                let marks = Arc::clone(&marks);
                thread::spawn(move || block_on(marks.wait(&mut member, 0)))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}

/// Goal: a task that has arrived and leaves its waker only then misses nothing that came in between. Method: two
/// members, one of which does so.
#[test]
fn a_late_waker_is_woken() {
    loom::model(|| {
        let mut members = members(2).into_iter();
        let (mut one, mut other) = (members.next().expect("0"), members.next().expect("1"));
        let marks = Marks::new(2);
        let own = Arc::clone(&marks);
        let thread = thread::spawn(move || block_on(own.wait(&mut other, 0)));
        marks.enter(one.rank(), 0);
        let token = one.arrive().expect("all live");
        block_on(one.depart(token)).expect("all live");
        marks.passed(0);
        thread.join().expect("no panic");
    });
}

/// Goal: a member that is dropped ends the others' wait, whenever that happens, with its rank. Method: one waits, the
/// other is dropped.
#[test]
fn a_dropped_member_is_told_of() {
    loom::model(|| {
        let mut members = members(2).into_iter();
        let (mut one, other) = (members.next().expect("0"), members.next().expect("1"));
        let thread = thread::spawn(move || drop(other));
        let error = block_on(one.wait()).expect_err("no other member enters");
        assert_eq!(error.lost(), [Rank(1)]);
        thread.join().expect("no panic");
    });
}

/// Goal: an exchange that is late, and found by its team in the next barrier, lets no member pass that one. Method: two
/// members and two barriers, with a pause before the second one for members that may have been late.
#[test]
fn a_late_exchange_lets_nobody_pass() {
    loom::model(|| {
        let marks = Marks::new(2);
        let threads: Vec<_> = members(2)
            .into_iter()
            .map(|mut member| {
                let marks = Arc::clone(&marks);
                thread::spawn(move || {
                    block_on(marks.wait(&mut member, 0));
                    if member.rank() == Rank(1) {
                        thread::yield_now();
                    }
                    block_on(marks.wait(&mut member, 1));
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}

/// Goal: a member that leaves while another one still wakes a team is reported to one that was woken before it
/// left. Method: two of a team and one of another, of which the one or the other leaves.
#[test]
fn a_member_that_leaves_during_the_waking_is_told_of() {
    for leaver in [Rank(1), Rank(2)] {
        loom::model(move || {
            let mut members = members(3).into_iter();
            let mut one = members.next().expect("one of three");
            let threads: Vec<_> = members
                .map(|mut member| {
                    thread::spawn(move || {
                        block_on(member.wait()).expect("all live");
                        (member.rank() != leaver).then_some(member)
                    })
                })
                .collect();
            block_on(one.wait()).expect("all live");
            let error = block_on(one.wait()).expect_err("one leaves");
            assert_eq!(error.lost(), [leaver]);
            threads.into_iter().for_each(|thread| drop(thread.join().expect("no panic")));
        });
    }
}

/// Goal: the model would see a waker that is left too late. Method: a mutant that leaves it after it has entered,
/// and does not check once more.
#[test]
fn a_mutant_that_registers_late_fails() {
    fails(|| {
        let shared = Arc::new((Central::new(), Mutex::new(None::<Waker>)));
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            if other.0.arrive(2)
                && let Some(waker) = &*other.1.lock().expect("no panic")
            {
                waker.wake_by_ref();
            }
        });
        let mut is_entered = false;
        block_on(std::future::poll_fn(|cx| {
            if !is_entered {
                is_entered = true;
                if shared.0.arrive(2) {
                    return Poll::Ready(());
                }
                *shared.1.lock().expect("no panic") = Some(cx.waker().clone());
                return Poll::Pending;
            }
            if shared.0.is_passed(2) { Poll::Ready(()) } else { Poll::Pending }
        }));
        thread.join().expect("no panic");
    });
}
