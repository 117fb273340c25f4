//! Barriers of threads.

#![cfg(not(loom))]

use std::{
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use vigie_barrier::{
    BarrierError, Group, Rank,
    local::{ThreadBarrier, ThreadMember},
};

fn members(size: u32) -> Vec<ThreadMember> {
    ThreadBarrier::new(Group::new(size).expect("small")).into_members().collect()
}

/// Goal: no member leaves before all have entered, in both forms, with fewer and with more members than processors.
/// Method: counters of all members, read after each barrier.
#[test]
fn nobody_leaves_early() {
    for size in [1, 2, 3, 8, 33] {
        let counters: Vec<_> = (0..size).map(|_| AtomicU32::new(0)).collect();
        thread::scope(|scope| {
            for mut member in members(size) {
                let counters = &counters;
                scope.spawn(move || {
                    for epoch in 0..100 {
                        counters[member.rank().index()].fetch_add(1, Ordering::Relaxed);
                        let passed = if epoch % 3 == 0 {
                            let token = member.arrive().expect("all live");
                            member.depart(token).expect("all live")
                        } else {
                            member.wait().expect("all live")
                        };
                        assert_eq!(passed.epoch, 2 * epoch);
                        for counter in counters {
                            assert_eq!(counter.load(Ordering::Relaxed), epoch + 1);
                        }
                        // All have read them, before anybody goes on.
                        member.wait().expect("all live");
                    }
                });
            }
        });
    }
}

/// Goal: threads that sleep are woken, by the last member and by one that leaves. Method: the last one waits until
/// the kernel says that all others sleep.
#[test]
fn sleepers_are_woken() {
    for leaves in [false, true] {
        let mut members = members(5);
        let mut last = members.pop().expect("the last");
        thread::scope(|scope| {
            let (said, ids) = std::sync::mpsc::channel();
            for mut member in members {
                let said = said.clone();
                scope.spawn(move || {
                    said.send(rustix::thread::gettid()).expect("heard");
                    match member.wait() {
                        Ok(passed) => assert!(!leaves && passed.epoch == 0),
                        // Others that have heard may be gone as well.
                        Err(error) => assert!(leaves && error.lost().contains(&Rank(4)), "{error}"),
                    }
                });
            }
            for id in ids.iter().take(4) {
                let path = format!("/proc/self/task/{}/stat", id.as_raw_nonzero());
                let sleeps = || {
                    let stat = std::fs::read_to_string(&path).expect("it lives");
                    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
                };
                while !sleeps() {
                    thread::yield_now();
                }
            }
            if leaves {
                drop(last);
            } else {
                last.wait().expect("all live");
            }
        });
    }
}

/// Goal: a thread that ends or panics is named to the others. Method: each, at a later barrier.
#[test]
fn a_member_that_leaves_is_named() {
    for panics in [false, true] {
        let handles: Vec<_> = members(4)
            .into_iter()
            .map(|mut member| {
                thread::spawn(move || {
                    let rank = member.rank();
                    for epoch in 0..10 {
                        if rank == Rank(2) && epoch == 6 {
                            assert!(!panics, "planted");
                            return;
                        }
                        if let Err(error) = member.wait() {
                            assert_eq!(epoch, 6);
                            assert!(
                                error.lost().contains(&Rank(2)) && !error.lost().contains(&rank)
                            );
                            assert!(member.wait().is_err() && member.arrive().is_err());
                            return;
                        }
                    }
                    unreachable!("one leaves");
                })
            })
            .collect();
        for (rank, handle) in (0..).zip(handles) {
            assert_eq!(handle.join().is_err(), panics && rank == 2);
        }
    }
}

/// Goal: wrong use is a typed error, and changes nothing. Method: entering twice, tokens of others.
#[test]
fn wrong_use_is_refused() {
    let mut one = members(1).remove(0);
    let mut other = members(1).remove(0);
    let token = one.arrive().expect("alone");
    assert!(matches!(one.arrive(), Err(BarrierError::AlreadyEntered { epoch: 0 })));
    let Err(BarrierError::ForeignToken { token }) = other.depart(token) else {
        panic!("not its own")
    };
    assert_eq!(one.depart(token).expect("alone").epoch, 0);
    assert_eq!(one.wait().expect("alone").epoch, 1);
}
