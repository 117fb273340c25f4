//! Barriers over shared memory, with members on threads of this process; `tests/crash.rs` has processes.

#![cfg(not(loom))]

#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;

use std::{
    fs,
    future::Future,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use vigie_barrier::{
    BarrierError, Group, Rank,
    local::shm::{BootstrapNameError, BootstrapPoint, ShmBootstrap, ShmFormationError, ShmMember},
};
use vigie_detect::{HostThread, Instant, Server};
use vigie_runtime::{Flavor, Runtime};
use vigie_via::world;

use crate::kit::child::in_child;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(future)
}

fn host() -> HostThread {
    Server::spawn_thread().expect("a thread")
}

fn group(size: u32) -> Group {
    Group::new(size).expect("small")
}

/// Lets each member of a group play its part on a thread of its own, with a server of its own.
fn with_members(size: u32, play: impl Fn(ShmMember, &Server) + Sync) {
    let point = BootstrapPoint::random().expect("random numbers");
    thread::scope(|scope| {
        for rank in group(size).ranks() {
            let meeting = ShmBootstrap::new(group(size), rank, point.clone());
            let play = &play;
            scope.spawn(move || {
                let host = host();
                let joined = block_on(meeting.join_on(host.server(), soon()));
                play(joined.expect("a group"), host.server());
            });
        }
    });
}

/// Goal: no member leaves before all have entered, whether members await or block, in both forms. Method: counters of
/// all members, read after each barrier.
#[test]
fn nobody_leaves_early() {
    for size in [1, 2, 3, 9] {
        let counters: Vec<_> = (0..size).map(|_| AtomicU32::new(0)).collect();
        with_members(size, |mut member, _| {
            let awaits = member.rank().0 % 2 == 0;
            for epoch in 0..60 {
                counters[member.rank().index()].fetch_add(1, Ordering::Relaxed);
                let is_split = epoch % 3 == 0;
                let passed = if is_split {
                    let token = member.arrive().expect("all live");
                    if awaits {
                        block_on(member.depart(token))
                    } else {
                        member.depart_blocking(token)
                    }
                } else if awaits {
                    block_on(member.wait())
                } else {
                    member.wait_blocking()
                };
                assert_eq!(passed.expect("all live").epoch, 2 * epoch);
                for counter in &counters {
                    assert_eq!(counter.load(Ordering::Relaxed), epoch + 1);
                }
                // All have read them, before anybody goes on.
                member.wait_blocking().expect("all live");
            }
        });
    }
}

/// Goal: the barrier is awaited under each flavor of vigie, beside other tasks that go on meanwhile. Method: one
/// runtime of each flavor as a member, and one that is late until a task beside each waiting one has run.
#[test]
fn tasks_go_on_meanwhile() {
    let flavors = [Flavor::UserLevel, Flavor::Hybrid, Flavor::KernelLevel];
    let point = BootstrapPoint::random().expect("random numbers");
    let confirmed = AtomicU32::new(0);
    thread::scope(|scope| {
        for (rank, flavor) in (1..).map(Rank).zip(flavors) {
            let meeting = ShmBootstrap::new(group(4), rank, point.clone());
            let confirmed = &confirmed;
            scope.spawn(move || {
                let runtime = Runtime::builder().flavor(flavor).build().expect("a runtime");
                let joining = runtime.spawn(async move { meeting.join(soon()).await });
                let mut member = runtime.block_on(joining).expect("no panic").expect("a group");
                let waiting = runtime.spawn(async move { member.wait().await });
                runtime.block_on(async {
                    let beside = runtime.spawn(async {
                        for _ in 0..100 {
                            vigie_runtime::time::sleep(Duration::from_micros(100)).await;
                        }
                    });
                    beside.await.expect("no panic");
                    assert!(!waiting.is_finished(), "{flavor:?}: one is late");
                    confirmed.fetch_add(1, Ordering::Relaxed);
                    assert_eq!(waiting.await.expect("no panic").expect("all live").epoch, 0);
                });
            });
        }
        let host = host();
        let meeting = ShmBootstrap::new(group(4), Rank(0), point.clone());
        let mut late = block_on(meeting.join_on(host.server(), soon())).expect("a group");
        while confirmed.load(Ordering::Relaxed) < 3 {
            thread::yield_now();
        }
        late.wait_blocking().expect("all live");
    });
}

/// Goal: a dropped wait stays entered, and the next call goes on with the same barrier. Method: drop it after one poll.
#[test]
fn a_dropped_wait_stays_entered() {
    with_members(2, |mut member, _| {
        block_on(async {
            for epoch in 0..20 {
                {
                    let mut wait = std::pin::pin!(member.wait());
                    let polled =
                        std::future::poll_fn(|cx| std::task::Poll::Ready(wait.as_mut().poll(cx)));
                    if polled.await.is_ready() {
                        continue;
                    }
                }
                assert!(matches!(
                    member.arrive(),
                    Err(BarrierError::AlreadyEntered { epoch: e }) if e == epoch
                ));
                assert_eq!(member.wait().await.expect("all live").epoch, epoch);
            }
        });
    });
}

/// Goal: a leaving member is named to members that await and to members that block, also while they sleep; one that
/// had entered before it left is not missing. Method: one leaves after it has entered the second barrier.
#[test]
fn a_member_that_leaves_is_named() {
    with_members(4, |mut member, _| {
        let rank = member.rank();
        member.wait_blocking().expect("all live");
        if rank == Rank(3) {
            let _ = member.arrive().expect("all live");
            return;
        }
        assert_eq!(member.wait_blocking().expect("all had entered").epoch, 1);
        let failed = if rank == Rank(1) { block_on(member.wait()) } else { member.wait_blocking() };
        let error = failed.expect_err("one is gone");
        assert!(error.lost().contains(&Rank(3)) && !error.lost().contains(&rank), "{error}");
        // Its own entry is of no use any more; it stays so.
        assert!(member.wait_blocking().is_err());
    });
}

/// Goal: the ranks of a world find each other, and two groups of one world are apart. Method: a world of threads.
#[test]
fn a_world_meets() {
    let host = host();
    let (_launcher, worlds) = world::local(host.server(), 5).expect("a world");
    thread::scope(|scope| {
        for world in worlds {
            let server = host.server().clone();
            scope.spawn(move || {
                block_on(async {
                    let join = async |key| {
                        let meeting = ShmBootstrap::in_world(&world, key, soon()).await?;
                        meeting.join_on(&server, soon()).await
                    };
                    let mut one = join("one").await.expect("a group");
                    let mut other = join("other").await.expect("a group");
                    assert_eq!((one.rank(), one.group().size()), (world.rank(), 5));
                    for epoch in 0..10 {
                        let token = one.arrive().expect("all live");
                        assert_eq!(other.wait().await.expect("all live").epoch, epoch);
                        assert_eq!(one.depart(token).await.expect("all live").epoch, epoch);
                    }
                });
            });
        }
    });
}

/// Goal: strangers are turned away, members that do not come are named, and none waits longer than its deadline.
/// Method: a wrong secret, a wrong size, a rank that is out of the group or taken twice.
#[test]
fn strangers_are_turned_away() {
    let point = BootstrapPoint::random().expect("random numbers");
    let name = format!("vigie-barrier-test-{}", std::process::id());
    let named = |secret| BootstrapPoint::new(&name, [secret; 16]).expect("a name");
    let (right, wrong) = (named(1), named(2));
    let host = host();
    let server = host.server();
    let join = |group, rank, point: &BootstrapPoint, deadline| {
        ShmBootstrap::new(group, Rank(rank), point.clone()).join_on(server, deadline)
    };
    let now = Instant::now() + Duration::from_millis(20);
    let alone = block_on(join(group(2), 1, &point, now));
    assert!(matches!(alone, Err(ShmFormationError::Unreachable { .. })), "{alone:?}");
    let outside = block_on(join(group(2), 2, &point, now));
    assert!(matches!(outside, Err(ShmFormationError::Impossible { size: 2, rank: Rank(2) })));
    let large = block_on(join(group(ShmBootstrap::SIZE_MAX + 1), 0, &point, now));
    assert!(matches!(large, Err(ShmFormationError::Impossible { .. })));
    thread::scope(|scope| {
        let leader = scope.spawn(|| {
            let deadline = Instant::now() + Duration::from_secs(3);
            block_on(join(group(5), 0, &right, deadline))
        });
        for (size, rank, point) in [(5, 1, &wrong), (4, 1, &right), (5, 0, &right)] {
            if rank == 0 {
                // The name is taken.
                let other = block_on(join(group(size), 0, point, soon()));
                let said = other.expect_err("refused").to_string();
                assert!(
                    said.starts_with("another process is rank 0 at this meeting point"),
                    "{said}"
                );
                continue;
            }
            let refused = block_on(join(group(size), rank, point, soon()));
            assert!(matches!(refused, Err(ShmFormationError::Refused { .. })), "{refused:?}");
        }
        let first = scope.spawn(|| block_on(join(group(5), 1, &right, soon())));
        let second = block_on(join(group(5), 1, &right, soon()));
        let first = first.join().expect("no panic");
        // Both are refused in the end: one as the second of its rank, one as rank 0 gives up.
        assert!(matches!(first, Err(ShmFormationError::Refused { .. })), "{first:?}");
        assert!(matches!(second, Err(ShmFormationError::Refused { .. })), "{second:?}");
        let missing = leader.join().expect("no panic");
        let Err(ShmFormationError::Missing { ranks }) = &missing else { panic!("{missing:?}") };
        assert_eq!(ranks.ranks(), [Rank(2), Rank(3), Rank(4)]);
        let said = missing.expect_err("not formed").to_string();
        assert!(said.starts_with("ranks 2, 3, 4 are missing"), "{said}");
    });
}

/// Goal: a name that no socket can have, or that no user could read, is refused at once, and the error says what to do.
/// Method: empty, too long by a byte, a zero, a line break, a space; the longest one meets.
#[test]
fn names_are_checked() {
    let refused = |name: &str| BootstrapPoint::new(name, [1; 16]).expect_err("refused");
    let long = "é".repeat(BootstrapPoint::NAME_MAX / 2);
    assert_eq!(refused(""), BootstrapNameError::Empty);
    let too_long = refused(&(long.clone() + "x"));
    assert_eq!(too_long, BootstrapNameError::TooLong { length: BootstrapPoint::NAME_MAX + 1 });
    assert!(too_long.to_string().ends_with("shorten it to 100 at most"), "{too_long}");
    for (name, character, at) in [("a\0b", '\0', 1), ("\n", '\n', 0), ("é b", ' ', 2)] {
        assert_eq!(refused(name), BootstrapNameError::Character { character, at });
    }
    let point = BootstrapPoint::new(&long, [1; 16]).expect("as long as a name may be");
    let host = host();
    let alone = ShmBootstrap::new(group(1), Rank(0), point).join_on(host.server(), soon());
    drop(block_on(alone).expect("the kernel takes it"));
}

/// Goal: nothing is left behind: no descriptor, no mapping. Method: count both before and after groups have come and
/// gone, in a process of its own, since other tests run beside.
#[test]
fn nothing_is_left_behind() {
    in_child("nothing_is_left_behind", || {
        let count = || fs::read_dir("/proc/self/fd").expect("proc").count();
        let before = count();
        for _ in 0..3 {
            with_members(4, |mut member, _| drop(member.wait_blocking()));
        }
        assert_eq!(count(), before, "descriptors are left");
        let maps = fs::read_to_string("/proc/self/maps").expect("proc");
        assert!(!maps.contains("vigie-barrier ") && !maps.contains("memfd:vigie"), "{maps}");
    });
}
