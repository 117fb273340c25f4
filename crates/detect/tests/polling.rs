//! Hosts that poll before they sleep, and the purpose of poll passes.

#[path = "../../../tests/kit/mod.rs"]
#[expect(dead_code, reason = "a test uses parts of the kit")]
mod kit;

use std::{
    future::Future,
    io::Write,
    os::{fd::AsFd, unix::net::UnixStream},
    pin::pin,
    task::{Context, Waker},
    thread,
    time::Duration,
};

use vigie_detect::{
    Detected, Fixed, Flavor, Frequency, Interest, Server, Strategy,
    detectors::readiness::{Direction, ReadinessRequest},
};

use crate::kit::guard::against_hang;

/// Polls for an hour before it sleeps.
fn poll_long() -> Fixed {
    let every = Frequency::Time(Duration::from_micros(50));
    Fixed(Strategy::PollThenSleep { every, spin: Duration::from_secs(3600) })
}

/// Goal: a host that polls before its sleep is called away from it like a sleeper. Method: each way
/// to call it, while it polls for an hour or is about to.
#[test]
fn a_polling_host_is_called_away() {
    let calls: [fn(&Server); 2] = [Server::unpark, Server::shutdown];
    for call in calls {
        against_hang(move || {
            let server =
                Server::with_readiness_policy(Flavor::Hybrid, poll_long()).expect("a server");
            let mut driver = server.driver();
            // Takes over the changes: a strategy is known to the next poll pass.
            driver.detect();
            let host = thread::spawn(move || driver.park(None));
            call(&server);
            host.join().expect("no panic");
        });
    }
}

/// Goal: an event that comes while the host polls is delivered then, not afterwards. Method: a
/// socket that is written to while the host polls for an hour.
#[test]
fn a_polling_host_sees_events() {
    against_hang(|| {
        let server = Server::with_readiness_policy(Flavor::Hybrid, poll_long()).expect("a server");
        let entered = server.enter();
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        ours.set_nonblocking(true).expect("it can be non-blocking");
        let source =
            server.readiness().watch(ours.as_fd(), Interest::Readable).expect("it is watched");
        let awaited = ReadinessRequest { source, direction: Direction::Read };
        let mut wait = pin!(server.readiness().wait(awaited));
        let waker = Waker::noop();
        assert!(wait.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
        let mut driver = server.driver();
        driver.detect();
        let host = thread::spawn(move || driver.park(None));
        (&theirs).write_all(b"x").expect("there is room");
        assert_eq!(host.join().expect("no panic"), Detected::Events(1));
        assert!(wait.as_mut().poll(&mut Context::from_waker(waker)).is_ready());
        drop(entered);
    });
}

/// Goal: poll passes while tasks run serve only watched descriptors; notifiers and deadlines announce
/// when one is due. Method: a server with only timers, which then watches a socket.
#[test]
fn passes_are_for_what_is_watched() {
    let server = Server::new(Flavor::UserLevel).expect("a server");
    let mut driver = server.driver();
    driver.detect();
    let later = server.now() + Duration::from_secs(3600);
    assert!(!driver.is_due(later), "no pass was requested");
    let deadline = later + Duration::from_secs(1);
    let slack = Duration::from_millis(3);
    let mut sleep = pin!(server.timers().wait(deadline).slack(slack));
    let waker = Waker::noop();
    assert!(sleep.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    driver.detect();
    assert!(!driver.is_due(later), "the deadline has not come");
    assert!(!driver.is_due(deadline), "what runs is not disturbed before the slack is used up");
    assert!(driver.is_due(deadline + slack));
    let (ours, _theirs) = UnixStream::pair().expect("a pair of sockets");
    let watched =
        server.readiness().watch(ours.as_fd(), Interest::Readable).expect("it is watched");
    assert!(driver.is_due(server.now()), "what has changed is taken over at once");
    driver.detect();
    assert!(driver.is_due(later), "descriptors are polled");
    server.readiness().unwatch(ours.as_fd(), &watched);
}

/// Goal: a poll without success costs one extra pass, and no sleep is skipped: the host sleeps after
/// it, and the history records it. Method: a host that polls briefly and sleeps until a deadline, with
/// nothing to come.
#[test]
fn a_poll_in_vain_is_recorded() {
    against_hang(|| {
        let every = Frequency::Time(Duration::from_micros(50));
        let policy = Fixed(Strategy::PollThenSleep { every, spin: Duration::from_nanos(1) });
        let server = Server::with_readiness_policy(Flavor::UserLevel, policy).expect("a server");
        let mut driver = server.driver();
        driver.detect();
        for count in 1..=3 {
            let until = server.now() + Duration::from_millis(1);
            assert_eq!(driver.park(Some(until)), Detected::Nothing);
            let (history, _) = server.readiness().history();
            assert_eq!((history.spin_misses(), history.spin_hits()), (count, 0));
            assert_eq!(server.metrics().sleeps, count);
            assert!(history.spin_balance() < 0, "{history:?}");
        }
    });
}
