//! Forked children and the members that they inherit. Each child is a real one.

#![cfg(not(loom))]
#[path = "../../../tests/kit/forked.rs"]
mod forked;

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::{Mutex, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use vigie_barrier::{
    BarrierError, Group, Rank,
    local::shm::{BootstrapPoint, ShmBootstrap, ShmMember},
};
use vigie_detect::{Driver, Flavor, Instant, Server, WaitError};

use crate::forked::ends_in_fork;

/// Held by each test: a child must not inherit a lock that the thread of another test holds.
static ALONE: Mutex<()> = Mutex::new(());

fn server() -> (Server, Driver) {
    let server = Server::new(Flavor::UserLevel).expect("an epoll");
    let driver = server.driver();
    (server, driver)
}

fn poll<T>(future: &mut Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Drives both futures on this thread until they are done.
fn both<A, B>(
    driver: &mut Driver,
    one: impl Future<Output = A>,
    other: impl Future<Output = B>,
) -> (A, B) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    let (mut first, mut second) = (None, None);
    for _ in 0..100_000 {
        if first.is_none()
            && let Poll::Ready(value) = poll(&mut one)
        {
            first = Some(value);
        }
        if second.is_none()
            && let Poll::Ready(value) = poll(&mut other)
        {
            second = Some(value);
        }
        let _ = driver.detect();
        match (first.take(), second.take()) {
            (Some(first), Some(second)) => return (first, second),
            rest => (first, second) = rest,
        }
    }
    panic!("it hangs");
}

fn group(size: u32) -> Group {
    Group::new(size).expect("small")
}

/// Two members of this process.
fn members(server: &Server, driver: &mut Driver) -> (ShmMember, ShmMember) {
    let point = BootstrapPoint::random().expect("random numbers");
    let soon = Instant::now() + Duration::from_secs(60);
    let [one, other] = [0, 1]
        .map(|rank| ShmBootstrap::new(group(2), Rank(rank), point.clone()).join_on(server, soon));
    let (one, other) = both(driver, one, other);
    (one.expect("a group"), other.expect("a group"))
}

/// Goal: a child that drops a member which it has inherited leaves its parent's in the group. Method: of two members one
/// waits; a child drops the other one, and ends; the waiting one checks which members are gone, and does not see that
/// the other is; then this one enters, and both pass.
#[test]
fn what_a_child_drops_stays_a_member() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (server, mut driver) = server();
    let (mut one, other) = members(&server, &mut driver);
    let mut other = Some(other);
    {
        let mut waiting = pin!(one.wait());
        let mut poll_often = |driver: &mut Driver| {
            // More than it polls before it sleeps.
            for _ in 0..1000 {
                assert!(poll(&mut waiting).is_pending(), "one is missing, and not gone");
                let _ = driver.detect();
            }
        };
        poll_often(&mut driver);
        assert!(ends_in_fork(|| drop(other.take())), "the child hangs or panics");
        poll_often(&mut driver);
    }
    let mut other = other.expect("it is ours");
    let (passed, also) = both(&mut driver, one.wait(), other.wait());
    assert_eq!((passed.expect("both").epoch, also.expect("both").epoch), (0, 0));
    // A member that its own process drops is gone.
    drop(other);
    let mut waiting = pin!(one.wait());
    let lost = (0..100_000).find_map(|_| {
        let _ = driver.detect();
        match poll(&mut waiting) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    });
    assert_eq!(lost.expect("it is told").expect_err("one is gone").lost(), [Rank(1)]);
}

/// Goal: a child does not enter in the name of its parent's member. Method: it tries each way, before the parent has entered
/// and after; the other member has not passed then.
#[test]
fn a_child_does_not_enter_for_its_parent() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (server, mut driver) = server();
    let (mut one, mut other) = members(&server, &mut driver);
    let is_refused = |result: Result<(), BarrierError>| {
        assert!(matches!(result, Err(BarrierError::Wait(WaitError::ServerClosed))), "{result:?}");
    };
    let ended = ends_in_fork(|| {
        is_refused(one.arrive().map(drop));
        is_refused(one.wait_blocking().map(drop));
        let Poll::Ready(waited) = poll(&mut pin!(one.wait())) else { panic!("it waits") };
        is_refused(waited.map(drop));
    });
    assert!(ended, "the child hangs or panics");
    let token = one.arrive().expect("outside");
    assert!(ends_in_fork(|| is_refused(one.wait_blocking().map(drop))));
    assert!(poll(&mut pin!(one.depart(token))).is_pending(), "one has not entered");
    let (passed, also) = both(&mut driver, one.wait(), other.wait());
    assert_eq!((passed.expect("both").epoch, also.expect("both").epoch), (0, 0));
}
