//! Values that are reduced along with barriers of tasks and threads.

#![cfg(not(loom))]

use std::{
    future::Future,
    panic::{self, AssertUnwindSafe},
    pin::pin,
    task::{Context, Waker},
    thread,
};

use vigie_barrier::{
    BarrierError, Group, Rank, Reduction,
    local::{TaskBarrier, ThreadBarrier},
    reduction::{Builtin, Counting, Element},
};

const EPOCHS: u64 = 300;

fn reductions() -> Vec<Reduction> {
    let user = Reduction::user(1024, Counting::Once, |into, other| {
        for (into, other) in into.iter_mut().zip(other) {
            *into ^= other;
        }
    });
    [Builtin::Min, Builtin::Max, Builtin::Sum]
        .map(|builtin| Reduction::builtin(builtin, Element::U64, 2).expect("short"))
        .into_iter()
        .chain([user.expect("short")])
        .collect()
}

/// A member's value in an epoch: numbers that differ from epoch to epoch.
fn given(reduction: &Reduction, rank: u32, epoch: u64) -> Vec<u8> {
    let number = (u64::from(rank) + 3) * (epoch % 7 + 1) + epoch;
    number.to_le_bytes().repeat(reduction.bytes() / 8)
}

/// The result, computed without a barrier.
fn expected(kind: usize, reduction: &Reduction, size: u32, epoch: u64) -> Vec<u8> {
    let number = |rank| (u64::from(rank) + 3) * (epoch % 7 + 1) + epoch;
    let numbers = (0..size).map(number);
    let result = match kind {
        0 => numbers.min(),
        1 => numbers.max(),
        2 => Some(numbers.sum()),
        _ => numbers.reduce(|one, other| one ^ other),
    };
    result.expect("not empty").to_le_bytes().repeat(reduction.bytes() / 8)
}

/// Goal: every member gets the value that the numbers of all make, in each of many barriers that follow at once. Method:
/// threads, several sizes, every builtin and a function over the longest value; the result is computed separately.
#[test]
fn threads_reduce() {
    for size in [1, 2, 5] {
        for (kind, reduction) in reductions().into_iter().enumerate() {
            let group = Group::new(size).expect("a size");
            let threads: Vec<_> = ThreadBarrier::new(group)
                .reducing(reduction.clone())
                .map(|mut member| {
                    let reduction = reduction.clone();
                    thread::spawn(move || {
                        for epoch in 0..EPOCHS {
                            let own = given(&reduction, member.rank().0, epoch);
                            let (passed, value) = member.reduce(&own).expect("no member leaves");
                            assert_eq!(u64::from(passed.epoch), epoch);
                            assert_eq!(value, expected(kind, &reduction, size, epoch));
                        }
                        assert!(matches!(
                            member.reduce(&[1]),
                            Err(BarrierError::Value { found: 1, .. })
                        ));
                        // The last member here is told that others have left, or none has.
                        drop(member);
                    })
                })
                .collect();
            for thread in threads {
                thread.join().expect("no panic");
            }
        }
    }
}

/// Goal: tasks reduce too, and a cancelled one keeps its first value. Method: tasks of one runtime; member 1 polls each of
/// its calls once and drops it before it calls again, with a value that must not count.
#[test]
fn tasks_reduce_and_may_be_cancelled() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .expect("a runtime");
    let size = 4;
    for (kind, reduction) in reductions().into_iter().enumerate() {
        let members = TaskBarrier::new(Group::new(size).expect("four")).reducing(reduction.clone());
        let tasks: Vec<_> = members
            .map(|mut member| {
                let reduction = reduction.clone();
                runtime.spawn(async move {
                    for epoch in 0..EPOCHS {
                        let own = given(&reduction, member.rank().0, epoch);
                        let mut is_through = None;
                        if member.rank() == Rank(1) {
                            let mut call = pin!(member.reduce(&own));
                            let mut cx = Context::from_waker(Waker::noop());
                            if let std::task::Poll::Ready(result) = call.as_mut().poll(&mut cx) {
                                is_through = Some(result);
                            }
                        }
                        let result = match is_through {
                            Some(result) => result,
                            None if member.rank() == Rank(1) => {
                                member.reduce(&vec![0xee; reduction.bytes()]).await
                            }
                            None => member.reduce(&own).await,
                        };
                        let (_, value) = result.expect("no member leaves");
                        assert_eq!(value, expected(kind, &reduction, size, epoch), "epoch {epoch}");
                    }
                })
            })
            .collect();
        runtime.block_on(async {
            for task in tasks {
                let bound = std::time::Duration::from_secs(60);
                tokio::time::timeout(bound, task).await.expect("no hang").expect("no panic");
            }
        });
    }
}

/// Goal: a leaving member is named here too. Method: one of three threads leaves instead of entering.
#[test]
fn a_member_that_leaves_is_named() {
    let sum = Reduction::builtin(Builtin::Sum, Element::I64, 1).expect("short");
    let mut members: Vec<_> =
        ThreadBarrier::new(Group::new(3).expect("three")).reducing(sum).collect();
    drop(members.pop());
    let threads: Vec<_> = members
        .into_iter()
        .map(|mut member| thread::spawn(move || member.reduce(&[0; 8]).map(drop)))
        .collect();
    for thread in threads {
        let error = thread.join().expect("no panic").expect_err("one has left");
        // The other one may be gone too by then, since a thread that has its error ends.
        assert!(error.lost().contains(&Rank(2)), "{error}");
    }
}

/// Goal: a function that panics spoils the barrier that it panics in, and no later one. Method: it panics at one value in
/// the middle; a caller that catches that has the right sums before and after it, in both places of the table.
#[test]
fn a_panicking_function_spoils_one_barrier() {
    let sum = Reduction::user(1, Counting::Once, |into, other| {
        assert!(other[0] != 99, "on purpose");
        into[0] += other[0];
    });
    let threads: Vec<_> = ThreadBarrier::new(Group::new(2).expect("a size"))
        .reducing(sum.expect("short"))
        .map(|mut member| {
            thread::spawn(move || {
                let own = u8::try_from(member.rank().0).expect("small");
                let values = if own == 0 { [1, 2, 3, 4, 5] } else { [10, 99, 30, 40, 50] };
                values.map(|value| {
                    let reduced = || member.reduce(&[value]).expect("no member is gone").1[0];
                    panic::catch_unwind(AssertUnwindSafe(reduced)).ok()
                })
            })
        })
        .collect();
    for thread in threads {
        let sums = thread.join().expect("caught");
        assert_eq!(sums, [Some(11), None, Some(33), Some(44), Some(55)]);
    }
}
